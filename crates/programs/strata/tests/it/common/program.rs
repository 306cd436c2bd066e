//! Runs the program.

use std::ffi::OsStr;
use std::process::Command;

pub(crate) fn strata() -> Command {
    Command::new(env!("CARGO_BIN_EXE_strata"))
}

/// Records a capture file into a log.
pub(crate) fn record(trace: impl AsRef<OsStr>, log: impl AsRef<OsStr>) -> Command {
    let mut command = strata();
    command.args(["record", "-r"]).arg(trace);
    command.arg("-o").arg(log);
    command
}

/// What a command that succeeds prints.
pub(crate) fn ok(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// What a command that fails says.
pub(crate) fn failed(command: &mut Command) -> String {
    ended_with(command, 1)
}

/// What a command says that is not carried out as it is given.
#[allow(dead_code, reason = "each test uses some of it")]
pub(crate) fn refused(command: &mut Command) -> String {
    ended_with(command, 2)
}

fn ended_with(command: &mut Command, status: i32) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(status), "{command:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("strata: ") && !stderr.contains("panicked"),
        "{stderr}"
    );
    stderr
}
