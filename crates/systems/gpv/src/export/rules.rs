//! What the rules are, and how they are handed over.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use strata_wire::{AddressFamily, Endpoint};

use crate::format::datagram::{LEN_MAX, LEN_MIN};
use crate::key::Key;
use crate::packet::Packet;
use crate::tuple::{Column, Columns, Full};
use crate::vector::Vector;

/// Maximum number of destinations.
const DESTINATIONS_MAX: usize = 64;
/// Maximum number of rules of a list: each packet or vector looks at them in turn.
const RULES_MAX: usize = 1024;

/// Which packets the cache takes. Closures do: a filter over bytes, such as a program of
/// `strata-filter`, is one.
pub trait Select: Send + Sync {
    /// Whether this packet, of which `bytes` were captured, is taken.
    fn selects(&self, packet: &Packet, bytes: &[u8]) -> bool;
}

impl<F: Fn(&Packet, &[u8]) -> bool + Send + Sync> Select for F {
    fn selects(&self, packet: &Packet, bytes: &[u8]) -> bool {
        self(packet, bytes)
    }
}

/// Which vectors a destination gets. Closures do.
pub trait Admit: Send + Sync {
    /// Whether it gets this one.
    fn admits(&self, vector: &Vector<'_, Full>) -> bool;
}

impl<F: Fn(&Vector<'_, Full>) -> bool + Send + Sync> Admit for F {
    fn admits(&self, vector: &Vector<'_, Full>) -> bool {
        self(vector)
    }
}

/// The first bits of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    family: AddressFamily,
    address: u128,
    mask: u128,
}

impl Prefix {
    /// The addresses whose first `len` bits are those of `address`. `None` if the family has no
    /// such length, or the address is not of it.
    #[must_use]
    pub fn new(family: AddressFamily, address: u128, len: u8) -> Option<Self> {
        let bits: u32 = match family {
            AddressFamily::Mac => 48,
            AddressFamily::Ipv4 => 32,
            AddressFamily::Ipv6 => 128,
        };
        let others = bits.checked_sub(u32::from(len))?;
        let is_of_family = bits == 128 || address >> bits == 0;
        let mask = match others {
            128 => 0,
            others => u128::MAX << others,
        };
        is_of_family.then_some(Self {
            family,
            address: address & mask,
            mask,
        })
    }

    fn has(&self, family: AddressFamily, end: Endpoint) -> bool {
        self.family == family && end.address & self.mask == self.address
    }
}

/// Flows that a rule is about: those that agree with all of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowRule {
    /// Where packets come from, if that matters.
    pub source: Option<Prefix>,
    /// Where they go, if that matters.
    pub destination: Option<Prefix>,
    /// Source ports.
    pub source_ports: RangeInclusive<u16>,
    /// Destination ports.
    pub destination_ports: RangeInclusive<u16>,
    /// IP protocol, if that matters.
    pub protocol: Option<u8>,
    /// Port by which packets come in, if that matters.
    pub ingress: Option<u16>,
}

impl Default for FlowRule {
    /// Every flow.
    fn default() -> Self {
        Self {
            source: None,
            destination: None,
            source_ports: 0..=u16::MAX,
            destination_ports: 0..=u16::MAX,
            protocol: None,
            ingress: None,
        }
    }
}

impl FlowRule {
    /// Whether this flow is one of them.
    #[must_use]
    pub fn matches(&self, key: &Key) -> bool {
        let (family, source, destination) = (key.family(), key.source(), key.destination());
        self.source.is_none_or(|prefix| prefix.has(family, source))
            && self
                .destination
                .is_none_or(|prefix| prefix.has(family, destination))
            && self.source_ports.contains(&source.port)
            && self.destination_ports.contains(&destination.port)
            && self.protocol.is_none_or(|number| number == key.protocol())
            && self.ingress.is_none_or(|port| port == key.ingress())
    }
}

/// A list of rules on flow keys. The first that matches decides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowRules {
    /// The rules, and whether their flows are in.
    rules: Vec<(FlowRule, bool)>,
    /// Whether other flows are.
    otherwise: bool,
}

impl FlowRules {
    /// These rules in this order; `otherwise` is for flows that no rule is about.
    ///
    /// # Errors
    ///
    /// If there are more than 1,024.
    pub fn new(rules: Vec<(FlowRule, bool)>, otherwise: bool) -> Result<Self, RulesError> {
        match rules.len() {
            len if len > RULES_MAX => Err(RulesError::Rules(len)),
            _ => Ok(Self { rules, otherwise }),
        }
    }

    /// Every flow.
    #[must_use]
    pub fn all() -> Self {
        Self {
            rules: Vec::new(),
            otherwise: true,
        }
    }

    /// Whether this flow is in.
    #[must_use]
    pub fn has(&self, key: &Key) -> bool {
        let first = self.rules.iter().find(|(rule, _)| rule.matches(key));
        first.map_or(self.otherwise, |&(_, is_in)| is_in)
    }
}

impl Select for FlowRules {
    fn selects(&self, packet: &Packet, _bytes: &[u8]) -> bool {
        self.has(&packet.key)
    }
}

impl Admit for FlowRules {
    fn admits(&self, vector: &Vector<'_, Full>) -> bool {
        self.has(&vector.key)
    }
}

/// Who gets vectors: which, and what of them.
#[derive(Clone)]
pub struct Destination {
    /// Its number, which its datagrams carry as that of the cache.
    pub id: u32,
    /// Which features of packets it gets; times are among them.
    pub columns: Columns,
    /// Maximum bytes of a datagram.
    pub datagram_len: usize,
    /// Which vectors it gets.
    pub admit: Arc<dyn Admit>,
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Destination")
            .field("id", &self.id)
            .field("columns", &self.columns)
            .field("datagram_len", &self.datagram_len)
            .finish_non_exhaustive()
    }
}

/// Why rules are refused; those in force stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RulesError {
    /// Too long a list.
    #[error("{0} rules on flows; at most 1,024 are allowed")]
    Rules(usize),
    /// Too many destinations.
    #[error("{0} destinations; at most 64 are allowed")]
    Destinations(usize),
    /// Two destinations that readers could not tell apart.
    #[error("destination {0} is listed twice")]
    Twice(u32),
    /// Tuples without times have no order.
    #[error("destination {0}: the column of times is missing: choose it too")]
    NoTimes(u32),
    /// A datagram that holds nothing, or that UDP does not carry.
    #[error("destination {id}: datagrams of {len} bytes; {LEN_MIN} to {LEN_MAX} are allowed")]
    Datagram {
        /// Which destination.
        id: u32,
        /// The requested length.
        len: usize,
    },
}

/// Checked rules: which packets, and to whom.
pub struct Rules {
    pub(super) select: Box<dyn Select>,
    pub(super) destinations: Vec<Destination>,
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules")
            .field("destinations", &self.destinations)
            .finish_non_exhaustive()
    }
}

impl Rules {
    /// Rules that take the packets that `select` does.
    ///
    /// # Errors
    ///
    /// If a destination is impossible, or there are too many.
    pub fn new(
        select: impl Select + 'static,
        destinations: Vec<Destination>,
    ) -> Result<Self, RulesError> {
        if destinations.len() > DESTINATIONS_MAX {
            return Err(RulesError::Destinations(destinations.len()));
        }
        for (index, destination) in destinations.iter().enumerate() {
            let (id, len) = (destination.id, destination.datagram_len);
            if destinations[..index].iter().any(|other| other.id == id) {
                return Err(RulesError::Twice(id));
            }
            if !destination.columns.has(Column::Time) {
                return Err(RulesError::NoTimes(id));
            }
            if !(LEN_MIN..=LEN_MAX).contains(&len) {
                return Err(RulesError::Datagram { id, len });
            }
        }
        Ok(Self {
            select: Box::new(select),
            destinations,
        })
    }
}

#[derive(Debug)]
struct Shared {
    version: AtomicU64,
    rules: Mutex<Arc<Rules>>,
}

/// Hands rules over to an exporter; clones hand over to the same one.
#[derive(Clone, Debug)]
pub struct RulesHandle(Arc<Shared>);

impl RulesHandle {
    /// A handle with the first rules.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self(Arc::new(Shared {
            version: AtomicU64::new(0),
            rules: Mutex::new(Arc::new(rules)),
        }))
    }

    /// Replaces all rules. They are in force from the exporter's next batch on.
    pub fn set(&self, rules: Rules) {
        let mut held = self.0.rules.lock().unwrap_or_else(PoisonError::into_inner);
        *held = Arc::new(rules);
        self.0.version.fetch_add(1, Ordering::Release);
    }

    pub(super) fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    pub(super) fn get(&self) -> (u64, Arc<Rules>) {
        let held = self.0.rules.lock().unwrap_or_else(PoisonError::into_inner);
        (self.version(), Arc::clone(&held))
    }
}
