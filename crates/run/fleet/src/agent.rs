//! The role of an agent (`docs/agents.md`): a recording that only exports, in a process of its own, which
//! follows what a controller or a file says. `strata_agent::Follower` decides, this does it.
//!
//! ```text
//! link      thread: asks the controller, with a certificate; reports
//! names     threads: look up destinations that are names
//! child     the process that records, with its own sandbox
//! tally     what one recording after the other has counted
//! shared_time   one time for each packet, whichever recording asks
//! ovsdb     bridges and ports of Open vSwitch
//! libvirt   which virtual machine has an interface
//! files     what is kept in the agent's directory, and read of its interfaces
//! ```

mod child;
mod files;
mod libvirt;
mod link;
mod names;
mod ovsdb;
mod shared_time;
mod tally;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::CapabilitySet;
use strata_agent::{Assignment, DocumentFile, Follower, Local, Registry, Report, Step, matches};
use strata_capture::live::LinkChanges;
use strata_control::agent_client::{Enrolment, Interrupt};
use strata_role::sandbox::{confine_starter, make_private_files, unconfined};
use strata_role::{At as _, Notice, Result, RoleError, Tell, Waker, warn_if_shared};
use strata_sandbox::{make_secret_dir, runtime_dir};
use strata_wire::{exact, unix_ns};

use child::{Child, NEVER, Recorder};
use files::State;
use link::Link;
use names::{Found, Names};
use ovsdb::Ovsdb;
use shared_time::SharedTime;
use tally::Tally;

/// A recording that takes over from another begins to export this long after it captures: by then both
/// know when that is. If one of them did not learn it in time, it is twice as long, up to the most.
const HANDOVER: Duration = Duration::from_millis(500);
const HANDOVER_MAX: Duration = Duration::from_secs(16);
/// The other goes on for this long, for packets that it has captured before.
const AFTER: Duration = Duration::from_millis(100);
/// Interfaces are looked for when the kernel reports that one has changed, and at this interval in
/// any case.
const INTERFACES_EVERY: Duration = Duration::from_secs(5);
/// But no more often than this: they come in numbers, and a guest may let its own come and go all the time.
const SETTLE: Duration = Duration::from_millis(100);

/// An agent.
#[derive(Clone, Debug)]
pub struct AgentSpec {
    /// What only this host decides.
    pub local: Local,
    /// Those of its destinations whose hosts are names, by the names that policies use.
    pub named: BTreeMap<String, NamedHost>,
    /// Who says what to capture.
    pub source: AgentSource,
    /// Its directory, made if it does not exist.
    pub state: PathBuf,
    /// This program, and further arguments of `record`.
    pub program: PathBuf,
    /// Options for each recording, such as `--cpu 10%`.
    pub options: Vec<String>,
    /// Socket of Open vSwitch's database, if it is not at its usual place.
    pub ovsdb: Option<PathBuf>,
    /// Drop what neither it nor its recordings need.
    pub sandboxed: bool,
}

/// A destination whose host is a name, which is looked up.
#[derive(Clone, Debug)]
pub struct NamedHost {
    /// The destination, as its user knows it.
    pub destination: String,
    /// The name of its host.
    pub host: String,
    /// The port there.
    pub port: u16,
}

/// Who says what to capture.
#[derive(Clone, Debug)]
pub enum AgentSource {
    /// A controller at `HOST:PORT`; the token file is read until the agent has a certificate.
    Controller {
        /// Where it is.
        address: String,
        /// As the controller has written it.
        token_file: Option<PathBuf>,
    },
    /// A file of policies, as those of a controller's directory.
    File {
        /// The file.
        path: PathBuf,
        /// The identity of the first interface.
        first_identity: u32,
    },
}

/// What supervisor and link share.
#[derive(Debug, Default)]
struct Shared {
    /// As the supervisor has it; the link adds its time.
    report: Report,
    /// What the controller has assigned, until the supervisor takes it.
    inbox: Option<Assignment>,
    /// The socket that serves the recording's counters.
    socket: Option<PathBuf>,
    /// Of destinations.
    names: Found,
    tally: Tally,
}

#[derive(Clone, Debug, Default)]
struct Desk(Arc<Mutex<Shared>>);

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The same for a file of policies as a controller does.
struct FileSource {
    path: PathBuf,
    registry: Registry,
}

/// A certificate that stands for the agent itself.
const SELF: [u8; 32] = [0; 32];

impl FileSource {
    fn open(path: PathBuf, first_identity: u32, name: &str) -> Result<Self> {
        let mut registry = Registry::new(strata_agent::Stored::default(), first_identity);
        let enrolled = registry.enrolled(name, SELF, u64::MAX, 0);
        enrolled.map_err(|error| RoleError::Refused(error.to_string()))?;
        let mut source = Self { path, registry };
        source.read()?;
        Ok(source)
    }

    fn read(&mut self) -> Result<()> {
        let name = self.path.display().to_string();
        let text = std::fs::read_to_string(&self.path).at(&name)?;
        let applied = self.registry.apply(&[DocumentFile { name, text }], 0);
        applied
            .map(drop)
            .map_err(|error| RoleError::Refused(error.to_string()))
    }

    fn assigned(&mut self, mut report: Report) -> Result<Option<Assignment>> {
        // Of its status, only what is in the registry is needed.
        report.problem.clear();
        let assigned = self.registry.report(&SELF, report, "", 0);
        let (assignment, _) = assigned.map_err(|error| RoleError::Refused(error.to_string()))?;
        let problems = self.registry.agents(0).into_iter().map(|own| own.problem);
        match problems.into_iter().find(|problem| !problem.is_empty()) {
            Some(problem) => {
                let path = self.path.display();
                Err(RoleError::Refused(format!("{path}: {problem}")))
            }
            None => Ok(assignment),
        }
    }
}

/// A directory of an agent that runs.
const GONE: &str = "the agent's directory was removed: data stored there is lost, and the agent \
                    has to enrol again after a restart (`strata controller forget` permits this)";

/// An agent at work.
struct Agent {
    follower: Follower,
    recorder: Recorder,
    child: Option<Child>,
    state: State,
    ovsdb: Ovsdb,
    file: Option<FileSource>,
    desk: Desk,
    interrupt: Interrupt,
    /// Lets the link look.
    wake_link: Waker,
    links: LinkChanges,
    /// So that two recordings agree on what is before a moment.
    _time: SharedTime,
    looked: Instant,
    started: Instant,
    tell: Tell,
    /// Whether its directory is gone.
    is_gone: bool,
    /// As last told.
    problem: String,
    notes: Vec<String>,
}

/// What recordings need until they have opened their interfaces; the agent itself uses none of it.
const FOR_RECORDINGS: CapabilitySet = CapabilitySet::NET_RAW
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYS_RESOURCE)
    .union(CapabilitySet::SYS_NICE)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::DAC_READ_SEARCH);

/// Where it and its recordings write: its directory first.
fn reach(state: &Path) -> Vec<PathBuf> {
    vec![state.to_owned(), runtime_dir(), "/dev/shm".into()]
}

/// Runs an agent until `stop`; `reload` asks to read the file of policies again. `waker` says that one of
/// them may have changed.
///
/// # Errors
///
/// If its directory or file cannot be used. What fails later is tried again, and told.
pub fn run_agent(
    spec: AgentSpec,
    stop: &Arc<AtomicBool>,
    waker: &Waker,
    mut reload: impl FnMut() -> bool,
    tell: &Tell,
) -> Result<()> {
    make_private_files();
    make_secret_dir(&spec.state)?;
    warn_if_shared(&spec.state, tell);
    let state = State::lock(&spec.state)?;
    match spec.sandboxed {
        true => confine_starter(FOR_RECORDINGS, &reach(&spec.state), tell)?,
        false => unconfined(),
    }
    let (desk, interrupt, wake_link) = (Desk::default(), Interrupt::default(), Waker::new()?);
    let (file, link) = match spec.source {
        AgentSource::File {
            path,
            first_identity,
        } => (
            Some(FileSource::open(path, first_identity, &spec.local.host)?),
            None,
        ),
        AgentSource::Controller {
            address,
            token_file,
        } => {
            let link = Link {
                was_refused: Cell::new(false),
                enrolment: Enrolment {
                    address,
                    token_file,
                    name: spec.local.host.clone(),
                    is_collector: false,
                    dir: spec.state.clone(),
                },
                number: getrandom::u64()
                    .map_err(std::io::Error::other)
                    .at("cannot get a random number for this run")?,
                desk: desk.clone(),
                interrupt: interrupt.clone(),
                waker: wake_link.clone(),
                supervisor: waker.clone(),
                stop: Arc::clone(stop),
                tell: Arc::clone(tell),
            };
            (None, Some(link))
        }
    };
    let stored = match &file {
        Some(_) => None,
        None => state.assignment(tell),
    };
    let _names = Names::start(&spec.named, &desk, waker, tell)?;
    let mut agent = Agent {
        recorder: Recorder {
            program: spec.program,
            options: spec.options,
            dir: spec.state.clone(),
            keys: PathBuf::from(&spec.local.assigned_keys),
            tell: Arc::clone(tell),
        },
        follower: Follower::new(spec.local, stored),
        child: None,
        ovsdb: Ovsdb::new(spec.ovsdb),
        state,
        file,
        desk,
        interrupt,
        wake_link,
        links: LinkChanges::open().at("cannot watch changes of interfaces")?,
        _time: SharedTime::begin().at("cannot have the kernel give times to packets")?,
        looked: Instant::now(),
        started: Instant::now(),
        tell: Arc::clone(tell),
        is_gone: false,
        problem: String::new(),
        notes: Vec::new(),
    };
    agent.look_for_interfaces();
    agent.tell_unmatched();
    agent.publish();
    let link = link.map(Link::start).transpose()?;
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    while !stop.load(Ordering::Relaxed) {
        agent.wait(waker);
        let looked = agent.looked.elapsed();
        if looked >= INTERFACES_EVERY || (looked >= SETTLE && agent.links.have_changed()) {
            agent.look_for_interfaces();
        }
        if reload() {
            agent.reload();
        }
        agent.look();
    }
    if let Some(child) = agent.child.take() {
        child.end();
    }
    agent.interrupt.interrupt();
    agent.wake_link.wake();
    if let Some(link) = link {
        let _ = link.join();
    }
    Ok(())
}

impl Agent {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).expect("it runs for less than an age")
    }

    /// Waits until there is something to look at.
    fn wait(&self, waker: &Waker) {
        let mut most = INTERFACES_EVERY.saturating_sub(self.looked.elapsed());
        let now_ms = self.now_ms();
        if let Some(at_ms) = self.follower.again_at(now_ms) {
            let left = at_ms.saturating_sub(now_ms);
            most = most.min(Duration::from_millis(left));
        }
        let child = self.child.iter().flat_map(Child::wakes);
        let mut all: Vec<BorrowedFd<'_>> = child.collect();
        match SETTLE.saturating_sub(self.looked.elapsed()) {
            Duration::ZERO => all.push(self.links.as_fd()),
            left => most = most.min(left),
        }
        waker.wait_with(&all, Some(most));
    }

    /// Says what interfaces it waits for.
    fn tell_unmatched(&self) {
        let down = files::down();
        for pattern in self.follower.unmatched() {
            let down = down.iter().filter(|name| matches(pattern, name));
            let down: Vec<&str> = down.map(String::as_str).collect();
            let what = match down.is_empty() {
                true => format!("-i {pattern}: there is no such interface yet; waiting for it"),
                false => format!(
                    "-i {pattern}: down, so not captured: {}; waiting until an interface of that name is up",
                    down.join(", ")
                ),
            };
            (self.tell)(&Notice::info("interfaces", what));
        }
    }

    fn look_for_interfaces(&mut self) {
        self.looked = Instant::now();
        if self.state.is_gone() && !std::mem::replace(&mut self.is_gone, true) {
            (self.tell)(&Notice::warning(format!(
                "{}: {GONE}",
                self.state.dir().display()
            )));
        }
        match files::interfaces() {
            Ok(all) => {
                let up = all.iter().map(|one| one.name.as_str()).collect();
                self.follower.switches(self.ovsdb.switches(&up));
                if self.follower.interfaces(all) {
                    self.follow_file();
                }
            }
            Err(error) => self.tell_problem(&error.chain()),
        }
    }

    /// Reads the file of policies again.
    fn reload(&mut self) {
        let Some(file) = &mut self.file else {
            return;
        };
        match file.read() {
            Ok(()) => self.follow_file(),
            Err(error) => {
                let what = format!(
                    "policies not reloaded, nothing has changed: {}",
                    error.chain()
                );
                (self.tell)(&Notice::warning(what));
            }
        }
    }

    fn follow_file(&mut self) {
        let report = self.report();
        let assigned = self.file.as_mut().map(|file| file.assigned(report));
        match assigned.transpose() {
            Ok(Some(Some(assignment))) => self.follower.assign(assignment),
            Ok(_) => {}
            Err(error) => self.tell_problem(&error.chain()),
        }
    }

    fn report(&self) -> Report {
        let mut report = self.follower.report(unix_ns(), env!("CARGO_PKG_VERSION"));
        // Whatever else does not work without it.
        if self.is_gone {
            report.problem = GONE.to_owned();
        }
        report
    }

    /// Does what there is to do.
    fn look(&mut self) {
        let addresses = self.desk.lock().names.addresses.clone();
        self.follower.addresses(addresses);
        let assigned = self.desk.lock().inbox.take();
        if let Some(assignment) = assigned {
            if let Err(error) = self.state.keep_assignment(&assignment) {
                self.tell_problem(&error.chain());
            }
            self.follower.assign(assignment);
        }
        let ended = self.child.as_mut().and_then(Child::ended);
        if ended.is_some() {
            self.child = None;
            self.desk.lock().tally.ended(None);
        }
        let now = self.now_ms();
        match self.follower.step(now, ended) {
            Step::Wait => {}
            Step::Stop => {
                if let Some(child) = self.child.take() {
                    self.retire(child);
                }
            }
            Step::Start(plan) => self.start(plan),
            Step::Reload(plan) => {
                let reloaded = self.recorder.check(&plan);
                let reloaded = reloaded.and_then(|()| match &mut self.child {
                    Some(child) => child.reload(&plan),
                    None => Err(RoleError::Refused(
                        "the recording is no longer running".into(),
                    )),
                });
                self.done(plan, reloaded);
            }
        }
        self.publish();
    }

    /// Starts a recording, in the place of the one that runs if there is one.
    fn start(&mut self, plan: strata_agent::Plan) {
        let checked = self.recorder.check(&plan);
        let started = checked.and_then(|()| match self.child.take() {
            Some(old) => self.replace(old, &plan),
            None => {
                self.child = Some(self.recorder.start(&plan, None)?);
                Ok(())
            }
        });
        self.done(plan, started);
    }

    /// Both recordings run for a while, and each exports what is on its side of a moment: so nothing is lost
    /// and nothing comes twice.
    fn replace(&mut self, old: Child, plan: &strata_agent::Plan) -> Result<()> {
        let mut new = match self.recorder.start(plan, Some(&old)) {
            Ok(new) => new,
            Err(error) => {
                self.child = Some(old);
                return Err(error);
            }
        };
        let failed = new.ready().or_else(|| {
            let ahead = self.hand_over(&old, &new);
            ahead.map_or_else(
                |error| Some(error.chain()),
                |ahead| new.watch(ahead + AFTER),
            )
        });
        self.child = Some(match &failed {
            None => {
                self.retire(old);
                new
            }
            Some(_) => {
                let _ = old.between(None, None);
                // It has exported nothing.
                new.end();
                old
            }
        });
        failed.map_or(Ok(()), |why| Err(RoleError::Refused(why)))
    }

    /// Ends a recording, and keeps what it has counted.
    fn retire(&self, child: Child) {
        let last = child.counted();
        child.end();
        self.desk.lock().tally.ended(last);
    }

    /// Lets one recording export from a moment on, and the other before it; returns when it comes.
    fn hand_over(&self, old: &Child, new: &Child) -> Result<Duration> {
        let mut ahead = HANDOVER;
        loop {
            let at = unix_ns() + exact::<u64>(ahead.as_nanos());
            let mut told = new.between(Some(at), None);
            if told.is_ok() {
                told = old.between(None, Some(at));
                if told.is_err() {
                    // Unless it is later than that, it has exported nothing yet.
                    new.between(Some(NEVER), None)?;
                    if unix_ns() >= at {
                        let what = "this host was too busy for a handover in time: a few seconds \
                        of packets may be exported twice";
                        (self.tell)(&Notice::warning(what));
                    }
                }
            }
            match told {
                Ok(()) => return Ok(ahead),
                Err(_) if ahead < HANDOVER_MAX => ahead *= 2,
                Err(error) => return Err(error),
            }
        }
    }

    fn done(&mut self, plan: strata_agent::Plan, done: Result<()>) {
        let now = self.now_ms();
        match done {
            Ok(()) => {
                for note in plan.notes.iter().filter(|note| !self.notes.contains(note)) {
                    (self.tell)(&Notice::info("interfaces", note));
                }
                self.notes.clone_from(&plan.notes);
                self.follower.took(plan, now);
            }
            Err(error) => self.follower.refused(plan, error.chain(), now),
        }
    }

    /// Lets the link report what has changed.
    fn publish(&mut self) {
        let problem = self.follower.problem().to_owned();
        if problem.is_empty() {
            self.problem.clear();
        } else {
            self.tell_problem(&problem);
        }
        let report = self.report();
        let mut shared = self.desk.lock();
        shared.socket = self.child.as_ref().map(|child| child.socket.clone());
        let is_new = Report {
            time_ns: 0,
            ..report.clone()
        } != Report {
            time_ns: 0,
            ..shared.report.clone()
        };
        shared.report = report;
        drop(shared);
        if is_new {
            self.interrupt.interrupt();
            self.wake_link.wake();
        }
    }

    /// Each problem once, while it lasts.
    fn tell_problem(&mut self, problem: &str) {
        if self.problem != problem {
            problem.clone_into(&mut self.problem);
            (self.tell)(&Notice::warning(problem.to_owned()));
        }
    }
}
