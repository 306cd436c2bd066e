//! The generator: which flow sends next, and when.

use strata_wire::{exact, prefetch};

use crate::flow::{Flow, Habits};
use crate::frame::{self, SPACE};
use crate::kind::Kind;
use crate::profile::{Class, Group, Profile};
use crate::random::{Noise, Random};
use crate::wheel::Wheel;

/// Ethernet header bytes of a frame.
const ETHERNET_LEN: u64 = 14;

/// The packet rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// The profile's rate times this many thousandths.
    Profile {
        /// 1000 is the profile's own rate.
        permille: u64,
    },
    /// Packets per second on average.
    PacketsPerSecond(u64),
    /// Bits of frames per second on average, without check sequence, preamble and gap.
    BitsPerSecond(u64),
}

/// What to generate, in addition to the profile.
#[derive(Clone, Debug)]
pub struct GeneratorOptions {
    /// The same seed gives the same packets.
    pub seed: u64,
    /// Flows active at a time; the profile's own if `None`.
    pub flows: Option<u32>,
    /// The rate.
    pub rate: Rate,
    /// Whether payloads are incompressible, rather than zeros.
    pub random_payload: bool,
    /// IPv6 flows in a hundred; the profile's own if `None`.
    pub ipv6_percent: Option<u32>,
    /// Time of the first packet, ns since 1970.
    pub start_ns: u64,
}

impl Default for GeneratorOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            flows: None,
            rate: Rate::Profile { permille: 1000 },
            random_payload: true,
            ipv6_percent: None,
            start_ns: 1_700_000_000_000_000_000,
        }
    }
}

/// A packet, apart from its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Nanoseconds since 1970.
    pub ts_ns: u64,
    /// Bytes of the frame, without check sequence; at most
    /// [`FRAME_MAX`](crate::FRAME_MAX).
    pub len: u16,
    /// Its kind of traffic: an index for [`Generator::source`].
    pub kind: u8,
    /// Whether it belongs to an attack.
    pub anomalous: bool,
}

/// Flows that take turns.
#[derive(Debug)]
struct Population {
    kinds: Vec<(u8, Kind)>,
    /// For a draw up to the sum of all weights: index into `kinds`.
    drawn: Vec<u8>,
    flows: Vec<Flow>,
    wheel: Wheel,
    /// Number of the next flow to start.
    number: u64,
    habits: Habits,
}

impl Population {
    fn new(
        group: &Group,
        first_kind: u8,
        number: u64,
        flows: u32,
        habits: &Habits,
        random: &mut Random,
    ) -> Self {
        let wheel = Wheel::new(flows, random);
        let habits = Habits {
            clients: (flows / 8).clamp(1, 1 << 18),
            delay_max: wheel.delay_max(),
            ..*habits
        };
        let kinds = (first_kind..)
            .zip(group.kinds.iter().map(|(kind, _)| *kind))
            .collect();
        let drawn = (0_u8..)
            .zip(&group.kinds)
            .flat_map(|(index, &(_, weight))| (0..weight).map(move |_| index))
            .collect();
        let mut population = Self {
            kinds,
            drawn,
            flows: Vec::new(),
            wheel,
            number,
            habits,
        };
        for _ in 0..flows {
            let (flow, kind) = population.start_flow(random);
            population.flows.push(flow.under_way(&kind, random));
        }
        population
    }

    fn start_flow(&mut self, random: &mut Random) -> (Flow, Kind) {
        let draws = exact::<u32>(self.drawn.len());
        let place = self.drawn[random.below(draws) as usize];
        let (_, kind) = self.kinds[usize::from(place)];
        let number = self.number;
        self.number += u64::from(self.habits.groups);
        (Flow::new(number, place, &kind, &self.habits, random), kind)
    }

    /// The next packet of the flow whose turn it is.
    #[inline]
    fn packet(
        &mut self,
        out: &mut [u8; SPACE],
        now_ms: u32,
        noise: Option<&mut Noise>,
        random: &mut Random,
    ) -> (usize, u8) {
        let mut noise = noise;
        loop {
            let (index, ahead) = self.wheel.turn();
            if let Some(ahead) = ahead {
                prefetch(&self.flows, ahead as usize);
            }
            let flow = &mut self.flows[index as usize];
            let (id, kind) = &self.kinds[usize::from(flow.kind)];
            let shape = flow.step(kind, random);
            let len = frame::build(out, flow, kind, &shape, now_ms, noise.as_deref_mut());
            let is_seen = !self.habits.is_core || flow.is_seen(shape.side);
            let (id, pause) = (*id, flow.pause(&self.habits, random));
            if shape.last {
                // Immediately, so that the number of active flows is constant.
                self.flows[index as usize] = self.start_flow(random).0;
                self.wheel.wait(index, 1);
            } else {
                self.wheel.wait(index, pause);
            }
            if is_seen {
                return (len, id);
            }
        }
    }
}

/// Populations whose packets together have a given mean length.
#[derive(Debug)]
struct Mixture {
    small: Population,
    large: Option<Population>,
    mean_millibytes: u64,
    /// IP bytes above the mean so far, times 1000.
    excess_millibytes: i64,
}

impl Mixture {
    #[inline]
    fn packet(
        &mut self,
        out: &mut [u8; SPACE],
        now_ms: u32,
        noise: Option<&mut Noise>,
        random: &mut Random,
    ) -> (usize, u8) {
        let population = match &mut self.large {
            Some(large) if self.excess_millibytes < 0 => large,
            _ => &mut self.small,
        };
        let (len, kind) = population.packet(out, now_ms, noise, random);
        let millibytes = (len as u64 - ETHERNET_LEN) * 1000;
        self.excess_millibytes += millibytes.cast_signed() - self.mean_millibytes.cast_signed();
        (len, kind)
    }
}

/// Generates packets one after another, in memory bounded by the active flows: 64 B for each, and 4
/// B for its place in time.
///
/// Statistics are kept as follows: each packet is drawn to be anomalous or not; and within benign
/// and anomalous packets, whether a flow of large or of small packets is next depends on whether
/// the mean so far is too small or too large. So both hold in every part of a trace. The number of
/// active flows is constant: when one ends, another starts.
///
/// ```
/// use strata_traffic::{Generator, GeneratorOptions, SPACE};
///
/// let profile = "cic-w3".parse().unwrap();
/// let mut generator = Generator::new(&profile, &GeneratorOptions::default());
/// let mut frame = [0; SPACE];
/// let packet = generator.packet_into(&mut frame);
/// println!("{} ns: {:02x?}", packet.ts_ns, &frame[..usize::from(packet.len)]);
/// ```
#[derive(Debug)]
pub struct Generator {
    /// At least one; benign traffic first.
    classes: Vec<Mixture>,
    /// Anomalous packets of 2^32.
    anomalous_share: u64,
    sources: Vec<(&'static str, bool)>,
    pace: Pace,
    random: Random,
    noise: Option<Noise>,
}

/// When the next packet is due.
#[derive(Debug)]
struct Pace {
    ts_ns: u64,
    /// Fraction of a ns, in units of 2^-32.
    fraction: u64,
    /// Mean gap after a packet in units of 2^-32 ns: a fixed part, and one per bit.
    gap: u64,
    gap_per_bit: u64,
}

impl Generator {
    /// A generator at the start of its sequence. Takes about 50 ns for each active flow.
    #[must_use]
    pub fn new(profile: &Profile, options: &GeneratorOptions) -> Self {
        let mut random = Random::new(options.seed);
        let flows = options.flows.unwrap_or(profile.active_flows).max(1);
        let ipv6 = options
            .ipv6_percent
            .map_or(profile.ipv6, |p| p.min(100) * 256 / 100);
        let groups = profile
            .classes
            .iter()
            .map(|class| 1 + u32::from(class.large.is_some()));
        let habits = Habits {
            groups: groups.sum(),
            clients: 1,
            ipv6,
            delay_max: 1,
            is_core: profile.is_core,
        };
        let mut sources: Vec<(&'static str, bool)> = Vec::new();
        let mut number = 0;
        let mut population = |group: &Group| {
            let share = u64::from(flows) * u64::from(group.flows) / 1000;
            let share = exact::<u32>(share).max(1);
            let first_kind = exact::<u8>(sources.len());
            sources.extend(
                group
                    .kinds
                    .iter()
                    .map(|(kind, _)| (kind.name, kind.anomalous)),
            );
            number += 1;
            Population::new(group, first_kind, number - 1, share, &habits, &mut random)
        };
        let mixture = |class: &Class| Mixture {
            small: population(&class.small),
            large: class.large.as_ref().map(&mut population),
            mean_millibytes: class.mean_millibytes,
            excess_millibytes: 0,
        };
        let classes = profile.classes.iter().map(mixture).collect();
        let noise = options.random_payload.then(|| Noise::new(options.seed));
        Self {
            classes,
            anomalous_share: (u64::from(profile.anomalous_ppm) << 32) / 1_000_000,
            sources,
            pace: Pace::new(profile, options),
            random,
            noise,
        }
    }

    /// Names of the kinds of traffic, and whether they are attacks.
    #[must_use]
    pub fn sources(&self) -> &[(&'static str, bool)] {
        &self.sources
    }

    /// The name of a packet's kind of traffic.
    #[must_use]
    pub fn source(&self, packet: &Packet) -> &'static str {
        self.sources[usize::from(packet.kind)].0
    }

    /// Writes the next frame to the start of `out`; the rest of it may be overwritten. There is
    /// always a next one.
    #[inline]
    pub fn packet_into(&mut self, out: &mut [u8; SPACE]) -> Packet {
        let anomalous = self.random.next() >> 32 < self.anomalous_share;
        let class = usize::from(anomalous).min(self.classes.len() - 1);
        let ts_ns = self.pace.ts_ns;
        #[allow(clippy::cast_possible_truncation)]
        let now_ms = (ts_ns / 1_000_000) as u32;
        let (noise, random) = (self.noise.as_mut(), &mut self.random);
        let (len, kind) = self.classes[class].packet(out, now_ms, noise, random);
        self.pace.advance(len as u64, self.random.waiting());
        Packet {
            ts_ns,
            len: exact::<u16>(len),
            kind,
            anomalous: self.sources[usize::from(kind)].1,
        }
    }
}

impl Pace {
    fn new(profile: &Profile, options: &GeneratorOptions) -> Self {
        let ns_of = |rate: u64| (1_000_000_000 << 32) / rate.max(1);
        let (gap, gap_per_bit) = match options.rate {
            Rate::Profile { permille } => {
                let rate = u128::from(profile.packets_per_second) * u128::from(permille) / 1000;
                (ns_of(exact::<u64>(rate)), 0)
            }
            Rate::PacketsPerSecond(rate) => (ns_of(rate), 0),
            Rate::BitsPerSecond(rate) => (0, ns_of(rate)),
        };
        Self {
            ts_ns: options.start_ns,
            fraction: 0,
            gap,
            gap_per_bit,
        }
    }

    /// `waiting` has mean 2^24.
    #[inline]
    #[allow(clippy::cast_possible_truncation)]
    fn advance(&mut self, len: u64, waiting: u64) {
        let mean = u128::from(self.gap) + u128::from(self.gap_per_bit) * u128::from(len * 8);
        let gap = ((mean * u128::from(waiting)) >> 24) + u128::from(self.fraction);
        self.ts_ns += (gap >> 32) as u64;
        self.fraction = gap as u64 & 0xffff_ffff;
    }
}
