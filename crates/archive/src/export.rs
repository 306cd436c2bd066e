//! From both tiers of a log to a capture file.

use std::collections::{BTreeMap, HashMap};
use std::io::{ErrorKind, Write};

use strata_store::export::{
    ExportError, ExportOptions, Exported, Exporter, FileFormat, Sections, comment_text,
};
use strata_store::{
    BlockFile, Damage, FileKind, Log, PacketRecord, Part, Record, Recording, Select, StoreError,
};
use strata_wire::Meta;

use crate::by_time::{MEMORY_BYTES, Waiting};
use crate::error::ArchiveError;
use crate::files::Input;
use crate::find::{self, Find};
use crate::merge::Merge;

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
/// What is compacted is read once and decompressed once, in the order of flows. Up to 256 MiB of
/// packets wait in memory for their turn, and what is more in a temporary file (`TMPDIR`); beside
/// that, memory is taken for the rows of one run at most, and 256 KiB for each 256 MiB on disk.
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
    export_within(MEMORY_BYTES, log, output, format, find, options)
}

/// As [`export`], with another bound of the packets that wait in memory.
///
/// # Errors
///
/// As [`export`].
pub fn export_within<W: Write>(
    memory_bytes: usize,
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
        let mut merge = Merge::new(log, recording, find, memory_bytes);
        while let Some(packet) = merge.next()? {
            exporter.packet(recording.id, &record(&packet), || comment(&packet))?;
        }
        for problem in merge.damage() {
            exporter.damage(problem);
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
    let all = Select::default();
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
        let file = BlockFile {
            name,
            worker: 0,
            sealed: true,
            bytes,
            blocks: 1,
            packets: 0,
        };
        // Parts of one job say the same, and an input may say one thing twice.
        let mut here: HashMap<String, u32> = HashMap::new();
        for block in log.blocks_in(recording, &file, &all) {
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
                Err(StoreError::Io { file, source, .. })
                    if source.kind() == ErrorKind::InvalidData =>
                {
                    damage.push(Damage {
                        file,
                        offset: 0,
                        problem: source.to_string(),
                    });
                    // The reader stays where it cannot read.
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(metas)
}

pub(crate) fn parts_of<'a>(log: &'a Log, recording: &Recording) -> impl Iterator<Item = &'a Part> {
    let id = recording.id;
    log.archive()
        .parts
        .iter()
        .filter(move |part| part.recording == id)
}

fn record<'a>(packet: &Waiting<'a>) -> PacketRecord<'a> {
    PacketRecord {
        ts_ns: packet.ts_ns,
        seq: 0,
        wire_len: packet.wire_len,
        captured_len: packet.captured_len,
        header_len: packet.header_len,
        interface: packet.interface,
        verdict: 0,
        keep_code: 0,
        has_timestamp: packet.has_timestamp,
        data: packet.data,
        options: packet.options,
    }
}

fn comment(packet: &Waiting<'_>) -> String {
    let [class, granularity, reason, mode] = packet
        .texts
        .map(|bytes| std::str::from_utf8(bytes).unwrap_or("damaged"));
    // A packet whose verdict was lost has no class to tell.
    let class = (reason != "not-recorded").then_some(class);
    // Scores were whole numbers of 65,535ths.
    let score = packet
        .score
        .map(|score| (f64::from(score) * 65_535.0).round() / 65_535.0);
    let share = f64::from(packet.flow_share);
    comment_text(class, score, granularity, reason, mode, share)
}
