//! One packet: its bytes, what of it is missing, and why it was kept.

pub mod tshark;

use std::ops::ControlFlow;

use serde::Serialize;
use strata_store::Log;
use strata_wire::FlowKey;
use utoipa::ToSchema;

use crate::answers::parts::Field;
use crate::answers::refused::Refused;
use crate::logs::{self, Logs};
use crate::packets::dissect::{layers, padding};
use crate::packets::{Packet, PacketRow, Tie, Ties, earlier, initiator, of_flow};
use crate::search::found::words;
use crate::why::Why;
use crate::work::Stop;
use crate::{search::flow_id, why};

/// Maximum bytes of a packet that are shown.
const SHOWN_MAX: usize = 64 << 10;

/// Where a packet is: its flow, recording, time, and number among those of the same time.
struct Place {
    flow: FlowKey,
    recording: u32,
    ts_ns: u64,
    tie: Tie,
}

fn place(id: &str) -> Option<Place> {
    let (flow, rest) = id.split_once('@')?;
    let mut rest = rest.splitn(3, '.');
    Some(Place {
        flow: flow_id::parse(flow)?,
        recording: rest.next()?.parse().ok()?,
        ts_ns: rest.next()?.parse().ok()?,
        tie: Tie::parse(rest.next()?)?,
    })
}

/// A packet that was looked up, its flow, and why it was kept.
pub struct Looked {
    /// The packet.
    pub packet: Packet,
    /// Its flow.
    pub flow: FlowKey,
    row: PacketRow,
    why: Why,
}

/// Looks a packet up.
///
/// # Errors
///
/// If there is no such packet, or the log cannot be read.
pub fn look_up(logs: &Logs, log_id: &str, id: &str, stop: &Stop) -> Result<Looked, Refused> {
    let missing = || {
        let error = format!("there is no packet '{id}' in the log: it may have been deleted");
        Refused::not_found(error)
    };
    let place = place(id).ok_or_else(missing)?;
    let log = logs::open(logs, log_id)?;
    let mut found = None;
    if place.tie.has_fragments {
        found = packet_at(&log, &place, earlier(place.ts_ns, None), stop)?;
    }
    // Also a fragment whose first one was left out by a time: it is of a flow without ports there.
    if found.is_none() {
        found = packet_at(&log, &place, place.ts_ns, stop)?;
    }
    let packet = found.ok_or_else(missing)?;
    let why = why::of(&log, &packet, &place.flow, stop)?;
    let first = initiator(&log, &place.flow, (None, None), stop)?;
    Ok(Looked {
        row: packet.row(&place.flow, first),
        packet,
        flow: place.flow,
        why,
    })
}

/// The packet at a place; packets of its flow are read from a time on.
fn packet_at(
    log: &Log,
    place: &Place,
    from_ns: u64,
    stop: &Stop,
) -> Result<Option<Packet>, Refused> {
    let span = (Some(from_ns), place.ts_ns.checked_add(1));
    let (mut found, mut ties) = (None, Ties::default());
    of_flow(log, &place.flow, span, stop, |logged, headers| {
        if logged.recording == place.recording && logged.ts_ns == place.ts_ns {
            let tie = ties.next(logged, &headers);
            if tie.before == place.tie.before {
                found = Some(Packet::of(logged, headers, tie));
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// A packet in full.
#[derive(Debug, Serialize, ToSchema)]
#[allow(
    missing_docs,
    reason = "the description of the API says only what a name does not"
)]
pub struct PacketDetail {
    packet: PacketRow,
    /// `id` of its flow.
    flow: String,
    recording: u32,
    interface: u16,
    /// Link type, as in `EN10MB`.
    link: String,
    /// The bytes kept, in hexadecimal; headers alone if `payload_hidden`.
    bytes: String,
    /// The number of these bytes that are headers.
    header_bytes: usize,
    /// There is payload, but the role may not see it or it was not requested.
    payload_hidden: bool,
    #[schema(required)]
    missing: Option<Missing>,
    why: Why,
    pub dissection: Dissection,
}

/// The parts of a packet that are not in the log.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Missing {
    bytes: u64,
    /// Why the rest is not in the log.
    why: String,
}

/// A packet as layers and fields.
#[derive(Debug, Serialize, ToSchema)]
#[allow(
    missing_docs,
    reason = "the description of the API says only what a name does not"
)]
pub struct Dissection {
    pub by: Dissector,
    /// The reason why tshark did not dissect the packet, if it is installed.
    #[schema(required)]
    pub problem: Option<String>,
    pub layers: Vec<Field>,
}

/// The program that dissected a packet.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[allow(
    missing_docs,
    reason = "the description of the API says only what a name does not"
)]
pub enum Dissector {
    Tshark,
    Strata,
}

/// A packet in full, but for tshark's dissection.
pub fn detail(looked: &Looked, shows_payload: bool) -> PacketDetail {
    let packet = &looked.packet;
    let header_bytes = packet.header_bytes();
    let shown = match shows_payload {
        true => packet.data.len(),
        false => header_bytes,
    };
    let bytes = &packet.data[..shown.min(SHOWN_MAX)];
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    PacketDetail {
        packet: looked.row.clone(),
        flow: flow_id::id(&looked.flow),
        recording: packet.recording,
        interface: packet.interface,
        link: packet.link.to_string(),
        bytes: hex,
        header_bytes,
        payload_hidden: shown < packet.data.len(),
        missing: missing(packet),
        why: looked.why.clone(),
        dissection: Dissection {
            by: Dissector::Strata,
            problem: None,
            layers: layers(packet.link, bytes),
        },
    }
}

/// What of a packet is not in the log, and why.
fn missing(packet: &Packet) -> Option<Missing> {
    let kept = packet.data.len() as u64;
    let bytes = u64::from(packet.wire_len).saturating_sub(kept);
    if bytes == 0 {
        return None;
    }
    let not_captured = packet.wire_len.saturating_sub(packet.captured_len);
    let cut = u64::from(packet.captured_len).saturating_sub(kept);
    let mut why = Vec::new();
    if cut > 0 {
        let reason = words(&packet.reason, packet.class.as_deref().unwrap_or("unknown"));
        let granularity = &packet.granularity;
        let what = match bytes <= u64::from(packet.behind_ip()) {
            true => format!(", {} after the IP packet", padding(packet.wire_len)),
            false => String::new(),
        };
        why.push(format!(
            "{cut} bytes were not kept{what} (granularity {granularity}): {reason}"
        ));
    }
    if not_captured > 0 {
        why.push(format!(
            "{not_captured} bytes were not captured: the capture's snapshot length was smaller"
        ));
    }
    Some(Missing {
        bytes,
        why: why.join("; "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_read_as_written_and_nothing_else_is_one() {
        let id = "6_10.0.0.1_443_10.0.0.2_51234@1.1769864400123456789.0";
        let found = place(id).unwrap();
        assert_eq!(
            (found.recording, found.ts_ns, found.tie),
            (1, 1_769_864_400_123_456_789, Tie::default())
        );
        let fragment = place(&format!("{id}f")).unwrap();
        assert_eq!((fragment.tie.before, fragment.tie.has_fragments), (0, true));
        for wrong in [
            "",
            "@",
            "6_10.0.0.1_443_10.0.0.2_51234@1.2",
            "x@1.2.3",
            "6_10.0.0.1_443_10.0.0.2_51234@-1.2.3",
        ] {
            assert!(place(wrong).is_none(), "{wrong}");
        }
    }
}
