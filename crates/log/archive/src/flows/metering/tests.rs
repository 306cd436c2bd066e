//! Records against those of a naive meter, and what is said of times.

use std::convert::Infallible;

use proptest::prelude::*;

use super::*;

const SECOND_NS: u64 = 1_000_000_000;
const START_NS: u64 = 1_700_000_000 * SECOND_NS;

/// A segment between port 1000 + `flow` of 10.0.0.1 and port 80 of 10.0.0.2.
fn segment(flow: u8, back: bool, flags: u8) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0]);
    let (here, there) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let (own, port) = (
        (1_000 + u16::from(flow)).to_be_bytes(),
        80_u16.to_be_bytes(),
    );
    let (addresses, ports) = match back {
        false => ([here, there], [own, port]),
        true => ([there, here], [port, own]),
    };
    frame.extend(addresses.concat());
    frame.extend(ports.concat());
    frame.extend([0; 8]);
    frame.extend([0x50, flags, 0, 0, 0, 0, 0, 0]);
    frame.resize(60, 0);
    frame
}

fn packet(ts_ns: u64, data: &[u8]) -> MeteredPacket<'_> {
    MeteredPacket {
        interface: 0,
        link: LinkType::ETHERNET,
        ts_ns,
        has_timestamp: true,
        wire_len: 60,
        captured_len: 60,
        header_len: 54,
        data,
        options: &[],
        class: None,
        score: None,
        share: FlowShare::ALL,
    }
}

/// Flow, first and last time, packets, and why it ended.
type Told = (u64, u64, u64, u64, u64);

fn told(values: &[Value]) -> Told {
    let of = |column: FlowColumn| values[column.index()].as_u64().unwrap();
    let ports = [FlowColumn::SrcPort, FlowColumn::DstPort].map(of);
    assert_eq!(of(FlowColumn::IpBytes) + of(FlowColumn::ReverseIpBytes), {
        40 * (of(FlowColumn::Packets) + of(FlowColumn::ReversePackets))
    });
    (
        ports.into_iter().max().unwrap() - 1_000,
        of(FlowColumn::FirstTime),
        of(FlowColumn::LastTime),
        of(FlowColumn::Packets) + of(FlowColumn::ReversePackets),
        of(FlowColumn::EndReason),
    )
}

/// Seconds since the packet before, flow, whether back, flags.
type Sent = (u64, u8, bool, u8);

fn metered(timeouts: Timeouts, flows_max: usize, sent: &[Sent]) -> (Vec<Told>, u64) {
    let mut metering = Metering::new(timeouts, 0, [1, 2]).at_most(flows_max);
    let mut records = Vec::new();
    let mut take = |values: Vec<Value>| -> Result<(), Infallible> {
        records.push(told(&values));
        Ok(())
    };
    let mut now = START_NS;
    for &(since, flow, back, flags) in sent {
        now += since * SECOND_NS;
        let data = segment(flow, back, flags);
        metering.packet(&packet(now, &data), &mut take).unwrap();
    }
    metering.finish(now, &mut take).unwrap();
    records.sort_unstable();
    (records, metering.crowded_out)
}

/// Records of one flow whose packets have these times, s: first, last, packets, and why each ended.
fn at_times(timeouts: Timeouts, times: &[i64]) -> Vec<(i64, i64, u64, u64)> {
    let mut metering = Metering::new(timeouts, 0, [1, 2]);
    let mut records = Vec::new();
    let seconds = |ns: u64| (ns.cast_signed() - START_NS.cast_signed()) / 1_000_000_000;
    let mut take = |values: Vec<Value>| -> Result<(), Infallible> {
        let (_, first, last, packets, reason) = told(&values);
        records.push((seconds(first), seconds(last), packets, reason));
        Ok(())
    };
    let data = segment(0, false, 0x10);
    let mut end_ns = 0;
    for time in times {
        let ts_ns = START_NS.saturating_add_signed(time * 1_000_000_000);
        end_ns = end_ns.max(ts_ns);
        let Ok(()) = metering.packet(&packet(ts_ns, &data), &mut take);
    }
    let Ok(()) = metering.finish(end_ns, &mut take);
    records
}

#[test]
fn time_that_is_set_back_neither_ends_nor_lengthens_a_record() {
    let timeouts = Timeouts::default();
    assert_eq!(
        at_times(timeouts, &[0, 1, -3_600, -3_599, 2]),
        [(0, 2, 5, 4)]
    );
    // Of one packet only, and others are late.
    assert_eq!(
        at_times(timeouts, &[0, 1, -1_700_000_000, 0, 1, 2, 3]),
        [(0, 3, 7, 4)]
    );
    assert_eq!(at_times(timeouts, &[0, 1, -61, 0, 2, 3, 4]), [(0, 4, 7, 4)]);
    // Two inputs take turns, and one is behind.
    let turns = (0..200).flat_map(|at| [at, at - 100]);
    assert_eq!(
        at_times(timeouts, &turns.collect::<Vec<_>>()),
        [(0, 199, 400, 4)]
    );
    // It stays so.
    assert_eq!(at_times(timeouts, &[0, 1, -3_600, -3_590]), [(0, 11, 4, 4)]);
    // A late packet is before the others, and its record as long as that says.
    let late = [0, 50, -5, 100, 150, 200, 250, 295, 296];
    assert_eq!(
        at_times(timeouts, &late),
        [(-5, 295, 8, 2), (296, 296, 1, 4)]
    );
    // A pause is one.
    assert_eq!(
        at_times(timeouts, &[0, -3_600, -3_500]),
        [(0, 0, 2, 1), (-3_500, -3_500, 1, 4)]
    );
}

#[test]
fn idle_flows_end_also_after_time_was_set_back_without_packets() {
    let mut metering = Metering::new(Timeouts::default(), 0, [1, 2]);
    let mut records = Vec::new();
    let mut take = |values: Vec<Value>| -> Result<(), Infallible> {
        records.push(told(&values));
        Ok(())
    };
    let data = segment(0, false, 0x10);
    let Ok(()) = metering.packet(&packet(START_NS, &data), &mut take);
    for second in [0, 30, 61] {
        let Ok(()) = metering.pass(START_NS - 3_600 * SECOND_NS + second * SECOND_NS, &mut take);
    }
    assert_eq!(records, [(0, START_NS, START_NS, 1, 1)]);
}

#[test]
fn packets_without_a_time_have_that_of_the_one_before_or_else_the_next() {
    let mut metering = Metering::new(Timeouts::default(), 0, [1, 2]);
    let mut records = Vec::new();
    let mut take = |values: Vec<Value>| -> Result<(), Infallible> {
        records.push(told(&values));
        Ok(())
    };
    // The first connection ends when another one begins.
    let sent = [
        (0, 4, None),
        (0, 2, None),
        (1, 0x10, None),
        (1, 0x10, Some(7)),
        (1, 0x10, None),
        (0, 0x10, Some(9)),
    ];
    for (flow, flags, second) in sent {
        let data = segment(flow, false, flags);
        let of = packet(
            second.map_or(0, |second| START_NS + second * SECOND_NS),
            &data,
        );
        let of = MeteredPacket {
            has_timestamp: second.is_some(),
            ..of
        };
        let Ok(()) = metering.packet(&of, &mut take);
    }
    let Ok(()) = metering.finish(START_NS + 9 * SECOND_NS, &mut take);
    records.sort_unstable();
    let at = |second: u64| START_NS + second * SECOND_NS;
    let expected = [
        (0, at(7), at(7), 1, 3),
        (0, at(7), at(9), 2, 4),
        (1, at(7), at(7), 3, 4),
    ];
    assert_eq!(records, expected);
}

proptest! {
    #[test]
    fn no_record_is_longer_than_the_active_timeout(
        steps in prop::collection::vec(prop_oneof![0_i64..20, -20_i64..20, -9_000_i64..9_000], 0..60),
        active in 1_u64..30, idle in 1_u64..12,
    ) {
        let timeouts = Timeouts { active_ns: active * SECOND_NS, idle_ns: idle * SECOND_NS };
        let times: Vec<i64> = steps.iter().scan(0, |at, step| { *at += step; Some(*at) }).collect();
        let records = at_times(timeouts, &times);
        prop_assert_eq!(records.iter().map(|of| of.2).sum::<u64>(), times.len() as u64);
        for (first, last, ..) in records {
            prop_assert!(first <= last && last - first <= active.cast_signed());
        }
    }
}

/// Flow by flow, without a clock that others advance.
fn naive(timeouts: Timeouts, sent: &[Sent]) -> Vec<Told> {
    let mut records = Vec::new();
    let end: u64 = START_NS
        + sent
            .iter()
            .map(|(since, ..)| since * SECOND_NS)
            .sum::<u64>();
    for flow in 0..4 {
        let (mut now, mut open): (u64, Option<Told>) = (START_NS, None);
        let mut flags = [0; 2];
        let over = |open: &Told, now: u64, flags: [u8; 2]| {
            let (_, first, last, ..) = *open;
            let (is_long, is_idle) = (
                now - first > timeouts.active_ns,
                now - last > timeouts.idle_ns,
            );
            let has_ended = (flags[0] | flags[1]) & 4 != 0 || flags[0] & flags[1] & 1 != 0;
            match (is_long || is_idle, has_ended) {
                (false, _) => None,
                (true, true) => Some(3),
                (true, false) if !is_idle => Some(2),
                (true, false) if !is_long => Some(1),
                _ if first + timeouts.active_ns <= last + timeouts.idle_ns => Some(2),
                _ => Some(1),
            }
        };
        for &(since, of, back, new) in sent {
            now += since * SECOND_NS;
            if of != flow {
                continue;
            }
            if let Some(record) = open {
                let has_ended = (flags[0] | flags[1]) & 4 != 0 || flags[0] & flags[1] & 1 != 0;
                let reason = match over(&record, now, flags) {
                    _ if has_ended && new & 0x12 == 2 => Some(3),
                    reason => reason,
                };
                if let Some(reason) = reason {
                    let (flow, first, last, packets, _) = record;
                    records.push((flow, first, last, packets, reason));
                    open = None;
                    let is_idle = now - last > timeouts.idle_ns;
                    if reason != 2 || is_idle {
                        flags = [0; 2];
                    }
                }
            }
            flags[usize::from(back)] |= new;
            let (_, _, last, packets, _) = open.get_or_insert((flow.into(), now, now, 0, 0));
            (*last, *packets) = (now, *packets + 1);
        }
        if let Some(record) = open {
            let (flow, first, last, packets, _) = record;
            let has_ended = (flags[0] | flags[1]) & 4 != 0 || flags[0] & flags[1] & 1 != 0;
            let at_end = if has_ended { 3 } else { 4 };
            let reason = over(&record, end, flags).unwrap_or(at_end);
            records.push((flow, first, last, packets, reason));
        }
    }
    records.sort_unstable();
    records
}

proptest! {
    #[test]
    fn records_are_those_of_a_naive_meter(
        sent in prop::collection::vec(
            (0_u64..8, 0_u8..4, any::<bool>(), prop::sample::select(vec![0x10, 0x10, 2, 0x12, 0x11, 4])),
            0..60),
        active in 1_u64..30, idle in 1_u64..12,
    ) {
        let timeouts = Timeouts { active_ns: active * SECOND_NS, idle_ns: idle * SECOND_NS };
        let (records, crowded_out) = metered(timeouts, FLOWS_MAX, &sent);
        prop_assert_eq!(records, naive(timeouts, &sent));
        prop_assert_eq!(crowded_out, 0);
    }
}

#[test]
fn with_too_many_flows_the_one_that_was_idle_for_longest_ends() {
    let sent = [
        (0, 0, false, 0x10),
        (1, 1, false, 0x10),
        (1, 0, false, 0x10),
        (1, 2, false, 0x10),
    ];
    let (records, crowded_out) = metered(Timeouts::default(), 2, &sent);
    assert_eq!(crowded_out, 1);
    let at = |second: u64| START_NS + second * SECOND_NS;
    let expected = [
        (0, at(0), at(2), 2, 4),
        (1, at(1), at(1), 1, 5),
        (2, at(3), at(3), 1, 4),
    ];
    assert_eq!(records, expected);
}
