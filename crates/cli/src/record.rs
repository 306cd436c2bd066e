//! `strata record`: the main road.

mod attention;
mod confined;
mod cpu;
mod live;
mod preflight;
mod room;
mod sensors;
mod steer;
mod target;

use std::fmt;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use strata_capture::send::Mirror;
use strata_capture::{Input, InputOptions};
use strata_classify::Drift;
use strata_control::Controller;
use strata_control::saved::Saved;
use strata_filter::Filter;
use strata_pipeline::{
    Alerts, Attention, AttentionOptions, Budget, Mode, RunError, Worker, WorkerOptions,
    run as run_worker,
};
use strata_sketch::Pressure;
use strata_store::{About, BlockSink};
use strata_wire::{Ledger, LinkType, TunnelKey};

pub(crate) use confined::{HelperArgs, Reach, give_up, helper};
use target::{Closed, Destination, Recording};
pub(crate) use target::{DiskWay, GroupArgs, NewDirectory, Target, log_directory, rotate_bytes};

use crate::model::Loaded;
use crate::text;

/// Arguments of `strata record`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata record -r trace.pcapng -o log/
  strata record -r - -o log/ --mode log-all 'tcp port 443'
  zcat huge.pcap.gz | strata record -r - -o log/ -C 500
  strata record -i eth0 -o log/ 'not port 22'
  strata record -i eth0,eth1 --cores 1,2 -o log/

While interfaces are captured: INT and TERM (Ctrl-C) finish the log and print the
books, USR1 prints counts, HUP reads the configuration again. `strata status`, `mode`,
`policy` and `rotate` (new files) talk to it meanwhile.")]
pub(crate) struct Args {
    #[command(flatten)]
    road: RoadArgs,

    #[command(flatten)]
    log: target::LogArgs,
}

/// What is recorded, and how it is classified.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("input").required(true))]
pub(crate) struct RoadArgs {
    /// Capture file to read: pcap or pcapng, plain, gzip or zstd; - is standard
    /// input. Several are merged in time order.
    #[arg(short = 'r', long = "read", value_name = "FILE", group = "input")]
    read: Vec<PathBuf>,

    #[command(flatten)]
    live: live::InterfaceArgs,

    /// End after so many packets have passed the filter.
    #[arg(short = 'c', long, value_name = "PACKETS")]
    count: Option<u64>,

    /// Model file; without it the built-in model, which is conservative.
    #[arg(short = 'm', long = "model", value_name = "FILE")]
    model: Option<PathBuf>,

    /// Logging mode: default, log-all, log-partial, log-sampled, log-minimum, or
    /// one of the configuration file. Given more than once, each packet is kept
    /// as the most demanding one asks. Without it, what the configuration file
    /// says, or default.
    #[arg(long, value_name = "NAME", env = "STRATA_MODE", value_delimiter = ',')]
    mode: Vec<String>,

    #[command(flatten)]
    attention: attention::AttentionArgs,

    /// Send a copy of each packet that a policy mirrors (action mirror) out of this
    /// interface, as a switch's mirror port does: to a monitor there, or through a gretap,
    /// erspan or vxlan interface to a distant one. What the interface does not take at
    /// once is lost, and counted (mirror_lost). Ethernet only.
    #[arg(long, value_name = "INTERFACE")]
    mirror_to: Option<String>,

    #[command(flatten)]
    steer: steer::SteerArgs,

    /// Whose flow a tunnelled packet belongs to (GRE, ERSPAN, VXLAN, GENEVE,
    /// GTP-U, IP in IP).
    #[arg(long, value_enum, default_value_t = Tunnel::Inner)]
    tunnel_key: Tunnel,

    /// Times are always kept in nanoseconds; accepted for users of tcpdump.
    #[arg(long = "nano", hide = true)]
    nano: bool,

    /// Key of flow fingerprints, for repeatable runs; random by default, so that
    /// nobody can aim at a bucket.
    #[arg(long, value_name = "N")]
    hash_seed: Option<u64>,

    /// Chooses which packets sampled granularities keep.
    #[arg(long, value_name = "N", default_value_t = 0)]
    sampling_seed: u64,

    /// Only packets that match, in the filter language of tcpdump. Options go
    /// before it.
    #[arg(value_name = "FILTER", trailing_var_arg = true)]
    filter: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tunnel {
    /// The innermost packet's flow.
    Inner,
    /// The flow between the tunnel's ends.
    Outer,
}

/// What one worker has beyond modes and policies.
struct Equipment {
    attention: Attention,
    mirror: Option<Mirror>,
}

/// What a recording is made with, whatever its input.
struct Setup {
    controller: Arc<Controller>,
    modes: Vec<Mode>,
    filter: Option<Filter>,
    loaded: Loaded,
    destination: Destination,
    hash_seed: [u64; 2],
    /// What `--eve` tells.
    alerts: Arc<Alerts>,
}

impl Setup {
    fn new(args: &RoadArgs, target: &Target) -> Result<Self> {
        let destination = target.destination();
        let beginning = args.steer.beginning(args, &destination)?;
        let modes: Result<Vec<Mode>, _> = beginning
            .modes
            .iter()
            .map(|name| Mode::by_name(name, &beginning.own_modes))
            .collect();
        let modes = modes?;
        let filter = text::filter(&args.filter)?;
        let loaded = crate::model::load(args.model.as_deref())?;
        let hash_seed = match args.hash_seed {
            Some(seed) => [seed, 0],
            None => [getrandom::u64()?, getrandom::u64()?],
        };
        // What can be wrong first: a mistyped name shall not leave a log behind.
        let saved = destination.dir.as_deref().map(Saved::load);
        let (saved, problems) = saved.unzip();
        for problem in problems.into_iter().flatten() {
            text::warn(&problem);
        }
        let controller = Controller::with_saved(loaded.model.clone(), beginning, saved)?;
        Ok(Self {
            controller: Arc::new(controller),
            modes,
            filter,
            loaded,
            destination,
            hash_seed,
            alerts: Arc::default(),
        })
    }

    /// What flows each of so many workers attends to.
    fn attention(&self, args: &RoadArgs, workers: u16) -> Result<AttentionOptions> {
        let options = args.attention.options(workers, &self.alerts)?;
        anyhow::ensure!(
            options.look_back_bytes == 0 || self.destination.dir.is_some(),
            "--look-back needs a log on this machine: what is at a relay is not changed any more"
        );
        let mirror = args.mirror_to.as_deref();
        if let Some(name) = mirror.filter(|name| args.live.captures(name)) {
            bail!("--mirror-to {name}: copies that leave there would be captured again");
        }
        Ok(options)
    }

    /// What each of so many workers has beyond modes and policies. Takes a while, and
    /// privileges, so it is made before packets come and before those are given up.
    fn equip(&self, args: &RoadArgs, workers: u16) -> Result<Vec<Equipment>> {
        let options = self.attention(args, workers)?;
        let mirror = args.mirror_to.as_deref();
        let equipment = |_| {
            Ok(Equipment {
                mirror: mirror
                    .map(Mirror::open)
                    .transpose()
                    .context("--mirror-to")?,
                attention: Attention::new(&options),
            })
        };
        (0..workers).map(equipment).collect()
    }

    /// Starts the recording with a worker for each of `equipment`; `filter` is what they are
    /// to evaluate.
    fn start(
        &self,
        args: &RoadArgs,
        target: &Target,
        inputs: Vec<String>,
        filter: Option<Filter>,
        equipment: Vec<Equipment>,
    ) -> Result<(Recording, Vec<Worker>)> {
        if args.model.is_none() {
            eprintln!(
                "strata: no model given (-m): the built-in one cuts to headers only what is \
                 confidently ordinary and keeps the rest whole"
            );
        }
        let about = About {
            program: concat!("strata ", env!("CARGO_PKG_VERSION")).into(),
            inputs,
            filter: args.filter.join(" "),
            mode: self.controller.steering().plan().mode_name().to_owned(),
            model: self.loaded.model.name.clone(),
            model_json: self.loaded.json.clone(),
            classes: self.loaded.model.class_names(),
            hash_seed: self.hash_seed,
            look_back: equipment.iter().any(|e| e.attention.looks_back()),
            live: args.read.is_empty(),
        };
        let (recording, sinks) = target.start(&about, u16::try_from(equipment.len())?)?;
        let options = WorkerOptions {
            modes: self.modes.clone(),
            filter,
            tunnel_key: match args.tunnel_key {
                Tunnel::Inner => TunnelKey::Inner,
                Tunnel::Outer => TunnelKey::Outer,
            },
            hash_seed: self.hash_seed,
            sampling_seed: args.sampling_seed,
        };
        let budget = args.count.map(Budget::new).map(Arc::new);
        let worker = |(sink, equipment): (BlockSink, Equipment)| {
            let mut worker = Worker::new(&self.loaded.model, options.clone(), sink)?;
            worker.follow(Arc::clone(self.controller.steering()));
            worker.attend(equipment.attention);
            if let Some(mirror) = equipment.mirror {
                worker.mirror_to(mirror);
            }
            if let Some(budget) = &budget {
                worker.limit(Arc::clone(budget));
            }
            Ok(worker)
        };
        let workers: Result<Vec<Worker>> = sinks.into_iter().zip(equipment).map(worker).collect();
        Ok((recording, workers?))
    }
}

/// Files that are read ahead at most.
const READ_AHEAD_MAX: usize = 4;
/// Bytes that are read ahead at a time: each time costs two threads a turn of the CPU.
const READ_AHEAD_BYTES: usize = 1 << 20;

pub(crate) fn run(args: &Args) -> Result<()> {
    run_to(&args.road, &Target::log(&args.log)?)
}

/// Records to a log or a relay.
pub(crate) fn run_to(args: &RoadArgs, target: &Target) -> Result<()> {
    let setup = Setup::new(args, target)?;
    preflight::check(args, target, &setup)?;
    if args.steer.check {
        println!("configuration OK");
        return Ok(());
    }
    let new = setup.destination.dir.as_deref().map(NewDirectory::at);
    let stop = stop_on_signal()?;
    if args.read.is_empty() {
        return live::run(args, target, &setup, &stop);
    }
    let owner = target.owner(None);
    let eve = args.attention.open(true, &owner)?;
    let _eve = eve.map(|eve| eve.start(&setup.alerts)).transpose()?;
    // Before the input, which may be standard input and wait.
    let observer = steer::Observer::new(&setup, 1);
    let socket = args.steer.socket(args, &owner)?;
    let server = args.steer.serve(&setup, socket)?;
    let ticker = server
        .as_ref()
        .map(|_| steer::Ticker::start(&setup, &observer));
    let _ticker = ticker.transpose()?;
    let mut input_options = InputOptions::default();
    input_options.stop = Some(Arc::clone(&stop));
    // A thread for each of many files would not be read ahead, but read at once.
    input_options.read_ahead = args.read.len() <= READ_AHEAD_MAX;
    if input_options.read_ahead {
        input_options.window_bytes = READ_AHEAD_BYTES;
    }
    let mut input = Input::open(&args.read, &input_options)?;
    let inputs = args.read.iter().map(|path| path.display().to_string());
    let filter = setup.filter.clone();
    let equipment = setup.equip(args, 1)?;
    let (recording, mut workers) =
        setup.start(args, target, inputs.collect(), filter, equipment)?;
    let mut worker = workers.pop().context("a recording has a worker")?;
    let started = Instant::now();
    let bar = progress_bar();
    let mut last_shown = started;
    let ran = run_worker(&mut input, &mut worker, |worker| {
        // Whoever steers asks while the input waits, so it must be up to date then.
        if server.is_some() {
            if setup.controller.take_rotate() {
                recording.rotate();
            }
            worker.publish_hits();
            observer.note(steer::Noted {
                ledger: worker.ledger(),
                kept: worker.kept(),
                ..steer::Noted::default()
            });
        }
        if last_shown.elapsed() > Duration::from_millis(100) {
            last_shown = Instant::now();
            bar.set_position(worker.ledger().seen.packets);
        }
        if stop.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    let mut warnings: Vec<String> = input
        .take_warnings()
        .iter()
        .map(ToString::to_string)
        .collect();
    if stop.load(Ordering::Relaxed) {
        warnings.push(String::from("interrupted by a signal: the input has more"));
    }
    let outcome = WorkerOutcome::of(&worker, ran);
    let ended = finish(recording, vec![outcome], warnings, started);
    if let (Some(new), Err(error)) = (&new, &ended)
        && error.is::<FilterFitsNowhere>()
    {
        new.take_back();
    }
    ended
}

/// No packet of the input could be compared with the filter, so none was recorded.
#[derive(Debug)]
struct FilterFitsNowhere(String);

impl std::error::Error for FilterFitsNowhere {}

impl fmt::Display for FilterFitsNowhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = &self.0;
        write!(
            f,
            "the filter cannot be applied to any interface of the input: {why}"
        )
    }
}

/// What a worker leaves behind.
struct WorkerOutcome {
    ledger: Ledger,
    pressure: Pressure,
    drift: Option<Drift>,
    filter_problems: Vec<(LinkType, String)>,
    filter_fits_nowhere: Option<String>,
    ran: Result<(), RunError>,
}

impl WorkerOutcome {
    fn of(worker: &Worker, ran: Result<(), RunError>) -> Self {
        Self {
            ledger: worker.ledger(),
            pressure: worker.pressure(),
            drift: worker.classifier().drift().cloned(),
            filter_problems: worker.filter_problems(),
            filter_fits_nowhere: worker.filter_fits_nowhere(),
            ran,
        }
    }
}

/// Closes the books and says what is in them.
fn finish(
    recording: Recording,
    outcomes: Vec<WorkerOutcome>,
    mut warnings: Vec<String>,
    started: Instant,
) -> Result<()> {
    let mut ledger = Ledger::default();
    let mut pressure = Pressure::default();
    let mut drift: Option<Drift> = None;
    let mut ran = Ok(());
    let mut unfiltered = Ok(());
    for mut outcome in outcomes {
        ledger.merge(&outcome.ledger);
        pressure.merge(outcome.pressure);
        match (&mut drift, outcome.drift.take()) {
            (Some(all), Some(more)) => all.merge(&more),
            (all, more) => *all = all.take().or(more),
        }
        unfiltered = unfiltered.and(worker_problem(&outcome));
        for (link, problem) in outcome.filter_problems {
            let warning = format!("the filter matches no packet of {link}: {problem}");
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
        ran = ran.and(outcome.ran);
    }
    for warning in &warnings {
        text::warn(warning);
    }
    warnings.extend(
        ran.as_ref()
            .err()
            .map(|error| format!("ended early: {error}")),
    );
    let drift = drift.map(|drift| drift.report());
    let noted = match (&drift, recording.log()) {
        (Some(report), Some((dir, id))) => crate::drift::write(dir, id, report),
        _ => Ok(()),
    };
    let closed = recording.finish(&ledger, warnings);
    unfiltered?;
    let shown = summary(closed.as_ref().ok(), &ledger, pressure, started.elapsed());
    // What went wrong counts, also where nobody reads the summary.
    ran?;
    closed?.check()?;
    noted?;
    ledger.check()?;
    shown
}

/// Set by the first interrupt or termination signal: what has been read is then
/// recorded properly. The second one ends the program at once.
pub(crate) fn stop_on_signal() -> Result<Arc<AtomicBool>> {
    static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    if let Some(stop) = STOP.get() {
        return Ok(Arc::clone(stop));
    }
    let stop = Arc::clone(STOP.get_or_init(Arc::default));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag unset.
        flag::register_conditional_default(signal, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// An error if packets came and the filter could be applied to none of them.
fn worker_problem(outcome: &WorkerOutcome) -> Result<(), FilterFitsNowhere> {
    match &outcome.filter_fits_nowhere {
        Some(problem) if outcome.ledger.seen.packets > 0 => Err(FilterFitsNowhere(problem.clone())),
        _ => Ok(()),
    }
}

fn progress_bar() -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {human_pos} packets, {per_sec}, {elapsed}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
    ProgressBar::new_spinner().with_style(style)
}

fn summary(
    closed: Option<&Closed>,
    ledger: &Ledger,
    pressure: Pressure,
    took: Duration,
) -> Result<()> {
    let mut out = stdout().lock();
    write!(
        out,
        "{} packets ({}) in {:.2} s",
        text::count(ledger.seen.packets),
        text::human_bytes(ledger.seen.bytes),
        took.as_secs_f64(),
    )?;
    match closed {
        Some(closed) => closed.print(&mut out)?,
        None => writeln!(out)?,
    }
    writeln!(out, "{ledger}")?;
    if pressure.packets > 0 {
        writeln!(
            out,
            "sketch: {} windows, {} flow buckets taken, {} of them from another flow, {} packets without a bucket ({})",
            text::count(pressure.windows),
            text::count(pressure.claimed),
            text::count(pressure.replaced),
            text::count(pressure.without_bucket),
            text::percent(pressure.without_bucket, pressure.packets),
        )?;
    }
    Ok(())
}
