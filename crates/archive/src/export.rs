//! From both tiers of a log to a capture file.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::ops::Range;

use strata_capture::Meta;
use strata_store::export::{
    ExportError, ExportOptions, Exported, Exporter, FileFormat, Sections, comment_text,
};
use strata_store::{
    BlockFile, Damage, FileKind, Log, PacketRecord, Part, Record, Recording, Select, StoreError,
};

use crate::error::ArchiveError;
use crate::files::Input;
use crate::find::{self, Find};
use crate::packets;
use crate::payload::PayloadReader;
use crate::rows::{self, Rebuild, Row};
use crate::table::TableReader;

impl From<ExportError> for ArchiveError {
    fn from(error: ExportError) -> Self {
        match error {
            ExportError::Store(error) => error.into(),
            ExportError::Write(error) => error.into(),
        }
    }
}

/// Writes the wanted packets of a log, compacted or not, in the order in which they
/// arrived, recording by recording. `find` says which flows may hold wanted packets,
/// `options` which packets are wanted. Damaged places are passed over and reported.
///
/// # Errors
///
/// If the log cannot be read or the output not written.
pub fn export<W: Write>(
    log: &Log,
    output: W,
    format: FileFormat,
    find: &Find<'_>,
    options: ExportOptions<'_>,
) -> Result<Exported, ArchiveError> {
    let mut sections = Sections::default();
    let mut metas = BTreeMap::new();
    let mut damage = Vec::new();
    for recording in log.recordings() {
        let read = metas_of(log, recording, &mut damage)?;
        for meta in &read {
            if let Meta::Section { options } = meta {
                sections.add(options);
            }
        }
        metas.insert(recording.id, read);
    }
    sections.of_blocks(log).map_err(ArchiveError::Store)?;
    let mut exporter = Exporter::new(output, format, &sections, options)?;
    for problem in damage {
        exporter.damage(problem);
    }
    for recording in log.recordings() {
        for meta in metas.remove(&recording.id).unwrap_or_default() {
            exporter.meta(recording.id, meta)?;
        }
        let mut merge = Merge::new(log, recording, find)?;
        while let Some(next) = merge.next() {
            let packet = match next {
                Ok(packet) => packet,
                Err(ArchiveError::Table { file, source }) => {
                    exporter.damage(Damage {
                        file,
                        offset: 0,
                        problem: source.to_string(),
                    });
                    continue;
                }
                Err(error) => return Err(error),
            };
            exporter.packet(recording.id, &packet.record(), || packet.comment())?;
        }
        exporter.blocks(log, recording)?;
    }
    Ok(exporter.finish()?)
}

/// What the inputs of a recording said, from its parts: each thing once, in order.
fn metas_of(
    log: &Log,
    recording: &Recording,
    damage: &mut Vec<Damage>,
) -> Result<Vec<Meta>, ArchiveError> {
    let mut metas: Vec<Meta> = Vec::new();
    let mut seen: HashMap<String, u32> = HashMap::new();
    for part in parts_of(log, recording) {
        let Some(file) = part.file(FileKind::Meta) else {
            continue;
        };
        let disk = log.disk().as_ref();
        let name = find::name_of(disk, part, file);
        let bytes = if file.is_encrypted() {
            // The manifest says how long it is encrypted.
            Input::open(disk, &name)?.size()
        } else {
            file.bytes
        };
        let mut one = recording.clone();
        one.files = vec![BlockFile {
            name,
            worker: 0,
            sealed: true,
            bytes,
            blocks: 1,
            packets: 0,
        }];
        // Parts of one job say the same, and an input may say one thing twice.
        let mut here: HashMap<String, u32> = HashMap::new();
        for block in log.blocks(&one, &Select::default()) {
            match block {
                Ok(block) => {
                    for record in block.records().flatten() {
                        let Record::Meta(meta) = record else {
                            continue;
                        };
                        let text = format!("{meta:?}");
                        let times = here.entry(text.clone()).or_default();
                        *times += 1;
                        let before = seen.entry(text).or_default();
                        if *times > *before {
                            *before = *times;
                            metas.push(meta);
                        }
                    }
                }
                Err(StoreError::Damage(problem)) => damage.push(problem),
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(metas)
}

fn parts_of<'a>(log: &'a Log, recording: &Recording) -> impl Iterator<Item = &'a Part> {
    let id = recording.id;
    log.archive()
        .parts
        .iter()
        .filter(move |part| part.recording == id)
}

/// A packet of a part, whole again as far as it was kept.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) row: Row,
    pub(crate) data: Vec<u8>,
    mode: std::rc::Rc<str>,
}

impl Packet {
    fn record(&self) -> PacketRecord<'_> {
        let row = &self.row;
        PacketRecord {
            ts_ns: row.time,
            seq: 0,
            wire_len: row.wire,
            captured_len: row.captured(),
            header_len: u16::try_from(row.header_len).unwrap_or(u16::MAX),
            interface: row.interface,
            verdict: 0,
            keep_code: 0,
            has_timestamp: row.has_time,
            data: &self.data,
            options: row
                .packet_options
                .as_ref()
                .map_or(&[], |bytes| bytes.data()),
        }
    }

    fn comment(&self) -> String {
        let text = |bytes| std::str::from_utf8(bytes).unwrap_or("damaged");
        let row = &self.row;
        let reason = text(row.reason.data());
        // A packet whose verdict was lost has no class to tell.
        let class = (reason != "not-recorded").then(|| text(row.class.data()));
        // Scores were whole numbers of 65,535ths.
        let score = row
            .score
            .map(|score| (f64::from(score) * 65_535.0).round() / 65_535.0);
        comment_text(
            class,
            score,
            text(row.granularity.data()),
            reason,
            &self.mode,
            f64::from(row.flow_share),
        )
    }
}

/// A part whose packets are read.
struct OpenPart {
    table: TableReader<Input>,
    payload: Option<PayloadReader>,
    mode: std::rc::Rc<str>,
    named: String,
}

/// A row group to be read: its part, number and rows.
struct Ahead {
    /// No packet of it arrived earlier.
    earliest: u64,
    part: usize,
    group: usize,
    rows: Vec<Range<usize>>,
}

/// A row group being given out.
struct Active {
    part: usize,
    rows: std::iter::Peekable<std::vec::IntoIter<Row>>,
    rebuild: Rebuild,
}

/// The packets of a recording's parts in the order of arrival.
pub(crate) struct Merge {
    parts: Vec<OpenPart>,
    /// By the time at which they begin, the first last.
    ahead: Vec<Ahead>,
    active: Vec<Active>,
}

impl Merge {
    pub(crate) fn new(
        log: &Log,
        recording: &Recording,
        find: &Find<'_>,
    ) -> Result<Self, ArchiveError> {
        let disk = log.disk().as_ref();
        let (mut parts, mut ahead) = (Vec::new(), Vec::new());
        for part in parts_of(log, recording) {
            let wanted = find::wanted(disk, part, find)?;
            if wanted.as_ref().is_some_and(BTreeMap::is_empty) {
                continue;
            }
            let name = part.file(FileKind::Packets).map_or("", |file| &file.name);
            let named = disk.display(name);
            let input = find::open(disk, part, FileKind::Packets)?;
            let table = TableReader::open(input, named.clone(), packets::COLUMNS)?;
            let payload = match part.file(FileKind::Payload) {
                Some(_) => Some(PayloadReader::new(find::open(
                    disk,
                    part,
                    FileKind::Payload,
                )?)),
                None => None,
            };
            for (group, count) in table.groups().into_iter().enumerate() {
                let rows = match &wanted {
                    None => Some(std::iter::once(0..count).collect()),
                    Some(wanted) => wanted.get(&group).cloned(),
                };
                if let Some(rows) = rows {
                    ahead.push(Ahead {
                        earliest: table.min(group, packets::column("time")),
                        part: parts.len(),
                        group,
                        rows,
                    });
                }
            }
            let mode = table.about("strata.mode").unwrap_or("").into();
            parts.push(OpenPart {
                table,
                payload,
                mode,
                named,
            });
        }
        ahead.sort_by_key(|group| std::cmp::Reverse((group.earliest, group.part, group.group)));
        Ok(Self {
            parts,
            ahead,
            active: Vec::new(),
        })
    }

    /// The next packet.
    pub(crate) fn next(&mut self) -> Option<Result<Packet, ArchiveError>> {
        loop {
            let mut first: Option<(usize, (u64, i64))> = None;
            for (index, active) in self.active.iter_mut().enumerate() {
                if let Some(row) = active.rows.peek()
                    && first.is_none_or(|(_, best)| row.arrival() < best)
                {
                    first = Some((index, row.arrival()));
                }
            }
            let due = self.ahead.last().map(|ahead| ahead.earliest);
            match (first, due) {
                (None, None) => return None,
                (Some((index, (arrival, _))), due) if due.is_none_or(|due| arrival < due) => {
                    return self.take(index);
                }
                _ => {
                    if let Err(error) = self.activate() {
                        return Some(Err(error));
                    }
                }
            }
        }
    }

    fn activate(&mut self) -> Result<(), ArchiveError> {
        self.active
            .retain_mut(|active| active.rows.peek().is_some());
        let Some(ahead) = self.ahead.pop() else {
            return Ok(());
        };
        let all: Vec<usize> = (0..packets::COLUMNS.len()).collect();
        let part = &self.parts[ahead.part];
        let columns = part.table.read(ahead.group, &all, &ahead.rows)?;
        let count = ahead.rows.iter().map(Range::len).sum();
        let mut rows = rows::rows(&columns, count);
        rows.sort_by_key(Row::arrival);
        self.active.push(Active {
            part: ahead.part,
            rows: rows.into_iter().peekable(),
            rebuild: Rebuild::default(),
        });
        Ok(())
    }

    fn take(&mut self, index: usize) -> Option<Result<Packet, ArchiveError>> {
        let active = &mut self.active[index];
        let row = active.rows.next()?;
        let part = &mut self.parts[active.part];
        let mut data = Vec::with_capacity(row.header_len);
        let rebuilt = active.rebuild.header(&row, &mut data).and_then(|()| {
            if data.len() != row.header_len {
                return Err("a header does not have the length that it had".into());
            }
            if row.payload_len > 0 {
                let offset = row.payload_offset.ok_or("a packet without its payload")?;
                let payload = part.payload.as_mut().ok_or("a part without its payload")?;
                data.clear();
                data.extend_from_slice(payload.packet(offset)?);
            }
            Ok(())
        });
        Some(match rebuilt {
            Ok(()) => Ok(Packet {
                mode: part.mode.clone(),
                row,
                data,
            }),
            Err(source) => Err(ArchiveError::table(&part.named, source)),
        })
    }
}
