//! A directory with a stream, and the program over it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::program::{ok, strata};

/// What should be so is so by then, even while other tests use the CPU.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A directory with one stream, `events`.
pub(crate) struct Streams {
    pub(crate) dir: PathBuf,
    pub(crate) _folder: TempDir,
}

impl Streams {
    pub(crate) fn new(options: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let dir = folder.path().join("streams");
        ok(strata()
            .args(["stream", "create"])
            .arg(&dir)
            .arg("events")
            .args(options));
        Self {
            dir,
            _folder: folder,
        }
    }

    pub(crate) fn command(&self, verb: &str, options: &[&str]) -> Command {
        command(&self.dir, verb, options)
    }

    pub(crate) fn append(&self, options: &[&str], input: &[u8]) -> Output {
        let mut child = self.appender(options);
        // It may end before it has read everything.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    pub(crate) fn appender(&self, options: &[&str]) -> Child {
        let mut command = self.command("append", options);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::piped()).spawn().unwrap()
    }

    pub(crate) fn tail(&self, options: &[&str]) -> String {
        ok(&mut self.command("tail", options))
    }

    pub(crate) fn json(&self, verb: &str, options: &[&str]) -> Vec<Value> {
        let text = ok(self.command(verb, options).arg("--json"));
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Waits until `records` records can be read.
    pub(crate) fn wait_for(&self, records: usize) {
        let start = Instant::now();
        while self.tail(&["--cursor", "0.0"]).lines().count() < records {
            assert!(start.elapsed() < PATIENCE, "{records} records");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

pub(crate) fn command(dir: &Path, verb: &str, options: &[&str]) -> Command {
    let mut command = strata();
    command.args(["stream", verb]).arg(dir);
    if matches!(verb, "append" | "tail") {
        command.arg("events");
    }
    command.args(options);
    command
}

pub(crate) fn succeeded(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
