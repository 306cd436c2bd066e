//! `strata telemetry path`, `flows`: which way flows went, and which met something.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Result, bail};
use strata_dta::key::NodeId;
use strata_telemetry_run::TelemetryStore;
use strata_telemetry_run::api::answer::{TelemetryEvents, TelemetryQueue};
use strata_terminal::bounded;
use strata_terminal::listing::{ColumnForm, Reader, listing};
use strata_terminal::output::{refuse, standard};
use strata_wire::grouped;

use super::ask::{json_of, of, parse_key};

/// Arguments of `strata telemetry path`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A flow has a direction: 10.0.0.1:1024 > 10.0.0.2:80 tcp. Quote it, or write - for >. If the path was
reported under another key, give that key (`strata telemetry get --help`).

A hop is known if it sent a postcard of the flow. Its latency is known if a Key-Write report with
the key `node N FLOW` stored it; the built-in INT table makes such reports. Latencies are the latest
ones, in the unit of the nodes, usually ns.

The line `sum` adds up the latencies of a whole path (all hops of one packet) if each hop has a
latency. Otherwise, the line `at least` shows a lower bound, the sum of the known latencies. If the
hops may belong to different packets or paths, there is no such line. The lines below the hops give
the reasons.

Exit status: 1 if the path is not known.")]
pub(super) struct PathArgs {
    /// The directory of the store.
    store: PathBuf,
    /// The flow, as one argument or several.
    #[arg(required = true)]
    flow: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `strata telemetry flows`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Events of `congestion` and `drops` name a node, its port and its queue. The value of an event is the
occupancy of the queue or the latency; for drops, the reason. Nodes are numbers or IPv4 addresses.

Lists are rings: once an event is overwritten, its flow may be missing. The last line counts the
events that were overwritten or are not in the table for other reasons.")]
pub(super) struct FlowsArgs {
    /// The directory of the store.
    store: PathBuf,
    /// Use only events of the list with this name or number. By default, events of all lists.
    name: Option<String>,
    /// Use only events at this node.
    #[arg(long, value_name = "NODE")]
    node: Option<NodeId>,
    /// Use only events at this port.
    #[arg(long, value_name = "PORT")]
    port: Option<u32>,
    /// Use only events at this queue.
    #[arg(long, value_name = "QUEUE")]
    queue: Option<u8>,
    /// Show this many of the flows with the most events.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20, value_parser = bounded::count::<1, 1_000_000>)]
    number: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn path(args: &PathArgs) -> Result<()> {
    let key = parse_key(&args.flow)?;
    let mut store = TelemetryStore::open(&args.store)?;
    let Some(path) = store.answer_path(&key) else {
        bail!(store.unknown(&key, true));
    };
    if args.json {
        return json_of(&path);
    }
    let mut out = standard();
    if let Some(time) = path.time {
        writeln!(out, "path of {}{}", path.flow, of(time))?;
    }
    let unknown = || "?".to_owned();
    let head = ["hop", "node", "latency"].map(str::to_owned);
    let rows = path.hops.iter().zip(1..).map(|(hop, place): (_, u32)| {
        [
            place.to_string(),
            hop.node
                .map_or_else(unknown, |node| NodeId(node).to_string()),
            hop.latency.map_or_else(unknown, grouped),
        ]
    });
    let sum = path.latency.map(|sum| ("sum", sum));
    let sum = sum.or_else(|| Some(("at least", path.latency_at_least?)));
    let total = sum.map(|(name, sum)| [String::new(), name.to_owned(), grouped(sum)]);
    let rows = std::iter::once(head).chain(rows).chain(total);
    let columns = [
        ColumnForm::numbers(3),
        ColumnForm::numbers(15),
        ColumnForm::numbers(12),
    ];
    let page = listing(Reader::of_stdout(), columns, rows);
    write!(out, "{page}")?;
    for remark in &path.remarks {
        writeln!(out, "{remark}")?;
    }
    Ok(())
}

fn queue_text(at: &TelemetryQueue) -> String {
    let known = |name: &str, number: Option<u32>| {
        number.map_or_else(String::new, |number| format!(" {name} {number}"))
    };
    let (port, queue) = (
        known("port", at.port),
        known("queue", at.queue.map(u32::from)),
    );
    format!("node {}{port}{queue}", NodeId(at.node))
}

pub(super) fn flows(args: &FlowsArgs) -> Result<()> {
    let mut store = TelemetryStore::open(&args.store)?;
    let of = TelemetryEvents {
        list: args.name.as_deref(),
        node: args.node.map(|NodeId(id)| id),
        port: args.port,
        queue: args.queue,
    };
    let answer = store.answer_flows(of, args.number);
    let answer = answer.map_err(refuse)?;
    if args.json {
        return json_of(&answer);
    }
    let unknown = || "?".to_owned();
    let head = ["events", "max value", "what", "flow", "at"].map(str::to_owned);
    let rows = answer.flows.iter().map(|flow| {
        let queues: Vec<String> = flow.queues.iter().map(queue_text).collect();
        [
            grouped(flow.events),
            flow.value_max
                .map_or_else(unknown, |value| grouped(u64::from(value))),
            flow.what.join(","),
            flow.flow.clone(),
            queues.join(", "),
        ]
    });
    let columns = [
        ColumnForm::numbers(10),
        ColumnForm::numbers(12),
        ColumnForm::words(12).apart(),
        ColumnForm::words(44).apart(),
        ColumnForm::words(1).apart(),
    ];
    let page = listing(
        Reader::of_stdout(),
        columns,
        std::iter::once(head).chain(rows),
    );
    let mut out = standard();
    write!(out, "{page}")?;
    let more = answer.in_all.saturating_sub(answer.flows.len() as u64);
    let mut notes = Vec::new();
    for (count, what) in [
        (more, "more flows (-n)"),
        (answer.without_flow, "events without a flow"),
        (
            answer.of_further_flows,
            "events of flows beyond the first 100,000",
        ),
        (answer.not_events, "entries that are not events"),
        (answer.overwritten, "overwritten events"),
    ] {
        if count > 0 {
            notes.push(format!("{} {what}", grouped(count)));
        }
    }
    if !notes.is_empty() {
        writeln!(out, "not shown: {}", notes.join(", "))?;
    }
    Ok(())
}
