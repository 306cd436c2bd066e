//! Events of flows, as `strata record --report-to` and queries known ahead append them to lists.
//!
//! ```text
//! 0 kind u8     1 anomalous, 2 gap, 3 retransmission, 4 slow, 5 slow at least; plus 0x80 if the flow
//!               is of IPv6
//! 1 value u32   number of the class; bytes; sum of latencies
//! 5 flow        13 bytes, of IPv6 37, as its key (see `key`); not only zeros
//! ```
//!
//! Big-endian; 18 bytes, of IPv6 42.

use crate::key::{FiveTuple, Key};
use crate::protocol::KEY_LEN_MAX;

/// The list of flows that were found anomalous.
pub const ANOMALIES: u32 = 2;
/// The list of gaps and retransmissions.
pub const LOSSES: u32 = 3;

/// Bytes of the longest event.
pub const FLOW_EVENT_LEN_MAX: usize = HEADER_LEN + 37;

const HEADER_LEN: usize = 5;
const IPV4_LEN: usize = 13;
const IPV6_LEN: usize = 37;
const IPV6: u8 = 0x80;
const _: () = assert!(IPV6_LEN <= KEY_LEN_MAX);

/// The kind of an event of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowEventKind {
    /// The flow got an anomalous class; the value is the number of the class.
    Anomalous,
    /// A TCP segment does not continue those before it: the bytes between were lost before the recorder, or arrive
    /// later.
    Gap,
    /// A TCP segment begins before the end of those before it: its bytes were sent again, or arrive late.
    Retransmission,
    /// The sum of the latencies of a packet's hops is above a threshold; the value is the sum.
    Slow,
    /// As [`FlowEventKind::Slow`], with the sum of the known latencies only: the latencies of other hops are not
    /// included.
    SlowAtLeast,
}

impl FlowEventKind {
    const ALL: [(Self, u8); 5] = [
        (Self::Anomalous, 1),
        (Self::Gap, 2),
        (Self::Retransmission, 3),
        (Self::Slow, 4),
        (Self::SlowAtLeast, 5),
    ];

    fn number(self) -> u8 {
        let mut all = Self::ALL.into_iter();
        let found = all.find(|(kind, _)| *kind == self);
        found.expect("every kind has a number").1
    }
}

/// An event of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowEvent {
    /// The kind.
    pub kind: FlowEventKind,
    /// Its value: see the kind.
    pub value: u32,
    /// The flow.
    pub flow: FiveTuple,
}

impl FlowEvent {
    /// Appends its bytes to `out`: 18 for IPv4, 42 for IPv6.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let family = if self.flow.source.is_ipv4() { 0 } else { IPV6 };
        out.push(self.kind.number() | family);
        out.extend_from_slice(&self.value.to_be_bytes());
        out.extend_from_slice(Key::flow(&self.flow).bytes());
    }

    /// The event of an entry, which may be padded; `None` if it is invalid.
    #[must_use]
    pub fn parse(entry: &[u8]) -> Option<Self> {
        let (&[first, a, b, c, d], flow) = entry.split_first_chunk::<HEADER_LEN>()?;
        let len = if first & IPV6 == 0 {
            IPV4_LEN
        } else {
            IPV6_LEN
        };
        let mut kinds = FlowEventKind::ALL.into_iter();
        let (kind, _) = kinds.find(|(_, number)| *number == first & !IPV6)?;
        let flow = flow.get(..len)?;
        // Shorter data, padded with zeros, are of another reporter. DHCP, IGMP and the detection of duplicate addresses
        // send from the address 0, too, but to another one, with a protocol.
        if flow.iter().all(|&byte| byte == 0) {
            return None;
        }
        Some(Self {
            kind,
            value: u32::from_be_bytes([a, b, c, d]),
            flow: FiveTuple::parse(flow)?,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_18_bytes_and_can_be_read_again_also_if_padded() {
        for (flow, len) in [
            ("10.0.0.1:1024 > 10.0.0.2:80 tcp", 18),
            ("[2001:db8::1]:5 > [2001:db8::2]:6 tcp", FLOW_EVENT_LEN_MAX),
            // DHCP, IGMP, duplicate address detection.
            ("0.0.0.0:68 > 255.255.255.255:67 udp", 18),
            ("0.0.0.0 > 224.0.0.22 proto 2", 18),
            ("[::] > [ff02::1:ff00:1] icmp6", FLOW_EVENT_LEN_MAX),
        ] {
            for (kind, number) in FlowEventKind::ALL {
                let event = FlowEvent {
                    kind,
                    value: 0x0102_0304,
                    flow: flow.parse().unwrap(),
                };
                let mut bytes = Vec::new();
                event.emit(&mut bytes);
                assert_eq!(bytes.len(), len);
                assert_eq!(bytes[0] & 0x7f, number);
                assert_eq!(bytes[1..5], [1, 2, 3, 4]);
                assert_eq!(FlowEvent::parse(&bytes), Some(event));
                assert_eq!(FlowEvent::parse(&bytes[..len - 1]), None);
                bytes.resize(64, 0);
                assert_eq!(FlowEvent::parse(&bytes), Some(event));
                bytes[0] = 9;
                assert_eq!(FlowEvent::parse(&bytes), None);
            }
        }
    }

    #[test]
    fn shorter_data_that_were_padded_are_no_event() {
        for first in [1, 2, 0x81] {
            let mut bytes = vec![first, 1, 2, 3, 4];
            bytes.resize(56, 0);
            assert_eq!(FlowEvent::parse(&bytes), None, "{first}");
        }
    }
}
