//! What goes into a sketch, and what comes out.

use strata_wire::dissect::Headers;
use strata_wire::transport::tcp_flag;
use strata_wire::wide::{GROUP, GROUPS, PacketColumns};
use strata_wire::{Plain, clamped};

/// What the sketch needs to know about one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketFacts {
    /// Keyed fingerprint of the flow key; 0 if the packet belongs to no flow.
    pub fingerprint: u64,
    /// Arrival, ns since 1970.
    pub ts_ns: u64,
    /// Bytes on the wire, at most 65 535.
    pub size: u16,
    /// Bytes of all headers, at most 65 535.
    pub header_len: u16,
    /// From the key's low to its high endpoint.
    pub low_to_high: bool,
    /// TCP SYN with ACK: the other side started, so this packet goes backward even if it is the
    /// first one seen.
    pub answers: bool,
    /// TCP window, else 0.
    pub tcp_window: u16,
    /// Source port, else 0.
    pub source_port: u16,
    /// Destination port, else 0.
    pub destination_port: u16,
    /// IP protocol number, else 0.
    pub protocol: u8,
    /// TCP flags, else 0.
    pub tcp_flags: u8,
    /// Type of service or traffic class.
    pub tos: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
}

impl PacketFacts {
    /// The facts of a packet from its plain headers and the result of [`Plain::flow`].
    #[inline(always)]
    #[must_use]
    pub fn plain(
        plain: &Plain,
        (fingerprint, low_to_high): (u64, bool),
        ts_ns: u64,
        wire_len: u32,
    ) -> Self {
        let handshake = tcp_flag::SYN | tcp_flag::ACK;
        Self {
            fingerprint,
            ts_ns,
            size: clamped::<u16>(wire_len),
            header_len: plain.header_len(),
            low_to_high,
            answers: plain.tcp_flags & handshake == handshake,
            tcp_window: plain.tcp_window,
            source_port: plain.source_port,
            destination_port: plain.destination_port,
            protocol: plain.protocol,
            tcp_flags: plain.tcp_flags,
            tos: plain.tos,
            ttl: plain.ttl,
        }
    }

    /// The facts of a packet of a batch in columns that has a flow.
    #[inline]
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "columns of small numbers")]
    pub fn in_columns(packets: &PacketColumns, at: usize) -> Self {
        let is_in = |mask: &[u16; GROUPS]| mask[at / GROUP] >> (at % GROUP) & 1 != 0;
        Self {
            fingerprint: packets.fingerprint[at],
            ts_ns: packets.ts_ns[at],
            size: packets.size[at] as u16,
            header_len: packets.header_len[at] as u16,
            low_to_high: is_in(&packets.low_to_high),
            answers: is_in(&packets.answers),
            tcp_window: packets.tcp_window[at] as u16,
            source_port: packets.source_port[at] as u16,
            destination_port: packets.destination_port[at] as u16,
            protocol: packets.protocol[at] as u8,
            tcp_flags: packets.tcp_flags[at] as u8,
            tos: packets.tos[at] as u8,
            ttl: packets.ttl[at] as u8,
        }
    }

    /// The facts of a packet with these headers. `wire_len` in bytes.
    #[inline]
    #[must_use]
    pub fn new(headers: &Headers, fingerprint: u64, ts_ns: u64, wire_len: u32) -> Self {
        let (source, destination) = headers.endpoints();
        let handshake = tcp_flag::SYN | tcp_flag::ACK;
        Self {
            fingerprint,
            ts_ns,
            size: clamped::<u16>(wire_len),
            // Without what an ICMP error quotes, as models have learnt it.
            header_len: clamped::<u16>(
                headers.header_len.saturating_sub(headers.quoted_len.into()),
            ),
            low_to_high: headers.low_to_high,
            answers: headers.tcp_flags & handshake == handshake,
            tcp_window: headers.tcp_window,
            source_port: source.port,
            destination_port: destination.port,
            protocol: headers.key.map_or(0, |key| key.protocol),
            tcp_flags: headers.tcp_flags,
            tos: headers.tos,
            ttl: headers.ttl,
        }
    }
}

/// What is known about a flow in the current window, including the current packet. Delays (IPD,
/// inter-packet delay) are in ticks of the sketch's [`Clock`](crate::Clock).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowStats {
    /// Packets, both directions.
    pub packets: u32,
    /// Wire bytes, both directions.
    pub bytes: u32,
    /// Wire bytes against the flow's direction.
    pub backward_bytes: u32,
    /// Sum of all delays: last arrival minus first.
    pub ipd_sum: u32,
    /// Smallest delay; 0 for a single packet.
    pub ipd_min: u32,
    /// Largest delay.
    pub ipd_max: u32,
    /// Sum of squares of sizes, bytes^2.
    pub size_squares: u64,
    /// Sum of squares of delays, ticks^2.
    pub ipd_squares: u64,
    /// Smallest packet.
    pub size_min: u16,
    /// Largest packet.
    pub size_max: u16,
    /// Smallest backward packet; 0 without any.
    pub backward_size_min: u16,
    /// Largest backward packet.
    pub backward_size_max: u16,
    /// Header bytes of backward packets.
    pub backward_header_bytes: u32,
    /// TCP window of the first forward packet.
    pub window_forward: u16,
    /// TCP window of the first backward packet.
    pub window_backward: u16,
    /// Whether the flow's initiator is the key's low endpoint.
    pub forward_is_low_to_high: bool,
}
