//! Which hop of a packet's path a node is, if it reports for itself (INT-XD, INT-MX): such a report does not
//! say it.

use std::collections::HashMap;

use serde::Deserialize;

use super::stack::Inner;
use crate::key::FiveTuple;

/// Packets whose hops are counted as they arrive. Memory: some 200 bytes each.
const PACKETS_MAX: usize = 1 << 16;
/// Hops of one.
const HOPS_MAX: usize = 64;

/// Where a node is on the path of a packet, if the packet does not say it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum HopFrom {
    /// As many nodes after the first one as the time to live was lowered.
    #[default]
    Ttl,
    /// After those whose reports of the packet have come before.
    Arrival,
    /// It is not known: only stacks of INT-MD give paths.
    Stack,
}

/// The nodes that have reported a packet, in the order of arrival.
#[derive(Debug, Default)]
struct Reported {
    nodes: Vec<u32>,
    /// Whether it was there already at the last [`Places::settle`].
    is_old: bool,
}

/// Finds the places of nodes.
#[derive(Debug)]
pub(super) struct Places {
    from: HopFrom,
    first_ttl: u8,
    reported: HashMap<FiveTuple, Reported>,
}

impl Places {
    pub(super) fn new(from: HopFrom, first_ttl: u8) -> Self {
        Self {
            from,
            first_ttl,
            reported: HashMap::new(),
        }
    }

    /// The place of a node that has reported this packet, from 0; `None` if it is not known.
    pub(super) fn of(&mut self, packet: &Inner<'_>, node: Option<u32>) -> Option<u8> {
        match self.from {
            HopFrom::Ttl => self.by_ttl(packet.ttl),
            HopFrom::Arrival => self.by_arrival(packet.flow?, node?),
            HopFrom::Stack => None,
        }
    }

    /// Packets start with 64, 128 or 255, less what the first node has lowered when it reports.
    fn by_ttl(&self, ttl: u8) -> Option<u8> {
        let lowered = 64_u8.saturating_sub(self.first_ttl);
        let mut firsts = [64_u8, 128, 255].into_iter();
        firsts.find_map(|first| first.saturating_sub(lowered).checked_sub(ttl))
    }

    /// A node that reports again reports another packet.
    fn by_arrival(&mut self, flow: FiveTuple, node: u32) -> Option<u8> {
        if self.reported.len() >= PACKETS_MAX && !self.reported.contains_key(&flow) {
            return None;
        }
        let Reported { nodes, is_old } = self.reported.entry(flow).or_default();
        if nodes.contains(&node) || nodes.len() >= HOPS_MAX {
            nodes.clear();
        }
        *is_old = false;
        let place = u8::try_from(nodes.len()).ok()?;
        nodes.push(node);
        Some(place)
    }

    /// Packets of which no report has come since the last time are done: to be called every 100 ms or so.
    pub(super) fn settle(&mut self) {
        self.reported
            .retain(|_, packet| !std::mem::replace(&mut packet.is_old, true));
    }

    /// Forgets the packets.
    pub(super) fn forget(&mut self) {
        self.reported.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_live_counts_from_where_systems_begin() {
        let before = Places::new(HopFrom::Ttl, 64);
        let after = Places::new(HopFrom::Ttl, 63);
        for (ttl, place) in [
            (64, 0),
            (60, 4),
            (128, 0),
            (127, 1),
            (65, 63),
            (255, 0),
            (0, 64),
        ] {
            assert_eq!(before.by_ttl(ttl), Some(place), "{ttl}");
        }
        for (ttl, place) in [(63, 0), (60, 3), (127, 0), (254, 0), (64, 63)] {
            assert_eq!(after.by_ttl(ttl), Some(place), "{ttl}");
        }
        assert_eq!(after.by_ttl(255), None);
    }

    #[test]
    fn arrivals_are_counted_for_each_packet_of_a_flow() {
        let mut places = Places::new(HopFrom::Arrival, 64);
        let [one, other] = ["10.0.0.1:1 > 10.0.0.2:2 tcp", "10.0.0.1:3 > 10.0.0.2:2 tcp"]
            .map(|flow| flow.parse().unwrap());
        for (flow, node, place) in [(one, 7, 0), (other, 7, 0), (one, 8, 1), (one, 9, 2)] {
            assert_eq!(places.by_arrival(flow, node), Some(place));
        }
        assert_eq!(places.by_arrival(one, 7), Some(0), "another packet");
        places.settle();
        assert_eq!(places.by_arrival(one, 8), Some(1), "not old yet");
        places.settle();
        places.settle();
        assert_eq!(
            places.by_arrival(one, 9),
            Some(0),
            "its first nodes do not report"
        );
    }
}
