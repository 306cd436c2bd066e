//! What a shadow model would have kept differently, and its promotion.

use std::sync::Arc;

use strata_blocks::{Sink, SinkError};
use strata_capture::PacketRef;
use strata_classify::Model;
use strata_policy::{Detail, Plan, ShadowCounts};
use strata_wire::wide::{GROUP, WIDE};
use strata_wire::{FlowKey, Outcome, exact};

use super::Worker;
use super::detail::{Offered, is_given};
use super::wide::{Wide, is_in};
use crate::classifier::bits;
use crate::flows::wire_bytes;
use crate::path::DataPath;

/// A shadow model's decisions.
#[derive(Debug)]
pub(super) struct Shadowed {
    /// Its budget of detail; `None` until a plan has one.
    detail: Option<Box<Detail>>,
    pub(super) counts: ShadowCounts,
    path: DataPath,
    /// The recording's own model and its shadow.
    models: [Arc<Model>; 2],
    /// Whether they have changed places.
    is_promoted: bool,
}

impl Shadowed {
    pub(super) fn new(path: DataPath, model: &Model, shadow: Arc<Model>) -> Self {
        Self {
            detail: None,
            counts: ShadowCounts::new(model.classes.len()),
            path,
            models: [Arc::new(model.clone()), shadow],
            is_promoted: false,
        }
    }

    /// Switches to another plan. With several workers a rate is divided equally among them.
    pub(super) fn adopt(&mut self, plan: &Plan, workers: usize) {
        let Some(plan) = plan.detail() else {
            return;
        };
        #[allow(clippy::cast_precision_loss, reason = "few workers")]
        let budget = plan.budget.of_one(workers as f64);
        match &mut self.detail {
            Some(detail) => detail.set_budget(budget),
            none => *none = Some(Box::new(Detail::new(budget, None))),
        }
    }
}

/// A packet whose fate is known.
struct Fate {
    /// Its place in the batch, and among those that policies have seen.
    at: usize,
    place: u8,
    offered: Offered,
    /// Whether its flow asks for it, as by an alert: then no model decides.
    is_asked: bool,
}

impl<S: Sink> Worker<S> {
    /// Has the shadow model decide from the next packet on, or the recording's own model again; the
    /// other one is the shadow then. What was compared so far, and what look-back remembers, is
    /// forgotten, since both have verdicts of the model before.
    ///
    /// # Errors
    ///
    /// If the log cannot be written: its next block begins.
    pub(super) fn put_in_force(&mut self, is_promoted: bool) -> Result<(), SinkError> {
        let Some(shadowed) = self.shadowed.as_mut() else {
            return Ok(());
        };
        if std::mem::replace(&mut shadowed.is_promoted, is_promoted) == is_promoted {
            return Ok(());
        }
        let [own, shadow] = &shadowed.models;
        let (model, other) = match is_promoted {
            true => (shadow, own),
            false => (own, shadow),
        };
        self.classifier.replace(shadowed.path, model, other);
        shadowed.counts = ShadowCounts::new(model.classes.len());
        self.reasons.forget_verdicts();
        if let Some(triggers) = &mut self.triggers {
            triggers.forget();
        }
        if self.block.is_empty() {
            return Ok(());
        }
        self.next_block()
    }

    /// What a shadow model would have kept differently so far; `None` without one.
    #[must_use]
    pub fn shadow(&self) -> Option<ShadowCounts> {
        let shadowed = self.shadowed.as_ref();
        shadowed.map(|shadowed| shadowed.counts.clone())
    }

    /// The class that the shadow gives a packet, and how many bytes of it it would have kept.
    fn shadow_keeps(
        &self,
        shadowed: &mut Shadowed,
        of: &Fate,
        flow: impl FnOnce() -> FlowKey,
    ) -> (u8, u32) {
        let [class, step] = self.classifier.of_shadow(of.at);
        let demands = self.demands(of.place, class);
        let given = match &mut shadowed.detail {
            Some(detail) if self.has_detail && !of.is_asked && demands.budgeted.is_some() => {
                Some(is_given(detail, demands, step, &of.offered))
            }
            _ => None,
        };
        let (outcome, _) = self.decided((of.place, class), given, flow);
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

    /// Compares what was kept of a packet with what the shadow would have kept.
    #[inline(never)]
    pub(super) fn compare_lane(
        &mut self,
        lane: usize,
        packet: &PacketRef<'_>,
        (class, kept, is_asked): (u8, u32, bool),
    ) {
        let Some(mut shadowed) = self.shadowed.take() else {
            return;
        };
        let lanes = &self.lanes;
        let has_flow = lanes.dissected & 1 << lane != 0;
        let fate = Fate {
            at: lane,
            place: lanes.policed[lane],
            offered: Offered {
                ts_ns: packet.ts_ns,
                fingerprint: if has_flow {
                    lanes.facts[lane].fingerprint
                } else {
                    0
                },
                header_end: lanes.header_len[lane],
                captured_len: exact::<u32>(packet.data.len()),
                wire_len: packet.wire_len,
            },
            is_asked,
        };
        let flow = || self.lanes.headers(lane).flow_key();
        let (of_shadow, would) = self.shadow_keeps(&mut shadowed, &fate, flow);
        let classes = [class, of_shadow];
        shadowed
            .counts
            .add(classes, wire_bytes(packet), [kept, would]);
        self.shadowed = Some(shadowed);
    }

    /// The same for a batch in columns, all of which is decided.
    #[inline(never)]
    pub(super) fn compare_columns(&mut self, wide: &Wide) {
        let Some(mut shadowed) = self.shadowed.take() else {
            return;
        };
        let wanted = wide
            .wanted
            .iter()
            .map(|group| u64::from(group.count_ones()));
        let last = self.packet_number;
        self.packet_number -= wanted.sum::<u64>();
        for (group, &wanted) in wide.wanted.iter().enumerate() {
            for lane in bits(wanted.into()) {
                let at = group * GROUP + lane;
                debug_assert!(at < WIDE);
                self.packet_number += 1;
                let fate = Fate {
                    at,
                    place: at.to_le_bytes()[0],
                    offered: wide.offered(at),
                    is_asked: is_in(&wide.asked, at),
                };
                let (of_shadow, would) =
                    self.shadow_keeps(&mut shadowed, &fate, || wide.flow_key(at));
                let kept = match is_in(&wide.recorded, at) {
                    true => wide.kept_len[at],
                    false => 0,
                };
                let [class, ..] = wide.kinds[at].to_le_bytes();
                let classes = [class, of_shadow];
                shadowed
                    .counts
                    .add(classes, wide.wire_bytes(at), [kept, would]);
            }
        }
        debug_assert_eq!(self.packet_number, last);
        self.shadowed = Some(shadowed);
    }
}
