//! Where the sockets of running recordings and collectors are.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use strata_sandbox::{Owner, SOCKET_NAME, SocketError, SocketFile, runtime_dir};

use super::ClientError;

/// Listens on this process's socket, in a separate directory.
///
/// # Errors
///
/// If it cannot be made.
pub fn own_socket(owner: &Owner) -> Result<SocketFile, SocketError> {
    SocketFile::bind_in_own_dir(&runtime_dir(), &own_name(), owner)
}

/// Where [`own_socket`] is.
#[must_use]
pub fn own_socket_path() -> PathBuf {
    runtime_dir().join(own_name()).join(SOCKET_NAME)
}

fn own_name() -> String {
    format!("record-{}", std::process::id())
}

/// What the directory of a collector's socket begins with.
const COLLECTOR: &str = "collector-";

/// As [`own_socket`], for a process that is a collector.
///
/// # Errors
///
/// If it cannot be made.
pub fn own_collector_socket(owner: &Owner) -> Result<SocketFile, SocketError> {
    let name = format!("{COLLECTOR}{}", std::process::id());
    SocketFile::bind_in_own_dir(&runtime_dir(), &name, owner)
}

/// The sockets of what is running, in order.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    pub(super) recordings: Vec<PathBuf>,
    pub(super) collectors: Vec<PathBuf>,
}

/// Looks for those of this user, or of the system.
pub(super) fn running() -> Sockets {
    let entries = fs::read_dir(runtime_dir()).into_iter().flatten().flatten();
    let mut found = Sockets::default();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        // Relays' sockets hand out memory.
        if name.starts_with("relay-") {
            continue;
        }
        let socket = match entry.path() {
            path if path.extension().is_some_and(|e| e == "sock") => path,
            dir => dir.join(SOCKET_NAME),
        };
        if UnixStream::connect(&socket).is_ok() {
            match name.starts_with(COLLECTOR) {
                true => found.collectors.push(socket),
                false => found.recordings.push(socket),
            }
        }
    }
    found.recordings.sort();
    found.collectors.sort();
    found
}

impl Sockets {
    /// That of the only recording; without one, that of the only collector.
    pub(super) fn only(self) -> Result<PathBuf, ClientError> {
        let mut sockets = match self.recordings.is_empty() {
            true => self.collectors,
            false => self.recordings,
        };
        match sockets.len() {
            0 => Err(ClientError::None { dir: runtime_dir() }),
            1 => Ok(sockets.remove(0)),
            _ => Err(ClientError::Several { sockets }),
        }
    }
}
