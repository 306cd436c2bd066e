//! What was compacted comes back exactly, from every test capture.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use strata_archive::{ArchiveError, FlowColumn, compact};
use strata_filter::Filter;
use strata_query::{Find, FlowRecord, flow_records};
use strata_store::{Disk, FileKind, Log};
use strata_testkit::{data_dir, format_captures};
use strata_testkit_disk::SimDisk;
use strata_wire::dissect::dissect;
use strata_wire::{Endpoint, FlowShare, KeepKind, LinkType, TunnelKey, ip_addr};

use crate::common::{Capture, Packet, exported, model, record, record_headers};

#[test]
fn compacted_packets_are_the_same_to_the_byte_in_every_capture() {
    let model = model();
    let mut captures = format_captures();
    let format_captures = captures.len();
    for name in ["mix-test", "cic2017-sqli", "westermo-right"] {
        captures.push(data_dir().join("labelled").join(name).join("trace.pcap"));
    }
    let (mut files, mut packets) = (0, 0);
    for (number, path) in captures.into_iter().enumerate() {
        // The labelled ones, which are large, in both modes.
        let modes = match number < format_captures {
            true => &["default", "log-all"][number % 2..=number % 2],
            false => &["default", "log-all"][..],
        };
        for mode in modes {
            let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
            if !record(&disk, &path, &model, mode, 300_000) {
                continue;
            }
            let log = Log::on(Arc::clone(&disk)).unwrap();
            let (before, _) = exported(&log, &Find::default());
            drop(log);
            let done = compact(&disk, |_| ()).unwrap();
            assert_eq!(
                done.packets,
                before.packets.len() as u64,
                "{}",
                path.display()
            );
            let log = Log::on(Arc::clone(&disk)).unwrap();
            assert!(log.recordings().iter().all(|r| r.files.is_empty()));
            let (after, _) = exported(&log, &Find::default());
            let pairs = before.packets.iter().zip(&after.packets);
            for (n, (one, two)) in pairs.enumerate() {
                assert_eq!(one, two, "{} in {mode}, packet {}", path.display(), n + 1);
            }
            assert_eq!(before, after, "{} in {mode}", path.display());
            files += 1;
            packets += before.packets.len();
        }
    }
    assert!(
        files > 1_800 && packets > 200_000,
        "{files} files, {packets} packets"
    );
}

#[test]
fn filters_find_in_parts_what_a_scan_of_blocks_finds() {
    let model = model();
    let expressions = [
        "tcp port 443",
        "udp",
        "not tcp",
        "host 192.168.1.1 or net 10.0.0.0/8",
        "ip6 and not icmp6",
        "vlan",
        "arp",
        "port 53 and less 100",
        "vlan and host 10.0.0.1 or udp port 4789",
    ];
    let (mut found, mut passed_over) = (0, 0);
    let mut captures = format_captures();
    captures.push(data_dir().join("labelled/mix-test/trace.pcap"));
    for (number, path) in captures.iter().rev().step_by(6).enumerate() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        let mode = if number % 2 == 0 {
            "default"
        } else {
            "log-all"
        };
        if !record(&disk, path, &model, mode, 0) {
            continue;
        }
        let filters: Vec<Filter> = expressions
            .iter()
            .map(|text| Filter::parse(text).unwrap())
            .collect();
        let search = |disk: &Arc<dyn Disk>| {
            let log = Log::on(Arc::clone(disk)).unwrap();
            let find = |filter| Find {
                filter: Some(filter),
                ..Find::default()
            };
            let results = filters.iter().map(|filter| exported(&log, &find(filter)));
            results.collect::<Vec<_>>()
        };
        let by_scan = search(&disk);
        compact(&disk, |_| ()).unwrap();
        let by_index = search(&disk);
        for (text, (one, two)) in expressions.iter().zip(by_scan.iter().zip(&by_index)) {
            assert_eq!(one.0.packets, two.0.packets, "{} '{text}'", path.display());
            found += one.0.packets.len();
            passed_over += usize::from(two.1 < one.1);
        }
    }
    assert!(
        found > 50_000 && passed_over > 500,
        "{found} found, {passed_over} searches shortened"
    );
}

/// Every packet of a flow is found, even within tunnels and fragments: compared with filtering each
/// packet of the whole log.
#[test]
fn flows_are_found_in_both_tiers() {
    let model = model();
    let mut captures = format_captures();
    captures.push(data_dir().join("labelled/mix-test/trace.pcap"));
    let (mut searches, mut matched) = (0, 0);
    for path in captures.iter().rev().step_by(6) {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        if !record(&disk, path, &model, "default", 0) {
            continue;
        }
        let find = |filter| Find {
            filter: Some(filter),
            ..Find::default()
        };
        let all = exported(&Log::on(Arc::clone(&disk)).unwrap(), &Find::default()).0;
        let filters = filters_of_flows(&all, 8);
        let search = |disk: &Arc<dyn Disk>| -> Vec<Capture> {
            let log = Log::on(Arc::clone(disk)).unwrap();
            let found = filters.iter().map(|filter| exported(&log, &find(filter)).0);
            found.collect()
        };
        let before = search(&disk);
        compact(&disk, |_| ()).unwrap();
        let after = search(&disk);
        for (filter, (before, after)) in filters.iter().zip(before.iter().zip(&after)) {
            let matches = |packet: &&Packet| {
                let program = filter.compile(LinkType(packet.1));
                program.is_ok_and(|program| program.matches(&packet.3, packet.2))
            };
            let expected: Vec<&Packet> = all.packets.iter().filter(matches).collect();
            let context = format!("{} '{filter}'", path.display());
            assert_eq!(
                before.packets.iter().collect::<Vec<_>>(),
                expected,
                "{context}"
            );
            assert_eq!(
                after.packets.iter().collect::<Vec<_>>(),
                expected,
                "{context}"
            );
            searches += 1;
            matched += expected.len();
        }
    }
    assert!(
        searches > 300 && matched > 3_000,
        "{searches} searches, {matched} matches"
    );
}

/// Filters for the flows of some packets, by their outer and inner headers.
fn filters_of_flows(capture: &Capture, most: usize) -> Vec<Filter> {
    let mut texts = BTreeSet::new();
    let keys = capture.packets.iter().flat_map(|packet| {
        [TunnelKey::Outer, TunnelKey::Inner]
            .map(|key| dissect(LinkType(packet.1), &packet.3, key).key)
    });
    for key in keys.flatten() {
        let address = |end: Endpoint| ip_addr(key.family, end.address);
        let (Some(low), Some(high)) = (address(key.low), address(key.high)) else {
            continue;
        };
        let (p, q) = (key.low.port, key.high.port);
        let name = match key.protocol {
            6 => "tcp and ",
            17 => "udp and ",
            _ => "",
        };
        texts.insert(format!(
            "{name}host {low} and host {high} and port {p} and port {q}"
        ));
        if texts.len() == most {
            break;
        }
    }
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn a_search_for_a_host_reads_few_packets_of_those_kept_as_headers() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let path = data_dir().join("labelled/mix-test/trace.pcap");
    assert!(record(&disk, &path, &model(), "log-minimum", 0));
    compact(&disk, |_| ()).unwrap();
    let log = Log::on(disk).unwrap();
    let all = exported(&log, &Find::default()).1;
    let filter = Filter::parse("tcp port 443").unwrap();
    let find = Find {
        filter: Some(&filter),
        ..Find::default()
    };
    let (found, examined) = exported(&log, &find);
    let found = found.packets.len() as u64;
    assert!(found > 100, "{found}");
    assert!(
        examined < found + all / 20,
        "{examined} of {all} packets were looked at to find {found}"
    );
}

#[test]
fn times_narrow_a_search_in_both_tiers() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let path = data_dir().join("labelled/mix-test/trace.pcap");
    assert!(record(&disk, &path, &model(), "default", 0));
    let (all, _) = exported(&Log::on(Arc::clone(&disk)).unwrap(), &Find::default());
    let at = |n: usize| all.packets[n].0;
    let find = Find {
        from_ns: Some(at(30_000)),
        to_ns: Some(at(40_000)),
        filter: None,
    };
    let (before, _) = exported(&Log::on(Arc::clone(&disk)).unwrap(), &find);
    compact(&disk, |_| ()).unwrap();
    let log = Log::on(disk).unwrap();
    let (after, examined) = exported(&log, &find);
    assert_eq!(before.packets, after.packets);
    assert!(
        after.packets.len() > 9_000 && examined < 60_000,
        "{examined}"
    );
    assert!(
        log.archive()
            .parts
            .iter()
            .any(|p| p.retention == "anomalous")
    );
}

/// Packets captured of a share of all flows have that share in both tiers, packet by packet.
#[test]
fn packets_and_flows_say_of_which_share_they_are() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let path = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    let share_of = |seq: u64| (seq >= 30).then(|| FlowShare::of(if seq < 60 { 0.25 } else { 0.5 }));
    record_headers(&disk, &path, &[], share_of);
    let (before, _) = exported(&Log::on(Arc::clone(&disk)).unwrap(), &Find::default());
    let comments = |text: &str| {
        let holds = |packet: &&Packet| packet.4.windows(text.len()).any(|w| w == text.as_bytes());
        before.packets.iter().filter(holds).count()
    };
    assert_eq!(comments("flow_share=0.250000"), 30);
    assert_eq!(comments("flow_share="), 64);
    compact(&disk, |_| ()).unwrap();
    let log = Log::on(Arc::clone(&disk)).unwrap();
    assert_eq!(exported(&log, &Find::default()).0, before);
    let mut shares = BTreeMap::new();
    for part in &log.archive().parts {
        let take = |record: &FlowRecord| -> Result<(), ArchiveError> {
            *shares
                .entry(record.get(FlowColumn::FlowShare).to_string())
                .or_insert(0) += 1;
            Ok(())
        };
        flow_records(disk.as_ref(), part, &Find::default(), take).unwrap();
    }
    let known: Vec<&str> = shares.keys().map(String::as_str).collect();
    assert_eq!(known, ["0.25", "0.5", "1.0"], "{shares:?}");
}

/// Prints the share of each column in the cost of a header-only packet.
#[test]
fn a_header_only_packet_of_mix_test_costs_at_most_24_bytes() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let path = data_dir().join("labelled/mix-test/trace.pcap");
    assert!(record(&disk, &path, &model(), "default", 0));
    compact(&disk, |_| ()).unwrap();
    let log = Log::on(disk).unwrap();
    let (mut bytes, mut packets, mut header_only) = (0, 0, 0);
    for part in &log.archive().parts {
        for file in &part.files {
            eprintln!("{} {} bytes", file.name, file.bytes);
            if file.kind != FileKind::Payload {
                bytes += file.bytes;
            }
        }
        packets += part.packets;
        let headers = part
            .counts
            .iter()
            .filter(|count| count.keep == KeepKind::Header);
        header_only += headers.map(|count| count.packets).sum::<u64>();
    }
    eprintln!("{bytes} bytes beside payload for {packets} packets, {header_only} header only");
    assert!(header_only > 10_000);
    assert!(bytes <= packets * 24, "{bytes} bytes for {packets} packets");
}
