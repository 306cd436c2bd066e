//! The agent (section 6.1 of the paper), as parts: datagrams into vectors in order with the loss
//! counted ([`Sequencer`]), vectors into records of longer intervals ([`Reassembly`]), slots that
//! have been silent for too long ([`IdleSlots`]), and which of many queues a flow goes to
//! ([`queue_of`]). Many agents fill one queue by giving it their records in turn.

mod idle;
mod reassembly;
mod sequence;

pub use idle::IdleSlots;
pub use reassembly::{Reassembly, ReassemblyCounters, ReassemblyOptions, Record, Run};
pub use sequence::{Sequencer, SequencerCounters, SequencerOptions};

use crate::key::{Key, KeyHasher};

/// Which of `queues` gets the vectors of a flow: always the same, so that its packets stay in
/// order.
///
/// # Panics
///
/// If `queues` is 0.
#[inline]
#[must_use]
pub fn queue_of(hasher: &KeyHasher, key: &Key, queues: usize) -> usize {
    assert!(queues > 0, "a flow needs a queue");
    let product = u128::from(hasher.hash(key)).wrapping_mul(queues as u128);
    strata_wire::exact(product >> 64)
}
