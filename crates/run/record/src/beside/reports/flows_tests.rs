#![allow(clippy::unwrap_used)]

use strata_gpv::Reason;
use strata_wire::{AddressFamily, Endpoint};

use super::*;

const ACK: u8 = 16;

/// What became of reports, as text.
fn shown(report: &Report<'_>) -> String {
    match report {
        Report::KeyWrite { key, data, .. } => {
            format!("{} class {}", FiveTuple::parse(key).unwrap(), data[3])
        }
        Report::KeyIncrement { key, counter, .. } => format!("{key:?} {counter} bytes"),
        Report::Append { list, data } => {
            let event = FlowEvent::parse(data).unwrap();
            format!(
                "{list} {:?} {} of {}",
                event.kind, event.value, event.flow.source_port
            )
        }
        Report::Postcard { .. } => unreachable!("no postcards are reported"),
    }
}

fn key(port: u16) -> FlowKey {
    let end = |address, port| Endpoint { address, port };
    let (source, destination) = (end(0x0a00_0001, port), end(0x0a00_0002, 80));
    FlowKey::new(AddressFamily::Ipv4, 6, source, destination, 0)
}

fn packet(seq: u32, payload_len: u16, tcp_flags: u8) -> Full {
    Full {
        tcp_seq: seq,
        payload_len,
        size: payload_len + 54,
        tcp_flags,
        ..Full::default()
    }
}

fn vector(key: FlowKey, packets: &[Full], start_ns: u64) -> Vector<'_, Full> {
    Vector {
        key,
        start_ns,
        pieces: [packets, &[]],
        reason: Reason::Full,
        saturated: false,
        slot: 0,
    }
}

/// Reports of packets of one flow.
fn of(flows: &mut Flows, key: FlowKey, packets: &[Full], start_ns: u64) -> Vec<String> {
    let mut reports = Vec::new();
    flows.take(&vector(key, packets, start_ns), &mut |report| {
        reports.push(shown(report));
        true
    });
    reports
}

/// The reports of the segments of a stream.
fn losses(segments: &[(u32, u16, u8)]) -> Vec<String> {
    let mut flows = Flows::new(vec![false]);
    let segments = segments
        .iter()
        .map(|&(seq, len, flags)| packet(seq, len, flags));
    let packets: Vec<Full> = segments.collect();
    let mut reports = of(&mut flows, key(1), &packets, 0);
    // The class.
    reports.remove(0);
    reports
}

#[test]
fn gaps_and_retransmissions_are_told_from_streams_in_order() {
    let none: [&str; 0] = [];
    // A connection, its data and its end, across the wrap of sequence numbers.
    let start = u32::MAX - 100;
    let whole = [
        (start, 0, SYN),
        (start + 1, 100, ACK),
        (0, 50, ACK),
        (50, 0, ACK),
        (50, 0, FIN | ACK),
        (51, 0, ACK),
    ];
    assert_eq!(losses(&whole), none);
    assert_eq!(
        losses(&[(10, 10, ACK), (50, 10, ACK), (20, 30, ACK), (60, 10, ACK)]),
        ["3 Gap 30 of 1", "3 Retransmission 30 of 1"]
    );
    // Part of it is new.
    assert_eq!(
        losses(&[(10, 10, ACK), (15, 10, ACK), (25, 1, ACK)]),
        ["3 Retransmission 5 of 1"]
    );
    // Again, an acknowledgement, SYN and FIN again.
    assert_eq!(losses(&[(10, 10, ACK), (15, 0, ACK)]), none);
    assert_eq!(
        losses(&[(9, 0, SYN), (9, 0, SYN), (10, 0, FIN), (10, 0, FIN)]),
        ["3 Retransmission 1 of 1", "3 Retransmission 1 of 1"]
    );
    // Keepalives with and without a byte, and that byte with others.
    assert_eq!(
        losses(&[(10, 10, ACK), (19, 0, ACK), (19, 1, ACK), (19, 8, ACK)]),
        none
    );
    // A reset says nothing, whatever its number; another connection begins anew.
    assert_eq!(
        losses(&[
            (10, 10, ACK),
            (99, 0, RST),
            (20, 1, ACK),
            (7, 0, SYN),
            (8, 5, ACK)
        ]),
        none
    );
}

#[test]
fn what_was_lost_before_this_thread_is_no_gap_of_the_network() {
    let mut flows = Flows::new(vec![false]);
    of(&mut flows, key(1), &[packet(10, 10, ACK)], 0);
    flows.skip();
    let after = of(&mut flows, key(1), &[packet(90, 10, ACK)], 0);
    assert!(after.is_empty(), "{after:?}");
    let then = of(&mut flows, key(1), &[packet(101, 10, ACK)], 0);
    assert_eq!(then, ["3 Gap 1 of 1"]);
}

#[test]
fn a_class_is_reported_when_it_changes_and_now_and_then() {
    let mut flows = Flows::new(vec![false, true]);
    let classed = |class| Full {
        class,
        tcp_flags: ACK,
        ..Full::default()
    };
    let flow = "10.0.0.1:1 > 10.0.0.2:80 tcp";
    let first = of(&mut flows, key(1), &[classed(0), classed(0), classed(1)], 0);
    let anomalous = "2 Anomalous 1 of 1".to_owned();
    let changed = [
        format!("{flow} class 0"),
        format!("{flow} class 1"),
        anomalous,
    ];
    assert_eq!(first, changed);
    let soon = of(
        &mut flows,
        key(1),
        &[classed(1), classed(NO_CLASS)],
        AGAIN_NS - 1,
    );
    assert!(soon.is_empty(), "{soon:?}");
    let late = of(&mut flows, key(1), &[classed(1)], AGAIN_NS);
    assert_eq!(late, [format!("{flow} class 1")]);
    // One for which there was no room is made with the next packet.
    flows.take(&vector(key(2), &[classed(1)], 0), &mut |_| false);
    assert_eq!(of(&mut flows, key(2), &[classed(1)], 0).len(), 2);
}

#[test]
fn bytes_are_gathered_by_source_and_reported_once() {
    let mut flows = Flows::new(vec![false]);
    for port in 1..=3 {
        of(
            &mut flows,
            key(port),
            &[packet(0, 46, ACK), packet(46, 46, ACK)],
            0,
        );
    }
    let mut flushed = || {
        let mut reports = Vec::new();
        flows.flush(&mut |report| {
            reports.push(shown(report));
            true
        });
        reports
    };
    assert_eq!(flushed(), ["[10, 0, 0, 1] 600 bytes"]);
    assert!(flushed().is_empty());
}

#[test]
fn flows_and_hosts_have_bounds() {
    let mut flows = Flows::new(vec![false]);
    let mut hosts = 0;
    for n in 0..u32::try_from(2 * FLOWS_MAX + 5).unwrap() {
        let end = |address, port| Endpoint { address, port };
        let (source, destination) = (end(u128::from(n), 1), end(1, 1));
        let key = FlowKey::new(AddressFamily::Ipv4, 17, source, destination, 0);
        flows.take(&vector(key, &[packet(0, 1, 0)], 0), &mut |report| {
            hosts += usize::from(matches!(report, Report::KeyIncrement { .. }));
            true
        });
        assert!(flows.young.len() <= FLOWS_MAX && flows.old.len() <= FLOWS_MAX);
        assert!(flows.hosts.len() <= HOSTS_MAX);
    }
    assert_eq!(hosts + flows.hosts.len(), 2 * FLOWS_MAX + 5);
    // One that was seen lately is still known.
    let lately = u128::from(u32::try_from(FLOWS_MAX).unwrap());
    let end = |address, port| Endpoint { address, port };
    let key = FlowKey::new(AddressFamily::Ipv4, 17, end(lately, 1), end(1, 1), 0);
    assert!(flows.flow(&key).reported.is_some());
}
