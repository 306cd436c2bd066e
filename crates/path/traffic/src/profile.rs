//! Profiles: which traffic, how much of it, and how many flows at a time.

use std::str::FromStr;

use strata_wire::exact;

use crate::kind::{self, Kind, Length};
use crate::random::Tail;

/// Flows of one kind that share a clock.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// The kinds of its flows, with weights.
    pub(crate) kinds: Vec<(Kind, u32)>,
    /// Its share of the active flows, of 1000.
    pub(crate) flows: u32,
}

/// Groups whose packets together have a mean length.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    /// Packets shorter than the mean on average.
    pub(crate) small: Group,
    /// Packets longer than the mean; without them the mean is not controlled.
    pub(crate) large: Option<Group>,
    /// Mean IP bytes of a packet, times 1000.
    pub(crate) mean_millibytes: u64,
}

impl Class {
    fn anomalous(&self) -> bool {
        self.small.kinds.iter().any(|(kind, _)| kind.anomalous)
    }
}

/// What traffic to generate, by name: [`Profile::NAMES`].
///
/// `cic-w1` to `cic-w5` have the statistics of TitanLog's Table IV: five days of CIC-IDS2017 at 100
/// Gb/s. The table does not say which bytes its Gb/s count: an anomalous packet of W2 has 55.6 on
/// average, fewer than an Ethernet frame has with TCP timestamps. So we assume IP packets.
#[derive(Clone, Debug)]
pub struct Profile {
    pub(crate) name: String,
    pub(crate) active_flows: u32,
    pub(crate) packets_per_second: u64,
    /// At least one; benign traffic first.
    pub(crate) classes: Vec<Class>,
    /// Packets of the second class, per million.
    pub(crate) anomalous_ppm: u32,
    /// IPv6 flows of 256.
    pub(crate) ipv6: u32,
    /// A link of a core network: one direction of each flow, in trains of packets.
    pub(crate) is_core: bool,
}

/// There is no such profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no profile '{name}': choose one of {}, or another of flood64 to flood1518", Profile::NAMES.join(", "))]
pub struct UnknownProfile {
    name: String,
}

/// A line of Table IV at 100 Gb/s.
struct Day {
    active_flows: u32,
    kilopackets_per_second: u64,
    attacks: Option<Attacks>,
}

/// The anomalous part of a day.
struct Attacks {
    kilopackets_per_second: u64,
    megabits_per_second: u64,
    small: Group,
    large: Group,
}

const MEGABITS_PER_SECOND: u64 = 100_000;

impl Profile {
    /// Names of profiles. `floodN`, frames of N bytes on the wire, goes from 64 to 1518.
    pub const NAMES: [&'static str; 9] = [
        "cic-w1",
        "cic-w2",
        "cic-w3",
        "cic-w4",
        "cic-w5",
        "core-2015",
        "imix",
        "syn-flood",
        "flood64",
    ];

    /// The profile's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Active flows at any time: between their first and their last packet.
    #[must_use]
    pub fn active_flows(&self) -> u32 {
        self.active_flows
    }

    /// Packets per second.
    #[must_use]
    pub fn packets_per_second(&self) -> u64 {
        self.packets_per_second
    }

    /// Anomalous packets per million.
    #[must_use]
    pub fn anomalous_ppm(&self) -> u32 {
        self.anomalous_ppm
    }

    /// Mean bytes of an IP packet, times 1000, by class: benign, anomalous. `None` if the profile
    /// has no such packets.
    #[must_use]
    pub fn mean_millibytes(&self) -> [Option<u64>; 2] {
        [false, true].map(|anomalous| {
            let class = self
                .classes
                .iter()
                .find(|class| class.anomalous() == anomalous);
            class.map(|class| class.mean_millibytes)
        })
    }

    fn cic(name: &str) -> Option<Self> {
        let day = Day::named(name)?;
        let ppm = day.attacks.as_ref().map_or(0, |attacks| {
            attacks.kilopackets_per_second * 1_000_000 / day.kilopackets_per_second
        });
        Some(Self {
            name: String::from(name),
            active_flows: day.active_flows,
            packets_per_second: day.kilopackets_per_second * 1000,
            anomalous_ppm: exact::<u32>(ppm),
            classes: std::iter::once(day.benign())
                .chain(day.attacks.map(Attacks::class))
                .collect(),
            ipv6: 26,
            is_core: false,
        })
    }

    /// Traffic of one kind: 10 Gb/s including gaps and preambles.
    fn uniform(name: &str, kind: Kind, flows: u32, mean_millibytes: u64) -> Self {
        let group = Group {
            kinds: vec![(kind, 1)],
            flows: 1000,
        };
        let class = Class {
            small: group,
            large: None,
            mean_millibytes,
        };
        // Header, check sequence, preamble and gap around an IP packet.
        let wire_millibits = (mean_millibytes + 38_000) * 8;
        Self {
            name: String::from(name),
            active_flows: flows,
            packets_per_second: 10_000_000_000_000 / wire_millibits,
            anomalous_ppm: u32::from(kind.anomalous) * 1_000_000,
            classes: vec![class],
            ipv6: 0,
            is_core: false,
        }
    }

    /// A 10 Gb/s link of a core router in 2015, as the *Flow paper (Sonchack et al., USENIX ATC
    /// 2018, section 7) has CAIDA's traces: 1.5 billion packets an hour, under 20,000 flows a
    /// second, of 33 packets on average. Bytes of a packet are those of Jurkiewicz et al.
    /// (arXiv:1809.03486): 275 TB in 4 billion flows of 78 packets.
    fn core() -> Self {
        let small = Group {
            kinds: vec![
                (kind::TLS_LONG, 50),
                (kind::DNS, 5),
                (kind::HTTP_LIGHT, 8),
                (kind::PING, 2),
            ],
            flows: 500,
        };
        let large = Group {
            kinds: vec![
                (kind::TLS_BULK, 6),
                (kind::HTTP_BULK, 4),
                (kind::QUIC_BULK, 2),
            ],
            flows: 500,
        };
        Self {
            name: String::from("core-2015"),
            active_flows: 35_000,
            packets_per_second: 1_500_000_000 / 3600,
            classes: vec![Class {
                small,
                large: Some(large),
                mean_millibytes: 880_000,
            }],
            anomalous_ppm: 0,
            ipv6: 8,
            is_core: true,
        }
    }
}

impl Day {
    fn named(name: &str) -> Option<Self> {
        let group = |flows, kinds: &[(Kind, u32)]| Group {
            kinds: kinds.to_vec(),
            flows,
        };
        let (active_flows, kilopackets_per_second, attacks) = match name {
            "cic-w1" => (33_356, 15_214, None),
            "cic-w2" => {
                let small = group(30, &[(kind::SSH_BRUTE_FORCE, 1)]);
                let large = group(10, &[(kind::FTP_BRUTE_FORCE, 1)]);
                (30_865, 14_694, Some((344, 153, small, large)))
            }
            "cic-w3" => {
                let small = group(60, &[(kind::DOS_SLOW, 1)]);
                let large = group(60, &[(kind::DOS_HTTP_FLOOD, 1)]);
                (32_711, 14_418, Some((2_551, 16_621, small, large)))
            }
            "cic-w4" => {
                let small = group(20, &[(kind::PORT_SCAN, 1)]);
                let large = group(10, &[(kind::WEB_ATTACK, 1)]);
                (58_638, 15_856, Some((163, 348, small, large)))
            }
            "cic-w5" => {
                let small = group(30, &[(kind::PORT_SCAN, 3), (kind::BOTNET, 1)]);
                let large = group(100, &[(kind::DDOS_HTTP_FLOOD, 1)]);
                (295_509, 15_986, Some((2_135, 12_039, small, large)))
            }
            _ => return None,
        };
        let attacks = attacks.map(|(kilopackets, megabits, small, large)| Attacks {
            kilopackets_per_second: kilopackets,
            megabits_per_second: megabits,
            small,
            large,
        });
        Some(Self {
            active_flows,
            kilopackets_per_second,
            attacks,
        })
    }

    fn benign(&self) -> Class {
        let (mut flows, mut megabits) = (1000, MEGABITS_PER_SECOND);
        let mut kilopackets = self.kilopackets_per_second;
        if let Some(attacks) = &self.attacks {
            flows -= attacks.small.flows + attacks.large.flows;
            megabits -= attacks.megabits_per_second;
            kilopackets -= attacks.kilopackets_per_second;
        }
        Class {
            small: Group {
                kinds: vec![
                    (kind::TLS_LIGHT, 40),
                    (kind::DNS, 40),
                    (kind::HTTP_LIGHT, 16),
                    (kind::PING, 4),
                ],
                flows: flows * 6 / 10,
            },
            large: Some(Group {
                kinds: vec![
                    (kind::TLS_BULK, 6),
                    (kind::HTTP_BULK, 2),
                    (kind::QUIC_BULK, 2),
                ],
                flows: flows * 4 / 10,
            }),
            mean_millibytes: mean_millibytes(megabits, kilopackets),
        }
    }
}

impl Attacks {
    fn class(self) -> Class {
        Class {
            mean_millibytes: mean_millibytes(self.megabits_per_second, self.kilopackets_per_second),
            small: self.small,
            large: Some(self.large),
        }
    }
}

fn mean_millibytes(megabits_per_second: u64, kilopackets_per_second: u64) -> u64 {
    megabits_per_second * 1_000_000 / 8 / kilopackets_per_second
}

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, UnknownProfile> {
        if let Some(profile) = Self::cic(name) {
            return Ok(profile);
        }
        match name {
            "core-2015" => return Ok(Self::core()),
            "imix" => return Ok(Self::uniform(name, kind::IMIX, 10_000, 339_833)),
            "syn-flood" => return Ok(Self::uniform(name, kind::SYN_FLOOD, 1_000, 57_000)),
            _ => {}
        }
        let frame_len: Option<u32> = name.strip_prefix("flood").and_then(|n| n.parse().ok());
        match frame_len.filter(|len| (64..=1518).contains(len)) {
            Some(frame_len) => {
                let mut kind = kind::UDP_FLOOD;
                // Ethernet and its check sequence, IPv4, UDP.
                kind.request = Length::Tail(Tail::exactly(frame_len - 14 - 4 - 20 - 8));
                let ip_millibytes = u64::from(frame_len - 18) * 1000;
                Ok(Self::uniform(name, kind, 300_000, ip_millibytes))
            }
            None => Err(UnknownProfile {
                name: String::from(name),
            }),
        }
    }
}
