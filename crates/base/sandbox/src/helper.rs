//! A process that opens packet sockets on behalf of one that has dropped the right to.
//!
//! ```text
//! request: cooked u8                 1: without the link-layer header
//! answer:  errno i32 (native)        0 and the descriptor (SCM_RIGHTS), or the error
//! ```

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socket_with,
};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::CapabilitySet;

use crate::files::restrict_to_no_files;
use crate::privileges::{PrivilegeError, User, give_up_capabilities};
use crate::system_calls::{Role, apply_role};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The caller's end of the helper. Dropping it ends the process.
#[derive(Debug)]
pub struct Helper {
    /// One request at a time.
    stream: Mutex<UnixStream>,
    child: Child,
}

impl Helper {
    /// Starts this program again with these arguments, which must lead to [`serve`].
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(arguments: &[&str]) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(PATIENCE))?;
        let child = Command::new("/proc/self/exe")
            .args(arguments)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self {
            stream: Mutex::new(ours),
            child,
        })
    }

    /// A packet socket that receives nothing until it is bound. `cooked` ones omit the link-layer
    /// header.
    ///
    /// # Errors
    ///
    /// The error the kernel gave the helper, or that the helper did not answer.
    pub fn packet_socket(&self, cooked: bool) -> io::Result<OwnedFd> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        stream.write_all(&[u8::from(cooked)])?;
        let mut code = [0; 4];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(
            stream.as_fd(),
            &mut [IoSliceMut::new(&mut code)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        if got.bytes != code.len() {
            return Err(io::Error::other("the process that opens sockets has ended"));
        }
        match i32::from_ne_bytes(code) {
            0 => {}
            code => return Err(io::Error::from_raw_os_error(code)),
        }
        let mut received = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.into_iter().next(),
            _ => None,
        });
        received
            .next()
            .ok_or_else(|| io::Error::other("the helper answered without a socket"))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let stream = self
            .stream
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let _ = stream.shutdown(std::net::Shutdown::Both);
        let _ = self.child.wait();
    }
}

/// Answers requests on standard input until the other end is gone, with no right except to open
/// packet sockets.
///
/// # Errors
///
/// If privileges cannot be dropped, or a request cannot be answered.
pub fn serve(user: Option<&User>) -> Result<(), PrivilegeError> {
    let fail = |what: &'static str| {
        move |error: rustix::io::Errno| PrivilegeError::System {
            what,
            source: error.into(),
        }
    };
    give_up_capabilities(user, CapabilitySet::NET_RAW, &[])?;
    // After the change of user, which clears it.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(fail("follow its parent"))?;
    // Even without Landlock it has only one capability left.
    let _ = restrict_to_no_files();
    let _ = apply_role(Role::Helper);
    let stdin = io::stdin();
    loop {
        let mut request = [0];
        if rustix::io::read(stdin.as_fd(), &mut request).map_err(fail("read"))? == 0 {
            return Ok(());
        }
        let kind = match request {
            [0] => SocketType::RAW,
            _ => SocketType::DGRAM,
        };
        let opened = socket_with(AddressFamily::PACKET, kind, SocketFlags::CLOEXEC, None);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let code = opened
            .as_ref()
            .map_or_else(|error| error.raw_os_error(), |_| 0);
        let descriptors = opened.as_ref().map(|socket| [socket.as_fd()]);
        if let Ok(descriptors) = &descriptors {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let code = code.to_ne_bytes();
        let answer = [IoSlice::new(&code)];
        sendmsg(stdin.as_fd(), &answer, &mut control, SendFlags::NOSIGNAL)
            .map_err(fail("answer"))?;
    }
}
