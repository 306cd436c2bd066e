//! Recordings without duplicates: of traces as two mirror ports would see them, compared with editcap; and of every
//! capture available, compared with a list of all its packets.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::slice;

use strata_pipeline::{DataPath, Dedup};
use strata_query::ExportOptions;
use strata_testkit::data_dir;
use strata_wire::Counters;
use strata_wire::sighting::Differing;

use super::formats::{Packet, captures, exported, model, read, record_on};

/// Time in us, and bytes.
type Frame = (u64, Vec<u8>);

/// How much later the second port sees a packet, us.
const LATER_US: u64 = 30;

fn dedup(window_us: u64, differing: Differing) -> Dedup {
    Dedup {
        window_ns: window_us * 1_000,
        differing,
    }
}

/// Writes a pcap file of Ethernet, of packets that are all there.
fn write(frames: &[Frame], file: &Path) {
    let header = [0xa1b2_c3d4_u32, 4 << 16 | 2, 0, 0, 262_144, 1];
    let mut bytes: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    for (time, data) in frames {
        let len = data.len() as u64;
        for word in [time / 1_000_000, time % 1_000_000, len, len] {
            bytes.extend(u32::try_from(word).unwrap().to_le_bytes());
        }
        bytes.extend(data);
    }
    std::fs::write(file, bytes).unwrap();
}

fn frames(file: &Path) -> Vec<Frame> {
    let packets = read(file).unwrap().packets.into_iter();
    packets.map(|one| (one.ts_ns / 1_000, one.data)).collect()
}

/// What editcap leaves of a capture.
fn editcap(file: &Path, window: &str) -> Vec<Frame> {
    let left = file.with_extension("left");
    let mut editcap = Command::new("editcap");
    let output = editcap
        .args(["-F", "pcap", "-w", window])
        .args([file, &left])
        .output();
    let output = output.expect("editcap is installed (`make tools`)");
    assert!(output.status.success(), "{output:?}");
    frames(&left)
}

/// The first packets of a trace, of which none is the same as one of the 10 ms before, and the same a little
/// later, as the other port sees them.
fn two_ports(dir: &Path, trace: &str, seen: impl Fn(&[u8]) -> Vec<u8>) -> [Vec<Frame>; 2] {
    let mut first = frames(&data_dir().join("labelled").join(trace).join("trace.pcap"));
    first.truncate(20_000);
    let file = dir.join("first.pcap");
    write(&first, &file);
    let first = editcap(&file, "0.01");
    let second = first
        .iter()
        .map(|(time, data)| (time + LATER_US, seen(data)));
    let second = second.collect();
    [first, second]
}

/// Both ports in one file.
fn merged(ports: &[Vec<Frame>; 2]) -> Vec<Frame> {
    let mut all = ports.concat();
    all.sort_by_key(|(time, _)| *time);
    all
}

/// What is recorded of captures, and how many packets were duplicates and could not be compared.
fn recorded(files: &[PathBuf], dedup: Dedup, path: DataPath) -> (Vec<Packet>, [Counters; 2]) {
    let recorded = record_on(path, files, &model(), "log-all", (None, Some(dedup))).unwrap();
    let ledger = recorded.ledger;
    assert_eq!(
        ledger.seen.packets,
        ledger.logged.packets + ledger.duplicates.packets
    );
    let (file, packets) = exported(&recorded.log, ExportOptions::default());
    assert_eq!(packets, ledger.logged.packets);
    let packets = read(file.path()).unwrap().packets;
    (packets, [ledger.duplicates, ledger.uncompared])
}

fn as_frames(packets: &[Packet]) -> Vec<Frame> {
    let frame = |packet: &Packet| (packet.ts_ns / 1_000, packet.data.clone());
    packets.iter().map(frame).collect()
}

#[test]
fn of_two_mirror_ports_all_and_only_the_duplicates_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for trace in ["mix-test", "cic2017-sqli", "westermo-right"] {
        let ports = two_ports(dir, trace, <[u8]>::to_vec);
        let both = dir.join("both.pcap");
        write(&merged(&ports), &both);
        let expected = editcap(&both, "0.001");
        assert!(expected == ports[0], "{trace}");
        let bytes = ports[1].iter().map(|(_, data)| data.len() as u64);
        let duplicates = Counters {
            packets: ports[1].len() as u64,
            bytes: bytes.sum(),
        };
        // One file, or one of each port, with all instructions.
        let files = ["one.pcap", "other.pcap"].map(|name| dir.join(name));
        files
            .iter()
            .zip(&ports)
            .for_each(|(file, frames)| write(frames, file));
        for (files, path) in [
            (vec![both.clone()], DataPath::best()),
            (vec![both], DataPath::Reference),
            (files.to_vec(), DataPath::best()),
        ] {
            let (left, counts) = recorded(&files, dedup(1_000, Differing::default()), path);
            assert_eq!(counts, [duplicates, Counters::default()], "{trace}");
            assert!(as_frames(&left) == expected, "{trace}: what editcap leaves");
        }
    }
}

/// As another side of a router sees it: other addresses and TTL, in a VLAN.
fn routed(data: &[u8]) -> Vec<u8> {
    let mut routed = [&[2; 12][..], &[0x81, 0, 0, 42], &data[12..]].concat();
    match (&data[12..14], routed.get_mut(18..)) {
        ([8, 0], Some(ip)) if ip.len() >= 20 => (ip[8], ip[10], ip[11]) = (ip[8] ^ 1, !ip[10], 7),
        ([0x86, 0xdd], Some(ip)) if ip.len() >= 40 => ip[7] ^= 1,
        _ => {}
    }
    routed
}

#[test]
fn fields_that_may_differ_are_not_compared() {
    let dir = tempfile::tempdir().unwrap();
    let ports = two_ports(dir.path(), "mix-test", routed);
    let both = dir.path().join("both.pcap");
    write(&merged(&ports), &both);
    let all = Differing {
        macs: true,
        tags: true,
        ttl: true,
    };
    let files = [both];
    let (left, [duplicates, _]) = recorded(&files, dedup(1_000, all), DataPath::best());
    assert_eq!(duplicates.packets, ports[1].len() as u64);
    assert!(as_frames(&left) == ports[0]);
    let others = Differing { ttl: false, ..all };
    let (_, [duplicates, _]) = recorded(&files, dedup(1_000, others), DataPath::best());
    assert!(duplicates.packets < 500, "{duplicates:?}");
}

/// Equal to one before but for the identification of the IP header, as TCP's keep-alives and retransmissions are.
#[test]
fn packets_that_are_sent_again_are_no_duplicates() {
    let dir = tempfile::tempdir().unwrap();
    let again = |data: &[u8]| {
        let mut again = data.to_vec();
        if data[12..14] == [8, 0] {
            again[19] ^= 1;
        }
        again
    };
    let ports = two_ports(dir.path(), "mix-test", again);
    let of_ipv4 = |(_, data): &&Frame| data[12..14] == [8, 0];
    let expected = ports[1].iter().filter(|frame| !of_ipv4(frame)).count();
    let both = dir.path().join("both.pcap");
    write(&merged(&ports), &both);
    let dedup = dedup(1_000, Differing::default());
    let (left, [duplicates, _]) = recorded(slice::from_ref(&both), dedup, DataPath::best());
    assert_eq!(duplicates.packets, expected as u64);
    assert!(as_frames(&left) == editcap(&both, "0.001"));
}

#[test]
fn no_packet_of_any_capture_is_left_out_unless_it_is_in_the_log() {
    const WINDOW_US: u64 = 50_000;
    let (mut files, mut removed, mut repeated) = (0, 0, 0);
    for file in captures() {
        let Some(original) = read(&file) else {
            continue;
        };
        let is_whole = |packet: &Packet| packet.data.len() >= packet.wire_len as usize;
        let has_times = original.packets.iter().all(|packet| packet.ts_ns > 0);
        if !original.packets.iter().all(is_whole) || !has_times || original.packets.len() > 30_000 {
            continue;
        }
        // All that was recorded is compared with; what is out of order by more than the stage waits for is not.
        let mut expected: Vec<&Packet> = Vec::new();
        let (mut newest, mut is_ordered) = (0, true);
        for packet in &original.packets {
            is_ordered &= packet.ts_ns >= newest;
            newest = packet.ts_ns.max(newest);
            let same = |one: &&&Packet| {
                (one.link, one.wire_len, &one.data) == (packet.link, packet.wire_len, &packet.data)
            };
            let within = |one: &&&Packet| packet.ts_ns - one.ts_ns <= WINDOW_US * 1_000;
            let mut before = expected.iter().rev();
            match is_ordered && before.by_ref().take_while(within).any(|one| same(&one)) {
                true => removed += 1,
                false => expected.push(packet),
            }
        }
        if !is_ordered {
            continue;
        }
        let dedup = dedup(WINDOW_US, Differing::default());
        let (left, [duplicates, uncompared]) =
            recorded(slice::from_ref(&file), dedup, DataPath::best());
        assert!(
            left.iter().eq(expected.iter().copied()),
            "{}",
            file.display()
        );
        let count = (original.packets.len() - left.len()) as u64;
        assert_eq!(duplicates.packets, count, "{}", file.display());
        assert_eq!(uncompared.packets, 0, "{}", file.display());
        files += 1;
        repeated += u64::from(count > 0);
    }
    assert!(
        files > 1_000 && removed > 200 && repeated > 40,
        "{files} captures, {removed} duplicates, in {repeated} of them"
    );
}
