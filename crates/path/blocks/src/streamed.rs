//! Logged packets as records of a stream (`strata relay --to-stream`).
//!
//! ```text
//!  0 magic "SPKT"
//!  4 version u8 = 1
//!  5 keep u8          0 nothing, 1 header, 2 partial, 3 full
//!  6 class u8         number in the classes of its recording; 255: not known
//!  7 flags u8         bit 0: the capture gave no time
//!  8 recording u32    in the manifest of the log
//! 12 worker u16
//! 14 link u16         LINKTYPE of its interface; 65535: not known
//! 16 seq u64          of the packet among those of its worker
//! 24 ts_ns u64        since 1970
//! 32 wire_len u32
//! 36 captured_len u32
//! 40 interface u16    in its recording
//! 42 zeros            6 bytes
//! 48 data             what was kept of the packet
//! ```
//!
//! Little-endian, but for the packet.

use strata_wire::KeepKind;

const MAGIC: [u8; 4] = *b"SPKT";
const VERSION: u8 = 1;
const HEADER_LEN: usize = 48;
const NO_TIMESTAMP: u8 = 1;
const UNKNOWN_CLASS: u8 = u8::MAX;
const UNKNOWN_LINK: u16 = u16::MAX;

/// A packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Streamed<'a> {
    /// How much of it was kept.
    pub keep: KeepKind,
    /// Its class, by number; `None` if that is not known.
    pub class: Option<u8>,
    /// Whether the capture gave a time.
    pub has_timestamp: bool,
    /// Its recording, by the number in the log.
    pub recording: u32,
    /// The worker that saw it.
    pub worker: u16,
    /// The type of the header that it starts with, by its number; `None` if that is not known.
    pub link: Option<u16>,
    /// Its number among those of its worker. A gap: packets that were lost.
    pub seq: u64,
    /// When it came, ns since 1970.
    pub ts_ns: u64,
    /// Bytes on the wire.
    pub wire_len: u32,
    /// Bytes of them in the capture.
    pub captured_len: u32,
    /// The interface, by its number in the recording.
    pub interface: u16,
    /// What was kept of it.
    pub data: &'a [u8],
}

impl<'a> Streamed<'a> {
    /// Appends the record's bytes to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let class = self.class.unwrap_or(UNKNOWN_CLASS);
        let flags = if self.has_timestamp { 0 } else { NO_TIMESTAMP };
        let link = self.link.unwrap_or(UNKNOWN_LINK);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, self.keep.code(), class, flags]);
        out.extend_from_slice(&self.recording.to_le_bytes());
        out.extend_from_slice(&self.worker.to_le_bytes());
        out.extend_from_slice(&link.to_le_bytes());
        out.extend_from_slice(&self.seq.to_le_bytes());
        out.extend_from_slice(&self.ts_ns.to_le_bytes());
        out.extend_from_slice(&self.wire_len.to_le_bytes());
        out.extend_from_slice(&self.captured_len.to_le_bytes());
        out.extend_from_slice(&self.interface.to_le_bytes());
        out.extend_from_slice(&[0; 6]);
        out.extend_from_slice(self.data);
    }

    /// The packet in a record; `None` if that is something else, or of another version.
    #[must_use]
    pub fn parse(record: &'a [u8]) -> Option<Self> {
        let (header, data) = record.split_first_chunk::<HEADER_LEN>()?;
        let (start, _) = header.split_first_chunk::<8>()?;
        let [a, b, c, d, version, keep, class, flags] = *start;
        if [a, b, c, d] != MAGIC || version != VERSION {
            return None;
        }
        let u16_at = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        Some(Self {
            keep: *KeepKind::ALL.get(usize::from(keep))?,
            class: (class != UNKNOWN_CLASS).then_some(class),
            has_timestamp: flags & NO_TIMESTAMP == 0,
            recording: u32_at(8),
            worker: u16_at(12),
            link: Some(u16_at(14)).filter(|&link| link != UNKNOWN_LINK),
            seq: u64_at(16),
            ts_ns: u64_at(24),
            wire_len: u32_at(32),
            captured_len: u32_at(36),
            interface: u16_at(40),
            data,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_document() {
        let packet = Streamed {
            keep: KeepKind::Full,
            class: Some(7),
            has_timestamp: false,
            recording: 0x0403_0201,
            worker: 0x0605,
            link: Some(1),
            seq: 0x0e0d_0c0b_0a09_0807,
            ts_ns: 2,
            wire_len: 3,
            captured_len: 4,
            interface: 5,
            data: b"bytes",
        };
        let mut out = Vec::new();
        packet.emit(&mut out);
        let expected =
            b"SPKT\x01\x03\x07\x01\x01\x02\x03\x04\x05\x06\x01\0\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\
                         \x02\0\0\0\0\0\0\0\x03\0\0\0\x04\0\0\0\x05\0\0\0\0\0\0\0bytes";
        assert_eq!(out, expected);
        assert_eq!(Streamed::parse(&out), Some(packet));
        for len in 0..HEADER_LEN {
            assert_eq!(Streamed::parse(&out[..len]), None, "{len}");
        }
        for at in 0..5 {
            let mut other = out.clone();
            other[at] ^= 1;
            assert_eq!(Streamed::parse(&other), None, "{at}");
        }
    }

    #[test]
    fn what_is_not_known_is_none() {
        let packet = Streamed {
            keep: KeepKind::Nothing,
            class: None,
            has_timestamp: true,
            recording: 0,
            worker: 0,
            link: None,
            seq: 0,
            ts_ns: 0,
            wire_len: 0,
            captured_len: 0,
            interface: 0,
            data: b"",
        };
        let mut out = Vec::new();
        packet.emit(&mut out);
        assert_eq!(Streamed::parse(&out), Some(packet));
    }
}
