//! Captures of as many interfaces as pcapng allows.
//!
//! A binary of its own: it counts the CPU time of all programs that its process has started.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

fn strata() -> Command {
    Command::new(env!("CARGO_BIN_EXE_strata"))
}

fn ok(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    output
}

/// A block of pcapng.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let padded = body.len().next_multiple_of(4);
    let total = u32::try_from(padded + 12).unwrap().to_le_bytes();
    let mut block = kind.to_le_bytes().to_vec();
    block.extend(total);
    block.extend(body);
    block.resize(8 + padded, 0);
    block.extend(total);
    block
}

fn section() -> Vec<u8> {
    let mut body = 0x1A2B_3C4D_u32.to_le_bytes().to_vec();
    body.extend([1, 0, 0, 0]);
    body.extend([0xff; 8]);
    block(0x0A0D_0D0A, &body)
}

/// Ethernet, with a name of this many letters.
fn interface(name: &str) -> Vec<u8> {
    let mut body = vec![1, 0, 0, 0, 0, 0, 4, 0];
    body.extend(2_u16.to_le_bytes());
    body.extend(u16::try_from(name.len()).unwrap().to_le_bytes());
    body.extend(name.as_bytes());
    body.resize(body.len().next_multiple_of(4), 0);
    body.extend([0; 4]);
    block(1, &body)
}

fn packet(interface: u32) -> Vec<u8> {
    let mut body = interface.to_le_bytes().to_vec();
    // 2023-11-14 in microseconds.
    let time = 1_700_000_000_000_000_u64.to_le_bytes();
    body.extend(&time[4..]);
    body.extend(&time[..4]);
    body.extend([60, 0, 0, 0, 60, 0, 0, 0]);
    body.extend([0x2a; 60]);
    block(6, &body)
}

/// CPU time of the programs that have ended: cutime and cstime of proc_pid_stat(5), in hundredths
/// of a second.
fn cpu() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields = stat.rsplit(')').next().unwrap().split_whitespace();
    let ticks: u64 = fields
        .skip(13)
        .take(2)
        .map(|f| f.parse::<u64>().unwrap())
        .sum();
    Duration::from_millis(ticks * 10)
}

/// Records, describes and exports a capture; returns its packets from tshark, with interface names.
fn through(dir: &Path, capture: &[u8]) -> String {
    let (file, log, out) = (
        dir.join("in.pcapng"),
        dir.join("log"),
        dir.join("out.pcapng"),
    );
    fs::write(&file, capture).unwrap();
    let before = cpu();
    // A filter and a policy are evaluated for each interface.
    let record = ["record", "--default", "full", "-r"];
    ok(strata()
        .args(record)
        .arg(&file)
        .arg("-o")
        .arg(&log)
        .arg("greater 1"));
    ok(strata().arg("info").arg(&log));
    ok(strata().arg("export").arg(&log).arg("-w").arg(&out));
    // 0.4 s of CPU time here; 30 s and more if each interface caused work for all of them.
    let took = cpu() - before;
    assert!(took < Duration::from_secs(5), "{took:?} of CPU time");
    let fields = [
        "-T",
        "fields",
        "-e",
        "frame.interface_name",
        "-e",
        "frame.len",
    ];
    let read = ok(Command::new("tshark").arg("-r").arg(&out).args(fields));
    String::from_utf8(read.stdout).unwrap()
}

#[test]
fn as_many_interfaces_as_there_can_be_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut capture = section();
    for number in 0..65_535 {
        capture.extend(interface(&format!("eth{number}")));
    }
    capture.extend(packet(65_534));
    capture.extend(packet(0));
    assert_eq!(through(dir.path(), &capture), "eth65534\t60\neth0\t60\n");
}

#[test]
fn as_many_sections_as_there_can_be_interfaces_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut capture = Vec::new();
    for number in 0..65_535 {
        capture.extend(section());
        capture.extend(interface(&format!("eth{number}")));
    }
    capture.extend(packet(0));
    assert_eq!(through(dir.path(), &capture), "eth65534\t60\n");
}

#[test]
fn more_than_fits_is_refused_with_the_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("in.pcapng");
    let refused = |capture: &[u8], log: &str| {
        fs::write(&file, capture).unwrap();
        let mut record = strata();
        let output = record
            .arg("record")
            .arg("-r")
            .arg(&file)
            .arg("-o")
            .arg(dir.path().join(log));
        let output = output.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    // The longest names that an option can hold: 1,025 of them are more than 64 MiB.
    let long = interface(&"x".repeat(65_532));
    let mut capture = section();
    for _ in 0..1_025 {
        capture.extend(&long);
    }
    let text = refused(&capture, "long");
    assert!(
        text.contains("more than 67108864 bytes") && text.contains("in.pcapng"),
        "{text}"
    );
    assert!(text.contains("byte 67133468"), "{text}");
    let one_less = &capture[..capture.len() - 2 * long.len()];
    let whole = [one_less, &packet(0)[..]].concat();
    fs::write(&file, whole).unwrap();
    let (log, trace) = (dir.path().join("fits"), &file);
    ok(strata()
        .arg("record")
        .arg("-r")
        .arg(trace)
        .arg("-o")
        .arg(log));
    let mut many = section();
    for _ in 0..65_536 {
        many.extend(interface("e"));
    }
    assert!(refused(&many, "many").contains("more than 65535 interfaces"));
}
