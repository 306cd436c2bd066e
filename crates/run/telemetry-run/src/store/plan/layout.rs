//! The parameters of a store, as options give them and as a description has them.

use serde::{Deserialize, Serialize};

/// The default period of a generation, in seconds.
const PERIOD_S_DEFAULT: u64 = 3600;

/// The parameters of a store. A parameter that is not given is that of the existing store, or the default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TelemetryLayout {
    /// Bytes of memory in all; by default 1 GiB.
    pub memory_bytes: Option<u64>,
    /// Bytes of a Key-Write value; 4.
    pub data_bytes: Option<usize>,
    /// Hops of a path; 5.
    pub hops: Option<u8>,
    /// Larger values of hops are written into the dictionary; 65,535.
    pub value_max: Option<u32>,
    /// Lists; 64.
    pub lists: Option<u32>,
    /// Entries of a batch; 16.
    pub batch: Option<usize>,
    /// Bytes of an entry; 56.
    pub entry_bytes: Option<usize>,
    /// Copies of a path, counters of a key; 2.
    pub redundancy: Option<u8>,
    /// Generations of values, paths and counters; 1.
    pub generations: Option<u8>,
    /// The period of a generation in seconds; 3,600.
    pub generation_period_s: Option<u64>,
}

/// The same, decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parameters {
    pub(crate) memory_bytes: u64,
    pub(crate) data_bytes: usize,
    pub(crate) hops: u8,
    pub(crate) value_max: u32,
    pub(crate) lists: u32,
    pub(crate) batch: usize,
    pub(crate) entry_bytes: usize,
    pub(crate) redundancy: u8,
    pub(crate) generations: u8,
    /// 0 with one generation.
    pub(crate) generation_period_s: u64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            memory_bytes: 1 << 30,
            data_bytes: 4,
            hops: 5,
            value_max: 65_535,
            lists: 64,
            batch: 16,
            entry_bytes: 56,
            redundancy: 2,
            generations: 1,
            generation_period_s: 0,
        }
    }
}

impl TelemetryLayout {
    /// With the defaults, for a store that does not exist yet.
    pub(crate) fn decided(&self) -> Parameters {
        let or = Parameters::default();
        let generations = self.generations.unwrap_or(or.generations);
        Parameters {
            generations,
            generation_period_s: match generations {
                1 => 0,
                _ => self.generation_period_s.unwrap_or(PERIOD_S_DEFAULT),
            },
            memory_bytes: self.memory_bytes.unwrap_or(or.memory_bytes),
            data_bytes: self.data_bytes.unwrap_or(or.data_bytes),
            hops: self.hops.unwrap_or(or.hops),
            value_max: self.value_max.unwrap_or(or.value_max),
            lists: self.lists.unwrap_or(or.lists),
            batch: self.batch.unwrap_or(or.batch),
            entry_bytes: self.entry_bytes.unwrap_or(or.entry_bytes),
            redundancy: self.redundancy.unwrap_or(or.redundancy),
        }
    }

    /// The first parameter in which a store that exists differs: its name, what is wanted, what is
    /// there.
    pub(crate) fn difference(&self, store: &Parameters) -> Option<(&'static str, u64, u64)> {
        let pairs = [
            ("--store-memory", self.memory_bytes, store.memory_bytes),
            (
                "--data-bytes",
                self.data_bytes.map(|n| n as u64),
                store.data_bytes as u64,
            ),
            ("--hops", self.hops.map(u64::from), u64::from(store.hops)),
            (
                "--value-max",
                self.value_max.map(u64::from),
                u64::from(store.value_max),
            ),
            ("--lists", self.lists.map(u64::from), u64::from(store.lists)),
            ("--batch", self.batch.map(|n| n as u64), store.batch as u64),
            (
                "--entry-bytes",
                self.entry_bytes.map(|n| n as u64),
                store.entry_bytes as u64,
            ),
            (
                "--redundancy",
                self.redundancy.map(u64::from),
                u64::from(store.redundancy),
            ),
            (
                "--generations",
                self.generations.map(u64::from),
                u64::from(store.generations),
            ),
            (
                "--generation-period, in seconds,",
                self.generation_period_s,
                store.generation_period_s,
            ),
        ];
        pairs.into_iter().find_map(|(name, wanted, there)| {
            let wanted = wanted.filter(|&wanted| wanted != there)?;
            Some((name, wanted, there))
        })
    }
}
