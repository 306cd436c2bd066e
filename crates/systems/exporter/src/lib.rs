//! Streaming packets to analysers after Trident (Hu et al., Tsinghua Science and Technology 2021,
//! section 3.4): headers, compressed many to a datagram; packets, whole or their first bytes; and who
//! sent them.
//!
//! No I/O, no clock, no thread: packets and bytes in, datagrams and packets out. The bytes are
//! documented in docs/formats/export.md.
//!
//! Layers, top-down; each uses only those below it:
//!
//! ```text
//! destination   where packets go: udp://host:port, vxlan://host
//! sequence      which datagrams of a source are lost, late or repeated; packets that are lost
//! headers       headers as datagrams and back: writer, reader
//!   fast        the records of most packets, of a few shapes
//!   write, read   the records of all plain headers: codes, then values
//!   head        the first fields of all records: kind, time, label
//!   index       what a writer finds in the model
//!   model       what both ends know from the datagram's earlier headers
//!   key         what identifies a flow; places of flows and addresses
//!   other       headers of any other form, as differences to an earlier one
//!   code, ports, kind  fields with a code; what kind of packet a record is of
//!   fields      IPv4 or IPv6 with TCP, UDP or ICMP as fields, and back
//!   sums        their checksums
//! seal          datagrams encrypted and authenticated: sealing, opening
//! packets       packets as datagrams and back, in pieces where they are longer
//! announcement  names of host and interface
//! vxlan         the header before a packet in VXLAN
//! datagram      the start of every datagram: source, numbers, time
//! bits          the two streams of a record: bits and bytes
//! ```
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod announcement;
mod bits;
mod datagram;
mod destination;
mod headers;
mod packets;
mod seal;
mod sequence;
pub mod vxlan;

pub use announcement::{Announcement, TEXT_MAX};
pub use datagram::{
    Datagram, FormatError, HEADER_LEN, Kind, LEN_MAX, LEN_MIN, LEN_USUAL, Numbered, Source,
};
pub use destination::{Channel, Destination, ParseDestinationError};
pub use headers::{Header, HeaderReader, HeaderWriter, Label, TooLong};
pub use packets::{PACKET_MAX, PacketReader, PacketWriter};
pub use seal::{Opener, SEALED_MORE, SealError, Sealer, identity_in, is_sealed};
pub use sequence::{Sequence, SequenceCounters};
