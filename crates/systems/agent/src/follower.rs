//! The agent: what to capture and export, from what it was assigned and what is there.
//!
//! A recording that is running is a process of its own. Policies change while it runs; it starts anew
//! if its interfaces or their identities change, which it reads at its start only.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::bridged::{Ports, bridged, own_policies, ports};
use crate::limits::INTERFACES_MAX;
use crate::message::{AssignedPolicy, Assignment, Interface, Report};
use crate::pattern::matches;
use crate::plan::{Config, Export, Plan, destination, snaplen};
use crate::switched::{Switches, switched};

/// After a recording could not start or has ended, the next is started after this time, ms, and after
/// twice as long each time, up to the most.
const AGAIN_MS: u64 = 1000;
const AGAIN_MAX_MS: u64 = 30_000;

/// What only this host decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// File with keys of its own, by which what it exports is encrypted.
    pub own_keys: Option<String>,
    /// File for keys that the controller assigns.
    pub assigned_keys: String,
    /// Its name for collectors.
    pub host: String,
    /// Names of interfaces that may be captured, with `*` and `?`.
    pub interfaces: Vec<String>,
    /// Labels by which policies select it.
    pub labels: BTreeMap<String, String>,
    /// Whether a packet that crosses a bridge is exported by each captured interface that it passes.
    pub all_copies: bool,
    /// Where packets may be sent, by the names that policies use.
    pub destinations: BTreeMap<String, String>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Wait,
    /// Start a recording, in the place of the one that runs if there is one, and say [`Follower::took`] or
    /// [`Follower::refused`]: then that one goes on.
    Start(Plan),
    /// Let the recording that runs read this configuration, and say the same.
    Reload(Plan),
    /// End the recording that runs.
    Stop,
}

/// An agent.
#[derive(Debug)]
pub struct Follower {
    local: Local,
    /// Interfaces that are there and may be captured.
    present: Vec<Interface>,
    /// Ports of bridges, also those that may not be captured.
    ports: Ports,
    /// Switches in user space.
    switches: Switches,
    /// Of destinations that are names, as far as they are known.
    addresses: BTreeMap<String, SocketAddr>,
    assignment: Option<Assignment>,
    /// The recording that should run, by these two.
    wanted: Option<Plan>,
    running: Option<Plan>,
    /// Version of the policies that take effect.
    runs: u64,
    /// A plan that was refused, and why.
    refused: Option<(Plan, String)>,
    /// Why the last recording ended by itself; empty while one runs.
    ended: String,
    /// Not before this time, ms, after failures in a row.
    not_before_ms: u64,
    failures: u32,
    /// When the recording that runs was started, ms.
    since_ms: u64,
}

impl Follower {
    /// An agent that goes on with what it was assigned before.
    #[must_use]
    pub fn new(local: Local, assignment: Option<Assignment>) -> Self {
        Self {
            local,
            present: Vec::new(),
            ports: Ports::new(),
            switches: Switches::default(),
            addresses: BTreeMap::new(),
            assignment,
            wanted: None,
            running: None,
            runs: 0,
            refused: None,
            ended: String::new(),
            not_before_ms: 0,
            failures: 0,
            since_ms: 0,
        }
    }

    /// Interfaces of the host, all of them; returns whether others than before may be captured.
    pub fn interfaces(&mut self, all: Vec<Interface>) -> bool {
        let ports = ports(&all);
        let patterns = &self.local.interfaces;
        let is_meant = |one: &Interface| patterns.iter().any(|pattern| matches(pattern, &one.name));
        let mut present: Vec<Interface> = all.into_iter().filter(is_meant).collect();
        present.sort_by(|one, other| one.name.cmp(&other.name));
        present.truncate(INTERFACES_MAX);
        let is_new = present != self.present || ports != self.ports;
        if is_new {
            (self.present, self.ports) = (present, ports);
            self.wanted = self.plan();
        }
        is_new
    }

    /// Software switches of the host.
    pub fn switches(&mut self, switches: Switches) {
        if switches != self.switches {
            self.switches = switches;
            self.wanted = self.plan();
        }
    }

    /// Patterns of interfaces that may be captured, but do not exist.
    #[must_use]
    pub fn unmatched(&self) -> Vec<&str> {
        let none = |pattern: &&String| !self.present.iter().any(|one| matches(pattern, &one.name));
        let patterns = self.local.interfaces.iter().filter(none);
        patterns.map(String::as_str).collect()
    }

    /// Addresses of destinations that are names, by the names that policies use.
    pub fn addresses(&mut self, addresses: BTreeMap<String, SocketAddr>) {
        if addresses != self.addresses {
            self.addresses = addresses;
            self.wanted = self.plan();
        }
    }

    /// What to do from now on.
    pub fn assign(&mut self, assignment: Assignment) {
        self.assignment = Some(assignment);
        self.wanted = self.plan();
        // What failed may work now.
        self.refused = None;
        self.not_before_ms = 0;
    }

    /// What the agent was assigned, to be kept for the time without a controller.
    #[must_use]
    pub fn assignment(&self) -> Option<&Assignment> {
        self.assignment.as_ref()
    }

    /// The recording that should run.
    fn plan(&self) -> Option<Plan> {
        let assignment = self.assignment.as_ref()?;
        let present = self.present.iter().map(|interface| &interface.name);
        let identity = |name: &String| Some((name.clone(), *assignment.identities.get(name)?));
        let mut identities: BTreeMap<String, u32> = present.filter_map(identity).collect();
        let captured = identities.keys().map(String::as_str);
        let own = own_policies(captured, &assignment.policies);
        let (bridged, switched) = match self.local.all_copies {
            true => Default::default(),
            false => (bridged(&self.ports, &own), switched(&self.switches, &own)),
        };
        identities.retain(|name, _| !bridged.left_out.contains(name));
        let fits = |policy: &&AssignedPolicy| {
            let only = policy.interface.as_ref();
            only.is_none_or(|only| identities.contains_key(only))
        };
        let policies: Vec<&AssignedPolicy> = assignment.policies.iter().filter(fits).collect();
        let snaplen = policies
            .iter()
            .map(|policy| snaplen(&policy.action))
            .max()?;
        let keys = (!assignment.keys.is_empty()).then(|| assignment.keys.join("\n") + "\n");
        let assigned = keys.as_ref().map(|_| self.local.assigned_keys.as_str());
        let config = Config {
            default: "drop",
            policy: policies,
            export: Export {
                host: &self.local.host,
                // Every interface has its own below; this is what those without would begin at.
                identity: *identities.values().min()?,
                key_file: self.local.own_keys.as_deref().or(assigned),
                identities: &identities,
                behind: self.behind(&identities),
                destinations: &self.local.destinations,
                addresses: &self.addresses,
            },
        };
        let mut named = config
            .policy
            .iter()
            .filter_map(|policy| destination(&policy.action));
        let unknown = named.find(|name| !self.local.destinations.contains_key(name));
        let problem = unknown.map(|name| {
            format!(
                "a policy exports to {name}, which this host does not permit: start its agent with \
                 --destination {name}=URL too"
            )
        });
        Some(Plan {
            problem,
            interfaces: identities.keys().cloned().collect(),
            config: toml::to_string(&config).expect("names and numbers are TOML"),
            keys: keys.filter(|_| self.local.own_keys.is_none()),
            snaplen,
            bridge_ports: bridged.ports,
            in_only: switched.in_only,
            out_only: switched.out_only,
            notes: [bridged.notes, switched.notes].concat(),
            identities,
            is_encrypted: self.local.own_keys.is_some() || assigned.is_some(),
        })
    }

    /// What is at the other end of interfaces that are captured, where it is known.
    fn behind(&self, captured: &BTreeMap<String, u32>) -> BTreeMap<&str, &str> {
        let present = self.present.iter();
        let known =
            present.filter(|one| !one.behind.is_empty() && captured.contains_key(&one.name));
        known
            .map(|one| (one.name.as_str(), one.behind.as_str()))
            .collect()
    }

    /// What to do at this time, ms. `ended` is why the recording that was running has ended.
    pub fn step(&mut self, now_ms: u64, ended: Option<String>) -> Step {
        if let Some(why) = ended
            && self.running.take().is_some()
        {
            self.ended = why;
            if now_ms.saturating_sub(self.since_ms) >= AGAIN_MAX_MS {
                self.failures = 0;
            }
            self.wait(now_ms);
        }
        if self.running == self.wanted {
            self.settled();
            return Step::Wait;
        }
        let wanted = self.wanted.clone();
        let is_refused = |plan: &Plan| self.refused.as_ref().is_some_and(|(bad, _)| bad == plan);
        match (&self.running, wanted) {
            (None, None) => Step::Wait,
            (Some(_), None) => {
                self.running = None;
                Step::Stop
            }
            (None, Some(plan)) => match now_ms < self.not_before_ms {
                true => Step::Wait,
                false => Step::Start(plan),
            },
            // What runs is better than nothing. Policies that are refused stay so, but another recording
            // may start next time.
            (Some(running), Some(plan))
                if is_refused(&plan)
                    && !running.contradicts(&plan)
                    && (running.fits(&plan) || now_ms < self.not_before_ms) =>
            {
                Step::Wait
            }
            (Some(running), Some(plan)) if running.fits(&plan) => Step::Reload(plan),
            // Another interface may have this identity now.
            (Some(running), Some(plan)) if running.contradicts(&plan) => {
                self.running = None;
                Step::Stop
            }
            (Some(_), Some(plan)) => Step::Start(plan),
        }
    }

    /// When to ask for a step again at the latest, ms, after one that waits at this time.
    #[must_use]
    pub fn again_at(&self, now_ms: u64) -> Option<u64> {
        let is_due = self.running != self.wanted && self.not_before_ms > now_ms;
        is_due.then_some(self.not_before_ms)
    }

    fn wait(&mut self, now_ms: u64) {
        let wait = AGAIN_MS << self.failures.min(8);
        self.not_before_ms = now_ms.saturating_add(wait.min(AGAIN_MAX_MS));
        self.failures = self.failures.saturating_add(1);
    }

    /// A plan has taken effect at this time, ms.
    pub fn took(&mut self, plan: Plan, now_ms: u64) {
        if self.running.is_none() {
            self.since_ms = now_ms;
        }
        self.running = Some(plan);
        if self.running == self.wanted {
            self.settled();
        }
    }

    /// What runs is what should.
    fn settled(&mut self) {
        self.runs = self
            .assignment
            .as_ref()
            .map_or(0, |assignment| assignment.version);
        self.refused = None;
        self.ended.clear();
    }

    /// A plan could not take effect: what ran before goes on.
    pub fn refused(&mut self, plan: Plan, why: String, now_ms: u64) {
        self.refused = Some((plan, why));
        self.wait(now_ms);
    }

    /// What does not work; empty if all does.
    #[must_use]
    pub fn problem(&self) -> &str {
        self.refused.as_ref().map_or(&self.ended, |(_, why)| why)
    }

    /// The report to the controller at this time (ns since 1970), but for what the recording has
    ///counted.
    ///
    /// # Panics
    ///
    /// Never: there are at most [`INTERFACES_MAX`] interfaces.
    #[must_use]
    pub fn report(&self, time_ns: u64, program: &str) -> Report {
        Report {
            time_ns,
            program: program.to_owned(),
            labels: self.local.labels.clone(),
            interfaces: self.present.clone(),
            has: self.assignment.as_ref().map(|assignment| assignment.stamp),
            runs: self.runs,
            captures: self.running.as_ref().map_or(0, |plan| {
                u32::try_from(plan.interfaces.len()).expect("they are bounded")
            }),
            problem: self.problem().to_owned(),
            ..Report::default()
        }
    }
}

#[cfg(test)]
mod tests;
