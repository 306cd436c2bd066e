//! From both tiers of a log to a capture file.

pub(crate) mod doubles;

use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind, Write};
use std::ops::ControlFlow;

use serde_json::Value;
use strata_archive::parts::{self, Input};
use strata_archive::{ArchiveError, Spec};
use strata_blocks::Record;
use strata_capture::{PacketRef, WriteError};
use strata_store::{BlockFile, Damage, FileKind, Log, Recording, Select, StoreError};
use strata_wire::Meta;

use crate::by_link::ByLink;
use crate::by_time::MEMORY_BYTES;
use crate::exporter::{
    ExportOptions, Exported, Exporter, FileFormat, LoggedPacket, Output, Sections, TakePacket,
    metas_of_blocks,
};
use crate::merge;
use crate::packet_row::{COLUMNS, PacketRows};
use crate::parts::find::Find;
use crate::parts::{Parts, parts_of};
use crate::records::LOG;
use crate::row_writer::RowWriter;

/// Writes the wanted packets of a log, compacted or not, in order of arrival, recording by
/// recording. `find` selects the flows that may hold wanted packets, `options` the packets. Damaged
/// places are skipped and reported.
///
/// Compacted data are read once and decompressed once, in the order of flows. Up to 256 MiB of
/// packets wait in memory for their turn, and any more in a temporary file (`TMPDIR`); in addition,
/// memory is used for the rows of one run at most, and 256 KiB for each 256 MiB on disk.
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

/// As [`export`], with another limit for the packets that wait in memory.
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
    let select = exporter.select().clone();
    for problem in damage {
        exporter.damage(problem);
    }
    for recording in log.recordings() {
        for meta in metas.remove(&recording.id).into_iter().flatten() {
            exporter.meta(recording.id, meta)?;
        }
        let parts = Parts::new(log, recording, (find, exporter.flow()), memory_bytes);
        merge::write(log, recording, parts, &select, &mut exporter)?;
    }
    exporter.finish()
}

/// The metadata of logs that are of no interface, for capture files with packets of these logs.
#[derive(Debug)]
pub struct MergedMetadata {
    sections: Sections,
    blocks: Vec<Meta>,
}

impl MergedMetadata {
    /// Reads them; damage is skipped, which the reader of the packets reports.
    ///
    /// # Errors
    ///
    /// If a log cannot be read.
    pub fn of<'l>(logs: impl IntoIterator<Item = &'l Log>) -> Result<Self, ArchiveError> {
        let mut sections = Sections::default();
        let mut blocks = Vec::new();
        let mut take = |meta: Meta| match meta {
            Meta::Section { options } => sections.add(&options),
            Meta::Block {
                interface: None, ..
            } => blocks.push(meta),
            // Interfaces come with their packets, and with them what is said of them.
            Meta::Block { .. } | Meta::Interface { .. } => {}
        };
        for log in logs {
            for recording in log.recordings() {
                let metas = metas_of(log, recording, &mut Vec::new())?;
                metas.into_iter().for_each(&mut take);
            }
            metas_of_blocks(log, &mut take).map_err(ArchiveError::Store)?;
        }
        Ok(Self { sections, blocks })
    }
}

/// A capture file with packets of several logs, in the order in which they are given.
#[derive(Debug)]
pub struct MergedExport<'a, W: Write>(Exporter<'a, W>);

impl<'a, W: Write> MergedExport<'a, W> {
    /// Begins a file with this metadata.
    ///
    /// # Errors
    ///
    /// If the output cannot be written.
    pub fn new(
        metadata: &MergedMetadata,
        output: W,
        format: FileFormat,
        options: ExportOptions<'a>,
    ) -> Result<Self, ArchiveError> {
        let mut exporter = Exporter::new(output, format, &metadata.sections, options)?;
        for block in &metadata.blocks {
            exporter.meta(0, block.clone())?;
        }
        Ok(Self(exporter))
    }

    /// Writes a packet of the log with this number and name, which is said of its interface.
    ///
    /// # Errors
    ///
    /// If the output cannot be written.
    pub fn packet(
        &mut self,
        log: (u32, &str),
        packet: &LoggedPacket<'_>,
    ) -> Result<(), ArchiveError> {
        self.0.of_log(log, packet)
    }

    /// Ends the file; returns the output.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn finish(self) -> Result<W, ArchiveError> {
        self.0.into_output()
    }
}

/// Hands out the wanted packets of a log in the order of [`export`], with the same bounds.
///
/// # Errors
///
/// If the log cannot be read, or `take` fails: a write error then.
pub fn packets<'a>(
    log: &Log,
    find: &Find<'_>,
    options: ExportOptions<'a>,
    take: &'a mut TakePacket<'a>,
) -> Result<Exported, ArchiveError> {
    packets_within(MEMORY_BYTES, log, find, options, take)
}

/// As [`packets`], with another limit for the packets that wait in memory.
///
/// # Errors
///
/// As [`packets`].
pub(crate) fn packets_within<'a>(
    memory_bytes: usize,
    log: &Log,
    find: &Find<'_>,
    options: ExportOptions<'a>,
    take: &'a mut TakePacket<'a>,
) -> Result<Exported, ArchiveError> {
    let mut exporter = Exporter::to(Output::Packets(take), options);
    hand_out(memory_bytes, log, find, &mut exporter)?;
    exporter.finish()
}

fn hand_out(
    memory_bytes: usize,
    log: &Log,
    find: &Find<'_>,
    exporter: &mut Exporter<'_, io::Sink>,
) -> Result<(), ArchiveError> {
    let select = exporter.select().clone();
    for recording in log.recordings() {
        let mut damage = Vec::new();
        for meta in metas_of(log, recording, &mut damage)? {
            exporter.meta(recording.id, meta)?;
        }
        for problem in damage {
            exporter.damage(problem);
        }
        let parts = Parts::new(log, recording, (find, exporter.flow()), memory_bytes);
        merge::write(log, recording, parts, &select, exporter)?;
    }
    Ok(())
}

/// As [`packets`], until `take` breaks or fails: what was handed out until then, or why the log cannot be
/// read to its end. At most `memory_bytes` of packets wait in memory for their turn.
///
/// # Errors
///
/// If `take` fails.
pub fn packets_while<E>(
    memory_bytes: usize,
    log: &Log,
    find: &Find<'_>,
    options: ExportOptions<'_>,
    mut take: impl FnMut(&LoggedPacket<'_>) -> Result<ControlFlow<()>, E>,
) -> Result<Result<Exported, ArchiveError>, E> {
    let (mut failure, mut has_broken) = (None, false);
    let mut one = |logged: &LoggedPacket<'_>| {
        match take(logged) {
            Ok(ControlFlow::Continue(())) => return Ok(()),
            Ok(ControlFlow::Break(())) => has_broken = true,
            Err(error) => failure = Some(error),
        }
        Err(io::Error::other("enough was read"))
    };
    let mut exporter = Exporter::to(Output::Packets(&mut one), options);
    let read = hand_out(memory_bytes, log, find, &mut exporter);
    let exported = exporter.finish();
    match (failure, read) {
        (Some(failure), _) => Err(failure),
        // It was stopped here.
        (None, Err(ArchiveError::Write(_))) if has_broken => Ok(exported),
        (None, Err(error)) => Ok(Err(error)),
        (None, Ok(())) => Ok(exported),
    }
}

/// As [`packets`], until `take` breaks or fails: the damaged places, which were skipped, or why the log
/// cannot be read to its end. The filter of `find` only says where packets may be: those around them come
/// too, unless `by_link` takes them away.
///
/// # Errors
///
/// If `take` fails.
pub fn packets_until<E>(
    log: &Log,
    find: &Find<'_>,
    by_link: Option<&mut ByLink>,
    mut take: impl FnMut(&LoggedPacket<'_>, &PacketRef<'_>) -> Result<ControlFlow<()>, E>,
) -> Result<Result<Vec<Damage>, ArchiveError>, E> {
    let options = ExportOptions {
        select: find.select(),
        matches: by_link.map(ByLink::as_matches),
        comments: false,
        ..ExportOptions::default()
    };
    let mut has_broken = false;
    let read = packets_while(MEMORY_BYTES, log, find, options, |logged| {
        let packet = PacketRef {
            ts_ns: logged.ts_ns,
            interface: logged.interface,
            wire_len: logged.wire_len.max(logged.captured_len),
            data: logged.data,
            options: &[],
            has_timestamp: logged.has_timestamp,
        };
        let flow = take(logged, &packet)?;
        has_broken = flow.is_break();
        Ok(flow)
    })?;
    Ok(read.map(|exported| match has_broken {
        true => Vec::new(),
        false => exported.damage,
    }))
}

/// As [`export`], as a Parquet file: a row for each packet, with columns of the log's table `packets`.
///
/// # Errors
///
/// As [`export`].
pub fn export_packet_table<W: Write + Send>(
    log: &Log,
    output: W,
    find: &Find<'_>,
    options: ExportOptions<'_>,
) -> Result<Exported, ArchiveError> {
    let mut table = PacketTable::new(output, Vec::new())?;
    let mut take = |packet: &LoggedPacket<'_>| table.write(0, packet);
    let exported = packets(log, find, options, &mut take)?;
    table.finish()?;
    Ok(exported)
}

/// A Parquet file of packets being written, of one log or of several: then it has the column `log`, too.
pub struct PacketTable<W: Write + Send> {
    rows: RowWriter<W>,
    /// Of each log.
    packet_rows: Vec<PacketRows>,
    logs: Vec<String>,
}

impl<W: Write + Send> std::fmt::Debug for PacketTable<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketTable")
            .field("logs", &self.logs)
            .finish_non_exhaustive()
    }
}

impl<W: Write + Send> PacketTable<W> {
    /// Begins, with the names of the logs if there are several.
    ///
    /// # Errors
    ///
    /// If the output cannot be written.
    pub fn new(output: W, logs: Vec<String>) -> Result<Self, ArchiveError> {
        let specs = COLUMNS.iter().map(|column| column.spec());
        let log: Option<&'static Spec> = (!logs.is_empty()).then_some(&LOG);
        let specs = log.into_iter().chain(specs);
        let of_logs = (0..logs.len().max(1)).map(|_| PacketRows::default());
        Ok(Self {
            rows: RowWriter::new(output, "packets", specs).map_err(unwritten)?,
            packet_rows: of_logs.collect(),
            logs,
        })
    }

    /// Writes a packet of the log with this number.
    ///
    /// # Errors
    ///
    /// If the output cannot be written.
    ///
    /// # Panics
    ///
    /// If there is no such log.
    pub fn write(&mut self, log: usize, packet: &LoggedPacket<'_>) -> io::Result<()> {
        let name = (!self.logs.is_empty()).then(|| Value::from(self.logs[log].as_str()));
        let values = self.packet_rows[log].of(packet);
        self.rows.row(name.into_iter().chain(values))
    }

    /// Ends the file.
    ///
    /// # Errors
    ///
    /// If the output cannot be written.
    pub fn finish(self) -> Result<(), ArchiveError> {
        self.rows.finish().map_err(unwritten)?;
        Ok(())
    }
}

pub(crate) fn unwritten(error: io::Error) -> ArchiveError {
    ArchiveError::Write(WriteError::Io(error))
}

/// The metadata of a recording's inputs, from its parts: each item once, in order.
pub(crate) fn metas_of(
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
        let name = parts::name_of(disk, part, file);
        let bytes = if file.is_encrypted() {
            // The manifest has the encrypted length.
            match Input::open(disk, &name) {
                Ok(input) => input.size(),
                Err(error) if error.is_missing() => {
                    damage.push(Damage::missing(disk.display(&name), part.id, part.packets));
                    continue;
                }
                Err(error) => return Err(error),
            }
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
        // Parts of one job repeat the same items, and an input may repeat an item.
        let mut here: HashMap<String, u32> = HashMap::new();
        for block in log.blocks_in(recording, &file, &all) {
            match block {
                Ok(block) => {
                    for record in block.records() {
                        let meta = match record {
                            Ok(Record::Meta(meta)) => meta,
                            // Nothing else is in these files that packets refer to.
                            Ok(_) => continue,
                            Err(bad) => {
                                damage.push(Damage {
                                    file: block.file.clone(),
                                    offset: block.records_at() + bad.at as u64,
                                    problem: bad.problem.to_owned(),
                                    missing: None,
                                });
                                break;
                            }
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
                Err(StoreError::Damage(problem)) if problem.missing.is_some() => {
                    damage.push(Damage::missing(problem.file, part.id, part.packets));
                }
                Err(StoreError::Damage(problem)) => damage.push(problem),
                Err(StoreError::Io { file, source, .. })
                    if source.kind() == ErrorKind::InvalidData =>
                {
                    damage.push(Damage {
                        file,
                        offset: 0,
                        problem: source.to_string(),
                        missing: None,
                    });
                    // The reader does not advance past what it cannot read.
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(metas)
}
