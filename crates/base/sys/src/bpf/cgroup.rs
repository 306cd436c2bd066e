//! Programs that run for the sockets of a cgroup.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use super::{LinkAttr, Program, bpf, owned, raw, uapi};

/// What a program of a cgroup runs for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CgroupHook {
    /// A packet that a socket receives.
    Received = 0,
    /// A packet that a socket sends.
    Sent = 1,
    /// A new socket.
    Socket = 2,
}

impl Program {
    /// Attaches a program to a cgroup (version 2), whose directory is open, and to all below it, beside the programs of
    /// others, for as long as the returned descriptor is open.
    ///
    /// # Errors
    ///
    /// The kernel's error (Linux 5.7 or later is needed, and `CAP_NET_ADMIN`).
    pub fn attach_cgroup(&self, cgroup: BorrowedFd<'_>, hook: CgroupHook) -> io::Result<OwnedFd> {
        let mut attr = LinkAttr {
            program: raw(self.fd.as_fd()),
            target: raw(cgroup),
            kind: hook as u32,
            flags: 0,
        };
        // SAFETY: plain numbers.
        unsafe { bpf(uapi::LINK_CREATE, &mut attr) }.map(owned)
    }
}
