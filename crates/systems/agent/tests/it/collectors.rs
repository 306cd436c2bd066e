//! Agents that stream to a collector in virtual time, while the collector, the agents and the links between them
//! are killed in turn: whatever comes out is what was captured, once, and all else is counted.

use std::collections::{BTreeMap, BTreeSet};

use strata_auth::keys::{MasterKey, SALT_LEN, SealKeys};
use strata_exporter::{
    Datagram, Header, Label, Opener, PacketReader, PacketWriter, Sealer, Sequence, Source,
};
use strata_testkit::sim::{MS, Queue, Rng, SECOND, seeds};
use strata_wire::LinkType;

const AGENTS: usize = 100;
/// Packets that an agent takes at a time, at most, and how often.
const PACKETS: u64 = 40;
const EVERY: u64 = 200 * MS;
/// Seconds since 1970 when a world begins.
const BEGINS: u32 = 1_700_000_000;

enum Event {
    /// An agent captures, and sends what it has.
    Capture(usize),
    /// A datagram comes.
    Arrive(Vec<u8>),
    /// The collector is killed; it starts again.
    Kill,
    Start,
    /// An agent is killed, and starts again at once.
    Restart(usize),
    /// The link of an agent fails; it is back.
    Cut(usize),
    Join(usize),
}

struct Agent {
    writer: PacketWriter,
    sealer: Sealer,
    source: Source,
    is_cut: bool,
}

/// What a collector knows from its start to its end.
struct Collector {
    opener: Opener,
    sources: BTreeMap<(u32, u32), (Sequence, PacketReader)>,
}

struct World {
    queue: Queue<Event>,
    rng: Rng,
    agents: Vec<Agent>,
    collector: Option<Collector>,
    master: MasterKey,
    loss: u64,
    /// Packets that came out, over all lives of the collector.
    came: BTreeSet<(u32, u32, u64)>,
    /// How many were captured by each session.
    captured: BTreeMap<(u32, u32), u64>,
}

/// What a packet holds: who it is of, and its length.
fn packet(source: Source, number: u64) -> Vec<u8> {
    let (identity, session) = (source.identity, source.session);
    let mut bytes = format!("{identity} {session} {number} ").into_bytes();
    let len = bytes.len() + usize::try_from(number * 37 % 3000).unwrap();
    bytes.resize(len, 7);
    bytes
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let master = MasterKey::new([3; 32]);
        let mut world = Self {
            queue: Queue::default(),
            agents: Vec::new(),
            collector: None,
            master,
            loss: 20_000,
            came: BTreeSet::new(),
            captured: BTreeMap::new(),
            rng: Rng::new(rng.bits()),
        };
        for agent in 0..AGENTS {
            let one = world.agent(agent);
            world.agents.push(one);
            let at = world.rng.below(EVERY);
            world.queue.at(at, Event::Capture(agent));
        }
        world.start();
        world
    }

    /// A run of an agent: a session and a salt of its own.
    fn agent(&mut self, agent: usize) -> Agent {
        let source = Source {
            identity: u32::try_from(agent + 1).unwrap(),
            session: u32::try_from(self.rng.below(1 << 32)).unwrap(),
        };
        let mut salt = [0; SALT_LEN];
        salt.fill_with(|| self.rng.bits().to_le_bytes()[0]);
        Agent {
            writer: PacketWriter::new(source, LinkType::ETHERNET, 1400),
            sealer: Sealer::new(&self.master.of(source.identity), salt),
            source,
            is_cut: false,
        }
    }

    fn start(&mut self) {
        self.collector = Some(Collector {
            opener: Opener::new(SealKeys::parse(&self.master.line()).unwrap()),
            sources: BTreeMap::new(),
        });
    }

    fn now_s(&self) -> u32 {
        BEGINS + u32::try_from(self.queue.now() / SECOND).unwrap()
    }

    fn capture(&mut self, agent: usize) {
        let now_s = self.now_s();
        let packets = self.rng.below(PACKETS);
        let one = &mut self.agents[agent];
        let (mut plain, mut all) = (Vec::new(), Vec::new());
        for _ in 0..packets {
            let number = one.writer.next_packet();
            let bytes = packet(one.source, number);
            let header = Header {
                ts_ns: number,
                wire_len: u32::try_from(bytes.len()).unwrap(),
                bytes: &bytes,
                label: Label::default(),
            };
            one.writer.put(&header, |bytes| plain.push(bytes.to_vec()));
        }
        one.writer.finish(|bytes| plain.push(bytes.to_vec()));
        let key = (one.source.identity, one.source.session);
        self.captured.insert(key, one.writer.next_packet());
        for datagram in plain {
            let mut sealed = Vec::new();
            one.sealer.seal(now_s, &datagram, &mut sealed);
            all.push(sealed);
        }
        let is_cut = one.is_cut;
        for datagram in all {
            if is_cut || self.rng.chance(self.loss) {
                continue;
            }
            let copies = 1 + u64::from(self.rng.chance(self.loss));
            for _ in 0..copies {
                let at = self.queue.now() + self.rng.within(MS..30 * MS);
                self.queue.at(at, Event::Arrive(datagram.clone()));
            }
        }
        let next = self.queue.now() + EVERY;
        self.queue.at(next, Event::Capture(agent));
    }

    fn arrive(&mut self, sealed: &[u8]) {
        let now = self.now_s();
        let Some(collector) = &mut self.collector else {
            return;
        };
        // Comes twice.
        let Ok(plain) = collector.opener.open(sealed, now) else {
            return;
        };
        let datagram = Datagram::read(plain).unwrap();
        let source = datagram.source;
        let known = collector.sources.entry((source.identity, source.session));
        let (sequence, reader) = known.or_default();
        assert!(sequence.accept(&datagram), "{datagram:?}");
        let came = &mut self.came;
        let take = |number, header: &Header<'_>| {
            assert_eq!(header.bytes, packet(source, number));
            let key = (source.identity, source.session, number);
            assert!(came.insert(key), "{key:?} came twice");
        };
        reader.read(plain, take).unwrap();
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Capture(agent) => self.capture(agent),
            Event::Arrive(sealed) => self.arrive(&sealed),
            Event::Kill => self.collector = None,
            Event::Start => self.start(),
            Event::Restart(agent) => {
                let is_cut = self.agents[agent].is_cut;
                self.agents[agent] = self.agent(agent);
                self.agents[agent].is_cut = is_cut;
            }
            Event::Cut(agent) => self.agents[agent].is_cut = true,
            Event::Join(agent) => self.agents[agent].is_cut = false,
        }
    }

    fn run(&mut self, end: u64) {
        while let Some(event) = self.queue.take(end) {
            self.happen(event);
        }
    }

    /// What the collector has counted adds up to what was captured by sessions that it knows, as far as it
    /// heard of them; returns how many packets are neither counted nor there since they came last.
    fn check(&self) -> u64 {
        let mut unheard = 0;
        for (key, (sequence, _)) in &self.collector.as_ref().unwrap().sources {
            let counters = sequence.counters();
            let sum = counters.before + counters.packets + counters.lost;
            assert_eq!(sum, sequence.numbered(), "{key:?}: {counters:?}");
            let captured = self.captured[key];
            assert!(sequence.numbered() <= captured, "{key:?}");
            if self
                .agents
                .iter()
                .any(|one| (one.source.identity, one.source.session) == *key)
            {
                unheard += captured - sequence.numbered();
            }
        }
        unheard
    }
}

#[test]
fn whatever_is_killed_packets_come_once_or_are_counted() {
    seeds(3, |seed| {
        let mut world = World::new(seed);
        for second in 1..40 {
            let at = |world: &mut World| second * SECOND + world.rng.below(SECOND);
            for _ in 0..5 {
                let agent = usize::try_from(world.rng.below(AGENTS as u64)).unwrap();
                let cut = at(&mut world);
                world.queue.at(cut, Event::Cut(agent));
                let join = cut + world.rng.below(3 * SECOND);
                world.queue.at(join, Event::Join(agent));
                let agent = usize::try_from(world.rng.below(AGENTS as u64)).unwrap();
                let restart = at(&mut world);
                world.queue.at(restart, Event::Restart(agent));
            }
            if second % 8 == 0 {
                let kill = at(&mut world);
                world.queue.at(kill, Event::Kill);
                // Later than copies of what came before: a collector that starts does not know it.
                let start = kill + world.rng.within(50 * MS..2 * SECOND);
                world.queue.at(start, Event::Start);
            }
        }
        world.run(50 * SECOND);
        world.check();
        // Nothing fails any more: all that is captured from now on comes.
        world.loss = 0;
        let before = world.captured.clone();
        world.run(60 * SECOND);
        let keys: Vec<(u32, u32)> = world
            .agents
            .iter()
            .map(|one| (one.source.identity, one.source.session))
            .collect();
        for key in keys {
            let from = before[&key];
            // The last of them are on their way.
            let until = world.captured[&key].saturating_sub(PACKETS);
            for number in from..until {
                assert!(
                    world.came.contains(&(key.0, key.1, number)),
                    "{key:?}: {number}"
                );
            }
        }
        let unheard = world.check();
        assert!(unheard <= AGENTS as u64 * PACKETS, "{unheard}");
    });
}
