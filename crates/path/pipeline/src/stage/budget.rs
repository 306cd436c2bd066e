//! The stage of the budget of detail: which packets are offered to it, and whether they get some.

use strata_classify::{ClassesAndSteps, VerdictId};
use strata_policy::{Detail, DetailCounts, DetailOffer, DetailSite, Plan};
use strata_wire::wide::{GROUP, Kernel, Lanes, PacketColumns, WIDE};

use super::batch::{Batch, Known};
use super::keep::KeepStage;
use super::lanes::Lane;
use crate::classifier::{Classifier, bits};
use crate::demand::{Budgeted, DECIDER_BITS, Demands, Kept, VARIES};
use crate::reasons::{BY_CLASS, DeciderId, class_and_level};

/// A packet that says that it was longer on the wire is taken for one of this length: no packet earns
/// the budget of gigabytes by a damaged length.
const WIRE_LEN_MAX: u32 = 1 << 18;

/// The budget of detail at work.
#[derive(Debug)]
pub(crate) struct BudgetStage {
    /// `None` until a plan has a budget.
    detail: Option<Box<Detail>>,
    /// Whether the current plan has one.
    is_on: bool,
    /// What is known beforehand, until then.
    site: DetailSite,
    /// How many workers share it.
    workers: usize,
    /// For batches in columns: what it decides, by class.
    by_class: Vec<Budgeted>,
    /// Or where it and the class alone say what is kept.
    alone: Option<Box<KeptByDetail>>,
}

impl BudgetStage {
    pub(crate) fn new(site: DetailSite) -> Self {
        let load = site.load.as_ref();
        Self {
            detail: None,
            is_on: false,
            workers: load.map_or(1, |(loads, _)| loads.workers()),
            site,
            by_class: Vec::new(),
            alone: None,
        }
    }

    /// Switches to another plan, of which the modes ask for `demands` by class; some classes are anomalous.
    pub(crate) fn adopt(
        &mut self,
        plan: &Plan,
        demands: &[Demands],
        anomalous: impl Iterator<Item = bool>,
    ) {
        let classes = (0..=u8::MAX).zip(demands);
        let by_class = classes.map(|(class, demand)| demand.within_budget(class));
        self.by_class = by_class.collect();
        self.alone = KeptByDetail::new(demands, anomalous).map(Box::new);
        self.is_on = plan.detail().is_some();
        if let Some(plan) = plan.detail() {
            match &mut self.detail {
                Some(detail) => detail.set_budget(plan.budget),
                none => {
                    let site = std::mem::take(&mut self.site);
                    *none = Some(Box::new(Detail::new(plan.budget, site)));
                }
            }
        }
    }

    /// How many workers share the budget.
    pub(crate) fn workers(&self) -> usize {
        self.workers
    }

    /// Whether the plan has a budget.
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether it and the class alone say what is kept, where there are no policies.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone.is_some()
    }

    /// What became of payload while there was a budget; `None` without one.
    pub(crate) fn counts(&self) -> Option<DetailCounts> {
        self.detail.as_ref().map(|detail| detail.counts())
    }

    /// Offers a packet to the budget: whether it gets detail. `None` if the budget does not decide
    /// about it; `demands` are those for packets of its class.
    pub(crate) fn offer(&mut self, demands: &Demands, step: u8, of: &Offered) -> Option<bool> {
        demands.budgeted.as_ref()?;
        let detail = self.detail.as_mut().filter(|_| self.is_on)?;
        Some(is_given(detail, demands, step, of))
    }

    /// Counts what is kept beyond headers of a packet that the budget did not decide about.
    #[inline]
    pub(crate) fn count_outside(&mut self, kept: u32) {
        if let Some(detail) = &mut self.detail {
            detail.outside(kept);
        }
    }

    /// Takes in how many packets have passed the filter so far.
    pub(crate) fn batch_done(&mut self, passed: u64) {
        if let Some(detail) = &mut self.detail {
            detail.came(passed);
        }
    }

    /// Offers a packet, if there is a budget.
    #[inline(always)]
    pub(crate) fn packet(
        &mut self,
        lane: Lane<'_>,
        known: Known<'_>,
        keep: &KeepStage,
    ) -> Option<bool> {
        match self.is_on {
            true => self.offer_lane(lane, known, keep),
            false => None,
        }
    }

    #[inline(never)]
    fn offer_lane(&mut self, lane: Lane<'_>, known: Known<'_>, keep: &KeepStage) -> Option<bool> {
        let [class, step] = known.classifier.class_and_step(lane.verdict);
        let demands = keep.demands(known.policing, (lane.place(), class));
        self.offer(demands, step, &Offered::lane(lane))
    }
}

/// Batches in columns.
impl BudgetStage {
    /// How much is kept of each packet, where [`BudgetStage::is_alone`].
    pub(crate) fn columns_alone(
        &mut self,
        batch: &mut Batch,
        classifier: &Classifier,
        keep: &mut KeepStage,
        count: usize,
    ) {
        keep.count(count as u64);
        let (Some(detail), Some(kept)) = (&mut self.detail, &self.alone) else {
            return;
        };
        batch.simd.run(Offers {
            detail,
            kept,
            classes_and_steps: classifier.classes_and_steps(),
            reason: |verdict, decider| {
                let known = |id| class_and_level(classifier.verdict(id));
                keep.reasons_mut().number(verdict, decider, known)
            },
            count,
            columns: &batch.columns,
            header_end: &batch.header_end,
            verdicts: &mut batch.verdicts,
            steps: &mut batch.steps,
            payload: &mut batch.payload,
            kinds: &mut batch.kinds,
            kept_len: &mut batch.kept_len,
            wanted_payload: &mut batch.wanted_payload,
        });
        batch.recorded = batch.wanted;
    }

    /// Offers packets to the budget, in their order; those that it does not decide about stay as they are.
    pub(crate) fn columns(&mut self, batch: &mut Batch, known: Known<'_>, keep: &KeepStage) {
        batch.offered.fill(0);
        if self.is_on && !self.offer_alike(batch, known) {
            self.offer_each(batch, known, keep);
        }
    }

    /// Offers packets of which class and policies say what they get with detail and without; false if it has
    /// done nothing, since that has to be found out for some.
    #[inline(never)]
    fn offer_alike(&mut self, batch: &mut Batch, known: Known<'_>) -> bool {
        let Some(detail) = &mut self.detail else {
            return true;
        };
        let by_class = &self.by_class;
        let classes_and_steps = known.classifier.classes_and_steps();
        let what = |at: usize, class: u8| match known.policing {
            None => by_class[usize::from(class)],
            Some(policing) => policing.budgeted(at, class),
        };
        let mut places = [0; WIDE];
        let mut many = 0;
        for (group, &wanted) in batch.wanted.iter().enumerate() {
            for lane in bits(wanted.into()) {
                let at = group * GROUP + lane;
                if batch.demands[at] >> DECIDER_BITS != u32::from(VARIES) {
                    continue;
                }
                let [class, step] = classes_and_steps[usize::from(batch.verdicts[at])];
                match what(at, class) {
                    Budgeted::Outside => continue,
                    Budgeted::Varies => return false,
                    Budgeted::Same { wants_detail, .. } => {
                        batch.steps[at] = Detail::step(step, wants_detail).into();
                    }
                }
                places[many] = at.to_le_bytes()[0];
                many += 1;
                batch.payload[at] = payload_of(
                    batch.header_end[at],
                    batch.columns.captured_len[at],
                    batch.columns.wire_len[at],
                );
            }
        }
        let mut from = 0;
        while from < many {
            let first = usize::from(places[from]);
            let chunk = detail.chunk(batch.columns.ts_ns[first], many - from);
            let these = &places[from..from + chunk];
            let mut sum = 0;
            for at in these.iter().map(|&at| usize::from(at)) {
                let (flow, payload) = (batch.columns.fingerprint[at], batch.payload[at]);
                let [step, ..] = batch.steps[at].to_le_bytes();
                batch.steps[at] = detail.count(step, flow, payload).0.into();
                sum += u64::from(payload);
            }
            detail.offered(chunk as u64, sum);
            let least = detail.candidate();
            for at in these.iter().map(|&at| usize::from(at)) {
                let [class, _] = classes_and_steps[usize::from(batch.verdicts[at])];
                let Budgeted::Same { kept, .. } = what(at, class) else {
                    unreachable!("it was offered");
                };
                let offer = offer_in(batch.steps[at]);
                let captured_len = batch.columns.captured_len[at];
                let captured = captured_len - batch.header_end[at].min(captured_len);
                let captured = captured.min(kept[1].payload);
                let gives = offer.0 >= least && detail.decide(offer, batch.payload[at], captured);
                let kept = kept[usize::from(gives)];
                (batch.kept_len[at], batch.demands[at]) = (kept.payload, kept.kind);
                batch.offered[at / GROUP] |= 1 << (at % GROUP);
            }
            from += chunk;
        }
        true
    }

    /// Offers packets one by one: who gets detail is in `given`, what that means is left to the next stage.
    #[inline(never)]
    fn offer_each(&mut self, batch: &mut Batch, known: Known<'_>, keep: &KeepStage) {
        batch.given.fill(0);
        for group in 0..batch.wanted.len() {
            for lane in bits(batch.wanted[group].into()) {
                let at = group * GROUP + lane;
                if batch.decider(at) == VARIES
                    && let Some(gives) = self.offer_column(batch, at, known, keep)
                {
                    batch.offered[group] |= 1 << lane;
                    batch.given[group] |= u16::from(gives) << lane;
                }
            }
        }
    }

    /// Offers one packet of a batch; see [`BudgetStage::offer`].
    #[inline(always)]
    pub(crate) fn offer_column(
        &mut self,
        batch: &Batch,
        at: usize,
        known: Known<'_>,
        keep: &KeepStage,
    ) -> Option<bool> {
        let [class, step] = known.classifier.class_and_step(batch.verdicts[at]);
        let of = (at.to_le_bytes()[0], class);
        let demands = keep.demands(known.policing, of);
        self.offer(demands, step, &Offered::column(batch, at))
    }

    /// Counts what is kept of packets that it did not decide about, once that is known.
    #[inline(never)]
    pub(crate) fn count_columns_outside(&mut self, batch: &Batch) {
        let Some(detail) = self.detail.as_mut().filter(|_| self.is_on) else {
            return;
        };
        let groups = batch.recorded.iter().zip(&batch.offered).enumerate();
        for (group, (recorded, offered)) in groups {
            for lane in bits((recorded & !offered).into()) {
                detail.outside(batch.payload_kept(group * GROUP + lane));
            }
        }
    }
}

/// What was counted before, as it is in a column.
#[inline(always)]
fn offer_in(column: u32) -> DetailOffer {
    let [low, high, ..] = column.to_le_bytes();
    DetailOffer(u16::from_le_bytes([low, high]))
}

/// The payload on the wire of a packet whose headers end here.
#[inline]
pub(crate) fn payload_of(header_end: u32, captured_len: u32, wire_len: u32) -> u32 {
    wire_len.min(WIRE_LEN_MAX).max(captured_len) - header_end.min(captured_len)
}

/// What a packet is offered to the budget with.
#[derive(Clone, Copy)]
pub(crate) struct Offered {
    pub(crate) ts_ns: u64,
    /// 0 without a flow.
    pub(crate) fingerprint: u64,
    pub(crate) header_end: u32,
    pub(crate) captured_len: u32,
    pub(crate) wire_len: u32,
}

impl Offered {
    pub(crate) fn column(batch: &Batch, at: usize) -> Self {
        Self {
            ts_ns: batch.columns.ts_ns[at],
            fingerprint: batch.columns.fingerprint[at],
            header_end: batch.header_end[at],
            captured_len: batch.columns.captured_len[at],
            wire_len: batch.columns.wire_len[at],
        }
    }

    pub(crate) fn lane(lane: Lane<'_>) -> Self {
        Self {
            ts_ns: lane.packet.ts_ns,
            fingerprint: match lane.has_flow() {
                true => lane.fingerprint(),
                false => 0,
            },
            header_end: lane.header_len(),
            captured_len: lane.captured_len(),
            wire_len: lane.packet.wire_len,
        }
    }
}

/// Asks the budget about a packet of a class that it decides about: whether it gets detail.
#[inline]
pub(crate) fn is_given(detail: &mut Detail, demands: &Demands, step: u8, of: &Offered) -> bool {
    let Some([_, given]) = demands.budgeted.as_deref() else {
        return false;
    };
    let header = of.header_end.min(of.captured_len);
    let most = given.keeps().kept_len(of.header_end, of.captured_len);
    let payload = payload_of(of.header_end, of.captured_len, of.wire_len);
    let step = Detail::step(step, demands.wants_detail());
    detail.packet(of.ts_ns, step, of.fingerprint, (payload, most - header))
}

/// Offers the packets of a batch to the budget, in their order.
struct Offers<'a, F> {
    detail: &'a mut Detail,
    kept: &'a KeptByDetail,
    classes_and_steps: &'a ClassesAndSteps,
    /// The number for a verdict where this one decided.
    reason: F,
    count: usize,
    columns: &'a PacketColumns,
    header_end: &'a [u32; WIDE],
    /// Their verdicts, then with who decided.
    verdicts: &'a mut [VerdictId; WIDE],
    /// Steps of their scores, then what they are offered with.
    steps: &'a mut [u32; WIDE],
    payload: &'a mut [u32; WIDE],
    /// What comes of it: class and granularity, and bytes kept.
    kinds: &'a mut [u32; WIDE],
    kept_len: &'a mut [u32; WIDE],
    /// Bytes after the headers that are wanted.
    wanted_payload: &'a mut [u32; WIDE],
}

impl<F: FnMut(VerdictId, DeciderId) -> VerdictId> Kernel for Offers<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        // The rest of the batch is never looked at.
        for (kind, &id) in self.kinds.iter_mut().zip(&*self.verdicts).take(self.count) {
            let both = self.classes_and_steps[usize::from(id)];
            *kind = u32::from(u16::from_le_bytes(both));
        }
        self.deny(l);
        let mut from = 0;
        while from < self.count {
            let ts_ns = self.columns.ts_ns[from];
            let chunk = self.detail.chunk(ts_ns, self.count - from);
            let lanes = from..from + chunk;
            let payload = self.payload[lanes.clone()].iter();
            let sum = payload.map(|&payload| u64::from(payload)).sum();
            self.detail.offered(chunk as u64, sum);
            for group in from / GROUP..lanes.end.div_ceil(GROUP) {
                let first = from.saturating_sub(group * GROUP);
                let end = (lanes.end - group * GROUP).min(GROUP);
                let flows = &self.columns.fingerprint.as_chunks().0[group];
                let payload = &self.payload.as_chunks().0[group];
                let here = (u16::MAX << first) & (u16::MAX >> (GROUP - end));
                let of = &mut self.steps.as_chunks_mut().0[group];
                let steps = l.load(of);
                let offers = self.detail.count_lanes(l, (flows, payload), here, steps);
                l.store(l.choose(l.mask(here), offers, steps), of);
                let least = l.set(self.detail.candidate().into());
                let candidates = l.bits(l.le(least, offers)) & here;
                for lane in bits(candidates.into()) {
                    self.decide(group * GROUP + lane);
                }
            }
            from = lanes.end;
        }
    }
}

impl<F: FnMut(VerdictId, DeciderId) -> VerdictId> Offers<'_, F> {
    /// What is offered, and what becomes of it without detail.
    #[inline(always)]
    fn deny<L: Lanes>(&mut self, l: L) {
        let (longest, of_class) = (l.set(WIRE_LEN_MAX), l.set(u8::MAX.into()));
        let denied = l.set(self.kept.denied);
        self.wanted_payload.fill(0);
        for group in 0..self.count.div_ceil(GROUP) {
            let header = l.load(&self.header_end.as_chunks().0[group]);
            let captured = l.load(&self.columns.captured_len.as_chunks().0[group]);
            let wire = l.load(&self.columns.wire_len.as_chunks().0[group]);
            let all = l.max(captured, l.min(wire, longest));
            let header = l.min(header, captured);
            l.store(header, &mut self.kept_len.as_chunks_mut().0[group]);
            l.store(
                l.sub(all, header),
                &mut self.payload.as_chunks_mut().0[group],
            );
            let kinds = &mut self.kinds.as_chunks_mut().0[group];
            let both = l.load(kinds);
            l.store(l.shr(both, 8), &mut self.steps.as_chunks_mut().0[group]);
            l.store(l.or(l.and(both, of_class), denied), kinds);
        }
    }

    /// Asks about a packet that may get detail.
    #[inline(always)]
    fn decide(&mut self, at: usize) {
        let header = self.kept_len[at];
        let captured = (self.columns.captured_len[at] - header).min(self.kept.payload);
        let offer = offer_in(self.steps[at]);
        let gives = self.detail.decide(offer, self.payload[at], captured);
        let class = self.kinds[at] & u32::from(u8::MAX);
        if gives {
            self.kinds[at] = class | self.kept.given;
            self.kept_len[at] = header + captured;
            self.wanted_payload[at] = self.kept.payload;
        }
        let decider = self.kept.deciders[class as usize][usize::from(gives)];
        if decider != BY_CLASS {
            self.verdicts[at] = (self.reason)(self.verdicts[at], decider);
        }
    }
}

/// What packets get with detail and without, where the modes keep the same of all classes.
#[derive(Clone, Debug)]
struct KeptByDetail {
    /// Without: how much is kept, as in a run, without the class.
    denied: u32,
    given: u32,
    /// Who decided, by class.
    deciders: [[DeciderId; 2]; 256],
    /// Bytes after the headers, with detail.
    payload: u32,
}

impl KeptByDetail {
    /// `None` if the budget of detail alone does not say what is kept, or modes do not want the detail
    /// of the classes that are anomalous.
    fn new(demands: &[Demands], anomalous: impl Iterator<Item = bool>) -> Option<Self> {
        const OF_KEEP: u32 = 0xff00;
        let mut deciders = [[BY_CLASS; 2]; 256];
        let mut all = None;
        for ((class, demands), is_anomalous) in (0..=u8::MAX).zip(demands).zip(anomalous) {
            let both = demands.budgeted.as_deref()?.each_ref();
            let both = both.map(|demand| demand.kept(class));
            deciders[usize::from(class)] = both.map(Kept::decider);
            let [denied, given] = both;
            let varies = both.map(Kept::decider).contains(&VARIES);
            let here = (denied.kind & OF_KEEP, given.kind & OF_KEEP, given.payload);
            let same = *all.get_or_insert(here) == here;
            if varies || denied.payload > 0 || demands.wants_detail() != is_anomalous || !same {
                return None;
            }
        }
        let (denied, given, payload) = all?;
        Some(Self {
            denied,
            given,
            deciders,
            payload,
        })
    }
}
