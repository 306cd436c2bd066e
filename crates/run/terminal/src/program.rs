//! How a program of Strata begins and ends, and where the others are.
//!
//! `strata` runs some commands by programs of their own, which are installed beside it: a recorder is then built
//! and attacked without them.

use std::env::{args_os, current_exe, split_paths, var_os};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};

use anyhow::{Context as _, Result, bail};
use clap::error::ErrorKind as Usage;
use clap::{CommandFactory, FromArgMatches, Parser};
use strata_outline::Outline;
use strata_record::RecordError;
use strata_role::RoleError;

use crate::logging::{self, LoggingArgs};
use crate::text::{colour, plain};
use crate::{descriptors, output, signals, text};

/// The program that records and reads logs, and finds all others.
const MAIN: &str = "strata";

/// A command line, as the program runs it.
pub trait Program: CommandFactory + FromArgMatches {
    /// Whether it runs until stopped, and so opens descriptors for others meanwhile.
    fn is_long_running(&self) -> bool;

    /// Its logging options, if it has any.
    fn logging(&self) -> Option<&LoggingArgs>;

    /// Whether it says only what went wrong (`--quiet`), where it has no logging options.
    fn is_quiet(&self) -> bool {
        false
    }

    /// Runs it to its end.
    ///
    /// # Errors
    ///
    /// The program's last message to the user.
    fn run(&self) -> Result<()>;

    /// The program beside this one that has a command of this command line, if another one has it.
    #[must_use]
    fn elsewhere(_command: &str) -> Option<&'static str> {
        None
    }
}

/// Another program did the work and failed: it has printed why.
#[derive(Clone, Copy, Debug)]
pub struct Ended(pub u8);

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "another program ended with exit status {}", self.0)
    }
}

impl std::error::Error for Ended {}

/// Parses the command line of this process as `line` has it, and runs it. Asked for its outline
/// ([`strata_outline::asked`]), the program prints that instead.
#[must_use]
pub fn main<P: Program>(line: clap::Command) -> ExitCode {
    let line = line.arg(colour::option());
    if strata_outline::asked(args_os()) {
        logging::begin(None);
        return describe::<P>(&line).map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS);
    }
    let parsed = line.try_get_matches();
    let parsed = parsed.and_then(|mut matches| {
        colour::choose(&matches);
        P::from_arg_matches_mut(&mut matches)
    });
    let program = parsed.unwrap_or_else(|error| refused(&error));
    match program.logging() {
        None if program.is_quiet() => logging::begin_quietly(),
        args => logging::begin(args),
    }
    if program.is_long_running() {
        descriptors::raise_limit();
    }
    match program.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

/// Prints the outline of a command line, for the program that writes man pages.
fn describe<P: Program>(line: &clap::Command) -> Result<()> {
    let mut outline = Outline::of(line);
    for command in &mut outline.commands {
        command.program = P::elsewhere(&command.name).map(str::to_owned);
    }
    let mut json = serde_json::to_vec(&outline)?;
    json.push(b'\n');
    Ok(output::standard().write_all(&json)?)
}

/// Says what is wrong with the command line, or shows the requested help, and ends the program.
fn refused(error: &clap::Error) -> ! {
    let theirs = error.render().to_string();
    let ours = plain::words(&theirs);
    if error.kind() != Usage::ValueValidation || ours == theirs {
        error.exit();
    }
    #[allow(clippy::print_stderr, reason = "as clap does")]
    {
        eprint!("{ours}");
    }
    process::exit(error.exit_code())
}

/// Says why the program fails, and returns the status that says so too.
#[must_use]
pub fn failed(error: &anyhow::Error) -> ExitCode {
    // The reader of our output has seen enough: `strata export -w - | head`.
    if text::is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    if let Some(Ended(status)) = error.downcast_ref() {
        return ExitCode::from(*status);
    }
    if error.is::<signals::Interrupted>() {
        return ExitCode::from(signals::Interrupted::STATUS);
    }
    tracing::error!("{}", text::chain(error));
    match is_invalid(error) {
        true => ExitCode::from(2),
        false => ExitCode::FAILURE,
    }
}

/// Whether the command line is invalid, as the command or the role that it starts found out.
fn is_invalid(error: &anyhow::Error) -> bool {
    let of_role = error
        .downcast_ref::<RoleError>()
        .or_else(|| match error.downcast_ref()? {
            RecordError::Role(error) => Some(error),
            _ => None,
        });
    error.is::<output::Refused>() || of_role.is_some_and(RoleError::is_invalid)
}

/// Arguments of the process that opens packet sockets for a command that may not any more.
#[derive(Debug, Parser)]
pub struct HelperArgs {
    /// Change to this user.
    #[arg(long)]
    user: Option<String>,
}

impl HelperArgs {
    /// Opens packet sockets for the process that started this one, until that is gone.
    ///
    /// # Errors
    ///
    /// If the user is not known, or privileges cannot be dropped.
    pub fn run(&self) -> Result<()> {
        Ok(strata_role::sandbox::open_sockets(self.user.as_deref())?)
    }
}

/// For programs whose command line has no `helper`: runs as that if this process was started so
/// (`strata_sandbox::Helper`).
#[must_use]
pub fn helper() -> Option<ExitCode> {
    if args_os().nth(1)? != "helper" {
        return None;
    }
    let args = HelperArgs::try_parse_from(args_os().skip(1));
    let args = args.unwrap_or_else(|error| refused(&error));
    logging::begin(None);
    let done = args.run();
    Some(done.map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS))
}

/// Where a program of this name is: next to this one, else in a directory of PATH.
fn find(name: &str) -> Option<PathBuf> {
    let beside = current_exe().ok().map(|this| this.with_file_name(name));
    let path = var_os("PATH");
    let folders = path.iter().flat_map(split_paths);
    let mut all = beside
        .into_iter()
        .chain(folders.map(|folder| folder.join(name)));
    all.find(|program| program.is_file())
}

/// The program `strata`, for programs that start a recording: this one, or the one that is installed with it.
///
/// # Errors
///
/// If it is neither beside this program nor in PATH.
pub fn strata() -> Result<PathBuf> {
    let this = current_exe().context("cannot find this program")?;
    if !is_part(&this) {
        return Ok(this);
    }
    find(MAIN).context("the program strata is neither beside this one nor in PATH")
}

/// Whether a program is one of those beside `strata`, which may be installed under another name.
fn is_part(program: &Path) -> bool {
    let name = program.file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| name.starts_with("strata-") && name != "strata-extcap")
}

/// Replaces this process with another program of Strata.
///
/// # Errors
///
/// If there is no such program, with the command of `make` that builds it; or if it cannot be run.
pub fn become_program(name: &str, made_by: &str, arguments: &[OsString]) -> Result<()> {
    let Some(program) = find(name) else {
        bail!("{name} is neither beside strata nor in PATH: build it with `{made_by}`");
    };
    let error: io::Error = process::Command::new(&program).args(arguments).exec();
    let does = match error.kind() {
        ErrorKind::PermissionDenied => "may not be run",
        _ => "cannot be run",
    };
    Err(error).with_context(|| format!("{}: {does}", program.display()))
}

/// The commands without subcommands below `command`, each as it is typed after `name`.
#[must_use]
pub fn leaves(command: &clap::Command, name: &str) -> Vec<String> {
    if !command.has_subcommands() {
        return vec![name.to_owned()];
    }
    let below = command.get_subcommands();
    let below = below.flat_map(|one| leaves(one, format!("{name} {}", one.get_name()).trim()));
    below.collect()
}
