//! How a collector ends: whatever stops it, each packet that its senders numbered is written, or counted.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::UdpSocket;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::OFlags;
use strata_exporter::{Announcement, Header, Label, Numbered, PacketWriter, Source};
use strata_testkit::may_use_kernel;
use strata_wire::LinkType;

use crate::common::collecting::Collector;
use crate::common::program::{ok, strata};
use crate::common::signal::signal;

/// A sender of packets of 1,000 bytes, each in a datagram.
pub(super) struct Sender {
    socket: UdpSocket,
    writer: PacketWriter,
    source: Source,
}

impl Sender {
    pub(super) fn new(to: u16, session: u32) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(("127.0.0.1", to)).unwrap();
        let source = Source {
            identity: 4711,
            session,
        };
        Self {
            socket,
            writer: PacketWriter::new(source, LinkType::ETHERNET, 1452),
            source,
        }
    }

    /// The next datagram, with one packet.
    fn datagram(&mut self) -> Vec<u8> {
        let packet = Header {
            ts_ns: 1,
            wire_len: 1000,
            bytes: &[7; 1000],
            label: Label {
                policy: 1,
                class: 0,
                one_in: 1,
            },
        };
        let mut sent = Vec::new();
        self.writer.put(&packet, |bytes| sent = bytes.to_vec());
        self.writer.finish(|bytes| sent = bytes.to_vec());
        sent
    }

    pub(super) fn send(&mut self, packets: usize) {
        for _ in 0..packets {
            let datagram = self.datagram();
            self.socket.send(&datagram).unwrap();
        }
    }

    /// Says what was sent so far.
    pub(super) fn announce(&self, has_ended: bool) {
        let announcement = Announcement {
            source: self.source,
            link: LinkType::ETHERNET,
            index: 1,
            mac: [0; 6],
            dropped: 0,
            headers: Numbered::default(),
            packets: self.writer.numbered(),
            has_ended,
            host: "web-1".into(),
            interface: "eth0".into(),
            alias: String::new(),
            behind: String::new(),
        };
        self.socket.send(&announcement.datagram()).unwrap();
    }
}

const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];

fn started(output: &Path) -> Collector {
    let arguments = [&LISTEN[..], &["-w", output.to_str().unwrap()]].concat();
    Collector::start(strata(), &arguments)
}

fn line_of(said: &str) -> &str {
    let is_it = |line: &&str| line.starts_with("web-1:eth0 (127.0.0.1, identity 4711): ");
    let line = said.lines().find(is_it);
    line.unwrap_or_else(|| panic!("no line of the interface: {said}"))
}

/// The last datagrams of a burst are lost, and nothing comes after them: announcements say how many there were,
/// also if they come twice or before the datagrams.
#[test]
fn what_is_lost_at_the_end_of_a_burst_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let collector = started(&dir.path().join("out.pcapng"));
    let mut sender = Sender::new(collector.port, 1);
    sender.announce(false);
    let lost_first = sender.datagram();
    sender.send(5);
    let late = sender.datagram();
    let _lost = (sender.datagram(), sender.datagram());
    sender.announce(false);
    sender.announce(false);
    sender.socket.send(&late).unwrap();
    drop(lost_first);
    let said = collector.stopped();
    let expected = ": 6 packets in 6 datagrams; 3 packets lost, in 3 lost datagrams; 0 before; 0 dropped by its kernel";
    assert!(line_of(&said).ends_with(expected), "{said}");

    // Nothing but announcements arrives.
    let collector = started(&dir.path().join("out.pcapng"));
    let mut sender = Sender::new(collector.port, 1);
    sender.announce(false);
    (0..7).for_each(|_| drop(sender.datagram()));
    sender.announce(true);
    let said = collector.stopped();
    let expected = ": 0 packets in 0 datagrams; 7 packets lost, in 7 lost datagrams; 0 before; 0 dropped by its kernel";
    assert!(line_of(&said).ends_with(expected), "{said}");
}

#[test]
fn senders_that_began_again_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let collector = started(&dir.path().join("out.pcapng"));
    // The second one is killed, the last one goes on.
    for (session, has_ended) in [
        (1, true),
        (2, false),
        (3, true),
        (4, true),
        (5, true),
        (6, false),
    ] {
        let mut sender = Sender::new(collector.port, session);
        sender.announce(false);
        sender.send(1);
        sender.announce(has_ended);
    }
    let said = collector.stopped();
    assert!(
        line_of(&said).ends_with("; 6 sessions, 1 cut short"),
        "{said}"
    );
}

/// The file may not become longer, as on a full disk: the collector ends by itself.
#[test]
fn a_file_that_cannot_grow_is_named_and_what_came_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.pcapng");
    let mut command = Command::new("sh");
    let limited = "trap '' XFSZ; ulimit -f 16; exec \"$0\" \"$@\"";
    command.args(["-c", limited]).arg(strata().get_program());
    let arguments = [&LISTEN[..], &["-w", file.to_str().unwrap()]].concat();
    let collector = Collector::start(command, &arguments);
    let mut sender = Sender::new(collector.port, 1);
    sender.announce(false);
    sender.send(100);
    let said = collector.ended_with(1);
    let problem = format!("{}: cannot write: File too large", file.display());
    assert!(said.contains(&problem), "{said}");
    let (_, came) = line_of(&said).split_once("4711): ").unwrap();
    let came: usize = came.split(' ').next().unwrap().parse().unwrap();
    let written = whole_packets(&std::fs::read(&file).unwrap());
    assert!(written < came, "{said}");
    check_written(&said, written, came);
}

/// The files of its log may not become longer: of the packets that arrived, each is in the log, or in one count.
#[test]
fn packets_that_a_log_that_cannot_grow_lacks_are_counted_once() {
    if !may_use_kernel("a large socket buffer") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (log, socket) = (dir.path().join("log"), dir.path().join("socket"));
    let mut command = Command::new("sh");
    let limited = "trap '' XFSZ; ulimit -f 6000; exec \"$0\" \"$@\"";
    command.args(["-c", limited]).arg(strata().get_program());
    let more = [
        "--mode",
        "log-all",
        "-o",
        log.to_str().unwrap(),
        "--socket",
        socket.to_str().unwrap(),
    ];
    let collector = Collector::start(command, &[&LISTEN[..], &more].concat());
    let mut sender = Sender::new(collector.port, 1);
    sender.announce(false);
    for _ in 0..10_000 {
        // The collector may have ended.
        let datagram = sender.datagram();
        let _ = sender.socket.send(&datagram);
    }
    let said = collector.ended_with(1);
    let number = |text: &str| -> u64 {
        let digits = text.chars().filter(char::is_ascii_digit);
        digits.collect::<String>().parse().unwrap()
    };
    let (_, came) = line_of(&said).split_once("4711): ").unwrap();
    let came = number(came.split_once(" packets").unwrap().0);
    let is_it = |line: &&str| line.contains("arrived and are not in the log");
    let line = said.lines().find(is_it).unwrap_or_else(|| panic!("{said}"));
    let (not_logged, parts) = line.split_once(" packets arrived").unwrap();
    let (dropped, after) = parts.split_once(" dropped by the recording, ").unwrap();
    let (not_logged, dropped, after) = (number(not_logged), number(dropped), number(after));
    assert!(after > 0 && not_logged == dropped + after, "{line}");

    let info = ok(strata().args(["info", "--json"]).arg(&log));
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    let accounting = &info[0]["accounting"];
    let reasons = accounting["dropped"].as_array().unwrap().iter();
    let counted: u64 = reasons.map(|reason| reason[1][0].as_u64().unwrap()).sum();
    assert_eq!(dropped, counted, "{accounting}");
    let logged = accounting["logged"][0].as_u64().unwrap();
    assert_eq!(logged + not_logged, came, "{accounting} {said}");
    // The log has them.
    let file = dir.path().join("back.pcapng");
    let mut export = strata();
    let output = export.arg("export").arg(&log).arg("-w").arg(&file).output();
    let told = String::from_utf8(output.unwrap().stderr).unwrap();
    let written = whole_packets(&std::fs::read(&file).unwrap()) as u64;
    assert_eq!(written, logged, "{told}");
    assert!(
        told.contains("has a recording (1) that ended early, since the log could not be written"),
        "{told}"
    );
}

/// Checks the reported numbers of packets that were written, and of those that were not.
fn check_written(said: &str, written: usize, came: usize) {
    assert!(
        said.contains(&format!("\n{written} packets; ")),
        "{written}: {said}"
    );
    let digits = |text: &str| {
        text.chars()
            .filter(char::is_ascii_digit)
            .collect::<String>()
    };
    let is_it = |line: &&str| line.ends_with("packets arrived and could not be written");
    let counted = said.lines().find(is_it).map(digits);
    assert_eq!(counted, Some((came - written).to_string()), "{said}");
}

/// How many whole packets there are in a pcapng file that may be cut.
fn whole_packets(bytes: &[u8]) -> usize {
    let (mut at, mut packets) = (0, 0);
    while let Some(start) = bytes.get(at..at + 8) {
        let word = |at: usize| u32::from_le_bytes(start[at..at + 4].try_into().unwrap());
        at += word(4) as usize;
        packets += usize::from(word(0) == 6 && at <= bytes.len());
    }
    packets
}

fn pipe(dir: &Path) -> std::path::PathBuf {
    let pipe = dir.join("ff");
    ok(Command::new("mkfifo").arg(&pipe));
    pipe
}

/// The reader of a pipe stalls: the first Ctrl-C ends the collector, and all that came is written or counted.
#[test]
fn a_reader_that_stalls_does_not_keep_it_from_ending() {
    if !may_use_kernel("a large socket buffer") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let pipe = pipe(dir.path());
    let mut options = OpenOptions::new();
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let mut reader: File = options.read(true).custom_flags(flags).open(&pipe).unwrap();
    let collector = started(&pipe);
    let mut sender = Sender::new(collector.port, 1);
    sender.announce(false);
    sender.send(2000);
    sender.announce(false);
    collector.interrupt();
    let said = collector.ended_with(1);
    let expected = ": 2,000 packets in 2,000 datagrams; 0 packets lost, in 0 lost datagrams";
    assert!(line_of(&said).contains(expected), "{said}");
    assert!(
        said.contains("cannot write: its reader does not read"),
        "{said}"
    );
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    let written = whole_packets(&bytes);
    assert!(written > 10, "{said}");
    check_written(&said, written, 2000);
}

#[test]
fn a_pipe_without_a_reader_does_not_keep_it_from_ending() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = strata();
    command
        .arg("collector")
        .args(LISTEN)
        .arg("-w")
        .arg(pipe(dir.path()));
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("waiting until a program opens this pipe") {
        assert!(errors.read_line(&mut said).unwrap() > 0, "{said}");
    }
    signal(&child, "TERM");
    errors.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{said}");
    assert!(
        said.contains("ff: cannot write: no program opened this pipe"),
        "{said}"
    );
}
