//! Datagrams of reporters from AF_XDP: what comes in on an interface for the address and port of
//! reports goes past the host's network stack.
//!
//! The driver's program takes whole datagrams for this address and port away, and nothing else. Fragments,
//! frames with VLAN tags or for another Ethernet address and whatever comes by another interface go on to
//! the host, and are taken from the socket. What the host would have looked at is looked at here: lengths,
//! checksums, and sources that no packet has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;

use strata_capture::Packets as _;
use strata_capture::live::{Device, Exclusive, Live, LiveError, LiveOptions};
use strata_role::{At as _, Result, RoleError, require};

use strata_filter::Filter;
use strata_sys::interface::ethernet_address;
use strata_wire::checksum::Sum;
use strata_wire::ethernet::{self, ethertype};
use strata_wire::transport::UDP_HEADER_LEN;
use strata_wire::{ipv4, ipv6};

/// Batches that are taken before the sockets are looked at again.
const BATCHES: usize = 8;
/// Memory of all queues together, as far as they need no more.
const FRAMES_BYTES: usize = 64 << 20;
/// The protocol number of UDP.
const UDP: u8 = 17;

/// Datagrams received from an interface past the host's network stack, by outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct FrameCounts {
    /// Datagrams that were taken.
    pub datagrams: u64,
    /// Datagrams with wrong lengths or checksums, or with an impossible source address.
    pub invalid: u64,
    /// Datagrams that were dropped because no frame was free.
    pub dropped: u64,
}

/// The source.
pub(crate) struct Frames {
    /// Until the interface is gone.
    live: Option<Live>,
    interface: String,
    how: String,
    listen: IpAddr,
    counts: FrameCounts,
}

impl Frames {
    /// Takes datagrams for `listen` away from an interface.
    ///
    /// # Errors
    ///
    /// If the address is not one of the host alone, or the interface or its driver cannot do it.
    pub(crate) fn open(interface: &str, listen: SocketAddr) -> Result<Self> {
        let address = listen.ip();
        let is_own = !address.is_unspecified() && !address.is_loopback();
        require(is_own && !address.is_multicast(), || {
            format!(
                "--interface {interface}: only datagrams for one address of this host are \
                 received: give that address as --listen, not {address}"
            )
        })?;
        let named = || format!("--interface {interface}");
        let fail = |error: LiveError| refused(interface, error);
        let device = Device::named(interface)
            .map_err(RoleError::own)
            .at_with(named)?;
        let queues = usize::try_from(device.offers().queues).expect("1,024 at most");
        let mut options = LiveOptions::default();
        options.interfaces = vec![interface.to_owned()];
        options.promiscuous = false;
        options.exclusive = Exclusive::Native;
        options.ring_bytes = Some(FRAMES_BYTES / queues);
        options.check().map_err(fail)?;
        let own = ethernet_address(interface).at_with(named)?;
        options.filter = Some(filter(own, listen));
        let live = Live::open(&options, 1).map_err(fail)?.pop();
        let live = live.expect("one worker was asked for");
        let ways = live.ways();
        let how = ways.first().map(|way| way.how.clone());
        Ok(Self {
            live: Some(live),
            interface: interface.to_owned(),
            how: how.expect("an interface is taken in some way"),
            listen: address,
            counts: FrameCounts::default(),
        })
    }

    /// What becomes readable when datagrams have come.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.live.iter().flat_map(Live::sockets)
    }

    pub(crate) fn counts(&self) -> FrameCounts {
        self.counts
    }

    pub(crate) fn interface(&self) -> &str {
        &self.interface
    }

    /// How it is done, in words.
    pub(crate) fn how(&self) -> &str {
        &self.how
    }

    /// Whether the interface is still there.
    pub(crate) fn is_taking(&self) -> bool {
        self.live.is_some()
    }

    /// Gives datagrams that have arrived to `take`; returns the number of frames.
    pub(crate) fn receive(&mut self, take: &mut dyn FnMut(SocketAddr, &[u8])) -> usize {
        let Some(live) = &mut self.live else {
            return 0;
        };
        let mut count = 0;
        for _ in 0..BATCHES {
            if !live.step() {
                break;
            }
            let batch = live.batch();
            for index in 0..batch.len() {
                let datagram = datagram(batch.get(index).data);
                match datagram.filter(|(source, _)| is_source(source.ip(), self.listen)) {
                    Some((source, payload)) => {
                        self.counts.datagrams += 1;
                        take(source, payload);
                    }
                    None => self.counts.invalid += 1,
                }
            }
            count += batch.len();
        }
        count
    }

    /// Looks at what the kernel has counted, and whether the interface is still there; a warning if it
    /// has gone.
    ///
    /// # Errors
    ///
    /// If it cannot be read for another reason.
    pub(crate) fn look(&mut self) -> Result<Option<String>> {
        let Some(live) = &mut self.live else {
            return Ok(None);
        };
        // A kernel that does not say counts none.
        if let Ok(counts) = live.counts() {
            self.counts.dropped = counts.iter().map(|(_, counts)| counts.dropped).sum();
        }
        let lost = live.has_lost_interface();
        if !lost
            .map_err(RoleError::own)
            .at_with(|| format!("--interface {}", self.interface))?
        {
            return Ok(None);
        }
        self.live = None;
        Ok(Some(format!(
            "--interface {}: the interface was removed; reports are received through the socket \
             from now on: once the interface is back, restart this command to bypass the host's \
             network stack again",
            self.interface
        )))
    }
}

/// What is taken away: whole datagrams that the host would give to its socket at `listen`.
fn filter(own: [u8; 6], listen: SocketAddr) -> Filter {
    let whole = match listen.ip() {
        IpAddr::V4(_) => " and ip[6:2] & 0x3fff = 0",
        IpAddr::V6(_) => "",
    };
    let [a, b, c, d, e, f] = own;
    let filter = format!(
        "ether dst {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} and dst host {} and udp dst port {}{whole}",
        listen.ip(),
        listen.port()
    );
    Filter::parse(&filter).expect("a filter that differs by its addresses only")
}

/// Why an interface cannot be used for reports.
fn refused(interface: &str, error: LiveError) -> RoleError {
    let why = match error {
        LiveError::NoXdp { why, .. } => why,
        LiveError::System { call, source, .. }
            if source.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            format!(
                "not permitted ({call}): run as root, or permit it to the program: `setcap \
                 cap_net_raw,cap_net_admin,cap_bpf+ep PROGRAM`"
            )
        }
        other => {
            return RoleError::At {
                what: format!("--interface {interface}"),
                source: Box::new(RoleError::own(other)),
            };
        }
    };
    RoleError::Refused(format!(
        "--interface {interface}: reports cannot bypass the host's network stack (AF_XDP): {why}; \
         without --interface, reports are received through a socket"
    ))
}

/// Whether the host would believe a packet of this source (RFC 1122 §3.2.1.3, RFC 4291 §2.5 to 2.7). Addresses
/// of IPv4 within those of IPv6 would pass for the former.
fn is_source(source: IpAddr, own: IpAddr) -> bool {
    let is_none = match source {
        IpAddr::V4(source) => source.is_broadcast() || source.octets()[0] == 0,
        IpAddr::V6(source) => source.is_unspecified() || source.to_ipv4_mapped().is_some(),
    };
    !(is_none || source.is_loopback() || source.is_multicast() || source == own)
}

/// Source and payload of the UDP datagram of an Ethernet frame, if it is whole and its checksums are
/// right.
fn datagram(frame: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let kind = ethernet::Frame::new_checked(frame)?.type_or_length();
    let packet = &frame[ethernet::HEADER_LEN..];
    // The pseudo header (RFC 768, RFC 8200 §8.1).
    let mut pseudo = Sum::default();
    pseudo.add_number(u16::from(UDP));
    let (source, udp) = match kind {
        ethertype::IPV4 => {
            let header = ipv4::Packet::new_checked(packet)?;
            let (len, total) = (header.header_len(), usize::from(header.total_len()));
            if header.protocol() != UDP || Sum::over(&packet[..len]) != 0xffff {
                return None;
            }
            pseudo.add(&packet[12..20]);
            let source = IpAddr::from(Ipv4Addr::from(header.source()));
            (source, packet.get(len..total)?)
        }
        ethertype::IPV6 => {
            let header = ipv6::Packet::new_checked(packet)?;
            let end = ipv6::HEADER_LEN + usize::from(header.payload_len());
            if header.next_header() != UDP {
                return None;
            }
            pseudo.add(&packet[8..40]);
            let source = IpAddr::from(Ipv6Addr::from(header.source()));
            (source, packet.get(ipv6::HEADER_LEN..end)?)
        }
        _ => return None,
    };
    let (header, payload) = udp.split_first_chunk::<UDP_HEADER_LEN>()?;
    let field = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let (port, len, checksum) = (field(0), field(4), field(6));
    // What follows is not part of it.
    let payload = payload.get(..usize::from(len).checked_sub(UDP_HEADER_LEN)?)?;
    pseudo.add_number(len);
    let mut whole = pseudo;
    whole.add(header);
    whole.add(payload);
    let is_right = match checksum {
        // None was made, which IPv4 permits.
        0 => source.is_ipv4(),
        // Left to a card that the packet never reached, as between containers: the sender has put the
        // sum of the pseudo header there.
        unfinished if unfinished == pseudo.fold() => true,
        _ => whole.fold() == 0xffff,
    };
    is_right.then_some((SocketAddr::new(source, port), payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A datagram of four bytes by IPv6, without a checksum.
    fn ipv6() -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd];
        frame.extend([0x60, 0, 0, 0, 0, 12, UDP, 64]);
        for last in [1, 2] {
            frame.extend([
                0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last,
            ]);
        }
        frame.extend([0x13, 0x88, 0x9c, 0x68, 0, 12, 0, 0, 1, 2, 3, 4]);
        frame
    }

    #[test]
    fn ipv6_needs_a_checksum_and_the_sum_of_the_pseudo_header_will_do() {
        let mut frame = ipv6();
        assert_eq!(datagram(&frame), None, "none was made");
        // 2001 + 0db8 + 1 twice (but 2), 17, 12: and with the datagram, its complement.
        let pseudo: u32 = 2 * (0x2001 + 0x0db8) + 1 + 2 + 17 + 12;
        let whole = pseudo + 0x1388 + 0x9c68 + 12 + 0x0102 + 0x0304;
        let fold = |sum: u32| u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
        for right in [fold(pseudo), !fold(whole)] {
            frame[60..62].copy_from_slice(&right.to_be_bytes());
            let (source, payload) = datagram(&frame).unwrap();
            assert_eq!(source, "[2001:db8::1]:5000".parse().unwrap());
            assert_eq!(payload, [1, 2, 3, 4]);
        }
        for at in [25, 45, 54, 59, 60, 63] {
            let mut damaged = frame.clone();
            damaged[at] ^= 0x10;
            assert_eq!(datagram(&damaged), None, "{at}");
        }
    }

    #[test]
    fn every_beginning_of_a_frame_is_no_datagram() {
        let mut frame = ipv6();
        frame[60..62].copy_from_slice(&[0xff, 0xff]);
        for len in 0..frame.len() {
            assert_eq!(datagram(&frame[..len]), None, "{len}");
        }
    }

    #[test]
    fn sources_are_those_that_a_host_believes() {
        let own = "192.0.2.2".parse().unwrap();
        for (source, believed) in [
            ("192.0.2.1", true),
            ("2001:db8::1", true),
            ("fe80::1", true),
            ("192.0.2.2", false),
            ("0.0.0.7", false),
            ("127.1.2.3", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("::", false),
            ("::1", false),
            ("ff02::1", false),
            ("::ffff:192.0.2.1", false),
        ] {
            assert_eq!(
                is_source(source.parse().unwrap(), own),
                believed,
                "{source}"
            );
        }
    }
}
