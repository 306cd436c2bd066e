//! What is sent, each structure declared once: what is written and read are these bytes.
#![allow(
    unsafe_code,
    reason = "derives of zerocopy, which check that every byte pattern is a value"
)]

use strata_wire::layout;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, big_endian, little_endian,
};

/// The paper's header (section 6.2): 192 bits in network byte order.
///
/// ```text
///  0 source IPv4 address u32      \
///  4 destination IPv4 address u32 |
///  8 source port u16              |  5-tuple, 104 bits
/// 10 destination port u16         |
/// 12 protocol u8                  /
/// 13 ingress port u8
/// 14 packet count u16
/// 16 start time u64               ns since 1970
/// 24 tuples
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct PaperHeader {
    pub(crate) source: big_endian::U32,
    pub(crate) destination: big_endian::U32,
    pub(crate) source_port: big_endian::U16,
    pub(crate) destination_port: big_endian::U16,
    pub(crate) protocol: u8,
    pub(crate) ingress: u8,
    pub(crate) count: big_endian::U16,
    pub(crate) start_ns: big_endian::U64,
}
layout!(
    PaperHeader, 24,
    source at 0, destination at 4, source_port at 8, destination_port at 10, protocol at 12,
    ingress at 13, count at 14, start_ns at 16,
);
const _: () = assert!(size_of::<PaperHeader>() * 8 == 192);

/// A frame that the published switch program exports, up to its words; see [`super::frame`].
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct FrameHeader {
    pub(crate) macs: [u8; 12],
    pub(crate) ether_type: big_endian::U16,
    pub(crate) real_ether_type: big_endian::U16,
    pub(crate) wide: big_endian::U16,
    pub(crate) source: big_endian::U32,
    pub(crate) destination: big_endian::U32,
    pub(crate) source_port: big_endian::U16,
    pub(crate) destination_port: big_endian::U16,
    pub(crate) start: big_endian::U32,
    pub(crate) count: big_endian::U16,
    pub(crate) protocol: u8,
}
layout!(
    FrameHeader, 37,
    macs at 0, ether_type at 12, real_ether_type at 14, wide at 16, source at 18,
    destination at 22, source_port at 26, destination_port at 28, start at 30, count at 34,
    protocol at 36,
);

/// The start of a datagram of ours, little-endian.
///
/// ```text
///  0 magic "SGPV"
///  4 version u8 = 2     1 is the paper's format, which has no header of datagrams
///  5 flags u8 = 0
///  6 columns u16        what each tuple of the datagram says
///  8 cache u32          number of the cache
/// 12 len u16            bytes of the datagram
/// 14 vectors u16        number of vectors that follow
/// 16 first_seq u64      number of the first vector among those of its cache and destination
/// 24 vectors
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DatagramHeader {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u8,
    pub(crate) flags: u8,
    pub(crate) columns: little_endian::U16,
    pub(crate) cache: little_endian::U32,
    pub(crate) len: little_endian::U16,
    pub(crate) vectors: little_endian::U16,
    pub(crate) first_seq: little_endian::U64,
}
layout!(
    DatagramHeader, 24,
    magic at 0, version at 4, flags at 5, columns at 6, cache at 8, len at 12, vectors at 14,
    first_seq at 16,
);

/// A vector of ours before its addresses and columns, little-endian.
///
/// ```text
///  0 start_ns u64       since 1970
///  8 slot u32           of the cache
/// 12 count u16          tuples, at least 1
/// 14 ingress u16
/// 16 source port u16 | destination port u16
/// 20 protocol u8
/// 21 family u8          4 IPv4, 6 IPv6, 0 Ethernet
/// 22 reason u8          why it left the cache: 0 full, 1 collision, 2 time, 3 flushed, 7 unknown
/// 23 flags u8           bit 0: a size or length saturated
/// 24 source address, destination address: 4 bytes each (IPv4), 16 (IPv6), 6 (Ethernet), in
///    network byte order; then, column by column, `count` values each
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct VectorHeader {
    pub(crate) start_ns: little_endian::U64,
    pub(crate) slot: little_endian::U32,
    pub(crate) count: little_endian::U16,
    pub(crate) ingress: little_endian::U16,
    pub(crate) source_port: little_endian::U16,
    pub(crate) destination_port: little_endian::U16,
    pub(crate) protocol: u8,
    pub(crate) family: u8,
    pub(crate) reason: u8,
    pub(crate) flags: u8,
}
layout!(
    VectorHeader, 24,
    start_ns at 0, slot at 8, count at 12, ingress at 14, source_port at 16,
    destination_port at 18, protocol at 20, family at 21, reason at 22, flags at 23,
);

/// The start of a control packet, little-endian.
///
/// ```text
///  0 magic "SGPC"
///  4 version u8 = 2
///  5 zero u8
///  6 ranges u16         number of ranges that follow
///  8 cache u32          number of the cache
/// 12 first u32, slots u32   of each range: first slot, number of slots
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ControlHeader {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u8,
    pub(crate) zero: u8,
    pub(crate) ranges: little_endian::U16,
    pub(crate) cache: little_endian::U32,
}
layout!(ControlHeader, 12, magic at 0, version at 4, zero at 5, ranges at 6, cache at 8);
