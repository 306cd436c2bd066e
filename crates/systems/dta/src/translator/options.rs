//! What a translator serves, and its limits.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::append::Append;
use crate::hash::KeyHasher;
use crate::key_increment::KeyIncrement;
use crate::key_write::KeyWrite;
use crate::postcarding::{CACHE_ROWS, Postcarding};

/// How many operations may be requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// In a second.
    pub operations_per_second: u32,
    /// At once, after fewer were requested.
    pub burst: u32,
}

/// What a translator serves. All collectors have the same stores at the same places.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of collectors: keys are spread over them by hash, lists in turn.
    pub collectors: usize,
    /// The hasher that the collectors know too.
    pub hasher: KeyHasher,
    /// Key-Write.
    pub key_write: Option<KeyWrite>,
    /// Postcarding.
    pub postcarding: Option<Postcarding>,
    /// Rows of its cache, a power of two.
    pub cache_rows: usize,
    /// Append.
    pub append: Option<Append>,
    /// Key-Increment.
    pub key_increment: Option<KeyIncrement>,
    /// Postcards and entries wait at most about this long.
    pub age_ns_max: u64,
    /// No more operations than this.
    pub rate: Option<Rate>,
    /// Reporters that are listened to; anyone, if there is no such list.
    pub allowed: Option<BTreeSet<IpAddr>>,
    /// Reporters at most. The last one is [`OTHERS`](super::OTHERS): all for which there is no place, whose numbers
    /// are not followed.
    pub reporters_max: u16,
}

impl Options {
    /// One collector, no store, no limits, up to 1,024 reporters.
    #[must_use]
    pub fn new(hasher: KeyHasher) -> Self {
        Self {
            collectors: 1,
            hasher,
            key_write: None,
            postcarding: None,
            cache_rows: CACHE_ROWS,
            append: None,
            key_increment: None,
            age_ns_max: 100_000_000,
            rate: None,
            allowed: None,
            reporters_max: 1024,
        }
    }
}
