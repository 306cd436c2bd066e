//! How `strata switch` and `strata relay` end when the relay's disk fails, or when one of them is
//! stopped while the other one hangs: soon, with the reason, and every packet counted.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strata_blocks::Record;
use strata_store::{Log, Select};
use strata_testkit::may_use_kernel;

use crate::common::listening::listening;
use crate::common::signal::signal;

const STRATA: &str = env!("CARGO_BIN_EXE_strata");
/// What should end has ended by then, even while other tests use the CPU.
const LIMIT: Duration = Duration::from_secs(40);

/// A process, and its output.
struct Process {
    child: Child,
    said: Option<JoinHandle<String>>,
    errors: Option<JoinHandle<String>>,
}

/// What a process leaves behind.
struct Ended {
    success: bool,
    /// Standard output.
    said: String,
    /// Standard error.
    errors: String,
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut text = Vec::new();
        // After a kill, whatever was written will do.
        let _ = from.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    })
}

impl Process {
    fn spawn(command: &mut Command) -> Self {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = child.stdout.take().map(collect);
        let errors = child.stderr.take().map(collect);
        Self {
            child,
            said,
            errors,
        }
    }

    /// A listening relay.
    fn relay(command: &mut Command) -> Self {
        let (mut child, errors) = listening(command.stdout(Stdio::piped()));
        Self {
            said: child.stdout.take().map(collect),
            child,
            errors: Some(collect(errors)),
        }
    }

    fn signal(&self, name: &str) {
        signal(&self.child, name);
    }

    /// Waits until it has ended by itself.
    fn ended(mut self) -> Ended {
        let end = Instant::now() + LIMIT;
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(Instant::now() < end, "it does not end"),
            }
            thread::sleep(Duration::from_millis(5));
        };
        let take = |text: Option<JoinHandle<String>>| text.unwrap().join().unwrap();
        Ended {
            success: status.success(),
            said: take(self.said.take()),
            errors: take(self.errors.take()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A separate small disk, removed with the value.
struct Disk(PathBuf);

impl Disk {
    fn new(dir: &Path, size: &str) -> Self {
        let path = dir.join("disk");
        fs::create_dir(&path).unwrap();
        let option = format!("size={size}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &option, "strata-test"]);
        assert!(mount.arg(&path).status().unwrap().success());
        Self(path)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Writes packets of 1,000 bytes until the reader is gone: an input that cannot end before the test
/// has done its work. Returns how many bursts the switch has taken.
fn feed(mut to: ChildStdin) -> Arc<AtomicU64> {
    const LEN: u32 = 1000;
    let bursts = Arc::new(AtomicU64::new(0));
    let taken = Arc::clone(&bursts);
    thread::spawn(move || {
        let mut chunk = Vec::new();
        for word in [0xa1b2_c3d4_u32, 4 << 16 | 2, 0, 0, 65_535, 1] {
            chunk.extend(word.to_le_bytes());
        }
        let mut seq = 0_u32;
        while to.write_all(&chunk).is_ok() {
            taken.fetch_add(1, Ordering::Relaxed);
            chunk.clear();
            for _ in 0..100 {
                for word in [1 + seq / 1_000_000, seq % 1_000_000, LEN, LEN] {
                    chunk.extend(word.to_le_bytes());
                }
                chunk.extend([2; 14]);
                chunk.extend(seq.to_le_bytes());
                chunk.resize(chunk.len() + LEN as usize - 18, 7);
                seq += 1;
            }
            // Enough to fill a small disk in a second, but not a large one in a minute.
            thread::sleep(Duration::from_millis(4));
        }
    });
    bursts
}

fn switch(host: &str, extra: &[&str]) -> Process {
    fed_switch(host, extra).0
}

/// A switch, and how many bursts of packets it has taken.
fn fed_switch(host: &str, extra: &[&str]) -> (Process, Arc<AtomicU64>) {
    let mut command = Command::new(STRATA);
    command.args(["switch", "--relay", host, "--mode", "log-all"]);
    command.args(["--flush", "0.05", "-r", "-"]).args(extra);
    let mut switch = Process::spawn(command.stdin(Stdio::piped()));
    let bursts = feed(switch.child.stdin.take().unwrap());
    (switch, bursts)
}

fn relay(host: &str, log: &Path, extra: &[&str]) -> Process {
    let mut command = Command::new(STRATA);
    command.args(["relay", "--listen", host, "--disk", "buffered"]);
    command.args(["--block-size", "1MiB", "-o"]).arg(log);
    Process::relay(command.args(extra))
}

fn number_after(text: &str, word: &str) -> u64 {
    let rest = text.split(word).nth(1);
    let rest = rest.unwrap_or_else(|| panic!("{word}: {text}"));
    let digits = rest.trim_start().chars().take_while(char::is_ascii_digit);
    digits.collect::<String>().parse().unwrap()
}

/// What the switch has counted: seen, logged, dropped; nothing is missing between them.
fn counted(ended: &Ended) -> (u64, u64, u64) {
    let of = |word| number_after(&ended.said, word);
    let (seen, logged) = (of("packets: seen"), of("+ logged"));
    let dropped = of("+ dropped");
    assert_eq!(seen, logged + dropped, "{}", ended.said);
    (seen, logged, dropped)
}

/// Packets in the only recording of a log, and those that it reports lost.
fn in_log(dir: &Path) -> (u64, u64) {
    let log = Log::open(dir).unwrap();
    let recording = &log.recordings()[0];
    let mut there = 0;
    for block in log.blocks(recording, &Select::default()) {
        for record in block.unwrap().records() {
            there += u64::from(matches!(record.unwrap(), Record::Packet(_)));
        }
    }
    (there, log.accounting(recording).unwrap().1.packets)
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "not within {LIMIT:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a switch reads new packets: a burst is larger than a pipe, so the second one written
/// was read in part.
fn takes_more(bursts: &AtomicU64) {
    let before = bursts.load(Ordering::Relaxed);
    until("packets that are taken", || {
        bursts.load(Ordering::Relaxed) >= before + 2
    });
}

fn stored_bytes(log: &Path) -> u64 {
    let entries = fs::read_dir(log.join("blocks"))
        .into_iter()
        .flatten()
        .flatten();
    entries
        .map(|entry| entry.metadata().map_or(0, |m| m.len()))
        .sum()
}

#[test]
fn a_full_disk_ends_relay_and_switch_with_the_reason_and_the_loss_counted() {
    if !may_use_kernel("a disk that is full") {
        return;
    }
    for (host, transport) in [("127.91.1.1", "udp"), ("127.91.1.2", "shared-memory")] {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::new(dir.path(), "12m");
        let log = disk.0.join("log");
        // Other tests' relays have the same port, and so the same default socket.
        let socket = dir.path().join("memory.sock");
        let socket = ["--memory-socket", socket.to_str().unwrap()];
        let relay = relay(host, &log, &socket);
        let switch = switch(host, &[&["--transport", transport][..], &socket].concat());
        // No signal is sent.
        let switch = switch.ended();
        let relay = relay.ended();
        let full = "No space left on device";
        assert!(!switch.success && !relay.success, "{transport}");
        assert!(switch.errors.contains(full), "{}", switch.errors);
        assert!(relay.errors.contains(full), "{}", relay.errors);
        let (seen, logged, dropped) = counted(&switch);
        assert!(dropped > 0 && logged > 1000, "{}", switch.said);
        let (there, lost) = in_log(&log);
        // The relay may have stored what it could no longer confirm.
        assert!(there >= logged, "{there} there, {logged} logged");
        // After the relay's last message the switch counts alone.
        assert!(
            lost > 0 && there + lost <= seen,
            "{there} + {lost} of {seen}"
        );
        let verify = Command::new(STRATA)
            .arg("verify")
            .arg(&log)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&verify.stdout).into_owned();
        assert!(verify.status.success(), "{transport}: {text}");
    }
}

#[test]
fn a_log_that_is_removed_ends_relay_and_switch_with_the_reason() {
    const HOST: &str = "127.91.1.3";
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let relay = relay(HOST, &log, &["-C", "2MiB"]);
    let switch = switch(HOST, &[]);
    until("a block", || stored_bytes(&log) > 0);
    fs::remove_dir_all(&log).unwrap();
    let (switch, relay) = (switch.ended(), relay.ended());
    assert!(!switch.success && !relay.success);
    assert!(switch.errors.contains("No such file"), "{}", switch.errors);
    assert!(relay.errors.contains("No such file"), "{}", relay.errors);
    let (_, _, dropped) = counted(&switch);
    assert!(dropped > 0, "{}", switch.said);
}

/// More than a switch can send before it hears that some of it is stored: it has four blocks of 1
/// MiB at the relay, and refills one only after confirmation.
const CONFIRMED: u64 = 5 << 20;

#[test]
fn a_switch_ends_when_it_is_told_to_while_its_relay_hangs() {
    let cases = [
        ("127.91.1.4", "INT", &["--service", "rc"][..]),
        ("127.91.1.5", "TERM", &["--service", "uc"]),
        ("127.91.1.6", "INT", &["--transport", "shared-memory"]),
    ];
    for (host, signal, extra) in cases {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let relay = relay(host, &log, &[]);
        let (switch, bursts) = fed_switch(host, extra);
        until("blocks", || stored_bytes(&log) > CONFIRMED);
        relay.signal("STOP");
        // It continues for a while; what it takes now is not stored.
        takes_more(&bursts);
        switch.signal(signal);
        let ended = switch.ended();
        assert!(!ended.success, "{extra:?}: {}", ended.said);
        let (_, logged, dropped) = counted(&ended);
        assert!(logged > 0 && dropped > 0, "{extra:?}: {}", ended.said);
        relay.signal("CONT");
        relay.signal("INT");
        assert!(relay.ended().success);
        let (there, _) = in_log(&log);
        assert!(there >= logged, "{extra:?}: {there} there, {logged} logged");
    }
}

#[test]
fn a_switch_that_waits_for_a_relay_that_is_gone_ends_when_it_is_told_to() {
    const HOST: &str = "127.91.1.7";
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let relay = relay(HOST, &log, &[]);
    let (switch, bursts) = fed_switch(HOST, &[]);
    until("blocks", || stored_bytes(&log) > CONFIRMED);
    relay.signal("KILL");
    assert!(!relay.ended().success);
    takes_more(&bursts);
    switch.signal("TERM");
    let ended = switch.ended();
    assert!(!ended.success, "{}", ended.said);
    assert!(ended.errors.contains("did not return"), "{}", ended.errors);
    let (_, logged, dropped) = counted(&ended);
    assert!(logged > 0 && dropped > 0, "{}", ended.said);
}

/// Without a signal: it says what it waits for, gives up, and what it does not know it says.
#[test]
fn a_switch_that_reads_a_file_gives_up_on_a_relay_that_is_gone_for_good() {
    const HOST: &str = "127.91.1.10";
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let relay = relay(HOST, &log, &[]);
    let (switch, _) = fed_switch(HOST, &["--relay-timeout", "2s"]);
    until("blocks", || stored_bytes(&log) > CONFIRMED);
    relay.signal("KILL");
    assert!(!relay.ended().success);
    let ended = switch.ended();
    assert!(!ended.success, "{}", ended.said);
    for said in ["waiting for it for up to 2 s in all", "did not return"] {
        assert!(ended.errors.contains(said), "{said}: {}", ended.errors);
    }
    let (_, logged, dropped) = counted(&ended);
    assert!(logged > 0 && dropped > 0, "{}", ended.said);
    // If no message was under way when it was killed, all are known.
    let unknown: u64 = match ended.errors.contains("whether they were stored") {
        true => {
            let unknown = ended.said.split("are lost; ").nth(1);
            let unknown = unknown.and_then(|rest| rest.split(" are counted").next());
            let unknown = unknown.unwrap_or_else(|| panic!("{}", ended.said));
            let digits: String = unknown.chars().filter(char::is_ascii_digit).collect();
            digits.parse().unwrap()
        }
        false => 0,
    };
    let (there, _) = in_log(&log);
    assert!(
        logged <= there && there <= logged + unknown,
        "{logged} logged, {unknown} unknown, {there} there"
    );
}

#[test]
fn a_relay_ends_when_it_is_told_to_while_a_switch_hangs() {
    for (host, signal) in [("127.91.1.8", "INT"), ("127.91.1.9", "TERM")] {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let relay = relay(host, &log, &[]);
        let switch = switch(host, &[]);
        until("blocks", || stored_bytes(&log) > 1 << 20);
        switch.signal("STOP");
        relay.signal(signal);
        let ended = relay.ended();
        assert!(ended.success, "{}", ended.errors);
        let (there, _) = in_log(&log);
        assert!(there > 0);
        switch.signal("KILL");
    }
}
