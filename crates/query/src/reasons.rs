//! Counts why packets of a part were kept as they were.

use std::collections::HashMap;
use std::net::IpAddr;

use parquet::data_type::ByteArray;
use strata_archive::parts::{self, TableReader};
use strata_archive::{ArchiveError, PacketColumn};
use strata_store::{Disk, FileKind, Part};
use strata_wire::{AddressFamily, Endpoint, FlowKey};

use crate::cells::{Ints, NO_PORT, WrongValue};

/// Packets kept for the same reason.
#[derive(Clone, Debug, PartialEq)]
pub struct ReasonCount {
    /// Their class.
    pub class: String,
    /// Its share of the trees; `None` without one.
    pub score: Option<f32>,
    /// How much of them was kept.
    pub granularity: String,
    /// The reason, as in an export's comments.
    pub reason: String,
    /// Number of packets.
    pub packets: u64,
    /// Bytes kept of them.
    pub bytes: u64,
    /// When the first of them arrived, ns.
    pub first_ns: u64,
    /// The flow of that packet.
    pub first_flow: String,
}

const COLUMNS: [PacketColumn; 12] = [
    PacketColumn::Time,
    PacketColumn::Class,
    PacketColumn::Score,
    PacketColumn::Granularity,
    PacketColumn::Reason,
    PacketColumn::Src,
    PacketColumn::Dst,
    PacketColumn::SrcPort,
    PacketColumn::DstPort,
    PacketColumn::Protocol,
    PacketColumn::HeaderBytes,
    PacketColumn::PayloadBytes,
];

/// Counts a part's packets by class, score, granularity and reason.
///
/// # Errors
///
/// If the part cannot be read.
pub fn reasons_of(disk: &dyn Disk, part: &Part) -> Result<Vec<ReasonCount>, ArchiveError> {
    let name = part.file(FileKind::Packets).map_or("", |file| &file.name);
    let input = parts::open(disk, part, FileKind::Packets)?;
    let table = TableReader::open(input, disk.display(name), PacketColumn::SPECS)?;
    let wrong = |value: WrongValue| ArchiveError::Table {
        file: disk.display(name),
        source: value.into(),
    };
    let mut counts: HashMap<Vec<u8>, ReasonCount> = HashMap::new();
    let mut key = Vec::new();
    for (group, rows) in table.groups().into_iter().enumerate() {
        let whole = 0..rows;
        let columns = COLUMNS.map(PacketColumn::index);
        let read = table.read(group, &columns, std::slice::from_ref(&whole))?;
        let ints = |at: usize| Ints::of(COLUMNS[at].spec(), &read[at]);
        let mut texts = [1, 3, 4, 5, 6].map(|n| read[n].bytes());
        let (mut times, mut ports, mut protocols) = (ints(0), [7, 8].map(ints), ints(9));
        let mut kept = [10, 11].map(ints);
        let mut scores = read[2].floats();
        for _ in 0..rows {
            let [class, granularity, reason, src, dst] = texts.each_mut().map(|column| {
                let value: Option<&ByteArray> = column.next().flatten();
                value.map_or(&[][..], |value| value.data())
            });
            let time = times.next_time().map_err(wrong)?;
            let [from, to] = &mut ports;
            let ports = [from.next().map_err(wrong)?, to.next().map_err(wrong)?];
            let protocol = protocols.next().map_err(wrong)?;
            let [headers, payload] = &mut kept;
            let headers: u64 = headers.next_there().map_err(wrong)?;
            let payload: u64 = payload.next_there().map_err(wrong)?;
            let bytes = headers + payload;
            let score = scores.next().flatten();
            key.clear();
            for part in [class, granularity, reason] {
                key.extend_from_slice(part);
                key.push(0xff);
            }
            key.extend(score.map_or(u32::MAX, f32::to_bits).to_le_bytes());
            let flow = || flow_text([src, dst], ports, protocol);
            if let Some(known) = counts.get_mut(&key) {
                known.packets += 1;
                known.bytes += bytes;
                if time < known.first_ns {
                    (known.first_ns, known.first_flow) = (time, flow());
                }
                continue;
            }
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let count = ReasonCount {
                class: text(class),
                score,
                granularity: text(granularity),
                reason: text(reason),
                packets: 1,
                bytes,
                first_ns: time,
                first_flow: flow(),
            };
            counts.insert(key.clone(), count);
        }
    }
    Ok(counts.into_values().collect())
}

/// A flow in the format of flow keys; MAC addresses unchanged.
fn flow_text(addresses: [&[u8]; 2], ports: [Option<u16>; 2], protocol: Option<u8>) -> String {
    let [src, dst] = addresses.map(String::from_utf8_lossy);
    let end = |text: &str, port: Option<u16>| {
        let (family, address) = match text.parse().ok()? {
            IpAddr::V4(v4) => (AddressFamily::Ipv4, u128::from(v4.to_bits())),
            IpAddr::V6(v6) => (AddressFamily::Ipv6, v6.to_bits()),
        };
        let port = port.unwrap_or(NO_PORT);
        Some((family, Endpoint { address, port }))
    };
    match (end(&src, ports[0]), end(&dst, ports[1]), protocol) {
        (Some((family, source)), Some((_, destination)), Some(protocol)) => {
            let (key, _) = FlowKey::new(family, protocol, source, destination);
            key.to_string()
        }
        _ if src.is_empty() => String::from("not dissected"),
        _ => {
            let (low, high) = if src <= dst { (src, dst) } else { (dst, src) };
            format!("{low} - {high}")
        }
    }
}
