//! `strata compact --watch`: turn after turn, whatever fails meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use strata_archive::ArchiveError;
use strata_sandbox::Owner;
use strata_store::{Disk, StoreError};
use strata_wire::grouped;
use tracing::{error, info, warn};

use super::{Args, Plan, compacted, prepare};
use crate::signals::Interrupted;
use crate::text::{chain, count_of};

/// How often it is looked whether a signal came.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A problem that lasts is said again after this time; one that changes all the time, this often.
const SAY_AGAIN_AFTER: Duration = Duration::from_secs(3600);
const SAY_NEWS_AFTER: Duration = Duration::from_secs(60);
/// Most damaged places of which it is remembered that they were said.
const DAMAGE_MAX: usize = 10_000;

/// Compacts every `pause` until told to stop.
pub(super) fn run(args: &Args, owner: &Owner, plan: &Plan, pause: Duration) -> Result<()> {
    let mut said = Said::default();
    let Some(disk) = wait_for_log(args, owner, plan, pause, &mut said)? else {
        return Ok(());
    };
    // What lies in the log is known now.
    args.moving.parse(&args.log)?;
    args.sandbox.to_log(&args.log, args.moving.url())?;
    loop {
        turn(&disk, plan, &mut said);
        if !wait(plan, pause) {
            return Ok(());
        }
    }
}

/// Opens the log, once it is there; `None` if told to stop before.
fn wait_for_log(
    args: &Args,
    owner: &Owner,
    plan: &Plan,
    pause: Duration,
    said: &mut Said,
) -> Result<Option<Arc<dyn Disk>>> {
    loop {
        let problem = match prepare(args, owner) {
            Ok(disk) => {
                said.works("log", "the log is there");
                return Ok(Some(disk));
            }
            Err(error) => error,
        };
        let is_missing = matches!(problem.downcast_ref(), Some(StoreError::Missing { .. }));
        let is_busy = problem.downcast_ref().is_some_and(ArchiveError::is_busy);
        if !is_missing && !is_busy {
            return Err(problem);
        }
        said.problem("log", format!("waiting for the log: {}", chain(&problem)));
        if !wait(plan, pause) {
            return Ok(None);
        }
    }
}

/// Waits for the next turn; false if told to stop.
fn wait(plan: &Plan, pause: Duration) -> bool {
    let started = Instant::now();
    while !plan.is_stopped() {
        let left = pause.saturating_sub(started.elapsed());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(LOOK_EVERY));
    }
    false
}

/// Nothing that fails ends the watch: what is recorded meanwhile must be compacted, or the disk fills.
fn turn(disk: &Arc<dyn Disk>, plan: &Plan, said: &mut Said) {
    match compacted(disk, &plan.stop) {
        Ok(done) => {
            said.works("compact", "compaction works again");
            for damage in done.damage.iter().chain(&done.unknown_models) {
                said.damage(damage.to_string());
            }
            if done.interrupted {
                info!("interrupted: what is compacted stays so, the rest comes with the next run");
            }
        }
        Err(error) => said.problem("compact", format!("not compacted: {}", chain(&error))),
    }
    match plan.prune(disk) {
        Ok(()) => said.works("prune", "retention works again"),
        Err(error) => said.problem("prune", format!("nothing deleted: {}", chain(&error))),
    }
    if plan.is_stopped() {
        return;
    }
    match plan.move_parts(disk) {
        Ok(()) => said.works("move", "moving works again"),
        Err(error) if error.is::<Interrupted>() => {}
        Err(error) => said.problem("move", format!("not moved: {}", chain(&error))),
    }
}

/// What was said of each kind of work, so that a problem that lasts does not fill the journal.
#[derive(Default)]
struct Said {
    problems: BTreeMap<&'static str, Problem>,
    damage: Vec<String>,
}

/// A problem that lasts.
struct Problem {
    text: String,
    said: Instant,
    /// How often it failed in a row.
    failed: u64,
}

impl Said {
    /// Says what failed, if that is news or the last time was long ago.
    fn problem(&mut self, work: &'static str, text: String) {
        let now = Instant::now();
        let Some(known) = self.problems.get_mut(work) else {
            warn!("{text}: will be tried again");
            let problem = Problem {
                text,
                said: now,
                failed: 1,
            };
            self.problems.insert(work, problem);
            return;
        };
        known.failed += 1;
        let quiet = match known.text == text {
            true => SAY_AGAIN_AFTER,
            false => SAY_NEWS_AFTER,
        };
        if now.duration_since(known.said) < quiet {
            return;
        }
        let failed = grouped(known.failed);
        warn!("{text}: will be tried again (failed {failed} times in a row)");
        (known.text, known.said) = (text, now);
    }

    /// Says that something works again, if it did not before.
    fn works(&mut self, work: &'static str, text: &str) {
        if let Some(known) = self.problems.remove(work) {
            info!("{text}, after {}", count_of(known.failed, "failed attempt"));
        }
    }

    /// Says once that a file is left as it is.
    fn damage(&mut self, text: String) {
        if self.damage.contains(&text) {
            return;
        }
        error!("{}", strata_wire::Printable(&text));
        if self.damage.len() < DAMAGE_MAX {
            self.damage.push(text);
        }
    }
}
