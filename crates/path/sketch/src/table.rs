//! The sketch: the heavy part of Elastic Sketch in two layers, with a window.

mod gathered;
mod growth;
mod kernel;
mod wide;

use std::hint::select_unpredictable;
use std::io;

use strata_sys::Growing;
use strata_wire::{largest, prefetch, summed};

use crate::bucket::Bucket;
use crate::clock::Clock;
use crate::facts::PacketFacts;
use crate::switch::Arithmetic;

use growth::Growth;

pub use gathered::{BLOCK, Block, Gathered};
pub use growth::{Preparation, TableSize};

/// Votes needed per packet of a bucket's owner to replace it. The Elastic Sketch paper uses 8; but
/// there a light part keeps what a bucket loses. Here a flow that comes late has lost its first
/// packets, so the owner's packets weigh more.
const LAMBDA: u32 = 64;
/// Bits of identity that a tag holds, in addition to those implied by the position.
const IDENTITY_MASK: u64 = (1 << 48) - 1;
/// Old tags are looked for in this part of the buckets at each window's start. Windows are numbered
/// in 16 bits. A bucket is looked at again after this many windows; with each doubling meanwhile,
/// after up to half as many more. There are fewer than 24, so before a number returns.
const SWEEP: usize = 1 << 12;
const _: () = assert!(SWEEP + TableSize::BITS_LIMIT as usize * SWEEP / 2 < 1 << 16);

summed! {
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
        /// Windows started: they depend on time, which is the same for all.
        pub windows: u64 = largest,
        /// Buckets that there are now.
        pub buckets: u64,
        /// How often there were to be more buckets, or the right to as many as asked, but no memory for them.
        pub growths_refused: u64,
    }
}

impl Pressure {
    /// Memory of the buckets that there are now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.buckets * size_of::<Bucket>() as u64
    }
}

/// Two layers of buckets, one bucket to a cache line. Memory: 128 bytes times 2^bits, taken as
/// buckets are used; 8 MiB for 16 bits, 128 MiB for 20 and 512 MiB for 22.
///
/// When a window ends in which more than 1 % of the packets had no bucket, there are twice as many
/// in the next one, up to the limit of its [`TableSize`]: what buckets hold is void then anyway.
/// A small one grows within a window too, before it is crowded ([`TableSize::starting_small`]). This
/// depends on the packets alone, unless the system refuses memory or another thread prepares it
/// ([`Sketch::grow_when_prepared`]).
///
/// A flow's 64-bit fingerprint gives its place in each layer (the top bits in the first, the low
/// bits in the second); the other 48 bits are in the bucket's tag, with the 16-bit number of the
/// window, so that one compare tells "this flow, in this window", and a new window touches little
/// memory: it clears the tags of old windows in a few buckets, before the numbers start again.
#[derive(Debug)]
pub struct Sketch {
    /// Each at least as long as `bits` says.
    layers: [Growing<Bucket>; 2],
    bits: u32,
    growth: Growth,
    /// The bucket of each layer up to which old tags were cleared.
    swept: usize,
    epoch: u16,
    window_start: u64,
    clock: Clock,
    arithmetic: Arithmetic,
    /// The bits of a fingerprint that a tag holds: all, or none.
    identity_mask: u64,
    pressure: Pressure,
}

/// Bits of a bucket's index in TitanLog §VII: layers of 2^16 buckets.
pub const BITS_DEFAULT: u32 = 16;

impl Sketch {
    /// An empty sketch of two layers of 2^`bits` buckets, which stays so.
    ///
    /// # Panics
    ///
    /// If `bits` is not between 1 and 24, or there is no memory.
    #[must_use]
    pub fn new(bits: u32, clock: Clock, arithmetic: Arithmetic) -> Self {
        let fixed = TableSize::fixed(bits);
        Self::growing(fixed, clock, arithmetic).expect("memory for a table of flows")
    }

    /// An empty sketch of this size. If the system refuses address space for the largest, the limit
    /// is half of what it grants, or less, and [`Pressure::growths_refused`] counts that.
    ///
    /// # Errors
    ///
    /// If the system refuses memory even for the smallest.
    pub fn growing(size: TableSize, clock: Clock, arithmetic: Arithmetic) -> io::Result<Self> {
        let layer = |size: TableSize| Growing::new(1 << size.bits(), 1 << size.bits_max());
        let asked = size.bits_max();
        let (mut size, mut was_refused) = (size, false);
        let layers = loop {
            match layer(size).and_then(|first| Ok([first, layer(size)?])) {
                // Others need some of the little that there is.
                Ok(layers) if was_refused => match size.halved() {
                    Some(less) => (size, was_refused) = (less, false),
                    None => break layers,
                },
                Ok(layers) => break layers,
                Err(error) => (size, was_refused) = (size.halved().ok_or(error)?, true),
            }
        };
        let pressure = Pressure {
            buckets: 2 << size.bits(),
            growths_refused: u64::from(size.bits_max() < asked),
            ..Pressure::default()
        };
        Ok(Self {
            layers,
            bits: size.bits(),
            growth: Growth::new(size),
            swept: 0,
            epoch: 1,
            window_start: 0,
            clock,
            arithmetic,
            identity_mask: IDENTITY_MASK,
            pressure,
        })
    }

    /// Without flow identity, as in the published switch program of TitanLog: flows whose
    /// fingerprints agree in their first bits share one bucket.
    #[must_use]
    pub fn with_shared_buckets(mut self) -> Self {
        self.identity_mask = 0;
        self.growth.stays_within_windows();
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
        if self.clock.leaves(self.window_start, facts.ts_ns) {
            self.begin_window(facts.ts_ns);
        }
        self.spread_if_crowded();
        self.pressure.packets += 1;
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
        self.end_window();
        self.epoch = self.epoch.wrapping_add(1).max(1);
        self.sweep();
    }

    /// Clears the tags in the next few buckets of each layer: they are of windows before this one.
    fn sweep(&mut self) {
        let len = 1 << self.bits;
        let until = (self.swept + (len / SWEEP).max(1)).min(len);
        for layer in &mut self.layers {
            for bucket in &mut layer[self.swept..until] {
                // Memory that was never touched stays so.
                if bucket.tag != 0 {
                    bucket.tag = 0;
                }
            }
        }
        self.swept = if until < len { until } else { 0 };
    }
}
