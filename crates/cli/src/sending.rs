//! Shared by `replay` and `generate -i`: send frames from an interface, until a signal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::SIGALRM;
use signal_hook::flag;
use strata_capture::send::{self, Run, Sender};
use strata_wire::grouped;
use tracing::warn;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Method {
    /// A packet socket: works on every interface.
    Sendmmsg,
    /// XDP frames generated in the kernel: several times as fast, on veth.
    LiveFrames,
}

impl From<Method> for send::Method {
    fn from(method: Method) -> Self {
        match method {
            Method::Sendmmsg => Self::Sendmmsg,
            Method::LiveFrames => Self::LiveFrames,
        }
    }
}

/// A number of frames that is never reached.
pub(crate) const NO_LIMIT: u64 = u64::MAX;

/// Sends until told to stop.
pub(crate) struct Sending {
    sender: Sender,
    stop: Arc<AtomicBool>,
    started: Instant,
}

impl Sending {
    /// Stops after `duration_seconds`, or at the first interrupt or termination signal.
    pub(crate) fn start(sender: Sender, duration_seconds: Option<f64>) -> Result<Self> {
        let stop = crate::signals::stop_on_signal()?;
        let duration = duration_seconds
            .map(Duration::try_from_secs_f64)
            .transpose();
        if let Some(duration) = duration.context("--duration")? {
            // A signal, since it interrupts a system call that is sending.
            flag::register(SIGALRM, Arc::clone(&stop))?;
            std::thread::spawn(move || {
                std::thread::sleep(duration);
                // A failure is impossible, and nothing could be done about it.
                let _ = kill_process(getpid(), Signal::ALARM);
            });
        }
        Ok(Self {
            sender,
            stop,
            started: Instant::now(),
        })
    }

    pub(crate) fn sender(&mut self) -> &mut Sender {
        &mut self.sender
    }

    /// Whether a signal arrived or the time is up.
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn send(&mut self, run: &Run) -> Result<()> {
        Ok(self.sender.send(run, &self.stop)?)
    }

    /// What was sent and how fast, in tcpreplay's words.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn finish(self, interface: &str) {
        let seconds = self.started.elapsed().as_secs_f64().max(1e-9);
        let sent = self.sender.sent();
        eprintln!(
            "Actual: {} packets ({} bytes) sent in {seconds:.2} seconds by {} on {interface}\n\
             Rated: {:.1} Mbps, {:.0} pps",
            grouped(sent.frames),
            grouped(sent.bytes),
            self.sender.method(),
            sent.bytes as f64 * 8.0 / seconds / 1e6,
            sent.frames as f64 / seconds,
        );
        if sent.dropped > 0 {
            warn!(
                "{interface} dropped {} of them: the other end had no room for them",
                grouped(sent.dropped)
            );
        }
    }
}
