//! How much was kept of the packets of each class, as workers report it.

use strata_wire::Counters;

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

/// Adds what another worker has kept.
pub fn merge_kept(all: &mut Vec<ClassKept>, more: &[ClassKept]) {
    for more in more {
        let same = |known: &&mut ClassKept| {
            known.class == more.class && known.granularity == more.granularity
        };
        match all.iter_mut().find(same) {
            Some(known) => {
                known.captured.merge(more.captured);
                known.kept_bytes += more.kept_bytes;
            }
            None => all.push(more.clone()),
        }
    }
}
