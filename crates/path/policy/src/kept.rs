//! How much was kept of the packets of each class, as workers report it.

use strata_wire::{Counters, Kinds, Summed};

/// Packets of one class that were kept alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassKept {
    /// Index of the class in the model; the one after the last is for what is not dissected.
    pub class: u8,
    /// `full`, `partial`, `header`, `drop` or `sampled_out`.
    pub granularity: &'static str,
    /// Packets, and their bytes on the wire.
    pub captured: Counters,
    /// Bytes of them that are kept.
    pub kept_bytes: u64,
}

impl Summed for ClassKept {
    fn merge(&mut self, more: &Self) {
        self.captured.merge(more.captured);
        self.kept_bytes.merge(&more.kept_bytes);
    }
}

impl Kinds for ClassKept {
    fn is_alike(&self, other: &Self) -> bool {
        self.class == other.class && self.granularity == other.granularity
    }
}
