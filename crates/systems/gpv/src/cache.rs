//! The flow cache: packets in, vectors out (sections 5.2 to 5.4 of the paper).
//!
//! Both forms do the same: [`Cache`] is fast in software, [`SwitchCache`] is how a switch runs it,
//! with one access of each register array a packet. With one way they give the same vectors in the
//! same order, if the switch frees a block before the next packet comes.
//!
//! What an entry does:
//!
//! - Its packets fill a narrow buffer. When that is full for the first time, a wide one is drawn
//!   from those that are free and continues it; without one the entry stays narrow. A wide buffer
//!   is kept until the entry is evicted.
//! - A full buffer is a vector and the entry goes on. After `narrow + wide` packets a new pass
//!   begins. Times of a vector count from the start of its pass, since a switch knows the number
//!   of packets before it knows whether there is a wide buffer.
//! - Another flow that maps to the slot evicts it, and so does a packet of the flow whose time
//!   cannot be told from the start: late, or older than it.

mod fast;
mod switch;

pub use fast::Cache;
pub use switch::SwitchCache;

/// How large a cache is: the paper's compile-time parameters (section 5.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// Maximum number of flows that are tracked.
    pub slots: u32,
    /// Tuples of a narrow buffer, of which each slot has one.
    pub narrow: u16,
    /// Tuples that a wide buffer adds.
    pub wide: u16,
    /// Wide buffers.
    pub blocks: u32,
}

/// Why parameters are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParametersError {
    /// Slots of no use.
    #[error("--slots {slots}: must be a multiple of {ways}, from {ways} to 2^30")]
    Slots {
        /// The requested number.
        slots: u32,
        /// Slots of a set.
        ways: usize,
    },
    /// A buffer that a switch could not extend before it must flush it.
    #[error("--narrow {0}: must be at least 2 packets")]
    Narrow(u16),
    /// Vectors whose number of tuples has no 16 bits.
    #[error("--narrow and --wide add up to {0} packets; the maximum is 32,767")]
    Long(u32),
    /// Some but not all of what dynamic allocation needs.
    #[error(
        "--wide {wide}, --wide-blocks {blocks}: set both to 0, or neither; --wide-blocks is at most 2^30"
    )]
    Wide {
        /// The requested number.
        wide: u16,
        /// The requested number.
        blocks: u32,
    },
}

/// Blocks that a pointer of 16 bits tells apart, two values being none.
const NEAR_BLOCKS_MAX: u32 = (1 << 16) - 2;

impl Parameters {
    /// The configuration of Table 2: 16,384 slots of 4 tuples, 4,096 blocks of 24 more.
    pub const PAPER: Self = Self {
        slots: 16_384,
        narrow: 4,
        wide: 24,
        blocks: 4_096,
    };

    /// Maximum number of tuples of a vector.
    #[must_use]
    pub fn vector_max(&self) -> u16 {
        self.narrow.wrapping_add(self.wide)
    }

    /// Bytes of a switch's memory: per slot the 24-byte header of a vector and a pointer, per block
    /// a place on the stack of free ones, and all tuples of `tuple_len` bytes. A pointer, as what is
    /// on the stack, has 16 bits if that is enough for all blocks and two other values (not tried,
    /// denied), else 32.
    #[must_use]
    pub fn switch_bytes(&self, tuple_len: usize) -> u64 {
        let tuple_len = tuple_len as u64;
        let pointer: u64 = match self.blocks {
            0 => 0,
            1..=NEAR_BLOCKS_MAX => 2,
            _ => 4,
        };
        u64::from(self.slots)
            .wrapping_mul(
                pointer
                    .wrapping_add(24)
                    .wrapping_add(u64::from(self.narrow).wrapping_mul(tuple_len)),
            )
            .wrapping_add(
                u64::from(self.blocks).wrapping_mul(
                    pointer.wrapping_add(u64::from(self.wide).wrapping_mul(tuple_len)),
                ),
            )
    }

    /// Bytes of a [`Cache`] of these parameters, all of which it allocates at its start: 64 per slot, 4 per block, and
    /// all tuples of `tuple_len` bytes. [`u64::MAX`] if that is more.
    #[must_use]
    pub fn cache_bytes(&self, tuple_len: usize) -> u64 {
        let tuples = |len: u16| u64::from(len).saturating_mul(tuple_len as u64);
        let slot = tuples(self.narrow).saturating_add(64);
        let block = tuples(self.wide).saturating_add(4);
        let slots = u64::from(self.slots).saturating_mul(slot);
        slots.saturating_add(u64::from(self.blocks).saturating_mul(block))
    }

    fn check(&self, ways: usize) -> Result<(), ParametersError> {
        let (slots, blocks) = (self.slots, self.blocks);
        if slots == 0 || slots > 1 << 30 || !(slots as usize).is_multiple_of(ways) {
            return Err(ParametersError::Slots { slots, ways });
        }
        if self.narrow < 2 {
            return Err(ParametersError::Narrow(self.narrow));
        }
        let tuples = u32::from(self.narrow).wrapping_add(u32::from(self.wide));
        if tuples > 32_767 {
            return Err(ParametersError::Long(tuples));
        }
        if (self.wide == 0) != (blocks == 0) || blocks > 1 << 30 {
            let wide = self.wide;
            return Err(ParametersError::Wide { wide, blocks });
        }
        Ok(())
    }
}

/// What a cache did. `packets` are the tuples of all vectors and of what is still held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheCounters {
    /// Packets taken.
    pub packets: u64,
    /// Vectors given, by [`Reason`](crate::Reason): full, collision, time, flushed.
    pub vectors: [u64; 4],
    /// Tuples in them.
    pub tuples: u64,
    /// Wide buffers drawn.
    pub widened: u64,
    /// Entries that stayed narrow since no wide buffer was free.
    pub denied: u64,
}

impl CacheCounters {
    /// Vectors given.
    #[must_use]
    pub fn vectors_total(&self) -> u64 {
        self.vectors.iter().sum()
    }
}

/// The slot, or set, of a hash.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "less than `sets`")]
fn set_of(hash: u64, sets: u32) -> u32 {
    ((hash >> 32).wrapping_mul(u64::from(sets)) >> 32) as u32
}
