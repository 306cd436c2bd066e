//! When interfaces come, go or change: the kernel notifies the members of a group of rtnetlink(7).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

/// `RTMGRP_LINK` (linux/rtnetlink.h).
const GROUP_LINK: u32 = 1;

/// Can be read when an interface of this network namespace has changed.
#[derive(Debug)]
pub struct LinkChanges(OwnedFd);

impl LinkChanges {
    /// From now on.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a socket.
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        // `NETLINK_ROUTE` is 0.
        let socket = socket_with(family, kind, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUP_LINK))?;
        Ok(Self(socket))
    }

    /// Whether any has since the last call. It does not tell which: the caller looks at all.
    pub fn have_changed(&self) -> bool {
        let (mut piece, mut any) = ([0; 4096], false);
        loop {
            match recv(&self.0, &mut piece[..], RecvFlags::empty()) {
                // `NOBUFS`: there were more changes than the socket keeps.
                Ok(_) | Err(Errno::NOBUFS) => any = true,
                Err(Errno::INTR) => {}
                Err(_) => return any,
            }
        }
    }
}

impl AsFd for LinkChanges {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
