//! The flows of a log as records: its packets, of both tiers in one order, through a metering process.

use std::collections::BTreeMap;
use std::io::{self, Write};

use strata_archive::{ArchiveError, FlowColumn, MeteredPacket, Metering, Timeouts};
use strata_filter::CompileError;
use strata_store::{Damage, Log, Recording, Select, StoreError};
use strata_wire::{FlowKey, FlowShare, LinkType};

use crate::by_link::ByLink;
use crate::export::{packets, unwritten};
use crate::exporter::{ExportOptions, LoggedPacket};
use crate::parts::find::Find;
use crate::records::messages::Unfit;
use crate::records::record::FlowRecord;
use crate::records::{RecordFormat, RecordWriter};
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
}

impl Default for FlowOptions<'_> {
    fn default() -> Self {
        Self {
            class: None,
            flow: None,
            timeouts: Timeouts::default(),
            refused: |_, _| (),
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
    let mut writer = RecordWriter::new(output, format).map_err(unwritten)?;
    let (mut unfit, mut why_unfit) = (0, None);
    let mut write = |record: FlowRecord| {
        let written = writer.write(&record);
        let Some(why) = written.as_ref().err().and_then(Unfit::of) else {
            return written;
        };
        unfit += 1;
        why_unfit.get_or_insert(why);
        Ok(())
    };
    let mut exported = each_flow(log, find, options, &mut write)?;
    (exported.unfit, exported.why_unfit) = (unfit, why_unfit);
    (exported.flows, exported.records) = (writer.written, writer.records());
    writer.finish().map_err(unwritten)?;
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
    let columns: Vec<FlowColumn> = FlowRecord::columns().collect();
    let specs = columns.iter().map(|column| column.spec());
    let mut rows = RowWriter::new(output, "flows", specs).map_err(unwritten)?;
    let mut exported = each_flow(log, find, options, &mut |record| {
        rows.row(columns.iter().map(|column| record.get(*column).clone()))
    })?;
    exported.flows = rows.finish().map_err(unwritten)?;
    exported.records = exported.flows;
    Ok(exported)
}

/// The metering of a recording.
struct OfRecording {
    recording: u32,
    metering: Metering,
    /// When what is metered ends, ns.
    end_ns: u64,
}

/// Passes the flows of the wanted packets of a log.
fn each_flow(
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
            metering: Metering::new(options.timeouts, id, seed),
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
    let exported = packets(log, find, of_packets, &mut one)?;
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
