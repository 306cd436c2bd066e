//! One time for each packet, whichever socket asks.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use strata_sys::socket;

/// While this lives, the kernel notes the time of each packet once, when it arrives, and not for each
/// socket that it reaches: so two recordings of an interface agree on which packets are before a moment.
#[derive(Debug)]
pub(super) struct SharedTime {
    _socket: OwnedFd,
}

impl SharedTime {
    /// From now on.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a socket.
    pub(super) fn begin() -> io::Result<Self> {
        let kind = SocketType::DGRAM;
        let found = socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, None);
        // A host without IPv4 has IPv6.
        let socket = found
            .or_else(|_| socket_with(AddressFamily::INET6, kind, SocketFlags::CLOEXEC, None))?;
        socket::set_number(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMP, 1)?;
        Ok(Self { _socket: socket })
    }
}
