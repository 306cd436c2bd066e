//! What a log holds, by hour, class and tier; what is deleted next; and why packets were kept.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU128;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use strata_archive::{Piece, PieceKind, Retention, deletable, plan};
use strata_classify::{Model, Sign, Signs, is_of_shadow, kind_of, leaves_of_reason};
use strata_sketch::Level;
use strata_store::{Log, Recording, Select};
use strata_wire::{clamped, unix_ns};
use utoipa::ToSchema;

use crate::answers::parts::Covered;
use crate::answers::refused::Refused;
use crate::answers::times::{SECOND_NS, text};
use crate::logs::{self, Logs};
use crate::search::found::{Cost, ReasonsTotal, words};
use crate::search::{Sought, quoted, run};
use crate::why::{self, WhySign, WhyTree};
use crate::work::Stop;

/// Maximum number of hours by class and tier, and maximum number of pieces that are deleted next.
const HOURS_MAX: usize = 20_000;
const PIECES_MAX: usize = 200;
/// Maximum number of kinds of reasons.
const KINDS_MAX: usize = 200;
const HOUR_NS: u64 = 3600 * SECOND_NS;
const DAY_NS: u64 = 24 * HOUR_NS;

/// What to keep, to see what would be deleted.
#[derive(Debug, Default, Deserialize)]
pub struct Keep {
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

/// Contents of a log, and the files that retention deletes next.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "disk": {"total_bytes": 1_000_000_000_000_u64, "free_bytes": 290_000_000_000_u64, "seconds_to_full": 86400},
    "stored_bytes": 70_000_000,
    "hours": [
        {"hour": "2026-01-31T13", "class": "all", "tier": "blocks", "packets": 1000, "bytes": 70000, "encrypted": false},
        {"hour": "2026-01-31T12", "class": "botnet", "tier": "compacted", "packets": 5000, "bytes": 900_000, "encrypted": false},
    ],
    "hours_left_out": 0,
    "held": [{
        "class": "botnet", "oldest": "2026-01-24T12:00:00.000000000Z", "newest": "2026-01-31T13:00:00.000000000Z",
        "days": 7.0, "bytes": 9_000_000, "bytes_per_day": 1_285_714,
    }],
    "next": {
        "pieces": [{
            "what": "part 3 of benign", "class": "benign", "from": "2026-01-24T12:00:00.000000000Z",
            "to": "2026-01-24T13:00:00.000000000Z", "bytes": 100_000,
        }],
        "bytes": 100_000,
        "command": "strata prune /var/log/strata/edge --dry-run --keep 168h",
    },
    "compacting": null,
}))]
pub struct Storage {
    #[schema(required)]
    disk: Option<StorageDisk>,
    stored_bytes: u64,
    /// By hour, class and tier; at most 20,000, newest first.
    hours: Vec<StorageHour>,
    /// Hours that are older than the listed hours.
    hours_left_out: usize,
    held: Vec<StorageClass>,
    next: StorageNext,
    /// If a compaction is at work: which.
    #[schema(required)]
    compacting: Option<String>,
}

/// The file system of a log.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StorageDisk {
    total_bytes: u64,
    free_bytes: u64,
    #[schema(required)]
    seconds_to_full: Option<f64>,
}

/// Contents of an hour.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StorageHour {
    hour: String,
    /// Retention class; `all` for block files.
    class: String,
    tier: Tier,
    packets: u64,
    bytes: u64,
    encrypted: bool,
}

/// Where packets are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Tier {
    Blocks,
    Compacted,
    Moved,
}

/// Contents of a retention class.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StorageClass {
    class: String,
    oldest: String,
    newest: String,
    days: f64,
    bytes: u64,
    bytes_per_day: f64,
}

/// What retention deletes next: with `max_age_days` and `max_bytes` as asked; without, in the order in which
/// shortage of disk would.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StorageNext {
    /// At most 200.
    pieces: Vec<StoragePiece>,
    bytes: u64,
    command: String,
}

/// A part of a log that is deleted as a whole.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StoragePiece {
    what: String,
    class: String,
    #[schema(required)]
    from: Option<String>,
    #[schema(required)]
    to: Option<String>,
    bytes: u64,
}

/// Packets and bytes of an hour, class and tier.
#[derive(Default)]
struct Held {
    packets: u64,
    bytes: u64,
    encrypted: bool,
}

/// Of these hours, by name, class and tier.
type Hours = BTreeMap<(String, String, Tier), Held>;

/// What a log holds by hour, class and tier, and what a retention would delete next.
///
/// # Errors
///
/// If there is no such log, it cannot be read, or a parameter is invalid.
pub fn storage(logs: &Logs, id: &str, keep: &Keep, stop: &Stop) -> Result<Storage, Refused> {
    let retention = keep.retention()?;
    let log = logs::open(logs, id)?;
    let dir = logs.dir(id)?;
    let mut hours = Hours::new();
    let mut classes: BTreeMap<String, (u64, u64, u64)> = BTreeMap::new();
    for part in &log.archive().parts {
        let tier = if part.is_remote() {
            Tier::Moved
        } else {
            Tier::Compacted
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
    let all = hours.len();
    let newest = hours.into_iter().rev().take(HOURS_MAX);
    let hours: Vec<StorageHour> = newest
        .map(|((hour, class, tier), held)| StorageHour {
            hour,
            class,
            tier,
            packets: held.packets,
            bytes: held.bytes,
            encrypted: held.encrypted,
        })
        .collect();
    Ok(Storage {
        disk: disk(dir),
        stored_bytes: stored,
        hours_left_out: all.saturating_sub(hours.len()),
        hours,
        held: classes.into_iter().map(held).collect(),
        next: next(&log, keep, &retention, &dir.display().to_string())?,
        compacting: None,
    })
}

#[allow(clippy::cast_precision_loss, reason = "days, and bytes of one")]
fn held((class, (oldest, newest, bytes)): (String, (u64, u64, u64))) -> StorageClass {
    let days = newest.saturating_sub(oldest) as f64 / DAY_NS as f64;
    StorageClass {
        class,
        oldest: text(oldest),
        newest: text(newest),
        days,
        bytes,
        // Of less than an hour, a day's bytes would be a guess.
        bytes_per_day: bytes as f64 / days.max(1.0 / 24.0),
    }
}

/// Block files hold packets of all classes; a block is counted in the hour in which it begins.
fn blocks(log: &Log, recording: &Recording, hours: &mut Hours, stop: &Stop) -> Result<(), Refused> {
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
                .entry((name, String::from("all"), Tier::Blocks))
                .or_default();
            held.packets = held.packets.saturating_add(of_hour);
            // In proportion to its packets.
            let share = u128::from(bytes).saturating_mul(of_hour.into()) / packets;
            held.bytes = held.bytes.saturating_add(clamped(share));
        }
    }
    Ok(())
}

fn disk(dir: &std::path::Path) -> Option<StorageDisk> {
    let about = rustix::fs::statvfs(dir).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(about.f_frsize);
    // As in df, and for a recording's `disk_space`: what is reserved for root does not count.
    let used = about.f_blocks.saturating_sub(about.f_bfree);
    Some(StorageDisk {
        total_bytes: bytes(used.saturating_add(about.f_bavail)),
        free_bytes: bytes(about.f_bavail),
        seconds_to_full: None,
    })
}

/// What is deleted next: what is too old or too much, or else in the order in which it would be.
fn next(log: &Log, keep: &Keep, retention: &Retention, dir: &str) -> Result<StorageNext, Refused> {
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
    Ok(StorageNext {
        pieces: told.collect(),
        bytes,
        command: keep.command(dir),
    })
}

fn piece(piece: &Piece) -> StoragePiece {
    let (what, class) = match &piece.what {
        PieceKind::Part { id, retention, .. } => (format!("part {id}"), retention.clone()),
        PieceKind::Block { entry, .. } => (entry.name.clone(), String::from("all")),
    };
    StoragePiece {
        what,
        class,
        from: None,
        to: Some(text(piece.last_ns)),
        bytes: piece.bytes,
    }
}

/// Reasons why packets were kept; the kinds that keep the most bytes are first.
#[derive(Debug, Serialize, ToSchema)]
pub struct Reasons {
    kinds: Vec<KindOfReasons>,
    /// How many kinds there are.
    kinds_in_all: usize,
    total: ReasonsTotal,
    covered: Covered,
}

/// Reasons of a class and granularity that are the same in words.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KindOfReasons {
    words: String,
    class: String,
    granularity: String,
    /// How many there are.
    reasons: u64,
    packets: u64,
    /// Bytes kept for them.
    kept_bytes: u64,
    /// The one that keeps most.
    largest: ReasonCost,
}

/// A reason, and the bytes kept for it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReasonCost {
    reason: String,
    #[schema(required)]
    score: Option<f64>,
    packets: u64,
    /// Bytes kept for it.
    kept_bytes: u64,
    first: String,
    /// The flow of its first packet.
    first_flow: String,
    /// `id` of that flow.
    flow: String,
    /// The features that support the class, the strongest first, at most 5; none if the forest did not decide.
    signs: Vec<WhySign>,
    trees: Vec<WhyTree>,
    more_trees: usize,
}

/// The kinds of reasons, those that keep most first.
///
/// # Errors
///
/// If there is no such log, or it cannot be read.
pub fn reasons(
    logs: &Logs,
    id: &str,
    sought: &Sought,
    limit: Option<usize>,
    stop: &Stop,
) -> Result<Reasons, Refused> {
    let since = Instant::now();
    let log = logs::open(logs, id)?;
    let found = run(&log, sought, (10, false), stop, &mut |_, _| {
        std::ops::ControlFlow::Continue(())
    })?;
    let (costs, total) = found.by_cost();
    let models = models(&log, &costs);
    let mut in_words = InWords {
        models: &models,
        signs: HashMap::new(),
    };
    let mut kinds: Vec<KindOfReasons> = Vec::new();
    let mut known: HashMap<(&str, &str, String), usize> = HashMap::new();
    for reason in &costs {
        let words = in_words.words(reason);
        let place = *known
            .entry((reason.class, reason.granularity, words.clone()))
            .or_insert_with(|| {
                let place = kinds.len();
                kinds.push(KindOfReasons {
                    words,
                    class: reason.class.to_owned(),
                    granularity: reason.granularity.to_owned(),
                    reasons: 0,
                    packets: 0,
                    kept_bytes: 0,
                    largest: in_words.cost(reason),
                });
                place
            });
        let kind = &mut kinds[place];
        kind.reasons = kind.reasons.saturating_add(1);
        kind.packets = kind.packets.saturating_add(reason.packets);
        kind.kept_bytes = kind.kept_bytes.saturating_add(reason.kept_bytes);
    }
    kinds.sort_by_key(|kind| Reverse(kind.kept_bytes));
    let in_all = kinds.len();
    kinds.truncate(limit.unwrap_or(30).min(KINDS_MAX));
    Ok(Reasons {
        kinds,
        kinds_in_all: in_all,
        total,
        covered: found.covered(stop, since),
    })
}

/// The model of each recording, and its shadow.
type Models = BTreeMap<(u32, bool), Option<Model>>;

fn models(log: &Log, reasons: &[Cost<'_>]) -> Models {
    let mut models = Models::new();
    for reason in reasons {
        let of = (reason.recording, is_of_shadow(reason.reason));
        models.entry(of).or_insert_with(|| {
            let mut recordings = log.recordings().iter();
            let own = recordings.find(|one| one.id == reason.recording);
            own.and_then(|own| why::model(log, own, reason.reason))
        });
    }
    models
}

/// Reasons in words, by the models that decided.
struct InWords<'a> {
    models: &'a Models,
    /// What speaks for a class, by model and level: looked up once.
    signs: HashMap<(u32, bool, Level, String), Option<Signs<'a>>>,
}

impl<'a> InWords<'a> {
    fn model(&self, reason: &Cost<'_>) -> Option<&'a Model> {
        let of = (reason.recording, is_of_shadow(reason.reason));
        self.models.get(&of)?.as_ref()
    }

    /// What speaks for the class, the strongest first; `None` if it was not the forest that decided.
    fn signs(&mut self, reason: &Cost<'_>) -> Option<Vec<Sign>> {
        let (level, leaves) = leaves_of_reason(reason.reason)?;
        let model = self.model(reason)?;
        let is_shadow = is_of_shadow(reason.reason);
        let of = (reason.recording, is_shadow, level, reason.class.to_owned());
        let signs = self.signs.entry(of);
        let signs = signs.or_insert_with(|| Signs::new(model, level, reason.class));
        Some(
            signs
                .as_ref()
                .map_or_else(Vec::new, |signs| signs.of(&leaves)),
        )
    }

    /// The reason in a few words, with what is most unusual.
    fn words(&mut self, reason: &Cost<'_>) -> String {
        let words = words(reason.reason, reason.class);
        match self.signs(reason) {
            Some(signs) => format!("{words}: {}", kind_of(&signs)),
            None => words,
        }
    }

    fn cost(&mut self, reason: &Cost<'_>) -> ReasonCost {
        let signs: Vec<Sign> = self.signs(reason).into_iter().flatten().collect();
        let model = self.model(reason);
        let signs = model.map_or_else(Vec::new, |model| why::strongest(&signs, model.clock()));
        let (trees, more) = model.map_or((Vec::new(), 0), |model| {
            why::trees(model, reason.class, reason.reason)
        });
        ReasonCost {
            reason: reason.reason.to_owned(),
            score: reason.score.map(f64::from),
            packets: reason.packets,
            kept_bytes: reason.kept_bytes,
            first: text(reason.first_ns),
            first_flow: reason.first_flow.to_string(),
            flow: crate::search::flow_id::id(&reason.first_flow),
            signs,
            trees,
            more_trees: more,
        }
    }
}
