//! The last stage: records in a block.

use std::ops::Range;

use strata_blocks::{
    BlockBuilder, PACKET_HEADER_LEN, PREFIX_LEN, PROMOTION_HEADER_LEN, PacketRecord, PacketRun,
    Promotion, Sink, SinkError, Trees,
};
use strata_capture::{PacketRef, Packets};
use strata_sketch::Level;
use strata_wire::wide::WIDE;
use strata_wire::{
    DropReason, FlowHasher, FlowShare, Headers, KeepKind, Ledger, Meta, clamped, exact,
};

use super::batch::{Batch, Chosen, is_in};
use super::classes::ByClass;
use super::parse::Source;
use crate::classifier::Classifier;
use crate::reasons::Reasons;
use crate::stage::triggers::lookback::Cut;

mod handover;

/// Space kept free in a block for definitions next to a packet: a verdict of 256 trees and a plain
/// interface. Larger ones make their block grow.
const DEFINITIONS_LEN: usize = 2048;

/// Fills blocks and hands them to the writer, and counts what becomes of their packets.
#[derive(Debug)]
pub(crate) struct RecordStage {
    sink: Box<dyn Sink>,
    block: Box<BlockBuilder>,
    next_seq: u64,
    /// What blocks say about the plan.
    context_json: Vec<u8>,
    /// The share of flows that is captured, where it may be less than all.
    flow_share: Option<FlowShare>,
    /// Of the addresses in a block's summary.
    hasher: FlowHasher,
    /// Without the packets in `block`.
    ledger: Ledger,
    by_class: ByClass,
    write_error: Option<SinkError>,
    /// Why nothing more is written, if so.
    ended_by: Option<DropReason>,
    blocks_handed_over: u64,
    /// The value of `blocks_handed_over` at the last [`RecordStage::flush_old`].
    blocks_at_flush: u64,
}

/// What a block's definitions are made of, which other stages own.
#[derive(Clone, Copy)]
pub(crate) struct Definitions<'a> {
    pub(crate) sources: &'a [Source],
    pub(crate) classifier: &'a Classifier,
    pub(crate) reasons: &'a Reasons,
}

/// Packets of a batch while they are recorded.
pub(crate) struct Recording<'a, P: ?Sized> {
    chosen: Chosen<'a, P>,
    pub(crate) data: &'a [&'a [u8]; WIDE],
    pub(crate) interface: u16,
    ascends: bool,
    /// The next packet.
    next: usize,
    /// How many of those before it are not plain.
    others: usize,
    /// How many from it on are to be recorded, as far as that is decided.
    pub(crate) pending: u64,
}

impl<'a, P: Packets + ?Sized> Recording<'a, P> {
    /// Begins with the first. `ascends` says whether no packet is earlier than the one before.
    pub(crate) fn new(
        chosen: Chosen<'a, P>,
        data: &'a [&'a [u8]; WIDE],
        (interface, ascends): (u16, bool),
    ) -> Self {
        Self {
            chosen,
            data,
            interface,
            ascends,
            next: 0,
            others: 0,
            pending: 0,
        }
    }

    /// How many packets there are.
    pub(crate) fn count(&self) -> usize {
        self.chosen.len()
    }

    /// Skips those that are not plain and come before a packet: they are not recorded.
    fn skip_others(&mut self, batch: &Batch, at: usize) {
        let others = &batch.others;
        while others
            .get(self.others)
            .is_some_and(|(other, _)| *other < at)
        {
            self.others += 1;
        }
    }
}

/// A packet to be recorded, as the stages before have left it.
pub(crate) struct ToRecord<'a> {
    pub(crate) packet: &'a PacketRef<'a>,
    pub(crate) class: u8,
    pub(crate) keep: KeepKind,
    pub(crate) kept_len: u32,
    /// The number of its verdict and who decided.
    pub(crate) reason: u16,
    /// Up to the end of its headers, or what stands for them.
    pub(crate) header_len: u32,
    pub(crate) fingerprint: u64,
    pub(crate) ends: Ends<'a>,
}

/// Where a packet's addresses are.
pub(crate) enum Ends<'a> {
    /// Of a plain packet.
    Plain([u32; 2]),
    Other(&'a Headers),
}

impl RecordStage {
    /// # Panics
    ///
    /// If the sink was used before.
    pub(crate) fn new(mut sink: Box<dyn Sink>, hasher: FlowHasher, classes: usize) -> Self {
        Self {
            block: sink.take().expect("a new sink has free blocks"),
            sink,
            next_seq: 0,
            context_json: Vec::new(),
            flow_share: None,
            hasher,
            ledger: Ledger::default(),
            by_class: ByClass::new(classes),
            write_error: None,
            ended_by: None,
            blocks_handed_over: 0,
            blocks_at_flush: 0,
        }
    }

    /// The number of the next packet.
    #[inline(always)]
    pub(crate) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Records another plan from now on.
    pub(crate) fn adopt(&mut self, context_json: Vec<u8>) {
        self.context_json = context_json;
        self.block.forget_context();
    }

    /// Records what share of flows the packets to come belong to.
    pub(crate) fn captured(&mut self, share: FlowShare) {
        self.flow_share = Some(share);
        self.block.look_again();
    }

    /// Records what an input says about itself.
    pub(crate) fn meta(&mut self, meta: &Meta) -> Result<(), SinkError> {
        let room = BlockBuilder::meta_len(meta);
        if self.block.room() < room + DEFINITIONS_LEN && !self.block.is_empty() {
            self.next_block()?;
        }
        self.block.push_meta(meta);
        Ok(())
    }

    /// Records of a batch's packets before `end` that have none yet.
    pub(crate) fn columns<P: Packets + ?Sized>(
        &mut self,
        batch: &Batch,
        recording: &mut Recording<'_, P>,
        end: usize,
        definitions: Definitions<'_>,
    ) -> Result<(), SinkError> {
        while recording.next < end {
            self.run(batch, recording, end, definitions);
            let at = recording.next;
            if at < end {
                // It refers to what is not defined yet, or does not fit.
                self.single(batch, recording, at, definitions)?;
                recording.next += 1;
            }
        }
        recording.pending = 0;
        Ok(())
    }

    /// Records of packets before `end`, as long as they need no check of their own.
    fn run<P: Packets + ?Sized>(
        &mut self,
        batch: &Batch,
        recording: &mut Recording<'_, P>,
        end: usize,
        definitions: Definitions<'_>,
    ) {
        let columns = &batch.columns;
        let run = PacketRun {
            interface: recording.interface,
            count: end,
            data: recording.data,
            ts_ns: &columns.ts_ns,
            ascends: recording.ascends,
            wire_len: &columns.wire_len,
            captured_len: &columns.captured_len,
            header_len: &batch.header_end,
            kept_len: &batch.kept_len,
            verdicts: &batch.verdicts,
            kinds: &batch.kinds,
            recorded: &batch.recorded,
        };
        let define = |block: &mut BlockBuilder, reason| define_reason(block, definitions, reason);
        let from = (recording.next, self.next_seq);
        let (stopped, count) = self
            .block
            .push_run(batch.simd, &run, from, DEFINITIONS_LEN, define);
        let lanes = recording.next..stopped;
        recording.next = stopped;
        self.next_seq += count;
        let is_whole = count == lanes.len() as u64;
        recording.skip_others(batch, lanes.start);
        let mut noted = lanes.start;
        let others = &batch.others;
        while let Some((at, headers)) = others
            .get(recording.others)
            .filter(|(at, _)| *at < lanes.end)
        {
            self.note_plain(batch, noted..*at, is_whole);
            noted = at + 1;
            recording.others += 1;
            if !is_in(&batch.recorded, *at) {
                continue;
            }
            let keeps_all = batch.kinds[*at] >> 8 == u32::from(KeepKind::Full.code());
            let kept = (keeps_all, batch.kept_len[*at]);
            self.note_headers(headers, columns.fingerprint[*at], kept);
        }
        self.note_plain(batch, noted..lanes.end, is_whole);
    }

    /// Stores the flows of plain packets: of those that are recorded, if not all are.
    #[inline]
    fn note_plain(&mut self, batch: &Batch, lanes: Range<usize>, is_whole: bool) {
        let columns = &batch.columns;
        let mut note = |lanes: Range<usize>| {
            let flows = &columns.fingerprint[lanes.clone()];
            let ends = (&columns.source[lanes.clone()], &columns.destination[lanes]);
            self.block.note_plain_run(flows, ends.0, ends.1);
        };
        if is_whole {
            note(lanes);
        } else {
            let recorded = lanes.filter(|&at| is_in(&batch.recorded, at));
            recorded.for_each(|at| note(at..at + 1));
        }
    }

    /// Stores the flow of a packet that is not plain, of which all is kept, or this many bytes.
    #[inline(always)]
    fn note_headers(
        &mut self,
        headers: &Headers,
        fingerprint: u64,
        (keeps_all, kept_len): (bool, u32),
    ) {
        if headers.has_no_network() && !keeps_all {
            self.ledger.header_fallback.add(u64::from(kept_len));
        }
        self.block.note_headers(headers, fingerprint, &self.hasher);
    }

    /// The record of one packet of a batch.
    #[inline(never)]
    fn single<P: Packets + ?Sized>(
        &mut self,
        batch: &Batch,
        recording: &mut Recording<'_, P>,
        at: usize,
        definitions: Definitions<'_>,
    ) -> Result<(), SinkError> {
        recording.skip_others(batch, at);
        let columns = &batch.columns;
        let other = batch.others.get(recording.others);
        let ends = match other.filter(|(other, _)| *other == at) {
            Some((_, headers)) => {
                recording.others += 1;
                Ends::Other(headers)
            }
            None => Ends::Plain([columns.source[at], columns.destination[at]]),
        };
        let [class, code, ..] = batch.kinds[at].to_le_bytes();
        let of = ToRecord {
            packet: &recording.chosen.get(at),
            class,
            keep: KeepKind::of_flags(code),
            kept_len: batch.kept_len[at],
            reason: batch.verdicts[at],
            header_len: batch.header_end[at],
            fingerprint: columns.fingerprint[at],
            ends,
        };
        self.packet(&of, definitions)
    }

    /// The record of one packet.
    #[inline(always)]
    pub(crate) fn packet(
        &mut self,
        of: &ToRecord<'_>,
        definitions: Definitions<'_>,
    ) -> Result<(), SinkError> {
        let (packet, reason) = (of.packet, of.reason);
        let data = &packet.data[..of.kept_len as usize];
        let needed = PACKET_HEADER_LEN + data.len() + PREFIX_LEN + packet.options.len();
        if self.block.room() < needed + DEFINITIONS_LEN {
            self.room_for(needed + DEFINITIONS_LEN)?;
        }
        if !self.block.defines(packet.interface, reason) {
            self.define(packet.interface, reason, definitions);
            if self.block.room() < needed {
                // A large definition has taken the space.
                self.block.grow(needed);
            }
        }
        let record = PacketRecord {
            ts_ns: packet.ts_ns,
            seq: self.next_seq,
            wire_len: packet.wire_len,
            captured_len: exact::<u32>(packet.data.len()),
            // As far as a record has bits for it.
            header_len: clamped::<u16>(of.header_len),
            interface: packet.interface,
            verdict: reason,
            keep: of.keep,
            has_timestamp: packet.has_timestamp,
            data,
            options: packet.options,
        };
        self.block.push_packet(&record, of.class);
        self.next_seq += 1;
        // For the block's summary.
        match of.ends {
            Ends::Plain(ends) => self.block.note_plain(of.fingerprint, ends),
            Ends::Other(headers) => {
                let kept = (of.keep == KeepKind::Full, of.kept_len);
                self.note_headers(headers, of.fingerprint, kept);
            }
        }
        Ok(())
    }

    /// Makes room for what follows a packet that is in the log already.
    pub(crate) fn room_to_promote(&mut self, packet: &Cut<'_>) -> Result<(), SinkError> {
        let needed = PROMOTION_HEADER_LEN + packet.data.len() + DEFINITIONS_LEN;
        if self.block.room() < needed {
            self.room_for(needed)?;
        }
        Ok(())
    }

    /// The rest of a packet that is in the log already, after [`RecordStage::room_to_promote`].
    pub(crate) fn promote(&mut self, packet: &Cut<'_>, reason: u16, definitions: Definitions<'_>) {
        define_reason(&mut self.block, definitions, reason);
        self.block.push_promotion(&Promotion {
            seq: packet.seq,
            class: packet.class,
            keep: packet.keep,
            kept_len: packet.kept_len,
            wire_len: packet.wire_len,
            verdict: Some(reason),
            data: packet.data,
        });
    }

    /// Defines in the block what a packet record refers to.
    #[inline(never)]
    fn define(&mut self, interface: u16, reason: u16, definitions: Definitions<'_>) {
        if self.block.needs_context() {
            self.block.define_context(&self.context_json);
        }
        if let Some(share) = self.flow_share {
            self.block.define_flow_share(share);
        }
        if self.block.needs_interface(interface) {
            let source = &definitions.sources[usize::from(interface)];
            self.block.define_interface(interface, &source.interface);
        }
        define_reason(&mut self.block, definitions, reason);
        self.block.refer_to(interface);
    }
}

/// Defines in a block who decided about a packet, and its verdict.
fn define_reason(block: &mut BlockBuilder, definitions: Definitions<'_>, reason: u16) {
    if !block.needs_verdict(reason) {
        return;
    }
    let (verdict, decider, has_leaves) = definitions.reasons.resolve(reason);
    let known = definitions.classifier.verdict(verdict);
    let trees = match known.level {
        None => Trees::None,
        Some(Level::Packet) => Trees::Packet,
        Some(Level::Flow) => Trees::Flow,
    };
    let leaves: &[u16] = if has_leaves { &known.leaves } else { &[] };
    let fixed = (known.class, trees, known.score);
    block.define_decided(reason, fixed, leaves, decider);
}
