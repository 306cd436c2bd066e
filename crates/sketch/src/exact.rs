//! The naive twin: an exact flow table that never forgets within a window and
//! never saturates below 64 bits.

use std::collections::HashMap;

use crate::facts::{FlowStats, PacketFacts};
use crate::table::Clock;

#[derive(Clone, Debug)]
struct Flow {
    sizes: Vec<u64>,
    delays: Vec<u64>,
    backward_sizes: Vec<u64>,
    backward_header_words: u64,
    first_windows: [u16; 2],
    last: u32,
    forward_is_low_to_high: bool,
}

/// An exact table of flows, by fingerprint. Memory grows with every packet of a
/// window: for tests and evaluation only.
#[derive(Debug)]
pub struct ExactTable {
    flows: HashMap<u64, Flow>,
    clock: Clock,
    window_start: u64,
}

impl ExactTable {
    /// An empty table.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            flows: HashMap::new(),
            clock,
            window_start: 0,
        }
    }

    /// Flows in the current window.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Counts one packet and returns what is known of its flow.
    pub fn insert(&mut self, facts: &PacketFacts) -> Option<FlowStats> {
        if self.clock.leaves(self.window_start, facts.ts_ns) {
            self.flows.clear();
            self.window_start = self.clock.window_start(facts.ts_ns);
        }
        if facts.fingerprint == 0 {
            return None;
        }
        let now = self.clock.ticks(self.window_start, facts.ts_ns);
        let flow = self.flows.entry(facts.fingerprint).or_insert_with(|| Flow {
            sizes: Vec::new(),
            delays: Vec::new(),
            backward_sizes: Vec::new(),
            backward_header_words: 0,
            first_windows: [0; 2],
            last: now,
            forward_is_low_to_high: facts.low_to_high != facts.answers,
        });
        if !flow.sizes.is_empty() {
            flow.delays.push(u64::from(now.saturating_sub(flow.last)));
        }
        flow.last = flow.last.max(now);
        flow.sizes.push(u64::from(facts.size));
        let backward = facts.low_to_high != flow.forward_is_low_to_high;
        if flow.first_windows[usize::from(backward)] == 0 {
            flow.first_windows[usize::from(backward)] = facts.tcp_window;
        }
        if backward {
            flow.backward_sizes.push(u64::from(facts.size));
            flow.backward_header_words += u64::from(facts.header_len / 4);
        }
        Some(flow.stats())
    }
}

impl Flow {
    fn stats(&self) -> FlowStats {
        let sum = |values: &[u64]| values.iter().sum::<u64>();
        let squares = |values: &[u64]| values.iter().map(|v| v * v).sum::<u64>();
        let min = |values: &[u64]| values.iter().copied().min().unwrap_or(0);
        let max = |values: &[u64]| values.iter().copied().max().unwrap_or(0);
        let to_u32 = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let to_u16 = |value: u64| u16::try_from(value).unwrap_or(u16::MAX);
        FlowStats {
            packets: to_u32(self.sizes.len() as u64),
            bytes: to_u32(sum(&self.sizes)),
            backward_bytes: to_u32(sum(&self.backward_sizes)),
            ipd_sum: to_u32(sum(&self.delays)),
            ipd_min: to_u32(min(&self.delays)),
            ipd_max: to_u32(max(&self.delays)),
            size_squares: squares(&self.sizes),
            ipd_squares: squares(&self.delays),
            size_min: to_u16(min(&self.sizes)),
            size_max: to_u16(max(&self.sizes)),
            backward_size_min: to_u16(min(&self.backward_sizes)),
            backward_size_max: to_u16(max(&self.backward_sizes)),
            backward_header_bytes: to_u32(self.backward_header_words * 4),
            window_forward: self.first_windows[0],
            window_backward: self.first_windows[1],
            forward_is_low_to_high: self.forward_is_low_to_high,
        }
    }
}
