//! Headers that most packets have, as fields: what is before IP, whatever it is; IPv4 without
//! options or fragments, or IPv6 without extension headers; TCP, UDP or ICMP.
//!
//! [`Fields::parse`] loses nothing but checksums that are what they have to be: [`Fields::emit`]
//! gives the same bytes.

use strata_wire::LinkType;
use strata_wire::dissect::protocol;
use strata_wire::transport::tcp_flag::ACK;

use super::sums::{Sums, fold, raw_sum, sum, words};

/// The longest start of a frame before IP that is taken apart.
pub(super) const PREFIX_MAX: usize = 31;
/// Where IP begins in what [`Fields::emit`] writes: before it is room for the start of the frame.
pub(super) const IP_AT: usize = PREFIX_MAX + 1;
/// Bytes that [`Fields::emit`] may write.
pub(super) const OUT_LEN: usize = IP_AT + 40 + 20 + OPTIONS_MAX;
/// Bytes of the longest TCP options.
pub(super) const OPTIONS_MAX: usize = 40;
/// The timestamps of TCP as every system writes them (RFC 7323, appendix A).
const STAMPS_KIND: [u8; 4] = [1, 1, 8, 10];
/// Bytes of these options.
const STAMPS_LEN: usize = 12;

/// What follows IP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Transport {
    Tcp = 0,
    Udp = 1,
    /// ICMP, or ICMPv6 over IPv6, of 8 bytes.
    Icmp = 2,
}

/// TCP's options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Options<'a> {
    None,
    /// Timestamps alone, aligned: the sender's, and the one that it echoes.
    Stamps(u32, u32),
    /// Whatever they are.
    Raw(&'a [u8]),
}

impl Options<'_> {
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Stamps(..) => STAMPS_LEN,
            Self::Raw(bytes) => bytes.len(),
        }
    }

    /// The sender's timestamp, and the one that it echoes; 0 without them.
    #[inline(always)]
    pub(super) fn stamps(&self) -> (u32, u32) {
        match *self {
            Self::Stamps(stamp, echo) => (stamp, echo),
            _ => (0, 0),
        }
    }
}

/// The fields of one header over IPv4, or `V6`. Those that its protocols do not have are 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a, const V6: bool> {
    pub(super) transport: Transport,
    /// Addresses; an IPv4 one in the low bits.
    pub(super) source: u128,
    pub(super) destination: u128,
    /// Ports, the source's in the high half; ICMP's identifier in both.
    pub(super) ports: u32,
    /// Type of service, or traffic class.
    pub(super) tos: u8,
    pub(super) ttl: u8,
    pub(super) may_fragment: bool,
    pub(super) flow_label: u32,
    pub(super) identification: u16,
    pub(super) ip_checksum: u16,
    /// Bytes after the transport header, as IP says.
    pub(super) payload_len: u16,
    /// Of TCP; ICMP's sequence number in the low bits.
    pub(super) sequence: u32,
    pub(super) acknowledgement: u32,
    pub(super) tcp_flags: u8,
    /// The four bits between TCP's length and its flags.
    pub(super) reserved: u8,
    pub(super) window: u16,
    pub(super) checksum: u16,
    pub(super) urgent: u16,
    pub(super) options: Options<'a>,
    /// UDP's own length.
    pub(super) udp_len: u16,
    /// Type and code.
    pub(super) icmp_type: u16,
}

impl<'a, const V6: bool> Fields<'a, V6> {
    /// Fields that are all 0.
    pub(super) const EMPTY: Self = Self {
        transport: Transport::Tcp,
        source: 0,
        destination: 0,
        ports: 0,
        tos: 0,
        ttl: 0,
        may_fragment: false,
        flow_label: 0,
        identification: 0,
        ip_checksum: 0,
        payload_len: 0,
        sequence: 0,
        acknowledgement: 0,
        tcp_flags: 0,
        reserved: 0,
        window: 0,
        checksum: 0,
        urgent: 0,
        options: Options::None,
        udp_len: 0,
        icmp_type: 0,
    };

    /// Takes a header apart from IP on; `None` if it has another form.
    #[inline(always)]
    pub(super) fn parse(ip: &'a [u8]) -> Option<(Self, Sums)> {
        let mut f = Self::EMPTY;
        let (number, total_len, addresses, ip_sum) = if V6 {
            let fixed: &[u8; 48] = ip.first_chunk()?;
            let first = be32(fixed, 0);
            if first >> 28 != 6 {
                return None;
            }
            f.tos = (first >> 20 & 0xff).to_le_bytes()[0];
            f.flow_label = first & 0xf_ffff;
            f.ttl = fixed[7];
            f.source = be128(fixed, 8);
            f.destination = be128(fixed, 24);
            let addresses = sum(&fixed[8..40]);
            (fixed[6], 40 + u32::from(be16(fixed, 4)), addresses, 0xffff)
        } else {
            let fixed: &[u8; 28] = ip.first_chunk()?;
            let fragment = be16(fixed, 6);
            if fixed[0] != 0x45 || fragment & !0x4000 != 0 {
                return None;
            }
            f.tos = fixed[1];
            f.identification = be16(fixed, 4);
            f.may_fragment = fragment == 0;
            f.ttl = fixed[8];
            f.ip_checksum = be16(fixed, 10);
            f.source = u128::from(be32(fixed, 12));
            f.destination = u128::from(be32(fixed, 16));
            let addresses = sum(&fixed[12..20]);
            let ip_sum = fold(addresses.wrapping_add(sum(&fixed[..12])));
            (fixed[9], u32::from(be16(fixed, 2)), addresses, ip_sum)
        };
        let bytes = &ip[Self::IP_LEN..];
        let transport_len = f.parse_transport(bytes, number)?;
        if transport_len != bytes.len() {
            return None;
        }
        let header_len = Self::IP_LEN.wrapping_add(transport_len);
        let payload_len = total_len.wrapping_sub(strata_wire::exact::<u32>(header_len));
        f.payload_len = u16::try_from(payload_len).ok()?;
        // Sums of bytes as they are in memory: bytes of each half, and of what is compared with it,
        // are swapped alike (RFC 1071 section 2 B).
        let pseudo = addresses
            .wrapping_add(u64::from(f.segment_len().to_be()))
            .wrapping_add(u64::from(u16::from(number).to_be()));
        let is_tcp = f.transport == Transport::Tcp;
        let total = pseudo.wrapping_add(if is_tcp { sum(bytes) } else { 0 });
        let sums = Sums {
            // An inverted sum of what is not all 0 is not 0xffff.
            is_ip_right: ip_sum == 0xffff && f.ip_checksum != 0xffff,
            is_offloaded: f.checksum.to_be() == fold(pseudo) && f.transport != Transport::Icmp,
            is_empty_right: fold(total) == 0xffff && f.checksum != 0xffff,
        };
        Some((f, sums))
    }

    #[inline(always)]
    fn parse_transport(&mut self, bytes: &'a [u8], number: u8) -> Option<usize> {
        let fixed: &[u8; 8] = bytes.first_chunk()?;
        if number == protocol::TCP {
            let fixed: &[u8; 20] = bytes.first_chunk()?;
            let len = usize::from(fixed[12] >> 4) * 4;
            if len < 20 || len != bytes.len() {
                return None;
            }
            self.ports = be32(fixed, 0);
            self.sequence = be32(fixed, 4);
            self.acknowledgement = be32(fixed, 8);
            self.reserved = fixed[12] & 15;
            self.tcp_flags = fixed[13];
            self.window = be16(fixed, 14);
            self.checksum = be16(fixed, 16);
            self.urgent = be16(fixed, 18);
            self.options = match bytes[20..].first_chunk::<STAMPS_LEN>() {
                Some(stamps) if len == 20 + STAMPS_LEN && stamps[..4] == STAMPS_KIND => {
                    Options::Stamps(be32(stamps, 4), be32(stamps, 8))
                }
                _ if len == 20 => Options::None,
                _ => Options::Raw(&bytes[20..]),
            };
            Some(len)
        } else if number == protocol::UDP {
            self.transport = Transport::Udp;
            self.ports = be32(fixed, 0);
            self.udp_len = be16(fixed, 4);
            self.checksum = be16(fixed, 6);
            Some(8)
        } else if number == Self::ICMP {
            self.transport = Transport::Icmp;
            self.icmp_type = be16(fixed, 0);
            self.checksum = be16(fixed, 2);
            self.ports = u32::from(be16(fixed, 4)) * 0x1_0001;
            self.sequence = u32::from(be16(fixed, 6));
            Some(8)
        } else {
            None
        }
    }

    /// Writes the header after what is before IP; the end of it.
    #[inline(always)]
    pub(super) fn emit(&self, out: &mut [u8; OUT_LEN]) -> usize {
        if V6 {
            let first = 6 << 28 | u32::from(self.tos) << 20 | self.flow_label;
            put(out, IP_AT, first.to_be_bytes());
            put(out, IP_AT + 4, self.segment_len().to_be_bytes());
            put(out, IP_AT + 6, [self.number(), self.ttl]);
            put(out, IP_AT + 8, self.source.to_be_bytes());
            put(out, IP_AT + 24, self.destination.to_be_bytes());
        } else {
            put(out, IP_AT, [0x45, self.tos]);
            put(out, IP_AT + 2, self.total_len().to_be_bytes());
            put(out, IP_AT + 4, self.identification.to_be_bytes());
            put(out, IP_AT + 6, self.fragment().to_be_bytes());
            put(out, IP_AT + 8, [self.ttl, self.number()]);
            put(out, IP_AT + 10, self.ip_checksum.to_be_bytes());
            put(out, IP_AT + 12, low32(self.source).to_be_bytes());
            put(out, IP_AT + 16, low32(self.destination).to_be_bytes());
        }
        let at = IP_AT.wrapping_add(Self::IP_LEN);
        match self.transport {
            Transport::Tcp => return self.emit_tcp(out, at),
            Transport::Udp => {
                put(out, at, self.ports.to_be_bytes());
                put(out, at.wrapping_add(4), self.udp_len.to_be_bytes());
                put(out, at.wrapping_add(6), self.checksum.to_be_bytes());
            }
            Transport::Icmp => {
                put(out, at, self.icmp_type.to_be_bytes());
                put(out, at.wrapping_add(2), self.checksum.to_be_bytes());
                let [a, b, ..] = self.ports.to_be_bytes();
                let [.., c, d] = self.sequence.to_be_bytes();
                put(out, at.wrapping_add(4), [a, b, c, d]);
            }
        }
        at.wrapping_add(8)
    }

    #[inline(always)]
    fn emit_tcp(&self, out: &mut [u8; OUT_LEN], at: usize) -> usize {
        put(out, at, self.ports.to_be_bytes());
        put(out, at.wrapping_add(4), self.sequence.to_be_bytes());
        put(out, at.wrapping_add(8), self.acknowledgement.to_be_bytes());
        put(out, at.wrapping_add(12), self.tcp_word().to_be_bytes());
        put(out, at.wrapping_add(14), self.window.to_be_bytes());
        put(out, at.wrapping_add(16), self.checksum.to_be_bytes());
        put(out, at.wrapping_add(18), self.urgent.to_be_bytes());
        match self.options {
            Options::None => {}
            Options::Stamps(stamp, echo) => {
                put(out, at.wrapping_add(20), STAMPS_KIND);
                put(out, at.wrapping_add(24), stamp.to_be_bytes());
                put(out, at.wrapping_add(28), echo.to_be_bytes());
            }
            Options::Raw(bytes) => out[at.wrapping_add(20)..][..bytes.len()].copy_from_slice(bytes),
        }
        at.wrapping_add(20).wrapping_add(self.options.len())
    }

    /// Bytes of the IP header.
    pub(super) const IP_LEN: usize = if V6 { 40 } else { 20 };
    const ICMP: u8 = if V6 { protocol::ICMPV6 } else { protocol::ICMP };

    /// Bytes of the transport header.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "at most 60")]
    fn transport_len(&self) -> u32 {
        match self.transport {
            Transport::Tcp => (self.options.len() as u32).wrapping_add(20),
            _ => 8,
        }
    }

    /// Bytes of everything that IP says there is.
    #[inline(always)]
    pub(super) fn ip_total(&self) -> u32 {
        let ip_len: u32 = if V6 { 40 } else { 20 };
        ip_len
            .wrapping_add(self.transport_len())
            .wrapping_add(u32::from(self.payload_len))
    }

    /// Bytes of the frame up to IP's end, with those before IP.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "at most 31")]
    pub(super) fn end(&self, prefix_len: usize) -> u32 {
        (prefix_len as u32).wrapping_add(self.ip_total())
    }

    /// Whether the transport's checksum follows from the header.
    #[inline(always)]
    pub(super) fn has_known_checksum(&self) -> bool {
        self.transport == Transport::Tcp && self.payload_len == 0
    }

    /// Which of the model's full payloads is this packet's.
    #[inline(always)]
    pub(super) fn kind(&self) -> usize {
        match self.transport {
            Transport::Tcp => usize::from(!matches!(self.options, Options::None)),
            Transport::Udp => 2,
            Transport::Icmp => 3,
        }
    }

    /// The full payload after this packet: segments of TCP are cut at a length, datagrams have one that
    /// comes again.
    #[inline(always)]
    pub(super) fn next_full(&self, full: u16) -> u16 {
        let len = self.payload_len;
        let is_datagram = self.transport != Transport::Tcp;
        if len > full || (is_datagram && len >= 512) {
            len
        } else {
            full
        }
    }

    /// Whether IP has room to say this length; the reader of a forged record asks.
    #[inline(always)]
    pub(super) fn is_sayable(&self) -> bool {
        let fixed = if V6 { 40 } else { 0 };
        self.ip_total().wrapping_sub(fixed) <= u32::from(u16::MAX)
    }

    /// Bytes of transport header and payload. Callers know that it is sayable.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "is_sayable was checked")]
    pub(super) fn segment_len(&self) -> u16 {
        self.transport_len()
            .wrapping_add(u32::from(self.payload_len)) as u16
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "is_sayable was checked")]
    fn total_len(&self) -> u16 {
        self.ip_total() as u16
    }

    #[inline(always)]
    fn fragment(&self) -> u16 {
        if self.may_fragment { 0 } else { 0x4000 }
    }

    #[inline(always)]
    fn number(&self) -> u8 {
        match self.transport {
            Transport::Tcp => protocol::TCP,
            Transport::Udp => protocol::UDP,
            Transport::Icmp => Self::ICMP,
        }
    }

    /// TCP's length and flags.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "at most 15 words")]
    fn tcp_word(&self) -> u16 {
        let words = (self.transport_len() / 4) as u16;
        words << 12 | u16::from(self.reserved) << 8 | u16::from(self.tcp_flags)
    }

    /// Whether TCP's acknowledgement number means something.
    #[inline(always)]
    pub(super) fn acknowledges(&self) -> bool {
        self.tcp_flags & ACK != 0
    }

    /// What the checksum of an IPv4 header has to be (RFC 791 section 3.1).
    #[inline(always)]
    pub(super) fn right_ip_checksum(&self) -> u16 {
        let sum = u64::from(0x4500 | u16::from(self.tos))
            .wrapping_add(u64::from(self.total_len()))
            .wrapping_add(u64::from(self.identification))
            .wrapping_add(u64::from(self.fragment()))
            .wrapping_add(u64::from(u16::from_be_bytes([self.ttl, self.number()])))
            .wrapping_add(self.addresses());
        !fold(sum)
    }

    /// The sum of the pseudo-header, not inverted: what the checksum field holds before the network
    /// card completes it.
    #[inline(always)]
    pub(super) fn pseudo_sum(&self) -> u16 {
        fold(self.pseudo())
    }

    /// What TCP's checksum has to be if no payload follows (RFC 9293 section 3.1).
    #[inline(always)]
    pub(super) fn right_empty_checksum(&self) -> u16 {
        let options = match self.options {
            Options::None => 0,
            Options::Stamps(stamp, echo) => u64::from(stamp)
                .wrapping_add(0x0101)
                .wrapping_add(0x080a)
                .wrapping_add(u64::from(echo)),
            Options::Raw(bytes) => raw_sum(bytes),
        };
        let sum = self
            .pseudo()
            .wrapping_add(u64::from(self.ports))
            .wrapping_add(u64::from(self.sequence))
            .wrapping_add(u64::from(self.acknowledgement))
            .wrapping_add(u64::from(self.tcp_word()))
            .wrapping_add(u64::from(self.window))
            .wrapping_add(u64::from(self.urgent))
            .wrapping_add(options);
        !fold(sum)
    }

    #[inline(always)]
    fn pseudo(&self) -> u64 {
        self.addresses()
            .wrapping_add(u64::from(self.segment_len()))
            .wrapping_add(u64::from(self.number()))
    }

    #[inline(always)]
    fn addresses(&self) -> u64 {
        if V6 {
            words(self.source).wrapping_add(words(self.destination))
        } else {
            u64::from(low32(self.source)).wrapping_add(u64::from(low32(self.destination)))
        }
    }
}

#[inline(always)]
pub(super) fn put<const N: usize>(out: &mut [u8; OUT_LEN], at: usize, bytes: [u8; N]) {
    out[at..at.wrapping_add(N)].copy_from_slice(&bytes);
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation)]
pub(super) fn low32(address: u128) -> u32 {
    address as u32
}

#[inline(always)]
fn be16<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at.wrapping_add(1)]])
}

#[inline(always)]
fn be32<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([
        bytes[at],
        bytes[at.wrapping_add(1)],
        bytes[at.wrapping_add(2)],
        bytes[at.wrapping_add(3)],
    ])
}

#[inline(always)]
fn be128<const N: usize>(bytes: &[u8; N], at: usize) -> u128 {
    u128::from_be_bytes(bytes[at..at.wrapping_add(16)].try_into().expect("16 bytes"))
}

/// Where IP would begin. What is before it is kept as it is, so a wrong guess costs bytes only.
#[inline(always)]
pub(super) fn network_at(link: LinkType, header: &[u8]) -> Option<usize> {
    match link {
        LinkType::ETHERNET => {
            let tagged = |at: usize| {
                let kind = header.get(at..at.wrapping_add(2));
                kind == Some(&[0x81, 0]) || kind == Some(&[0x88, 0xa8])
            };
            // Two tags at most (IEEE 802.1Q clause 9).
            Some(match (tagged(12), tagged(12) && tagged(16)) {
                (false, _) => 14,
                (true, false) => 18,
                (true, true) => 22,
            })
        }
        LinkType::RAW | LinkType::RAW_12 | LinkType::RAW_14 => Some(0),
        LinkType::IPV4 | LinkType::IPV6 => Some(0),
        LinkType::NULL | LinkType::LOOP => Some(4),
        LinkType::LINUX_SLL => Some(16),
        LinkType::LINUX_SLL2 => Some(20),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// Nothing that is taken apart is lost.
        #[test]
        fn fields_are_the_header(
            mut header in prop::collection::vec(any::<u8>(), 28..110),
            version in prop::sample::select(vec![0x45, 0x45, 0x60, 0x63]),
            number in prop::sample::select(vec![6, 17, 1, 58]),
            is_long in any::<bool>(), has_stamps in any::<bool>(), payload_len in any::<u16>(),
        ) {
            let ip_len = if version == 0x45 { 20 } else { 40 };
            header[0] = version;
            header[if ip_len == 20 { 9 } else { 6 }] = number;
            let mut len = ip_len + 8;
            if number == 6 {
                len = ip_len + if has_stamps { 32 } else { 20 + 4 * usize::from(header[1] % 11) };
            }
            header.resize(len, 7);
            if number == 6 {
                let words = u8::try_from((len - ip_len) / 4).unwrap();
                header[ip_len + 12] = words << 4 | header[ip_len + 12] & 15;
                if has_stamps {
                    header[ip_len + 20..ip_len + 24].copy_from_slice(&STAMPS_KIND);
                }
            }
            let rest = u16::try_from(len).unwrap();
            let total = if is_long { payload_len.max(rest) } else { rest + payload_len % 999 };
            if ip_len == 20 {
                header[2..4].copy_from_slice(&total.to_be_bytes());
                header[6..8].copy_from_slice(&[if is_long { 0x40 } else { 0 }, 0]);
            } else {
                header[4..6].copy_from_slice(&(total - 40).to_be_bytes());
            }
            let is_plain = number != if ip_len == 20 { 58 } else { 1 };
            if ip_len == 20 {
                prop_assert_eq!(again::<false>(&header), is_plain.then_some(header));
            } else {
                prop_assert_eq!(again::<true>(&header), is_plain.then_some(header));
            }
        }
    }

    fn again<const V6: bool>(header: &[u8]) -> Option<Vec<u8>> {
        let (fields, sums) = Fields::<V6>::parse(header)?;
        assert!(fields.is_sayable());
        if !V6 {
            let is_right = fields.ip_checksum == fields.right_ip_checksum();
            assert_eq!(sums.is_ip_right, is_right);
        }
        if fields.transport != Transport::Icmp {
            assert_eq!(sums.is_offloaded, fields.checksum == fields.pseudo_sum());
        }
        if fields.transport == Transport::Tcp {
            let right = fields.right_empty_checksum();
            assert_eq!(sums.is_empty_right, fields.checksum == right);
            // Also of one that is right.
            let mut header = header.to_vec();
            let at = Fields::<V6>::IP_LEN + 16;
            header[at..at + 2].copy_from_slice(&right.to_be_bytes());
            let (fields, sums) = Fields::<V6>::parse(&header)?;
            assert!(sums.is_empty_right && fields.checksum == right);
            let mut out = [0; OUT_LEN];
            let end = fields.emit(&mut out);
            assert_eq!(out[IP_AT..end], header);
        }
        let (fields, _) = Fields::<V6>::parse(header)?;
        let mut out = [0; OUT_LEN];
        let end = fields.emit(&mut out);
        Some(out[IP_AT..end].to_vec())
    }
}
