//! What is sent to others, as the senders publish it; and packets of which times are exported, as a recording that
//! takes over from another learns it.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use strata_wire::{exact, unix_ns};

use super::{ControlError, Controller};
use crate::config::ALWAYS;
use crate::request::ExportTimesRequest;
use crate::status::{ExportStatus, FlowsStatus, ReportStatus};

/// A time from or until which is exported has to be so far ahead: workers have to know it before it comes.
const AHEAD: Duration = Duration::from_millis(100);

/// Only packets of these times are exported, ns since 1970.
#[derive(Debug)]
pub struct ExportTimes {
    from: AtomicU64,
    until: AtomicU64,
}

impl ExportTimes {
    /// These.
    #[must_use]
    pub fn new(times: Range<u64>) -> Arc<Self> {
        Arc::new(Self {
            from: times.start.into(),
            until: times.end.into(),
        })
    }

    /// From one time on, and before another.
    #[must_use]
    pub fn now(&self) -> Range<u64> {
        self.from.load(Ordering::Relaxed)..self.until.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, times: &Range<u64>) {
        self.from.store(times.start, Ordering::Relaxed);
        self.until.store(times.end, Ordering::Relaxed);
    }
}

impl Controller {
    /// Publishes what was exported so far.
    pub fn set_exports(&self, status: Vec<ExportStatus>) {
        *self.exports.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }

    /// What was exported so far, by destination.
    #[must_use]
    pub fn exports(&self) -> Vec<ExportStatus> {
        let exports = self.exports.lock();
        exports.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Publishes what became of flows for a collector of flows.
    pub fn set_flows(&self, status: FlowsStatus) {
        *self.flows.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    }

    /// What became of flows, if a collector of flows was named.
    #[must_use]
    pub fn flows(&self) -> Option<FlowsStatus> {
        let flows = self.flows.lock();
        flows.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Publishes what was reported to a telemetry collector so far.
    pub fn set_reports(&self, status: ReportStatus) {
        *self.reports.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    }

    /// What was reported, if a collector was named.
    #[must_use]
    pub fn reports(&self) -> Option<ReportStatus> {
        let reports = self.reports.lock();
        reports.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Packets of which times are exported.
    #[must_use]
    pub fn export_times(&self) -> &Arc<ExportTimes> {
        &self.export_times
    }

    /// Exports only packets of these times from now on.
    ///
    /// # Errors
    ///
    /// If a time is past, or nearly: packets after it may have been exported, or left out, already.
    ///
    /// # Panics
    ///
    /// If the clock is before 1970.
    pub fn set_export_times(&self, request: ExportTimesRequest) -> Result<(), ControlError> {
        let soon_ns = unix_ns() + exact::<u64>(AHEAD.as_nanos());
        for (field, time) in [("from", request.from), ("until", request.until)] {
            if let Some(time) = time
                && time < soon_ns
            {
                return Err(ControlError::Past { field, time });
            }
        }
        let from = request.from.unwrap_or(ALWAYS.start);
        let until = request.until.unwrap_or(ALWAYS.end);
        self.export_times.set(&(from..until));
        Ok(())
    }

    /// Packets that the kernel has dropped on each interface since its ring was full.
    #[must_use]
    pub fn dropped(&self) -> Vec<(String, u64)> {
        let inner = self.lock();
        let interfaces = inner.observed.network.interfaces.iter();
        interfaces
            .map(|one| (one.name.clone(), one.dropped))
            .collect()
    }
}
