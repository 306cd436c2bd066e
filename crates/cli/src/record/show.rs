//! What is shown of a recording: what it says while it runs, its progress, and its summary.

use std::io::{IsTerminal, Write, stderr, stdout};
use std::sync::Arc;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use strata_node::{Closed, Counts, Notice, Outcome, Tell};
use strata_wire::{Printable, grouped, human_bytes};

use crate::text;

/// Prints what a node says, above the progress bar if that is shown.
pub(crate) fn teller(bar: ProgressBar) -> Tell {
    Arc::new(move |notice| bar.suspend(|| print(notice)))
}

fn print(notice: &Notice) {
    let prefix = prefix(notice.is_alert());
    match notice.is_warning() {
        true => eprintln!("strata: warning: {notice}"),
        false => eprintln!("{prefix}strata: {notice}"),
    }
}

/// What the journal shows a line with: as a warning, where standard error leads to it
/// (sd-daemon(3)).
fn prefix(is_alert: bool) -> &'static str {
    let is_journal = std::env::var_os("JOURNAL_STREAM").is_some();
    if is_alert && is_journal { "<4>" } else { "" }
}

pub(super) fn progress_bar() -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {human_pos} packets, {per_sec}, {elapsed}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
    ProgressBar::new_spinner().with_style(style)
}

/// What USR1 prints.
pub(super) fn counts(counts: &Counts) -> String {
    let mut text = format!("strata: after {:.0} s\n", counts.elapsed.as_secs_f64());
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
pub(super) fn outcome(outcome: &Outcome) -> Result<()> {
    let mut out = stdout().lock();
    let (ledger, pressure) = (&outcome.ledger, &outcome.pressure);
    write!(
        out,
        "{} packets ({}) in {:.2} s",
        grouped(ledger.seen.packets),
        human_bytes(ledger.seen.bytes),
        outcome.took.as_secs_f64(),
    )?;
    match &outcome.closed {
        Some(closed) => print_closed(&mut out, closed)?,
        None => writeln!(out)?,
    }
    writeln!(out, "{ledger}")?;
    if pressure.packets > 0 {
        writeln!(
            out,
            "sketch: {} windows, {} flow buckets taken, {} of them from another flow, {} packets without a bucket ({})",
            grouped(pressure.windows),
            grouped(pressure.claimed),
            grouped(pressure.replaced),
            grouped(pressure.without_bucket),
            text::percent(pressure.without_bucket, pressure.packets),
        )?;
    }
    Ok(())
}

/// Where a recording is and what is in it.
fn print_closed(out: &mut impl Write, closed: &Closed) -> Result<()> {
    writeln!(out, " -> {closed}")?;
    match closed {
        Closed::Log { dir, recording } => crate::info::print_recording(out, dir, *recording),
        Closed::Relay { reports, .. } => reports.iter().try_for_each(|report| {
            let rdma = &report.rdma;
            writeln!(
                out,
                "sent: {} packets in {} segments, {} RDMA messages of {} in all; {} sent again, {} lost; {} blocks on the relay's disk",
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
                    "the relay was lost {} times, and with it {} packets of which it is not known that they are on its disk",
                    report.disconnections,
                    grouped(report.lost.packets),
                )?;
            }
            Ok(())
        }),
    }
}
