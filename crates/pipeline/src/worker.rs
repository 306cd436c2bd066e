//! One worker: a batch of packets in, records in a block out.

mod accounting;
mod classes;
mod cut;
mod decide;
mod detail;
mod lanes;
mod parts;
mod record;
mod shadow;
mod show;
mod triggers;
mod wide;

use strata_blocks::{BlockBuilder, BlockSink, Progress, Sink, SinkError};
use strata_capture::{PacketRef, Packets};
use strata_classify::{LANES, Model};
use strata_filter::{Filter, Program};
use strata_policy::{
    ClassKept, Detail, DetailCounts, DetailLoads, Follower, Mode, ModeError, Plan,
};
use strata_sketch::Pressure;
use strata_wire::wide::WIDE;
use strata_wire::{
    Counters, Decider, DropReason, FlowHasher, FlowShare, Interface, Ledger, LinkType, Meta,
    TunnelKey, exact, mix64, prefetch,
};

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::budget::Budget;
use crate::classifier::{Classifier, bits};
use crate::demand::Demands;
use crate::exports::Exports;
use crate::flows::{FlowFinder, wire_bytes};
use crate::policing::{Policing, fields, plain_fields};
use crate::reasons::Reasons;
use crate::tap::{NO_CLASS, Tap, Tapped, TappedHeaders};

use accounting::in_flight;
use classes::ByClass;
use lanes::Lanes;
pub use parts::{Copies, EnoughOfFlows, Parts, Prepares};
use shadow::Shadowed;
pub use triggers::{TriggerOptions, Triggers};
use wide::Wide;

/// Space kept free in a block for definitions next to a packet: a verdict of 256 trees and a plain
/// interface. Larger ones make their block grow.
const DEFINITIONS_LEN: usize = 2048;

/// How a worker works.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// The active modes: each is a demand on every packet.
    pub modes: Vec<Mode>,
    /// Which packets are captured at all; `None` for all.
    pub filter: Option<Filter>,
    /// Which flow a tunnelled packet belongs to.
    pub tunnel_key: TunnelKey,
    /// Key of the flow fingerprints.
    pub hash_seed: [u64; 2],
    /// Chooses the sample for sampled granularities.
    pub sampling_seed: u64,
}

/// One interface of the input and what the filter means on it.
#[derive(Debug)]
struct Source {
    interface: Interface,
    /// `None` if there is no filter; `Err` if it cannot be applied to this link type, so that none
    /// of its packets matches. Shared by all interfaces of a link type.
    filter: Option<Arc<Result<Program, String>>>,
    /// Its number in the rules of the policies.
    rules_number: u8,
}

/// An interface's number in the rules of the policies.
fn rules_number(policing: Option<&Policing>, interface: &Interface) -> u8 {
    policing.map_or(0, |policing| policing.interface(interface.name()))
}

/// A worker. It owns everything it touches, and emits its records as blocks into a sink.
#[derive(Debug)]
pub struct Worker<S = BlockSink> {
    options: WorkerOptions,
    classifier: Classifier,
    demands: Vec<Demands>,
    reasons: Reasons,
    /// For each class, who decides where only modes do.
    class_deciders: Vec<Decider>,
    /// `None` if policies change nothing.
    policing: Option<Box<Policing>>,
    /// `None` until a plan has a budget of detail.
    detail: Option<Box<Detail>>,
    /// Whether the plan has one.
    has_detail: bool,
    /// What a shadow model decides; `None` without one.
    shadowed: Option<Box<Shadowed>>,
    /// The load of all workers, and which of them this is.
    loads: Option<(Arc<DetailLoads>, usize)>,
    follower: Option<Follower>,
    sampling_hasher: FlowHasher,
    /// Chooses which packets are sampled, as `sampling_hasher` which flows.
    sampling_key: u64,
    flows: FlowFinder,
    sources: Vec<Source>,
    /// What the filter means on the link types of `sources`.
    filters: Vec<(LinkType, Arc<Result<Program, String>>)>,
    context_json: Vec<u8>,
    sink: S,
    block: Box<BlockBuilder>,
    /// Without the packets in `block`.
    ledger: Ledger,
    by_class: ByClass,
    next_seq: u64,
    packet_number: u64,
    write_error: Option<SinkError>,
    /// How many packets are still wanted; `None` for all that come.
    budget: Option<Arc<Budget>>,
    /// Is told how much of a flow's packets is enough.
    enough: Option<Box<dyn EnoughOfFlows>>,
    /// Takes copies of packets that a policy mirrors.
    copies: Option<Box<dyn Copies>>,
    /// Prepares memory for more flows.
    memory: Option<Box<dyn Prepares>>,
    /// Is shown packets, and whether it wants them now.
    tap: Option<Box<dyn Tap>>,
    is_tapped: bool,
    /// Takes what policies export.
    exports: Option<Box<dyn Exports>>,
    /// The share of flows that is captured, where it may be less than all.
    flow_share: Option<FlowShare>,
    /// What else is kept whole; `None` for nothing else.
    triggers: Option<Box<Triggers>>,
    blocks_handed_over: u64,
    /// The value of `blocks_handed_over` at the last [`Worker::flush_old`].
    blocks_at_flush: u64,
    lanes: Box<Lanes>,
    /// For batches in columns, where the path has them.
    wide: Option<Box<Wide>>,
    packets_in_columns: u64,
}

impl<S: Sink> Worker<S> {
    /// A worker made of these parts.
    ///
    /// # Errors
    ///
    /// If a mode names a class that the model does not have.
    ///
    /// # Panics
    ///
    /// If the sink was used before, or the shadow needs features that the model has not
    /// ([`Classifier::check_shadow`]).
    pub fn new(model: &Model, parts: Parts<S>) -> Result<Self, ModeError> {
        let Parts {
            options,
            path,
            mut sink,
            sketch,
            memory,
            steering,
            triggers,
            budget,
            copies,
            enough,
            tap,
            exports,
            loads,
            shadow,
        } = parts;
        let plan = Plan::new(model, &options.modes)?;
        let block = sink.take().expect("a new sink has free blocks");
        let sketch = sketch.unwrap_or_else(|| Classifier::small(model));
        let mut worker = Self {
            classifier: match &shadow {
                None => Classifier::on(path, model, sketch),
                Some(shadow) => Classifier::with_shadow(path, model, shadow, sketch),
            },
            shadowed: shadow.map(|_| Box::new(Shadowed::new(model.classes.len()))),
            demands: Vec::new(),
            reasons: Reasons::new(),
            class_deciders: Vec::new(),
            policing: None,
            detail: None,
            has_detail: false,
            loads,
            follower: steering.map(Follower::new),
            sampling_hasher: FlowHasher::new([options.sampling_seed, 0x5354_5241_5441]),
            sampling_key: mix64(options.sampling_seed ^ 0x5354_5241),
            flows: FlowFinder::new(options.hash_seed, options.tunnel_key),
            sources: Vec::new(),
            filters: Vec::new(),
            context_json: Vec::new(),
            sink,
            block,
            ledger: Ledger::default(),
            by_class: ByClass::new(model.classes.len()),
            next_seq: 0,
            packet_number: 0,
            write_error: None,
            budget,
            enough,
            copies,
            memory,
            tap,
            is_tapped: false,
            exports,
            flow_share: None,
            triggers: triggers.filter(Triggers::is_asked).map(Box::new),
            blocks_handed_over: 0,
            blocks_at_flush: 0,
            lanes: Box::new(Lanes::new()),
            wide: path.simd().map(|simd| Box::new(Wide::new(simd))),
            packets_in_columns: 0,
            options,
        };
        worker.adopt(&plan);
        Ok(worker)
    }

    /// Does what is due even when no packets come.
    ///
    /// # Errors
    ///
    /// If the log cannot be written.
    pub fn idle(&mut self) -> Result<(), SinkError> {
        self.switch_if_asked();
        self.look_at_tap();
        if let Some(exports) = &mut self.exports {
            exports.batch_done();
        }
        self.apply_alerts()
    }

    /// Whether policies may export packets of a batch.
    #[inline(always)]
    fn is_exporting(&self) -> bool {
        let policing = self.policing.as_ref();
        self.exports.is_some() && policing.is_some_and(|policing| policing.has_exports())
    }

    /// Whether somebody wants to see packets, until this is called again.
    fn look_at_tap(&mut self) {
        self.is_tapped = self.tap.as_mut().is_some_and(|tap| tap.is_wanted());
    }

    /// Switches to the plan published last.
    #[inline]
    fn switch_if_asked(&mut self) {
        if let Some(plan) = self.follower.as_mut().and_then(Follower::events) {
            self.adopt(&plan);
            if let Some(follower) = &mut self.follower {
                follower.switched();
            }
        }
    }

    /// Switches to another plan.
    fn adopt(&mut self, plan: &Plan) {
        self.publish_hits();
        let reasons = &mut self.reasons;
        let demands = plan.demands().iter().enumerate();
        self.demands = demands
            .map(|(class, modes)| Demands::new(class, modes, plan.detail(), Vec::clone, reasons))
            .collect();
        if let Some(wide) = &mut self.wide {
            wide.adopt(&self.demands, self.classifier.anomalous());
        }
        self.has_detail = plan.detail().is_some();
        if let Some(plan) = plan.detail() {
            match &mut self.detail {
                Some(detail) => detail.set_budget(plan.budget),
                none => *none = Some(Box::new(Detail::new(plan.budget, self.loads.clone()))),
            }
        }
        if let Some(shadowed) = &mut self.shadowed {
            let loads = self.loads.as_ref();
            shadowed.adopt(plan, loads.map_or(1, |(loads, _)| loads.workers()));
        }
        self.class_deciders = plan.deciders();
        self.reasons.forget_plan();
        self.context_json = plan.context_json();
        self.block.forget_context();
        self.policing = plan.policies().cloned().map(|policies| {
            let seed = self.options.hash_seed[0];
            let takes_columns = self.wide.is_some();
            let modes = (plan.demands().to_vec(), plan.detail().cloned());
            Box::new(Policing::new(policies, modes, seed, takes_columns))
        });
        self.name_interfaces();
    }

    /// Looks up the interfaces' numbers in the rules of the policies.
    fn name_interfaces(&mut self) {
        for source in &mut self.sources {
            source.rules_number = rules_number(self.policing.as_deref(), &source.interface);
        }
    }

    /// What the filter means on a link type.
    fn filter_on(&mut self, link: LinkType) -> Option<Arc<Result<Program, String>>> {
        let filter = self.options.filter.as_ref()?;
        // Few: a file of 65,535 interfaces has one or two link types.
        if let Some((_, known)) = self.filters.iter().find(|(of, _)| *of == link) {
            return Some(Arc::clone(known));
        }
        let compiled = Arc::new(filter.compile(link).map_err(|e| e.to_string()));
        self.filters.push((link, Arc::clone(&compiled)));
        Some(compiled)
    }

    /// Adds the packets that policies were applied to since the last call to their hits.
    pub fn publish_hits(&mut self) {
        if let Some(policing) = &mut self.policing {
            policing.publish();
        }
    }

    /// Counters shared with the writer of its blocks.
    #[must_use]
    pub fn progress(&self) -> &Progress {
        self.sink.progress()
    }

    /// Counts packets that the kernel skipped because of the capture filter.
    pub fn count_filtered(&mut self, filtered: Counters) {
        self.ledger.seen.merge(filtered);
        self.ledger.filtered.merge(filtered);
    }

    /// Counts packets that the kernel skipped to keep within the CPU budget.
    pub fn count_sampled_out(&mut self, sampled_out: Counters) {
        self.ledger.seen.merge(sampled_out);
        self.ledger.dropped[DropReason::CpuBudget as usize].merge(sampled_out);
    }

    /// Records in the log what share of flows the packets to come belong to.
    pub fn captured(&mut self, share: FlowShare) {
        self.flow_share = Some(share);
        self.block.look_again();
    }

    /// Whether as many packets as were wanted have been taken.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.budget.as_ref().is_some_and(|budget| budget.is_spent())
    }

    /// The counters so far.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        let mut ledger = self.ledger;
        if let Some(copies) = &self.copies {
            (ledger.mirrored, ledger.mirror_lost) = (copies.sent(), copies.lost());
        }
        // The current block is added up when this is called or the block is handed over.
        in_flight(&mut ledger, &self.block.counters());
        ledger
    }

    /// How much has been kept so far of the packets of each class, as first decided: what is
    /// promoted later is not counted again. Packets that policies drop before classification are in
    /// no class.
    #[must_use]
    pub fn kept(&self) -> Vec<ClassKept> {
        let mut by_class = self.by_class.clone();
        by_class.merge(self.block.class_counts());
        by_class.list()
    }

    /// What became of payload while there was a budget of detail; `None` if there was none.
    #[must_use]
    pub fn detail(&self) -> Option<DetailCounts> {
        self.detail.as_ref().map(|detail| detail.counts())
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

    /// How many packets have gone through the vectorized stages so far, of those that passed the
    /// filter; the others went through the loop that is their reference.
    #[must_use]
    pub fn packets_in_columns(&self) -> u64 {
        self.packets_in_columns
    }

    /// Link types on which the filter cannot be applied, and why.
    #[must_use]
    pub fn filter_problems(&self) -> Vec<(LinkType, String)> {
        let mut problems = Vec::new();
        for source in &self.sources {
            if let Some(Err(problem)) = source.filter.as_deref() {
                let entry = (source.interface.link, problem.clone());
                if !problems.contains(&entry) {
                    problems.push(entry);
                }
            }
        }
        problems
    }

    /// Why the filter cannot be applied to any interface so far; `None` if it can
    /// be applied to one, or there is no filter or interface.
    #[must_use]
    pub fn filter_fits_nowhere(&self) -> Option<String> {
        let mut problem = None;
        for source in &self.sources {
            match source.filter.as_deref() {
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
    pub fn meta(&mut self, meta: Meta) -> Result<(), SinkError> {
        let room = BlockBuilder::meta_len(&meta);
        if self.block.room() < room + DEFINITIONS_LEN && !self.block.is_empty() {
            self.next_block()?;
        }
        self.block.push_meta(&meta);
        if let Meta::Interface { id, interface } = meta {
            if let Some(exports) = &mut self.exports {
                exports.interface(id, &interface);
            }
            let source = Source {
                filter: self.filter_on(interface.link),
                rules_number: rules_number(self.policing.as_deref(), &interface),
                interface,
            };
            // Ids are dense and in order.
            let index = usize::from(id);
            if index < self.sources.len() {
                self.sources[index] = source;
            } else {
                self.sources.push(source);
            }
        }
        Ok(())
    }

    /// Classifies and records a batch.
    ///
    /// # Errors
    ///
    /// If the log cannot be written. The counters include every packet of the batch, unless the
    /// writer thread itself is gone.
    pub fn batch(&mut self, batch: &(impl Packets + ?Sized)) -> Result<(), SinkError> {
        let Some(budget) = self.budget.clone() else {
            return self.batch_at_most(batch, u64::MAX);
        };
        let most = budget.draw(batch.len() as u64);
        let before = self.passed();
        let done = self.batch_at_most(batch, most);
        budget.give_back(most - (self.passed() - before));
        done
    }

    /// Packets that passed the filter.
    fn passed(&self) -> u64 {
        self.ledger.seen.packets - self.ledger.filtered.packets
    }

    /// As [`Worker::batch`], until this many packets have passed the filter: those after are not
    /// looked at.
    fn batch_at_most(
        &mut self,
        batch: &(impl Packets + ?Sized),
        most: u64,
    ) -> Result<(), SinkError> {
        self.switch_if_asked();
        self.look_at_tap();
        self.apply_alerts()?;
        let end = self.passed().saturating_add(most);
        let mut start = 0;
        for index in 0..batch.len().min(LANES) {
            fetch(batch, index, 0);
            fetch(batch, index, 1);
        }
        while start < batch.len() && self.passed() < end {
            let left = (batch.len() - start).min(WIDE);
            let many = exact::<usize>((end - self.passed()).min(left as u64));
            let mut places = EVERY_PLACE;
            let wanted = self.choose(batch, start, &mut places[..many]);
            let places = &places[..wanted];
            if !self.columns(batch, (start, places))? {
                for places in places.chunks(LANES) {
                    self.lanes(batch, (start, places))?;
                }
            }
            start += many;
        }
        if let Some(exports) = &mut self.exports {
            exports.batch_done();
        }
        if let Some(memory) = &mut self.memory
            && let Some(preparation) = self.classifier.preparation()
        {
            memory.prepare(preparation);
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

    /// Moves the places, from `start` on, of the packets that pass the filter to the front; counts
    /// the others. Returns how many pass.
    fn choose(
        &mut self,
        batch: &(impl Packets + ?Sized),
        start: usize,
        places: &mut [u8],
    ) -> usize {
        if self.options.filter.is_none() {
            return places.len();
        }
        let (mut passed, mut filtered) = (0, Counters::default());
        for &place in &EVERY_PLACE[..places.len()] {
            let at = start + usize::from(place);
            fetch(batch, at + LANES, 0);
            let packet = batch.get(at);
            let source = &self.sources[usize::from(packet.interface)];
            let passes = match source.filter.as_deref() {
                None => true,
                Some(Ok(program)) => program.matches(packet.data, packet.wire_len),
                Some(Err(_)) => false,
            };
            if passes {
                places[passed] = place;
                passed += 1;
            } else {
                filtered.add(wire_bytes(&packet));
            }
        }
        self.count_filtered(filtered);
        passed
    }

    /// Up to 64 packets, at these places from `start` on.
    fn lanes(
        &mut self,
        batch: &(impl Packets + ?Sized),
        (start, places): (usize, &[u8]),
    ) -> Result<(), SinkError> {
        self.lanes.wanted = 0;
        self.lanes.is_plain = 0;
        self.lanes.dissected = 0;
        for (lane, &place) in places.iter().enumerate() {
            let at = start + usize::from(place);
            // Two lines hold the headers of upcoming packets. One is fetched here and one below,
            // since the CPU stalls when it is asked for more than a dozen or two at a time.
            fetch(batch, at + LANES, 0);
            self.look(lane, &batch.get(at));
        }
        let passed = self.lanes.wanted;
        if self.policing.is_some() {
            self.apply_policies(batch, (start, places));
        }
        let facts = &self.lanes.facts[..places.len()];
        self.classifier.classify(facts, self.lanes.dissected);
        if self.is_tapped {
            self.show(batch, (start, places), passed);
        }
        if self.is_exporting() {
            self.export(batch, (start, places), passed);
        }
        self.prefetch_triggers();
        for lane in bits(self.lanes.wanted) {
            let at = start + usize::from(places[lane]);
            fetch(batch, at + LANES, 1);
            let verdict = self.classifier.classified()[lane];
            self.record(lane, &batch.get(at), verdict)?;
        }
        Ok(())
    }

    /// Finds the policies of the batch's packets, and discards those that nobody wants before they
    /// cost more.
    #[inline(never)]
    fn apply_policies(&mut self, batch: &(impl Packets + ?Sized), (start, places): (usize, &[u8])) {
        let Some(policing) = &mut self.policing else {
            return;
        };
        let lanes = &mut *self.lanes;
        policing.begin();
        for lane in bits(lanes.wanted) {
            let packet = batch.get(start + usize::from(places[lane]));
            let source = &self.sources[usize::from(packet.interface)];
            let number = source.rules_number;
            lanes.policed[lane] = policing.push(if lanes.is_plain & 1 << lane != 0 {
                plain_fields(&lanes.plain[lane], number)
            } else {
                fields(
                    &lanes.headers[lane],
                    source.interface.link,
                    packet.data,
                    number,
                )
            });
        }
        policing.classify(&mut self.reasons);
        let mut copies: [&[u8]; LANES] = [&[]; LANES];
        let mut copied = 0;
        for lane in bits(lanes.wanted) {
            let packet = batch.get(start + usize::from(places[lane]));
            let bytes = wire_bytes(&packet);
            let discards = policing.discards(lanes.policed[lane], bytes);
            let source = &self.sources[usize::from(packet.interface)];
            if policing.mirrors(lanes.policed[lane]) && source.interface.link == LinkType::ETHERNET
            {
                copies[copied] = packet.data;
                copied += 1;
            }
            if discards {
                lanes.wanted &= !(1 << lane);
                lanes.dissected &= !(1 << lane);
                self.ledger.discarded.add(bytes);
            }
        }
        if let Some(taker) = &mut self.copies
            && copied > 0
        {
            taker.send(&copies[..copied]);
        }
    }

    /// Shows the packets that passed the filter, also those that policies discard.
    #[inline(never)]
    fn show(
        &mut self,
        batch: &(impl Packets + ?Sized),
        (start, places): (usize, &[u8]),
        passed: u64,
    ) {
        let Some(tap) = &mut self.tap else {
            return;
        };
        let lanes = &self.lanes;
        for lane in bits(passed) {
            let headers = match lanes.is_plain & 1 << lane != 0 {
                true => TappedHeaders::Plain(&lanes.plain[lane]),
                false => TappedHeaders::Other(&lanes.headers[lane]),
            };
            let class = match lanes.wanted & 1 << lane != 0 {
                true => self.classifier.class(self.classifier.classified()[lane]),
                false => NO_CLASS,
            };
            tap.take(&Tapped {
                packet: batch.get(start + usize::from(places[lane])),
                headers,
                class,
            });
        }
    }

    /// Headers and flow of one packet.
    #[inline(always)]
    fn look(&mut self, lane: usize, packet: &PacketRef<'_>) {
        self.ledger.seen.add(wire_bytes(packet));
        let source = &self.sources[usize::from(packet.interface)];
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
        let captured_len = exact::<u32>(packet.data.len());
        self.lanes.header_len[lane] = headers.kept_header_len(captured_len);
        self.lanes.headers[lane] = headers;
        if let Some(facts) = facts {
            self.classifier.prefetch(facts.fingerprint);
            self.lanes.facts[lane] = facts;
            self.lanes.dissected |= 1 << lane;
        }
    }
}

/// All places of a part of a batch.
const EVERY_PLACE: [u8; WIDE] = {
    let mut places = [0; WIDE];
    let mut place = 0;
    while place < WIDE {
        #[allow(clippy::cast_possible_truncation, reason = "below 256")]
        let number = place as u8;
        places[place] = number;
        place += 1;
    }
    places
};

/// Asks the CPU to fetch a cache line of an upcoming packet.
#[inline(always)]
fn fetch(batch: &(impl Packets + ?Sized), index: usize, line: usize) {
    if index < batch.len() {
        prefetch(batch.get(index).data, line * 64);
    }
}
