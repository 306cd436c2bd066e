//! Which packets there are of which flows, of both tiers, without putting packets together: from
//! the rows of compacted packets, and the records of blocks.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::{ControlFlow, Range};

use parquet::data_type::ByteArray;
use strata_archive::parts::{self, Column, Input, PayloadReader, Rebuild, Row, TableReader};
use strata_archive::{ArchiveError, PacketColumn};
use strata_blocks::{PacketRecord, Record};
use strata_store::{BlockFile, Damage, FileKind, Log, Part, Recording, StoreError};
use strata_wire::dissect::dissect;
use strata_wire::{AddressFamily, Context, Endpoint, FlowKey, LinkType, Meta, TunnelKey, clamped};

use crate::cells::{Ints, WrongValue};
use crate::decided::decided;
use crate::export::metas_of;
use crate::exporter::Judgement as _;
use crate::find::{Find, Place, each_flow};
use crate::merge::Known;
use crate::parts::{header as whole_header, payload_of};

/// A packet of a log, as far as its row or record tells.
#[derive(Clone, Copy, Debug)]
pub struct FoundPacket<'a> {
    /// Its flow; the ports of what is not IP are 0.
    pub flow: FlowKey,
    /// Whether it goes from the flow's low to its high endpoint.
    pub low_to_high: bool,
    /// Arrival, ns.
    pub ts_ns: u64,
    /// Bytes on the wire.
    pub wire_bytes: u32,
    /// Bytes kept.
    pub kept_bytes: u32,
    /// Its class.
    pub class: &'a str,
    /// The class's share of the trees, if these decided.
    pub score: Option<f32>,
    /// How much of it was kept.
    pub granularity: &'a str,
    /// Why, as in an export's comments.
    pub reason: &'a str,
}

/// Takes what a search finds.
pub trait TakeFound {
    /// Takes a packet. Packets of one flow come together as far as they are stored together.
    fn packet(&mut self, packet: &FoundPacket<'_>);

    /// A name that a flow's packets tell: of a TLS server, an HTTP host or DNS.
    fn name(&mut self, flow: &FlowKey, name: &str);

    /// A damaged place, which is skipped.
    fn damage(&mut self, problem: String);

    /// Packets that cannot be read without a key.
    fn encrypted(&mut self, packets: u64);

    /// This share of the log was searched, from 0 to 1; breaks if the rest is not wanted.
    fn searched(&mut self, share: f64) -> ControlFlow<()>;
}

/// Whether a packet is wanted, by link type, bytes kept and wire length.
pub type Matches<'a> = dyn FnMut(LinkType, &[u8], u32) -> bool + 'a;

/// Searches a log for packets that `matches`, by link type, bytes kept and wire length. Of compacted
/// packets, only those are put together of whose flow `find`'s filter is not decided.
///
/// Memory: the columns of a row group, the flows of a part, the packets of a flow.
///
/// # Errors
///
/// If the log cannot be read.
pub fn search(
    log: &Log,
    find: &Find<'_>,
    matches: &mut Matches<'_>,
    take: &mut dyn TakeFound,
) -> Result<(), ArchiveError> {
    let parts = log.archive().parts.iter().filter(|part| part.packets > 0);
    let parts: Vec<&Part> = parts.collect();
    let files = log.recordings().iter();
    let files =
        files.flat_map(|recording| recording.files.iter().map(move |file| (recording, file)));
    let files: Vec<(&Recording, &BlockFile)> = files.collect();
    let mut progress = Progress {
        done: 0,
        all: parts.iter().map(|part| part.bytes()).sum(),
    };
    for (_, file) in &files {
        progress.all += log.file_bytes(file)?;
    }
    for part in parts {
        let bytes = part.bytes();
        match of_part(log, part, find, &progress, matches, take) {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => return Ok(()),
            Err(_) if part.key.is_some() => take.encrypted(part.packets),
            Err(error) => take.damage(error.to_string()),
        }
        progress.done += bytes;
    }
    for (recording, file) in files {
        let bytes = log.file_bytes(file)?;
        let mut blocks = OfBlocks {
            find,
            matches,
            known: Known::default(),
            links: HashMap::new(),
            told: HashMap::new(),
        };
        if blocks
            .read(log, (recording, file), &progress, take)?
            .is_break()
        {
            return Ok(());
        }
        progress.done += bytes;
    }
    Ok(())
}

/// Bytes of files: searched, and in all.
struct Progress {
    done: u64,
    all: u64,
}

impl Progress {
    #[allow(clippy::cast_precision_loss)]
    fn with(&self, more: f64) -> f64 {
        if self.all == 0 {
            return 1.0;
        }
        ((self.done as f64 + more) / self.all as f64).min(1.0)
    }
}

/// A flow of a part.
struct OfPart {
    key: FlowKey,
    /// Whether its packets from `source` go from the low to the high endpoint.
    low_to_high: bool,
    source: Vec<u8>,
    /// Its port, where the addresses do not tell the direction.
    source_port: Option<u16>,
    first_row: usize,
    rows: usize,
    /// Whether all its packets match.
    is_decided: bool,
}

impl OfPart {
    fn of(place: &Place<'_>, is_decided: bool) -> Self {
        let [source, destination] = place.ends.map(|end| end.unwrap_or(b""));
        let protocol = place.facts.protocol;
        let mut ends = [source, destination].map(|text| {
            let text = std::str::from_utf8(text).ok()?;
            address(text)
        });
        if let [Some((a, _)), Some((b, _))] = &ends
            && a != b
        {
            ends = [None, None];
        }
        let (key, low_to_high) = match ends {
            [Some((family, source)), Some((_, destination))] => {
                let [from, to] = match family {
                    AddressFamily::Mac => [0, 0],
                    AddressFamily::Ipv4 | AddressFamily::Ipv6 => place.facts.ports,
                };
                let end = |address, port| Endpoint { address, port };
                FlowKey::new(family, protocol, end(source, from), end(destination, to))
            }
            _ => (FlowKey::NONE, true),
        };
        Self {
            key,
            low_to_high,
            source: source.to_vec(),
            source_port: (source == destination).then_some(place.facts.ports[0]),
            first_row: place.first_row,
            rows: place.rows,
            is_decided,
        }
    }
}

/// An address as in the tables.
fn address(text: &str) -> Option<(AddressFamily, u128)> {
    match text.parse() {
        Ok(IpAddr::V4(v4)) => return Some((AddressFamily::Ipv4, v4.to_bits().into())),
        Ok(IpAddr::V6(v6)) => return Some((AddressFamily::Ipv6, v6.to_bits())),
        Err(_) => {}
    }
    let mut address = 0;
    let mut bytes = 0;
    for byte in text.split(':') {
        address = address << 8 | u128::from(u8::from_str_radix(byte, 16).ok()?);
        bytes += 1;
    }
    (bytes == 6).then_some((AddressFamily::Mac, address))
}

const COLUMNS: [PacketColumn; 10] = [
    PacketColumn::Time,
    PacketColumn::WireBytes,
    PacketColumn::HeaderBytes,
    PacketColumn::PayloadBytes,
    PacketColumn::Score,
    PacketColumn::Src,
    PacketColumn::Class,
    PacketColumn::Granularity,
    PacketColumn::Reason,
    PacketColumn::SrcPort,
];

fn of_part(
    log: &Log,
    part: &Part,
    find: &Find<'_>,
    progress: &Progress,
    matches: &mut Matches<'_>,
    take: &mut dyn TakeFound,
) -> Result<ControlFlow<()>, ArchiveError> {
    let disk = log.disk().as_ref();
    let mut groups: HashMap<usize, Vec<OfPart>> = HashMap::new();
    each_flow(disk, part, find, true, |place, name| {
        let is = match find.filter {
            Some(_) if place.hides_addresses => None,
            Some(filter) => decided(filter.ast(), &place.facts),
            None => Some(true),
        };
        if is == Some(false) {
            return;
        }
        let flow = OfPart::of(&place, is.is_some());
        if let Some(name) = name {
            take.name(&flow.key, &String::from_utf8_lossy(name));
        }
        groups.entry(place.group).or_default().push(flow);
    })?;
    let name = part.file(FileKind::Packets).map_or("", |file| &file.name);
    let input = parts::open(disk, part, FileKind::Packets)?;
    let table = TableReader::open(input, disk.display(name), PacketColumn::SPECS)?;
    let columns = COLUMNS.map(PacketColumn::index);
    let count = table.groups().len();
    let mut rebuilding: Option<Rebuilding> = None;
    for group in 0..count {
        #[allow(clippy::cast_precision_loss)]
        let share = progress.with(part.bytes() as f64 * group as f64 / count as f64);
        if take.searched(share).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        let Some(mut flows) = groups.remove(&group) else {
            continue;
        };
        flows.sort_by_key(|flow| flow.first_row);
        let (sure, unsure): (Vec<_>, Vec<_>) = flows.into_iter().partition(|flow| flow.is_decided);
        if !sure.is_empty() {
            let read = table.read(group, &columns, &ranges(&sure))?;
            of_rows(&read, &sure, find, take).map_err(|wrong| ArchiveError::Table {
                file: disk.display(name),
                source: wrong.into(),
            })?;
        }
        if !unsure.is_empty() {
            let rebuilding = match &mut rebuilding {
                Some(rebuilding) => rebuilding,
                None => rebuilding.insert(Rebuilding::of(log, part)?),
            };
            rebuilding.group((&table, group), &unsure, find, matches, take)?;
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// The rows of flows, which are in their order.
fn ranges(flows: &[OfPart]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for flow in flows {
        let range = flow.first_row..flow.first_row + flow.rows;
        match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => ranges.push(range),
        }
    }
    ranges
}

/// Rows whose packets are put together at a time, more for a flow that has more.
const ROWS_AT_ONCE: usize = 1 << 16;

/// Packets of a part, put together to be looked at.
struct Rebuilding {
    links: HashMap<u16, LinkType>,
    payload: Option<PayloadReader>,
    named: String,
}

impl Rebuilding {
    fn of(log: &Log, part: &Part) -> Result<Self, ArchiveError> {
        let disk = log.disk().as_ref();
        let mut links = HashMap::new();
        let recording = log.recordings().iter().find(|one| one.id == part.recording);
        // Damage there is found with the packets whose link is not known.
        let metas = recording
            .map(|one| metas_of(log, one, &mut Vec::new()))
            .transpose()?;
        for meta in metas.into_iter().flatten() {
            if let Meta::Interface { id, interface } = meta {
                links.insert(id, interface.link);
            }
        }
        let payload = match part.file(FileKind::Payload) {
            Some(_) => Some(PayloadReader::new(&parts::open(
                disk,
                part,
                FileKind::Payload,
            )?)),
            None => None,
        };
        let name = part.file(FileKind::Packets).map_or("", |file| &file.name);
        Ok(Self {
            links,
            payload,
            named: disk.display(name),
        })
    }

    /// Passes the packets of flows of a row group that match.
    fn group(
        &mut self,
        (table, group): (&TableReader<Input>, usize),
        flows: &[OfPart],
        find: &Find<'_>,
        matches: &mut Matches<'_>,
        take: &mut dyn TakeFound,
    ) -> Result<(), ArchiveError> {
        let all: Vec<usize> = (0..PacketColumn::ALL.len()).collect();
        let mut rest = flows;
        while !rest.is_empty() {
            let mut rows = 0;
            let more = rest.iter().position(|flow| {
                let is_full = rows > 0 && rows + flow.rows > ROWS_AT_ONCE;
                rows += flow.rows;
                is_full
            });
            let (some, after) = rest.split_at(more.unwrap_or(rest.len()));
            rest = after;
            let count = some.iter().map(|flow| flow.rows).sum();
            let columns = table.read(group, &all, &ranges(some))?;
            let read = parts::rows(&columns, count);
            let mut read = read.map_err(|source| ArchiveError::Table {
                file: self.named.clone(),
                source,
            })?;
            let mut rows = &mut read[..];
            for flow in some {
                let (own, others) = rows.split_at_mut(flow.rows);
                rows = others;
                self.flow(flow, own, find, matches, take);
            }
        }
        Ok(())
    }

    fn flow(
        &mut self,
        flow: &OfPart,
        rows: &mut [Row],
        find: &Find<'_>,
        matches: &mut Matches<'_>,
        take: &mut dyn TakeFound,
    ) {
        rows.sort_by_key(Row::arrival);
        let mut rebuild = Rebuild::default();
        let mut header = Vec::new();
        for row in rows {
            header.clear();
            let rebuilt = whole_header(&mut rebuild, row, &mut header);
            let bytes = rebuilt.and_then(|()| match row.payload_len {
                0 => Ok(Some(&header[..])),
                _ => payload_of(self.payload.as_mut(), row),
            });
            let bytes = match bytes {
                Ok(Some(bytes)) => bytes,
                Ok(None) => {
                    take.damage(format!("{}: a packet's payload cannot be read", self.named));
                    continue;
                }
                Err(problem) => {
                    take.damage(format!("{}: {problem}", self.named));
                    continue;
                }
            };
            let Some(&link) = self.links.get(&row.interface) else {
                take.damage(format!("{}: a packet of an unknown interface", self.named));
                continue;
            };
            if !within(find, row.time) || !matches(link, bytes, row.wire) {
                continue;
            }
            let headers = dissect(link, bytes, TunnelKey::Inner);
            let is_same = headers.key == Some(flow.key);
            let text = |bytes| std::str::from_utf8(bytes).unwrap_or("damaged");
            take.packet(&FoundPacket {
                flow: flow.key,
                low_to_high: if is_same {
                    headers.low_to_high
                } else {
                    flow.low_to_high
                },
                ts_ns: row.time,
                wire_bytes: row.wire,
                kept_bytes: u32::from(row.header_len).saturating_add(row.payload_len),
                class: text(row.class.data()),
                score: row.score,
                granularity: text(row.granularity.data()),
                reason: text(row.reason.data()),
            });
        }
    }
}

/// Passes the packets of flows, of which these are the rows.
fn of_rows(
    read: &[Column],
    flows: &[OfPart],
    find: &Find<'_>,
    take: &mut dyn TakeFound,
) -> Result<(), WrongValue> {
    let ints = |at: usize| Ints::of(COLUMNS[at].spec(), &read[at]);
    let mut times = ints(0);
    let [mut wire, mut header, mut payload] = [1, 2, 3].map(ints);
    let mut scores = read[4].floats();
    let mut texts = [5, 6, 7, 8].map(|at| read[at].bytes());
    let mut ports = ints(9);
    for flow in flows {
        for _ in 0..flow.rows {
            let ts_ns = times.next_time()?;
            let wire_bytes = wire.next_there()?;
            let kept: u32 = header.next_there()?;
            let more: u32 = payload.next_there()?;
            let [source, class, granularity, reason] = texts.each_mut().map(|texts| {
                let text: Option<&ByteArray> = texts.next().flatten();
                text.map_or(&[][..], ByteArray::data)
            });
            let score = scores.next().flatten();
            let port: Option<u16> = ports.next()?;
            if !within(find, ts_ns) {
                continue;
            }
            let is_there = match flow.source_port {
                None => source == flow.source,
                some => port == some,
            };
            let text = |bytes| std::str::from_utf8(bytes).unwrap_or("damaged");
            take.packet(&FoundPacket {
                flow: flow.key,
                low_to_high: flow.low_to_high == is_there,
                ts_ns,
                wire_bytes,
                kept_bytes: kept.saturating_add(more),
                class: text(class),
                score,
                granularity: text(granularity),
                reason: text(reason),
            });
        }
    }
    Ok(())
}

fn within(find: &Find<'_>, ts_ns: u64) -> bool {
    find.from_ns.is_none_or(|from| ts_ns >= from) && find.to_ns.is_none_or(|to| ts_ns < to)
}

/// What was decided on packets with the same verdict.
struct Told {
    class: String,
    score: Option<f32>,
    reason: String,
}

/// The packets of a block file.
struct OfBlocks<'a, 'f> {
    find: &'a Find<'a>,
    matches: &'a mut Matches<'f>,
    known: Known,
    links: HashMap<u16, LinkType>,
    /// By verdict.
    told: HashMap<u16, Told>,
}

impl OfBlocks<'_, '_> {
    fn read(
        &mut self,
        log: &Log,
        (recording, file): (&Recording, &BlockFile),
        progress: &Progress,
        take: &mut dyn TakeFound,
    ) -> Result<ControlFlow<()>, ArchiveError> {
        let select = self.find.select();
        for block in log.blocks_in(recording, file, &select) {
            let block = match block {
                Ok(block) => block,
                Err(StoreError::Damage(damage)) => {
                    take.damage(damage.to_string());
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            #[allow(clippy::cast_precision_loss)]
            let share = progress.with(block.offset as f64);
            if take.searched(share).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            for record in block.records() {
                match record {
                    Ok(Record::Packet(packet)) => self.packet(&packet, take),
                    Ok(Record::Verdict(id, verdict)) => {
                        self.told.remove(&id);
                        self.known.define(id, verdict);
                    }
                    Ok(Record::Meta(Meta::Interface { id, interface })) => {
                        self.links.insert(id, interface.link);
                    }
                    Ok(Record::Context(json)) => self.context(json, take),
                    Ok(Record::Meta(_) | Record::FlowShare(_)) => {}
                    Err(bad) => {
                        let place = Damage {
                            file: block.file.clone(),
                            offset: block.records_at() + bad.at as u64,
                            problem: bad.problem.to_owned(),
                        };
                        take.damage(place.to_string());
                    }
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn context(&mut self, json: &[u8], take: &mut dyn TakeFound) {
        match Context::from_json(json) {
            Ok(context) if context == self.known.context => {}
            Ok(context) => {
                self.known.context = context;
                self.told.clear();
            }
            Err(problem) => take.damage(problem),
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "a score is from 0 to 1")]
    fn packet(&mut self, packet: &PacketRecord<'_>, take: &mut dyn TakeFound) {
        if !within(self.find, packet.ts_ns) {
            return;
        }
        let Some(&link) = self.links.get(&packet.interface) else {
            return;
        };
        if self.find.filter.is_some() && !(self.matches)(link, packet.data, packet.wire_len) {
            return;
        }
        let headers = dissect(link, packet.data, TunnelKey::Inner);
        let (flow, low_to_high) = match headers.key {
            // As in the tables, which do not hold the EtherType.
            Some(key) if key.family == AddressFamily::Mac => {
                let [from, to] = match headers.low_to_high {
                    true => [key.low, key.high],
                    false => [key.high, key.low],
                };
                let end = |end: Endpoint| Endpoint { port: 0, ..end };
                FlowKey::new(AddressFamily::Mac, 0, end(from), end(to))
            }
            Some(key) => (key, headers.low_to_high),
            None => (FlowKey::NONE, true),
        };
        let known = &self.known;
        let told = self.told.entry(packet.verdict).or_insert_with(|| {
            let judged = known.of(packet);
            Told {
                class: judged.class().unwrap_or("unknown").to_owned(),
                score: judged.score().map(|score| score as f32),
                reason: judged.reason().into_owned(),
            }
        });
        take.packet(&FoundPacket {
            flow,
            low_to_high,
            ts_ns: packet.ts_ns,
            wire_bytes: packet.wire_len,
            kept_bytes: clamped(packet.data.len()),
            class: &told.class,
            score: told.score,
            granularity: packet.keep.name(),
            reason: &told.reason,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_tables_write_them() {
        assert_eq!(
            address("10.0.0.1"),
            Some((AddressFamily::Ipv4, 0x0a00_0001))
        );
        assert_eq!(address("::1"), Some((AddressFamily::Ipv6, 1)));
        assert_eq!(
            address("00:1b:21:0a:0b:0c"),
            Some((AddressFamily::Mac, 0x001b_210a_0b0c))
        );
        for text in ["", "00:1b", "zz:1b:21:0a:0b:0c", "not dissected"] {
            assert_eq!(address(text), None, "{text}");
        }
    }
}
