//! One worker: a batch of packets in, records in a block out.

mod parts;

use std::sync::Arc;

use strata_blocks::{Progress, SinkError};
use strata_capture::Packets;
use strata_classify::{LANES, Model};
use strata_filter::Filter;
use strata_policy::{
    ClassKept, DetailCounts, Follower, Mode, ModeError, Plan, ShadowCounts, WorkerCounts,
};
use strata_sketch::Pressure;
use strata_wire::wide::WIDE;
use strata_wire::{Counters, DropReason, FlowShare, Ledger, LinkType, Meta, TunnelKey, exact};

use crate::classifier::Classifier;
use crate::packet_limit::PacketLimit;
use crate::policing::Policing;
use crate::stage::Stages;
use crate::stage::batch::{Batch, Chosen, EVERY_PLACE, fetch};
use crate::stage::budget::BudgetStage;
use crate::stage::cut::CutStage;
use crate::stage::dedup::{Dedup, DedupStage};
use crate::stage::export::ExportStage;
use crate::stage::keep::KeepStage;
use crate::stage::lanes::Lanes;
use crate::stage::parse::ParseStage;
use crate::stage::police::PoliceStage;
use crate::stage::record::RecordStage;
use crate::stage::shadow::ShadowStage;
use crate::stage::triggers::Triggers;

pub use parts::{Parts, Prepares};

/// How a worker works.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// The active modes: each is a demand on every packet.
    pub modes: Vec<Mode>,
    /// Which packets are captured at all; `None` for all.
    pub filter: Option<Filter>,
    /// Which packets are duplicates, of which one is recorded; `None` to record all.
    pub dedup: Option<Dedup>,
    /// Which flow a tunnelled packet belongs to.
    pub tunnel_key: TunnelKey,
    /// Key of the flow fingerprints.
    pub hash_seed: [u64; 2],
    /// Chooses the sample for sampled granularities.
    pub sampling_seed: u64,
}

/// A worker. It owns everything it touches, and emits its records as blocks into a sink.
#[derive(Debug)]
pub struct Worker {
    stages: Stages,
    /// What passes between them: packets in columns, where the path has them, ...
    batch: Option<Box<Batch>>,
    /// ... and packets one by one.
    lanes: Box<Lanes>,
    follower: Option<Follower>,
    /// How many packets are still wanted; `None` for all that come.
    limit: Option<Arc<PacketLimit>>,
    /// Prepares memory for more flows.
    memory: Option<Box<dyn Prepares>>,
    /// Of policies' caches.
    seed: u64,
}

impl Worker {
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
    pub fn new(model: &Model, parts: Parts) -> Result<Self, ModeError> {
        let (options, path, shadow) = (parts.options, parts.path, parts.shadow);
        let plan = Plan::new(model, &options.modes)?;
        let survey = shadow.as_ref().and_then(|_| parts.detail.survey.clone());
        let sketch = parts.sketch.unwrap_or_else(|| Classifier::small(model));
        let parse = ParseStage::new(options.filter, options.hash_seed, options.tunnel_key);
        let stages = Stages {
            record: RecordStage::new(parts.sink, parse.hasher(), model.classes.len()),
            parse,
            dedup: options.dedup.map(|dedup| Box::new(DedupStage::new(dedup))),
            police: PoliceStage::new(parts.copies),
            classifier: match &shadow {
                None => Classifier::on(path, model, sketch),
                Some(shadow) => Classifier::with_shadow(path, model, shadow, sketch),
            },
            export: ExportStage::new(parts.taps, parts.exports),
            budget: BudgetStage::new(parts.detail),
            triggers: parts.triggers.filter(Triggers::is_asked).map(Box::new),
            keep: KeepStage::new(options.sampling_seed),
            cut: parts.enough.map(|enough| Box::new(CutStage::new(enough))),
            shadow: shadow.map(|shadow| Box::new(ShadowStage::new(path, model, shadow, survey))),
        };
        let mut worker = Self {
            stages,
            batch: path.simd().map(|simd| Box::new(Batch::new(simd))),
            lanes: Box::new(Lanes::new()),
            follower: parts.steering.map(Follower::new),
            limit: parts.limit,
            memory: parts.memory,
            seed: options.hash_seed[0],
        };
        worker.adopt(&plan);
        Ok(worker)
    }

    /// Classifies and records a batch.
    ///
    /// # Errors
    ///
    /// If the log cannot be written. The counters include every packet of the batch, unless the
    /// writer thread itself is gone.
    pub fn batch(&mut self, batch: &(impl Packets + ?Sized)) -> Result<(), SinkError> {
        let Some(limit) = self.limit.clone() else {
            return self.batch_at_most(batch, u64::MAX);
        };
        let most = limit.draw(batch.len() as u64);
        let before = self.stages.parse.passed();
        let done = self.batch_at_most(batch, most);
        limit.give_back(most - (self.stages.parse.passed() - before));
        done
    }

    /// As [`Worker::batch`], until this many packets have passed the filter and are no duplicates: those after
    /// are not looked at.
    fn batch_at_most(
        &mut self,
        batch: &(impl Packets + ?Sized),
        most: u64,
    ) -> Result<(), SinkError> {
        self.begin()?;
        let end = self.stages.parse.passed().saturating_add(most);
        let mut start = 0;
        for index in 0..batch.len().min(LANES) {
            fetch(batch, index, 0);
            fetch(batch, index, 1);
        }
        while start < batch.len() {
            let wanted = end - self.stages.parse.passed();
            if wanted == 0 {
                break;
            }
            let left = (batch.len() - start).min(WIDE);
            let many = exact::<usize>(wanted.min(left as u64));
            let mut places = EVERY_PLACE;
            let chosen = self.stages.choose(batch, start, &mut places[..many]);
            self.pass(batch, (start, &places[..chosen]))?;
            start += many;
        }
        if let Some(export) = &mut self.stages.export {
            export.batch_done();
        }
        if let Some(memory) = &mut self.memory
            && let Some(preparation) = self.stages.classifier.preparation()
        {
            memory.prepare(preparation);
        }
        let stages = &mut self.stages;
        stages.budget.batch_done(stages.parse.passed());
        let seen = stages.seen();
        stages.record.batch_done(seen)
    }

    /// Takes packets of a batch through the stages: in columns if they can be.
    fn pass<P: Packets + ?Sized>(
        &mut self,
        batch: &P,
        (start, places): (usize, &[u8]),
    ) -> Result<(), SinkError> {
        let chosen = |places| Chosen {
            batch,
            start,
            places,
        };
        if let Some(columns) = &mut self.batch
            && self.stages.columns(columns, chosen(places))?
        {
            return Ok(());
        }
        for places in places.chunks(LANES) {
            self.stages.lanes(&mut self.lanes, chosen(places))?;
        }
        Ok(())
    }

    /// Does what is due even when no packets come.
    ///
    /// # Errors
    ///
    /// If the log cannot be written.
    pub fn idle(&mut self) -> Result<(), SinkError> {
        self.begin()?;
        if let Some(export) = &mut self.stages.export {
            export.batch_done();
        }
        Ok(())
    }

    /// Does what is due before a batch: takes in the plan published last, who wants to be shown packets, and
    /// alerts.
    fn begin(&mut self) -> Result<(), SinkError> {
        self.switch_if_asked()?;
        if let Some(export) = &mut self.stages.export {
            export.look_at_taps();
        }
        self.apply_alerts()
    }

    /// Switches to the plan published last.
    #[inline]
    fn switch_if_asked(&mut self) -> Result<(), SinkError> {
        if let Some(plan) = self.follower.as_mut().and_then(Follower::events) {
            self.stages.put_in_force(plan.is_of_shadow())?;
            self.adopt(&plan);
            if let Some(follower) = &mut self.follower {
                follower.switched();
            }
        }
        Ok(())
    }

    /// Switches to another plan.
    fn adopt(&mut self, plan: &Plan) {
        let takes_columns = self.batch.is_some();
        let policing = plan.policies().cloned().map(|policies| {
            let modes = (plan.demands().to_vec(), plan.detail().cloned());
            Box::new(Policing::new(policies, modes, self.seed, takes_columns))
        });
        self.stages.adopt(plan, policing);
    }

    /// Takes in new alerts: what is remembered of their flows is promoted.
    ///
    /// # Errors
    ///
    /// If the log cannot be written.
    pub fn apply_alerts(&mut self) -> Result<(), SinkError> {
        self.stages.apply_alerts()
    }

    /// Records what an input says about itself.
    ///
    /// # Errors
    ///
    /// If the log cannot be written.
    pub fn meta(&mut self, meta: Meta) -> Result<(), SinkError> {
        let stages = &mut self.stages;
        stages.record.meta(&meta)?;
        if let Meta::Interface { id, interface } = meta {
            if let Some(export) = &mut stages.export {
                export.interface(id, &interface);
            }
            let policing = stages.police.policing();
            stages.parse.interface(id, interface, policing);
        }
        Ok(())
    }

    /// Records in the log what share of flows the packets to come belong to.
    pub fn captured(&mut self, share: FlowShare) {
        self.stages.record.captured(share);
        if let Some(export) = &mut self.stages.export {
            export.captured(share);
        }
    }

    /// Hands the block to the writer if it was started before the last call, so that packets do not
    /// wait for more to come; and counts what has been written.
    ///
    /// # Errors
    ///
    /// If the log cannot be written.
    pub fn flush_old(&mut self) -> Result<(), SinkError> {
        self.stages.record.flush_old()
    }

    /// Writes what is left and waits until everything is in files. Afterwards
    /// nothing is in flight.
    ///
    /// # Errors
    ///
    /// The first write error, unless [`Worker::batch`] has returned it.
    pub fn finish(&mut self) -> Result<(), SinkError> {
        if let Some(export) = &mut self.stages.export {
            export.finish();
        }
        self.publish_hits();
        self.apply_alerts()?;
        self.stages.record.finish()
    }

    /// Whether as many packets as were wanted have been taken.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.limit.as_ref().is_some_and(|limit| limit.is_spent())
    }

    /// Adds the packets that policies were applied to since the last call to their hits.
    pub fn publish_hits(&mut self) {
        self.stages.police.publish_hits();
    }

    /// Counts packets that the kernel skipped because of the capture filter.
    pub fn count_filtered(&mut self, filtered: Counters) {
        self.stages.parse.count_filtered(filtered);
    }

    /// Counts packets that the kernel skipped to keep within the CPU budget.
    pub fn count_sampled_out(&mut self, sampled_out: Counters) {
        self.stages.parse.count_seen(sampled_out);
        let record = &mut self.stages.record;
        record.count_dropped(DropReason::CpuBudget, sampled_out);
    }
}

/// The state of a worker.
impl Worker {
    /// All that it has counted so far.
    #[must_use]
    pub fn counts(&self) -> WorkerCounts {
        WorkerCounts {
            ledger: self.ledger(),
            kept: self.kept(),
            detail: self.detail(),
            shadow: self.shadow(),
            pressure: Some(self.pressure()),
        }
    }

    /// The counters so far.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        let mut ledger = self.stages.record.ledger();
        self.stages.parse.add_to(&mut ledger);
        if let Some(dedup) = &self.stages.dedup {
            dedup.add_to(&mut ledger);
        }
        self.stages.police.add_to(&mut ledger);
        if let Some(cut) = &self.stages.cut {
            cut.add_to(&mut ledger);
        }
        ledger
    }

    /// How much has been kept so far of the packets of each class, as first decided: what is
    /// promoted later is not counted again. Packets that policies drop before classification are in
    /// no class.
    #[must_use]
    pub fn kept(&self) -> Vec<ClassKept> {
        self.stages.record.kept()
    }

    /// What became of payload while there was a budget of detail; `None` without one.
    #[must_use]
    pub fn detail(&self) -> Option<DetailCounts> {
        self.stages.budget.counts()
    }

    /// What a shadow model would have kept differently so far; `None` without one.
    #[must_use]
    pub fn shadow(&self) -> Option<ShadowCounts> {
        let shadow = self.stages.shadow.as_ref();
        shadow.map(|shadow| shadow.counts().clone())
    }

    /// Counters shared with the writer of its blocks.
    #[must_use]
    pub fn progress(&self) -> &Progress {
        self.stages.record.progress()
    }

    /// The classifier.
    #[must_use]
    pub fn classifier(&self) -> &Classifier {
        &self.stages.classifier
    }

    /// Pressure on the sketch's buckets so far.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        self.stages.classifier.pressure()
    }

    /// How many packets have gone through the vectorized stages so far, of those that passed the
    /// filter; the others went through the loop that is their reference.
    #[must_use]
    pub fn packets_in_columns(&self) -> u64 {
        self.batch.as_ref().map_or(0, |batch| batch.passed)
    }

    /// Link types on which the filter cannot be applied, and why.
    #[must_use]
    pub fn filter_problems(&self) -> Vec<(LinkType, String)> {
        self.stages.parse.filter_problems()
    }

    /// Why the filter cannot be applied to any interface so far; `None` if it can
    /// be applied to one, or there is no filter or interface.
    #[must_use]
    pub fn filter_fits_nowhere(&self) -> Option<String> {
        self.stages.parse.filter_fits_nowhere()
    }
}
