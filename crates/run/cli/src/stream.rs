//! `strata stream`: records appended to named streams in a directory, and read from any place.
//!
//! ```text
//! append   standard input to a stream
//! tail     a stream to standard output
//! serve    both over TCP; `place` says where a stream is, `remote` is tail of one elsewhere
//! decode   records that Strata itself has written, as JSON
//! manage   create, list, check
//! ```

mod append;
mod decode;
mod manage;
mod place;
mod remote;
mod serve;
mod tail;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use strata_role::sandbox::Reach;
use strata_role::{FeedCounts, FeedSpec};
use strata_stream::StreamName;
use strata_stream_run::{FedStream, StreamDir, StreamFeed, WhenFull, paths_of};
use strata_wire::grouped;

use self::place::Place;
use crate::logging::LoggingArgs;
use crate::output::{refuse, standard};
use crate::text;

/// Arguments of `strata stream`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Create a stream, and its directory if missing.
    Create(manage::CreateArgs),
    /// Append records from standard input to a stream.
    Append(append::Args),
    /// Print records of a stream: the last ones, or those from a cursor or a time on.
    Tail(tail::Args),
    /// Let others append to streams of a directory, and read them, over TCP.
    Serve(Box<serve::Args>),
    /// List the streams of a directory: sizes, rates, consumers and their lag.
    List(manage::ListArgs),
    /// Read every record of every stream of a directory; report missing and damaged ones.
    Check(manage::CheckArgs),
}

impl Args {
    /// Whether it runs until stopped.
    pub(crate) fn is_long_running(&self) -> bool {
        matches!(self.command, Command::Serve(_))
    }

    /// Its logging options, if it has any.
    pub(crate) fn logging(&self) -> Option<&LoggingArgs> {
        match &self.command {
            Command::Serve(args) => Some(&args.logging),
            _ => None,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Create(args) => manage::create(args),
        Command::Append(args) => append::run(args),
        Command::Tail(args) => match args.place.place()? {
            Place::Here(dir, name) => tail::run(args, &dir, &name),
            Place::There(server, name) => remote::tail(args, &server, &name),
        },
        Command::Serve(args) => serve::run(args),
        Command::List(args) => manage::list(args),
        Command::Check(args) => manage::check(args),
    }
}

/// The name of a stream or a consumer, as given on the command line.
fn name(text: &str) -> Result<StreamName> {
    text.parse()
        .map_err(|error: strata_stream::NameError| refuse(error.to_string()))
}

/// The directory and the name of a stream, as `--to-stream` has them.
pub(crate) fn place(text: &str) -> Result<(PathBuf, StreamName)> {
    let Some((dir, stream)) = text.rsplit_once('/') else {
        return Err(refuse(format!(
            "--to-stream {text}: write DIR/NAME, a directory of streams and a stream in it"
        )));
    };
    let dir = if dir.is_empty() { "/" } else { dir };
    Ok((dir.into(), name(stream)?))
}

/// The stream that a role's records go to as well, which does not wait for it: before it is in its sandbox.
pub(crate) fn fed(text: &str) -> Result<Box<dyn FeedSpec>> {
    fed_when(&place(text)?, WhenFull::Lose)
}

/// As [`fed`], for records that can wait, or cannot.
pub(crate) fn fed_when(
    (dir, name): &(PathBuf, StreamName),
    when_full: WhenFull,
) -> Result<Box<dyn FeedSpec>> {
    Ok(Box::new(FedStream::open(dir, name, when_full)?))
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

/// A stream that the records of a command go to, which waits for it if the records can wait.
pub(crate) fn feed(
    (dir, stream): &(PathBuf, StreamName),
    when_full: WhenFull,
) -> Result<StreamFeed> {
    let named = format!("{}/{stream}", dir.display());
    let dir = StreamDir::open(dir)?;
    let warn = move |said: &str| text::warn(&format!("stream {named}: {said}"));
    Ok(StreamFeed::open(
        dir,
        stream,
        when_full,
        Box::new(warn),
        || (),
    )?)
}

/// Says what became of the records that a command gave to a stream, if it did.
pub(crate) fn say_fed(counts: Option<FeedCounts>) -> Result<()> {
    let Some(counts) = counts else {
        return Ok(());
    };
    writeln!(
        standard(),
        "to the stream: {}, {} lost",
        text::count_of(counts.written, "record"),
        grouped(counts.lost),
    )?;
    Ok(())
}

/// Says which stripes of a directory cannot be read.
fn say_what_is_gone(stripes: &[String]) {
    for stripe in stripes {
        text::warn(&format!(
            "{stripe}: its records are missing while it is gone"
        ));
    }
}
