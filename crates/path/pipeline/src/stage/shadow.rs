//! The stage that compares what was kept with what a shadow model would have kept.

use std::sync::Arc;

use strata_classify::Model;
use strata_policy::{Detail, DetailSite, Plan, ShadowCounts, Survey};
use strata_wire::wide::{GROUP, WIDE};
use strata_wire::{FlowKey, Outcome};

use super::batch::{Batch, Known, is_in};
use super::budget::{Offered, is_given};
use super::keep::KeepStage;
use super::lanes::Lane;
use crate::classifier::{Classifier, bits};
use crate::flows::wire_bytes;
use crate::path::DataPath;

/// A shadow model's decisions.
#[derive(Debug)]
pub(crate) struct ShadowStage {
    /// Its budget of detail; `None` until a plan has one.
    detail: Option<Box<Detail>>,
    /// Whether the current plan has one.
    is_budget_on: bool,
    counts: ShadowCounts,
    path: DataPath,
    /// The recording's own model and its shadow.
    models: [Arc<Model>; 2],
    /// Whether they have changed places.
    is_promoted: bool,
    /// What is to come, if that is known, until the first plan with a budget.
    survey: Option<Survey>,
}

impl ShadowStage {
    pub(crate) fn new(
        path: DataPath,
        model: &Model,
        shadow: Arc<Model>,
        survey: Option<Survey>,
    ) -> Self {
        Self {
            detail: None,
            is_budget_on: false,
            counts: ShadowCounts::new(model.classes.len()),
            path,
            models: [Arc::new(model.clone()), shadow],
            is_promoted: false,
            survey,
        }
    }

    /// Switches to another plan. With several workers a rate is divided equally among them.
    pub(crate) fn adopt(&mut self, plan: &Plan, workers: usize) {
        self.is_budget_on = plan.detail().is_some();
        let Some(plan) = plan.detail() else {
            return;
        };
        #[allow(clippy::cast_precision_loss, reason = "few workers")]
        let budget = plan.budget.of_one(workers as f64);
        match &mut self.detail {
            Some(detail) => detail.set_budget(budget),
            none => {
                let site = DetailSite {
                    survey: self.survey.take(),
                    ..DetailSite::default()
                };
                *none = Some(Box::new(Detail::new(budget, site)));
            }
        }
    }

    /// Has the shadow model decide from the next packet on, or the recording's own model again; the
    /// other one is the shadow then. What was compared so far is forgotten. False if nothing changes.
    pub(crate) fn put_in_force(&mut self, is_promoted: bool, classifier: &mut Classifier) -> bool {
        if std::mem::replace(&mut self.is_promoted, is_promoted) == is_promoted {
            return false;
        }
        let [own, shadow] = &self.models;
        let (model, other) = match is_promoted {
            true => (shadow, own),
            false => (own, shadow),
        };
        classifier.replace(self.path, model, other);
        self.counts = ShadowCounts::new(model.classes.len());
        true
    }

    /// What a shadow model would have kept differently so far.
    pub(crate) fn counts(&self) -> &ShadowCounts {
        &self.counts
    }

    /// Compares what was kept of a packet with what the shadow would have kept.
    #[inline(never)]
    pub(crate) fn packet(
        &mut self,
        lane: Lane<'_>,
        (kept, is_asked): (u32, bool),
        known: Known<'_>,
        keep: &KeepStage,
    ) {
        let fate = Fate {
            at: lane.lane,
            place: lane.place(),
            number: keep.packet_number(),
            offered: Offered::lane(lane),
            is_asked,
        };
        let (of_shadow, would) = self.keeps(&fate, known, keep, || lane.flow_key());
        let classes = [lane.class, of_shadow];
        self.counts
            .add(classes, wire_bytes(lane.packet), [kept, would]);
    }

    /// The same for a batch in columns, all of which is decided.
    #[inline(never)]
    pub(crate) fn columns(&mut self, batch: &Batch, known: Known<'_>, keep: &KeepStage) {
        let wanted = batch.wanted.iter();
        let wanted = wanted.map(|group| u64::from(group.count_ones()));
        let mut number = keep.packet_number() - wanted.sum::<u64>();
        for (group, &wanted) in batch.wanted.iter().enumerate() {
            for lane in bits(wanted.into()) {
                let at = group * GROUP + lane;
                debug_assert!(at < WIDE);
                number += 1;
                let fate = Fate {
                    at,
                    place: at.to_le_bytes()[0],
                    number,
                    offered: Offered::column(batch, at),
                    is_asked: is_in(&batch.asked, at),
                };
                let (of_shadow, would) = self.keeps(&fate, known, keep, || batch.flow_key(at));
                let kept = match is_in(&batch.recorded, at) {
                    true => batch.kept_len[at],
                    false => 0,
                };
                let [class, ..] = batch.kinds[at].to_le_bytes();
                let classes = [class, of_shadow];
                self.counts
                    .add(classes, batch.wire_bytes(at), [kept, would]);
            }
        }
        debug_assert_eq!(number, keep.packet_number());
    }

    /// The class that the shadow gives a packet, and how many bytes of it it would have kept.
    fn keeps(
        &mut self,
        of: &Fate,
        known: Known<'_>,
        keep: &KeepStage,
        flow: impl FnOnce() -> FlowKey,
    ) -> (u8, u32) {
        let [class, step] = known.classifier.of_shadow(of.at);
        let demands = keep.demands(known.policing, (of.place, class));
        let given = match &mut self.detail {
            Some(detail) if self.is_budget_on && !of.is_asked && demands.budgeted.is_some() => {
                Some(is_given(detail, demands, step, &of.offered))
            }
            _ => None,
        };
        let (outcome, _) = keep.decide_numbered(demands, of.number, given, flow);
        let Offered {
            header_end,
            captured_len,
            ..
        } = of.offered;
        let keeps = match outcome {
            Outcome::Discard => 0,
            _ if of.is_asked => captured_len,
            Outcome::SampledOut => 0,
            Outcome::Log(keep) => keep.kept_len(header_end, captured_len),
        };
        (class, keeps)
    }
}

/// A packet whose fate is known.
struct Fate {
    /// Its place in the batch, and among those that policies have seen.
    at: usize,
    place: u8,
    /// How many packets had come when it was decided.
    number: u64,
    offered: Offered,
    /// Whether its flow asks for it, as by an alert: then no model decides.
    is_asked: bool,
}
