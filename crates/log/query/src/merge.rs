//! The packets of a recording from both tiers, in one order.
//!
//! A source has an order of its own: the parts together, and each worker's blocks. A worker that
//! captures several interfaces takes packets from one after another, so each interface is a
//! separate source, which reads the worker's blocks again. The next packet comes from the source
//! whose next packet arrived first.

pub(crate) mod arrivals;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeSet, BinaryHeap};
use std::io::Write;

use strata_archive::ArchiveError;
use strata_blocks::{BadRecord, Head, PacketRecord, Record, Trees, VerdictRecord, reason};
use strata_store::{Block, Blocks, Cursor, Damage, Log, Recording, Select, StoreError};
use strata_wire::{Context, FlowKey, FlowShare, KeepKind};

use crate::by_time::Waiting;
use crate::exporter::{Exporter, Judgement, JudgementKey, OfFlow, new_origin};
use crate::left_out::Place;
use crate::parts::Parts;

/// One of the sources that are merged.
enum Source<'a> {
    Parts(Box<Parts<'a>>),
    Blocks(Box<WorkerBlocks<'a>>),
}

/// Writes the packets of a recording, and its inputs' metadata from block files.
///
/// A worker's parts come before its blocks, whatever the times say. With several workers, one may
/// have been compacted further than another: all are ordered by time.
///
/// # Errors
///
/// If the log cannot be read or the output not written; damage is reported to `exporter`.
pub(crate) fn write<W: Write>(
    log: &Log,
    recording: &Recording,
    parts: Parts<'_>,
    select: &Select,
    exporter: &mut Exporter<'_, W>,
) -> Result<(), ArchiveError> {
    let id = recording.id;
    let mut parts = vec![Source::Parts(Box::new(parts))];
    let blocks = sources(log, recording, select, exporter.flow());
    let gone = log
        .archive()
        .gone
        .iter()
        .filter(|gone| gone.recording == id);
    let workers = recording.files.iter().map(|file| file.worker);
    let workers: BTreeSet<u16> = workers.chain(gone.map(|gone| gone.worker)).collect();
    if workers.len() > 1 {
        parts.extend(blocks);
        return merge(id, parts, exporter);
    }
    merge(id, parts, exporter)?;
    merge(id, blocks, exporter)
}

/// The blocks of each worker, separately for each interface if several are captured.
fn sources<'a>(
    log: &'a Log,
    recording: &'a Recording,
    select: &'a Select,
    flow: Option<FlowKey>,
) -> Vec<Source<'a>> {
    let workers: BTreeSet<u16> = recording.files.iter().map(|file| file.worker).collect();
    let captured = recording.inputs.len();
    let interfaces: Vec<Option<u16>> = if recording.live && captured > 1 {
        (0..=u16::MAX).take(captured).map(Some).collect()
    } else {
        vec![None]
    };
    let mut sources = Vec::new();
    for worker in workers {
        for &interface in &interfaces {
            let blocks = log.blocks_of(recording, worker, select);
            let of_flow = flow.map(|flow| OfFlow::new(flow, recording));
            sources.push(Source::Blocks(Box::new(WorkerBlocks::new(
                blocks, interface, of_flow,
            ))));
        }
    }
    sources
}

/// Writes everything from all sources; with equal times, the first source goes first.
fn merge<W: Write>(
    recording: u32,
    mut sources: Vec<Source<'_>>,
    exporter: &mut Exporter<'_, W>,
) -> Result<(), ArchiveError> {
    if let [only] = sources.as_mut_slice() {
        return only.write(recording, exporter);
    }
    let mut heads = BinaryHeap::with_capacity(sources.len());
    for (index, source) in sources.iter_mut().enumerate() {
        heads.extend(
            source
                .head(exporter, recording)?
                .map(|time| Reverse((time, index))),
        );
    }
    while let Some(mut first) = heads.peek_mut() {
        let Reverse((_, index)) = *first;
        let source = &mut sources[index];
        source.take(recording, exporter)?;
        match source.head(exporter, recording)? {
            Some(time) => *first = Reverse((time, index)),
            None => drop(PeekMut::pop(first)),
        }
    }
    Ok(())
}

impl Source<'_> {
    /// When the next item arrived; 0 if it is not a packet, as later packets refer to it.
    fn head<W: Write>(
        &mut self,
        exporter: &mut Exporter<'_, W>,
        recording: u32,
    ) -> Result<Option<u64>, ArchiveError> {
        match self {
            Self::Blocks(blocks) => blocks.head(recording, exporter),
            Self::Parts(parts) => {
                let head = parts.head()?;
                for damage in parts.take_damage() {
                    exporter.damage(damage);
                }
                Ok(head)
            }
        }
    }

    /// Writes everything, in its own order.
    fn write<W: Write>(
        &mut self,
        recording: u32,
        exporter: &mut Exporter<'_, W>,
    ) -> Result<(), ArchiveError> {
        if let Self::Blocks(blocks) = self {
            return blocks.write(recording, exporter);
        }
        while self.head(exporter, recording)?.is_some() {
            self.take(recording, exporter)?;
        }
        Ok(())
    }

    fn take<W: Write>(
        &mut self,
        recording: u32,
        exporter: &mut Exporter<'_, W>,
    ) -> Result<(), ArchiveError> {
        match self {
            Self::Blocks(blocks) => blocks.take(recording, exporter),
            Self::Parts(parts) => {
                let named = parts.named();
                if let Some(packet) = parts.next()? {
                    let place = Place {
                        file: &named,
                        offset: 0,
                    };
                    exporter.packet(recording, &record(&packet), &packet, place, None)?;
                }
                Ok(())
            }
        }
    }
}

/// The blocks of a worker.
struct WorkerBlocks<'a> {
    blocks: Blocks<'a>,
    cursor: Option<Cursor>,
    taken: Taken,
}

/// What is taken from blocks.
struct Taken {
    /// Only packets of this interface; `None` for all.
    interface: Option<u16>,
    /// Only packets of this flow; `None` for all.
    of_flow: Option<OfFlow>,
    /// Whether non-packet records and damage are reported from here: one of several sources over
    /// the same blocks does it.
    leads: bool,
    known: Known,
}

/// The state that the following packets refer to.
#[derive(Default)]
pub(crate) struct Known {
    /// Changes with the rest.
    origin: u64,
    context: Context,
    /// By number.
    verdicts: Vec<Option<VerdictRecord>>,
    /// For the current block: the share of flows that was captured.
    share: FlowShare,
}

impl<'a> WorkerBlocks<'a> {
    fn new(blocks: Blocks<'a>, interface: Option<u16>, of_flow: Option<OfFlow>) -> Self {
        Self {
            blocks,
            cursor: None,
            taken: Taken {
                interface,
                of_flow,
                leads: matches!(interface, None | Some(0)),
                known: Known::default(),
            },
        }
    }

    /// Writes what is wanted of all blocks: each record is decoded once, which is most of the time of a
    /// search.
    fn write<W: Write>(
        &mut self,
        recording: u32,
        exporter: &mut Exporter<'_, W>,
    ) -> Result<(), ArchiveError> {
        while let Some(block) = self.next_block(exporter)? {
            for record in block.records() {
                self.taken.take(recording, &block, record, exporter)?;
            }
        }
        Ok(())
    }

    /// The next block, after the damage before it.
    fn next_block<W: Write>(
        &mut self,
        exporter: &mut Exporter<'_, W>,
    ) -> Result<Option<Block>, ArchiveError> {
        self.taken.known.set_share(FlowShare::ALL);
        loop {
            match self.blocks.next() {
                None => return Ok(None),
                Some(Ok(block)) => return Ok(Some(block)),
                Some(Err(StoreError::Damage(damage))) if self.taken.leads => {
                    exporter.damage(damage);
                }
                Some(Err(StoreError::Damage(_))) => {}
                Some(Err(error)) => return Err(error.into()),
            }
        }
    }

    /// Advances to the next relevant record, and returns when it arrived.
    fn head<W: Write>(
        &mut self,
        recording: u32,
        exporter: &mut Exporter<'_, W>,
    ) -> Result<Option<u64>, ArchiveError> {
        loop {
            match self.cursor.as_ref().map(Cursor::peek) {
                Some(Some(Head::Packet { ts_ns, interface }))
                    if self.taken.interface.is_none_or(|own| own == interface) =>
                {
                    return Ok(Some(ts_ns));
                }
                // `take` skips a packet of another interface.
                Some(Some(Head::Packet { .. })) => self.take(recording, exporter)?,
                Some(Some(Head::Other)) => return Ok(Some(0)),
                Some(None) => self.cursor = None,
                None => match self.next_block(exporter)? {
                    None => return Ok(None),
                    Some(block) => self.cursor = Some(Cursor::new(block)),
                },
            }
        }
    }

    /// Decodes the next record, and writes it if it is wanted.
    fn take<W: Write>(
        &mut self,
        recording: u32,
        exporter: &mut Exporter<'_, W>,
    ) -> Result<(), ArchiveError> {
        let Some(cursor) = &mut self.cursor else {
            return Ok(());
        };
        if let Some((block, record)) = cursor.advance() {
            self.taken.take(recording, block, record, exporter)?;
        }
        Ok(())
    }
}

impl Taken {
    /// Takes in a record of a block, and writes it if it is wanted.
    #[inline]
    fn take<W: Write>(
        &mut self,
        recording: u32,
        block: &Block,
        record: Result<Record<'_>, BadRecord>,
        exporter: &mut Exporter<'_, W>,
    ) -> Result<(), ArchiveError> {
        exporter.count_decoded();
        let known = &mut self.known;
        match record {
            Ok(Record::Packet(packet)) => {
                if self.interface.is_none_or(|own| own == packet.interface) {
                    let judged = known.of(&packet);
                    let of_flow = self.of_flow.as_mut();
                    exporter.packet(recording, &packet, &judged, Place::of(block), of_flow)?;
                }
            }
            Ok(Record::Verdict(id, verdict)) => {
                known.define(id, verdict);
            }
            Ok(Record::FlowShare(share)) => known.set_share(share),
            Ok(Record::Context(json)) => match Context::from_json(json) {
                Ok(context) => known.set_context(context),
                Err(problem) if self.leads => {
                    exporter.damage(damage(block, 0, problem));
                }
                Err(_) => {}
            },
            Ok(Record::Meta(meta)) if self.leads => exporter.meta(recording, meta)?,
            Err(bad) if self.leads => {
                exporter.damage(damage(block, bad.at, bad.problem.to_owned()));
            }
            Ok(Record::Meta(_)) | Err(_) => {}
        }
        Ok(())
    }
}

/// A packet of a block, and what is known of it: looked up for the few packets that are wanted.
pub(crate) struct OfBlock<'a> {
    known: &'a Known,
    verdict: u16,
    keep: KeepKind,
}

impl Known {
    /// Returns whether this is news: each block defines its verdicts again.
    pub(crate) fn define(&mut self, id: u16, verdict: VerdictRecord) -> bool {
        let place = usize::from(id);
        if self.verdicts.len() <= place {
            self.verdicts.resize(place + 1, None);
        }
        let known = &mut self.verdicts[place];
        let is_new = known.as_ref() != Some(&verdict);
        if is_new {
            *known = Some(verdict);
            self.origin = new_origin();
        }
        is_new
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn set_context(&mut self, context: Context) {
        if self.context != context {
            self.context = context;
            self.origin = new_origin();
        }
    }

    fn set_share(&mut self, share: FlowShare) {
        if self.share != share {
            self.share = share;
            self.origin = new_origin();
        }
    }

    pub(crate) fn of(&self, packet: &PacketRecord<'_>) -> OfBlock<'_> {
        OfBlock {
            known: self,
            verdict: packet.verdict,
            keep: packet.keep,
        }
    }
}

impl OfBlock<'_> {
    fn verdict(&self) -> Option<&VerdictRecord> {
        let known = self.known.verdicts.get(usize::from(self.verdict));
        known.and_then(Option::as_ref)
    }
}

impl Judgement for OfBlock<'_> {
    fn class(&self) -> Option<&str> {
        self.verdict().map(|verdict| {
            let classes = &self.known.context.classes;
            let class = classes.get(usize::from(verdict.class));
            class.map_or("unknown", String::as_str)
        })
    }

    fn score(&self) -> Option<f64> {
        let verdict = self.verdict()?;
        (verdict.trees != Trees::None).then(|| f64::from(verdict.score) / 65_535.0)
    }

    fn granularity(&self) -> &str {
        self.keep.name()
    }

    fn reason(&self) -> Cow<'_, str> {
        reason(self.verdict(), &self.known.context).into()
    }

    fn mode(&self) -> &str {
        &self.known.context.mode
    }

    fn flow_share(&self) -> f64 {
        self.known.share.ratio()
    }

    fn key(&self) -> Option<JudgementKey> {
        Some(JudgementKey {
            origin: self.known.origin,
            numbers: [self.verdict.into(), self.keep.code().into(), 0, 0],
            values: [0; 2],
        })
    }
}

/// Damage at an offset in a block's records.
fn damage(block: &Block, at: usize, problem: String) -> Damage {
    Damage {
        file: block.file.clone(),
        offset: block.records_at() + at as u64,
        problem,
        missing: None,
    }
}

/// A compacted packet as a record.
fn record<'a>(packet: &Waiting<'a>) -> PacketRecord<'a> {
    PacketRecord {
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
    }
}

impl Waiting<'_> {
    /// Its class, granularity, reason or mode: one of 4.
    fn text(&self, which: usize) -> &str {
        std::str::from_utf8(self.texts[which]).unwrap_or("damaged")
    }
}

impl Judgement for Waiting<'_> {
    fn class(&self) -> Option<&str> {
        // A packet whose verdict was lost has no class.
        (self.texts[2] != b"not-recorded").then(|| self.text(0))
    }

    fn score(&self) -> Option<f64> {
        // Scores were stored in 65,535ths.
        let stored = |score: f32| (f64::from(score) * 65_535.0).round() / 65_535.0;
        self.score.map(stored)
    }

    fn granularity(&self) -> &str {
        self.text(1)
    }

    fn reason(&self) -> Cow<'_, str> {
        self.text(2).into()
    }

    fn mode(&self) -> &str {
        self.text(3)
    }

    fn flow_share(&self) -> f64 {
        f64::from(self.flow_share)
    }

    fn key(&self) -> Option<JudgementKey> {
        self.key
    }
}
