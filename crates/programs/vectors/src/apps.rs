//! Applications of vectors (section 6.2 of the *Flow paper) as commands: what each computes is in
//! `strata_gpv::application`.
//!
//! ```text
//! bursts profile classify     an application for each switch, and its rows
//! spread                      an application in several threads, each with its part of the flows
//! rows                        rows as a table, CSV, JSON or Parquet, or into a stream, as they come
//! ```

mod bursts;
mod classify;
mod profile;
mod rows;
mod spread;

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use anyhow::{Result, bail};
use strata_gpv::agent::{ReassemblyOptions, Record};
use strata_gpv::{Column, Columns, Full, Grouped as _, Key, KeyHasher};
use strata_gpv_run::{COLUMN_NAMES, GivenRecord, RecordOutput, Sender, VectorError};
use strata_role::sandbox::Reach;
use strata_role::{FeedSpec, Tell};
use strata_stream_run::WhenFull;
use strata_terminal::confined::SandboxArgs;
use strata_terminal::feed::{fed_when, place};
use strata_terminal::logging;
use strata_terminal::output::{check, refuse};
use strata_terminal::selection::vectors::{self, FrameForm, Missing, SENDERS_MAX};
use strata_terminal::signals::finish_on_signal;
use strata_terminal::table::Cell;
use strata_terminal::text::{self, count_of};
use strata_wire::{AddressFamily, grouped, ip_addr};
use tracing::info;

pub(super) use bursts::{BurstsArgs, bursts};
pub(super) use classify::{ClassifyArgs, classify};
pub(super) use profile::{ProfileArgs, profile};

use self::rows::{Format, Rows};
use self::spread::Spread;
use super::failed;

/// Where vectors come from, and where rows go.
#[derive(Debug, clap::Args)]
pub(super) struct AppArgs {
    /// Read the vectors in this file or ring buffer of `strata gpv run` (- is standard input), in all
    /// files of this directory, or, with stream://DIR/NAME, in this stream; or, with
    /// udp://ADDRESS:PORT, receive vectors that switches send to this address, until Ctrl-C.
    #[arg(value_name = "FROM")]
    from: String,

    /// Continue with vectors that are written to the directory or stream later, until Ctrl-C.
    #[arg(long)]
    follow: bool,

    /// Read FROM as a capture file of the frames in which the switch of the *Flow paper exports
    /// vectors (EtherTypes 0x081a and 0x081b).
    #[arg(long, value_name = "FORM", value_enum)]
    frames: Option<FrameForm>,

    /// Accept vectors only from this network; may be given several times. Required unless the
    /// address is a loopback address.
    #[arg(long, value_name = "CIDR")]
    allow: Vec<String>,

    /// Write to this file, replacing it; - is standard output.
    #[arg(short = 'w', long = "write", value_name = "FILE", default_value = "-")]
    write: PathBuf,

    /// Append the rows to this stream (`strata stream create` makes one) instead of writing a file:
    /// each row is a record with a JSON object. Rows of vectors that come by UDP, by a ring or with
    /// --follow never wait for the disk: rows that the stream cannot take in time are missing from
    /// it, and counted.
    #[arg(long, value_name = "DIR/NAME", conflicts_with_all = ["write", "format", "json"])]
    to_stream: Option<String>,

    /// Set the format. By default, the file's name decides: csv for .csv, json for .json, parquet
    /// for .parquet; table for all other names.
    #[arg(short = 'F', long, value_enum)]
    format: Option<Format>,

    /// Print JSON, an object per line, as with --format json.
    #[arg(long, conflicts_with = "format")]
    json: bool,

    #[command(flatten)]
    sandbox: SandboxArgs,
}

impl AppArgs {
    /// Whether strangers may send the vectors.
    fn is_udp(&self) -> bool {
        self.from.starts_with("udp://")
    }

    /// The stream that rows go to, before the command is in its sandbox.
    fn feed(&self, is_live: bool) -> Result<Option<Box<dyn FeedSpec>>> {
        let when_full = match is_live {
            true => WhenFull::Lose,
            false => WhenFull::Wait,
        };
        let place = self.to_stream.as_deref().map(place).transpose()?;
        place.map(|place| fed_when(&place, when_full)).transpose()
    }
}

/// Maximum memory for records of all senders, if anyone may send, and of those in a file.
const RECORDS_BYTES_MAX: u64 = 256 << 20;
const RECORDS_OF_FILE_MAX: u64 = 1 << 30;

/// Switches of which the state is kept, also if they are no longer heard.
const STATES_MAX: usize = 64;

/// Of applications that do not need a flow in one piece.
const SHORT: ReassemblyOptions = ReassemblyOptions {
    flows: 8192,
    tuples_max: 64,
    interval_ns: 100_000_000,
};

/// An application at work: one state for each switch, since flows and queues are of a switch. With several threads, each
/// thread has states of its own.
trait App: Sync {
    /// What it makes of the vectors of a switch.
    type State;

    /// Columns that vectors must have, in addition to times.
    fn needs(&self) -> Columns;

    /// Whether rows are of whole flows, so that a flow that is given early counts as incomplete.
    fn is_of_flows(&self) -> bool {
        false
    }

    /// The state of a switch that was not heard before.
    fn begin(&self, seed: u64) -> Self::State;

    /// Takes a record of a switch, and gives the rows that it completes.
    fn take(
        &self,
        state: &mut Self::State,
        record: &Record<'_, Full>,
        out: &mut Out<'_>,
    ) -> Result<()>;

    /// Gives the rows of the records that were taken, as far as they are known.
    fn settle(&self, _state: &mut Self::State, _out: &mut Out<'_>) -> Result<()> {
        Ok(())
    }

    /// Gives the other rows, when no more vectors come. What the rows lack is in the text.
    fn finish(&self, state: Self::State, out: &mut Out<'_>) -> Result<Option<String>>;

    /// Chooses the thread: packets of equal numbers are taken by one thread.
    fn part(&self, key: &Key, hasher: &KeyHasher) -> u64 {
        hasher.hash(key)
    }
}

/// The place of a row among others that come at the same time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct Place {
    /// The switch, when no more vectors come.
    switch: Option<Sender>,
    /// The number of a record, or another number of the application.
    number: u64,
    /// An address of the switch.
    host: u128,
}

/// Takes rows.
trait Sink {
    /// Takes a row: one cell per column, of the column's kind.
    fn push(&mut self, place: Place, cells: &[Cell<'_>]) -> Result<()>;
}

/// Rows are written as they come.
impl Sink for Rows {
    fn push(&mut self, _place: Place, cells: &[Cell<'_>]) -> Result<()> {
        self.write(cells)
    }
}

/// Where the rows of a switch go.
struct Out<'a> {
    /// The switch, the first cell of each row.
    switch: &'a str,
    /// The place of the next rows.
    place: Place,
    rows: &'a mut dyn Sink,
}

impl Out<'_> {
    fn push(&mut self, cells: &[Cell<'_>]) -> Result<()> {
        self.rows.push(self.place, cells)
    }
}

/// The states of an application in a thread.
struct States<'a, A: App> {
    app: &'a A,
    seed: u64,
    states: HashMap<Sender, (String, A::State)>,
}

impl<'a, A: App> States<'a, A> {
    fn new(app: &'a A, seed: u64) -> Self {
        Self {
            app,
            seed,
            states: HashMap::new(),
        }
    }

    /// Takes a record of a switch, and the number of the record.
    fn take(
        &mut self,
        sender: Sender,
        number: u64,
        record: &Record<'_, Full>,
        rows: &mut dyn Sink,
    ) -> Result<()> {
        let (app, seed) = (self.app, self.seed);
        let state = self.states.entry(sender);
        let begin = || (switch_text(&sender.to_string()), app.begin(seed));
        let (switch, state) = state.or_insert_with(begin);
        let mut out = Out {
            switch: &*switch,
            place: Place {
                number,
                ..Place::default()
            },
            rows,
        };
        app.take(state, record, &mut out)
    }

    /// Gives the rows of the records that were taken, as far as they are known.
    fn settle(&mut self, rows: &mut dyn Sink) -> Result<()> {
        for (switch, state) in self.states.values_mut() {
            let mut out = Out {
                switch: &*switch,
                place: Place::default(),
                rows: &mut *rows,
            };
            self.app.settle(state, &mut out)?;
        }
        Ok(())
    }

    /// Gives the rows that wait for the end. What the rows lack.
    fn finish(self, rows: &mut dyn Sink) -> Result<Vec<String>> {
        let mut states: Vec<_> = self.states.into_iter().collect();
        states.sort_unstable_by_key(|(sender, _)| *sender);
        let mut lacks = Vec::new();
        for (sender, (switch, state)) in states {
            let mut out = Out {
                switch: &switch,
                place: Place {
                    switch: Some(sender),
                    ..Place::default()
                },
                rows: &mut *rows,
            };
            lacks.extend(self.app.finish(state, &mut out)?);
        }
        Ok(lacks)
    }
}

/// Where records are taken.
enum Work<'scope, 'a, A: App> {
    Here(States<'a, A>),
    Spread(Spread<'scope>),
}

/// Records into the states of an application.
struct Taking<'scope, 'a, A: App> {
    app: &'a A,
    work: Work<'scope, 'a, A>,
    senders: HashSet<Sender>,
    rows: Rows,
    records: u64,
    packets: u64,
    /// Packets of vectors without a column that is needed, and its name.
    without: u64,
    lacks: Option<&'static str>,
    /// Packets of switches for which there was no room.
    refused: u64,
    hasher: KeyHasher,
    failure: Option<anyhow::Error>,
}

impl<'scope, 'a, A: App> Taking<'scope, 'a, A> {
    fn new(app: &'a A, work: Work<'scope, 'a, A>, rows: Rows, seed: u64) -> Self {
        Self {
            app,
            work,
            senders: HashSet::new(),
            rows,
            records: 0,
            packets: 0,
            without: 0,
            lacks: None,
            refused: 0,
            hasher: KeyHasher::new(seed),
            failure: None,
        }
    }

    fn take(&mut self, given: &GivenRecord<'_>) -> Result<()> {
        let packets = given.record.count() as u64;
        let lacks = Columns(self.app.needs().0 & !given.known.0);
        if let Some(column) = lacks.iter().next() {
            // Anyone may send such vectors; those of others are taken.
            self.without = self.without.saturating_add(packets);
            self.lacks = Some(name_of(column));
            return Ok(());
        }
        let has_room = self.senders.len() < STATES_MAX;
        if !has_room && !self.senders.contains(&given.sender) {
            self.refused = self.refused.saturating_add(packets);
            return Ok(());
        }
        self.senders.insert(given.sender);
        self.packets = self.packets.saturating_add(packets);
        let (sender, number, record) = (given.sender, self.records, given.record);
        self.records = number.saturating_add(1);
        match &mut self.work {
            Work::Here(states) => states.take(sender, number, record, &mut self.rows),
            Work::Spread(spread) => {
                let part = self.app.part(record.key(), &self.hasher);
                spread.take(part, sender, number, record, &mut self.rows)
            }
        }
    }

    /// Gives the rows that wait for the end. What the rows lack.
    fn finish(self) -> Result<(Rows, u64, Vec<String>)> {
        let mut rows = self.rows;
        let mut lacks = Vec::new();
        if let Some(name) = self.lacks {
            if self.packets == 0 {
                return Err(refuse(format!(
                    "the vectors do not have {name}, which this command needs"
                )));
            }
            lacks.push(format!(
                "{} left out: their vectors do not have {name}",
                count_of(self.without, "packet")
            ));
        }
        if self.refused > 0 {
            lacks.push(format!(
                "{} left out: vectors came from more than {STATES_MAX} switches",
                count_of(self.refused, "packet")
            ));
        }
        lacks.extend(match self.work {
            Work::Here(states) => states.finish(&mut rows)?,
            Work::Spread(spread) => spread.finish(&mut rows)?,
        });
        Ok((rows, self.packets, lacks))
    }

    fn try_to(&mut self, what: impl FnOnce(&mut Self) -> Result<()>) -> ControlFlow<()> {
        if self.failure.is_none() {
            self.failure = what(self).err();
        }
        match self.failure {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    }
}

impl<A: App> RecordOutput for Taking<'_, '_, A> {
    fn put(&mut self, given: &GivenRecord<'_>) {
        let _ = self.try_to(|taking| taking.take(given));
    }

    fn keep_up(&mut self) -> Result<(), VectorError> {
        let _ = self.try_to(|taking| taking.rows.show());
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.failure.is_some()
    }

    fn expired(&mut self) {
        // Of vectors that come as they are made, rows wait no longer than records.
        let _ = self.try_to(|taking| match &mut taking.work {
            Work::Here(_) => Ok(()),
            Work::Spread(spread) => spread.settle(&mut taking.rows),
        });
    }
}

fn name_of(column: Column) -> &'static str {
    let named = COLUMN_NAMES.iter().find(|(_, known)| *known == column);
    named
        .map(|(name, _)| *name)
        .expect("every column has a name")
}

/// A switch in words: its number, behind its address and # if vectors come by UDP.
fn switch_text(name: &str) -> String {
    name.trim_start_matches('#').to_owned()
}

/// An address of a flow.
fn address(family: AddressFamily, address: u128) -> String {
    ip_addr(family, address).map_or_else(String::new, |address| address.to_string())
}

/// Runs an application over the vectors of `args`, put together into records as in `reassembly`, in `jobs` threads.
fn run<A: App>(
    args: &AppArgs,
    jobs: usize,
    others: &[PathBuf],
    columns: &[rows::Column],
    app: &A,
    reassembly: ReassemblyOptions,
) -> Result<()> {
    let source = vectors::source("FROM", &args.from, &args.allow, args.follow, args.frames)?;
    let sources = source.files(others);
    let seed = strata_gpv_run::seed().map_err(failed)?;
    let sender_bytes = u64::from(reassembly.flows) * (329 + 28 * u64::from(reassembly.tuples_max));
    let bytes_max = match source.is_udp() {
        true => RECORDS_BYTES_MAX,
        false => RECORDS_OF_FILE_MAX,
    };
    let senders_max = (bytes_max / sender_bytes).clamp(1, SENDERS_MAX as u64);
    let senders_max = strata_wire::exact(senders_max);
    let reader = source.open(reassembly, senders_max)?;
    let feed = args.feed(source.is_live())?;
    let mut reach = Reach::default();
    source.reach(&mut reach);
    match &feed {
        Some(feed) => reach.write.extend(feed.writes()),
        None if args.write.as_os_str() == "-" => {}
        None => {
            check(&args.write, &sources)?;
            reach.makes(&args.write);
        }
    }
    args.sandbox.confine(&reach)?;
    // Only now: writing a file starts a thread, which waits for signals.
    let stop = finish_on_signal()?;
    let tell: Tell = Arc::new(logging::notice);
    let rows = match feed {
        Some(feed) => Rows::to_stream(feed.open(&tell)?, columns),
        None => {
            let json = args.json.then_some(Format::Json);
            let format = Format::of(args.format.or(json), &args.write);
            Rows::create(&args.write, format, &sources, columns)?
        }
    };
    if let Some(notice) = reader.notice().map_err(failed)? {
        tell(&notice);
    }
    let (read, ended, finished) = thread::scope(|scope| {
        let work = match jobs {
            0 | 1 => Work::Here(States::new(app, seed)),
            _ => Work::Spread(Spread::new(scope, app, seed, jobs)),
        };
        let mut taking = Taking::new(app, work, rows, seed);
        let (read, ended) = reader.read(&mut taking, &stop, &tell);
        let finished = match taking.failure.take() {
            Some(failure) => Err(failure),
            None => taking.finish(),
        };
        (read, ended, finished)
    });
    let (rows, packets, lacks) = finished?;
    let written = rows.finish()?;
    info!(
        "{} processed; {} written",
        count_of(packets, "packet"),
        count_of(written.rows, "row")
    );
    let missing = Missing::of(&read);
    let mut incomplete: Vec<_> = missing.incomplete.into_iter().chain(lacks).collect();
    if written.lost > 0 {
        incomplete.push(format!(
            "{} not appended to the stream",
            count_of(written.lost, "row")
        ));
    }
    if app.is_of_flows() && read.received.early > 0 {
        incomplete.push(format!(
            "{} were cut short, because at most {} are tracked at once: their rows cover only part of a flow",
            count_of(read.received.early, "flow"),
            grouped(reassembly.flows.into())
        ));
    }
    for said in missing.remarks.iter().chain(&incomplete) {
        text::warn(said);
    }
    ended.map_err(failed)?;
    if !incomplete.is_empty() {
        bail!("the rows are incomplete (see the warnings above)");
    }
    Ok(())
}
