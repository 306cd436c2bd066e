//! What is printed about a recording: its counters, and its summary.

use std::io::Write;

use anyhow::Result;
use strata_classify::UNCLASSIFIED;
use strata_policy::ShadowCounts;
use strata_record::{Closed, RecordCounts, RecordOutcome};
use strata_terminal::output::standard;
use strata_terminal::text;
use strata_wire::{Printable, grouped, human_bytes};

use super::shortage;

/// What USR1 prints.
pub(super) fn counts(counts: &RecordCounts) -> String {
    let mut text = format!("after {:.0} s\n", counts.elapsed.as_secs_f64());
    text += &counts.ledger.to_string();
    for (name, received, dropped) in &counts.rings {
        text += &format!(
            "\n{}: {received} packets received by filter, {dropped} dropped by kernel",
            Printable(name),
        );
    }
    text
}

/// What became of a recording.
pub(super) fn outcome(outcome: &RecordOutcome) -> Result<()> {
    let mut out = standard();
    let counts = &outcome.counts;
    let ledger = &counts.ledger;
    write!(
        out,
        "{} ({}) in {:.2} s",
        text::count_of(ledger.seen.packets, "packet"),
        human_bytes(ledger.seen.bytes),
        outcome.took.as_secs_f64(),
    )?;
    match &outcome.closed {
        Some(closed) => print_closed(&mut out, closed)?,
        None => writeln!(out)?,
    }
    writeln!(out, "{ledger}")?;
    if let Some(lowered) = &outcome.lowered {
        writeln!(out, "lowered: {}", shortage::lowered(lowered))?;
    }
    if let Some(shed) = outcome.shed.as_ref().and_then(shortage::shed) {
        writeln!(out, "payload: {shed} (--shed packets keeps it)")?;
    }
    if let Some(reports) = &outcome.reports {
        writeln!(
            out,
            "reported to {}: {} in {}; {} not sent, {} over the limit; {} of packets arrived too \
             fast",
            reports.to,
            text::count_of(reports.reports, "report"),
            text::count_of(reports.datagrams, "datagram"),
            grouped(reports.not_sent),
            grouped(reports.over_limit),
            text::count_of(reports.vectors_lost, "vector"),
        )?;
    }
    if let Some(flows) = &outcome.flows {
        writeln!(
            out,
            "flows to {}: {} as {} in {}, {} of them not delivered; {} in no flow, {} unfit, {} cut short",
            flows.to,
            text::count_of(flows.flows, "flow"),
            text::count_of(flows.records, "record"),
            text::count_of(flows.datagrams, "datagram"),
            grouped(flows.undelivered),
            text::count_of(flows.lost, "packet"),
            grouped(flows.unfit),
            grouped(flows.crowded_out),
        )?;
    }
    for to in &outcome.exports {
        writeln!(
            out,
            "exported to {} ({}): {} in {}; {} lost, {} unfit, {} cut; {} not sent",
            to.name,
            to.to,
            text::count_of(to.packets, "packet"),
            text::count_of(to.datagrams, "datagram"),
            grouped(to.lost),
            grouped(to.unfit),
            grouped(to.cut),
            text::count_of(to.not_sent, "datagram"),
        )?;
    }
    if let Some(detail) = &counts.detail {
        writeln!(
            out,
            "detail: {} of {} of payload given; over budget: {} packets, {}{}",
            human_bytes(detail.given.bytes),
            human_bytes(detail.offered.bytes),
            grouped(detail.over_budget.packets),
            human_bytes(detail.over_budget.bytes),
            crate::reading::info::dropped_afterwards(Some(ledger)),
        )?;
    }
    if let Some(pressure) = &counts.pressure
        && pressure.packets > 0
    {
        writeln!(
            out,
            "flow table: {}, {} of memory, {} entries taken, {} of them from another flow, {} packets without an entry ({})",
            text::count_of(pressure.windows, "window"),
            human_bytes(pressure.bytes()),
            grouped(pressure.claimed),
            grouped(pressure.replaced),
            grouped(pressure.without_bucket),
            text::percent(pressure.without_bucket, pressure.packets),
        )?;
    }
    if let Some(counts) = &counts.shadow {
        shadow(&mut out, counts, &outcome.classes)?;
    }
    if let Some(report) = &outcome.drift {
        crate::reading::drift::print(&mut out, report)?;
    }
    Ok(())
}

/// What a shadow model would have kept differently, in all and by class.
fn shadow(out: &mut impl Write, counts: &ShadowCounts, classes: &[String]) -> Result<()> {
    let all = counts.all();
    writeln!(
        out,
        "shadow: of {} packets compared, it would have kept more of {} ({} more) and less of {} ({} less)",
        grouped(all.compared.packets),
        grouped(all.more.packets),
        human_bytes(all.more.bytes),
        grouped(all.less.packets),
        human_bytes(all.less.bytes),
    )?;
    for (class, counts) in counts.by_class().iter().enumerate() {
        if counts.compared.packets == 0 && counts.of_shadow.packets == 0 {
            continue;
        }
        let name = classes.get(class).map_or(UNCLASSIFIED, String::as_str);
        writeln!(
            out,
            "  class {}: {} packets, {} by the shadow; more of {} ({}), less of {} ({})",
            Printable(name),
            grouped(counts.compared.packets),
            grouped(counts.of_shadow.packets),
            grouped(counts.more.packets),
            human_bytes(counts.more.bytes),
            grouped(counts.less.packets),
            human_bytes(counts.less.bytes),
        )?;
    }
    Ok(())
}

/// Where a recording is and what it contains.
fn print_closed(out: &mut impl Write, closed: &Closed) -> Result<()> {
    writeln!(out, " -> {closed}")?;
    match closed {
        Closed::Log { dir, recording } => crate::reading::info::print_recording(out, dir, *recording),
        Closed::Relay { reports, .. } => reports.iter().try_for_each(|report| {
            let rdma = &report.rdma;
            writeln!(
                out,
                "sent: {} packets in {} segments; RDMA messages: {} of {} in all, {} sent again, {} lost; {} blocks on the \
                 relay's disk",
                grouped(report.packets),
                grouped(report.segments),
                grouped(rdma.posted),
                human_bytes(report.bytes),
                grouped(rdma.resent),
                grouped(rdma.lost),
                grouped(report.blocks),
            )?;
            if report.disconnections > 0 {
                writeln!(
                    out,
                    "the connection to the relay was lost {}: of the packets that the relay had \
                     not confirmed, {} were in its log, {} were sent again, {} are lost{}",
                    text::count_of(report.disconnections, "time"),
                    grouped(report.found.packets),
                    grouped(report.again_packets),
                    grouped(report.lost.packets.saturating_sub(report.unknown_packets)),
                    match report.unknown_packets {
                        0 => String::new(),
                        unknown => format!(
                            "; {} are counted as dropped, but the relay may have them",
                            grouped(unknown)
                        ),
                    },
                )?;
            }
            if report.segments_missing > 0 {
                writeln!(
                    out,
                    "of {} segments in the relay's blocks, {} did not arrive",
                    grouped(report.segments_stored),
                    grouped(report.segments_missing),
                )?;
            }
            Ok(())
        }),
        Closed::Nowhere => Ok(()),
    }
}
