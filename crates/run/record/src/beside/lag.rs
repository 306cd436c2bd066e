//! How far compaction of the log is behind, alongside the recording: nothing else says that the
//! process that compacts is gone, until the disk is full.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strata_archive::uncompacted;
use strata_control::{CompactionStatus, Controller};
use strata_sandbox::Role;
use strata_store::Log;
use strata_wire::human_bytes;

/// How often the log is looked at: its manifests are read, and one file of each worker is looked up.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// How long a complete file may wait before that is reported, unless the configuration says otherwise.
pub(crate) const LAG_MAX: Duration = Duration::from_secs(86_400);

/// Looks after the compaction of a log.
pub(crate) struct CompactionLag {
    dir: PathBuf,
    max: Duration,
    looked: Option<Instant>,
    running: Option<JoinHandle<Option<CompactionStatus>>>,
    /// Whether it was reported that it is behind.
    told: bool,
}

impl CompactionLag {
    pub(crate) fn new(dir: &Path, max: Duration) -> Self {
        Self {
            dir: dir.to_owned(),
            max,
            looked: None,
            running: None,
            told: false,
        }
    }

    /// Looks if it is time to, on a thread of its own, and publishes what was found; returns what to
    /// report.
    pub(crate) fn look(&mut self, controller: &Controller) -> Option<String> {
        if let Some(thread) = self.running.take_if(|thread| thread.is_finished()) {
            // What cannot be read now is looked at again.
            let status = thread.join().ok().flatten()?;
            controller.set_compaction(status);
            return self.judge(&status);
        }
        let early = self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY);
        if self.running.is_some() || early {
            return None;
        }
        self.looked = Some(Instant::now());
        let dir = self.dir.clone();
        let work = move || {
            strata_role::sandbox::thread(Role::Files);
            lag_of(&dir)
        };
        let thread = thread::Builder::new().name("strata-lag".into());
        self.running = thread.spawn(work).ok();
        None
    }

    fn judge(&mut self, status: &CompactionStatus) -> Option<String> {
        let oldest = status.oldest_seconds.filter(|_| status.in_use);
        let behind = oldest.filter(|oldest| *oldest > self.max.as_secs_f64());
        match (behind, self.told) {
            (Some(oldest), false) => {
                self.told = true;
                Some(format!(
                    "compaction is behind: {} block files with {} are complete and not compacted, the \
                     oldest for {:.1} hours: is `strata compact --every` running?",
                    status.files,
                    human_bytes(status.bytes),
                    oldest / 3600.0,
                ))
            }
            (None, true) => {
                self.told = false;
                Some(String::from("compaction has caught up"))
            }
            _ => None,
        }
    }
}

/// How far compaction of the log in a directory is behind; `None` if it cannot be read now.
fn lag_of(dir: &Path) -> Option<CompactionStatus> {
    let log = Log::open(dir).ok()?;
    let waits = uncompacted(&log, None);
    Some(CompactionStatus {
        // Numbers of parts begin with 1.
        in_use: log.archive().next_part > 1,
        files: waits.files,
        bytes: waits.bytes,
        oldest_seconds: oldest(dir, &waits.first).map(|age| age.as_secs_f64()),
    })
}

/// How long ago the file that has waited longest was written to last.
fn oldest(dir: &Path, names: &[String]) -> Option<Duration> {
    let ages = names.iter().filter_map(|name| {
        let written = fs::metadata(dir.join(name)).ok()?.modified().ok()?;
        written.elapsed().ok()
    });
    ages.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_once_that_compaction_is_behind_and_once_that_it_is_not() {
        let mut lag = CompactionLag::new(Path::new("log"), Duration::from_secs(100));
        let status = |in_use, oldest_seconds| CompactionStatus {
            in_use,
            files: 2,
            bytes: 3 << 20,
            oldest_seconds,
        };
        assert_eq!(lag.judge(&status(true, Some(99.0))), None);
        assert_eq!(
            lag.judge(&status(false, Some(999.0))),
            None,
            "no compaction"
        );
        let said = lag.judge(&status(true, Some(7_200.0))).unwrap();
        assert!(
            said.contains("2 block files") && said.contains("2.0 hours"),
            "{said}"
        );
        assert_eq!(lag.judge(&status(true, Some(7_300.0))), None);
        assert!(
            lag.judge(&status(true, None))
                .unwrap()
                .contains("caught up")
        );
        assert_eq!(lag.judge(&status(true, None)), None);
    }
}
