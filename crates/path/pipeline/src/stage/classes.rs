//! How much was kept of the packets of each class.

use strata_blocks::ClassCount;
use strata_policy::ClassKept;
use strata_wire::{Counters, KeepKind};

/// Keep codes that a class can have, plus one for what is sampled out. What is dropped has the code
/// for nothing.
const COLUMNS: usize = 5;
const SAMPLED_OUT: usize = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    captured: Counters,
    kept_bytes: u64,
}

/// By class and granularity. Without the packets in the current block.
#[derive(Clone, Debug)]
pub(crate) struct ByClass(Vec<[Count; COLUMNS]>);

impl ByClass {
    /// For this many classes of a model.
    pub(crate) fn new(classes: usize) -> Self {
        Self(vec![[Count::default(); COLUMNS]; classes + 1])
    }

    #[inline]
    pub(crate) fn sampled_out(&mut self, class: u8, bytes: u64) {
        self.0[usize::from(class)][SAMPLED_OUT].captured.add(bytes);
    }

    #[inline]
    pub(crate) fn dropped(&mut self, class: u8, bytes: u64) {
        let nothing = usize::from(KeepKind::Nothing.code());
        self.0[usize::from(class)][nothing].captured.add(bytes);
    }

    /// Adds the packets of a block.
    pub(crate) fn merge(&mut self, block: impl Iterator<Item = ClassCount>) {
        for block in block {
            let count = &mut self.0[usize::from(block.class)][usize::from(block.keep.code())];
            count.captured.packets += block.packets;
            count.captured.bytes += block.wire_bytes;
            count.kept_bytes += block.logged_bytes;
        }
    }

    /// All that have packets.
    pub(crate) fn list(&self) -> Vec<ClassKept> {
        let mut list = Vec::new();
        for (class, row) in (0..=u8::MAX).zip(&self.0) {
            for (code, count) in (0..).zip(row).filter(|(_, c)| c.captured.packets > 0) {
                list.push(ClassKept {
                    class,
                    granularity: match code {
                        0 => "drop",
                        4 => "sampled_out",
                        code => KeepKind::of_flags(code).name(),
                    },
                    captured: count.captured,
                    kept_bytes: count.kept_bytes,
                });
            }
        }
        list
    }
}
