//! IP protocol numbers (IANA) that the walk knows.
#![allow(missing_docs)]
pub const HOP_BY_HOP: u8 = 0;
pub const ICMP: u8 = 1;
pub const IGMP: u8 = 2;
pub const IPV4: u8 = 4;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const DCCP: u8 = 33;
pub const IPV6: u8 = 41;
pub const ROUTING: u8 = 43;
pub const FRAGMENT: u8 = 44;
pub const GRE: u8 = 47;
pub const ESP: u8 = 50;
pub const AH: u8 = 51;
pub const ICMPV6: u8 = 58;
/// No next header, after a header of IPv6.
pub const NO_NEXT: u8 = 59;
pub const DESTINATION_OPTIONS: u8 = 60;
pub const SCTP: u8 = 132;
pub const MOBILITY: u8 = 135;
pub const UDP_LITE: u8 = 136;
pub const HIP: u8 = 139;
pub const SHIM6: u8 = 140;

/// Whether a number is that of a protocol in use, as far as the walk needs to tell IP from something
/// else: those above, and those with a [name](name).
#[must_use]
pub fn is_known(number: u8) -> bool {
    name(number).is_some()
        || matches!(
            number,
            HOP_BY_HOP
                | ROUTING
                | FRAGMENT
                | NO_NEXT
                | DESTINATION_OPTIONS
                | MOBILITY
                | HIP
                | SHIM6
        )
}

/// A protocol's common name; `None` for one known by its number.
#[must_use]
pub fn name(number: u8) -> Option<&'static str> {
    Some(match number {
        ICMP => "ICMP",
        IGMP => "IGMP",
        IPV4 => "IPv4",
        TCP => "TCP",
        UDP => "UDP",
        DCCP => "DCCP",
        IPV6 => "IPv6",
        46 => "RSVP",
        GRE => "GRE",
        ESP => "ESP",
        AH => "AH",
        ICMPV6 => "ICMPv6",
        88 => "EIGRP",
        89 => "OSPF",
        103 => "PIM",
        112 => "VRRP",
        115 => "L2TP",
        SCTP => "SCTP",
        UDP_LITE => "UDP-Lite",
        _ => return None,
    })
}
