//! The stage that tells the kernel how much of a flow's packets is enough, so that no more is copied.

use std::fmt::Debug;

use strata_classify::VerdictId;
use strata_sketch::Level;
use strata_wire::wide::GROUP;
use strata_wire::{Counters, FlowKey, Keep, KeepKind, Ledger};

use super::batch::{Batch, Known};
use super::lanes::Lane;
use crate::classifier::bits;

/// Of packets that the kernel has cut, one in this many renews what is enough of its flow.
const RENEWED_EVERY: u64 = 4;
/// Flows of which more than this is wanted are not cut.
const CUT_MAX: u16 = u16::MAX / 2;
/// Bytes that headers of one flow may differ by: TCP options (RFC 9293, section 3.1), and some.
const TCP_OPTIONS_MAX: u32 = 64;

/// Is told how much of a flow's packets is enough, so that no more is copied.
pub trait EnoughOfFlows: Debug + Send {
    /// All of its packets are wanted whole.
    fn keep_whole(&self, flow: &FlowKey);

    /// This many bytes of a packet are enough, by its class: applied once several packets agree.
    fn cut(&self, flow: &FlowKey, bytes: u16);

    /// This many bytes of each of its packets are enough.
    fn cut_at_once(&self, flow: &FlowKey, bytes: u16);
}

/// Says what is enough, and counts packets that were cut too short.
#[derive(Debug)]
pub(crate) struct CutStage {
    enough: Box<dyn EnoughOfFlows>,
    wanted_but_cut: Counters,
}

/// A packet that is recorded.
struct Minded {
    /// Its place among the packets that policies have seen, and its number.
    place: u8,
    number: u64,
    captured_len: u32,
    wire_len: u32,
    /// How long it were if it had not been cut.
    whole_len: u32,
    /// What is kept, and how much of `whole_len` that would be.
    keep: KeepKind,
    wanted_len: u32,
    verdict: VerdictId,
}

/// The message to the kernel about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Enough {
    Whole,
    /// This many bytes, once several packets agree.
    Bytes(u16),
    /// This many bytes from now on.
    BytesAtOnce(u16),
}

impl Enough {
    fn tell(self, to: &dyn EnoughOfFlows, flow: &FlowKey) {
        match self {
            Self::Whole => to.keep_whole(flow),
            Self::Bytes(bytes) => to.cut(flow, bytes),
            Self::BytesAtOnce(bytes) => to.cut_at_once(flow, bytes),
        }
    }
}

impl CutStage {
    pub(crate) fn new(enough: Box<dyn EnoughOfFlows>) -> Self {
        Self {
            enough,
            wanted_but_cut: Counters::default(),
        }
    }

    pub(crate) fn add_to(&self, ledger: &mut Ledger) {
        ledger.wanted_but_cut.merge(self.wanted_but_cut);
    }

    /// Tells the kernel how much of a packet's flow is enough, and counts it if it was cut too short.
    /// `number` is the packet's, `snaplen` what its interface captures at most.
    #[inline(never)]
    pub(crate) fn packet(
        &mut self,
        lane: Lane<'_>,
        (keep, number, snaplen): (Keep, u64, u32),
        known: Known<'_>,
    ) {
        let whole_len = lane.packet.wire_len.min(snaplen);
        let minded = Minded {
            place: lane.place(),
            number,
            captured_len: lane.captured_len(),
            wire_len: lane.packet.wire_len,
            whole_len,
            keep: keep.kind(),
            wanted_len: keep.kept_len(lane.header_len(), whole_len),
            verdict: lane.verdict,
        };
        if let Some(told) = self.enough_of(&minded, known)
            && let Some(key) = lane.lanes.key(lane.lane)
        {
            told.tell(&*self.enough, &key);
        }
    }

    /// The same for the packets of a batch in columns, all of which is decided; `number` is that of the
    /// last packet.
    #[inline(never)]
    pub(crate) fn columns(
        &mut self,
        batch: &Batch,
        (number, snaplen): (u64, u32),
        known: Known<'_>,
    ) {
        let columns = &batch.columns;
        let wanted = batch.wanted.iter().map(|group| group.count_ones());
        let mut before = number - u64::from(wanted.sum::<u32>());
        for (group, (&wanted, &recorded)) in batch.wanted.iter().zip(&batch.recorded).enumerate() {
            for lane in bits(recorded.into()) {
                let at = group * GROUP + lane;
                let so_far = wanted & (u16::MAX >> (GROUP - 1 - lane));
                let [_, code, ..] = batch.kinds[at].to_le_bytes();
                let whole_len = columns.wire_len[at].min(snaplen);
                let wanted_len = batch.header_end[at].saturating_add(batch.wanted_payload[at]);
                let minded = Minded {
                    place: at.to_le_bytes()[0],
                    number: before + u64::from(so_far.count_ones()),
                    captured_len: columns.captured_len[at],
                    wire_len: columns.wire_len[at],
                    whole_len,
                    keep: KeepKind::of_flags(code),
                    wanted_len: wanted_len.min(whole_len),
                    verdict: batch.classified[at],
                };
                if let Some(told) = self.enough_of(&minded, known)
                    && let Some(key) = batch.key(at)
                {
                    told.tell(&*self.enough, &key);
                }
            }
            before += u64::from(wanted.count_ones());
        }
    }

    /// The message to the kernel about a packet's flow, if any; counts the packet if it was cut
    /// too short.
    #[inline(always)]
    fn enough_of(&mut self, of: &Minded, known: Known<'_>) -> Option<Enough> {
        if of.captured_len < of.wanted_len {
            let bytes = of.wire_len.max(of.captured_len);
            self.wanted_but_cut.add(bytes.into());
        }
        // For a packet that came cut, the kernel knows what is enough of its flow: the message is
        // repeated now and then, so that it does not forget.
        let is_cut = of.captured_len < of.whole_len;
        let is_full = of.keep == KeepKind::Full;
        if is_cut && !is_full && !of.number.is_multiple_of(RENEWED_EVERY) {
            return None;
        }
        let policing = known.policing;
        // A copy is sent on whole.
        if is_full || policing.is_some_and(|policing| policing.sends_whole(of.place)) {
            return Some(Enough::Whole);
        }
        let is_settled = policing.is_some_and(|policing| policing.is_settled(of.place));
        match with_options(of.wanted_len) {
            None => Some(Enough::Whole),
            Some(bytes) if is_settled => Some(Enough::BytesAtOnce(bytes)),
            // A verdict on the packet alone is no verdict on its flow.
            Some(_) if known.classifier.verdict(of.verdict).level != Some(Level::Flow) => None,
            Some(bytes) => Some(Enough::Bytes(bytes)),
        }
    }
}

/// What is enough of every packet of a flow, if `wanted` is enough of one: others may have longer
/// headers, with TCP options. `None` if it is too long for a cut to save anything.
fn with_options(wanted: u32) -> Option<u16> {
    let bytes = wanted.saturating_add(TCP_OPTIONS_MAX);
    u16::try_from(bytes).ok().filter(|&bytes| bytes <= CUT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_enough_is_never_less_than_what_is_wanted() {
        assert_eq!(with_options(54), Some(118));
        for wanted in [
            32_700,
            32_703,
            32_704,
            40_000,
            65_471,
            65_472,
            65_536,
            u32::MAX,
        ] {
            let enough = with_options(wanted);
            assert!(
                enough.is_none_or(|enough| u32::from(enough) > wanted),
                "{wanted}: {enough:?}"
            );
        }
    }
}
