//! Retention: whole parts and block files leave the log, as [`plan`] says; of block files that also
//! hold what policies protect, that is kept, as a part.

pub(crate) mod made;
pub(crate) mod pieces;
pub(crate) mod plan;

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;

use strata_blocks::ClassCount;
use strata_store::{
    Archive, Damage, Disk, Gone, Log, Part, RemovedBy, RemovedFor, StoreError, add_counts,
    read_archive,
};

use crate::compact::NEVER;
use crate::disk::changes::{
    Away, Left, clean_up, commit, delete_gone, lock, remove_staged, replace,
};
use crate::disk::encryption::recipients;
use crate::error::{ArchiveError, HOUR_NS, MostWouldGo};
use crate::jobs::{Made, Outcome, Target, run_job};
use crate::prune::pieces::{Being, Found, fixed_bytes, pieces};
use crate::prune::plan::{Importance, Piece, PieceKind, PrunePlan, Retention, is_older, plan};
use crate::retention::PROTECTED;

/// A log whose newest packet is older may have ended, or the clock is wrong.
const NEWEST_AGE_NS: u64 = HOUR_NS;

/// How to prune.
#[derive(Clone, Copy, Debug)]
pub struct PruneOptions {
    /// The time, ns since 1970.
    pub now_ns: u64,
    /// Only report what would be deleted.
    pub dry_run: bool,
    /// What deletes, for the record.
    pub by: RemovedBy,
    /// Whether age may delete more than half of the log's bytes although its newest packet is more
    /// than an hour old. A clock that is far ahead looks the same.
    pub may_take_most: bool,
}

/// What was deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Parts.
    pub parts: u64,
    /// Block files.
    pub block_files: u64,
    /// Block files of which only what policies protect is left, compacted.
    pub split: u64,
    /// Packets in all of them.
    pub packets: u64,
    /// Bytes that this freed.
    pub bytes: u64,
    /// When the newest of these packets arrived, ns; of a file in part protected, when its newest one did.
    pub newest_ns: Option<u64>,
    /// Bytes that are left in the log's directory, without files that
    /// [wait for readers](Self::waits_for_readers).
    pub bytes_left: u64,
    /// Those of them in files that are never deleted: manifests, models, checkpoints, statistics of drift, and
    /// policies that were added at run time. [`make_room`] does not count them.
    pub fixed_bytes: u64,
    /// Whether the log still exceeds the limit, because only its newest data, what policies protect
    /// and files that are never deleted are left.
    pub still_too_large: bool,
    /// Block files still being written that hold packets that are too old: they can be deleted once
    /// complete.
    pub being_written: u64,
    /// Whether files no longer in the log are still there because somebody reads the log, or a tier
    /// is away: the next compaction or pruning deletes them.
    pub waits_for_readers: bool,
    /// The tiers that are away.
    pub away: Vec<Away>,
    /// Models that cannot be read: parts of their recordings count as anomalous.
    pub unknown_models: Vec<Damage>,
    /// Block files that were left as they are: what policies protect cannot be taken out of them.
    pub not_split: Vec<NotSplit>,
    /// Set by a dry run that deletes more than [`PruneOptions::may_take_most`] permits.
    pub would_take_most: Option<MostWouldGo>,
}

/// A block file that was left as it is, since what policies protect cannot be taken out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotSplit {
    /// Its name in the log.
    pub file: String,
    /// Why.
    pub why: String,
    /// Whether it would fail again: it is damaged.
    pub for_good: bool,
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
    let options = PruneOptions {
        now_ns,
        dry_run,
        by: RemovedBy::Prune,
        may_take_most: true,
    };
    prune_as(disk, retention, &options)
}

/// As [`prune`].
///
/// # Errors
///
/// As [`prune`]; and if it deleted more than it may ([`ArchiveError::MostWouldGo`]), then nothing is.
pub fn prune_as(
    disk: &Arc<dyn Disk>,
    retention: &Retention,
    options: &PruneOptions,
) -> Result<Pruned, ArchiveError> {
    let _lock = lock(disk.as_ref())?;
    let (archive, left) = if options.dry_run {
        (read_archive(disk.as_ref())?, Left::default())
    } else {
        clean_up(disk.as_ref())?
    };
    let found = pieces(&Log::on(Arc::clone(disk))?)?;
    let most = would_take_most(&found, retention, options.now_ns);
    let most = most.filter(|_| !options.may_take_most);
    if let Some(most) = most.filter(|_| !options.dry_run) {
        return Err(most.into());
    }
    let too_old = |being: &&Being| {
        let keep = retention.longest(&being.classes, being.protected);
        keep.is_some_and(|keep| is_older(being.first_ns, keep, options.now_ns))
    };
    let pruned = Pruned {
        being_written: found.being_written.iter().filter(too_old).count() as u64,
        unknown_models: found.unknown_models,
        would_take_most: most,
        waits_for_readers: !left.away.is_empty(),
        away: left.away,
        ..Pruned::default()
    };
    let mut pruner = Pruner {
        disk,
        archive,
        pieces: found.pieces,
        held: found.held,
        by: options.by,
        room: RemovedFor::Size,
        counts_fixed: true,
        pruned,
    };
    if options.dry_run {
        let planned = pruner.plan(retention, options.now_ns)?;
        pruner.tell(&planned);
    } else {
        pruner.carry_out(retention, options.now_ns)?;
    }
    Ok(pruner.pruned)
}

/// Deletes at least this many bytes of the least important data, if that many may be deleted: for a
/// disk that is nearly full.
///
/// # Errors
///
/// As [`prune`].
pub fn make_room(disk: &Arc<dyn Disk>, wanted_bytes: u64) -> Result<Pruned, ArchiveError> {
    make_room_except(disk, wanted_bytes, &BTreeSet::new())
}

/// As [`make_room`], but does not try to take what policies protect out of these block files: an
/// earlier call found that it cannot ([`NotSplit::for_good`]).
///
/// # Errors
///
/// As [`prune`].
pub fn make_room_except(
    disk: &Arc<dyn Disk>,
    wanted_bytes: u64,
    not_split: &BTreeSet<String>,
) -> Result<Pruned, ArchiveError> {
    let _lock = lock(disk.as_ref())?;
    let (archive, _) = clean_up(disk.as_ref())?;
    let mut found = pieces(&Log::on(Arc::clone(disk))?)?;
    for piece in found
        .pieces
        .iter_mut()
        .filter(|piece| piece.holds_protected)
    {
        if let PieceKind::Block { entry, .. } = &piece.what
            && not_split.contains(&entry.name)
        {
            piece.importance = Importance::Protected;
        }
    }
    let bytes = |piece: &Piece| piece.local_bytes();
    let sum = |sum: u64, bytes: u64| sum.saturating_add(bytes);
    let total = found.pieces.iter().map(bytes).fold(found.held, sum);
    let retention = Retention {
        bytes_max: Some(total.saturating_sub(wanted_bytes)),
        ..Retention::default()
    };
    let mut pruner = Pruner {
        disk,
        archive,
        pieces: found.pieces,
        held: found.held,
        by: RemovedBy::Record,
        room: RemovedFor::Room,
        counts_fixed: false,
        pruned: Pruned {
            unknown_models: found.unknown_models,
            ..Pruned::default()
        },
    };
    pruner.carry_out(&retention, 0)?;
    Ok(pruner.pruned)
}

/// Whether age takes more than half of a log whose newest packet is old by this clock.
fn would_take_most(found: &Found, retention: &Retention, now_ns: u64) -> Option<MostWouldGo> {
    let newest_age_ns = now_ns.saturating_sub(found.newest_ns()?);
    let planned = plan(&found.pieces, found.held, retention, now_ns);
    let sum = |sum: u64, piece: &Piece| sum.saturating_add(piece.bytes);
    let of_bytes = found.pieces.iter().fold(found.held, sum);
    let too_old = planned.delete.iter().take(planned.too_old);
    let bytes = too_old.map(|&at| &found.pieces[at]).fold(0, sum);
    let most = newest_age_ns > NEWEST_AGE_NS && bytes > of_bytes / 2;
    most.then_some(MostWouldGo {
        bytes,
        of_bytes,
        newest_age_ns,
    })
}

/// A pruning in progress.
struct Pruner<'a> {
    disk: &'a Arc<dyn Disk>,
    archive: Archive,
    pieces: Vec<Piece>,
    held: u64,
    by: RemovedBy,
    /// Why it deletes what is not too old.
    room: RemovedFor,
    /// Whether files that are never deleted count, too.
    counts_fixed: bool,
    pruned: Pruned,
}

impl Pruner<'_> {
    /// Plans what is left to do. Each deletion changes `archive.json`.
    fn plan(&mut self, retention: &Retention, now_ns: u64) -> Result<PrunePlan, ArchiveError> {
        if self.counts_fixed {
            self.pruned.fixed_bytes = fixed_bytes(self.disk.as_ref())?;
        }
        let held = self.held.saturating_add(self.pruned.fixed_bytes);
        Ok(plan(&self.pieces, held, retention, now_ns))
    }

    /// Counts what would be done.
    fn tell(&mut self, planned: &PrunePlan) {
        for at in &planned.delete {
            let piece = &self.pieces[*at];
            let freed = (piece.packets, piece.bytes, piece.last_ns);
            match &piece.what {
                _ if planned.split.contains(at) => self.pruned.split += 1,
                PieceKind::Part { .. } => self.pruned.parts += 1,
                PieceKind::Block { .. } => self.pruned.block_files += 1,
            }
            self.pruned.freed(freed);
        }
        self.pruned.bytes_left = planned.bytes_left;
        self.pruned.still_too_large = planned.still_too_large;
    }

    /// Deletes what is planned. The size of a block file that is split, and of `archive.json`, is known afterwards
    /// only, so the rest is planned again then.
    fn carry_out(&mut self, retention: &Retention, now_ns: u64) -> Result<(), ArchiveError> {
        loop {
            let planned = self.plan(retention, now_ns)?;
            if planned.delete.is_empty() {
                self.pruned.bytes_left = planned.bytes_left;
                self.pruned.still_too_large = planned.still_too_large;
                return Ok(());
            }
            let mut order = planned.delete.iter();
            let whole = order.position(|at| planned.split.contains(at));
            let whole = whole.unwrap_or(planned.delete.len());
            let (first, rest) = planned.delete.split_at(whole);
            let why = |place: usize| match place < planned.too_old {
                true => RemovedFor::Age,
                false => self.room,
            };
            let reasons: Vec<RemovedFor> = (0..=whole).map(why).collect();
            self.delete(first, &reasons)?;
            let mut gone: BTreeSet<usize> = first.iter().copied().collect();
            if let Some(&at) = rest.first() {
                let (piece, reason) = (self.pieces[at].clone(), reasons[whole]);
                match self.split(piece, reason)? {
                    // In its place: of pieces of the same time, the last is the newest.
                    Some(left) => self.pieces[at] = left,
                    None => drop(gone.insert(at)),
                }
            }
            let mut at = 0..;
            self.pieces
                .retain(|_| at.next().is_none_or(|at| !gone.contains(&at)));
        }
    }

    /// Deletes these pieces, in one change of the log.
    fn delete(&mut self, which: &[usize], reasons: &[RemovedFor]) -> Result<(), ArchiveError> {
        if which.is_empty() {
            return Ok(());
        }
        let (mut parts, mut gone) = (BTreeSet::new(), Vec::new());
        for (&at, &reason) in which.iter().zip(reasons) {
            let piece = &self.pieces[at];
            let freed = (piece.packets, piece.bytes, piece.last_ns);
            self.pruned.freed(freed);
            match &piece.what {
                PieceKind::Part { id, .. } => drop(parts.insert(*id)),
                PieceKind::Block { entry, .. } => gone.push(entry.clone()),
            }
            let why = (reason, self.by);
            self.archive
                .note_removed(piece.recording, why, &piece.counts);
        }
        self.pruned.parts += parts.len() as u64;
        self.pruned.block_files += gone.len() as u64;
        drop_from(&mut self.archive, &parts, gone);
        replace(self.disk.as_ref(), &mut self.archive)?;
        self.delete_files()
    }

    fn delete_files(&mut self) -> Result<(), ArchiveError> {
        let left = delete_gone(self.disk.as_ref(), &mut self.archive)?;
        self.pruned.waits_for_readers = !left.is_none();
        self.pruned.away = left.away;
        Ok(())
    }

    /// Makes a part of what policies protect in a block file, and deletes the rest. Returns what is
    /// left of it: the whole file, if that cannot be done.
    fn split(&mut self, piece: Piece, reason: RemovedFor) -> Result<Option<Piece>, ArchiveError> {
        let PieceKind::Block { entry, .. } = &piece.what else {
            unreachable!("parts are not split");
        };
        let name = entry.name.clone();
        let made = match self.protected_of(entry) {
            // Even if that is nearly all of it: then it is a part, and not taken apart again.
            Ok(Outcome::Parts(made)) => made,
            Ok(Outcome::Damaged(damage, _)) => return self.stays(piece, &name, &damage, true),
            // Deleting others whole makes room for the next try.
            Err(error) if error.lacks_room() => {
                return self.stays(piece, &name, &error, false);
            }
            Err(error) => {
                // Its error is more useful.
                let _ = remove_staged(self.disk.as_ref(), &self.archive);
                return Err(error);
            }
        };
        self.take_over(&piece, made, reason)
    }

    fn protected_of(&self, entry: &Gone) -> Result<Outcome, ArchiveError> {
        let log = Log::on(Arc::clone(self.disk))?;
        let to = recipients(self.disk.as_ref(), &self.archive)?;
        let target = Target {
            disk: self.disk.as_ref(),
            encrypt_to: &to,
            stop: &NEVER,
            threads: NonZeroUsize::MIN,
            only_protected: true,
        };
        let recording = log
            .recordings()
            .iter()
            .find(|one| one.id == entry.recording);
        let file = recording.and_then(|one| one.files.iter().find(|file| file.name == entry.name));
        let (Some(recording), Some(file)) = (recording, file) else {
            // A recording that limits its number of files (-W) takes no lock to delete one.
            let missing = Damage {
                file: entry.name.clone(),
                offset: 0,
                problem: String::from("the recording has deleted the file in the meantime"),
                missing: None,
            };
            return Ok(Outcome::Damaged(missing, entry.name.clone()));
        };
        let files = std::slice::from_ref(file);
        run_job(&log, target, recording, files, self.archive.next_part)
    }

    /// A file that cannot be split stays as it is.
    fn stays(
        &mut self,
        mut piece: Piece,
        file: &str,
        why: &dyn std::fmt::Display,
        for_good: bool,
    ) -> Result<Option<Piece>, ArchiveError> {
        remove_staged(self.disk.as_ref(), &self.archive)?;
        piece.importance = Importance::Protected;
        self.pruned.not_split.push(NotSplit {
            file: file.to_owned(),
            why: why.to_string(),
            for_good,
        });
        Ok(Some(piece))
    }

    /// Lists the parts instead of the block file.
    fn take_over(
        &mut self,
        piece: &Piece,
        made: Made,
        reason: RemovedFor,
    ) -> Result<Option<Piece>, ArchiveError> {
        let Made {
            parts,
            gone,
            left_out,
        } = made;
        let bytes: u64 = parts.iter().map(Part::bytes).sum();
        let packets = left_out.iter().map(|count| count.packets).sum();
        self.pruned.split += 1;
        let freed = piece.bytes.saturating_sub(bytes);
        self.pruned.freed((packets, freed, piece.last_ns));
        let why = (reason, self.by);
        self.archive.note_removed(piece.recording, why, &left_out);
        commit(self.disk.as_ref(), &mut self.archive, &parts, gone)?;
        self.delete_files()?;
        let first = parts.first().map(|part| part.id);
        let mut counts: Vec<ClassCount> = Vec::new();
        for part in &parts {
            add_counts(&mut counts, &part.counts);
        }
        // Of several hours, several parts, all of them protected: as one piece they are never deleted here.
        Ok(first.map(|id| Piece {
            what: PieceKind::Part {
                id,
                retention: PROTECTED.to_owned(),
                classes: Vec::new(),
            },
            importance: Importance::Protected,
            last_ns: piece.last_ns,
            bytes,
            packets: piece.packets.saturating_sub(packets),
            counts,
            holds_protected: false,
            ..piece.clone()
        }))
    }
}

impl Pruned {
    fn freed(&mut self, (packets, bytes, last_ns): (u64, u64, u64)) {
        if packets > 0 {
            self.newest_ns = self.newest_ns.max(Some(last_ns));
        }
        self.packets = self.packets.saturating_add(packets);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

impl ArchiveError {
    /// Whether the disk is full, which may have changed by the next attempt.
    #[must_use]
    pub fn lacks_room(&self) -> bool {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = cause {
            let error_of_disk = error.downcast_ref::<std::io::Error>();
            if error_of_disk
                .is_some_and(|error| matches!(error.kind(), StorageFull | QuotaExceeded))
            {
                return true;
            }
            cause = error.source();
        }
        matches!(self, Self::Store(StoreError::DiskFull { .. }))
    }
}

fn drop_from(archive: &mut Archive, parts: &BTreeSet<u32>, gone: Vec<Gone>) {
    let (dropped, kept) = std::mem::take(&mut archive.parts)
        .into_iter()
        .partition(|part| parts.contains(&part.id));
    archive.parts = kept;
    let dropped: Vec<Part> = dropped;
    let files = dropped.into_iter().flat_map(|part| part.files);
    archive.deleted.extend(files.map(|file| file.name));
    archive.gone.extend(gone);
}
