//! Sending frames from an interface: [`replay`] of capture files, or [`generate`]d traffic.
//!
//! Unlike other roles these run on the calling thread: one system call may send all frames, and only
//! a signal to the thread in it ends it early.

mod generate;
mod replay;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::SIGALRM;
use signal_hook::flag;
use strata_role::RoleError;
use strata_send::{Method, Run, Sender, Sent};

use crate::error::Result;

pub use generate::{GenerateSpec, generate};
pub use replay::{Pace, ReplaySpec, replay};

/// A number of frames that is never reached.
const NO_LIMIT: u64 = u64::MAX;

/// What was sent.
#[derive(Clone, Copy, Debug)]
pub struct SendOutcome {
    /// Frames and bytes.
    pub sent: Sent,
    /// How they were sent.
    pub method: Method,
    /// How long that took.
    pub took: Duration,
    /// Packets of which the file has a part only, which was sent.
    pub cut: u64,
}

/// Sends until told to stop.
struct Sending {
    sender: Sender,
    duration: Option<Duration>,
    stop: Arc<AtomicBool>,
    /// When the first frames were given to the sender, after the proof that they leave: generating or reading them takes
    /// time, too.
    started: Option<Instant>,
}

impl Sending {
    /// Stops when `stop` is set, or `duration` after the first frame.
    fn new(sender: Sender, duration: Option<Duration>, stop: Arc<AtomicBool>) -> Self {
        Self {
            sender,
            duration,
            stop,
            started: None,
        }
    }

    /// Whether to stop.
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn send(&mut self, run: &Run) -> Result<()> {
        if self.started.is_none() && run.frames > 0 {
            // Part of neither the duration nor the rate.
            self.sender.prove(run.base_ns)?;
            self.stop_later()?;
            self.started = Some(Instant::now());
        }
        Ok(self.sender.send(run, &self.stop)?)
    }

    fn stop_later(&self) -> Result<()> {
        let Some(duration) = self.duration else {
            return Ok(());
        };
        // A signal, since it interrupts a system call that is sending.
        flag::register(SIGALRM, Arc::clone(&self.stop))?;
        let alarm = thread::Builder::new().name("strata-alarm".into());
        let alarm = alarm.spawn(move || {
            thread::sleep(duration);
            // A failure is impossible, and nothing could be done about it.
            let _ = kill_process(getpid(), Signal::ALARM);
        });
        alarm.map_err(RoleError::thread("stops after --duration"))?;
        Ok(())
    }

    fn finish(self, cut: u64) -> SendOutcome {
        SendOutcome {
            took: self
                .started
                .map_or(Duration::ZERO, |started| started.elapsed()),
            sent: self.sender.sent(),
            method: self.sender.method(),
            cut,
        }
    }
}
