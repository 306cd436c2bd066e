//! What became of the packets that were logged and are no longer in the log.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use strata_archive::uncompacted;
use strata_blocks::ClassCount;
use strata_store::{Log, Loss, Overwritten, Recording, Removed};
use strata_terminal::text::count_of;
use strata_wire::{Ledger, Printable, grouped, human_bytes};

use super::Contents;

/// What was deleted of a recording.
#[derive(Debug, Default)]
pub(super) struct Balance {
    removed: Vec<Removed>,
    overwritten: Vec<Overwritten>,
}

impl Balance {
    pub(super) fn of(log: &Log, recording: &Recording) -> Self {
        let removed = log.archive().removed.iter();
        Self {
            removed: removed
                .filter(|removed| removed.recording == recording.id)
                .cloned()
                .collect(),
            overwritten: recording.overwritten.clone(),
        }
    }

    /// Whether nothing was deleted, as far as is noted.
    pub(super) fn is_whole(&self) -> bool {
        self.removed.is_empty() && self.overwritten.is_empty()
    }

    fn packets(&self) -> u64 {
        let deleted = self.removed.iter().flat_map(|removed| &removed.counts);
        let deleted = deleted.map(|count| count.packets);
        let overwritten = self.overwritten.iter().map(|files| files.packets);
        deleted.chain(overwritten).fold(0, u64::saturating_add)
    }
}

impl Contents {
    /// Packets that were logged, are neither in the log nor known to be deleted or lost: positive; or
    /// packets in the log beyond those. `None` if it is not known how many were logged.
    pub(super) fn unaccounted(&self, ledger: Option<&Ledger>, loss: Loss) -> Option<i64> {
        let known = [self.total().packets, self.balance.packets(), loss.packets];
        let known: i128 = known.into_iter().map(i128::from).sum();
        let difference = i128::from(ledger?.logged.packets) - known;
        i64::try_from(difference).ok()
    }

    /// Lines on what is no longer in the log; empty if all is there.
    pub(super) fn gone(&self, ledger: Option<&Ledger>, loss: Loss) -> String {
        let mut text = String::new();
        for removed in &self.balance.removed {
            let total = total_of(&removed.counts);
            let _ = write!(
                text,
                "deleted {} ({}): {} packets, {} on the wire, {} kept:",
                removed.reason.words(),
                removed.by.words(),
                grouped(total.packets),
                human_bytes(total.wire_bytes),
                human_bytes(total.logged_bytes),
            );
            let mut between = " ";
            for count in &removed.counts {
                let class = Printable(self.class_name(count.class)).to_string();
                let (keep, packets) = (count.keep.name(), grouped(count.packets));
                let _ = write!(text, "{between}{class} {keep} {packets}");
                between = ", ";
            }
            text.push('\n');
        }
        for deleted in &self.balance.overwritten {
            let _ = writeln!(
                text,
                "worker {}: {} files with {} packets were deleted to make room for newer files \
                 (-W)",
                deleted.worker,
                grouped(deleted.files),
                grouped(deleted.packets),
            );
        }
        let unaccounted = self.unaccounted(ledger, loss);
        if let (Some(ledger), Some(unaccounted)) = (ledger, unaccounted)
            && (!self.balance.is_whole() || unaccounted != 0)
        {
            let _ = write!(
                text,
                "logged {} packets = {} in the log + {} deleted",
                grouped(ledger.logged.packets),
                grouped(self.total().packets),
                grouped(self.balance.packets()),
            );
            if loss.packets > 0 {
                let _ = write!(text, " + {} lost", grouped(loss.packets));
            }
            let packets = grouped(unaccounted.unsigned_abs());
            text += &match unaccounted {
                0 => String::from("\n"),
                1.. => format!(
                    " + {packets} missing without a record: damaged, or deleted by an older \
                     version\n"
                ),
                _ => format!(" - {packets} that were not counted as logged\n"),
            };
        }
        text
    }

    pub(super) fn deleted_json(&self) -> Vec<Value> {
        let removed = self.balance.removed.iter();
        let rows = removed.flat_map(|removed| {
            removed.counts.iter().map(|count| {
                let mut row = json_of_counts(count);
                row["for"] = json!(removed.reason);
                row["by"] = json!(removed.by);
                row["class"] = json!(self.class_name(count.class));
                row["granularity"] = json!(count.keep.name());
                row
            })
        });
        rows.collect()
    }
}

/// A line on what compaction has yet to do, if anything of the log was ever compacted.
pub(super) fn uncompacted_line(dir: &Path, log: &Log, recording: &Recording) -> String {
    let waits = uncompacted(log, Some(recording));
    if waits.files == 0 || log.archive().next_part == 1 {
        return String::new();
    }
    let oldest = oldest(dir, &waits.first).map_or_else(String::new, |age| {
        format!(", the oldest for {} s", grouped(age.as_secs()))
    });
    format!(
        "{}, {}, complete and not compacted{oldest}\n",
        count_of(waits.files, "block file"),
        human_bytes(waits.bytes),
    )
}

pub(super) fn uncompacted_json(dir: &Path, log: &Log, recording: &Recording) -> Value {
    let waits = uncompacted(log, Some(recording));
    json!({
        "files": waits.files,
        "bytes": waits.bytes,
        "oldest_seconds": oldest(dir, &waits.first).map(|age| age.as_secs()),
    })
}

/// How long ago the file that has waited longest was written to last.
fn oldest(dir: &Path, names: &[String]) -> Option<Duration> {
    let ages = names.iter().filter_map(|name| {
        let written = fs::metadata(dir.join(name)).ok()?.modified().ok()?;
        written.elapsed().ok()
    });
    ages.max()
}

fn total_of(counts: &[ClassCount]) -> ClassCount {
    let mut total = ClassCount::default();
    for count in counts {
        total.packets = total.packets.saturating_add(count.packets);
        total.wire_bytes = total.wire_bytes.saturating_add(count.wire_bytes);
        total.logged_bytes = total.logged_bytes.saturating_add(count.logged_bytes);
    }
    total
}

pub(super) fn json_of_counts(count: &ClassCount) -> Value {
    json!({
        "packets": count.packets,
        "wire_bytes": count.wire_bytes,
        "kept_bytes": count.logged_bytes,
    })
}
