//! Turns a relayed block into an ordinary one.

use std::collections::BTreeMap;

use strata_wire::KeepKind;
use strata_wire::pcapng::options::push_comment;
use strata_wire::segment::{Assembly, Packet, damaged};

use crate::compact;
use crate::context::may_protect;
use crate::format::{
    BlockHeader, FLAG_HIDES_ADDRESSES, FLAG_PROTECTED, PACKET_HEADER_LEN, PREFIX_LEN, PacketRecord,
    kind, packet_flag, record_len,
};
use crate::records::{RawRecord, Records};
use crate::summary::{ClassCount, Summary};

use super::{RelayedHeader, low_half};

/// What the packets of a stream refer to, as read so far: the latest by kind and reference.
#[derive(Clone, Debug, Default)]
pub struct Definitions {
    records: BTreeMap<(u8, u16), Vec<u8>>,
    /// Whether a policy may protect some of the following packets.
    protects: bool,
}

impl Definitions {
    /// All of them.
    pub fn records(&self) -> impl Iterator<Item = &[u8]> {
        self.records.values().map(Vec::as_slice)
    }

    /// Whether the interface with this number is defined.
    #[must_use]
    pub fn has_interface(&self, id: u16) -> bool {
        self.records.contains_key(&(kind::INTERFACE, id))
    }

    /// Collects the definitions among a block's records.
    pub fn read(&mut self, body: &[u8]) {
        let mut records = Records::new(body, 0);
        while let Some(Ok(record)) = records.next_raw() {
            if let RawRecord::Other {
                replaces: Some(key),
                bytes,
                ..
            } = record
            {
                if self.records.get(&key).is_some_and(|known| known == bytes) {
                    continue;
                }
                if key.0 == kind::CONTEXT {
                    self.protects = may_protect(&bytes[PREFIX_LEN..]);
                }
                self.records.insert(key, bytes.to_vec());
            }
        }
    }
}

/// Whether these records are all definitions or metadata of inputs.
#[must_use]
pub fn are_definitions(records: &[u8]) -> bool {
    let mut records = Records::new(records, 0);
    std::iter::from_fn(|| records.next_raw())
        .all(|record| matches!(record, Ok(RawRecord::Other { .. })))
}

/// The result for a relayed block.
#[derive(Debug, Default)]
pub struct Assembled {
    /// Its header.
    pub header: BlockHeader,
    /// What it holds.
    pub summary: Summary,
    /// Its records.
    pub body: Vec<u8>,
    /// Packets in it that end where a segment is missing.
    pub incomplete: u32,
    /// Packets whose context, interface or verdict is not defined. Those without an interface are left
    /// out.
    pub undefined: u32,
    /// Offsets among the segments of damaged ones.
    pub damaged: Vec<usize>,
}

/// The ordinary block that `segments`, the memory after `header`, yields. A packet whose first
/// segment is there but another is missing ends where the missing one would start, and has a
/// comment that says so.
#[must_use]
pub fn assemble(header: &RelayedHeader, segments: &[u8], definitions: &Definitions) -> Assembled {
    let protected = definitions.protects;
    let mut block = Builder {
        definitions,
        defined: BTreeMap::new(),
        counts: BTreeMap::new(),
        assembled: Assembled {
            header: BlockHeader {
                block_number: header.block_number,
                recording: header.recording,
                worker: header.worker,
                first_seq: header.first_seq,
                next_seq: header.next_seq,
                ts_min_ns: u64::MAX,
                hash_seed: header.hash_seed,
                flags: FLAG_HIDES_ADDRESSES | if protected { FLAG_PROTECTED } else { 0 },
                ..BlockHeader::default()
            },
            ..Assembled::default()
        },
    };
    let number = low_half(header.block_number);
    let assembly = Assembly::of(segments, header.key, number);
    if header.salvaged || (assembly.segments() as u64) < header.segments {
        block.assembled.damaged = damaged(segments, header.key, number);
    }
    let mut packet_bytes = Vec::new();
    for packet in assembly.packets() {
        let seq = packet.header().seq;
        let sent = header.first_seq..header.next_seq;
        // For a salvaged block only its start is known.
        if !sent.contains(&seq) && (!header.salvaged || seq < header.first_seq) {
            continue;
        }
        packet_bytes.clear();
        for part in packet.parts() {
            packet_bytes.extend_from_slice(part);
        }
        if packet.is_whole() {
            block.packet(seq, &packet, &packet_bytes);
        } else if let Some(cut) = cut_short(&packet, &packet_bytes)
            && block.packet(seq, &packet, &cut)
        {
            block.assembled.incomplete = block.assembled.incomplete.saturating_add(1);
        }
    }
    block.finish()
}

/// The packet whose record, and nothing else, these bytes are.
fn packet_of(bytes: &[u8], seq: u64, ts_ns: u64) -> Option<PacketRecord<'_>> {
    let mut records = Records::of_packet(bytes, seq, ts_ns);
    let Some(Ok(RawRecord::Packet(packet))) = records.next_raw() else {
        return None;
    };
    (packet.seq == seq && records.next_raw().is_none()).then_some(packet)
}

/// Calls `each` with the packets that `segments`, the memory after `header`, has whole, by their numbers,
/// until it returns false; returns whether there are others, of which a part is missing.
pub fn whole_packets(
    header: &RelayedHeader,
    segments: &[u8],
    mut each: impl FnMut(&PacketRecord<'_>) -> bool,
) -> bool {
    let assembly = Assembly::of(segments, header.key, low_half(header.block_number));
    let (mut bytes, mut parts_only) = (Vec::new(), false);
    for packet in assembly.packets() {
        let (seq, ts_ns) = (packet.header().seq, packet.header().ts_ns);
        let was_sent = match header.salvaged {
            true => seq >= header.first_seq,
            false => (header.first_seq..header.next_seq).contains(&seq),
        };
        if !was_sent {
            continue;
        }
        bytes.clear();
        packet
            .parts()
            .for_each(|part| bytes.extend_from_slice(part));
        match packet_of(&bytes, seq, ts_ns).filter(|_| packet.is_whole()) {
            Some(packet) if !each(&packet) => return parts_only,
            Some(_) => {}
            None => parts_only = true,
        }
    }
    parts_only
}

struct Builder<'a> {
    definitions: &'a Definitions,
    /// What packets referred to, and whether it is defined.
    defined: BTreeMap<(u8, u16), bool>,
    counts: BTreeMap<(u8, KeepKind), ClassCount>,
    assembled: Assembled,
}

impl Builder<'_> {
    /// Appends a packet; false if `bytes` are not a packet.
    fn packet(&mut self, seq: u64, segments: &Packet<'_, '_>, bytes: &[u8]) -> bool {
        let Some(packet) = packet_of(bytes, seq, segments.header().ts_ns) else {
            return false;
        };
        let context = self.define((kind::CONTEXT, 0));
        // Without one, it is all flows.
        self.define((kind::FLOW_SHARE, 0));
        let interface = self.define((kind::INTERFACE, packet.interface));
        let verdict = self.define((kind::VERDICT, packet.verdict));
        if !(context && interface && verdict) {
            self.assembled.undefined = self.assembled.undefined.saturating_add(1);
        }
        if !interface {
            // Nothing can say what its bytes are: it counts as lost.
            return false;
        }
        packet.emit(&mut self.assembled.body);
        let wire_bytes = u64::from(packet.wire_len.max(packet.captured_len));
        let header = &mut self.assembled.header;
        header.next_seq = header.next_seq.max(seq.saturating_add(1));
        header.ts_min_ns = header.ts_min_ns.min(packet.ts_ns);
        header.ts_max_ns = header.ts_max_ns.max(packet.ts_ns);
        let kept = packet.data.len() as u64;
        // Lengths of 32 bits, of as many packets as a block holds.
        header.packets = header.packets.saturating_add(1);
        header.records = header.records.saturating_add(1);
        header.wire_bytes = header.wire_bytes.saturating_add(wire_bytes);
        header.logged_bytes = header.logged_bytes.saturating_add(kept);
        let class = segments.header().class;
        header.classes |= 1 << class.min(63);
        let count = self.counts.entry((class, packet.keep)).or_default();
        count.class = class;
        count.keep = packet.keep;
        count.packets = count.packets.saturating_add(1);
        count.wire_bytes = count.wire_bytes.saturating_add(wire_bytes);
        count.logged_bytes = count.logged_bytes.saturating_add(kept);
        true
    }

    /// Defines something before its first use; returns whether it is defined.
    fn define(&mut self, key: (u8, u16)) -> bool {
        if let Some(is_defined) = self.defined.get(&key) {
            return *is_defined;
        }
        let record = self.definitions.records.get(&key);
        if let Some(record) = record {
            self.assembled.body.extend_from_slice(record);
            let records = &mut self.assembled.header.records;
            *records = records.saturating_add(1);
        }
        self.defined.insert(key, record.is_some());
        record.is_some()
    }

    fn finish(mut self) -> Assembled {
        let counts = self.counts.into_values().collect();
        // The flows of its packets are not looked up: every search reads the block.
        self.assembled.summary = Summary::new(counts, None);
        let len = record_len(self.assembled.body.len());
        self.assembled.header.body_len = len;
        self.assembled.header.body_crc = crc32c::crc32c(&self.assembled.body);
        self.assembled
    }
}

/// The records of a packet of which only the beginning is there, its length corrected and a comment
/// added; `None` if not even its header is there.
fn cut_short(packet: &Packet<'_, '_>, bytes: &[u8]) -> Option<Vec<u8>> {
    // The length in a record's prefix.
    let len_of = |record: &[u8]| -> Option<usize> {
        let len = record.get(4..)?.first_chunk()?;
        Some(u32::from_le_bytes(*len) as usize)
    };
    let mut options = Vec::new();
    let header = packet.header();
    let full = compact::in_full(bytes, header.seq, header.ts_ns);
    let bytes = full.as_deref().unwrap_or(bytes);
    let mut record = bytes;
    if *bytes.first()? == kind::PACKET_OPTIONS {
        let (stored, rest) = bytes.get(PREFIX_LEN..)?.split_at_checked(len_of(bytes)?)?;
        options.extend_from_slice(stored);
        record = rest;
    }
    let record: &[u8] = record;
    let head: &[u8; PACKET_HEADER_LEN] = record.first_chunk()?;
    let missing = packet.missing();
    let total = header.total;
    let text = format!("strata: incomplete: {missing} of {total} segments were lost");
    // Only a crafted packet's options leave no space for it.
    let _ = push_comment(&mut options, &text);
    let mut out = vec![kind::PACKET_OPTIONS, 0, 0, 0];
    out.extend_from_slice(&u32::try_from(options.len()).ok()?.to_le_bytes());
    out.extend_from_slice(&options);
    // The same record, with a flag more and the length that is left.
    let len = u32::try_from(record.get(PREFIX_LEN..)?.len()).ok()?;
    let (_, body) = record.split_at_checked(PREFIX_LEN)?;
    out.extend_from_slice(&[
        head[0],
        head[1] | packet_flag::HAS_OPTIONS,
        head[2],
        head[3],
    ]);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(body);
    Some(out)
}
