//! From a log to a capture file.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::io::Write;

use serde::{Deserialize, Serialize};
use strata_capture::{PacketRef, PcapNgWriter, PcapWriter, WriteError};
use strata_wire::pcapng::options;
use strata_wire::{FlowShare, Interface, LinkType, Meta, Printable};

use crate::blocks::{Block, Blocks, Select};
use crate::decider::Decider;
use crate::error::{Damage, StoreError};
use crate::format::{PacketRecord, VerdictRecord, keep_name};
use crate::log::Log;
use crate::manifest::Recording;
use crate::records::{BadRecord, Record};

/// What the packets of a block were recorded with, as its context record says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Context {
    /// The mode's name.
    pub mode: String,
    /// The model's name.
    pub model: String,
    /// Names of the classes, by index.
    pub classes: Vec<String>,
    /// Granularity of each class, as text.
    pub granularities: Vec<String>,
    /// Who decides on that of each class, as text; `forest` where the class itself makes the
    /// difference. Older logs do not say: there it is always the forest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deciders: Vec<String>,
    /// The policies, as text; they go before the granularities of classes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<String>,
    /// Filters of the policies that protect: their packets are not deleted to make room.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub protected: Vec<String>,
}

/// What to export.
#[derive(Default)]
pub struct ExportOptions<'a> {
    /// Which blocks may hold wanted packets.
    pub select: Select,
    /// Whether a packet is wanted, by link type, bytes kept and wire length;
    /// `None` for all.
    #[allow(clippy::type_complexity)]
    pub matches: Option<Box<dyn FnMut(LinkType, &[u8], u32) -> bool + 'a>>,
    /// Whether to say class, score, granularity and reason in a comment of each
    /// packet. pcapng only.
    pub comments: bool,
}

impl std::fmt::Debug for ExportOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExportOptions")
            .field("select", &self.select)
            .finish_non_exhaustive()
    }
}

/// The kind of file to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FileFormat {
    /// pcapng.
    #[default]
    PcapNg,
    /// pcap with nanoseconds.
    Pcap,
}

/// What was exported.
#[derive(Debug, Default)]
pub struct Exported {
    /// Packets written.
    pub packets: u64,
    /// Packets that were looked at.
    pub examined: u64,
    /// Damaged places that were passed over.
    pub damage: Vec<Damage>,
}

/// Why an export ended early.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The log cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The output cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

enum Output<W: Write> {
    PcapNg(PcapNgWriter<W>),
    Pcap(PcapWriter<W>),
}

/// Writes the wanted packets of a log, in the order in which they arrived,
/// recording by recording. Damaged blocks are passed over and reported.
///
/// # Errors
///
/// If the log cannot be read or the output not written.
pub fn export<W: Write>(
    log: &Log,
    output: W,
    format: FileFormat,
    options: ExportOptions<'_>,
) -> Result<Exported, ExportError> {
    let mut sections = Sections::default();
    sections.of_blocks(log)?;
    let mut exporter = Exporter::new(output, format, &sections, options)?;
    for recording in log.recordings() {
        exporter.blocks(log, recording)?;
    }
    exporter.finish()
}

/// Bytes of comments of further sections: more would make a section header that no program reads.
const COMMENTS_BYTES_MAX: usize = 1 << 20;

/// The options of the first section of the inputs, and the comments of the
/// others, up to 1 MiB: an export is one section.
#[derive(Debug, Default)]
pub struct Sections {
    merged: Option<Vec<u8>>,
}

impl Sections {
    /// Takes in a section's options.
    pub fn add(&mut self, list: &[u8]) {
        match &mut self.merged {
            None => self.merged = Some(list.to_vec()),
            Some(merged) => {
                let left = COMMENTS_BYTES_MAX.saturating_sub(merged.len());
                if list.len() > left {
                    return;
                }
                for comment in options::comments(list) {
                    // It was an option before, so it fits one now.
                    let _ = options::push_comment(merged, comment);
                }
            }
        }
    }

    /// Takes in the sections of a log's block files.
    ///
    /// # Errors
    ///
    /// If the log cannot be read; damage is passed over.
    pub fn of_blocks(&mut self, log: &Log) -> Result<(), StoreError> {
        let select = Select {
            metadata_only: true,
            ..Select::default()
        };
        for recording in log.recordings() {
            for block in log.blocks(recording, &select) {
                let block = match block {
                    Ok(block) => block,
                    Err(StoreError::Damage(_)) => continue,
                    Err(error) => return Err(error),
                };
                for record in block.records().flatten() {
                    if let Record::Meta(Meta::Section { options }) = record {
                        self.add(&options);
                    }
                }
            }
        }
        Ok(())
    }
}
/// Writes packets and what the inputs said to a capture file.
pub struct Exporter<'a, W: Write> {
    output: Output<W>,
    options: ExportOptions<'a>,
    /// By recording and interface: number in the export, and link type.
    interfaces: HashMap<(u32, u16), (u16, Interface)>,
    /// Link type of the interface that was asked for last.
    last_link: Option<((u32, u16), LinkType)>,
    /// By worker and number.
    verdicts: HashMap<(u16, u16), VerdictRecord>,
    packet_options: Vec<u8>,
    exported: Exported,
}

/// The blocks of one worker, and how many records of the block at hand are written.
struct Stream<'a> {
    blocks: Blocks<'a>,
    block: Option<Block>,
    taken: usize,
    /// Packets of this interface alone; `None` for all.
    interface: Option<u16>,
    /// Whether what is no packet, and what is damaged, is taken from here: of several
    /// streams over the same blocks one does.
    leads: bool,
    known: Known,
}

/// What is known of the packets that follow.
#[derive(Default)]
struct Known {
    context: Context,
    /// Of the block at hand: the share of flows that was captured, if not all.
    share: Option<FlowShare>,
}

impl<'a> Stream<'a> {
    fn new(blocks: Blocks<'a>, interface: Option<u16>) -> Self {
        Self {
            blocks,
            block: None,
            taken: 0,
            interface,
            leads: interface.unwrap_or(0) == 0,
            known: Known::default(),
        }
    }

    /// Whether a record is to be looked at.
    fn wants(&self, record: &Result<Record<'_>, BadRecord>) -> bool {
        match record {
            Ok(Record::Packet(packet)) => self.interface.is_none_or(|i| i == packet.interface),
            Ok(Record::Verdict(..) | Record::Context(_) | Record::FlowShare(_)) => true,
            Ok(Record::Meta(_)) | Err(_) => self.leads,
        }
    }
}

impl<W: Write> std::fmt::Debug for Exporter<'_, W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporter")
            .field("exported", &self.exported)
            .finish_non_exhaustive()
    }
}

impl<'a, W: Write> Exporter<'a, W> {
    /// Begins a file.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn new(
        output: W,
        format: FileFormat,
        sections: &Sections,
        options: ExportOptions<'a>,
    ) -> Result<Self, ExportError> {
        let section = sections.merged.as_deref().unwrap_or(&[]);
        Ok(Self {
            output: match format {
                FileFormat::PcapNg => Output::PcapNg(PcapNgWriter::new(output, section)?),
                FileFormat::Pcap => Output::Pcap(PcapWriter::new(output)),
            },
            options,
            interfaces: HashMap::new(),
            last_link: None,
            verdicts: HashMap::new(),
            packet_options: Vec::new(),
            exported: Exported::default(),
        })
    }

    /// Writes the wanted packets of a recording's block files, those of several
    /// workers by their times. A worker that captures several interfaces takes from one
    /// after another, so each of these is a stream of its own, which reads the blocks anew.
    ///
    /// # Errors
    ///
    /// If the log cannot be read or the output not written; damage is noted.
    pub fn blocks(&mut self, log: &Log, recording: &Recording) -> Result<(), ExportError> {
        let select = self.options.select.clone();
        self.verdicts.clear();
        let workers: BTreeSet<u16> = recording.files.iter().map(|file| file.worker).collect();
        let captured = u16::try_from(recording.inputs.len()).unwrap_or(u16::MAX);
        let interfaces: Vec<Option<u16>> = if recording.live && captured > 1 {
            (0..captured).map(Some).collect()
        } else {
            vec![None]
        };
        let mut streams = Vec::new();
        for &worker in &workers {
            for &interface in &interfaces {
                let blocks = log.blocks_of(recording, worker, &select);
                streams.push(Stream::new(blocks, interface));
            }
        }
        self.merge(recording.id, streams)
    }

    /// Notes a damaged place that was passed over.
    pub fn damage(&mut self, damage: Damage) {
        self.exported.damage.push(damage);
    }

    /// Ends the file.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn finish(self) -> Result<Exported, ExportError> {
        match self.output {
            Output::PcapNg(writer) => drop(writer.finish()?),
            Output::Pcap(writer) => drop(writer.finish()?),
        }
        Ok(self.exported)
    }

    /// Writes the packets of several workers in the order of their times, each
    /// worker's in its own.
    fn merge(&mut self, recording: u32, mut streams: Vec<Stream<'_>>) -> Result<(), ExportError> {
        loop {
            for stream in &mut streams {
                while stream.block.is_none() {
                    match stream.blocks.next() {
                        Some(Ok(block)) => stream.block = Some(block),
                        Some(Err(StoreError::Damage(damage))) => {
                            if stream.leads {
                                self.damage(damage);
                            }
                        }
                        Some(Err(error)) => return Err(error.into()),
                        None => break,
                    }
                }
            }
            streams.retain(|stream| stream.block.is_some());
            if streams.is_empty() {
                return Ok(());
            }
            let ended = self.until_one_ends(recording, &mut streams)?;
            let stream = &mut streams[ended];
            (stream.block, stream.taken, stream.known.share) = (None, 0, None);
        }
    }

    /// Writes records until a block has no more, and says whose.
    fn until_one_ends(
        &mut self,
        recording: u32,
        streams: &mut [Stream<'_>],
    ) -> Result<usize, ExportError> {
        if let [stream] = streams {
            let mut known = std::mem::take(&mut stream.known);
            if let Some(block) = &stream.block {
                let wanted = block.records().filter(|record| stream.wants(record));
                for record in wanted.skip(stream.taken) {
                    self.record(recording, block, &mut known, record)?;
                }
            }
            stream.known = known;
            return Ok(0);
        }
        let mut taken: Vec<usize> = streams.iter().map(|stream| stream.taken).collect();
        let mut known: Vec<Known> = streams
            .iter_mut()
            .map(|stream| std::mem::take(&mut stream.known))
            .collect();
        let blocks: Vec<&Block> = streams.iter().filter_map(|s| s.block.as_ref()).collect();
        let mut records: Vec<_> = streams
            .iter()
            .zip(&blocks)
            .zip(&taken)
            .map(|((stream, block), &taken)| {
                let wanted = block.records().filter(|record| stream.wants(record));
                wanted.skip(taken).peekable()
            })
            .collect();
        let ended = loop {
            // What is no packet comes at once: packets behind it refer to it.
            let time = |record: &Result<Record<'_>, _>| match record {
                Ok(Record::Packet(packet)) => packet.ts_ns,
                _ => 0,
            };
            let mut first = (u64::MAX, 0);
            let mut ended = None;
            for (index, records) in records.iter_mut().enumerate() {
                match records.peek() {
                    Some(record) => first = first.min((time(record), index)),
                    None => ended = Some(index),
                }
            }
            if let Some(ended) = ended {
                break ended;
            }
            let index = first.1;
            if let Some(record) = records[index].next() {
                taken[index] += 1;
                self.record(recording, blocks[index], &mut known[index], record)?;
            }
        };
        drop(records);
        for ((stream, taken), known) in streams.iter_mut().zip(taken).zip(known) {
            stream.taken = taken;
            stream.known = known;
        }
        Ok(ended)
    }

    fn record(
        &mut self,
        recording: u32,
        block: &Block,
        known: &mut Known,
        record: Result<Record<'_>, BadRecord>,
    ) -> Result<(), ExportError> {
        let worker = block.header.worker;
        match record {
            Ok(Record::Packet(packet)) => {
                if let Some(interface) = self.wanted(recording, &packet) {
                    let verdict = self.verdicts.get(&(worker, packet.verdict));
                    let comment = self
                        .options
                        .comments
                        .then(|| comment(&known.context, packet.keep_code, verdict, known.share));
                    self.write(interface, &packet, comment.as_deref())?;
                }
            }
            Ok(Record::Verdict(id, verdict)) => {
                self.verdicts.insert((worker, id), verdict);
            }
            Ok(Record::Context(json)) => {
                known.context = serde_json::from_slice(json).unwrap_or_default();
            }
            Ok(Record::FlowShare(share)) => {
                known.share = Some(share);
            }
            Ok(Record::Meta(meta)) => self.meta(recording, meta)?,
            Err(bad) => {
                let at = block.offset + crate::format::HEADER_LEN as u64 + bad.at as u64;
                self.exported.damage.push(Damage {
                    file: block.file.clone(),
                    offset: at,
                    problem: bad.problem.into(),
                });
            }
        }
        Ok(())
    }

    /// Writes what an input said about itself; an interface once.
    ///
    /// # Errors
    ///
    /// If the output cannot be written.
    pub fn meta(&mut self, recording: u32, meta: Meta) -> Result<(), ExportError> {
        match meta {
            Meta::Interface { id, interface } => {
                let next = self.interfaces.len();
                let entry = self.interfaces.entry((recording, id));
                let std::collections::hash_map::Entry::Vacant(vacant) = entry else {
                    return Ok(());
                };
                let number = u16::try_from(next).map_err(|_| WriteError::TooLong(next))?;
                if let Output::PcapNg(writer) = &mut self.output {
                    writer.interface(number, &interface)?;
                }
                vacant.insert((number, interface));
            }
            Meta::Section { .. } => {}
            Meta::Block {
                block_type,
                interface,
                body,
            } => {
                let known = interface.map(|id| self.interfaces.get(&(recording, id)));
                let number = known.map(|entry| entry.map(|(number, _)| *number));
                if let Output::PcapNg(writer) = &mut self.output {
                    match number {
                        // Statistics about an interface whose description is damaged.
                        Some(None) => {}
                        Some(Some(number)) => writer.block(block_type, Some(number), &body)?,
                        None => writer.block(block_type, None, &body)?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes a packet, if it is wanted; `comment` says what of it.
    ///
    /// # Errors
    ///
    /// If the output cannot be written.
    pub fn packet(
        &mut self,
        recording: u32,
        packet: &PacketRecord<'_>,
        comment: impl FnOnce() -> String,
    ) -> Result<(), ExportError> {
        if let Some(interface) = self.wanted(recording, packet) {
            let comment = self.options.comments.then(comment);
            self.write(interface, packet, comment.as_deref())?;
        }
        Ok(())
    }

    /// The packet's interface, if the packet is wanted.
    fn wanted(&mut self, recording: u32, packet: &PacketRecord<'_>) -> Option<(u32, u16)> {
        let select = &self.options.select;
        if select.from_ns.is_some_and(|from| packet.ts_ns < from)
            || select.to_ns.is_some_and(|to| packet.ts_ns >= to)
        {
            return None;
        }
        self.exported.examined += 1;
        let key = (recording, packet.interface);
        let link = match self.last_link {
            Some((last, link)) if last == key => link,
            _ => {
                let (_, interface) = self.interfaces.get(&key)?;
                self.last_link = Some((key, interface.link));
                interface.link
            }
        };
        if let Some(matches) = &mut self.options.matches
            && !matches(link, packet.data, packet.wire_len)
        {
            return None;
        }
        Some(key)
    }

    fn write(
        &mut self,
        interface: (u32, u16),
        packet: &PacketRecord<'_>,
        comment: Option<&str>,
    ) -> Result<(), ExportError> {
        let Some((number, interface)) = self.interfaces.get(&interface) else {
            return Ok(());
        };
        let number = *number;
        self.packet_options.clear();
        self.packet_options.extend_from_slice(packet.options);
        if let Some(comment) = comment {
            // Only names of a crafted log are too long for an option.
            let _ = options::push_comment(&mut self.packet_options, comment);
        }
        let written = PacketRef {
            ts_ns: packet.ts_ns,
            interface: number,
            wire_len: packet.wire_len,
            data: packet.data,
            options: &self.packet_options,
            has_timestamp: packet.has_timestamp,
        };
        match &mut self.output {
            Output::PcapNg(writer) => writer.packet(&written)?,
            Output::Pcap(writer) => {
                writer.interface(number, interface)?;
                writer.packet(&written)?;
            }
        }
        self.exported.packets += 1;
        Ok(())
    }
}

fn comment(
    context: &Context,
    keep_code: u8,
    verdict: Option<&VerdictRecord>,
    share: Option<FlowShare>,
) -> String {
    let class = verdict.map(|verdict| {
        let class = context.classes.get(usize::from(verdict.class));
        class.map_or("unknown", String::as_str)
    });
    let score = verdict.filter(|verdict| verdict.level > 0);
    comment_text(
        class,
        score.map(|verdict| f64::from(verdict.score) / 65_535.0),
        keep_name(keep_code),
        &reason(verdict, context),
        &context.mode,
        share.unwrap_or_default().ratio(),
    )
}

/// The comment that Wireshark shows for a packet. `flow_share` is the share of all flows
/// that were captured, up to 1.
#[must_use]
pub fn comment_text(
    class: Option<&str>,
    score: Option<f64>,
    granularity: &str,
    reason: &str,
    mode: &str,
    flow_share: f64,
) -> String {
    let mut text = String::from("strata:");
    if let Some(class) = class {
        let _ = write!(text, " class={class}");
    }
    if let Some(score) = score {
        let _ = write!(text, " score={score:.3}");
    }
    let _ = write!(text, " granularity={granularity} reason={reason}");
    if !mode.is_empty() {
        let _ = write!(text, " mode={mode}");
    }
    if flow_share < 1.0 {
        let _ = write!(text, " flow_share={flow_share:.6}");
    }
    text
}

/// Why a packet was kept as it was: who decided; where that is the forest, which of its trees,
/// and the leaf of each.
#[must_use]
pub fn reason(verdict: Option<&VerdictRecord>, context: &Context) -> String {
    let Some(verdict) = verdict else {
        return String::from("not-recorded");
    };
    match &verdict.decider {
        Decider::Class => {
            let decider = context.deciders.get(usize::from(verdict.class));
            match decider {
                Some(text) if text != "forest" => Printable(text).to_string(),
                _ => trees(verdict),
            }
        }
        Decider::Forest(_) => trees(verdict),
        other => other.to_string(),
    }
}

/// Which trees decided on the class, and the leaf of each.
fn trees(verdict: &VerdictRecord) -> String {
    let level = match verdict.level {
        0 => return String::from("not-dissected"),
        1 => "packet-trees",
        _ => "flow-trees",
    };
    let leaves: Vec<String> = verdict.leaves.iter().map(ToString::to_string).collect();
    if leaves.is_empty() {
        return level.to_owned();
    }
    format!("{level}:{}", leaves.join(","))
}
