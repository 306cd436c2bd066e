//! Dumps of the kernel's tables over rtnetlink, as far as this folder needs them.
//!
//! Written here, since a few attributes of five tables are all that is read: crates for netlink
//! model every attribute of every table.
//!
//! ```text
//! message:    | length 4, type 2, flags 2, sequence 4, port 4 | header of the table | attributes |
//! attribute:  | length 2, type 2 | value | to a multiple of 4 |
//! ```
//!
//! Source: RFC 3549, netlink(7), rtnetlink(7).

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};
use strata_sys::{AlignedBytes, socket};
use strata_wire::exact;

/// `struct nlmsghdr`.
const HEADER_LEN: usize = 16;
/// The kernel fills at most 32 KiB at a time, unless a single message is longer.
const PIECE_BYTES: usize = 1 << 17;
/// How often a dump is started again because the table changed meanwhile.
const TRIES: usize = 4;

/// A socket for dumps.
#[derive(Debug)]
pub(super) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    piece: AlignedBytes,
}

/// Whether a dump is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dumped {
    Whole,
    /// The table changed meanwhile.
    Torn,
}

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        /// linux/netlink.h: requests are checked, and what they ask for is filtered by the kernel.
        const GET_STRICT_CHK: i32 = 12;
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            // `NETLINK_ROUTE` is 0.
            None,
        )?;
        // Before Linux 4.20, dumps hold more than was requested.
        let _ = socket::set_number(socket.as_fd(), libc::SOL_NETLINK, GET_STRICT_CHK, 1);
        Ok(Self {
            socket,
            sequence: 0,
            piece: AlignedBytes::zeroed(PIECE_BYTES),
        })
    }

    /// The messages of a table, `(type, bytes after the message's header)`: `request` is the type of
    /// the request, `body` its bytes.
    pub(super) fn dump(&mut self, request: u16, body: &[u8]) -> io::Result<Vec<(u16, Vec<u8>)>> {
        for _ in 0..TRIES {
            let mut messages = Vec::new();
            self.ask(request, body, libc::NLM_F_DUMP)?;
            if self.answer(&mut messages)? == Dumped::Whole {
                return Ok(messages);
            }
        }
        Err(io::Error::other("the table changes all the time"))
    }

    /// The one message that answers a request, after its header.
    pub(super) fn one(&mut self, request: u16, body: &[u8]) -> io::Result<Vec<u8>> {
        // The kernel confirms it after the answer, so that its end is known.
        self.ask(request, body, libc::NLM_F_ACK)?;
        let mut messages = Vec::new();
        self.answer(&mut messages)?;
        let (_, message) = messages.pop().ok_or_else(malformed)?;
        Ok(message)
    }

    fn ask(&mut self, request: u16, body: &[u8], how: i32) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let flags = libc::NLM_F_REQUEST | how;
        let mut message = exact::<u32>(HEADER_LEN.saturating_add(body.len()))
            .to_ne_bytes()
            .to_vec();
        message.extend(request.to_ne_bytes());
        message.extend(exact::<u16>(flags).to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend([0; 4]);
        message.extend(body);
        // To the kernel, as nothing else is named.
        send(&self.socket, &message, SendFlags::empty())?;
        Ok(())
    }

    fn answer(&mut self, messages: &mut Vec<(u16, Vec<u8>)>) -> io::Result<Dumped> {
        const DONE: u16 = 3;
        const ERROR: u16 = 2;
        const INTERRUPTED: u16 = 0x10;
        let mut dumped = Dumped::Whole;
        loop {
            let received = recv(&self.socket, &mut self.piece[..], RecvFlags::TRUNC);
            let (_, len) = match received {
                Err(rustix::io::Errno::INTR) => continue,
                received => received?,
            };
            let mut rest = self.piece.get(..len).ok_or_else(malformed)?;
            while !rest.is_empty() {
                let header = rest.first_chunk::<HEADER_LEN>().ok_or_else(malformed)?;
                let len = usize::try_from(u32_at(header, 0)?).map_err(io::Error::other)?;
                let message = rest.get(HEADER_LEN..len).ok_or_else(malformed)?;
                let (kind, flags) = (u16_at(header, 4)?, u16_at(header, 6)?);
                rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
                if u32_at(header, 8)? != self.sequence {
                    // What is left of an answer that ended early.
                    continue;
                }
                if flags & INTERRUPTED != 0 {
                    dumped = Dumped::Torn;
                }
                match kind {
                    DONE => return Ok(dumped),
                    ERROR => {
                        let number = u32_at(message, 0)?.cast_signed();
                        if number == 0 {
                            return Ok(dumped);
                        }
                        return Err(io::Error::from_raw_os_error(number.wrapping_neg()));
                    }
                    kind => messages.push((kind, message.to_vec())),
                }
            }
        }
    }
}

pub(super) fn malformed() -> io::Error {
    io::Error::other("netlink: a message is malformed")
}

/// The attributes after the `header_len` bytes of a table's own header, or of a nested attribute.
pub(super) fn attributes(message: &[u8], header_len: usize) -> impl Iterator<Item = (u16, &[u8])> {
    /// `NLA_F_NESTED`, `NLA_F_NET_BYTEORDER`.
    const FLAGS: u16 = 0xc000;
    let mut rest = message.get(header_len..).unwrap_or(&[]);
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(rest, 0).ok()?);
        let kind = u16_at(rest, 2).ok()? & !FLAGS;
        let value = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

/// The value of an attribute of this type, if it is there.
pub(super) fn attribute(message: &[u8], header_len: usize, wanted: u16) -> Option<&[u8]> {
    attributes(message, header_len).find_map(|(kind, value)| (kind == wanted).then_some(value))
}

/// A string of an attribute.
pub(super) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&byte| byte == 0);
    String::from_utf8_lossy(&value[..end.unwrap_or(value.len())]).into_owned()
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> io::Result<u32> {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    Ok(u32::from_ne_bytes(*found.ok_or_else(malformed)?))
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> io::Result<u16> {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    Ok(u16::from_ne_bytes(*found.ok_or_else(malformed)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_of_any_bytes_end() {
        for (bytes, expected) in [
            (&[][..], 0),
            (&[8, 0, 1, 0, 1, 2, 3, 4][..], 1),
            // Shorter than its own header; longer than what there is; a tail of a few bytes.
            (&[0, 0, 1, 0, 9, 9][..], 0),
            (&[9, 0, 1, 0, 1, 2, 3, 4][..], 0),
            (&[5, 0, 1, 0, 1, 0, 0, 0, 4, 0][..], 1),
        ] {
            assert_eq!(attributes(bytes, 0).count(), expected, "{bytes:?}");
            assert_eq!(attributes(bytes, 100).count(), 0);
        }
    }
}
