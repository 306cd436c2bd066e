//! Queries known ahead (paper §7): `SELECT flow WHERE SUM(latency) > T`, answered where reports
//! arrive. The hops of a packet report one after the other; their latencies are summed here, and an
//! event goes to a list if the sum is above a threshold.
//!
//! A sum is compared once all hops of the path have reported, when the flow's next packet or another
//! flow needs the row, or after a while. If a hop did not say its latency, or its report was lost, the
//! sum is of the others: too small, never too large. So it may be known that the packet was above a
//! threshold, and by how much at least, but not that it was below, which is counted.

use serde::Deserialize;

use strata_wire::exact;

use crate::event::flow::{FLOW_EVENT_LEN_MAX, FlowEvent, FlowEventKind};
use crate::hash::KeyHasher;
use crate::key::{FiveTuple, Key};
use crate::protocol::Report;
use crate::tally;

/// Packets that are summed at a time. Memory: about 100 bytes each.
const ROWS: usize = 4096;
/// Maximum number of thresholds.
pub(super) const WATCHES_MAX: usize = 8;

/// A threshold, and the list of those above it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Watch {
    pub(super) name: String,
    pub(super) above: u32,
    pub(super) list: u32,
}

/// The hops of a packet that have reported.
#[derive(Clone, Copy, Debug)]
struct Row {
    flow: FiveTuple,
    /// A bit for each.
    reported: u64,
    path_len: Option<u8>,
    /// Of those that said it.
    latency: u64,
    /// Whether all did.
    all_said_it: bool,
    /// Whether it was there already at the last [`Sums::settle`].
    is_old: bool,
}

impl Row {
    /// Whether the sum is that of the path, as far as can be known: a hop before the first or after the
    /// last that reported is not missed if nothing says how long the path is.
    fn is_whole(&self) -> bool {
        let reported = self.reported.count_ones();
        // From the first that reported on, one less than a power of two if none between them is missing.
        let run = self.reported.unbounded_shr(self.reported.trailing_zeros());
        let is_unbroken = run & run.wrapping_add(1) == 0;
        let are_all = self.path_len.is_none_or(|len| reported >= u32::from(len));
        self.all_said_it && is_unbroken && are_all
    }
}

/// What was compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Compared {
    /// Packets whose latency was summed.
    pub(super) packets: u64,
    /// Events: those above a threshold, for each.
    pub(super) above: u64,
    /// Those that may have been above a threshold, for each: the sum is not, and lacks a hop.
    pub(super) undecided: u64,
}

/// Sums of latencies by flow.
#[derive(Debug)]
pub(super) struct Sums {
    watches: Vec<Watch>,
    hasher: KeyHasher,
    rows: Vec<Option<Row>>,
    compared: Compared,
}

impl Sums {
    /// `None` if nothing is watched.
    pub(super) fn new(watches: Vec<Watch>) -> Option<Self> {
        if watches.is_empty() {
            return None;
        }
        Some(Self {
            watches,
            // A sender that can aim at a row can forge its reports as well.
            hasher: KeyHasher::new([0, 0]),
            rows: vec![None; ROWS],
            compared: Compared::default(),
        })
    }

    pub(super) fn compared(&self) -> Compared {
        self.compared
    }

    /// A hop of a packet of the flow has reported: its place from 0, hops of the whole path if that is
    /// known, and its latency, if it says.
    pub(super) fn hop(
        &mut self,
        flow: &FiveTuple,
        hop: u8,
        path_len: Option<u8>,
        latency: Option<u32>,
        each: &mut dyn FnMut(&Report<'_>),
    ) {
        // Beyond 64 hops they are not distinguished, and the sum is not known to be whole.
        let bit = 1_u64.unbounded_shl(u32::from(hop));
        let index = self.hasher.hash(Key::flow(flow).bytes()).row(ROWS);
        let is_same = |row: &Row| row.flow == *flow && row.reported & bit == 0;
        if self.rows[index].as_ref().is_some_and(|row| !is_same(row)) {
            self.compare(index, each);
        }
        let row = self.rows[index].get_or_insert(Row {
            flow: *flow,
            reported: 0,
            path_len: None,
            latency: 0,
            all_said_it: true,
            is_old: false,
        });
        row.reported |= bit;
        row.path_len = path_len.or(row.path_len);
        match latency {
            Some(latency) => row.latency = row.latency.saturating_add(u64::from(latency)),
            None => row.all_said_it = false,
        }
        row.all_said_it &= bit != 0;
        let is_complete = row
            .path_len
            .is_some_and(|len| row.reported.count_ones() >= u32::from(len));
        if is_complete {
            self.compare(index, each);
        }
    }

    /// Forgets the packets whose hops have not all reported.
    pub(super) fn forget(&mut self) {
        self.rows.fill(None);
    }

    /// Compares what has waited since the last time: to be called once in a while that all reports of
    /// a packet come within.
    pub(super) fn settle(&mut self, each: &mut dyn FnMut(&Report<'_>)) {
        for index in 0..self.rows.len() {
            let Some(row) = &mut self.rows[index] else {
                continue;
            };
            if std::mem::replace(&mut row.is_old, true) {
                self.compare(index, each);
            }
        }
    }

    /// Compares a sum with all thresholds, and empties its row.
    fn compare(&mut self, index: usize, each: &mut dyn FnMut(&Report<'_>)) {
        let Some(row) = self.rows[index].take() else {
            return;
        };
        let compared = &mut self.compared;
        tally::one(&mut compared.packets);
        let is_whole = row.is_whole();
        for watch in &self.watches {
            if row.latency <= u64::from(watch.above) {
                tally::add(&mut compared.undecided, u64::from(!is_whole));
                continue;
            }
            tally::one(&mut compared.above);
            let event = FlowEvent {
                kind: match is_whole {
                    true => FlowEventKind::Slow,
                    false => FlowEventKind::SlowAtLeast,
                },
                // More than 32 bits are 4 s of ns.
                value: exact(row.latency.min(u64::from(u32::MAX))),
                flow: row.flow,
            };
            let mut data = Vec::with_capacity(FLOW_EVENT_LEN_MAX);
            event.emit(&mut data);
            each(&Report::Append {
                list: watch.list,
                data: &data,
            });
        }
    }
}
