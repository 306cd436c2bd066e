//! The clock of NetFlow 9: times of flows are milliseconds since the exporter started, of 32 bits, and the header of a
//! message says how many of them have passed at its own time (RFC 3954, sections 5.1 and 8).
//!
//! A collector adds them up message by message, so the start is chosen, not measured: a day before the first flow. A
//! flow that begins before the start, or ends more than 49.7 days after it, begins a message with another start, as if
//! the exporter had been started again. So the times of all flows are exact to the millisecond, however old a log is,
//! and no uptime wraps around.

use std::error::Error;
use std::{fmt, io};

/// Time between the start and the first flow: later ones may have begun earlier, and need no other start.
const BEFORE_MS: u64 = 86_400_000;
const UPTIME_MAX_MS: u64 = 0xffff_ffff;
/// The latest time of a header, ms since 1970: its seconds have 32 bits.
const TIME_MAX_MS: u64 = 0xffff_ffff * 1_000;

/// When the exporter started, as far as messages say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Uptime {
    /// ms since 1970; `None` before the first flow.
    start_ms: Option<u64>,
}

impl Uptime {
    /// Whether it can express the times of a flow, and that of a message with the flow.
    pub(super) fn holds(self, first_ns: u64, last_ns: u64) -> bool {
        let (begin_ms, end_ms) = around(first_ns, last_ns);
        self.start_ms.is_some_and(|start_ms| {
            let lasted_ms = end_ms.checked_sub(start_ms);
            begin_ms >= start_ms
                && end_ms <= TIME_MAX_MS
                && lasted_ms.is_some_and(|ms| ms <= UPTIME_MAX_MS)
        })
    }

    /// One that holds a flow.
    ///
    /// # Errors
    ///
    /// If none does.
    pub(super) fn that_holds(first_ns: u64, last_ns: u64) -> io::Result<Self> {
        let (begin_ms, end_ms) = around(first_ns, last_ns);
        if end_ms > TIME_MAX_MS {
            return Err(unfit(
                "a flow ended after 2106, which NetFlow 9 cannot express: send IPFIX",
            ));
        }
        let spare_ms = end_ms
            .checked_sub(begin_ms)
            .and_then(|lasted_ms| UPTIME_MAX_MS.checked_sub(lasted_ms));
        let Some(spare_ms) = spare_ms else {
            return Err(unfit(
                "a flow lasted longer than 49.7 days, which NetFlow 9 cannot express: give a \
                 shorter --active-timeout, or send IPFIX",
            ));
        };
        Ok(Self {
            start_ms: Some(begin_ms.saturating_sub(spare_ms.min(BEFORE_MS))),
        })
    }

    /// The uptime at a time that it holds, ms.
    pub(super) fn at(self, ns: u64) -> u32 {
        let start_ms = self.start_ms.expect("a flow comes before its times");
        let uptime_ms = milliseconds(ns).checked_sub(start_ms);
        let uptime_ms = uptime_ms.and_then(|ms| u32::try_from(ms).ok());
        uptime_ms.expect("the time of a flow or message that was found to fit")
    }
}

fn milliseconds(ns: u64) -> u64 {
    ns / 1_000_000
}

/// The begin of a flow, and the time of a message with it, a whole second: a flow that ended after the uptime in the
/// header would be taken for one of 49.7 days before.
fn around(first_ns: u64, last_ns: u64) -> (u64, u64) {
    let begin_ms = milliseconds(first_ns.min(last_ns));
    let end_s = first_ns.max(last_ns).div_ceil(1_000_000_000);
    (begin_ms, end_s.saturating_mul(1_000))
}

fn unfit(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, Unfit(why))
}

/// Why the protocol cannot say the times of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unfit(&'static str);

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for Unfit {}

impl Unfit {
    /// The reason, if an error is about a flow, and not about the output.
    pub(crate) fn of(error: &io::Error) -> Option<&'static str> {
        let unfit = error.get_ref()?.downcast_ref::<Self>()?;
        Some(unfit.0)
    }
}
