//! Runs interfaces through a worker, until told to stop.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use strata_capture::Packets;
use strata_capture::live::{Live, LiveNext, RingBatch};
use strata_pipeline::Worker;
use strata_wire::unix_seconds;

use super::processes::Annotator;
use crate::error::Result;

/// Packets are in the log's files after this time, however few there are.
const FLUSH_AFTER: Duration = Duration::from_millis(900);

/// What had arrived by the end is still taken, but the end comes at most this much later.
const DRAIN: Duration = Duration::from_secs(1);

/// Runs interfaces through a worker until `after_step` says stop, and finishes the worker in all
/// cases. What had arrived by then is recorded too. `after_step` is called after each batch, and ten times a second when idle. Fails with
/// what ended it; everything before is recorded. With `processes`, packets get theirs.
pub(super) fn run_live(
    live: &mut Live,
    worker: &mut Worker,
    mut processes: Option<&mut Annotator>,
    mut after_step: impl FnMut(&mut Live, &mut Worker) -> ControlFlow<()>,
) -> Result<()> {
    let mut step = || -> Result<()> {
        let mut flushed = Instant::now();
        let cut = live.cut_table();
        let mut shares = live.sampler().map(|sampler| sampler.follow());
        // Setting the clock makes entries of the table stale, which is harmless.
        if let Some(table) = &cut {
            table.set_second(unix_seconds());
        }
        let mut take = |worker: &mut Worker,
                        batch: &RingBatch<'_>,
                        processes: &mut Option<&mut Annotator>|
         -> Result<()> {
            let first = batch.get(0).ts_ns;
            if let Some(share) = shares.as_mut().and_then(|shares| shares.at(first)) {
                worker.captured(share);
            }
            match processes {
                None => worker.batch(batch)?,
                Some(processes) => worker.batch(&*processes.annotate(batch))?,
            }
            Ok(())
        };
        loop {
            match live.advance()? {
                LiveNext::Packets => take(worker, &live.batch(), &mut processes)?,
                LiveNext::Meta(meta) => {
                    if let Some(processes) = &mut processes {
                        processes.meta(&meta);
                    }
                    worker.meta(meta)?;
                }
                LiveNext::Idle => worker.idle()?,
            }
            if flushed.elapsed() > FLUSH_AFTER {
                flushed = Instant::now();
                worker.flush_old()?;
                if let Some(table) = &cut {
                    table.set_second(unix_seconds());
                }
            }
            if worker.is_done() {
                return Ok(());
            }
            if after_step(live, worker).is_break() {
                return live.drain(DRAIN, |batch| match worker.is_done() {
                    true => Ok(()),
                    false => take(worker, batch, &mut processes),
                });
            }
        }
    };
    let ran = step();
    let finished = worker.finish();
    ran?;
    Ok(finished?)
}
