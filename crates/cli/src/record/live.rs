//! Recording from interfaces: a worker on each core, until a signal.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use indicatif::ProgressBar;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGUSR1};
use signal_hook::flag;
use strata_capture::live::{
    Direction, DropCounts, Drops, Live, LiveOptions, Lost, RingCounts, Stamps,
};
use strata_confine::{Role, User};
use strata_control::LostStatus;
use strata_control::alerts::Alerts;
use strata_filter::Filter;
use strata_pipeline::{ClassKept, Worker, merge_kept, run_live};
use strata_wire::{Ledger, Printable, Tally};

use super::sensors::{Gauges, Sensors};
use super::{
    RoadArgs, Setup, Target, WorkerOutcome, confined, cpu, finish, progress_bar, room, steer,
};
use crate::text;

/// A worker that has not moved for so long is reported.
const STUCK_AFTER: Duration = Duration::from_secs(5);
/// How often workers say how far they are.
const SNAPSHOT_EVERY: Duration = Duration::from_millis(100);

/// Bytes captured of a packet at most, as tcpdump and libpcap have it.
const SNAPLEN_MAX: i64 = 262_144;

/// How often the host is asked what it has dropped.
const LOOK_AT_DROPS_EVERY: Duration = Duration::from_secs(1);

/// Arguments of `strata record` for interfaces.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Interfaces")]
pub(super) struct InterfaceArgs {
    /// Interface to capture, until Ctrl-C; several separated by commas; any for
    /// all. `strata interfaces` lists them.
    #[arg(
        short = 'i',
        long = "interface",
        value_name = "NAME",
        value_delimiter = ',',
        id = "interface",
        group = "input",
        conflicts_with = "read"
    )]
    pub(super) interfaces: Vec<String>,

    /// Do not put the interface into promiscuous mode.
    #[arg(short = 'p', long = "no-promiscuous-mode")]
    no_promiscuous: bool,

    /// Bytes captured of each packet at most; 0 is the default.
    #[arg(short = 's', long = "snapshot-length", value_name = "BYTES", default_value_t = LiveOptions::SNAPLEN_DEFAULT,
        value_parser = clap::value_parser!(u32).range(..=SNAPLEN_MAX))]
    snaplen: u32,

    /// Memory of each interface's ring in KiB, or with a unit (256MiB). By
    /// default what the link brings in a fifth of a second.
    #[arg(short = 'B', long = "buffer-size", value_name = "KIB")]
    buffer_size: Option<String>,

    /// Deliver packets within a millisecond rather than ten.
    #[arg(long)]
    immediate_mode: bool,

    /// Packets of which direction: in, out or inout.
    #[arg(short = 'Q', long, value_enum, default_value_t = Way::Inout)]
    direction: Way,

    /// Whose clock gives packets their times: adapter (the card's), host (the
    /// kernel's), or auto: the card's if it stamps every packet and its clock is
    /// this host's.
    #[arg(short = 'j', long = "time-stamp-type", value_enum, value_name = "TYPE", default_value_t = StampsArg::Auto)]
    stamps: StampsArg,

    /// CPUs to work on, one worker each, among which flows are spread: 1,2 or 2-5.
    /// By default one worker, wherever the system puts it.
    #[arg(long, value_name = "CPUS")]
    cores: Option<String>,

    /// Take the packets away from this host, through AF_XDP: faster, but no program
    /// here receives what passes the filter, not even your own remote session. For
    /// mirror ports and taps. Sees received packets only.
    #[arg(long)]
    pub(super) exclusive: bool,

    /// Change to this user once interfaces are open, as tcpdump does. The log becomes its.
    #[arg(
        short = 'Z',
        long = "relinquish-privileges",
        value_name = "USER",
        conflicts_with = "no_sandbox"
    )]
    user: Option<String>,

    /// Keep all privileges, and reach all files, instead of giving up what is not needed once
    /// interfaces are open.
    #[arg(long)]
    no_sandbox: bool,

    /// CPU that this process may use, as in 10%: 100% is one core. To keep it, the kernel
    /// captures a share of all flows only, as large as possible; what it leaves out is
    /// counted (dropped{cpu_budget}), and the log says of which share its packets are.
    #[arg(long, value_name = "PERCENT", value_parser = cpu::percent)]
    pub(super) cpu: Option<f64>,

    /// Let the kernel copy only the headers of flows that are confidently kept as
    /// headers. Spares the copy of long packets; on a core that is short of time, and
    /// with packets of less than a thousand bytes, looking flows up can cost more than
    /// that. Packets that turn out to be wanted whole are counted (wanted_but_cut).
    #[arg(long, conflicts_with = "look_back", conflicts_with = "first_bytes")]
    early_cut: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Way {
    In,
    Out,
    Inout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum StampsArg {
    Auto,
    Host,
    Adapter,
}

impl InterfaceArgs {
    /// Whether an interface of this name is captured.
    pub(super) fn captures(&self, name: &str) -> bool {
        self.interfaces.iter().any(|i| i == name || i == "any")
    }

    /// The user to change to.
    pub(super) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    fn options(&self, filter: Option<&Filter>) -> Result<LiveOptions> {
        let mut options = LiveOptions::default();
        options.interfaces.clone_from(&self.interfaces);
        options.promiscuous = !self.no_promiscuous;
        options.immediate = self.immediate_mode;
        options.filter = filter.cloned();
        options.cut = self.early_cut;
        options.exclusive = self.exclusive;
        options.stamps = match self.stamps {
            StampsArg::Auto => Stamps::Auto,
            StampsArg::Host => Stamps::Host,
            StampsArg::Adapter => Stamps::Adapter,
        };
        options.direction = match self.direction {
            Way::In => Direction::In,
            Way::Out => Direction::Out,
            Way::Inout => Direction::Both,
        };
        if self.snaplen > 0 {
            options.snaplen = self.snaplen;
        }
        if let Some(size) = &self.buffer_size {
            options.ring_bytes = Some(ring_bytes(size)?);
        }
        Ok(options)
    }
}

/// CPUs from a list of numbers and ranges.
fn cores(text: &str) -> Result<Vec<usize>> {
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            let parsed = text.trim().parse::<usize>().ok();
            let parsed = parsed.filter(|&core| core < CpuSet::MAX_CPU);
            parsed.with_context(|| format!("--cores: '{text}' is no CPU: write 1,2 or 2-5"))
        };
        cores.extend(number(from)?..=number(to)?);
    }
    let mut sorted = cores.clone();
    sorted.sort_unstable();
    sorted.dedup();
    anyhow::ensure!(
        sorted.len() == cores.len() && !cores.is_empty(),
        "--cores: '{text}' does not name each CPU once"
    );
    Ok(cores)
}

/// As tcpdump's -B, a bare number counts KiB.
fn ring_bytes(text: &str) -> Result<usize> {
    let bytes = match text.parse::<u64>() {
        Ok(kib) => kib.checked_mul(1024).context("-B is too large")?,
        Err(_) => text::bytes(text)?,
    };
    anyhow::ensure!(bytes < 1 << 32, "-B must be below 4GiB");
    Ok(usize::try_from(bytes)?)
}

/// What a worker says while it runs.
#[derive(Default)]
pub(super) struct Status {
    /// Changes with every step.
    steps: AtomicU64,
    pub(super) gauges: Gauges,
    snapshot: Mutex<Snapshot>,
}

#[derive(Default)]
struct Snapshot {
    ledger: Ledger,
    kept: Vec<ClassKept>,
    rings: Vec<(String, RingCounts)>,
    /// What happened to interfaces, in order; taken by whoever reports it.
    events: Vec<String>,
    /// CPU time of the worker's thread.
    cpu: Duration,
    /// How long its disk could not have taken more blocks.
    disk_busy: Duration,
    ring_fill: Option<f64>,
    /// RDMA packets sent, and sent again.
    rdma: (u64, u64),
    /// The longest that a packet waited in a ring.
    ring_wait: Option<Duration>,
    /// When all this was so.
    taken: Option<Instant>,
}

impl Status {
    fn with<T>(&self, use_it: impl FnOnce(&mut Snapshot) -> T) -> T {
        use_it(&mut self.snapshot.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Running {
    thread: JoinHandle<Result<WorkerOutcome>>,
    status: Arc<Status>,
}

/// Opens the interfaces; in the sandbox, with what opens them again.
fn open(args: &RoadArgs, options: &mut LiveOptions, workers: u16) -> Result<Vec<Live>> {
    if !args.live.no_sandbox && !args.live.exclusive {
        match confined::opener(args.live.user.as_deref()) {
            Ok(opener) => options.opener = Some(opener),
            Err(error) => eprintln!(
                "strata: an interface that goes will not be captured when it is back: {}",
                text::chain(&error)
            ),
        }
    }
    Ok(Live::open(options, workers)?)
}

/// How interfaces are to be captured, and the CPU of each worker, if it has one.
pub(super) fn plan(args: &RoadArgs, setup: &Setup) -> Result<(LiveOptions, Vec<Option<usize>>)> {
    let mut options = args.live.options(setup.filter.as_ref())?;
    options.sample = setup.controller.cpu_budget().is_some();
    let cores: Vec<Option<usize>> = match &args.live.cores {
        Some(text) => cores(text)?.into_iter().map(Some).collect(),
        None => vec![None],
    };
    Ok((options, cores))
}

pub(super) fn run(
    args: &RoadArgs,
    target: &Target,
    setup: &Setup,
    stop: &Arc<AtomicBool>,
) -> Result<()> {
    let (mut options, cores) = plan(args, setup)?;
    let count = u16::try_from(cores.len())?;
    target.check_limit(count)?;
    if args.live.exclusive {
        eprintln!(
            "strata: --exclusive: what passes the filter on {} is taken away from this host",
            args.live.interfaces.join(", ")
        );
    }
    let equipment = setup.equip(args, count)?;
    let user = args.live.user.as_deref().map(User::named).transpose()?;
    let owner = target.owner(user);
    let eve = args.attention.open(false, &owner)?;
    let sandboxed = !args.live.no_sandbox;
    let lives = open(args, &mut options, count)?;
    let ways = lives[0].ways().join("; ");
    let before = DropCounts::now(&args.live.interfaces);
    let room = setup.destination.dir.as_deref();
    let mut room = room.map(|dir| room::Room::new(dir, target.limit(count)));
    let mut governor = cpu::Governor::new(lives[0].sampler());
    let filter = match lives.iter().find_map(Live::filter_in_user_space) {
        Some(why) => {
            eprintln!(
                "strata: the filter is evaluated after the copy: {}",
                Printable(why)
            );
            setup.filter.clone()
        }
        None => None,
    };
    let socket = args.steer.socket(args, &owner)?;
    if sandboxed {
        let log = setup.destination.dir.as_deref();
        let reach = args.steer.reach(args, log, socket.as_ref())?;
        confined::give_up(&owner, &reach, target.capabilities())?;
    }
    let _eve = eve.map(|eve| eve.start(&setup.alerts)).transpose()?;
    let (reload, report) = (Arc::default(), Arc::default());
    flag::register(SIGHUP, Arc::clone(&reload))?;
    flag::register(SIGUSR1, Arc::clone(&report))?;
    let observer = steer::Observer::new(setup, count);
    // Before the recording, which leaves a log.
    let _server = args.steer.serve(setup, socket)?;
    let alerts = args.steer.alerts(setup)?;
    let inputs = args.live.interfaces.clone();
    let (recording, workers) = setup.start(args, target, inputs, filter, equipment)?;
    eprintln!(
        "strata: capturing on {}, snapshot length {} bytes; Ctrl-C ends it",
        Printable(&ways),
        options.snaplen,
    );
    let started = Instant::now();
    let running = workers
        .into_iter()
        .zip(lives)
        .zip(cores)
        .enumerate()
        .map(|(number, ((worker, live), core))| spawn(number, worker, live, core, setup, stop))
        .collect::<Result<Vec<Running>>>()?;

    let gauged = running.iter().map(|worker| Arc::clone(&worker.status));
    let _sensors = Sensors::start(setup, gauged.collect(), observer.blocks_bytes())?;
    let lasts = target.lasts_seconds();
    // Does nothing unless systemd waits for it.
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    let mut told = steer::Told::default();
    let mut watchdog = Watchdog::new(running.len());
    let bar = progress_bar();
    let mut drops = Drops::new();
    let mut looked = Instant::now();
    while running.iter().any(|worker| !worker.thread.is_finished()) {
        thread::sleep(Duration::from_millis(50));
        if lasts.is_some_and(|seconds| started.elapsed() >= Duration::from_secs(seconds)) {
            stop.store(true, Ordering::Relaxed);
        }
        if setup.controller.take_rotate() {
            recording.rotate();
        }
        if reload.swap(false, Ordering::Relaxed)
            && let Err(error) = args.steer.reload(args, setup)
        {
            let error = text::chain(&confined::explain(error));
            bar.suspend(|| eprintln!("strata: goes on as before: {error}"));
        }
        bar.set_position(books(&running).seen.packets);
        if report.swap(false, Ordering::Relaxed) {
            bar.suspend(|| eprintln!("{}", counts(&running, started)));
        }
        let rings = rings(&running);
        let rings = rings
            .iter()
            .map(|(name, c)| (name.clone(), c.received, c.dropped));
        if looked.elapsed() > LOOK_AT_DROPS_EVERY {
            looked = Instant::now();
            drops = DropCounts::now(&args.live.interfaces).since(&before);
        }
        let noted = noted(&running, rings.collect());
        observer.note(steer::Noted {
            lost: lost(&running, &drops),
            ..noted
        });
        setup.controller.tick(Instant::now(), observer.take());
        for what in watchdog
            .look(&running)
            .into_iter()
            .chain(governor.look(&setup.controller))
        {
            setup.controller.report(what);
        }
        if let Some(room) = &mut room
            && let Some(what) = room.look(setup.controller.bytes_to_remove())
        {
            setup.controller.report(what);
        }
        if !watchdog.is_any_stuck() {
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        }
        for worker in &running {
            for what in worker.status.with(|s| std::mem::take(&mut s.events)) {
                setup.controller.report(what);
            }
        }
        for line in tell(setup, &bar, alerts.as_ref()) {
            told.push(line);
        }
        // One worker's end is the end of all: a log with half of the flows misleads.
        if running.iter().any(|worker| worker.thread.is_finished()) {
            stop.store(true, Ordering::Relaxed);
        }
    }
    bar.finish_and_clear();
    let drops = DropCounts::now(&args.live.interfaces).since(&before);
    let mut warnings = told.into_lines();
    warnings.extend(lost(&running, &drops).iter().map(loss_text));
    let mut outcomes = Vec::new();
    for worker in running {
        let joined = worker.thread.join();
        outcomes.push(joined.map_err(|_| anyhow!("a worker failed; its books are lost"))??);
    }
    finish(recording, outcomes, warnings, started)
}

/// Says what has happened, in the journal and to the webhook; the lines.
fn tell(setup: &Setup, bar: &ProgressBar, alerts: Option<&Alerts>) -> Vec<String> {
    let mut lines = Vec::new();
    for event in setup.controller.take_news() {
        let (line, is_alert) = (steer::line(&event), steer::happened(&event));
        bar.suspend(|| eprintln!("{}strata: {line}", steer::prefix(is_alert)));
        if let Some(alerts) = alerts.filter(|_| is_alert) {
            alerts.send(&event);
        }
        lines.push(line);
    }
    lines
}

fn spawn(
    number: usize,
    mut worker: Worker,
    mut live: Live,
    core: Option<usize>,
    setup: &Setup,
    stop: &Arc<AtomicBool>,
) -> Result<Running> {
    let controller = &setup.controller;
    let status = Arc::new(Status::default());
    let (shared, stop) = (Arc::clone(&status), Arc::clone(stop));
    controller.steering().wakes(live.waker());
    let work = move || -> Result<WorkerOutcome> {
        if let Some(core) = core {
            pin(core)?;
        }
        confined::thread(Role::Worker);
        // The kernel counts what it filters for all workers together.
        let mut in_kernel = (number == 0).then(InKernel::default);
        let mut last = Instant::now();
        let ran = run_live(&mut live, &mut worker, |live, worker| {
            shared.steps.fetch_add(1, Ordering::Relaxed);
            shared.gauges.note(live, worker);
            if last.elapsed() > SNAPSHOT_EVERY {
                last = Instant::now();
                publish(&shared, live, worker, &mut in_kernel);
            }
            if stop.load(Ordering::Relaxed) {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        publish(&shared, &mut live, &mut worker, &mut in_kernel);
        Ok(WorkerOutcome::of(&worker, ran))
    };
    let thread = thread::Builder::new()
        .name(format!("strata-worker-{number}"))
        .spawn(work)
        .context("cannot start a worker thread")?;
    Ok(Running { thread, status })
}

/// What the kernel had counted for all workers, when it was booked last.
#[derive(Default)]
struct InKernel {
    filtered: Tally,
    left_out: Tally,
}

/// What was added to a tally.
fn added(before: &mut Tally, now: Tally) -> Tally {
    let earlier = std::mem::replace(before, now);
    Tally {
        packets: now.packets - earlier.packets,
        bytes: now.bytes - earlier.bytes,
    }
}

fn publish(
    status: &Status,
    live: &mut Live,
    worker: &mut Worker,
    in_kernel: &mut Option<InKernel>,
) {
    if let Some(before) = in_kernel {
        worker.count_filtered(added(&mut before.filtered, live.filtered()));
        if let Some(sampler) = live.sampler() {
            worker.count_left_out(added(&mut before.left_out, sampler.left_out()));
        }
    }
    let events = live.take_events();
    let rings = live.counts();
    worker.publish_hits();
    let cpu = clock_gettime(ClockId::ThreadCPUTime);
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let progress = worker.progress();
    status.with(|snapshot| {
        snapshot.cpu = Duration::try_from(cpu).unwrap_or_default();
        snapshot.disk_busy = Duration::from_nanos(load(&progress.disk_busy_ns));
        snapshot.rdma = (load(&progress.rdma_sent), load(&progress.rdma_again));
        snapshot.ring_fill = live.ring_fill();
        snapshot.ledger = worker.ledger();
        snapshot.kept = worker.kept();
        snapshot.ring_wait = status.gauges.take_ring_wait();
        snapshot.taken = Some(Instant::now());
        snapshot
            .events
            .extend(events.iter().map(ToString::to_string));
        if let Ok(rings) = rings {
            let dropped = rings.iter().map(|(_, ring)| ring.dropped).sum();
            status.gauges.note_dropped(dropped);
            snapshot.rings = rings;
        }
    });
}

/// What all workers say.
fn noted(running: &[Running], rings: Vec<(String, u64, u64)>) -> steer::Noted {
    let mut noted = steer::Noted {
        rings,
        ..steer::Noted::default()
    };
    for worker in running {
        worker.status.with(|snapshot| {
            noted.ledger.merge(&snapshot.ledger);
            merge_kept(&mut noted.kept, &snapshot.kept);
            noted.cpu = noted.cpu.max(Some(snapshot.cpu));
            noted.disk_busy = noted.disk_busy.max(Some(snapshot.disk_busy));
            if let Some(fill) = snapshot.ring_fill {
                noted.ring_fill = Some(noted.ring_fill.map_or(fill, |all| all.max(fill)));
            }
            noted.rdma.0 += snapshot.rdma.0;
            noted.rdma.1 += snapshot.rdma.1;
            noted.ring_wait = noted.ring_wait.max(snapshot.ring_wait);
            // As old as the oldest.
            let taken = noted.taken.into_iter().chain(snapshot.taken);
            noted.taken = taken.min();
        });
    }
    noted
}

fn books(running: &[Running]) -> Ledger {
    let mut ledger = Ledger::default();
    for worker in running {
        worker
            .status
            .with(|snapshot| ledger.merge(&snapshot.ledger));
    }
    ledger
}

/// By interface, over all workers.
fn rings(running: &[Running]) -> Vec<(String, RingCounts)> {
    let mut all: Vec<(String, RingCounts)> = Vec::new();
    for worker in running {
        worker.status.with(|snapshot| {
            for (name, counts) in &snapshot.rings {
                match all.iter_mut().find(|(known, _)| known == name) {
                    Some((_, sum)) => *sum = sum.plus(*counts),
                    None => all.push((name.clone(), *counts)),
                }
            }
        });
    }
    all
}

/// What USR1 prints.
fn counts(running: &[Running], started: Instant) -> String {
    let mut text = format!("strata: after {:.0} s\n", started.elapsed().as_secs_f64());
    text += &books(running).to_string();
    for (name, ring) in rings(running) {
        text += &format!(
            "\n{}: {} packets received by filter, {} dropped by kernel",
            Printable(&name),
            ring.received,
            ring.dropped
        );
    }
    text
}

/// What did not reach the workers: full rings, and what the host counts beside.
fn lost(running: &[Running], drops: &Drops) -> Vec<LostStatus> {
    let rings = rings(running).into_iter();
    let full = rings
        .filter(|(_, ring)| ring.dropped > 0)
        .map(|(name, ring)| (Lost::Kernel, format!("{name} ring"), ring.dropped));
    full.chain(drops.iter().cloned())
        .map(|(place, counter, packets)| LostStatus {
            place: place.name().to_owned(),
            counter,
            packets,
            advice: place.advice().to_owned(),
        })
        .collect()
}

fn loss_text(lost: &LostStatus) -> String {
    format!(
        "lost before Strata, {} ({}): {} packets; {}",
        lost.place,
        lost.counter,
        text::count(lost.packets),
        lost.advice
    )
}

/// Notices workers that do not move.
struct Watchdog {
    /// Steps when last seen to move, when that was, whether it was reported.
    seen: Vec<(u64, Instant, bool)>,
}

impl Watchdog {
    fn new(workers: usize) -> Self {
        Self {
            seen: vec![(0, Instant::now(), false); workers],
        }
    }

    /// Whether a worker does not move.
    fn is_any_stuck(&self) -> bool {
        self.seen.iter().any(|seen| seen.2)
    }

    fn look(&mut self, running: &[Running]) -> Vec<String> {
        let mut news = Vec::new();
        for (number, (worker, seen)) in running.iter().zip(&mut self.seen).enumerate() {
            let steps = worker.status.steps.load(Ordering::Relaxed);
            if steps != seen.0 {
                if seen.2 {
                    let still = seen.1.elapsed().as_secs();
                    news.push(format!("worker {number} goes on after {still} s"));
                }
                *seen = (steps, Instant::now(), false);
            } else if seen.1.elapsed() > STUCK_AFTER && !seen.2 && !worker.thread.is_finished() {
                seen.2 = true;
                news.push(format!(
                    "worker {number} has not moved for {} s: is the disk stuck, or the CPU taken?",
                    STUCK_AFTER.as_secs()
                ));
            }
        }
        news
    }
}

/// Keeps the calling thread on one CPU.
fn pin(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).with_context(|| format!("--cores: CPU {core}"))
}
