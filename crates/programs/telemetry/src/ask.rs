//! `strata telemetry get`, `list`, `top`, `status`: queries of a store.

use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::Value;
use strata_control::metrics::Format;
use strata_dta::key::Key;
use strata_telemetry_run::api::answer::{TelemetryCount, TelemetryTime, TelemetryValue};
use strata_telemetry_run::api::metrics;
use strata_telemetry_run::api::status::{TelemetryEntry, TelemetryStatus};
use strata_telemetry_run::{
    EntryKind, TelemetryStore, shown, telemetry_is_written, telemetry_status,
};
use strata_terminal::listing::{ColumnForm, Reader, listing};
use strata_terminal::output::{Standard, refuse, standard};
use strata_terminal::signals::stop_on_signal;
use strata_terminal::{bounded, text};
use strata_wire::{exact, grouped};

use super::rows::{of_collector, of_run};
use super::shown::line;

/// Between looks at a list that is followed.
const POLL: Duration = Duration::from_millis(100);

const KEYS: &str = "\
Keys: an address (10.0.0.1), a flow (10.0.0.1:1024 > 10.0.0.2:80 tcp; quote it, or write - for >), a
node (node 7), a queue (node 7 port 3 queue 1), a flow at a node (node 7 10.0.0.1:1024 >
10.0.0.2:80 tcp), or bytes (0x0a000001).";

/// Arguments of `strata telemetry get`.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{KEYS}

Exit status: 1 if the store has neither a value nor a count of the key."))]
pub(super) struct GetArgs {
    /// The directory of the store.
    store: PathBuf,
    /// The key, as one argument or several.
    #[arg(required = true)]
    key: Vec<String>,
    /// Read this many copies of the value: the redundancy in its reports, if you know it. The
    /// default always finds the value.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=4))]
    redundancy: u8,
    /// Answer only if at least this many copies agree. With 1, the value may, rarely, be that of
    /// another key.
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=4))]
    agree: u8,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `strata telemetry list`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Entries of `congestion` and `drops`, from the built-in INT table, name a node, its port and its
queue. Entries of `anomalies` and `losses`, from recordings (`strata record --report-to`), and of
lists that a watch fills, name a flow. Entries of all other lists are shown as bytes.")]
pub(super) struct ListArgs {
    /// The directory of the store.
    store: PathBuf,
    /// The name or the number of the list.
    name: Option<String>,
    /// Continue with new entries as they arrive, until Ctrl-C.
    #[arg(short, long, requires = "name")]
    follow: bool,
    /// Begin with this many of the last entries, instead of all; with --follow, 0 prints new
    /// entries only.
    #[arg(short = 'n', long, value_name = "N", requires = "name", value_parser = text::number)]
    last: Option<u64>,
    /// Print JSON, an object per line.
    #[arg(long)]
    json: bool,
}

/// Arguments of `strata telemetry top`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Counters have no keys: the collector remembers the keys with the largest counts, at least 512 of
them (with --generations G, at least 512 / G for each generation). If there were more keys, the last
line gives the count below which keys may be missing.

A count may be too large, and `strata telemetry get` shows by how much. It is not too small unless
counters are reset or halved, or reach 2^64.

With several collectors, each has only its own keys: query all of them.")]
pub(super) struct TopArgs {
    /// The directory of the store.
    store: PathBuf,
    /// Show this many keys.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20, value_parser = bounded::count::<1, 1024>)]
    number: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `strata telemetry status`.
#[derive(Debug, clap::Args)]
pub(super) struct StatusArgs {
    /// The directory of the store.
    store: PathBuf,
    /// Print JSON: all counters, in total and by reporter.
    #[arg(long)]
    json: bool,
    /// Print metrics in the text format of Prometheus, for the textfile collector of its node
    /// exporter.
    #[arg(long, conflicts_with = "json")]
    metrics: bool,
}

pub(super) fn parse_key(words: &[String]) -> Result<Key> {
    let parsed = words.join(" ").parse::<Key>();
    parsed.map_err(|error| refuse(error.to_string()))
}

fn json_line(value: &Value) -> Result<()> {
    Ok(writeln!(standard(), "{value}")?)
}

pub(super) fn json_of(answer: &impl Serialize) -> Result<()> {
    json_line(&serde_json::to_value(answer)?)
}

pub(super) fn get(args: &GetArgs) -> Result<()> {
    let key = parse_key(&args.key)?;
    if args.agree > args.redundancy {
        return Err(refuse(format!(
            "--agree {}: more copies than --redundancy {} reads",
            args.agree, args.redundancy
        )));
    }
    let mut store = TelemetryStore::open(&args.store)?;
    let answer = store.answer_key(&key, args.redundancy, args.agree);
    let Some(answer) = answer else {
        bail!(store.unknown(&key, false));
    };
    if args.json {
        return json_of(&answer);
    }
    let mut out = standard();
    if answer.generations.is_empty() {
        if let Some(value) = &answer.value {
            writeln!(out, "value {}", value_text(value))?;
        }
        if let Some(count) = &answer.count {
            writeln!(out, "count {}", count_text(count))?;
        }
        return Ok(());
    }
    let generations = &answer.generations;
    for one in generations {
        if let Some(value) = &one.value {
            writeln!(out, "value {}{}", value_text(value), of(one.time))?;
        }
    }
    for one in generations {
        if let Some(count) = &one.count {
            writeln!(out, "count {}{}", count_text(count), of(one.time))?;
        }
    }
    Ok(())
}

/// Which generation something is of, as the end of a sentence.
pub(super) fn of(time: TelemetryTime) -> String {
    let begun = text::time(time.begun_ns);
    match time.ended_ns {
        None => format!(", since {begun}"),
        Some(ended) => format!(", {begun} to {}", text::time(ended)),
    }
}

fn value_text(value: &TelemetryValue) -> String {
    let copies = if value.agreeing == 1 {
        "copy"
    } else {
        "copies"
    };
    let number = value.number;
    let number = number.map_or_else(String::new, |number| format!("{} ", grouped(number)));
    format!("{number}({}), {} {copies}", value.bytes, value.agreeing)
}

fn count_text(count: &TelemetryCount) -> String {
    let excess = excess_text(count.excess_max, count.doubt);
    format!("{}, {excess}", grouped(count.at_most))
}

fn excess_text(excess_max: f64, doubt: f64) -> String {
    let excess_max = excess_max.floor();
    let sure = (1.0 - doubt) * 100.0;
    format!("at most {excess_max:.0} too large in {sure:.1} % of cases")
}

fn print_entry(out: &mut Standard, entry: &TelemetryEntry, json: bool) -> Result<()> {
    Ok(match json {
        true => writeln!(out, "{}", serde_json::to_string(entry)?),
        false => writeln!(out, "{}", line(entry)),
    }?)
}

pub(super) fn list(args: &ListArgs) -> Result<()> {
    let mut store = TelemetryStore::open(&args.store)?;
    let Some(name) = &args.name else {
        return lists(&store, args.json);
    };
    let (list, kind) = store.find_list(name).map_err(refuse)?;
    let stop = stop_on_signal()?;
    if args.follow {
        strata_terminal::confined::follower(Some(&args.store), None)?;
    }
    let mut cursor = store.cursor(list);
    // What is there when it begins; of its oldest entries, more may be gone than was ever to be read.
    let last = args.last.map(exact::<usize>);
    let mut entries = VecDeque::new();
    store.read(&mut cursor, |bytes| {
        entries.push_back(shown::entry(kind, bytes));
        if last.is_some_and(|last| entries.len() > last) {
            entries.pop_front();
        }
    });
    let mut ending = false;
    loop {
        let mut out = standard();
        for entry in entries.drain(..) {
            print_entry(&mut out, &entry, args.json)?;
        }
        out.flush()?;
        drop(out);
        if !args.follow || ending {
            return Ok(());
        }
        thread::sleep(POLL);
        // Once more after the signal: what was there by then is shown.
        ending = stop.load(Ordering::Relaxed);
        let missed = store.read(&mut cursor, |bytes| {
            entries.push_back(shown::entry(kind, bytes));
        });
        if missed > 0 {
            text::warn(&format!(
                "{} overwritten or lost before they were read",
                text::count_of(missed, "entry").replace("entrys", "entries")
            ));
        }
    }
}

fn lists(store: &TelemetryStore, json: bool) -> Result<()> {
    if json {
        return json_of(&store.answer_lists());
    }
    let rows = store.lists().iter().map(|list| {
        let what = match list.entries {
            EntryKind::NodeEvent => "events of nodes",
            EntryKind::FlowEvent => "events of flows",
            EntryKind::Bytes => "bytes",
        };
        [list.number.to_string(), list.name.clone(), what.to_owned()]
    });
    let columns = [
        ColumnForm::numbers(4),
        ColumnForm::words(12).apart(),
        ColumnForm::words(1),
    ];
    let page = listing(Reader::of_stdout(), columns, rows);
    Ok(write!(standard(), "{page}")?)
}

pub(super) fn top(args: &TopArgs) -> Result<()> {
    let mut store = TelemetryStore::open(&args.store)?;
    let top = store.answer_top(args.number);
    if args.json {
        return json_of(&top);
    }
    let rows = top
        .keys
        .into_iter()
        .map(|row| [grouped(row.count), row.key]);
    let columns = [ColumnForm::numbers(12), ColumnForm::words(1).apart()];
    let page = listing(Reader::of_stdout(), columns, rows);
    let mut out = standard();
    write!(out, "{page}")?;
    let excess = excess_text(top.excess_max, top.doubt);
    writeln!(out, "counts are {excess}")?;
    match top.missing_below {
        Some(0) => {}
        Some(below) => writeln!(
            out,
            "keys below a count of {} may be missing",
            grouped(below)
        )?,
        None => writeln!(
            out,
            "keys of any count may be missing: an earlier version of Strata wrote this store"
        )?,
    }
    Ok(())
}

fn damaged(store: &Path) -> String {
    let store = store.display();
    format!(
        "{store}/status.json is damaged: it is written again every second while the collector runs"
    )
}

/// What a store's process has said last. If none writes the store any more, though it said that it runs, it was killed.
fn read_status(store: &Path) -> Result<Value> {
    let is_idle = || telemetry_is_written(store) == Some(false);
    let was_idle = is_idle();
    let text = telemetry_status(store)?;
    let text = text.with_context(|| {
        let store = store.display();
        format!("{store}: no status.json yet: the collector writes it within a second")
    })?;
    let mut status: Value = serde_json::from_str(&text).with_context(|| damaged(store))?;
    // One that has just begun wrote its status in between.
    if status["running"] == true && was_idle && is_idle() {
        status["running"] = false.into();
        status["killed"] = true.into();
    }
    Ok(status)
}

pub(super) fn status(args: &StatusArgs) -> Result<()> {
    let status = read_status(&args.store)?;
    if args.json {
        return Ok(writeln!(standard(), "{status:#}")?);
    }
    let status: TelemetryStatus =
        serde_json::from_value(status).with_context(|| damaged(&args.store))?;
    if args.metrics {
        let page = metrics::page(&status, Format::Prometheus);
        return Ok(write!(standard(), "{page}")?);
    }
    let rows = match &status {
        TelemetryStatus::Collector(collector) => of_collector(collector),
        TelemetryStatus::Run(run) => of_run(run),
    };
    let rows = rows.with_context(|| damaged(&args.store))?;
    let rows = rows
        .into_iter()
        .map(|(name, value)| [name.to_owned(), value]);
    let columns = [ColumnForm::words(18), ColumnForm::words(1)];
    let page = listing(Reader::of_stdout(), columns, rows);
    Ok(write!(standard(), "{page}")?)
}
