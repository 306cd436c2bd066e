//! The sketch: the heavy part of Elastic Sketch in two layers, with a window.

mod gathered;
mod kernel;
mod wide;

use std::hint::select_unpredictable;

use strata_wire::prefetch;

use crate::bucket::Bucket;
use crate::facts::PacketFacts;
use crate::switch::Arithmetic;

pub use gathered::{BLOCK, Block, Gathered};

/// Votes needed per packet of a bucket's owner to replace it. The Elastic Sketch paper uses 8; but
/// there a light part keeps what a bucket loses. Here a flow that comes late has lost its first
/// packets, so the owner's packets weigh more.
const LAMBDA: u32 = 64;
/// Bits of identity that a tag holds, in addition to those implied by the position.
const IDENTITY_MASK: u64 = (1 << 48) - 1;

/// Time within a window, in ticks: the smallest power of two of ns for which a window holds at most
/// 2^24. 1 ns for the 10 ms of TitanLog §III-B, 4.1 us for a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    window_ns: u64,
    shift: u32,
}

impl Clock {
    /// A clock for windows of `window_ns` ns, at least 1.
    #[must_use]
    pub fn new(window_ns: u64) -> Self {
        let window_ns = window_ns.max(1);
        let mut shift = 0;
        while (window_ns - 1) >> shift >= 1 << 24 {
            shift += 1;
        }
        Self { window_ns, shift }
    }

    /// Nanoseconds per tick.
    #[must_use]
    pub fn tick_ns(self) -> u64 {
        1 << self.shift
    }

    /// The window's length in ns.
    #[must_use]
    pub fn window_ns(self) -> u64 {
        self.window_ns
    }

    /// Start of the window that a time belongs to.
    #[inline]
    pub(crate) fn window_start(self, ts_ns: u64) -> u64 {
        ts_ns - ts_ns % self.window_ns
    }

    /// Ticks from the start of a window; before it, 0; after it, its end.
    #[inline]
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) fn ticks(self, window_start: u64, ts_ns: u64) -> u32 {
        (ts_ns.saturating_sub(window_start).min(self.window_ns - 1) >> self.shift) as u32
    }

    /// Whether a packet with this time starts a new window: it is after the current one, or so far
    /// before it that the capture's clock was set back.
    #[inline]
    pub(crate) fn leaves(self, window_start: u64, ts_ns: u64) -> bool {
        ts_ns.wrapping_sub(window_start) >= self.window_ns
            && (ts_ns > window_start || window_start - ts_ns > self.window_ns)
    }
}

/// Effects of the pressure on the buckets. A metric, never an input: the window belongs to the
/// model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Packets offered.
    pub packets: u64,
    /// Buckets taken by a flow's first packet.
    pub claimed: u64,
    /// Of these, those taken from another flow of the same window by votes.
    pub replaced: u64,
    /// Packets whose flow got no bucket.
    pub without_bucket: u64,
    /// Windows started.
    pub windows: u64,
}

impl Pressure {
    /// Adds what another sketch has counted.
    pub fn merge(&mut self, other: Self) {
        self.packets += other.packets;
        self.claimed += other.claimed;
        self.replaced += other.replaced;
        self.without_bucket += other.without_bucket;
        // Windows depend on time, which is the same for all.
        self.windows = self.windows.max(other.windows);
    }
}

/// Two layers of buckets, one bucket to a cache line. Memory: 128 bytes times
/// 2^bits; 8 MiB at the default of 16 bits.
///
/// A flow's 64-bit fingerprint gives its place in each layer (the top bits in the first, the low
/// bits in the second); the other 48 bits are in the bucket's tag, with the 16-bit number of the
/// window, so that one compare tells "this flow, in this window", and a new window touches no
/// memory, except for one clearing every 65 535 windows when the numbers start again.
#[derive(Debug)]
pub struct Sketch {
    layers: [Vec<Bucket>; 2],
    bits: u32,
    epoch: u16,
    window_start: u64,
    clock: Clock,
    arithmetic: Arithmetic,
    /// The bits of a fingerprint that a tag holds: all, or none.
    identity_mask: u64,
    pressure: Pressure,
}

/// Bits of a bucket's index by default: layers of 2^16 buckets (TitanLog §VII).
pub const BITS_DEFAULT: u32 = 16;

impl Sketch {
    /// An empty sketch of two layers of 2^`bits` buckets.
    ///
    /// # Panics
    ///
    /// If `bits` is not between 1 and 24.
    #[must_use]
    pub fn new(bits: u32, clock: Clock, arithmetic: Arithmetic) -> Self {
        assert!((1..=24).contains(&bits), "2^{bits} buckets");
        let layer = || vec![Bucket::default(); 1 << bits];
        Self {
            layers: [layer(), layer()],
            bits,
            epoch: 1,
            window_start: 0,
            clock,
            arithmetic,
            identity_mask: IDENTITY_MASK,
            pressure: Pressure::default(),
        }
    }

    /// Without flow identity, as in the published switch program of TitanLog: flows whose
    /// fingerprints agree in their first bits share one bucket.
    #[must_use]
    pub fn with_shared_buckets(mut self) -> Self {
        self.identity_mask = 0;
        self
    }

    /// The clock of this sketch's delays.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Counters since the start.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        self.pressure
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)]
    fn places(&self, fingerprint: u64) -> [usize; 2] {
        let mask = (1_u64 << self.bits) - 1;
        [
            (fingerprint >> (64 - self.bits)) as usize,
            (fingerprint & mask) as usize,
        ]
    }

    /// Asks the CPU to fetch the first-layer bucket of a flow.
    #[inline]
    pub fn prefetch(&self, fingerprint: u64) {
        prefetch(&self.layers[0], self.places(fingerprint)[0]);
    }

    /// Asks the CPU to fetch the second-layer bucket of a flow if its first one, which should have
    /// arrived by now, belongs to another flow in this window. Without a branch, as it changes from
    /// packet to packet.
    #[inline]
    pub fn prefetch_other(&self, fingerprint: u64) {
        let [first, second] = self.places(fingerprint);
        let tag = self.layers[0][first].tag;
        let is_foreign =
            tag & 0xffff == u64::from(self.epoch) && tag >> 16 != fingerprint & self.identity_mask;
        let (layer, place) = select_unpredictable(
            is_foreign,
            (&self.layers[1], second),
            (&self.layers[0], first),
        );
        prefetch(layer, place);
    }

    /// Counts one packet and returns its flow's bucket right afterwards; `None` if the flow has
    /// none (or the packet has no flow: fingerprint 0).
    ///
    /// Worst case: two cache lines.
    #[inline]
    pub fn insert(&mut self, facts: &PacketFacts) -> Option<&Bucket> {
        self.pressure.packets += 1;
        if self.clock.leaves(self.window_start, facts.ts_ns) {
            self.begin_window(facts.ts_ns);
        }
        if facts.fingerprint == 0 {
            self.pressure.without_bucket += 1;
            return None;
        }
        let now = self.clock.ticks(self.window_start, facts.ts_ns);
        let epoch = u64::from(self.epoch);
        let [first, second] = self.places(facts.fingerprint);
        let tags = [
            (facts.fingerprint & self.identity_mask) << 16 | epoch,
            (facts.fingerprint >> 16 & self.identity_mask) << 16 | epoch,
        ];
        let [layer_0, layer_1] = &mut self.layers;
        let bucket = &mut layer_0[first];
        if bucket.tag == tags[0] {
            bucket.update(facts, now, self.arithmetic);
            return Some(bucket);
        }
        // A flow is in the second layer only if its first place was taken in this window, and a
        // place once taken stays so until the window ends.
        if bucket.tag & 0xffff != epoch {
            *bucket = Bucket::claim(tags[0], facts, now, self.arithmetic);
            self.pressure.claimed += 1;
            return Some(bucket);
        }
        let other = &mut layer_1[second];
        if other.tag == tags[1] {
            other.update(facts, now, self.arithmetic);
            return Some(other);
        }
        if other.tag & 0xffff != epoch {
            *other = Bucket::claim(tags[1], facts, now, self.arithmetic);
            self.pressure.claimed += 1;
            return Some(other);
        }
        // Both places are taken: vote against the flow with fewer packets.
        let (loser, tag) = if bucket.packets() <= other.packets() {
            (bucket, tags[0])
        } else {
            (other, tags[1])
        };
        if loser.vote(LAMBDA) {
            *loser = Bucket::claim(tag, facts, now, self.arithmetic);
            self.pressure.claimed += 1;
            self.pressure.replaced += 1;
            return Some(loser);
        }
        self.pressure.without_bucket += 1;
        None
    }

    #[cold]
    fn begin_window(&mut self, ts_ns: u64) {
        self.window_start = self.clock.window_start(ts_ns);
        self.pressure.windows += 1;
        self.epoch = self.epoch.wrapping_add(1);
        if self.epoch == 0 {
            self.epoch = 1;
            for layer in &mut self.layers {
                layer.fill(Bucket::default());
            }
        }
    }
}
