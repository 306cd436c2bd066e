//! A pattern in the payload of each direction of TCP connections, across packets.
//!
//! ```text
//! packet n    ...GET /ind          the last 4 KiB wait
//! packet n+1     ex.html ...       begins at the sequence number after them: searched as one text
//! ```
//!
//! A packet that does not begin there (lost, cut, sent again, out of order) is searched by itself.

use std::collections::HashMap;

use regex::bytes::Regex;
use strata_query::LoggedPacket;
use strata_wire::dissect::protocol;
use strata_wire::fields::tcp;
use strata_wire::{AddressFamily, FlowKey, Headers};

use super::Found;

/// Bytes of a direction that wait for its next packet.
const TAIL_BYTES: usize = 4 << 10;
/// Directions that wait: 256 MiB at most. With more, all are forgotten, and counted.
const DIRECTIONS_MAX: usize = 1 << 16;

/// A direction of a connection in a recording of a log.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Direction {
    log: usize,
    recording: u32,
    key: FlowKey,
    low_to_high: bool,
}

/// The last bytes of a direction.
struct Tail {
    bytes: Vec<u8>,
    /// The sequence number after them.
    next: u32,
}

/// The directions that wait for a packet.
#[derive(Default)]
pub(super) struct Streams {
    tails: HashMap<Direction, Tail>,
    forgotten: u64,
}

impl Streams {
    /// Directions that were forgotten before their end, because too many were waiting.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// The first match that ends in this packet's payload, and was not found before.
    pub(super) fn find(
        &mut self,
        log: usize,
        packet: &LoggedPacket<'_>,
        headers: &Headers,
        payload: &[u8],
        pattern: &Regex,
    ) -> Option<Found<'static>> {
        let alone = || {
            let found = pattern.find(payload)?;
            Some(Found::of(payload, 0, &found.range()).into_owned())
        };
        let Some((key, sequence)) = segment(packet, headers) else {
            return alone();
        };
        if payload.is_empty() {
            return None;
        }
        let direction = Direction {
            log,
            recording: packet.recording,
            key,
            low_to_high: headers.low_to_high,
        };
        let is_whole = packet.data.len() as u64 >= u64::from(packet.wire_len);
        let mut text = match self.tails.remove(&direction) {
            Some(tail) if tail.next == sequence => tail.bytes,
            Some(tail) if tail.next.wrapping_sub(sequence) < 1 << 31 => {
                // Sent again: what follows the newest byte is still awaited.
                self.tails.insert(direction, tail);
                return alone();
            }
            _ => Vec::new(),
        };
        let payload_at = text.len();
        text.extend_from_slice(payload);
        let mut matches = pattern.find_iter(&text);
        let found = matches.find(|found| found.end() > payload_at);
        let found = found.map(|found| Found::of(&text, payload_at, &found.range()).into_owned());
        if is_whole {
            text.drain(..text.len().saturating_sub(TAIL_BYTES));
            if self.tails.len() >= DIRECTIONS_MAX {
                self.forgotten = self.forgotten.saturating_add(self.tails.len() as u64);
                self.tails.clear();
            }
            let next = sequence.wrapping_add(u32::try_from(payload.len()).ok()?);
            self.tails.insert(direction, Tail { bytes: text, next });
        }
        found
    }
}

/// The flow of a TCP segment, and its sequence number.
fn segment(packet: &LoggedPacket<'_>, headers: &Headers) -> Option<(FlowKey, u32)> {
    let key = headers.key?;
    if key.family == AddressFamily::Mac || key.protocol != protocol::TCP {
        return None;
    }
    let end = usize::try_from(headers.header_len).ok()?;
    let start = end.checked_sub(headers.transport_len.into())?;
    let header = packet.data.get(start..end)?;
    let sequence = <[u8; 4]>::try_from(header.get(tcp::SEQUENCE)?).ok()?;
    Some((key, u32::from_be_bytes(sequence)))
}
