//! Keys and events as people and programs read them.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::api::status::TelemetryEntry;
use strata_dta::event::flow::{FlowEvent, FlowEventKind};
use strata_dta::event::node::{NodeEvent, NodeEventKind};
use strata_dta::key::{FiveTuple, Key, NodeId};

use crate::store::plan::EntryKind;

/// A field of bytes that are there.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("a field that is there")
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(field(bytes, at))
}

/// The text of a key. Its kind is derived from the length, since keys do not contain it. Four bytes are an address; in
/// 0.0.0.0/8, where the ids of nodes usually are, too, they are shown as both.
#[must_use]
pub fn key(key: &Key) -> String {
    let bytes = key.bytes();
    match bytes.len() {
        4 if bytes[0] == 0 => {
            let host = Ipv4Addr::from(field::<4>(bytes, 0));
            format!("{host} or node {}", number(bytes, 0))
        }
        4 => Ipv4Addr::from(field::<4>(bytes, 0)).to_string(),
        8 => {
            let host = Ipv4Addr::from(field::<4>(bytes, 4));
            format!("node {} {host}", NodeId(number(bytes, 0)))
        }
        20 => {
            let host = Ipv6Addr::from(field::<16>(bytes, 4));
            format!("node {} {host}", NodeId(number(bytes, 0)))
        }
        9 => {
            let [node, port] = [0, 4].map(|at| number(bytes, at));
            format!("node {} port {port} queue {}", NodeId(node), bytes[8])
        }
        13 | 37 => {
            FiveTuple::parse(bytes).map_or_else(|| format!("{key:?}"), |flow| flow.to_string())
        }
        16 => Ipv6Addr::from(field::<16>(bytes, 0)).to_string(),
        17 => match FiveTuple::parse(&bytes[4..]) {
            Some(flow) => format!("node {} {flow}", NodeId(number(bytes, 0))),
            None => format!("{key:?}"),
        },
        _ => format!("{key:?}"),
    }
}

/// Bytes as digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("0x{digits}")
}

/// A value as a number, if it is one of up to 8 bytes.
#[must_use]
pub fn as_number(bytes: &[u8]) -> Option<u64> {
    let fits = (1..=8).contains(&bytes.len());
    fits.then(|| {
        bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
    })
}

/// An entry of a list, as programs read it.
#[must_use]
pub fn entry(kind: EntryKind, bytes: &[u8]) -> TelemetryEntry {
    match kind {
        EntryKind::NodeEvent => NodeEvent::parse(bytes).map_or_else(
            || other(bytes),
            |event| TelemetryEntry::Node {
                node: event.node,
                port: event.port,
                queue: event.queue,
                time: event.time,
                value: event.value,
                what: node_event(event.kind),
                flow: event.flow.map(|flow| flow.to_string()),
            },
        ),
        EntryKind::FlowEvent => FlowEvent::parse(bytes).map_or_else(
            || other(bytes),
            |event| {
                let is_least = event.kind == FlowEventKind::SlowAtLeast;
                TelemetryEntry::Flow {
                    at_least: is_least.then_some(true),
                    flow: event.flow.to_string(),
                    value: event.value,
                    what: flow_event(event.kind),
                }
            },
        ),
        EntryKind::Bytes => other(bytes),
    }
}

/// What happened at a node, in a word.
pub(super) fn node_event(kind: NodeEventKind) -> &'static str {
    match kind {
        NodeEventKind::Dropped => "dropped",
        NodeEventKind::Congested => "congested",
        NodeEventKind::Other => "other",
    }
}

/// What happened to a flow, in a word.
pub(super) fn flow_event(kind: FlowEventKind) -> &'static str {
    match kind {
        FlowEventKind::Anomalous => "anomalous",
        FlowEventKind::Gap => "gap",
        FlowEventKind::Retransmission => "retransmission",
        FlowEventKind::Slow | FlowEventKind::SlowAtLeast => "slow",
    }
}

fn other(bytes: &[u8]) -> TelemetryEntry {
    let bytes = hex(bytes);
    TelemetryEntry::Bytes { bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_shown_as_they_are_written() {
        for text in [
            "10.0.0.1",
            "2001:db8::1",
            "0.0.0.0 or node 0",
            "0.0.0.7 or node 7",
            "node 7 port 3 queue 1",
            "10.0.0.1:1024 > 10.0.0.2:80 tcp",
            "[2001:db8::1]:5 > [2001:db8::2]:6 udp",
            "node 7 10.0.0.1:1024 > 10.0.0.2:80 proto 99",
            "node 10.255.0.4 port 3 queue 1",
            "node 7 10.0.0.1",
            "node 7 2001:db8::1",
            "0x0102030405",
        ] {
            let parsed: Key = text.parse().unwrap();
            assert_eq!(key(&parsed), text);
            assert_eq!(key(&parsed).parse(), Ok(parsed));
        }
    }

    #[test]
    fn numbers_have_up_to_8_bytes() {
        assert_eq!(as_number(&[0, 0]), Some(0));
        assert_eq!(as_number(&[1; 8]), Some(0x0101_0101_0101_0101));
        assert_eq!((as_number(&[]), as_number(&[1; 9])), (None, None));
    }
}
