//! `strata stream append`.

mod journal;

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use strata_stream::{Cursor, StreamName};
use strata_stream_run::{StreamAppender, Upkeep};
use strata_terminal::confined::SandboxArgs;
use strata_terminal::output::standard;
use strata_terminal::signals::stop_on_signal;
use strata_terminal::text;
use strata_wire::{exact, human_bytes, unix_ns};

use self::journal::{Ended, Entry, Part};
use super::place::{Place, PlaceArgs};
use super::producer::{Producer, ProducerArgs};

/// Bytes read at once.
const CHUNK: usize = 256 << 10;

/// Arguments of `strata stream append`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dmesg --follow | strata stream append streams/ kernel
  strata stream append streams/ events --framed < records.bin
  journalctl -f -o export | strata stream append streams/ journal --format journald
  dmesg --follow | strata stream append localhost:4793/kernel     to a server (strata stream serve)
  dmesg --follow | strata stream append log.example:4793/kernel --spool /var/spool/strata ...

Each line is a record, without its newline; with --framed, each record is preceded by its length in
4 bytes (little-endian). Records are at most 1 MiB long (less if the stream's pages are smaller):
longer ones are skipped and counted, and the exit status is then 1. With --format json, so are
lines that are not JSON. With --format journald, each entry of systemd's journal is a record: the
JSON object that journalctl -o json prints.

Readers see a record at most 0.1 s after it arrives (at a server, usually 0.3 s); after 1 s, it
survives a loss of power. If this process is killed, records that readers can see are kept. At the
end of the input, and on Ctrl-C, all records are synced, including a last line without a newline.

If a stripe (strata stream create --stripe) fails, records that are not yet written to it are lost
and counted, and the exit status is then 1; all other records are in the stream.

In a directory on this machine, one process at a time can append to a stream. A server takes the
records of up to 256 processes, each record once and in its process's order: if the connection or
the server fails, this process connects again and resends the unconfirmed records. Until then, it
keeps them in memory, at most 64 MiB; when this is full, it reads no more input. If the server is
still unreachable 10 s after the end of the input, or its disk is full, the process gives up the
unconfirmed records, counts them, and exits with status 1; some of them may be in the stream.

With --spool, records are first written to a directory on this machine, and are sent from there: an
outage of the server does not stop this process. If the server cannot be reached when the input
ends, the records that were not sent stay in the directory for the next process, and the exit status
is 0. Beyond --spool-max, the oldest records are deleted; those not yet sent are counted.")]
pub(super) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// Append each line as a record (the default).
    #[arg(long, conflicts_with = "framed")]
    lines: bool,
    /// Read records from the input that are each preceded by their length (4 bytes, little-endian).
    #[arg(long)]
    framed: bool,
    /// Read lines, lines that are JSON, or entries of systemd's journal (journalctl -o export).
    #[arg(long, value_name = "FORMAT", value_parser = ["lines", "json", "journald"], conflicts_with_all = ["lines", "framed"])]
    format: Option<String>,

    #[command(flatten)]
    producer: ProducerArgs,

    #[command(flatten)]
    sandbox: SandboxArgs,
}

/// How the input is divided into records.
enum Input {
    Lines {
        /// A line that is too long is being skipped.
        skipping: bool,
        /// Only lines that are JSON are appended.
        is_json: bool,
    },
    Framed,
    /// With the entry that has come in part.
    Journal(Entry),
}

impl Input {
    fn of(args: &Args) -> Self {
        let is_json = match args.format.as_deref() {
            _ if args.framed => return Self::Framed,
            Some("journald") => return Self::Journal(Entry::default()),
            format => format == Some("json"),
        };
        Self::Lines {
            skipping: false,
            is_json,
        }
    }
}

/// What records are appended to.
enum Output {
    Here(Box<StreamAppender>, Upkeep),
    /// At a server.
    There(Box<Producer>),
}

impl Output {
    /// Opens it, in the sandbox.
    fn open(place: Place<StreamName>, args: &Args) -> Result<Self> {
        Ok(match place {
            Place::Here(path, name) => {
                args.producer.refuse_here()?;
                let dir = super::prepare(&path)?;
                args.sandbox.confine(&super::reach(&path))?;
                let mut appender = dir.append(&name, unix_ns())?;
                warn_of_stripes(&mut appender);
                Self::Here(Box::new(appender), Upkeep::new(Instant::now()))
            }
            Place::There(server, name) => {
                let producer = Producer::open(server, &name, &args.producer, &args.sandbox)?;
                Self::There(Box::new(producer))
            }
        })
    }

    fn record_len_max(&self) -> usize {
        match self {
            Self::Here(appender, _) => appender.record_len_max(),
            Self::There(producer) => producer.record_len_max(),
        }
    }

    /// Appends a record; whether it was short enough.
    fn append(&mut self, now_ns: u64, record: &[u8], stop: &AtomicBool) -> Result<bool> {
        if record.len() > self.record_len_max() {
            return Ok(false);
        }
        match self {
            Self::Here(appender, _) => appender.append(now_ns, record)?,
            Self::There(producer) => producer.append(now_ns, record, stop)?,
        }
        Ok(true)
    }

    /// Records came.
    fn appended(&mut self, now: Instant) {
        match self {
            Self::Here(_, upkeep) => upkeep.appended(now),
            Self::There(producer) => producer.appended(now),
        }
    }

    /// When [`Output::keep_up`] has something to do.
    fn due(&self) -> Instant {
        match self {
            Self::Here(_, upkeep) => upkeep.due(),
            Self::There(producer) => producer.due(),
        }
    }

    fn keep_up(&mut self) -> Result<()> {
        match self {
            Self::Here(appender, upkeep) => {
                upkeep.run(appender, Instant::now(), unix_ns())?;
                warn_of_stripes(appender);
            }
            Self::There(producer) => producer.keep_up()?,
        }
        Ok(())
    }

    /// What is in the stream, also after a failure.
    fn close(self) -> Result<Closed> {
        match self {
            Self::Here(mut appender, _) => {
                let now_ns = unix_ns();
                let synced = appender.sync(now_ns);
                warn_of_stripes(&mut appender);
                let (records, lost, end) = (appender.kept(), appender.lost(), appender.end());
                let closed = synced.and_then(|()| appender.close(now_ns));
                let (appended, failure) = match closed {
                    Ok(appended) => (Some(appended), None),
                    Err(error) => (None, Some(error.into())),
                };
                Ok(Closed {
                    records,
                    is_least: false,
                    bytes: appended.filter(|_| lost == 0).map(|all| all.bytes),
                    end: appended.map(|_| end),
                    lost,
                    failure,
                })
            }
            Self::There(producer) => producer.close(),
        }
    }
}

/// What was appended.
pub(super) struct Closed {
    /// Records that are in the stream, and their bytes if that is known.
    pub(super) records: u64,
    /// Whether there may be more.
    pub(super) is_least: bool,
    pub(super) bytes: Option<u64>,
    /// The cursor of the next one; `None` after a failure.
    pub(super) end: Option<Cursor>,
    /// Records that went with a stripe.
    pub(super) lost: u64,
    pub(super) failure: Option<anyhow::Error>,
}

pub(super) fn warn_of_stripes(appender: &mut StreamAppender) {
    for warning in appender.take_warnings() {
        text::warn(&warning);
    }
}

/// Takes records from the input and appends them.
struct Intake<'s> {
    input: Input,
    output: Output,
    stop: &'s AtomicBool,
    /// What was read and not appended.
    held: Vec<u8>,
    /// Bytes of the input before it.
    taken: u64,
    too_long: u64,
    not_json: u64,
}

impl Intake<'_> {
    /// Appends the whole records that have come; at the end of the input, all.
    fn append(&mut self, at_end: bool) -> Result<()> {
        let now_ns = unix_ns();
        let held = std::mem::take(&mut self.held);
        let mut at = 0;
        while at < held.len() {
            let rest = &held[at..];
            let used = match self.input {
                Input::Lines { .. } => self.line(rest, now_ns, at_end)?,
                Input::Framed => self.frame(rest, now_ns, at_end)?,
                Input::Journal(_) => self.field(rest, now_ns, at_end)?,
            };
            if used == 0 {
                break;
            }
            at += used;
            self.taken += used as u64;
        }
        self.held = held;
        self.held.drain(..at);
        match at_end {
            true => self.end_entry(now_ns),
            false => Ok(()),
        }
    }

    /// Appends a line; how many bytes it took. 0: the rest has not come yet.
    fn line(&mut self, rest: &[u8], now_ns: u64, at_end: bool) -> Result<usize> {
        let Input::Lines { skipping, is_json } = &mut self.input else {
            unreachable!("the input has lines");
        };
        let end = memchr(rest);
        let max = self.output.record_len_max();
        let (was_skipping, is_json) = (*skipping, *is_json);
        match end {
            Some(_) => *skipping = false,
            None if at_end => {}
            None if was_skipping || rest.len() > max => {
                self.too_long += u64::from(!was_skipping);
                *skipping = true;
                return Ok(rest.len());
            }
            None => return Ok(0),
        }
        let line = &rest[..end.unwrap_or(rest.len())];
        if !was_skipping {
            match is_json && serde_json::from_slice::<serde_json::Value>(line).is_err() {
                true => self.not_json += 1,
                false => self.put(line, now_ns)?,
            }
        }
        Ok(line.len() + usize::from(end.is_some()))
    }

    fn frame(&mut self, rest: &[u8], now_ns: u64, at_end: bool) -> Result<usize> {
        let len = rest.first_chunk().map(|len| u32::from_le_bytes(*len));
        let max = self.output.record_len_max();
        if let Some(len) = len.filter(|&len| exact::<usize>(len) > max) {
            bail!(
                "standard input: the length at byte {} is {len}, and records may be at most {max} \
                 bytes long: is the input framed (4 bytes of length, little-endian, before each \
                 record)?",
                self.taken
            );
        }
        let record = len.and_then(|len| rest.get(4..4 + exact::<usize>(len)));
        match record {
            Some(record) => {
                self.put(record, now_ns)?;
                Ok(4 + record.len())
            }
            None if at_end => bail!(
                "standard input: the record at byte {} is cut short: {} of its bytes are missing; \
                 the records before it are in the stream",
                self.taken,
                len.map_or(4, |len| 4 + exact::<usize>(len)) - rest.len()
            ),
            None => Ok(0),
        }
    }

    /// Takes a field of an entry of the journal, or its end; how many bytes it took. 0: the rest has not come yet.
    fn field(&mut self, rest: &[u8], now_ns: u64, at_end: bool) -> Result<usize> {
        let max = self.output.record_len_max();
        let Input::Journal(entry) = &mut self.input else {
            unreachable!("the input is a journal");
        };
        let at = self.taken;
        // The JSON of a field has more bytes than its value.
        match entry.take(rest, max) {
            Part::Field(used) => Ok(used),
            Part::End => {
                self.end_entry(now_ns)?;
                Ok(1)
            }
            Part::More(len) if at_end => bail!(
                "standard input: the field at byte {at} is cut short: at least {} of its bytes are missing; the entries \
                 before it are in the stream",
                len.saturating_sub(rest.len())
            ),
            Part::More(_) => Ok(0),
            Part::Wrong(problem) => {
                bail!("standard input: byte {at}: {problem}: is this from journalctl -o export?")
            }
        }
    }

    /// Appends the entry of the journal that has come, if there is one.
    fn end_entry(&mut self, now_ns: u64) -> Result<()> {
        let Input::Journal(entry) = &mut self.input else {
            return Ok(());
        };
        if entry.is_skipping() {
            bail!(
                "standard input: the last field is cut short at byte {}; the entries before it are in the stream",
                self.taken
            );
        }
        match entry.end() {
            Ended::Json(json) => self.put(json.as_bytes(), now_ns)?,
            Ended::TooLong => self.too_long = self.too_long.saturating_add(1),
            Ended::Empty => {}
        }
        Ok(())
    }

    fn put(&mut self, record: &[u8], now_ns: u64) -> Result<()> {
        let is_appended = self.output.append(now_ns, record, self.stop)?;
        self.too_long += u64::from(!is_appended);
        Ok(())
    }
}

/// Where a line ends.
fn memchr(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|&byte| byte == b'\n')
}

/// Waits for input, until a deadline; whether there may be some.
fn wait(stdin: &io::Stdin, deadline: Instant) -> Result<bool> {
    let mut ready = [PollFd::new(stdin, PollFlags::IN)];
    let left = deadline.saturating_duration_since(Instant::now());
    let limit = Timespec {
        tv_sec: left.as_secs().cast_signed(),
        tv_nsec: left.subsec_nanos().into(),
    };
    match poll(&mut ready, Some(&limit)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error).context("cannot read standard input"),
    }
}

fn take_input(intake: &mut Intake<'_>, stop: &AtomicBool) -> Result<()> {
    let stdin = io::stdin();
    while !stop.load(Ordering::Relaxed) {
        if wait(&stdin, intake.output.due())? {
            let start = intake.held.len();
            intake.held.resize(start + CHUNK, 0);
            let read = stdin.lock().read(&mut intake.held[start..]);
            let count = *read.as_ref().unwrap_or(&usize::MIN);
            intake.held.truncate(start + count);
            match read {
                Ok(0) => return intake.append(true),
                Ok(_) => intake.append(false)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot read standard input"),
            }
            intake.output.appended(Instant::now());
        }
        intake.output.keep_up()?;
    }
    // What has come is all there is.
    intake.append(true)
}

fn print(closed: &Closed) -> Result<()> {
    let bytes = closed.bytes.map(human_bytes);
    let bytes = bytes.map(|bytes| format!(", {bytes}"));
    let end = closed
        .end
        .map(|end| format!("; the cursor of the next record is {end}"));
    writeln!(
        standard(),
        "{}{} appended{}{}",
        if closed.is_least { "at least " } else { "" },
        text::count_of(closed.records, "record"),
        bytes.as_deref().unwrap_or(""),
        end.as_deref().unwrap_or(""),
    )?;
    Ok(())
}

pub(super) fn run(args: &Args) -> Result<()> {
    let place = args.place.place()?;
    let stop = stop_on_signal()?;
    let mut intake = Intake {
        input: Input::of(args),
        output: Output::open(place, args)?,
        stop: &stop,
        held: Vec::new(),
        taken: 0,
        too_long: 0,
        not_json: 0,
    };
    let taken = take_input(&mut intake, &stop);
    let (too_long, not_json) = (intake.too_long, intake.not_json);
    // Also after an error: what came before it counts.
    let closed = match (intake.output.close(), taken) {
        (Ok(closed), taken) => {
            print(&closed)?;
            taken?;
            closed
        }
        (Err(_), Err(error)) | (Err(error), Ok(())) => return Err(error),
    };
    let Closed { lost, failure, .. } = closed;
    if let Some(failure) = failure {
        return Err(failure);
    }
    if lost > 0 {
        bail!(
            "{} lost because a stripe failed",
            text::count_of(lost, "record")
        );
    }
    if too_long > 0 {
        bail!(
            "{} left out: too long for the stream",
            text::count_of(too_long, "record")
        );
    }
    if not_json > 0 {
        bail!("{} left out: not JSON", text::count_of(not_json, "line"));
    }
    Ok(())
}
