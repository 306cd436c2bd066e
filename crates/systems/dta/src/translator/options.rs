//! What a translator serves, and its limits.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::append::Append;
use crate::hash::KeyHasher;
use crate::key_increment::KeyIncrement;
use crate::key_write::KeyWrite;
use crate::postcarding::{CACHE_ROWS, Postcarding};

/// The limit on requested operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Operations per second.
    pub operations_per_second: u32,
    /// Operations at once, after a time with fewer requests.
    pub burst: u32,
}

/// The options of a translator. All collectors have the same stores at the same places.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of collectors: keys are spread over them by hash, lists in turn.
    pub collectors: usize,
    /// The hasher, which collectors also use.
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
    /// Approximate maximum time that postcards and entries wait.
    pub age_ns_max: u64,
    /// The limit on operations, if any.
    pub rate: Option<Rate>,
    /// Allowed reporters; `None`: all reporters are allowed.
    pub allowed: Option<BTreeSet<IpAddr>>,
    /// Maximum number of reporters. The last one is [`OTHERS`](super::OTHERS): all further reporters together, whose
    /// numbers are not followed.
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
