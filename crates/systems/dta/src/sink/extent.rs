//! How long a path is, as far as that is known, and how parts of it are put together.

use strata_wire::exact;

/// Bytes of a slot.
pub(crate) const SLOT_LEN: usize = 4;
/// Maximum bytes of a chunk: of eight hops and their extent.
pub(crate) const CHUNK_LEN_MAX: usize = 64;

/// Hops that an extent can state; of a longer path, this number and that it is at least so long.
const HOPS_STATED_MAX: u8 = 31;
const CONTRADICTED: u8 = 0x20;
const MIXED: u8 = 0x40;
const LEN_KNOWN: u8 = 0x80;

/// How long a path is, as far as that is known.
///
/// ```text
/// bit 7      its number of hops is known; else there are at least as many
///     6      its hops may be those of different packets
///     5      several nodes have reported as the same hop
///  4..0      hops
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "three bits that do not depend on each other"
)]
pub struct Extent {
    /// Number of the path's hops: of all hops, or of those that are known to exist.
    pub hops: u8,
    /// Whether this is the number of all hops. A node that reports only for itself does not know it.
    pub is_len_known: bool,
    /// Whether the hops may be those of different packets of the flow, perhaps on different paths.
    pub is_mixed: bool,
    /// Whether one hop was reported with several values within the time that a packet's reports take: reports do not
    /// name their hop, or packets take several paths.
    pub is_contradicted: bool,
}

impl Extent {
    /// The extent of a path with at least this number of hops.
    #[must_use]
    #[inline(always)]
    pub fn at_least(hops: u8) -> Self {
        Self {
            hops: hops.min(HOPS_STATED_MAX),
            ..Self::default()
        }
    }

    /// The extent of a path with this number of hops.
    #[must_use]
    #[inline(always)]
    pub fn known(hops: u8) -> Self {
        Self {
            is_len_known: hops <= HOPS_STATED_MAX,
            ..Self::at_least(hops)
        }
    }

    pub(crate) fn of(byte: u8) -> Self {
        Self {
            hops: byte & HOPS_STATED_MAX,
            is_len_known: byte & LEN_KNOWN != 0,
            is_mixed: byte & MIXED != 0,
            is_contradicted: byte & CONTRADICTED != 0,
        }
    }

    #[inline(always)]
    pub(crate) fn byte(self) -> u8 {
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        self.hops
            | bit(self.is_len_known, LEN_KNOWN)
            | bit(self.is_mixed, MIXED)
            | bit(self.is_contradicted, CONTRADICTED)
    }

    /// Of what is known together with what was known `before`, of another packet.
    pub(crate) fn after(self, before: Self) -> Self {
        let hops = match self.is_len_known {
            true => self.hops,
            false => self.hops.max(before.hops),
        };
        Self {
            hops,
            is_mixed: true,
            is_contradicted: self.is_contradicted || before.is_contradicted,
            ..self
        }
    }
}

/// The rule for merging a chunk with the one in its place, if that is of the same key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Merge {
    /// A bit for each slot of 4 bytes that is known, that of the extent included.
    pub(crate) known: u16,
    /// The slot of the extent.
    pub(crate) last: u8,
    /// The extent in the chunk.
    pub(crate) extent: Extent,
}

impl Merge {
    /// Puts `chunk` into `there`, which is as long: whether that changes anything.
    pub(crate) fn into(self, chunk: &[u8], there: &mut [u8]) -> bool {
        let slots = chunk.as_chunks::<SLOT_LEN>().0;
        let last = usize::from(self.last);
        let has_hops = self.known.count_ones() > 1;
        let slot = |bytes: &[u8]| {
            let slots = bytes.as_chunks::<SLOT_LEN>().0;
            u32::from_le_bytes(slots[last])
        };
        // Both have the checksum of the key, if they are of the same.
        let Ok(difference) = u8::try_from(slot(chunk) ^ slot(there)) else {
            if has_hops {
                there.copy_from_slice(chunk);
            }
            return has_hops;
        };
        let before = Extent::of(self.extent.byte() ^ difference);
        let mut extent = self.extent.after(before);
        if !has_hops {
            extent.is_mixed = before.is_mixed;
        }
        let all = there.as_chunks_mut::<SLOT_LEN>().0.iter_mut().zip(slots);
        for (index, (there, new)) in all.enumerate() {
            if self.known.unbounded_shr(exact::<u32>(index)) & 1 == 1 {
                *there = *new;
            }
        }
        // The lowest byte of a checksum and an extent comes first.
        there[last.wrapping_mul(SLOT_LEN)] ^= self.extent.byte() ^ extent.byte();
        true
    }
}
