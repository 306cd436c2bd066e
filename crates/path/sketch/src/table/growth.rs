//! How large a sketch is, and how it grows: at the end of a window, or within one.
//!
//! Within a window every flow keeps its counters: [`Sketch::spread`] moves each bucket to the place
//! that it has among twice as many.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use strata_sys::{Beyond, Growing};

use super::{BITS_DEFAULT, IDENTITY_MASK, Sketch};
use crate::bucket::Bucket;

/// More than one packet of this many without a bucket: the next window has twice the buckets.
const SHORT_ONE_IN: u64 = 100;
/// Within a window there are twice the buckets once this part of them is taken: then one flow in 200
/// finds both places taken.
const SPREAD_ONE_IN: u64 = 8;
/// Packets between two looks at that.
const SPREAD_EVERY: u64 = 1024;
/// From this size on, place and tag together hold the whole fingerprint of a flow.
const SPREAD_BITS_MIN: u32 = 16;
const _: () = assert!(BITS_DEFAULT >= SPREAD_BITS_MIN);

/// How many buckets a sketch has, and may have, as bits of an index into either of its two layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSize {
    bits: u32,
    /// Up to this it doubles within a window too.
    bits_spread: u32,
    bits_max: u32,
}

impl TableSize {
    /// The most that any sketch may have.
    pub(super) const BITS_LIMIT: u32 = 24;
    /// With less memory, flows of a busy second would not find buckets: 512 KiB.
    pub const BITS_MIN: u32 = 12;
    /// At the start, if memory allows: 128 MiB, for a million flows in a window.
    pub const BITS_START: u32 = 20;
    /// The most: 512 MiB.
    pub const BITS_MAX: u32 = 22;
    /// Fewest bytes of a sketch within a limit.
    pub const BYTES_MIN: u64 = Self::fixed(Self::BITS_MIN).bytes_max();

    /// Of one size.
    ///
    /// # Panics
    ///
    /// If `bits` is not between 1 and 24.
    #[must_use]
    pub const fn fixed(bits: u32) -> Self {
        Self::growing(bits, bits)
    }

    /// Of `bits`, which may become `bits_max`.
    ///
    /// # Panics
    ///
    /// If they are not between 1 and 24, and in order.
    #[must_use]
    pub const fn growing(bits: u32, bits_max: u32) -> Self {
        assert!(0 < bits && bits <= bits_max && bits_max <= Self::BITS_LIMIT);
        Self {
            bits,
            bits_spread: bits,
            bits_max,
        }
    }

    /// Starts with 8 MiB if it is larger, and doubles within a window to the size that it would have
    /// started with. For callers that can wait while buckets move (a millisecond per 10 MiB or so), and
    /// have few flows more often than many: memory takes time to clear, and a small table stays in the
    /// cache.
    #[must_use]
    pub fn starting_small(self) -> Self {
        Self {
            bits: self.bits.min(BITS_DEFAULT),
            ..self
        }
    }

    /// What fits into this many bytes, and is useful: at least [`TableSize::BYTES_MIN`], whatever
    /// fits.
    #[must_use]
    pub const fn within(bytes: u64) -> Self {
        let mut bits_max = Self::BITS_MIN;
        while bits_max < Self::BITS_MAX && Self::fixed(bits_max + 1).bytes_max() <= bytes {
            bits_max += 1;
        }
        let bits = if bits_max < Self::BITS_START {
            bits_max
        } else {
            Self::BITS_START
        };
        Self::growing(bits, bits_max)
    }

    /// Bits at the start.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.bits
    }

    /// Bits that it may have.
    #[must_use]
    pub const fn bits_max(self) -> u32 {
        self.bits_max
    }

    /// Memory that it may take.
    #[must_use]
    pub const fn bytes_max(self) -> u64 {
        (2 * size_of::<Bucket>() as u64) << self.bits_max
    }

    /// With half the limit, unless that is too little to be useful.
    pub(super) fn halved(self) -> Option<Self> {
        let bits_max = self.bits_max - 1;
        (bits_max >= Self::BITS_MIN).then_some(Self {
            bits: self.bits.min(bits_max),
            bits_spread: self.bits_spread.min(bits_max),
            bits_max,
        })
    }
}

/// The state of a [`Preparation`].
const PENDING: u8 = 0;
const READY: u8 = 1;
const REFUSED: u8 = 2;

/// Memory by which a sketch is about to grow: another thread makes it present, which takes tens of
/// milliseconds, while the sketch counts on.
pub struct Preparation {
    layers: Option<[Beyond; 2]>,
    state: Arc<AtomicU8>,
}

impl Preparation {
    /// Makes it present.
    ///
    /// # Errors
    ///
    /// If the system has no memory: then the sketch stays as it is.
    pub fn run(mut self) -> io::Result<()> {
        let mut layers = self.layers.take().into_iter().flatten();
        let done = layers.try_for_each(Beyond::make_present);
        // The sketch cannot grow while these are there.
        drop(layers);
        let state = if done.is_ok() { READY } else { REFUSED };
        self.state.store(state, Ordering::Release);
        done
    }
}

impl Drop for Preparation {
    fn drop(&mut self) {
        // It has not run.
        if self.layers.take().is_some() {
            self.state.store(REFUSED, Ordering::Release);
        }
    }
}

impl fmt::Debug for Preparation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Preparation")
    }
}

/// The state of a sketch's growth.
#[derive(Debug)]
pub(super) struct Growth {
    size: TableSize,
    /// Whether it grows only into memory that was prepared.
    when_prepared: bool,
    /// A window has shown that it should grow.
    is_due: bool,
    /// What has become of the memory that is being prepared.
    prepared: Option<Arc<AtomicU8>>,
    /// Packets, and those without bucket, before the window.
    before: (u64, u64),
    /// Buckets claimed before the window.
    claimed_before: u64,
}

impl Growth {
    pub(super) fn new(size: TableSize) -> Self {
        Self {
            size,
            when_prepared: false,
            is_due: false,
            prepared: None,
            before: (0, 0),
            claimed_before: 0,
        }
    }

    /// It does not double within a window.
    pub(super) fn stays_within_windows(&mut self) {
        self.size.bits_spread = self.size.bits;
    }
}

impl Sketch {
    /// Makes its memory present, so that no packet waits for it.
    ///
    /// # Errors
    ///
    /// If the system has no memory.
    pub fn make_present(&mut self) -> io::Result<()> {
        self.layers.iter_mut().try_for_each(Growing::make_present)
    }

    /// Lets it grow only into memory that [`Sketch::preparation`] has handed to another thread, so
    /// that no packet waits for memory. If that is not ready when a window ends, it grows at the
    /// end of a later one.
    pub fn grow_when_prepared(&mut self) {
        self.growth.when_prepared = true;
    }

    /// Memory to be prepared by another thread: there is some once, as soon as more than 1 % of the
    /// packets of the current window have no bucket. To be called often.
    #[inline]
    pub fn preparation(&mut self) -> Option<Preparation> {
        let is_wanted = self.growth.when_prepared && self.growth.prepared.is_none();
        if is_wanted && (self.growth.is_due || self.is_short()) {
            return self.prepare();
        }
        None
    }

    /// Whether more than 1 % of the packets of the current window have no bucket, though there
    /// could be more.
    #[inline]
    fn is_short(&self) -> bool {
        let (packets, without_bucket) = self.growth.before;
        let packets = self.pressure.packets - packets;
        let without_bucket = self.pressure.without_bucket - without_bucket;
        without_bucket > packets / SHORT_ONE_IN && self.bits < self.growth.size.bits_max()
    }

    #[cold]
    fn prepare(&mut self) -> Option<Preparation> {
        let [first, second] = &mut self.layers;
        let len = 2 << self.bits;
        let layers = [first.beyond(len)?, second.beyond(len)?];
        let state = Arc::new(AtomicU8::new(PENDING));
        self.growth.prepared = Some(Arc::clone(&state));
        Some(Preparation {
            layers: Some(layers),
            state,
        })
    }

    /// Doubles the buckets, if this is the end of a window with too few.
    pub(super) fn end_window(&mut self) {
        self.growth.is_due |= self.is_short();
        self.growth.before = (self.pressure.packets, self.pressure.without_bucket);
        self.growth.claimed_before = self.pressure.claimed;
        if !self.growth.is_due {
            return;
        }
        let prepared = self.growth.prepared.as_ref();
        let can_grow = match prepared.map(|state| state.load(Ordering::Acquire)) {
            // Later, once it is prepared.
            None | Some(PENDING) if self.growth.when_prepared => return,
            None => true,
            Some(state) => state == READY,
        };
        self.growth.is_due = false;
        self.growth.prepared = None;
        let len = 2 << self.bits;
        let [first, second] = &mut self.layers;
        if can_grow && first.grow(len).and_then(|()| second.grow(len)).is_ok() {
            self.bits += 1;
            self.pressure.buckets = 2 << self.bits;
        } else {
            self.pressure.growths_refused += 1;
        }
    }

    /// Whether it may double within a window.
    #[inline(always)]
    fn spreads(&self) -> bool {
        self.bits < self.growth.size.bits_spread
    }

    /// Whether the buckets that are taken in this window, with `more` to come, call for twice the
    /// number.
    #[inline(always)]
    fn is_crowded_with(&self, more: u64) -> bool {
        let taken = self.pressure.claimed - self.growth.claimed_before;
        taken + more > (2 << self.bits) / SPREAD_ONE_IN
    }

    /// Whether it may double within that number of packets.
    #[inline]
    pub(super) fn may_spread_within(&self, packets: u64) -> bool {
        let left = self.pressure.packets.wrapping_neg() % SPREAD_EVERY;
        self.spreads() && left < packets && self.is_crowded_with(packets)
    }

    /// Doubles the buckets, if it is time to look and they are crowded. It depends on the packets
    /// before this one alone, however they are batched.
    #[inline(always)]
    pub(super) fn spread_if_crowded(&mut self) {
        if self.pressure.packets.is_multiple_of(SPREAD_EVERY)
            && self.spreads()
            && self.is_crowded_with(0)
        {
            self.spread();
        }
    }

    /// Doubles the buckets and moves each to its new place.
    #[cold]
    #[allow(clippy::cast_possible_truncation, reason = "places")]
    fn spread(&mut self) {
        assert!(self.bits >= SPREAD_BITS_MIN && self.identity_mask == IDENTITY_MASK);
        let len = 1 << self.bits;
        let [first, second] = &mut self.layers;
        if first
            .grow(2 * len)
            .and_then(|()| second.grow(2 * len))
            .is_err()
        {
            self.pressure.growths_refused += 1;
            self.growth.size.bits_spread = self.bits;
            return;
        }
        let (bits, epoch) = (self.bits, u64::from(self.epoch));
        let is_taken = |bucket: &Bucket| bucket.tag & 0xffff == epoch;
        // The top bits of a fingerprint and one more, from the last place on: no bucket is
        // overwritten before it has moved.
        for place in (0..len).rev() {
            let bucket = std::mem::take(&mut first[place]);
            let next_bit = (bucket.tag >> 16 >> (63 - bits) & 1) as usize;
            first[2 * place + (1 - next_bit)] = Bucket::default();
            first[2 * place + next_bit] = match is_taken(&bucket) {
                true => bucket,
                false => Bucket::default(),
            };
        }
        // The low bits and one more; flows whose place in the first layer is free now go there, where
        // they are looked for.
        for place in 0..len {
            let bucket = std::mem::take(&mut second[place]);
            if !is_taken(&bucket) {
                continue;
            }
            let fingerprint = bucket.tag >> 16 << 16 | (place & 0xffff) as u64;
            let home = &mut first[(fingerprint >> (63 - bits)) as usize];
            if is_taken(home) {
                second[place | ((fingerprint >> bits & 1) as usize) << bits] = bucket;
            } else {
                let tag = (fingerprint & IDENTITY_MASK) << 16 | epoch;
                *home = bucket;
                home.tag = tag;
            }
        }
        self.bits += 1;
        self.pressure.buckets = 2 << self.bits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_memory_that_there_is() {
        let within = |mib: u64| {
            let size = TableSize::within(mib << 20);
            assert!(size.bytes_max() <= mib << 20);
            (size.bits(), size.bits_max())
        };
        assert_eq!(within(1), (13, 13));
        assert_eq!(within(56), (18, 18));
        assert_eq!(within(128), (20, 20));
        assert_eq!(within(500), (20, 21));
        assert_eq!(within(512), (20, 22));
        assert_eq!(within(1 << 20), (20, 22));
        assert_eq!(TableSize::BYTES_MIN, 512 << 10);
        assert_eq!(TableSize::within(0).bytes_max(), TableSize::BYTES_MIN);
    }
}
