//! The checkpoint: a worker's progress, at most 100 ms ago.
//!
//! After a crash, the blocks on disk tell which packets are there. Those between the last of them
//! and the checkpoint's sequence number are lost for certain; of those after the checkpoint we only
//! know that they arrived within the checkpoint's interval.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use zerocopy::{FromBytes, IntoBytes, transmute};

use crate::layout::CheckpointBytes;

/// Two slots, written in turn, so that a torn write spoils only one of them.
const SLOT_LEN: usize = 512;
const SLOT_BYTES: u64 = SLOT_LEN as u64;
const MAGIC: [u8; 8] = *b"STRATACP";
const LEN: usize = size_of::<CheckpointBytes>();

/// The name of a recording's checkpoint file.
#[must_use]
pub fn checkpoint_name(recording: u32, worker: u16) -> String {
    format!("blocks/r{recording:04}-w{worker:02}.checkpoint")
}

/// A worker's progress.
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
    /// Number of this checkpoint, per worker.
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

    /// Its offset in the checkpoint file.
    #[must_use]
    pub fn offset(&self) -> u64 {
        match self.generation.is_multiple_of(2) {
            true => 0,
            false => SLOT_BYTES,
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; LEN] {
        let mut bytes = CheckpointBytes {
            magic: MAGIC,
            crc: 0.into(),
            reserved: 0.into(),
            generation: self.generation.into(),
            time_ns: self.time_ns.into(),
            next_seq: self.next_seq.into(),
            durable_seq: self.durable_seq.into(),
            seen_packets: self.seen_packets.into(),
            seen_bytes: self.seen_bytes.into(),
        };
        bytes.crc = crc32c::crc32c(&bytes.as_bytes()[16..]).into();
        transmute!(bytes)
    }

    /// The latest valid checkpoint of a file's content.
    #[must_use]
    pub fn latest(content: &[u8]) -> Option<Self> {
        let slots = content.chunks(SLOT_LEN).take(2);
        slots.filter_map(Self::parse).max_by_key(|c| c.generation)
    }

    /// Where a file's content differs from what was written: offset and problem. After an abrupt
    /// end, one slot may be torn.
    #[must_use]
    pub fn problems(content: &[u8]) -> Vec<(u64, &'static str)> {
        let slot_len = SLOT_LEN;
        let mut problems = Vec::new();
        let mut found = Vec::new();
        let slots = content.chunks(slot_len);
        for (slot, offset) in slots.zip((0..).step_by(slot_len)) {
            let not_zero = |from: usize| slot.iter().skip(from).position(|byte| *byte != 0);
            match Self::parse(slot) {
                Some(checkpoint) if checkpoint.offset() != offset => {
                    problems.push((offset, "the checkpoint here belongs in the other slot"));
                }
                Some(checkpoint) => {
                    found.push(checkpoint.generation);
                    // Beside its fields: what is reserved, and what is after it.
                    let mut bytes = (offset..).zip(slot).enumerate();
                    let other = bytes.find(|(at, (_, byte))| {
                        **byte != 0 && ((12..16).contains(at) || *at >= LEN)
                    });
                    if let Some((_, (at, _))) = other {
                        let problem = "a byte beside the checkpoint is not zero; nothing is lost";
                        problems.push((at, problem));
                    }
                }
                // Never written, apart from what is found below.
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
            problems.push((0, "a checkpoint that was written is missing"));
        }
        if content.len() as u64 > Self::FILE_BYTES {
            problems.push((Self::FILE_BYTES, "the file is longer than two checkpoints"));
        }
        problems
    }

    fn parse(slot: &[u8]) -> Option<Self> {
        let (read, _) = CheckpointBytes::ref_from_prefix(slot).ok()?;
        if read.magic != MAGIC || read.crc.get() != crc32c::crc32c(&read.as_bytes()[16..]) {
            return None;
        }
        Some(Self {
            generation: read.generation.get(),
            time_ns: read.time_ns.get(),
            next_seq: read.next_seq.get(),
            durable_seq: read.durable_seq.get(),
            seen_packets: read.seen_packets.get(),
            seen_bytes: read.seen_bytes.get(),
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
