//! Which blocks a reader wants, as far as headers and summaries tell.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::ops::Range;

use strata_blocks::BlockHeader;
use strata_wire::{AddressFamily, FlowHasher, FlowKey};

/// Which blocks are wanted. The default is all of them.
#[derive(Clone, Debug, Default)]
pub struct Select {
    /// Packets from this time on, ns.
    pub from_ns: Option<u64>,
    /// Packets before this time, ns.
    pub to_ns: Option<u64>,
    /// Packets with at least one address of each of these sets.
    pub addresses: Vec<Vec<(AddressFamily, u128)>>,
    /// Packets of these flows, by their outermost IP header; `None` for all.
    pub flows: Option<Vec<FlowKey>>,
    /// Only these blocks of each file, by number; `None` for all. A file without an index is not
    /// divided: all its blocks belong to the range that begins with 0.
    pub numbers: Option<Range<usize>>,
    /// Only blocks that hold what the inputs said about themselves.
    pub metadata_only: bool,
    /// Headers and summaries only: records of packets are neither read nor checked.
    pub without_records: bool,
    /// Read every header from the file itself, even if the file has an index: to find damage.
    pub without_index: bool,
    /// The blocks will not be read again and need not stay in the page cache.
    pub once: bool,
}

impl Select {
    /// Whether a block with this header may hold what is wanted; `may_hold` looks up a fingerprint
    /// in its summary.
    #[must_use]
    pub fn may_match(&self, header: &BlockHeader, may_hold: impl Fn(u64) -> bool) -> bool {
        if header.holds_meta() {
            return true;
        }
        if self.metadata_only {
            return false;
        }
        let after = self.from_ns.is_none_or(|from| header.ts_max_ns >= from);
        let before = self.to_ns.is_none_or(|to| header.ts_min_ns < to);
        if header.packets == 0 {
            // Nothing but promotions: they are checked with the rest.
            return header.promotes();
        }
        if !after || !before {
            return false;
        }
        if header.hides_addresses() {
            return true;
        }
        let hasher = FlowHasher::new(header.hash_seed);
        if let Some(flows) = &self.flows
            && header.holds_flows()
        {
            return flows.iter().any(|flow| may_hold(hasher.flow(flow)));
        }
        let has =
            |&(family, address): &(AddressFamily, u128)| may_hold(hasher.address(family, address));
        self.addresses.iter().all(|set| set.iter().any(has))
    }

    /// Whether a block's number is wanted.
    pub(crate) fn wants(&self, number: usize) -> bool {
        let numbers = self.numbers.as_ref();
        numbers.is_none_or(|numbers| numbers.contains(&number))
    }

    /// Whether summaries can rule out more blocks than headers do.
    pub(crate) fn asks_summaries(&self) -> bool {
        !self.metadata_only && (self.flows.is_some() || !self.addresses.is_empty())
    }
}
