//! `strata telemetry snapshot`: what a store knows now, as Parquet, whether it is written or not.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write as _, stdin};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use strata_dta::key::Key;
use strata_store::{Sources, is_log};
use strata_telemetry_run::api::status::TelemetryEntry;
use strata_telemetry_run::{EntryKind, TelemetryStore, shown};
use strata_terminal::output::{Content, Output, refuse, standard};
use strata_terminal::table::{Cell, ColumnSpec, Kind, Table};
use strata_terminal::text;

/// The most keys that a collector remembers by itself.
const MET_MAX: usize = 1024;

/// Arguments of `strata telemetry snapshot`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata telemetry snapshot store/ -o now/
  strata telemetry snapshot store/ -o now/ --keys flows.txt
  duckdb -c \"select what, flow, count(*) from 'now/lists.parquet' group by all\"

keys.parquet has a row for each key: its value, its counter and, for a flow, the hops of its path.
lists.parquet has a row for each entry that has not been overwritten, oldest first. The collector
keeps running, so the rows are not all of the same moment.")]
pub(super) struct Args {
    /// The directory of the store.
    store: PathBuf,

    /// Write keys.parquet and lists.parquet into this directory, created if missing.
    #[arg(short = 'o', long = "output", value_name = "DIR")]
    output: PathBuf,

    /// Look up the keys in this file, one per line, as `strata telemetry get` reads them; - is
    /// standard input. A store does not hold keys. Without this option, only the keys with the
    /// largest counters are written, which `strata telemetry top` shows.
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
}

const KEY_COLUMNS: [ColumnSpec; 17] = [
    ("key", Kind::Text, "", "The key, as queries name it."),
    ("key_bytes", Kind::Text, "", "Its bytes in hexadecimal."),
    (
        "value",
        Kind::Word,
        "",
        "Its value in hexadecimal, if it has one.",
    ),
    (
        "number",
        Kind::Maybe,
        "",
        "The same as a number, if it has up to 8 bytes.",
    ),
    ("agreeing", Kind::Maybe, "", "Copies that hold it."),
    (
        "value_since",
        Kind::Maybe,
        "ns",
        "Start of the generation that the value is from, if the store has generations.",
    ),
    (
        "count",
        Kind::Maybe,
        "",
        "Upper bound of the sum that was added for the key.",
    ),
    (
        "hop_1",
        Kind::Maybe,
        "",
        "Value that the first hop of the flow's path reported.",
    ),
    ("hop_2", Kind::Maybe, "", "The second."),
    ("hop_3", Kind::Maybe, "", "The third."),
    ("hop_4", Kind::Maybe, "", "The fourth."),
    ("hop_5", Kind::Maybe, "", "The fifth."),
    ("hop_6", Kind::Maybe, "", "The sixth."),
    ("hop_7", Kind::Maybe, "", "The seventh."),
    ("hop_8", Kind::Maybe, "", "The eighth."),
    (
        "path_hops",
        Kind::Maybe,
        "",
        "Lower bound of the number of hops of the path, including those that the store does not keep.",
    ),
    (
        "path_whole",
        Kind::Maybe,
        "",
        "1: these are all hops of the path of one packet; 0: that is not known.",
    ),
];

const LIST_COLUMNS: [ColumnSpec; 11] = [
    ("list", Kind::U32, "", "Number of the list."),
    ("name", Kind::Word, "", "Its name, if it has one."),
    (
        "entry",
        Kind::U64,
        "",
        "Number of the entry among those of its list that are still there.",
    ),
    (
        "what",
        Kind::Word,
        "",
        "Kind of event, if the entry is an event.",
    ),
    ("flow", Kind::Word, "", "The flow of the event."),
    ("node", Kind::Maybe, "", "The node of the event."),
    ("port", Kind::Maybe, "", "Its egress interface."),
    ("queue", Kind::Maybe, "", "Its queue."),
    ("value", Kind::Maybe, "", "The value of the event."),
    (
        "time",
        Kind::Maybe,
        "ns",
        "The low half of the ingress time.",
    ),
    ("bytes", Kind::Text, "", "The entry in hexadecimal."),
];

pub(super) fn run(args: &Args) -> Result<()> {
    let mut store = TelemetryStore::open(&args.store)?;
    if args.output.join("telemetry.json").exists() {
        return Err(refuse(format!(
            "{}: this is a telemetry store: name another directory",
            args.output.display()
        )));
    }
    if is_log(&args.output) {
        return Err(refuse(format!(
            "{}: this is a log: name another directory",
            args.output.display()
        )));
    }
    let keys = match &args.keys {
        Some(path) => read_keys(path)?,
        None => store.top(MET_MAX).into_keys(),
    };
    let named = args.output.display();
    fs::create_dir_all(&args.output).with_context(|| format!("{named}: cannot create"))?;
    let sources = Sources::default().files(&args.keys);
    let create = |name: &str, columns: &[ColumnSpec]| {
        let output = Output::create(&args.output.join(name), Content::Binary, &sources)?;
        let about = HashMap::from([("strata.store".into(), args.store.display().to_string())]);
        Table::create(output, columns, about)
    };
    let known = write_keys(&mut store, &keys, create("keys.parquet", &KEY_COLUMNS)?)?;
    let entries = write_lists(&mut store, create("lists.parquet", &LIST_COLUMNS)?)?;
    writeln!(
        standard(),
        "{known} of {} known, {} of lists -> {named}",
        text::count_of(keys.len() as u64, "key"),
        text::count_of(entries, "entry").replace("entrys", "entries"),
    )?;
    Ok(())
}

/// The keys of a file, one a line.
fn read_keys(path: &Path) -> Result<Vec<Key>> {
    let named = path.display();
    let mut text = String::new();
    match path.as_os_str() == "-" {
        true => stdin().read_to_string(&mut text),
        false => fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text)),
    }
    .with_context(|| format!("{named}: cannot read keys"))?;
    let lines = text.lines().zip(1_u64..);
    let lines = lines.filter(|(line, _)| !line.trim().is_empty());
    let key = |(line, number): (&str, u64)| {
        let parsed = line.trim().parse::<Key>();
        parsed.map_err(|error| refuse(format!("{named}, line {number}: {error}")))
    };
    lines.map(key).collect()
}

/// Writes what is known of each key; returns of how many something is.
fn write_keys(store: &mut TelemetryStore, keys: &[Key], mut table: Table) -> Result<u64> {
    let mut known = 0;
    for key in keys {
        let found = store.value(key, 4, 1);
        let since = found
            .as_ref()
            .and_then(|(_, time)| Some(time.as_ref()?.begun_ns));
        let value = found.map(|(value, _)| value);
        let count = Some(store.count(key)).filter(|&count| count > 0);
        let is_flow = matches!(key.bytes().len(), 13 | 37);
        let path = match is_flow {
            true => store.path(key).map(|found| found.path),
            false => None,
        };
        known += u64::from(value.is_some() || count.is_some() || path.is_some());
        let hops = path.map_or([None; 8], |path| *path.values());
        let extent = [
            path.map(|path| u64::from(path.extent().hops)),
            path.map(|path| u64::from(path.is_whole())),
        ];
        let (shown, bytes) = (shown::key(key), format!("{key:?}"));
        let data = value.as_ref().map(|found| shown::hex(&found.data));
        let number = value.as_ref().and_then(|v| shown::as_number(&v.data));
        let agreeing = value.as_ref().map(|found| u64::from(found.agreeing));
        let cells = [
            Cell::Text(&shown),
            Cell::Text(&bytes),
            Cell::Word(data.as_deref()),
            Cell::Maybe(number),
            Cell::Maybe(agreeing),
            Cell::Maybe(since),
            Cell::Maybe(count),
        ];
        let hops = hops.map(|hop| Cell::Maybe(hop.map(u64::from)));
        let extent = extent.map(Cell::Maybe);
        table.push(cells.into_iter().chain(hops).chain(extent))?;
    }
    if !keys.is_empty() {
        let bound = store.count_bound();
        let by = format!("{:.0}, doubt {:.4}", bound.excess_max.floor(), bound.doubt);
        table.about("strata.count_excess_max", by);
    }
    table.close()?;
    Ok(known)
}

/// Writes the entries of all lists; returns how many there are.
fn write_lists(store: &mut TelemetryStore, mut table: Table) -> Result<u64> {
    let mut all = 0;
    let (named, len) = (store.lists().to_vec(), store.lists_len());
    for list in 0..len {
        let about = named.iter().find(|named| named.number == list);
        let kind = about.map_or(EntryKind::Bytes, |named| named.entries);
        let name = about.map(|named| named.name.as_str());
        let mut cursor = store.cursor(list);
        let (mut entry, mut pushed) = (0, Ok(()));
        store.read(&mut cursor, |bytes| {
            if pushed.is_ok() {
                pushed = push_entry(&mut table, (list, name, entry), kind, bytes);
                entry += 1;
            }
        });
        pushed?;
        all += entry;
    }
    table.close()?;
    Ok(all)
}

fn push_entry(
    table: &mut Table,
    (list, name, entry): (u32, Option<&str>, u64),
    kind: EntryKind,
    bytes: &[u8],
) -> Result<()> {
    let shown = shown::entry(kind, bytes);
    let (mut what, mut flow, mut numbers) = (None, None, [None; 5]);
    match &shown {
        TelemetryEntry::Node {
            node,
            port,
            queue,
            time,
            value,
            what: of,
            flow: of_flow,
        } => {
            (what, flow) = (Some(*of), of_flow.as_deref());
            numbers = [Some(*node), *port, queue.map(u32::from), *value, *time];
        }
        TelemetryEntry::Flow {
            flow: of_flow,
            value,
            what: of,
            ..
        } => {
            (what, flow) = (Some(*of), Some(of_flow.as_str()));
            numbers[3] = Some(*value);
        }
        TelemetryEntry::Bytes { .. } => {}
    }
    let [node, port, queue, value, time] = numbers.map(|number| number.map(u64::from));
    let hex = shown::hex(bytes);
    table.push([
        Cell::U32(list),
        Cell::Word(name),
        Cell::U64(entry),
        Cell::Word(what),
        Cell::Word(flow),
        Cell::Maybe(node),
        Cell::Maybe(port),
        Cell::Maybe(queue),
        Cell::Maybe(value),
        Cell::Maybe(time),
        Cell::Text(&hex),
    ])
}
