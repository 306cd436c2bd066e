//! Makes room on a disk that is about to be full, beside the recording.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strata_archive::{ArchiveError, Pruned, make_room};
use strata_store::{Disk, RealDisk};

use crate::text;

/// How long is waited before it is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Deletes the least important data of a log, on a thread of its own.
pub(super) struct Room {
    dir: PathBuf,
    running: Option<JoinHandle<Result<Pruned, ArchiveError>>>,
    /// When it was last tried, and whether that was of no use.
    last: Option<(Instant, bool)>,
}

impl Room {
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            running: None,
            last: None,
        }
    }

    /// Begins to delete if that is wanted; what is to be said.
    pub(super) fn look(&mut self, bytes_to_remove: Option<u64>) -> Option<String> {
        if let Some(thread) = self.running.take_if(|thread| thread.is_finished()) {
            let problem = "the thread that deletes has failed";
            let outcome = thread.join().map_err(|_| problem.to_owned());
            let outcome = outcome.and_then(|done| done.map_err(|error| error.to_string()));
            return self.tell(outcome);
        }
        let bytes = bytes_to_remove?;
        let early = self
            .last
            .is_some_and(|(at, useless)| useless && at.elapsed() < AGAIN_AFTER);
        if self.running.is_some() || early {
            return None;
        }
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::at(&self.dir));
        let work = move || make_room(&disk, bytes);
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

    fn tell(&mut self, outcome: Result<Pruned, String>) -> Option<String> {
        let known = self.last.is_some_and(|(_, useless)| useless);
        let (text, useless) = match outcome {
            Ok(pruned) if pruned.parts + pruned.block_files > 0 => {
                let text = format!(
                    "deleted {} block files and {} compacted parts with {} packets, {}, to make \
                     room on the disk",
                    pruned.block_files,
                    pruned.parts,
                    text::count(pruned.packets),
                    text::human_bytes(pruned.bytes),
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
