//! The checkpoint: how far a worker was, at most 100 ms ago.
//!
//! After a crash, the blocks on disk say which packets are there. Those between
//! the last of them and the checkpoint's sequence number are lost for certain;
//! of those after the checkpoint nothing is known but that they arrived within
//! the checkpoint's interval.

use crate::format::Reader;

/// Two slots, written in turn, so that a torn write spoils one of them only.
const SLOT_BYTES: u64 = 512;
const MAGIC: u64 = u64::from_le_bytes(*b"STRATACP");
const LEN: usize = 64;

/// Where a worker was.
///
/// ```text
///  0 magic "STRATACP"
///  8 crc u32 (CRC-32C of bytes 16..64) | reserved u32
/// 16 generation u64
/// 24 time_ns u64
/// 32 next_seq u64
/// 40 durable_seq u64
/// 48 seen_packets u64
/// 56 seen_bytes u64
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Checkpoint {
    /// Counts checkpoints of a worker.
    pub generation: u64,
    /// Wall clock, ns since 1970.
    pub time_ns: u64,
    /// The sequence number that the next packet would get.
    pub next_seq: u64,
    /// Every packet before this one is on disk for certain.
    pub durable_seq: u64,
    /// Packets seen.
    pub seen_packets: u64,
    /// Wire bytes seen.
    pub seen_bytes: u64,
}

impl Checkpoint {
    /// Bytes of the checkpoint file.
    pub const FILE_BYTES: u64 = 2 * SLOT_BYTES;

    /// Where it is written in the checkpoint file.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.generation % 2 * SLOT_BYTES
    }

    /// Its bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        out[..8].copy_from_slice(&MAGIC.to_le_bytes());
        let fields = [
            self.generation,
            self.time_ns,
            self.next_seq,
            self.durable_seq,
            self.seen_packets,
            self.seen_bytes,
        ];
        for (slot, field) in out[16..].chunks_exact_mut(8).zip(fields) {
            slot.copy_from_slice(&field.to_le_bytes());
        }
        let crc = crc32c::crc32c(&out[16..]);
        out[8..12].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The latest valid checkpoint of a file's content.
    #[must_use]
    pub fn latest(content: &[u8]) -> Option<Self> {
        let slots = content
            .chunks(usize::try_from(SLOT_BYTES).unwrap_or(512))
            .take(2);
        slots.filter_map(Self::parse).max_by_key(|c| c.generation)
    }

    /// What of a file's content is not as it was written: where, and what. Of a recording that
    /// ended abruptly one slot may be torn.
    #[must_use]
    pub fn problems(content: &[u8]) -> Vec<(u64, &'static str)> {
        let slot_len = usize::try_from(SLOT_BYTES).unwrap_or(512);
        let mut problems = Vec::new();
        let mut found = Vec::new();
        let slots = content.chunks(slot_len);
        for (slot, offset) in slots.zip((0..).step_by(slot_len)) {
            let not_zero = |from: usize| slot.iter().skip(from).position(|byte| *byte != 0);
            match Self::parse(slot) {
                Some(checkpoint) if checkpoint.offset() != offset => {
                    problems.push((offset, "the checkpoint here belongs into the other slot"));
                }
                Some(checkpoint) => {
                    found.push(checkpoint.generation);
                    let reserved = slot[12..16].iter().position(|byte| *byte != 0);
                    let at = reserved
                        .map(|at| at + 12)
                        .or(not_zero(LEN).map(|at| at + LEN));
                    if let Some(at) = at {
                        let problem = "a byte beside the checkpoint is not zero; nothing is lost";
                        problems.push((offset + at as u64, problem));
                    }
                }
                // Never written, but for what is found below.
                None if not_zero(0).is_none() => {}
                None => {
                    problems.push((offset, "the checksum of the checkpoint here does not match"));
                }
            }
        }
        // They are written in turn, and the first is number 1.
        let all_there = match found[..] {
            [_, _] => true,
            [one] => one <= 1,
            _ => content.is_empty(),
        };
        if !all_there && problems.is_empty() {
            problems.push((0, "a checkpoint that was written is not there"));
        }
        if content.len() > 2 * slot_len {
            problems.push((2 * SLOT_BYTES, "the file is longer than two checkpoints"));
        }
        problems
    }

    fn parse(slot: &[u8]) -> Option<Self> {
        let bytes = slot.get(..LEN)?;
        let mut read = Reader { bytes, at: 0 };
        let (magic, crc, _) = (read.u64(), read.u32(), read.u32());
        if magic != MAGIC || crc != crc32c::crc32c(&bytes[16..]) {
            return None;
        }
        Some(Self {
            generation: read.u64(),
            time_ns: read.u64(),
            next_seq: read.u64(),
            durable_seq: read.u64(),
            seen_packets: read.u64(),
            seen_bytes: read.u64(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_valid_slot_counts() {
        let mut file = vec![0; 1024];
        assert_eq!(Checkpoint::latest(&file), None);
        for generation in 1..=5 {
            let checkpoint = Checkpoint {
                generation,
                next_seq: generation * 100,
                ..Checkpoint::default()
            };
            let at = usize::try_from(checkpoint.offset()).unwrap();
            file[at..at + LEN].copy_from_slice(&checkpoint.emit());
        }
        assert_eq!(Checkpoint::latest(&file).unwrap().next_seq, 500);
        assert_eq!(Checkpoint::problems(&file), []);
        for bit in 0..file.len() * 8 {
            let mut flipped = file.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let problems = Checkpoint::problems(&flipped);
            let near = |at: u64| at <= bit as u64 / 8 && bit as u64 / 8 < at + SLOT_BYTES;
            assert!(
                problems.iter().any(|(at, _)| near(*at)),
                "bit {bit}: {problems:?}"
            );
        }
        file[512 + 40] ^= 1;
        assert_eq!(Checkpoint::latest(&file).unwrap().next_seq, 400);
        assert_eq!(Checkpoint::latest(&file[..100]).unwrap().next_seq, 400);
    }
}
