//! Appends lines to streams, and reads the report of those that are missing.

use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

pub(crate) fn appender(command: &mut Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::piped()).spawn().unwrap()
}

/// Appends all of the input.
pub(crate) fn append(command: &mut Command, input: String) -> Output {
    let mut child = appender(command);
    let mut stdin = child.stdin.take().unwrap();
    let writer = thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    output
}

pub(crate) fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// How many records are missing, as a reader says.
pub(crate) fn missing(said: &str) -> usize {
    let line = said
        .lines()
        .find(|line| line.contains(" missing: lost or damaged"));
    let digits: String = line
        .map_or("0", |line| line)
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    digits.parse().unwrap()
}
