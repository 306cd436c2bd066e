//! Finds the flow of a run that a fingerprint belongs to.
//!
//! A run has tens of thousands of flows, and packets may belong to any of them. The first look-up
//! needs only 8 bytes per flow, so that it stays in the second-level cache, and can be prefetched
//! for many packets at a time.

use strata_wire::prefetch;

/// Initial slots; a power of two.
const SLOTS: usize = 1 << 12;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The low half of a fingerprint; the high half selects the slot.
    tag: u32,
    flow: u32,
}

const EMPTY: Slot = Slot { tag: 0, flow: NONE };

/// Flows by fingerprint: open addressing, at most three quarters full.
#[derive(Debug)]
pub(crate) struct FlowIndex {
    slots: Vec<Slot>,
    /// By flow.
    fingerprints: Vec<u64>,
}

impl Default for FlowIndex {
    fn default() -> Self {
        Self {
            slots: vec![EMPTY; SLOTS],
            fingerprints: Vec::new(),
        }
    }
}

#[allow(clippy::cast_possible_truncation)]
fn tag(fingerprint: u64) -> u32 {
    fingerprint as u32
}

impl FlowIndex {
    fn place(&self, fingerprint: u64) -> usize {
        (fingerprint >> 32) as usize & (self.slots.len() - 1)
    }

    /// Prefetches what [`FlowIndex::candidate`] reads.
    #[inline]
    pub(crate) fn fetch(&self, fingerprint: u64) {
        prefetch(&self.slots, self.place(fingerprint));
    }

    /// The flow it probably is.
    #[inline]
    pub(crate) fn candidate(&self, fingerprint: u64) -> usize {
        self.slots[self.place(fingerprint)].flow as usize
    }

    /// The number of a flow: the one with this fingerprint that `is` accepts, or a new one.
    #[inline]
    pub(crate) fn number(&mut self, fingerprint: u64, is: impl Fn(u32) -> bool) -> u32 {
        let mut at = self.place(fingerprint);
        let tag = tag(fingerprint);
        loop {
            let slot = self.slots[at];
            if slot.flow == NONE {
                return self.insert(at, fingerprint);
            }
            if slot.tag == tag && is(slot.flow) {
                return slot.flow;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    fn insert(&mut self, at: usize, fingerprint: u64) -> u32 {
        let flow = u32::try_from(self.fingerprints.len()).unwrap_or(NONE);
        let tag = tag(fingerprint);
        self.slots[at] = Slot { tag, flow };
        self.fingerprints.push(fingerprint);
        if self.fingerprints.len() * 4 > self.slots.len() * 3 {
            self.grow();
        }
        flow
    }

    #[cold]
    fn grow(&mut self) {
        self.slots = vec![EMPTY; self.slots.len() * 2];
        for (flow, &fingerprint) in (0..).zip(&self.fingerprints) {
            let mut at = self.place(fingerprint);
            while self.slots[at].flow != NONE {
                at = (at + 1) & (self.slots.len() - 1);
            }
            let tag = tag(fingerprint);
            self.slots[at] = Slot { tag, flow };
        }
    }

    pub(crate) fn clear(&mut self) {
        self.slots.fill(EMPTY);
        self.fingerprints.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// Numbers them as a map would, even where fingerprints are equal.
        #[test]
        fn flows_are_numbered_as_a_map_does(
            keys in prop::collection::vec((0_u64..40, 0_u32..3_000), 0..9_000),
        ) {
            let mut index = FlowIndex::default();
            for _ in 0..2 {
                let mut known = HashMap::new();
                let mut flows = Vec::new();
                for &(group, key) in &keys {
                    let fingerprint = group << 29 | u64::from(key / 3);
                    let next = u32::try_from(known.len()).unwrap();
                    let expected = *known.entry((group, key)).or_insert(next);
                    let number = index.number(fingerprint, |flow| flows[flow as usize] == (group, key));
                    if number as usize == flows.len() {
                        flows.push((group, key));
                    }
                    prop_assert_eq!(number, expected);
                }
                index.clear();
            }
        }
    }
}
