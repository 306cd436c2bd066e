//! Compaction: from block files to parts.
//!
//! A job takes some block files of one worker and makes parts of them in `staging/`. Once these are
//! synced, one replacement of `archive.json` lists the parts and removes the block files from the
//! log; then the parts' files are renamed and the block files deleted. Whatever is interrupted, a
//! packet is in exactly one tier, and the next compaction cleans up.

pub(crate) mod anomalous;
pub(crate) mod jobs;
pub(crate) mod lag;

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use strata_store::{BlockFile, Damage, Disk, Log, Part, Recording};

use crate::compact::anomalous::Anomalous;
use crate::compact::jobs::{Made, Outcome, Target, run_job};
use crate::disk::changes::{clean_up, commit, delete_gone, lock, remove_staged};
use crate::disk::encryption::recipients;
use crate::error::ArchiveError;

/// Bytes of block files compacted in one go, to be redone after a crash.
const JOB_BYTES: u64 = 4 << 30;

/// The result of a compaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Block files that were compacted.
    pub files: u64,
    /// Their bytes.
    pub bytes_before: u64,
    /// Packets in them.
    pub packets: u64,
    /// Bytes of the parts made from them.
    pub bytes_after: u64,
    /// Block files that were left alone because they are damaged.
    pub damage: Vec<Damage>,
    /// Models that cannot be read. Their recordings were left alone: it is not known which of their
    /// packets are evidence.
    pub unknown_models: Vec<Damage>,
    /// Whether it was told to stop before everything was compacted.
    pub interrupted: bool,
}

/// Compacts every block file that is no longer written to, encrypted if
/// [`encrypt_to`](crate::encrypt_to) has said so.
///
/// # Errors
///
/// If another process does the same, or files cannot be read or written. Work done so far is kept.
pub fn compact(
    disk: &Arc<dyn Disk>,
    progress: impl FnMut(&Compacted),
) -> Result<Compacted, ArchiveError> {
    compact_until(disk, NonZeroUsize::MIN, &NEVER, progress)
}

/// Never set.
pub(crate) static NEVER: AtomicBool = AtomicBool::new(false);

/// As [`compact`], with this many threads; if that is not 1, one more takes in blocks, and two runs of
/// packets are in memory instead of one. The files are the same with any number.
///
/// It ends soon after `stop` is set, within a second or so. What was complete by then stays so; of the
/// block files it was working on, none is compacted, and nothing is left in `staging/`.
///
/// # Errors
///
/// As [`compact`].
pub fn compact_until(
    disk: &Arc<dyn Disk>,
    threads: NonZeroUsize,
    stop: &AtomicBool,
    mut progress: impl FnMut(&Compacted),
) -> Result<Compacted, ArchiveError> {
    let _lock = lock(disk.as_ref())?;
    let (mut archive, _) = clean_up(disk.as_ref())?;
    let log = Log::on(Arc::clone(disk))?;
    let to = recipients(disk.as_ref(), &archive)?;
    let mut done = Compacted::default();
    let mut unknown = HashSet::new();
    'jobs: for (recording, mut files) in jobs(&log, JOB_BYTES) {
        if unknown.contains(&recording.id) {
            continue;
        }
        if let Some(problem) = Anomalous::of(&log, recording).into_problem() {
            // Otherwise evidence would be filed with everything else, permanently.
            unknown.insert(recording.id);
            done.unknown_models.push(problem);
            progress(&done);
            continue;
        }
        while !files.is_empty() {
            let output = Target {
                disk: disk.as_ref(),
                encrypt_to: &to,
                stop,
                threads,
                only_protected: false,
            };
            let outcome = output
                .go_on()
                .and_then(|()| run_job(&log, output, recording, &files, archive.next_part));
            if outcome.is_err() {
                // The job may have failed for lack of the space freed here; its error is more
                // useful than a failed deletion.
                let _ = remove_staged(disk.as_ref(), &archive);
            }
            match outcome {
                Ok(Outcome::Parts(made)) => {
                    done.count(disk.as_ref(), &files, &made)?;
                    commit(disk.as_ref(), &mut archive, &made.parts, made.gone)?;
                    break;
                }
                Ok(Outcome::Damaged(damage, name)) => {
                    remove_staged(disk.as_ref(), &archive)?;
                    files.retain(|file| file.name != name);
                    done.damage.push(damage);
                }
                Err(ArchiveError::Interrupted) => {
                    done.interrupted = true;
                    break 'jobs;
                }
                Err(error) => return Err(error),
            }
        }
        progress(&done);
    }
    drop(log);
    delete_gone(disk.as_ref(), &mut archive)?;
    Ok(done)
}

impl Compacted {
    /// Counts a job that made parts of these files.
    fn count(
        &mut self,
        disk: &dyn Disk,
        files: &[BlockFile],
        made: &Made,
    ) -> Result<(), ArchiveError> {
        self.files += files.len() as u64;
        self.bytes_before += size_of(disk, files)?;
        self.packets += made.parts.iter().map(|part| part.packets).sum::<u64>();
        self.bytes_after += made.parts.iter().map(Part::bytes).sum::<u64>();
        Ok(())
    }
}

fn size_of(disk: &dyn Disk, files: &[BlockFile]) -> Result<u64, ArchiveError> {
    let size = |file: &BlockFile| {
        let opened = disk.open(&file.name, false);
        let size = opened.and_then(|opened| opened.size());
        size.map_err(ArchiveError::io(disk.display(&file.name), "open"))
    };
    files.iter().map(size).sum()
}

/// Whether a block file may be compacted: nothing more is written to it.
pub(crate) fn is_complete(log: &Log) -> impl Fn(&Recording, &BlockFile) -> bool + use<> {
    let being_written = log.being_written();
    move |recording, file| {
        let running = being_written(recording);
        // Blocks still to come may yet promote packets in it.
        let may_change = running && recording.look_back;
        (file.sealed && !may_change) || !running
    }
}

/// Block files that are no longer written to, grouped into jobs: consecutive files of one worker.
fn jobs(log: &Log, job_bytes: u64) -> Vec<(&Recording, Vec<BlockFile>)> {
    let is_complete = is_complete(log);
    let mut jobs = Vec::new();
    for recording in log.recordings() {
        let mut by_worker: BTreeMap<u16, Vec<BlockFile>> = BTreeMap::new();
        for file in &recording.files {
            if is_complete(recording, file) {
                by_worker.entry(file.worker).or_default().push(file.clone());
            }
        }
        for files in by_worker.into_values() {
            let mut job = Vec::new();
            let mut bytes = 0;
            for file in files {
                if bytes + file.bytes > job_bytes && !job.is_empty() {
                    jobs.push((recording, std::mem::take(&mut job)));
                    bytes = 0;
                }
                bytes += file.bytes;
                job.push(file);
            }
            if !job.is_empty() {
                jobs.push((recording, job));
            }
        }
    }
    jobs
}
