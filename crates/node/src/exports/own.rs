//! What an exporter sends must not be captured and exported again.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use strata_capture::live::Device;
use strata_filter::Filter;
use strata_role::{Result, RoleError};
use strata_wire::LinkType;

/// The two ends of a socket that exports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Own {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
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

/// EtherTypes of IPv4, IPv6 and VLAN tags (IEEE 802).
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const UDP: u8 = 17;

impl Own {
    /// A test in tcpdump's language that what the socket sends fails.
    pub(super) fn test(&self) -> String {
        let (from, to) = (self.from, self.to);
        format!(
            "not (udp and src host {} and src port {} and dst host {} and dst port {})",
            from.ip(),
            from.port(),
            to.ip(),
            to.port()
        )
    }

    /// Whether a packet is one that the socket has sent: by its outermost IP header, in a frame with up
    /// to two VLAN tags.
    pub(super) fn has_sent(&self, link: LinkType, data: &[u8]) -> bool {
        let Some((kind, ip)) = network(link, data) else {
            return false;
        };
        let (source, destination, udp) = match kind {
            IPV4 => {
                let Some(header) = ip.first_chunk::<20>() else {
                    return false;
                };
                if header[9] != UDP {
                    return false;
                }
                let address = |at: usize| -> IpAddr {
                    [header[at], header[at + 1], header[at + 2], header[at + 3]].into()
                };
                let len = usize::from(header[0] & 15) * 4;
                (address(12), address(16), ip.get(len..))
            }
            _ => {
                let Some(header) = ip.first_chunk::<40>() else {
                    return false;
                };
                if header[6] != UDP {
                    return false;
                }
                let address = |at: usize| -> IpAddr {
                    let bytes: [u8; 16] = header[at..at + 16].try_into().expect("16 bytes");
                    bytes.into()
                };
                (address(8), address(24), ip.get(40..))
            }
        };
        let ports = udp.and_then(|udp| udp.first_chunk::<4>());
        let port = |[high, low]: [u8; 2]| u16::from_be_bytes([high, low]);
        ports.is_some_and(|&[a, b, c, d]| {
            source == self.from.ip()
                && destination == self.to.ip()
                && port([a, b]) == self.from.port()
                && port([c, d]) == self.to.port()
        })
    }
}

/// Where the outermost IP header begins, and its EtherType.
fn network(link: LinkType, data: &[u8]) -> Option<(u16, &[u8])> {
    let mut at = match link {
        LinkType::ETHERNET => 12,
        LinkType::LINUX_SLL => 14,
        LinkType::RAW => {
            let kind = match data.first()? >> 4 {
                4 => IPV4,
                6 => IPV6,
                _ => return None,
            };
            return Some((kind, data));
        }
        _ => return None,
    };
    for _ in 0..3 {
        let &[high, low] = data.get(at..)?.first_chunk::<2>()?;
        match u16::from_be_bytes([high, low]) {
            kind @ (IPV4 | IPV6) => return Some((kind, data.get(at + 2..)?)),
            kind if TAGS.contains(&kind) => at += 4,
            _ => return None,
        }
    }
    None
}

/// What a recording of these interfaces captures: what `filter` matches and what does not fail
/// `tests`, which are of its own traffic. (Tagged frames pass: `vlan` would shift the headers for the
/// user's filter; [`Own::has_sent`] finds them.)
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
    Filter::parse(&text).map_err(|error| RoleError::Refused(error.to_string()))
}

#[cfg(test)]
mod tests {
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

    fn owns() -> Vec<Own> {
        [
            ("192.0.2.1:50000", "192.0.2.9:4740"),
            ("[2001:db8::1]:50001", "[2001:db8::9]:4789"),
        ]
        .map(|(from, to)| Own {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
        })
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
            let answer = Own {
                from: own.to,
                to: own.from,
            };
            assert!(!own.has_sent(LinkType::ETHERNET, &frame(&answer, 0)));
        }
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
                let back = Own {
                    from: own.to,
                    to: own.from,
                };
                assert_eq!(program.matches(&frame(&back, 0), 100), other, "{text:?}");
            }
        }
    }
}
