//! `strata stream to-parquet`: the records of a stream, or those of a time, as one Parquet file.
//!
//! `table` has the columns; here is where records come from, and what is said of those that do not come.

mod table;

use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use strata_store::Sources;
use strata_stream::message::{From, UNCOUNTED};
use strata_stream::{Cursor, StreamName};
use strata_stream_run::{Entry, StreamClient, StreamError, StreamEvent, Unread};
use strata_terminal::output::{Content, Output, refuse};
use strata_terminal::text;
use strata_wire::unix_ns;

use self::table::{Column, RecordTable};
use super::place::{Place, PlaceArgs, Server};
use super::say_what_is_gone;
use super::tail::filter::Filter;
use super::tail::say_what_is_missing;

/// How long a server may say nothing.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Arguments of `strata stream to-parquet`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata stream to-parquet streams/ kernel -w kernel.parquet
  strata stream to-parquet streams/ logs -w noon.parquet --from 12:00 --to 13:00
  strata stream to-parquet streams/ journal -w j.parquet --column MESSAGE --column _SYSTEMD_UNIT
  strata stream to-parquet 192.0.2.10:4793/logs -w web.parquet --where resource.service.name=web \\
      --tls-cert c.crt --tls-key c.key --tls-ca ca.crt
  duckdb -c \"select producer, count(*) from 'kernel.parquet' group by all\"

Columns: time (microseconds, UTC) and time_ns (the nanoseconds below it); seq, the record's number
in the stream; producer and number, if it came through a server; text, the record if it is UTF-8,
or else payload, its bytes; decoded, the contents of a record that Strata wrote, as JSON; then those
of --column.

The file has the records that the stream has at the start. It ends with the first record from --to
on: with the next file from there, no record is in both, unless the clock was set back.

Exit status: 0 if the file has all records in this time that the stream has not deleted (--retain);
1 if some are missing or could not be read (the file then has the others, and standard error says
how many are missing), or on an error, after which there is no file; 2 if the command line is
invalid.")]
pub(super) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// Write to this file, replacing it; - is standard output.
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    write: PathBuf,
    /// Select records from this time on: 13:05, 2026-01-31T13:05 (both local time),
    /// 2026-01-31T13:05:00Z, or seconds since 1970. A time without a date is today.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Select records before this time, in the format of --from.
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Select only records that are JSON objects with this value: KEY.KEY=VALUE for one in another
    /// object. May be given several times.
    #[arg(long = "where", value_name = "KEY=VALUE")]
    filters: Vec<String>,
    /// Add a column with this value of records that are JSON objects: KEY.KEY for one in another
    /// object, NAME=KEY for a column of another name. It has text as it is, other values as JSON.
    /// May be given several times.
    #[arg(long = "column", value_name = "KEY")]
    columns: Vec<String>,
}

/// Records that are written.
struct Selection {
    /// Since then and before then, ns since 1970.
    from_ns: Option<u64>,
    to_ns: Option<u64>,
    filter: Filter,
}

impl Selection {
    fn of(args: &Args) -> Result<Self> {
        let now_ns = unix_ns();
        let time = |option: &str, text: &Option<String>| {
            let text = text.as_deref();
            let time = text.map(|text| text::parse_time(text, now_ns));
            time.transpose()
                .map_err(|error| refuse(format!("{option}: {error}")))
        };
        let (from_ns, to_ns) = (time("--from", &args.from)?, time("--to", &args.to)?);
        if let (Some(from), Some(to)) = (from_ns, to_ns)
            && from >= to
        {
            return Err(refuse(
                "--to: this time is not after --from: no record is between them",
            ));
        }
        Ok(Self {
            from_ns,
            to_ns,
            filter: Filter::of(&args.filters)?,
        })
    }

    /// Whether a record, and all after it, come too late.
    fn is_over(&self, time_ns: u64) -> bool {
        self.to_ns.is_some_and(|to_ns| time_ns >= to_ns)
    }

    fn has(&self, entry: &Entry<'_>) -> bool {
        // A stream begins up to 10 ms before a time.
        self.from_ns.is_none_or(|from_ns| entry.time_ns >= from_ns)
            && self.filter.passes(entry.payload)
    }

    /// Adds a record, if it is wanted; whether more may be.
    fn take(&self, table: &mut RecordTable, entry: &Entry<'_>) -> Result<bool> {
        if self.is_over(entry.time_ns) {
            return Ok(false);
        }
        if self.has(entry) {
            table.push(entry)?;
        }
        Ok(true)
    }
}

/// What a stream did not have.
struct Incomplete {
    unread: Unread,
    stripes: Vec<String>,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let place = args.place.place()?;
    let selection = Selection::of(args)?;
    let columns = Column::all(&args.columns)?;
    let sources = match &place {
        Place::Here(dir, _) => Sources::default().files(files_of(dir)),
        Place::There(..) => Sources::default(),
    };
    let begin = || {
        let output = Output::create(&args.write, Content::Binary, &sources)?;
        RecordTable::create(output, &columns)
    };
    let (records, incomplete) = match &place {
        Place::Here(dir, name) => of_directory(dir, name, &selection, begin)?,
        Place::There(server, name) => of_server(server, name, &selection, begin)?,
    };
    say_what_is_gone(&incomplete.stripes);
    say_what_is_missing(incomplete.unread, None);
    let Unread {
        missing,
        expired,
        expired_uncounted,
    } = incomplete.unread;
    if missing.1 > 0 || expired > 0 || expired_uncounted || !incomplete.stripes.is_empty() {
        bail!(
            "{}: incomplete: {} written, and others are missing",
            args.write.display(),
            text::count_of(records, "record")
        );
    }
    Ok(())
}

/// Files that are not to be replaced.
fn files_of(dir: &Path) -> Vec<PathBuf> {
    let folders = [dir.to_owned(), dir.join("streams")];
    let files = folders
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok());
    let files = files.flatten().filter_map(Result::ok);
    files.map(|file| file.path()).collect()
}

/// Reads a stream of this machine up to its end at the start.
fn of_directory(
    path: &Path,
    name: &StreamName,
    selection: &Selection,
    begin: impl FnOnce() -> Result<RecordTable>,
) -> Result<(u64, Incomplete)> {
    let dir = super::prepare(path)?;
    let mut reader = dir.read(name)?;
    match selection.from_ns {
        Some(from_ns) => reader.seek_time(from_ns)?,
        None => reader.seek(Cursor::START, None),
    }
    let mut table = begin()?;
    let mut failure = None;
    reader.read::<StreamError>(u64::MAX, |entry| match selection.take(&mut table, entry) {
        Ok(more) => Ok(more),
        Err(error) => {
            failure = Some(error);
            Ok(false)
        }
    })?;
    if let Some(error) = failure {
        return Err(error);
    }
    let incomplete = Incomplete {
        unread: reader.unread(),
        stripes: reader.gone_stripes(),
    };
    Ok((table.close()?, incomplete))
}

/// Reads a stream of a server up to its end.
fn of_server(
    server: &Server,
    name: &StreamName,
    selection: &Selection,
    begin: impl FnOnce() -> Result<RecordTable>,
) -> Result<(u64, Incomplete)> {
    let from = match selection.from_ns {
        Some(from_ns) => From::Since(from_ns),
        None => From::Cursor(Cursor::START),
    };
    let (address, tls) = (&server.address, server.tls.as_ref());
    let wanted = (from, u64::MAX, false);
    let mut client = StreamClient::tail(address, tls, name.as_str(), wanted)?;
    let mut table = begin()?;
    let mut unread = Unread::default();
    // The server says what is missing after many records; reading may end at --to before.
    let (mut next_seq, mut gaps) = (None, 0_u64);
    loop {
        let more = client.event(ANSWER_LIMIT, |event| {
            Ok::<_, Infallible>(match event {
                StreamEvent::Entry(entry) => {
                    if let (Some(next), Some(seq)) = (next_seq, entry.seq) {
                        gaps = gaps.saturating_add(u64::saturating_sub(seq, next));
                    }
                    next_seq = entry.seq.map(|seq| seq.saturating_add(1));
                    selection.take(&mut table, &entry)
                }
                StreamEvent::Unread(missing, expired) => {
                    let expired_uncounted = expired == UNCOUNTED;
                    unread = Unread {
                        missing,
                        expired: if expired_uncounted { 0 } else { expired },
                        expired_uncounted,
                    };
                    Ok(true)
                }
                StreamEvent::Nothing => Err(anyhow::anyhow!(
                    "{address}: the server has sent nothing for {} s",
                    ANSWER_LIMIT.as_secs()
                )),
                StreamEvent::Done(_) => Ok(false),
                _ => Ok(true),
            })
        })?;
        let Ok(more) = more;
        if !more? {
            break;
        }
    }
    let lost = gaps.saturating_sub(unread.expired);
    unread.missing = (unread.missing.0.max(lost), unread.missing.1.max(lost));
    let stripes = Vec::new();
    Ok((table.close()?, Incomplete { unread, stripes }))
}
