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
    stop: Arc<AtomicBool>,
    started: Instant,
}

impl Sending {
    /// Stops after `duration`, or when `stop` is set.
    fn start(sender: Sender, duration: Option<Duration>, stop: Arc<AtomicBool>) -> Result<Self> {
        if let Some(duration) = duration {
            // A signal, since it interrupts a system call that is sending.
            flag::register(SIGALRM, Arc::clone(&stop))?;
            let alarm = thread::Builder::new().name("strata-alarm".into());
            let alarm = alarm.spawn(move || {
                thread::sleep(duration);
                // A failure is impossible, and nothing could be done about it.
                let _ = kill_process(getpid(), Signal::ALARM);
            });
            alarm.map_err(RoleError::Thread)?;
        }
        Ok(Self {
            sender,
            stop,
            started: Instant::now(),
        })
    }

    /// Whether to stop.
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn send(&mut self, run: &Run) -> Result<()> {
        Ok(self.sender.send(run, &self.stop)?)
    }

    fn finish(self, cut: u64) -> SendOutcome {
        SendOutcome {
            took: self.started.elapsed(),
            sent: self.sender.sent(),
            method: self.sender.method(),
            cut,
        }
    }
}
