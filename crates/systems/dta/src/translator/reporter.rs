//! What a translator knows and counts of each reporter.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use strata_wire::summed;

use crate::protocol::Refusals;
use crate::tally;

use super::sequence::Sequence;

summed! {
    /// Counters of a reporter, in reports unless stated otherwise.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ReporterCounters {
        /// Datagrams.
        pub datagrams: u64,
        /// Datagrams that were refused whole, because their contents are not known.
        pub refused_datagrams: Refusals,
        /// Reports in the other datagrams.
        pub reports: u64,
        /// Reports that became operations, or will.
        pub accepted: u64,
        /// Accepted postcards that were replaced by a later one of the same hop.
        pub superseded: u64,
        /// Reports that were refused.
        pub refused: Refusals,
        /// Reports dropped because of the rate limit.
        pub dropped_by_rate: u64,
        /// Reports dropped because too many operations waited for the collector's connection.
        pub dropped_without_room: u64,
        /// Reports dropped because their collector is not connected.
        pub dropped_without_collector: u64,
        /// Dropped reports that the translator asked the reporter to send again.
        pub nacked: u64,
        /// Reports that arrived again because of that.
        pub again: u64,
        /// Numbered reports that have not arrived (yet).
        pub missing: u64,
        /// Jumps of its numbers that are too large to be lost reports. The number of reports lost at a jump is not
        /// known, and not in `missing`.
        pub jumps: u64,
    }
}

impl ReporterCounters {
    /// Dropped reports, for any reason.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        let mut dropped = self.dropped_by_rate;
        tally::add(&mut dropped, self.dropped_without_room);
        tally::add(&mut dropped, self.dropped_without_collector);
        dropped
    }

    /// Whether every report is accounted for.
    #[must_use]
    pub fn balances(&self) -> bool {
        self.reports == self.ended()
    }

    /// Reports of which it is known what became of them.
    pub(super) fn ended(&self) -> u64 {
        let mut ended = self.accepted;
        tally::add(&mut ended, self.refused.total());
        tally::add(&mut ended, self.dropped());
        ended
    }
}

/// A reporter.
#[derive(Debug, Default)]
pub(super) struct Reporter {
    pub(super) counters: ReporterCounters,
    pub(super) sequence: Option<Sequence>,
    /// Whether it stands for several: their numbers say nothing.
    pub(super) is_several: bool,
}

/// The address that stands for all reporters beyond the maximum number.
pub const OTHERS: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
