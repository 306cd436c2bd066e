//! The budget of detail: so much payload beyond headers is kept, of the start of each flow first, and
//! more of what is unusual.
//!
//! [`Detail`] is the controller of one worker, without a clock: packets and their times in, decisions
//! out. It is a token bucket that earns what the budget is worth, and a threshold on ranks (`ranks`),
//! which follow from how early a packet is in its flow and from its score. The threshold follows from the
//! running distribution of ranks and from how full the bucket is: while it is low, fewer packets get
//! detail than the distribution suggests, while it is high, more, and once it is full, any.
//!
//! The bucket is filled to a few seconds of the budget at most, so what is kept in a minute is the
//! budget to within that, whatever the scores are. Where the budget of a minute is less than
//! `SAVED_BYTES`, it holds that much, but no more than there was so far: on a quiet link an attack
//! comes in minutes that are mostly its own, and would get a tenth of itself.
//!
//! A flow that got detail keeps it until its rank is clearly lower, or the bucket is low.
//!
//! With several workers, a share is kept of each worker's packets. A rate is divided among them in
//! proportion to their payload of the last seconds ([`DetailLoads`]).

mod budget;
mod flows;
mod ranks;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use strata_classify::{SCORE_STEPS, STEP_ANOMALOUS};
use strata_wire::counters;

pub use budget::{BudgetError, DetailBudget};
use flows::{Holders, Positions};
pub use ranks::DetailOffer;
use ranks::{NO_RANK, RANK_BITS, RANK_FIRST, Ranks, WANTED};

/// The budget is kept to within a chunk of packets.
const CHUNK: usize = 32;
/// The bucket holds this share of what the budget was worth in the last minute, ...
const BUCKET_SHARE: f64 = 0.04;
/// ... and at least this many bytes, of all workers together.
const BUCKET_BYTES_MIN: f64 = 16_384.0;
/// Where the budget of a minute is less than this, it holds as much, ...
const SAVED_BYTES: f64 = 262_144.0;
/// ... and from this many times as much on, nothing of it: steeply, but without a step.
const SAVED_UNTIL: f64 = 1.25;
/// It holds a little more for a short time.
const OVERFLOW: f64 = 1.25;
/// A minute's budget is estimated from no less than this time.
const ESTIMATED_SECONDS_MIN: f64 = 5.0;
/// Thresholds are renewed this often in packet time, ...
const INTERVAL_NS: u64 = 250_000_000;
/// ... and after so many packets, fewer at the start.
const INTERVAL_PACKETS_MIN: u64 = 64;
const INTERVAL_PACKETS_MAX: u64 = 1 << 16;
/// A flow keeps its detail until its rank is this much below the threshold: a quarter of a doubling.
const CLEARLY: u16 = 1 << RANK_BITS;
/// Time that runs backwards by more than this has been set.
const SET_BACK_NS: u64 = 1_000_000_000;

// The step of a verdict can be offered as it is, where modes want what is anomalous.
const _: () = assert!(STEP_ANOMALOUS == WANTED && SCORE_STEPS == WANTED);

/// Levels of the bucket between empty and full.
const LEVELS: usize = 4;
/// For what part of the budget the distribution is asked, by level.
const PARTS: [f64; LEVELS] = [0.7, 1.0, 1.0, 2.0];

impl DetailBudget {
    /// What may be given before anything was earned.
    fn first_credit(self) -> f64 {
        let (Self::Share(worth) | Self::Rate(worth)) = self;
        if worth > 0.0 {
            BUCKET_BYTES_MIN / 4.0
        } else {
            0.0
        }
    }
}

counters! {
    /// What became of payload beyond headers.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct DetailCounts {
        /// Packets that the budget decided about, and their payload on the wire.
        pub offered,
        /// Those of them that got detail, and the bytes kept beyond headers.
        pub given,
        /// Those of them that the modes wanted, but the budget did not give.
        pub over_budget,
        /// Packets that others decided about (policies, alerts, first bytes), and the bytes kept of them
        /// beyond headers.
        pub outside,
    }
}

/// How much payload each of several workers has, so that they can divide a rate.
#[derive(Debug)]
pub struct DetailLoads(Vec<AtomicU64>);

impl DetailLoads {
    /// For this many workers.
    #[must_use]
    pub fn new(workers: usize) -> Arc<Self> {
        Arc::new(Self((0..workers).map(|_| AtomicU64::new(0)).collect()))
    }

    /// How many workers.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.0.len()
    }
}

/// One worker's share of the load.
#[derive(Debug)]
struct Load {
    all: Arc<DetailLoads>,
    number: usize,
    /// By worker: its payload so far, and what of it came lately.
    latest: Vec<(u64, f64)>,
}

impl Load {
    /// The share of this worker, which has got more payload.
    #[allow(clippy::cast_precision_loss)]
    fn share(&mut self, payload: u64, seconds: f64) -> f64 {
        self.all.0[self.number].fetch_add(payload, Ordering::Relaxed);
        for ((before, lately), now) in self.latest.iter_mut().zip(&self.all.0) {
            let now = now.load(Ordering::Relaxed);
            let more = now - std::mem::replace(before, now);
            *lately = *lately / (1.0 + seconds / 10.0) + more as f64;
        }
        let all: f64 = self.latest.iter().map(|(_, lately)| lately).sum();
        let equal = 1.0 / self.latest.len() as f64;
        match self.latest.get(self.number) {
            Some((_, own)) if all > 0.0 => own / all,
            _ => equal,
        }
    }
}

/// The least rank that gets detail.
#[derive(Clone, Copy, Debug)]
struct Least {
    /// By whether the flow has some already.
    by_held: [u16; 2],
    /// Packets below get none, whatever their flow.
    candidate: u16,
}

impl Least {
    fn new(new: u16, held: u16) -> Self {
        Self {
            by_held: [new, held],
            candidate: new.min(held),
        }
    }
}

/// The controller of one worker.
#[derive(Debug)]
pub struct Detail {
    budget: DetailBudget,
    load: Option<Load>,
    /// This worker's share of a rate.
    load_share: f64,
    ranks: Ranks,
    positions: Positions,
    holders: Holders,
    /// By level of the bucket.
    levels: [Least; LEVELS],
    least: Least,
    /// Packets left of the chunk.
    left: usize,
    /// Payload offered since the last chunk began.
    offered: u64,
    /// What may be given now, in bytes.
    credit: f64,
    /// What the budget was worth in the last minute, ...
    per_minute: f64,
    /// ... of which there were so many seconds.
    seconds: f64,
    /// What this budget was worth so far, of which no more can be left.
    earned: f64,
    /// The latest packet time, once there is one.
    clock_ns: Option<u64>,
    interval: Interval,
    counts: DetailCounts,
}

/// The interval after which thresholds are renewed.
#[derive(Clone, Copy, Debug)]
struct Interval {
    started_ns: u64,
    packets: u64,
    packets_max: u64,
    earned: f64,
    payload: u64,
}

impl Detail {
    /// A controller that knows nothing yet; `load` says which of several workers it is.
    ///
    /// # Panics
    ///
    /// If there are fewer workers than its number says.
    #[must_use]
    pub fn new(budget: DetailBudget, load: Option<(Arc<DetailLoads>, usize)>) -> Self {
        let load = load.map(|(all, number)| {
            assert!(number < all.0.len(), "one of the workers");
            let latest = all.0.iter().map(|now| (now.load(Ordering::Relaxed), 0.0));
            let latest = latest.collect();
            Load {
                all,
                number,
                latest,
            }
        });
        let least = Least::new(RANK_FIRST, RANK_FIRST);
        let workers = load.as_ref().map_or(1, |load| load.latest.len());
        #[allow(clippy::cast_precision_loss)]
        let load_share = 1.0 / workers as f64;
        Self {
            budget,
            load,
            load_share,
            ranks: Ranks::new(),
            positions: Positions::new(),
            holders: Holders::new(),
            levels: [least; LEVELS],
            least,
            left: 0,
            offered: 0,
            credit: budget.first_credit(),
            per_minute: 0.0,
            seconds: 0.0,
            earned: 0.0,
            clock_ns: None,
            interval: Interval {
                started_ns: 0,
                packets: 0,
                packets_max: INTERVAL_PACKETS_MIN,
                earned: 0.0,
                payload: 0,
            },
            counts: DetailCounts::default(),
        }
    }

    /// Continues with another budget.
    pub fn set_budget(&mut self, budget: DetailBudget) {
        if self.budget != budget {
            self.budget = budget;
            (self.per_minute, self.seconds, self.earned) = (0.0, 0.0, 0.0);
            self.credit = self.credit.min(budget.first_credit());
        }
    }

    /// The step of a score (`strata_classify::score_step`, above which anything may be set), with
    /// whether the modes want the packet's detail.
    #[inline]
    #[must_use]
    pub fn step(score: u8, is_wanted: bool) -> u8 {
        score & !WANTED | if is_wanted { WANTED } else { 0 }
    }

    /// What became of payload so far.
    #[must_use]
    pub fn counts(&self) -> DetailCounts {
        self.counts
    }

    /// How many of the packets to come, of which there are at most `most` and the first has this
    /// time, may be offered until the next call.
    #[inline]
    pub fn chunk(&mut self, ts_ns: u64, most: usize) -> usize {
        if self.left == 0 {
            self.next_chunk(ts_ns);
        }
        let count = self.left.min(most);
        self.left -= count;
        count
    }

    /// Counts a packet's payload, and says what it is offered with; 0 is the fingerprint of what has no
    /// flow. The step is that of [`Detail::step`].
    #[inline(always)]
    pub fn count(&mut self, step: u8, fingerprint: u64, payload: u32) -> DetailOffer {
        if payload == 0 {
            return DetailOffer::of_nothing(step);
        }
        let end = self.positions.end(fingerprint, payload);
        self.ranks.add(step, end, payload)
    }

    /// [`Detail::decide`] has to be asked about those packets of a chunk whose offer is this or more:
    /// they may get detail, or the modes want it.
    #[inline(always)]
    #[must_use]
    pub fn candidate(&self) -> u16 {
        self.least.candidate
    }

    /// Counts the packets of a chunk that were offered, and their payload.
    #[inline]
    pub fn offered(&mut self, packets: u64, payload: u64) {
        self.counts.offered.packets += packets;
        self.counts.offered.bytes += payload;
        self.offered += payload;
    }

    /// Whether a packet gets detail: `payload` bytes beyond headers on the wire, of which `captured`
    /// can be kept. The offer is that of [`Detail::count`].
    #[inline]
    pub fn decide(
        &mut self,
        offer: DetailOffer,
        fingerprint: u64,
        payload: u32,
        captured: u32,
    ) -> bool {
        if payload == 0 {
            // There is nothing to give.
            return offer.is_wanted();
        }
        let holds = self.holders.holds(fingerprint);
        let gives = offer.rank() >= self.least.by_held[usize::from(holds)];
        if gives != holds {
            self.holders.note(fingerprint, gives);
        }
        if gives {
            self.counts.given.add(u64::from(captured));
            self.credit -= f64::from(captured);
            if self.credit <= 0.0 {
                self.least.by_held = [NO_RANK; 2];
            }
        } else if offer.is_wanted() {
            self.counts.over_budget.add(u64::from(payload));
        }
        gives
    }

    /// As [`Detail::count`] and [`Detail::decide`], for one packet.
    pub fn packet(
        &mut self,
        ts_ns: u64,
        step: u8,
        fingerprint: u64,
        (payload, captured): (u32, u32),
    ) -> bool {
        self.chunk(ts_ns, 1);
        self.offered(1, u64::from(payload));
        let offer = self.count(step, fingerprint, payload);
        offer.0 >= self.candidate() && self.decide(offer, fingerprint, payload, captured)
    }

    /// Counts a packet that others decided about, of which these bytes beyond headers are kept.
    #[inline]
    pub fn outside(&mut self, kept: u32) {
        if kept > 0 {
            self.counts.outside.add(u64::from(kept));
        }
    }

    #[allow(clippy::cast_precision_loss)]
    fn workers(&self) -> f64 {
        self.load
            .as_ref()
            .map_or(1.0, |load| load.latest.len() as f64)
    }

    /// What the bucket holds at most.
    fn bucket_bytes(&self) -> f64 {
        let workers = self.workers();
        let least = (self.per_minute * BUCKET_SHARE).max(BUCKET_BYTES_MIN / workers);
        // Before there was a minute.
        let per_minute = self.per_minute * 60.0 / self.seconds.max(ESTIMATED_SECONDS_MIN);
        let of_saved = per_minute * workers / SAVED_BYTES;
        let part = (SAVED_UNTIL - of_saved) / (SAVED_UNTIL - 1.0);
        let saved = SAVED_BYTES / workers * part.min(1.0);
        least.max(saved.min(self.earned))
    }

    /// Adds what the budget is worth to the bucket, and renews the thresholds.
    #[cold]
    #[inline(never)]
    #[allow(clippy::cast_precision_loss)]
    fn next_chunk(&mut self, ts_ns: u64) {
        self.left = CHUNK;
        let before = match self.clock_ns {
            Some(before) if ts_ns.saturating_add(SET_BACK_NS) >= before => before,
            _ => {
                self.interval.started_ns = ts_ns;
                ts_ns
            }
        };
        let now = ts_ns.max(before);
        self.clock_ns = Some(now);
        let seconds = (now - before) as f64 / 1e9;
        let payload = std::mem::take(&mut self.offered);
        let earned = match self.budget {
            DetailBudget::Share(share) => payload as f64 * share,
            // A pause earns no more than fits.
            DetailBudget::Rate(rate) => rate * self.load_share * seconds.min(60.0),
        };
        let lasting = 1.0 / (1.0 + seconds / 60.0);
        self.per_minute = self.per_minute * lasting + earned;
        self.seconds = self.seconds * lasting + seconds;
        self.earned += earned;
        // It overflows later than it is full, so that nothing is lost before it is given.
        let most = self.bucket_bytes() * OVERFLOW + earned * 2.0;
        self.credit = (self.credit + earned).min(most);
        self.interval.packets += CHUNK as u64;
        self.interval.payload += payload;
        self.interval.earned += earned;
        let is_over = now - self.interval.started_ns >= INTERVAL_NS;
        if is_over || self.interval.packets > self.interval.packets_max {
            self.end_interval(now);
        }
        self.least = self.level();
    }

    #[cold]
    #[allow(clippy::cast_precision_loss)]
    fn end_interval(&mut self, now: u64) {
        let ended = self.interval;
        if let Some(load) = &mut self.load {
            let seconds = (now - ended.started_ns) as f64 / 1e9;
            self.load_share = load.share(ended.payload, seconds);
        }
        self.interval = Interval {
            started_ns: now,
            packets: 0,
            packets_max: (ended.packets_max * 2).min(INTERVAL_PACKETS_MAX),
            earned: 0.0,
            payload: 0,
        };
        if ended.payload == 0 {
            return;
        }
        self.ranks.end_interval(ended.earned);
        let margins = PARTS.map(|part| self.ranks.margin(part));
        let held = margins[1].saturating_sub(CLEARLY);
        for (level, (least, new)) in self.levels.iter_mut().zip(margins).enumerate() {
            // Low: whoever is not above gives up.
            *least = Least::new(new, if level == 0 { new } else { new.min(held) });
        }
    }

    /// What the level of the bucket allows.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn level(&self) -> Least {
        let fill = self.credit / self.bucket_bytes();
        let least = |level: usize| self.levels[level];
        if fill <= 0.0 {
            return Least {
                by_held: [NO_RANK; 2],
                ..least(0)
            };
        }
        if fill >= 1.0 {
            return Least::new(0, 0);
        }
        least((fill * LEVELS as f64) as usize)
    }
}
