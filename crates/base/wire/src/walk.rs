//! The walk through all layers of a packet; see [`crate::walk::dissect`].

pub(crate) mod context;
pub mod dissect;
pub mod fields;
pub(crate) mod fragments;
pub(crate) mod headers;
pub(crate) mod plain;
pub(crate) mod prefetch;
pub mod sighting;

mod labels;
mod links;
mod transports;

use crate::bytes::{be16, be32, u8_at};
use crate::formats::ethernet::{self, ethertype};
use crate::formats::ip_protocol as protocol;
use crate::formats::transport::{Tcp, UDP_HEADER_LEN};
use crate::formats::tunnel::{self, Inner, TunnelKind, Tunnels};
use crate::walk::headers::{Fragment, Headers, TunnelKey};
use crate::words::flow::{AddressFamily, Endpoint, FlowKey};
use crate::{LinkType, formats::ipv4, formats::ipv6};
use links::LinkHeader;

/// The most layers that are walked; a packet with more ends its header there.
const LAYERS_MAX: usize = 64;

/// Walks the headers layer by layer.
pub(crate) fn walk(link: LinkType, packet: &[u8], tunnel_key: TunnelKey) -> Headers {
    let mut walk = Walk::new(Layer::of(link), packet, tunnel_key, Tunnels::in_force());
    walk.run();
    walk.finish()
}

/// Where the innermost IP header begins, and its version.
pub(crate) fn innermost(link: LinkType, packet: &[u8]) -> Option<(usize, u8)> {
    let tunnels = Tunnels::in_force();
    let mut walk = Walk::new(Layer::of(link), packet, TunnelKey::Inner, tunnels);
    walk.run();
    walk.innermost
}

/// What the walk expects next.
#[derive(Clone, Copy)]
enum Layer {
    Ethernet,
    EtherType(u16),
    LinuxSll,
    LinuxSll2,
    AddressFamily { network_order: bool },
    RawIp,
    Ipv4,
    Ipv6,
    Arp,
    Mpls,
    Nsh,
    PppProtocol,
    Link(LinkHeader),
    Transport(u8),
    Done,
    Unknown,
}

impl Layer {
    #[inline]
    fn of(link: LinkType) -> Self {
        match link {
            LinkType::ETHERNET => Self::Ethernet,
            LinkType::LINUX_SLL => Self::LinuxSll,
            LinkType::LINUX_SLL2 => Self::LinuxSll2,
            LinkType::NULL => Self::AddressFamily {
                network_order: false,
            },
            LinkType::LOOP => Self::AddressFamily {
                network_order: true,
            },
            LinkType::RAW | LinkType::RAW_12 | LinkType::RAW_14 => Self::RawIp,
            LinkType::IPV4 => Self::Ipv4,
            LinkType::IPV6 => Self::Ipv6,
            _ => LinkHeader::of(link).map_or(Self::Unknown, Self::Link),
        }
    }
}

struct Walk<'a> {
    packet: &'a [u8],
    /// Where the next layer starts.
    at: usize,
    /// Where the innermost IP packet ends by its own length; trailers are not headers.
    end: usize,
    layer: Layer,
    layers_left: usize,
    /// Whether an IP header gives a longer packet than what is here.
    cut_short: bool,
    tunnel_key: TunnelKey,
    tunnels: &'a Tunnels,
    /// Whether this is the packet that an ICMP message quotes: no more quotes are looked for.
    is_quote: bool,
    headers: Headers,
    macs: Option<(u128, u128, u16)>,
    /// Where the last IP header began, and its version.
    innermost: Option<(usize, u8)>,
}

impl<'a> Walk<'a> {
    fn new(layer: Layer, packet: &'a [u8], tunnel_key: TunnelKey, tunnels: &'a Tunnels) -> Self {
        Self {
            packet,
            at: 0,
            end: packet.len(),
            layer,
            layers_left: LAYERS_MAX,
            cut_short: false,
            tunnel_key,
            tunnels,
            is_quote: false,
            headers: Headers::default(),
            macs: None,
            innermost: None,
        }
    }

    /// What was found.
    fn finish(self) -> Headers {
        let mut headers = self.headers;
        // What reaches the cut may continue after it: a tunnel's header cannot be told from payload
        // before it is seen.
        headers.incomplete |= self.cut_short && self.at >= self.packet.len();
        if headers.key.is_none()
            && let Some((destination, source, kind)) = self.macs
        {
            let end = |address| Endpoint {
                address,
                port: kind,
            };
            let (key, low_to_high) =
                FlowKey::new(AddressFamily::Mac, 0, end(source), end(destination));
            headers.key = Some(key);
            headers.low_to_high = low_to_high;
        }
        let header_len = u32::try_from(self.at.min(self.packet.len()));
        let header_len = header_len.expect("headers of a packet are shorter than 4 GiB");
        headers.header_len = header_len;
        headers
    }

    #[inline]
    fn run(&mut self) {
        while self.layers_left > 0 {
            self.layers_left = self.layers_left.wrapping_sub(1);
            let next = match self.layer {
                Layer::Ethernet => self.ethernet(),
                Layer::EtherType(kind) => self.ethertype(kind),
                Layer::Ipv4 => self.ipv4(),
                Layer::Ipv6 => self.ipv6(),
                Layer::Transport(number) => self.transport(number),
                Layer::Done => return,
                Layer::Unknown => break,
                other => self.rare(other),
            };
            match next {
                Some(next) => self.layer = next,
                None => break,
            }
        }
        self.headers.incomplete = true;
    }

    /// The bytes of the next layer.
    #[inline(always)]
    fn rest(&self) -> &[u8] {
        self.packet.get(self.at..self.end).unwrap_or(&[])
    }

    /// Takes a header of this many bytes; a shorter rest is taken whole and ends the walk.
    #[inline(always)]
    fn take(&mut self, len: usize) -> Option<()> {
        let left = self.end.saturating_sub(self.at);
        // At most `end`, or where it was.
        self.at = self.at.wrapping_add(len.min(left));
        (len <= left).then_some(())
    }

    #[inline]
    fn ethernet(&mut self) -> Option<Layer> {
        let Some(frame) = ethernet::Frame::new_checked(self.rest()) else {
            self.take(ethernet::HEADER_LEN)?;
            return None;
        };
        let kind = frame.type_or_length();
        let (destination, source) = frame.addresses();
        self.macs = Some((destination, source, kind));
        self.take(ethernet::HEADER_LEN)?;
        Some(Layer::EtherType(kind))
    }

    #[inline]
    fn ethertype(&mut self, kind: u16) -> Option<Layer> {
        match kind {
            ethertype::IPV4 => Some(Layer::Ipv4),
            ethertype::IPV6 => Some(Layer::Ipv6),
            ethertype::VLAN | ethertype::SERVICE_VLAN => self.vlan(),
            kind if ethertype::QINQ_OLD.contains(&kind) => self.vlan(),
            ethertype::ARP | ethertype::RARP => Some(Layer::Arp),
            ethertype::MPLS | ethertype::MPLS_MULTICAST => Some(Layer::Mpls),
            ethertype::NSH => Some(Layer::Nsh),
            ethertype::PPPOE_SESSION => {
                self.take(tunnel::PPPOE_HEADER_LEN)?;
                Some(Layer::PppProtocol)
            }
            ethertype::PPPOE_DISCOVERY => {
                self.take(tunnel::PPPOE_HEADER_LEN)?;
                Some(Layer::Done)
            }
            ethertype::TEB => Some(Layer::Ethernet),
            ethertype::PPP => Some(Layer::Link(LinkHeader::Ppp)),
            length if length <= ethernet::LENGTH_MAX => self.llc(),
            _ => Some(Layer::Done),
        }
    }

    #[inline]
    fn vlan(&mut self) -> Option<Layer> {
        let kind = be16(self.rest(), 2);
        self.take(4)?;
        if let (Some((_, _, outer)), Some(kind)) = (&mut self.macs, kind) {
            *outer = kind;
        }
        Some(Layer::EtherType(kind?))
    }

    /// IEEE 802.2 LLC, and SNAP with an EtherType (RFC 1042).
    fn llc(&mut self) -> Option<Layer> {
        let rest = self.rest();
        let snap = rest.starts_with(&[0xaa, 0xaa, 0x03]);
        let organisation = rest
            .get(3..6)
            .and_then(|code| <[u8; 3]>::try_from(code).ok());
        let kind = be16(rest, 6);
        // SNAP is part of the header, whichever organisation's protocol it names: so where the
        // header ends does not depend on bytes that may be cut off.
        self.take(if snap { 8 } else { 3 })?;
        match (organisation, kind) {
            // RFC 1042; IEEE 802.1H bridge tunnel.
            (Some([0, 0, 0 | 0xf8]), Some(kind)) if snap && kind > ethernet::LENGTH_MAX => {
                Some(Layer::EtherType(kind))
            }
            _ => Some(Layer::Done),
        }
    }

    /// Layers that most packets do not have.
    #[inline(never)]
    fn rare(&mut self, layer: Layer) -> Option<Layer> {
        match layer {
            Layer::LinuxSll => {
                let kind = be16(self.rest(), 14);
                self.take(16)?;
                self.cooked(kind?)
            }
            Layer::LinuxSll2 => {
                let kind = be16(self.rest(), 0);
                self.take(20)?;
                self.cooked(kind?)
            }
            Layer::AddressFamily { network_order } => {
                let family = be32(self.rest(), 0);
                self.take(4)?;
                let family = family?;
                // Without network order, the byte order is that of the machine
                // that captured; small numbers tell which.
                let family = if network_order || family < 0x1_0000 {
                    family
                } else {
                    family.swap_bytes()
                };
                match family {
                    2 => Some(Layer::Ipv4),
                    // AF_INET6 of Linux; NetBSD, OpenBSD; FreeBSD; macOS.
                    10 | 24 | 28 | 30 => Some(Layer::Ipv6),
                    _ => None,
                }
            }
            Layer::RawIp => match ipv4::version(self.rest())? {
                4 => Some(Layer::Ipv4),
                6 => Some(Layer::Ipv6),
                _ => None,
            },
            Layer::Arp => self.arp(),
            Layer::Mpls => self.mpls(),
            Layer::Nsh => self.nsh(),
            Layer::PppProtocol => {
                // RFC 1661 §2: the last byte of the field is odd, and alone where it is compressed.
                let compressed = u8_at(self.rest(), 0).filter(|first| first & 1 != 0);
                let number = compressed.map(u16::from).or(be16(self.rest(), 0));
                self.take(if compressed.is_some() { 1 } else { 2 })?;
                // PPP protocol numbers (IANA).
                match number? {
                    0x0021 => Some(Layer::Ipv4),
                    0x0057 => Some(Layer::Ipv6),
                    0x0281 | 0x0283 => Some(Layer::Mpls),
                    _ => Some(Layer::Done),
                }
            }
            Layer::Link(header) => self.link(header),
            _ => None,
        }
    }

    /// The protocol field of Linux cooked captures: an EtherType, or below
    /// 0x600 a Linux number, of which 4 is 802.2 LLC.
    fn cooked(&mut self, kind: u16) -> Option<Layer> {
        match kind {
            0x0004 => self.llc(),
            kind if kind > ethernet::LENGTH_MAX => Some(Layer::EtherType(kind)),
            _ => Some(Layer::Done),
        }
    }

    /// ARP for IPv4 over Ethernet (RFC 826): all of it is header. Its flow is that of the two
    /// hosts, as MAC addresses; its IP addresses are in `outer`, so that a search for a host finds
    /// it.
    fn arp(&mut self) -> Option<Layer> {
        let rest = self.rest();
        let (hardware, protocol) = (u8_at(rest, 4), u8_at(rest, 5));
        let (sender, target) = (be32(rest, 14), be32(rest, 24));
        self.take(8)?;
        let (hardware, protocol) = (hardware?, protocol?);
        if let ((6, 4), Some(sender), Some(target)) = ((hardware, protocol), sender, target) {
            let end = |address: u32| Endpoint {
                address: u128::from(address),
                port: 0,
            };
            let (key, _) = FlowKey::new(AddressFamily::Ipv4, 0, end(sender), end(target));
            self.headers.networks = self.headers.networks.saturating_add(1);
            self.headers.outer = Some(key);
        } else {
            self.headers.incomplete = true;
        }
        // At most 1,020.
        let addresses = usize::from(hardware).wrapping_add(usize::from(protocol));
        self.take(addresses.wrapping_mul(2))?;
        Some(Layer::Done)
    }

    /// MPLS labels down to the bottom of the stack (RFC 3032), then what [`labels::below`] finds.
    fn mpls(&mut self) -> Option<Layer> {
        let label = be32(self.rest(), 0);
        self.take(4)?;
        if label? & 0x100 == 0 {
            return Some(Layer::Mpls);
        }
        let (len, layer) = labels::below(self.rest())?;
        self.take(len)?;
        Some(layer)
    }

    /// The Network Service Header (RFC 8300).
    fn nsh(&mut self) -> Option<Layer> {
        let Some((len, inner)) = tunnel::of_nsh(self.rest()) else {
            // Cut short, or of another version.
            self.take(4)?;
            return None;
        };
        self.take(len)?;
        Some(inner.map_or(Layer::Done, inner_layer))
    }

    /// Stores the addresses of an IP header. Unless outer keys are wanted, an inner header replaces
    /// an outer one.
    #[inline]
    fn network(
        &mut self,
        family: AddressFamily,
        protocol: u8,
        source: u128,
        destination: u128,
    ) -> bool {
        let end = |address| Endpoint { address, port: 0 };
        let (key, low_to_high) = FlowKey::new(family, protocol, end(source), end(destination));
        let version = if family == AddressFamily::Ipv4 { 4 } else { 6 };
        self.innermost = Some((self.at, version));
        self.headers.networks = self.headers.networks.saturating_add(1);
        if let Some(outer) = self.headers.key {
            if self.tunnel_key == TunnelKey::Outer {
                // A search must still find the inner addresses.
                self.headers.outer = Some(key);
                return false;
            }
            self.headers.outer = Some(outer);
        }
        self.headers.key = Some(key);
        self.headers.low_to_high = low_to_high;
        let at = u32::try_from(self.at);
        self.headers.network_at = at.expect("headers of a packet are shorter than 4 GiB");
        self.headers.fragment = None;
        self.headers.tcp_flags = 0;
        self.headers.tcp_window = 0;
        true
    }

    #[inline]
    fn ipv4(&mut self) -> Option<Layer> {
        let Some(ip) = ipv4::Packet::new_checked(self.rest()) else {
            self.short_ip(ipv4::HEADER_LEN_MIN);
            return None;
        };
        let (header_len, total_len) = (ip.header_len(), usize::from(ip.total_len()));
        let (number, tos, ttl) = (ip.protocol(), ip.tos(), ip.ttl());
        let (offset, more) = (ip.fragment_offset(), ip.more_fragments());
        let identification = u32::from(ip.identification());
        let mine = self.network(
            AddressFamily::Ipv4,
            number,
            u128::from(ip.source()),
            u128::from(ip.destination()),
        );
        if mine {
            self.headers.tos = tos;
            self.headers.ttl = ttl;
            if offset != 0 || more {
                self.headers.fragment = Some(Fragment {
                    identification,
                    first: offset == 0,
                });
            }
        }
        if total_len >= header_len {
            self.limit(total_len);
        }
        self.headers.transport_len = 0;
        self.take(header_len)?;
        if offset != 0 {
            return Some(Layer::Done);
        }
        Some(Layer::Transport(number))
    }

    /// The packet starting here states its own length.
    #[inline]
    fn limit(&mut self, len: usize) {
        let end = self.at.saturating_add(len);
        self.cut_short |= end > self.end;
        self.end = self.end.min(end);
    }

    /// An IP header that is cut short or invalid: what was captured of its fixed part still is
    /// header.
    #[cold]
    fn short_ip(&mut self, len: usize) {
        let _ = self.take(len);
    }

    #[inline]
    fn ipv6(&mut self) -> Option<Layer> {
        let Some(ip) = ipv6::Packet::new_checked(self.rest()) else {
            self.short_ip(ipv6::HEADER_LEN);
            return None;
        };
        let (next, payload_len) = (ip.next_header(), usize::from(ip.payload_len()));
        let (class, hops) = (ip.traffic_class(), ip.hop_limit());
        let mine = self.network(AddressFamily::Ipv6, next, ip.source(), ip.destination());
        if mine {
            self.headers.tos = class;
            self.headers.ttl = hops;
        }
        if payload_len > 0 {
            self.limit(ipv6::HEADER_LEN.saturating_add(payload_len));
        }
        self.headers.transport_len = 0;
        self.take(ipv6::HEADER_LEN)?;
        Some(Layer::Transport(next))
    }

    /// Whether `key` is from the IP header just walked.
    #[inline]
    fn key_is_current(&self) -> bool {
        self.tunnel_key == TunnelKey::Inner || self.headers.outer.is_none()
    }

    fn set_protocol(&mut self, number: u8) {
        if self.key_is_current()
            && let Some(key) = &mut self.headers.key
        {
            key.protocol = number;
        }
    }

    #[inline]
    fn ports(&mut self, source: u16, destination: u16) {
        if !self.key_is_current() {
            return;
        }
        let (mut from, mut to) = self.headers.endpoints();
        from.port = source;
        to.port = destination;
        if let Some(key) = &mut self.headers.key {
            let (with_ports, low_to_high) = FlowKey::new(key.family, key.protocol, from, to);
            *key = with_ports;
            self.headers.low_to_high = low_to_high;
        }
    }

    #[inline]
    fn transport(&mut self, number: u8) -> Option<Layer> {
        match number {
            protocol::TCP => self.tcp(),
            protocol::UDP => self.udp(),
            _ => self.other_transport(number),
        }
    }

    /// Takes a transport header and stores its length.
    #[inline]
    fn take_transport(&mut self, len: usize) -> Option<()> {
        let before = self.at;
        let whole = self.take(len);
        let taken = u16::try_from(self.at.wrapping_sub(before));
        self.headers.transport_len = taken.expect("no transport header is that long");
        whole
    }

    #[inline]
    fn tcp(&mut self) -> Option<Layer> {
        let rest = self.rest();
        let Some(tcp) = Tcp::new_checked(rest) else {
            if let (Some(source), Some(destination)) = (be16(rest, 0), be16(rest, 2)) {
                self.ports(source, destination);
            }
            self.take_transport(20)?;
            return None;
        };
        let (source, destination) = (tcp.source_port(), tcp.destination_port());
        let (len, flags, window) = (tcp.header_len(), tcp.flags(), tcp.window());
        self.ports(source, destination);
        if self.key_is_current() {
            self.headers.tcp_flags = flags;
            self.headers.tcp_window = window;
        }
        self.take_transport(len.max(20))?;
        (len >= 20).then_some(Layer::Done)
    }

    #[inline]
    fn udp(&mut self) -> Option<Layer> {
        let rest = self.rest();
        let (ports, stated_len) = ((be16(rest, 0), be16(rest, 2)), be16(rest, 4));
        if let (Some(source), Some(destination)) = ports {
            self.ports(source, destination);
        }
        self.take_transport(8)?;
        let (source, destination) = (ports.0?, ports.1?);
        match self.tunnels.kind(source, destination) {
            None => Some(Layer::Done),
            Some(kind) => self.tunnel_in_udp(kind, usize::from(stated_len?)),
        }
    }

    /// A datagram of a port for this tunnel, which its UDP header says is this long.
    #[inline(never)]
    fn tunnel_in_udp(&mut self, kind: TunnelKind, stated_len: usize) -> Option<Layer> {
        let rest = self.rest();
        let payload_len = stated_len.saturating_sub(UDP_HEADER_LEN);
        let found = match kind {
            TunnelKind::MplsUdp if !labels::is_stack(rest) => None,
            kind => tunnel::of_udp(kind, payload_len, rest),
        };
        let Some((len, inner)) = found else {
            // Perhaps a tunnel whose own header was cut short.
            self.headers.incomplete |= self.cut_short;
            return Some(Layer::Done);
        };
        self.take(len)?;
        Some(inner.map_or(Layer::Done, inner_layer))
    }
}

fn inner_layer(inner: Inner) -> Layer {
    match inner {
        Inner::Ethernet => Layer::Ethernet,
        Inner::EtherType(kind) => Layer::EtherType(kind),
        Inner::RawIp => Layer::RawIp,
    }
}
