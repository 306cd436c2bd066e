//! Shared by `replay` and `generate -i`: how to send, and what was sent.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use strata_record::SendOutcome;
use strata_send as send;
use strata_wire::grouped;
use tracing::warn;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Method {
    /// Through a packet socket: works on every interface.
    Sendmmsg,
    /// As XDP frames made in the kernel: several times as fast, if the driver can send them, as
    /// veth can.
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

/// The time after which to stop.
pub(crate) fn duration(seconds: Option<f64>) -> Result<Option<Duration>> {
    let duration = seconds.map(Duration::try_from_secs_f64).transpose();
    duration.context("--duration")
}

/// What was sent and how fast, in tcpreplay's words.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn print(outcome: &SendOutcome, interface: &str) {
    let seconds = outcome.took.as_secs_f64().max(1e-9);
    let sent = outcome.sent;
    eprintln!(
        "Actual: {} packets ({} bytes) sent in {seconds:.2} seconds by {} on {interface}\n\
         Rated: {:.1} Mbps, {:.0} pps",
        grouped(sent.frames),
        grouped(sent.bytes),
        outcome.method,
        sent.bytes as f64 * 8.0 / seconds / 1e6,
        sent.frames as f64 / seconds,
    );
    if sent.sending_ns > 0 {
        let sending = sent.sending_ns as f64 / 1e9;
        eprintln!(
            "Sending: {sending:.3} seconds, {:.1} % of the time",
            100.0 * sending / seconds
        );
    }
    if sent.dropped > 0 {
        warn!(
            "{interface} dropped {} of these packets: its queue was full (on a veth, the queue of its peer)",
            grouped(sent.dropped)
        );
    }
}
