//! The stage that decides how much of each packet is kept, and who decided so: what modes and policies
//! demand, joined.

use strata_classify::VerdictId;
use strata_policy::Plan;
use strata_wire::wide::{GROUP, GROUPS, Kernel, Lanes, WIDE};
use strata_wire::{Decider, FlowHasher, FlowKey, KeepKind, Outcome, mix64};

use super::batch::{Batch, Known};
use super::lanes::Lane;
use super::record::RecordStage;
use crate::classifier::{Classifier, bits};
use crate::demand::{DECIDER_BITS, Demand, Demands, Kept, VARIES, payload_wanted};
use crate::policing::Policing;
use crate::reasons::{BY_CLASS, DeciderId, Reasons, class_and_level, join_decided};

/// What modes demand, and the numbers of who decided.
#[derive(Debug)]
pub(crate) struct KeepStage {
    /// What modes ask for, by class.
    demands: Vec<Demands>,
    /// The same for batches in columns: for each class that there could be, so that none has to be
    /// checked.
    by_class: Box<[Kept; 256]>,
    /// Whether every packet is recorded, and its class says how much of it.
    is_by_class: bool,
    reasons: Reasons,
    /// For each class, who decides where only modes do.
    class_deciders: Vec<Decider>,
    sampling_hasher: FlowHasher,
    /// Chooses which packets are sampled, as `sampling_hasher` which flows.
    sampling_key: u64,
    packet_number: u64,
}

/// What is decided about a packet, and by whom.
pub(crate) type Decision = (Outcome, DeciderId);

impl KeepStage {
    pub(crate) fn new(sampling_seed: u64) -> Self {
        Self {
            demands: Vec::new(),
            by_class: Box::new([Kept::default(); 256]),
            is_by_class: false,
            reasons: Reasons::new(),
            class_deciders: Vec::new(),
            sampling_hasher: FlowHasher::new([sampling_seed, 0x5354_5241_5441]),
            sampling_key: mix64(sampling_seed ^ 0x5354_5241),
            packet_number: 0,
        }
    }

    /// Switches to another plan.
    pub(crate) fn adopt(&mut self, plan: &Plan) {
        let reasons = &mut self.reasons;
        let demands = plan.demands().iter().enumerate();
        self.demands = demands
            .map(|(class, modes)| Demands::new(class, modes, plan.detail(), Vec::clone, reasons))
            .collect();
        self.is_by_class = true;
        let classes = (0..=u8::MAX).zip(&self.demands);
        for ((class, demand), by_class) in classes.zip(&mut *self.by_class) {
            *by_class = demand.kept(class);
            self.is_by_class &= by_class.is_by_class();
        }
        self.class_deciders = plan.deciders();
        self.reasons.forget_plan();
    }

    /// What modes ask for, by class.
    pub(crate) fn by_class(&self) -> &[Demands] {
        &self.demands
    }

    /// Whether every packet is recorded and classes alone say how much of it, where there are no
    /// policies.
    pub(crate) fn is_by_class(&self) -> bool {
        self.is_by_class
    }

    pub(crate) fn reasons(&self) -> &Reasons {
        &self.reasons
    }

    pub(crate) fn reasons_mut(&mut self) -> &mut Reasons {
        &mut self.reasons
    }

    /// How many packets have come here so far.
    #[inline(always)]
    pub(crate) fn packet_number(&self) -> u64 {
        self.packet_number
    }

    /// Counts packets that come here.
    #[inline(always)]
    pub(crate) fn count(&mut self, packets: u64) {
        self.packet_number += packets;
    }

    /// What modes and policies ask for, for packets of this class. `place` is that among the packets
    /// that policies have seen.
    #[inline(always)]
    pub(crate) fn demands<'a>(
        &'a self,
        policing: Option<&'a Policing>,
        (place, class): (u8, u8),
    ) -> &'a Demands {
        match policing {
            None => &self.demands[usize::from(class)],
            Some(policing) => policing.demand(place, usize::from(class)),
        }
    }

    /// What modes, policies and the budget of detail decide about a packet, and which of
    /// them; `given` is what the budget said.
    #[inline(always)]
    fn decide(
        &self,
        policing: Option<&Policing>,
        of: (u8, u8),
        given: Option<bool>,
        flow: impl FnOnce() -> FlowKey,
    ) -> Decision {
        let number = self.packet_number;
        self.decide_numbered(self.demands(policing, of), number, given, flow)
    }

    /// What they decide about one packet.
    #[inline(always)]
    pub(crate) fn packet(&self, lane: Lane<'_>, known: Known<'_>, given: Option<bool>) -> Decision {
        let of = (lane.place(), lane.class);
        self.decide(known.policing, of, given, || lane.flow_key())
    }

    /// The same about the packet of this number, of which this is demanded.
    #[inline(always)]
    pub(crate) fn decide_numbered(
        &self,
        demands: &Demands,
        number: u64,
        given: Option<bool>,
        flow: impl FnOnce() -> FlowKey,
    ) -> Decision {
        let demand = match (given, demands.budgeted.as_deref()) {
            (Some(given), Some(budgeted)) => &budgeted[usize::from(given)],
            _ => &demands.wanted,
        };
        match demand {
            Demand::Always(outcome, decider) => (*outcome, *decider),
            Demand::Sampled(demands) => {
                // Packets without a flow are sampled as if they were one.
                let number = number ^ self.sampling_key;
                join_decided(demands, number, self.sampling_hasher.flow(&flow()))
            }
        }
    }

    /// The number for a verdict and who decided.
    #[inline(always)]
    pub(crate) fn reason(
        &mut self,
        classifier: &Classifier,
        verdict: VerdictId,
        decider: DeciderId,
    ) -> u16 {
        if decider == BY_CLASS {
            return verdict;
        }
        let known = |id| class_and_level(classifier.verdict(id));
        self.reasons.number(verdict, decider, known)
    }

    /// The number for a verdict whose packet is now written whole because of a trigger, on a packet of
    /// this class.
    pub(crate) fn reason_to_promote(
        &mut self,
        classifier: &Classifier,
        verdict: VerdictId,
        (trigger, class): (DeciderId, u8),
    ) -> u16 {
        let explicit = self.class_deciders.get(usize::from(class));
        let by_class = explicit.unwrap_or(&Decider::Class);
        let decider = self.reasons.look_back(trigger, class, by_class);
        debug_assert_ne!(decider, BY_CLASS);
        self.reason(classifier, verdict, decider)
    }
}

/// Batches in columns.
impl KeepStage {
    /// How much is kept of each packet, where [`KeepStage::is_by_class`] and nothing else decides.
    pub(crate) fn columns_by_class(
        &mut self,
        batch: &mut Batch,
        classifier: &Classifier,
        count: usize,
    ) {
        self.packet_number += count as u64;
        let classes = classifier.classes_and_steps();
        let groups = batch.kept_len.as_chunks_mut::<GROUP>().0.iter_mut();
        let groups = groups.zip(batch.kinds.as_chunks_mut::<GROUP>().0);
        let groups = groups.zip(batch.verdicts.as_chunks::<GROUP>().0);
        for ((kept_lens, kinds), ids) in groups.take(count.div_ceil(GROUP)) {
            for ((kept_len, kind), &id) in kept_lens.iter_mut().zip(kinds).zip(ids) {
                let [class, _] = classes[usize::from(id)];
                let kept = &self.by_class[usize::from(class)];
                (*kept_len, *kind) = (kept.payload, kept.kind);
            }
        }
        batch.recorded = batch.wanted;
        find_kept_len(batch);
    }

    /// What modes and policies demand for each packet, by its class.
    pub(crate) fn demand_columns(&self, batch: &mut Batch, known: Known<'_>, count: usize) {
        let Batch {
            verdicts,
            demands,
            kept_len,
            ..
        } = batch;
        let mut put = |at: usize, kept: Kept| {
            (kept_len[at], demands[at]) = (kept.payload, kept.kind);
        };
        let classes = verdicts[..count].iter();
        let classes = classes.map(|&verdict| usize::from(known.classifier.class(verdict)));
        match known.policing {
            None => classes
                .enumerate()
                .for_each(|(at, class)| put(at, self.by_class[class])),
            Some(policing) => {
                let kept = classes.zip(policing.demanded());
                kept.enumerate()
                    .for_each(|(at, (class, kept))| put(at, kept[class]));
            }
        }
    }

    /// Decides about each packet, after [`KeepStage::demand_columns`] and the budget of detail.
    pub(crate) fn columns(
        &mut self,
        batch: &mut Batch,
        known: Known<'_>,
        record: &mut RecordStage,
    ) {
        let odd = split_demands(batch);
        batch.recorded = batch.wanted;
        let mut before = self.packet_number;
        for (group, odd) in odd.into_iter().enumerate() {
            let wanted = batch.wanted[group];
            for lane in bits((odd & wanted).into()) {
                let at = group * GROUP + lane;
                let mut decider = batch.decider(at);
                if decider == VARIES {
                    let so_far = wanted & (u16::MAX >> (GROUP - 1 - lane));
                    self.packet_number = before + u64::from(so_far.count_ones());
                    let is_offered = batch.offered[group] >> lane & 1 != 0;
                    let given = is_offered.then_some(batch.given[group] >> lane & 1 != 0);
                    match self.decide_column(batch, known, at, given) {
                        Ok(by) => decider = by,
                        Err(outcome) => {
                            skip(batch, at, outcome, record);
                            batch.recorded[group] &= !(1 << lane);
                            continue;
                        }
                    }
                }
                batch.verdicts[at] = self.reason(known.classifier, batch.verdicts[at], decider);
            }
            before += u64::from(wanted.count_ones());
        }
        self.packet_number = before;
    }

    /// Decides about a packet by itself, how much is kept of it and who decided; fails if it is not
    /// recorded. `given` is what the budget of detail said.
    #[inline(never)]
    pub(crate) fn decide_column(
        &self,
        batch: &mut Batch,
        known: Known<'_>,
        at: usize,
        given: Option<bool>,
    ) -> Result<DeciderId, Outcome> {
        let [class, place] = [batch.kinds[at].to_le_bytes()[0], at.to_le_bytes()[0]];
        let of = (place, class);
        let (outcome, decider) = self.decide(known.policing, of, given, || batch.flow_key(at));
        let Outcome::Log(keep) = outcome else {
            return Err(outcome);
        };
        batch.kinds[at] = u32::from(class) | u32::from(keep.kind().code()) << 8;
        batch.kept_len[at] = keep.kept_len(batch.header_end[at], batch.columns.captured_len[at]);
        batch.wanted_payload[at] = payload_wanted(keep);
        Ok(decider)
    }
}

/// Counts a packet of a batch that is not recorded.
pub(crate) fn skip(batch: &Batch, at: usize, outcome: Outcome, record: &mut RecordStage) {
    let [class, ..] = batch.kinds[at].to_le_bytes();
    record.skip(outcome, class, batch.wire_bytes(at));
}

/// Splits what is demanded into how much is kept and of which class; returns those for which
/// somebody else than the class decided.
pub(crate) fn split_demands(batch: &mut Batch) -> [u16; GROUPS] {
    find_kept_len(batch);
    batch.simd.run(Split {
        demands: &batch.demands,
        kinds: &mut batch.kinds,
    })
}

/// Says of packets that were cut before they came that no more is kept of them than came.
pub(crate) fn as_arrived(batch: &mut Batch, arrived: KeepKind, count: usize) {
    let lens = batch
        .columns
        .captured_len
        .iter()
        .zip(&batch.columns.wire_len);
    for (kind, (captured_len, wire_len)) in batch.kinds.iter_mut().zip(lens).take(count) {
        let [class, code, ..] = kind.to_le_bytes();
        let kept = KeepKind::of_flags(code).as_arrived(arrived, wire_len <= captured_len);
        *kind = u32::from(class) | u32::from(kept.code()) << 8;
    }
}

/// Keeps of each packet as many bytes after the headers as `kept_len` says.
fn find_kept_len(batch: &mut Batch) {
    batch.simd.run(KeptLen {
        kept_len: &mut batch.kept_len,
        wanted_payload: &mut batch.wanted_payload,
        header_end: &batch.header_end,
        captured_len: &batch.columns.captured_len,
    });
}

/// Turns how many bytes after the headers are wanted into how many bytes are kept, and remembers the
/// former.
struct KeptLen<'a> {
    kept_len: &'a mut [u32; WIDE],
    wanted_payload: &'a mut [u32; WIDE],
    header_end: &'a [u32; WIDE],
    captured_len: &'a [u32; WIDE],
}

impl Kernel for KeptLen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let chunks = self.kept_len.as_chunks_mut().0.iter_mut();
        let chunks = chunks.zip(self.wanted_payload.as_chunks_mut().0);
        let headers = self.header_end.as_chunks().0;
        let captured = self.captured_len.as_chunks().0;
        for ((kept_len, wanted_payload), (header, captured)) in
            chunks.zip(headers.iter().zip(captured))
        {
            let (captured, payload) = (l.load(captured), l.load(kept_len));
            l.store(payload, wanted_payload);
            // Neither is so long that a sum overflows.
            let header = l.min(l.load(header), captured);
            let wanted = l.add(header, payload);
            l.store(l.min(wanted, captured), kept_len);
        }
    }
}

/// Splits what is demanded into class and granularity, and who decided; returns those for which
/// somebody else than the class did.
struct Split<'a> {
    demands: &'a [u32; WIDE],
    kinds: &'a mut [u32; WIDE],
}

impl Kernel for Split<'_> {
    type Output = [u16; GROUPS];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> [u16; GROUPS] {
        let mut odd = [0; GROUPS];
        let kinds = self.kinds.as_chunks_mut().0.iter_mut();
        let demands = self.demands.as_chunks().0;
        for (odd, (kinds, demands)) in odd.iter_mut().zip(kinds.zip(demands)) {
            let (demands, of_kind) = (l.load(demands), l.set((1 << DECIDER_BITS) - 1));
            l.store(l.and(demands, of_kind), kinds);
            *odd = !l.bits(l.le(demands, of_kind));
        }
        odd
    }
}
