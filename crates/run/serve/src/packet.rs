//! One packet: its bytes, what of it is missing, and why it was kept.

use std::ops::ControlFlow;

use serde_json::{Value, json};
use strata_wire::FlowKey;

use crate::dissect::{layers, padding};
use crate::found::words;
use crate::logs::{self, Logs};
use crate::packets::{Packet, of_flow, without_type};
use crate::refused::Refused;
use crate::work::Stop;
use crate::{flow_id, why};

/// Most bytes of a packet that are shown.
const SHOWN_MAX: usize = 64 << 10;

/// Where a packet is: its flow, recording, time, and number among those of the same time.
struct Place {
    flow: FlowKey,
    recording: u32,
    ts_ns: u64,
    tie: usize,
}

fn place(id: &str) -> Option<Place> {
    let (flow, rest) = id.split_once('@')?;
    let mut rest = rest.splitn(3, '.');
    Some(Place {
        flow: flow_id::parse(flow)?,
        recording: rest.next()?.parse().ok()?,
        ts_ns: rest.next()?.parse().ok()?,
        tie: rest.next()?.parse().ok()?,
    })
}

/// A packet that was looked up, its flow, and why it was kept.
pub(crate) struct Looked {
    pub(crate) packet: Packet,
    pub(crate) flow: FlowKey,
    pub(crate) json: Value,
    pub(crate) why: Value,
}

/// Looks a packet up.
pub(crate) fn look_up(logs: &Logs, log_id: &str, id: &str, stop: &Stop) -> Result<Looked, Refused> {
    let missing = || {
        let error = format!("there is no packet '{id}' in the log: it may have been deleted");
        Refused::not_found(error)
    };
    let place = place(id).ok_or_else(missing)?;
    let log = logs::open(logs, log_id)?;
    let span = (Some(place.ts_ns), place.ts_ns.checked_add(1));
    let (mut found, mut ties) = (None, 0_usize);
    of_flow(&log, &place.flow, span, stop, |logged, headers| {
        if logged.recording == place.recording {
            if ties == place.tie {
                found = Some(Packet::of(logged, headers, ties));
                return ControlFlow::Break(());
            }
            ties = ties.saturating_add(1);
        }
        ControlFlow::Continue(())
    })?;
    let packet = found.ok_or_else(missing)?;
    let why = why::of(&log, &packet, &place.flow, stop)?;
    let mut first = place.flow.low;
    of_flow(&log, &place.flow, (None, None), stop, |_, headers| {
        first = without_type(&place.flow, headers.endpoints().0);
        ControlFlow::Break(())
    })?;
    Ok(Looked {
        json: packet.json(&place.flow, first),
        packet,
        flow: place.flow,
        why,
    })
}

/// A packet in full (`PacketDetail`), but for tshark's dissection.
pub(crate) fn detail(looked: &Looked, shows_payload: bool) -> Value {
    let packet = &looked.packet;
    let header_bytes = packet.header_bytes();
    let shown = match shows_payload {
        true => packet.data.len(),
        false => header_bytes,
    };
    let bytes = &packet.data[..shown.min(SHOWN_MAX)];
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({
        "packet": looked.json,
        "flow": flow_id::id(&looked.flow),
        "recording": packet.recording,
        "interface": packet.interface,
        "link": packet.link.to_string(),
        "bytes": hex,
        "header_bytes": header_bytes,
        "payload_hidden": shown < packet.data.len(),
        "missing": missing(packet),
        "why": looked.why,
        "dissection": {"by": "strata", "problem": null, "layers": layers(packet.link, bytes)},
    })
}

/// What of a packet is not in the log, and why.
fn missing(packet: &Packet) -> Option<Value> {
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
    Some(json!({"bytes": bytes, "why": why.join("; ")}))
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
            (1, 1_769_864_400_123_456_789, 0)
        );
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
