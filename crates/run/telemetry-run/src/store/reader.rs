//! A telemetry store for queries, by this process or another than the one that writes it.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use strata_dta::append::Cursor;
use strata_dta::key::Key;
use strata_dta::key_write::Agreement;
use strata_dta::postcarding::{Path as HopPath, Values};
use strata_dta::{KeyHash, REDUNDANCY_MAX};
use strata_role::{At as _, Result, RoleError};
use strata_sys::words::Words;
use strata_wire::exact;

use crate::store::candidates;
use crate::store::generations::{GenerationTime, Span, spans};
use crate::store::plan::{Manifest, NamedList, Plan};
use crate::store::share::Share;
use crate::store::{Copied, MANIFEST, mapped, no_store};

/// The value of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The value.
    pub data: Vec<u8>,
    /// Number of copies that hold the value, at least.
    pub agreeing: u8,
}

/// The path of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FoundPath {
    /// The reports of its hops.
    pub path: HopPath,
    /// The generation that the path is from, if the store has generations.
    pub time: Option<GenerationTime>,
}

/// The value and count of a key in a generation of a store, or in a store without generations.
#[derive(Clone, PartialEq, Debug)]
pub struct Known {
    /// The generation, if the store has generations.
    pub time: Option<GenerationTime>,
    /// The key's value.
    pub value: Option<Found>,
    /// The sum that was added for the key, if not 0.
    pub count: Option<Counted>,
}

/// The sum that was added for a key.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Counted {
    /// Upper bound of the sum.
    pub at_most: u64,
    /// The bound may exceed the sum by this number.
    pub excess_max: f64,
    /// Probability that it exceeds the sum by more.
    pub doubt: f64,
}

impl Counted {
    /// Counts of several generations together.
    pub fn together(counts: impl IntoIterator<Item = Self>) -> Self {
        let none = Self {
            at_most: 0,
            excess_max: 0.0,
            doubt: 0.0,
        };
        counts.into_iter().fold(none, |sum, one| Self {
            at_most: sum.at_most.saturating_add(one.at_most),
            excess_max: sum.excess_max + one.excess_max,
            doubt: (sum.doubt + one.doubt).min(1.0),
        })
    }
}

/// Keys with the largest counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Top {
    /// The keys and their counts, of all generations together.
    pub keys: Vec<(Key, u64)>,
    /// Keys with a count below this may be missing; 0: all are there. `None`: not known, since an
    /// earlier version of this program wrote the store.
    pub missing_below: Option<u64>,
}

impl Top {
    /// The keys alone.
    #[must_use]
    pub fn into_keys(self) -> Vec<Key> {
        self.keys.into_iter().map(|(key, _)| key).collect()
    }
}

/// A store that is read, whether a process writes it or not.
pub struct TelemetryStore {
    dir: PathBuf,
    plan: Plan,
    words: Words,
    copied: Copied,
    lists: Vec<NamedList>,
    share: Option<Share>,
    /// And how many of the dictionary they include.
    values: Option<(Values, u32)>,
    sums: Option<Sums>,
}

/// Sums of all counters of each generation, which take long to read.
struct Sums {
    read: Instant,
    /// For how long they are good.
    good: Duration,
    spans: Vec<Span>,
    sums: Vec<u64>,
}

/// Tries of a query during which a generation is cleared. That is once in a period, of a second at
/// least.
const TRIES: usize = 4;
/// How long the sums of counters, which bounds are made of, are good for at least, and in times of
/// what reading them took: a client that asks all the time makes the collector read for a tenth of
/// it.
const SUMS_AGE: Duration = Duration::from_secs(1);
const SUMS_AGE_TIMES: u32 = 10;

impl std::fmt::Debug for TelemetryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TelemetryStore({})", self.dir.display())
    }
}

impl TelemetryStore {
    /// Opens a store for reading.
    ///
    /// # Errors
    ///
    /// If there is no store, it is damaged, or cannot be read.
    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join(MANIFEST);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(RoleError::Refused(no_store(dir)));
            }
            read => read.at_with(|| path.display().to_string())?,
        };
        let (mut manifest, plan) = Manifest::parse(&text).at_with(|| path.display().to_string())?;
        manifest
            .lists
            .retain(|list| list.number < plan.append.lists());
        Ok(Self {
            dir: dir.to_owned(),
            copied: Copied::new(&plan)?,
            words: mapped(dir, &plan)?,
            plan,
            lists: manifest.lists,
            share: manifest.share,
            values: None,
            sums: None,
        })
    }

    /// The collector that has a key and this one, if they are two.
    pub(crate) fn elsewhere(&self, key: &Key) -> Option<(Share, Share)> {
        let here = self.share?;
        let hash = self.plan.hasher.hash(key.bytes());
        let of = exact::<usize>(here.of);
        let there = Share::new(hash.collector(of), of);
        (there != here).then_some((there, here))
    }

    /// Asks of generations that are the same after the answer as before it.
    fn steadily<T>(&mut self, mut ask: impl FnMut(&mut Self, &[Span]) -> T) -> T {
        self.copied.tidy();
        let mut before = spans(&self.plan, &self.words);
        let mut answer = ask(self, &before);
        for _ in 1..TRIES {
            let after = spans(&self.plan, &self.words);
            if after == before {
                break;
            }
            before = after;
            answer = ask(self, &before);
        }
        answer
    }

    /// Its generations, youngest first; empty for a store without generations.
    #[must_use]
    pub fn generations(&self) -> Vec<GenerationTime> {
        let spans = spans(&self.plan, &self.words);
        spans.into_iter().filter_map(|span| span.time).collect()
    }

    /// The value and count of a key in each generation, youngest first, by [`TelemetryStore::value`] and with the
    /// bounds of counters, for which all counters are read, at most once a second.
    ///
    /// # Panics
    ///
    /// If the redundancy is not 1 to 4.
    pub fn known(&mut self, key: &Key, redundancy: u8, agree: u8) -> Vec<Known> {
        let hash = self.plan.hasher.hash(key.bytes());
        self.steadily(|store, spans| {
            let (plan, words) = (&store.plan, &store.words);
            let count = |span: &Span| candidates::count_at(plan, words, hash, span.offset);
            let counts: Vec<u64> = spans.iter().map(count).collect();
            let sums = match counts.iter().any(|&count| count > 0) {
                true => store.sums(spans),
                false => vec![0; spans.len()],
            };
            let known = spans.iter().zip(counts.into_iter().zip(sums));
            let known = known.map(|(span, (count, sum))| Known {
                time: span.time,
                value: store.value_at(span, hash, redundancy, agree),
                count: (count > 0).then(|| store.bounded(count, sum)),
            });
            known.collect()
        })
    }

    /// The value of a key, written with up to `redundancy` copies: the value that at least `agree` of the remaining
    /// copies hold, and more copies than any other value. It is that of the youngest generation that has one.
    ///
    /// # Panics
    ///
    /// If the redundancy is not 1 to 4.
    pub fn value(
        &mut self,
        key: &Key,
        redundancy: u8,
        agree: u8,
    ) -> Option<(Found, Option<GenerationTime>)> {
        let hash = self.plan.hasher.hash(key.bytes());
        self.steadily(|store, spans| {
            spans.iter().find_map(|span| {
                let found = store.value_at(span, hash, redundancy, agree)?;
                Some((found, span.time))
            })
        })
    }

    fn value_at(&mut self, span: &Span, hash: KeyHash, redundancy: u8, agree: u8) -> Option<Found> {
        let places = self.plan.places;
        let len = exact::<usize>(places.key_write_slot_bytes);
        for n in 0..redundancy {
            let slot = hash.place(n, places.key_write_slots);
            let at = places.key_write_at + span.offset + slot * places.key_write_slot_bytes;
            self.copied.copy(&self.words, at, len);
        }
        let store = self.plan.key_write.shifted(span.offset);
        let get = |agreement| store.get(&self.copied.bytes, hash, redundancy, agreement);
        let data = get(Agreement::AtLeast(agree.max(1)))?;
        let agreeing = (1..=REDUNDANCY_MAX).rev();
        let agreeing = agreeing.filter(|&least| get(Agreement::AtLeast(least)).is_some());
        Some(Found {
            data: data.to_vec(),
            agreeing: agreeing.max().expect("one at least agrees"),
        })
    }

    /// Upper bound of the sum that was added for a key, in all generations together.
    #[must_use]
    pub fn count(&self, key: &Key) -> u64 {
        self.count_in(key, &spans(&self.plan, &self.words))
    }

    fn count_in(&self, key: &Key, spans: &[Span]) -> u64 {
        let hash = self.plan.hasher.hash(key.bytes());
        let counts = spans
            .iter()
            .map(|span| candidates::count_at(&self.plan, &self.words, hash, span.offset));
        counts.fold(0, u64::saturating_add)
    }

    /// The bound by which counts, of all generations together, may exceed the sums.
    pub fn count_bound(&mut self) -> Counted {
        self.steadily(|store, spans| {
            let sums = store.sums(spans);
            Counted::together(sums.into_iter().map(|sum| store.bounded(0, sum)))
        })
    }

    #[allow(clippy::cast_precision_loss, reason = "a bound need not be exact")]
    fn bounded(&self, at_most: u64, sum: u64) -> Counted {
        let mean = sum as f64 / f64::from(self.plan.places.key_increment_counters);
        Counted {
            at_most,
            excess_max: std::f64::consts::E * mean,
            doubt: (-f64::from(self.plan.parameters.redundancy)).exp(),
        }
    }

    /// The sum of all counters of each generation: reads all of them, once a second at most.
    fn sums(&mut self, spans: &[Span]) -> Vec<u64> {
        let is_good = |sums: &&Sums| sums.spans == spans && sums.read.elapsed() < sums.good;
        if let Some(sums) = self.sums.as_ref().filter(is_good) {
            return sums.sums.clone();
        }
        let (places, started) = (self.plan.places, Instant::now());
        let sum = |span: &Span| {
            let counters = (0..u64::from(places.key_increment_counters)).map(|n| {
                let at = exact::<usize>(places.key_increment_at + span.offset + n * 8);
                u64::from_ne_bytes(self.words.word(at))
            });
            counters.fold(0, u64::saturating_add)
        };
        let sums: Vec<u64> = spans.iter().map(sum).collect();
        self.sums = Some(Sums {
            read: Instant::now(),
            good: SUMS_AGE.max(started.elapsed() * SUMS_AGE_TIMES),
            spans: spans.to_vec(),
            sums: sums.clone(),
        });
        sums
    }

    /// The reports of the hops of a flow's path, from the youngest generation that has the path.
    pub fn path(&mut self, key: &Key) -> Option<FoundPath> {
        let hash = self.plan.hasher.hash(key.bytes());
        self.steadily(|store, spans| {
            spans.iter().find_map(|span| {
                let path = store.path_at(span, hash)?;
                let time = span.time;
                Some(FoundPath { path, time })
            })
        })
    }

    fn path_at(&mut self, span: &Span, hash: KeyHash) -> Option<HopPath> {
        let places = self.plan.places;
        let len = exact::<usize>(places.postcarding_chunk_bytes);
        for n in 0..self.plan.parameters.redundancy {
            let chunk = hash.place(n, places.postcarding_chunks);
            let at = places.postcarding_at + span.offset + chunk * places.postcarding_chunk_bytes;
            self.copied.copy(&self.words, at, len);
        }
        let plan = &self.plan;
        let (values, written) = self.values.get_or_insert_with(|| (plan.values(), 0));
        for value in plan.written_values(&self.words, *written) {
            values.add(&plan.postcarding, value);
            *written += 1;
        }
        let store = plan.postcarding.shifted(span.offset);
        store.get(&self.copied.bytes, hash, values)
    }

    /// Keys of Key-Increment with the largest counts, at most `count` of them, the largest first.
    pub fn top(&mut self, count: usize) -> Top {
        self.steadily(|store, spans| {
            // A key may have an entry of several generations.
            let keys: HashSet<Key> = candidates::keys(&store.words).collect();
            let counted = keys
                .into_iter()
                .map(|key| (key, store.count_in(&key, spans)));
            let mut all: Vec<_> = counted.filter(|(_, count)| *count > 0).collect();
            all.sort_by(|(a, m), (b, n)| n.cmp(m).then_with(|| a.bytes().cmp(b.bytes())));
            all.truncate(count);
            // After the keys: it is written before one of them is given up.
            let mut others = spans
                .iter()
                .map(|span| candidates::others_max(&store.plan, &store.words, span.index));
            let others = others.try_fold(0, |sum: u64, one| Some(sum.saturating_add(one?)));
            Top {
                keys: all,
                missing_below: others.map(|max| match max {
                    0 => 0,
                    max => max.saturating_add(1),
                }),
            }
        })
    }

    /// Gives back what copies of the memory use.
    pub(crate) fn tidy(&mut self) {
        self.copied.tidy();
    }

    /// Lists that have names.
    #[must_use]
    pub fn lists(&self) -> &[NamedList] {
        &self.lists
    }

    /// The number of lists.
    #[must_use]
    pub fn lists_len(&self) -> u32 {
        self.plan.append.lists()
    }

    /// The number of hops that the store keeps of a path.
    #[must_use]
    pub fn hops(&self) -> u8 {
        self.plan.parameters.hops
    }

    /// Bytes of an entry.
    #[must_use]
    pub fn entry_bytes(&self) -> usize {
        self.plan.parameters.entry_bytes
    }

    /// A place before the oldest entry of a list that is still there.
    ///
    /// # Panics
    ///
    /// If there is no such list.
    #[must_use]
    pub fn cursor(&self, list: u32) -> TelemetryCursor {
        assert!(list < self.lists_len(), "a list of the store");
        TelemetryCursor {
            list,
            cursor: Cursor::new(list),
        }
    }

    /// Gives all entries after a place to `entry`; returns the number of entries that were overwritten before they were
    /// read, or never arrived.
    pub fn read(&mut self, cursor: &mut TelemetryCursor, mut entry: impl FnMut(&[u8])) -> u64 {
        let next = cursor.cursor.next().batches;
        self.copied.list(&self.words, cursor.list, next);
        let mut missed = 0;
        let store = &self.plan.append;
        while let Some(read) = cursor.cursor.read(store, &self.copied.bytes, &mut entry) {
            missed += read.missed;
        }
        missed
    }

    /// Gives the last entries of a list to `entry`, oldest first: at least `last` of them, if there are
    /// that many. Copies as many batches.
    ///
    /// # Panics
    ///
    /// If there is no such list.
    pub fn read_last(&mut self, list: u32, last: usize, mut entry: impl FnMut(&[u8])) {
        assert!(list < self.lists_len(), "a list of the store");
        self.copied.tidy();
        let first = self.copied.latest(&self.words, list, last as u64);
        let mut cursor = Cursor::at_batch(list, first);
        let store = &self.plan.append;
        // No more than were copied, whatever comes meanwhile.
        for _ in 0..last {
            let read = cursor.read(store, &self.copied.bytes, &mut entry);
            if read.is_none() {
                break;
            }
        }
    }
}

/// A reader's place in a list.
#[derive(Clone, Copy, Debug)]
pub struct TelemetryCursor {
    list: u32,
    cursor: Cursor,
}
