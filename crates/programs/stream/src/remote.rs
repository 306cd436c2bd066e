//! `strata stream tail` of a stream at a server.

use std::convert::Infallible;
use std::io::{self, Write as _};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Result;
use strata_role::sandbox::Reach;
use strata_stream::message::{From, UNCOUNTED};
use strata_stream::{Cursor, StreamName};
use strata_stream_run::{StreamClient, StreamEvent, Unread};
use strata_terminal::output::{refuse, standard};
use strata_terminal::signals::stop_on_signal;

use super::place::Server;
use super::tail::{Args, LAST, say_what_is_after_the_end, say_what_is_missing, show, since_ns};

/// Between looks whether to stop, while nothing comes.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a server may take to say where a stream ends.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Where to begin.
fn from(args: &Args) -> Result<From> {
    if let Some(since) = &args.since {
        return Ok(From::Since(since_ns(since, args.follow)?));
    }
    match &args.cursor {
        None => Ok(From::Last(args.records.unwrap_or(LAST))),
        Some(cursor) if cursor.starts_with('@') => Err(refuse(format!(
            "--cursor {cursor}: a server keeps no cursors: keep the cursor of the last record \
             yourself (--json)"
        ))),
        Some(cursor) => {
            let cursor = cursor.parse::<Cursor>();
            let cursor = cursor.map_err(|error| refuse(format!("--cursor: {error}")))?;
            Ok(From::Cursor(cursor))
        }
    }
}

/// Where a stream ends now.
fn end(server: &Server, stream: &StreamName) -> Result<Option<Cursor>> {
    let wanted = (From::Last(0), 1, false);
    let mut client = StreamClient::tail(&server.address, server.tls.as_ref(), stream, wanted)?;
    let deadline = Instant::now() + END_LIMIT;
    while Instant::now() < deadline {
        let end = client.event(LOOK_EVERY, |event| {
            Ok::<_, Infallible>(match event {
                // One was appended meanwhile.
                StreamEvent::Entry(entry) => Some(entry.next),
                StreamEvent::Done(end) => Some(end),
                StreamEvent::Unread(..) | StreamEvent::Nothing => None,
            })
        })?;
        let Ok(end) = end;
        if end.is_some() {
            return Ok(end);
        }
    }
    // The records themselves may come all the same.
    Ok(None)
}

pub(super) fn tail(args: &Args, server: &Server, stream: &StreamName) -> Result<()> {
    let shown = args.shown()?;
    let is_placed = args.cursor.is_some() || args.since.is_some();
    let max = match args.records {
        Some(records) if is_placed || !args.follow => records,
        _ => u64::MAX,
    };
    let stop = stop_on_signal()?;
    let from = from(args)?;
    args.sandbox.confine(&Reach::default())?;
    if let From::Cursor(cursor) = from
        && cursor > Cursor::START
        && let Some(end) = end(server, stream)?
    {
        say_what_is_after_the_end(cursor, end, args.follow);
    }
    let wanted = (from, max, args.follow);
    let mut client = StreamClient::tail(&server.address, server.tls.as_ref(), stream, wanted)?;
    let mut out = io::BufWriter::with_capacity(1 << 16, standard());
    let mut unread = Unread::default();
    // At the end of what a server sends, it says so: after the last record, what is missing comes.
    while !stop.load(Ordering::Relaxed) {
        let more = client.event(LOOK_EVERY, |event| {
            match event {
                StreamEvent::Entry(entry) => show(&mut out, shown, &entry, None)?,
                StreamEvent::Unread(missing, expired) => {
                    let expired_uncounted = expired == UNCOUNTED;
                    unread = Unread {
                        missing,
                        expired: if expired_uncounted { 0 } else { expired },
                        expired_uncounted,
                    };
                }
                StreamEvent::Nothing => out.flush()?,
                StreamEvent::Done(_) => return Ok(false),
            }
            Ok::<bool, io::Error>(true)
        })??;
        if !more {
            break;
        }
    }
    out.flush()?;
    say_what_is_missing(unread, args.cursor.as_deref());
    Ok(())
}
