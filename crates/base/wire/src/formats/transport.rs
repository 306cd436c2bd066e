//! Transport headers: TCP (RFC 9293) and UDP (RFC 768).

use crate::bytes::{held16, held32};

/// Bytes of a TCP header without options.
pub const TCP_HEADER_LEN_MIN: usize = 20;
/// Bytes of a UDP header.
pub const UDP_HEADER_LEN: usize = 8;

/// TCP flags, as bits of [`Tcp::flags`].
pub mod tcp_flag {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset the connection.
    pub const RST: u8 = 0x04;
    /// Acknowledgement field is significant.
    pub const ACK: u8 = 0x10;
}

/// A view of a TCP header, options included.
#[derive(Clone, Copy, Debug)]
pub struct Tcp<'a> {
    bytes: &'a [u8],
}

impl<'a> Tcp<'a> {
    /// A view of `bytes` if they hold at least the 20 fixed bytes.
    #[inline]
    #[must_use]
    pub fn new_checked(bytes: &'a [u8]) -> Option<Self> {
        (bytes.len() >= TCP_HEADER_LEN_MIN).then_some(Self { bytes })
    }

    /// Source port.
    #[inline]
    #[must_use]
    pub fn source_port(&self) -> u16 {
        held16(self.bytes, 0)
    }

    /// Destination port.
    #[inline]
    #[must_use]
    pub fn destination_port(&self) -> u16 {
        held16(self.bytes, 2)
    }

    /// Sequence number.
    #[inline]
    #[must_use]
    pub fn sequence(&self) -> u32 {
        held32(self.bytes, 4)
    }

    /// The data offset field, in bytes: 0 to 60. Below 20 it is invalid.
    #[inline]
    #[must_use]
    pub fn header_len(&self) -> usize {
        usize::from(self.bytes[12] >> 4).wrapping_mul(4)
    }

    /// The eight flags from CWR down to FIN.
    #[inline]
    #[must_use]
    pub fn flags(&self) -> u8 {
        self.bytes[13]
    }

    /// Window, unscaled.
    #[inline]
    #[must_use]
    pub fn window(&self) -> u16 {
        held16(self.bytes, 14)
    }
}

/// The contents of a TCP header without options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpRepr {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Sequence number.
    pub sequence: u32,
    /// Flags.
    pub flags: u8,
    /// Window.
    pub window: u16,
}

impl TcpRepr {
    /// Appends the header, with a checksum of 0, to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.source_port.to_be_bytes());
        out.extend_from_slice(&self.destination_port.to_be_bytes());
        out.extend_from_slice(&self.sequence.to_be_bytes());
        out.extend_from_slice(&[0, 0, 0, 0, 0x50, self.flags]);
        out.extend_from_slice(&self.window.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
    }
}

/// The contents of a UDP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpRepr {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Bytes after the header.
    pub payload_len: u16,
}

impl UdpRepr {
    /// Appends the header, with a checksum of 0, to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.source_port.to_be_bytes());
        out.extend_from_slice(&self.destination_port.to_be_bytes());
        out.extend_from_slice(&self.payload_len.saturating_add(8).to_be_bytes());
        out.extend_from_slice(&[0, 0]);
    }
}
