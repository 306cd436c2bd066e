//! The counters of a collector or a translator as people read them: rows of `strata telemetry status`, and the lines
//! with which `strata telemetry run` ends, both from the same status.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context, Result};
use strata_telemetry_run::api::status::{
    CollectorStatus, FrameStatus, GenerationsStatus, IntStatus, KeyWriteStatus, LinkStatus,
    ProcessStatus, ReporterStatus, RunStatus, ShareStatus,
};
use strata_terminal::text;
use strata_wire::{Printable, grouped};

/// The reporter that stands for those beyond the maximum.
const OTHERS: &str = "others";

fn is(reporter: &ReporterStatus, name: &str) -> bool {
    reporter.address.as_deref() == Some(name)
}

/// A row of the status: its name, its value.
pub(super) type Row = (&'static str, String);

fn number(value: Option<u64>) -> String {
    value.map_or_else(|| "?".to_owned(), grouped)
}

/// When it was counted, and whether it still runs.
fn as_of(process: &ProcessStatus) -> Result<String> {
    let updated = process.updated_ns.context("it has no updated_ns")?;
    let ended = match (process.killed, process.running) {
        (Some(true), _) => {
            "; it did not end properly (killed, or this is a copy of its store): reports received \
             after that time, or not yet written to the store, may be missing"
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
pub(super) fn of_collector(status: &CollectorStatus) -> Result<Vec<Row>> {
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
        (_, Some(problem)) => format!("not connected: {}", Printable(problem)),
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

/// A sum, if all of its parts are known.
fn sum(parts: impl IntoIterator<Item = Option<u64>>) -> Option<u64> {
    let mut parts = parts.into_iter();
    parts.try_fold(0_u64, |sum, part| Some(sum.saturating_add(part?)))
}

/// Reports that were dropped, for any reason.
fn dropped(of: &ReporterStatus) -> Option<u64> {
    sum([
        of.dropped_by_rate,
        of.dropped_without_room,
        of.dropped_without_collector,
    ])
}

/// Reports at collectors on other machines, of INT too: acknowledged, and lost with a connection.
fn at_collectors(status: &RunStatus) -> [Option<u64>; 2] {
    let all = || std::iter::once(&status.totals).chain(status.of_int());
    [
        sum(all().map(|one| one.confirmed)),
        sum(all().map(|one| one.lost)),
    ]
}

/// Of `strata telemetry run`.
pub(super) fn of_run(status: &RunStatus) -> Result<Vec<Row>> {
    let totals = &status.totals;
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
        ("  dropped", number(dropped(totals))),
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
        rows.push(("  no free frame", number(frames.dropped)));
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
        rows.push(("  reports made", number(int.mapped)));
        if let Some(made) = status.of_int() {
            rows.push(("    accepted", number(made.accepted)));
            rows.push(("    refused", reasons(&made.refused)));
            rows.push(("    dropped", number(dropped(made))));
        }
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
        let [confirmed, lost] = at_collectors(status);
        rows.push(("acknowledged", number(confirmed)));
        rows.push(("lost", number(lost)));
        rows.extend(collectors.iter().map(|one| ("collector", collector(one))));
    }
    Ok(rows)
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
            "{load} writes per slot; {:.1} % of those written since {since} can be queried, {:.1} % \
             by the formula",
            answered as f64 / sampled as f64 * 100.0,
            expected / sampled as f64 * 100.0,
        ),
        None => format!("{load} writes per slot"),
    }
}

/// How many reporters there are, and what came of those for whom there was no place.
fn reporters(all: &[ReporterStatus]) -> String {
    let others = all.iter().find(|reporter| is(reporter, OTHERS));
    let own =
        |reporter: &&ReporterStatus| !is(reporter, OTHERS) && !is(reporter, ReporterStatus::INT);
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

fn count(value: Option<u64>, noun: &str) -> String {
    value.map_or_else(|| format!("? {noun}s"), |value| text::count_of(value, noun))
}

/// All that was refused, for any reason.
fn refused(of: &BTreeMap<String, u64>) -> u64 {
    let counts = of.values();
    counts.fold(0, |sum, &count| sum.saturating_add(count))
}

/// The lines with which `strata telemetry run` ends.
pub(super) fn print_end(out: &mut impl Write, status: &RunStatus) -> Result<()> {
    let totals = &status.totals;
    writeln!(
        out,
        "{} accepted, {} refused, {} dropped, {} missing; {} refused, {} from senders outside \
         --allow, {} dropped by a full socket",
        count(totals.accepted, "report"),
        grouped(refused(&totals.refused)),
        number(dropped(totals)),
        number(totals.missing),
        text::count_of(refused(&totals.datagrams_refused), "datagram"),
        number(status.not_allowed),
        number(status.socket_drops),
    )?;
    if let Some(int) = &status.int {
        let made = status.of_int().context("reports of INT have no counters")?;
        writeln!(
            out,
            "INT: {}, {} refused, {} missing; of {} made from them, {} accepted, {} refused, {} \
             dropped",
            count(int.datagrams, "datagram"),
            number(int.refused),
            number(int.missing),
            count(int.mapped, "report"),
            number(made.accepted),
            grouped(refused(&made.refused)),
            number(dropped(made)),
        )?;
    }
    if let Some(frames) = &status.af_xdp {
        writeln!(
            out,
            "by AF_XDP: {}, {} invalid, {} dropped because no frame was free",
            count(frames.datagrams, "datagram"),
            number(frames.invalid),
            number(frames.dropped),
        )?;
    }
    Ok(())
}

/// The line about collectors on other machines, if there are any.
pub(super) fn print_collectors(out: &mut impl Write, status: &RunStatus) -> Result<()> {
    if status.collectors.is_some() {
        let [confirmed, lost] = at_collectors(status);
        writeln!(
            out,
            "at collectors: {} acknowledged, {} lost with a connection",
            count(confirmed, "report"),
            number(lost),
        )?;
    }
    Ok(())
}
