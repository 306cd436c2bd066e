//! The budget of detail: a limit on the payload beyond headers, which goes to the start of each flow and
//! to short flows first.
//!
//! [`Detail`] is the controller of one worker, without a clock: packets and their times in, decisions
//! out. Each packet has a rank (`ranks`), and those of a least rank get detail.
//!
//! Where the payload to come was surveyed ([`Survey`]), as for captures that are files, the least rank is
//! that from which on the budget of all of them lasts. It is found anew as packets come, from what is left
//! of the budget and of the payload.
//!
//! Otherwise it follows from the ranks of what came lately, and from what was saved: what is not given
//! may be given later, up to a tenth of what the budget is worth in its period. So what is kept in a period
//! is the budget to within a tenth. While less than a quarter of what may be saved is, the least rank is
//! higher than what came lately suggests; then it is lower, and once all is saved, anything gets detail.
//!
//! With several workers, a share is kept of each worker's packets. A rate is divided among them in
//! proportion to their payload of the last seconds ([`DetailLoads`]).

mod budget;
mod flows;
mod ranks;
mod survey;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use strata_classify::STEP_ANOMALOUS;
use strata_wire::counters;
use strata_wire::wide::{GROUP, Lanes};

pub use budget::{BudgetError, DetailBudget, Over};
pub use ranks::DetailOffer;
use ranks::{NO_RANK, Order, RANK_FIRST, Ranks, Seen, WANTED};
use survey::Course;
pub use survey::{Survey, Surveyor};

/// The budget is kept to within a chunk of packets.
const CHUNK: usize = 32;
/// What may be given before anything was earned, in bytes of all workers together.
const FIRST_CREDIT: f64 = 4_096.0;
/// This part of what the budget is worth in its period may be saved, ...
const SAVED_PART: f64 = 0.1;
/// ... and this part of that is saved while what comes does not change.
const SAVED_AIM: f64 = 0.25;
/// A budget of this part of the payload is enough for all, sums being rounded.
const ENOUGH: f64 = 0.999_999;
/// Levels between nothing and all that may be saved.
const LEVELS: usize = 8;
/// A period's worth is estimated from no less than this time.
const ESTIMATED_SECONDS_MIN: f64 = 5.0;
/// The least rank is renewed this often in packet time, after at least these packets, ...
const INTERVAL_NS: u64 = 250_000_000;
const INTERVAL_PACKETS: u64 = 2_048;
/// ... and at the latest after these, fewer at the start.
const INTERVAL_PACKETS_MIN: u64 = 64;
const INTERVAL_PACKETS_MAX: u64 = 1 << 16;
/// Time that runs backwards by more than this has been set.
const SET_BACK_NS: u64 = 1_000_000_000;

// The step of a verdict can be offered as it is, where modes want what is anomalous.
const _: () = assert!(STEP_ANOMALOUS == WANTED);

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

/// What is still to come of what was surveyed.
#[derive(Debug)]
struct Ahead {
    ranks: Ranks,
    /// Of all of it.
    payload: f64,
    course: Course,
    seconds: f64,
    /// How much of it came.
    seen: f64,
}

impl From<Survey> for Ahead {
    fn from(survey: Survey) -> Self {
        Self {
            ranks: survey.ranks,
            payload: survey.payload,
            course: survey.course,
            seconds: survey.seconds,
            seen: 0.0,
        }
    }
}

/// Where a controller works.
#[derive(Debug, Default)]
pub struct DetailSite {
    /// Which of several workers it is of.
    pub load: Option<(Arc<DetailLoads>, usize)>,
    /// What is to come, if that is known.
    pub survey: Option<Survey>,
}

/// The controller of one worker.
#[derive(Debug)]
pub struct Detail {
    budget: DetailBudget,
    load: Option<Load>,
    /// This worker's share of a rate.
    load_share: f64,
    order: Order,
    ahead: Option<Ahead>,
    /// Payload that came in this interval, and lately, with less weight the longer ago.
    seen: Seen,
    recent: Ranks,
    /// What the budget was worth meanwhile.
    recent_worth: f64,
    /// The least rank that gets detail, by how much is saved, ...
    levels: [u16; LEVELS],
    /// ... and now.
    least: u16,
    /// Packets left of the chunk.
    left: usize,
    /// Payload offered since the last chunk began.
    offered: u64,
    /// What may be given now, in bytes.
    credit: f64,
    /// What this budget was worth in the last period, the part of a period's weight that was before it,
    /// and for how many seconds it was in force.
    worth: f64,
    before_it: f64,
    seconds: f64,
    /// What was offered and given under this budget.
    under_it: Amounts,
    /// The latest packet time, once there is one.
    clock_ns: Option<u64>,
    interval: Interval,
    counts: DetailCounts,
}

/// Payload in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Amounts {
    offered: f64,
    given: f64,
    /// What the budget was worth.
    earned: f64,
}

/// The interval after which the least rank is renewed.
#[derive(Clone, Copy, Debug)]
struct Interval {
    started_ns: u64,
    packets: u64,
    packets_max: u64,
    earned: f64,
    payload: u64,
}

impl Detail {
    /// A controller that has seen no packet yet.
    ///
    /// # Panics
    ///
    /// If there are fewer workers than the number of its own says.
    #[must_use]
    pub fn new(budget: DetailBudget, site: DetailSite) -> Self {
        let load = site.load.map(|(all, number)| {
            assert!(number < all.0.len(), "one of the workers");
            let latest = all.0.iter().map(|now| (now.load(Ordering::Relaxed), 0.0));
            let latest = latest.collect();
            Load {
                all,
                number,
                latest,
            }
        });
        let workers = load.as_ref().map_or(1, |load| load.latest.len());
        #[allow(clippy::cast_precision_loss)]
        let load_share = 1.0 / workers as f64;
        let mut new = Self {
            budget,
            load,
            load_share,
            order: Order::new(),
            ahead: site.survey.map(Ahead::from),
            seen: Seen::new(),
            recent: Ranks::new(),
            recent_worth: 0.0,
            levels: [RANK_FIRST; LEVELS],
            least: RANK_FIRST,
            left: 0,
            offered: 0,
            credit: 0.0,
            worth: 0.0,
            before_it: 1.0,
            seconds: 0.0,
            under_it: Amounts::default(),
            clock_ns: None,
            interval: Interval {
                started_ns: 0,
                packets: 0,
                packets_max: INTERVAL_PACKETS_MIN,
                earned: 0.0,
                payload: 0,
            },
            counts: DetailCounts::default(),
        };
        new.credit = new.first_credit();
        new.find_levels();
        new
    }

    /// Continues with another budget.
    pub fn set_budget(&mut self, budget: DetailBudget) {
        if self.budget != budget {
            self.budget = budget;
            (self.worth, self.seconds, self.recent_worth) = (0.0, 0.0, 0.0);
            self.before_it = 1.0;
            self.recent = Ranks::new();
            self.under_it = Amounts::default();
            self.credit = self.credit.min(self.first_credit());
        }
    }

    /// What may be given before anything was earned.
    fn first_credit(&self) -> f64 {
        let (DetailBudget::Share(worth) | DetailBudget::Rate(worth, _)) = self.budget;
        if worth > 0.0 {
            FIRST_CREDIT * self.load_share
        } else {
            0.0
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
        let rank = self.order.rank(fingerprint, payload);
        self.seen.add(rank, payload);
        DetailOffer::new(rank, step)
    }

    /// As [`Detail::count`], for the packets of a group in these lanes, which are next to each other: their
    /// steps become what they are offered with; the others' become arbitrary.
    #[inline(always)]
    pub fn count_lanes<L: Lanes>(
        &mut self,
        l: L,
        (flows, payload): (&[u64; GROUP], &[u32; GROUP]),
        lanes: u16,
        steps: L::U32,
    ) -> L::U32 {
        let payload = l.only(l.mask(lanes), l.load(payload));
        let ranks = self.order.ranks(l, (flows, payload), lanes);
        let (mut to, mut bytes) = ([0; GROUP], [0; GROUP]);
        l.store(ranks, &mut to);
        l.store(payload, &mut bytes);
        for (&rank, &bytes) in to.iter().zip(&bytes) {
            self.seen.add(rank, bytes);
        }
        l.or(ranks, l.shl(l.and(steps, l.set(WANTED.into())), 8))
    }

    /// [`Detail::decide`] has to be called for those packets of a chunk whose offer is this or more:
    /// they may get detail, or the modes want it.
    #[inline(always)]
    #[must_use]
    pub fn candidate(&self) -> u16 {
        self.least
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
    pub fn decide(&mut self, offer: DetailOffer, payload: u32, captured: u32) -> bool {
        if payload == 0 {
            // There is nothing to give.
            return offer.is_wanted();
        }
        let gives = offer.rank() >= self.least;
        if gives {
            self.counts.given.add(u64::from(captured));
            self.credit -= f64::from(captured);
            self.under_it.given += f64::from(captured);
            if self.credit <= 0.0 {
                self.least = NO_RANK;
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
        offer.0 >= self.candidate() && self.decide(offer, payload, captured)
    }

    /// Takes in the number of packets that came so far, with those that others decided about.
    #[inline]
    #[allow(clippy::cast_precision_loss)]
    pub fn came(&mut self, packets: u64) {
        if let Some(ahead) = &mut self.ahead {
            ahead.seen = ahead.seen.max(ahead.course.payload_of(packets) as f64);
        }
    }

    /// Counts a packet that others decided about, of which these bytes beyond headers are kept.
    #[inline]
    pub fn outside(&mut self, kept: u32) {
        if kept > 0 {
            self.counts.outside.add(u64::from(kept));
        }
    }

    /// What may be saved.
    fn saved_max(&self) -> f64 {
        // The part of a period that there was, if older time has less weight.
        let part_min = ESTIMATED_SECONDS_MIN / self.budget.period();
        let part = (1.0 - self.before_it).max(part_min);
        let saved = self.worth / part * SAVED_PART;
        saved.min(self.under_it.earned).max(self.first_credit())
    }

    /// Adds what the budget is worth to the credit, and renews the least rank when that is due.
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
        self.order.at(now);
        let seconds = (now - before) as f64 / 1e9;
        let payload = std::mem::take(&mut self.offered);
        let period = self.budget.period();
        let earned = match self.budget {
            DetailBudget::Share(share) => payload as f64 * share,
            // A pause earns no more than a period.
            DetailBudget::Rate(rate, _) => rate * self.load_share * seconds.min(period),
        };
        let lasting = lasting(seconds / period);
        self.before_it *= lasting;
        self.worth = self.worth * lasting + earned;
        self.seconds += seconds.min(period);
        self.under_it.offered += payload as f64;
        self.under_it.earned += earned;
        self.interval.packets += CHUNK as u64;
        self.interval.payload += payload;
        self.interval.earned += earned;
        if let Some(ahead) = &mut self.ahead {
            ahead.seen = ahead.seen.max(self.counts.offered.bytes as f64);
            self.credit = self.credit_ahead();
        } else {
            // It overflows later than all is saved, so that nothing is lost before it is given.
            let most = self.saved_max() + earned * 2.0;
            self.credit = (self.credit + earned).min(most);
        }
        let is_over = self.interval.packets >= INTERVAL_PACKETS
            && now - self.interval.started_ns >= INTERVAL_NS;
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
        if ended.payload > 0 {
            match &mut self.ahead {
                Some(ahead) => ahead.ranks.take_away(&self.seen),
                None => {
                    self.recent.add_recent(&self.seen);
                    self.recent_worth = self.recent_worth * (1.0 - ranks::FORGOTTEN) + ended.earned;
                }
            }
            self.seen.clear();
            self.find_levels();
        }
    }

    /// What is left of the budget of all that was surveyed.
    fn credit_ahead(&self) -> f64 {
        let under = self.under_it;
        let worth = match (self.budget, &self.ahead) {
            (DetailBudget::Share(share), _) => share * (under.offered + self.offered_ahead()),
            (DetailBudget::Rate(rate, _), Some(ahead)) => {
                rate * self.load_share * ahead.seconds.max(self.seconds)
            }
            (DetailBudget::Rate(..), None) => 0.0,
        };
        worth + self.first_credit() - under.given
    }

    /// How much of what is to come will be offered, if as much of it is as before.
    #[allow(clippy::cast_precision_loss)]
    fn offered_ahead(&self) -> f64 {
        let Some(ahead) = &self.ahead else {
            return 0.0;
        };
        let left = (ahead.payload - ahead.seen).max(0.0);
        match ahead.seen > 0.0 {
            true => left * (self.counts.offered.bytes as f64 / ahead.seen).min(1.0),
            false => left,
        }
    }

    /// Finds the least ranks anew.
    #[allow(clippy::cast_precision_loss)]
    fn find_levels(&mut self) {
        match &self.ahead {
            Some(ahead) => {
                let part = self.credit_ahead() / self.offered_ahead();
                let [least] = ahead.ranks.least([part]);
                self.levels = [least; LEVELS];
            }
            None => {
                let part = self.recent_worth / self.recent.sum();
                if part >= ENOUGH {
                    self.levels = [0; LEVELS];
                } else if part.is_finite() {
                    let level = part / SAVED_AIM / LEVELS as f64;
                    let parts = std::array::from_fn(|n| level * (n as f64 + 0.5));
                    self.levels = self.recent.least(parts);
                }
            }
        }
    }

    /// The least rank at what is saved now.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss
    )]
    fn level(&self) -> u16 {
        if self.credit <= 0.0 {
            return NO_RANK;
        }
        if self.ahead.is_some() {
            return self.levels[0];
        }
        let saved = self.credit / self.saved_max();
        match self.levels.get((saved * LEVELS as f64) as usize) {
            Some(&least) => least,
            None => 0,
        }
    }
}

/// The weight of what was this many periods ago.
#[inline]
fn lasting(periods: f64) -> f64 {
    match periods < 1e-3 {
        // To nine digits, in a fraction of the time.
        true => 1.0 - periods * (1.0 - periods / 2.0),
        false => (-periods).exp(),
    }
}
