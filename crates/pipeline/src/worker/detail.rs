//! The budget of detail: which packets are offered to it, and what they get.

use strata_blocks::Sink;
use strata_capture::PacketRef;
use strata_classify::VerdictId;
use strata_policy::Detail;
use strata_wire::wide::{Kernel, Lanes, WIDE};
use strata_wire::{Outcome, exact};

use super::Worker;
use crate::demand::{DECIDER_BITS, Demands, VARIES};
use crate::reasons::{BY_CLASS, DeciderId};

/// A packet that says that it was longer on the wire is taken for one of this length: no packet earns
/// the budget of gigabytes by a damaged length.
const WIRE_LEN_MAX: u32 = 1 << 18;

/// Takes a packet's payload off what is on the wire.
pub(super) struct Payload<'a> {
    pub(super) payload: &'a mut [u32; WIDE],
    pub(super) header_end: &'a [u32; WIDE],
    pub(super) captured_len: &'a [u32; WIDE],
    pub(super) wire_len: &'a [u32; WIDE],
}

impl Kernel for Payload<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let longest = l.set(WIRE_LEN_MAX);
        let chunks = self.payload.as_chunks_mut().0.iter_mut();
        let headers = self.header_end.as_chunks().0.iter();
        let captured = self.captured_len.as_chunks().0.iter();
        let wire = self.wire_len.as_chunks().0.iter();
        for ((payload, header), (captured, wire)) in chunks.zip(headers).zip(captured.zip(wire)) {
            let captured = l.load(captured);
            let wire = l.min(l.load(wire), longest);
            let (all, header) = (l.max(captured, wire), l.min(l.load(header), captured));
            l.store(l.sub(all, header), payload);
        }
    }
}

/// The payload on the wire of a packet whose headers end here.
#[inline]
pub(super) fn payload_of(header_end: u32, captured_len: u32, wire_len: u32) -> u32 {
    wire_len.min(WIRE_LEN_MAX).max(captured_len) - header_end.min(captured_len)
}

/// What a packet is offered to the budget with.
#[derive(Clone, Copy)]
pub(super) struct Offered {
    pub(super) ts_ns: u64,
    /// 0 without a flow.
    pub(super) fingerprint: u64,
    pub(super) header_end: u32,
    pub(super) captured_len: u32,
    pub(super) wire_len: u32,
}

/// Asks the budget about a packet of a class that it decides about: whether it gets detail.
#[inline]
pub(super) fn is_given(detail: &mut Detail, demands: &Demands, step: u8, of: &Offered) -> bool {
    let Some([_, given]) = demands.budgeted.as_deref() else {
        return false;
    };
    let header = of.header_end.min(of.captured_len);
    let most = given.keeps().kept_len(of.header_end, of.captured_len);
    let payload = payload_of(of.header_end, of.captured_len, of.wire_len);
    let step = Detail::step(step, demands.wants_detail());
    detail.packet(of.ts_ns, step, of.fingerprint, (payload, most - header))
}

/// What each class gets with detail and without, where classes alone say it.
#[derive(Clone, Debug)]
pub(super) struct KeptByDetail {
    /// Without: the class, and how much is kept, as in a run.
    pub(super) denied: [u32; 256],
    pub(super) given: [u32; 256],
    /// Who decided.
    pub(super) deciders: [[DeciderId; 2]; 256],
    /// Bytes after the headers, with detail.
    pub(super) payload: u32,
}

impl KeptByDetail {
    /// `None` if classes and the budget of detail alone do not say what is kept, or modes do not want
    /// the detail of the classes that are anomalous.
    pub(super) fn new(demands: &[Demands], anomalous: impl Iterator<Item = bool>) -> Option<Self> {
        const OF_KIND: u32 = (1 << DECIDER_BITS) - 1;
        let mut kept = Self {
            denied: [0; 256],
            given: [0; 256],
            deciders: [[BY_CLASS; 2]; 256],
            payload: 0,
        };
        for ((class, demands), is_anomalous) in (0..=u8::MAX).zip(demands).zip(anomalous) {
            let both = demands.budgeted.as_deref()?.each_ref();
            let [denied, given] = both.map(|demand| demand.kept(class));
            let deciders = [denied.decider(), given.decider()];
            let wants = demands.wants_detail();
            if deciders.contains(&VARIES) || denied.payload > 0 || wants != is_anomalous {
                return None;
            }
            // The most that any class gets, so the same for all.
            kept.payload = given.payload;
            let class = usize::from(class);
            kept.denied[class] = denied.kind & OF_KIND;
            kept.given[class] = given.kind & OF_KIND;
            kept.deciders[class] = deciders;
        }
        Some(kept)
    }
}

/// What is decided about a packet and by whom, and whether that is outside the budget of detail.
pub(super) type Decided = ((Outcome, DeciderId), bool);

impl<S: Sink> Worker<S> {
    /// Offers a packet to the budget of detail: whether it gets some. `None` if the budget does not
    /// decide about it.
    pub(super) fn offer(&mut self, place: u8, verdict: VerdictId, of: &Offered) -> Option<bool> {
        let [class, step] = self.classifier.class_and_step(verdict);
        let demands = match &self.policing {
            None => &self.demands[usize::from(class)],
            Some(policing) => policing.demand(place, usize::from(class)),
        };
        demands.budgeted.as_ref()?;
        let detail = self.detail.as_mut()?;
        Some(is_given(detail, demands, step, of))
    }

    /// What modes, policies and the budget of detail decide about a packet.
    #[inline(always)]
    pub(super) fn decided_lane(
        &mut self,
        lane: usize,
        packet: &PacketRef<'_>,
        verdict: VerdictId,
    ) -> Decided {
        let place = self.lanes.policed[lane];
        let given = match self.has_detail {
            true => self.offer_lane(lane, packet, verdict),
            false => None,
        };
        let class = self.classifier.class(verdict);
        let flow = || self.lanes.headers(lane).flow_key();
        let decided = self.decided((place, class), given, flow);
        (decided, self.has_detail && given.is_none())
    }

    #[inline(never)]
    fn offer_lane(
        &mut self,
        lane: usize,
        packet: &PacketRef<'_>,
        verdict: VerdictId,
    ) -> Option<bool> {
        let lanes = &self.lanes;
        let has_flow = lanes.dissected & 1 << lane != 0;
        let offered = Offered {
            ts_ns: packet.ts_ns,
            fingerprint: if has_flow {
                lanes.facts[lane].fingerprint
            } else {
                0
            },
            header_end: lanes.header_len[lane],
            captured_len: exact::<u32>(packet.data.len()),
            wire_len: packet.wire_len,
        };
        self.offer(lanes.policed[lane], verdict, &offered)
    }

    /// Counts what is kept beyond headers of a packet that the budget did not decide about.
    #[inline]
    pub(super) fn count_outside(&mut self, kept: u32) {
        if let Some(detail) = &mut self.detail {
            detail.outside(kept);
        }
    }
}
