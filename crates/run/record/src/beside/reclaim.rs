//! Frees space on a disk that is nearly full, or in a log with a size limit, alongside the
//! recording.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strata_archive::{ArchiveError, Pruned, make_room_except};
use strata_role::{Result, require_valid};
use strata_sandbox::Role;
use strata_store::{Disk, RealDisk};
use strata_wire::{grouped, human_bytes};

/// How long to wait before trying again.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// How often the log is measured.
const MEASURE_EVERY: Duration = Duration::from_millis(100);
/// Space is freed ahead for the growth of this many intervals: deleting takes no longer.
const TIMES_AHEAD: u64 = 5;

/// Block files of each worker that a limited log must hold: with fewer, whole files cannot be
/// deleted in time.
const FILES_WITHIN_LIMIT: u64 = 4;

/// A size that the log keeps below.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) bytes: u64,
    /// The least space to free: a file of each worker.
    pub(crate) reserve: u64,
}

/// Deletes the least important data of a log, on a thread of its own.
pub(crate) struct Reclaim {
    dir: PathBuf,
    limit: Option<Limit>,
    measured: Instant,
    /// Bytes when last measured, and the largest recent growth per interval.
    size: u64,
    growth: u64,
    running: Option<JoinHandle<Result<Pruned, ArchiveError>>>,
    /// When it was last tried, and whether in vain.
    last: Option<(Instant, bool)>,
    /// Damaged block files, of which what policies protect cannot be taken out.
    not_split: BTreeSet<String>,
}

impl Limit {
    /// Fails if this many workers, each writing a file of `rotate_bytes`, cannot stay below the
    /// limit.
    pub(crate) fn check(&self, rotate_bytes: u64, workers: u16) -> Result<()> {
        let each = FILES_WITHIN_LIMIT * u64::from(workers.max(1));
        let mib = (self.bytes / each) >> 20;
        let advice = match mib {
            0 => format!("make it larger: with -C 1MiB, {each}MiB is enough"),
            mib => format!("make them smaller with -C, as in -C {mib}MiB"),
        };
        let enough = rotate_bytes > 0 && self.bytes >= rotate_bytes.saturating_mul(each);
        require_valid(enough, || {
            format!(
                "--disk-limit must be at least {FILES_WITHIN_LIMIT} block files of each worker: \
                 {advice}"
            )
        })
    }
}

impl Reclaim {
    pub(crate) fn new(dir: &Path, limit: Option<Limit>) -> Self {
        Self {
            dir: dir.to_owned(),
            limit,
            measured: Instant::now(),
            size: 0,
            growth: 0,
            running: None,
            last: None,
            not_split: BTreeSet::new(),
        }
    }

    /// Sets the bytes of files being written from now on.
    pub(crate) fn set_reserve(&mut self, bytes: u64) {
        if let Some(limit) = &mut self.limit {
            // Even if the log is too small for its writers, half of it is kept.
            limit.reserve = bytes.min(limit.bytes / 2);
        }
    }

    /// Starts deleting if needed; returns what to report.
    pub(crate) fn look(&mut self, bytes_to_remove: Option<u64>) -> Option<String> {
        if let Some(thread) = self.running.take_if(|thread| thread.is_finished()) {
            let problem = "the thread that deletes has failed";
            let outcome = thread.join().map_err(|_| problem.to_owned());
            let outcome = outcome.and_then(|done| done.map_err(|error| error.to_string()));
            return self.tell(outcome);
        }
        let bytes = bytes_to_remove.max(self.above_the_limit())?;
        let early = self
            .last
            .is_some_and(|(at, useless)| useless && at.elapsed() < AGAIN_AFTER);
        if self.running.is_some() || early {
            return None;
        }
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::at(&self.dir));
        let not_split = self.not_split.clone();
        let work = move || {
            strata_role::sandbox::thread(Role::Files);
            make_room_except(&disk, bytes, &not_split)
        };
        let thread = thread::Builder::new()
            .name("strata-room".into())
            .spawn(work);
        match thread {
            Ok(thread) => {
                self.running = Some(thread);
                None
            }
            Err(error) => self.tell(Err(error.to_string())),
        }
    }

    /// Bytes by which the log would exceed the limit with what may arrive soon.
    fn above_the_limit(&mut self) -> Option<u64> {
        let limit = self.limit?;
        if self.running.is_some() || self.measured.elapsed() < MEASURE_EVERY {
            return None;
        }
        self.measured = Instant::now();
        let size = bytes_below(&self.dir);
        let grown = size.saturating_sub(std::mem::replace(&mut self.size, size));
        self.growth = grown.max(self.growth - self.growth / 8);
        // With less than half of the log left there may be nothing to delete.
        let ahead = (self.growth * TIMES_AHEAD).min(limit.bytes / 2);
        let ahead = ahead.max(limit.reserve);
        let above = (size + ahead).saturating_sub(limit.bytes);
        (above > 0).then_some(above)
    }

    fn tell(&mut self, outcome: Result<Pruned, String>) -> Option<String> {
        let known = self.last.is_some_and(|(_, useless)| useless);
        if let Ok(pruned) = &outcome {
            let for_good = pruned.not_split.iter().filter(|one| one.for_good);
            self.not_split.extend(for_good.map(|one| one.file.clone()));
        }
        let (text, useless) = match outcome {
            Ok(pruned) if pruned.parts + pruned.block_files + pruned.split > 0 => {
                let kept = match pruned.split {
                    0 => String::new(),
                    split => format!(
                        " (packets that policies protect in {split} of them are \
                    kept)"
                    ),
                };
                let text = format!(
                    "deleted {} block files{kept} and {} compacted parts with {} packets, {}, to make \
                     room on the disk",
                    pruned.block_files.saturating_add(pruned.split),
                    pruned.parts,
                    grouped(pruned.packets),
                    human_bytes(pruned.bytes),
                );
                (text, pruned.waits_for_readers)
            }
            Ok(pruned) => {
                let mut text = String::from(
                    "nothing in the log may be deleted to make room: only its newest files (-C \
                     makes smaller ones) and packets that policies protect are left",
                );
                if let Some(first) = pruned.not_split.first() {
                    let files = pruned.not_split.len();
                    text += &format!(
                        "; packets that policies protect cannot be taken out of {files} files: {}",
                        first.why
                    );
                }
                (text, true)
            }
            Err(problem) => (format!("cannot make room on the disk: {problem}"), true),
        };
        self.last = Some((Instant::now(), useless));
        // Reported once, until something changes.
        (!useless || !known).then_some(text)
    }
}

/// Bytes of all files below a directory. Files deleted meanwhile are skipped.
fn bytes_below(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    });
    bytes.sum()
}
