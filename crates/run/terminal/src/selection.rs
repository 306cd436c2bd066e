//! Which packets of a log a command takes, these packets one by one, and the message about those that it
//! could not take.

mod logs;
mod merge;
pub mod names;
pub mod statement;
pub mod vectors;

use std::ops::ControlFlow;

use anyhow::{Result, anyhow, bail};
use strata_filter::{CompileError, Filter};
use strata_query::{ByLink, ExportOptions, Exported, Find, Kept, LoggedPacket, packets_while};
use strata_store::{Damage, Log, Select, damage_texts};
use strata_wire::LinkType;
use tracing::{error, warn};

use crate::text;

pub use logs::{Lacking, Logs, each_once, named_again};
pub use strata_store::damage_counts;

/// When packets arrived.
#[derive(Debug, clap::Args)]
pub struct SpanArgs {
    /// Select packets from this time on: 13:05, 2026-01-31T13:05 (both local time),
    /// 2026-01-31T13:05:00Z, or seconds since 1970. A time without a date is on the day of the log's
    /// first packet.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,

    /// Select packets before this time, in the format of --from.
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
}

impl SpanArgs {
    /// What is wanted of a log.
    pub fn find<'a>(&self, log: &Log, filter: Option<&'a Filter>) -> Result<Find<'a>> {
        self.find_on_day_of(first_packet_ns(log)?, filter)
    }

    /// What is wanted: a time without a date is on the day of this packet, ns since 1970.
    pub(crate) fn find_on_day_of<'a>(
        &self,
        first_packet_ns: u64,
        filter: Option<&'a Filter>,
    ) -> Result<Find<'a>> {
        find_between([&self.from, &self.to], first_packet_ns, filter)
    }
}

/// What is wanted: packets from the first time on, and before the second, as `--from` and `--to` give them. A time
/// without a date is on the day of this packet, ns since 1970.
pub fn find_between<'a>(
    [from, to]: [&Option<String>; 2],
    first_packet_ns: u64,
    filter: Option<&'a Filter>,
) -> Result<Find<'a>> {
    let time = |text: &Option<String>| {
        text.as_deref()
            .map(|text| text::parse_time(text, first_packet_ns))
            .transpose()
    };
    let find = Find {
        from_ns: time(from)?,
        to_ns: time(to)?,
        filter,
    };
    if let (Some(from), Some(to)) = (find.from_ns, find.to_ns) {
        anyhow::ensure!(
            from < to,
            "--from, {}, is not before --to, {}: a time without a date is on the day of the log's first \
             packet",
            text::time(from),
            text::time(to)
        );
    }
    Ok(find)
}

/// How and why packets were kept.
#[derive(Debug, clap::Args)]
pub struct KeptArgs {
    /// Select packets of this class.
    #[arg(long, value_name = "CLASS")]
    pub class: Option<String>,

    /// Select packets of this granularity: full, partial or header.
    #[arg(long, value_name = "GRANULARITY", value_parser = ["full", "partial", "header"])]
    pub granularity: Option<String>,

    /// Select packets that were kept for this reason, written as in packet comments, whole or up to
    /// a colon: alert (any alert of --eve), alert:2001219 (of this signature), policy:7, detail.
    #[arg(long, value_name = "REASON")]
    pub reason: Option<String>,
}

impl KeptArgs {
    /// What a packet must have been kept as.
    pub fn kept(&self) -> Kept {
        Kept {
            class: self.class.clone(),
            granularity: self.granularity.clone(),
            reason: self.reason.clone(),
        }
    }
}

/// Hands out the wanted packets of a log in the order of an export, until `take` breaks or fails. At most
/// `memory_bytes` of packets wait in memory for their turn.
pub(crate) fn each(
    memory_bytes: usize,
    log: &Log,
    find: &Find<'_>,
    kept: Kept,
    take: impl FnMut(&LoggedPacket<'_>) -> Result<ControlFlow<()>>,
) -> Result<Exported> {
    let filter = find.filter.cloned();
    let mut by_link = filter.map(|filter| ByLink::new(filter, say_no_match));
    let options = ExportOptions {
        select: find.select(),
        matches: by_link.as_mut().map(ByLink::as_matches),
        kept,
        ..ExportOptions::default()
    };
    let mut exported = packets_while(memory_bytes, log, find, options, take)??;
    check_fit(by_link.as_ref().and_then(ByLink::misfit))?;
    exported.untested = by_link.map_or(0, |by_link| by_link.untested());
    Ok(exported)
}

/// Warns of packets that a filter could not test.
pub fn say_untested(untested: u64) {
    if let Some(text) = text::untested(untested) {
        warn!("{text}");
    }
}

/// Warns that a filter matches nothing on a link type.
pub fn say_no_match(link: LinkType, problem: &CompileError) {
    warn!("the filter matches no packet of {link}: {problem}");
}

/// An error if packets came, and the filter could be tested on the link of none.
pub fn check_fit(misfit: Option<&CompileError>) -> Result<()> {
    match misfit {
        Some(problem) => Err(anyhow!(
            "the filter cannot be applied to any interface of the log: {problem}"
        )),
        None => Ok(()),
    }
}

/// Says what is damaged, and fails if something is.
pub fn report(damaged: &[Damage], left_out: u64) -> Result<()> {
    for text in damage_texts(damaged) {
        error!("{text}");
    }
    let Some(places) = damage_counts(damaged) else {
        return Ok(());
    };
    match left_out {
        0 => bail!("{places} in the log"),
        packets => bail!(
            "{places} in the log; {} left out",
            text::count_of(packets, "packet")
        ),
    }
}

/// Why no packet was found in a log, if its packets arrived at other times.
pub(crate) fn span_text(log: &Log, find: &Find<'_>) -> Option<String> {
    let Some((first_ns, last_ns)) = span_ns(log) else {
        return Some(String::from("the log has no packets"));
    };
    let is_before = find.to_ns.is_some_and(|to| to <= first_ns);
    let is_after = find.from_ns.is_some_and(|from| from > last_ns);
    (is_before || is_after).then(|| {
        format!(
            "the log has no packets from that time: its packets are from {} to {}",
            text::time(first_ns),
            text::time(last_ns)
        )
    })
}

/// When the first and the last packet of a log arrived, as far as it is readable.
fn span_ns(log: &Log) -> Option<(u64, u64)> {
    let parts = log.archive().parts.iter().filter(|part| part.packets > 0);
    let mut spans: Vec<(u64, u64)> = parts.map(|part| (part.ts_min_ns, part.ts_max_ns)).collect();
    let headers = Select {
        without_records: true,
        ..Select::default()
    };
    for recording in log.recordings() {
        // The export has already reported damage.
        for block in log.blocks(recording, &headers).flatten() {
            if block.header.packets > 0 {
                spans.push((block.header.ts_min_ns, block.header.ts_max_ns));
            }
        }
    }
    let together = |a: (u64, u64), b: (u64, u64)| (a.0.min(b.0), a.1.max(b.1));
    spans.into_iter().reduce(together)
}

/// When the log's first packet arrived: the date for times without one. 0 without packets.
pub fn first_packet_ns(log: &Log) -> Result<u64> {
    let parts = log.archive().parts.iter().filter(|part| part.packets > 0);
    if let Some(first) = parts.map(|part| part.ts_min_ns).min() {
        return Ok(first);
    }
    let everything = Select {
        without_records: true,
        ..Select::default()
    };
    for recording in log.recordings() {
        for block in log.blocks(recording, &everything).flatten() {
            if block.header.packets > 0 {
                return Ok(block.header.ts_min_ns);
            }
        }
    }
    Ok(0)
}
