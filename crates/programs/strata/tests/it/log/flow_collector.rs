//! Flows sent to collectors of others, which say what they got.

use std::io::{BufRead as _, BufReader};
use std::net::UdpSocket;
use std::process::{Command, Stdio};

use strata_testkit::data_dir;

use crate::common::listening::wait_until_read;
use crate::common::program::{failed, ok, record, refused, strata};
use crate::common::signal::signal;

/// What nfcapd counts is what the log has: each packet, each direction of a flow, no gap in the numbers.
#[test]
fn nfcapd_receives_all_flows() {
    let dir = tempfile::tempdir().unwrap();
    let (log, got) = (dir.path().join("log"), dir.path().join("got"));
    ok(&mut record(
        data_dir().join("labelled/mix-test/trace.pcap"),
        &log,
    ));
    std::fs::create_dir(&got).unwrap();
    // A port that was free a moment ago.
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr();
    let port = port.unwrap().port().to_string();
    let mut nfcapd = Command::new("nfcapd");
    nfcapd
        .args(["-b", "127.0.0.1", "-t", "3600", "-p", &port, "-w"])
        .arg(&got)
        .stderr(Stdio::piped());
    let mut nfcapd = nfcapd.spawn().expect("nfdump is installed (`make tools`)");
    let mut said = BufReader::new(nfcapd.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("Startup") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "nfcapd has ended");
    }
    let to = format!("udp://localhost:{port}");
    let told = ok(strata()
        .args(["export", "--json"])
        .arg(&log)
        .args(["--to-collector", &to]));
    let told: serde_json::Value = serde_json::from_str(told.lines().next().unwrap()).unwrap();
    wait_until_read(port.parse().unwrap());
    signal(&nfcapd, "TERM");
    std::io::copy(&mut said, &mut std::io::sink()).unwrap();
    nfcapd.wait().unwrap();
    let counted = ok(Command::new("nfdump").arg("-R").arg(&got).arg("-I"));
    let count = |name: &str| -> u64 {
        let mut lines = counted.lines();
        let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        found
            .unwrap_or_else(|| panic!("{name}: {counted}"))
            .parse()
            .unwrap()
    };
    assert_eq!(count("Packets"), 67_690);
    assert_eq!(Some(count("Flows")), told["records"].as_u64());
    assert_eq!(count("Sequence failures"), 0);
}

/// Each datagram is a message that fits into an Ethernet frame, the numbers have no gap, and templates come again.
#[test]
fn datagrams_are_whole_messages_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(
        data_dir().join("labelled/cic2017-sqli/trace.pcap"),
        &log,
    ));
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = collector.local_addr().unwrap().to_string();
    let export = |to: &str, more: &[&str]| {
        let mut export = strata();
        export.arg("export").arg(&log).args(["--to-collector", to]);
        export.args(more);
        export
    };
    ok(&mut export(&to, &[]));
    collector.set_nonblocking(true).unwrap();
    let (mut datagram, mut templates, mut records) = ([0; 65_536], 0, 0);
    while let Ok(len) = collector.recv(&mut datagram) {
        let word = |at: usize| u16::from_be_bytes([datagram[at], datagram[at + 1]]);
        assert_eq!((word(0), usize::from(word(2))), (10, len));
        assert!(len <= 1_452, "{len}");
        let sequence = u32::from_be_bytes(datagram[8..12].try_into().unwrap());
        assert_eq!(sequence, records);
        let mut at = 16;
        while at < len {
            match word(at) {
                2 => templates += 1,
                // IPv4 and ports: addresses, ports, protocol, flags, bytes, interface, packets, bytes, times, end.
                256 => records += u32::from(word(at + 2) - 4) / 60,
                other => panic!("a set of {other}"),
            }
            at += usize::from(word(at + 2));
        }
    }
    assert!(templates > 0 && records > 0, "{templates} {records}");
    drop(collector);
    let said = failed(&mut export(&to, &[]));
    assert!(
        said.contains("no collector listens on this UDP port"),
        "{said}"
    );
    for (to, more) in [
        (&*to, &["-F", "csv"][..]),
        (&to, &["-F", "pcapng"]),
        ("127.0.0.1:99999", &[]),
        ("no such host", &[]),
        ("", &[]),
    ] {
        refused(&mut export(to, more));
    }
}
