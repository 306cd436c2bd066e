//! What packets of `T` say.

use crate::tuple::{Column, Columns};

/// What a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Int,
    Real,
    Bool,
    /// Two registers: high and low word.
    Address,
}

impl Kind {
    pub(super) fn words(self) -> usize {
        usize::from(self == Self::Address).wrapping_add(1)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Int => "an integer",
            Self::Real => "a real number",
            Self::Bool => "a condition",
            Self::Address => "an address",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Field {
    Source,
    Destination,
    SourcePort,
    DestinationPort,
    Protocol,
    Ingress,
    Switch,
    Arrival,
    Of(Column),
}

impl Field {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Source | Self::Destination => Kind::Address,
            _ => Kind::Int,
        }
    }

    /// Whether it is the same for all packets of a vector.
    pub(super) fn is_fixed(self) -> bool {
        !matches!(self, Self::Arrival | Self::Of(_))
    }

    /// What a vector must carry for it.
    pub(super) fn columns(self) -> Columns {
        match self {
            Self::Arrival => Columns::of(&[Column::Time]),
            Self::Of(column) => Columns::of(&[column]),
            _ => Columns::default(),
        }
    }
}

/// The columns of `T`, by the names in published queries and by ours.
pub(super) const FIELDS: [(&str, Field); 24] = [
    ("srcip", Field::Source),
    ("dstip", Field::Destination),
    ("srcport", Field::SourcePort),
    ("dstport", Field::DestinationPort),
    ("proto", Field::Protocol),
    ("tin", Field::Arrival),
    ("pkt_len", Field::Of(Column::Size)),
    ("pktlength", Field::Of(Column::Size)),
    ("switch", Field::Switch),
    ("ingress", Field::Ingress),
    ("payload_len", Field::Of(Column::PayloadLen)),
    ("payloadlen", Field::Of(Column::PayloadLen)),
    ("tcpseq", Field::Of(Column::TcpSeq)),
    ("tcpack", Field::Of(Column::TcpAck)),
    ("tcpflags", Field::Of(Column::TcpFlags)),
    ("tcpwindow", Field::Of(Column::TcpWindow)),
    ("qsize", Field::Of(Column::QueueDepth)),
    ("high_queue", Field::Of(Column::HighQueue)),
    ("ecn", Field::Of(Column::Ecn)),
    ("class", Field::Of(Column::Class)),
    ("pktlen", Field::Of(Column::Size)),
    ("inport", Field::Ingress),
    ("qin", Field::Of(Column::QueueDepth)),
    ("qlen", Field::Of(Column::QueueDepth)),
];

/// The name of the column of `T` that needs this column of vectors.
pub(super) fn name_of(column: Column) -> &'static str {
    let found = FIELDS.iter().find(|(_, field)| match field {
        Field::Arrival => column == Column::Time,
        Field::Of(of) => *of == column,
        _ => false,
    });
    found.expect("every column has a name").0
}

/// What an answer shows of packets: the first of [`FIELDS`].
pub(super) const SHOWN: usize = 7;

/// Names in published queries that vectors cannot serve.
pub(super) const UNKNOWN: [(&str, &str); 7] = [
    ("tout", "vectors do not say when a packet left"),
    (
        "qout",
        "vectors do not say what was in the queue when a packet left",
    ),
    ("uid", "vectors do not carry packet numbers"),
    ("pkt_path", "vectors do not say which path a packet took"),
    ("pktpath", "vectors do not say which path a packet took"),
    ("outport", "vectors do not say where a packet left"),
    (
        "qid",
        "vectors do not name queues; ingress is the port by which a packet entered",
    ),
];

/// An address in two words: IPv4 as IPv6 maps it (RFC 4291 section 2.5.5.2).
#[allow(clippy::cast_possible_truncation, reason = "both halves are taken")]
pub(super) fn address_words(address: u128, family: u8) -> [u64; 2] {
    let mapped = if family == 4 { 0xffff << 32 } else { 0 };
    [(address >> 64) as u64, address as u64 | mapped]
}

/// The number that an address is in arithmetic, from its two words: IPv4 its 32 bits, IPv6 the lower 64 bits.
pub(super) fn address_number(high: u64, low: u64) -> u64 {
    match (high, low >> 32) {
        (0, 0xffff) => low & 0xffff_ffff,
        _ => low,
    }
}
