//! Header bytes as fields, and back.
//!
//! [`Fields::of`] takes a packet's header apart if it has the usual form: any bytes, then the
//! innermost IPv4 or IPv6 header, then TCP, UDP or any other bytes. Whatever follows from the rest
//! is omitted: lengths that agree with each other, checksums that are right. [`Fields::emit`] puts
//! it together again; code that stores fields compares the two, and stores the bytes where they
//! differ.

pub(crate) mod dictionary;
pub(crate) mod extensions;
pub(crate) mod predict;

use strata_wire::checksum::Sum;
use strata_wire::dissect::{innermost_network, protocol};
use strata_wire::{LinkType, exact, ipv4, ipv6};

use crate::run::header::extensions::extensions;

/// The most bytes of TCP options.
const OPTIONS_MAX: usize = 40;

/// A header in the usual form. `None` stands for a value that follows from other fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fields<'a> {
    /// Everything before the innermost IP header.
    pub(crate) link: &'a [u8],
    pub(crate) network: Network<'a>,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    /// From the length field; `None` if it follows from the wire length.
    pub(crate) ip_len: Option<u16>,
    pub(crate) transport: Transport<'a>,
    /// From the transport header; `None` if right, or if there is no checksum.
    pub(crate) checksum: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Network<'a> {
    V4 {
        source: u32,
        destination: u32,
        protocol: u8,
        identification: u16,
        /// Flags and offset.
        fragment: u16,
        /// `None` if right.
        checksum: Option<u16>,
        options: &'a [u8],
    },
    V6 {
        source: u128,
        destination: u128,
        /// From the fixed header.
        next_header: u8,
        flow_label: u32,
        extensions: &'a [u8],
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Transport<'a> {
    Tcp(Tcp),
    Udp {
        source: u16,
        destination: u16,
    },
    /// Any other bytes up to the end of the header, or none.
    Other(&'a [u8]),
}

/// A TCP header whose urgent pointer is 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tcp {
    pub(crate) source: u16,
    pub(crate) destination: u16,
    pub(crate) sequence: u32,
    pub(crate) acknowledgement: u32,
    /// The 12 bits after the data offset.
    pub(crate) flags: u16,
    pub(crate) window: u16,
    /// Value and echo reply of the timestamp option (RFC 7323).
    pub(crate) timestamps: Option<(u32, u32)>,
    /// With the timestamps zeroed.
    pub(crate) options: Options,
}

/// TCP options without allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    bytes: [u8; OPTIONS_MAX],
    len: u8,
}

impl Options {
    /// `None` if there are more bytes than a TCP header can hold.
    pub(crate) fn new(options: &[u8]) -> Option<Self> {
        let mut bytes = [0; OPTIONS_MAX];
        bytes.get_mut(..options.len())?.copy_from_slice(options);
        let len = u8::try_from(options.len()).ok()?;
        Some(Self { bytes, len })
    }

    /// Whether there is a timestamp option.
    pub(crate) fn has_timestamps(&self) -> bool {
        timestamps_at(self.as_slice()).is_some()
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Used where the payload that a checksum covers was not kept.
const UNKNOWN_CHECKSUM: u16 = 0;

/// What is known of a packet besides its header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Around<'a> {
    /// Bytes on the wire, according to the capture.
    pub(crate) wire_len: u32,
    /// The bytes after the header that were kept.
    pub(crate) payload: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Takes a header apart; `None` if it does not have the usual form.
    pub(crate) fn of(link: LinkType, header: &'a [u8], around: Around<'_>) -> Option<Self> {
        let (at, version) = innermost_network(link, header)?;
        let ip = &header[at..];
        let wire = usize::try_from(around.wire_len).ok()?;
        let fields = if version == 4 {
            Self::of_ipv4(&header[..at], ip, wire)
        } else {
            Self::of_ipv6(&header[..at], ip, wire)
        };
        let mut fields = fields?;
        if fields.checksum.is_some() && fields.checksum == fields.computed(around) {
            fields.checksum = None;
        }
        Some(fields)
    }

    /// The same for the header that most packets have: Ethernet, IPv4 without options, no fragment, then
    /// TCP or UDP and nothing else. These fields yield the header again, so nobody has to try; `None` for
    /// any other one.
    pub(crate) fn plain(link: LinkType, header: &'a [u8], around: Around<'_>) -> Option<Self> {
        let (ethernet, ip) = header.split_first_chunk::<14>()?;
        let (fixed, rest) = ip.split_first_chunk::<20>()?;
        let word = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        let fragment = word(6);
        let is_plain = link == LinkType::ETHERNET
            && ethernet[12..] == [0x08, 0x00]
            && fixed[0] == 0x45
            && fragment & 0x3fff == 0;
        if !is_plain {
            return None;
        }
        let mut fields = Self::of_ipv4(ethernet, ip, usize::try_from(around.wire_len).ok()?)?;
        match fields.transport {
            Transport::Tcp(_) => {}
            // Its length follows from that of IP.
            Transport::Udp { .. }
                if word(2).checked_sub(20) == Some(u16::from_be_bytes([rest[4], rest[5]])) => {}
            _ => return None,
        }
        if fields.checksum == fields.computed(around) {
            fields.checksum = None;
        }
        Some(fields)
    }

    fn of_ipv4(link: &'a [u8], ip: &'a [u8], wire: usize) -> Option<Self> {
        let view = ipv4::Packet::new_checked(ip)?;
        let header_len = view.header_len();
        let word = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
        let stated = word(10);
        let total_len = view.total_len();
        let fragment = word(6);
        let (transport, checksum) =
            transport(view.protocol(), fragment & 0x1fff, &ip[header_len..])?;
        // The sum over a valid header, its checksum included, is all ones.
        let right = Sum::over(&ip[..header_len]) == 0xffff && stated != 0xffff;
        Some(Self {
            link,
            network: Network::V4 {
                source: view.source(),
                destination: view.destination(),
                protocol: view.protocol(),
                identification: view.identification(),
                fragment,
                checksum: (!right).then_some(stated),
                options: &ip[20..header_len],
            },
            tos: view.tos(),
            ttl: view.ttl(),
            ip_len: (usize::from(total_len) + link.len() != wire).then_some(total_len),
            transport,
            checksum,
        })
    }

    fn of_ipv6(link: &'a [u8], ip: &'a [u8], wire: usize) -> Option<Self> {
        let view = ipv6::Packet::new_checked(ip)?;
        let payload_len = view.payload_len();
        let (last, extensions, first) = extensions(view.next_header(), &ip[40..]);
        let rest = &ip[40 + extensions..];
        let (transport, checksum) = transport(last, if first { 0 } else { 1 }, rest)?;
        Some(Self {
            link,
            network: Network::V6 {
                source: view.source(),
                destination: view.destination(),
                next_header: view.next_header(),
                flow_label: view.flow_label(),
                extensions: &ip[40..40 + extensions],
            },
            tos: view.traffic_class(),
            ttl: view.hop_limit(),
            ip_len: (usize::from(payload_len) + 40 + link.len() != wire).then_some(payload_len),
            transport,
            checksum,
        })
    }

    /// Appends the header to `out`. If a checksum needs payload that was not kept, it is 0.
    ///
    /// IPv4 options are whole words, at most 10, and so are those of TCP.
    pub(crate) fn emit(&self, around: Around<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(self.link);
        let ip_len = self.stated_len(around.wire_len);
        match &self.network {
            Network::V4 {
                source,
                destination,
                protocol,
                identification,
                fragment,
                checksum,
                options,
            } => {
                let start = out.len();
                let words: u8 = exact(5 + options.len() / 4);
                let mut fixed = [0; 20];
                fixed[0..2].copy_from_slice(&[0x40 | words & 0x0f, self.tos]);
                fixed[2..4].copy_from_slice(&ip_len.to_be_bytes());
                fixed[4..6].copy_from_slice(&identification.to_be_bytes());
                fixed[6..8].copy_from_slice(&fragment.to_be_bytes());
                fixed[8..10].copy_from_slice(&[self.ttl, *protocol]);
                fixed[12..16].copy_from_slice(&source.to_be_bytes());
                fixed[16..20].copy_from_slice(&destination.to_be_bytes());
                out.extend_from_slice(&fixed);
                out.extend_from_slice(options);
                let checksum = checksum.unwrap_or_else(|| !Sum::over(&out[start..]));
                out[start + 10..start + 12].copy_from_slice(&checksum.to_be_bytes());
            }
            Network::V6 {
                source,
                destination,
                next_header,
                flow_label,
                extensions,
            } => {
                let first = 6 << 28 | u32::from(self.tos) << 20 | flow_label & 0xf_ffff;
                out.extend_from_slice(&first.to_be_bytes());
                out.extend_from_slice(&ip_len.to_be_bytes());
                out.extend_from_slice(&[*next_header, self.ttl]);
                out.extend_from_slice(&source.to_be_bytes());
                out.extend_from_slice(&destination.to_be_bytes());
                out.extend_from_slice(extensions);
            }
        }
        let checksum = self.checksum.or_else(|| self.computed(around));
        let checksum = checksum.unwrap_or(UNKNOWN_CHECKSUM);
        self.emit_transport(around.wire_len, checksum, out);
    }

    fn stated_len(&self, wire_len: u32) -> u16 {
        let fixed = match self.network {
            Network::V4 { .. } => 0,
            Network::V6 { .. } => 40,
        };
        let derived = (wire_len as usize).saturating_sub(self.link.len() + fixed);
        // Packets segmented by the interface (TSO) have no length in the header.
        match (self.ip_len, u16::try_from(derived)) {
            (Some(len), _) | (None, Ok(len)) => len,
            (None, Err(_)) => 0,
        }
    }

    /// Bytes of the transport header and what follows, according to the IP header.
    pub(crate) fn transport_len(&self, wire_len: u32) -> u16 {
        let stated = self.stated_len(wire_len);
        let before = match &self.network {
            Network::V4 { options, .. } => 20 + options.len(),
            Network::V6 { extensions, .. } => extensions.len(),
        };
        exact(usize::from(stated).saturating_sub(before))
    }

    fn emit_transport(&self, wire_len: u32, checksum: u16, out: &mut Vec<u8>) {
        let (len, checksum_at) = match &self.transport {
            Transport::Tcp(tcp) => (20 + tcp.options.as_slice().len(), 16),
            Transport::Udp { .. } => (8, 6),
            Transport::Other(bytes) => return out.extend_from_slice(bytes),
        };
        let mut header = Header::default();
        self.emit_transport_fixed(wire_len, &mut header);
        header.bytes[checksum_at..checksum_at + 2].copy_from_slice(&checksum.to_be_bytes());
        out.extend_from_slice(&header.bytes[..len]);
    }

    /// The correct transport checksum, if everything it covers is there.
    fn computed(&self, around: Around<'_>) -> Option<u16> {
        let header_len = match &self.transport {
            Transport::Tcp(tcp) => 20 + tcp.options.as_slice().len(),
            Transport::Udp { .. } => 8,
            Transport::Other(_) => return None,
        };
        let len = self.transport_len(around.wire_len);
        let payload = usize::from(len).checked_sub(header_len)?;
        let payload = around.payload.get(..payload)?;
        let mut sum = Sum::default();
        let number = match &self.network {
            // A fragment's checksum covers more than the fragment.
            Network::V4 { fragment, .. } if fragment & 0x3fff != 0 => return None,
            Network::V4 {
                source,
                destination,
                protocol,
                ..
            } => {
                sum.add(&source.to_be_bytes());
                sum.add(&destination.to_be_bytes());
                *protocol
            }
            Network::V6 {
                source,
                destination,
                ..
            } => {
                sum.add(&source.to_be_bytes());
                sum.add(&destination.to_be_bytes());
                match self.transport {
                    Transport::Tcp(_) => protocol::TCP,
                    _ => protocol::UDP,
                }
            }
        };
        sum.add(&[0, number]);
        sum.add(&len.to_be_bytes());
        let mut header = Header::default();
        self.emit_transport_fixed(around.wire_len, &mut header);
        sum.add(&header.bytes[..header_len]);
        sum.add(payload);
        let folded = !sum.fold();
        // RFC 768: a computed 0 is sent as all ones.
        let udp = matches!(self.transport, Transport::Udp { .. });
        Some(if udp && folded == 0 { 0xffff } else { folded })
    }

    /// As `emit_transport` with a checksum of 0, without allocation.
    fn emit_transport_fixed(&self, wire_len: u32, header: &mut Header) {
        let out = &mut header.bytes;
        match &self.transport {
            Transport::Tcp(tcp) => {
                out[0..2].copy_from_slice(&tcp.source.to_be_bytes());
                out[2..4].copy_from_slice(&tcp.destination.to_be_bytes());
                out[4..8].copy_from_slice(&tcp.sequence.to_be_bytes());
                out[8..12].copy_from_slice(&tcp.acknowledgement.to_be_bytes());
                let options = tcp.options.as_slice();
                let words: u16 = exact(5 + options.len() / 4);
                out[12..14].copy_from_slice(&(words << 12 | tcp.flags & 0x0fff).to_be_bytes());
                out[14..16].copy_from_slice(&tcp.window.to_be_bytes());
                out[20..20 + options.len()].copy_from_slice(options);
                if let (Some((value, echo)), Some(at)) = (tcp.timestamps, timestamps_at(options)) {
                    out[20 + at..24 + at].copy_from_slice(&value.to_be_bytes());
                    out[24 + at..28 + at].copy_from_slice(&echo.to_be_bytes());
                }
            }
            Transport::Udp {
                source,
                destination,
            } => {
                out[0..2].copy_from_slice(&source.to_be_bytes());
                out[2..4].copy_from_slice(&destination.to_be_bytes());
                out[4..6].copy_from_slice(&self.transport_len(wire_len).to_be_bytes());
            }
            Transport::Other(_) => {}
        }
    }
}

struct Header {
    bytes: [u8; 20 + OPTIONS_MAX],
}

impl Default for Header {
    fn default() -> Self {
        Self {
            bytes: [0; 20 + OPTIONS_MAX],
        }
    }
}

/// The transport header, which must take up the rest of the header, and its checksum field.
fn transport(
    number: u8,
    fragment_offset: u16,
    rest: &[u8],
) -> Option<(Transport<'_>, Option<u16>)> {
    let word = |at: usize| Some(u16::from_be_bytes([*rest.get(at)?, *rest.get(at + 1)?]));
    let double = |at: usize| Some(u32::from(word(at)?) << 16 | u32::from(word(at + 2)?));
    if fragment_offset != 0 {
        return Some((Transport::Other(rest), None));
    }
    match number {
        protocol::TCP => {
            let offset_and_flags = word(12)?;
            // The rest must be exactly the TCP header.
            if usize::from(offset_and_flags >> 12) * 4 != rest.len() || word(18)? != 0 {
                return Some((Transport::Other(rest), None));
            }
            let mut options = Options::new(rest.get(20..)?)?;
            let timestamps = timestamps_at(options.as_slice()).and_then(|at| {
                let both = (double(20 + at)?, double(24 + at)?);
                options.bytes[at..at + 8].fill(0);
                Some(both)
            });
            let tcp = Tcp {
                source: word(0)?,
                destination: word(2)?,
                sequence: double(4)?,
                acknowledgement: double(8)?,
                flags: offset_and_flags & 0x0fff,
                window: word(14)?,
                timestamps,
                options,
            };
            Some((Transport::Tcp(tcp), word(16)))
        }
        protocol::UDP if rest.len() == 8 => {
            let udp = Transport::Udp {
                source: word(0)?,
                destination: word(2)?,
            };
            Some((udp, word(6)))
        }
        _ => Some((Transport::Other(rest), None)),
    }
}

/// Offset of the values of the first timestamp option.
fn timestamps_at(options: &[u8]) -> Option<usize> {
    // The layout that nearly all stacks use (RFC 7323, appendix A).
    if options.len() >= 12 && options[..4] == [1, 1, 8, 10] {
        return Some(4);
    }
    let mut at = 0;
    while let Some(&kind) = options.get(at) {
        match kind {
            0 => return None,
            1 => at += 1,
            8 if options.get(at + 1) == Some(&10) && at + 10 <= options.len() => {
                return Some(at + 2);
            }
            _ => at += usize::from(*options.get(at + 1)?).max(2),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use strata_wire::TunnelKey;
    use strata_wire::dissect::dissect;

    /// Ethernet, IPv4, TCP with timestamps, 5 bytes of payload; checksums right.
    fn packet() -> Vec<u8> {
        let mut bytes = vec![2; 12];
        bytes.extend_from_slice(&[8, 0]);
        let ip = ipv4::Repr {
            source: 0x0a00_0001,
            destination: 0x0a00_0002,
            protocol: 6,
            tos: 0,
            ttl: 64,
            identification: 77,
            fragment_offset: 0,
            more_fragments: false,
            payload_len: 37,
        };
        ip.emit(&mut bytes);
        bytes.extend_from_slice(&[0, 80, 1, 0, 0, 0, 0, 9, 0, 0, 0, 8, 0x80, 0x18, 1, 1]);
        bytes.extend_from_slice(&[0, 0, 0, 0, 1, 1, 8, 10, 0, 0, 0, 3, 0, 0, 0, 4]);
        bytes.extend_from_slice(b"hello");
        let mut sum = Sum::default();
        sum.add(&bytes[26..34]);
        sum.add(&[0, 6, 0, 37]);
        sum.add(&bytes[34..]);
        let right = !sum.fold();
        bytes[50..52].copy_from_slice(&right.to_be_bytes());
        bytes
    }

    #[test]
    fn what_follows_from_the_rest_is_left_out() {
        let packet = packet();
        let (header, payload) = packet.split_at(66);
        let wire_len = 71;
        let around = Around { wire_len, payload };
        let fields = Fields::of(LinkType::ETHERNET, header, around).unwrap();
        assert_eq!((fields.checksum, fields.ip_len), (None, None));
        assert!(matches!(fields.network, Network::V4 { checksum: None, .. }));
        let Transport::Tcp(tcp) = &fields.transport else {
            panic!("TCP");
        };
        assert_eq!(tcp.timestamps, Some((3, 4)));
        assert_eq!(
            tcp.options.as_slice(),
            [1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        let mut out = Vec::new();
        fields.emit(around, &mut out);
        assert_eq!(out, header);
        // Without the payload, the checksum has to be stored.
        let around = Around {
            wire_len,
            payload: &[],
        };
        let fields = Fields::of(LinkType::ETHERNET, header, around).unwrap();
        assert!(fields.checksum.is_some());
    }

    /// The same with UDP; its checksum and that of IP are arbitrary.
    fn datagram() -> Vec<u8> {
        let mut bytes = packet();
        bytes[23] = 17;
        bytes[34..42].copy_from_slice(&[0, 80, 1, 0, 0, 37, 5, 6]);
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3_000))]

        /// Plain headers are what the general code says, and come back in any case.
        #[test]
        fn plain_headers_come_back(
            is_udp in any::<bool>(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in 30_usize..72, wire_len in prop::sample::select(vec![71_u32, 71, 60, 1_514, 70_000]),
            keeps_payload in any::<bool>(),
        ) {
            let mut packet = if is_udp { datagram() } else { packet() };
            for (index, value) in changes {
                *index.get_mut(&mut packet) = value;
            }
            packet.truncate(cut.max(if keeps_payload { 71 } else { 0 }));
            let headers = dissect(LinkType::ETHERNET, &packet, TunnelKey::Inner);
            let (header, payload) = packet.split_at(headers.header_len as usize);
            let around = Around { wire_len, payload };
            let general = Fields::of(LinkType::ETHERNET, header, around);
            if let Some(fields) = Fields::plain(LinkType::ETHERNET, header, around) {
                let mut out = Vec::new();
                fields.emit(around, &mut out);
                prop_assert_eq!(&out[..], header);
                prop_assert_eq!(Some(fields), general);
            } else if packet == self::packet() {
                prop_assert!(false, "a plain packet");
            }
            prop_assert!(Fields::plain(LinkType::RAW, header, around).is_none());
        }

        /// Whatever is taken apart is put together again, or the difference is noticed.
        #[test]
        fn changed_headers_come_back(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in 0_usize..72, wire_len in 0_u32..100,
        ) {
            let mut packet = packet();
            for (index, value) in changes {
                *index.get_mut(&mut packet) = value;
            }
            packet.truncate(cut);
            let headers = dissect(LinkType::ETHERNET, &packet, TunnelKey::Inner);
            let (header, payload) = packet.split_at(headers.header_len as usize);
            let around = Around { wire_len, payload };
            if let Some(fields) = Fields::of(LinkType::ETHERNET, header, around) {
                let mut out = Vec::new();
                fields.emit(around, &mut out);
                // All others are stored as bytes: rare, but never wrong.
                let stored_raw = out != header;
                let usual = packet.len() == 71 && wire_len == 71;
                prop_assert!(!stored_raw || !usual || packet[14] != 0x45 || headers.incomplete
                    || packet[12..14] != [8, 0] || headers.transport_len == 8);
            }
        }
    }
}
