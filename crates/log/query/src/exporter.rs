//! Writes packets and the inputs' metadata to a capture file, or hands packets out one by one.

mod asked;
mod comments;
mod copy;
mod of_flow;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};

use strata_archive::ArchiveError;
use strata_blocks::{PacketRecord, Record};
use strata_capture::{PacketRef, PcapNgWriter, PcapWriter, WriteError};
use strata_store::{Damage, Log, Select, StoreError};
use strata_wire::pcapng::{block_type, options};
use strata_wire::{FlowKey, Interface, KeepKind, LinkType, Meta};

use crate::left_out::{LeftOut, Missing, Place};

pub use asked::{ExportOptions, Exported, FileFormat, Kept};
pub use comments::JudgementKey;
pub(crate) use comments::new_origin;
use comments::{Comments, comment_text};
pub use copy::PacketCopy;
use of_flow::addresses;
pub(crate) use of_flow::{OfFlow, flow_of};

/// A packet of a log, as far as it was kept.
#[derive(Clone, Copy, Debug)]
pub struct LoggedPacket<'a> {
    /// Number of its recording.
    pub recording: u32,
    /// Number of its interface, of all interfaces of the log.
    pub interface: u16,
    /// Number of its interface within the recording, as in the log's tables.
    pub interface_id: u16,
    /// The interface's link type.
    pub link: LinkType,
    /// Arrival, ns since 1970; 0 without a timestamp.
    pub ts_ns: u64,
    /// False where the input gave no time.
    pub has_timestamp: bool,
    /// Length on the wire.
    pub wire_len: u32,
    /// How much of it was captured; as much or less was kept.
    pub captured_len: u32,
    /// Where its headers end, as far as they were kept.
    pub header_len: u16,
    /// The bytes kept.
    pub data: &'a [u8],
    /// Options of the packet in its input, as pcapng has them.
    pub options: &'a [u8],
    /// Its interface.
    pub described: &'a Interface,
    /// Name of its class; `None` if it has none.
    pub class: Option<&'a str>,
    /// The share of all flows that was captured then, up to 1.
    pub flow_share: f64,
    /// What was decided on it.
    pub judged: &'a dyn Judgement,
}

/// Takes packets of a log. An error ends the reading.
pub type TakePacket<'a> = dyn FnMut(&LoggedPacket<'_>) -> io::Result<()> + 'a;

/// What was decided on a packet; looked up when it is asked for.
pub trait Judgement {
    /// Name of its class; `None` if it has none.
    fn class(&self) -> Option<&str>;

    /// The class's share of the trees; `None` if they did not decide.
    fn score(&self) -> Option<f64>;

    /// How much of it was kept.
    fn granularity(&self) -> &str;

    /// Why, as in an export's comments.
    fn reason(&self) -> Cow<'_, str>;

    /// The mode then.
    fn mode(&self) -> &str;

    /// The share of all flows that was captured then, up to 1.
    fn flow_share(&self) -> f64;

    /// What all of this follows from, if it has numbers.
    fn key(&self) -> Option<JudgementKey>;
}

impl fmt::Debug for dyn Judgement + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&comment_text(self))
    }
}

/// Where packets go.
pub(crate) enum Output<'a, W: Write> {
    PcapNg(PcapNgWriter<W>),
    Pcap(PcapWriter<W>),
    Packets(&'a mut TakePacket<'a>),
}

/// Bytes of comments of further sections: with more, no program could read the section header.
const COMMENTS_BYTES_MAX: usize = 1 << 20;

/// The options of the inputs' first section, and the comments of the others, up to 1 MiB: an export
/// has only one section.
#[derive(Debug, Default)]
pub(crate) struct Sections {
    merged: Option<Vec<u8>>,
}

impl Sections {
    /// Adds a section's options.
    pub(crate) fn add(&mut self, list: &[u8]) {
        match &mut self.merged {
            None => self.merged = Some(list.to_vec()),
            Some(merged) => {
                let left = COMMENTS_BYTES_MAX.saturating_sub(merged.len());
                if list.len() > left {
                    return;
                }
                for comment in options::comments(list) {
                    // It was an option before, so it fits into one now.
                    let _ = options::push_comment(merged, comment);
                }
            }
        }
    }

    /// Adds the sections of a log's block files.
    ///
    /// # Errors
    ///
    /// If the log cannot be read; damage is skipped.
    pub(crate) fn of_blocks(&mut self, log: &Log) -> Result<(), StoreError> {
        metas_of_blocks(log, |meta| {
            if let Meta::Section { options } = meta {
                self.add(&options);
            }
        })
    }
}

/// Hands out the metadata of a log's block files.
///
/// # Errors
///
/// If the log cannot be read; damage is skipped: the reader of the packets meets it again, and reports it.
pub(crate) fn metas_of_blocks(log: &Log, mut take: impl FnMut(Meta)) -> Result<(), StoreError> {
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
                if let Record::Meta(meta) = record {
                    take(meta);
                }
            }
        }
    }
    Ok(())
}

/// The body of a Decryption Secrets Block (draft-ietf-opsawg-pcapng §4.7) with a key log of TLS.
fn secrets(tls_keys: &[u8]) -> Result<Vec<u8>, WriteError> {
    const TLS_KEY_LOG: u32 = 0x544c_534b;
    let len = u32::try_from(tls_keys.len()).map_err(|_| WriteError::TooLong(tls_keys.len()))?;
    Ok([&TLS_KEY_LOG.to_le_bytes()[..], &len.to_le_bytes(), tls_keys].concat())
}

/// Writes packets and the inputs' metadata to a capture file.
pub(crate) struct Exporter<'a, W: Write> {
    output: Output<'a, W>,
    options: ExportOptions<'a>,
    /// By recording and interface: number in the export, and link type.
    interfaces: HashMap<(u32, u16), (u16, Interface)>,
    /// Link type of the interface that was looked up last.
    last_link: Option<((u32, u16), LinkType)>,
    comments: Comments,
    packet_options: Vec<u8>,
    left_out: LeftOut,
    exported: Exported,
}

impl<W: Write> fmt::Debug for Exporter<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporter")
            .field("exported", &self.exported)
            .finish_non_exhaustive()
    }
}

impl<'a, W: Write> Exporter<'a, W> {
    /// Starts a file.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub(crate) fn new(
        output: W,
        format: FileFormat,
        sections: &Sections,
        options: ExportOptions<'a>,
    ) -> Result<Self, ArchiveError> {
        let section = sections.merged.as_deref().unwrap_or(&[]);
        let output = match format {
            FileFormat::PcapNg => {
                let mut writer = PcapNgWriter::new(output, section)?;
                if !options.tls_keys.is_empty() {
                    let body = secrets(&options.tls_keys)?;
                    writer.block(block_type::DECRYPTION_SECRETS, None, &body)?;
                }
                Output::PcapNg(writer)
            }
            FileFormat::Pcap => Output::Pcap(PcapWriter::new(output)),
        };
        Ok(Self::to(output, options))
    }

    /// Puts packets there.
    pub(crate) fn to(output: Output<'a, W>, mut options: ExportOptions<'a>) -> Self {
        if let Some(flow) = &options.flow {
            options.select.addresses.extend(addresses(flow));
        }
        Self {
            output,
            options,
            interfaces: HashMap::new(),
            last_link: None,
            comments: Comments::default(),
            packet_options: Vec::new(),
            left_out: LeftOut::default(),
            exported: Exported::default(),
        }
    }

    /// Which blocks may hold wanted packets.
    pub(crate) fn select(&self) -> &Select {
        &self.options.select
    }

    /// The only flow whose packets are wanted; `None` for all.
    pub(crate) fn flow(&self) -> Option<FlowKey> {
        self.options.flow
    }

    /// Records a damaged place that was skipped.
    pub(crate) fn damage(&mut self, damage: Damage) {
        self.exported.damage.push(damage);
    }

    /// Counts a decoded record.
    pub(crate) fn count_decoded(&mut self) {
        self.exported.decoded += 1;
    }

    /// Ends a file; returns the output.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub(crate) fn into_output(self) -> Result<W, ArchiveError> {
        Ok(match self.output {
            Output::PcapNg(writer) => writer.finish()?,
            Output::Pcap(writer) => writer.finish()?,
            Output::Packets(_) => unreachable!("packets that are handed out are in no file"),
        })
    }

    /// Ends the file.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub(crate) fn finish(mut self) -> Result<Exported, ArchiveError> {
        match self.output {
            Output::PcapNg(writer) => drop(writer.finish()?),
            Output::Pcap(writer) => drop(writer.finish()?),
            Output::Packets(_) => {}
        }
        self.exported.left_out = self.left_out.packets;
        self.exported.damage.extend(self.left_out.into_damage());
        Ok(self.exported)
    }

    /// Writes an input's metadata; each interface only once.
    ///
    /// # Errors
    ///
    /// If the output cannot be written.
    pub(crate) fn meta(&mut self, recording: u32, meta: Meta) -> Result<(), ArchiveError> {
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
                        // Statistics about an interface whose definition is missing; its packets say so.
                        Some(None) => {}
                        Some(Some(number)) => writer.block(block_type, Some(number), &body)?,
                        None => writer.block(block_type, None, &body)?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes a packet, if it is wanted; `of_flow` tells whether it is of the only flow that is.
    ///
    /// # Errors
    ///
    /// If the output cannot be written.
    pub(crate) fn packet(
        &mut self,
        recording: u32,
        packet: &PacketRecord<'_>,
        judged: &impl Judgement,
        place: Place<'_>,
        of_flow: Option<&mut OfFlow>,
    ) -> Result<(), ArchiveError> {
        if let Some((interface, link)) = self.wanted(recording, packet, place)
            && of_flow.is_none_or(|of_flow| of_flow.has(link, packet))
            && self.options.kept.is_of_process(packet.options)
            && self.was_kept_so(judged, place)
        {
            self.write(interface, packet, judged)?;
        }
        Ok(())
    }

    /// The packet's interface and its link type, if the packet is wanted. A packet whose interface is not defined is
    /// counted: it may be wanted.
    fn wanted(
        &mut self,
        recording: u32,
        packet: &PacketRecord<'_>,
        place: Place<'_>,
    ) -> Option<((u32, u16), LinkType)> {
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
                let Some((_, interface)) = self.interfaces.get(&key) else {
                    self.left_out.of_interface(packet, place);
                    return None;
                };
                self.last_link = Some((key, interface.link));
                interface.link
            }
        };
        if let Some(matches) = &mut self.options.matches
            && !matches(link, packet.data, packet.wire_len)
        {
            return None;
        }
        Some((key, link))
    }

    fn was_kept_so(&mut self, judged: &impl Judgement, place: Place<'_>) -> bool {
        let kept = &self.options.kept;
        if kept.is_all() {
            return true;
        }
        let class = judged.class();
        let is = kept.is(
            class.unwrap_or("unknown"),
            judged.granularity(),
            &judged.reason(),
        );
        if !is && class.is_none() {
            self.left_out.count(Missing::Verdict, place);
        }
        is
    }

    fn write(
        &mut self,
        key: (u32, u16),
        packet: &PacketRecord<'_>,
        judged: &impl Judgement,
    ) -> Result<(), ArchiveError> {
        let known = self.interfaces.get(&key);
        let (number, interface) = known.expect("a packet is wanted if its interface is known");
        let (recording, number) = (key.0, *number);
        if let Output::Packets(take) = &mut self.output {
            self.exported.packets += 1;
            let logged = LoggedPacket {
                recording,
                interface: number,
                interface_id: packet.interface,
                link: interface.link,
                ts_ns: packet.ts_ns,
                has_timestamp: packet.has_timestamp,
                wire_len: packet.wire_len,
                captured_len: packet.captured_len,
                header_len: packet.header_len,
                data: packet.data,
                options: packet.options,
                described: interface,
                class: judged.class(),
                flow_share: judged.flow_share(),
                judged,
            };
            return Ok(take(&logged).map_err(WriteError::Io)?);
        }
        self.put(key, packet, judged)
    }

    /// Writes a packet of another log, which has this number and name, with what it is known by there.
    ///
    /// # Errors
    ///
    /// If the output cannot be written.
    pub(crate) fn of_log(
        &mut self,
        (log, name): (u32, &str),
        packet: &LoggedPacket<'_>,
    ) -> Result<(), ArchiveError> {
        let key = (log, packet.interface);
        if !self.interfaces.contains_key(&key) {
            let mut interface = packet.described.clone();
            // A name that is too long for an option is left out.
            let _ = options::push_comment(&mut interface.options, &format!("log {name}"));
            let id = packet.interface;
            self.meta(log, Meta::Interface { id, interface })?;
        }
        let record = PacketRecord {
            ts_ns: packet.ts_ns,
            seq: 0,
            wire_len: packet.wire_len,
            captured_len: packet.captured_len,
            header_len: packet.header_len,
            interface: packet.interface,
            verdict: 0,
            keep: KeepKind::Nothing,
            has_timestamp: packet.has_timestamp,
            data: packet.data,
            options: packet.options,
        };
        self.put(key, &record, packet.judged)
    }

    /// Writes a packet to the file.
    fn put(
        &mut self,
        key: (u32, u16),
        packet: &PacketRecord<'_>,
        judged: &dyn Judgement,
    ) -> Result<(), ArchiveError> {
        let known = self.interfaces.get(&key);
        let (number, interface) = known.expect("an interface is written before its packets");
        let number = *number;
        let bare = PacketRef {
            ts_ns: packet.ts_ns,
            interface: number,
            wire_len: packet.wire_len,
            data: packet.data,
            options: packet.options,
            has_timestamp: packet.has_timestamp,
        };
        // The block that has no time has no comment either.
        let has_time = match &self.output {
            Output::PcapNg(writer) if !packet.has_timestamp => {
                !packet.options.is_empty() || !writer.holds_untimed(&bare)
            }
            _ => true,
        };
        self.packet_options.clear();
        self.packet_options.extend_from_slice(packet.options);
        if self.options.comments && has_time {
            // Only a crafted log has names too long for an option.
            let _ = options::push_comment(&mut self.packet_options, self.comments.of(judged));
        }
        let written = PacketRef {
            options: &self.packet_options,
            ..bare
        };
        match &mut self.output {
            Output::PcapNg(writer) => writer.packet(&written)?,
            Output::Pcap(writer) => {
                writer.interface(number, interface)?;
                writer.packet(&written)?;
            }
            Output::Packets(_) => {}
        }
        self.exported.packets += 1;
        Ok(())
    }
}
