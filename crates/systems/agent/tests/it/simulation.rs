//! A controller and 1,000 agents in virtual time: a change reaches all within a second; whatever fails,
//! agents go on, no two interfaces share an identity, and in the end all do what the documents say.

use std::collections::{BTreeMap, BTreeSet};

use strata_agent::{
    AgentRecord, Assignment, Change, DocumentFile, Follower, Interface, Local, Registry, Report,
    SpentIdentity, Step, Stored, Version,
};
use strata_testkit::sim::{MS, Queue, Rng, SECOND, seeds};

const AGENTS: usize = 1000;
/// As the HTTP server has it.
const HOLD: u64 = 5 * SECOND;

#[derive(Debug)]
enum Event {
    /// An agent asks; of this connection.
    Ask(usize, u64),
    /// Its request arrives.
    Asked(usize, u64, Box<Report>),
    /// The wait for something new is over.
    Held(usize, u64),
    /// The answer arrives.
    Answer(usize, u64, Option<Box<Assignment>>),
    /// The files are applied.
    Apply(u64),
    /// The controller is killed, or starts again.
    Kill,
    Start,
    /// An agent is killed, and starts again with what it kept.
    Restart(usize),
    /// A connection is gone.
    Cut(usize),
    /// An interface comes or goes.
    Interfaces(usize),
}

struct Agent {
    follower: Follower,
    interfaces: BTreeSet<u32>,
    connection: u64,
    config: String,
    /// Kept in its directory.
    kept: Option<Assignment>,
}

struct World {
    queue: Queue<Event>,
    rng: Rng,
    agents: Vec<Agent>,
    registry: Option<Registry>,
    disk: Disk,
    /// Requests that wait, with their connection.
    held: BTreeMap<usize, u64>,
    loss: u64,
    /// What was applied last.
    applied: u64,
}

/// What a controller has stored.
#[derive(Default)]
struct Disk {
    agents: BTreeMap<String, AgentRecord>,
    identities: BTreeMap<u32, (String, String)>,
    spent: BTreeMap<u32, SpentIdentity>,
    versions: BTreeMap<u64, Version>,
}

impl Disk {
    fn save(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Agent(record) => drop(self.agents.insert(record.name.clone(), record)),
                Change::AgentGone(name) => drop(self.agents.remove(&name)),
                Change::Identity {
                    identity,
                    agent,
                    interface,
                } => {
                    let before = self.identities.insert(identity, (agent, interface));
                    assert_eq!(before, None, "identity {identity} is somebody's");
                }
                Change::IdentityGone(identity) => {
                    assert!(self.identities.remove(&identity).is_some());
                }
                Change::Spent(one) => drop(self.spent.insert(one.identity, one)),
                Change::Version(version) => drop(self.versions.insert(version.number, version)),
                Change::VersionGone(number) => drop(self.versions.remove(&number)),
                Change::Event(..) | Change::EventGone(_) => unreachable!("nothing is noted"),
            }
        }
    }

    fn stored(&self) -> Stored {
        let identities = self.identities.iter();
        Stored {
            agents: self.agents.values().cloned().collect(),
            identities: identities
                .map(|(number, (agent, interface))| (*number, agent.clone(), interface.clone()))
                .collect(),
            spent: self.spent.values().cloned().collect(),
            versions: self.versions.values().cloned().collect(),
            events: Vec::new(),
        }
    }
}

fn name(agent: usize) -> String {
    format!("host-{agent}")
}

fn certificate(agent: usize) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&(agent as u64).to_le_bytes());
    bytes
}

fn local(agent: usize) -> Local {
    Local {
        host: name(agent),
        interfaces: vec!["tap*".into()],
        labels: BTreeMap::from([("rack".into(), (agent % 10).to_string())]),
        destinations: BTreeMap::from([("here".into(), "udp://192.0.2.1:4740".into())]),
        ..Local::default()
    }
}

/// A tenant's policy, one for a rack, and one for all, which tell the version.
fn files(number: u64) -> Vec<DocumentFile> {
    let text = format!(
        "[[policy]]\nname = 'all'\nmatch = 'tcp port {number}'\naction = 'header -> here'\n\
         [[policy]]\nname = 'rack'\nmatch = 'udp port {number}'\naction = 'payload -> here'\n\
         labels = {{ rack = '3' }}\n\
         [[policy]]\nname = 'blue'\nmatch = 'icmp'\naction = 'drop'\ntenant = 'blue'\n\
         [[tenant]]\nname = 'blue'\ninterfaces = ['host-7*:tap1']\n"
    );
    let name = String::from("policies.toml");
    vec![DocumentFile { name, text }]
}

/// What an agent's recording should have, from the text above.
fn expected(agent: usize, interfaces: &BTreeSet<u32>, number: u64) -> Vec<String> {
    let mut all = vec![format!("tcp port {number}")];
    if agent % 10 == 3 {
        all.push(format!("udp port {number}"));
    }
    if name(agent).starts_with("host-7") && interfaces.contains(&1) {
        all.push("icmp".into());
    }
    all.sort();
    all
}

fn matches(config: &str) -> Vec<String> {
    let lines = config
        .lines()
        .filter_map(|line| line.strip_prefix("match = "));
    let mut all: Vec<String> = lines
        .map(|line| line.trim_matches('"').to_owned())
        .collect();
    all.sort();
    all
}

impl World {
    fn new(seed: u64, loss: u64) -> Self {
        let mut world = Self {
            queue: Queue::default(),
            rng: Rng::new(seed),
            agents: Vec::new(),
            registry: Some(Registry::default()),
            disk: Disk::default(),
            held: BTreeMap::new(),
            loss,
            applied: 0,
        };
        for agent in 0..AGENTS {
            let registry = world.registry.as_mut().unwrap();
            let changes = registry.enrolled(&name(agent), certificate(agent), u64::MAX, 0);
            world.disk.save(changes.unwrap());
            world.agents.push(Agent {
                follower: Follower::new(local(agent), None),
                interfaces: BTreeSet::from([0, 1]),
                connection: 0,
                config: String::new(),
                kept: None,
            });
            world.look(agent);
            let at = world.rng.below(SECOND);
            world.queue.at(at, Event::Ask(agent, 0));
        }
        world
    }

    /// An agent finds its interfaces, and does what it has to.
    fn look(&mut self, agent: usize) {
        let now_ms = self.queue.now() / MS;
        let one = &mut self.agents[agent];
        let interface = |number: &u32| Interface {
            name: format!("tap{number}"),
            index: *number,
            ..Interface::default()
        };
        one.follower
            .interfaces(one.interfaces.iter().map(interface).collect());
        loop {
            match one.follower.step(now_ms, None) {
                Step::Wait => break,
                Step::Stop => one.config.clear(),
                Step::Start(plan) | Step::Reload(plan) => {
                    one.config.clone_from(&plan.config);
                    one.follower.took(plan, now_ms);
                }
            }
        }
    }

    /// The agent connects anew after a while.
    fn again(&mut self, agent: usize, after: u64) {
        let one = &mut self.agents[agent];
        one.connection += 1;
        let connection = one.connection;
        self.queue
            .at(self.queue.now() + after, Event::Ask(agent, connection));
    }

    fn send(&mut self, agent: usize, event: Event) {
        if self.rng.chance(self.loss) {
            // The connection breaks; the agent notices after its limit.
            self.held.remove(&agent);
            return self.again(agent, 15 * SECOND);
        }
        let at = self.queue.now() + self.rng.within(MS..50 * MS);
        self.queue.at(at, event);
    }

    fn is_current(&self, agent: usize, connection: u64) -> bool {
        self.agents[agent].connection == connection
    }

    fn look_up(&mut self, agent: usize, connection: u64, may_wait: bool) {
        let registry = self.registry.as_mut().unwrap();
        let (found, changes) = registry.assignment(&certificate(agent)).unwrap();
        self.disk.save(changes);
        match (found, may_wait) {
            (None, true) => {
                self.held.insert(agent, connection);
                let at = self.queue.now() + HOLD;
                self.queue.at(at, Event::Held(agent, connection));
            }
            (found, _) => {
                self.held.remove(&agent);
                self.send(agent, Event::Answer(agent, connection, found.map(Box::new)));
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Ask(agent, connection) if self.is_current(agent, connection) => {
                let now = self.queue.now();
                let report = self.agents[agent].follower.report(now, "1");
                self.send(agent, Event::Asked(agent, connection, Box::new(report)));
            }
            Event::Asked(agent, connection, report) if self.is_current(agent, connection) => {
                let now = self.queue.now();
                let Some(registry) = &mut self.registry else {
                    return self.again(agent, SECOND);
                };
                let (_, changes) = registry
                    .report(&certificate(agent), *report, "10.0.0.1", now)
                    .unwrap();
                self.disk.save(changes);
                self.look_up(agent, connection, true);
            }
            Event::Held(agent, connection) => {
                if self.held.get(&agent) == Some(&connection) && self.is_current(agent, connection)
                {
                    self.held.remove(&agent);
                    self.send(agent, Event::Answer(agent, connection, None));
                }
            }
            Event::Answer(agent, connection, found) if self.is_current(agent, connection) => {
                if let Some(assignment) = found {
                    self.agents[agent].kept = Some((*assignment).clone());
                    self.agents[agent].follower.assign(*assignment);
                    self.look(agent);
                }
                self.queue
                    .at(self.queue.now(), Event::Ask(agent, connection));
            }
            Event::Apply(number) => {
                let now = self.queue.now();
                let Some(registry) = &mut self.registry else {
                    return self.queue.at(now + SECOND, Event::Apply(number));
                };
                let (_, changes) = registry.apply(&files(number), now).unwrap();
                self.disk.save(changes);
                self.applied = number;
                for (agent, connection) in std::mem::take(&mut self.held) {
                    self.look_up(agent, connection, false);
                }
            }
            Event::Kill => {
                self.registry = None;
                for (agent, _) in std::mem::take(&mut self.held) {
                    let after = self.rng.within(SECOND..3 * SECOND);
                    self.again(agent, after);
                }
            }
            Event::Start => self.registry = Some(Registry::new(self.disk.stored(), 1)),
            Event::Restart(agent) => {
                let kept = self.agents[agent].kept.clone();
                self.agents[agent].follower = Follower::new(local(agent), kept);
                self.agents[agent].config.clear();
                self.held.remove(&agent);
                self.look(agent);
                self.again(agent, SECOND);
            }
            Event::Cut(agent) => {
                self.held.remove(&agent);
                self.again(agent, SECOND);
            }
            Event::Interfaces(agent) => {
                let number = u32::try_from(self.rng.below(4)).unwrap();
                let interfaces = &mut self.agents[agent].interfaces;
                if !interfaces.insert(number) {
                    interfaces.remove(&number);
                }
                self.held.remove(&agent);
                self.look(agent);
                // The agent reports at once.
                self.again(agent, MS);
            }
            Event::Ask(..) | Event::Asked(..) | Event::Answer(..) => {}
        }
    }

    fn run(&mut self, end: u64) {
        while let Some(event) = self.queue.take(end) {
            self.happen(event);
        }
    }

    /// How many agents do what the version with this number says.
    fn done(&self, number: u64) -> usize {
        let is_done = |(at, agent): &(usize, &Agent)| {
            let expected = match agent.interfaces.is_empty() {
                true => Vec::new(),
                false => expected(*at, &agent.interfaces, number),
            };
            matches(&agent.config) == expected
        };
        self.agents.iter().enumerate().filter(is_done).count()
    }
}

#[test]
fn a_change_reaches_a_thousand_agents_within_a_second() {
    let mut world = World::new(1, 0);
    world.queue.at(3 * SECOND, Event::Apply(1000));
    world.run(20 * SECOND);
    assert_eq!(world.done(1000), AGENTS);
    for number in 0..20 {
        let at = (20 + 3 * number) * SECOND + 777 * MS * number;
        world.queue.at(at, Event::Apply(number));
        world.run(at + SECOND);
        assert_eq!(world.done(number), AGENTS, "version {number}");
    }
    let rollout = world.registry.as_ref().unwrap().rollout(world.queue.now());
    assert_eq!(rollout.version, 21);
}

#[test]
fn whatever_fails_all_do_what_is_said_in_the_end() {
    seeds(2, |seed| {
        let mut world = World::new(seed, 10_000);
        for number in 0..30 {
            let at = world.rng.within(SECOND..100 * SECOND);
            world
                .queue
                .at((number + 1) * 3 * SECOND, Event::Apply(number));
            let agent = usize::try_from(world.rng.below(AGENTS as u64)).unwrap();
            for event in [
                Event::Restart(agent),
                Event::Cut(agent),
                Event::Interfaces(agent),
            ] {
                world.queue.at(at, event);
            }
        }
        for kill in [20, 50, 80] {
            let down = world.rng.within(SECOND..10 * SECOND);
            world.queue.at(kill * SECOND, Event::Kill);
            world.queue.at(kill * SECOND + down, Event::Start);
        }
        world.run(120 * SECOND);
        world.loss = 0;
        world.run(160 * SECOND);
        assert_eq!(world.done(world.applied), AGENTS, "seed {seed}");
        // What agents have is what the controller has stored.
        for (at, agent) in world.agents.iter().enumerate() {
            for (interface, identity) in &agent.kept.as_ref().unwrap().identities {
                let owner = &world.disk.identities[identity];
                assert_eq!(owner, &(name(at), interface.clone()));
            }
        }
        let rollout = world.registry.as_ref().unwrap().rollout(world.queue.now());
        assert_eq!(
            (rollout.running, rollout.others.len()),
            (AGENTS, 0),
            "{:?}",
            rollout.others.first()
        );
    });
}
