//! The program by itself, and what is installed with it: the programs of users have to be beside it (`make build`,
//! or `cargo build --workspace --bins`).
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod help;
mod image;
mod install;
mod writes;

use std::path::Path;
use std::process::Command;

/// Programs of users, which `make build` makes.
const PROGRAMS: [&str; 6] = [
    "strata",
    "strata-telemetry",
    "strata-stream",
    "strata-vectors",
    "strata-fleet",
    "strata-models",
];

/// The folder with this program and those of users.
fn built() -> &'static Path {
    let folder = Path::new(env!("CARGO_BIN_EXE_strata-manual"))
        .parent()
        .unwrap();
    for program in PROGRAMS {
        let path = folder.join(program);
        assert!(
            path.is_file(),
            "{}: not there: cargo build --workspace --bins",
            path.display()
        );
    }
    folder
}

/// What a command that succeeds prints.
fn ok(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}
