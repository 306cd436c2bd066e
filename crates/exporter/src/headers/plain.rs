//! Headers that most packets have, as fields: what is before IP, whatever it is; IPv4 without
//! options or fragments, or IPv6 without extension headers; TCP, UDP or ICMP.
//!
//! [`Plain::parse`] loses nothing: [`Plain::emit`] gives the same bytes.

use strata_wire::LinkType;
use strata_wire::dissect::protocol;
use strata_wire::transport::tcp_flag::ACK;

/// The longest start of a frame before IP that is taken apart.
pub(super) const PREFIX_MAX: usize = 31;
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
pub(super) enum Options {
    None,
    /// Timestamps alone, aligned.
    Stamps,
    /// So many bytes of [`Plain::options`].
    Raw(usize),
}

impl Options {
    #[inline(always)]
    pub(super) fn len(self) -> usize {
        match self {
            Self::None => 0,
            Self::Stamps => STAMPS_LEN,
            Self::Raw(len) => len,
        }
    }
}

/// The fields of one header. Those that its protocols do not have are 0.
#[derive(Clone, Debug)]
pub(super) struct Plain {
    pub(super) is_v6: bool,
    pub(super) transport: Transport,
    /// Addresses; an IPv4 one in the low bits.
    pub(super) source: u128,
    pub(super) destination: u128,
    /// Ports, the source's in the high half; ICMP's identifier in both.
    pub(super) ports: u32,
    /// Type of service, or traffic class.
    pub(super) tos: u8,
    pub(super) ttl: u8,
    pub(super) dont_fragment: bool,
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
    pub(super) options_form: Options,
    pub(super) stamp: u32,
    pub(super) echo: u32,
    pub(super) options: [u8; OPTIONS_MAX],
    /// UDP's own length.
    pub(super) udp_len: u16,
    /// Type and code.
    pub(super) icmp_type: u16,
}

impl Plain {
    /// Fields that are all 0.
    pub(super) const EMPTY: Self = Self {
        is_v6: false,
        transport: Transport::Tcp,
        source: 0,
        destination: 0,
        ports: 0,
        tos: 0,
        ttl: 0,
        dont_fragment: false,
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
        options_form: Options::None,
        stamp: 0,
        echo: 0,
        options: [0; OPTIONS_MAX],
        udp_len: 0,
        icmp_type: 0,
    };

    /// Takes a header apart after its first `at` bytes, from fields that are all 0; `None` if it has
    /// another form.
    #[inline(always)]
    pub(super) fn parse(&mut self, header: &[u8], at: usize) -> Option<()> {
        let ip = header.get(at..)?;
        let fixed: &[u8; 28] = ip.first_chunk()?;
        let (number, total_len, ip_len) = if fixed[0] == 0x45 {
            let fragment = be16(fixed, 6);
            if fragment & !0x4000 != 0 {
                return None;
            }
            self.tos = fixed[1];
            self.identification = be16(fixed, 4);
            self.dont_fragment = fragment != 0;
            self.ttl = fixed[8];
            self.ip_checksum = be16(fixed, 10);
            self.source = u128::from(be32(fixed, 12));
            self.destination = u128::from(be32(fixed, 16));
            (fixed[9], usize::from(be16(fixed, 2)), 20)
        } else {
            let fixed: &[u8; 48] = ip.first_chunk()?;
            let first = be32(fixed, 0);
            if first >> 28 != 6 {
                return None;
            }
            self.is_v6 = true;
            self.tos = (first >> 20 & 0xff).to_le_bytes()[0];
            self.flow_label = first & 0xf_ffff;
            self.ttl = fixed[7];
            self.source = be128(fixed, 8);
            self.destination = be128(fixed, 24);
            (fixed[6], 40 + usize::from(be16(fixed, 4)), 40)
        };
        let transport_len = self.parse_transport(&ip[ip_len..], number)?;
        if transport_len != ip.len() - ip_len {
            return None;
        }
        self.payload_len = u16::try_from(total_len.checked_sub(ip.len())?).ok()?;
        Some(())
    }

    #[inline(always)]
    fn parse_transport(&mut self, bytes: &[u8], number: u8) -> Option<usize> {
        let fixed: &[u8; 8] = bytes.first_chunk()?;
        match number {
            protocol::TCP => {
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
                let options = &bytes[20..];
                if let Ok(stamps) = <&[u8; STAMPS_LEN]>::try_from(options)
                    && stamps[..4] == STAMPS_KIND
                {
                    self.options_form = Options::Stamps;
                    self.stamp = be32(stamps, 4);
                    self.echo = be32(stamps, 8);
                } else if !options.is_empty() {
                    self.options_form = Options::Raw(options.len());
                    self.options[..options.len()].copy_from_slice(options);
                }
                Some(len)
            }
            protocol::UDP => {
                self.transport = Transport::Udp;
                self.ports = be32(fixed, 0);
                self.udp_len = be16(fixed, 4);
                self.checksum = be16(fixed, 6);
                Some(8)
            }
            _ if number == self.icmp_number() => {
                self.transport = Transport::Icmp;
                self.icmp_type = be16(fixed, 0);
                self.checksum = be16(fixed, 2);
                self.ports = u32::from(be16(fixed, 4)) * 0x1_0001;
                self.sequence = u32::from(be16(fixed, 6));
                Some(8)
            }
            _ => None,
        }
    }

    /// Appends the header after what is before IP.
    #[inline(always)]
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        if self.is_v6 {
            let mut header = [0; 40];
            let first = 6 << 28 | u32::from(self.tos) << 20 | self.flow_label;
            header[..4].copy_from_slice(&first.to_be_bytes());
            header[4..6].copy_from_slice(&self.segment_len().to_be_bytes());
            header[6..8].copy_from_slice(&[self.number(), self.ttl]);
            header[8..24].copy_from_slice(&self.source.to_be_bytes());
            header[24..].copy_from_slice(&self.destination.to_be_bytes());
            out.extend_from_slice(&header);
        } else {
            let mut header = [0; 20];
            header[..2].copy_from_slice(&[0x45, self.tos]);
            header[2..4].copy_from_slice(&self.total_len().to_be_bytes());
            header[4..6].copy_from_slice(&self.identification.to_be_bytes());
            header[6..8].copy_from_slice(&self.fragment().to_be_bytes());
            header[8..10].copy_from_slice(&[self.ttl, self.number()]);
            header[10..12].copy_from_slice(&self.ip_checksum.to_be_bytes());
            header[12..16].copy_from_slice(&low32(self.source).to_be_bytes());
            header[16..].copy_from_slice(&low32(self.destination).to_be_bytes());
            out.extend_from_slice(&header);
        }
        if self.transport == Transport::Tcp {
            self.emit_tcp(out);
            return;
        }
        let mut header = [0; 8];
        if self.transport == Transport::Udp {
            header[..4].copy_from_slice(&self.ports.to_be_bytes());
            header[4..6].copy_from_slice(&self.udp_len.to_be_bytes());
            header[6..].copy_from_slice(&self.checksum.to_be_bytes());
        } else {
            header[..2].copy_from_slice(&self.icmp_type.to_be_bytes());
            header[2..4].copy_from_slice(&self.checksum.to_be_bytes());
            header[4..6].copy_from_slice(&self.ports.to_be_bytes()[..2]);
            header[6..].copy_from_slice(&self.sequence.to_be_bytes()[2..]);
        }
        out.extend_from_slice(&header);
    }

    #[inline(always)]
    fn emit_tcp(&self, out: &mut Vec<u8>) {
        let [words, flags] = self.tcp_word().to_be_bytes();
        let mut header = [0; 20 + STAMPS_LEN];
        header[..4].copy_from_slice(&self.ports.to_be_bytes());
        header[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        header[8..12].copy_from_slice(&self.acknowledgement.to_be_bytes());
        header[12..14].copy_from_slice(&[words, flags]);
        header[14..16].copy_from_slice(&self.window.to_be_bytes());
        header[16..18].copy_from_slice(&self.checksum.to_be_bytes());
        header[18..20].copy_from_slice(&self.urgent.to_be_bytes());
        header[20..24].copy_from_slice(&STAMPS_KIND);
        header[24..28].copy_from_slice(&self.stamp.to_be_bytes());
        header[28..].copy_from_slice(&self.echo.to_be_bytes());
        match self.options_form {
            Options::Stamps => out.extend_from_slice(&header),
            Options::None => out.extend_from_slice(&header[..20]),
            Options::Raw(len) => {
                out.extend_from_slice(&header[..20]);
                out.extend_from_slice(&self.options[..len]);
            }
        }
    }

    /// Bytes of the IP header.
    #[inline(always)]
    pub(super) fn ip_len(&self) -> u32 {
        if self.is_v6 { 40 } else { 20 }
    }

    /// Bytes of the transport header.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "at most 60")]
    pub(super) fn transport_len(&self) -> u32 {
        match self.transport {
            Transport::Tcp => 20 + self.options_form.len() as u32,
            _ => 8,
        }
    }

    /// Bytes of everything that IP says there is.
    #[inline(always)]
    pub(super) fn ip_total(&self) -> u32 {
        self.ip_len() + self.transport_len() + u32::from(self.payload_len)
    }

    /// Whether IP has room to say this length; the reader of a forged record asks.
    #[inline(always)]
    pub(super) fn is_sayable(&self) -> bool {
        let fixed = if self.is_v6 { 40 } else { 0 };
        self.ip_total() - fixed <= u32::from(u16::MAX)
    }

    /// Bytes of transport header and payload. Callers know that it is sayable.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "is_sayable was asked")]
    pub(super) fn segment_len(&self) -> u16 {
        (self.transport_len() + u32::from(self.payload_len)) as u16
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "is_sayable was asked")]
    fn total_len(&self) -> u16 {
        self.ip_total() as u16
    }

    #[inline(always)]
    fn fragment(&self) -> u16 {
        u16::from(self.dont_fragment) << 14
    }

    #[inline(always)]
    fn icmp_number(&self) -> u8 {
        if self.is_v6 {
            protocol::ICMPV6
        } else {
            protocol::ICMP
        }
    }

    #[inline(always)]
    fn number(&self) -> u8 {
        match self.transport {
            Transport::Tcp => protocol::TCP,
            Transport::Udp => protocol::UDP,
            Transport::Icmp => self.icmp_number(),
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
            + u64::from(self.total_len())
            + u64::from(self.identification)
            + u64::from(self.fragment())
            + u64::from(u16::from_be_bytes([self.ttl, self.number()]))
            + self.addresses();
        !fold(sum)
    }

    /// The sum of the pseudo-header, not inverted: what the checksum field holds before the network
    /// card completes it.
    #[inline(always)]
    pub(super) fn pseudo_sum(&self) -> u16 {
        fold(self.pseudo())
    }

    /// What TCP's checksum has to be if no payload follows (RFC 9293 section 3.1).
    #[inline]
    pub(super) fn right_empty_checksum(&self) -> u16 {
        let halves = |word: u32| u64::from(word >> 16) + u64::from(word & 0xffff);
        let options = match self.options_form {
            Options::None => 0,
            Options::Stamps => 0x0101 + 0x080a + halves(self.stamp) + halves(self.echo),
            // A multiple of 4 bytes.
            Options::Raw(len) => self.options[..len]
                .chunks_exact(2)
                .map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]])))
                .sum(),
        };
        let sum = self.pseudo()
            + halves(self.ports)
            + halves(self.sequence)
            + halves(self.acknowledgement)
            + u64::from(self.tcp_word())
            + u64::from(self.window)
            + u64::from(self.urgent)
            + options;
        !fold(sum)
    }

    #[inline(always)]
    fn pseudo(&self) -> u64 {
        self.addresses() + u64::from(self.segment_len()) + u64::from(self.number())
    }

    #[inline(always)]
    fn addresses(&self) -> u64 {
        if self.is_v6 {
            words(self.source) + words(self.destination)
        } else {
            u64::from(low32(self.source)) + u64::from(low32(self.destination))
        }
    }
}

/// A sum of 32-bit words, which is congruent to that of their halves.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)]
fn words(address: u128) -> u64 {
    let (high, low) = ((address >> 64) as u64, address as u64);
    (high >> 32) + (high & 0xffff_ffff) + (low >> 32) + (low & 0xffff_ffff)
}

/// The ones' complement sum of 16 bits.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "folded to 16 bits")]
fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + (sum & 0xffff)) as u16
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation)]
pub(super) fn low32(address: u128) -> u32 {
    address as u32
}

#[inline(always)]
fn be16<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline(always)]
fn be32<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline(always)]
fn be128<const N: usize>(bytes: &[u8; N], at: usize) -> u128 {
    u128::from_be_bytes(bytes[at..at + 16].try_into().expect("16 bytes"))
}

/// Where IP would begin. What is before it is kept as it is, so a wrong guess costs bytes only.
#[inline(always)]
pub(super) fn network_at(link: LinkType, header: &[u8]) -> Option<usize> {
    match link {
        LinkType::ETHERNET => {
            let tagged = |at: usize| {
                let kind = header.get(at..at + 2);
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
            let mut plain = Plain::EMPTY;
            let parsed = plain.parse(&header, 0);
            let is_plain = number != if ip_len == 20 { 58 } else { 1 };
            prop_assert_eq!(parsed.is_some(), is_plain);
            if is_plain {
                let mut again = Vec::new();
                plain.emit(&mut again);
                prop_assert_eq!(again, header);
                prop_assert!(plain.is_sayable());
            }
        }
    }
}
