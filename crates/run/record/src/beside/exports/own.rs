//! What an exporter sends must not be captured and exported again.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use strata_capture::live::Device;
use strata_filter::Filter;
use strata_role::{Result, RoleError};
use strata_wire::dissect::protocol::{FRAGMENT, UDP};
use strata_wire::ethernet::ethertype;
use strata_wire::fields::{self, IpEnds};
use strata_wire::{LinkType, ipv4};

/// The two ends of the sockets that export to a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Own {
    /// Of the first socket; the others have the ports after it.
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    /// Sockets.
    pub(super) sockets: u16,
    /// Whether datagrams may leave in IP fragments. Only the first of a datagram has ports: all others of UDP between
    /// the two hosts are taken for own.
    pub(super) may_fragment: bool,
}

/// The ends of all sockets that export, for workers: while a recording runs, one may take the place of another.
#[derive(Debug)]
pub(super) struct OwnTraffic {
    /// How often they were others.
    changes: AtomicU64,
    /// By destination: now, and before, of which packets may still be in a ring.
    ends: Mutex<Vec<[Option<Own>; 2]>>,
}

impl OwnTraffic {
    pub(super) fn new(ends: impl Iterator<Item = Option<Own>>) -> Self {
        Self {
            changes: AtomicU64::new(0),
            ends: Mutex::new(ends.map(|now| [now, None]).collect()),
        }
    }

    /// To be called before the socket sends.
    pub(super) fn set(&self, target: usize, own: Own) {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends[target] = [Some(own), ends[target][0]];
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// A number that is another one after each change.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(super) fn all(&self) -> Vec<Own> {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.iter().flatten().copied().flatten().collect()
    }
}

/// VLAN tags that are looked through, and how many of them.
const TAGS: [u16; 3] = [
    ethertype::VLAN,
    ethertype::SERVICE_VLAN,
    ethertype::QINQ_OLD[0],
];
const TAGS_MAX: usize = 2;

impl Own {
    /// A test in tcpdump's language that what the socket sends fails.
    pub(super) fn test(&self) -> String {
        let (from, to) = (self.from.ip(), self.to.ip());
        let ports = self.ports();
        let later = match (self.may_fragment, self.to.is_ipv6()) {
            (false, _) => "",
            (true, false) => " or (udp and ip[6:2] & 0x1fff != 0)",
            (true, true) => " or ip6[6] = 44",
        };
        format!(
            "not (src host {from} and dst host {to} and ((udp and src portrange {}-{} and dst port {}){later}))",
            ports.start(),
            ports.end(),
            self.to.port()
        )
    }

    /// The ports of the sockets.
    fn ports(&self) -> RangeInclusive<u16> {
        let first = self.from.port();
        first..=first.saturating_add(self.sockets.saturating_sub(1))
    }

    /// Whether a packet is one that a socket has sent: by its outermost IP header, in a frame with up
    /// to two VLAN tags.
    pub(super) fn has_sent(&self, link: LinkType, data: &[u8]) -> bool {
        let Some((kind, ip)) = network(link, data) else {
            return false;
        };
        let Some(ends) = IpEnds::of(kind, ip) else {
            return false;
        };
        if ends.source != self.from.ip() || ends.destination != self.to.ip() {
            return false;
        }
        if self.may_fragment && is_fragment(kind, ip, ends.protocol) {
            return true;
        }
        let is_own = |(from, to)| self.ports().contains(&from) && to == self.to.port();
        ends.protocol == UDP && ends.ports().is_some_and(is_own)
    }
}

/// Whether this is a fragment of a UDP datagram that may lack ports: of IPv4 any but the first, of IPv6 each, whose ports
/// are behind another header.
fn is_fragment(kind: u16, ip: &[u8], protocol: u8) -> bool {
    match kind {
        ethertype::IPV6 => protocol == FRAGMENT,
        _ => {
            let offset = ip.get(fields::ipv4::FLAGS_OFFSET);
            let offset = offset.and_then(|field| <[u8; 2]>::try_from(field).ok());
            let is_later = offset.is_some_and(|field| u16::from_be_bytes(field) & 0x1fff != 0);
            is_later && protocol == UDP
        }
    }
}

/// The EtherType of the outermost network header, and what begins with that.
pub(super) fn network(link: LinkType, data: &[u8]) -> Option<(u16, &[u8])> {
    let at = match link {
        LinkType::ETHERNET => fields::ethernet::TYPE.start,
        LinkType::LINUX_SLL => fields::sll::TYPE.start,
        LinkType::RAW => {
            let kind = match ipv4::version(data)? {
                4 => ethertype::IPV4,
                6 => ethertype::IPV6,
                _ => return None,
            };
            return Some((kind, data));
        }
        _ => return None,
    };
    let (kind, at) = fields::behind_tags(data, at, &TAGS, TAGS_MAX)?;
    Some((kind, data.get(at..)?))
}

/// What a recording of these interfaces captures: what `filter` matches and what does not fail
/// `tests`, which are of its own traffic. (Tagged frames pass if `filter` has `vlan`, which shifts the headers;
/// [`Own::has_sent`] finds them.)
pub(crate) fn without(
    tests: Vec<String>,
    filter: Option<&Filter>,
    interfaces: &[String],
) -> Result<Option<Filter>> {
    if tests.is_empty() {
        return Ok(filter.cloned());
    }
    let of_others = parsed(tests, filter)?;
    // A filter that has no meaning on an interface would match none of its packets.
    let fits = |name: &String| match Device::named(name) {
        Ok(device) => of_others.compile(device.link).is_ok(),
        Err(_) => true,
    };
    Ok(match interfaces.iter().all(fits) {
        true => Some(of_others),
        false => filter.cloned(),
    })
}

fn parsed(mut tests: Vec<String>, filter: Option<&Filter>) -> Result<Filter> {
    tests.extend(filter.map(|filter| format!("({filter})")));
    let text = tests.join(" and ");
    let parsed = Filter::parse(&text);
    let parsed = parsed.map_err(|error| RoleError::Refused(error.to_string()))?;
    Ok(parsed.on_interfaces())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn frame(own: &Own, tags: usize) -> Vec<u8> {
        let mut frame = vec![0; 12];
        for tag in 0..tags {
            frame.extend([0x81, 0, 0, tag.to_le_bytes()[0]]);
        }
        match (own.from.ip(), own.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 17, 0, 0]);
                frame.extend(from.octets());
                frame.extend(to.octets());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 17, 64]);
                frame.extend(from.octets());
                frame.extend(to.octets());
            }
            _ => unreachable!("of one family"),
        }
        frame.extend(own.from.port().to_be_bytes());
        frame.extend(own.to.port().to_be_bytes());
        frame.extend([0, 20, 0, 0]);
        frame.extend([0; 40]);
        frame
    }

    #[test]
    fn a_socket_that_takes_the_place_of_another_is_own_too() {
        let [first, other] = owns().try_into().unwrap();
        let all = OwnTraffic::new([None, Some(first)].into_iter());
        let before = all.changes();
        assert_eq!(all.all(), [first]);
        all.set(1, other);
        assert!(all.changes() != before);
        assert_eq!(all.all(), [other, first]);
        all.set(0, first);
        all.set(1, first);
        assert_eq!(all.all(), [first, first, other], "no more than two each");
    }

    fn own(from: SocketAddr, to: SocketAddr) -> Own {
        Own {
            from,
            to,
            sockets: 1,
            may_fragment: false,
        }
    }

    fn owns() -> Vec<Own> {
        [
            ("192.0.2.1:50000", "192.0.2.9:4740"),
            ("[2001:db8::1]:50001", "[2001:db8::9]:4789"),
        ]
        .map(|(from, to)| own(from.parse().unwrap(), to.parse().unwrap()))
        .to_vec()
    }

    #[test]
    fn only_what_a_socket_sends_is_its_own() {
        for own in owns() {
            for tags in 0..3 {
                let sent = frame(&own, tags);
                assert!(own.has_sent(LinkType::ETHERNET, &sent), "{tags} tags");
                for len in 0..sent.len() - 44 {
                    assert!(!own.has_sent(LinkType::ETHERNET, &sent[..len]));
                }
            }
            assert!(own.has_sent(LinkType::RAW, &frame(&own, 0)[14..]));
            let answer = self::own(own.to, own.from);
            assert!(!own.has_sent(LinkType::ETHERNET, &frame(&answer, 0)));
        }
    }

    /// Of a datagram in fragments, only the first has ports, and in IPv6 none has them where filters look.
    #[test]
    fn fragments_between_the_two_hosts_are_own_where_there_are_any() {
        for mut own in owns() {
            own.may_fragment = true;
            let is_v6 = own.to.is_ipv6();
            let mut later = frame(&own, 0);
            match is_v6 {
                true => later[20] = 44,
                false => later[21] = 185,
            }
            let program = parsed(vec![own.test()], None).unwrap();
            let program = program.compile(LinkType::ETHERNET).unwrap();
            assert!(own.has_sent(LinkType::ETHERNET, &later));
            assert!(!program.matches(&later, 100));
            let back = Own {
                may_fragment: true,
                ..self::own(own.to, own.from)
            };
            assert!(!back.has_sent(LinkType::ETHERNET, &later));
            own.may_fragment = false;
            let program = parsed(vec![own.test()], None).unwrap();
            let program = program.compile(LinkType::ETHERNET).unwrap();
            assert!(program.matches(&later, 100), "of others");
        }
    }

    #[test]
    fn sockets_have_ports_one_after_the_other() {
        let mut own = owns()[0];
        own.sockets = 8;
        let program = parsed(vec![own.test()], None).unwrap();
        let program = program.compile(LinkType::ETHERNET).unwrap();
        for (more, is_own) in [(0, true), (7, true), (8, false)] {
            let mut other = own;
            other.from.set_port(own.from.port() + more);
            let sent = frame(&other, 0);
            assert_eq!(own.has_sent(LinkType::ETHERNET, &sent), is_own, "{more}");
            assert_eq!(!program.matches(&sent, 100), is_own, "{more}");
        }
    }

    /// What is cut, tagged otherwise or wrong: each byte of a frame as others have it, and each length. The digest is that of
    /// all answers, which must not depend on who parses.
    #[test]
    fn odd_frames_are_judged_as_ever() {
        let (mut digest, mut sent) = (0_u64, 0_u32);
        let mut judge = |own: &Own, link, frame: &[u8]| {
            let is_own = own.has_sent(link, frame);
            digest = strata_wire::mix64(digest << 1 | u64::from(is_own));
            sent += u32::from(is_own);
        };
        let links = [
            LinkType::ETHERNET,
            LinkType::LINUX_SLL,
            LinkType::RAW,
            LinkType::NULL,
        ];
        for own in owns() {
            for tags in 0..4 {
                let ethernet = frame(&own, tags);
                let cooked = [&[0; 2], &ethernet[..]].concat();
                for (link, whole) in [
                    (links[0], &ethernet),
                    (links[1], &cooked),
                    (links[2], &ethernet[14..].to_vec()),
                    (links[3], &ethernet),
                ] {
                    for len in 0..whole.len() {
                        judge(&own, link, &whole[..len]);
                    }
                    for at in 0..whole.len() {
                        let values = [0, 1, 4, 6, 8, 17, 0x3f, 0x40, 0x45, 0x4f, 0x60, 0x81, 0x86];
                        for value in values.into_iter().chain([0x88, 0x91, 0xa8, 0xdd, 0xff]) {
                            let mut odd = whole.clone();
                            odd[at] = value;
                            judge(&own, link, &odd);
                        }
                    }
                }
            }
        }
        assert_eq!((sent, digest), (17_346, 797_799_167_558_256_780));
    }

    #[test]
    fn the_capture_filter_leaves_it_out_and_nothing_else() {
        let owns = owns();
        for (text, other) in [
            (None, true),
            (Some("udp"), true),
            (Some("tcp or vlan 5"), false),
        ] {
            let user = text.map(|text| Filter::parse(text).unwrap());
            let tests = owns.iter().map(Own::test).collect();
            let program = parsed(tests, user.as_ref()).unwrap();
            let program = program.compile(LinkType::ETHERNET).unwrap();
            for own in &owns {
                assert!(!program.matches(&frame(own, 0), 100), "{text:?}");
                let mut more = *own;
                more.from.set_port(1);
                assert_eq!(program.matches(&frame(&more, 0), 100), other, "{text:?}");
                let back = self::own(own.to, own.from);
                assert_eq!(program.matches(&frame(&back, 0), 100), other, "{text:?}");
            }
        }
    }
}
