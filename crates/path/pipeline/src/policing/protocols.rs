//! The decision on plain packets by interface and protocol, where rules test no more of them: as for
//! `ip`, `tcp` or a default alone. [`super::flows`] has it by flow, wherever they do.

use strata_wire::wide::GROUP;

/// There is no decision for a protocol yet.
const UNKNOWN: u16 = u16::MAX;

/// Decisions by interface and protocol: half a KiB for each interface that rules name.
#[derive(Debug, Default)]
pub(super) struct ProtocolDecisions {
    /// By the interface's number in the rules.
    interfaces: Vec<[u16; 256]>,
}

impl ProtocolDecisions {
    const NONE: [u16; 256] = [UNKNOWN; 256];

    pub(super) fn clear(&mut self) {
        self.interfaces.clear();
    }

    /// The numbers of the decisions on a group's packets of these protocols; some may not be known.
    #[inline(always)]
    pub(super) fn of_group(
        &self,
        protocols: &[u32; GROUP],
        interface: u8,
    ) -> impl Iterator<Item = u16> {
        let known = self.interfaces.get(usize::from(interface));
        let known = known.unwrap_or(&Self::NONE);
        protocols
            .iter()
            .map(|protocol| known[usize::from(protocol.to_le_bytes()[0])])
    }

    /// Stores them, and returns which of them are known.
    #[inline]
    pub(super) fn find_group(
        &self,
        protocols: &[u32; GROUP],
        interface: u8,
        numbers: &mut [u16; GROUP],
    ) -> u16 {
        let mut known = 0;
        let found = self.of_group(protocols, interface);
        for (lane, (number, found)) in numbers.iter_mut().zip(found).enumerate() {
            let is_known = found != UNKNOWN;
            *number = if is_known { found } else { 0 };
            known |= u16::from(is_known) << lane;
        }
        known
    }

    /// Stores the number of the decision on plain packets of an interface and protocol.
    pub(super) fn insert(&mut self, interface: u8, protocol: u8, number: u16) {
        let place = usize::from(interface);
        if self.interfaces.len() <= place {
            self.interfaces.resize(place + 1, Self::NONE);
        }
        self.interfaces[place][usize::from(protocol)] = number;
    }
}
