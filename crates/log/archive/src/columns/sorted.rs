//! The order of the tables: by retention class, flow, direction, arrival.

use strata_wire::FlowKey;

use crate::retention::FlowRetention;
use crate::run::{Run, u32_of};

/// A run's flows and rows in table order.
pub(crate) struct Sorted {
    /// By retention class, then by key.
    pub(crate) flows: Vec<u32>,
    /// By flow, direction, arrival.
    pub(crate) rows: Vec<u32>,
    /// Those with payload, by flow, arrival.
    pub(crate) with_payload: Vec<u32>,
}

impl Sorted {
    pub(crate) fn of(run: &Run, retentions: &[FlowRetention]) -> Self {
        let mut flows: Vec<u32> = (0..u32_of(run.flows.len())).collect();
        let order = |key: &FlowKey| (key.family as u8, key.protocol, key.low, key.high);
        flows.sort_by_cached_key(|flow| {
            let place = *flow as usize;
            let flow = &run.flows[place];
            (retentions[place], order(&flow.key), flow.interface)
        });
        let mut ranks = vec![0_u32; flows.len()];
        for (rank, flow) in flows.iter().enumerate() {
            ranks[*flow as usize] = u32_of(rank);
        }
        let slot = |row: usize| {
            let slot = run.slot[row];
            (ranks[(slot / 2) as usize] * 2 + (slot & 1)) as usize
        };
        let rows = counting_sort(run.len(), flows.len() * 2, slot);
        let mut with_payload = run.with_payload.clone();
        with_payload.sort_by_key(|row| slot(*row as usize) / 2);
        Self {
            flows,
            rows,
            with_payload,
        }
    }
}

/// Row numbers sorted by a key below `keys`; stable.
fn counting_sort(rows: usize, keys: usize, key: impl Fn(usize) -> usize) -> Vec<u32> {
    let mut starts = vec![0_u32; keys + 1];
    for row in 0..rows {
        starts[key(row) + 1] += 1;
    }
    for at in 1..starts.len() {
        starts[at] += starts[at - 1];
    }
    let mut sorted = vec![0; rows];
    for row in 0..rows {
        let start = &mut starts[key(row)];
        sorted[*start as usize] = u32_of(row);
        *start += 1;
    }
    sorted
}
