//! `strata switch` and `strata relay` as users run them: over a real link, killed at
//! any moment.
#![allow(clippy::print_stderr, reason = "says why it did not run")]

mod ends;
mod strangers;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use strata_blocks::Record;
use strata_store::{Log, Recording, Select, State};
use strata_testkit::Certificates;
use strata_wire::mix64;

use crate::common::listening::listening;
use crate::common::signal::signal;

const STRATA: &str = env!("CARGO_BIN_EXE_strata");

/// Whether a test that needs `what` can run; in CI it must.
fn can_run(possible: bool, what: &str) -> bool {
    assert!(
        possible || std::env::var_os("CI").is_none(),
        "in CI it must run: {what}"
    );
    if !possible {
        eprintln!("not run: {what}");
    }
    possible
}

fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().unwrap().stdout == b"0\n"
}

/// A process that does not outlive the test.
struct Process(Child);

impl Process {
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    fn signal(&mut self, name: &str) {
        signal(&self.0, name);
        let end = Instant::now() + Duration::from_secs(30);
        while self.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "it does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Two namespaces with a link between them.
struct Link {
    names: [String; 2],
}

impl Link {
    fn new() -> Self {
        let id = std::process::id();
        let names = [format!("strata-sw-{id}"), format!("strata-rl-{id}")];
        let link = Self { names };
        for name in &link.names {
            assert!(succeeds(Command::new("ip").args(["netns", "add", name])));
        }
        let [switch, relay] = &link.names;
        let script = format!(
            "ip -n {switch} link add eth0 type veth peer name eth0 netns {relay} &&
             ip -n {switch} addr add 192.0.2.1/24 dev eth0 &&
             ip -n {relay} addr add 192.0.2.2/24 dev eth0 &&
             ip -n {switch} link set lo up && ip -n {relay} link set lo up &&
             ip -n {switch} link set eth0 mtu 9000 up &&
             ip -n {relay} link set eth0 mtu 9000 up"
        );
        assert!(succeeds(Command::new("sh").args(["-c", &script])));
        link
    }

    fn within(&self, end: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[end], program]);
        command
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for name in &self.names {
            succeeds(Command::new("ip").args(["netns", "del", name]));
        }
    }
}

fn output(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}");
    output
}

/// All packets of a log, without Strata's comments.
fn exported(log: &Path, to: &Path) -> Vec<u8> {
    let mut command = Command::new(STRATA);
    output(
        command
            .arg("export")
            .arg(log)
            .arg("-w")
            .arg(to)
            .arg("--no-comments"),
    );
    fs::read(to).unwrap()
}

fn largest_capture() -> PathBuf {
    let captures = strata_testkit::labelled_captures().into_iter();
    let sized = captures.filter_map(|path| Some((fs::metadata(&path).ok()?.len(), path)));
    sized.max().unwrap().1
}

/// Starts a relay, and waits until it listens.
fn relay(command: &mut Command) -> Process {
    let (relay, mut errors) = listening(command.stdout(Stdio::null()));
    // Its further output is discarded, and must not block it.
    thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
    Process(relay)
}

#[test]
fn over_a_link_nothing_is_lost_and_tshark_understands_it() {
    let tools = ["ip", "tcpdump", "tshark"].map(|tool| {
        let look = format!("command -v {tool}");
        succeeds(Command::new("sh").args(["-c", &look]))
    });
    let possible = is_root() && tools == [true; 3];
    if !can_run(possible, "it needs root, ip, tcpdump and tshark") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let capture = largest_capture();
    let local = dir.path().join("local");
    let mut record = Command::new(STRATA);
    record
        .args(["record", "--mode", "log-all", "-r"])
        .arg(&capture);
    output(record.arg("-o").arg(&local));
    let expected = exported(&local, &dir.path().join("local.pcapng"));

    let link = Link::new();
    for (name, extra) in [
        ("rc", &[][..]),
        ("segments of a switch", &["--segments", "switch"]),
        ("raw", &["--transport", "raw", "--raw-interface", "eth0"]),
    ] {
        let log = dir.path().join(name);
        let mut command = link.within(1, STRATA);
        command
            .args(["relay", "--listen", "192.0.2.2", "--insecure", "-o"])
            .arg(&log);
        let mut relay = relay(&mut command);
        if name == "raw" {
            // Like a link that accepts no runs.
            let [switch, _] = &link.names;
            let limit = ["-n", switch, "link", "set", "eth0", "gso_max_size", "4000"];
            assert!(succeeds(Command::new("ip").args(limit)));
        }
        let wire = dir.path().join("wire.pcap");
        let mut tcpdump = (name == "raw").then(|| {
            let mut command = link.within(1, "tcpdump");
            command
                .args(["-i", "eth0", "-U", "-B", "65536", "-w"])
                .arg(&wire);
            let child = command.arg("udp port 4791").stderr(Stdio::null()).spawn();
            let tcpdump = Process(child.unwrap());
            while !fs::metadata(&wire).is_ok_and(|file| file.len() >= 24) {
                thread::sleep(Duration::from_millis(10));
            }
            tcpdump
        });
        let mut switch = link.within(0, STRATA);
        switch.args(["switch", "--relay", "192.0.2.2", "--insecure"]);
        switch.args(["--mode", "log-all", "-r"]);
        let output = output(switch.arg(&capture).args(extra));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(" 0 lost;"), "{name}: {text}");
        relay.signal("INT");
        let got = exported(&log, &dir.path().join("relay.pcapng"));
        assert!(got == expected, "{name}: the export differs");
        if let Some(tcpdump) = &mut tcpdump {
            let len = || fs::metadata(&wire).unwrap().len();
            let mut before = 0;
            while len() != before {
                before = len();
                thread::sleep(Duration::from_millis(50));
            }
            tcpdump.signal("INT");
            tshark_decodes(&wire);
        }
    }
    a_sandboxed_switch_sends_raw_frames(&link, dir.path());
}

/// What the sandbox allows is enough for each of its connections.
fn a_sandboxed_switch_sends_raw_frames(link: &Link, dir: &Path) {
    let (log, socket) = (dir.join("sandboxed"), dir.join("control"));
    let mut command = link.within(1, STRATA);
    command.args(["relay", "--listen", "192.0.2.2", "--insecure", "-o"]);
    let mut relay = relay(command.arg(&log));
    let mut command = link.within(0, STRATA);
    command.args(["switch", "--relay", "192.0.2.2", "--insecure"]);
    command.args(["--transport", "raw", "--raw-interface", "eth0"]);
    command.args(["--mode", "log-all", "-i", "lo,eth0", "--socket"]);
    let mut switch = Process(command.arg(&socket).spawn().unwrap());
    let logged = || {
        let mut status = Command::new(STRATA);
        let status = status.args(["status", "--json", "--socket"]).arg(&socket);
        let json = status.output().unwrap().stdout;
        // Nothing is served yet.
        let Ok(status) = serde_json::from_slice::<serde_json::Value>(&json) else {
            return false;
        };
        let results = status["packets"].as_array().into_iter().flatten();
        let mut logged = results.filter(|result| result["result"] == "logged");
        logged.any(|result| result["packets"].as_u64() > Some(0))
    };
    let end = Instant::now() + Duration::from_secs(30);
    while !logged() {
        let ended = switch.0.try_wait().unwrap();
        assert!(ended.is_none(), "it ended by itself: {ended:?}");
        assert!(Instant::now() < end, "no packet was recorded");
        let send = "for i in 1 2 3; do echo > /dev/udp/127.0.0.1/9; done";
        succeeds(link.within(0, "bash").args(["-c", send]));
    }
    switch.signal("INT");
    relay.signal("INT");
    assert!(!exported(&log, &dir.join("sandboxed.pcapng")).is_empty());
    // Else each packet would be followed by those that bring it to the relay, and so on.
    let mut own = Command::new(STRATA);
    own.args(["export", "-F", "json", "-w", "-"]).arg(&log);
    let own = own.arg("port 4791").output().unwrap();
    assert!(own.status.success() && own.stdout.is_empty(), "{own:?}");
}

/// The output of `strata` on a log, and whether it succeeded.
fn says(words: &[&str], log: &Path) -> (String, bool) {
    let output = Command::new(STRATA).args(words).arg(log).output().unwrap();
    let both = [output.stdout, output.stderr].concat();
    (String::from_utf8(both).unwrap(), output.status.success())
}

/// The packets of a log that match.
fn found(log: &Path, to: &Path, filter: &str) -> Vec<u8> {
    let mut command = Command::new(STRATA);
    command.arg("export").arg(log).arg("-w").arg(to);
    output(command.arg("--no-comments").arg(filter));
    fs::read(to).unwrap()
}

fn block_files(log: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(log.join("blocks")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|ending| ending == "strata"))
        .collect();
    files.sort();
    files
}

/// What `info` says of the packets of a log, regardless of file sizes.
fn counted(log: &Path) -> Vec<String> {
    let (text, done) = says(&["info"], log);
    assert!(done, "{text}");
    let of_packets = ["benign ", "anomalous ", "all ", "logged ", "packets: "];
    let is_of_packets = |line: &&str| of_packets.iter().any(|start| line.starts_with(start));
    let lines = text.lines().filter(is_of_packets).map(str::to_owned);
    lines.collect()
}

/// A log that came through a relay is used like any other: searched, verified, compacted, pruned.
#[test]
fn a_relayed_log_is_found_in_verified_compacted_and_pruned() {
    const HOST: &str = "127.91.0.3";
    let dir = quick_dir();
    let capture = largest_capture();
    let (local, relayed) = (dir.path().join("local"), dir.path().join("relayed"));
    let mut record = Command::new(STRATA);
    output(
        record
            .args(["record", "--hash-seed", "1", "-r"])
            .arg(&capture)
            .arg("-o")
            .arg(&local),
    );
    let mut command = Command::new(STRATA);
    command.args([
        "relay",
        "--listen",
        HOST,
        "--block-size",
        "1MiB",
        "-C",
        "2MiB",
        "-o",
    ]);
    let mut relay = relay(command.arg(&relayed));
    let mut switch = Command::new(STRATA);
    switch.args(["switch", "--relay", HOST, "--hash-seed", "1", "-r"]);
    output(switch.arg(&capture));
    relay.signal("INT");

    let export = dir.path().join("export.pcapng");
    let filters = [
        "",
        "tcp port 443",
        "udp port 53",
        "icmp",
        "host 203.0.113.77",
    ];
    let same = |state: &str| {
        for filter in filters {
            let expected = found(&local, &export, filter);
            let got = found(&relayed, &export, filter);
            assert!(got == expected, "{state}: '{filter}' finds something else");
        }
        assert_eq!(counted(&relayed), counted(&local), "{state}");
        assert!(counted(&relayed).len() >= 6, "{state}");
        let (text, done) = says(&["top"], &relayed);
        assert!(done && !text.contains(" lost "), "{state}: {text}");
        let (text, whole) = says(&["verify"], &relayed);
        assert!(whole && text.contains("67,690 packets"), "{state}: {text}");
    };
    same("as it came");
    assert!(found(&local, &export, "udp port 53").len() > 10_000);

    let files = block_files(&relayed);
    assert!(files.len() > 3, "{files:?}");
    let whole = fs::read(&files[1]).unwrap();
    let mut damaged = whole.clone();
    // In a packet, not in what a block that was written early leaves free.
    let at = (0..=whole.len() / 2)
        .rev()
        .find(|&at| whole[at] != 0)
        .unwrap();
    damaged[at] ^= 4;
    fs::write(&files[1], &damaged).unwrap();
    let (text, whole_log) = says(&["verify"], &relayed);
    let name = files[1].to_str().unwrap();
    // Packets that the damage took are a warning about the manifest.
    let at_file = text.split_once(name).map_or("", |(_, after)| after);
    let offset: u64 = number_after(at_file, "offset ");
    assert!(!whole_log, "{text}");
    assert!(
        offset <= at as u64 && at as u64 - offset < 4096,
        "byte {at}: {text}"
    );
    fs::write(&files[1], &whole).unwrap();

    for log in [&local, &relayed] {
        let (text, done) = says(&["compact"], log);
        assert!(done && text.contains("67,690 packets"), "{text}");
    }
    assert_eq!(block_files(&relayed), Vec::<PathBuf>::new());
    same("compacted");
    let (text, done) = says(&["prune", "--keep", "1d", "--yes"], &relayed);
    assert!(done && text.contains("deleted"), "{text}");
    assert!(says(&["verify"], &relayed).1);
}

#[test]
fn tls_lets_in_whom_the_authority_knows() {
    const HOST: &str = "127.91.0.4";
    let dir = quick_dir();
    let files = Certificates::make(dir.path(), HOST);
    let with_tls = |command: &mut Command, name: &str| {
        let [certificate, key, authority] = files.of(name);
        command.arg("--tls-cert").arg(certificate);
        command.arg("--tls-key").arg(key);
        command.arg("--tls-ca").arg(authority);
    };
    let log = dir.path().join("log");
    let mut command = Command::new(STRATA);
    command.args(["relay", "--listen", HOST, "-o"]).arg(&log);
    with_tls(&mut command, "relay");
    let mut relay = relay(&mut command);
    for (name, says) in [
        ("switch", " 0 lost;"),
        ("stranger", "certificate"),
        ("nobody", "--tls-cert"),
    ] {
        let mut switch = Command::new(STRATA);
        let capture = strata_testkit::data_dir().join("labelled/cic2017-sqli/trace.pcap");
        switch.args(["switch", "--relay", HOST, "-r"]).arg(capture);
        if name != "nobody" {
            with_tls(&mut switch, name);
        }
        let output = switch.output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.success(), name == "switch", "{name}: {text}");
        assert!(text.contains(says), "{name}: {text}");
    }
    relay.signal("INT");
    assert_eq!(Log::open(&log).unwrap().recordings().len(), 1);
}

/// A switch, often root, receives memory over the relay's socket and never opens a file that the
/// relay could have named.
#[test]
fn shared_memory_is_handed_over_and_no_path_of_the_relay_is_opened() {
    const HOST: &str = "127.91.0.5";
    let dir = quick_dir();
    let log = dir.path().join("log");
    let socket = dir.path().join("own/memory");
    let mut command = Command::new(STRATA);
    command.args(["relay", "--listen", HOST, "-o"]).arg(&log);
    let mut relay = relay(command.arg("--memory-socket").arg(&socket));
    let mode = |path: &Path| {
        let found = fs::symlink_metadata(path).unwrap();
        std::os::unix::fs::PermissionsExt::mode(&found.permissions()) & 0o777
    };
    assert_eq!(mode(socket.parent().unwrap()), 0o750);
    assert_eq!(mode(&socket), 0o600);
    let capture = strata_testkit::data_dir().join("labelled/cic2017-sqli/trace.pcap");
    let calls = dir.path().join("calls");
    let mut command = Command::new("strace");
    command.args(["-f", "-e", "trace=open,openat,openat2,connect", "-o"]);
    command.arg(&calls).arg(STRATA);
    command.args(["switch", "--relay", HOST, "--mode", "log-all"]);
    command.args(["--transport", "shared-memory", "--memory-socket"]);
    let done = output(command.arg(&socket).arg("-r").arg(&capture));
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(said.contains(" 0 lost;"), "{said}");
    let calls = fs::read_to_string(calls).unwrap();
    let opened = calls.lines().filter(|line| line.contains("open"));
    let in_proc = opened.filter(|line| line.contains("/proc/") && line.contains("/fd/"));
    assert_eq!(in_proc.collect::<Vec<_>>(), Vec::<&str>::new());
    let name = socket.display().to_string();
    assert!(calls.contains(&format!("sun_path=\"{name}\"")), "{calls}");

    // A missing socket, as with a relay on another machine, is named.
    let mut command = Command::new(STRATA);
    command.args(["switch", "--relay", HOST, "--transport", "shared-memory"]);
    command
        .arg("--memory-socket")
        .arg(dir.path().join("nowhere"));
    let refused = command.arg("-r").arg(&capture).output().unwrap();
    let heard = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{heard}");
    assert!(
        heard.contains("nowhere: cannot get shared memory from the relay"),
        "{heard}"
    );
    relay.signal("INT");
    assert!(!socket.exists() && !socket.parent().unwrap().exists());
}

/// Every packet is RoCEv2 to tshark, and none malformed.
fn tshark_decodes(wire: &Path) {
    let fields = |filter: &str| {
        let mut tshark = Command::new("tshark");
        tshark
            .arg("-r")
            .arg(wire)
            .args(["-Y", filter, "-T", "fields"]);
        tshark.args([
            "-e",
            "infiniband.bth.opcode",
            "-e",
            "infiniband.reth.dmalen",
        ]);
        String::from_utf8(output(&mut tshark).stdout).unwrap()
    };
    let malformed = fields("_ws.malformed || _ws.expert.severity == error");
    assert_eq!(malformed, "");
    let all = fields("udp.port == 4791");
    let roce = fields("infiniband.bth");
    assert_eq!(all.lines().count(), roce.lines().count());
    let of = |opcode: &str| roce.lines().filter(|line| line.starts_with(opcode)).count();
    let (writes, acks) = (of("10\t"), of("17\t"));
    assert!(writes > 1000 && acks > 10, "{writes} WRITEs, {acks} ACKs");
    assert_eq!(writes + acks, roce.lines().count());
    assert!(
        roce.lines().any(|line| line == "10\t4096"),
        "whole MTUs of 4096"
    );
}

/// A directory in memory if possible: what survives the death of a process does not depend on the
/// disk, and syncing a busy one takes long.
fn quick_dir() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = tempfile::tempdir_in(memory);
    made.or_else(|_| tempfile::tempdir()).unwrap()
}

const PACKETS_PER_BURST: u64 = 100;

/// A packet as the feeder makes it from its number.
fn frame(seq: u64) -> Vec<u8> {
    let len = 60 + mix64(seq) % 1400;
    let mut bytes = vec![0x02; 14];
    bytes.extend(seq.to_le_bytes());
    bytes.extend((22..len).map(|at| mix64(seq ^ at << 40).to_le_bytes()[0]));
    bytes
}

/// Writes a capture into a switch until told to stop, or the switch is gone; returns how many
/// packets it wrote.
fn feed(mut to: ChildStdin, stop: &AtomicBool) -> u64 {
    let mut header = Vec::new();
    for word in [0xa1b2_c3d4_u32, 4 << 16 | 2, 0, 0, 65_535, 1] {
        header.extend(word.to_le_bytes());
    }
    let mut written = 0;
    let mut chunk = header;
    loop {
        if to.write_all(&chunk).is_err() || stop.load(Ordering::Relaxed) {
            return written;
        }
        written += if written == 0 && chunk.len() == 24 {
            0
        } else {
            PACKETS_PER_BURST
        };
        chunk.clear();
        for seq in written..written + PACKETS_PER_BURST {
            let bytes = frame(seq);
            let len = u32::try_from(bytes.len()).unwrap();
            let micros = u32::try_from(seq % 1_000_000).unwrap();
            let second = u32::try_from(seq / 1_000_000).unwrap();
            for word in [second + 1, micros, len, len] {
                chunk.extend(word.to_le_bytes());
            }
            chunk.extend(bytes);
        }
        thread::sleep(Duration::from_millis(3));
    }
}

fn switch(host: &str, on_loss: &str) -> Process {
    let mut command = Command::new(STRATA);
    command.args(["switch", "--relay", host, "--on-loss", on_loss]);
    command.args(["--mode", "log-all", "--flush", "0.05", "-r", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    Process(command.stderr(Stdio::null()).spawn().unwrap())
}

fn relay_on(host: &str, log: &Path) -> Process {
    let mut command = Command::new(STRATA);
    command.args(["relay", "--listen", host]);
    // It is restarted again and again, and need not measure its disk.
    command.args(["--disk", "buffered", "--block-size", "1MiB", "-o"]);
    relay(command.arg(log))
}

/// Sequence numbers of the packets of a recording, each checked: those that are whole, and those
/// that end where a part is missing, and say so.
fn present(log: &Log, recording: &Recording) -> (BTreeSet<u64>, BTreeSet<u64>) {
    let (mut whole, mut incomplete) = (BTreeSet::new(), BTreeSet::new());
    for block in log.blocks(recording, &Select::default()) {
        let block = block.unwrap();
        assert_eq!(block.undefined, 0, "{}: nothing can read them", block.file);
        for record in block.records() {
            if let Record::Packet(packet) = record.unwrap() {
                let expected = frame(packet.seq);
                let marked = String::from_utf8_lossy(packet.options).contains("incomplete");
                let right = match marked {
                    true => expected.starts_with(packet.data),
                    false => expected == packet.data,
                };
                assert!(right, "packet {}", packet.seq);
                let seqs = if marked { &mut incomplete } else { &mut whole };
                assert!(seqs.insert(packet.seq), "packet {} twice", packet.seq);
            }
        }
    }
    (whole, incomplete)
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "not in time: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn in_blocks(log: &Path) -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(log.join("blocks"))
        .into_iter()
        .flatten()
        .flatten()
}

/// Waits until the block files of a log grow.
fn stores_more(log: &Path) {
    let stored = || {
        let files = in_blocks(log).filter_map(|entry| entry.metadata().ok());
        files.map(|file| file.len()).sum::<u64>()
    };
    let before = stored();
    until("something more is stored", || stored() > before);
}

/// The largest number of a recording that has a block file (`r0001-w00-000000.strata`); 0
/// without one.
fn newest_recording(log: &Path) -> u32 {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.get(1..5)?.parse().ok();
    in_blocks(log).filter_map(number).max().unwrap_or(0)
}

/// A number after a word of the counters.
fn number_after(text: &str, word: &str) -> u64 {
    let rest = text
        .split(word)
        .nth(1)
        .unwrap_or_else(|| panic!("{word}: {text}"));
    let digits: String = rest
        .trim_start()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().unwrap()
}

/// The relay is killed again and again. With copies, the switch sends again what it had not confirmed, and
/// nothing is missing in the end.
#[test]
fn what_a_killed_relay_had_not_confirmed_is_sent_again() {
    const HOST: &str = "127.91.0.1";
    let dir = quick_dir();
    let log_dir = dir.path().join("log");
    let (text, _) = while_its_relay_is_killed(HOST, "resend", &log_dir);
    let log = Log::open(&log_dir).unwrap();
    let (seqs, incomplete) = present(&log, &log.recordings()[0]);
    let seen = number_after(&text, "packets: seen");
    assert_eq!(number_after(&text, "+ logged"), seen, "{text}");
    assert!(
        incomplete.is_empty() && seqs.iter().copied().eq(0..seen),
        "{text}"
    );
    assert!(
        number_after(&text, "in its log, ") > 0,
        "no kill hurt: {text}"
    );
    // Everything that is counted can be read.
    let exported = exported(&log_dir, &dir.path().join("all.pcapng"));
    let packets = exported_packets(&exported);
    assert_eq!(packets, seen);
    let (text, verified) = says(&["verify"], &log_dir);
    assert!(verified, "{text}");
}

/// Enhanced packet blocks of a pcapng file.
fn exported_packets(file: &[u8]) -> u64 {
    let (mut count, mut rest) = (0, file);
    while let Some(head) = rest.first_chunk::<8>() {
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        count += u64::from(word(0) == 6);
        rest = &rest[word(4) as usize..];
    }
    count
}

/// Without copies, the relay says what of it is in its log, and the rest is counted.
#[test]
fn whatever_a_killed_relay_had_confirmed_is_there_and_the_rest_is_counted() {
    const HOST: &str = "127.91.0.3";
    let dir = quick_dir();
    let log_dir = dir.path().join("log");
    let (text, written) = while_its_relay_is_killed(HOST, "skip", &log_dir);
    let log = Log::open(&log_dir).unwrap();
    let [recording] = log.recordings() else {
        panic!("seed {SEED}: a switch that connects again goes on with its recording");
    };
    assert_eq!(recording.state, State::Closed);
    let (seqs, incomplete) = present(&log, recording);
    let seen = number_after(&text, "packets: seen");
    let logged = number_after(&text, "+ logged");
    // It stops after a burst that it has not counted.
    assert!((written..=written + PACKETS_PER_BURST).contains(&seen));
    let there = seqs.len() as u64;
    // What is in the log is not counted as dropped. Of what is counted as logged, RDMA messages that were
    // skipped are missing.
    let skipped = number_after(&text, "sent again, ");
    assert!(
        there <= logged && logged <= seen,
        "seed {SEED}: {there} there; {text}"
    );
    assert!(
        skipped > 0 || there == logged,
        "seed {SEED}: {there} there; {text}"
    );
    assert!(logged < seen, "seed {SEED}: no kill hurt: {text}");
    let (_, loss) = log.accounting(recording).unwrap();
    let cut = incomplete.len() as u64;
    let last = seqs.union(&incomplete).last().map_or(0, |last| last + 1);
    let exact = last.max(seen) - there - cut;
    assert_eq!(loss.packets, exact, "seed {SEED}: counted exactly");
    assert_eq!(loss.incomplete, cut, "seed {SEED}");
}

/// Of the moments of kills.
const SEED: u64 = 41;

/// What a switch printed at its end, and how many packets it was given.
fn while_its_relay_is_killed(host: &str, on_loss: &str, log_dir: &Path) -> (String, u64) {
    const KILLS: u64 = 25;
    let mut relay = relay_on(host, log_dir);
    let mut switch = switch(host, on_loss);
    let stdin = switch.0.stdin.take().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopping = Arc::clone(&stop);
    let feeder = thread::spawn(move || feed(stdin, &stopping));
    for kill in 0..KILLS {
        // Data from this relay, or its end would not hurt the switch; otherwise at any moment, even
        // within 200 ms of looking for a relay.
        if kill % 2 == 0 {
            stores_more(log_dir);
        }
        thread::sleep(Duration::from_millis(mix64(SEED + kill) % 100));
        relay.kill();
        relay = relay_on(host, log_dir);
    }
    stores_more(log_dir);
    stop.store(true, Ordering::Relaxed);
    let written = feeder.join().unwrap();
    let mut text = String::new();
    let mut stdout = switch.0.stdout.take().unwrap();
    stdout.read_to_string(&mut text).unwrap();
    let ended = switch.0.wait().unwrap();
    // Packets that are lost from a file are a failure.
    let lost = number_after(&text, "+ dropped");
    assert_eq!(ended.success(), lost == 0, "{text}");
    relay.signal("INT");
    (text, written)
}

#[test]
fn what_a_killed_switch_had_sent_is_there() {
    const SEED: u64 = 42;
    const HOST: &str = "127.91.0.2";
    const KILLS: u64 = 50;
    let dir = quick_dir();
    let log_dir = dir.path().join("log");
    let mut relay = relay_on(HOST, &log_dir);
    for kill in 0..KILLS {
        let before = newest_recording(&log_dir);
        let mut switch = switch(HOST, "resend");
        let stdin = switch.0.stdin.take().unwrap();
        let never = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| feed(stdin, &never));
            // Some perhaps before they have started, most afterwards.
            if kill % 4 != 0 {
                until("a recording", || newest_recording(&log_dir) > before);
            }
            thread::sleep(Duration::from_millis(mix64(SEED + kill) % 100));
            switch.kill();
        });
    }
    assert!(TcpStream::connect((HOST, 4791)).is_ok(), "it lives");
    relay.signal("INT");
    let log = Log::open(&log_dir).unwrap();
    assert!(log.recordings().len() as u64 >= KILLS - KILLS.div_ceil(4));
    let mut packets = 0;
    for recording in log.recordings() {
        assert_eq!(recording.state, State::Running, "it has not been closed");
        let (seqs, incomplete) = present(&log, recording);
        let there = seqs.len() as u64;
        // In order and acknowledged: no gap, and half of the last at most.
        assert!(seqs.iter().copied().eq(0..there), "seed {SEED}");
        assert!(
            incomplete.is_empty() || incomplete.iter().eq([&there]),
            "seed {SEED}"
        );
        let (_, loss) = log.accounting(recording).unwrap();
        assert_eq!(loss.incomplete, incomplete.len() as u64, "seed {SEED}");
        packets += there;
    }
    assert!(packets > 1000, "seed {SEED}: {packets} in all");
}
