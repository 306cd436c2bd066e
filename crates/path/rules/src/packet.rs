//! The fields of a packet that rules can test.

use strata_wire::{AddressFamily, Headers};

/// The value of [`Field::Vlan`] of a packet without an IEEE 802.1Q tag.
pub const UNTAGGED: u16 = 4096;

/// A field that rules test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Field {
    /// 0 for MAC addresses, 4 or 6: the codes of [`AddressFamily`].
    Family = 0,
    /// The protocol of the flow key.
    Protocol = 1,
    /// Source address.
    Source = 2,
    /// Destination address.
    Destination = 3,
    /// Source port; the `EtherType` where the addresses are MAC addresses.
    SourcePort = 4,
    /// Destination port; the `EtherType` where the addresses are MAC addresses.
    DestinationPort = 5,
    /// VLAN identifier of the outermost tag, or [`UNTAGGED`].
    Vlan = 6,
    /// Number of the interface's name in the rule set; 0 for any other.
    Interface = 7,
}

impl Field {
    /// All fields, by number.
    pub const ALL: [Self; 8] = [
        Self::Family,
        Self::Protocol,
        Self::Source,
        Self::Destination,
        Self::SourcePort,
        Self::DestinationPort,
        Self::Vlan,
        Self::Interface,
    ];

    /// The largest value.
    #[must_use]
    pub const fn max(self) -> u128 {
        match self {
            Self::Family => 7,
            Self::Protocol | Self::Interface => u8::MAX as u128,
            Self::Source | Self::Destination => u128::MAX,
            Self::SourcePort | Self::DestinationPort => u16::MAX as u128,
            Self::Vlan => UNTAGGED as u128,
        }
    }

    /// Bits of a value.
    #[must_use]
    pub const fn bits(self) -> u32 {
        u128::BITS.wrapping_sub(self.max().leading_zeros())
    }
}

/// The fields of one packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PacketFields {
    /// Source address, right-aligned.
    pub source: u128,
    /// Destination address, right-aligned.
    pub destination: u128,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// VLAN identifier, or [`UNTAGGED`].
    pub vlan: u16,
    /// Interface, as numbered by the rule set.
    pub interface: u8,
    /// Protocol.
    pub protocol: u8,
    /// The kind of addresses.
    pub family: AddressFamily,
}

impl PacketFields {
    /// The fields of a packet with these headers. One without a flow key has MAC addresses, and
    /// ports of 0.
    #[inline]
    #[must_use]
    pub fn new(headers: &Headers, interface: u8, vlan: u16) -> Self {
        let key = headers.flow_key();
        let (source, destination) = headers.endpoints();
        Self {
            source: source.address,
            destination: destination.address,
            source_port: source.port,
            destination_port: destination.port,
            vlan,
            interface,
            protocol: key.protocol,
            family: key.family,
        }
    }

    /// The value of one field.
    #[inline]
    #[must_use]
    pub fn value(&self, field: Field) -> u128 {
        match field {
            Field::Family => self.family as u128,
            Field::Protocol => self.protocol.into(),
            Field::Source => self.source,
            Field::Destination => self.destination,
            Field::SourcePort => self.source_port.into(),
            Field::DestinationPort => self.destination_port.into(),
            Field::Vlan => self.vlan.into(),
            Field::Interface => self.interface.into(),
        }
    }
}
