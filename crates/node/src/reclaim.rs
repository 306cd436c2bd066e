//! Makes room on a disk that is about to be full, or in a log that is to stay below a size,
//! beside the recording.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use strata_archive::{ArchiveError, Pruned, make_room};
use strata_sandbox::Role;
use strata_store::{Disk, RealDisk};
use strata_wire::{grouped, human_bytes};

use crate::sandbox;

/// How long is waited before it is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// How often the log is measured.
const MEASURE_EVERY: Duration = Duration::from_millis(100);
/// Reclaim is made for what comes in so many of these times: it takes that long at most.
const TIMES_AHEAD: u64 = 5;

/// Block files of each worker that a limited log must have room for: of fewer, whole ones cannot
/// be deleted in time.
const FILES_WITHIN_LIMIT: u64 = 4;

/// A size that the log keeps below.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) bytes: u64,
    /// What is free at least when room is made: a file of each worker.
    pub(crate) reserve: u64,
}

/// Deletes the least important data of a log, on a thread of its own.
pub(crate) struct Reclaim {
    dir: PathBuf,
    limit: Option<Limit>,
    measured: Instant,
    /// Bytes at that time, and by how much the log grows from one time to the next: the most
    /// lately.
    size: u64,
    growth: u64,
    running: Option<JoinHandle<std::result::Result<Pruned, ArchiveError>>>,
    /// When it was last tried, and whether that was of no use.
    last: Option<(Instant, bool)>,
}

impl Limit {
    /// Fails if so many workers, each of which writes a file of `rotate_bytes`, cannot keep below
    /// the limit.
    pub(crate) fn check(&self, rotate_bytes: u64, workers: u16) -> Result<()> {
        let each = FILES_WITHIN_LIMIT * u64::from(workers.max(1));
        ensure!(
            rotate_bytes > 0 && self.bytes >= rotate_bytes.saturating_mul(each),
            "--disk-limit must be at least {FILES_WITHIN_LIMIT} block files of each worker: \
             make them smaller with -C, as in -C {}",
            (self.bytes / each).max(1 << 20)
        );
        Ok(())
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
        }
    }

    /// Files of so many bytes are written at a time from now on.
    pub(crate) fn set_reserve(&mut self, bytes: u64) {
        if let Some(limit) = &mut self.limit {
            // Of a log that is too small for what writes it, half is kept all the same.
            limit.reserve = bytes.min(limit.bytes / 2);
        }
    }

    /// Begins to delete if that is wanted; what is to be said.
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
        let work = move || {
            sandbox::thread(Role::Files);
            make_room(&disk, bytes)
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

    /// Bytes by which the log would be too large with what may come soon.
    fn above_the_limit(&mut self) -> Option<u64> {
        let limit = self.limit?;
        if self.running.is_some() || self.measured.elapsed() < MEASURE_EVERY {
            return None;
        }
        self.measured = Instant::now();
        let size = bytes_below(&self.dir);
        let grown = size.saturating_sub(std::mem::replace(&mut self.size, size));
        self.growth = grown.max(self.growth - self.growth / 8);
        // With less than half of it left there may be nothing to delete.
        let ahead = (self.growth * TIMES_AHEAD).min(limit.bytes / 2);
        let ahead = ahead.max(limit.reserve);
        let above = (size + ahead).saturating_sub(limit.bytes);
        (above > 0).then_some(above)
    }

    fn tell(&mut self, outcome: std::result::Result<Pruned, String>) -> Option<String> {
        let known = self.last.is_some_and(|(_, useless)| useless);
        let (text, useless) = match outcome {
            Ok(pruned) if pruned.parts + pruned.block_files > 0 => {
                let text = format!(
                    "deleted {} block files and {} compacted parts with {} packets, {}, to make \
                     room on the disk",
                    pruned.block_files,
                    pruned.parts,
                    grouped(pruned.packets),
                    human_bytes(pruned.bytes),
                );
                (text, pruned.waits_for_readers)
            }
            Ok(_) => {
                let text = "nothing of the log may be deleted to make room: what is left is its \
                            newest files (-C makes smaller ones), or protected by policies";
                (text.to_owned(), true)
            }
            Err(problem) => (format!("cannot make room on the disk: {problem}"), true),
        };
        self.last = Some((Instant::now(), useless));
        // Once is enough while nothing changes.
        (!useless || !known).then_some(text)
    }
}

/// Bytes of all files in a directory and below. What is deleted meanwhile does not count.
fn bytes_below(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    });
    bytes.sum()
}
