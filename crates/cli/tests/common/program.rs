//! Runs the program.

use std::process::Command;

pub(crate) fn strata() -> Command {
    Command::new(env!("CARGO_BIN_EXE_strata"))
}

/// What a command that succeeds prints.
pub(crate) fn ok(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}
