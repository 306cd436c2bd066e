//! What is on a disk before it is written: nothing that somebody else may want.

use crate::key::siphash24;

/// A namespace that Strata writes, as its first block says.
///
/// ```text
///  0 magic "STRANVME"
///  8 id u64           random, of this format
/// 16 created_ns u64   since 1970
/// 24 blocks u64       of the namespace
/// 32 check u64        SipHash-2-4 of bytes 0 to 31 with the key 0
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label {
    /// A random number of this format.
    pub id: u64,
    /// When it was formatted, ns since 1970.
    pub created_ns: u64,
    /// Blocks of the namespace.
    pub blocks: u64,
}

/// What a namespace holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// What Strata wrote.
    Ours(Label),
    /// Nothing, as far as its ends say.
    Nothing,
    /// Something else: a partition table, a file system, data. Not to be written unless the user says so.
    Foreign,
}

const MAGIC: [u8; 8] = *b"STRANVME";

impl Label {
    /// Bytes of a label: they fit a block of any size.
    pub const LEN: usize = 40;
    /// How much of each end of a namespace [`Content::of`] wants to see: partition tables, file systems
    /// and RAIDs keep what they are there.
    pub const ENDS_LEN: u64 = 1 << 20;

    /// Its bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        for (at, word) in [(8_usize, self.id), (16, self.created_ns), (24, self.blocks)] {
            bytes[at..at.wrapping_add(8)].copy_from_slice(&word.to_le_bytes());
        }
        let check = siphash24([0, 0], &bytes[..32]);
        bytes[32..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// The label at the start of a block; `None` without one, or if it is damaged.
    #[must_use]
    pub fn parse(block: &[u8]) -> Option<Self> {
        let bytes = block.first_chunk::<{ Self::LEN }>()?;
        let [magic, id, created_ns, blocks, check] = bytes.as_chunks::<8>().0 else {
            return None;
        };
        let is_whole =
            *magic == MAGIC && siphash24([0, 0], &bytes[..32]) == u64::from_le_bytes(*check);
        is_whole.then(|| Self {
            id: u64::from_le_bytes(*id),
            created_ns: u64::from_le_bytes(*created_ns),
            blocks: u64::from_le_bytes(*blocks),
        })
    }
}

impl Content {
    /// What a namespace of `blocks` blocks holds, as its first and its last [`Label::ENDS_LEN`] bytes
    /// say.
    #[must_use]
    pub fn of(blocks: u64, first: &[u8], last: &[u8]) -> Self {
        match Label::parse(first) {
            Some(label) if label.blocks == blocks => Self::Ours(label),
            None if first.iter().chain(last).all(|&byte| byte == 0) => Self::Nothing,
            _ => Self::Foreign,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_zeros_and_our_own_label_may_be_written_over() {
        let label = Label {
            id: 7,
            created_ns: 1_700_000_000_000_000_000,
            blocks: 1000,
        };
        let mut first = vec![0; 4096];
        let mut last = vec![0; 4096];
        assert_eq!(Content::of(1000, &first, &last), Content::Nothing);
        last[3500] = 1;
        assert_eq!(Content::of(1000, &first, &last), Content::Foreign);
        first[..Label::LEN].copy_from_slice(&label.emit());
        assert_eq!(Content::of(1000, &first, &last), Content::Ours(label));
        // A copy of a smaller disk: its tail may be anything.
        assert_eq!(Content::of(2000, &first, &last), Content::Foreign);
        for bit in 0..8 * Label::LEN {
            let mut damaged = first.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                Content::of(1000, &damaged, &last),
                Content::Foreign,
                "{bit}"
            );
        }
    }
}
