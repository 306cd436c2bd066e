//! A packet as a row of the table `packets`, as far as the packet itself tells.

use serde_json::Value;
use strata_archive::PacketColumn;
use strata_wire::dissect::dissect;
use strata_wire::{
    AddressFamily, FlowHasher, FlowKey, FragmentTable, Headers, TunnelKey, clamped, ip_addr,
};

use crate::exporter::LoggedPacket;

/// The columns of a row.
pub(crate) const COLUMNS: [PacketColumn; 15] = [
    PacketColumn::Time,
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

/// Packets as rows, one after another: later fragments have the ports of their first one.
#[derive(Debug, Default)]
pub(crate) struct PacketRows {
    /// Of one recording.
    fragments: FragmentTable,
    recording: u32,
}

impl PacketRows {
    /// The values of a packet, in the order of [`COLUMNS`].
    pub(crate) fn of(&mut self, packet: &LoggedPacket<'_>) -> [Value; 15] {
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
        row(packet, &headers)
    }
}

/// Who knows it can make fragments that replace each other in the table, as who sends more than it holds.
const FRAGMENTS_SEED: [u64; 2] = [0; 2];

fn row(packet: &LoggedPacket<'_>, headers: &Headers) -> [Value; 15] {
    let kept = clamped::<u32>(packet.data.len());
    let key = headers.key.unwrap_or(FlowKey::NONE);
    let is_ip = headers.key.is_some() && key.family != AddressFamily::Mac;
    let has_ports = is_ip && (key.low.port | key.high.port) != 0;
    let (source, destination) = headers.endpoints();
    let address = |address| match headers.key {
        None => Value::Null,
        Some(_) => text(key.family, address).into(),
    };
    let port = |port: u16| if has_ports { port.into() } else { Value::Null };
    let header_bytes = u32::from(packet.header_len).min(kept);
    let judged = packet.judged;
    [
        packet.ts_ns.into(),
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

/// An address as in the tables.
fn text(family: AddressFamily, address: u128) -> String {
    ip_addr(family, address).map_or_else(
        || {
            let bytes = &address.to_be_bytes()[10..];
            let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            bytes.join(":")
        },
        |ip| ip.to_string(),
    )
}
