//! The naive twin: an exact flow table that never forgets within a window and
//! never saturates below 64 bits.

use std::collections::HashMap;

use strata_wire::clamped;

use crate::clock::Clock;
use crate::facts::{FlowStats, PacketFacts};

#[derive(Clone, Debug, Default)]
struct Flow {
    packets: u64,
    sizes: Moments,
    delays: Moments,
    backward_sizes: Moments,
    backward_header_words: u64,
    first_windows: [u16; 2],
    last: u32,
    forward_is_low_to_high: bool,
}

/// Summary of a series of numbers.
#[derive(Clone, Copy, Debug)]
struct Moments {
    sum: u64,
    squares: u64,
    min: u64,
    max: u64,
}

impl Default for Moments {
    fn default() -> Self {
        Self {
            sum: 0,
            squares: 0,
            min: u64::MAX,
            max: 0,
        }
    }
}

impl Moments {
    fn add(&mut self, value: u64) {
        self.sum += value;
        self.squares += value * value;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// 0 if there was no number.
    fn min(&self) -> u64 {
        if self.min == u64::MAX { 0 } else { self.min }
    }
}

/// An exact table of flows, by fingerprint. Memory grows with the flows of a
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

    /// Counts one packet and returns what is known about its flow.
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
            last: now,
            forward_is_low_to_high: facts.low_to_high != facts.answers,
            ..Flow::default()
        });
        if flow.packets > 0 {
            flow.delays.add(u64::from(now.saturating_sub(flow.last)));
        }
        flow.packets += 1;
        flow.last = flow.last.max(now);
        flow.sizes.add(u64::from(facts.size));
        let backward = facts.low_to_high != flow.forward_is_low_to_high;
        if flow.first_windows[usize::from(backward)] == 0 {
            flow.first_windows[usize::from(backward)] = facts.tcp_window;
        }
        if backward {
            flow.backward_sizes.add(u64::from(facts.size));
            flow.backward_header_words += u64::from(facts.header_len / 4);
        }
        Some(flow.stats())
    }
}

impl Flow {
    fn stats(&self) -> FlowStats {
        let to_u32 = |value: u64| clamped::<u32>(value);
        let to_u16 = |value: u64| clamped::<u16>(value);
        FlowStats {
            packets: to_u32(self.packets),
            bytes: to_u32(self.sizes.sum),
            backward_bytes: to_u32(self.backward_sizes.sum),
            ipd_sum: to_u32(self.delays.sum),
            ipd_min: to_u32(self.delays.min()),
            ipd_max: to_u32(self.delays.max),
            size_squares: self.sizes.squares,
            ipd_squares: self.delays.squares,
            size_min: to_u16(self.sizes.min()),
            size_max: to_u16(self.sizes.max),
            backward_size_min: to_u16(self.backward_sizes.min()),
            backward_size_max: to_u16(self.backward_sizes.max),
            backward_header_bytes: to_u32(self.backward_header_words * 4),
            window_forward: self.first_windows[0],
            window_backward: self.first_windows[1],
            forward_is_low_to_high: self.forward_is_low_to_high,
        }
    }
}
