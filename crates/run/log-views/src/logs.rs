//! Logs, opened anew for each request: whatever was compacted or deleted meanwhile is seen.

mod lacking;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use strata_classify::DriftReport;
use strata_control::{DriftStatus, ShadowStatus};
use strata_query::Arrivals;
use strata_store::{Log, Recording, Select, State, StoreError, check_drift, drift_name};
use strata_wire::{KeepKind, Ledger, Printable, count_of};
use utoipa::ToSchema;

use crate::OpenLog;
use crate::answers::refused::Refused;
use crate::answers::times;
use crate::work::Stop;

pub(crate) use lacking::deleted_words;
use lacking::loss_words;
pub use lacking::lost_words;

/// Maximum number of damaged places named.
const DAMAGE_MAX: usize = 100;
/// Maximum bytes of a file about drift.
const DRIFT_BYTES_MAX: u64 = 1 << 20;
/// Features of drift that are named.
const FEATURES: usize = 5;

/// The directories of logs, and how they are opened.
pub struct Logs {
    dirs: Vec<PathBuf>,
    open: Arc<OpenLog>,
    open_stored: Arc<OpenLog>,
}

impl Logs {
    /// Logs in these directories; the ID of each is its place.
    pub fn new(dirs: &[PathBuf], open: Arc<OpenLog>, open_stored: Arc<OpenLog>) -> Self {
        Self {
            dirs: dirs.to_vec(),
            open,
            open_stored,
        }
    }

    /// The directories, with their IDs.
    pub fn iter(&self) -> impl Iterator<Item = (String, &Path)> {
        let dirs = self.dirs.iter().enumerate();
        dirs.map(|(id, dir)| (id.to_string(), dir.as_path()))
    }

    /// The directory with this ID.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn dir(&self, id: &str) -> Result<&Path, Refused> {
        let dir = id.parse::<usize>().ok().and_then(|id| self.dirs.get(id));
        let missing = || Refused::not_found(format!("unknown log '{id}'"));
        dir.map(PathBuf::as_path).ok_or_else(missing)
    }

    /// The ID of a directory, if it is one of these.
    pub fn id_of(&self, dir: &str) -> Option<String> {
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let wanted = real(Path::new(dir));
        let at = self.dirs.iter().position(|dir| real(dir) == wanted);
        at.map(|at| at.to_string())
    }
}

/// Opens a log by its ID.
///
/// # Errors
///
/// If there is none, or it cannot be opened.
pub fn open(logs: &Logs, id: &str) -> Result<Log, Refused> {
    let dir = logs.dir(id)?;
    (logs.open)(dir).map_err(Refused::unreadable)
}

/// Opens a log as it is stored: what is encrypted stays so.
///
/// # Errors
///
/// If there is none, or it cannot be opened.
pub fn open_stored(logs: &Logs, id: &str) -> Result<Log, Refused> {
    let dir = logs.dir(id)?;
    (logs.open_stored)(dir).map_err(Refused::unreadable)
}

/// When the first and the last packet of a log arrived that have a time, as far as it is readable; if none has, the
/// time that is written for none.
pub(crate) fn span_ns(log: &Log) -> Option<(u64, u64)> {
    let mut arrivals = Arrivals::default();
    for part in &log.archive().parts {
        // What cannot be read is left out.
        let _ = arrivals.part(log.disk().as_ref(), part);
    }
    for recording in log.recordings() {
        let mut is_timed = true;
        for block in log.blocks(recording, &headers_only()).flatten() {
            if block.header.packets > 0 {
                is_timed &= arrivals.take(block.header.ts_min_ns, block.header.ts_max_ns);
            }
        }
        if !is_timed {
            let _ = arrivals.blocks(log, recording);
        }
    }
    let untimed = (arrivals.untimed > 0 || arrivals.is_partial).then_some((0, 0));
    arrivals.span.or(untimed)
}

/// The classes that packets of a log may have; none if its recordings do not say.
pub fn classes_of(log: &Log) -> BTreeSet<String> {
    let all = log.recordings().iter().flat_map(|one| &one.classes);
    all.cloned().collect()
}

/// Whether packets of a log with these classes may be of this one.
pub fn is_class(classes: &BTreeSet<String>, class: &str) -> bool {
    // A packet whose verdict is missing has this one.
    classes.is_empty() || classes.contains(class) || class == "unknown"
}

/// That no packet of a log with these classes is of this one.
pub fn no_class(classes: &BTreeSet<String>, class: &str) -> String {
    let known: Vec<&str> = classes.iter().map(String::as_str).collect();
    format!(
        "no packet has the class {}: the classes here are {}",
        Printable(class),
        Printable(&known.join(", "))
    )
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

/// A log in a few numbers.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Log, example = json!({
    "id": "0", "path": "/var/log/strata/edge", "state": "recording", "problem": null,
    "first": "2026-01-31T12:00:00.000000001Z", "last": "2026-01-31T13:05:00.120000000Z",
    "packets": 1000, "wire_bytes": 760_000, "kept_bytes": 64_000, "stored_bytes": 70_000,
    "classes": [
        {"class": "benign", "granularity": "header", "packets": 900, "wire_bytes": 700_000, "kept_bytes": 54_000},
        {"class": "botnet", "granularity": "full", "packets": 100, "wire_bytes": 60_000, "kept_bytes": 60_000},
    ],
    "damaged": [], "encrypted_packets": 0, "recordings": [],
}))]
pub struct LogSummary {
    id: String,
    path: String,
    state: LogState,
    /// Why it cannot be read.
    #[schema(required)]
    problem: Option<String>,
    #[schema(required)]
    first: Option<String>,
    #[schema(required)]
    last: Option<String>,
    packets: u64,
    wire_bytes: u64,
    kept_bytes: u64,
    /// On disk.
    stored_bytes: u64,
    classes: Vec<ClassCount>,
    /// Damaged places; at most 100.
    damaged: Vec<String>,
    /// Packets that cannot be read without a key (--key).
    encrypted_packets: u64,
    recordings: Vec<RecordingSummary>,
}

impl LogSummary {
    fn unreadable(id: &str, path: String, problem: String) -> Self {
        Self {
            id: id.to_owned(),
            path,
            state: LogState::Unreadable,
            problem: Some(problem),
            first: None,
            last: None,
            packets: 0,
            wire_bytes: 0,
            kept_bytes: 0,
            stored_bytes: 0,
            classes: Vec::new(),
            damaged: Vec::new(),
            encrypted_packets: 0,
            recordings: Vec::new(),
        }
    }
}

/// State of a log.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogState {
    Recording,
    Closed,
    Interrupted,
    Empty,
    Unreadable,
}

/// Packets of a class and granularity in a log.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClassCount {
    pub(crate) class: String,
    pub(crate) granularity: String,
    pub(crate) packets: u64,
    pub(crate) wire_bytes: u64,
    pub(crate) kept_bytes: u64,
}

/// A recording of a log.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Recording, example = json!({
    "id": 1, "state": "closed", "inputs": ["eth0"], "mode": "default", "model": "builtin", "filter": "",
    "program": "strata 0.9.0", "captured_packets": 1012, "captured_bytes": 770_000, "lost_packets": 0,
    "not_kept": [], "drift": null, "shadow": null, "warnings": [],
}))]
#[allow(
    missing_docs,
    reason = "the description of the API says only what a name does not"
)]
pub struct RecordingSummary {
    id: u32,
    pub state: RecordingState,
    inputs: Vec<String>,
    mode: String,
    model: String,
    filter: String,
    program: String,
    #[schema(required)]
    captured_packets: Option<u64>,
    #[schema(required)]
    captured_bytes: Option<u64>,
    /// Null while it runs; see its recorder. Of an interrupted one, those that are known to be lost: `warnings` say
    /// from when on all are.
    #[schema(required)]
    lost_packets: Option<u64>,
    /// Of `captured_packets`, those of which nothing was to be kept; null while it runs, see its recorder, or where
    /// it was interrupted.
    #[schema(required)]
    not_kept: Option<Vec<NotKeptCount>>,
    #[schema(required)]
    drift: Option<DriftStatus>,
    /// What a shadow model would have kept differently, while the recording is under way and its recorder is
    /// watched.
    #[schema(required)]
    pub shadow: Option<ShadowStatus>,
    warnings: Vec<String>,
}

/// State of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[allow(
    missing_docs,
    reason = "the description of the API says only what a name does not"
)]
pub enum RecordingState {
    Recording,
    Closed,
    Interrupted,
}

/// Packets of which nothing was to be kept.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NotKeptCount {
    how: HowNotKept,
    packets: u64,
    bytes: u64,
}

/// Reasons why nothing was to be kept of packets.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HowNotKept {
    /// A mode or policy keeps one in N.
    SampledOut,
    /// Dropped by a mode or policy.
    Discarded,
    /// Copies of packets that were captured before.
    Duplicates,
}

/// What a log holds, and its recordings.
///
/// # Errors
///
/// If there is none, or it cannot be read.
pub fn summary(logs: &Logs, id: &str, stop: &Stop) -> Result<LogSummary, Refused> {
    let path = logs.dir(id)?.display().to_string();
    let unreadable = |problem| LogSummary::unreadable(id, path.clone(), problem);
    let log = match open(logs, id) {
        Ok(log) => log,
        Err(refused) => return Ok(unreadable(refused.error)),
    };
    let mut counts: BTreeMap<(String, KeepKind), Counted> = BTreeMap::new();
    let (mut damaged, mut encrypted, mut stored) = (Vec::new(), 0, 0);
    let mut arrivals = Arrivals::default();
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
            if let Err(error) = arrivals.part(log.disk().as_ref(), part) {
                return Ok(unreadable(error.to_string()));
            }
            if part.key.is_some() {
                encrypted = u64::saturating_add(encrypted, part.packets);
            }
        }
        let mut is_timed = true;
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
                        let header = &block.header;
                        is_timed &= arrivals.take(header.ts_min_ns, header.ts_max_ns);
                    }
                }
                Err(StoreError::Damage(damage)) if damaged.len() < DAMAGE_MAX => {
                    damaged.push(damage.to_string());
                }
                Err(StoreError::Damage(_)) => {}
                Err(error) => return Ok(unreadable(error.to_string())),
            }
        }
        if !is_timed && let Err(error) = arrivals.blocks(&log, recording) {
            return Ok(unreadable(error.to_string()));
        }
        stored = u64::saturating_add(stored, log.stored_bytes(recording)?);
    }
    let sum = |of: fn(&Counted) -> u64| {
        let all = counts.values().map(of);
        all.fold(0, u64::saturating_add)
    };
    let packets = sum(|c| c.packets);
    let classes = counts.iter().map(|((class, keep), c)| ClassCount {
        class: class.clone(),
        granularity: keep.name().to_owned(),
        packets: c.packets,
        wire_bytes: c.wire_bytes,
        kept_bytes: c.kept_bytes,
    });
    let is_live = log.being_written();
    let state = match log.recordings().last() {
        None => LogState::Empty,
        Some(last) if is_live(last) => LogState::Recording,
        Some(_) if packets == 0 => LogState::Empty,
        Some(last) if last.state == State::Running => LogState::Interrupted,
        Some(_) => LogState::Closed,
    };
    let recordings = log.recordings().iter();
    let recordings = recordings.map(|one| recording(logs, id, &log, one));
    Ok(LogSummary {
        id: id.to_owned(),
        state,
        problem: None,
        first: arrivals.span.map(|(first, _)| times::text(first)),
        last: arrivals.span.map(|(_, last)| times::text(last)),
        packets,
        wire_bytes: sum(|c| c.wire_bytes),
        kept_bytes: sum(|c| c.kept_bytes),
        stored_bytes: stored,
        classes: classes.collect(),
        damaged,
        encrypted_packets: encrypted,
        recordings: recordings.collect(),
        path,
    })
}

/// A recording of a log. What its shadow model would have kept is known to the
/// recorder alone.
pub fn recording(logs: &Logs, id: &str, log: &Log, recording: &Recording) -> RecordingSummary {
    let state = match recording.state {
        State::Closed => RecordingState::Closed,
        State::Running if log.being_written()(recording) => RecordingState::Recording,
        State::Running => RecordingState::Interrupted,
    };
    let ledger = recording.ledger.as_ref().map(Ledger::from);
    let captured = ledger.as_ref().map(|ledger| {
        let packets = ledger.seen.packets.saturating_sub(ledger.filtered.packets);
        let bytes = ledger.seen.bytes.saturating_sub(ledger.filtered.bytes);
        (packets, bytes)
    });
    // The status of a recording that is under way says what it has lost.
    let mut lost = ledger.as_ref().map(|ledger| {
        let lost = ledger.dropped.iter().map(|dropped| dropped.packets);
        lost.fold(0, u64::saturating_add)
    });
    let mut warnings = recording.warnings.clone();
    if let Some(ledger) = &ledger
        && ledger.uncompared.packets > 0
    {
        warnings.push(format!(
            "{} could not be compared by --dedup, so some may be duplicates",
            count_of(ledger.uncompared.packets, "packet")
        ));
    }
    if state == RecordingState::Interrupted {
        match log.loss(recording) {
            Ok(loss) => {
                lost = Some(loss.packets);
                warnings.push(loss_words(&loss));
            }
            Err(error) => warnings.push(error.to_string()),
        }
    }
    let not_kept = ledger.as_ref().map(|ledger| {
        let each = [
            (HowNotKept::SampledOut, ledger.sampled_out),
            (HowNotKept::Discarded, ledger.discarded),
            (HowNotKept::Duplicates, ledger.duplicates),
        ];
        let each = each.into_iter().filter(|(_, count)| count.packets > 0);
        let each = each.map(|(how, count)| NotKeptCount {
            how,
            packets: count.packets,
            bytes: count.bytes,
        });
        each.collect()
    });
    let drift = drift(logs, id, recording.id).unwrap_or_else(|problem| {
        warnings.push(problem);
        None
    });
    RecordingSummary {
        id: recording.id,
        state,
        inputs: recording.inputs.clone(),
        mode: recording.mode.clone(),
        model: recording.model.clone(),
        filter: recording.filter.clone(),
        program: recording.program.clone(),
        captured_packets: captured.map(|(packets, _)| packets),
        captured_bytes: captured.map(|(_, bytes)| bytes),
        lost_packets: lost,
        not_kept,
        drift: drift.map(|report| DriftStatus::of(&report, FEATURES)),
        shadow: None,
        warnings,
    }
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
            return Err(problem("too large for a file of drift"));
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
