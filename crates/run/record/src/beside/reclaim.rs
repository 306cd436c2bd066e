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
use strata_wire::{count_of, human_bytes};

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
        let files = FILES_WITHIN_LIMIT.saturating_mul(workers.max(1).into());
        let enough = rotate_bytes > 0 && self.bytes >= rotate_bytes.saturating_mul(files);
        require_valid(enough, || self.problem(rotate_bytes, files))
    }

    /// Why this many files do not fit, in the units of `-C`.
    fn problem(&self, rotate_bytes: u64, files: u64) -> String {
        let [limit, of_file, all] =
            [self.bytes, rotate_bytes, rotate_bytes.saturating_mul(files)].map(human_bytes);
        let takes = match rotate_bytes {
            0 => format!("{files} block files must fit, but with -C 0 a file never ends"),
            _ => format!(
                "{files} block files ({FILES_WITHIN_LIMIT} of each worker) must fit, and with \
                 files of {of_file} (-C), they take {all}"
            ),
        };
        let advice = match self.bytes / files / 1_000_000 {
            0 => format!("with -C 1, which is 1 MB, {files} MB are enough"),
            millions => format!("make the files smaller, as with -C {millions} (in MB)"),
        };
        format!("--disk-limit is {limit}: {takes}; {advice}")
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

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(limit: u64, file: u64, workers: u16) -> Option<String> {
        let limit = Limit {
            bytes: limit,
            reserve: 0,
            growth: Growth::Waits,
        };
        let checked = limit.check(file, workers);
        checked.err().map(|error| error.to_string())
    }

    #[test]
    fn a_limit_is_refused_in_the_units_of_its_files() {
        assert_eq!(problem(8_000_000, 2_000_000, 1), None);
        let small = problem(7_000_000, 2_000_000, 1).unwrap();
        for what in [
            "is 7.0 MB",
            "4 block files",
            "files of 2.0 MB (-C), they take 8.0 MB",
            "-C 1 (in MB)",
        ] {
            assert!(small.contains(what), "{small}");
        }
        assert_eq!(problem(7_000_000, 1_000_000, 1), None, "as advised");
        let tiny = problem(1_000_000, 2_000_000, 2).unwrap();
        assert!(
            tiny.contains("with -C 1, which is 1 MB, 8 MB are enough"),
            "{tiny}"
        );
        assert_eq!(problem(8_000_000, 1_000_000, 2), None, "as advised");
        let endless = problem(1 << 40, 0, 1).unwrap();
        assert!(endless.contains("with -C 0 a file never ends"), "{endless}");
    }
}
