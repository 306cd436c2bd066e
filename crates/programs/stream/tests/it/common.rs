//! A directory with a stream, and the program over it.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A directory with the stream `x`.
pub(crate) struct Streams {
    folder: TempDir,
}

impl Streams {
    pub(crate) fn new(options: &[&str]) -> Self {
        let streams = Self {
            folder: TempDir::new().unwrap(),
        };
        let created = streams.command("create", &[&["x"], options].concat());
        succeeded(created);
        streams
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.folder.path().join("streams")
    }

    pub(crate) fn command(&self, verb: &str, options: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strata-stream"));
        command.arg(verb).arg(self.dir()).args(options);
        command
    }

    pub(crate) fn append(&self, options: &[&str], input: &[u8]) {
        appended(self.command("append", &[&["x"], options].concat()), input);
    }

    /// The records as `tail --json` has them.
    pub(crate) fn tail(&self) -> Vec<Value> {
        let tail = self.command("tail", &["x", "--cursor", "0.0", "--json"]);
        let lines = succeeded(tail);
        let lines = lines.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

pub(crate) fn succeeded(mut command: Command) -> String {
    succeeded_of(command.output().unwrap())
}

pub(crate) fn succeeded_of(output: Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn refused(mut command: Command, status: i32) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{errors}");
    errors
}

pub(crate) fn appended(mut command: Command, input: &[u8]) {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    succeeded_of(child.wait_with_output().unwrap());
}
