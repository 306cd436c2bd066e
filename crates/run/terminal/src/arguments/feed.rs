//! Streams that commands write their records to (`--to-stream`).

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use strata_role::{FeedCounts, FeedSpec};
use strata_stream::StreamName;
use strata_stream_run::{FedStream, StreamDir, StreamFeed, WhenFull};
use strata_wire::grouped;

use crate::output::{refuse, standard};
use crate::text;

/// The name of a stream or a consumer, as given on the command line.
pub fn name(text: &str) -> Result<StreamName> {
    text.parse()
        .map_err(|error: strata_stream::NameError| refuse(error.to_string()))
}

/// The directory and the name of a stream, as `--to-stream` has them.
pub fn place(text: &str) -> Result<(PathBuf, StreamName)> {
    named_place("--to-stream", text)
}

/// The same, for another option.
pub fn named_place(option: &str, text: &str) -> Result<(PathBuf, StreamName)> {
    let Some((dir, stream)) = text.rsplit_once('/') else {
        return Err(refuse(format!(
            "{option} {text}: write DIR/NAME, a directory of streams and a stream in it"
        )));
    };
    let dir = if dir.is_empty() { "/" } else { dir };
    Ok((dir.into(), name(stream)?))
}

/// The stream that a role's records go to as well, which does not wait for it: before it is in its sandbox.
pub fn fed(text: &str) -> Result<Box<dyn FeedSpec>> {
    fed_when(&place(text)?, WhenFull::Lose)
}

/// As [`fed`], for records that can wait, or cannot.
pub fn fed_when(
    (dir, name): &(PathBuf, StreamName),
    when_full: WhenFull,
) -> Result<Box<dyn FeedSpec>> {
    Ok(Box::new(FedStream::open(dir, name, when_full)?))
}

/// A stream that the records of a command go to, which waits for it if the records can wait.
pub fn feed((dir, stream): &(PathBuf, StreamName), when_full: WhenFull) -> Result<StreamFeed> {
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
pub fn say_fed(counts: Option<FeedCounts>) -> Result<()> {
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
