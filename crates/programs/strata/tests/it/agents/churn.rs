//! Interfaces of other namespaces come and go in hundreds while an agent captures: of the one that stays, every
//! packet is there once or counted as lost.
#![allow(clippy::print_stdout, reason = "`make soak` shows what it did")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use strata_testkit::{Namespace, may_use_kernel};

use crate::common::program::ok;
use crate::common::signal::signal;

/// Interfaces that come and go, and how many at a time; for the seconds that `STRATA_CHURN` gives.
const INTERFACES: usize = 500;
const WAVE: usize = 125;
/// A packet of the interface that stays.
const EVERY: Duration = Duration::from_millis(1);

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn within(namespace: &Namespace) -> Command {
    let mut command = Command::new("ip");
    let program = env!("CARGO_BIN_EXE_strata");
    command.args(["netns", "exec", namespace.name(), program]);
    command
}

/// UDP with a number that tells packets apart.
fn frame(number: u32) -> Vec<u8> {
    let [a, b, c, d] = number.to_be_bytes();
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    let ip = [0x45, 0, 0, 36, c, d, 0, 0, 64, 17, 0, 0];
    frame.extend(ip);
    frame.extend([10, 0, 0, 1, 10, 0, 0, 2, a | 0x40, b, 0, 53, 0, 16, 0, 0]);
    frame.resize(60, 0);
    frame
}

/// Commands of ip(8), all at once.
fn batch(namespace: &Namespace, lines: &str) {
    let mut command = Command::new("ip");
    command.args(["-n", namespace.name(), "-batch", "-"]);
    let mut ip = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut input = ip.stdin.take().unwrap();
    input.write_all(lines.as_bytes()).unwrap();
    drop(input);
    assert!(ip.wait().unwrap().success());
}

fn lines(wave: &[usize], line: impl Fn(usize) -> String) -> String {
    wave.iter().map(|number| line(*number) + "\n").collect()
}

/// Sends numbered packets until `stop`; returns how many.
fn send(namespace: &Namespace, stop: &AtomicBool) -> u32 {
    namespace.enter(|| {
        let mut sender = pcap::Capture::from_device("vm0").unwrap().open().unwrap();
        let (started, mut number) = (Instant::now(), 0);
        while !stop.load(Ordering::Relaxed) {
            sender.sendpacket(frame(number)).unwrap();
            number += 1;
            thread::sleep((EVERY * number).saturating_sub(started.elapsed()));
        }
        number
    })
}

/// Numbers of the packets of the interface that stays, in the order of the file.
fn numbers(file: &Path) -> Vec<u32> {
    let mut command = Command::new("tshark");
    command.arg("-n").arg("-r").arg(file);
    command.args(["-Y", "frame.interface_name == \"me:tap0\"", "-T", "fields"]);
    let text = ok(command.args(["-e", "udp.srcport", "-e", "ip.id"]));
    let number = |line: &str| {
        let (high, low) = line.split_once('\t').unwrap();
        let low = u32::from_str_radix(low.trim_start_matches("0x"), 16).unwrap();
        ((high.parse::<u32>().unwrap() & 0x3fff) << 16) | low
    };
    text.lines().map(number).collect()
}

/// The number before these words, of digits with commas between groups of three.
fn count(line: &str, words: &str) -> u64 {
    let (before, _) = line
        .split_once(words)
        .unwrap_or_else(|| panic!("{line}: no {words}"));
    let is_other = |letter: char| !letter.is_ascii_digit() && letter != ',';
    let digits = before.trim_end().rsplit(is_other).next().unwrap();
    digits.replace(',', "").parse().unwrap()
}

/// A packet of each of these interfaces.
fn say(tenants: &Namespace, wave: &[usize]) {
    tenants.enter(|| {
        for (number, one) in (0..).zip(wave) {
            let sender = pcap::Capture::from_device(format!("vm{one}").as_str()).unwrap();
            sender.open().unwrap().sendpacket(frame(number)).unwrap();
        }
    });
}

/// Interfaces of tenants that come and go in waves while `carry_on` says so; returns how many have come.
fn churn(host: &Namespace, tenants: &Namespace, carry_on: impl Fn() -> bool) -> usize {
    let mut came = 0;
    let mut before: Vec<usize> = Vec::new();
    for from in (1..).step_by(WAVE) {
        if !carry_on() {
            break;
        }
        let wave: Vec<usize> = (from..from + WAVE)
            .map(|one| one % INTERFACES + 1)
            .collect();
        let peer = tenants.name();
        let link = |n| format!("link add tap{n} type veth peer name vm{n} netns {peer}");
        batch(host, &lines(&wave, link));
        batch(host, &lines(&wave, |n| format!("link set tap{n} up")));
        batch(tenants, &lines(&wave, |n| format!("link set vm{n} up")));
        for wave in [&wave, &before] {
            say(tenants, wave);
        }
        batch(host, &lines(&before, |n| format!("link del tap{n}")));
        before = wave;
        came += WAVE;
    }
    came
}

fn start(host: &Namespace, dir: &Path, out: &Path) -> (Running, Running) {
    let policies = dir.join("policies.toml");
    let text = "[[policy]]\nname = 'all'\nmatch = 'udp'\naction = 'header -> here'\n";
    fs::write(&policies, text).unwrap();
    let mut command = within(host);
    command.args(["collector", "-w"]).arg(out);
    let collector = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut command = within(host);
    command.args(["agent", "-i", "tap*", "--name", "me", "--identity", "1"]);
    // Of two interfaces or more.
    command.args(["--rings", "one"]);
    command.args(["--destination", "here=udp://127.0.0.1:4740", "--policy"]);
    command.arg(&policies).arg("--state").arg(dir.join("agent"));
    (Running(collector), Running(command.spawn().unwrap()))
}

#[test]
fn hundreds_of_interfaces_come_and_go() {
    if !may_use_kernel("interfaces of network namespaces") {
        return;
    }
    let seconds = std::env::var("STRATA_CHURN").map_or(30, |text| text.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let (host, tenants) = (Namespace::new("st-churn"), Namespace::new("st-churn-vm"));
    host.ip("link set lo up");
    host.pair("tap0", "vm0");
    let out = dir.path().join("out.pcapng");
    let (mut collector, mut agent) = start(&host, dir.path(), &out);
    let stop = Arc::new(AtomicBool::new(false));
    let (sent, interfaces) = thread::scope(|scope| {
        let sending = scope.spawn(|| send(&host, &stop));
        let started = Instant::now();
        let came = churn(&host, &tenants, || {
            started.elapsed() < Duration::from_secs(seconds)
        });
        stop.store(true, Ordering::Relaxed);
        (sending.join().unwrap(), came)
    });
    signal(&agent.0, "INT");
    assert!(agent.0.wait().unwrap().success());
    signal(&collector.0, "INT");
    let mut said = String::new();
    let mut errors = collector.0.stderr.take().unwrap();
    errors.read_to_string(&mut said).unwrap();
    let line = said
        .lines()
        .find(|line| line.starts_with("me:tap0 "))
        .unwrap();
    let (_, counts) = line.split_once("): ").unwrap();
    let came = count(counts, " packets in ");
    let lost = count(counts, " packets lost") + count(counts, " before");
    let dropped = count(counts, " dropped by its kernel");
    let mut found = numbers(&out);
    assert_eq!(found.len() as u64, came, "{line}");
    found.sort_unstable();
    found.dedup();
    assert_eq!(found.len() as u64, came, "something comes twice: {line}");
    // Since the first that arrived, everything is there or was counted.
    let sent = u64::from(sent - found[0]);
    assert!(
        came + lost <= sent && sent <= came + lost + dropped,
        "{sent} sent: {line}"
    );
    let others = said
        .lines()
        .filter(|line| line.starts_with("me:tap"))
        .count();
    assert!(others > WAVE, "{others} interfaces");
    println!(
        "{interfaces} interfaces appeared in {seconds} s, and {others} names were exported; {sent} packets \
         were sent to tap0: {line}"
    );
}
