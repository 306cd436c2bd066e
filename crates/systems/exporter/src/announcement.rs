//! Who sends: names of host and interface, so that a collector can show them.
#![allow(
    unsafe_code,
    reason = "derives of zerocopy, which check that every byte pattern is a value"
)]

use strata_wire::{LinkType, exact, layout};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::datagram::{Datagram, FormatError, HEADER_LEN, Kind, Numbered, Source};

/// Maximum bytes of a name.
pub const TEXT_MAX: usize = 255;

/// What follows the start of the datagram, little-endian.
///
/// ```text
///  0 index u32          of the interface, 0 if it has none
///  4 mac [u8; 6]        0 if it has none
/// 10 host u8            bytes of the host's name
/// 11 interface u8       of the interface's name
/// 12 alias u8           of its alias
/// 13 behind u8          of what is at its other end
/// 14 flags u16          bit 0: the session has ended
/// 16 dropped u64        packets that the kernel dropped in this session
/// 24 headers            of datagrams of headers: how many were sent, u64; how many packets were numbered in
///                       them or between them, u64
/// 40 packets            the same of datagrams of packets
/// 56 the four names, UTF-8
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Fields {
    index: U32,
    mac: [u8; 6],
    host: u8,
    interface: u8,
    alias: u8,
    behind: u8,
    flags: U16,
    dropped: U64,
    headers: [U64; 2],
    packets: [U64; 2],
}
layout!(
    Fields, 56,
    index at 0, mac at 4, host at 10, interface at 11, alias at 12, behind at 13,
    flags at 14, dropped at 16, headers at 24, packets at 40,
);
/// Of the flags.
const HAS_ENDED: u16 = 1;

/// The host and the interface behind an identity. Announcements are sent at the start and repeated every second.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Announcement {
    /// The source that this host and interface are behind.
    pub source: Source,
    /// Link type of the interface.
    pub link: LinkType,
    /// Number of the interface on its host; 0 if it has none.
    pub index: u32,
    /// Its MAC address, 0 if it has none.
    pub mac: [u8; 6],
    /// Upper bound of the interface's packets that the kernel dropped since the session began: these have no numbers.
    pub dropped: u64,
    /// The numbers of headers sent in this session to the destination of the announcement.
    pub headers: Numbered,
    /// The numbers of packets sent, likewise.
    pub packets: Numbered,
    /// Whether the session has ended.
    pub has_ended: bool,
    /// Name of the host.
    pub host: String,
    /// Name of the interface.
    pub interface: String,
    /// The interface's alias, set by an administrator; often empty.
    pub alias: String,
    /// The name of the peer at its other end, such as a container or a virtual machine; often empty.
    pub behind: String,
}

impl Announcement {
    /// Reads a datagram.
    ///
    /// # Errors
    ///
    /// If it is not an announcement, cut, or a name is not text.
    pub fn read(bytes: &[u8]) -> Result<Self, FormatError> {
        let wrong = |what, offset| FormatError {
            what,
            offset,
            len: bytes.len(),
        };
        let datagram = Datagram::read(bytes)?;
        datagram.expect(Kind::Announcement, bytes.len())?;
        let (fields, mut rest) = Fields::read_from_prefix(&bytes[HEADER_LEN..])
            .map_err(|_| wrong("a truncated announcement", bytes.len()))?;
        let mut text = |len: u8| {
            let at = bytes.len().wrapping_sub(rest.len());
            let (text, after) = rest
                .split_at_checked(usize::from(len))
                .ok_or_else(|| wrong("a truncated name", at))?;
            rest = after;
            let text =
                std::str::from_utf8(text).map_err(|_| wrong("a name that is not UTF-8", at))?;
            if text.chars().any(char::is_control) {
                return Err(wrong("a name with a control character", at));
            }
            Ok(text.to_owned())
        };
        let announcement = Self {
            source: datagram.source,
            link: datagram.link,
            index: fields.index.get(),
            mac: fields.mac,
            dropped: fields.dropped.get(),
            headers: numbered(fields.headers),
            packets: numbered(fields.packets),
            has_ended: fields.flags.get() & HAS_ENDED != 0,
            host: text(fields.host)?,
            interface: text(fields.interface)?,
            alias: text(fields.alias)?,
            behind: text(fields.behind)?,
        };
        match rest.len() {
            0 => Ok(announcement),
            more => Err(wrong(
                "bytes after the last name",
                bytes.len().wrapping_sub(more),
            )),
        }
    }

    /// The datagram. Names are cut to [`TEXT_MAX`] bytes, control characters left out.
    #[must_use]
    pub fn datagram(&self) -> Vec<u8> {
        let names =
            [&self.host, &self.interface, &self.alias, &self.behind].map(|name| shown(name));
        let [host, interface, alias, behind] = [0, 1, 2, 3].map(|at| exact::<u8>(names[at].len()));
        let fields = Fields {
            index: self.index.into(),
            mac: self.mac,
            host,
            interface,
            alias,
            behind,
            flags: (u16::from(self.has_ended) * HAS_ENDED).into(),
            dropped: self.dropped.into(),
            headers: [self.headers.datagrams.into(), self.headers.packets.into()],
            packets: [self.packets.datagrams.into(), self.packets.packets.into()],
        };
        let mut bytes = vec![0; HEADER_LEN];
        Datagram::first(Kind::Announcement, self.source, self.link).write(&mut bytes);
        bytes.extend_from_slice(fields.as_bytes());
        names
            .iter()
            .for_each(|name| bytes.extend_from_slice(name.as_bytes()));
        bytes
    }
}

fn numbered([datagrams, packets]: [U64; 2]) -> Numbered {
    Numbered {
        datagrams: datagrams.get(),
        packets: packets.get(),
    }
}

/// As much of a name as is sent.
fn shown(name: &str) -> String {
    let mut shown = String::new();
    for letter in name.chars().filter(|letter| !letter.is_control()) {
        if shown.len().wrapping_add(letter.len_utf8()) > TEXT_MAX {
            break;
        }
        shown.push(letter);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announcement() -> Announcement {
        Announcement {
            source: Source {
                identity: 0x01_0203,
                session: 9,
            },
            link: LinkType::ETHERNET,
            index: 3,
            mac: [2, 0, 0, 0, 0, 7],
            dropped: 0x0102_0304_0506,
            headers: Numbered {
                datagrams: 7,
                packets: 1 << 40,
            },
            packets: Numbered {
                datagrams: u64::MAX,
                packets: 3,
            },
            has_ended: true,
            host: "web-1".into(),
            interface: "tap0".into(),
            alias: "tenant \u{e4}".into(),
            behind: "netns web".into(),
        }
    }

    #[test]
    fn announcements_are_read_as_they_were_written() {
        let bytes = announcement().datagram();
        assert_eq!(Announcement::read(&bytes), Ok(announcement()));
        for len in 0..bytes.len() {
            assert!(Announcement::read(&bytes[..len]).is_err(), "{len} bytes");
        }
        assert!(Announcement::read(&[&bytes[..], b"x"].concat()).is_err());
    }

    #[test]
    fn names_are_text_of_limited_length_without_control_characters() {
        let long = Announcement {
            host: "\u{e4}".repeat(200),
            alias: "a\x1b[31mb\n".into(),
            ..announcement()
        };
        let read = Announcement::read(&long.datagram()).unwrap();
        assert_eq!((read.host.len(), read.alias.as_str()), (254, "a[31mb"));
        let mut bytes = announcement().datagram();
        bytes[HEADER_LEN + 56] = 0x1b;
        assert!(Announcement::read(&bytes).is_err());
        bytes[HEADER_LEN + 56] = 0xff;
        assert!(Announcement::read(&bytes).is_err());
    }
}
