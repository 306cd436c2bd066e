//! What a translator knows and counts of each reporter.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use strata_wire::summed;

use crate::protocol::Refusals;
use crate::tally;

use super::sequence::Sequence;

summed! {
    /// What is counted of a reporter, in reports unless it says otherwise.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ReporterCounters {
        /// Datagrams.
        pub datagrams: u64,
        /// Datagrams that were refused whole, since what they hold cannot be told.
        pub refused_datagrams: Refusals,
        /// Reports in the others.
        pub reports: u64,
        /// Those that became operations, or will.
        pub accepted: u64,
        /// Of the accepted ones, postcards in the place of which a later one of the same hop came.
        pub superseded: u64,
        /// Refused.
        pub refused: Refusals,
        /// Dropped because of the rate limit.
        pub dropped_by_rate: u64,
        /// Dropped because the collector's connection had no room.
        pub dropped_without_room: u64,
        /// Dropped because their collector is gone.
        pub dropped_without_collector: u64,
        /// Of the dropped ones, those that the translator asked the reporter to send again.
        pub nacked: u64,
        /// Reports that came again because of that.
        pub again: u64,
        /// Numbered reports that have not come (yet).
        pub missing: u64,
        /// How often its numbers went on elsewhere, further than reports are lost: what was lost then is
        /// not known, and not in `missing`.
        pub jumps: u64,
    }
}

impl ReporterCounters {
    /// Dropped, for any reason.
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

/// All reporters for which there is no place.
pub const OTHERS: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
