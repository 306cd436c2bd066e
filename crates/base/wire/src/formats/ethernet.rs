//! Ethernet II and IEEE 802.3 frames.

use crate::bytes::{be128, held16};

/// EtherType numbers (IEEE 802 numbers, IANA).
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP (RFC 826).
    pub const ARP: u16 = 0x0806;
    /// Reverse ARP (RFC 903), laid out as ARP.
    pub const RARP: u16 = 0x8035;
    /// Transparent Ethernet bridging, as GRE and GENEVE carry Ethernet.
    pub const TEB: u16 = 0x6558;
    /// Customer VLAN tag (IEEE 802.1Q).
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// PPP within GRE (RFC 2637).
    pub const PPP: u16 = 0x880b;
    /// MPLS unicast (RFC 3032).
    pub const MPLS: u16 = 0x8847;
    /// MPLS multicast (RFC 5332).
    pub const MPLS_MULTICAST: u16 = 0x8848;
    /// PPPoE discovery (RFC 2516).
    pub const PPPOE_DISCOVERY: u16 = 0x8863;
    /// PPPoE session (RFC 2516).
    pub const PPPOE_SESSION: u16 = 0x8864;
    /// Service VLAN tag (IEEE 802.1ad).
    pub const SERVICE_VLAN: u16 = 0x88a8;
    /// ERSPAN types I and II within GRE (draft-foschiano-erspan-03 §4).
    pub const ERSPAN: u16 = 0x88be;
    /// ERSPAN type III within GRE (draft-foschiano-erspan-03 §4).
    pub const ERSPAN_III: u16 = 0x22eb;
    /// Network Service Header (RFC 8300).
    pub const NSH: u16 = 0x894f;
    /// Stacked VLAN tags from before IEEE 802.1ad.
    pub const QINQ_OLD: [u16; 2] = [0x9100, 0x9200];

    /// Whether a number is that of a protocol that is found in Ethernet, as far as the walk needs to
    /// tell Ethernet from something else.
    #[must_use]
    pub fn is_known(number: u16) -> bool {
        /// Wake-on-LAN, TRILL, AppleTalk and its ARP, IPX, slow protocols, IS-IS in long frames, 802.1X,
        /// PROFINET, EtherCAT, local and experimental, GOOSE, LLDP, SERCOS, MACsec, provider
        /// backbone bridging, PTP, connectivity faults, FCoE and its initialisation, RoCE, NSH,
        /// redundancy, loopback.
        const OTHERS: [u16; 25] = [
            0x0842, 0x22f3, 0x809b, 0x80f3, 0x8137, 0x8809, 0x8870, 0x888e, 0x8892, 0x88a4, 0x88b5,
            0x88b6, 0x88b8, 0x88cc, 0x88cd, 0x88e5, 0x88e7, 0x88f7, 0x8902, 0x8906, 0x8914, 0x8915,
            NSH, 0x892f, 0x9000,
        ];
        matches!(
            number,
            IPV4 | IPV6
                | ARP
                | RARP
                | VLAN
                | SERVICE_VLAN
                | MPLS
                | MPLS_MULTICAST
                | PPPOE_DISCOVERY
                | PPPOE_SESSION
                | TEB
        ) || QINQ_OLD.contains(&number)
            || OTHERS.contains(&number)
    }
}

/// Bytes of an Ethernet header.
pub const HEADER_LEN: usize = 14;

/// The largest value of the type field that is a length (IEEE 802.3 §3.2.6).
pub const LENGTH_MAX: u16 = 1500;

/// A view of an Ethernet header.
///
/// ```text
/// 0            6            12     14
/// +------------+------------+------+
/// | destination| source     | type |
/// +------------+------------+------+
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    /// A view of `bytes` if they hold a whole header.
    #[inline]
    #[must_use]
    pub fn new_checked(bytes: &'a [u8]) -> Option<Self> {
        (bytes.len() >= HEADER_LEN).then_some(Self { bytes })
    }

    /// Destination and source address, each in the low 48 bits.
    #[inline]
    #[must_use]
    pub fn addresses(&self) -> (u128, u128) {
        match be128(self.bytes, 0) {
            Some(first) => (first >> 80, (first >> 32) & 0xffff_ffff_ffff),
            // A header alone is 14 bytes.
            None => {
                let mac = |bytes: &[u8]| {
                    bytes
                        .iter()
                        .fold(0, |value, &byte| value << 8 | u128::from(byte))
                };
                (mac(&self.bytes[..6]), mac(&self.bytes[6..12]))
            }
        }
    }

    /// The type field: an EtherType, or a length if at most [`LENGTH_MAX`].
    #[inline]
    #[must_use]
    pub fn type_or_length(&self) -> u16 {
        held16(self.bytes, 12)
    }
}

/// The contents of an Ethernet II header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// Destination address.
    pub destination: [u8; 6],
    /// Source address.
    pub source: [u8; 6],
    /// EtherType.
    pub ethertype: u16,
}

impl Repr {
    /// Appends the header to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.destination);
        out.extend_from_slice(&self.source);
        out.extend_from_slice(&self.ethertype.to_be_bytes());
    }
}
