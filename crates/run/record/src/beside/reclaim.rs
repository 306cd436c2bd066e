//! Frees space on a disk that is nearly full, or in a log with a size limit, alongside the
//! recording.

mod allowance;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use strata_archive::{ArchiveError, Pruned, RoomMade, make_room_except};
use strata_role::{Result, require_valid};
use strata_sandbox::Role;
use strata_store::{Disk, FileKind, RealDisk, Room};
use strata_wire::count_of;

use allowance::{AGAIN_AFTER, Allowance};

pub(crate) use allowance::{Growth, Limit};

/// Block files of each worker that a limited log must hold: with fewer, whole files cannot be
/// deleted in time.
const FILES_WITHIN_LIMIT: u64 = 4;

/// Deletes the least important data of a log: for a disk that is nearly full when it is asked to, for a limit on a
/// thread of its own.
pub(crate) struct Reclaim {
    dir: PathBuf,
    limit: Option<Arc<Allowance>>,
    /// Reports of the thread that keeps to the limit, once it runs.
    kept: Option<Receiver<String>>,
    running: Option<JoinHandle<Result<Pruned, ArchiveError>>>,
    said: Said,
}

/// What deleting led to, and what to say of it.
#[derive(Default)]
struct Said {
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
            limit: limit.map(|limit| Arc::new(Allowance::new(limit))),
            kept: None,
            running: None,
            said: Said::default(),
        }
    }

    /// What writers of a log with a limit ask.
    pub(crate) fn room(&self) -> Option<Arc<dyn Room>> {
        let room = self.limit.clone()?;
        Some(room)
    }

    /// Sets the bytes of files being written from now on.
    pub(crate) fn set_reserve(&self, bytes: u64) {
        if let Some(limit) = &self.limit {
            limit.set_reserve(bytes);
        }
    }

    /// Starts deleting if needed; returns what to report.
    pub(crate) fn look(&mut self, bytes_to_remove: Option<u64>) -> Option<String> {
        self.keep_to_limit()
            .or_else(|| self.look_at_disk(bytes_to_remove))
    }

    /// Starts the thread that keeps to the limit: not before this process is confined. Returns what that reports.
    fn keep_to_limit(&mut self) -> Option<String> {
        let limit = self.limit.as_ref()?;
        if let Some(kept) = &self.kept {
            return kept.try_recv().ok();
        }
        let (tell, kept) = channel();
        self.kept = Some(kept);
        let (dir, room) = (self.dir.clone(), Arc::clone(limit));
        let thread = thread::Builder::new().name("strata-limit".into());
        let started = thread.spawn(move || {
            strata_role::sandbox::thread(Role::Files);
            keep_below(&dir, &room, &tell);
        });
        let error = started.err()?;
        limit.end();
        self.said.of(Err(error.to_string()))
    }

    fn look_at_disk(&mut self, bytes_to_remove: Option<u64>) -> Option<String> {
        if let Some(thread) = self.running.take_if(|thread| thread.is_finished()) {
            let problem = "the thread that deletes has failed";
            let outcome = thread.join().map_err(|_| problem.to_owned());
            let outcome = outcome.and_then(|done| done.map_err(|error| error.to_string()));
            return self.said.of(outcome);
        }
        let bytes = bytes_to_remove?;
        if self.running.is_some() || self.said.is_early() {
            return None;
        }
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::at(&self.dir));
        let not_split = self.said.not_split.clone();
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
            Err(error) => self.said.of(Err(error.to_string())),
        }
    }
}

impl Drop for Reclaim {
    /// Writers that are left wait for nothing.
    fn drop(&mut self) {
        if let Some(limit) = &self.limit {
            limit.end();
        }
    }
}

/// Deletes whenever a log has not enough space left below its limit, until nothing more is written.
fn keep_below(dir: &Path, room: &Allowance, tell: &Sender<String>) {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::at(dir));
    let mut said = Said::default();
    while let Some(before) = room.until_due() {
        let size = bytes_below(dir);
        // Compaction writes a part before it deletes the block file.
        let is_compacted = dir.join(FileKind::Packets.dir()).exists();
        let Some(above) = room.measured(before, size, is_compacted) else {
            continue;
        };
        if said.is_early() {
            continue;
        }
        let outcome = make_room_except(&disk, above, &said.not_split);
        let text = said.of(outcome.map_err(|error| error.to_string()));
        match said.is_early() {
            true => room.in_vain(),
            false => room.helped(),
        }
        // Without a recording there is no one to tell.
        text.into_iter().for_each(|text| drop(tell.send(text)));
    }
}

impl Said {
    /// Whether the last attempt was in vain, and not long ago.
    fn is_early(&self) -> bool {
        self.last
            .is_some_and(|(at, useless)| useless && at.elapsed() < AGAIN_AFTER)
    }

    /// Takes in an outcome; returns what to report.
    fn of(&mut self, outcome: Result<Pruned, String>) -> Option<String> {
        let known = self.last.is_some_and(|(_, useless)| useless);
        if let Ok(pruned) = &outcome {
            let for_good = pruned.not_split.iter().filter(|one| one.for_good);
            self.not_split.extend(for_good.map(|one| one.file.clone()));
        }
        let (text, useless) = match outcome {
            Ok(pruned) if pruned.parts + pruned.block_files + pruned.split > 0 => {
                let text = RoomMade::from(&pruned).to_string();
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
                        "; packets that policies protect cannot be taken out of {}: {}",
                        count_of(files as u64, "file"),
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
