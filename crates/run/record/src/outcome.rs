//! The outcome of a recording.

use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use strata_classify::{Drift, DriftReport};
use strata_control::{ExportStatus, FlowsStatus, LoweredStatus, ReportStatus, ShedStatus};
use strata_pipeline::Worker;
use strata_policy::WorkerCounts;
use strata_processes::ProcessCounts;
use strata_role::{Notice, Tell};
use strata_store::{Disk as _, ENDED_EARLY, RealDisk, drift_name, seal_drift};
use strata_wire::{DropReason, LinkType, Summed as _};

use crate::error::{At as _, RecordError, Result};
use crate::notice::RecordNotice;
use crate::setup::Setup;
use crate::setup::destination::{Closed, Recording};

/// The outcome of a recording, complete or not.
#[derive(Debug)]
pub struct RecordOutcome {
    /// What workers counted: where every packet ended, and more.
    pub counts: WorkerCounts,
    /// Names of the model's classes.
    pub classes: Vec<String>,
    /// How well the model fits the traffic, if its file says what it was trained on.
    pub drift: Option<DriftReport>,
    /// What shortages lowered, if they ever did, and how it ended.
    pub lowered: Option<LoweredStatus>,
    /// Payload given up so that fewer packets are lost; `None` where that is not possible.
    pub shed: Option<ShedStatus>,
    /// How long it took.
    pub took: Duration,
    /// What was reported to a telemetry collector, if one was named.
    pub reports: Option<ReportStatus>,
    /// What became of flows for a collector of flows, if one was named.
    pub flows: Option<FlowsStatus>,
    /// What policies exported, by destination.
    pub exports: Vec<ExportStatus>,
    /// The finished recording; `None` if it could not be closed.
    pub closed: Option<Closed>,
    /// The first failure. Packets recorded before it are in the log.
    pub failure: Option<RecordError>,
}

/// What a worker leaves behind.
pub(crate) struct WorkerOutcome {
    counts: WorkerCounts,
    drift: Option<Drift>,
    filter_problems: Vec<(LinkType, String)>,
    filter_fits_nowhere: Option<String>,
    /// Packets by what is known of their processes, if the recording notes them.
    pub(crate) processes: Option<ProcessCounts>,
    ran: Result<()>,
}

impl WorkerOutcome {
    pub(crate) fn of(worker: &Worker, ran: Result<()>) -> Self {
        Self {
            counts: worker.counts(),
            drift: worker.classifier().drift().cloned(),
            filter_problems: worker.filter_problems(),
            filter_fits_nowhere: worker.filter_fits_nowhere(),
            processes: None,
            ran,
        }
    }

    /// An error if packets came and the filter could be applied to none of them.
    fn check_filter(&self) -> Result<()> {
        match &self.filter_fits_nowhere {
            Some(problem) if self.counts.ledger.seen.packets > 0 => {
                Err(RecordError::FilterFitsNowhere(problem.clone()))
            }
            _ => Ok(()),
        }
    }
}

/// Closes the recording with the results of all workers. Fails if the filter could not be applied
/// at all: then there is nothing to report about it. `told` goes into the log only: it was reported
/// when it happened.
pub(crate) fn finish(
    recording: Recording,
    outcomes: Vec<WorkerOutcome>,
    told: Vec<String>,
    mut warnings: Vec<String>,
    started: Instant,
    setup: &Setup,
) -> Result<RecordOutcome> {
    // While the disk writes the last blocks, the rest is described.
    recording.end();
    let tell = &setup.tell;
    let mut counts = WorkerCounts::default();
    let mut drift: Option<Drift> = None;
    let mut ran = Ok(());
    let mut unfiltered = Ok(());
    for mut outcome in outcomes {
        counts.merge(&outcome.counts);
        match (&mut drift, outcome.drift.take()) {
            (Some(all), Some(more)) => all.merge(&more),
            (all, more) => *all = all.take().or(more),
        }
        unfiltered = unfiltered.and(outcome.check_filter());
        for (link, problem) in outcome.filter_problems {
            let warning = format!("the filter matches no packet of {link}: {problem}");
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
        ran = ran.and(outcome.ran);
    }
    let ledger = &counts.ledger;
    let dropped = ledger.dropped[DropReason::DiskFull as usize];
    // If it ended the recording, that is reported.
    if dropped.packets > 0 && ran.is_ok() {
        warnings.push(format!(
            "the disk was full: {} of {} packets were dropped (--when-full drop)",
            dropped.packets, ledger.seen.packets
        ));
    }
    for warning in &warnings {
        tell(&Notice::warning(warning.clone()));
    }
    warnings.splice(..0, told);
    warnings.extend(ran.as_ref().err().map(|error| {
        let early = match error.is_of_log() {
            true => ENDED_EARLY,
            false => "ended early",
        };
        format!("{early}: {error}")
    }));
    let drift = drift.map(|drift| drift.report());
    let noted = match (&drift, recording.log()) {
        (Some(report), Some((dir, id))) => write_drift(dir, id, report, tell),
        _ => Ok(()),
    };
    let (closed, not_closed) = match recording.finish(&counts, warnings, tell) {
        Ok(closed) => (Some(closed), Ok(())),
        Err(error) => (None, Err(error)),
    };
    unfiltered?;
    let stored = closed.as_ref().map_or(Ok(()), Closed::check);
    // Ordered so that each explains those after it.
    let failure = ran
        .and(not_closed)
        .and(stored)
        .and(noted)
        .and(ledger.check().map_err(RecordError::from))
        .err();
    Ok(RecordOutcome {
        counts,
        classes: setup.spec.model.model.class_names(),
        drift,
        lowered: setup.controller.lowered(),
        shed: setup.controller.shed(),
        took: started.elapsed(),
        reports: setup.controller.reports(),
        flows: setup.controller.flows(),
        exports: setup.controller.exports(),
        closed,
        failure,
    })
}

/// Stores the drift of a recording with its blocks. If the disk is full it is skipped, with a
/// notice.
fn write_drift(log: &Path, recording: u32, report: &DriftReport, tell: &Tell) -> Result<()> {
    let name = drift_name(recording);
    // Whole or not at all: a partial file would be unreadable.
    let sealed = seal_drift(&serde_json::to_vec_pretty(report).map_err(std::io::Error::from)?);
    match RealDisk::at(log).replace(&name, &sealed) {
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded
            ) =>
        {
            tell(&RecordNotice::DriftNotWritten(log.join(name), error).into());
            Ok(())
        }
        written => written.at_with(|| format!("{}: cannot write", log.join(name).display())),
    }
}
