//! Classic pcap, read and written without Strata.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::fs;
use std::path::Path;

/// A frame of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// ns since 1970.
    pub ts_ns: u64,
    /// Bytes on the wire.
    pub wire_len: u32,
    /// Captured bytes.
    pub bytes: Vec<u8>,
}

impl Frame {
    /// A frame that was captured whole.
    ///
    /// # Panics
    ///
    /// If it has 2^32 bytes or more.
    #[must_use]
    pub fn whole(ts_ns: u64, bytes: Vec<u8>) -> Self {
        let wire_len = u32::try_from(bytes.len()).expect("a frame");
        Self {
            ts_ns,
            wire_len,
            bytes,
        }
    }
}

/// The frames of a classic pcap file of Ethernet, up to where it is damaged; none if it is another file.
///
/// # Panics
///
/// If the file cannot be read.
#[must_use]
pub fn read(path: &Path) -> Vec<Frame> {
    let bytes = fs::read(path).unwrap();
    let Some((head, mut rest)) = bytes.split_at_checked(24) else {
        return Vec::new();
    };
    let little = |word: &[u8]| u32::from_le_bytes(word.try_into().unwrap());
    let big = |word: &[u8]| u32::from_be_bytes(word.try_into().unwrap());
    let (word, ns_per_tick): (fn(&[u8]) -> u32, u64) = match (little(&head[..4]), big(&head[..4])) {
        (0xa1b2_c3d4, _) => (little, 1000),
        (0xa1b2_3c4d, _) => (little, 1),
        (_, 0xa1b2_c3d4) => (big, 1000),
        (_, 0xa1b2_3c4d) => (big, 1),
        _ => return Vec::new(),
    };
    if word(&head[20..24]) != 1 {
        return Vec::new();
    }
    let mut frames = Vec::new();
    while let Some((head, after)) = rest.split_at_checked(16) {
        let len = usize::try_from(word(&head[8..12])).unwrap();
        let Some((bytes, after)) = after.split_at_checked(len).filter(|_| len <= 262_144) else {
            break;
        };
        let [seconds, ticks] = [0, 4].map(|at| u64::from(word(&head[at..at + 4])));
        frames.push(Frame {
            ts_ns: seconds * 1_000_000_000 + ticks * ns_per_tick,
            wire_len: word(&head[12..16]),
            bytes: bytes.to_vec(),
        });
        rest = after;
    }
    frames
}

/// Writes a capture with ns. Times after 2106 wrap around, as some in broken captures do.
///
/// # Panics
///
/// If the file cannot be written, or a frame has 2^32 bytes.
pub fn write(path: &Path, frames: &[Frame]) {
    let mut out = Vec::new();
    for word in [0xa1b2_3c4d, 4 << 16 | 2, 0, 0, 262_144, 1] {
        out.extend(u32::to_le_bytes(word));
    }
    for frame in frames {
        let second = frame.ts_ns / 1_000_000_000;
        let words = [
            second & 0xffff_ffff,
            frame.ts_ns % 1_000_000_000,
            frame.bytes.len() as u64,
            u64::from(frame.wire_len),
        ];
        for word in words {
            out.extend(u32::to_le_bytes(u32::try_from(word).unwrap()));
        }
        out.extend(&frame.bytes);
    }
    fs::write(path, out).unwrap();
}
