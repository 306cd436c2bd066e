//! The stages that a batch passes through, in their order.
//!
//! ```text
//! parse -> police -> features, class -> export -> budget -> triggers -> keep -> cut -> shadow -> record
//! ```
//!
//! Before them, the filter of `parse` and `dedup` choose which packets pass.
//!
//! Each owns its state. What they find out about packets is in a [`Batch`], or in [`Lanes`] where packets
//! pass one by one, which is the reference; a stage has a function for either. Features and class are
//! [`Classifier`]'s.

pub(crate) mod batch;
pub(crate) mod budget;
mod classes;
pub(crate) mod cut;
pub(crate) mod deciding;
pub(crate) mod dedup;
pub(crate) mod export;
pub(crate) mod keep;
pub(crate) mod lanes;
pub(crate) mod parse;
pub(crate) mod police;
pub(crate) mod record;
pub(crate) mod shadow;
pub(crate) mod triggers;

use strata_blocks::SinkError;
use strata_capture::{PacketRef, Packets};
use strata_classify::{LANES, VerdictId};
use strata_policy::Plan;
use strata_wire::prefetch;
use strata_wire::wide::{GROUP, GROUPS, WIDE};
use strata_wire::{Counters, KeepKind, Outcome};

use crate::classifier::{Classifier, bits};
use crate::flows::wire_bytes;
use crate::policing::Policing;
use crate::tap::TappedHeaders;
use batch::{Batch, Chosen, Known, fetch};
use budget::BudgetStage;
use cut::CutStage;
use deciding::{Decided, Deciding, decide, definitions};
use dedup::DedupStage;
use export::ExportStage;
use keep::KeepStage;
use lanes::{Lane, Lanes};
use parse::{ParseStage, Scanned};
use police::PoliceStage;
use record::{Ends, RecordStage, Recording, ToRecord};
use shadow::ShadowStage;
use triggers::Triggers;

/// Fewer packets than this are faster one by one.
pub(crate) const FEW: usize = 16;

/// A worker's stages; those that its configuration does not use are absent.
#[derive(Debug)]
pub(crate) struct Stages {
    pub(crate) parse: ParseStage,
    /// `None` if duplicates are kept.
    pub(crate) dedup: Option<Box<DedupStage>>,
    pub(crate) police: PoliceStage,
    pub(crate) classifier: Classifier,
    /// `None` if no module is shown packets.
    pub(crate) export: Option<Box<ExportStage>>,
    pub(crate) budget: BudgetStage,
    /// `None` if nothing is kept whole beyond what modes and policies ask for.
    pub(crate) triggers: Option<Box<Triggers>>,
    pub(crate) keep: KeepStage,
    /// `None` if the kernel does not cut packets.
    pub(crate) cut: Option<Box<CutStage>>,
    /// `None` without a shadow model.
    pub(crate) shadow: Option<Box<ShadowStage>>,
    pub(crate) record: RecordStage,
}

/// All stages alike.
impl Stages {
    /// Moves the places, from `start` on, of the packets to record to the front; counts the others. Returns
    /// how many there are.
    pub(crate) fn choose<P: Packets + ?Sized>(
        &mut self,
        batch: &P,
        start: usize,
        places: &mut [u8],
    ) -> usize {
        let passed = self.parse.choose(batch, start, places);
        match &mut self.dedup {
            None => passed,
            Some(dedup) => dedup.choose(&self.parse, (batch, start), &mut places[..passed]),
        }
    }

    /// Packets that arrived.
    pub(crate) fn seen(&self) -> Counters {
        let mut seen = self.parse.seen();
        if let Some(dedup) = &self.dedup {
            seen.merge(dedup.duplicates());
        }
        seen
    }

    /// Switches to another plan, whose policies are `police`.
    pub(crate) fn adopt(&mut self, plan: &Plan, police: Option<Box<Policing>>) {
        self.police.publish_hits();
        self.keep.adopt(plan);
        let anomalous = self.classifier.anomalous();
        self.budget.adopt(plan, self.keep.by_class(), anomalous);
        if let Some(shadow) = &mut self.shadow {
            shadow.adopt(plan, self.budget.workers());
        }
        self.record.adopt(plan.context_json());
        self.police.adopt(police);
        self.parse.name_interfaces(self.police.policing());
    }

    /// Has the shadow model decide from the next packet on, or the recording's own model again. What look-back
    /// remembers is forgotten, since it has verdicts of the model before.
    ///
    /// # Errors
    ///
    /// If the log cannot be written: its next block begins.
    pub(crate) fn put_in_force(&mut self, is_promoted: bool) -> Result<(), SinkError> {
        let shadow = self.shadow.as_mut();
        if !shadow.is_some_and(|shadow| shadow.put_in_force(is_promoted, &mut self.classifier)) {
            return Ok(());
        }
        self.keep.reasons_mut().forget_verdicts();
        if let Some(triggers) = &mut self.triggers {
            triggers.forget();
        }
        self.record.end_block()
    }

    /// Takes in new alerts.
    pub(crate) fn apply_alerts(&mut self) -> Result<(), SinkError> {
        let Some(triggers) = &mut self.triggers else {
            return Ok(());
        };
        let mut deciding = Deciding {
            known: Known {
                classifier: &self.classifier,
                policing: self.police.policing(),
            },
            sources: self.parse.sources(),
            budget: &mut self.budget,
            keep: &mut self.keep,
            record: &mut self.record,
        };
        triggers.apply_alerts(self.parse.hasher(), &mut deciding)
    }
}

/// Batches in columns. Anything rare sends the batch to the other loop.
impl Stages {
    /// Up to 256 packets; false if it has done nothing, since they need more than it can do.
    pub(crate) fn columns<P: Packets + ?Sized>(
        &mut self,
        batch: &mut Batch,
        chosen: Chosen<'_, P>,
    ) -> Result<bool, SinkError> {
        if chosen.len() < FEW {
            return Ok(false);
        }
        let mut data: [&[u8]; WIDE] = [&[]; WIDE];
        let Some(scanned) = self.parse.scan(batch, chosen, &mut data) else {
            return Ok(false);
        };
        // Triggers record packets before the last stage, where what came is compared with what is kept.
        let arrived = self.parse.source(scanned.interface).kept;
        if arrived != KeepKind::Full && self.triggers.is_some() {
            return Ok(false);
        }
        let times = (scanned.earliest_ns, scanned.latest_ns);
        let is_counted = self.classifier.takes_columns(chosen.len(), times);
        // Whatever their times, policies may discard most of them; and no window of the table of flows begins
        // before a packet is counted.
        if !is_counted && (self.police.is_absent() || self.shadow.is_some()) {
            return Ok(false);
        }
        self.parse.begin(batch, chosen.len(), &scanned);
        self.find_class(batch, chosen, (&scanned, is_counted), &data);
        if let Some(export) = &mut self.export {
            let known = Known {
                classifier: &self.classifier,
                policing: self.police.policing(),
            };
            export.columns(batch, chosen, known);
        }
        if batch.wanted == [0; GROUPS] && self.triggers.is_none() {
            return Ok(true);
        }
        let common = (scanned.interface, scanned.ascends);
        let recording = Recording::new(chosen, &data, common);
        self.keep_and_record(batch, recording)?;
        Ok(true)
    }

    /// From headers to classes: 64 packets at a time, so that lines fetched are still there.
    fn find_class<P: Packets + ?Sized>(
        &mut self,
        batch: &mut Batch,
        chosen: Chosen<'_, P>,
        (scanned, is_counted): (&Scanned, bool),
        data: &[&[u8]; WIDE],
    ) {
        let Self {
            parse,
            police,
            classifier,
            triggers,
            keep,
            ..
        } = self;
        let number = parse.source(scanned.interface).rules_number;
        let count = chosen.len();
        let groups_in_all = count.div_ceil(GROUP);
        for first in (0..groups_in_all).step_by(LANES / GROUP) {
            let groups = first..(first + LANES / GROUP).min(groups_in_all);
            for group in groups.clone() {
                parse.look_at_plain(batch, chosen, data, group);
                if !police.discards_group(&batch.columns, group, number) {
                    for fingerprint in batch.columns.fingerprint.as_chunks::<GROUP>().0[group] {
                        classifier.prefetch(fingerprint);
                    }
                }
                if batch.others_of(group) != 0 {
                    parse.look_at_others(batch, chosen, group, classifier);
                }
                let fingerprints = &batch.columns.fingerprint.as_chunks::<GROUP>().0[group];
                police.prefetch(fingerprints, number);
                if let Some(triggers) = triggers {
                    triggers.prefetch(fingerprints);
                }
            }
            let lanes = groups.start * GROUP..groups.end * GROUP;
            let header_lens = &batch.columns.header_len[lanes.clone()];
            for (packet, &len) in data[lanes.clone()].iter().zip(header_lens) {
                // The line in which the headers end, if it is another one.
                prefetch(packet, (len as usize).min(128));
            }
            if !police.is_absent() {
                let lanes = lanes.start..count.min(lanes.end);
                police.columns(batch, lanes, (number, data), keep.reasons_mut());
            }
            if is_counted {
                classifier.count_columns(&batch.columns, groups);
            }
        }
        ParseStage::find_header_ends(batch);
        if is_counted {
            classifier.finish_columns(&mut batch.verdicts);
        } else {
            classifier.classify_columns(&batch.columns, count, &mut batch.verdicts);
        }
    }

    /// From classes to records.
    fn keep_and_record<P: Packets + ?Sized>(
        &mut self,
        batch: &mut Batch,
        mut recording: Recording<'_, P>,
    ) -> Result<(), SinkError> {
        let count = recording.count();
        let known = Known {
            classifier: &self.classifier,
            policing: self.police.policing(),
        };
        if self.cut.is_some() {
            batch.classified = batch.verdicts;
        }
        let (sources, is_policed) = (self.parse.sources(), !self.police.is_absent());
        let Self {
            budget,
            keep,
            record,
            ..
        } = self;
        match &mut self.triggers {
            Some(triggers) => {
                keep.demand_columns(batch, known, count);
                let mut deciding = Deciding {
                    known,
                    sources,
                    budget,
                    keep,
                    record,
                };
                triggers.columns(batch, &mut recording, &mut deciding)?;
            }
            None if budget.is_alone() && !is_policed => {
                budget.columns_alone(batch, known.classifier, keep, count);
            }
            None if keep.is_by_class() && !is_policed => {
                keep.columns_by_class(batch, known.classifier, count);
            }
            None => {
                keep.demand_columns(batch, known, count);
                budget.columns(batch, known, keep);
                keep.columns(batch, known, record);
                budget.count_columns_outside(batch);
            }
        }
        if let Some(cut) = &mut self.cut {
            let interface = &self.parse.source(recording.interface).interface;
            let number = keep.packet_number();
            cut.columns(batch, (number, interface.snaplen), known);
        }
        if let Some(shadow) = &mut self.shadow {
            shadow.columns(batch, known, keep);
        }
        let arrived = self.parse.source(recording.interface).kept;
        if arrived != KeepKind::Full {
            keep::as_arrived(batch, arrived, count);
        }
        let definitions = definitions(known, sources, keep);
        record.columns(batch, &mut recording, count, definitions)
    }
}

/// Packet by packet.
impl Stages {
    /// Up to 64 packets.
    pub(crate) fn lanes<P: Packets + ?Sized>(
        &mut self,
        lanes: &mut Lanes,
        chosen: Chosen<'_, P>,
    ) -> Result<(), SinkError> {
        lanes.clear();
        for lane in 0..chosen.len() {
            // Two lines hold the headers of upcoming packets. One is fetched here and one below,
            // since the CPU stalls when it has to fetch more than a dozen or two at a time.
            let at = chosen.index(lane);
            fetch(chosen.batch, at + LANES, 0);
            let packet = chosen.batch.get(at);
            self.parse.look(lanes, lane, &packet, &self.classifier);
        }
        let passed = lanes.wanted;
        if !self.police.is_absent() {
            let reasons = self.keep.reasons_mut();
            self.police.lanes(lanes, chosen, &self.parse, reasons);
        }
        let facts = &lanes.facts[..chosen.len()];
        self.classifier.classify(facts, lanes.dissected);
        if let Some(export) = &mut self.export {
            let known = Known {
                classifier: &self.classifier,
                policing: self.police.policing(),
            };
            export.lanes(lanes, chosen, passed, known);
        }
        if let Some(triggers) = &self.triggers {
            triggers.prefetch_lanes(lanes);
        }
        for lane in bits(lanes.wanted) {
            let at = chosen.index(lane);
            fetch(chosen.batch, at + LANES, 1);
            let verdict = self.classifier.classified()[lane];
            self.packet(lanes, lane, &chosen.batch.get(at), verdict)?;
        }
        Ok(())
    }

    /// One packet, from its class to its record.
    #[inline(always)]
    fn packet(
        &mut self,
        lanes: &Lanes,
        lane: usize,
        packet: &PacketRef<'_>,
        verdict: VerdictId,
    ) -> Result<(), SinkError> {
        let class = self.classifier.class(verdict);
        let lane = Lane {
            lanes,
            lane,
            packet,
            verdict,
            class,
        };
        self.keep.count(1);
        let (((outcome, decider), is_outside), is_asked) = self.decide(lane)?;
        let known = Known {
            classifier: &self.classifier,
            policing: self.police.policing(),
        };
        let Outcome::Log(keep) = outcome else {
            self.record.skip(outcome, class, wire_bytes(packet));
            if let Some(shadow) = &mut self.shadow {
                shadow.packet(lane, (0, is_asked), known, &self.keep);
            }
            return Ok(());
        };
        if let Some(cut) = &mut self.cut {
            let snaplen = self.parse.source(packet.interface).interface.snaplen;
            cut.packet(lane, (keep, self.keep.packet_number(), snaplen), known);
        }
        let kept_len = keep.kept_len(lane.header_len(), lane.captured_len());
        if is_outside {
            let kept = kept_len.saturating_sub(lane.header_len());
            self.budget.count_outside(kept);
        }
        if let Some(shadow) = &mut self.shadow {
            shadow.packet(lane, (kept_len, is_asked), known, &self.keep);
        }
        let reason = self.keep.reason(&self.classifier, verdict, decider);
        let definitions = definitions(known, self.parse.sources(), &self.keep);
        let of = ToRecord {
            packet,
            class,
            keep: keep.kind().as_arrived(
                self.parse.source(packet.interface).kept,
                packet.wire_len <= lane.captured_len(),
            ),
            kept_len,
            reason,
            header_len: lane.header_len(),
            fingerprint: lane.fingerprint(),
            ends: match lanes.headers(lane.lane) {
                TappedHeaders::Plain(plain) => Ends::Plain([plain.source, plain.destination]),
                TappedHeaders::Other(headers) => Ends::Other(headers),
            },
        };
        self.record.packet(&of, definitions)
    }

    /// What is decided about a packet, and whether its flow asks for it by itself.
    #[inline(always)]
    fn decide(&mut self, lane: Lane<'_>) -> Result<(Decided, bool), SinkError> {
        let known = Known {
            classifier: &self.classifier,
            policing: self.police.policing(),
        };
        let Some(triggers) = &mut self.triggers else {
            return Ok((decide(&mut self.budget, &self.keep, lane, known), false));
        };
        let mut deciding = Deciding {
            known,
            sources: self.parse.sources(),
            budget: &mut self.budget,
            keep: &mut self.keep,
            record: &mut self.record,
        };
        triggers.packet(lane, &mut deciding)
    }
}
