//! How much of any packet is copied at most, changed while packets arrive: a word of shared memory.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use strata_bpf::{Assembler, Condition, Reg, Shared, Width};
use strata_wire::exact;

use super::LENGTH_AT;

/// Sets how much of each packet the kernel copies at most; shared by all workers of a capture.
#[derive(Debug, Clone)]
pub struct CopyLimit {
    shared: Arc<Shared>,
}

impl CopyLimit {
    /// One that leaves packets whole.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let limit = Self { shared };
        limit.set(u32::MAX);
        limit
    }

    /// From now on at most `bytes` bytes of a packet are copied, and no more than the snapshot length.
    pub fn set(&self, bytes: u32) {
        self.shared.words()[LENGTH_AT].store(u64::from(bytes), Relaxed);
    }

    /// `R0` = as much of the packet, but no more than is to be copied. Uses `R1`.
    pub(super) fn write(&self, asm: &mut Assembler) {
        let shorter = asm.label();
        let at = exact::<i32>(LENGTH_AT * 8);
        asm.shared_address(Reg::R1, self.shared.number(), at);
        asm.load(Width::Double, Reg::R1, Reg::R1, 0);
        asm.jump_if(Condition::LessEqual, Reg::R0, Reg::R1, shorter);
        asm.set(Reg::R0, Reg::R1);
        asm.bind(shorter);
    }
}
