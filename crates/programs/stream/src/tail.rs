//! `strata stream tail`.

pub(super) mod filter;
pub(super) mod several;

use std::fmt::Write as _;
use std::fs;
use std::io::{self, IsTerminal as _, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::str;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::fs::{OFlags, fcntl_getfl, fstat};
use serde_json::json;
use strata_stream::{Cursor, StreamName};
use strata_stream_run::{Entry, SavedCursor, StreamDir, StreamError, StreamReader, Unread};
use strata_terminal::confined::SandboxArgs;
use strata_terminal::output::{Standard, refuse, standard};
use strata_terminal::signals::stop_on_signal;
use strata_terminal::text;
use strata_wire::{Printable, PrintableJson, exact, grouped, unix_ns};

use self::filter::Filter;
use super::decode::decoded;
use super::place::PlaceArgs;
use super::say_what_is_gone;

/// Between looks at a stream that is followed and does not grow: whether to stop, and whether who
/// appended has crashed.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Between saves of a named cursor.
pub(super) const SAVE_EVERY: Duration = Duration::from_secs(1);
/// Records, if no place is given.
pub(super) const LAST: u64 = 10;
/// Records between two looks whether to stop.
const AT_ONCE: u64 = 10_000;

/// Arguments of `strata stream tail`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata stream tail streams/ kernel                      the last 10 records
  strata stream tail streams/ kernel -f --cursor @alerts  records that 'alerts' has not read yet
  strata stream tail streams/ kernel --since 13:05 --json
  strata stream tail streams/ 'host*' -f --json           of several streams, merged by time
  strata stream tail streams/ logs --cursor 0.0 --where resource.service.name=web
  strata stream tail localhost:4793/kernel -f             from a server (strata stream serve)
  strata stream tail 'localhost:4793/host*' --cursor @siem -f

A cursor is a position between two records, written as page number and offset, such as 17.40960:
with each record, --json prints the cursor after it. A cursor stays valid when records are appended,
when old records are deleted and after a crash; 0.0 is the position before the oldest record. @NAME
is a cursor that the directory or the server stores: it begins at the oldest record, and is saved
every second and at the end. If this process is killed, the next process that uses the cursor prints
the records of the last second again.

With * or ? in the name, the matching streams of the directory or the server (at most 64) are
printed together, in order of time; --follow also finds new streams. With --json, the field stream
has the name of each record's stream. --cursor @NAME keeps a cursor for each stream; -n counts the
records of all streams.

Records are printed unchanged, one per line; on a terminal, control characters are escaped. With
--json, each line is an object: cursor, seq (the record's number), time_ns, and text, or hex if the
record is not UTF-8. A record that came through a server also has producer and its number among the
records of that producer. For records that Strata wrote with --to-stream (grouped packet vectors,
entries of telemetry lists, packets of a relay), decoded has their contents; a terminal shows these
contents too. Standard error shows how many records are missing and how many were deleted before
they were read; after a cursor such as 17.40960, the number of deleted records is unknown.")]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) place: PlaceArgs,
    /// Begin at this cursor: PAGE.OFFSET, or @NAME, a saved one.
    #[arg(long, value_name = "C", conflicts_with = "since")]
    pub(super) cursor: Option<String>,
    /// Begin with the records since this time: 13:05, 2026-01-31T13:05:00Z, or seconds since 1970.
    #[arg(long, value_name = "T")]
    pub(super) since: Option<String>,
    /// Print at most this many records: with --cursor or --since, the first records; else the last
    /// ones (10 by default). --follow then continues with new records.
    #[arg(short = 'n', long, value_name = "N", value_parser = text::number)]
    pub(super) records: Option<u64>,
    /// Print only records that are JSON objects with this value, of those that --cursor, --since, -n
    /// or --follow choose: KEY.KEY=VALUE for one in another object. May be given several times.
    #[arg(long = "where", value_name = "KEY=VALUE")]
    filters: Vec<String>,
    /// Continue with new records as they arrive, until Ctrl-C.
    #[arg(short, long)]
    pub(super) follow: bool,
    /// Print JSON, an object per line.
    #[arg(long, conflicts_with_all = ["framed", "raw"])]
    json: bool,
    /// Print the length of each record before it (4 bytes, little-endian).
    #[arg(long)]
    framed: bool,
    /// Print records with nothing between them, as `strata gpv agent -r -` reads grouped packet
    /// vectors.
    #[arg(long, conflicts_with = "framed")]
    raw: bool,

    #[command(flatten)]
    pub(super) sandbox: SandboxArgs,
}

/// Which records are written, and how.
pub(super) struct Printing {
    shown: Shown,
    filter: Filter,
}

/// How records are written.
#[derive(Clone, Copy)]
enum Shown {
    Json,
    Framed,
    Raw,
    Lines,
    /// To a terminal.
    Escaped,
}

impl Args {
    pub(super) fn printing(&self) -> Result<Printing> {
        let is_placed = self.cursor.is_some() || self.since.is_some() || self.records.is_some();
        if !self.filters.is_empty() && !is_placed && !self.follow {
            return Err(refuse(
                "--where needs records to look at: add --cursor 0.0 (for all), --since, -n or \
                 --follow",
            ));
        }
        Ok(Printing {
            shown: self.shown()?,
            filter: Filter::of(&self.filters)?,
        })
    }

    fn shown(&self) -> Result<Shown> {
        let is_terminal = io::stdout().is_terminal();
        if is_terminal && (self.framed || self.raw) {
            return Err(refuse(
                "--framed and --raw write binary data, and standard output is a terminal: redirect it",
            ));
        }
        match (self.json, self.framed) {
            (true, _) => Ok(Shown::Json),
            (_, true) => Ok(Shown::Framed),
            _ if self.raw => Ok(Shown::Raw),
            _ if is_terminal => Ok(Shown::Escaped),
            _ => Ok(Shown::Lines),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Writes a record, if it is wanted; of several streams, JSON names its stream.
pub(super) fn show(
    out: &mut impl Write,
    printing: &Printing,
    entry: &Entry<'_>,
    stream: Option<&StreamName>,
) -> io::Result<()> {
    if !printing.filter.passes(entry.payload) {
        return Ok(());
    }
    match printing.shown {
        Shown::Json => {
            let (key, value) = match str::from_utf8(entry.payload) {
                Ok(text) => ("text", text.to_owned()),
                Err(_) => ("hex", hex(entry.payload)),
            };
            let mut object = json!({
                "cursor": entry.next.to_string(),
                "seq": entry.seq,
                "time_ns": entry.time_ns,
                key: value,
            });
            if let Some(stream) = stream {
                object["stream"] = stream.as_str().into();
            }
            if let Some(origin) = entry.origin {
                object["producer"] = origin.name.into();
                object["number"] = origin.number.into();
            }
            if let Some(decoded) = decoded(entry.payload) {
                object["decoded"] = decoded;
            }
            writeln!(out, "{}", PrintableJson(&object.to_string()))
        }
        Shown::Framed => {
            out.write_all(&exact::<u32>(entry.payload.len()).to_le_bytes())?;
            out.write_all(entry.payload)
        }
        Shown::Raw => out.write_all(entry.payload),
        Shown::Lines => {
            out.write_all(entry.payload)?;
            out.write_all(b"\n")
        }
        Shown::Escaped => match decoded(entry.payload) {
            Some(decoded) => writeln!(out, "{}", PrintableJson(&decoded.to_string())),
            None => {
                let text = String::from_utf8_lossy(entry.payload);
                writeln!(out, "{}", Printable(&text))
            }
        },
    }
}

/// A cursor that is kept in the directory.
struct Kept<'a> {
    dir: &'a StreamDir,
    stream: &'a StreamName,
    consumer: StreamName,
    saved: SavedCursor,
    at: Instant,
}

impl Kept<'_> {
    fn save(&mut self, reader: &StreamReader) -> Result<()> {
        self.at = Instant::now();
        let unread = reader.unread();
        let saved = SavedCursor {
            cursor: reader.cursor().to_string(),
            next_seq: reader.next_seq(),
            missing: self.saved.missing + unread.missing.0,
            expired: self.saved.expired + unread.expired,
            time_ns: unix_ns(),
        };
        Ok(self.dir.save(self.stream, &self.consumer, &saved)?)
    }
}

/// The name that a cursor is kept under: that of a file.
/// Of the name after `@`.
const NEEDS: &str =
    "a name of 1 to 64 letters, digits, dots, underscores and hyphens is needed, as in @alerts";

pub(super) fn consumer_name(consumer: &str) -> Result<StreamName> {
    if matches!(consumer, "." | "..") {
        return Err(refuse(format!("--cursor @{consumer}: {NEEDS}")));
    }
    if is_closed(&io::stdout())? {
        bail!(
            "--cursor @{consumer}: standard output is closed, so the records would count as read \
             without being printed: redirect standard output to a file, or to /dev/null to skip them"
        );
    }
    consumer
        .parse()
        .map_err(|_| refuse(format!("--cursor @{consumer}: {NEEDS}")))
}

/// Whether standard output was closed when the program started: then it is /dev/null, open for reading and
/// writing.
fn is_closed(stdout: &io::Stdout) -> io::Result<bool> {
    let null = fs::metadata("/dev/null").map(|null| null.rdev()).ok();
    let mode = fcntl_getfl(stdout)? & OFlags::ACCMODE;
    Ok(mode == OFlags::RDWR && Some(fstat(stdout)?.st_rdev) == null)
}

/// A time to begin at, ns since 1970.
pub(super) fn since_ns(since: &str, follow: bool) -> Result<u64> {
    let now_ns = unix_ns();
    let since_ns =
        text::parse_time(since, now_ns).map_err(|error| refuse(format!("--since: {error}")))?;
    if since_ns > now_ns {
        let then = match follow {
            true => "waiting for records from that time on",
            false => "there are no records yet",
        };
        text::warn(&format!(
            "--since {since}: this time is in the future: {then}"
        ));
    }
    Ok(since_ns)
}

/// Where to begin, and the cursor that is kept.
fn begin<'a>(
    args: &Args,
    dir: &'a StreamDir,
    stream: &'a StreamName,
    reader: &mut StreamReader,
) -> Result<Option<Kept<'a>>> {
    if let Some(since) = &args.since {
        reader.seek_time(since_ns(since, args.follow)?)?;
        return Ok(None);
    }
    let Some(cursor) = &args.cursor else {
        reader.seek_last(args.records.unwrap_or(LAST))?;
        return Ok(None);
    };
    let Some(consumer) = cursor.strip_prefix('@') else {
        let cursor = cursor.parse::<Cursor>();
        let cursor = cursor.map_err(|error| refuse(format!("--cursor: {error}")))?;
        reader.seek(cursor, None);
        return Ok(None);
    };
    let consumer = consumer_name(consumer)?;
    let saved = dir.saved(stream, &consumer)?;
    if let Some(saved) = &saved {
        let cursor = saved
            .cursor
            .parse()
            .expect("it was parsed when it was read");
        reader.seek(cursor, saved.next_seq);
    } else {
        reader.seek(Cursor::START, None);
    }
    Ok(Some(Kept {
        dir,
        stream,
        consumer,
        saved: saved.unwrap_or_else(SavedCursor::none),
        at: Instant::now(),
    }))
}

/// Prints the records that are there now, at most `max`; returns their number.
fn print(
    reader: &mut StreamReader,
    out: &mut io::BufWriter<Standard>,
    printing: &Printing,
    max: u64,
) -> Result<u64> {
    let count = reader.read(max, |entry| {
        show(out, printing, entry, None)?;
        Ok::<bool, Failed>(true)
    });
    let count = count.map_err(Failed::into_error)?;
    out.flush()?;
    Ok(count)
}

/// Either end failed.
pub(super) enum Failed {
    Stream(StreamError),
    Output(io::Error),
}

impl From<StreamError> for Failed {
    fn from(error: StreamError) -> Self {
        Self::Stream(error)
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl Failed {
    pub(super) fn into_error(self) -> anyhow::Error {
        match self {
            Self::Stream(error) => error.into(),
            Self::Output(error) => error.into(),
        }
    }
}

/// Nothing comes from there before the stream has grown so far, which may be never.
pub(super) fn say_what_is_after_the_end(cursor: Cursor, end: Cursor, follow: bool) {
    if cursor > end {
        let then = match follow {
            true => "; waiting until the stream reaches it",
            false => "",
        };
        text::warn(&format!(
            "--cursor {cursor}: this cursor is after the end of the stream, {end}: there are no \
             records yet{then}"
        ));
    }
}

pub(super) fn say_what_is_missing(unread: Unread, cursor: Option<&str>) {
    match unread.missing {
        (0, 0) => {}
        (min, max) if min == max => {
            text::warn(&format!(
                "{} missing: lost or damaged (see `strata stream check`)",
                text::count_of(min, "record")
            ));
        }
        (min, max) => {
            text::warn(&format!(
                "between {} and {} records missing: lost or damaged (see `strata stream check`)",
                grouped(min),
                grouped(max)
            ));
        }
    }
    if unread.expired > 0 {
        let count = text::count_of(unread.expired, "record");
        text::warn(&format!("{count} deleted before they were read"));
    }
    if unread.expired_uncounted {
        let cursor = cursor.map(|cursor| format!("--cursor {cursor}: "));
        text::warn(&format!(
            "{}the page at that cursor, and perhaps more, was deleted before it was read: the \
             number of lost records is unknown (a saved cursor, --cursor @NAME, counts them)",
            cursor.as_deref().unwrap_or("")
        ));
    }
}

/// Of a stream in a directory of this machine.
pub(super) fn run(args: &Args, dir: &Path, stream: &StreamName) -> Result<()> {
    let printing = args.printing()?;
    let stop = stop_on_signal()?;
    let path = dir;
    let dir = super::prepare(path)?;
    args.sandbox.confine(&super::reach(path))?;
    let mut reader = dir.read(stream)?;
    let mut kept = begin(args, &dir, stream, &mut reader)?;
    if args.cursor.is_some() {
        say_what_is_after_the_end(reader.cursor(), reader.end(), args.follow);
    }
    let is_placed = args.cursor.is_some() || args.since.is_some();
    let mut left = match args.records {
        // With a place, this number of records; otherwise reading begins that far before the end, and
        // goes on to it, so that lost records after the last one are counted.
        Some(records) if is_placed => records,
        _ => u64::MAX,
    };
    let mut out = io::BufWriter::with_capacity(1 << 16, standard());
    while left > 0 && !stop.load(Ordering::Relaxed) {
        let count = print(&mut reader, &mut out, &printing, left.min(AT_ONCE))?;
        left -= count;
        if let Some(kept) = kept.as_mut().filter(|kept| kept.at.elapsed() >= SAVE_EVERY) {
            kept.save(&reader)?;
        }
        if count > 0 {
            continue;
        }
        if !args.follow {
            break;
        }
        reader.wait(LOOK_EVERY);
        reader.refresh()?;
    }
    if let Some(kept) = &mut kept {
        kept.save(&reader)?;
    }
    say_what_is_gone(&reader.gone_stripes());
    say_what_is_missing(reader.unread(), args.cursor.as_deref());
    Ok(())
}
