//! Commands that are programs of their own, installed beside this one. `strata` runs them before it parses the command
//! line, so that their help and their errors are their own.

use std::env::args_os;
use std::ffi::OsString;
use std::process::ExitCode;

use strata_terminal::{logging, program};

/// Commands, the program that has them, and whether it has no others: it is then called without the command's name.
const PROGRAMS: [(&[&str], &str, bool); 5] = [
    (&["telemetry"], "strata-telemetry", true),
    (&["stream"], "strata-stream", true),
    (&["gpv"], "strata-vectors", true),
    (&["agent", "controller"], "strata-fleet", false),
    (
        &[
            "learn", "train", "eval", "model", "compare", "features", "labels", "publish", "lake",
        ],
        "strata-models",
        false,
    ),
];

/// What builds them.
const MADE_BY: &str = "make build";

/// The commands.
pub(crate) fn commands() -> impl Iterator<Item = &'static str> {
    let all = PROGRAMS.iter();
    all.flat_map(|(commands, ..)| commands.iter().copied())
}

/// The program that has a command, and whether it has no others.
pub(crate) fn program_of(command: &str) -> Option<(&'static str, bool)> {
    let found = PROGRAMS
        .iter()
        .find(|(commands, ..)| commands.contains(&command));
    found.map(|&(_, program, is_whole)| (program, is_whole))
}

/// Becomes the program that has the command of this command line, if it is one of those. Returns only if that fails.
pub(crate) fn run() -> Option<ExitCode> {
    let mut words: Vec<OsString> = args_os().skip(1).collect();
    // `strata help telemetry run` is `strata telemetry run --help`.
    if words.first()? == "help" {
        words.remove(0);
        words.push("--help".into());
    }
    // Options of all commands may come before the command.
    let first = words.first()?.to_str()?;
    let at = match first.strip_prefix("--color") {
        Some("") => 2,
        Some(value) if value.starts_with('=') => 1,
        _ => 0,
    };
    let (program, is_whole) = program_of(words.get(at)?.to_str()?)?;
    if is_whole {
        words.remove(at);
    }
    logging::begin(None);
    let error = program::become_program(program, MADE_BY, &words).err()?;
    Some(program::failed(&error))
}
