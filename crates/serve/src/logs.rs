//! Logs, opened anew for each request: whatever was compacted or deleted meanwhile is seen.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use strata_classify::{DRIFTED, DriftReport};
use strata_store::{Log, Recording, Select, State, StoreError, check_drift, drift_name};
use strata_wire::{KeepKind, Ledger};

use crate::OpenLog;
use crate::refused::Refused;
use crate::times;
use crate::work::Stop;

/// Most damaged places named.
const DAMAGE_MAX: usize = 100;
/// Most bytes of a file about drift.
const DRIFT_BYTES_MAX: u64 = 1 << 20;
/// Features of drift that are named.
const FEATURES: usize = 5;

/// The directories of logs, and how they are opened.
pub(crate) struct Logs {
    dirs: Vec<PathBuf>,
    open: Arc<OpenLog>,
    open_stored: Arc<OpenLog>,
}

impl Logs {
    pub(crate) fn new(dirs: &[PathBuf], open: Arc<OpenLog>, open_stored: Arc<OpenLog>) -> Self {
        Self {
            dirs: dirs.to_vec(),
            open,
            open_stored,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (String, &Path)> {
        let dirs = self.dirs.iter().enumerate();
        dirs.map(|(id, dir)| (id.to_string(), dir.as_path()))
    }

    /// The directory with this ID.
    pub(crate) fn dir(&self, id: &str) -> Result<&Path, Refused> {
        let dir = id.parse::<usize>().ok().and_then(|id| self.dirs.get(id));
        let missing = || Refused::not_found(format!("there is no log '{id}' here"));
        dir.map(PathBuf::as_path).ok_or_else(missing)
    }

    /// The ID of a directory, if it is one of these.
    pub(crate) fn id_of(&self, dir: &str) -> Option<String> {
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let wanted = real(Path::new(dir));
        let at = self.dirs.iter().position(|dir| real(dir) == wanted);
        at.map(|at| at.to_string())
    }
}

/// Opens a log by its ID.
pub(crate) fn open(logs: &Logs, id: &str) -> Result<Log, Refused> {
    let dir = logs.dir(id)?;
    (logs.open)(dir).map_err(Refused::unreadable)
}

/// Opens a log as it is stored: what is encrypted stays so.
pub(crate) fn open_stored(logs: &Logs, id: &str) -> Result<Log, Refused> {
    let dir = logs.dir(id)?;
    (logs.open_stored)(dir).map_err(Refused::unreadable)
}

/// When the first and the last packet of a log arrived, as far as it is readable.
pub(crate) fn span_ns(log: &Log) -> Option<(u64, u64)> {
    let parts = log.archive().parts.iter().filter(|part| part.packets > 0);
    let mut spans: Vec<(u64, u64)> = parts.map(|part| (part.ts_min_ns, part.ts_max_ns)).collect();
    for recording in log.recordings() {
        for block in log.blocks(recording, &headers_only()).flatten() {
            if block.header.packets > 0 {
                spans.push((block.header.ts_min_ns, block.header.ts_max_ns));
            }
        }
    }
    let together = |a: (u64, u64), b: (u64, u64)| (a.0.min(b.0), a.1.max(b.1));
    spans.into_iter().reduce(together)
}

fn headers_only() -> Select {
    Select {
        without_records: true,
        ..Select::default()
    }
}

/// Packets and bytes of a class and granularity.
#[derive(Clone, Copy, Default)]
struct Counted {
    packets: u64,
    wire_bytes: u64,
    kept_bytes: u64,
}

/// A log in a few numbers (`Log` in the API).
pub(crate) fn summary(logs: &Logs, id: &str, stop: &Stop) -> Result<Value, Refused> {
    let path = logs.dir(id)?.display().to_string();
    let unreadable = |problem: String| {
        json!({
            "id": id, "path": path, "state": "unreadable", "problem": problem, "first": null,
            "last": null, "packets": 0, "wire_bytes": 0, "kept_bytes": 0, "stored_bytes": 0,
            "classes": [], "damaged": [], "encrypted_packets": 0, "recordings": [],
        })
    };
    let log = match open(logs, id) {
        Ok(log) => log,
        Err(refused) => return Ok(unreadable(refused.error)),
    };
    let mut counts: BTreeMap<(String, KeepKind), Counted> = BTreeMap::new();
    let (mut damaged, mut encrypted, mut stored) = (Vec::new(), 0, 0);
    let mut span: Option<(u64, u64)> = None;
    let mut reaches = |first, last| {
        let (a, b) = span.unwrap_or((first, last));
        span = Some((a.min(first), b.max(last)));
    };
    for recording in log.recordings() {
        let mut count = |class: u8, keep, packets, wire_bytes, kept_bytes| {
            let class = recording.classes.get(usize::from(class));
            let class = class.map_or("unknown", String::as_str).to_owned();
            let known = counts.entry((class, keep)).or_default();
            known.packets = known.packets.saturating_add(packets);
            known.wire_bytes = known.wire_bytes.saturating_add(wire_bytes);
            known.kept_bytes = known.kept_bytes.saturating_add(kept_bytes);
        };
        let parts = log.archive().parts.iter();
        for part in parts.filter(|part| part.recording == recording.id && part.packets > 0) {
            for c in &part.counts {
                count(c.class, c.keep, c.packets, c.wire_bytes, c.logged_bytes);
            }
            reaches(part.ts_min_ns, part.ts_max_ns);
            if part.key.is_some() {
                encrypted = u64::saturating_add(encrypted, part.packets);
            }
        }
        for block in log.blocks(recording, &headers_only()) {
            if stop.go_on().is_break() {
                return Err(Refused::busy(
                    "the log is too large to be counted in time: compact it (strata compact)",
                ));
            }
            match block {
                Ok(block) => {
                    for c in &block.summary.counts {
                        count(c.class, c.keep, c.packets, c.wire_bytes, c.logged_bytes);
                    }
                    if block.header.packets > 0 {
                        reaches(block.header.ts_min_ns, block.header.ts_max_ns);
                    }
                }
                Err(StoreError::Damage(damage)) if damaged.len() < DAMAGE_MAX => {
                    damaged.push(damage.to_string());
                }
                Err(StoreError::Damage(_)) => {}
                Err(error) => return Ok(unreadable(error.to_string())),
            }
        }
        stored = u64::saturating_add(stored, log.stored_bytes(recording)?);
    }
    let sum = |of: fn(&Counted) -> u64| {
        let all = counts.values().map(of);
        all.fold(0, u64::saturating_add)
    };
    let classes = counts.iter().map(|((class, keep), c)| {
        json!({
            "class": class, "granularity": keep.name(), "packets": c.packets,
            "wire_bytes": c.wire_bytes, "kept_bytes": c.kept_bytes,
        })
    });
    let is_live = log.being_written();
    let state = match log.recordings().last() {
        None => "empty",
        Some(last) if is_live(last) => "recording",
        Some(_) if span.is_none() => "empty",
        Some(last) if last.state == State::Running => "interrupted",
        Some(_) => "closed",
    };
    let recordings = log.recordings().iter();
    let recordings = recordings.map(|one| recording(logs, id, &log, one));
    Ok(json!({
        "id": id,
        "path": path,
        "state": state,
        "problem": null,
        "first": span.map(|(first, _)| times::text(first)),
        "last": span.map(|(_, last)| times::text(last)),
        "packets": sum(|c| c.packets),
        "wire_bytes": sum(|c| c.wire_bytes),
        "kept_bytes": sum(|c| c.kept_bytes),
        "stored_bytes": stored,
        "classes": classes.collect::<Vec<_>>(),
        "damaged": damaged,
        "encrypted_packets": encrypted,
        "recordings": recordings.collect::<Vec<_>>(),
    }))
}

/// A recording of a log (`Recording` in the API). What its shadow model would have kept is known to the
/// recorder alone.
pub(crate) fn recording(logs: &Logs, id: &str, log: &Log, recording: &Recording) -> Value {
    let state = match recording.state {
        State::Closed => "closed",
        State::Running if log.being_written()(recording) => "recording",
        State::Running => "interrupted",
    };
    let ledger = recording.ledger.as_ref().map(Ledger::from);
    let captured = ledger.as_ref().map(|ledger| {
        let packets = ledger.seen.packets.saturating_sub(ledger.filtered.packets);
        let bytes = ledger.seen.bytes.saturating_sub(ledger.filtered.bytes);
        (packets, bytes)
    });
    // The status of a recording that is under way says what it has lost.
    let lost = ledger.as_ref().map(|ledger| {
        let lost = ledger.dropped.iter().map(|dropped| dropped.packets);
        lost.sum::<u64>()
    });
    let mut warnings = recording.warnings.clone();
    let not_kept = ledger.as_ref().map(|ledger| {
        let each = [
            ("sampled_out", ledger.sampled_out),
            ("discarded", ledger.discarded),
        ];
        let each = each.into_iter().filter(|(_, count)| count.packets > 0);
        let each = each.map(
            |(how, count)| json!({"how": how, "packets": count.packets, "bytes": count.bytes}),
        );
        each.collect::<Vec<_>>()
    });
    let drift = drift(logs, id, recording.id).unwrap_or_else(|problem| {
        warnings.push(problem);
        None
    });
    json!({
        "id": recording.id,
        "state": state,
        "inputs": recording.inputs,
        "mode": recording.mode,
        "model": recording.model,
        "filter": recording.filter,
        "program": recording.program,
        "captured_packets": captured.map(|(packets, _)| packets),
        "captured_bytes": captured.map(|(_, bytes)| bytes),
        "lost_packets": lost,
        "not_kept": not_kept,
        "drift": drift.map(|report| drifted(&report)),
        "shadow": null,
        "warnings": warnings,
    })
}

fn drifted(report: &DriftReport) -> Value {
    let features = report.features.iter().take(FEATURES);
    let features = features.map(|(name, index)| json!({"name": name, "index": index}));
    json!({
        "samples": report.samples,
        "score_index": report.scores,
        "bound": DRIFTED,
        "fits": report.drifted().map(|drifted| !drifted),
        "features": features.collect::<Vec<_>>(),
    })
}

/// How well a recording's model fits its traffic, if that was saved.
fn drift(logs: &Logs, id: &str, recording: u32) -> Result<Option<DriftReport>, String> {
    let Ok(dir) = logs.dir(id) else {
        return Ok(None);
    };
    let path = dir.join(drift_name(recording));
    let problem = |what: &str| format!("{}: {what}", path.display());
    match std::fs::metadata(&path) {
        Err(_) => return Ok(None),
        Ok(about) if about.len() > DRIFT_BYTES_MAX => {
            return Err(problem("too large for what is known of a model's fit"));
        }
        Ok(_) => {}
    }
    let json = std::fs::read(&path).map_err(|error| problem(&error.to_string()))?;
    check_drift(&json).map_err(problem)?;
    let report = serde_json::from_slice(&json);
    report
        .map(Some)
        .map_err(|error| problem(&error.to_string()))
}
