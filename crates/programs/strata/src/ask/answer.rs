//! Answers: as tables, as text for programs, as files.

mod files;

use std::cmp::Ordering;
use std::io::{IsTerminal, Write, stdout};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use strata_gpv::marple::{Answer, Value, ValueKind};
use strata_role::sandbox::Reach;
use strata_role::{Feed, FeedSpec, Tell};
use strata_store::Sources;
use strata_stream_run::WhenFull;
use strata_terminal::feed::{fed_when, place};
use strata_terminal::listing::{ColumnForm, Reader, table};
use strata_terminal::logging;
use strata_terminal::output::{Content, Output, check, refuse, standard, suffix};
use strata_terminal::text::{self, count_of};
use strata_wire::{Printable, grouped};

use super::Args;
use super::asking::Asking;
use super::questions::Shape;

/// How often a terminal shows the answer so far.
const SHOW_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// Aligned columns.
    Table,
    /// With a header line.
    Csv,
    /// One object per line.
    Json,
    /// An Arrow IPC stream.
    Arrow,
    /// A Parquet file.
    Parquet,
}

impl Format {
    fn of(args: &Args) -> Self {
        if args.to_stream.is_some() {
            return Self::Json;
        }
        args.format
            .or(args.json.then_some(Self::Json))
            .unwrap_or_else(|| match suffix(&args.write).as_str() {
                "csv" => Self::Csv,
                "json" | "jsonl" | "ndjson" => Self::Json,
                "arrow" | "arrows" => Self::Arrow,
                "parquet" => Self::Parquet,
                _ => Self::Table,
            })
    }

    fn content(self) -> Content {
        match self {
            Self::Table | Self::Csv | Self::Json => Content::Text,
            Self::Arrow | Self::Parquet => Content::Binary,
        }
    }

    /// Whether answers with different columns fit into one file.
    fn has_room_for_several(self) -> bool {
        matches!(self, Self::Table | Self::Json)
    }
}

/// By which column of its answer a query's rows are sorted.
#[derive(Clone, Copy, Debug)]
struct Sorted {
    column: usize,
    largest_first: bool,
}

/// An answer, sorted and cut as asked for.
pub(super) struct Answered {
    pub(super) name: String,
    pub(super) text: String,
    pub(super) kinds: Vec<ValueKind>,
    pub(super) answer: Answer,
    /// Remarks on its sampling.
    pub(super) remarks: Vec<String>,
}

/// Where answers go.
pub(super) struct Answers {
    format: Format,
    write: PathBuf,
    sources: Sources,
    shapes: Vec<Shape>,
    sorted: Vec<Option<Sorted>>,
    top: Option<usize>,
    /// Standard output, if that is where answers go.
    outputs: Vec<Output>,
    /// The stream, if that is where answers go: before and after it is opened.
    feed: Option<Box<dyn FeedSpec>>,
    fed: Option<Box<dyn Feed>>,
    is_open: bool,
    shown: Instant,
    /// Whether the screen has an answer.
    has_drawn: bool,
}

impl Answers {
    /// Refuses what cannot be written; opens nothing yet.
    pub(super) fn new(args: &Args, shapes: Vec<Shape>) -> Result<Self> {
        let format = Format::of(args);
        let is_pattern = args.write.to_string_lossy().contains("{}");
        let several = shapes.len() > 1;
        if several && !format.has_room_for_several() && !is_pattern {
            return Err(refuse(
                "several queries have different columns: write a file for each, as in \
                 -w 'answer-{}.csv', or use -F json or table",
            ));
        }
        let sorted = shapes.iter().map(|shape| sorted(args, shape));
        let place = args.to_stream.as_deref().map(place).transpose()?;
        // Answers are there to stay: they wait for the disk.
        let feed = place.map(|place| fed_when(&place, WhenFull::Wait));
        Ok(Self {
            feed: feed.transpose()?,
            fed: None,
            format,
            write: args.write.clone(),
            sources: super::sources(args)?,
            sorted: sorted.collect::<Result<_>>()?,
            shapes,
            top: args.top.map(strata_wire::exact),
            outputs: Vec::new(),
            is_open: false,
            shown: Instant::now(),
            has_drawn: false,
        })
    }

    /// What the source reads, and must not be overwritten.
    pub(super) fn reads(&mut self, sources: Sources) {
        self.sources = sources;
    }

    /// Checks that the files can be written, once the input was opened: before work that may be
    /// long. They are created when there is an answer: a signal would remove them until then.
    pub(super) fn open(&mut self) -> Result<()> {
        if let Some(feed) = self.feed.take() {
            let tell: Tell = Arc::new(logging::notice);
            self.fed = Some(feed.open(&tell)?);
        } else if self.write.as_os_str() == "-" {
            let output = Output::create(&self.write, self.format.content(), &self.sources)?;
            self.outputs.push(output);
        } else {
            for path in self.paths() {
                check(&path, &self.sources)?;
            }
        }
        self.is_open = true;
        self.shown = Instant::now();
        Ok(())
    }

    /// What is needed to write the answers.
    pub(super) fn reach(&self) -> Reach {
        let mut reach = Reach::default();
        if let Some(feed) = &self.feed {
            reach.write.extend(feed.writes());
        } else if self.write.as_os_str() != "-" {
            for path in self.paths() {
                reach.makes(&path);
            }
        }
        reach
    }

    /// The files to write: one for each query, or one for all.
    fn paths(&self) -> Vec<PathBuf> {
        let write = self.write.to_string_lossy().into_owned();
        if !write.contains("{}") {
            return vec![self.write.clone()];
        }
        let safe = |shape: &Shape| shape.name.replace(['/', '\0'], "_");
        let names = self.shapes.iter().map(safe);
        names
            .map(|name| write.replace("{}", &name).into())
            .collect()
    }

    /// Whether there is somewhere to write to.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Shows the answers so far if it is time for that, on a terminal.
    pub(super) fn show(&mut self, asking: &mut Asking) -> Result<()> {
        let is_shown = self.format == Format::Table
            && self.write.as_os_str() == "-"
            && stdout().is_terminal()
            && self.shown.elapsed() >= SHOW_EVERY;
        if !is_shown {
            return Ok(());
        }
        self.shown = Instant::now();
        asking.flush();
        // A terminal that does not know its size reports 0.
        let height = rustix::termios::tcgetwinsize(stdout()).map_or(0, |size| size.ws_row);
        let height = if height == 0 { 24 } else { height };
        let room = usize::from(height).saturating_sub(1).max(2);
        let mut answered = self.arranged(asking.answers());
        let mut hidden = 0;
        for one in &mut answered {
            // Rows that cannot be seen need not be laid out.
            hidden += one.answer.rows.len().saturating_sub(room);
            one.answer.rows.truncate(room);
        }
        let page = pages(&answered);
        let lines: Vec<&str> = page.lines().collect();
        hidden += lines.len().saturating_sub(room);
        // From the top left corner, each line over what was there: a screen that is cleared first
        // flickers.
        let mut drawn = String::from("\x1b[H");
        for line in lines.iter().take(room) {
            drawn += &format!("{line}\x1b[K\n");
        }
        if hidden > 0 {
            drawn += &format!("... {} more lines (--top, --sort)", grouped(hidden as u64));
        }
        drawn += "\x1b[J";
        self.has_drawn = true;
        let mut out = standard();
        write!(out, "{drawn}")?;
        Ok(out.flush()?)
    }

    /// Writes the answers.
    pub(super) fn give(&mut self, asking: &mut Asking) -> Result<()> {
        let answers = asking.answers();
        self.write_all(answers)
    }

    /// Writes these answers, each with the text of its query and the remarks on its sampling.
    pub(super) fn write_all(&mut self, answers: Vec<(String, Vec<String>, Answer)>) -> Result<()> {
        let answered = self.arranged(answers);
        if let Some(feed) = self.fed.take() {
            return fill(feed, &answered);
        }
        let mut outputs = std::mem::take(&mut self.outputs);
        if outputs.is_empty() {
            for path in self.paths() {
                let output = Output::create(&path, self.format.content(), &self.sources)?;
                outputs.push(output);
            }
        }
        if std::mem::take(&mut self.has_drawn) {
            // The answer takes the place of those before it.
            for output in &mut outputs {
                output.write_all(b"\x1b[H\x1b[2J")?;
            }
        }
        let one_each = outputs.len() == answered.len();
        for (number, mut output) in outputs.into_iter().enumerate() {
            let these = match one_each {
                true => &answered[number..=number],
                false => &answered,
            };
            self.write(&mut output, these)?;
            output.finish()?;
        }
        Ok(())
    }

    fn write(&self, output: &mut Output, answered: &[Answered]) -> Result<()> {
        match self.format {
            Format::Table => Ok(output.write_all(pages(answered).as_bytes())?),
            Format::Json => files::json(output, answered),
            Format::Csv => answered.iter().try_for_each(|a| files::csv(output, a)),
            Format::Arrow => answered.iter().try_for_each(|a| files::arrow(output, a)),
            Format::Parquet => answered.iter().try_for_each(|a| files::parquet(output, a)),
        }
    }

    fn arranged(&self, answers: Vec<(String, Vec<String>, Answer)>) -> Vec<Answered> {
        let parts = answers.into_iter().zip(&self.shapes).zip(&self.sorted);
        let arranged = parts.map(|(((text, remarks, mut answer), shape), sorted)| {
            sort(&mut answer.rows, shape, *sorted);
            if let Some(top) = self.top {
                answer.rows.truncate(top);
            }
            Answered {
                name: shape.name.clone(),
                text,
                kinds: shape.kinds.clone(),
                answer,
                remarks,
            }
        });
        arranged.collect()
    }
}

/// Appends the rows to a stream: each row is a record.
fn fill(mut feed: Box<dyn Feed>, answered: &[Answered]) -> Result<()> {
    files::json_rows(answered, |line| Ok(feed.put(line.as_bytes())?))?;
    let counts = feed.finish()?;
    if counts.lost > 0 {
        let lost = count_of(counts.lost, "row");
        bail!("{lost} not appended to the stream");
    }
    Ok(())
}

fn sorted(args: &Args, shape: &Shape) -> Result<Option<Sorted>> {
    let Some(text) = &args.sort else {
        return Ok(None);
    };
    let column = text.trim_start_matches('-');
    let (name, names) = (&shape.name, &shape.columns);
    let at = names.iter().position(|known| known == column);
    let at = at.ok_or_else(|| {
        let names = names.join(", ");
        refuse(format!("--sort {text}: the columns of {name} are {names}"))
    })?;
    Ok(Some(Sorted {
        column: at,
        largest_first: text.starts_with('-'),
    }))
}

/// The columns that say whose packet a row is.
const FLOW: [&str; 5] = ["srcip", "dstip", "srcport", "dstport", "proto"];

/// Rows in an order that does not depend on how they were found: by all columns, those of packets
/// by their time first; before that, by the column asked for. Packets of a flow that have the same
/// time stay in the order in which they came.
fn sort(rows: &mut [Vec<Value>], shape: &Shape, by: Option<Sorted>) {
    let time = shape.kinds.iter().position(|kind| *kind == ValueKind::Time);
    let time = time.filter(|_| shape.is_of_packets);
    let has_flow = FLOW
        .iter()
        .all(|name| shape.columns.iter().any(|column| column == name));
    let is_compared = |at: usize| {
        let keeps_order = shape.is_of_packets && has_flow;
        !keeps_order || FLOW.contains(&shape.columns[at].as_str())
    };
    rows.sort_by(|a, b| {
        let by_column = by.map_or(Ordering::Equal, |by| {
            let order = compare(&a[by.column], &b[by.column]);
            if by.largest_first {
                order.reverse()
            } else {
                order
            }
        });
        let by_time = || time.map_or(Ordering::Equal, |at| compare(&a[at], &b[at]));
        let all = || {
            let pairs = a.iter().zip(b).enumerate();
            pairs
                .filter(|(at, _)| is_compared(*at))
                .map(|(_, (a, b))| compare(a, b))
                .find(|order| order.is_ne())
                .unwrap_or(Ordering::Equal)
        };
        by_column.then_with(by_time).then_with(all)
    });
}

fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => a.cmp(b),
        (Value::Real(a), Value::Real(b)) => a.total_cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Address(a), Value::Address(b)) => a.cmp(b),
        _ => unreachable!("a column has one kind"),
    }
}

/// All answers as tables; with several, each after its name.
fn pages(answered: &[Answered]) -> String {
    let mut page = String::new();
    for (number, one) in answered.iter().enumerate() {
        if answered.len() > 1 {
            let gap = if number > 0 { "\n" } else { "" };
            page += &format!("{gap}{}:\n", Printable(&one.name));
        }
        page += &page_of(one);
    }
    page
}

fn page_of(answered: &Answered) -> String {
    let columns: Vec<ColumnForm> = answered
        .kinds
        .iter()
        .map(|kind| match kind {
            ValueKind::Int | ValueKind::Real => ColumnForm::numbers(0).apart(),
            ValueKind::Time | ValueKind::Bool | ValueKind::Address => ColumnForm::words(0).apart(),
        })
        .collect();
    let cell = |(value, kind): (&Value, &ValueKind)| match (value, kind) {
        (Value::Int(ns), ValueKind::Time) => {
            u64::try_from(*ns).map_or_else(|_| ns.to_string(), text::time)
        }
        (Value::Int(int), _) => int.to_string(),
        (Value::Real(real), _) => real_text(*real),
        (Value::Bool(bool), _) => bool.to_string(),
        (Value::Address(address), _) => address.to_string(),
    };
    let rows = answered.answer.rows.iter();
    let rows = rows.map(|row| row.iter().zip(&answered.kinds).map(cell).collect());
    let head = answered.answer.names.clone();
    table(
        Reader::of_stdout(),
        &columns,
        std::iter::once(head).chain(rows),
    )
}

/// A number for people: up to six decimals.
fn real_text(real: f64) -> String {
    let text = format!("{real:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    match text {
        "" | "-0" => String::from("0"),
        text => text.to_owned(),
    }
}
