//! Rule sets and packets for tests and benchmarks, shaped like those that ClassBench (Taylor and
//! Turner, INFOCOM 2005) makes from its seeds: prefix lengths, combinations of ports and protocols,
//! and addresses nested in few networks. The shares are read off the published description, not
//! copied from a seed.

use std::collections::HashSet;

use strata_rules::{Field, PacketFields, Region, Rule, Span, UNTAGGED};
use strata_wire::{AddressFamily, exact, mix64};

/// The kind of rule set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Access control list: long prefixes on both sides, any source port, mostly exact destination
    /// ports.
    Acl,
    /// Firewall: often any address on one side, ports often ranges.
    Firewall,
}

impl Kind {
    /// The name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Acl => "ACL",
            Self::Firewall => "FW",
        }
    }
}

/// A pseudo-random sequence (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(mix64(seed))
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.0)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }

    /// A number from 0 up to but excluding 1.
    #[allow(clippy::cast_precision_loss)]
    pub fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// One of several values, chosen by weight.
    fn weighted<T: Copy>(&mut self, of: &[(u64, T)]) -> T {
        let mut drawn = self.below(of.iter().map(|(weight, _)| weight).sum());
        for &(weight, value) in of {
            if drawn < weight {
                return value;
            }
            drawn -= weight;
        }
        of[0].1
    }

    fn within(&mut self, span: Span) -> u128 {
        let wide = u128::from(self.draw()) << 64 | u128::from(self.draw());
        match (span.high - span.low).checked_add(1) {
            Some(size) => span.low + wide % size,
            None => wide,
        }
    }
}

/// Well-known ports, the most frequent first.
const PORTS: [u16; 24] = [
    80, 443, 25, 53, 22, 21, 23, 110, 143, 123, 161, 389, 445, 139, 1433, 1521, 3306, 3389, 5060,
    5432, 6000, 8000, 8080, 8443,
];

/// Rules, each its own policy; narrower ones have higher priority, as in the files of ClassBench,
/// which are ordered by scope.
///
/// # Panics
///
/// If more than 65,535 rules are requested.
#[must_use]
pub fn rules(kind: Kind, count: usize, seed: u64) -> Vec<Rule> {
    assert!(
        count <= usize::from(u16::MAX),
        "a rule has its own priority"
    );
    let mut random = Random::new(seed);
    // Networks in which addresses nest, so that prefixes have common beginnings.
    let sources = networks(&mut random, count);
    let destinations = networks(&mut random, count);
    let mut known = HashSet::new();
    let mut regions: Vec<Region> = Vec::with_capacity(count);
    while regions.len() < count {
        let region = region(kind, &mut random, &sources, &destinations);
        if known.insert(region) {
            regions.push(region);
        }
    }
    regions.sort_by_key(scope);
    let numbered = regions.into_iter().enumerate();
    let rules = numbered.map(|(number, region)| Rule {
        region,
        priority: exact::<u16>(count - number),
        policy: exact::<u32>(number),
    });
    rules.collect()
}

/// The bits that a region leaves free, rounded up field by field.
fn scope(region: &Region) -> u32 {
    let free = |field: Field| {
        let span = region.span(field);
        u128::BITS - (span.high - span.low).leading_zeros()
    };
    Field::ALL.into_iter().map(free).sum()
}

fn networks(random: &mut Random, count: usize) -> Vec<u32> {
    let wide: Vec<u32> = (0..12)
        .map(|_| low32(random.draw()) & 0xffff_0000)
        .collect();
    let many = 8 + count / 8;
    let nested = (0..many).map(|_| {
        let base = wide[low32(random.draw()) as usize % wide.len()];
        base | low32(random.draw()) & 0x0000_ff00
    });
    nested.collect()
}

#[allow(clippy::cast_possible_truncation)]
fn low32(value: u64) -> u32 {
    value as u32
}

/// What the fields of a kind's rules are drawn from, each value with its weight.
struct Shares {
    source_lengths: &'static [(u64, u32)],
    destination_lengths: &'static [(u64, u32)],
    /// 256 for any.
    protocols: &'static [(u64, u128)],
    source_ports: &'static [(u64, Ports)],
    destination_ports: &'static [(u64, Ports)],
}

/// How a rule tests a port.
#[derive(Clone, Copy)]
enum Ports {
    WellKnown,
    FromOn1024,
    Range,
    Any,
}

const ACL: Shares = Shares {
    source_lengths: &[
        (40, 32),
        (12, 28),
        (8, 27),
        (20, 24),
        (6, 20),
        (6, 16),
        (8, 0),
    ],
    destination_lengths: &[
        (55, 32),
        (10, 30),
        (8, 28),
        (15, 24),
        (4, 20),
        (5, 16),
        (3, 0),
    ],
    protocols: &[(80, 6), (12, 17), (4, 1), (4, 256)],
    source_ports: &[
        (1, Ports::WellKnown),
        (2, Ports::FromOn1024),
        (97, Ports::Any),
    ],
    destination_ports: &[
        (68, Ports::WellKnown),
        (6, Ports::FromOn1024),
        (10, Ports::Range),
        (16, Ports::Any),
    ],
};

const FIREWALL: Shares = Shares {
    source_lengths: &[
        (22, 32),
        (6, 28),
        (12, 24),
        (4, 20),
        (6, 16),
        (2, 8),
        (48, 0),
    ],
    destination_lengths: &[
        (40, 32),
        (10, 28),
        (16, 24),
        (3, 22),
        (8, 16),
        (2, 8),
        (21, 0),
    ],
    protocols: &[(62, 6), (22, 17), (6, 1), (10, 256)],
    source_ports: &[
        (12, Ports::WellKnown),
        (22, Ports::FromOn1024),
        (4, Ports::Range),
        (62, Ports::Any),
    ],
    destination_ports: &[
        (50, Ports::WellKnown),
        (12, Ports::FromOn1024),
        (8, Ports::Range),
        (30, Ports::Any),
    ],
};

fn region(kind: Kind, random: &mut Random, sources: &[u32], destinations: &[u32]) -> Region {
    let shares = match kind {
        Kind::Acl => &ACL,
        Kind::Firewall => &FIREWALL,
    };
    let mut region = Region::ALL.with(Field::Family, Span::one(4));
    for (field, lengths, networks) in [
        (Field::Source, shares.source_lengths, sources),
        (Field::Destination, shares.destination_lengths, destinations),
    ] {
        let length = random.weighted(lengths);
        if length > 0 {
            let network = networks[low32(random.draw()) as usize % networks.len()];
            let hosts = u32::MAX.unbounded_shr(length);
            let low = (network | low32(random.draw()) & 0xff) & !hosts;
            region = region.with(field, Span::new(low.into(), (low | hosts).into()));
        }
    }
    let protocol = random.weighted(shares.protocols);
    if protocol < 256 {
        region = region.with(Field::Protocol, Span::one(protocol));
    }
    if protocol == 6 || protocol == 17 {
        for (field, ports) in [
            (Field::SourcePort, shares.source_ports),
            (Field::DestinationPort, shares.destination_ports),
        ] {
            let drawn = random.weighted(ports);
            if let Some(span) = drawn.span(random) {
                region = region.with(field, span);
            }
        }
    }
    region
}

impl Ports {
    fn span(self, random: &mut Random) -> Option<Span> {
        match self {
            Self::WellKnown => {
                // The smaller of two draws: the first ports are the most frequent.
                let last = PORTS.len() as u64;
                let place = random.below(last).min(random.below(last));
                Some(Span::one(PORTS[exact::<usize>(place)].into()))
            }
            Self::FromOn1024 => Some(Span::new(1024, 65535)),
            Self::Range => {
                let low = 1024 + random.below(30_000);
                Some(Span::new(low.into(), (low + 1 + random.below(200)).into()))
            }
            Self::Any => None,
        }
    }
}

/// A packet that a rule matches.
#[must_use]
#[allow(clippy::cast_possible_truncation)]
pub fn packet_of(rule: &Rule, random: &mut Random) -> PacketFields {
    let mut value = |field: Field| random.within(rule.region.span(field));
    let family = match rule.region.span(Field::Family) {
        span if span.contains(4) => AddressFamily::Ipv4,
        span if span.contains(6) => AddressFamily::Ipv6,
        _ => AddressFamily::Mac,
    };
    let address_max = match family {
        AddressFamily::Ipv4 => u32::MAX.into(),
        AddressFamily::Ipv6 => u128::MAX,
        AddressFamily::Mac => (1 << 48) - 1,
    };
    PacketFields {
        source: value(Field::Source) & address_max,
        destination: value(Field::Destination) & address_max,
        source_port: value(Field::SourcePort) as u16,
        destination_port: value(Field::DestinationPort) as u16,
        vlan: (value(Field::Vlan) as u16).min(UNTAGGED),
        interface: value(Field::Interface) as u8,
        protocol: value(Field::Protocol) as u8,
        family,
    }
}

/// A trace over rules, as the trace generator of ClassBench makes it: packets of randomly chosen
/// rules, each header repeated in a burst whose length has a Pareto distribution with shape 1 and
/// this scale (0: a new header for every packet).
#[must_use]
pub fn trace(rules: &[Rule], count: usize, scale: f64, seed: u64) -> Vec<PacketFields> {
    let mut random = Random::new(seed);
    let mut packets: Vec<PacketFields> = Vec::with_capacity(count);
    while packets.len() < count {
        let rule = &rules[low32(random.draw()) as usize % rules.len()];
        let mut packet = packet_of(rule, &mut random);
        // Outside the rule's region, packets have no VLAN tag and all come from one interface.
        packet.vlan = UNTAGGED;
        packet.interface = 0;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let burst = (scale / (1.0 - random.unit())).clamp(1.0, 1e4) as usize;
        let left = count - packets.len();
        packets.extend(std::iter::repeat_n(packet, burst.min(left)));
    }
    packets
}
