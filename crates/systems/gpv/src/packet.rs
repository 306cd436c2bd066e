//! What the flow cache takes of a packet, from headers that were parsed once.

use strata_wire::dissect::{Headers, protocol};
use strata_wire::{AddressFamily, Endpoint, Plain, clamped};

use crate::key::Key;

/// Features of one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Packet {
    /// Whose packet it is.
    pub key: Key,
    /// When it arrived, ns since 1970.
    pub ts_ns: u64,
    /// Bytes on the wire.
    pub size: u32,
    /// Bytes after the transport header, by the IP header's length; without one, up to the end
    /// of the frame.
    pub payload_len: u32,
    /// TCP sequence number, else 0.
    pub tcp_seq: u32,
    /// TCP acknowledgement number, else 0.
    pub tcp_ack: u32,
    /// What was in the queue when the packet came, in the unit of the measurement; else 0.
    pub queue_depth: u32,
    /// TCP window, else 0.
    pub tcp_window: u16,
    /// TCP flags, else 0.
    pub tcp_flags: u8,
    /// The two bits of Explicit Congestion Notification (RFC 3168 section 5).
    pub ecn: u8,
    /// The class that the packet was given.
    pub class: u8,
    /// Whether the queue was long ("high queue", section 6.2 of the paper).
    pub high_queue: bool,
}

/// Where a packet was seen, for [`Packet::read`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Ns since 1970.
    pub ts_ns: u64,
    /// Bytes on the wire.
    pub wire_len: u32,
    /// The port it came in by.
    pub ingress: u16,
}

impl Packet {
    /// The features of the packet of which `bytes` were captured. `None` if it has no flow.
    #[inline]
    #[must_use]
    pub fn read(headers: &Headers, bytes: &[u8], seen: Seen) -> Option<Self> {
        let flow = headers.key?;
        let (source, destination) = headers.endpoints();
        let key = Key::new(
            flow.family,
            flow.protocol,
            source,
            destination,
            seen.ingress,
        );
        let header_len = usize::try_from(headers.header_len).ok()?;
        let transport_len = usize::from(headers.transport_len);
        let transport_at = header_len.checked_sub(transport_len)?;
        let captured = headers.transport_len;
        let whole_len = whole_transport_len(flow.protocol, bytes, transport_at, captured);
        let payload_len = payload_len(flow.family, &key, bytes, transport_at)
            .and_then(|after_network| after_network.checked_sub(usize::from(whole_len)))
            .map(clamped)
            .unwrap_or_else(|| {
                let header_len = headers
                    .header_len
                    .wrapping_add(u32::from(whole_len.wrapping_sub(captured)));
                seen.wire_len.saturating_sub(header_len)
            });
        let mut packet = Self {
            key,
            ts_ns: seen.ts_ns,
            size: seen.wire_len,
            payload_len,
            tcp_window: headers.tcp_window,
            tcp_flags: headers.tcp_flags,
            ecn: headers.tos & 3,
            ..Self::default()
        };
        if flow.protocol == protocol::TCP
            && transport_len > 0
            && let Some(&[_, _, _, _, a, b, c, d, e, f, g, h]) =
                bytes.get(transport_at..transport_at.wrapping_add(12))
        {
            packet.tcp_seq = u32::from_be_bytes([a, b, c, d]);
            packet.tcp_ack = u32::from_be_bytes([e, f, g, h]);
        }
        Some(packet)
    }

    /// As [`Packet::read`], of a packet that took the fast path.
    #[inline]
    #[must_use]
    pub fn plain(plain: &Plain, bytes: &[u8], seen: Seen) -> Self {
        let end = |address: u32, port| Endpoint {
            address: u128::from(address),
            port,
        };
        let is_tcp = plain.protocol == protocol::TCP;
        // `Plain` is of at least 50 bytes: Ethernet, IPv4 and TCP up to its window.
        let word = |at: usize| match bytes.get(at..at.wrapping_add(4)) {
            Some(&[a, b, c, d]) if is_tcp => u32::from_be_bytes([a, b, c, d]),
            _ => 0,
        };
        let total_len = u32::from(bytes[16]) << 8 | u32::from(bytes[17]);
        let (source, destination) = (
            end(plain.source, plain.source_port),
            end(plain.destination, plain.destination_port),
        );
        let family = AddressFamily::Ipv4;
        Self {
            key: Key::new(family, plain.protocol, source, destination, seen.ingress),
            ts_ns: seen.ts_ns,
            size: seen.wire_len,
            payload_len: total_len.saturating_sub(u32::from(plain.header_len()).saturating_sub(14)),
            tcp_seq: word(38),
            tcp_ack: word(42),
            queue_depth: 0,
            tcp_window: plain.tcp_window,
            tcp_flags: plain.tcp_flags,
            ecn: plain.tos & 3,
            class: 0,
            high_queue: false,
        }
    }
}

/// Bytes of the transport header, of which `captured` were captured: where a capture is cut within
/// the options of TCP, they are no payload.
fn whole_transport_len(protocol: u8, bytes: &[u8], transport_at: usize, captured: u16) -> u16 {
    match bytes.get(transport_at.wrapping_add(12)) {
        Some(&offset) if protocol == protocol::TCP && captured > 12 => {
            captured.max(u16::from(offset >> 4) * 4)
        }
        _ => captured,
    }
}

/// Bytes from `transport_at` to the end of the innermost IP packet. [`Headers`] do not say where
/// its header begins: it is where the flow's addresses are, before `transport_at`.
fn payload_len(
    family: AddressFamily,
    key: &Key,
    bytes: &[u8],
    transport_at: usize,
) -> Option<usize> {
    let word = |at: usize| {
        Some(u16::from_be_bytes([
            *bytes.get(at)?,
            *bytes.get(at.wrapping_add(1))?,
        ]))
    };
    let holds = |at: usize, address: u128, len: usize| {
        bytes.get(at..at.wrapping_add(len))
            == Some(&address.to_be_bytes()[16_usize.wrapping_sub(len)..])
    };
    let (source, destination) = (key.source().address, key.destination().address);
    match family {
        AddressFamily::Mac => None,
        AddressFamily::Ipv4 => (5_u8..=15).find_map(|words| {
            let header_len = usize::from(words) * 4;
            let at = transport_at.checked_sub(header_len)?;
            let is_it = *bytes.get(at)? == 0x40 | words
                && holds(at.wrapping_add(12), source, 4)
                && holds(at.wrapping_add(16), destination, 4);
            let total_len = usize::from(word(at.wrapping_add(2))?);
            is_it.then(|| total_len.checked_sub(header_len)).flatten()
        }),
        // Extension headers are multiples of 8 bytes, or of 4 (RFC 4302): the nearest fits.
        AddressFamily::Ipv6 => (0..64).find_map(|words: usize| {
            let header_len = words.wrapping_mul(4).wrapping_add(40);
            let at = transport_at.checked_sub(header_len)?;
            let is_it = *bytes.get(at)? >> 4 == 6
                && holds(at.wrapping_add(8), source, 16)
                && holds(at.wrapping_add(24), destination, 16);
            let after = usize::from(word(at.wrapping_add(4))?);
            is_it
                .then(|| (after + 40).checked_sub(header_len))
                .flatten()
        }),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use strata_wire::dissect::dissect;
    use strata_wire::{LinkType, TunnelKey};

    use super::*;

    #[test]
    fn options_of_tcp_that_were_not_captured_are_no_payload() {
        // Ethernet, IPv4 of 160 bytes, TCP with 20 bytes of options: a payload of 100 bytes.
        let mut frame = [0_u8; 174];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14..24].copy_from_slice(&[0x45, 0, 0, 160, 0, 1, 0x40, 0, 64, 6]);
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame[34..48].copy_from_slice(&[0, 80, 4, 0, 0, 0, 0, 5, 0, 0, 0, 6, 0xa0, 0x10]);
        for captured in [54, 58, 73, 74, 174] {
            let bytes = &frame[..captured];
            let headers = dissect(LinkType::ETHERNET, bytes, TunnelKey::Inner);
            let seen = Seen {
                wire_len: 174,
                ..Seen::default()
            };
            let packet = Packet::read(&headers, bytes, seen).unwrap();
            let read = (packet.payload_len, packet.tcp_seq, packet.tcp_flags);
            assert_eq!(read, (100, 5, 0x10), "{captured} bytes");
        }
    }
}
