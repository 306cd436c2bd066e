//! `strata telemetry get`, `list`, `top`, `status`: queries of a store.

use std::collections::{BTreeMap, VecDeque};
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
use strata_telemetry_run::api::status::{
    CollectorStatus, FrameStatus, GenerationsStatus, IntStatus, KeyWriteStatus, LinkStatus,
    ProcessStatus, ReporterStatus, RunStatus, ShareStatus, TelemetryEntry, TelemetryStatus,
};
use strata_telemetry_run::{
    EntryKind, TelemetryStore, shown, telemetry_is_written, telemetry_status,
};
use strata_terminal::listing::{ColumnForm, Reader, listing};
use strata_terminal::output::{Standard, refuse, standard};
use strata_terminal::signals::stop_on_signal;
use strata_terminal::{bounded, text};
use strata_wire::{Printable, exact, grouped};

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
    /// Read this many copies of the value: the number that its reports requested, if you know it.
    /// The default finds the value in any case.
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
them (with --generations G, at least 512 / G for each generation). If there were more, the last line
gives the count below which keys may be missing.

A count is never too small; `strata telemetry get` shows by how much it may be too large.

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
    /// Print JSON: all counters, also by reporter.
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

/// The number of values that can still be read, and what the formula expects.
#[allow(clippy::cast_precision_loss, reason = "a share need not be exact")]
fn estimate(values: &KeyWriteStatus, has_generations: bool) -> String {
    let since = match has_generations {
        true => "this generation began",
        false => "the start",
    };
    let sampled = values.sampled.filter(|&sampled| sampled > 0);
    let shares = sampled.zip(values.answered.zip(values.answers_expected));
    let load = values.load;
    let load = load.map_or_else(|| "?".to_owned(), |load| format!("{load:.2}"));
    match shares {
        Some((sampled, (answered, expected))) => format!(
            "{load} writes a slot; {:.1} % of those written since {since} can be queried, {:.1} % \
             by the formula",
            answered as f64 / sampled as f64 * 100.0,
            expected / sampled as f64 * 100.0,
        ),
        None => format!("{load} writes a slot"),
    }
}

/// How many reporters there are, and what came of those for whom there was no place.
fn reporters(all: &[ReporterStatus]) -> String {
    let is = |reporter: &ReporterStatus, name| reporter.address.as_deref() == Some(name);
    let others = all.iter().find(|&reporter| is(reporter, "others"));
    let own = |reporter: &&ReporterStatus| !is(reporter, "others") && !is(reporter, "int");
    let count = all.iter().filter(own).count();
    match others.and_then(|others| others.reports) {
        Some(reports) => format!(
            "{}, the maximum that is counted separately; {} reports of others",
            grouped(count as u64),
            grouped(reports)
        ),
        None => grouped(count as u64),
    }
}

/// How many generations there are, and since when the youngest fills.
fn generation_row(generations: &GenerationsStatus) -> String {
    let said = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |n| n.to_string());
    let count = said(generations.count.map(u64::from));
    let period = said(generations.period_seconds);
    let since = generations.present.first().and_then(|one| one.begun_ns);
    let since = since.map_or_else(|| "?".to_owned(), text::time);
    let clearing = match generations.clearing {
        Some(true) => "; the next is being cleared",
        _ => "",
    };
    let there = generations.present.len();
    format!("{there} of {count}, of {period} s each; the youngest since {since}{clearing}")
}

/// The youngest generation, to which a translator's reports go.
fn youngest_row(generations: &GenerationsStatus) -> String {
    let youngest = generations.present.first();
    let number = youngest.and_then(|one| one.number);
    let number = number.map_or_else(|| "?".to_owned(), |n| n.to_string());
    let since = youngest.and_then(|one| one.begun_ns);
    let since = since.map_or_else(|| "?".to_owned(), text::time);
    let clearing = match generations.clearing {
        Some(true) => "; collectors clear the next",
        _ => "",
    };
    format!("number {number} since {since}{clearing}")
}

/// What a store's process has said last. If none writes the store any more, though it said that it runs, it was killed.
fn read_status(store: &Path) -> Result<Value> {
    let is_idle = || telemetry_is_written(store) == Some(false);
    let was_idle = is_idle();
    let text = telemetry_status(store)?.context("the collector has not reported its status yet")?;
    let mut status: Value = serde_json::from_str(&text).context("status.json is damaged")?;
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
        serde_json::from_value(status).context("status.json is damaged")?;
    if args.metrics {
        let page = metrics::page(&status, Format::Prometheus);
        return Ok(write!(standard(), "{page}")?);
    }
    let rows = match &status {
        TelemetryStatus::Collector(collector) => rows_of_collector(collector)?,
        TelemetryStatus::Run(run) => rows_of_run(run)?,
    };
    let rows = rows
        .into_iter()
        .map(|(name, value)| [name.to_owned(), value]);
    let columns = [ColumnForm::words(18), ColumnForm::words(1)];
    let page = listing(Reader::of_stdout(), columns, rows);
    Ok(write!(standard(), "{page}")?)
}

/// A row of the status: its name, its value.
type Row = (&'static str, String);

fn number(value: Option<u64>) -> String {
    value.map_or_else(|| "?".to_owned(), grouped)
}

/// When it was counted, and whether it still runs.
fn as_of(process: &ProcessStatus) -> Result<String> {
    let updated = process.updated_ns.context("status.json is damaged")?;
    let ended = match (process.killed, process.running) {
        (Some(true), _) => {
            "; it did not end properly (killed, or this is a copy of its store): what it received after \
             that, or had not written to the store yet, may be missing"
        }
        (_, Some(true)) => "",
        _ => ", ended",
    };
    Ok(format!("{}{ended}", text::time(updated)))
}

fn listening(process: &ProcessStatus) -> String {
    process.listen.iter().cloned().collect()
}

/// Which of its translator's collectors it is, counted from 1 as people count options.
fn place(share: Option<&ShareStatus>) -> String {
    let share = share.and_then(|share| share.collector.zip(share.of));
    match share {
        Some((collector, of)) => format!("{} of {of}", collector.saturating_add(1)),
        None => "?".to_owned(),
    }
}

/// Of `strata telemetry collect`.
fn rows_of_collector(status: &CollectorStatus) -> Result<Vec<Row>> {
    let requests = &status.requests;
    let translator = status.translator.as_deref();
    let mut rows = vec![
        ("listening", listening(&status.process)),
        ("as of", as_of(&status.process)?),
        (
            "translator",
            translator.map_or_else(|| "none".to_owned(), str::to_owned),
        ),
        ("collector", place(status.share.as_ref())),
        ("connections", number(status.connections)),
        ("  refused", number(status.connections_refused)),
        ("requests", number(requests.executed)),
        ("  bytes", number(requests.bytes)),
        ("  repeated", number(requests.duplicates)),
        ("  out of order", number(requests.out_of_order)),
        ("  refused", number(requests.refused)),
        ("bad packets", number(requests.bad_packets)),
    ];
    if let Some(generations) = &status.generations {
        rows.push(("generations", generation_row(generations)));
    }
    Ok(rows)
}

/// A collector of a translator, in a line.
fn collector(one: &LinkStatus) -> String {
    let address: String = one.address.iter().cloned().collect();
    let state = match (one.connected, one.problem.as_deref()) {
        (Some(true), _) => "connected".to_owned(),
        (_, Some(problem)) => format!("away: {}", Printable(problem)),
        (_, None) => "connecting".to_owned(),
    };
    format!(
        "{address} {state}; {} acknowledged, {} lost, {} packets, {} resent",
        number(one.confirmed),
        number(one.lost),
        number(one.packets),
        number(one.packets_resent),
    )
}

/// What the queries known ahead have found.
fn sums(int: &IntStatus) -> String {
    format!(
        "{}; {} above a threshold, {} undecided because a hop's latency is unknown",
        number(int.summed),
        number(int.above),
        number(int.undecided),
    )
}

/// The interface of AF_XDP, and how it is read.
fn interface(frames: &FrameStatus) -> String {
    let text = |field: &Option<String>| field.clone().unwrap_or_else(|| "?".to_owned());
    let gone = match frames.taking {
        Some(true) => "",
        _ => "; gone",
    };
    let (interface, how) = (text(&frames.interface), text(&frames.how));
    format!("{} ({how}){gone}", Printable(&interface))
}

/// What was refused, by reason.
fn reasons(of: &BTreeMap<String, u64>) -> String {
    let reasons = of.iter();
    let reasons = reasons.map(|(reason, &count)| format!("{reason} {}", grouped(count)));
    let reasons: Vec<String> = reasons.collect();
    match reasons.is_empty() {
        true => "0".to_owned(),
        false => reasons.join(", "),
    }
}

/// Of `strata telemetry run`.
fn rows_of_run(status: &RunStatus) -> Result<Vec<Row>> {
    let totals = &status.totals;
    let dropped = [
        totals.dropped_by_rate,
        totals.dropped_without_room,
        totals.dropped_without_collector,
    ];
    let dropped: Option<u64> = dropped.into_iter().sum();
    let dropped = dropped.context("status.json is damaged")?;
    let mut rows = vec![
        ("listening", listening(&status.process)),
        ("as of", as_of(&status.process)?),
        ("datagrams", number(totals.datagrams)),
        ("  refused", reasons(&totals.datagrams_refused)),
        ("  not allowed", number(status.not_allowed)),
        ("  full socket", number(status.socket_drops)),
        ("reports", number(totals.reports)),
        ("  accepted", number(totals.accepted)),
        ("  refused", reasons(&totals.refused)),
        ("  dropped", grouped(dropped)),
        ("  missing", number(totals.missing)),
        ("  number jumps", number(totals.jumps)),
        ("nacks", number(status.nacks_sent)),
        ("reporters", reporters(&status.reporters)),
        (
            "values",
            estimate(&status.key_write, status.generations.is_some()),
        ),
    ];
    if status.failed.is_some_and(|failed| failed > 0) {
        rows.push(("failed", number(status.failed)));
    }
    if let Some(frames) = &status.af_xdp {
        rows.push(("AF_XDP datagrams", number(frames.datagrams)));
        rows.push(("  interface", interface(frames)));
        rows.push(("  invalid", number(frames.invalid)));
        rows.push(("  without a frame", number(frames.dropped)));
    }
    if let Some(generations) = &status.generations {
        let row = match status.collectors {
            // Each collector says how many it has.
            Some(_) => youngest_row(generations),
            None => generation_row(generations),
        };
        rows.push(("generations", row));
    }
    if let Some(int) = &status.int {
        rows.push(("INT datagrams", number(int.datagrams)));
        rows.push(("  refused", number(int.refused)));
        rows.push(("  missing", number(int.missing)));
        rows.push(("  number jumps", number(int.jumps)));
        rows.push(("  reports of them", number(int.mapped)));
        for (name, count) in [
            ("  lacking a field", int.incomplete),
            ("  bad stacks", int.bad_stacks),
            ("  without a mark", int.unmarked_stacks),
        ] {
            if count.is_some_and(|count| count > 0) {
                rows.push((name, number(count)));
            }
        }
        if int.summed.is_some_and(|summed| summed > 0) {
            rows.push(("  packets summed", sums(int)));
        }
    }
    if let Some(collectors) = &status.collectors {
        rows.push(("acknowledged", number(totals.confirmed)));
        rows.push(("lost", number(totals.lost)));
        rows.extend(collectors.iter().map(|one| ("collector", collector(one))));
    }
    Ok(rows)
}
