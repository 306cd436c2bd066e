//! The headers that most packets have, by their length: IPv4 or IPv6 over Ethernet, then UDP, TCP without
//! options or TCP with timestamps.

use strata_wire::dissect::protocol;

use crate::headers::fields::Transport;
use crate::headers::kind::OptionsCode;

/// Bytes of an Ethernet header.
pub(super) const ETHERNET_LEN: usize = 14;

/// Headers of `LEN` bytes.
pub(super) struct Shape<const LEN: usize>;

impl<const LEN: usize> Shape<LEN> {
    pub(super) const V6: bool = matches!(LEN, 62 | 74 | 86);
    pub(super) const UDP: bool = matches!(LEN, 42 | 62);
    pub(super) const STAMPS: bool = matches!(LEN, 66 | 86);
    /// Where the transport header is.
    pub(super) const AT: usize = ETHERNET_LEN + if Self::V6 { 40 } else { 20 };
    pub(super) const TRANSPORT_LEN: u16 = match LEN - Self::AT {
        8 => 8,
        20 => 20,
        _ => 32,
    };
    pub(super) const PROTOCOL: u8 = if Self::UDP {
        protocol::UDP
    } else {
        protocol::TCP
    };
    pub(super) const TRANSPORT: Transport = if Self::UDP {
        Transport::Udp
    } else {
        Transport::Tcp
    };
    pub(super) const OPTIONS: OptionsCode = if Self::STAMPS {
        OptionsCode::Stamps
    } else {
        OptionsCode::None
    };
    /// Bits of the codes of TCP's numbers, of a direction that was seen.
    pub(super) const TCP_CODES_SEEN: u32 = match (Self::UDP, Self::STAMPS) {
        (true, _) => 0,
        (_, false) => 6,
        (_, true) => 10,
    };
    /// Which of the model's full payloads.
    pub(super) const KIND: usize = match LEN - Self::AT {
        8 => 2,
        20 => 0,
        _ => 1,
    };
}
