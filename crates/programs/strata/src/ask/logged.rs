//! Asking of a log.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, bail};
use strata_capture::TIME_OUT_OF_RANGE;
use strata_filter::Filter;
use strata_gpv::Column;
use strata_query::{Find, LoggedPacket};
use strata_store::{Log, Losses, Recording, SavedLedger};
use strata_terminal::output::refuse;
use strata_terminal::packets::{damaged, logged, open_log};
use strata_terminal::selection::{find_between, first_packet_ns};
use strata_terminal::signals::stop_on_signal;
use strata_terminal::text::{percent, time};
use strata_wire::{DropReason, grouped};

use super::Args;
use super::answer::Answers;
use super::asking::Asking;
use super::questions::{Lack, is_query};

const NO_QUEUE: &str = "a log has no queue lengths";

const LACKS: [Lack; 2] = [
    Lack {
        column: Column::QueueDepth,
        why: NO_QUEUE,
    },
    Lack {
        column: Column::HighQueue,
        why: NO_QUEUE,
    },
];

/// The class of packets that have none.
const NO_CLASS: u8 = u8::MAX;

pub(super) fn ask(
    args: &Args,
    dir: &str,
    filter: Option<&Filter>,
    asking: &mut Asking,
    answers: &mut Answers,
) -> Result<()> {
    asking.check(&LACKS)?;
    let stop = stop_on_signal()?;
    let dir = Path::new(dir);
    if !dir.exists() && is_query(&dir.to_string_lossy()) {
        return Err(refuse(
            "the query has no input: name a log before it, or give -r FILE, -i INTERFACE or \
             --running",
        ));
    }
    let log = open_log(&args.of_logs.key, dir, "queries")?;
    let read = args.of_logs.key.sources([(dir, &log)]).files(&args.files);
    answers.reads(read.files(&args.names.files()?));
    answers.open()?;
    let times = [&args.of_logs.from, &args.of_logs.to];
    let find = find_between(times, first_packet_ns(&log)?, filter)?;
    let classes = Classes::of(&log);
    let (mut interrupted, mut least_share) = (false, 1.0_f64);
    let read = logged(&log, &find, |logged, packet| {
        if asking.is_done() || stop.load(Ordering::Relaxed) {
            interrupted = !asking.is_done();
            return Ok(ControlFlow::Break(()));
        }
        least_share = least_share.min(logged.flow_share);
        asking.packet(logged.link, packet, classes.number(logged))?;
        Ok(ControlFlow::Continue(()))
    })?;
    asking.remarks.extend(missing(&log, &find, least_share)?);
    let recordings = log.recordings().iter();
    asking.remarks.extend(recordings.filter_map(other_times));
    let damage = read.context("the answer covers only the packets read before this error")?;
    if let Some(places) = damaged(&damage) {
        bail!("{places}: the answer leaves out the packets there");
    }
    if interrupted {
        bail!("interrupted: the answer covers the packets read so far");
    }
    Ok(())
}

/// Numbers of classes, by recording.
struct Classes<'a>(HashMap<u32, &'a [String]>);

impl<'a> Classes<'a> {
    fn of(log: &'a Log) -> Self {
        let recordings = log.recordings().iter();
        Self(
            recordings
                .map(|of| (of.id, of.classes.as_slice()))
                .collect(),
        )
    }

    fn number(&self, packet: &LoggedPacket<'_>) -> u8 {
        let names = self.0.get(&packet.recording);
        let number = packet.class.and_then(|class| {
            let number = names?.iter().position(|name| name == class)?;
            u8::try_from(number).ok()
        });
        number.unwrap_or(NO_CLASS)
    }
}

/// What to say if the log does not have all packets that were seen.
fn missing(log: &Log, find: &Find<'_>, least_share: f64) -> Result<Vec<String>> {
    let mut remarks: Vec<String> = log.recordings().iter().filter_map(of_recording).collect();
    // Those that a recording counted as dropped are said of it above.
    let others = Losses {
        dropped: [0; DropReason::ALL.len()],
        ..log.losses()?.within(find.from_ns, find.to_ns)
    };
    let others = others.texts(time).into_iter();
    remarks.extend(others.map(|what| format!("the log {what} (see `strata info`)")));
    if least_share < 1.0 {
        remarks.push(format!(
            "at times only {:.2} % of all flows were captured, to stay within a CPU budget",
            least_share * 100.0
        ));
    }
    if !remarks.is_empty() {
        remarks.push(
            "the answer covers the packets in the log, and is not scaled up to all packets seen"
                .to_owned(),
        );
    }
    Ok(remarks)
}

/// What to say of times that no log can hold.
fn other_times(recording: &Recording) -> Option<String> {
    let mut warnings = recording.warnings.iter();
    let has_some = warnings.any(|warning| warning.contains(TIME_OUT_OF_RANGE));
    has_some.then(|| {
        format!(
            "recording {} has packets from {TIME_OUT_OF_RANGE}: the answer uses the substitute times in the log (see `strata info`)",
            recording.id
        )
    })
}

fn of_recording(recording: &Recording) -> Option<String> {
    let id = recording.id;
    let Some(ledger) = &recording.ledger else {
        return Some(format!(
            "recording {id} is still running or was interrupted: whether it sampled is not known \
             (mode {} at its start)",
            recording.mode
        ));
    };
    let SavedLedger {
        sampled_out,
        discarded,
        logged,
        ..
    } = ledger;
    let dropped = ledger.dropped.iter().map(|(_, pair)| pair.0);
    let dropped = dropped.fold(0, u64::saturating_add);
    let missing = [sampled_out.0, discarded.0, dropped];
    let missing = missing.into_iter().fold(0, u64::saturating_add);
    if missing == 0 {
        return None;
    }
    let parts = [
        (sampled_out.0, "sampled out"),
        (discarded.0, "dropped by modes and policies"),
        (dropped, "lost or skipped"),
    ];
    let parts = parts.iter().filter(|(packets, _)| *packets > 0);
    let parts: Vec<String> = parts
        .map(|(packets, what)| format!("{} were {what}", grouped(*packets)))
        .collect();
    let all = logged.0.saturating_add(missing);
    Some(format!(
        "recording {id} logged {} of {} packets ({}): {}",
        grouped(logged.0),
        grouped(all),
        percent(logged.0, all),
        parts.join(", ")
    ))
}
