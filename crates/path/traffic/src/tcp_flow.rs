//! Conversations that are reported of, rather than carried: their ends alone.

use std::net::Ipv4Addr;

use strata_wire::mix64;

/// A flow over TCP, in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TcpFlow {
    /// Where packets come from.
    pub source: Ipv4Addr,
    /// Where they go.
    pub destination: Ipv4Addr,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
}

impl TcpFlow {
    /// Bytes of its packets' headers: IPv4 and TCP without options.
    pub const HEADERS_LEN: usize = 40;

    /// The flow of a rank, by a seed: from 10/8 to 198.18/15.
    #[must_use]
    pub fn ranked(seed: u64, rank: usize) -> Self {
        let random = mix64(seed ^ mix64(rank as u64));
        let [a, b, c, d, e, f, g, _] = random.to_le_bytes();
        Self {
            source: Ipv4Addr::new(10, a, b, c),
            destination: Ipv4Addr::new(198, 18, d, e),
            source_port: u16::from_le_bytes([f, g]) | 1024,
            destination_port: 443,
        }
    }

    /// The headers of a packet of 1500 bytes, without checksums, as a switch reports what it saw.
    #[must_use]
    pub fn headers(&self, ttl: u8) -> [u8; Self::HEADERS_LEN] {
        let mut out = [0; Self::HEADERS_LEN];
        out[..12].copy_from_slice(&[0x45, 0, 0x05, 0xdc, 0, 0, 0x40, 0, ttl, 6, 0, 0]);
        out[12..16].copy_from_slice(&self.source.octets());
        out[16..20].copy_from_slice(&self.destination.octets());
        out[20..22].copy_from_slice(&self.source_port.to_be_bytes());
        out[22..24].copy_from_slice(&self.destination_port.to_be_bytes());
        out[24..].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
        out
    }
}
