//! `strata stream`: records appended to named streams in a directory, and read from any place.
//!
//! ```text
//! append   standard input to a stream
//! tail     a stream to standard output
//! serve    both over TCP; `place` says where a stream is, `remote` is tail of one elsewhere
//! decode   records that Strata itself has written, as JSON
//! manage   create, list, check
//! to_parquet  a stream as a Parquet file
//! ```
#![forbid(unsafe_code)]

mod append;
#[cfg(test)]
#[path = "../../strata/tests/it/common/commands.rs"]
mod commands;
mod decode;
mod manage;
mod place;
mod producer;
mod remote;
mod serve;
mod tail;
mod to_parquet;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory as _, Parser};
use strata_role::sandbox::Reach;
use strata_stream_run::{StreamDir, paths_of};
use strata_terminal::feed::name;
use strata_terminal::logging::LoggingArgs;
use strata_terminal::program::{self, Program};
use strata_terminal::text;

use self::place::{Named, Place};

/// Append records to named streams on disk, and read them from any position.
#[derive(Debug, Parser)]
#[command(
    name = "strata-stream",
    bin_name = "strata stream",
    max_term_width = 100
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Create a stream, and its directory if missing.
    Create(manage::CreateArgs),
    /// Append records from standard input to a stream.
    Append(append::Args),
    /// Print records of a stream: the last ones, or those after a cursor or since a time.
    Tail(tail::Args),
    /// Serve the streams of a directory over TCP: clients append to them and read them.
    Serve(Box<serve::Args>),
    /// Write the records of a stream, or those of a time, to a Parquet file.
    ToParquet(to_parquet::Args),
    /// List the streams of a directory: sizes, rates, consumers and their lag.
    List(manage::ListArgs),
    /// Read every record of every stream in a directory; report missing and damaged records.
    Check(manage::CheckArgs),
}

impl Program for Args {
    fn is_long_running(&self) -> bool {
        matches!(self.command, Command::Serve(_))
    }

    fn logging(&self) -> Option<&LoggingArgs> {
        match &self.command {
            Command::Serve(args) => Some(&args.logging),
            _ => None,
        }
    }

    fn run(&self) -> Result<()> {
        match &self.command {
            Command::Create(args) => manage::create(args),
            Command::Append(args) => append::run(args),
            Command::Tail(args) => match args.place.one_or_several()? {
                Place::Here(dir, Named::One(name)) => tail::run(args, &dir, &name),
                Place::Here(dir, Named::Several(pattern)) => {
                    tail::several::run(args, &dir, &pattern)
                }
                Place::There(server, named) => remote::tail(args, &server, &named),
            },
            Command::Serve(args) => serve::run(args),
            Command::ToParquet(args) => to_parquet::run(args),
            Command::List(args) => manage::list(args),
            Command::Check(args) => manage::check(args),
        }
    }
}

fn main() -> ExitCode {
    program::main::<Args>(Args::command())
}

/// The directory of a stream, with what is needed of servers that have stripes of it: before a command is
/// in its sandbox.
fn prepare(dir: &Path) -> Result<StreamDir> {
    let dir = StreamDir::open(dir)?;
    dir.meet_servers()?;
    Ok(dir)
}

/// What a command needs that appends to a stream of this directory, or reads it.
fn reach(dir: &Path) -> Reach {
    Reach {
        write: paths_of(dir),
        ..Reach::default()
    }
}

/// Says which stripes of a directory cannot be read.
fn say_what_is_gone(stripes: &[String]) {
    for stripe in stripes {
        text::warn(&format!(
            "cannot read {stripe}; its records are skipped: is its disk mounted, or its server \
             running?"
        ));
    }
}

/// A new command says whether it runs until it is stopped: then it has a sandbox and attacks.
#[test]
fn every_command_is_known_to_run_for_long_or_to_end() {
    commands::are_known(program::leaves(&Args::command(), "stream"), &["stream"]);
}
