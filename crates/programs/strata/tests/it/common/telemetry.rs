//! Telemetry collectors and translators as processes, and what they count.

use std::fs;
use std::io::{BufRead, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::listening::listening;
use super::program::strata;
use super::signal::signal;

/// What should be so is so by then, even while other tests use the CPU.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A process that has announced that it serves; killed at the latest when this is dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    errors: Option<ChildStderr>,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        let (child, errors) = listening(command.stdout(Stdio::piped()));
        let errors = Some(errors);
        Self { child, errors }
    }

    /// Ends it by Ctrl-C; what it prints.
    pub(crate) fn end(self) -> String {
        self.end_with().0
    }

    /// Ends it by Ctrl-C; what it prints, and what it has warned of since it served.
    pub(crate) fn end_with(mut self) -> (String, String) {
        signal(&self.child, "INT");
        let mut text = String::new();
        let mut said = self.child.stdout.take().unwrap();
        said.read_to_string(&mut text).unwrap();
        let status = self.child.wait().unwrap();
        let mut errors = String::new();
        let mut rest = self.errors.take().unwrap();
        rest.read_to_string(&mut errors).unwrap();
        assert!(status.success(), "{errors}");
        (text, errors)
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `strata telemetry`: queries of a store.
pub(crate) fn telemetry(store: &Path, query: &[&str]) -> Command {
    let mut command = strata();
    command.args(["telemetry", query[0]]).arg(store);
    command.args(&query[1..]);
    command
}

pub(crate) fn status(dir: &Path) -> Value {
    let text = fs::read_to_string(dir.join("status.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Where a process listens, as its status says.
pub(crate) fn listens(dir: &Path) -> String {
    status(dir)["listen"].as_str().unwrap().to_owned()
}

pub(crate) fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

/// Waits until what is counted is as wanted.
pub(crate) fn wait_status(dir: &Path, wanted: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let status = status(dir);
        if wanted(&status) {
            return status;
        }
        assert!(start.elapsed() < PATIENCE, "{status:#}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Reports of version 2: the header, then the reports.
pub(crate) fn packed(
    opcode: u8,
    flags: u8,
    sequence: u32,
    lens: [u8; 3],
    reports: &[Vec<u8>],
) -> Vec<u8> {
    let count = u16::try_from(reports.len()).unwrap();
    let mut bytes = vec![opcode, flags];
    bytes.extend(count.to_be_bytes());
    bytes.extend(sequence.to_be_bytes());
    bytes.extend(1_700_000_000_000_000_000_u64.to_be_bytes());
    bytes.extend(lens);
    bytes.push(7);
    bytes.extend(reports.concat());
    bytes
}

/// Version 2, of one report.
pub(crate) fn one(opcode: u8, flags: u8, sequence: u32, lens: [u8; 3], report: &[u8]) -> Vec<u8> {
    packed(opcode, flags, sequence, lens, &[report.to_vec()])
}

/// Of the flags of a datagram.
pub(crate) const IMMEDIATE: u8 = 0x80;

/// An event of node 7, port 3, queue 1.
pub(crate) fn event(value: u8) -> Vec<u8> {
    let event = [0, 0, 0, 7, 0, 0, 0, 3, 1, 2, 0, 0, 0, value, 0, 0, 0, 9];
    [&[0, 0, 0, 0][..], &event].concat()
}

/// The next event of a stream: its name and its data.
pub(crate) fn next(stream: &mut impl BufRead) -> Option<(String, Value)> {
    let mut name = String::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        if let Some(of) = line.strip_prefix("event: ") {
            of.trim_end().clone_into(&mut name);
        } else if let Some(data) = line.strip_prefix("data: ") {
            return Some((name, serde_json::from_str(data).unwrap()));
        }
    }
}
