//! Stores under load, and what queries make of them beside what the equations allow. Used by a
//! test and by an example.
#![allow(dead_code, reason = "the example uses a part")]

use strata_dta::key_write::{Agreement, KeyWrite};
use strata_dta::postcarding::{Cache, Postcarding, Values};
use strata_dta::theory::Bounds;
use strata_dta::{KeyHasher, Local, Origin};

/// α, around which keys are queried.
pub(crate) const LOADS: [f64; 6] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.0];

/// Rates of all queries at a load, and the mean of what the equations allow each of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Observed {
    pub(crate) queries: u32,
    pub(crate) none: f64,
    pub(crate) wrong: f64,
    pub(crate) none_max: f64,
    pub(crate) wrong_max: f64,
}

impl Observed {
    /// How far from a rate the observed one is in 95 % of all samples.
    pub(crate) fn interval(&self, rate: f64) -> f64 {
        1.96 * (rate * (1.0 - rate) / f64::from(self.queries)).sqrt()
    }

    /// What a sample is below, if each query has at most this rate, with such a probability that
    /// all of the hundred rates of a test are with 95 %. Few events follow Poisson's law, which
    /// also bounds them where the rates differ.
    pub(crate) fn limit_of_hundred(&self, rate: f64) -> f64 {
        self.limit(rate, 3.29, 0.9995)
    }

    /// What 97.5 % of all samples are below: the upper end of a 95 % interval.
    pub(crate) fn limit_of_one(&self, rate: f64) -> f64 {
        self.limit(rate, 1.96, 0.975)
    }

    fn limit(&self, rate: f64, deviations: f64, quantile: f64) -> f64 {
        let queries = f64::from(self.queries);
        let mean = rate * queries;
        if mean > 200.0 {
            return rate + self.interval(rate) * deviations / 1.96;
        }
        let (mut count, mut term) = (0.0, (-mean).exp());
        let mut below = term;
        while below < quantile {
            count += 1.0;
            term *= mean / count;
            below += term;
        }
        count / queries
    }

    fn add(&mut self, answer: Option<bool>, bounds: &Bounds) {
        self.queries += 1;
        self.none += f64::from(answer.is_none());
        self.wrong += f64::from(answer == Some(false));
        self.none_max += bounds.no_answer_max().min(1.0);
        self.wrong_max += bounds.wrong_answer_max().min(1.0);
    }

    fn rates(mut self) -> Self {
        let queries = f64::from(self.queries);
        self.none /= queries;
        self.wrong /= queries;
        self.none_max /= queries;
        self.wrong_max /= queries;
        self
    }
}

/// The load for which a key of this age counts, if any: those within 10 %.
fn bucket(load: f64) -> Option<usize> {
    LOADS.iter().position(|of| (load / of - 1.0).abs() < 0.1)
}

fn len(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap()
}

/// Key-Write: every key has its own number as its value, so what another wrote is never right.
/// By load.
pub(crate) fn key_write(
    seed: u64,
    redundancy: u8,
    bits: u32,
    slots: u32,
    runs: u64,
) -> Vec<Observed> {
    let mut observed = vec![Observed::default(); LOADS.len()];
    let keys = slots * 22 / 10;
    for run in 0..runs {
        let hasher = KeyHasher::new([seed, run]);
        let store = KeyWrite::new(0, slots, 4, bits);
        let mut memory = vec![0; len(store.memory_len())];
        let mut local = Local::new(&mut memory);
        for n in 0..keys {
            let word = n.to_be_bytes();
            let key = hasher.hash(&word);
            store
                .put(key, redundancy, &word, Origin(0), &mut local)
                .unwrap();
        }
        drop(local);
        for n in 0..keys {
            let load = f64::from(keys - 1 - n) / f64::from(slots);
            let Some(bucket) = bucket(load) else { continue };
            let word = n.to_be_bytes();
            let answer = store.get(
                &memory,
                hasher.hash(&word),
                redundancy,
                Agreement::Unanimous,
            );
            let bounds = Bounds::key_write(load, redundancy, bits);
            observed[bucket].add(answer.map(|value| value == word), &bounds);
        }
    }
    observed.into_iter().map(Observed::rates).collect()
}

/// Switches that postcards name: few, so that with 8 bits false matches happen.
pub(crate) const SWITCHES: u32 = 40;
/// Hops of a path.
pub(crate) const HOPS: u8 = 2;

/// Postcarding: paths of two hops. By load.
pub(crate) fn postcarding(
    seed: u64,
    redundancy: u8,
    bits: u32,
    chunks: u32,
    runs: u64,
) -> Vec<Observed> {
    let mut observed = vec![Observed::default(); LOADS.len()];
    let paths = chunks * 22 / 10;
    for run in 0..runs {
        // A seed with which all values have codes of their own, as an operator would choose one.
        let (hasher, store, values) = (0..)
            .map(|attempt| {
                let hasher = KeyHasher::new([seed + (attempt << 32), run]);
                let store = Postcarding::new(0, chunks, HOPS, bits, redundancy, hasher);
                (hasher, store, Values::new(&store, 0..SWITCHES))
            })
            .find(|(_, _, values)| values.ambiguous() == 0)
            .unwrap();
        let mut memory = vec![0; len(store.memory_len())];
        let mut cache = Cache::new(store, 1, false);
        let path = |n: u32| [n % SWITCHES, n / SWITCHES % SWITCHES];
        let mut sinks = [Local::new(&mut memory)];
        for n in 0..paths {
            let key = hasher.hash(&n.to_be_bytes());
            for (hop, value) in (0..).zip(path(n)) {
                cache
                    .put(key, hop, None, value, Origin(0), 0, &mut sinks)
                    .unwrap();
            }
        }
        drop(sinks);
        for n in 0..paths {
            let load = f64::from(paths - 1 - n) / f64::from(chunks);
            let Some(bucket) = bucket(load) else { continue };
            let answer = store.get(&memory, hasher.hash(&n.to_be_bytes()), &values);
            let right = path(n).map(Some);
            let bounds = Bounds::postcarding(load, redundancy, SWITCHES, bits, HOPS);
            let is_right = answer.map(|answer| answer.values()[..2] == right);
            observed[bucket].add(is_right, &bounds);
        }
    }
    observed.into_iter().map(Observed::rates).collect()
}

/// Asks a full store for keys that are not in it any more: wrong answers with checksums of 32 bits.
pub(crate) fn wrong_with_32_bits(slots: u32, queries: u32) -> u32 {
    let hasher = KeyHasher::new([9, 10]);
    let store = KeyWrite::new(0, slots, 4, 32);
    let mut memory = vec![0; len(store.memory_len())];
    let mut local = Local::new(&mut memory);
    for n in 0..slots * 4 {
        let word = n.to_be_bytes();
        store
            .put(hasher.hash(&word), 2, &word, Origin(0), &mut local)
            .unwrap();
    }
    drop(local);
    let keys = (u32::MAX - queries..u32::MAX).map(u32::to_be_bytes);
    let answers =
        keys.filter_map(|key| store.get(&memory, hasher.hash(&key), 2, Agreement::Plurality));
    u32::try_from(answers.count()).unwrap()
}
