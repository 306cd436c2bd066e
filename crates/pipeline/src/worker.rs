//! One worker: a batch of packets in, records in a block out.

use strata_capture::live::{CutTable, LiveError};
use strata_capture::{CaptureError, Input, Interface, Meta, Next, PacketRef, Packets};
use strata_classify::{LANES, Model, VerdictId};
use strata_filter::{Filter, Program};
use strata_sketch::{Level, PacketFacts, Pressure};
use strata_store::{
    BlockBuilder, BlockSink, BlockTally, PACKET_HEADER_LEN, PREFIX_LEN, PacketRecord, StoreError,
    Written,
};
use strata_wire::dissect::may_hide_addresses;
use strata_wire::{
    DropReason, FlowHasher, FlowKey, Granularity, Headers, Keep, Ledger, LinkType, Outcome, Plain,
    Tally, TunnelKey, join, mix64, prefetch,
};

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::budget::Budget;
use crate::classifier::{Classifier, bits};
use crate::flows::{FlowFinder, wire_bytes};
use crate::mode::{Mode, ModeError};
use crate::plan::{Follower, Plan, Steering};
use crate::policing::{Policing, fields, plain_fields};

/// Room that is kept free in a block for definitions beside a packet: a verdict
/// of 256 trees and a plain interface. Larger ones make their block grow.
const DEFINITIONS_LEN: usize = 2048;

/// How a worker works.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// The active modes: each is a demand on every packet.
    pub modes: Vec<Mode>,
    /// Which packets are captured at all; `None` for all.
    pub filter: Option<Filter>,
    /// Whose flow a tunnelled packet belongs to.
    pub tunnel_key: TunnelKey,
    /// Key of flow fingerprints.
    pub hash_seed: [u64; 2],
    /// Chooses the sample of sampled granularities.
    pub sampling_seed: u64,
}

/// Why recording ended early. What was recorded before is in the log.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The input cannot be read further.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// An interface cannot be captured further.
    #[error(transparent)]
    Live(#[from] LiveError),
    /// The log cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What one class gets.
#[derive(Clone, Debug)]
pub(crate) enum Demand {
    /// The same for every packet.
    Always(Outcome),
    /// Sampled: decided packet by packet.
    Sampled(Vec<Granularity>),
}

/// One interface of the input and what the filter means on it.
#[derive(Debug)]
struct Source {
    interface: Interface,
    /// `None` if there is no filter; `Err` if it cannot be applied to this link
    /// type, so that no packet of it matches.
    filter: Option<Result<Program, String>>,
    /// Its number in the rules of the policies.
    rules_number: u8,
}

/// A worker. It owns everything it touches.
#[derive(Debug)]
pub struct Worker {
    options: WorkerOptions,
    classifier: Classifier,
    demands: Vec<Demand>,
    /// `None` if policies change nothing.
    policing: Option<Box<Policing>>,
    follower: Option<Follower>,
    sampling_hasher: FlowHasher,
    /// Chooses which packets are sampled, as `sampling_hasher` which flows.
    sampling_key: u64,
    flows: FlowFinder,
    sources: Vec<Source>,
    context_json: Vec<u8>,
    sink: BlockSink,
    block: Box<BlockBuilder>,
    /// Without the packets of `block`.
    ledger: Ledger,
    next_seq: u64,
    packet_number: u64,
    write_error: Option<StoreError>,
    /// How many packets are still wanted; `None` for all that come.
    budget: Option<Arc<Budget>>,
    /// Where the kernel looks up how much of a packet is enough.
    cut: Option<CutTable>,
    blocks_handed_over: u64,
    /// What `blocks_handed_over` was at the last [`Worker::flush_old`].
    blocks_at_flush: u64,
    lanes: Box<Lanes>,
}

/// The packets of a batch between the stages; sets of lanes are masks.
#[derive(Debug)]
struct Lanes {
    facts: [PacketFacts; LANES],
    /// Bytes up to the end of the headers.
    header_len: [u32; LANES],
    /// Of lanes in `is_plain`.
    plain: [Plain; LANES],
    /// Of the other lanes.
    headers: Box<[Headers; LANES]>,
    /// Passed the filter.
    wanted: u64,
    is_plain: u64,
    /// Has a flow, so that it can be classified.
    dissected: u64,
    /// Of lanes in `wanted`, the place among the packets that policies have seen.
    policed: [u8; LANES],
}

impl Lanes {
    fn new() -> Self {
        Self {
            facts: [PacketFacts::default(); LANES],
            header_len: [0; LANES],
            plain: [Plain::default(); LANES],
            headers: Box::new([Headers::default(); LANES]),
            wanted: 0,
            is_plain: 0,
            dissected: 0,
            policed: [0; LANES],
        }
    }

    fn headers(&self, lane: usize) -> Headers {
        if self.is_plain & 1 << lane != 0 {
            self.plain[lane].headers()
        } else {
            self.headers[lane]
        }
    }
}

impl Worker {
    /// A worker that records into `sink`.
    ///
    /// # Errors
    ///
    /// If a mode names a class that the model does not have.
    ///
    /// # Panics
    ///
    /// If the sink was used before.
    pub fn new(
        model: &Model,
        options: WorkerOptions,
        mut sink: BlockSink,
    ) -> Result<Self, ModeError> {
        let plan = Plan::new(model, &options.modes)?;
        let block = sink.take().expect("a new sink has free blocks");
        let mut worker = Self {
            classifier: Classifier::new(model),
            demands: Vec::new(),
            policing: None,
            follower: None,
            sampling_hasher: FlowHasher::new([options.sampling_seed, 0x5354_5241_5441]),
            sampling_key: mix64(options.sampling_seed ^ 0x5354_5241),
            flows: FlowFinder::new(options.hash_seed, options.tunnel_key),
            sources: Vec::new(),
            context_json: Vec::new(),
            sink,
            block,
            ledger: Ledger::default(),
            next_seq: 0,
            packet_number: 0,
            write_error: None,
            budget: None,
            cut: None,
            blocks_handed_over: 0,
            blocks_at_flush: 0,
            lanes: Box::new(Lanes::new()),
            options,
        };
        worker.adopt(&plan);
        Ok(worker)
    }

    /// Goes on with the plan that is published, from the next batch on and whenever it
    /// changes, instead of with the modes it was made with.
    pub fn follow(&mut self, steering: Arc<Steering>) {
        self.follower = Some(Follower::new(steering));
    }

    /// Goes on with another plan.
    fn adopt(&mut self, plan: &Plan) {
        self.publish_hits();
        self.demands = plan.demands.iter().cloned().map(Demand::new).collect();
        self.context_json.clone_from(&plan.context_json);
        self.block.forget_context();
        self.policing = plan.policies.clone().map(|policies| {
            let seed = self.options.hash_seed[0];
            Box::new(Policing::new(policies, plan.demands.clone(), seed))
        });
        self.name_interfaces();
    }

    /// Finds the numbers of interfaces in the rules of the policies.
    fn name_interfaces(&mut self) {
        for source in &mut self.sources {
            let name = source.interface.name();
            let policing = self.policing.as_ref();
            source.rules_number = policing.map_or(0, |policing| policing.interface(name));
        }
    }

    /// Adds what the policies were applied to since the last call to their hits.
    pub fn publish_hits(&mut self) {
        if let Some(policing) = &mut self.policing {
            policing.publish();
        }
    }

    /// Tells the kernel which packets need not come whole.
    pub fn cut_with(&mut self, table: CutTable) {
        self.cut = Some(table);
    }

    /// Books packets that the kernel has left out by the capture filter.
    pub fn count_filtered(&mut self, filtered: Tally) {
        self.ledger.seen.merge(filtered);
        self.ledger.filtered.merge(filtered);
    }

    /// Takes no more packets than a budget has, which other workers may share.
    pub fn limit(&mut self, budget: Arc<Budget>) {
        self.budget = Some(budget);
    }

    /// Whether as many packets as were wanted have been taken.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.budget.as_ref().is_some_and(|budget| budget.is_spent())
    }

    /// The books so far.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        let mut ledger = self.ledger;
        // The block at hand is added up when it is asked for or handed over.
        in_flight(&mut ledger, &self.block.tally());
        ledger
    }

    /// The classifier.
    #[must_use]
    pub fn classifier(&self) -> &Classifier {
        &self.classifier
    }

    /// Pressure on the sketch's buckets so far.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        self.classifier.pressure()
    }

    /// Link types on which the filter cannot be applied, and why.
    #[must_use]
    pub fn filter_problems(&self) -> Vec<(LinkType, String)> {
        let mut problems = Vec::new();
        for source in &self.sources {
            if let Some(Err(problem)) = &source.filter {
                let entry = (source.interface.link, problem.clone());
                if !problems.contains(&entry) {
                    problems.push(entry);
                }
            }
        }
        problems
    }

    /// Why the filter cannot be applied to any interface so far; `None` if it can
    /// be to one, or there is none.
    #[must_use]
    pub fn filter_fits_nowhere(&self) -> Option<String> {
        let mut problem = None;
        for source in &self.sources {
            match &source.filter {
                Some(Err(error)) => problem = Some(error.clone()),
                _ => return None,
            }
        }
        problem
    }

    /// Records what an input says about itself.
    ///
    /// # Errors
    ///
    /// If the log cannot be written.
    pub fn meta(&mut self, meta: Meta) -> Result<(), StoreError> {
        let room = BlockBuilder::meta_len(&meta);
        if self.block.room() < room + DEFINITIONS_LEN && !self.block.is_empty() {
            self.next_block()?;
        }
        self.block.push_meta(&meta);
        if let Meta::Interface { id, interface } = meta {
            let filter = self.options.filter.as_ref();
            let filter = filter.map(|f| f.compile(interface.link).map_err(|e| e.to_string()));
            let source = Source {
                interface,
                filter,
                rules_number: 0,
            };
            // Ids are dense and come in order.
            let index = usize::from(id);
            if index < self.sources.len() {
                self.sources[index] = source;
            } else {
                self.sources.push(source);
            }
            self.name_interfaces();
        }
        Ok(())
    }

    /// Classifies and records a batch.
    ///
    /// # Errors
    ///
    /// If the log cannot be written. The books hold every packet of the batch,
    /// unless the writer thread itself is gone.
    pub fn batch(&mut self, batch: &(impl Packets + ?Sized)) -> Result<(), StoreError> {
        let Some(budget) = self.budget.clone() else {
            return self.batch_at_most(batch, u64::MAX);
        };
        let most = budget.draw(batch.len() as u64);
        let before = self.passed();
        let done = self.batch_at_most(batch, most);
        budget.give_back(most - (self.passed() - before));
        done
    }

    /// Packets that have passed the filter.
    fn passed(&self) -> u64 {
        self.ledger.seen.packets - self.ledger.filtered.packets
    }

    /// As [`Worker::batch`], until so many packets have passed the filter: those
    /// behind are not seen.
    fn batch_at_most(
        &mut self,
        batch: &(impl Packets + ?Sized),
        most: u64,
    ) -> Result<(), StoreError> {
        if let Some(plan) = self.follower.as_mut().and_then(Follower::news) {
            self.adopt(&plan);
        }
        let end = self.passed().saturating_add(most);
        let mut start = 0;
        for index in 0..batch.len().min(LANES) {
            fetch(batch, index, 0);
            fetch(batch, index, 1);
        }
        while start < batch.len() && self.passed() < end {
            let left = usize::try_from(end - self.passed()).unwrap_or(usize::MAX);
            let count = (batch.len() - start).min(LANES).min(left);
            self.lanes(batch, start, count)?;
            if let Some(follower) = &mut self.follower {
                follower.treated();
            }
            start += count;
        }
        let progress = self.sink.progress();
        progress.next_seq.store(self.next_seq, Ordering::Relaxed);
        let seen = self.ledger.seen;
        progress.seen_packets.store(seen.packets, Ordering::Relaxed);
        progress.seen_bytes.store(seen.bytes, Ordering::Relaxed);
        while let Some(written) = self.sink.poll() {
            self.account(written);
        }
        self.write_error.take().map_or(Ok(()), Err)
    }

    fn lanes(
        &mut self,
        batch: &(impl Packets + ?Sized),
        start: usize,
        count: usize,
    ) -> Result<(), StoreError> {
        self.lanes.wanted = 0;
        self.lanes.is_plain = 0;
        self.lanes.dissected = 0;
        for lane in 0..count {
            // Two lines hold the headers of the packets to come. One is fetched
            // here and one below, since the CPU waits when it is asked for more
            // than a dozen or two at a time.
            fetch(batch, start + LANES + lane, 0);
            self.look(lane, &batch.get(start + lane));
        }
        if self.policing.is_some() {
            self.apply_policies(batch, start);
        }
        let facts = &self.lanes.facts[..count];
        self.classifier.classify(facts, self.lanes.dissected);
        for lane in bits(self.lanes.wanted) {
            fetch(batch, start + LANES + lane, 1);
            let verdict = self.classifier.classified()[lane];
            self.record(lane, &batch.get(start + lane), verdict)?;
        }
        Ok(())
    }

    /// Finds the policies of the batch's packets, and discards those that no one wants before
    /// they cost more.
    #[inline(never)]
    fn apply_policies(&mut self, batch: &(impl Packets + ?Sized), start: usize) {
        let Some(policing) = &mut self.policing else {
            return;
        };
        let lanes = &mut *self.lanes;
        policing.begin();
        for lane in bits(lanes.wanted) {
            let packet = batch.get(start + lane);
            let source = &self.sources[usize::from(packet.interface)];
            let number = source.rules_number;
            lanes.policed[lane] = policing.push(if lanes.is_plain & 1 << lane != 0 {
                plain_fields(&lanes.plain[lane], number)
            } else {
                fields(&lanes.headers[lane], source.interface.link, &packet, number)
            });
        }
        policing.classify();
        for lane in bits(lanes.wanted) {
            let bytes = wire_bytes(&batch.get(start + lane));
            if policing.discards(lanes.policed[lane], bytes) {
                lanes.wanted &= !(1 << lane);
                lanes.dissected &= !(1 << lane);
                self.ledger.discarded.add(bytes);
            }
        }
    }

    /// Filter, headers and flow of one packet.
    #[inline(always)]
    fn look(&mut self, lane: usize, packet: &PacketRef<'_>) {
        self.ledger.seen.add(wire_bytes(packet));
        let source = &self.sources[usize::from(packet.interface)];
        if let Some(program) = &source.filter {
            let wanted = match program {
                Ok(program) => program.matches(packet.data, packet.wire_len),
                Err(_) => false,
            };
            if !wanted {
                self.ledger.filtered.add(wire_bytes(packet));
                return;
            }
        }
        let lanes = &mut *self.lanes;
        let bit = 1 << lane;
        lanes.wanted |= bit;
        let Some((plain, facts)) = self.flows.find_plain(source.interface.link, packet) else {
            self.look_closely(lane, packet);
            return;
        };
        self.classifier.prefetch(facts.fingerprint);
        lanes.header_len[lane] = u32::from(plain.header_len());
        lanes.plain[lane] = plain;
        lanes.facts[lane] = facts;
        lanes.is_plain |= bit;
        lanes.dissected |= bit;
    }

    /// Headers and flow of a packet that is not plain.
    #[inline(never)]
    fn look_closely(&mut self, lane: usize, packet: &PacketRef<'_>) {
        let link = self.sources[usize::from(packet.interface)].interface.link;
        let (headers, facts) = self.flows.find(link, packet);
        self.lanes.header_len[lane] = headers.header_len;
        self.lanes.headers[lane] = headers;
        if let Some(facts) = facts {
            self.classifier.prefetch(facts.fingerprint);
            self.lanes.facts[lane] = facts;
            self.lanes.dissected |= 1 << lane;
        }
    }

    /// Granularity and record of one packet.
    #[inline(always)]
    fn record(
        &mut self,
        lane: usize,
        packet: &PacketRef<'_>,
        verdict: VerdictId,
    ) -> Result<(), StoreError> {
        let class = self.classifier.class(verdict);
        self.packet_number += 1;
        let demand = match &self.policing {
            None => &self.demands[usize::from(class)],
            Some(policing) => policing.demand(self.lanes.policed[lane], usize::from(class)),
        };
        let outcome = match demand {
            Demand::Always(outcome) => *outcome,
            Demand::Sampled(demands) => {
                let key = self.lanes.headers(lane).key.unwrap_or_default();
                let number = self.packet_number ^ self.sampling_key;
                join(demands, number, self.sampling_hasher.flow(&key))
            }
        };
        let keep = match outcome {
            Outcome::Log(keep) => keep,
            Outcome::SampledOut => {
                self.ledger.sampled_out.add(wire_bytes(packet));
                return Ok(());
            }
            Outcome::Discard => {
                self.ledger.discarded.add(wire_bytes(packet));
                return Ok(());
            }
        };
        let captured_len = u32::try_from(packet.data.len()).unwrap_or(u32::MAX);
        let header_len = self.lanes.header_len[lane];
        if self.cut.is_some() {
            self.mind_the_cut(lane, packet, keep, verdict);
        }
        let kept = keep.kept_len(header_len, captured_len);
        let data = &packet.data[..kept as usize];

        let needed = PACKET_HEADER_LEN + data.len() + PREFIX_LEN + packet.options.len();
        if self.block.room() < needed + DEFINITIONS_LEN {
            self.room_for(needed + DEFINITIONS_LEN)?;
        }
        if !self.block.defines(packet.interface, verdict) {
            self.define(packet.interface, verdict);
            if self.block.room() < needed {
                // A large definition has taken the room.
                self.block.grow(needed);
            }
        }
        let record = PacketRecord {
            ts_ns: packet.ts_ns,
            seq: self.next_seq,
            wire_len: packet.wire_len,
            captured_len,
            header_len: u16::try_from(header_len).unwrap_or(u16::MAX),
            interface: packet.interface,
            verdict,
            keep_code: keep.code(),
            has_timestamp: packet.has_timestamp,
            data,
            options: packet.options,
        };
        self.block.push_packet(&record, class);
        self.next_seq += 1;
        if self.lanes.is_plain & 1 << lane == 0 {
            self.note(lane);
        } else {
            let plain = &self.lanes.plain[lane];
            let ends = [plain.source, plain.destination];
            self.block
                .note_plain(self.lanes.facts[lane].fingerprint, ends);
        }
        Ok(())
    }

    /// Tells the kernel how much of the flow's packets is enough, and notices what
    /// it cut too short.
    #[inline(never)]
    fn mind_the_cut(
        &mut self,
        lane: usize,
        packet: &PacketRef<'_>,
        keep: Keep,
        verdict: VerdictId,
    ) {
        let header_len = self.lanes.header_len[lane];
        let snaplen = self.sources[usize::from(packet.interface)]
            .interface
            .snaplen;
        let wanted = keep.kept_len(header_len, packet.wire_len.min(snaplen));
        if (packet.data.len() as u64) < u64::from(wanted) {
            self.ledger.wanted_but_cut.add(wire_bytes(packet));
        }
        let (Some(cut), Some(key)) = (&self.cut, self.lanes.headers(lane).key) else {
            return;
        };
        match keep {
            Keep::Full => cut.keep_whole(&key),
            // What the packet alone says is no verdict on its flow.
            _ if self.classifier.verdict(verdict).level != Some(Level::Flow) => {}
            // Headers of other packets of the flow may be longer, with TCP options.
            _ => cut.cut(&key, u16::try_from(wanted + 64).unwrap_or(u16::MAX / 2)),
        }
    }

    /// Notes for the block's summary whose packet this is, which is not plain.
    #[inline(never)]
    fn note(&mut self, lane: usize) {
        let headers = &self.lanes.headers[lane];
        if may_hide_addresses(headers) || headers.key.is_none() {
            self.block.note_hidden_addresses();
        }
        let Some(key) = &headers.key else {
            return;
        };
        let fingerprint = self.lanes.facts[lane].fingerprint;
        let mut identity = fingerprint;
        if let Some(outer) = &headers.outer {
            identity ^= mix64(self.flows.hasher().flow(outer));
        }
        if self.block.noted_recently(identity) {
            return;
        }
        self.block.note(fingerprint);
        let hasher = self.flows.hasher();
        let mut note_ends = |key: &FlowKey| {
            for end in [key.low, key.high] {
                self.block.note(hasher.address(key.family, end.address));
            }
        };
        note_ends(key);
        if let Some(outer) = &headers.outer {
            note_ends(outer);
        }
    }

    /// Defines in the block what a packet record refers to.
    #[inline(never)]
    fn define(&mut self, interface: u16, verdict: VerdictId) {
        if self.block.needs_context() {
            self.block.define_context(&self.context_json);
        }
        if self.block.needs_interface(interface) {
            let source = &self.sources[usize::from(interface)];
            self.block.define_interface(interface, &source.interface);
        }
        if self.block.needs_verdict(verdict) {
            let known = self.classifier.verdict(verdict);
            let level = match known.level {
                None => 0,
                Some(Level::Packet) => 1,
                Some(Level::Flow) => 2,
            };
            self.block
                .define_verdict(verdict, known.class, level, known.score, &known.leaves);
        }
        self.block.refer_to(interface);
    }

    #[cold]
    fn room_for(&mut self, needed: usize) -> Result<(), StoreError> {
        if !self.block.is_empty() {
            self.next_block()?;
        }
        self.block.grow(needed);
        Ok(())
    }

    /// Hands the block to the writer and waits for an empty one: a file can wait.
    fn next_block(&mut self) -> Result<(), StoreError> {
        while let Some(written) = self.sink.poll() {
            self.account(written);
        }
        let empty = loop {
            if let Some(block) = self.sink.take() {
                break block;
            }
            match self.sink.wait()? {
                Some(written) => self.account(written),
                None => return Err(StoreError::WriterGone),
            }
        };
        self.blocks_handed_over += 1;
        let full = std::mem::replace(&mut self.block, empty);
        in_flight(&mut self.ledger, &full.tally());
        self.sink.submit(full)
    }

    /// Moves a block's packets from `in_flight` to where they ended.
    fn account(&mut self, written: Written) {
        let tally = written.tally;
        let in_flight = &mut self.ledger.in_flight;
        in_flight.packets -= tally.packets;
        in_flight.bytes -= tally.logged_bytes;
        match written.outcome {
            Ok(()) => {
                self.ledger.logged.packets += tally.packets;
                self.ledger.logged.bytes += tally.logged_bytes;
            }
            Err(error) => {
                let reason = match error {
                    // It connects again by itself.
                    StoreError::RelayLost => DropReason::RelayLost,
                    _ => DropReason::WriteError,
                };
                let dropped = &mut self.ledger.dropped[reason as usize];
                dropped.packets += tally.packets;
                dropped.bytes += tally.wire_bytes;
                for (sum, bytes) in self.ledger.cut_bytes.iter_mut().zip(tally.cut_bytes) {
                    *sum -= bytes;
                }
                if reason == DropReason::WriteError {
                    self.write_error.get_or_insert(error);
                }
            }
        }
    }

    /// Hands the block to the writer if it was begun before the last call, so that
    /// packets do not wait for more to come.
    ///
    /// # Errors
    ///
    /// If the log cannot be written.
    pub fn flush_old(&mut self) -> Result<(), StoreError> {
        if !self.block.is_empty() && self.blocks_handed_over == self.blocks_at_flush {
            self.next_block()?;
        }
        self.blocks_at_flush = self.blocks_handed_over;
        self.write_error.take().map_or(Ok(()), Err)
    }

    /// Writes what is left and waits until everything is in files. Afterwards
    /// nothing is in flight.
    ///
    /// # Errors
    ///
    /// The first error of writing, unless [`Worker::batch`] has returned it.
    pub fn finish(&mut self) -> Result<(), StoreError> {
        self.publish_hits();
        if !self.block.is_empty() {
            self.next_block()?;
        }
        while let Some(written) = self.sink.wait()? {
            self.account(written);
        }
        self.write_error.take().map_or(Ok(()), Err)
    }
}

/// Books the packets of a block as in flight.
fn in_flight(ledger: &mut Ledger, tally: &BlockTally) {
    ledger.in_flight.packets += tally.packets;
    ledger.in_flight.bytes += tally.logged_bytes;
    for (sum, bytes) in ledger.cut_bytes.iter_mut().zip(tally.cut_bytes) {
        *sum += bytes;
    }
}

/// Asks the CPU to fetch a cache line of a packet that is yet to come.
#[inline(always)]
fn fetch(batch: &(impl Packets + ?Sized), index: usize, line: usize) {
    if index < batch.len() {
        prefetch(batch.get(index).data, line * 64);
    }
}

impl Demand {
    pub(crate) fn new(demands: Vec<Granularity>) -> Self {
        if demands.iter().any(|demand| demand.sampling.is_some()) {
            Self::Sampled(demands)
        } else {
            Self::Always(join(&demands, 0, 0))
        }
    }
}

/// Runs an input through a worker, to its end, the first error or until it is
/// told to stop, and finishes the worker in all cases. `after_batch` is called
/// after each batch and says whether to go on.
///
/// # Errors
///
/// What ended it; everything before is recorded.
pub fn run(
    input: &mut Input,
    worker: &mut Worker,
    mut after_batch: impl FnMut(&mut Worker) -> ControlFlow<()>,
) -> Result<(), RunError> {
    let mut step = || -> Result<(), RunError> {
        loop {
            match input.advance()? {
                Next::Packets => worker.batch(&input.batch())?,
                Next::Meta(meta) => worker.meta(meta)?,
                Next::End => return Ok(()),
            }
            if after_batch(worker).is_break() || worker.is_done() {
                return Ok(());
            }
        }
    };
    let ran = step();
    let finished = worker.finish();
    ran?;
    Ok(finished?)
}
