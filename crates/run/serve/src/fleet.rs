//! The fleet of a controller: its agents, the progress of its policies, and whether all exported packets arrived. The
//! controller is asked on its socket, as `strata controller` asks it; nothing is changed there.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use serde::Serialize;
use strata_agent::{
    AgentStatus, Closing, CollectorState, DestinationSum, Event, ExportCount, InterfaceSum, Rollout,
};
use strata_control::client::{ControllerClient, ControllerError};
use strata_log_views::answers::refused::Refused;
use strata_log_views::answers::times::{self, SECOND_NS};
use strata_wire::count_of;
use utoipa::ToSchema;

/// How long an answer of the controller is shown to further browsers, and how long a failure is.
const FRESH: Duration = Duration::from_secs(1);
/// How long they are shown while the controller is asked again.
const KEPT: Duration = Duration::from_secs(10);
/// Agents, sums of a destination, and interfaces of an agent in an answer; of more, only their number.
const HOSTS_MAX: usize = 1000;
const SUMS_MAX: usize = 1000;
const INTERFACES_MAX: usize = 64;
/// Agents that a sentence names.
const NAMES_MAX: usize = 10;
/// Events in an answer, the newest.
const EVENTS_MAX: usize = 50;
/// A clock that is off by this or more is shown, as in `strata controller agents`.
const CLOCK_OFF_MS: u64 = 1000;

/// The state of a fleet at its controller.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "controller": "/var/lib/strata/controller/control.sock",
    "at": "2026-01-31T13:05:00.000000000Z",
    "hosts": {"all": 3, "up": 2, "silent": 1, "never": 0, "revoked": 0, "behind": 1, "problems": 1, "clocks_off": 1},
    "rollout": {"version": 7, "since": "2026-01-31T12:00:00.000000000Z", "running": 2, "returns_to": 6},
    "listed": [{
        "name": "web-2", "state": "silent", "heard_seconds": 312, "clock_offset_ms": -1834, "clock_is_off": true,
        "version": 6, "behind_why": "silent", "program": "0.9.0", "labels": {"rack": "7"}, "captures": 1,
        "interfaces": [{
            "name": "tap0", "identity": 2, "is_present": true, "behind": "libvirt blue-1", "alias": "", "mac": "",
            "bridge": "",
        }],
        "interfaces_left_out": 0, "kernel_dropped": 12, "lost": 4,
        "exports": [{
            "destination": "analyser", "packets": 41118, "lost": 4, "unfit": 0, "cut": 0, "datagrams_not_sent": 9,
            "problem": "",
        }],
        "cpu": null, "problem": "analyser: no route to host", "copies": [],
        "certificate_until": "2026-02-28T12:00:00.000000000Z",
    }],
    "hosts_left_out": 2,
    "destinations": [{
        "name": "analyser",
        "collector": {
            "state": "up", "heard_seconds": 1, "from": "192.0.2.10", "program": "0.9.0", "copies": [],
            "datagrams_not_accepted": 0, "packets_not_written": 0, "socket_drops": 3, "sessions_left_out": 0,
        },
        "sums": [{
            "name": "web-1:tap0", "identity": 1, "exported": 606_924, "received": 606_867, "lost": 57, "before": 0,
            "missing": 0,
        }],
        "sums_left_out": 0,
        "sum": {
            "name": "", "identity": 0, "exported": 606_924, "received": 606_867, "lost": 57, "before": 0, "missing": 0,
        },
        "closes": null,
        "doubts": ["packets that these agents have exported since their last report are not in \
         the sums: web-2"],
    }],
    "events": [{
        "at": "2026-01-31T12:00:00.000000000Z", "kind": "apply", "who": "uid 0", "what": "version 7: + policy web",
        "why": "ticket 4711",
    }],
}))]
pub(crate) struct Fleet {
    /// Its socket.
    controller: String,
    /// The time of the request to the controller.
    at: String,
    hosts: FleetHosts,
    rollout: FleetRollout,
    /// Agents, at most 1,000; agents with problems are first.
    listed: Vec<FleetHost>,
    hosts_left_out: usize,
    destinations: Vec<FleetDestination>,
    /// The latest changes at the controller, newest first, at most 50.
    events: Vec<FleetEvent>,
}

/// Numbers of agents.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
struct FleetHosts {
    all: usize,
    up: usize,
    /// That have not reported for 30 s.
    silent: usize,
    /// That have not reported since the controller started.
    never: usize,
    revoked: usize,
    /// That are not revoked, and do not run the newest version of the policies.
    behind: usize,
    /// With a problem, of their own or of a destination.
    problems: usize,
    /// Agents whose clock is wrong by a second or more.
    clocks_off: usize,
}

/// How far the newest version of the policies is.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct FleetRollout {
    /// 0 if no policies were applied.
    version: u64,
    #[schema(required)]
    since: Option<String>,
    /// Agents that run it without a problem.
    running: usize,
    /// The version that `strata controller rollout undo` would apply again.
    #[schema(required)]
    returns_to: Option<u64>,
}

/// An agent.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct FleetHost {
    name: String,
    /// `up`, `silent`, `never` or `revoked`.
    state: String,
    /// Seconds since its last report; null if there was none since the controller started.
    #[schema(required)]
    heard_seconds: Option<u64>,
    /// Its clock minus the controller's at its last report.
    #[schema(required)]
    clock_offset_ms: Option<i64>,
    /// Whether the offset is a second or more.
    clock_is_off: bool,
    /// Version of the policies that it runs.
    version: u64,
    /// Why that is not the newest, or why it has problems with it.
    #[schema(required)]
    behind_why: Option<String>,
    /// Version of the program.
    program: String,
    labels: BTreeMap<String, String>,
    /// Number of interfaces that it captures.
    captures: u32,
    /// Interfaces with an identity, and others that may be captured; at most 64.
    interfaces: Vec<FleetInterface>,
    interfaces_left_out: usize,
    /// Packets dropped by its kernel because the rings were full, since it started.
    kernel_dropped: u64,
    /// Packets lost before they could be sent, to all destinations.
    lost: u64,
    exports: Vec<FleetExport>,
    #[schema(required)]
    cpu: Option<FleetCpu>,
    /// Empty if there is none.
    problem: String,
    /// Addresses of two agents that report with its certificate; empty if there is one.
    copies: Vec<String>,
    certificate_until: String,
}

/// An interface of an agent.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct FleetInterface {
    name: String,
    #[schema(required)]
    identity: Option<u32>,
    /// Whether its last report has it.
    is_present: bool,
    /// Its other end: a network namespace, a virtual machine; empty if unknown.
    behind: String,
    alias: String,
    mac: String,
    bridge: String,
}

/// Packets that an agent exported to a destination, since it started.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct FleetExport {
    destination: String,
    packets: u64,
    lost: u64,
    unfit: u64,
    cut: u64,
    datagrams_not_sent: u64,
    /// Why not, in the last second.
    problem: String,
}

/// CPU time of an agent's recording, in cores.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct FleetCpu {
    budget: f64,
    left: f64,
    used: f64,
    /// Share of flows that it captures.
    flow_share: f64,
    /// Why not all of the budget is left.
    short: String,
}

/// Packets exported to a destination, by identity, and received by its collector.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct FleetDestination {
    name: String,
    #[schema(required)]
    collector: Option<FleetCollector>,
    /// By identity, at most 1,000; identities whose sums do not agree are first.
    sums: Vec<FleetSum>,
    sums_left_out: usize,
    /// Of all of them.
    sum: FleetSum,
    /// Whether `exported` = `received` + `lost` + `before`, as of the reports; null if a part is unknown.
    #[schema(required)]
    closes: Option<bool>,
    /// Packets that may be missing from the sums, or cannot be compared.
    doubts: Vec<String>,
}

/// A collector that reports to the controller.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct FleetCollector {
    /// As of an agent.
    state: String,
    #[schema(required)]
    heard_seconds: Option<u64>,
    /// The address that it reports from.
    from: String,
    program: String,
    copies: Vec<String>,
    datagrams_not_accepted: u64,
    packets_not_written: u64,
    /// Messages that did not fit into its socket's buffer.
    socket_drops: u64,
    sessions_left_out: u64,
}

/// Packets of an interface: `exported` = `received` + `lost` + `before` + `missing`.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct FleetSum {
    /// `HOST:INTERFACE`; empty if that is not known.
    name: String,
    identity: u32,
    exported: u64,
    received: u64,
    /// Known to be lost.
    lost: u64,
    /// From before this run of the collector.
    before: u64,
    /// That the collector does not know of.
    missing: u64,
}

/// A change at the controller.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct FleetEvent {
    at: String,
    kind: &'static str,
    who: String,
    what: String,
    why: String,
}

/// A controller that is asked for its fleet.
pub(crate) struct Controller {
    socket: PathBuf,
    client: ControllerClient,
    /// Held while it is asked.
    asking: Mutex<()>,
    last: Mutex<Option<Last>>,
}

/// When a controller was asked, and its answer.
type Last = (Instant, Result<Arc<Fleet>, Refused>);

impl Controller {
    /// The controller at `place`: its state directory, the directory of its socket, or the socket.
    pub(crate) fn new(place: &Path) -> Self {
        let client = ControllerClient::new(place);
        Self {
            socket: client.socket().to_owned(),
            client,
            asking: Mutex::default(),
            last: Mutex::default(),
        }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its fleet, as of the last second. Each of the four requests may take 5 s until its answer begins, and 60 s in
    /// all; the first that fails is the last. Meanwhile, others get the answer before, or are to try again: all lookups
    /// of the page share few turns, so none waits for another's.
    pub(crate) fn fleet(&self) -> Result<Arc<Fleet>, Refused> {
        let asking = match self.asking.try_lock() {
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Ok(asking) => Some(asking),
        };
        let most = if asking.is_some() { FRESH } else { KEPT };
        let last = self.last().clone();
        if let Some((_, answer)) = last.filter(|(asked, _)| asked.elapsed() < most) {
            return answer;
        }
        if asking.is_none() {
            return Err(Refused::busy(
                "the controller has not answered another request yet: try again in a moment",
            ));
        }
        let answer = self.ask().map(Arc::new).map_err(Refused::from);
        *self.last() = Some((Instant::now(), answer.clone()));
        answer
    }

    fn last(&self) -> MutexGuard<'_, Option<Last>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self) -> Result<Fleet, ControllerError> {
        let known = Known {
            agents: self.client.agents()?,
            rollout: self.client.rollout()?,
            sums: self.client.sums()?,
            events: self.client.log(EVENTS_MAX)?,
        };
        Ok(known.fleet(self.socket.display().to_string()))
    }
}

/// Answers of a controller.
struct Known {
    agents: Vec<AgentStatus>,
    rollout: Rollout,
    sums: Vec<DestinationSum>,
    events: Vec<Event>,
}

fn at_second(second: u64) -> String {
    times::text(second.saturating_mul(SECOND_NS))
}

/// The first `max` of a list; returns the number of those left out.
fn cut<T>(list: &mut Vec<T>, max: usize) -> usize {
    let left_out = list.len().saturating_sub(max);
    list.truncate(max);
    left_out
}

impl Known {
    fn fleet(self, controller: String) -> Fleet {
        let version = self.rollout.version;
        let mut whys: HashMap<String, String> = HashMap::new();
        for other in self.rollout.others {
            whys.insert(other.name, other.why);
        }
        let hosts = self.agents.into_iter();
        let mut listed: Vec<FleetHost> = hosts
            .map(|agent| {
                let why = whys.remove(&agent.name);
                FleetHost::of(agent, why)
            })
            .collect();
        let number = |is: &dyn Fn(&FleetHost) -> bool| listed.iter().filter(|one| is(one)).count();
        let hosts = FleetHosts {
            all: listed.len(),
            up: number(&|one| one.state == "up"),
            silent: number(&|one| one.state == "silent"),
            never: number(&|one| one.state == "never"),
            revoked: number(&|one| one.state == "revoked"),
            behind: number(&|one| one.state != "revoked" && one.version != version),
            problems: number(&FleetHost::has_problem),
            clocks_off: number(&|one| one.clock_is_off),
        };
        // By name, as the controller lists them, among those that are equally bad.
        listed.sort_by_key(|one| Reverse(one.trouble(version)));
        let hosts_left_out = cut(&mut listed, HOSTS_MAX);
        let events = self.events.into_iter().rev().map(|event| FleetEvent {
            at: at_second(event.time),
            kind: event.kind.name(),
            who: event.who,
            what: event.what,
            why: event.why,
        });
        Fleet {
            controller,
            at: times::now(),
            hosts,
            rollout: FleetRollout {
                version,
                since: (self.rollout.since > 0).then(|| at_second(self.rollout.since)),
                running: self.rollout.running,
                returns_to: self.rollout.before.last().copied(),
            },
            listed,
            hosts_left_out,
            destinations: self.sums.into_iter().map(FleetDestination::of).collect(),
            events: events.take(EVENTS_MAX).collect(),
        }
    }
}

impl FleetHost {
    fn of(agent: AgentStatus, behind_why: Option<String>) -> Self {
        let mut interfaces = interfaces(&agent);
        let interfaces_left_out = cut(&mut interfaces, INTERFACES_MAX);
        let lost = agent.exports.iter().map(|to| to.lost);
        let lost = lost.fold(0_u64, u64::saturating_add);
        let clock_offset_ms = agent.heard.map(|_| agent.skew_ms);
        let cpu = agent.cpu.map(|cpu| {
            let cores = |thousandths: u32| f64::from(thousandths) / 1000.0;
            FleetCpu {
                budget: cores(cpu.budget),
                left: cores(cpu.left),
                used: cores(cpu.used),
                flow_share: cores(cpu.flows),
                short: cpu.short,
            }
        });
        Self {
            name: agent.name,
            // Of a revoked agent, the state says it.
            behind_why: behind_why.filter(|_| agent.state != "revoked"),
            state: agent.state,
            heard_seconds: agent.heard,
            clock_offset_ms,
            clock_is_off: clock_offset_ms.is_some_and(|ms| ms.unsigned_abs() >= CLOCK_OFF_MS),
            version: agent.runs,
            program: agent.program,
            labels: agent.labels,
            captures: agent.captures,
            interfaces,
            interfaces_left_out,
            kernel_dropped: agent.dropped,
            lost,
            exports: agent.exports.into_iter().map(FleetExport::of).collect(),
            cpu,
            problem: agent.problem,
            copies: agent.copies,
            certificate_until: at_second(agent.certificate_until),
        }
    }

    fn has_problem(&self) -> bool {
        let has_problem = |to: &FleetExport| !to.problem.is_empty();
        !self.problem.is_empty() || !self.copies.is_empty() || self.exports.iter().any(has_problem)
    }

    /// The larger, the sooner somebody should look at it.
    fn trouble(&self, version: u64) -> u8 {
        let has_lost = self.lost > 0 || self.kernel_dropped > 0;
        match self.state.as_str() {
            "revoked" => 0,
            "silent" => 6,
            "never" => 5,
            _ if self.has_problem() => 4,
            _ if self.version != version => 3,
            _ if self.clock_is_off || has_lost => 2,
            _ => 1,
        }
    }
}

/// Those with an identity first, by name.
fn interfaces(agent: &AgentStatus) -> Vec<FleetInterface> {
    let mut named: BTreeMap<&str, FleetInterface> = BTreeMap::new();
    for one in &agent.interfaces {
        let interface = FleetInterface {
            name: one.name.clone(),
            identity: None,
            is_present: true,
            behind: one.behind.clone(),
            alias: one.alias.clone(),
            mac: one.mac.clone(),
            bridge: one.bridge.clone(),
        };
        named.insert(&one.name, interface);
    }
    for (name, identity) in &agent.identities {
        let interface = named.entry(name).or_insert_with(|| FleetInterface {
            name: name.clone(),
            identity: None,
            is_present: false,
            behind: String::new(),
            alias: String::new(),
            mac: String::new(),
            bridge: String::new(),
        });
        interface.identity = Some(*identity);
    }
    let mut all: Vec<FleetInterface> = named.into_values().collect();
    all.sort_by_key(|one| one.identity.is_none());
    all
}

impl FleetExport {
    fn of(to: ExportCount) -> Self {
        Self {
            destination: to.name,
            packets: to.packets,
            lost: to.lost,
            unfit: to.unfit,
            cut: to.cut,
            datagrams_not_sent: to.not_sent,
            problem: to.problem,
        }
    }
}

impl FleetDestination {
    fn of(to: DestinationSum) -> Self {
        let closes = match to.closing() {
            Closing::Closed => Some(true),
            Closing::Open(_) => Some(false),
            Closing::Unknown => None,
        };
        let mut doubts = to.doubts(NAMES_MAX);
        if to.collector.is_none() {
            let doubt = "no collector of this name reports to the controller";
            doubts.push(String::from(doubt));
        } else if to.heard().is_none() {
            let doubt = "its collector has not reported since the controller started";
            doubts.push(String::from(doubt));
        }
        if to.interfaces.is_empty() {
            doubts.push(String::from("no packets with numbers were exported"));
        }
        if to.without_numbers > 0 {
            let packets = count_of(to.without_numbers, "packet");
            doubts.push(format!(
                "{packets} exported without numbers: by VXLAN, or by agents of an earlier version"
            ));
        }
        let mut sums: Vec<FleetSum> = to.interfaces.into_iter().map(FleetSum::of).collect();
        sums.sort_by_key(|one| (Reverse(one.missing), Reverse(one.lost)));
        Self {
            name: to.name,
            collector: to.collector.map(FleetCollector::of),
            sums_left_out: cut(&mut sums, SUMS_MAX),
            sums,
            sum: FleetSum::of(to.sum),
            closes,
            doubts,
        }
    }
}

impl FleetCollector {
    fn of(collector: CollectorState) -> Self {
        Self {
            state: collector.state,
            heard_seconds: collector.heard,
            from: collector.from,
            program: collector.program,
            copies: collector.copies,
            datagrams_not_accepted: collector.not_accepted,
            packets_not_written: collector.not_written,
            socket_drops: collector.socket_drops,
            sessions_left_out: collector.left_out,
        }
    }
}

impl FleetSum {
    fn of(sum: InterfaceSum) -> Self {
        Self {
            name: sum.name,
            identity: sum.identity,
            exported: sum.exported,
            received: sum.received,
            lost: sum.lost,
            before: sum.before,
            missing: sum.missing,
        }
    }
}

#[cfg(test)]
mod tests;
