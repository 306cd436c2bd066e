//! Counts why packets of a part were kept as they were.

use std::collections::HashMap;
use std::net::IpAddr;

use strata_archive::parts::{self, TableReader};
use strata_archive::{ArchiveError, PacketColumn};
use strata_store::{Disk, FileKind, Part};
use strata_wire::{AddressFamily, Endpoint, FlowKey};

use crate::parts::cells::{IntColumn, NO_PORT, WrongValue};

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
    let mut counts: HashMap<(String, Option<u32>, String, String), ReasonCount> = HashMap::new();
    for (group, rows) in table.groups().into_iter().enumerate() {
        let whole = 0..rows;
        let columns = COLUMNS.map(PacketColumn::index);
        let read = table.batch(group, &columns, std::slice::from_ref(&whole))?;
        let ints = |at: usize| IntColumn::of(COLUMNS[at].spec(), read.ints(at));
        let texts = [1, 3, 4, 5, 6].map(|at| read.texts(at));
        let (times, ports, protocols) = (ints(0), [7, 8].map(ints), ints(9));
        let (kept, scores) = ([10, 11].map(ints), read.floats(2));
        // Of this row group, by numbers of the texts.
        let mut of_group: HashMap<([Option<usize>; 3], Option<u32>), Seen> = HashMap::new();
        for row in 0..rows {
            let codes = [0, 1, 2].map(|at: usize| texts[at].and_then(|texts| texts.code(row)));
            let score = scores.get(row);
            let time = times.time(row).map_err(wrong)?;
            let bytes: [u64; 2] = [
                kept[0].there(row).map_err(wrong)?,
                kept[1].there(row).map_err(wrong)?,
            ];
            let seen = of_group.entry((codes, score.map(f32::to_bits)));
            let seen = seen.or_insert(Seen {
                packets: 0,
                bytes: 0,
                first: (time, row),
            });
            seen.packets += 1;
            seen.bytes += bytes.iter().sum::<u64>();
            seen.first = seen.first.min((time, row));
        }
        for ((codes, score), seen) in of_group {
            let text = |at: usize| {
                texts[at]
                    .zip(codes[at])
                    .map_or("", |(texts, code)| texts.entry(code))
            };
            let (first_ns, row) = seen.first;
            let address = |at: usize| texts[at].and_then(|texts| texts.get(row)).unwrap_or("");
            let ports = [
                ports[0].get(row).map_err(wrong)?,
                ports[1].get(row).map_err(wrong)?,
            ];
            let protocol = protocols.get(row).map_err(wrong)?;
            let flow = || flow_text([address(3), address(4)], ports, protocol);
            let [class, granularity, reason] = [0, 1, 2].map(|at| text(at).to_owned());
            let key = (class.clone(), score, granularity.clone(), reason.clone());
            let known = counts.entry(key).or_insert_with(|| ReasonCount {
                class,
                score: score.map(f32::from_bits),
                granularity,
                reason,
                packets: 0,
                bytes: 0,
                first_ns: u64::MAX,
                first_flow: String::new(),
            });
            known.packets += seen.packets;
            known.bytes += seen.bytes;
            if first_ns < known.first_ns || known.first_flow.is_empty() {
                (known.first_ns, known.first_flow) = (first_ns, flow());
            }
        }
    }
    Ok(counts.into_values().collect())
}

/// Packets of a row group that were kept for the same reason.
struct Seen {
    packets: u64,
    bytes: u64,
    /// Time and row of the earliest.
    first: (u64, usize),
}

/// A flow in the format of flow keys; MAC addresses unchanged.
fn flow_text([src, dst]: [&str; 2], ports: [Option<u16>; 2], protocol: Option<u8>) -> String {
    let end = |text: &str, port: Option<u16>| {
        let (family, address) = match text.parse().ok()? {
            IpAddr::V4(v4) => (AddressFamily::Ipv4, u128::from(v4.to_bits())),
            IpAddr::V6(v6) => (AddressFamily::Ipv6, v6.to_bits()),
        };
        let port = port.unwrap_or(NO_PORT);
        Some((family, Endpoint { address, port }))
    };
    match (end(src, ports[0]), end(dst, ports[1]), protocol) {
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
