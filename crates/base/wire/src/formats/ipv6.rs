//! IPv6 headers (RFC 8200).

use crate::bytes::{held16, held32, held128};

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 40;

/// A view of the fixed IPv6 header.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// A view of `bytes` if they start with a whole IPv6 header.
    #[inline]
    #[must_use]
    pub fn new_checked(bytes: &'a [u8]) -> Option<Self> {
        (bytes.len() >= HEADER_LEN && bytes[0] >> 4 == 6).then_some(Self { bytes })
    }

    /// Traffic class: DSCP and ECN.
    #[inline]
    #[must_use]
    pub fn traffic_class(&self) -> u8 {
        self.bytes[0] << 4 | self.bytes[1] >> 4
    }

    /// Flow label, 20 bits.
    #[inline]
    #[must_use]
    pub fn flow_label(&self) -> u32 {
        held32(self.bytes, 0) & 0xf_ffff
    }

    /// Bytes after the fixed header; 0 for a jumbogram or segmentation by the NIC.
    #[inline]
    #[must_use]
    pub fn payload_len(&self) -> u16 {
        held16(self.bytes, 4)
    }

    /// The protocol of what follows.
    #[inline]
    #[must_use]
    pub fn next_header(&self) -> u8 {
        self.bytes[6]
    }

    /// Hop limit.
    #[inline]
    #[must_use]
    pub fn hop_limit(&self) -> u8 {
        self.bytes[7]
    }

    /// Source address.
    #[inline]
    #[must_use]
    pub fn source(&self) -> u128 {
        held128(self.bytes, 8)
    }

    /// Destination address.
    #[inline]
    #[must_use]
    pub fn destination(&self) -> u128 {
        held128(self.bytes, 24)
    }
}

/// The contents of a fixed IPv6 header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// Source address.
    pub source: u128,
    /// Destination address.
    pub destination: u128,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// The protocol of what follows.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Bytes after the fixed header.
    pub payload_len: u16,
}

impl Repr {
    /// Reads a header.
    #[must_use]
    pub fn parse(packet: &Packet<'_>) -> Self {
        Self {
            source: packet.source(),
            destination: packet.destination(),
            traffic_class: packet.traffic_class(),
            flow_label: packet.flow_label(),
            next_header: packet.next_header(),
            hop_limit: packet.hop_limit(),
            payload_len: packet.payload_len(),
        }
    }

    /// Appends the header to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        out.extend_from_slice(&first.to_be_bytes());
        out.extend_from_slice(&self.payload_len.to_be_bytes());
        out.extend_from_slice(&[self.next_header, self.hop_limit]);
        out.extend_from_slice(&self.source.to_be_bytes());
        out.extend_from_slice(&self.destination.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_round_trips() {
        let repr = Repr {
            source: 0x2001_0db8 << 96 | 1,
            destination: u128::MAX - 5,
            traffic_class: 0xb9,
            flow_label: 0xabcde,
            next_header: 17,
            hop_limit: 3,
            payload_len: 77,
        };
        let mut bytes = Vec::new();
        repr.emit(&mut bytes);
        assert_eq!(bytes.len(), HEADER_LEN);
        assert_eq!(Repr::parse(&Packet::new_checked(&bytes).unwrap()), repr);
    }
}
