//! Hands the relay's memory to a switch on the same machine: as a descriptor, over a Unix socket.
//! The switch opens no path but that socket's, given by the user or derived from the relay's port,
//! and checks what it receives before mapping it.
//!
//! ```text
//! switch -> relay   token 32 bytes   from the welcome, which came over the control connection
//! relay -> switch   1 byte           and the descriptor (SCM_RIGHTS)
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, shutdown,
    socket_with,
};
use rustix::process::geteuid;
use strata_sandbox::{Role, SOCKET_NAME, SocketFile, restrict_thread, runtime_dir};
use strata_sys::shared::SharedMemory;

use crate::error::{RelayError, io_error};
use crate::random::random;

/// Bytes of a token: enough random bits to be unguessable, in hexadecimal.
const TOKEN_LEN: usize = 32;
/// How long either end waits for the other.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait when a connection cannot be accepted, as without descriptors.
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// The name of the directory of a relay's socket.
pub(crate) fn dir_name(port: u16) -> String {
    format!("relay-{port}")
}

/// The default socket where the relay of this machine that listens on `port` hands over its memory.
fn usual_socket(port: u16) -> PathBuf {
    runtime_dir().join(dir_name(port)).join(SOCKET_NAME)
}

/// Memory waiting to be fetched, by token.
type Offers = Arc<Mutex<HashMap<String, Weak<SharedMemory>>>>;

fn lock(offers: &Offers) -> MutexGuard<'_, HashMap<String, Weak<SharedMemory>>> {
    offers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The relay's end: a thread that hands memory over to holders of a token.
pub(crate) struct Handover {
    offers: Offers,
    socket: Arc<SocketFile>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Handover {
    pub(crate) fn start(socket: SocketFile) -> Result<Self, RelayError> {
        let (offers, socket) = (Offers::default(), Arc::new(socket));
        let stop = Arc::new(AtomicBool::new(false));
        let (ours, listening, stopped) =
            (Arc::clone(&offers), Arc::clone(&socket), Arc::clone(&stop));
        let work = move || {
            // Does nothing in a relay that has no sandbox on purpose. If the kernel refuses, it has refused
            // the filter of the process too, which was reported.
            let _ = restrict_thread(Role::Server);
            while !stopped.load(Ordering::Relaxed) {
                match listening.listener().accept() {
                    // A client that does not follow the protocol learns nothing.
                    Ok((stream, _)) => drop(hand_over(stream, &ours)),
                    Err(_) => thread::park_timeout(AGAIN_AFTER),
                }
            }
        };
        let thread = thread::Builder::new().name("strata-memory".into());
        let thread = thread.spawn(work).map_err(io_error(
            "cannot start the thread that hands over shared memory",
        ))?;
        Ok(Self {
            offers,
            socket,
            stop,
            thread: Some(thread),
        })
    }

    /// Offers memory, to be fetched once, while it exists; returns its token.
    pub(crate) fn offer(&self, memory: &Arc<SharedMemory>) -> Result<String, RelayError> {
        let token = format!("{:016x}{:016x}", random()?, random()?);
        let mut offers = lock(&self.offers);
        // Removes offers to switches that are gone: so there are no more offers than switches.
        offers.retain(|_, memory| memory.strong_count() > 0);
        offers.insert(token.clone(), Arc::downgrade(memory));
        Ok(token)
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes `accept`.
        let _ = shutdown(self.socket.listener(), Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn hand_over(mut stream: UnixStream, offers: &Offers) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut token = [0; TOKEN_LEN];
    stream.read_exact(&mut token)?;
    let token = String::from_utf8_lossy(&token).into_owned();
    let memory = lock(offers).remove(&token).and_then(|m| m.upgrade());
    let memory = memory.ok_or(io::ErrorKind::NotFound)?;
    strata_roce::handover::send(&stream, &memory)
}

/// The relay that a switch accepts memory from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryFrom {
    /// The socket at which the relay hands its memory over; by default the usual socket for its port.
    pub socket: Option<PathBuf>,
    /// A user that may run the relay, in addition to root and the switch's own.
    pub user: Option<u32>,
}

impl MemoryFrom {
    /// Fetches memory of `len` bytes from the relay that listens on `port`.
    pub(crate) fn fetch(&self, port: u16, token: &str, len: u64) -> Result<File, RelayError> {
        let usual = || usual_socket(port);
        let path = self.socket.clone().unwrap_or_else(usual);
        let failed = io_error(format!(
            "{}: cannot get shared memory from the relay: is the relay on this machine, and \
             --memory-socket the same at both ends?",
            path.display()
        ));
        self.fetch_from(&path, token, len).map_err(failed)
    }

    fn fetch_from(&self, path: &Path, token: &str, len: u64) -> io::Result<File> {
        let mut stream = connect_to(path)?;
        let peer = socket_peercred(&stream)?.uid.as_raw();
        let trusted = [Some(0), Some(geteuid().as_raw()), self.user];
        if !trusted.contains(&Some(peer)) {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!(
                    "user {peer}, who is neither root nor the user of this command, listens there: \
                     if the relay runs as that user, name it with --relay-user"
                ),
            ));
        }
        stream.write_all(token.as_bytes())?;
        strata_roce::handover::receive(&stream, len)
    }
}

/// Connects; does not wait for a relay that does not accept.
fn connect_to(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use strata_sandbox::Owner;

    use super::*;

    const LEN: u64 = 8192;

    #[test]
    fn memory_is_handed_over_once_to_who_has_the_token() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memory");
        let socket = SocketFile::bind(&path, &Owner::default()).unwrap();
        strata_sandbox::leave_unrestricted();
        let handover = Handover::start(socket).unwrap();
        let from = MemoryFrom {
            socket: Some(path.clone()),
            user: None,
        };
        let memory = Arc::new(SharedMemory::create("test", 8192).unwrap());
        let token = handover.offer(&memory).unwrap();
        let wrong = "0".repeat(TOKEN_LEN);
        from.fetch(1, &wrong, LEN).unwrap_err();
        from.fetch(1, &token, LEN).unwrap();
        from.fetch(1, &token, LEN).unwrap_err();
        // Memory of a switch that is gone cannot be fetched.
        let token = handover.offer(&memory).unwrap();
        drop(memory);
        from.fetch(1, &token, LEN).unwrap_err();
        drop(handover);
        assert!(!path.exists());
    }

    /// A switch run by root accepts nothing from another user that listens there.
    #[test]
    fn memory_of_another_user_is_not_taken() {
        if !geteuid().is_root() {
            return;
        }
        const NOBODY: u32 = 65_534;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memory");
        // The listener is the thread that called listen(2).
        let bound = path.clone();
        let listener = thread::spawn(move || {
            let listener = UnixListener::bind(&bound).unwrap();
            rustix::thread::set_thread_res_uid(
                rustix::process::Uid::from_raw(NOBODY),
                rustix::process::Uid::from_raw(NOBODY),
                rustix::process::Uid::ROOT,
            )
            .unwrap();
            rustix::net::listen(&listener, 1).unwrap();
            listener
        });
        let _listener = listener.join().unwrap();
        let mut from = MemoryFrom {
            socket: Some(path),
            user: None,
        };
        let token = "0".repeat(TOKEN_LEN);
        let refused = from.fetch(1, &token, LEN).unwrap_err().to_string();
        assert!(
            refused.contains("user 65534, who is neither root"),
            "{refused}"
        );
        from.user = Some(NOBODY);
        let late = from.fetch(1, &token, LEN).unwrap_err().to_string();
        assert!(!late.contains("listens there"), "{late}");
    }
}
