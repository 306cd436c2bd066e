//! Records that Strata itself has written to a stream, as JSON.

use serde_json::{Value, json};
use strata_blocks::Streamed;
use strata_dta::event::listed::{Listed, ListedKind};
use strata_gpv::format::datagram::Datagram;
use strata_gpv::{Grouped as _, Reason, Vector};
use strata_telemetry_run::{EntryKind, shown};
use strata_wire::ip_addr;

/// What a record says; `None` if it is something else, or damaged.
pub(super) fn decoded(record: &[u8]) -> Option<Value> {
    match record.first_chunk::<4>()? {
        b"SGPV" => vectors(record),
        b"SPKT" => Streamed::parse(record).map(|packet| packet_of(&packet)),
        b"SLST" => Listed::parse(record).map(|listed| entry(&listed)),
        _ => None,
    }
}

fn packet_of(packet: &Streamed<'_>) -> Value {
    json!({
        "kind": "packet",
        "recording": packet.recording,
        "worker": packet.worker,
        "interface": packet.interface,
        "seq": packet.seq,
        "time_ns": packet.has_timestamp.then_some(packet.ts_ns),
        "class": packet.class,
        "kept": packet.keep.name(),
        "link": packet.link,
        "wire_len": packet.wire_len,
        "captured_len": packet.captured_len,
        "kept_len": packet.data.len(),
    })
}

fn vectors(record: &[u8]) -> Option<Value> {
    let datagram = Datagram::new_checked(record).ok()?;
    let mut vectors = Vec::new();
    let read = datagram.for_each(&mut Vec::new(), |one| vectors.push(vector(one)));
    read.ok()?;
    Some(json!({
        "kind": "vectors",
        "cache": datagram.cache,
        "first_seq": datagram.first_seq,
        "vectors": vectors,
    }))
}

fn vector(vector: &Vector<'_, strata_gpv::Full>) -> Value {
    let key = vector.key;
    let ends = [key.source(), key.destination()];
    let [src, dst] = ends.map(|end| match ip_addr(key.family(), end.address) {
        Some(address) => address.to_string(),
        None => format!("{:012x}", end.address),
    });
    json!({
        "src": src,
        "dst": dst,
        "src_port": key.source().port,
        "dst_port": key.destination().port,
        "protocol": key.protocol(),
        "interface": key.ingress(),
        "start_ns": vector.start_ns,
        "packets": vector.count(),
        "reason": match vector.reason {
            Reason::Full => "full",
            Reason::Collision => "collision",
            Reason::Time => "time",
            Reason::Flushed => "flushed",
            Reason::Unknown => "unknown",
        },
    })
}

fn entry(listed: &Listed<'_>) -> Value {
    let kind = match listed.kind {
        ListedKind::Bytes => EntryKind::Bytes,
        ListedKind::NodeEvent => EntryKind::NodeEvent,
        ListedKind::FlowEvent => EntryKind::FlowEvent,
    };
    json!({
        "kind": "entry",
        "list": listed.list,
        "number": listed.number,
        "reporter": listed.reporter.map_or_else(|| "int".to_owned(), |ip| ip.to_string()),
        "entry": shown::entry(kind, listed.entry),
    })
}
