//! The role that compacts a log while it is recorded: turn after turn, even if one fails. Each turn also deletes
//! what has expired, and moves what is old.

mod said;

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use strata_archive::{
    ArchiveError, Away, Compacted, Moved, Place, PruneOptions, Pruned, Retention, compact_until,
    prune_as, relocate_until,
};
use strata_role::{Notice, Tell, chain};
use strata_store::{Disk, Log, RemovedBy};
use strata_wire::{count_of, unix_ns};

use said::Said;

/// How often it is looked whether it is to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What to do besides compacting.
#[derive(Clone, Debug)]
pub struct CompactPlan {
    /// What expires; nothing, if `None`.
    pub retention: Option<Retention>,
    /// Whether age may delete most of a log whose newest packet is old.
    pub may_take_most: bool,
    /// Threads that write parts.
    pub threads: NonZeroUsize,
    /// Where parts go, and how old their packets are then, in ns.
    pub moving: Option<(Place, u64)>,
}

/// Compaction of a log while it is recorded.
#[derive(Clone, Debug)]
pub struct CompactSpec {
    /// What else is done in each turn.
    pub plan: CompactPlan,
    /// Between two turns.
    pub pause: Duration,
}

/// What was done. It is reported on the thread that does it.
#[derive(Clone, Copy, Debug)]
pub enum CompactStep<'a> {
    /// Block files became parts, in this time.
    Compacted(&'a Compacted, Duration),
    /// A block file is left as it is; reported once.
    Damaged(&'a str),
    /// What has expired is gone.
    Pruned(&'a Pruned),
    /// Parts are elsewhere.
    Moved(&'a Moved),
    /// A tier has files that cannot be deleted now; reported as a problem that lasts.
    Away(&'a Away),
}

/// Takes what was done; an error is one of that work.
pub type TakeStep<'a> = dyn FnMut(CompactStep<'_>) -> io::Result<()> + 'a;

/// Why a part of a turn failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompactError {
    /// The log cannot be read or changed.
    #[error(transparent)]
    Log(#[from] ArchiveError),
    /// What was done cannot be reported.
    #[error("{0}")]
    Report(#[from] io::Error),
    /// This number of parts are damaged, and not moved.
    #[error("{} not moved because of damage", count_of(*.0 as u64, "part"))]
    Damaged(usize),
}

/// Why a log is not open.
#[derive(Clone, Debug)]
pub enum NotOpen<E> {
    /// It may be later: it is not there yet, or somebody else changes it.
    Yet(String),
    /// It cannot be opened.
    Ever(E),
}

/// Compacts what is complete with this many threads, until told to stop.
///
/// # Errors
///
/// If the log cannot be read or changed, or `take` fails.
pub fn compact_log(
    disk: &Arc<dyn Disk>,
    threads: NonZeroUsize,
    stop: &AtomicBool,
    tell: &Tell,
    take: &mut TakeStep<'_>,
) -> Result<Compacted, CompactError> {
    let started = Instant::now();
    // So that flows are those that the recording saw. Whatever else is wrong, compaction says.
    if let Ok(log) = Log::on(Arc::clone(disk))
        && let Err(error) = log.look_into_its_tunnels()
    {
        tell(&Notice::warning(format!(
            "cannot apply the tunnel ports of all recordings of the log, so flows in these tunnels \
             may differ from those that were recorded: {error}. Use a log for each set of tunnel \
             ports"
        )));
    }
    let done = compact_until(disk, threads, stop, |_| ())?;
    take(CompactStep::Compacted(&done, started.elapsed()))?;
    Ok(done)
}

impl CompactPlan {
    /// Deletes what has expired, which frees space even if compaction finds none.
    ///
    /// # Errors
    ///
    /// If the log cannot be read or changed, or `take` fails.
    pub fn prune(&self, disk: &Arc<dyn Disk>, take: &mut TakeStep<'_>) -> Result<(), CompactError> {
        let Some(retention) = &self.retention else {
            return Ok(());
        };
        let options = PruneOptions {
            now_ns: unix_ns(),
            dry_run: false,
            by: RemovedBy::Compact,
            may_take_most: self.may_take_most,
        };
        let pruned = prune_as(disk, retention, &options)?;
        take(CompactStep::Pruned(&pruned))?;
        let mut away = pruned.away.iter();
        Ok(away.try_for_each(|away| take(CompactStep::Away(away)))?)
    }

    /// Moves what is old; whether that is all of it, or it was stopped before.
    ///
    /// # Errors
    ///
    /// If the log or its new place cannot be read or changed, parts are damaged, or `take` fails.
    pub fn relocate(
        &self,
        disk: &Arc<dyn Disk>,
        stop: &AtomicBool,
        take: &mut TakeStep<'_>,
    ) -> Result<bool, CompactError> {
        let Some((place, age_ns)) = &self.moving else {
            return Ok(true);
        };
        let until_ns = unix_ns().saturating_sub(*age_ns);
        let moved = relocate_until(disk, place, until_ns, stop, |_| ())?;
        take(CompactStep::Moved(&moved))?;
        for away in &moved.away {
            take(CompactStep::Away(away))?;
        }
        match moved.damage.len() {
            0 => Ok(!moved.interrupted),
            parts => Err(CompactError::Damaged(parts)),
        }
    }
}

/// A log that is compacted while it is recorded.
pub struct Compacting {
    disk: Arc<dyn Disk>,
    spec: CompactSpec,
    stop: Arc<AtomicBool>,
    said: Said,
}

impl Compacting {
    /// Waits until the log can be opened; `None` if told to stop before. `open` opens it, or says why it cannot.
    ///
    /// # Errors
    ///
    /// If it can never be.
    pub fn open<E>(
        spec: CompactSpec,
        mut open: impl FnMut() -> Result<Arc<dyn Disk>, NotOpen<E>>,
        stop: Arc<AtomicBool>,
        tell: Tell,
    ) -> Result<Option<Self>, E> {
        let mut said = Said::new(tell);
        loop {
            match open() {
                Ok(disk) => {
                    said.works("log", "the log exists now");
                    return Ok(Some(Self {
                        disk,
                        spec,
                        stop,
                        said,
                    }));
                }
                Err(NotOpen::Ever(error)) => return Err(error),
                Err(NotOpen::Yet(why)) => {
                    said.problem("log", format!("waiting for the log: {why}"));
                }
            }
            if !wait(&stop, spec.pause) {
                return Ok(None);
            }
        }
    }

    /// Compacts every pause until told to stop. `take` gets what was done.
    pub fn run(mut self, take: &mut TakeStep<'_>) {
        loop {
            self.turn(take);
            if !wait(&self.stop, self.spec.pause) {
                return;
            }
        }
    }

    /// Nothing that fails ends it: what is recorded meanwhile must be compacted, or the disk fills.
    fn turn(&mut self, take: &mut TakeStep<'_>) {
        let Self {
            disk,
            spec,
            stop,
            said,
        } = self;
        let tell: Tell = said.teller();
        match compact_log(disk, spec.plan.threads, stop, &tell, take) {
            Ok(done) => {
                said.works("compact", "compaction works again");
                for damage in done.damage.iter().chain(&done.unknown_models) {
                    let damage = damage.to_string();
                    if said.is_news(&damage) {
                        // What cannot be written was reported with the rest.
                        let _ = take(CompactStep::Damaged(&damage));
                    }
                }
                if done.interrupted {
                    tell(&Notice::info(
                        "interrupted",
                        "interrupted: compacted files stay compacted, and the next run compacts \
                         the rest",
                    ));
                }
            }
            Err(error) => said.problem("compact", format!("not compacted: {}", chain(&error))),
        }
        let is_stopped = || stop.load(Ordering::Relaxed);
        let mut away = None;
        let mut take = |step: CompactStep<'_>| match step {
            CompactStep::Away(tier) => {
                away.get_or_insert_with(|| tier.to_string());
                Ok(())
            }
            step => take(step),
        };
        let pruned = match is_stopped() {
            true => Ok(()),
            false => spec.plan.prune(disk, &mut take),
        };
        let is_pruned = pruned.is_ok();
        match pruned {
            Ok(()) => said.works("prune", "retention works again"),
            Err(error) => said.problem("prune", format!("nothing deleted: {}", chain(&error))),
        }
        if is_stopped() {
            return;
        }
        match spec.plan.relocate(disk, stop, &mut take) {
            Ok(true) => said.works("move", "moving works again"),
            Ok(false) => {}
            Err(error) => said.problem("move", format!("not moved: {}", chain(&error))),
        }
        match away {
            Some(away) => said.problem("delete", away),
            None if is_pruned => said.works("delete", "files outside the log can be deleted again"),
            None => {}
        }
    }
}

/// Waits for the next turn; false if told to stop.
fn wait(stop: &AtomicBool, pause: Duration) -> bool {
    let started = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let left = pause.saturating_sub(started.elapsed());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(LOOK_EVERY));
    }
    false
}
