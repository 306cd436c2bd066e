//! IPv4 headers (RFC 791).

use crate::bytes::{held16, held32, u8_at};

/// Bytes of a header without options.
pub const HEADER_LEN_MIN: usize = 20;

/// A view of an IPv4 header, options included.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// A view of `bytes` if they start with a whole IPv4 header whose header length field is at
    /// least 5 words.
    #[inline]
    #[must_use]
    pub fn new_checked(bytes: &'a [u8]) -> Option<Self> {
        if bytes.len() < HEADER_LEN_MIN || bytes[0] >> 4 != 4 {
            return None;
        }
        let packet = Self { bytes };
        let header_len = packet.header_len();
        (header_len >= HEADER_LEN_MIN && header_len <= bytes.len()).then_some(packet)
    }

    /// Bytes of the header, options included: 20 to 60.
    #[inline]
    #[must_use]
    pub fn header_len(&self) -> usize {
        usize::from(self.bytes[0] & 0x0f).wrapping_mul(4)
    }

    /// Type of service: DSCP and ECN.
    #[inline]
    #[must_use]
    pub fn tos(&self) -> u8 {
        self.bytes[1]
    }

    /// The total length field; 0 where segmentation was left to the NIC.
    #[inline]
    #[must_use]
    pub fn total_len(&self) -> u16 {
        held16(self.bytes, 2)
    }

    /// Identification.
    #[inline]
    #[must_use]
    pub fn identification(&self) -> u16 {
        held16(self.bytes, 4)
    }

    /// Whether more fragments follow.
    #[inline]
    #[must_use]
    pub fn more_fragments(&self) -> bool {
        self.bytes[6] & 0x20 != 0
    }

    /// Fragment offset in units of 8 bytes.
    #[inline]
    #[must_use]
    pub fn fragment_offset(&self) -> u16 {
        held16(self.bytes, 6) & 0x1fff
    }

    /// Time to live.
    #[inline]
    #[must_use]
    pub fn ttl(&self) -> u8 {
        self.bytes[8]
    }

    /// Protocol number.
    #[inline]
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.bytes[9]
    }

    /// Source address.
    #[inline]
    #[must_use]
    pub fn source(&self) -> u32 {
        held32(self.bytes, 12)
    }

    /// Destination address.
    #[inline]
    #[must_use]
    pub fn destination(&self) -> u32 {
        held32(self.bytes, 16)
    }
}

/// The contents of an IPv4 header without options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// Source address.
    pub source: u32,
    /// Destination address.
    pub destination: u32,
    /// Protocol number.
    pub protocol: u8,
    /// Type of service.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// Identification.
    pub identification: u16,
    /// Fragment offset in units of 8 bytes.
    pub fragment_offset: u16,
    /// Whether more fragments follow.
    pub more_fragments: bool,
    /// Bytes after the header.
    pub payload_len: u16,
}

impl Repr {
    /// Reads a header.
    #[must_use]
    pub fn parse(packet: &Packet<'_>) -> Self {
        let header_len = u16::from(packet.bytes[0] & 0x0f).wrapping_mul(4);
        Self {
            source: packet.source(),
            destination: packet.destination(),
            protocol: packet.protocol(),
            tos: packet.tos(),
            ttl: packet.ttl(),
            identification: packet.identification(),
            fragment_offset: packet.fragment_offset(),
            more_fragments: packet.more_fragments(),
            payload_len: packet.total_len().saturating_sub(header_len),
        }
    }

    /// Appends the header, with its checksum, to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0x45, self.tos]);
        out.extend_from_slice(&self.payload_len.saturating_add(20).to_be_bytes());
        out.extend_from_slice(&self.identification.to_be_bytes());
        let flags = u16::from(self.more_fragments) << 13;
        out.extend_from_slice(&(flags | self.fragment_offset & 0x1fff).to_be_bytes());
        out.extend_from_slice(&[self.ttl, self.protocol, 0, 0]);
        out.extend_from_slice(&self.source.to_be_bytes());
        out.extend_from_slice(&self.destination.to_be_bytes());
        let header = &mut out[start..];
        let sum = checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

/// The Internet checksum (RFC 1071) of `bytes`.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for (index, &byte) in bytes.iter().enumerate() {
        let shift = if index % 2 == 0 { 8 } else { 0 };
        // Below 2^17 after each byte.
        sum = sum.wrapping_add(u32::from(byte) << shift);
        sum = (sum & 0xffff).wrapping_add(sum >> 16);
    }
    let [_, _, high, low] = sum.to_be_bytes();
    !u16::from_be_bytes([high, low])
}

/// The version nibble of a raw IP packet.
#[inline]
#[must_use]
pub fn version(bytes: &[u8]) -> Option<u8> {
    u8_at(bytes, 0).map(|byte| byte >> 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_round_trips_with_a_valid_checksum() {
        let repr = Repr {
            source: 0x0a00_0001,
            destination: 0xc0a8_0102,
            protocol: 6,
            tos: 0x28,
            ttl: 64,
            identification: 0xbeef,
            fragment_offset: 185,
            more_fragments: true,
            payload_len: 1480,
        };
        let mut bytes = Vec::new();
        repr.emit(&mut bytes);
        assert_eq!(checksum(&bytes), 0);
        assert_eq!(Repr::parse(&Packet::new_checked(&bytes).unwrap()), repr);
        bytes[0] = 0x44;
        assert!(
            Packet::new_checked(&bytes).is_none(),
            "header length below 5 words"
        );
    }
}
