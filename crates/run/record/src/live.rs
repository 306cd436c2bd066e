//! Records interfaces: a worker on each core, until stopped.

pub(crate) mod governor;
pub(crate) mod preflight;
pub(crate) mod sensors;
pub(crate) mod watchdog;

mod lost;
pub(crate) mod processes;
mod run;
mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use strata_capture::live::{
    DropCounts, Drops, Exclusive, Live, LiveOptions, Lost, ReceiveCpu, ReceiveCpus, SocketOpener,
    Way,
};
use strata_control::alerts::AlertSender;
use strata_control::api::Server;
use strata_control::{Controller, NetworkObserved, ReceiveStatus};
use strata_filter::Filter;
use strata_flow_export::Sending;
use strata_processes::{ProcessCounts, Processes};
use strata_role::sandbox::give_up;
use strata_role::{Handle, Notice, RoleError};
use strata_sandbox::{SocketFile, User};

use crate::beside::eve::EveReader;
use crate::beside::exports::Exporting;
use crate::beside::lag::CompactionLag;
use crate::beside::reclaim::Reclaim;
use crate::beside::reports::Reports;
use crate::error::Result;
use crate::live::governor::{Governor, Shedder};
use crate::live::sensors::Sensors;
use crate::live::watchdog::Watchdog;
use crate::notice::RecordNotice;
use crate::notice::journal::{self, Told};
use crate::observer::{Observation, Observer};
use crate::outcome::{RecordOutcome, finish};
use crate::recorded;
use crate::sandbox::socket_opener;
use crate::setup::destination::Recording;
use crate::setup::log_dir::{NewDirectory, log_directory};
use crate::setup::memory;
use crate::setup::{Setup, Started};
use crate::spec::{InterfaceSpec, RecordSpec};
use worker::Running;

/// How often a recording checks its workers.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often the host's counters are read: drops, and time of the CPUs. Those of interfaces this number at a
/// time, on average: each takes tens of system calls, which may wait for programs that change interfaces.
const LOOK_AT_HOST_EVERY: Duration = Duration::from_secs(1);
const INTERFACES_A_LOOK: usize = 64;

/// The capture options for this spec.
pub(crate) fn options(setup: &Setup, spec: &InterfaceSpec) -> Result<LiveOptions> {
    let mut options = spec.capture.clone();
    options.filter = setup.live_filter()?;
    options.sample = setup.controller.cpu_budget().is_some();
    Ok(options)
}

/// Opens the interfaces; in the sandbox, with what opens them again.
///
/// Dropping the last opener ends its process, which workers may not do: so it is returned, to be
/// dropped after them.
fn open(
    setup: &Setup,
    spec: &InterfaceSpec,
    workers: u16,
) -> Result<(Vec<Live>, Option<SocketOpener>)> {
    let mut options = options(setup, spec)?;
    if let Some(sandbox) = &spec.sandbox {
        match socket_opener(sandbox) {
            Ok(opener) => options.opener = Some(opener),
            Err(error) => (setup.tell)(&RecordNotice::NotReopened(error).into()),
        }
    }
    Ok((Live::open(&options, workers)?, options.opener))
}

/// Everything opened while the process may still do so.
struct Opened {
    lives: Vec<Live>,
    opener: Option<SocketOpener>,
    before: DropCounts,
    cpus: ReceiveCpus,
    room: Option<Reclaim>,
    governor: Governor,
    shedder: Option<Shedder>,
    /// The filter, if the kernel does not evaluate it.
    filter: Option<Filter>,
    socket: Option<SocketFile>,
    eve: Option<EveReader>,
    processes: Option<Processes>,
}

/// Of which processes the sockets from before are not known, and why; `None` if of none.
fn unseen(processes: &Processes) -> Option<String> {
    let refused = processes.refused();
    let (whose, why) = match processes.sees_all() {
        false => (
            "the sockets of other users' processes".to_owned(),
            "CAP_SYS_PTRACE is needed",
        ),
        true if refused > 0 => (
            format!("the sockets of {refused} processes"),
            "a filter of system calls may refuse pidfd_getfd",
        ),
        true => return None,
    };
    Some(format!(
        "--processes: {whose} may not be looked at, so their packets have no process until they create others: {why}"
    ))
}

impl Opened {
    /// Opens everything that needs privileges, and drops them.
    fn new(setup: &Arc<Setup>, spec: &InterfaceSpec, workers: u16) -> Result<Self> {
        let tell = &setup.tell;
        let destination = &setup.spec.destination;
        let user = spec.sandbox.as_ref().and_then(|s| s.user.as_deref());
        let owner = destination.owner(user.map(User::named).transpose()?);
        let eve = setup.spec.triggers.open(false, &owner)?;
        let processes = spec.processes.then(Processes::open).transpose();
        let processes =
            processes.map_err(|error| RoleError::Refused(format!("--processes: {error}")))?;
        if let Some(unseen) = processes.as_ref().and_then(unseen) {
            tell(&Notice::warning(unseen));
        }
        let (lives, opener) = open(setup, spec, workers)?;
        let before = DropCounts::now(setup.spec.interface_names());
        let mut cpus = ReceiveCpus::default();
        cpus.since_last();
        let room = destination.dir();
        let room = room.map(|dir| Reclaim::new(dir, destination.limit(workers, true)));
        room.iter().for_each(|room| setup.ask(room));
        let governor = Governor::new(lives[0].sampler(), spec.gives_way);
        let shedder = Shedder::new(lives[0].copy_limit(), spec.shed);
        if let Some(why) = lives[0].not_shared() {
            tell(&RecordNotice::RingEach(why.to_owned()).into());
        }
        let filter = match lives.iter().find_map(Live::filter_in_user_space) {
            Some(why) => {
                tell(&RecordNotice::FilterAfterCopy(why.to_owned()).into());
                setup.live_filter()?
            }
            None => None,
        };
        let socket = setup.addresses.bind(&setup.spec, &owner, tell)?;
        if spec.sandbox.is_some() {
            let reach = setup.configuration.reach(&setup.spec, socket.as_ref());
            if let Some(log) = &reach.home {
                log_directory(log, &owner)?;
            }
            give_up(&owner, &reach, destination.capabilities(), tell)?;
        }
        let eve = eve.map(|eve| eve.start(&setup.alerts, tell)).transpose()?;
        Ok(Self {
            lives,
            opener,
            before,
            cpus,
            room,
            governor,
            shedder,
            filter,
            socket,
            eve,
            processes,
        })
    }
}

/// Starts recording interfaces.
pub(crate) fn start(
    setup: &Arc<Setup>,
    spec: &InterfaceSpec,
    new: Option<NewDirectory>,
) -> Result<Handle<RecordSpec>> {
    let tell = &setup.tell;
    let destination = &setup.spec.destination;
    let count = spec.workers()?;
    destination.check_limit(count)?;
    if spec.capture.exclusive == Exclusive::Yes {
        tell(&RecordNotice::Exclusive(setup.spec.interface_names().to_vec()).into());
    }
    let mut equipment = setup.equip()?;
    let opened = Opened::new(setup, spec, count)?;
    let ways = opened.lives[0].ways();
    let mut told = Told::default();
    if spec.capture.exclusive == Exclusive::Auto {
        for way in &ways {
            let notice = Notice::from(RecordNotice::Decided(way.clone()));
            tell(&notice);
            told.push(notice.text);
        }
    }
    for (equipment, live) in equipment.iter_mut().zip(&opened.lives) {
        equipment.cut(live.cut_table());
    }
    let observer = Observer::new(destination, count);
    // Before the recording, which creates a log.
    let server = setup.addresses.serve(&setup.controller, opened.socket)?;
    let alerts = setup.addresses.alerts(destination.name())?;
    let Started {
        recording,
        workers,
        reports,
        flows,
        exporting,
    } = setup.start(opened.filter, equipment, None)?;
    tell(
        &RecordNotice::Capturing {
            ways: in_words(&ways),
            snaplen: spec.capture.snaplen,
        }
        .into(),
    );
    let started = Instant::now();
    let running = workers
        .into_iter()
        .zip(opened.lives)
        .zip(&spec.cores)
        .enumerate()
        .map(|(number, ((worker, live), core))| {
            let processes = opened.processes.clone();
            Running::spawn(number, worker, live, *core, processes, setup)
        })
        .collect::<Result<Vec<Running>>>()?;
    let gauges = running
        .iter()
        .map(|worker| Arc::clone(&worker.status.gauges));
    let blocks_bytes = observer.blocks_bytes();
    let sensors = Sensors::start(&setup.controller, gauges.collect(), blocks_bytes)?;
    let supervisor = Supervisor {
        setup: Arc::clone(setup),
        observer: Arc::clone(&observer),
        ends: spec.duration.map(|duration| started + duration),
        started,
        watchdog: Watchdog::new(running.len()),
        running,
        reports,
        flows,
        exporting,
        recording,
        governor: opened.governor,
        shedder: opened.shedder,
        lag: setup
            .spec
            .destination
            .dir()
            .map(|dir| CompactionLag::new(dir, setup.addresses.compaction_lag)),
        room: opened.room,
        before: opened.before,
        drops: Drops::new(),
        cpus: opened.cpus,
        receive: Vec::new(),
        looked_at_host: started,
        drift_seen: None,
        looked_at_drops: started,
        told,
        told_refused: false,
        alerts,
        _sensors: sensors,
        _server: server,
        eve: opened.eve,
        processes: opened.processes,
        _opener: opened.opener,
        _new: new,
    };
    recorded::run(setup, observer, move || supervisor.run())
}

/// Interfaces that are listed one by one.
const LISTED: usize = 16;

/// How interfaces are captured; of many, how many in each way.
fn in_words(ways: &[Way]) -> String {
    if ways.len() <= LISTED {
        let all: Vec<String> = ways.iter().map(ToString::to_string).collect();
        return all.join("; ");
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for way in ways {
        *counts.entry(&way.how).or_default() += 1;
    }
    let each = counts
        .iter()
        .map(|(how, count)| format!("{count} interfaces: {how}"));
    each.collect::<Vec<_>>().join("; ")
}

/// Supervises the workers until all have ended. Fields are dropped in order.
struct Supervisor {
    setup: Arc<Setup>,
    observer: Arc<Observer>,
    started: Instant,
    /// When it ends by itself.
    ends: Option<Instant>,
    running: Vec<Running>,
    reports: Option<Reports>,
    flows: Option<Sending>,
    exporting: Option<Exporting>,
    recording: Recording,
    watchdog: Watchdog,
    governor: Governor,
    shedder: Option<Shedder>,
    room: Option<Reclaim>,
    lag: Option<CompactionLag>,
    /// The host's drops before the start, and since.
    before: DropCounts,
    drops: Drops,
    /// What receiving costs the kernel.
    cpus: ReceiveCpus,
    receive: Vec<ReceiveStatus>,
    looked_at_host: Instant,
    /// When the distributions were reported that were looked at last.
    drift_seen: Option<Instant>,
    looked_at_drops: Instant,
    told: Told,
    /// Whether it was reported that the table of flows cannot grow.
    told_refused: bool,
    alerts: Option<AlertSender>,
    _sensors: Sensors,
    _server: Option<Server>,
    eve: Option<EveReader>,
    /// Ends after the workers.
    processes: Option<Processes>,
    /// Outlives the workers.
    _opener: Option<SocketOpener>,
    _new: Option<NewDirectory>,
}

impl Supervisor {
    fn run(mut self) -> Result<RecordOutcome> {
        // Does nothing unless systemd waits for it.
        let _ = sd_notify::notify(&[NotifyState::Ready]);
        while !self.running.iter().all(Running::is_finished) {
            thread::sleep(LOOK_EVERY);
            self.look();
        }
        self.observe();
        // Collectors learn how much there was while interfaces are still being closed.
        drop(self.exporting.take());
        let names = self.setup.spec.interface_names();
        let drops = DropCounts::now(names).since(&self.before);
        let mode = self.setup.controller.mode();
        let lost = lost::lost(&worker::rings(&self.running), &drops, &mode);
        let warnings = lost.iter().map(lost::text).collect();
        let outcomes: Result<Vec<_>> = self.running.into_iter().map(Running::join).collect();
        drop((self.reports, self.flows));
        let outcomes = outcomes?;
        if let Some(processes) = &self.processes {
            let notice = Notice::from(RecordNotice::Processes(
                outcomes
                    .iter()
                    .filter_map(|outcome| outcome.processes)
                    .fold(ProcessCounts::default(), ProcessCounts::plus),
                processes.forgotten(),
            ));
            (self.setup.tell)(&notice);
            self.told.push(notice.text);
        }
        let told = self.told.into_lines();
        finish(
            self.recording,
            outcomes,
            told,
            warnings,
            self.started,
            &self.setup,
        )
    }

    /// Checks everything once.
    fn look(&mut self) {
        let controller = Arc::clone(&self.setup.controller);
        if self.ends.is_some_and(|at| Instant::now() >= at) {
            self.setup.stop.store(true, Ordering::Relaxed);
        }
        if controller.take_rotate() {
            self.recording.rotate();
        }
        self.observe();
        let steps = self.running.iter().map(Running::steps);
        let reports = self.watchdog.look(steps);
        let reports = reports.into_iter().chain(self.governor.look(&controller));
        for what in reports.chain(self.shed(&controller)) {
            controller.report(what);
        }
        if let Some(room) = &mut self.room
            && let Some(what) = room.look(controller.bytes_to_remove())
        {
            controller.report(what);
        }
        let behind = self.lag.as_mut().and_then(|lag| lag.look(&controller));
        behind.into_iter().for_each(|what| controller.report(what));
        if !self.watchdog.is_any_stuck() {
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        }
        for what in self.running.iter().flat_map(Running::take_events) {
            controller.report(what);
        }
        self.tell_events();
        // If one worker ends, all do: a log with half of the flows misleads.
        if self.running.iter().any(Running::is_finished) {
            self.setup.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Gives up payload, or captures it again; returns what to report.
    fn shed(&mut self, controller: &Controller) -> Option<String> {
        let shedder = self.shedder.as_mut()?;
        let rings = worker::rings(&self.running);
        let received = rings.iter().map(|(_, ring)| ring.received);
        let received = received.fold(0, u64::saturating_add);
        let in_rings = rings.iter().map(|(_, ring)| ring.dropped);
        let in_cards = self
            .drops
            .iter()
            .filter(|(place, ..)| *place == Lost::Device);
        let in_cards = in_cards.map(|(_, _, packets)| *packets);
        let lost = in_rings.chain(in_cards).fold(0, u64::saturating_add);
        shedder.look(controller, (received, lost), self.governor.headers_only())
    }

    /// Passes the workers' reports on to the controller.
    fn observe(&mut self) {
        if self.looked_at_host.elapsed() > LOOK_AT_HOST_EVERY {
            self.looked_at_host = Instant::now();
            let cpus = self.cpus.since_last().into_iter();
            self.receive = cpus.map(receive_status).collect();
        }
        let names = self.setup.spec.interface_names();
        let looks = u32::try_from(names.len() / INTERFACES_A_LOOK + 1);
        let looks = looks.expect("interfaces have numbers of 16 bits");
        if self.looked_at_drops.elapsed() > LOOK_AT_HOST_EVERY * looks {
            self.looked_at_drops = Instant::now();
            self.drops = DropCounts::now(names).since(&self.before);
        }
        let rings = worker::rings(&self.running);
        let noted = worker::noted(&self.running, &mut self.drift_seen);
        if let Some(pressure) = &noted.counts.pressure
            && pressure.growths_refused > 0
            && !self.told_refused
        {
            self.told_refused = true;
            self.setup.controller.report(memory::refused(pressure));
        }
        if let Some(eve) = &self.eve {
            self.setup.controller.set_eve(eve.status());
        }
        self.observer.note(Observation {
            network: NetworkObserved {
                interfaces: worker::interfaces(&self.running, &rings),
                lost: lost::lost(&rings, &self.drops, &self.setup.controller.mode()),
                receive: self.receive.clone(),
            },
            ..noted
        });
        let observed = self.observer.take();
        self.setup.controller.tick(Instant::now(), observed);
    }

    /// Reports events to the journal, the webhook and the log.
    fn tell_events(&mut self) {
        for event in self.setup.controller.take_events() {
            if let (true, Some(alerts)) = (journal::happened(&event), &self.alerts) {
                alerts.send(&event);
            }
            let line = journal::dated(&event);
            let notice = Notice::from(RecordNotice::Event(event));
            (self.setup.tell)(&notice);
            self.told.push(line);
        }
    }
}

fn receive_status(cpu: ReceiveCpu) -> ReceiveStatus {
    ReceiveStatus {
        cpu: cpu.cpu,
        packets_per_second: cpu.packets_per_second,
        softirq: cpu.softirq,
        idle: cpu.idle,
    }
}
