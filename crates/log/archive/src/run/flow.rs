//! A flow while its run is collected, and its counters.

pub(crate) mod index;
mod processes;

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sha1::{Digest, Sha1};
use strata_names::{Begun, Names, Payload};
use strata_wire::dissect::protocol;
use strata_wire::transport::tcp_flag;
use strata_wire::{AddressFamily, Endpoint, FlowKey, FlowShare, Headers, ethernet, ip_addr};

use crate::run::header::predict::Direction;
pub(crate) use processes::Processes;

/// A flow while its run is collected.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) key: FlowKey,
    pub(crate) interface: u16,
    pub(crate) directions: [Direction; 2],
    /// The direction of its first packet: 0 from the low endpoint.
    pub(crate) initiator: usize,
    pub(crate) hides_addresses: bool,
    pub(crate) stats: Stats,
    pub(crate) names: Names,
    pub(crate) processes: Processes,
    /// Code of the last link header and TCP options, by direction.
    pub(crate) last_codes: [[u32; 2]; 2],
    /// Type and code of the first packet, for ICMP.
    pub(crate) icmp: Option<[u8; 2]>,
    /// Why it ended, if it did.
    pub(crate) end_reason: Option<EndReason>,
}

/// Why a flow ended: the values of flowEndReason (IANA, information element 136).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EndReason {
    /// It had no packet for the idle timeout.
    Idle = 1,
    /// It went on for the active timeout.
    Active = 2,
    /// Both sides sent FIN, or one RST.
    End = 3,
    /// What is exported ends here.
    Forced = 4,
    /// There was no room for another flow.
    Resources = 5,
}

/// The counters of a flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
    pub(crate) packets: [u64; 2],
    pub(crate) wire_bytes: [u64; 2],
    /// Of the IP packets that the key is of, as they say themselves.
    pub(crate) ip_bytes: [u64; 2],
    pub(crate) logged_bytes: u64,
    pub(crate) tcp_flags: [u16; 2],
    pub(crate) classes: Classes,
    pub(crate) score_max: Option<u16>,
    /// The largest of its packets' shares of flows.
    pub(crate) share_max: FlowShare,
    pub(crate) size_min: u32,
    pub(crate) size_max: u32,
    size_squares: u128,
    ipd_min_ns: u64,
    ipd_max_ns: u64,
}

/// How long a packet is.
pub(crate) struct PacketBytes {
    /// On the wire.
    pub(crate) wire_len: u32,
    /// By its innermost IP header; 0 if it is not IP.
    pub(crate) ip: u32,
    /// Kept in the log.
    pub(crate) logged: u64,
}

/// Packets by class. Nearly every flow has only one class, which needs no allocation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Classes {
    pub(crate) first: Option<(u8, u32)>,
    pub(crate) others: Vec<(u8, u32)>,
}

impl Classes {
    fn count(&mut self, class: u8) {
        let first = self.first.get_or_insert((class, 0));
        if first.0 == class {
            first.1 += 1;
            return;
        }
        match self.others.iter_mut().find(|(known, _)| *known == class) {
            Some((_, packets)) => *packets += 1,
            None => self.others.push((class, 1)),
        }
    }

    /// Classes and their packets.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(u8, u32)> {
        self.first.iter().chain(&self.others)
    }
}

/// The class mix as a JSON object, by name.
pub(crate) fn class_mix(classes: &Classes, names: &[String]) -> String {
    let name = |class: u8| {
        names
            .get(usize::from(class))
            .map_or("unknown", String::as_str)
    };
    let mix = classes.iter().map(|&(class, n)| (name(class), n));
    if let (Some((class, n)), []) = (classes.first, classes.others.as_slice())
        && name(class).bytes().all(|b| b.is_ascii_alphanumeric())
    {
        return format!("{{\"{}\":{n}}}", name(class));
    }
    let mix: BTreeMap<&str, u32> = mix.collect();
    serde_json::to_string(&mix).expect("names and numbers can be written")
}

impl Flow {
    pub(crate) fn new(key: FlowKey, interface: u16, initiator: usize) -> Self {
        Self {
            key,
            interface,
            directions: [Direction::default(), Direction::default()],
            initiator,
            hides_addresses: false,
            stats: Stats {
                share_max: FlowShare(0),
                ..Stats::default()
            },
            names: Names::default(),
            processes: Processes::default(),
            last_codes: [[u32::MAX; 2]; 2],
            icmp: None,
            end_reason: None,
        }
    }

    /// Looks for names in the payload of a packet in a direction, which begins after `header`; `number` is that of
    /// the flow.
    pub(crate) fn look(
        &mut self,
        begun: &mut Begun,
        (number, direction): (u32, usize),
        headers: &Headers,
        header: &[u8],
        payload: &[u8],
    ) {
        let transport_len = usize::from(headers.transport_len);
        if payload.is_empty() || transport_len == 0 {
            return;
        }
        let is_tcp = self.is_tcp();
        let transport = header.len().checked_sub(transport_len);
        let transport = transport.and_then(|at| header.get(at..));
        let sequence = transport.and_then(|header| header.get(4..)?.first_chunk());
        let payload = Payload {
            flow: number,
            is_tcp,
            ports: [self.key.low.port, self.key.high.port],
            direction,
            sequence: sequence.map_or(0, |bytes| u32::from_be_bytes(*bytes)),
            bytes: payload,
        };
        self.names.look(begun, &payload);
    }

    /// Source and destination of packets in a direction.
    pub(crate) fn ends(&self, direction: usize) -> (Endpoint, Endpoint) {
        if direction == 0 {
            (self.key.low, self.key.high)
        } else {
            (self.key.high, self.key.low)
        }
    }

    /// Whether both sides of its TCP connection have sent FIN, or one of them RST.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_tcp() && end_connection(self.stats.tcp_flags)
    }

    /// The EtherType of what is not IP; `None` if it is IP, or has a length in its place (IEEE 802.3).
    pub(crate) fn ether_type(&self) -> Option<u16> {
        let kind = self.key.low.port;
        let is_type = self.key.family == AddressFamily::Mac && kind > ethernet::LENGTH_MAX;
        is_type.then_some(kind)
    }

    /// Whether its protocol has ports.
    pub(crate) fn has_ports(&self) -> bool {
        self.key.family != AddressFamily::Mac && (self.key.low.port | self.key.high.port) != 0
    }

    /// Whether it has addresses to report.
    pub(crate) fn has_addresses(&self) -> bool {
        self.key != FlowKey::NONE
    }

    pub(crate) fn is_tcp(&self) -> bool {
        self.key.family != AddressFamily::Mac && self.key.protocol == protocol::TCP
    }
}

impl Stats {
    /// Counts a packet.
    pub(crate) fn count(&mut self, direction: usize, ts_ns: u64, bytes: &PacketBytes) {
        let &PacketBytes {
            wire_len,
            ip,
            logged,
        } = bytes;
        if self.packets == [0, 0] {
            self.first_ns = ts_ns;
            (self.size_min, self.ipd_min_ns) = (u32::MAX, u64::MAX);
        } else {
            let delay = ts_ns.saturating_sub(self.last_ns);
            self.ipd_min_ns = self.ipd_min_ns.min(delay);
            self.ipd_max_ns = self.ipd_max_ns.max(delay);
        }
        self.first_ns = self.first_ns.min(ts_ns);
        self.last_ns = self.last_ns.max(ts_ns);
        self.packets[direction] += 1;
        self.wire_bytes[direction] += u64::from(wire_len);
        self.ip_bytes[direction] += u64::from(ip);
        self.logged_bytes += logged;
        self.size_min = self.size_min.min(wire_len);
        self.size_max = self.size_max.max(wire_len);
        self.size_squares += u128::from(wire_len).pow(2);
    }

    pub(crate) fn class(&mut self, class: u8) {
        self.classes.count(class);
    }

    fn total(&self) -> u64 {
        self.packets[0] + self.packets[1]
    }

    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn size_mean(&self) -> f64 {
        (self.wire_bytes[0] + self.wire_bytes[1]) as f64 / self.total() as f64
    }

    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn size_variance(&self) -> f64 {
        (self.size_squares as f64 / self.total() as f64 - self.size_mean().powi(2)).max(0.0)
    }

    pub(crate) fn ipd(&self) -> Option<[u64; 3]> {
        let delays = self.total().checked_sub(1).filter(|delays| *delays > 0)?;
        let mean = (self.last_ns - self.first_ns) / delays;
        Some([self.ipd_min_ns, self.ipd_max_ns, mean])
    }
}

/// An address as text, as in the tables.
pub(crate) fn address_text(family: AddressFamily, address: u128) -> String {
    match ip_addr(family, address) {
        Some(ip) => ip.to_string(),
        None => {
            let bytes = address.to_be_bytes();
            let parts: Vec<String> = bytes[10..].iter().map(|b| format!("{b:02x}")).collect();
            parts.join(":")
        }
    }
}

/// The Community ID, version 1 with seed 0, of the Corelight specification; `None` for packets that
/// are not IP.
pub(crate) fn community_id(flow: &Flow) -> Option<String> {
    if flow.key.family == AddressFamily::Mac {
        return None;
    }
    let (mut source, mut destination) = flow.ends(flow.initiator);
    let number = flow.key.protocol;
    let mut one_way = false;
    if let Some([kind, code]) = flow.icmp {
        let counterpart = icmp_counterpart(number, kind);
        source.port = kind.into();
        destination.port = counterpart.map_or_else(|| code.into(), u16::from);
        one_way = counterpart.is_none();
    }
    if !one_way && destination < source {
        std::mem::swap(&mut source, &mut destination);
    }
    let with_ports = flow.has_ports() || flow.icmp.is_some();
    let ends = [source, destination];
    Some(community_id_between(
        flow.key.family,
        number,
        ends,
        with_ports,
        0,
    ))
}

/// The Community ID of a flow that has ports.
#[must_use]
pub fn community_id_of(key: &FlowKey) -> String {
    community_id_seeded(key, 0)
}

/// The Community ID of a flow that has ports, with a seed: other tools may be set to one.
#[must_use]
pub fn community_id_seeded(key: &FlowKey, seed: u16) -> String {
    community_id_between(key.family, key.protocol, [key.low, key.high], true, seed)
}

/// Whether a text may be a Community ID of version 1: `1:`, and SHA-1 in base64.
#[must_use]
pub fn is_community_id(text: &str) -> bool {
    let digest = text
        .strip_prefix("1:")
        .map(|text| BASE64_STANDARD.decode(text));
    matches!(digest, Some(Ok(digest)) if digest.len() == 20)
}

fn community_id_between(
    family: AddressFamily,
    number: u8,
    [source, destination]: [Endpoint; 2],
    with_ports: bool,
    seed: u16,
) -> String {
    let skipped = if family == AddressFamily::Ipv4 { 12 } else { 0 };
    let mut digest = Sha1::new();
    digest.update(seed.to_be_bytes());
    digest.update(&source.address.to_be_bytes()[skipped..]);
    digest.update(&destination.address.to_be_bytes()[skipped..]);
    digest.update([number, 0]);
    // The specification names the protocols whose ports count; those of DCCP and UDP-Lite do not.
    let ported = [
        protocol::ICMP,
        protocol::TCP,
        protocol::UDP,
        protocol::ICMPV6,
        protocol::SCTP,
    ];
    if with_ports && ported.contains(&number) {
        digest.update(source.port.to_be_bytes());
        digest.update(destination.port.to_be_bytes());
    }
    format!("1:{}", BASE64_STANDARD.encode(digest.finalize()))
}

/// The type of the ICMP message that answers this one.
#[must_use]
pub fn icmp_counterpart(number: u8, kind: u8) -> Option<u8> {
    let pairs: &[(u8, u8)] = if number == protocol::ICMP {
        &[(8, 0), (13, 14), (15, 16), (10, 9), (17, 18)]
    } else {
        &[
            (128, 129),
            (133, 134),
            (135, 136),
            (130, 131),
            (144, 145),
            (139, 140),
        ]
    };
    pairs.iter().find_map(|&(ask, answer)| match kind {
        _ if kind == ask => Some(answer),
        _ if kind == answer => Some(ask),
        _ => None,
    })
}

/// Whether these flags, by direction, end a TCP connection: FIN from both sides, or RST from one.
pub(crate) fn end_connection([one, other]: [u16; 2]) -> bool {
    let any = |flag: u8| (one | other) & u16::from(flag) != 0;
    let both = |flag: u8| one & other & u16::from(flag) != 0;
    any(tcp_flag::RST) || both(tcp_flag::FIN)
}

/// A stored score, from 0 to 1.
pub(crate) fn score(of_65535: u16) -> f32 {
    f32::from(of_65535) / 65_535.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(source: [u8; 4], destination: [u8; 4], number: u8, ports: (u16, u16)) -> Flow {
        let end = |address: [u8; 4], port| Endpoint {
            address: u32::from_be_bytes(address).into(),
            port,
        };
        let (key, forward) = FlowKey::new(
            AddressFamily::Ipv4,
            number,
            end(source, ports.0),
            end(destination, ports.1),
        );
        Flow::new(key, 0, usize::from(!forward))
    }

    /// The examples from the specification's reference implementation.
    #[test]
    fn community_ids_are_those_of_other_tools() {
        let tcp = flow([128, 232, 110, 120], [66, 35, 250, 204], 6, (34_855, 80));
        assert_eq!(
            community_id(&tcp).unwrap(),
            "1:LQU9qZlK+B5F3KDmev6m5PMibrg="
        );
        let udp = flow([192, 168, 1, 52], [8, 8, 8, 8], 17, (54_585, 53));
        assert_eq!(
            community_id(&udp).unwrap(),
            "1:d/FP5EW3wiY1vCndhwleRRKHowQ="
        );
        let mut icmp = flow([192, 168, 0, 89], [192, 168, 0, 1], 1, (0, 0));
        icmp.icmp = Some([8, 0]);
        assert_eq!(
            community_id(&icmp).unwrap(),
            "1:X0snYXpgwiv9TZtqg64sgzUn6Dk="
        );
        // As Wireshark and the reference implementation read captures of DCCP and UDP-Lite.
        let (one, other) = ([10, 3, 0, 1], [10, 3, 0, 2]);
        let dccp = flow(one, other, 33, (5000, 6000));
        assert_eq!(
            community_id(&dccp).unwrap(),
            "1:NRxZ5FTUSLJJwePOBJoLxwcHnng="
        );
        let lite = flow(other, one, 136, (5000, 6000));
        assert_eq!(
            community_id(&lite).unwrap(),
            "1:CLxhmJ83SrxwQivFXYIy3Zs0psg="
        );
    }
}
