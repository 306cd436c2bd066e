//! Which UDP ports are those of tunnels: one table for the whole process, so that all that looks into
//! a packet finds the same. A log says which ports its recordings had, so what reads it later does too.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The most ports in a table.
pub const PORTS_MAX: usize = 32;

/// A tunnel in UDP.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TunnelKind {
    /// VXLAN (RFC 7348).
    Vxlan,
    /// VXLAN with a field for what is inside (draft-ietf-nvo3-vxlan-gpe).
    VxlanGpe,
    /// GENEVE (RFC 8926).
    Geneve,
    /// GTP-U (3GPP TS 29.281).
    GtpU,
    /// GRE (RFC 8086).
    GreUdp,
    /// MPLS (RFC 7510).
    MplsUdp,
    /// Teredo: IPv6 (RFC 4380).
    Teredo,
}

impl TunnelKind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Vxlan,
        Self::VxlanGpe,
        Self::Geneve,
        Self::GtpU,
        Self::GreUdp,
        Self::MplsUdp,
        Self::Teredo,
    ];

    /// Its name in the configuration and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vxlan => "vxlan",
            Self::VxlanGpe => "vxlan-gpe",
            Self::Geneve => "geneve",
            Self::GtpU => "gtp-u",
            Self::GreUdp => "gre-udp",
            Self::MplsUdp => "mpls-udp",
            Self::Teredo => "teredo",
        }
    }

    /// Its ports unless others are configured.
    #[must_use]
    pub const fn usual_ports(self) -> &'static [u16] {
        match self {
            // IANA's, and the one of Linux from before it was assigned.
            Self::Vxlan => &[4789, 8472],
            Self::VxlanGpe => &[4790],
            Self::Geneve => &[6081],
            Self::GtpU => &[2152],
            // The ports of the forms inside DTLS (4755, 6636) are not here: those are encrypted.
            Self::GreUdp => &[4754],
            Self::MplsUdp => &[6635],
            Self::Teredo => &[3544],
        }
    }

    /// Whether the port may be the source's: GTP-U (TS 29.281 §4.4.2), and answers of Teredo servers
    /// and relays (RFC 4380 §5). The source port of the others is a hash of the flow inside.
    const fn at_either_end(self) -> bool {
        matches!(self, Self::GtpU | Self::Teredo)
    }
}

impl fmt::Display for TunnelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TunnelKind {
    type Err = TunnelsError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| TunnelsError::Unknown(name.to_owned()))
    }
}

/// Usual destination ports of tunnels. Vector code and tests take the ports from here.
pub const UDP_DESTINATIONS: [u16; 6] = [4789, 8472, 6081, 4790, 4754, 6635];

/// Usual ports that either end of a tunnel may use.
pub const UDP_EITHER: [u16; 2] = [2152, 3544];

/// Why a table of ports cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunnelsError {
    /// No such tunnel.
    Unknown(String),
    /// Port 0 is no port.
    Zero(TunnelKind),
    /// A port of two tunnels.
    Twice(u16, TunnelKind, TunnelKind),
    /// More than [`PORTS_MAX`] ports.
    TooMany,
    /// Not `NAME=PORT`.
    Form(String),
    /// Not a port.
    Port(String),
    /// Other ports are in force already.
    InForce,
}

impl fmt::Display for TunnelsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => {
                let names = TunnelKind::ALL.map(TunnelKind::name).join(", ");
                write!(f, "'{name}' is not a tunnel in UDP: use one of {names}")
            }
            Self::Zero(kind) => write!(f, "{kind}: 0 is not a UDP port"),
            Self::Twice(port, one, other) => {
                write!(f, "port {port} is given to both {one} and {other}")
            }
            Self::TooMany => write!(f, "at most {PORTS_MAX} tunnel ports are allowed"),
            Self::Form(text) => write!(f, "'{text}': write NAME=PORT, as in vxlan=8472"),
            Self::Port(text) => write!(f, "'{text}': a UDP port is a number from 1 to 65535"),
            Self::InForce => f.write_str(
                "this process already uses other tunnel ports: start another process for these",
            ),
        }
    }
}

impl std::error::Error for TunnelsError {}

/// The UDP ports of tunnels, each with what it carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnels {
    ports: [u16; PORTS_MAX],
    kinds: [TunnelKind; PORTS_MAX],
    len: usize,
    /// Those of `ports` that are not among the usual ones.
    unusual: Vec<u16>,
}

impl Default for Tunnels {
    fn default() -> Self {
        USUAL.clone()
    }
}

/// The table with the usual ports.
static USUAL: Tunnels = Tunnels::usual();

/// The tables that were put in force one after another: each later one has more ports, so there are
/// no more of them than ports.
static PUT: [OnceLock<Tunnels>; PORTS_MAX] = [const { OnceLock::new() }; PORTS_MAX];

/// How many of [`PUT`] there are; the last one is in force. Without any, that is the usual table.
static PUT_LEN: AtomicUsize = AtomicUsize::new(0);

/// Held by those who put a table in force.
static PUTTING: Mutex<()> = Mutex::new(());

/// The table that is in force, unless that is the usual one.
#[inline(always)]
fn put() -> Option<&'static Tunnels> {
    let last = PUT_LEN.load(Ordering::Acquire).checked_sub(1)?;
    PUT.get(last)?.get()
}

impl Tunnels {
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "evaluated when compiled: an overflow would be an error then"
    )]
    const fn usual() -> Self {
        let mut table = Self {
            ports: [0; PORTS_MAX],
            kinds: [TunnelKind::Vxlan; PORTS_MAX],
            len: 0,
            unusual: Vec::new(),
        };
        let mut index = 0;
        while index < TunnelKind::ALL.len() {
            let kind = TunnelKind::ALL[index];
            let ports = kind.usual_ports();
            let mut at = 0;
            while at < ports.len() {
                table.ports[table.len] = ports[at];
                table.kinds[table.len] = kind;
                table.len += 1;
                at += 1;
            }
            index += 1;
        }
        table
    }

    /// The table in which tunnels have these ports instead of their usual ones; none, if the list
    /// is empty.
    ///
    /// # Errors
    ///
    /// If a port is 0 or that of two tunnels, or there are too many.
    pub fn with(&self, lists: &[(TunnelKind, Vec<u16>)]) -> Result<Self, TunnelsError> {
        let kept = self.iter();
        let kept = kept.filter(|(_, kind)| !lists.iter().any(|(given, _)| given == kind));
        let given = lists.iter();
        let given = given.flat_map(|(kind, ports)| ports.iter().map(|port| (*port, *kind)));
        Self::of(kept.chain(given))
    }

    /// The table with one more port, which no longer is another tunnel's.
    ///
    /// # Errors
    ///
    /// As [`Tunnels::with`].
    pub fn and(&self, kind: TunnelKind, port: u16) -> Result<Self, TunnelsError> {
        let kept = self.iter().filter(|(known, _)| *known != port);
        Self::of(kept.chain([(port, kind)]))
    }

    /// The table with one more port, as `NAME=PORT`.
    ///
    /// # Errors
    ///
    /// As [`Tunnels::with`], or if the text has another form.
    pub fn and_text(&self, text: &str) -> Result<Self, TunnelsError> {
        let (name, port) = text
            .split_once('=')
            .ok_or_else(|| TunnelsError::Form(text.to_owned()))?;
        let wrong = |_| TunnelsError::Port(text.to_owned());
        self.and(name.parse()?, port.parse().map_err(wrong)?)
    }

    fn of(all: impl Iterator<Item = (u16, TunnelKind)>) -> Result<Self, TunnelsError> {
        let mut all: Vec<(u16, TunnelKind)> = all.collect();
        all.sort_unstable_by_key(|&(port, kind)| (kind, port));
        all.dedup();
        let mut table = Self {
            len: 0,
            ..Self::usual()
        };
        for (index, &(port, kind)) in all.iter().enumerate() {
            if port == 0 {
                return Err(TunnelsError::Zero(kind));
            }
            let earlier = all.iter().take(index).find(|(known, _)| *known == port);
            if let Some(&(_, other)) = earlier {
                return Err(TunnelsError::Twice(port, other, kind));
            }
            let place = table.ports.get_mut(index).zip(table.kinds.get_mut(index));
            let (to_port, to_kind) = place.ok_or(TunnelsError::TooMany)?;
            (*to_port, *to_kind) = (port, kind);
            table.len = table.len.saturating_add(1);
            if !UDP_DESTINATIONS.contains(&port) && !UDP_EITHER.contains(&port) {
                table.unusual.push(port);
            }
        }
        Ok(table)
    }

    /// All ports and their tunnels.
    pub fn iter(&self) -> impl Iterator<Item = (u16, TunnelKind)> {
        let both = self.ports.iter().zip(&self.kinds);
        both.take(self.len).map(|(port, kind)| (*port, *kind))
    }

    /// The ports of a tunnel.
    #[must_use]
    pub fn ports(&self, kind: TunnelKind) -> Vec<u16> {
        let of_kind = self.iter().filter(|(_, known)| *known == kind);
        of_kind.map(|(port, _)| port).collect()
    }

    /// The tunnel that a datagram between these ports belongs to.
    #[inline]
    pub(crate) fn kind(&self, source: u16, destination: u16) -> Option<TunnelKind> {
        let find = |port: u16| {
            let place = self.ports.iter().take(self.len).position(|&p| p == port)?;
            self.kinds.get(place).copied()
        };
        find(destination).or_else(|| find(source).filter(|kind| kind.at_either_end()))
    }

    /// Its ports by name of their tunnel; empty if they are the usual ones.
    #[must_use]
    pub fn lists(&self) -> BTreeMap<String, Vec<u16>> {
        if *self == USUAL {
            return BTreeMap::new();
        }
        let list = |kind: TunnelKind| (kind.name().to_owned(), self.ports(kind));
        TunnelKind::ALL.into_iter().map(list).collect()
    }

    /// The table that has these [lists](Tunnels::lists).
    ///
    /// # Errors
    ///
    /// As [`Tunnels::with`], or if a name is not known.
    pub fn of_lists(lists: &BTreeMap<String, Vec<u16>>) -> Result<Self, TunnelsError> {
        let list = |(name, ports): (&String, &Vec<u16>)| Ok((name.parse()?, ports.clone()));
        let lists: Result<Vec<_>, TunnelsError> = lists.iter().map(list).collect();
        USUAL.with(&lists?)
    }

    /// The table of this process: the usual one, unless another one was put in force.
    #[inline]
    #[must_use]
    pub fn in_force() -> &'static Self {
        put().unwrap_or(&USUAL)
    }

    /// Makes this the table of the process, before it looks at packets: what was dissected before keeps
    /// the headers that it got. For what records.
    ///
    /// # Errors
    ///
    /// If another table is in force already.
    pub fn put_in_force(self) -> Result<(), TunnelsError> {
        let _putting = PUTTING.lock().unwrap_or_else(PoisonError::into_inner);
        match put() {
            Some(table) if *table == self => Ok(()),
            None if self == USUAL => Ok(()),
            None => Self::push(self),
            Some(_) => Err(TunnelsError::InForce),
        }
    }

    /// Makes this the table of the process, or adds its ports to the one that was put in force. For
    /// what reads logs: each may have been recorded with ports of its own.
    ///
    /// # Errors
    ///
    /// If a port is another tunnel's already, which it stays; then nothing is added.
    pub fn extend_in_force(self) -> Result<(), TunnelsError> {
        let _putting = PUTTING.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(table) = put() else {
            return if self == USUAL {
                Ok(())
            } else {
                Self::push(self)
            };
        };
        let both = Self::of(table.iter().chain(self.iter()))?;
        if both == *table {
            Ok(())
        } else {
            Self::push(both)
        }
    }

    fn push(self) -> Result<(), TunnelsError> {
        let len = PUT_LEN.load(Ordering::Acquire);
        let place = PUT.get(len).ok_or(TunnelsError::TooMany)?;
        place.set(self).map_err(|_| TunnelsError::InForce)?;
        PUT_LEN.store(len.saturating_add(1), Ordering::Release);
        Ok(())
    }
}

/// Ports of tunnels that are in force and not among [`UDP_DESTINATIONS`] and [`UDP_EITHER`].
#[inline(always)]
pub(crate) fn unusual() -> &'static [u16] {
    put().map_or(&[], |tunnels| &tunnels.unusual)
}

/// Whether a datagram between these ports may be a tunnel's, so that the walk has to decide: it is
/// if one is a usual port, or one in force.
#[inline(always)]
pub(crate) fn may_be_tunnel(source: u16, destination: u16) -> bool {
    // Without a branch that depends on the packet, as this is on the data path.
    let either = UDP_EITHER.iter().fold(false, |is, &port| {
        is | (source == port) | (destination == port)
    });
    let usual = UDP_DESTINATIONS
        .iter()
        .fold(either, |is, &port| is | (destination == port));
    unusual().iter().fold(usual, |is, &port| {
        is | (source == port) | (destination == port)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_ports_are_those_of_the_fast_path() {
        let mut table: Vec<u16> = Tunnels::default().iter().map(|(port, _)| port).collect();
        let mut fast = [&UDP_DESTINATIONS[..], &UDP_EITHER].concat();
        table.sort_unstable();
        fast.sort_unstable();
        assert_eq!(table, fast);
        for (port, kind) in USUAL.iter() {
            assert_eq!(UDP_EITHER.contains(&port), kind.at_either_end(), "{kind}");
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(USUAL.kind(9, port), Some(kind));
            let from = USUAL.kind(port, 9);
            assert_eq!(from, kind.at_either_end().then_some(kind));
        }
    }

    #[test]
    fn lists_replace_single_ports_are_added_and_what_is_wrong_is_named() {
        use TunnelKind::{Geneve, Vxlan};
        let usual = Tunnels::default();
        let lists = usual.with(&[(Vxlan, vec![8473, 4789]), (Geneve, vec![])]);
        let lists = lists.unwrap();
        assert_eq!(lists.ports(Vxlan), [4789, 8473]);
        assert_eq!(lists.kind(1, 8472), None);
        assert_eq!(lists.kind(1, 6081), None);
        assert_eq!(lists.unusual, [8473]);
        assert_eq!(usual.with(&[]).unwrap(), usual);
        let moved = usual.and_text("vxlan=6081").unwrap();
        assert_eq!(moved.ports(Vxlan), [4789, 6081, 8472]);
        assert!(moved.ports(Geneve).is_empty() && moved.unusual.is_empty());
        for (text, said) in [
            ("vxlan", "'vxlan': write NAME=PORT, as in vxlan=8472"),
            ("vxlan=70000", "'vxlan=70000': a UDP port is a number"),
            ("vxlan=0", "vxlan: 0 is not a UDP port"),
            ("gre=7", "'gre' is not a tunnel in UDP: use one of vxlan, "),
        ] {
            let error = usual.and_text(text).unwrap_err().to_string();
            assert!(error.starts_with(said), "{error}");
        }
        let twice = usual.with(&[(Vxlan, vec![6081])]).unwrap_err();
        assert_eq!(
            twice.to_string(),
            "port 6081 is given to both vxlan and geneve"
        );
        assert!(usual.lists().is_empty());
        assert_eq!(Tunnels::of_lists(&usual.lists()).unwrap(), usual);
        assert_eq!(Tunnels::of_lists(&lists.lists()).unwrap(), lists);
        let many = usual.with(&[(Vxlan, (1..=40).collect())]);
        assert_eq!(many, Err(TunnelsError::TooMany));
    }
}
