//! Records capture files: one worker, which waits for the disk.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use strata_capture::{Input, InputOptions, Next};
use strata_pipeline::{DataPath, RunError, Worker, run as run_worker, survey};
use strata_policy::Survey;
use strata_role::sandbox::give_up;
use strata_role::{Handle, require};
use strata_sandbox::{Owner, SocketFile};

use crate::beside::reclaim::Reclaim;
use crate::error::{RecordError, Result};
use crate::observer::{Observation, Observer, Ticker};
use crate::outcome::{RecordOutcome, WorkerOutcome, finish};
use crate::recorded;
use crate::setup::log_dir::{NewDirectory, log_directory};
use crate::setup::memory;
use crate::setup::{Setup, Started};
use crate::spec::{RecordSpec, StreamSpec};

/// Maximum number of files that are read ahead.
const READ_AHEAD_MAX: usize = 4;
/// Bytes read ahead at a time: each read costs two threads a turn of the CPU.
const READ_AHEAD_BYTES: usize = 512 << 10;
/// Files that are larger together are not read twice.
const SURVEYED_BYTES_MAX: u64 = 16 << 30;
/// How often the progress is reported while no client controls the recording.
const SAY_EVERY: Duration = Duration::from_millis(100);

/// Starts recording files. The recording's own thread opens them, since standard input may block.
pub(crate) fn start(
    setup: &Arc<Setup>,
    paths: Vec<PathBuf>,
    new: Option<NewDirectory>,
) -> Result<Handle<RecordSpec>> {
    let destination = &setup.spec.destination;
    destination.check_limit(1)?;
    let owner = destination.owner(None);
    let eve = setup.spec.triggers.open(true, &owner)?;
    let observer = Observer::new(destination, 1);
    let socket = setup.addresses.bind(&setup.spec, &owner, &setup.tell)?;
    if let Some(stream) = &setup.spec.stream {
        confine(setup, stream, socket.as_ref(), &owner)?;
    }
    let eve = eve.map(|eve| eve.start(&setup.alerts, &setup.tell));
    let eve = eve.transpose()?;
    let server = setup.addresses.serve(&setup.controller, socket)?;
    let limit = destination.dir().zip(destination.limit(1, false));
    let room = limit.map(|(dir, limit)| Reclaim::new(dir, Some(limit)));
    room.iter().for_each(|room| setup.ask(room));
    let ticker = (server.is_some() || room.is_some())
        .then(|| Ticker::start(&setup.controller, &observer, room, &setup.tell));
    let ticker = ticker.transpose()?;
    let (shared, observed) = (Arc::clone(setup), Arc::clone(&observer));
    let work = move || {
        // Dropped last to first: the API goes before what was created in vain.
        let new = new;
        let _eve = eve;
        let is_steered = server.is_some();
        let _server = server;
        let _ticker = ticker;
        let ended = record(&shared, &paths, &observed, is_steered);
        if let (Some(new), Err(error)) = (&new, &ended)
            && matches!(error, RecordError::FilterFitsNowhere(_))
        {
            new.take_back();
        }
        ended
    };
    recorded::run(setup, observer, work)
}

/// Drops what neither the recording of a stream nor the part that writes it needs any more.
fn confine(
    setup: &Setup,
    stream: &StreamSpec,
    socket: Option<&SocketFile>,
    owner: &Owner,
) -> Result<()> {
    let Some(more) = &stream.reach else {
        return Ok(());
    };
    let mut reach = setup.configuration.reach(&setup.spec, socket);
    if let Some(log) = &reach.home {
        log_directory(log, owner)?;
    }
    reach.again.extend(more.again.iter().cloned());
    reach.write.extend(more.write.iter().cloned());
    let none = setup.spec.destination.capabilities();
    Ok(give_up(owner, &reach, none, &setup.tell)?)
}

fn record(
    setup: &Setup,
    paths: &[PathBuf],
    observer: &Observer,
    is_steered: bool,
) -> Result<RecordOutcome> {
    let opened = open(setup, paths, observer);
    require(
        opened.is_ok() || !setup.stop.load(Ordering::Relaxed),
        || String::from("interrupted before the first packet: nothing is recorded"),
    )?;
    let mut input = opened?;
    let surveyed_bytes = bytes_to_survey(setup, paths);
    if let Some(bytes) = input.plain_bytes() {
        let times = if surveyed_bytes.is_some() { 2 } else { 1 };
        observer.will_read(bytes.saturating_mul(times));
    }
    let survey = surveyed_bytes.map(|_| surveyed(setup, paths, observer));
    let survey = survey.transpose()?;
    let equipment = setup.equip()?;
    let Started {
        recording,
        mut workers,
        reports,
        flows,
        exporting,
    } = setup.start(setup.spec.filter.clone(), equipment, survey.as_ref())?;
    let mut worker = workers.pop().expect("a recording has a worker");
    let started = Instant::now();
    let mut said = started;
    let mut drift_said: Option<Instant> = None;
    let mut say = |worker: &Worker| {
        let is_due = drift_said.is_none_or(|at| at.elapsed() > SAY_EVERY);
        if is_due {
            drift_said = Some(Instant::now());
        }
        let drift = worker.classifier().drift().filter(|_| is_due);
        observer.note(Observation {
            counts: worker.counts(),
            drift: drift.cloned(),
            ..Observation::default()
        });
    };
    // What has arrived by pipes is recorded before they end.
    let ends_by_itself = input.is_live();
    let mut is_interrupted = false;
    let ran = run_worker(&mut input, &mut worker, |worker| {
        // A client may send requests while the input waits, so this must be up to date then.
        if is_steered {
            if setup.controller.take_rotate() {
                recording.rotate();
            }
            worker.publish_hits();
            say(worker);
        } else if said.elapsed() > SAY_EVERY {
            said = Instant::now();
            say(worker);
        }
        is_interrupted = setup.stop.load(Ordering::Relaxed) && !ends_by_itself;
        match is_interrupted {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    let is_full = matches!(ran, Err(RunError::Sink(_)));
    // A pipe may have nothing more for hours.
    let is_asked = is_interrupted || (is_full && !ends_by_itself);
    let has_more = is_asked && !matches!(input.advance(), Ok(Next::End));
    let mut warnings: Vec<String> = input
        .take_warnings()
        .iter()
        .map(ToString::to_string)
        .collect();
    // Of several damaged files, the first is the error that ends the recording.
    while matches!(ran, Err(RunError::Capture(_)))
        && let Err(error) = input.advance()
    {
        warnings.push(error.to_string());
    }
    // A pipe ends for us when a signal comes: what else would come by it is not known.
    let may_have_more = || paths.iter().any(|path| !path.is_file());
    if is_full && has_more {
        warnings.push(String::from(
            "the log could not be written to the end of the input: its other packets are in no counter",
        ));
    } else if has_more {
        warnings.push(String::from(
            "interrupted by a signal: the input has more packets",
        ));
    } else if setup.stop.load(Ordering::Relaxed) && may_have_more() {
        warnings.push(String::from(
            "interrupted by a signal: the input may have more packets",
        ));
    }
    let pressure = worker.pressure();
    if pressure.growths_refused > 0 {
        warnings.push(memory::refused(&pressure));
    }
    let outcome = WorkerOutcome::of(&worker, ran.map_err(RecordError::from));
    drop(reports);
    drop(worker);
    drop((flows, exporting));
    finish(
        recording,
        vec![outcome],
        Vec::new(),
        warnings,
        started,
        setup,
    )
}

/// Bytes of all files, if there is a budget of detail and all of them can be read twice.
fn bytes_to_survey(setup: &Setup, paths: &[PathBuf]) -> Option<u64> {
    setup.controller.steering().plan().detail()?;
    let mut bytes = 0_u64;
    for path in paths {
        let about = path.metadata().ok().filter(std::fs::Metadata::is_file)?;
        bytes = bytes.saturating_add(about.len());
    }
    (bytes <= SURVEYED_BYTES_MAX).then_some(bytes)
}

/// What payload there is.
fn surveyed(setup: &Setup, paths: &[PathBuf], observer: &Observer) -> Result<Survey> {
    let options = setup.options(setup.spec.filter.clone());
    let mut input = open(setup, paths, observer)?;
    let most = setup.spec.packets_max;
    Ok(survey(
        &mut input,
        (&options, DataPath::chosen()?),
        most,
        &setup.stop,
    ))
}

fn open(setup: &Setup, paths: &[PathBuf], observer: &Observer) -> Result<Input> {
    let mut options = InputOptions::default();
    options.read_bytes = Some(Arc::clone(observer.read_bytes()));
    options.stop = Some(Arc::clone(&setup.stop));
    // With a thread for each of many files, reading would be all at once, not ahead.
    options.read_ahead = paths.len() <= READ_AHEAD_MAX;
    if options.read_ahead {
        options.window_bytes = READ_AHEAD_BYTES;
    }
    Ok(Input::open(paths, &options)?)
}
