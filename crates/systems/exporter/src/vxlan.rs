//! The header before a packet in VXLAN (RFC 7348, section 5), over UDP.

/// UDP port of VXLAN (RFC 7348, section 5).
pub const UDP_PORT: u16 = 4789;
/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// The network identifier is valid: the only flag.
const HAS_IDENTIFIER: u8 = 0x08;

/// The header of a packet of this network, by its identifier of 24 bits.
///
/// ```text
///  0 flags u8 = 8
///  1 reserved u24 = 0
///  4 network identifier u24, big-endian
///  7 reserved u8 = 0
/// ```
///
/// # Panics
///
/// If the identifier has more than 24 bits.
#[must_use]
pub fn header(identifier: u32) -> [u8; HEADER_LEN] {
    assert!(identifier < 1 << 24, "{identifier}: more than 24 bits");
    let [_, a, b, c] = identifier.to_be_bytes();
    [HAS_IDENTIFIER, 0, 0, 0, a, b, c, 0]
}
