//! NetFlow 9, as nfcapd and tshark read it, beside IPFIX.

use std::collections::BTreeMap;
use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use strata_testkit::data_dir;

use super::{MIX, MIX_PACKETS, Nfcapd};
use crate::common::program::{failed, ok, record, refused, strata};

/// What nfdump reads of each record: its times, ends, flags and counts.
fn read_back(nfcapd: &mut Nfcapd) -> Vec<String> {
    nfcapd.end();
    let [_, _, gaps] = nfcapd.counted();
    assert_eq!(gaps, 0);
    let format = "fmt:%ts,%te,%pr,%sa,%sp,%da,%dp,%flg,%in,%pkt,%byt";
    let mut nfdump = Command::new("nfdump");
    nfdump.env("TZ", "UTC").arg("-R").arg(&nfcapd.got);
    let text = ok(nfdump.args(["-q", "-N", "-o", format]));
    let lines = text.lines().map(|line| line.replace(' ', ""));
    let mut lines: Vec<String> = lines.collect();
    lines.sort_unstable();
    lines
}

fn export(log: &Path, to: &str, format: &str) -> Command {
    let mut export = strata();
    export.arg("export").arg(log).args(["--to-collector", to]);
    export.args(["-F", format]);
    export
}

/// What a collector reads of a log's flows.
fn collected(log: &Path, format: &str, more: &[&str]) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let mut nfcapd = Nfcapd::start(dir.path());
    ok(export(log, &nfcapd.address(), format).args(more));
    read_back(&mut nfcapd)
}

/// Packets of each direction between two ends, by tshark's conversations.
fn conversations(trace: &Path, protocol: &str) -> BTreeMap<(String, String), u64> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(trace).arg("-nqz");
    let text = ok(tshark.arg(format!("conv,{protocol}")));
    let mut packets = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.get(1) != Some(&"<->") {
            continue;
        }
        // To the first end and from it: frames, bytes and their unit of each.
        let (one, other) = (words[0].to_owned(), words[2].to_owned());
        let numbers = words[3..]
            .iter()
            .filter_map(|word| word.replace(',', "").parse().ok());
        let numbers: Vec<u64> = numbers.collect();
        packets.insert((other.clone(), one.clone()), numbers[0]);
        packets.insert((one, other), numbers[2]);
    }
    packets.retain(|_, count| *count > 0);
    packets
}

#[test]
fn nfdump_reads_netflow9_as_ipfix_and_as_tshark_counts() {
    let dir = tempfile::tempdir().unwrap();
    // IPv4 and IPv6 with ports, ICMP of both, and what is not IP.
    let log = dir.path().join("log");
    ok(&mut record(data_dir().join(MIX), &log));
    let netflow9 = collected(&log, "netflow9", &[]);
    let ipfix = collected(&log, "ipfix", &[]);
    assert_eq!(netflow9.len(), ipfix.len());
    for (one, other) in netflow9.iter().zip(&ipfix) {
        assert_eq!(one, other);
    }
    assert!(netflow9.iter().any(|line| line.contains("fe80:")));
    // While it is recorded, too, without a log.
    let probe = tempfile::tempdir().unwrap();
    let mut nfcapd = Nfcapd::start(probe.path());
    let mut recorded = strata();
    recorded.args(["record", "-r"]).arg(data_dir().join(MIX));
    recorded.args(["--flows-to", &nfcapd.address(), "--flow-format", "netflow9"]);
    let said = ok(&mut recorded);
    assert!(said.contains("flows to "), "{said}");
    assert_eq!(read_back(&mut nfcapd), netflow9);
    assert_eq!(nfcapd.counted()[0], MIX_PACKETS);

    let trace = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    let log = dir.path().join("sqli");
    ok(&mut record(&trace, &log));
    let mut packets: BTreeMap<(String, String), u64> = BTreeMap::new();
    for line in collected(&log, "netflow9", &["tcp"]) {
        let cells: Vec<&str> = line.split(',').collect();
        let end = |at: usize| format!("{}:{}", cells[at], cells[at + 1]);
        let count: u64 = cells[9].parse().unwrap();
        *packets.entry((end(3), end(5))).or_default() += count;
    }
    let expected = conversations(&trace, "tcp");
    assert!(expected.len() > 1, "{expected:?}");
    assert_eq!(packets, expected);
}

/// A capture of datagrams to port 2055, for tshark.
fn pcap(datagrams: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 101] {
        file.extend(word.to_le_bytes());
    }
    for datagram in datagrams {
        let udp_len = u16::try_from(8 + datagram.len()).unwrap();
        let len = u32::from(udp_len) + 20;
        for word in [1_700_000_000, 0, len, len] {
            file.extend(word.to_le_bytes());
        }
        file.extend([0x45, 0]);
        file.extend(u16::try_from(len).unwrap().to_be_bytes());
        file.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        for half in [4_000, 2_055, udp_len, 0] {
            file.extend(half.to_be_bytes());
        }
        file.extend(datagram);
    }
    file
}

/// The datagrams of an export, checked against RFC 3954: their number is counted, sets are padded, and templates come
/// again.
fn datagrams(log: &Path) -> Vec<Vec<u8>> {
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = collector.local_addr().unwrap().to_string();
    let wait = Some(Duration::from_millis(500));
    collector.set_read_timeout(wait).unwrap();
    let is_sent = AtomicBool::new(false);
    // Meanwhile, since the socket's buffer does not hold all.
    let received = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let (mut buffer, mut received) = ([0; 65_536], Vec::new());
            loop {
                match collector.recv(&mut buffer) {
                    Ok(len) => received.push(buffer[..len].to_vec()),
                    Err(_) if is_sent.load(Ordering::SeqCst) => return received,
                    Err(_) => {}
                }
            }
        });
        ok(&mut export(log, &to, "netflow9"));
        is_sent.store(true, Ordering::SeqCst);
        receiver.join().unwrap()
    });
    let mut all = Vec::new();
    let mut templates = 0;
    for datagram in received {
        let len = datagram.len();
        let half = |at: usize| u16::from_be_bytes([datagram[at], datagram[at + 1]]);
        let word = |at: usize| u32::from_be_bytes(datagram[at..at + 4].try_into().unwrap());
        assert!(len <= 1_452 && len % 4 == 0, "{len}");
        assert_eq!((half(0), word(16)), (9, 0));
        assert_eq!(
            usize::try_from(word(12)).unwrap(),
            all.len(),
            "the sequence number"
        );
        let (mut at, mut has_templates) = (20, false);
        while at < len {
            let (id, set_len) = (half(at), usize::from(half(at + 2)));
            assert!(id == 0 || (256..=261).contains(&id), "a set of {id}");
            assert_eq!(set_len % 4, 0);
            has_templates |= id == 0;
            at += set_len;
        }
        assert_eq!(at, len);
        assert!(has_templates || !all.is_empty(), "templates come first");
        templates += u32::from(has_templates);
        all.push(datagram);
    }
    assert!(
        all.len() < 17 || templates > 1,
        "{templates} of {}",
        all.len()
    );
    all
}

/// Fields of the records, as tshark decodes them.
fn decoded(dir: &Path, datagrams: &[Vec<u8>], fields: &[&str]) -> Vec<Vec<String>> {
    let file = dir.join("datagrams.pcap");
    fs::write(&file, pcap(datagrams)).unwrap();
    let mut tshark = Command::new("tshark");
    tshark.env("TZ", "UTC").arg("-r").arg(&file);
    tshark.args([
        "-d",
        "udp.port==2055,cflow",
        "-T",
        "fields",
        "-e",
        "_ws.malformed",
    ]);
    let text = ok(tshark.args(fields.iter().flat_map(|field| ["-e", field])));
    let mut lists = vec![Vec::new(); fields.len()];
    for line in text.lines() {
        let mut cells = line.split('\t');
        assert_eq!(cells.next(), Some(""), "malformed: {line}");
        for (list, cell) in lists.iter_mut().zip(cells) {
            let values = cell.split(',').filter(|value| !value.is_empty());
            list.extend(values.map(str::to_owned));
        }
    }
    lists
}

#[test]
fn tshark_decodes_netflow9() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(data_dir().join(MIX), &log));
    let datagrams = datagrams(&log);
    assert!(datagrams.len() > 100, "{}", datagrams.len());
    let fields = [
        "cflow.version",
        "cflow.sequence",
        "cflow.packets",
        "cflow.octets",
        "cflow.srcaddrv6",
        "cflow.count",
    ];
    let lists = decoded(dir.path(), &datagrams, &fields);
    assert!(lists[0].iter().all(|version| version == "9"));
    let sequence = (0..datagrams.len()).map(|number| number.to_string());
    assert_eq!(lists[1], sequence.collect::<Vec<_>>());
    let sum = |list: &[String]| {
        list.iter()
            .map(|one| one.parse::<u64>().unwrap())
            .sum::<u64>()
    };
    assert_eq!(sum(&lists[2]), MIX_PACKETS);
    assert!(!lists[4].is_empty());
    // As the file of IPFIX has it.
    let file = dir.path().join("flows.ipfix");
    ok(strata().arg("export").arg(&log).arg("-w").arg(&file));
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&file);
    let text = ok(tshark.args(["-T", "fields", "-e", "cflow.octets"]));
    let octets = text
        .split([',', '\n'])
        .filter_map(|one| one.parse::<u64>().ok());
    assert_eq!(sum(&lists[3]), octets.sum::<u64>());
    // The records of templates count, too, and those of all datagrams are there.
    let of_templates = datagrams.len().div_ceil(16) * 6;
    let records = lists[2].len() + of_templates;
    assert_eq!(sum(&lists[5]), u64::try_from(records).unwrap());
}

/// UDP packets over IPv4, each at its time, ms since 1970; the port tells flows apart.
fn capture(dir: &Path, name: &str, packets: &[(u64, u16)]) -> PathBuf {
    let mut file = Vec::new();
    for word in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 65_535, 101] {
        file.extend(word.to_le_bytes());
    }
    for (ms, port) in packets {
        let seconds = u32::try_from(ms / 1_000).unwrap();
        let ns = u32::try_from(ms % 1_000 * 1_000_000).unwrap();
        for word in [seconds, ns, 28, 28] {
            file.extend(word.to_le_bytes());
        }
        file.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
        file.extend([192, 0, 2, 1, 192, 0, 2, 2]);
        file.extend(port.to_be_bytes());
        file.extend([0, 9, 0, 8, 0, 0]);
    }
    let path = dir.join(name);
    fs::write(&path, file).unwrap();
    path
}

/// Times are exact in flows that are years apart, older than those before, from 1970, and nearly 49.7 days long; a
/// longer one is refused.
#[test]
fn netflow9_has_the_times_of_any_flow() {
    const DAY: u64 = 86_400_000;
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let start = 1_600_000_000_123;
    let later = [
        (start, 1),
        (start + 5, 1),
        (start + 30 * DAY, 2),
        (start + 60 * DAY + 7, 3),
        // Many flows, 40 days apart.
        (start + 100 * DAY, 4),
        (start + 140 * DAY, 5),
        (start + 2_000 * DAY, 6),
    ];
    let earlier = [(7, 7), (1_007, 7), (90 * DAY, 8), (90 * DAY + 49 * DAY, 8)];
    ok(&mut record(capture(dir.path(), "later.pcap", &later), &log));
    ok(&mut record(
        capture(dir.path(), "earlier.pcap", &earlier),
        &log,
    ));
    let long = ["--active-timeout", "49d", "--idle-timeout", "49d"];
    for more in [&long[..0], &long[..]] {
        let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = collector.local_addr().unwrap().to_string();
        ok(export(&log, &to, "netflow9").args(more));
        collector.set_nonblocking(true).unwrap();
        let (mut buffer, mut all) = ([0; 65_536], Vec::new());
        while let Ok(len) = collector.recv(&mut buffer) {
            all.push(buffer[..len].to_vec());
        }
        // A naive reader of what RFC 3954 says, for one template: that of IPv4 with ports.
        let mut times = BTreeMap::new();
        for datagram in &all {
            let number = |at: usize, len: usize| {
                let bytes = datagram[at..at + len].iter();
                bytes.fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
            };
            let started_ms = number(8, 4) * 1_000 - number(4, 4);
            let mut at = 20;
            while at < datagram.len() {
                let end = at + usize::try_from(number(at + 2, 2)).unwrap();
                if number(at, 2) == 256 {
                    let mut record = at + 4;
                    // Addresses, ports, protocol, flags, bytes, interface, packets, bytes, times, end.
                    while record + 51 <= end {
                        let [first, last] = [record + 42, record + 46].map(|at| number(at, 4));
                        assert!(first <= last && last <= number(4, 4), "{first} {last}");
                        let at = times.entry(number(record + 8, 2)).or_insert_with(Vec::new);
                        at.push([started_ms + first, started_ms + last]);
                        record += 51;
                    }
                }
                at = end;
            }
        }
        let is_long = !more.is_empty();
        let eighth = match is_long {
            true => vec![[90 * DAY, 139 * DAY]],
            false => vec![[90 * DAY; 2], [139 * DAY; 2]],
        };
        let expected = BTreeMap::from([
            (1, vec![[start, start + 5]]),
            (2, vec![[start + 30 * DAY; 2]]),
            (3, vec![[start + 60 * DAY + 7; 2]]),
            (4, vec![[start + 100 * DAY; 2]]),
            (5, vec![[start + 140 * DAY; 2]]),
            (6, vec![[start + 2_000 * DAY; 2]]),
            (7, vec![[7, 1_007]]),
            (8, eighth),
        ]);
        assert_eq!(times, expected);
        // tshark and nfdump, which add up the same numbers, agree with IPFIX, which has absolute times.
        let starts = decoded(dir.path(), &all, &["cflow.packets"]);
        assert_eq!(
            starts[0].len(),
            expected.values().map(Vec::len).sum::<usize>()
        );
        let filter = [more, &["not src port 7"]].concat();
        assert_eq!(
            collected(&log, "netflow9", &filter),
            collected(&log, "ipfix", &filter)
        );
    }
    let too_long = ["--active-timeout", "50d", "--idle-timeout", "50d"];
    let log = dir.path().join("long");
    let fifty = [(start, 1), (start + 50 * DAY, 1)];
    ok(&mut record(capture(dir.path(), "long.pcap", &fifty), &log));
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = collector.local_addr().unwrap().to_string();
    let said = failed(export(&log, &to, "netflow9").args(too_long));
    assert!(said.contains("49.7 days"), "{said}");
    ok(export(&log, &to, "ipfix").args(too_long));
    // While it is recorded, it is counted.
    let mut recorded = strata();
    recorded
        .args(["record", "-r"])
        .arg(dir.path().join("long.pcap"))
        .args(too_long);
    let said = ok(recorded.args(["--flows-to", &to, "--flow-format", "netflow9"]));
    assert!(said.contains("1 unfit"), "{said}");
}

/// A flow that ended later than 32 bits of seconds can say is left out and counted; all others are sent.
#[test]
fn netflow9_leaves_out_flows_after_2106() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let start = 1_600_000_000_123;
    let packets = [
        (start, 1),
        (start + 1, 2),
        (4_294_967_295_000, 3),
        (4_294_967_295_001, 4),
    ];
    let trace = capture(dir.path(), "late.pcap", &packets);
    ok(&mut record(&trace, &log));
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = collector.local_addr().unwrap().to_string();
    let said = failed(&mut export(&log, &to, "netflow9"));
    assert!(said.contains("3 flows sent"), "{said}");
    assert!(
        said.contains("1 flow left out: ") && said.contains("2106"),
        "{said}"
    );
    collector.set_nonblocking(true).unwrap();
    let (mut buffer, mut all) = ([0; 65_536], Vec::new());
    while let Ok(len) = collector.recv(&mut buffer) {
        all.push(buffer[..len].to_vec());
    }
    let lists = decoded(dir.path(), &all, &["cflow.srcport"]);
    assert_eq!(lists[0], ["1", "2", "3"]);
    let output = export(&log, &to, "netflow9")
        .arg("--json")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&told["flows"], &told["unfit"]),
        (&3.into(), &1.into()),
        "{told}"
    );
    assert_eq!(told["complete"], false, "{told}");
    ok(&mut export(&log, &to, "ipfix"));
    // While it is recorded, too.
    let mut recorded = strata();
    recorded.args(["record", "-r"]).arg(&trace);
    let said = ok(recorded.args(["--flows-to", &to, "--flow-format", "netflow9"]));
    assert!(said.contains("1 unfit"), "{said}");
}

#[test]
fn netflow9_goes_to_collectors_only() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(
        data_dir().join("labelled/cic2017-sqli/trace.pcap"),
        &log,
    ));
    let file = dir.path().join("flows");
    let said = refused(
        strata()
            .arg("export")
            .arg(&log)
            .args(["-F", "netflow9", "-w"])
            .arg(&file),
    );
    assert!(said.contains("--to-collector"), "{said}");
    let mut lacking = strata();
    lacking.args(["record", "-r", "x", "--flow-format", "netflow9"]);
    let output = lacking.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--flows-to"), "{said}");
    let said = refused(&mut export(&log, "127.0.0.1", "csv"));
    assert!(said.contains("-F netflow9"), "{said}");
}
