//! Additions that wait for their lines of memory.

use strata_wire::exact;

use crate::hash::REDUNDANCY_MAX;
use crate::protocol::KEY_LEN_MAX;

/// Additions to the counters of a key that wait for their lines of memory. As few stores as possible: they
/// queue behind additions whose lines are still under way.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    pub(super) places: [usize; REDUNDANCY_MAX as usize],
    pub(super) add: u64,
    pub(super) short: Short,
    /// The key, if it does not have four bytes.
    pub(super) key: [u8; KEY_LEN_MAX],
}

/// A word: a key of four bytes in the low half, the length of the key above it, and then how many places
/// there are. 0: nothing waits.
#[derive(Clone, Copy)]
pub(super) struct Short(pub(super) u64);

impl Short {
    #[inline(always)]
    pub(super) fn new(key: &[u8], places_len: u8) -> Self {
        let bytes = match *key {
            [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
            _ => 0,
        };
        let lens = u64::from(exact::<u8>(key.len())) | u64::from(places_len) << 8;
        Self(u64::from(bytes) | lens << 32)
    }

    /// Whether the key has the same length as another, and as many places.
    #[inline(always)]
    pub(super) fn has_lens_of(self, other: Self) -> bool {
        self.0 >> 32 == other.0 >> 32
    }

    #[inline(always)]
    pub(super) fn key(self) -> [u8; 4] {
        let [a, b, c, d, ..] = self.0.to_le_bytes();
        [a, b, c, d]
    }

    #[inline(always)]
    pub(super) fn key_len(self) -> usize {
        usize::from(self.0.to_le_bytes()[4])
    }

    #[inline(always)]
    pub(super) fn places_len(self) -> usize {
        usize::from(self.0.to_le_bytes()[5])
    }
}

/// No addition waits.
pub(super) const NO_COUNT: Waiting = Waiting {
    places: [0; REDUNDANCY_MAX as usize],
    add: 0,
    short: Short(0),
    key: [0; KEY_LEN_MAX],
};
