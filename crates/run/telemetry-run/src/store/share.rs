//! Which part of all keys and lists a store has, if its translator spreads them over several
//! collectors. The store keeps it: a translator that names the same collectors in another order, or
//! more or fewer of them, would write keys where no reader looks for them.

use std::fmt;

use serde::{Deserialize, Serialize};
use strata_wire::exact;

/// Maximum number of collectors of a translator.
pub const COLLECTORS_MAX: usize = 64;

/// The place of a collector among those of its translator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Share {
    /// Its number, from 0, as in the hash of keys and in the numbers of lists.
    pub(crate) collector: u32,
    /// How many there are.
    pub(crate) of: u32,
}

impl Share {
    /// Of collector `collector`, from 0, of `of`.
    pub(crate) fn new(collector: usize, of: usize) -> Self {
        Self {
            collector: exact::<u32>(collector),
            of: exact::<u32>(of),
        }
    }

    /// Whether there is such a place.
    pub(crate) fn is_possible(self) -> bool {
        self.collector < self.of && self.of <= exact::<u32>(COLLECTORS_MAX)
    }

    /// Why a translator that has the store at place `wanted` may not write it.
    pub(crate) fn refusal(self, wanted: Self) -> String {
        format!(
            "its store is that of collector {self}, and this translator has it as collector {wanted}: \
             queries would look for keys and lists at the wrong collectors. Give --collector as often \
             and in the same order as before, or give every collector a new store (`strata telemetry \
             collect -o`)"
        )
    }
}

/// As people count the options `--collector`: from 1.
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", u64::from(self.collector) + 1, self.of)
    }
}
