//! The role of a controller of agents (`docs/agents.md`): `strata_agent::Registry` behind HTTP, with its
//! state in a directory.
//!
//! ```text
//! agents, administrators -> HTTP thread: registry -> store thread: database -> answer
//! ```
//!
//! The directory has `state.redb`, `ca.crt` and `ca.key` (the authority of agents' certificates),
//! `enrol.token` for hosts that are to become agents, and `control.sock` for administrators.

mod metrics;
mod store;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::thread::CapabilitySet;
use strata_agent::{
    AgentStatus, Applied, Assignment, Change, CollectorReport, DestinationSum, DocumentFile, Enrol,
    Enrolled, Event, EventKind, Registry, RegistryError, Renew, Report, Rollout,
};
use strata_auth::authority::{Authority, Fingerprint, Issued, write_private};
use strata_auth::keys::MasterKey;
use strata_control::agent_client::TOKEN_DIGITS;
use strata_control::agents::{AgentsRefused, AgentsService, By};
use strata_control::api::{Admit, Endpoints, TcpEndpoint, serve_agents, serve_fleet_metrics};
use strata_control::client::CONTROLLER_SOCKET;
use strata_control::config::read_keys;
use strata_control::metrics::Format;
use strata_control::watch;
use strata_role::sandbox::{Reach, give_up, make_private_files, unconfined};
use strata_role::{At as _, Notice, Result, RoleError, Tell, Waker, require, warn_if_shared};
use strata_sandbox::{Owner, SocketFile, make_secret_dir, read_secret};
use strata_wire::{unix_ns, unix_seconds};

use metrics::Fleet;
use store::Store;

/// What a host needs to become an agent, in the directory.
pub const ENROL_TOKEN: &str = "enrol.token";
/// Keys from which those of exports come, in the directory.
const EXPORT_KEY: &str = "export.key";
/// Bytes of a token.
const TOKEN_BYTES: usize = TOKEN_DIGITS / 2;

/// A controller of agents.
#[derive(Clone, Debug)]
pub struct ControllerSpec {
    /// Its directory, made if it does not exist.
    pub state: PathBuf,
    /// Where agents reach it: address and port.
    pub listen: String,
    /// Where to serve metrics over plain HTTP: address and port; nowhere by default.
    pub metrics: Option<String>,
    /// Make keys for exports if they do not exist.
    pub encrypt: bool,
    /// Drop what is not needed once its directory is open.
    pub sandboxed: bool,
}

type ToStore = (Vec<Change>, SyncSender<std::result::Result<(), String>>);

/// Differences of an event that are listed, of more only their number.
const LISTED: usize = 20;

/// What the HTTP thread works on.
struct Service {
    registry: Mutex<Registry>,
    store: Mutex<SyncSender<ToStore>>,
    authority: Authority,
    token: String,
    changes: watch::Sender<u64>,
    /// Why the state cannot be stored: then nothing more may be decided.
    failed: Mutex<Option<String>>,
    /// Lets the main thread see that.
    waker: Waker,
    tell: Tell,
}

fn refused(error: &RegistryError) -> AgentsRefused {
    match error {
        RegistryError::Unknown | RegistryError::Revoked(_) => {
            AgentsRefused::Stranger(error.to_string())
        }
        RegistryError::Copy { .. } => AgentsRefused::Copy(error.to_string()),
        _ => AgentsRefused::Wrong(error.to_string()),
    }
}

/// Something that happens now.
fn event(kind: EventKind, by: &By, what: String) -> Event {
    Event {
        time: unix_seconds(),
        kind,
        who: by.who.clone(),
        what,
        why: by.why.clone(),
    }
}

/// What applying or undoing has changed.
fn changed(applied: &Applied) -> String {
    let mut all = applied.differences.clone();
    if all.len() > LISTED {
        let more = all.split_off(LISTED).len();
        all.push(format!("{more} more"));
    }
    format!("version {}: {}", applied.version, all.join(", "))
}

fn enrolled(issued: Issued) -> Enrolled {
    Enrolled {
        certificate: issued.pem,
        renew_at: issued.renew_at,
    }
}

impl Service {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a change, and stores it before anybody hears of it.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Registry) -> std::result::Result<(T, Vec<Change>), RegistryError>,
    ) -> std::result::Result<T, AgentsRefused> {
        let mut registry = self.registry();
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = &*failed {
            return Err(AgentsRefused::Store(why.clone()));
        }
        let (answer, changes) = change(&mut registry).map_err(|error| refused(&error))?;
        if !changes.is_empty()
            && let Err(why) = self.save(changes)
        {
            *failed = Some(why.clone());
            self.waker.wake();
            return Err(AgentsRefused::Store(why));
        }
        Ok(answer)
    }

    /// Makes a change that is an event: both are stored, or neither. The event is also told.
    fn act<T>(
        &self,
        change: impl FnOnce(&mut Registry) -> std::result::Result<(T, Vec<Change>), RegistryError>,
        event: impl FnOnce(&T) -> Event,
    ) -> std::result::Result<T, AgentsRefused> {
        let mut noted = None;
        let answer = self.change(|registry| {
            let (answer, mut changes) = change(registry)?;
            noted = (!changes.is_empty()).then(|| event(&answer));
            changes.extend(noted.iter().flat_map(|event| registry.note(event.clone())));
            Ok((answer, changes))
        })?;
        if let Some(event) = &noted {
            self.tell_event(event);
        }
        Ok(answer)
    }

    /// A member with its kind.
    fn named(&self, name: &str) -> String {
        let kind = self.registry().kind(name);
        kind.map_or_else(|| name.to_owned(), |kind| format!("{name}, {kind}"))
    }

    fn tell_event(&self, event: &Event) {
        let mut text = format!("{} by {}: {}", event.kind.name(), event.who, event.what);
        if !event.why.is_empty() {
            text = format!("{text} ({})", event.why);
        }
        (self.tell)(&Notice::info("event", text));
    }

    /// Two agents report with one certificate.
    fn note_copy(
        &self,
        error: &RegistryError,
        from: &str,
    ) -> std::result::Result<(), AgentsRefused> {
        let RegistryError::Copy {
            name,
            other,
            is_new: true,
        } = error
        else {
            return Ok(());
        };
        let by = By {
            who: from.to_owned(),
            why: String::new(),
        };
        let what = format!(
            "{name} reports from {other} and from {from}: its directory was copied; the second is refused"
        );
        let event = event(EventKind::Copy, &by, what);
        self.change(|registry| Ok(((), registry.note(event.clone()))))?;
        self.tell_event(&event);
        Ok(())
    }

    fn save(&self, changes: Vec<Change>) -> std::result::Result<(), String> {
        let (done, stored) = sync_channel(1);
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = || String::from("the thread that stores is gone");
        store.send((changes, done)).map_err(|_| gone())?;
        stored.recv().map_err(|_| gone())?
    }

    /// Gives agents the keys that are in the file now; those before, if they cannot be used.
    fn reload(&self, spec: &ControllerSpec, tell: &Tell) {
        match export_key(spec) {
            Ok(key) => {
                self.registry().use_key(key);
                self.tell_agents();
            }
            Err(error) => tell(&Notice::warning(format!(
                "{}; agents keep their current keys",
                error.chain()
            ))),
        }
    }

    fn tell_agents(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn issue(&self, name: &str, key: &[u8]) -> std::result::Result<Issued, AgentsRefused> {
        let issued = self.authority.issue(name, key);
        issued.map_err(|error| AgentsRefused::Wrong(error.to_string()))
    }
}

impl AgentsService for Service {
    fn enrol(&self, request: &Enrol, from: &str) -> std::result::Result<Enrolled, AgentsRefused> {
        if !strata_control::same_secret(&request.token, &self.token) {
            let what = "this token is not the one in the controller's enrol.token";
            return Err(AgentsRefused::Stranger(what.to_owned()));
        }
        let seconds = unix_seconds();
        let may = self
            .registry()
            .may_enrol_as(request.is_collector, &request.name, seconds);
        may.map_err(|error| refused(&error))?;
        let issued = self.issue(&request.name, &request.public_key)?;
        let by = By {
            who: from.to_owned(),
            why: String::new(),
        };
        let kind = match request.is_collector {
            true => "a collector",
            false => "an agent",
        };
        self.act(
            |registry| {
                let (name, until) = (&request.name, issued.until);
                let changes = registry.enrolled_as(
                    request.is_collector,
                    name,
                    issued.fingerprint,
                    until,
                    seconds,
                )?;
                Ok(((), changes))
            },
            |()| event(EventKind::Enrol, &by, format!("{}, {kind}", request.name)),
        )?;
        Ok(enrolled(issued))
    }

    fn knows(&self, shown: &Fingerprint) -> std::result::Result<(), AgentsRefused> {
        self.registry()
            .who(shown)
            .map(drop)
            .map_err(|error| refused(&error))
    }

    fn renew(
        &self,
        shown: &Fingerprint,
        request: &Renew,
    ) -> std::result::Result<Enrolled, AgentsRefused> {
        let name = self
            .registry()
            .who(shown)
            .map(str::to_owned)
            .map_err(|error| refused(&error))?;
        let issued = self.issue(&name, &request.public_key)?;
        self.change(|registry| {
            let changes = registry.renewed(shown, issued.fingerprint, issued.until)?;
            Ok(((), changes))
        })?;
        Ok(enrolled(issued))
    }

    fn report(
        &self,
        shown: &Fingerprint,
        report: Report,
        from: &str,
    ) -> std::result::Result<Option<Assignment>, AgentsRefused> {
        let (ns, mut copy) = (unix_ns(), None);
        let answer = self.change(|registry| {
            let answer = registry.report(shown, report, from, ns);
            copy = answer.as_ref().err().cloned();
            answer
        });
        if let Some(error) = &copy {
            self.note_copy(error, from)?;
        }
        answer
    }

    fn collected(
        &self,
        shown: &Fingerprint,
        report: CollectorReport,
        from: &str,
    ) -> std::result::Result<(), AgentsRefused> {
        let taken = self.registry().collected(shown, report, from, unix_ns());
        if let Err(error) = &taken {
            self.note_copy(error, from)?;
        }
        taken.map_err(|error| refused(&error))
    }

    fn left(&self, shown: &Fingerprint, run: u64) {
        self.registry().left(shown, run);
    }

    fn assignment(
        &self,
        shown: &Fingerprint,
    ) -> std::result::Result<Option<Assignment>, AgentsRefused> {
        self.change(|registry| registry.assignment(shown))
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn agents(&self) -> Vec<AgentStatus> {
        self.registry().agents(unix_ns())
    }

    fn rollout(&self) -> Rollout {
        self.registry().rollout(unix_ns())
    }

    fn metrics(&self, format: Format) -> String {
        let registry = self.registry();
        let now_ns = unix_ns();
        let fleet = Fleet {
            agents: registry.agents(now_ns),
            destinations: registry.sums(now_ns),
            version: registry.version(),
        };
        drop(registry);
        metrics::page(fleet, format)
    }

    fn sums(&self) -> Vec<DestinationSum> {
        self.registry().sums(unix_ns())
    }

    fn events(&self, most: usize) -> Vec<Event> {
        self.registry().events(most)
    }

    fn apply(
        &self,
        files: &[DocumentFile],
        dry_run: bool,
        by: &By,
    ) -> std::result::Result<Applied, AgentsRefused> {
        if dry_run {
            let checked = self.registry().check(files);
            return checked
                .map(|(_, applied)| applied)
                .map_err(|error| refused(&error));
        }
        let applied = self.act(
            |registry| registry.apply(files, unix_seconds()),
            |applied| event(EventKind::Apply, by, changed(applied)),
        )?;
        self.tell_agents();
        Ok(applied)
    }

    fn undo(&self, by: &By) -> std::result::Result<Applied, AgentsRefused> {
        let applied = self.act(
            |registry| registry.undo(unix_seconds()),
            |applied| event(EventKind::Undo, by, changed(applied)),
        )?;
        self.tell_agents();
        Ok(applied)
    }

    fn revoke(&self, name: &str, by: &By) -> std::result::Result<(), AgentsRefused> {
        let what = self.named(name);
        self.act(
            |registry| Ok(((), registry.revoke(name)?)),
            |()| event(EventKind::Revoke, by, what),
        )?;
        self.tell_agents();
        Ok(())
    }

    fn forget(&self, name: &str, by: &By) -> std::result::Result<(), AgentsRefused> {
        let what = self.named(name);
        self.act(
            |registry| Ok(((), registry.forget(name)?)),
            |()| event(EventKind::Forget, by, what),
        )?;
        self.tell_agents();
        Ok(())
    }
}

/// The token and the authority's certificate: what a host needs to become an agent.
fn enrol_token(state: &Path, authority: &Authority) -> Result<String> {
    let path = state.join(ENROL_TOKEN);
    if !path.try_exists().at(path.display())? {
        let mut bytes = [0; TOKEN_BYTES];
        getrandom::fill(&mut bytes).map_err(|error| RoleError::Refused(error.to_string()))?;
        let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        write_private(&path, &format!("{token}\n{}", authority.pem())).at(path.display())?;
    }
    let text = read_secret(&path).map_err(|error| RoleError::Refused(error.to_string()))?;
    let token = text.lines().next().unwrap_or("").to_owned();
    match token.len() < TOKEN_BYTES || !text.contains("BEGIN CERTIFICATE") {
        true => Err(RoleError::Refused(format!(
            "{}: this is not a token that a controller has written: remove the file, and the controller creates a new one",
            path.display()
        ))),
        false => Ok(token),
    }
}

/// The first of the keys from which those of exports come; none, if there is no file and no key is to be
/// made.
fn export_key(spec: &ControllerSpec) -> Result<Option<MasterKey>> {
    let path = spec.state.join(EXPORT_KEY);
    if !path.try_exists().at(path.display())? {
        if !spec.encrypt {
            return Ok(None);
        }
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| RoleError::Refused(error.to_string()))?;
        let line = MasterKey::new(bytes).line();
        write_private(&path, &format!("{line}\n")).at(path.display())?;
    }
    let keys = read_keys(&path).map_err(|error| RoleError::Refused(error.to_string()))?;
    match keys.master() {
        Some(master) => Ok(Some(master.clone())),
        None => Err(RoleError::Refused(format!(
            "{}: this file has only keys of individual identities: keys of agents are derived from \
             a line of 64 hexadecimal digits",
            path.display()
        ))),
    }
}

/// It listens after this, on a port that it may still need a right for.
fn confine_to(spec: &ControllerSpec, socket: &SocketFile, tell: &Tell) -> Result<()> {
    let port = spec.listen.rsplit_once(':').map(|(_, port)| port.parse());
    let is_privileged = matches!(port, Some(Ok(0_u16..1024)));
    let keep = match is_privileged {
        true => CapabilitySet::NET_BIND_SERVICE,
        false => CapabilitySet::empty(),
    };
    let reach = Reach {
        home: Some(spec.state.clone()),
        delete: socket.own_dirs().into_iter().flatten().collect(),
        ..Reach::default()
    };
    give_up(&Owner::default(), &reach, keep, tell)
}

/// Runs a controller until `stop`, which may have changed when `waker` is woken, as may
/// `reload`, which asks to read the keys of exports again.
///
/// # Errors
///
/// If its directory or address cannot be used, or its state cannot be stored.
pub fn run_controller(
    spec: &ControllerSpec,
    stop: &AtomicBool,
    waker: &Waker,
    mut reload: impl FnMut() -> bool,
    tell: &Tell,
) -> Result<()> {
    let owner = Owner::default();
    make_private_files();
    make_secret_dir(&spec.state)?;
    warn_if_shared(&spec.state, tell);
    let (database, earlier) = (spec.state.join("state.redb"), spec.state.join("state.db"));
    require(database.exists() || !earlier.exists(), || {
        format!(
            "{}: an earlier version wrote this file in a format that this version cannot read. \
             Starting without it would assign identities again: name another directory (--state), \
             and enrol the agents there",
            earlier.display()
        )
    })?;
    let (store, stored) = Store::open(&database)?;
    let authority = Authority::open(&spec.state)?;
    let token = enrol_token(&spec.state, &authority)?;
    let socket = SocketFile::bind(&spec.state.join(CONTROLLER_SOCKET), &owner)?;
    let tcp = TcpEndpoint {
        address: spec.listen.clone(),
        admit: Admit::Agents,
        tls: Some(authority.server()?),
    };
    match spec.sandboxed {
        true => confine_to(spec, &socket, tell)?,
        false => unconfined(),
    }
    let (to_store, to_do) = sync_channel(1);
    let storing = thread::Builder::new()
        .name("strata-store".into())
        .spawn(move || keep(store, &to_do))
        .map_err(RoleError::thread("writes the state of the controller"))?;
    let mut registry = Registry::new(stored, 1);
    registry.use_key(export_key(spec)?);
    let service = Arc::new(Service {
        registry: Mutex::new(registry),
        store: Mutex::new(to_store),
        authority,
        token,
        changes: watch::Sender::new(0),
        failed: Mutex::new(None),
        waker: waker.clone(),
        tell: Arc::clone(tell),
    });
    let endpoints = Endpoints {
        socket: Some(socket),
        tcp: Some(tcp),
    };
    let warn = Arc::clone(tell);
    let warn = move |text| warn(&Notice::warning(text));
    let server = serve_agents(Arc::clone(&service) as _, endpoints, warn)?;
    let warn = Arc::clone(tell);
    let warn = move |text| warn(&Notice::warning(text));
    let address = spec.metrics.as_deref();
    let metrics = address.map(|at| serve_fleet_metrics(Arc::clone(&service) as _, at, warn));
    let metrics = metrics.transpose()?;
    let token = spec.state.join(ENROL_TOKEN);
    let what = format!(
        "listening for agents on TCP {}; hosts enrol with {}",
        spec.listen,
        token.display()
    );
    tell(&Notice::serving(&spec.listen, what));
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    let failed = || {
        service
            .failed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    };
    while !stop.load(Ordering::Relaxed) && failed().is_none() {
        waker.wait(None);
        if reload() {
            service.reload(spec, tell);
        }
    }
    let failed = failed();
    drop((server, metrics));
    drop(service);
    let _ = storing.join();
    let db = spec.state.join("state.redb");
    failed.map_or(Ok(()), |why| {
        Err(RoleError::Refused(format!("{}: {why}", db.display())))
    })
}

/// Stores what comes, until all senders are gone.
fn keep(mut store: Store, changes: &Receiver<ToStore>) {
    while let Ok((changes, done)) = changes.recv() {
        let _ = done.send(store.save(&changes).map_err(|error| error.to_string()));
    }
}
