//! From the shape of a packet to its bytes.
#![allow(
    clippy::cast_possible_truncation,
    reason = "header fields hold low bits"
)]

use strata_wire::ethernet::ethertype;
use strata_wire::mix64;
use strata_wire::transport::tcp_flag::{ACK, RST, SYN};

use crate::content;
use crate::flow::{Flow, SERVER, Shape};
use crate::kind::{Kind, Transport};
use crate::random::{NOISE_BLOCK, Noise};

/// Bytes of the longest frame, without frame check sequence.
pub const FRAME_MAX: usize = 14 + 1500;
/// Bytes of a frame buffer: whole blocks of payload are written after the headers.
pub const SPACE: usize = (FRAME_MAX + 2 * NOISE_BLOCK).next_multiple_of(NOISE_BLOCK);

const ETHERNET_LEN: usize = 14;
const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const PROTOCOL_ICMPV6: u8 = 58;

/// Writes the frame of a packet to the start of `out` and returns its length. `now_ms` is the time
/// for TCP's timestamps. Without `noise`, payloads are zero.
#[inline]
pub(crate) fn build(
    out: &mut [u8; SPACE],
    flow: &mut Flow,
    kind: &Kind,
    shape: &Shape,
    now_ms: u32,
    noise: Option<&mut Noise>,
) -> usize {
    let ip_len = if flow.ipv6 { 40 } else { 20 };
    let transport_at = ETHERNET_LEN + ip_len;
    let transport_len = transport_len(flow, kind, shape);
    let payload_at = transport_at + transport_len;
    let payload_len = shape.payload_len as usize;
    let end = payload_at + payload_len;

    if payload_len > 0 {
        let blocks = payload_len.next_multiple_of(NOISE_BLOCK);
        match noise {
            Some(noise) => noise.fill(&mut out[payload_at..payload_at + blocks]),
            None => out[payload_at..payload_at + blocks].fill(0),
        }
        content::write(kind.content, flow, shape, &mut out[payload_at..end]);
    }
    let (protocol, checksum_at) = match kind.transport {
        Transport::Icmp if flow.ipv6 => (PROTOCOL_ICMPV6, 2),
        Transport::Icmp => (PROTOCOL_ICMP, 2),
        Transport::Udp | Transport::UdpOneWay => (PROTOCOL_UDP, 6),
        _ => (PROTOCOL_TCP, 16),
    };
    match protocol {
        PROTOCOL_TCP => tcp(
            &mut out[transport_at..],
            transport_len as u8,
            flow,
            shape,
            now_ms,
        ),
        PROTOCOL_UDP => udp(&mut out[transport_at..], flow, shape),
        _ => icmp(&mut out[transport_at..], flow, shape),
    }
    let segment_len = transport_len + payload_len;
    let pseudo = ip(out, flow, shape.side, protocol, segment_len);
    let pseudo = if protocol == PROTOCOL_ICMP { 0 } else { pseudo };
    let sum = fold(sum(&out[transport_at..end]) + u64::from(fold(pseudo).swap_bytes()));
    // A UDP checksum of 0 would mean "no checksum" (RFC 768).
    let checksum = match !sum {
        0 if protocol == PROTOCOL_UDP => 0xffff,
        checksum => checksum,
    };
    let at = transport_at + checksum_at;
    out[at..at + 2].copy_from_slice(&checksum.to_le_bytes());
    end
}

/// Ethernet and IP headers; returns the sum of the pseudo-header (RFC 9293 §3.1, RFC 8200 §8.1),
/// big-endian.
#[inline]
fn ip(out: &mut [u8; SPACE], flow: &mut Flow, side: usize, protocol: u8, len: usize) -> u64 {
    // Two routers at the ends of the observed link.
    let mut macs = [2, 0, 0x5e, 0, 0, 1, 2, 0, 0x5e, 0, 0, 2];
    macs[5] += u8::from(side == SERVER);
    macs[11] -= u8::from(side == SERVER);
    out[..12].copy_from_slice(&macs);
    let (source, destination) = (flow.hosts[side], flow.hosts[side ^ 1]);
    // Initial values of 64 and 128, some routers away.
    let distance = mix64(u64::from(source));
    let ttl = (64 << (distance >> 8 & 1)) - (distance & 15) as u8;
    let length = len as u64;
    if flow.ipv6 {
        out[12..14].copy_from_slice(&ethertype::IPV6.to_be_bytes());
        let header: &mut [u8; 40] = (&mut out[14..54]).try_into().expect("40 bytes");
        let label = (mix64(flow.number) & 0xf_ffff) as u32;
        header[..4].copy_from_slice(&(6 << 28 | label).to_be_bytes());
        header[4..6].copy_from_slice(&(len as u16).to_be_bytes());
        header[6..8].copy_from_slice(&[protocol, ttl]);
        let addresses = [ipv6_address(source), ipv6_address(destination)];
        let mut sum = length + u64::from(protocol);
        for (index, address) in addresses.iter().enumerate() {
            header[8 + 16 * index..24 + 16 * index].copy_from_slice(&address.to_be_bytes());
            sum += halves_sum((address >> 64) as u64) + halves_sum(*address as u64);
        }
        return sum;
    }
    out[12..14].copy_from_slice(&ethertype::IPV4.to_be_bytes());
    let header: &mut [u8; 20] = (&mut out[14..34]).try_into().expect("20 bytes");
    let identification = flow.identification[side];
    flow.identification[side] = identification.wrapping_add(1);
    let total_len = (20 + len) as u16;
    let addresses = halves_sum(u64::from(source) << 32 | u64::from(destination));
    let sum = 0x4500
        + u64::from(total_len)
        + u64::from(identification)
        + 0x4000
        + (u64::from(ttl) << 8 | u64::from(protocol))
        + addresses;
    header[..4].copy_from_slice(&(0x4500 << 16 | u32::from(total_len)).to_be_bytes());
    // Do not fragment.
    header[4..8].copy_from_slice(&(u32::from(identification) << 16 | 0x4000).to_be_bytes());
    header[8..10].copy_from_slice(&[ttl, protocol]);
    header[10..12].copy_from_slice(&(!fold(sum)).to_be_bytes());
    header[12..16].copy_from_slice(&source.to_be_bytes());
    header[16..20].copy_from_slice(&destination.to_be_bytes());
    addresses + length + u64::from(protocol)
}

/// In the documentation prefix 2001:db8::/32 (RFC 3849).
#[inline]
fn ipv6_address(host: u32) -> u128 {
    let network = 0x2001_0db8_0000_0000 | u64::from(host >> 16);
    u128::from(network) << 64 | u128::from(mix64(u64::from(host)))
}

/// Bytes of the transport header.
#[inline]
fn transport_len(flow: &Flow, kind: &Kind, shape: &Shape) -> usize {
    if !kind.transport.is_tcp() {
        return 8;
    }
    if shape.tcp_flags & RST != 0 {
        return 20;
    }
    match (shape.tcp_flags & SYN != 0, flow.stamped) {
        (true, true) => 40,
        (true, false) | (false, true) => 32,
        (false, false) => 20,
    }
}

#[inline]
fn tcp(out: &mut [u8], len: u8, flow: &mut Flow, shape: &Shape, now_ms: u32) {
    let header: &mut [u8; 40] = (&mut out[..40]).try_into().expect("40 bytes");
    let (side, other) = (shape.side, shape.side ^ 1);
    let syn = shape.tcp_flags & SYN != 0;
    let acknowledged = if shape.tcp_flags & ACK == 0 {
        0
    } else {
        flow.sequence[other]
    };
    header[..2].copy_from_slice(&flow.ports[side].to_be_bytes());
    header[2..4].copy_from_slice(&flow.ports[other].to_be_bytes());
    header[4..8].copy_from_slice(&flow.sequence[side].to_be_bytes());
    header[8..12].copy_from_slice(&acknowledged.to_be_bytes());
    let reset = shape.tcp_flags & RST != 0;
    let window = match shape.tcp_flags {
        _ if reset => 0,
        _ if syn => 64_240,
        _ => flow.window[side],
    };
    header[12..14].copy_from_slice(&[(len / 4) << 4, shape.tcp_flags]);
    header[14..16].copy_from_slice(&window.to_be_bytes());
    header[16..20].fill(0);
    if flow.stamped && !reset {
        // Each host's clock started at another time.
        let stamp = now_ms.wrapping_add(mix64(u64::from(flow.hosts[side])) as u32);
        let echo = if shape.tcp_flags & ACK == 0 {
            0
        } else {
            flow.stamps[other]
        };
        flow.stamps[side] = stamp;
        let at = if syn {
            header[20..26].copy_from_slice(&[2, 4, 5, 0xb4, 4, 2]);
            header[36..40].copy_from_slice(&[1, 3, 3, 7]);
            26
        } else {
            header[20..22].copy_from_slice(&[1, 1]);
            22
        };
        header[at..at + 2].copy_from_slice(&[8, 10]);
        header[at + 2..at + 6].copy_from_slice(&stamp.to_be_bytes());
        header[at + 6..at + 10].copy_from_slice(&echo.to_be_bytes());
    } else if syn {
        header[20..32].copy_from_slice(&[2, 4, 5, 0xb4, 1, 3, 3, 8, 1, 1, 4, 2]);
    }
    let advance = shape.payload_len + u32::from(syn) + u32::from(shape.tcp_flags & 1);
    flow.sequence[side] = flow.sequence[side].wrapping_add(advance);
    if shape.payload_len > 0 {
        // Received data is read, but not always at once.
        let unread = (flow.sequence[side] >> 7 & 15) as u16;
        flow.window[other] = if unread < 4 {
            501 - unread
        } else {
            flow.window[other].min(1_000) + 1
        };
    }
}

#[inline]
fn udp(out: &mut [u8], flow: &Flow, shape: &Shape) {
    let header: &mut [u8; 8] = (&mut out[..8]).try_into().expect("8 bytes");
    let len = 8 + shape.payload_len as u16;
    header[..2].copy_from_slice(&flow.ports[shape.side].to_be_bytes());
    header[2..4].copy_from_slice(&flow.ports[shape.side ^ 1].to_be_bytes());
    header[4..6].copy_from_slice(&len.to_be_bytes());
    header[6..].fill(0);
}

/// Echo request and reply (RFC 792, RFC 4443 §4).
#[inline]
fn icmp(out: &mut [u8], flow: &mut Flow, shape: &Shape) {
    let header: &mut [u8; 8] = (&mut out[..8]).try_into().expect("8 bytes");
    let reply = shape.side == SERVER;
    let kind = match (flow.ipv6, reply) {
        (false, false) => 8,
        (false, true) => 0,
        (true, false) => 128,
        (true, true) => 129,
    };
    if !reply {
        flow.sequence[0] = flow.sequence[0].wrapping_add(1);
    }
    header[..4].copy_from_slice(&[kind, 0, 0, 0]);
    header[4..6].copy_from_slice(&flow.ports[0].to_be_bytes());
    header[6..].copy_from_slice(&(flow.sequence[0] as u16).to_be_bytes());
}

/// Sum of 16-bit words in memory order (RFC 1071), to be folded.
#[inline]
fn sum(bytes: &[u8]) -> u64 {
    const LANES: usize = 8;
    let mut lanes = [0_u64; LANES];
    let mut blocks = bytes.chunks_exact(4 * LANES);
    for block in &mut blocks {
        for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(4)) {
            *lane += u64::from(u32::from_le_bytes(word.try_into().expect("4 bytes")));
        }
    }
    let mut sum: u64 = lanes.iter().sum();
    let mut words = blocks.remainder().chunks_exact(4);
    for word in &mut words {
        sum += u64::from(u32::from_le_bytes(word.try_into().expect("4 bytes")));
    }
    let mut rest = [0; 4];
    let remainder = words.remainder();
    rest[..remainder.len()].copy_from_slice(remainder);
    sum + u64::from(u32::from_le_bytes(rest))
}

#[inline]
fn halves_sum(word: u64) -> u64 {
    (word & 0xffff_ffff) + (word >> 32)
}

/// A sum of 16-bit or 32-bit words in ones' complement.
#[inline]
fn fold(mut sum: u64) -> u16 {
    sum = halves_sum(sum);
    sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}
