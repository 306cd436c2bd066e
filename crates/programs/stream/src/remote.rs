//! `strata stream tail` of a stream at a server, or of several.

use std::convert::Infallible;
use std::io::{self, Write as _};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use strata_role::sandbox::Reach;
use strata_stream::message::{From, UNCOUNTED};
use strata_stream::{Cursor, StreamName};
use strata_stream_run::{SeveralFrom, StreamClient, StreamEvent, Unread};
use strata_terminal::output::{refuse, standard};
use strata_terminal::signals::stop_on_signal;
use strata_terminal::text;
use strata_wire::Printable;

use super::place::{Named, Server};
use super::tail::several;
use super::tail::{
    Args, LAST, SAVE_EVERY, consumer_name, say_what_is_after_the_end, say_what_is_missing, show,
    since_ns,
};

/// Between looks whether to stop, while nothing comes.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a server may take to say where a stream ends, or that it has saved a cursor.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Where to begin.
fn from(args: &Args) -> Result<From> {
    if let Some(since) = &args.since {
        return Ok(From::Since(since_ns(since, args.follow)?));
    }
    match &args.cursor {
        None => Ok(From::Last(args.records.unwrap_or(LAST))),
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
    let name = stream.as_str();
    let mut client = StreamClient::tail(&server.address, server.tls.as_ref(), name, wanted)?;
    let deadline = Instant::now() + END_LIMIT;
    while Instant::now() < deadline {
        let end = client.event(LOOK_EVERY, |event| {
            Ok::<_, Infallible>(match event {
                // One was appended meanwhile.
                StreamEvent::Entry(entry) => Some(entry.next),
                StreamEvent::Done(end) => Some(end),
                _ => None,
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

/// Waits until the server has saved the cursor after this number of records. What it has sent meanwhile is not printed,
/// and comes again.
fn wait_until_saved(client: &mut StreamClient, records: u64, consumer: &StreamName) -> Result<()> {
    let deadline = Instant::now() + END_LIMIT;
    while Instant::now() < deadline {
        let is_saved = client.event(LOOK_EVERY, |event| {
            Ok::<_, Infallible>(matches!(event, StreamEvent::Saved(saved) if saved >= records))
        })?;
        let Ok(is_saved) = is_saved;
        if is_saved {
            return Ok(());
        }
    }
    bail!(
        "--cursor @{consumer}: the server has not saved it for {} s: the next reader with this name may print some of \
         these records again",
        END_LIMIT.as_secs()
    )
}

/// Where to begin in several streams.
fn from_several(args: &Args) -> Result<From> {
    Ok(match several::begin(args)? {
        SeveralFrom::Last(records) => From::Last(records),
        SeveralFrom::Since(time_ns) => From::Since(time_ns),
        SeveralFrom::Start | SeveralFrom::Kept(..) => From::Cursor(Cursor::START),
    })
}

pub(super) fn tail(args: &Args, server: &Server, named: &Named) -> Result<()> {
    let printing = args.printing()?;
    let is_placed = args.cursor.is_some() || args.since.is_some();
    let max = match args.records {
        Some(records) if is_placed => records,
        _ => u64::MAX,
    };
    let stop = stop_on_signal()?;
    let consumer = args
        .cursor
        .as_deref()
        .and_then(|cursor| cursor.strip_prefix('@'));
    let consumer = consumer.map(consumer_name).transpose()?;
    let from = match (named, &consumer) {
        (Named::Several(_), _) => from_several(args)?,
        (Named::One(_), Some(_)) => From::Cursor(Cursor::START),
        (Named::One(_), None) => from(args)?,
    };
    args.sandbox.confine(&Reach::default())?;
    if let (From::Cursor(cursor), Named::One(stream)) = (from, named)
        && cursor > Cursor::START
        && let Some(end) = end(server, stream)?
    {
        say_what_is_after_the_end(cursor, end, args.follow);
    }
    let (address, tls) = (&server.address, server.tls.as_ref());
    let name = match named {
        Named::One(stream) => stream.as_str(),
        Named::Several(pattern) => pattern.as_str(),
    };
    let mut client = match &consumer {
        Some(consumer) => {
            StreamClient::tail_kept(address, tls, (name, consumer), (max, args.follow))?
        }
        None => StreamClient::tail(address, tls, name, (from, max, args.follow))?,
    };
    let mut printed = 0_u64;
    let mut took_at = Instant::now();
    let mut out = io::BufWriter::with_capacity(1 << 16, standard());
    let mut unread = Unread::default();
    // Of several streams, that of the next records.
    let mut current: Option<StreamName> = None;
    let mut is_incomplete = false;
    // At the end of what a server sends, it says so: after the last record, what is missing comes.
    while !stop.load(Ordering::Relaxed) {
        let more = client.event(LOOK_EVERY, |event| {
            match event {
                StreamEvent::Entry(entry) => {
                    show(&mut out, &printing, &entry, current.as_ref())?;
                    printed += 1;
                }
                StreamEvent::Of(name) => {
                    let name = name.parse::<StreamName>();
                    current = Some(name.map_err(io::Error::other)?);
                }
                StreamEvent::Warning(said) => {
                    text::warn(&Printable(said).to_string());
                    is_incomplete = true;
                }
                StreamEvent::Saved(_) => {}
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
        if consumer.is_some() && took_at.elapsed() >= SAVE_EVERY {
            out.flush()?;
            client.took(printed)?;
            took_at = Instant::now();
        }
    }
    out.flush()?;
    if let Some(consumer) = &consumer {
        client.took(printed)?;
        wait_until_saved(&mut client, printed, consumer)?;
    }
    say_what_is_missing(unread, args.cursor.as_deref());
    if is_incomplete {
        bail!("{}: some streams were not read", server.address);
    }
    Ok(())
}
