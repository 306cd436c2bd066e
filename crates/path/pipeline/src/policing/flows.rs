//! The decision on the packets of each flow and direction, found by the flow's fingerprint: the
//! fields that rules test are the same for all of them.

use strata_wire::wide::{GROUP, Kernel, Lanes, Simd};
use strata_wire::{mix64, prefetch};

/// Flows that have a place, in both directions: 2 MiB.
const FLOWS: usize = 1 << 17;
/// Bits of a slot with the number of a decision.
const NUMBER_BITS: u32 = 16;
/// Set in the keys of all flows and not in empty slots.
const PRESENT: u64 = 1 << 63;

/// Decisions by flow. A flow has one place, which it takes from the one before.
///
/// A slot holds the number of a decision in its lowest 16 bits, above them those of the flow's key,
/// whose lowest bits its place stands for. So a hit compares all bits but one; as the fingerprint
/// is keyed, no sender can look for flows that share one.
///
/// Time: one memory access per packet.
#[derive(Debug)]
pub(super) struct FlowDecisions {
    /// By the lowest bits of a key and then by direction.
    slots: Box<[u64]>,
}

/// What else than the flow tells packets apart: the interface's number in the rules, and the VLAN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Salt(u64);

impl Salt {
    pub(super) fn new(interface: u8, vlan: u16) -> Self {
        Self(mix64(u64::from(interface) << 16 | u64::from(vlan)))
    }

    #[inline(always)]
    fn key(self, fingerprint: u64) -> u64 {
        (fingerprint ^ self.0) | PRESENT
    }
}

impl FlowDecisions {
    pub(super) fn new() -> Self {
        // Ones, not zeros, so that every page is there before packets come.
        let mut slots = vec![1; 2 * FLOWS].into_boxed_slice();
        slots.fill(0);
        Self { slots }
    }

    pub(super) fn clear(&mut self) {
        self.slots.fill(0);
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "the lowest bits")]
    fn place(key: u64, low_to_high: bool) -> usize {
        (key as usize % FLOWS) << 1 | usize::from(low_to_high)
    }

    /// Fetches the places of flows ahead of their use.
    #[inline]
    pub(super) fn prefetch(&self, fingerprints: &[u64; GROUP], salt: Salt) {
        for &fingerprint in fingerprints {
            let place = Self::place(salt.key(fingerprint), false);
            prefetch(&self.slots[place..=place], 0);
        }
    }

    /// The number of the decision on a flow's packets in one direction, if it is known.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "the lowest bits")]
    pub(super) fn find(&self, fingerprint: u64, low_to_high: bool, salt: Salt) -> Option<u16> {
        let key = salt.key(fingerprint);
        let slot = self.slots[Self::place(key, low_to_high)];
        ((slot ^ key) >> NUMBER_BITS == 0).then_some(slot as u16)
    }

    /// [`FlowDecisions::find`] for a group: stores the numbers, and returns which of them are known.
    #[inline]
    pub(super) fn find_group(
        &self,
        simd: Simd,
        (fingerprints, low_to_high): (&[u64; GROUP], u16),
        salt: Salt,
        numbers: &mut [u16; GROUP],
    ) -> u16 {
        simd.run(Find {
            slots: &self.slots,
            fingerprints,
            low_to_high,
            salt,
            numbers,
        })
    }

    /// Stores the number of the decision on a flow's packets in one direction.
    pub(super) fn insert(
        &mut self,
        (fingerprint, low_to_high): (u64, bool),
        salt: Salt,
        number: u16,
    ) {
        let key = salt.key(fingerprint);
        let slot = key >> NUMBER_BITS << NUMBER_BITS | u64::from(number);
        self.slots[Self::place(key, low_to_high)] = slot;
    }
}

struct Find<'a> {
    slots: &'a [u64],
    fingerprints: &'a [u64; GROUP],
    low_to_high: u16,
    salt: Salt,
    numbers: &'a mut [u16; GROUP],
}

impl Kernel for Find<'_> {
    type Output = u16;

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "the lowest bits")]
    fn run<L: Lanes>(self, l: L) -> u16 {
        let fingerprints = l.load_64(self.fingerprints);
        let salted = l.xor_64(fingerprints, l.set_64(self.salt.0));
        let keys = l.or_64(salted, l.set_64(PRESENT));
        let flows = l.narrow(l.and_64(keys, l.set_64(FLOWS as u64 - 1)));
        let direction = l.only(l.mask(self.low_to_high), l.set(1));
        let mut places = [0; GROUP];
        l.store(l.or(l.shl(flows, 1), direction), &mut places);
        let mut slots = [0; GROUP];
        for ((slot, number), place) in slots.iter_mut().zip(self.numbers).zip(places) {
            *slot = self.slots[place as usize];
            *number = *slot as u16;
        }
        let tags = l.shr_64(l.load_64(&slots), NUMBER_BITS);
        l.eq_64(tags, l.shr_64(keys, NUMBER_BITS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// A flow has the number that it was given last, or none if another has taken its place;
        /// groups are found as one flow after another.
        #[test]
        fn flows_have_their_own_numbers_or_none(
            // Some share places, and few are told apart by their lowest or highest bits alone.
            steps in prop::collection::vec((0_u64..6, 0_u64..4, any::<bool>(), 0_u8..2, any::<u16>()), 1..300),
        ) {
            let fingerprint = |high: u64, low: u64| (high << 61) | (high << 20) | low << 17 | low;
            let mut flows = FlowDecisions::new();
            let mut known = HashMap::new();
            for &(high, low, low_to_high, interface, number) in &steps {
                let salt = Salt::new(interface, 7);
                let fingerprint = fingerprint(high, low);
                flows.insert((fingerprint, low_to_high), salt, number);
                known.insert((fingerprint, low_to_high, interface), number);
                prop_assert_eq!(flows.find(fingerprint, low_to_high, salt), Some(number));
            }
            for (&(fingerprint, low_to_high, interface), &number) in &known {
                let found = flows.find(fingerprint, low_to_high, Salt::new(interface, 7));
                prop_assert!(found.is_none_or(|found| found == number));
                prop_assert_eq!(flows.find(fingerprint, low_to_high, Salt::new(interface, 8)), None);
            }
            let salt = Salt::new(0, 7);
            let all: Vec<u64> = steps.iter().map(|&(high, low, ..)| fingerprint(high, low)).collect();
            for simd in Simd::available() {
                for group in all.as_chunks::<GROUP>().0 {
                    for low_to_high in [0_u16, 0x5a3c, u16::MAX] {
                        let mut numbers = [0; GROUP];
                        let hits = flows.find_group(simd, (group, low_to_high), salt, &mut numbers);
                        for (lane, &fingerprint) in group.iter().enumerate() {
                            let expected = flows.find(fingerprint, low_to_high >> lane & 1 != 0, salt);
                            let found = (hits >> lane & 1 != 0).then_some(numbers[lane]);
                            prop_assert_eq!(found, expected);
                        }
                    }
                }
            }
            flows.clear();
            for &(fingerprint, low_to_high, interface) in known.keys() {
                let salt = Salt::new(interface, 7);
                prop_assert_eq!(flows.find(fingerprint, low_to_high, salt), None);
            }
        }
    }
}
