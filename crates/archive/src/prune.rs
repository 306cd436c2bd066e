//! Retention: whole parts and block files leave the log, by age, and to free space the least
//! important first, of those the oldest.
//!
//! Age spares nothing: a file is deleted once its last packet is too old, even the newest file.
//! Only a file still being written stays, until it is complete. Freeing space never deletes the
//! newest, so that a log with too low a limit still holds something.

use std::collections::BTreeMap;
use std::sync::Arc;

use strata_store::{
    Archive, BlockFile, Damage, Disk, Gone, Log, Part, Recording, Select, StoreError, read_archive,
};

use crate::anomalous::Anomalous;
use crate::changes::{clean_up, delete_gone, lock, replace};
use crate::error::ArchiveError;
use crate::retention::{PROTECTED, retention_name};

/// How long and how much is kept. The default keeps everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// How long, ns, unless a class has its own limit.
    pub keep_ns: Option<u64>,
    /// How long, ns, by retention class ([`retention_class`]).
    pub keep_class_ns: BTreeMap<String, u64>,
    /// Bytes of the whole log, without files stored elsewhere.
    pub bytes_max: Option<u64>,
}

impl Retention {
    /// How long this class is kept; `None` for ever.
    fn of(&self, class: &str) -> Option<u64> {
        let otherwise = self.keep_ns.filter(|_| class != PROTECTED);
        self.keep_class_ns.get(class).copied().or(otherwise)
    }

    /// How long to keep data that may be of any of these classes; `None` for ever.
    fn longest(&self, classes: &[String], protected: bool) -> Option<u64> {
        let protected = protected.then_some(PROTECTED);
        let mut longest = None;
        for class in classes.iter().map(String::as_str).chain(protected) {
            longest = longest.max(Some(self.of(class)?));
        }
        // Without classes, nothing could be kept longer.
        longest.or(self.keep_ns)
    }
}

/// The retention class for a class of a model: the class's name as in directory names.
#[must_use]
pub fn retention_class(class: &str) -> String {
    retention_name(Some(class))
}

/// What is deleted first when space is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Importance {
    /// Parts of classes that the model does not call anomalous.
    Ordinary,
    /// Parts of anomalous classes, and block files, which hold packets of all classes.
    Anomalous,
    /// What a policy protects, or may protect: never deleted to free space.
    Protected,
}

/// Something that can only be deleted as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What it is.
    pub what: PieceKind,
    /// Its importance.
    pub importance: Importance,
    /// When its last packet arrived, ns.
    pub last_ns: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Whether these are stored elsewhere: deleting them frees no space on the log's disk.
    pub remote: bool,
    /// Packets in it.
    pub packets: u64,
}

impl Piece {
    fn local_bytes(&self) -> u64 {
        if self.remote { 0 } else { self.bytes }
    }
}

/// What a [`Piece`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PieceKind {
    /// A part: packets of one hour and retention class.
    Part {
        /// Its number.
        id: u32,
        /// Its retention class.
        retention: String,
    },
    /// A block file that is no longer written to.
    Block {
        /// Its entry once it is gone.
        entry: Gone,
        /// Retention classes its packets may have, besides [`PROTECTED`].
        classes: Vec<String>,
    },
}

/// What to delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrunePlan {
    /// Which pieces to delete, by index, in order of deletion.
    pub delete: Vec<usize>,
    /// Bytes that are left.
    pub bytes_left: u64,
    /// Whether that exceeds the limit because nothing else may be deleted.
    pub still_too_large: bool,
}

/// Plans what to delete from a log of these pieces and of `held` bytes that cannot be deleted: all
/// that is too old at `now_ns`, then the least important, oldest first, until the log is small
/// enough. Of what is not too old, the newest piece and what is protected stay.
#[must_use]
pub fn plan(pieces: &[Piece], held: u64, retention: &Retention, now_ns: u64) -> PrunePlan {
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.sort_by_key(|&at| (pieces[at].last_ns, at));
    let too_old = |piece: &Piece| {
        let keep = match &piece.what {
            PieceKind::Part {
                retention: class, ..
            } => retention.of(class),
            PieceKind::Block { classes, .. } => {
                retention.longest(classes, piece.importance == Importance::Protected)
            }
        };
        keep.is_some_and(|keep| is_older(piece.last_ns, keep, now_ns))
    };
    let (mut delete, mut rest): (Vec<_>, Vec<_>) =
        order.into_iter().partition(|&at| too_old(&pieces[at]));
    // The newest is not deleted to free space.
    rest.pop();
    let total: u64 = pieces.iter().map(Piece::local_bytes).sum();
    let old: u64 = delete.iter().map(|&at| pieces[at].local_bytes()).sum();
    let mut bytes_left = total + held - old;
    rest.retain(|&at| pieces[at].importance < Importance::Protected && !pieces[at].remote);
    rest.sort_by_key(|&at| pieces[at].importance);
    let is_too_large = |bytes: u64| retention.bytes_max.is_some_and(|max| bytes > max);
    for at in rest {
        if !is_too_large(bytes_left) {
            break;
        }
        bytes_left -= pieces[at].bytes;
        delete.push(at);
    }
    PrunePlan {
        delete,
        bytes_left,
        still_too_large: is_too_large(bytes_left),
    }
}

/// Whether a time is longer ago than the limit.
fn is_older(time_ns: u64, keep_ns: u64, now_ns: u64) -> bool {
    now_ns.saturating_sub(time_ns) > keep_ns
}

/// What was deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Parts.
    pub parts: u64,
    /// Block files.
    pub block_files: u64,
    /// Packets in both.
    pub packets: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// Bytes that are left.
    pub bytes_left: u64,
    /// Whether the log still exceeds the limit, because only its newest data and what policies
    /// protect are left.
    pub still_too_large: bool,
    /// Block files still being written that hold packets that are too old: they can be deleted once
    /// complete.
    pub being_written: u64,
    /// Whether files no longer in the log are still there because somebody reads the log, or a
    /// store does not answer: the next compaction or pruning deletes them.
    pub waits_for_readers: bool,
    /// Models that cannot be read: parts of their recordings count as anomalous.
    pub unknown_models: Vec<Damage>,
}

/// Deletes from this log what [`plan`] selects. With `dry_run`, only reports what it would delete.
/// May run during a recording; a file being written stays.
///
/// # Errors
///
/// If another process compacts or prunes this log, or it cannot be read or changed.
pub fn prune(
    disk: &Arc<dyn Disk>,
    retention: &Retention,
    now_ns: u64,
    dry_run: bool,
) -> Result<Pruned, ArchiveError> {
    let _lock = lock(disk.as_ref())?;
    let archive = if dry_run {
        read_archive(disk.as_ref())?
    } else {
        clean_up(disk.as_ref())?
    };
    let found = pieces(&Log::on(Arc::clone(disk))?)?;
    let planned = plan(&found.pieces, found.held, retention, now_ns);
    let too_old = |being: &&Being| {
        let keep = retention.longest(&being.classes, being.protected);
        keep.is_some_and(|keep| is_older(being.first_ns, keep, now_ns))
    };
    let pruned = carry_out(disk.as_ref(), archive, &found.pieces, planned, dry_run)?;
    Ok(Pruned {
        being_written: found.being_written.iter().filter(too_old).count() as u64,
        unknown_models: found.unknown_models,
        ..pruned
    })
}

/// Deletes at least this many bytes of the least important data, if that many may be deleted: for a
/// disk that is nearly full.
///
/// # Errors
///
/// As [`prune`].
pub fn make_room(disk: &Arc<dyn Disk>, wanted_bytes: u64) -> Result<Pruned, ArchiveError> {
    let _lock = lock(disk.as_ref())?;
    let archive = clean_up(disk.as_ref())?;
    let Found {
        pieces,
        held,
        unknown_models,
        ..
    } = pieces(&Log::on(Arc::clone(disk))?)?;
    let total: u64 = pieces.iter().map(Piece::local_bytes).sum();
    let retention = Retention {
        bytes_max: Some((total + held).saturating_sub(wanted_bytes)),
        ..Retention::default()
    };
    let planned = plan(&pieces, held, &retention, 0);
    let pruned = carry_out(disk.as_ref(), archive, &pieces, planned, false)?;
    Ok(Pruned {
        unknown_models,
        ..pruned
    })
}

fn carry_out(
    disk: &dyn Disk,
    mut archive: Archive,
    pieces: &[Piece],
    plan: PrunePlan,
    dry_run: bool,
) -> Result<Pruned, ArchiveError> {
    let mut pruned = Pruned {
        bytes_left: plan.bytes_left,
        still_too_large: plan.still_too_large,
        ..Pruned::default()
    };
    let (mut parts, mut gone) = (Vec::new(), Vec::new());
    for at in plan.delete {
        let piece = &pieces[at];
        pruned.packets += piece.packets;
        pruned.bytes += piece.bytes;
        match &piece.what {
            PieceKind::Part { id, .. } => parts.push(*id),
            PieceKind::Block { entry, .. } => gone.push(entry.clone()),
        }
    }
    pruned.parts = parts.len() as u64;
    pruned.block_files = gone.len() as u64;
    if !(dry_run || parts.is_empty() && gone.is_empty()) {
        drop_from(&mut archive, &parts, gone);
        replace(disk, &mut archive)?;
        pruned.waits_for_readers = !delete_gone(disk, &mut archive)?;
    }
    Ok(pruned)
}

fn drop_from(archive: &mut Archive, parts: &[u32], gone: Vec<Gone>) {
    let (dropped, kept) = std::mem::take(&mut archive.parts)
        .into_iter()
        .partition(|part| parts.contains(&part.id));
    archive.parts = kept;
    let dropped: Vec<Part> = dropped;
    let files = dropped.into_iter().flat_map(|part| part.files);
    archive.deleted.extend(files.map(|file| file.name));
    archive.gone.extend(gone);
}

/// What a log consists of.
struct Found {
    /// What can be deleted.
    pieces: Vec<Piece>,
    /// Bytes that cannot be deleted.
    held: u64,
    being_written: Vec<Being>,
    unknown_models: Vec<Damage>,
}

/// A block file still being written, with packets.
struct Being {
    first_ns: u64,
    classes: Vec<String>,
    protected: bool,
}

/// What of a log can be deleted, and how many bytes cannot be: for [`plan`].
///
/// # Errors
///
/// If the log cannot be read.
pub fn deletable(log: &Log) -> Result<(Vec<Piece>, u64), ArchiveError> {
    let found = pieces(log)?;
    Ok((found.pieces, found.held))
}

fn pieces(log: &Log) -> Result<Found, ArchiveError> {
    let mut found = Found {
        pieces: Vec::new(),
        held: 0,
        being_written: Vec::new(),
        unknown_models: Vec::new(),
    };
    let being_written = log.being_written();
    for recording in log.recordings() {
        let parts = log.archive().parts.iter();
        let mut parts = parts
            .filter(|part| part.recording == recording.id)
            .peekable();
        if parts.peek().is_some() {
            let mut anomalous = Anomalous::of(log, recording);
            if let Anomalous::Known(classes) = &mut anomalous {
                *classes = classes.iter().map(|name| retention_class(name)).collect();
            }
            let parts = parts.map(|part| of_part(part, recording, &anomalous));
            found.pieces.extend(parts);
            found.unknown_models.extend(anomalous.into_problem());
        }
        let classes: Vec<String> = recording
            .classes
            .iter()
            .map(|n| retention_class(n))
            .collect();
        // By worker, the time of the last packet in its files so far.
        let mut last_ns = BTreeMap::new();
        for file in &recording.files {
            let content = Content::of(log, recording, file)?;
            if being_written(recording) && !file.sealed {
                found.held += log.file_bytes(file)?;
                found
                    .being_written
                    .extend(content.times.map(|(first_ns, _)| Being {
                        first_ns,
                        classes: classes.clone(),
                        protected: content.protected,
                    }));
                continue;
            }
            // A file without readable packets may hold data that belongs to earlier ones.
            let last = last_ns.entry(file.worker).or_insert(ended_ns(recording));
            *last = content.times.map_or(*last, |(_, last_ns)| last_ns);
            found.pieces.push(Piece {
                importance: if content.protected {
                    Importance::Protected
                } else {
                    Importance::Anomalous
                },
                last_ns: *last,
                bytes: log.file_bytes(file)?,
                remote: false,
                packets: content.entry.packets,
                what: PieceKind::Block {
                    entry: content.entry,
                    classes: classes.clone(),
                },
            });
        }
    }
    Ok(found)
}

/// When a recording ended, as far as is known.
fn ended_ns(recording: &Recording) -> u64 {
    recording.ended_ns.unwrap_or(recording.started_ns)
}

fn of_part(part: &Part, recording: &Recording, anomalous: &Anomalous) -> Piece {
    let importance = if part.retention == PROTECTED {
        Importance::Protected
    } else if anomalous.holds(&part.retention) {
        Importance::Anomalous
    } else {
        Importance::Ordinary
    };
    Piece {
        what: PieceKind::Part {
            id: part.id,
            retention: part.retention.clone(),
        },
        importance,
        // A part without packets holds metadata of the recording's inputs.
        last_ns: if part.packets == 0 {
            ended_ns(recording)
        } else {
            part.ts_max_ns
        },
        bytes: part.bytes(),
        remote: part.is_remote(),
        packets: part.packets,
    }
}

/// The content of a block file, from the headers of its blocks.
struct Content {
    entry: Gone,
    /// Arrival of its first and last packet.
    times: Option<(u64, u64)>,
    /// Whether a policy may protect some.
    protected: bool,
}

impl Content {
    fn of(log: &Log, recording: &Recording, file: &BlockFile) -> Result<Self, ArchiveError> {
        let select = Select {
            without_records: true,
            ..Select::default()
        };
        let mut gone = Gone {
            name: file.name.clone(),
            recording: recording.id,
            worker: file.worker,
            packets: 0,
            first_seq: 0,
            next_seq: 0,
            incomplete: 0,
        };
        let (mut times, mut protected) = (None, false);
        for block in log.blocks_in(recording, file, &select) {
            let block = match block {
                Ok(block) => block,
                // A damaged block's packets are lost already.
                Err(StoreError::Damage(_)) => continue,
                Err(error) => return Err(error.into()),
            };
            let header = &block.header;
            if header.packets == 0 {
                continue;
            }
            if gone.packets == 0 {
                gone.first_seq = header.first_seq;
            }
            gone.packets += u64::from(header.packets);
            gone.next_seq = header.next_seq;
            gone.incomplete += u64::from(block.incomplete);
            let (first, last) = times.unwrap_or((header.ts_min_ns, header.ts_max_ns));
            times = Some((first.min(header.ts_min_ns), last.max(header.ts_max_ns)));
            protected |= header.is_protected();
        }
        Ok(Self {
            entry: gone,
            times,
            protected,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part(class: &str, importance: Importance, last_ns: u64, bytes: u64) -> Piece {
        Piece {
            what: PieceKind::Part {
                id: 1,
                retention: class.to_owned(),
            },
            importance,
            last_ns,
            bytes,
            remote: false,
            packets: 1,
        }
    }

    #[test]
    fn room_is_made_by_importance_then_age() {
        let pieces = [
            part("protected", Importance::Protected, 1, 10),
            part("anomalous", Importance::Anomalous, 2, 10),
            part("benign", Importance::Ordinary, 4, 10),
            part("benign", Importance::Ordinary, 3, 10),
            part("benign", Importance::Ordinary, 5, 10),
        ];
        let to = |bytes| {
            let retention = Retention {
                bytes_max: Some(bytes),
                ..Retention::default()
            };
            plan(&pieces, 7, &retention, 100)
        };
        assert_eq!(to(57).delete, [] as [usize; 0]);
        assert_eq!(to(56).delete, [3]);
        assert_eq!(to(40).delete, [3, 2]);
        let least = to(0);
        assert_eq!(
            (least.delete.as_slice(), least.bytes_left),
            (&[3, 2, 1][..], 27)
        );
        assert!(least.still_too_large, "the newest and the protected stay");
    }

    fn blocks(classes: &[&str], importance: Importance, last_ns: u64) -> Piece {
        let entry = Gone {
            name: "blocks/r0001-w00-000000.strata".into(),
            recording: 1,
            worker: 0,
            packets: 1,
            first_seq: 0,
            next_seq: 1,
            incomplete: 0,
        };
        let classes = classes.iter().map(|&class| class.to_owned()).collect();
        Piece {
            what: PieceKind::Block { entry, classes },
            ..part("", importance, last_ns, 10)
        }
    }

    #[test]
    fn age_takes_the_newest_too_and_room_does_not() {
        let pieces = [
            part("benign", Importance::Ordinary, 10, 10),
            part("benign", Importance::Ordinary, 20, 10),
            blocks(&["benign"], Importance::Anomalous, 30),
        ];
        let mut retention = Retention {
            keep_ns: Some(50),
            ..Retention::default()
        };
        assert_eq!(
            plan(&pieces, 0, &retention, 80).delete,
            [0, 1],
            "30 is 50 old, not more"
        );
        assert_eq!(plan(&pieces, 0, &retention, 81).delete, [0, 1, 2]);
        retention.bytes_max = Some(0);
        let both = plan(&pieces, 0, &retention, 65);
        assert_eq!(both.delete, [0, 1], "one by age, one for room");
        assert!(both.still_too_large);
    }

    #[test]
    fn block_files_stay_as_long_as_any_of_their_classes() {
        let pieces = [
            blocks(&["benign", "anomalous"], Importance::Anomalous, 0),
            blocks(&["benign"], Importance::Anomalous, 0),
            blocks(&["benign"], Importance::Protected, 0),
        ];
        let mut retention = Retention::default();
        retention.keep_class_ns.insert("benign".to_owned(), 50);
        let gone = |retention: &Retention, now| plan(&pieces, 0, retention, now).delete;
        assert_eq!(gone(&retention, 100), [1], "anomalous has no age");
        retention.keep_class_ns.insert("anomalous".to_owned(), 150);
        assert_eq!(gone(&retention, 100), [1]);
        assert_eq!(gone(&retention, 151), [0, 1]);
        retention.keep_class_ns.insert(PROTECTED.to_owned(), 200);
        assert_eq!(gone(&retention, 200), [0, 1]);
        assert_eq!(gone(&retention, 201), [0, 1, 2]);
    }

    #[test]
    fn what_lies_elsewhere_goes_by_age_and_not_for_room() {
        let mut pieces = [1, 2, 3].map(|at| part("benign", Importance::Ordinary, at, 10));
        pieces[0].remote = true;
        let mut retention = Retention {
            bytes_max: Some(15),
            ..Retention::default()
        };
        let made = plan(&pieces, 0, &retention, 100);
        assert_eq!((made.delete.as_slice(), made.bytes_left), (&[1][..], 10));
        retention = Retention {
            keep_ns: Some(98),
            ..Retention::default()
        };
        assert_eq!(plan(&pieces, 0, &retention, 100).delete, [0]);
    }

    #[test]
    fn what_is_protected_goes_by_age_only_if_its_own_is_given() {
        let pieces = [
            part("protected", Importance::Protected, 1, 10),
            part("benign", Importance::Ordinary, 2, 10),
            part("benign", Importance::Ordinary, 1_000, 10),
        ];
        let mut retention = Retention {
            keep_ns: Some(50),
            ..Retention::default()
        };
        assert_eq!(plan(&pieces, 0, &retention, 1_000).delete, [1]);
        retention.keep_class_ns.insert(PROTECTED.to_owned(), 500);
        assert_eq!(plan(&pieces, 0, &retention, 1_000).delete, [0, 1]);
    }

    proptest! {
        /// Whatever else is there, age deletes exactly what is too old.
        #[test]
        fn age_takes_exactly_what_is_too_old(
            last in prop::collection::vec(0_u64..100, 0..20), keep_ns in 0_u64..100,
        ) {
            let pieces: Vec<Piece> =
                last.iter().map(|&last| part("some", Importance::Ordinary, last, 1)).collect();
            let retention = Retention { keep_ns: Some(keep_ns), ..Retention::default() };
            let mut gone = plan(&pieces, 0, &retention, 100).delete;
            gone.sort_unstable();
            let too_old = |&at: &usize| 100 - last[at] > keep_ns;
            let expected: Vec<usize> = (0..pieces.len()).filter(too_old).collect();
            prop_assert_eq!(gone, expected);
        }

        /// Nothing is deleted while something less important, or as important and older, stays.
        #[test]
        fn nothing_goes_before_what_is_worth_less(
            pieces in prop::collection::vec((0_usize..3, 0_u64..50, 0_u64..1_000), 0..30),
            bytes_max in 0_u64..20_000, held in 0_u64..500,
        ) {
            let kinds = [Importance::Ordinary, Importance::Anomalous, Importance::Protected];
            let pieces: Vec<Piece> = pieces
                .into_iter()
                .map(|(kind, last_ns, bytes)| part("some", kinds[kind], last_ns, bytes))
                .collect();
            let retention = Retention { bytes_max: Some(bytes_max), ..Retention::default() };
            let made = plan(&pieces, held, &retention, 0);
            let newest = (0..pieces.len()).max_by_key(|&at| (pieces[at].last_ns, at));
            let kept = |at: &usize| !made.delete.contains(at);
            let left: u64 = (0..pieces.len()).filter(kept).map(|at| pieces[at].bytes).sum();
            prop_assert_eq!(made.bytes_left, left + held);
            prop_assert_eq!(made.still_too_large, made.bytes_left > bytes_max);
            for &gone in &made.delete {
                prop_assert!(pieces[gone].importance < Importance::Protected);
                prop_assert!(Some(gone) != newest);
                for stays in (0..pieces.len()).filter(kept).filter(|at| Some(*at) != newest) {
                    let worth = |at: usize| (pieces[at].importance, pieces[at].last_ns);
                    prop_assert!(worth(stays) >= worth(gone));
                }
            }
            if made.still_too_large {
                let may = |at: &usize| Some(*at) != newest && pieces[*at].importance < Importance::Protected;
                prop_assert!((0..pieces.len()).filter(may).all(|at| !kept(&at)));
            } else if let Some(&last) = made.delete.last() {
                prop_assert!(made.bytes_left + pieces[last].bytes > bytes_max, "not more than needed");
            }
        }
    }
}
