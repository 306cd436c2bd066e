//! The flows of a log as records: its packets, of both tiers in one order, through a metering process.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::Value;
use strata_archive::{ArchiveError, FlowColumn, MeteredPacket, Metering, Spec, Timeouts};
use strata_filter::CompileError;
use strata_store::{Damage, Log, Recording, Select, StoreError};
use strata_wire::{FlowKey, FlowShare, LinkType};

use crate::by_link::ByLink;
use crate::by_time::MEMORY_BYTES;
use crate::export::{packets_within, unwritten};
use crate::exporter::{ExportOptions, LoggedPacket};
use crate::parts::find::Find;
use crate::records::messages::Unfit;
use crate::records::record::FlowRecord;
use crate::records::{LOG, RecordFormat, RecordWriter};
use crate::row_writer::RowWriter;

/// Which flows, and when one ends that goes on.
#[derive(Clone, Copy, Debug)]
pub struct FlowOptions<'a> {
    /// Only flows with packets of this class.
    pub class: Option<&'a str>,
    /// Only this flow, as [`ExportOptions::flow`] says.
    pub flow: Option<FlowKey>,
    /// When a flow ends that goes on.
    pub timeouts: Timeouts,
    /// Hears of each link type that the filter cannot be tested on, once.
    pub refused: fn(LinkType, &CompileError),
    /// At most these bytes of packets wait in memory for their turn.
    pub memory_bytes: usize,
    /// At most this number of flows at a time; with more, the one whose last packet is the oldest ends.
    pub flows_max: usize,
}

impl Default for FlowOptions<'_> {
    fn default() -> Self {
        Self {
            class: None,
            flow: None,
            timeouts: Timeouts::default(),
            refused: |_, _| (),
            memory_bytes: MEMORY_BYTES,
            flows_max: Metering::FLOWS_MAX,
        }
    }
}

/// What flows were exported.
#[derive(Debug, Default)]
pub struct ExportedFlows {
    /// Flows written.
    pub flows: u64,
    /// Records of them in the file: in IPFIX and NetFlow 9, one for each direction.
    pub records: u64,
    /// Flows that ended since there were too many at a time.
    pub crowded_out: u64,
    /// Flows that are not written, since the protocol cannot say their times.
    pub unfit: u64,
    /// Why, of the first of them.
    pub why_unfit: Option<&'static str>,
    /// Packets that are in no flow, since the log lacks a definition that they refer to: `damage` says
    /// which.
    pub left_out: u64,
    /// Packets that the filter could not test, as [`ByLink::untested`] counts them.
    pub untested: u64,
    /// Damaged places that were skipped.
    pub damage: Vec<Damage>,
    /// Why the filter can be tested on none of the link types that packets came of, if so.
    pub misfit: Option<CompileError>,
}

impl ExportedFlows {
    /// Adds what was read of another log.
    pub fn add(&mut self, other: Self) {
        self.flows = self.flows.saturating_add(other.flows);
        self.records = self.records.saturating_add(other.records);
        self.crowded_out = self.crowded_out.saturating_add(other.crowded_out);
        self.unfit = self.unfit.saturating_add(other.unfit);
        self.why_unfit = self.why_unfit.or(other.why_unfit);
        self.left_out = self.left_out.saturating_add(other.left_out);
        self.untested = self.untested.saturating_add(other.untested);
        self.damage.extend(other.damage);
        self.misfit = self.misfit.take().or(other.misfit);
    }
}

/// Writes the flows of a log instead of packets: those of the packets within the time of `find` that match
/// its filter, compacted or not.
///
/// Memory: that of [`export`](crate::export) and of [`Metering`].
///
/// # Errors
///
/// If the log cannot be read or the output not written.
pub fn export_flows<W: Write>(
    log: &Log,
    output: W,
    format: RecordFormat,
    find: &Find<'_>,
    options: &FlowOptions<'_>,
) -> Result<ExportedFlows, ArchiveError> {
    let mut written = WrittenFlows::new(output, format, Vec::new())?;
    let mut exported = flows(log, find, options, &mut |record| written.write(0, &record))?;
    written.finish(&mut exported)?;
    Ok(exported)
}

/// As [`export_flows`], as a Parquet file with the columns of the log's table `flows`.
///
/// # Errors
///
/// As [`export_flows`].
pub fn export_flow_table<W: Write + Send>(
    log: &Log,
    output: W,
    find: &Find<'_>,
    options: &FlowOptions<'_>,
) -> Result<ExportedFlows, ArchiveError> {
    let mut table = FlowTable::new(output, Vec::new())?;
    let mut exported = flows(log, find, options, &mut |record| table.write(0, &record))?;
    table.finish(&mut exported)?;
    Ok(exported)
}

/// Flow records being written, of one log or of several.
pub struct WrittenFlows<W: Write> {
    writer: RecordWriter<W>,
    unfit: u64,
    why_unfit: Option<&'static str>,
}

impl<W: Write> std::fmt::Debug for WrittenFlows<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WrittenFlows")
            .field("writer", &self.writer)
            .field("unfit", &self.unfit)
            .finish_non_exhaustive()
    }
}

impl<W: Write> WrittenFlows<W> {
    /// Begins, with the names of the logs as [`RecordWriter::of_logs`] takes them.
    ///
    /// # Errors
    ///
    /// If the output cannot be written.
    pub fn new(output: W, format: RecordFormat, logs: Vec<String>) -> Result<Self, ArchiveError> {
        Ok(Self {
            writer: RecordWriter::of_logs(output, format, logs).map_err(unwritten)?,
            unfit: 0,
            why_unfit: None,
        })
    }

    /// Writes a flow of the log with this number, or counts it if the protocol cannot say its times.
    ///
    /// # Errors
    ///
    /// If the output cannot be written.
    pub fn write(&mut self, log: usize, record: &FlowRecord) -> io::Result<()> {
        let written = self.writer.write_of(log, record);
        let Some(why) = written.as_ref().err().and_then(Unfit::of) else {
            return written;
        };
        self.unfit += 1;
        self.why_unfit.get_or_insert(why);
        Ok(())
    }

    /// Ends the output, which it returns, and enters what was written.
    ///
    /// # Errors
    ///
    /// If the output cannot be written.
    pub fn finish(self, exported: &mut ExportedFlows) -> Result<W, ArchiveError> {
        (exported.unfit, exported.why_unfit) = (self.unfit, self.why_unfit);
        (exported.flows, exported.records) = (self.writer.written, self.writer.records());
        self.writer.finish().map_err(unwritten)
    }
}

/// A Parquet file of flows being written, of one log or of several: then it has the column `log`, too.
pub struct FlowTable<W: Write + Send> {
    rows: RowWriter<W>,
    columns: Vec<FlowColumn>,
    logs: Vec<String>,
}

impl<W: Write + Send> std::fmt::Debug for FlowTable<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlowTable")
            .field("logs", &self.logs)
            .finish_non_exhaustive()
    }
}

impl<W: Write + Send> FlowTable<W> {
    /// Begins, with the names of the logs if there are several.
    ///
    /// # Errors
    ///
    /// If the output cannot be written.
    pub fn new(output: W, logs: Vec<String>) -> Result<Self, ArchiveError> {
        let columns: Vec<FlowColumn> = FlowRecord::columns().collect();
        let specs = columns.iter().map(|column| column.spec());
        let log: Option<&'static Spec> = (!logs.is_empty()).then_some(&LOG);
        let specs = log.into_iter().chain(specs);
        Ok(Self {
            rows: RowWriter::new(output, "flows", specs).map_err(unwritten)?,
            columns,
            logs,
        })
    }

    /// Writes a flow of the log with this number.
    ///
    /// # Errors
    ///
    /// If the output cannot be written.
    ///
    /// # Panics
    ///
    /// If there are several logs, and this is none of them.
    pub fn write(&mut self, log: usize, record: &FlowRecord) -> io::Result<()> {
        let name = (!self.logs.is_empty()).then(|| Value::from(self.logs[log].as_str()));
        let values = self.columns.iter();
        let values = values.map(|column| record.get(*column).clone());
        self.rows.row(name.into_iter().chain(values))
    }

    /// Ends the file, and enters what was written.
    ///
    /// # Errors
    ///
    /// If the output cannot be written.
    pub fn finish(self, exported: &mut ExportedFlows) -> Result<(), ArchiveError> {
        exported.flows = self.rows.finish().map_err(unwritten)?;
        exported.records = exported.flows;
        Ok(())
    }
}

/// The metering of a recording.
struct OfRecording {
    recording: u32,
    metering: Metering,
    /// When what is metered ends, ns.
    end_ns: u64,
}

/// Passes the flows of the wanted packets of a log, as they end. The counts of flows and records of the result are 0.
///
/// Memory: as of [`export_flows`].
///
/// # Errors
///
/// If the log cannot be read, or `take` fails: a write error then.
///
/// # Panics
///
/// If packets of recordings came mixed, which an export never does.
pub fn flows(
    log: &Log,
    find: &Find<'_>,
    options: &FlowOptions<'_>,
    take: &mut dyn FnMut(FlowRecord) -> io::Result<()>,
) -> Result<ExportedFlows, ArchiveError> {
    let mut take = |values| {
        let record = FlowRecord::of(values);
        match options.class.is_none_or(|class| record.has_class(class)) {
            true => take(record),
            false => Ok(()),
        }
    };
    let mut ahead: BTreeMap<u32, OfRecording> = BTreeMap::new();
    for recording in log.recordings() {
        let (id, seed) = (recording.id, recording.hash_seed);
        let of = OfRecording {
            recording: id,
            metering: Metering::new(options.timeouts, id, seed).at_most(options.flows_max),
            end_ns: end_of(log, recording, find)?,
        };
        ahead.insert(id, of);
    }
    let (mut current, mut crowded_out): (Option<OfRecording>, u64) = (None, 0);
    let mut one = |packet: &LoggedPacket<'_>| {
        if current.as_ref().map(|of| of.recording) != Some(packet.recording) {
            if let Some(mut of) = current.take() {
                of.metering.finish(of.end_ns, &mut take)?;
                crowded_out += of.metering.crowded_out;
            }
            current = ahead.remove(&packet.recording);
        }
        let of = current.as_mut().expect("recordings come one after another");
        of.metering.packet(&metered(packet), &mut take)
    };
    let by_link = find.filter.cloned();
    let mut by_link = by_link.map(|filter| ByLink::new(filter, options.refused));
    let of_packets = ExportOptions {
        select: find.select(),
        matches: by_link.as_mut().map(ByLink::as_matches),
        flow: options.flow,
        ..ExportOptions::default()
    };
    let exported = packets_within(options.memory_bytes, log, find, of_packets, &mut one)?;
    if let Some(mut of) = current {
        let last = of.metering.finish(of.end_ns, &mut take);
        last.map_err(unwritten)?;
        crowded_out += of.metering.crowded_out;
    }
    Ok(ExportedFlows {
        flows: 0,
        records: 0,
        unfit: 0,
        why_unfit: None,
        crowded_out,
        left_out: exported.left_out,
        untested: by_link.as_ref().map_or(0, ByLink::untested),
        damage: exported.damage,
        misfit: by_link.and_then(|by_link| by_link.misfit().cloned()),
    })
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a score is from 0 to 1"
)]
fn metered<'a>(packet: &LoggedPacket<'a>) -> MeteredPacket<'a> {
    let score = packet.judged.score();
    MeteredPacket {
        interface: packet.interface_id,
        link: packet.link,
        ts_ns: packet.ts_ns,
        has_timestamp: packet.has_timestamp,
        wire_len: packet.wire_len,
        captured_len: packet.captured_len,
        header_len: packet.header_len,
        data: packet.data,
        options: packet.options,
        class: packet.class,
        score: score.map(|score| (score * 65_535.0).round() as u16),
        share: FlowShare::of(packet.flow_share),
    }
}

/// When the packets of a recording end that may be wanted, ns: whether a flow has been idle then does not
/// depend on what else is read.
fn end_of(log: &Log, recording: &Recording, find: &Find<'_>) -> Result<u64, ArchiveError> {
    let parts = log.archive().parts.iter();
    let parts = parts.filter(|part| part.recording == recording.id && part.packets > 0);
    let mut end_ns = parts.map(|part| part.ts_max_ns).max().unwrap_or(NO_PACKETS);
    let headers = Select {
        without_records: true,
        ..Select::default()
    };
    for block in log.blocks(recording, &headers) {
        match block {
            Ok(block) if block.header.packets > 0 => end_ns = end_ns.max(block.header.ts_max_ns),
            // The reader of the packets reports it.
            Ok(_) | Err(StoreError::Damage(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(find.to_ns.map_or(end_ns, |to| end_ns.min(to)))
}

/// The end of a recording without packets.
const NO_PACKETS: u64 = 0;
