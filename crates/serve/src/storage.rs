//! What a log holds, by hour, class and tier; what is deleted next; and why packets were kept.

use std::collections::BTreeMap;
use std::num::NonZeroU128;
use std::time::Instant;

use serde::Deserialize;
use serde_json::{Value, json};
use strata_archive::{Piece, PieceKind, Retention, deletable, plan};
use strata_classify::{Model, is_of_shadow};
use strata_store::{Log, Recording, Select};
use strata_wire::{clamped, unix_ns};

use crate::found::words;
use crate::logs::{self, Logs};
use crate::refused::Refused;
use crate::search::{Asked, quoted, run};
use crate::times::{SECOND_NS, text};
use crate::why;
use crate::work::Stop;

/// Most hours by class and tier, and most pieces that are deleted next.
const HOURS_MAX: usize = 20_000;
const PIECES_MAX: usize = 200;
/// Most reasons.
const REASONS_MAX: usize = 200;
const HOUR_NS: u64 = 3600 * SECOND_NS;
const DAY_NS: u64 = 24 * HOUR_NS;

/// What to keep, to see what would be deleted.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Keep {
    max_age_days: Option<f64>,
    max_bytes: Option<u64>,
}

impl Keep {
    fn retention(&self) -> Result<Retention, Refused> {
        let keep_ns = match self.max_age_days {
            None => None,
            Some(days) if (0.0..=36_500.0).contains(&days) => {
                #[allow(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    clippy::cast_precision_loss,
                    reason = "within bounds, and not below 0"
                )]
                let ns = (days * DAY_NS as f64) as u64;
                Some(ns)
            }
            Some(_) => {
                return Err(Refused::invalid("max_age_days", "from 0 to 36500 days"));
            }
        };
        Ok(Retention {
            keep_ns,
            bytes_max: self.max_bytes,
            ..Retention::default()
        })
    }

    fn command(&self, dir: &str) -> String {
        let mut command = format!("strata prune {} --dry-run", quoted(dir));
        if let Some(days) = self.max_age_days {
            command.push_str(&format!(" --keep {:.0}h", (days * 24.0).floor()));
        }
        match (self.max_bytes, self.max_age_days) {
            (Some(bytes), _) => command.push_str(&format!(" --max-size {bytes}")),
            (None, None) => command.push_str(" --max-size SIZE"),
            (None, Some(_)) => {}
        }
        command
    }
}

/// Packets and bytes of an hour, class and tier.
#[derive(Default)]
struct Held {
    packets: u64,
    bytes: u64,
    encrypted: bool,
}

/// `Storage` in the API.
pub(crate) fn storage(logs: &Logs, id: &str, keep: &Keep, stop: &Stop) -> Result<Value, Refused> {
    let retention = keep.retention()?;
    let log = logs::open(logs, id)?;
    let dir = logs.dir(id)?;
    let mut hours: BTreeMap<(String, String, &'static str), Held> = BTreeMap::new();
    let mut classes: BTreeMap<String, (u64, u64, u64)> = BTreeMap::new();
    for part in &log.archive().parts {
        let tier = if part.is_remote() {
            "moved"
        } else {
            "compacted"
        };
        let hour = (part.hour.clone(), part.retention.clone(), tier);
        let held = hours.entry(hour).or_default();
        held.packets = held.packets.saturating_add(part.packets);
        held.bytes = held.bytes.saturating_add(part.bytes());
        held.encrypted |= part.key.is_some();
        let bytes = part.bytes();
        let class = classes.entry(part.retention.clone());
        let class = class.or_insert((part.ts_min_ns, part.ts_max_ns, 0));
        *class = (
            class.0.min(part.ts_min_ns),
            class.1.max(part.ts_max_ns),
            u64::saturating_add(class.2, bytes),
        );
    }
    let mut stored = 0_u64;
    for recording in log.recordings() {
        stored = stored.saturating_add(log.stored_bytes(recording)?);
        blocks(&log, recording, &mut hours, stop)?;
    }
    let (mut all, disk) = (hours.len(), disk(dir));
    let newest = hours.iter().rev().take(HOURS_MAX);
    let hours: Vec<Value> = newest
        .map(|((hour, class, tier), held)| {
            json!({
                "hour": hour, "class": class, "tier": tier, "packets": held.packets,
                "bytes": held.bytes, "encrypted": held.encrypted,
            })
        })
        .collect();
    all = all.saturating_sub(hours.len());
    Ok(json!({
        "disk": disk,
        "stored_bytes": stored,
        "hours": hours,
        "hours_left_out": all,
        "held": classes.iter().map(held).collect::<Vec<_>>(),
        "next": next(&log, keep, &retention, &dir.display().to_string())?,
        "compacting": null,
    }))
}

#[allow(clippy::cast_precision_loss, reason = "days, and bytes of one")]
fn held((class, &(oldest, newest, bytes)): (&String, &(u64, u64, u64))) -> Value {
    let days = newest.saturating_sub(oldest) as f64 / DAY_NS as f64;
    json!({
        "class": class,
        "oldest": text(oldest),
        "newest": text(newest),
        "days": days,
        "bytes": bytes,
        // Of less than an hour, a day's bytes would be a guess.
        "bytes_per_day": bytes as f64 / days.max(1.0 / 24.0),
    })
}

/// Block files hold packets of all classes; a block is counted in the hour in which it begins.
fn blocks(
    log: &Log,
    recording: &Recording,
    hours: &mut BTreeMap<(String, String, &'static str), Held>,
    stop: &Stop,
) -> Result<(), Refused> {
    let headers = Select {
        without_records: true,
        ..Select::default()
    };
    for file in &recording.files {
        let bytes = log.file_bytes(file)?;
        let mut by_hour: BTreeMap<u64, u64> = BTreeMap::new();
        for block in log.blocks_in(recording, file, &headers).flatten() {
            if stop.go_on().is_break() {
                return Err(Refused::busy(
                    "the log is too large to be counted in time: compact it",
                ));
            }
            if block.header.packets > 0 {
                let hour = block.header.ts_min_ns / HOUR_NS;
                let of_hour: &mut u64 = by_hour.entry(hour).or_default();
                *of_hour = of_hour.saturating_add(block.header.packets.into());
            }
        }
        // Each has at most 2^32, and a file fewer blocks.
        let packets = by_hour
            .values()
            .fold(0, |sum, of| u128::saturating_add(sum, (*of).into()));
        let Some(packets) = NonZeroU128::new(packets) else {
            // No hour has any.
            continue;
        };
        for (hour, of_hour) in by_hour {
            let name: String = text(hour.saturating_mul(HOUR_NS))
                .chars()
                .take(13)
                .collect();
            let held = hours
                .entry((name, String::from("all"), "blocks"))
                .or_default();
            held.packets = held.packets.saturating_add(of_hour);
            // In proportion to its packets.
            let share = u128::from(bytes).saturating_mul(of_hour.into()) / packets;
            held.bytes = held.bytes.saturating_add(clamped(share));
        }
    }
    Ok(())
}

fn disk(dir: &std::path::Path) -> Option<Value> {
    let about = rustix::fs::statvfs(dir).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(about.f_frsize);
    // As in df, and for a recording's `disk_space`: what is reserved for root does not count.
    let used = about.f_blocks.saturating_sub(about.f_bfree);
    Some(json!({
        "total_bytes": bytes(used.saturating_add(about.f_bavail)),
        "free_bytes": bytes(about.f_bavail),
        "seconds_to_full": null,
    }))
}

/// What is deleted next: what is too old or too much, or else in the order in which it would be.
fn next(log: &Log, keep: &Keep, retention: &Retention, dir: &str) -> Result<Value, Refused> {
    let (pieces, held) = deletable(log)?;
    let nothing_said = *retention == Retention::default();
    let retention = match nothing_said {
        true => Retention {
            bytes_max: Some(0),
            ..Retention::default()
        },
        false => retention.clone(),
    };
    let planned = plan(&pieces, held, &retention, unix_ns());
    let bytes: u64 = planned.delete.iter().map(|&at| pieces[at].bytes).sum();
    let told = planned.delete.iter().take(PIECES_MAX);
    let told = told.map(|&at| piece(&pieces[at]));
    Ok(json!({
        "pieces": told.collect::<Vec<_>>(),
        "bytes": bytes,
        "command": keep.command(dir),
    }))
}

fn piece(piece: &Piece) -> Value {
    let (what, class) = match &piece.what {
        PieceKind::Part { id, retention } => (format!("part {id}"), retention.clone()),
        PieceKind::Block { entry, .. } => (entry.name.clone(), String::from("all")),
    };
    json!({
        "what": what, "class": class, "from": null, "to": text(piece.last_ns),
        "bytes": piece.bytes,
    })
}

/// The most frequent reasons, those that keep most first (`Reasons`).
pub(crate) fn reasons(
    logs: &Logs,
    id: &str,
    asked: &Asked,
    limit: Option<usize>,
    stop: &Stop,
) -> Result<Value, Refused> {
    let since = Instant::now();
    let sought = asked.sought()?;
    let log = logs::open(logs, id)?;
    let found = run(&log, &sought, (10, false), stop, &mut |_, _| {
        std::ops::ControlFlow::Continue(())
    })?;
    // Each model has other leaves.
    let mut models: BTreeMap<(u32, bool), Option<Model>> = BTreeMap::new();
    let (reasons, total) = found.by_cost(limit.unwrap_or(30).min(REASONS_MAX));
    let reasons = reasons.into_iter().map(|reason| {
        let of = (reason.recording, is_of_shadow(reason.reason));
        let model = models.entry(of).or_insert_with(|| {
            let mut recordings = log.recordings().iter();
            let own = recordings.find(|one| one.id == reason.recording);
            own.and_then(|own| why::model(&log, own, reason.reason))
        });
        let (trees, more) = model.as_ref().map_or((Vec::new(), 0), |model| {
            why::trees(model, reason.class, reason.reason)
        });
        json!({
            "reason": reason.reason,
            "words": words(reason.reason, reason.class),
            "class": reason.class,
            "granularity": reason.granularity,
            "score": reason.score,
            "packets": reason.packets,
            "kept_bytes": reason.kept_bytes,
            "first": text(reason.first_ns),
            "first_flow": reason.first_flow.to_string(),
            "flow": crate::flow_id::id(&reason.first_flow),
            "trees": trees,
            "more_trees": more,
        })
    });
    Ok(json!({
        "reasons": reasons.collect::<Vec<_>>(),
        "total": total,
        "covered": found.covered(stop, since),
    }))
}
