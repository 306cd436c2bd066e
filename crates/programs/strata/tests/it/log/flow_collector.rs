//! Flows sent to collectors of others, which say what they got.

mod netflow9;

use std::io::{BufRead as _, BufReader};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use strata_testkit::{Namespace, data_dir, may_use_kernel};
use strata_wire::grouped;

use crate::common::disk::never_full;
use crate::common::listening::wait_until_read;
use crate::common::program::{failed, ok, record, refused, strata};
use crate::common::recording::wait_for;
use crate::common::signal::signal;

/// nfcapd, which listens until it is asked what it got.
struct Nfcapd {
    child: Child,
    said: BufReader<ChildStderr>,
    port: u16,
    got: PathBuf,
}

impl Nfcapd {
    fn start(dir: &Path) -> Self {
        let got = dir.join("got");
        std::fs::create_dir(&got).unwrap();
        // A port that was free a moment ago.
        let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr();
        let port = port.unwrap().port();
        let mut child = Command::new("nfcapd")
            .args([
                "-b",
                "127.0.0.1",
                "-t",
                "3600",
                "-p",
                &port.to_string(),
                "-w",
            ])
            .arg(&got)
            .stderr(Stdio::piped())
            .spawn()
            .expect("nfdump is installed (`make tools`)");
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("Startup") {
            line.clear();
            assert!(said.read_line(&mut line).unwrap() > 0, "nfcapd has ended");
        }
        Self {
            child,
            said,
            port,
            got,
        }
    }

    fn address(&self) -> String {
        format!("udp://localhost:{}", self.port)
    }

    /// Ends it, once it has read what was sent.
    fn end(&mut self) {
        wait_until_read(self.port);
        signal(&self.child, "TERM");
        std::io::copy(&mut self.said, &mut std::io::sink()).unwrap();
        self.child.wait().unwrap();
    }

    /// Packets, flows and gaps in the numbers, as nfdump counts them.
    fn counts(mut self) -> [u64; 3] {
        self.end();
        self.counted()
    }

    fn counted(&self) -> [u64; 3] {
        let counted = ok(Command::new("nfdump").arg("-R").arg(&self.got).arg("-I"));
        ["Packets", "Flows", "Sequence failures"].map(|name| {
            let mut lines = counted.lines();
            let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            let found = found.unwrap_or_else(|| panic!("{name}: {counted}"));
            found.parse().unwrap()
        })
    }
}

const MIX: &str = "labelled/mix-test/trace.pcap";
const MIX_PACKETS: u64 = 67_690;

/// What nfcapd counts is what the log has: each packet, each direction of a flow, no gap in the numbers. A recording
/// sends the same.
#[test]
fn nfcapd_receives_all_flows() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let nfcapd = Nfcapd::start(dir.path());
    let mut recorded = record(data_dir().join(MIX), &log);
    let told = ok(recorded.args(["--flows-to", &nfcapd.address()]));
    let said = told.lines().find(|line| line.starts_with("flows to "));
    let while_recorded = nfcapd.counts();
    let [packets, flows, gaps] = while_recorded;
    assert_eq!([packets, gaps], [MIX_PACKETS, 0]);
    let records = format!(" as {} records in ", grouped(flows));
    assert!(said.unwrap().contains(&records), "{said:?} {flows}");

    // Without a log, too.
    let probe = tempfile::tempdir().unwrap();
    let nfcapd = Nfcapd::start(probe.path());
    let mut recorded = strata();
    recorded.args(["record", "-r"]).arg(data_dir().join(MIX));
    ok(recorded.args(["--flows-to", &nfcapd.address()]));
    assert_eq!(nfcapd.counts(), while_recorded);

    let again = tempfile::tempdir().unwrap();
    let nfcapd = Nfcapd::start(again.path());
    let told = ok(strata()
        .args(["export", "--json"])
        .arg(&log)
        .args(["--to-collector", &nfcapd.address()]));
    let told: serde_json::Value = serde_json::from_str(told.lines().next().unwrap()).unwrap();
    assert_eq!(nfcapd.counts(), while_recorded);
    assert_eq!(Some(flows), told["records"].as_u64());
}

/// Of several logs, each is a source of its own, whose numbers have no gap.
#[test]
fn nfcapd_receives_the_flows_of_several_logs() {
    let dir = tempfile::tempdir().unwrap();
    let traces = [MIX, "labelled/cic2017-sqli/trace.pcap"];
    let logs = [0, 1].map(|at| {
        let log = dir.path().join(format!("log{at}"));
        ok(&mut record(data_dir().join(traces[at]), &log));
        log
    });
    let received = |logs: &[PathBuf], format: &str| {
        let scratch = tempfile::tempdir().unwrap();
        let nfcapd = Nfcapd::start(scratch.path());
        let mut export = strata();
        export.arg("export").args(logs).args(["-F", format]);
        ok(export.args(["--to-collector", &nfcapd.address()]));
        nfcapd.counts()
    };
    for format in ["ipfix", "netflow9"] {
        let [one, other] = [0, 1].map(|at| received(&logs[at..=at], format));
        let sum = [0, 1, 2].map(|at| one[at] + other[at]);
        assert_eq!(received(&logs, format), sum, "{format}");
        assert_eq!(sum[2], 0);
    }
}

/// Flows of an interface go when they are idle, without those that the recording sends itself; a collector that is
/// gone does not disturb it.
#[test]
fn flows_of_an_interface_go_when_they_are_idle() {
    if !may_use_kernel("flows of an interface") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (log, socket) = (dir.path().join("log"), dir.path().join("socket"));
    let namespace = Namespace::new("flows");
    namespace.ip("link set lo up");
    let inside = |program: &str, arguments: &[&str]| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace.name(), program]);
        command.args(arguments);
        command
    };
    // Shows all that arrives.
    let listens = "import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('127.0.0.1', 4739))
print('bound', flush=True)
while True:
    print(s.recv(65536).hex(), flush=True)";
    let mut collector = inside("python3", &["-c", listens])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(collector.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "bound");
    let mut recording = inside(
        env!("CARGO_BIN_EXE_strata"),
        &["record", "-i", "lo", "-B", "8MiB"],
    );
    recording.args(["--flows-to", "127.0.0.1", "--idle-timeout", "1s", "-o"]);
    recording.arg(&log).arg("--socket").arg(&socket);
    recording.arg("--config").arg(never_full(dir.path()));
    let recording = recording
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for(&socket, "recording", |status| {
        let interfaces = status["interfaces"].as_array();
        interfaces.is_some_and(|all| !all.is_empty())
    });
    let sends = "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('127.0.0.1', 5001))
for _ in range(7): s.sendto(b'x' * 100, ('127.0.0.1', 5002))";
    ok(&mut inside("python3", &["-c", sends]));
    // Where no one listens, the kernel answers by ICMP: another flow.
    let status = wait_for(&socket, "both flows", |status| {
        status["flows"]["flows"] == 2
    });
    let flows = &status["flows"];
    assert_eq!(
        (&flows["undelivered"], &flows["lost"]),
        (&0.into(), &0.into())
    );
    let message = lines.next().unwrap().unwrap();
    // IPFIX, with its templates; 7 packets, of 128 bytes with their headers each.
    assert!(message.starts_with("000a"), "{message}");
    let record = message
        .find("7f0000017f0000011389138a11")
        .expect("the flow");
    let rest = &message[record..];
    let packets = format!("{:016x}", 7);
    assert!(rest[..120].contains(&packets), "{rest}");
    collector.kill().unwrap();
    collector.wait().unwrap();
    for _ in 0..3 {
        ok(&mut inside("python3", &["-c", sends]));
        let seen = wait_for(&socket, "flows", |_| true)["flows"]["flows"].clone();
        wait_for(&socket, "more flows", |status| {
            status["flows"]["flows"].as_u64() > seen.as_u64()
        });
    }
    let status = wait_for(&socket, "refused", |status| {
        status["flows"]["undelivered"] != 0
    });
    assert!(status["packets"].is_array());
    signal(&recording, "INT");
    let output = recording.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("no collector listens on this UDP port"),
        "{said}"
    );
    let alone = refused(strata().args(["record", "-r", "x", "--idle-timeout", "1s"]));
    assert!(alone.contains("--flows-to"), "{alone}");
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
