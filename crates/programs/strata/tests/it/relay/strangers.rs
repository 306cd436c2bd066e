//! `strata relay` among strangers: what they can take from it is bounded, and the switches it is
//! there for get in.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use strata_relay::protocol::{Challenge, Hello, Message};
use strata_store::Log;
use strata_testkit::{Namespace, may_use_kernel};

use crate::common::listening::listening;
use crate::common::signal::signal;

const STRATA: &str = env!("CARGO_BIN_EXE_strata");
const LIMIT: Duration = Duration::from_secs(40);

/// A relay, killed with the value.
struct Relay(Child);

impl Relay {
    fn start(host: &str, log: &Path, extra: &[&str]) -> Self {
        let mut command = Command::new(STRATA);
        command.args(["relay", "--listen", host, "--disk", "buffered"]);
        command.args(["--block-size", "1MiB", "-o"]).arg(log);
        Self::spawn(command.args(extra))
    }

    fn spawn(command: &mut Command) -> Self {
        let (child, mut errors) = listening(command.stdout(Stdio::null()));
        thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
        Self(child)
    }

    /// A number of `/proc/PID/status`.
    fn status(&self, name: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.unwrap().trim().split(' ').next();
        number.unwrap().parse().unwrap()
    }

    fn memory_mib(&self) -> u64 {
        self.status("VmRSS:") >> 10
    }

    fn signal(&self, name: &str) {
        signal(&self.0, name);
    }

    fn interrupt(mut self) {
        self.signal("INT");
        let end = Instant::now() + LIMIT;
        while self.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "it does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn switch(host: &str, extra: &[&str]) -> Output {
    let capture = strata_testkit::data_dir().join("labelled/cic2017-sqli/trace.pcap");
    let mut command = Command::new(STRATA);
    command.args(["switch", "--relay", host, "-r"]).arg(capture);
    command.args(extra).output().unwrap()
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

fn gets_in(host: &str, extra: &[&str]) {
    let output = switch(host, extra);
    let text = text(&output);
    assert!(
        output.status.success() && text.contains(" 0 lost;"),
        "{text}"
    );
}

fn connect(host: &str) -> TcpStream {
    let address: SocketAddr = format!("{host}:4791").parse().unwrap();
    TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap()
}

fn emitted(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.emit(&mut bytes);
    bytes
}

fn hello(secret: bool) -> Vec<u8> {
    emitted(&Message::Hello(Box::new(Hello {
        session: "a stranger".into(),
        worker: 0,
        nonce: [1; 4],
        secret,
    })))
}

/// The start of a message of this kind and length that never ends.
fn unfinished(kind: u8, len: u32, sent: usize) -> Vec<u8> {
    let mut bytes = len.to_le_bytes().to_vec();
    bytes.extend([kind, strata_relay::protocol::VERSION, 0, 0, 0, 0, 0, 0]);
    bytes.resize(bytes.len() + sent, b'x');
    bytes
}

/// The messages that arrive until the other end is done.
fn answers(mut stream: TcpStream) -> Vec<Message> {
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let mut bytes = Vec::new();
    // However it ends.
    let _ = stream.read_to_end(&mut bytes);
    let (mut messages, mut rest) = (Vec::new(), &bytes[..]);
    while let Ok(Some((message, len))) = Message::parse(rest) {
        messages.push(message);
        rest = &rest[len..];
    }
    messages
}

fn secret_file(dir: &Path, name: &str, secret: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, secret).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// What took 1.1 GB before: first messages of 16 MiB that never end; and the same from peers that
/// send a hello first and then 16 MiB of a model.
#[test]
fn unfinished_messages_take_little_and_a_switch_gets_in() {
    const HOST: &str = "127.91.2.1";
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(HOST, &dir.path().join("log"), &[]);
    let before = relay.memory_mib();
    let mut strangers = Vec::new();
    for _ in 0..60 {
        let mut stream = connect(HOST);
        stream
            .set_write_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        // It may hang up midway, or accept no more.
        let _ = stream.write_all(&unfinished(1, 16 << 20, (16 << 20) - 1));
        strangers.push(stream);
    }
    let mut most = relay.memory_mib();
    assert!(most < before + 32, "{before} MiB, then {most}");
    for _ in 0..60 {
        let mut stream = connect(HOST);
        stream
            .set_write_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        let _ = stream.write_all(&hello(false));
        let _ = stream.write_all(&unfinished(15, 16 << 20, (16 << 20) - 1));
        strangers.push(stream);
        most = most.max(relay.memory_mib());
    }
    assert!(most < before + 160, "{before} MiB, then {most}");
    gets_in(HOST, &[]);
    relay.interrupt();
}

#[test]
fn a_thousand_idle_connections_take_no_threads_and_keep_no_switch_out() {
    let dir = tempfile::tempdir().unwrap();
    let secret = secret_file(dir.path(), "secret", "0123456789abcdef0123\n");
    let secret = ["--secret-file", secret.to_str().unwrap()];
    for (host, extra) in [("127.91.2.2", &[][..]), ("127.91.2.3", &secret)] {
        let log = dir.path().join(host);
        let relay = Relay::start(host, &log, extra);
        let (threads, memory) = (relay.status("Threads:"), relay.memory_mib());
        let mut strangers = Vec::new();
        for number in 0..1000 {
            let mut stream = connect(host);
            if number % 3 == 0 {
                let _ = stream.write_all(&hello(true));
            }
            strangers.push(stream);
            if number % 250 == 0 {
                gets_in(host, extra);
            }
        }
        gets_in(host, extra);
        // The kernel's own, for io_uring, are among them.
        let now = relay.status("Threads:");
        assert!(now < threads + 10, "{host}: {threads} threads, then {now}");
        let now = relay.memory_mib();
        assert!(now < memory + 64, "{host}: {memory} MiB, then {now}");
        let open = fs::read_dir(format!("/proc/{}/fd", relay.0.id()))
            .unwrap()
            .count();
        assert!(open < 160, "{open} descriptors");
        relay.interrupt();
        assert_eq!(Log::open(&log).unwrap().recordings().len(), 5);
    }
}

/// What a switch says about itself is bounded, and so is the manifest.
#[test]
fn a_long_beginning_does_not_get_into_the_manifest() {
    const HOST: &str = "127.91.2.4";
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let relay = Relay::start(HOST, &log, &[]);
    let begin = |inputs: usize| {
        let body = format!(
            "{{\"program\":\"p\",\"inputs\":[\"{}\"],\"filter\":\"\",\"mode\":\"\",\"model\":\"\",\
             \"classes\":[],\"hash_seed\":[1,2],\"key\":1,\"first_block\":0,\"first_seq\":0,\
             \"unconfirmed_seq\":0,\"resends\":false,\
             \"path\":{{\"transport\":\"rdma\",\"reliable\":true,\"qpn\":9,\"psn\":0,\"port\":9,\
             \"mtu\":1024}}}}",
            "x".repeat(inputs)
        );
        let head = [14, strata_relay::protocol::VERSION, 0, 0];
        let crc = crc32c::crc32c_append(crc32c::crc32c(&head), body.as_bytes());
        let len = u32::try_from(body.len()).unwrap();
        [
            &len.to_le_bytes()[..],
            &head,
            &crc.to_le_bytes(),
            body.as_bytes(),
        ]
        .concat()
    };
    for inputs in [12_000_000, 100_000] {
        let mut stream = connect(HOST);
        stream.write_all(&hello(false)).unwrap();
        let _ = stream.write_all(&begin(inputs));
        let said = answers(stream);
        let welcomed = |message: &Message| matches!(message, Message::Welcome(_));
        assert!(!said.iter().any(welcomed), "{inputs}: {said:?}");
    }
    relay.interrupt();
    assert!(fs::metadata(log.join("manifest.json")).unwrap().len() < 1000);
}

#[test]
fn who_knows_the_secret_gets_in_and_who_does_not_is_told_what_is_missing() {
    const HOST: &str = "127.91.2.5";
    let dir = tempfile::tempdir().unwrap();
    let right = secret_file(dir.path(), "right", "the right secret of the two");
    let wrong = secret_file(dir.path(), "wrong", "the wrong secret of the two");
    let open = secret_file(dir.path(), "open", "the right secret of the two");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    let with = |path: &PathBuf| ["--secret-file".to_owned(), path.display().to_string()];
    let log = dir.path().join("log");
    let file = with(&right);
    let relay = Relay::start(HOST, &log, &[&file[0], &file[1]]);
    gets_in(HOST, &[&file[0], &file[1]]);
    for (extra, says) in [
        (vec![], "--secret-file"),
        (with(&wrong).to_vec(), "secrets differ"),
        (with(&open).to_vec(), "chmod 600"),
    ] {
        let extra: Vec<&str> = extra.iter().map(String::as_str).collect();
        let output = switch(HOST, &extra);
        let text = text(&output);
        assert!(!output.status.success() && text.contains(says), "{text}");
    }
    relay.interrupt();
    assert_eq!(Log::open(&log).unwrap().recordings().len(), 1);
    // A relay that does not know the secret is not sent any of a recording.
    let relay = Relay::start(HOST, &log, &[]);
    let output = switch(HOST, &[&file[0], &file[1]]);
    let text = text(&output);
    assert!(
        !output.status.success() && text.contains("does not know"),
        "{text}"
    );
    relay.interrupt();
    assert_eq!(Log::open(&log).unwrap().recordings().len(), 1);
}

#[test]
fn an_address_that_others_reach_wants_to_know_who_connects() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(STRATA);
    command.args(["relay", "--listen", "0.0.0.0", "-o"]);
    let refused = command.arg(dir.path().join("log")).output().unwrap();
    let said = text(&refused);
    assert!(!refused.status.success(), "{said}");
    for option in ["--secret-file", "--tls-cert", "--insecure"] {
        assert!(said.contains(option), "{said}");
    }
    assert!(
        !dir.path().join("log").exists(),
        "a failed start leaves no log"
    );
    // RFC 5737: no host is there, and none gets a packet.
    let refused = switch("192.0.2.77", &[]);
    let said = text(&refused);
    assert!(!refused.status.success(), "{said}");
    for option in ["--secret-file", "--tls-cert", "--insecure"] {
        assert!(said.contains(option), "{said}");
    }
}

/// A hexadecimal line of `/proc/PID/status`.
fn capabilities(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
    u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
}

/// Once it listens, a relay has no privileges, and can access only its log.
#[test]
fn a_relay_keeps_no_capabilities_and_reaches_nothing_but_its_log() {
    const HOST: &str = "127.91.2.8";
    let dir = tempfile::tempdir().unwrap();
    for (extra, writes_elsewhere) in [(&["--no-sandbox"][..], true), (&[], false)] {
        let log = dir.path().join(format!("log-{writes_elsewhere}"));
        let elsewhere = dir.path().join(format!("elsewhere-{writes_elsewhere}"));
        fs::create_dir(&elsewhere).unwrap();
        let relay = Relay::start(HOST, &log, extra);
        assert_eq!(capabilities(relay.0.id()) != 0, writes_elsewhere);
        // As if an intruder could make it write there.
        let _ = fs::remove_dir(log.join("blocks"));
        std::os::unix::fs::symlink(&elsewhere, log.join("blocks")).unwrap();
        let output = switch(HOST, &[]);
        assert_eq!(
            output.status.success(),
            writes_elsewhere,
            "{}",
            text(&output)
        );
        let written = fs::read_dir(&elsewhere).unwrap().count();
        assert_eq!(written > 0, writes_elsewhere, "{}", text(&output));
    }
}

/// A capturing switch keeps none either, and continues with a relay that comes back.
#[test]
fn a_switch_that_captures_keeps_no_capabilities_and_finds_its_relay_again() {
    if !may_use_kernel("a switch that captures") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let namespace = Namespace::new("relay-caps");
    namespace.pair("in0", "out0");
    namespace.ip("link set lo up");
    let inside = || {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace.name(), STRATA]);
        command
    };
    let log = dir.path().join("log");
    let relay = || {
        let mut command = inside();
        command
            .args(["relay", "--disk", "buffered", "-o"])
            .arg(&log);
        Relay::spawn(&mut command)
    };
    let first = relay();
    let mut command = inside();
    command.args([
        "switch",
        "--relay",
        "127.0.0.1",
        "--mode",
        "log-all",
        "-i",
        "in0",
    ]);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut switch = Relay(child.unwrap());
    let lasts = Instant::now() + LIMIT;
    let errors = BufReader::new(switch.0.stderr.take().unwrap());
    let mut lines = errors.lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("capturing on")));
    thread::spawn(move || lines.for_each(drop));
    assert_eq!(capabilities(switch.0.id()), 0);
    drop(first);
    let second = relay();
    let connected = || {
        let mut ss = Command::new("ip");
        ss.args(["netns", "exec", namespace.name(), "cat", "/proc/net/tcp"]);
        let table = String::from_utf8(ss.output().unwrap().stdout).unwrap();
        // Established, to port 4791.
        let fields = table.lines().map(|line| line.split_whitespace());
        let mut ends = fields.map(|mut fields| (fields.nth(2), fields.next()));
        ends.any(|end| end == (Some("0100007F:12B7"), Some("01")))
    };
    while !connected() {
        assert!(Instant::now() < lasts, "not connected again");
        thread::sleep(Duration::from_millis(10));
    }
    switch.signal("INT");
    let mut stdout = switch.0.stdout.take().unwrap();
    let mut said = String::new();
    stdout.read_to_string(&mut said).unwrap();
    assert!(switch.0.wait().unwrap().success(), "{said}");
    second.interrupt();
    assert_eq!(Log::open(&log).unwrap().recordings().len(), 1);
}

/// Both ends say which version the other one speaks.
#[test]
fn another_version_of_the_protocol_is_refused_by_name() {
    const HOST: &str = "127.91.2.6";
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(HOST, &dir.path().join("log"), &[]);
    let mut old = connect(HOST);
    let mut bytes = unfinished(1, 300, 300);
    let ours = bytes[5];
    bytes[5] = 1;
    old.write_all(&bytes).unwrap();
    old.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut answer = Vec::new();
    let _ = old.read_to_end(&mut answer);
    // In the old version's framing.
    assert_eq!((answer[4], answer[5]), (3, 1));
    let said = String::from_utf8_lossy(&answer[12..]).into_owned();
    assert!(
        said.contains("version 1") && said.contains(&format!("version {ours}")),
        "{said}"
    );
    relay.interrupt();

    let listener = std::net::TcpListener::bind((HOST, 4791)).unwrap();
    let newer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        stream.read_exact(&mut vec![0; len as usize]).unwrap();
        let mut answer = emitted(&Message::Challenge(Challenge {
            nonce: [0; 4],
            secret: false,
        }));
        answer[5] = ours + 1;
        stream.write_all(&answer).unwrap();
        answers(stream)
    });
    let refused = switch(HOST, &[]);
    let said = text(&refused);
    assert!(!refused.status.success(), "{said}");
    let [ours, theirs] = [ours, ours + 1].map(|version| format!("version {version}"));
    assert!(said.contains(&theirs) && said.contains(&ours), "{said}");
    let told = newer.join().unwrap();
    assert!(
        matches!(&told[..], [.., Message::Refused(why)] if why.contains(&theirs)),
        "{told:?}"
    );
}

/// A relay's messages reach the terminal without anything that could affect it.
#[test]
fn what_a_relay_says_is_shown_with_its_control_characters_escaped() {
    const HOST: &str = "127.91.2.7";
    let listener = std::net::TcpListener::bind((HOST, 4791)).unwrap();
    let hostile = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let refusal = Message::Refused("\u{1b}[2J\nstrata: all is well".into());
        stream.write_all(&emitted(&refusal)).unwrap();
        answers(stream)
    });
    let said = text(&switch(HOST, &[]));
    assert!(said.contains(r"\u{1b}[2J\nstrata: all is well"), "{said:?}");
    hostile.join().unwrap();
}
