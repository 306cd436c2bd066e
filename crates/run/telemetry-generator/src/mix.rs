//! Reports of values, counters, entries and postcards.

use strata_dta::key::{FiveTuple, Key};
use strata_dta::protocol::Report;
use strata_wire::{exact, mix64};

use crate::ReportProfile;

/// The first of four lists: none that tables of INT use.
const LISTS: u32 = 8;
/// Hops of every path.
const HOPS: u8 = 5;

/// Reports of all kinds.
pub(crate) struct Mix {
    profile: ReportProfile,
    redundancy: u8,
    reports: u64,
    /// The flow whose hops report, and the next of them.
    card: Option<(FiveTuple, usize, u8)>,
}

impl Mix {
    pub(crate) fn new(profile: ReportProfile, redundancy: u8) -> Self {
        Self {
            profile,
            redundancy,
            reports: 0,
            card: None,
        }
    }

    /// How many there were.
    pub(crate) fn reports(&self) -> u64 {
        self.reports
    }

    /// The next report, of this flow; a postcard may be of the flow before.
    pub(crate) fn report(
        &mut self,
        flow: &FiveTuple,
        rank: usize,
        each: &mut dyn FnMut(&Report<'_>),
    ) {
        let turn = self.reports % 4;
        self.reports += 1;
        let kind = match self.profile {
            ReportProfile::Mix if turn == 0 => ReportProfile::KeyWrite,
            ReportProfile::Mix if turn == 1 => ReportProfile::KeyIncrement,
            ReportProfile::Mix if turn == 2 => ReportProfile::Append,
            ReportProfile::Mix => ReportProfile::Postcards,
            only => only,
        };
        let redundancy = self.redundancy;
        let word = exact::<u32>(rank).to_be_bytes();
        match kind {
            ReportProfile::KeyWrite => each(&Report::KeyWrite {
                redundancy,
                key: Key::flow(flow).bytes(),
                data: &word,
            }),
            ReportProfile::KeyIncrement => each(&Report::KeyIncrement {
                redundancy,
                key: Key::address(flow.source).bytes(),
                counter: 1,
            }),
            ReportProfile::Append => each(&Report::Append {
                list: LISTS + exact::<u32>(self.reports / 4 % 4),
                data: &self.reports.to_be_bytes(),
            }),
            _ => {
                let (flow, rank, hop) = self.card.take().unwrap_or((*flow, rank, 0));
                each(&Report::Postcard {
                    key: Key::flow(&flow).bytes(),
                    hop,
                    path_len: Some(HOPS),
                    value: node_of(rank, hop),
                });
                self.card = (hop + 1 < HOPS).then_some((flow, rank, hop + 1));
            }
        }
    }
}

/// The node at a hop of the path of a rank.
fn node_of(rank: usize, hop: u8) -> u32 {
    let random = mix64((rank as u64) << 8 | u64::from(hop));
    1 + exact::<u32>(random % 1000)
}
