//! Which keys a store shows as those with the largest counts.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use strata_dta::append::End;
use strata_dta::generations::Turning;
use strata_dta::key::Key;
use strata_dta::protocol::{Flags, Report, packed, published};
use strata_dta::translator::{Options, Translator};
use strata_dta::{Local, Origin};
use strata_sandbox::Owner;
use strata_wire::mix64;
use tempfile::TempDir;

use super::{Mapped, candidates};
use crate::store::Writing;
use crate::store::fading::{Fade, FadeOptions, Fading};
use crate::store::plan::{Plan, TelemetryLayout};
use crate::store::reader::{TelemetryStore, Top};

const SECOND_NS: u64 = 1_000_000_000;

/// A store with its translator, as the service has them.
struct Site {
    dir: TempDir,
    plan: Plan,
    sink: Local<Mapped>,
    translator: Translator,
    turning: Option<Turning>,
    origin: Origin,
    /// Number of the next packed report.
    sequence: u32,
    now_ns: u64,
}

impl Site {
    fn new(generations: u8) -> Self {
        let dir = TempDir::new().unwrap();
        Self::open(dir, generations, 100 * SECOND_NS)
    }

    fn open(dir: TempDir, generations: u8, now_ns: u64) -> Self {
        let layout = TelemetryLayout {
            memory_bytes: Some(16 << 20),
            generations: Some(generations),
            generation_period_s: (generations > 1).then_some(10),
            ..TelemetryLayout::default()
        };
        let writing = Writing::open(&dir.path().join("store"), &layout, &[], &Owner::default());
        let writing = writing.unwrap();
        let plan = writing.plan;
        let mut options = Options::new(plan.hasher);
        options.key_increment = Some(plan.key_increment);
        let mut translator = Translator::new::<Local<Mapped>>(options, |_| End::default());
        let (memory, turning) = Mapped::open(writing.memory, &plan, now_ns);
        let mut site = Self {
            origin: translator.reporter([127, 0, 0, 1].into()).unwrap(),
            sink: Local::over(memory),
            dir,
            plan,
            translator,
            turning,
            sequence: 0,
            now_ns,
        };
        site.follow();
        site
    }

    /// Reports go to the youngest generation.
    fn follow(&mut self) {
        let Some(turning) = &self.turning else {
            return;
        };
        let generations = self.plan.generations().unwrap();
        let offset = generations.offset(turning.youngest().index);
        self.translator.turn_to(
            self.plan.key_write.shifted(offset),
            self.plan.postcarding.shifted(offset),
            self.plan.key_increment.shifted(offset),
        );
    }

    /// The same store, written by another process.
    fn continued(mut self) -> Self {
        self.sink.flush();
        let generations = self.plan.parameters.generations;
        let now_ns = self.now_ns;
        // The lock is gone with it.
        let Self { dir, sink, .. } = self;
        drop(sink);
        Self::open(dir, generations, now_ns)
    }

    /// Until another generation has begun.
    fn turn(&mut self) {
        self.now_ns += 10 * SECOND_NS;
        self.sink.flush();
        let turning = self.turning.as_mut().unwrap();
        while !self.sink.unflushed().turn(turning, &self.plan, self.now_ns) {}
        self.follow();
    }

    fn take(&mut self, datagram: &[u8]) {
        let sinks = std::slice::from_mut(&mut self.sink);
        let mut nacks = Vec::new();
        self.translator
            .receive_from(self.origin, datagram, 1, sinks, &mut nacks);
    }

    /// One report, as switches send it.
    fn report(&mut self, key: &[u8], counter: u64) {
        let repr = published::Repr {
            sequence: None,
            flags: Flags::default(),
            report: Report::KeyIncrement {
                redundancy: 2,
                key,
                counter,
            },
        };
        let mut bytes = Vec::new();
        repr.emit(&mut bytes);
        self.take(&bytes);
    }

    /// Up to 100 reports a datagram.
    fn packed(&mut self, reports: &[([u8; 4], u64)]) {
        for chunk in reports.chunks(100) {
            let reports: Vec<_> = chunk
                .iter()
                .map(|(key, counter)| Report::KeyIncrement {
                    redundancy: 2,
                    key,
                    counter: *counter,
                })
                .collect();
            self.datagram(&reports);
        }
    }

    fn datagram(&mut self, reports: &[Report<'_>]) {
        let mut repr = packed::Repr::of(&reports[0], Flags::default());
        repr.sequence = self.sequence;
        self.sequence += u32::try_from(reports.len()).unwrap();
        let mut bytes = Vec::new();
        repr.emit(reports, &mut bytes);
        self.take(&bytes);
    }

    fn top(&mut self, count: usize) -> Top {
        self.sink.flush();
        self.store().top(count)
    }

    fn store(&self) -> TelemetryStore {
        TelemetryStore::open(&self.dir.path().join("store")).unwrap()
    }

    /// Every key that may not be missing is there, and the largest are the largest.
    fn check(&mut self, truth: &BTreeMap<[u8; 4], u64>) {
        let top = self.top(1024);
        let below = top.missing_below.unwrap();
        let shown: HashMap<Key, u64> = top.keys.iter().copied().collect();
        assert_eq!(shown.len(), top.keys.len());
        for (key, &count) in truth {
            match shown.get(&Key::new(key)) {
                Some(&shown) => assert!(shown >= count, "{key:?}: {count}, {shown}"),
                None => assert!(count < below.max(1), "{key:?}: {count}, {below}"),
            }
        }
        let mut largest: Vec<(u64, [u8; 4])> = truth.iter().map(|(key, n)| (*n, *key)).collect();
        largest.sort_unstable_by(|a, b| b.cmp(a));
        // Others with the same count may be there in their place.
        let last = largest.get(19).map_or(1, |(count, _)| *count);
        let firsts: Vec<Key> = top.keys.iter().take(20).map(|(key, _)| *key).collect();
        for (count, key) in largest.iter().take(20).filter(|(count, _)| *count > last) {
            assert!(firsts.contains(&Key::new(key)), "{key:?}: {count}");
        }
    }
}

/// Keys as of a network: the first has a tenth of all reports, and many have few.
fn skewed(reports: u64, keys: u64, seed: u64) -> Vec<([u8; 4], u64)> {
    let report = |n: u64| {
        let random = mix64(seed << 32 | n);
        // An exponent that is evenly spread makes a count that falls as 1 / rank.
        #[allow(clippy::cast_precision_loss, reason = "a share need not be exact")]
        let share = (random >> 11) as f64 / (1_u64 << 53) as f64;
        #[allow(clippy::cast_precision_loss, reason = "a rank need not be exact")]
        let rank = (keys as f64).powf(share);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "below keys"
        )]
        let key = (rank as u32).to_be_bytes();
        (key, 1 + mix64(random) % 1_500)
    };
    (0..reports).map(report).collect()
}

fn add(truth: &mut BTreeMap<[u8; 4], u64>, reports: &[([u8; 4], u64)]) {
    for (key, counter) in reports {
        *truth.entry(*key).or_default() += counter;
    }
}

#[test]
fn keys_that_report_in_turn_are_all_there() {
    for keys in 1..=64_u32 {
        let mut site = Site::new(1);
        for n in 0..keys * 8 {
            site.report(&(n % keys).to_be_bytes(), 1);
        }
        let top = site.top(64);
        assert_eq!(top.missing_below, Some(0));
        let mut shown = top.keys;
        shown.sort_by_key(|(key, _)| key.bytes().to_vec());
        let wanted = (0..keys).map(|n| (Key::new(&n.to_be_bytes()), 8));
        assert_eq!(shown, wanted.collect::<Vec<_>>(), "{keys} keys");
    }
}

#[test]
fn one_report_of_a_giant_is_first() {
    let mut site = Site::new(1);
    let mut truth = BTreeMap::new();
    for seed in 0..2 {
        let reports = skewed(50_000, 20_000, seed);
        add(&mut truth, &reports);
        site.packed(&reports);
        let giant = [([10, 0, 0, 1], 1_000_000_000)];
        if seed == 0 {
            add(&mut truth, &giant);
            site.report(&giant[0].0, giant[0].1);
        }
    }
    let top = site.top(1);
    assert_eq!(top.keys, [(Key::new(&[10, 0, 0, 1]), 1_000_000_000)]);
    assert!(top.missing_below > Some(0), "{top:?}");
    site.check(&truth);
}

#[test]
fn keys_of_any_length_and_both_kinds_of_datagrams_are_counted() {
    let mut site = Site::new(1);
    for len in 1..=40_usize {
        site.datagram(&[Report::KeyIncrement {
            redundancy: 2,
            key: &vec![7; len],
            counter: 1_000 + len as u64,
        }]);
    }
    let keys: Vec<([u8; 4], u64)> = (0..10_u32).map(|n| (n.to_be_bytes(), 5)).collect();
    site.packed(&keys);
    let top = site.top(1024);
    assert_eq!((top.keys.len(), top.missing_below), (50, Some(0)));
    let lens: Vec<usize> = top
        .keys
        .iter()
        .take(40)
        .map(|(key, _)| key.bytes().len())
        .collect();
    assert_eq!(lens, (1..=40).rev().collect::<Vec<_>>());
}

#[test]
fn the_largest_of_several_generations_are_there_together() {
    let mut site = Site::new(2);
    let (mut first, mut second) = (BTreeMap::new(), BTreeMap::new());
    let reports = skewed(30_000, 5_000, 1);
    add(&mut first, &reports);
    site.packed(&reports);
    let giant = [([10, 0, 0, 1], 1_000_000_000)];
    add(&mut first, &giant);
    site.report(&giant[0].0, giant[0].1);
    site.check(&first);

    site.turn();
    let mut both = first.clone();
    site.check(&both);
    for (reports, giant) in [(skewed(30_000, 5_000, 2), [([10, 0, 0, 2], 2_000_000_000)])] {
        for added in [&reports[..], &giant] {
            add(&mut second, added);
            add(&mut both, added);
            site.packed(added);
        }
    }
    site.check(&both);
    let top = site.top(2);
    let giants = [[10, 0, 0, 2], [10, 0, 0, 1]].map(|key| Key::new(&key));
    assert_eq!([top.keys[0].0, top.keys[1].0], giants);
    // Another process goes on.
    let mut site = site.continued();
    site.check(&both);

    // The first generation is gone, and with it what only it had.
    site.turn();
    site.check(&second);
    assert_eq!(site.top(1).keys[0].0, giants[0]);
    site.turn();
    let top = site.top(1024);
    assert_eq!((top.keys.len(), top.missing_below), (0, Some(0)));
}

#[test]
fn counters_that_become_smaller_make_room_for_other_keys() {
    for fade in [Fade::Halve, Fade::Reset] {
        let mut site = Site::new(1);
        let now = Instant::now();
        let every = Duration::from_secs(1);
        let mut fading = Fading::new(FadeOptions { fade, every }, now);
        let mut truth = BTreeMap::new();
        for round in 1..6_u32 {
            let reports = skewed(20_000, 20_000, u64::from(round));
            add(&mut truth, &reports);
            site.packed(&reports);
            site.check(&truth);
            site.sink.flush();
            let then = now + every * round;
            let rounds = fading.rounds();
            // In pieces, between which keys report that are in none of the others.
            while fading.rounds() == rounds {
                let memory = site.sink.unflushed();
                memory.fade(&mut fading, &site.plan, then);
            }
            for count in truth.values_mut() {
                *count = fade.left_of(*count);
            }
        }
        let reports = skewed(20_000, 20_000, 77);
        add(&mut truth, &reports);
        site.packed(&reports);
        site.check(&truth);
    }
}

#[test]
fn what_an_earlier_version_has_left_out_is_not_known() {
    let mut site = Site::new(1);
    site.report(&[10, 0, 0, 1], 5);
    site.sink.flush();
    let at = candidates::others_at(&candidates::entries(&site.plan, 0));
    let at = usize::try_from(at).unwrap();
    site.sink.unflushed().words.store(at, 0);
    let mut site = site.continued();
    assert_eq!(site.top(9).missing_below, None);
    site.report(&[10, 0, 0, 2], 6);
    let top = site.top(9);
    assert_eq!((top.keys.len(), top.missing_below), (2, None));
    let now = Instant::now();
    let every = Duration::from_secs(1);
    let fade = Fade::Reset;
    let mut fading = Fading::new(FadeOptions { fade, every }, now);
    while fading.rounds() == 0 {
        let memory = site.sink.unflushed();
        memory.fade(&mut fading, &site.plan, now + every);
    }
    assert_eq!(site.top(9).missing_below, Some(0));
}
