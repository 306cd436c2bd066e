//! A flow that was found.

use strata_query::{FoundFlow, FoundRun};
use strata_wire::{Endpoint, FlowKey};

use crate::search::series::{Sum, higher};

/// A flow.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) key: FlowKey,
    /// Whether its first packet went from the low to the high endpoint.
    pub(super) from_low: bool,
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
    /// From the low endpoint, and from the high one.
    pub(super) packets: [u64; 2],
    pub(crate) wire_bytes: u64,
    pub(crate) kept_bytes: u64,
    pub(crate) score: Option<f32>,
    /// Packets by number of the class.
    first_class: (u16, u64),
    /// Nearly every flow has one class.
    more_classes: Vec<(u16, u64)>,
}

impl Row {
    /// A flow without its packets.
    pub(super) fn new(run: &FoundRun<'_>, class: u16) -> Self {
        Self {
            key: run.flow,
            from_low: run.low_to_high,
            first_ns: u64::MAX,
            last_ns: 0,
            packets: [0, 0],
            wire_bytes: 0,
            kept_bytes: 0,
            score: None,
            first_class: (class, 0),
            more_classes: Vec::new(),
        }
    }

    /// A flow of which only the sums are shown; the caller numbers its classes and counts them.
    pub(super) fn of(flow: &FoundFlow<'_>) -> Self {
        Self {
            key: flow.flow,
            from_low: flow.from_low,
            first_ns: flow.first_ns,
            last_ns: flow.last_ns,
            packets: flow.packets,
            wire_bytes: flow.wire_bytes,
            kept_bytes: flow.kept_bytes,
            score: flow.score,
            first_class: (0, 0),
            more_classes: Vec::new(),
        }
    }

    /// Adds packets of it.
    pub(super) fn count(&mut self, run: &FoundRun<'_>, sum: &Sum, class: u16) {
        if sum.first_ns < self.first_ns {
            (self.first_ns, self.from_low) = (sum.first_ns, run.low_to_high);
        }
        self.last_ns = self.last_ns.max(sum.last_ns);
        let packets = &mut self.packets[usize::from(!run.low_to_high)];
        *packets = packets.saturating_add(sum.packets);
        self.wire_bytes = self.wire_bytes.saturating_add(sum.wire_bytes);
        self.kept_bytes = self.kept_bytes.saturating_add(sum.kept_bytes);
        self.score = higher(self.score, sum.score);
        self.count_class(class, sum.packets);
    }

    /// Counts packets of a class.
    pub(super) fn count_class(&mut self, class: u16, packets: u64) {
        if self.first_class.0 == class {
            self.first_class.1 = self.first_class.1.saturating_add(packets);
            return;
        }
        if self.first_class.1 == 0 {
            self.first_class = (class, packets);
            return;
        }
        let more = &mut self.more_classes;
        match more.iter_mut().find(|(known, _)| *known == class) {
            Some((_, known)) => *known = known.saturating_add(packets),
            None => more.push((class, packets)),
        }
    }

    /// Numbers of its classes, and packets of each.
    pub(super) fn classes(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        std::iter::once(&self.first_class)
            .chain(&self.more_classes)
            .copied()
    }

    /// Its classes have other numbers elsewhere.
    pub(super) fn renumber(&mut self, numbers: &[u16]) {
        for (class, _) in std::iter::once(&mut self.first_class).chain(&mut self.more_classes) {
            *class = numbers[usize::from(*class)];
        }
    }

    /// Adds the same flow's packets from another piece, where its classes have the same numbers.
    pub(super) fn add(&mut self, more: &Self) {
        if more.first_ns < self.first_ns {
            (self.first_ns, self.from_low) = (more.first_ns, more.from_low);
        }
        self.last_ns = self.last_ns.max(more.last_ns);
        for (known, packets) in self.packets.iter_mut().zip(more.packets) {
            *known = known.saturating_add(packets);
        }
        self.wire_bytes = self.wire_bytes.saturating_add(more.wire_bytes);
        self.kept_bytes = self.kept_bytes.saturating_add(more.kept_bytes);
        self.score = higher(self.score, more.score);
        for (class, packets) in more.classes() {
            self.count_class(class, packets);
        }
    }

    /// The initiator's end, and the other.
    pub(crate) fn ends(&self) -> [Endpoint; 2] {
        match self.from_low {
            true => [self.key.low, self.key.high],
            false => [self.key.high, self.key.low],
        }
    }

    pub(crate) fn all_packets(&self) -> u64 {
        self.packets[0].saturating_add(self.packets[1])
    }
}
