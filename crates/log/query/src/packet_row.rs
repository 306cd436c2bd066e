//! A packet as a row of the table `packets`, as far as the packet itself tells.

use serde_json::{Map, Value};
use strata_archive::PacketColumn;
use strata_wire::dissect::dissect;
use strata_wire::{
    AddressFamily, FlowHasher, FlowKey, FragmentTable, Headers, TunnelKey, clamped, ip_addr,
};

use crate::exporter::LoggedPacket;
use crate::records::json_value;

/// The columns of a row.
pub(crate) const COLUMNS: [PacketColumn; 16] = [
    PacketColumn::Time,
    PacketColumn::HasTime,
    PacketColumn::Recording,
    PacketColumn::Src,
    PacketColumn::Dst,
    PacketColumn::SrcPort,
    PacketColumn::DstPort,
    PacketColumn::Protocol,
    PacketColumn::WireBytes,
    PacketColumn::CapturedBytes,
    PacketColumn::HeaderBytes,
    PacketColumn::PayloadBytes,
    PacketColumn::Class,
    PacketColumn::Score,
    PacketColumn::Granularity,
    PacketColumn::Reason,
];

/// Packets, one after another, as rows, and by their headers: later fragments have the ports of their
/// first one, as in the log's tables.
#[derive(Debug, Default)]
pub struct PacketRows {
    /// Of one recording.
    fragments: FragmentTable,
    recording: u32,
}

impl PacketRows {
    /// A packet's headers.
    pub fn headers(&mut self, packet: &LoggedPacket<'_>) -> Headers {
        if packet.recording != self.recording {
            *self = Self {
                recording: packet.recording,
                ..Self::default()
            };
        }
        let mut headers = dissect(packet.link, packet.data, TunnelKey::Inner);
        if let Some(fragment) = headers.fragment {
            let hasher = FlowHasher::new(FRAGMENTS_SEED);
            self.fragments
                .resolve(&mut headers, fragment, &hasher, packet.ts_ns);
        }
        headers
    }

    /// The values of a packet, in the order of [`COLUMNS`].
    pub(crate) fn of(&mut self, packet: &LoggedPacket<'_>) -> [Value; 16] {
        let headers = self.headers(packet);
        row(packet, &headers)
    }
}

/// A packet with these headers as a JSON object: columns of the table `packets` as [`RecordFormat::Json`]
/// has those of flows, without those that are NULL; no `time` if the packet has none.
///
/// [`RecordFormat::Json`]: crate::RecordFormat::Json
#[must_use]
pub fn packet_json(packet: &LoggedPacket<'_>, headers: &Headers) -> Map<String, Value> {
    let values = COLUMNS.iter().zip(row(packet, headers));
    let there = values.filter(|(column, value)| match column {
        PacketColumn::Time => packet.has_timestamp,
        // It says so by its time.
        PacketColumn::HasTime => false,
        _ => !value.is_null(),
    });
    let named = there.map(|(column, value)| {
        let spec = column.spec();
        (spec.name.to_owned(), json_value(spec, &value))
    });
    named.collect()
}

/// Who knows it can make fragments that replace each other in the table, as who sends more than it holds.
const FRAGMENTS_SEED: [u64; 2] = [0; 2];

fn row(packet: &LoggedPacket<'_>, headers: &Headers) -> [Value; 16] {
    let kept = clamped::<u32>(packet.data.len());
    let key = headers.key.unwrap_or(FlowKey::NONE);
    let is_ip = headers.key.is_some() && key.family != AddressFamily::Mac;
    let has_ports = is_ip && (key.low.port | key.high.port) != 0;
    let (source, destination) = headers.endpoints();
    let address = |address| match headers.key {
        None => Value::Null,
        Some(_) => address_text(key.family, address).into(),
    };
    let port = |port: u16| if has_ports { port.into() } else { Value::Null };
    let header_bytes = u32::from(packet.header_len).min(kept);
    let judged = packet.judged;
    [
        packet.ts_ns.into(),
        packet.has_timestamp.into(),
        packet.recording.into(),
        address(source.address),
        address(destination.address),
        port(source.port),
        port(destination.port),
        if is_ip {
            key.protocol.into()
        } else {
            Value::Null
        },
        packet.wire_len.into(),
        match packet.captured_len == packet.wire_len {
            true => Value::Null,
            false => packet.captured_len.into(),
        },
        header_bytes.into(),
        (kept - header_bytes).into(),
        judged.class().unwrap_or("unknown").into(),
        judged.score().map_or(Value::Null, Value::from),
        judged.granularity().into(),
        judged.reason().into(),
    ]
}

/// An address as in the log's tables: of a MAC, six bytes with colons.
#[must_use]
pub fn address_text(family: AddressFamily, address: u128) -> String {
    ip_addr(family, address).map_or_else(
        || {
            let bytes = &address.to_be_bytes()[10..];
            let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            bytes.join(":")
        },
        |ip| ip.to_string(),
    )
}
