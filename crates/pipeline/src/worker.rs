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
mod sources;
mod triggers;
mod wide;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use strata_blocks::{BlockBuilder, BlockSink, Progress, Sink, SinkError};
use strata_capture::Packets;
use strata_classify::{LANES, Model};
use strata_filter::{Filter, Program};
use strata_policy::{Detail, DetailLoads, Follower, Mode, ModeError, Plan};
use strata_sketch::Pressure;
use strata_wire::wide::WIDE;
use strata_wire::{
    Decider, DropReason, FlowHasher, FlowShare, Ledger, LinkType, TunnelKey, exact, mix64, prefetch,
};

use crate::budget::Budget;
use crate::classifier::Classifier;
use crate::demand::Demands;
use crate::exports::Exports;
use crate::flows::FlowFinder;
use crate::policing::Policing;
use crate::reasons::Reasons;
use crate::tap::Tap;

use classes::ByClass;
use lanes::Lanes;
pub use parts::{Copies, EnoughOfFlows, Parts, Prepares};
use shadow::Shadowed;
use sources::Source;
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
    /// Why nothing more is written, if so.
    ended_by: Option<DropReason>,
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
            shadowed: shadow.map(|shadow| Box::new(Shadowed::new(path, model, shadow))),
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
            ended_by: None,
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
        self.switch_if_asked()?;
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
    fn switch_if_asked(&mut self) -> Result<(), SinkError> {
        if let Some(plan) = self.follower.as_mut().and_then(Follower::events) {
            self.put_in_force(plan.is_of_shadow())?;
            self.adopt(&plan);
            if let Some(follower) = &mut self.follower {
                follower.switched();
            }
        }
        Ok(())
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
        self.switch_if_asked()?;
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
