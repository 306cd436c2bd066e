//! `strata stream tail` of several streams of a directory, merged by the times of their records.

use std::io::{self, Write as _};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use strata_stream::{Cursor, NamePattern};
use strata_stream_run::{
    ReaderPlaces, SEVERAL_MAX, SeveralFrom, SeveralReader, SeveralWarning, StreamError,
};
use strata_terminal::output::{refuse, standard};
use strata_terminal::signals::stop_on_signal;
use strata_terminal::text;

use super::{Args, Failed, LAST, SAVE_EVERY, consumer_name, say_what_is_missing, show, since_ns};
use crate::say_what_is_gone;

/// The last records that can be found among those of several streams: 8 bytes of memory for each and stream.
const LAST_MAX: u64 = 1_000_000;
/// Between looks at streams that are followed and have nothing new.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Records between two looks at the time.
const AT_ONCE: u64 = 256;

/// Where to begin in each stream.
pub(crate) fn begin(args: &Args) -> Result<SeveralFrom> {
    if let Some(since) = &args.since {
        return Ok(SeveralFrom::Since(since_ns(since, args.follow)?));
    }
    let Some(cursor) = &args.cursor else {
        let last = args.records.unwrap_or(LAST);
        if last > LAST_MAX {
            return Err(refuse(format!(
                "-n {last}: with several streams, -n can be at most {LAST_MAX}; for more records, give --cursor or --since"
            )));
        }
        return Ok(SeveralFrom::Last(last));
    };
    if let Some(consumer) = cursor.strip_prefix('@') {
        return Ok(SeveralFrom::Kept(consumer_name(consumer)?, None));
    }
    match cursor.parse::<Cursor>() {
        Ok(Cursor::START) => Ok(SeveralFrom::Start),
        Ok(_) => Err(refuse(format!(
            "--cursor {cursor}: is a position in one stream: for several streams, write @NAME, or 0.0 for all records"
        ))),
        Err(error) => Err(refuse(format!("--cursor: {error}"))),
    }
}

/// Prints warnings; whether one is of matching streams that are left out.
fn warn(warnings: Vec<SeveralWarning>) -> bool {
    let mut is_left_out = false;
    for warning in warnings {
        match warning {
            SeveralWarning::Unreadable(_, error) => {
                text::warn(&text::chain(&anyhow::Error::from(error)));
            }
            SeveralWarning::LeftOut(said) => {
                text::warn(&said);
                is_left_out = true;
            }
        }
    }
    is_left_out
}

/// Of the streams of a directory of this machine whose names match.
pub(crate) fn run(args: &Args, path: &Path, pattern: &NamePattern) -> Result<()> {
    let printing = args.printing()?;
    let stop = stop_on_signal()?;
    let from = begin(args)?;
    let is_kept = matches!(from, SeveralFrom::Kept(..));
    let max = match (args.records, &from) {
        (Some(records), SeveralFrom::Since(_) | SeveralFrom::Start | SeveralFrom::Kept(..)) => {
            records
        }
        _ => u64::MAX,
    };
    let dir = crate::prepare(path)?;
    args.sandbox.confine(&crate::reach(path))?;
    let places = ReaderPlaces::new(SEVERAL_MAX);
    let mut reader = SeveralReader::open(&dir, pattern, from, &places)?;
    let mut is_left_out = warn(reader.take_warnings());
    if reader.is_empty() && !args.follow {
        bail!(
            "{}: no stream matches {}: `strata stream list` lists the streams",
            path.display(),
            pattern.as_str()
        );
    }
    let mut out = io::BufWriter::with_capacity(1 << 16, standard());
    let mut saved_at = Instant::now();
    while reader.sent() < max && !stop.load(Ordering::Relaxed) {
        let most = AT_ONCE.min(max - reader.sent());
        let read = reader.read(most, |name, entry| {
            Ok::<(), Failed>(show(&mut out, &printing, entry, Some(name))?)
        });
        let count = read.map_err(Failed::into_error)?;
        if count == 0 {
            out.flush()?;
        }
        if is_kept && (saved_at.elapsed() >= SAVE_EVERY || reader.is_ahead()) {
            out.flush()?;
            save(&mut reader)?;
            saved_at = Instant::now();
        }
        if count == 0 {
            if !args.follow {
                break;
            }
            reader.look(LOOK_EVERY)?;
            is_left_out |= warn(reader.take_warnings());
        }
    }
    out.flush()?;
    if is_kept {
        save(&mut reader)?;
    }
    say_what_is_gone(&dir.gone_stripes()?);
    say_what_is_missing(reader.unread(), args.cursor.as_deref());
    let unreadable = reader.unreadable();
    if unreadable > 0 {
        bail!(
            "{} of {} cannot be read",
            text::count_of(unreadable as u64, "stream"),
            path.display()
        );
    }
    if is_left_out {
        bail!(
            "some streams of {} that match {} were not read: at most {SEVERAL_MAX} are read together",
            path.display(),
            pattern.as_str()
        );
    }
    Ok(())
}

/// Saves the cursors after what was printed.
fn save(reader: &mut SeveralReader) -> Result<(), StreamError> {
    reader.took(reader.sent());
    reader.save()?;
    Ok(())
}
