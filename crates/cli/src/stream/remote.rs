//! `strata stream tail` of a stream at a server.

use std::io::{self, Write as _};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use strata_node::{StreamClient, StreamEvent, Unread};
use strata_stream::message::From;
use strata_stream::{Cursor, StreamName};

use super::now_ns;
use super::place::Server;
use super::tail::{Args, LAST, say_what_is_missing, show};
use crate::output::{refuse, standard};
use crate::signals::stop_on_signal;
use crate::text;

/// Between looks whether to stop, while nothing comes.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Where to begin.
fn from(args: &Args) -> Result<From> {
    if let Some(since) = &args.since {
        return Ok(From::Since(text::parse_time(since, now_ns()?)?));
    }
    match &args.cursor {
        None => Ok(From::Last(args.records.unwrap_or(LAST))),
        Some(cursor) if cursor.starts_with('@') => Err(refuse(format!(
            "--cursor {cursor}: a server keeps no cursors: keep that of the last record yourself \
             (--json)"
        ))),
        Some(cursor) => {
            let cursor = cursor.parse::<Cursor>();
            let cursor = cursor.map_err(|error| refuse(format!("--cursor: {error}")))?;
            Ok(From::Cursor(cursor))
        }
    }
}

pub(super) fn tail(args: &Args, server: &Server, stream: &StreamName) -> Result<()> {
    let shown = args.shown()?;
    let is_placed = args.cursor.is_some() || args.since.is_some();
    let max = match args.records {
        Some(records) if is_placed || !args.follow => records,
        _ => u64::MAX,
    };
    let stop = stop_on_signal()?;
    let wanted = (from(args)?, max, args.follow);
    let mut client = StreamClient::tail(&server.address, server.tls.as_ref(), stream, wanted)?;
    let mut out = io::BufWriter::with_capacity(1 << 16, standard());
    let mut unread = Unread::default();
    let mut left = max;
    // At the end of what a server sends, it says so.
    while left > 0 && !stop.load(Ordering::Relaxed) {
        let more = client.event(LOOK_EVERY, |event| {
            match event {
                StreamEvent::Entry(entry) => {
                    show(&mut out, shown, &entry)?;
                    left -= 1;
                }
                StreamEvent::Unread(missing, expired) => unread = Unread { missing, expired },
                StreamEvent::Nothing => out.flush()?,
                StreamEvent::Done => return Ok(false),
            }
            Ok::<bool, io::Error>(true)
        })??;
        if !more {
            break;
        }
    }
    out.flush()?;
    say_what_is_missing(unread);
    Ok(())
}
