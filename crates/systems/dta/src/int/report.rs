//! Telemetry Report Format, versions 1.0 (2018-04-20) and 2.0 (2020-10-08). Byte maps: §3 there.
//!
//! ```text
//! 1.0   0 ver 4, len 4 | nproto 3, bits 6, rsvd 6, D, Q, F, hw_id 6   len: of the header, in words
//!       4 switch id u32 | sequence u32 | ingress time u32
//!      16 a word for each of bits | packet from Ethernet (nproto 0), IPv4 (1) or IPv6 (2) on
//! 2.0   0 ver 4, hw_id 6, sequence 22 | node id u32                   then reports, each:
//!       0 type 4, inner 4 | length u8 | metadata length u8 | D, Q, F, I, rsvd 4    in words
//!       4 bits u16 | domain u16 | domain bits u16 | domain status u16    if type is INT (1)
//!      12 metadata | inner: TLVs (1), domain data (2), Ethernet (3), IPv4 (4), IPv6 (5)
//! ```

use strata_wire::{LinkType, exact};

use super::{Hop, IntError};

const V1_LEN: usize = 16;
const GROUP_LEN: usize = 8;
const MAIN_LEN: usize = 8;
/// 22 bits (2.0, §3.1).
const SEQUENCE_MAX_V2: u32 = 0x3f_ffff;

/// The contents of a report about one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report<'a> {
    /// The packet was dropped.
    pub dropped: bool,
    /// The packet met a congested queue.
    pub congested: bool,
    /// The packet is of a tracked flow.
    pub tracked: bool,
    /// A transit node of INT-MD sent the report.
    pub intermediate: bool,
    /// The node's metadata for the packet; `node` is that of the group.
    pub hop: Hop,
    /// Whether the report has metadata of the node itself, so that the node is a hop of the path. An INT sink at a host
    /// only forwards the metadata of others.
    pub is_hop: bool,
    /// Start of the packet.
    pub packet: Option<(LinkType, &'a [u8])>,
}

/// A datagram of version 2.0 with one report of a packet of a tracked flow, as a node of INT-XD sends it
/// (§3.2 to 3.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr<'a> {
    /// Sequence number of the datagram at its node: 22 bits of it are sent.
    pub sequence: u32,
    /// The node.
    pub node: u32,
    /// The packet met a congested queue.
    pub is_congested: bool,
    /// The interfaces by which the packet came in, and went out.
    pub interfaces: [u16; 2],
    /// Time within the node.
    pub hop_latency: u32,
    /// Occupancy of queue 0: 24 bits of it are sent.
    pub queue_occupancy: u32,
    /// Arrival time of the packet.
    pub ingress_time: u64,
    /// Start of the packet, from IPv4 on: whole words of 4 bytes, 248 at most.
    pub packet: &'a [u8],
}

impl Repr<'_> {
    /// Interfaces, hop latency, queue, ingress time: bits 1 to 4.
    const METADATA: u16 = 0b0111_1000 << 8;
    const METADATA_WORDS: u8 = 1 + 1 + 1 + 2;
    /// Words of a report before the packet.
    const HEAD_WORDS: u8 = 2 + Self::METADATA_WORDS;
    /// Type INT, inner type IPv4.
    const TYPES: u8 = 1 << 4 | 4;

    /// Appends the payload of the UDP datagram to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        const CONGESTED: u8 = 0b0100 << 4;
        const TRACKED: u8 = 0b0010 << 4;
        let packet_words = u8::MAX.wrapping_sub(Self::HEAD_WORDS);
        let packet = self.packet.chunks_exact(4);
        let packet = packet.take(usize::from(packet_words));
        let words = Self::HEAD_WORDS.wrapping_add(exact::<u8>(packet.len()));
        let flags = TRACKED | if self.is_congested { CONGESTED } else { 0 };
        out.extend((2_u32 << 28 | self.sequence & SEQUENCE_MAX_V2).to_be_bytes());
        out.extend(self.node.to_be_bytes());
        out.extend([Self::TYPES, words, Self::METADATA_WORDS, flags]);
        out.extend(Self::METADATA.to_be_bytes());
        // No domain.
        out.extend([0; 6]);
        for interface in self.interfaces {
            out.extend(interface.to_be_bytes());
        }
        out.extend(self.hop_latency.to_be_bytes());
        out.extend((self.queue_occupancy & 0xff_ffff).to_be_bytes());
        out.extend(self.ingress_time.to_be_bytes());
        out.extend(packet.flatten());
    }
}

/// A view of a datagram whose version and group header are there.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    version: u8,
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// A view of the payload of a UDP datagram.
    ///
    /// # Errors
    ///
    /// [`IntError::Version`], [`IntError::Truncated`], [`IntError::Length`].
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, IntError> {
        let first = *bytes.first().ok_or(IntError::Truncated("the header"))?;
        let version = first >> 4;
        let len = match version {
            1 => {
                let bits = bytes.get(1..3).ok_or(IntError::Truncated("the header"))?;
                let bits = (bits[0] & 0x1f) << 1 | bits[1] >> 7;
                let len = bytes_of(first & 0xf);
                let said = bytes_of(exact::<u8>(bits.count_ones()));
                if len < V1_LEN.wrapping_add(said) {
                    return Err(IntError::Length("the header"));
                }
                len
            }
            2 => GROUP_LEN,
            0 => return Err(IntError::Version05),
            other => return Err(IntError::Version(other)),
        };
        if bytes.len() < len {
            return Err(IntError::Truncated("the header"));
        }
        Ok(Self { version, bytes })
    }

    fn word(&self, at: usize) -> u32 {
        let word = self.bytes[at..].first_chunk().expect("a checked header");
        u32::from_be_bytes(*word)
    }

    /// 1 or 2.
    #[must_use]
    pub fn version(&self) -> u8 {
        self.version
    }

    /// The hardware unit of the node that sent it.
    #[must_use]
    pub fn hw_id(&self) -> u8 {
        match self.version {
            1 => self.bytes[3] & 0x3f,
            _ => exact::<u8>(self.word(0) >> 22 & 0x3f),
        }
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> u32 {
        self.word(4)
    }

    /// Sequence number of the datagram at this hardware unit of the node.
    #[must_use]
    pub fn sequence(&self) -> u32 {
        match self.version {
            1 => self.word(8),
            _ => self.word(0) & SEQUENCE_MAX_V2,
        }
    }

    /// The largest sequence number, which 0 follows: all ones, 32 or 22 bits.
    #[must_use]
    pub fn sequence_max(&self) -> u32 {
        match self.version {
            1 => u32::MAX,
            _ => SEQUENCE_MAX_V2,
        }
    }

    /// Its reports in order; after one that cannot be read, none.
    pub fn reports(&self) -> impl Iterator<Item = Result<Report<'a>, IntError>> + use<'a> {
        let (packet, mut rest) = (*self, &self.bytes[GROUP_LEN..]);
        let mut is_done = false;
        std::iter::from_fn(move || {
            if is_done {
                return None;
            }
            if packet.version == 1 {
                is_done = true;
                return Some(packet.version_1());
            }
            // Padding of a short Ethernet frame, perhaps.
            is_done = rest.len() < 4;
            if is_done {
                return None;
            }
            let report = individual(&mut rest, packet.node());
            is_done = report.is_err();
            Some(report)
        })
    }

    fn version_1(&self) -> Result<Report<'a>, IntError> {
        let head = self.word(0);
        let bits = head >> 15 & 0x3f;
        let len = bytes_of(exact::<u8>(head >> 24 & 0xf));
        let mut hop = Hop {
            node: Some(self.node()),
            ingress_time: Some(u64::from(self.word(12))),
            ..Hop::default()
        };
        let mut at = V1_LEN;
        for bit in (0..6).filter(|bit| bits & 0x20 >> bit != 0) {
            let word = self.word(at);
            at = at.wrapping_add(4);
            match bit {
                0 => [hop.ingress_interface, hop.egress_interface] = super::interfaces(word),
                1 => hop.hop_latency = super::known32(word),
                2 => hop.queue(word),
                3 => hop.egress_time = super::known32(word).map(u64::from),
                4 => hop.dropped(word),
                _ => hop.tx_utilization = super::known32(word),
            }
        }
        let packet = &self.bytes[len..];
        let link = match head >> 21 & 7 {
            0 => Some(LinkType::ETHERNET),
            1 => Some(LinkType::IPV4),
            2 => Some(LinkType::IPV6),
            _ => None,
        };
        Ok(Report {
            dropped: head & 0x100 != 0,
            congested: head & 0x80 != 0,
            tracked: head & 0x40 != 0,
            intermediate: false,
            hop,
            is_hop: true,
            packet: link
                .filter(|_| !packet.is_empty())
                .map(|link| (link, packet)),
        })
    }
}

/// Bytes of words.
fn bytes_of(words: u8) -> usize {
    usize::from(words).wrapping_mul(4)
}

/// Takes one report of version 2 from the front of `rest`.
fn individual<'a>(rest: &mut &'a [u8], node: u32) -> Result<Report<'a>, IntError> {
    let (&[types, words, metadata_words, flags], body) = rest
        .split_first_chunk()
        .ok_or(IntError::Truncated("a report's header"))?;
    let report = body.split_at_checked(bytes_of(words));
    let (mut body, after) = report.ok_or(IntError::Truncated("a report"))?;
    *rest = after;
    let mut hop = Hop::default();
    match types >> 4 {
        0 => {}
        1 => {
            let (main, after) = body
                .split_first_chunk::<MAIN_LEN>()
                .ok_or(IntError::Truncated("a report's main contents"))?;
            let metadata = after.split_at_checked(bytes_of(metadata_words));
            let (metadata, after) = metadata.ok_or(IntError::Truncated("a report's metadata"))?;
            let bits = u16::from_be_bytes([main[0], main[1]]);
            hop = Hop::read(bits, metadata, false, false)
                .ok_or(IntError::Length("a report's metadata"))?;
            body = after;
        }
        // IOAM and what is to come: where the packet begins is not known.
        _ => body = &[],
    }
    hop.node = Some(node);
    let packet = match types & 0xf {
        1 => in_tlvs(body)?,
        3 => Some((LinkType::ETHERNET, body)),
        4 => Some((LinkType::IPV4, body)),
        5 => Some((LinkType::IPV6, body)),
        _ => None,
    };
    Ok(Report {
        dropped: flags & 0x80 != 0,
        congested: flags & 0x40 != 0,
        tracked: flags & 0x20 != 0,
        intermediate: flags & 0x10 != 0,
        hop,
        is_hop: types >> 4 == 1,
        packet: packet.filter(|(_, bytes)| !bytes.is_empty()),
    })
}

/// The first packet among type-length-values.
fn in_tlvs(mut rest: &[u8]) -> Result<Option<(LinkType, &[u8])>, IntError> {
    while let Some((&[kind, words, ..], after)) = rest.split_first_chunk::<4>() {
        let value = after.split_at_checked(bytes_of(words));
        let (value, after) = value.ok_or(IntError::Truncated("a TLV"))?;
        match kind >> 4 {
            1 => return Ok(Some((LinkType::ETHERNET, value))),
            2 => return Ok(Some((LinkType::IPV4, value))),
            3 => return Ok(Some((LinkType::IPV6, value))),
            _ => rest = after,
        }
    }
    Ok(None)
}
