//! Inputs that end: a worker records them, after a survey of what they hold.

mod survey;

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use strata_blocks::SinkError;
use strata_capture::{CaptureError, Input, Next};

use crate::worker::Worker;

pub use survey::survey;

/// Why recording ended early. What was recorded before is in the log.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The input cannot be read any further.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The log cannot be written.
    #[error(transparent)]
    Sink(#[from] SinkError),
}

/// How long packets of a pipe are kept in memory, while more of them come.
const FLUSH_AFTER: Duration = Duration::from_millis(900);

/// Runs an input through a worker, until it ends, fails or is stopped, and finishes the worker
/// in all cases. `after_batch` is called after each batch and returns whether to go on.
///
/// # Errors
///
/// What ended it; everything before is recorded.
pub fn run(
    input: &mut Input,
    worker: &mut Worker,
    mut after_batch: impl FnMut(&mut Worker) -> ControlFlow<()>,
) -> Result<(), RunError> {
    // Who writes into a pipe may pause for hours.
    let is_live = input.is_live();
    let mut flushed = Instant::now();
    let mut step = || -> Result<(), RunError> {
        loop {
            match input.advance()? {
                Next::Packets => worker.batch(&input.batch())?,
                Next::Meta(meta) => worker.meta(meta)?,
                Next::End => return Ok(()),
            }
            if is_live && flushed.elapsed() > FLUSH_AFTER {
                flushed = Instant::now();
                worker.flush_old()?;
            }
            if after_batch(worker).is_break() || worker.is_done() {
                return Ok(());
            }
        }
    };
    let ran = step();
    let finished = worker.finish();
    ran?;
    Ok(finished?)
}
