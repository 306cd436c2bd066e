//! Flows of a row group, and where their rows are.

use std::ops::Range;

use strata_wire::FlowKey;

use crate::parts::find::Place;

/// A flow of a row group.
pub(super) struct OfGroup {
    pub(super) key: FlowKey,
    /// Whether the first packet's sender is the low endpoint.
    pub(super) from_low: bool,
    pub(super) first_row: usize,
    pub(super) rows: usize,
    /// Rows from the low endpoint, which come first.
    pub(super) low_rows: usize,
}

impl OfGroup {
    pub(super) fn of(place: &Place) -> Self {
        let (key, from_low) = place.key();
        let there = place.there.min(place.rows);
        Self {
            key,
            from_low,
            first_row: place.first_row,
            rows: place.rows,
            low_rows: if from_low { there } else { place.rows - there },
        }
    }
}

/// The rows of flows, which are in their order.
pub(super) fn ranges(flows: &[OfGroup]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for flow in flows {
        let range = flow.first_row..flow.first_row + flow.rows;
        match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => ranges.push(range),
        }
    }
    ranges
}
