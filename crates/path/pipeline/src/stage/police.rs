//! The stage of policies: what packets' flow keys and headers alone say about them.

use std::fmt::Debug;
use std::ops::Range;

use strata_capture::Packets;
use strata_classify::LANES;
use strata_wire::wide::{GROUP, PacketColumns, WIDE};
use strata_wire::{Counters, Ledger, LinkType};

use super::batch::{Batch, Chosen};
use super::lanes::Lanes;
use super::parse::ParseStage;
use crate::classifier::bits;
use crate::flows::wire_bytes;
use crate::policing::{Policing, Wanted, fields, outer_vlan, plain_fields};
use crate::reasons::Reasons;

/// Takes copies of packets that a policy mirrors, a batch at a time, without waiting.
pub trait Copies: Debug + Send {
    /// Sends frames on, in order.
    fn send(&mut self, frames: &[&[u8]]);

    /// What has been sent so far.
    fn sent(&self) -> Counters;

    /// What could not be sent so far.
    fn lost(&self) -> Counters;
}

/// Policies at work: finds those of each packet, has copies sent on, and takes packets that are not
/// wanted out of the batch before they cost more.
#[derive(Debug)]
pub(crate) struct PoliceStage {
    /// `None` while the plan has no policies.
    policing: Option<Box<Policing>>,
    /// Takes copies of packets that a policy mirrors.
    copies: Option<Box<dyn Copies>>,
    /// Packets that policies discard whatever their class.
    discarded: Counters,
}

impl PoliceStage {
    pub(crate) fn new(copies: Option<Box<dyn Copies>>) -> Self {
        Self {
            policing: None,
            copies,
            discarded: Counters::default(),
        }
    }

    /// Switches to other policies.
    pub(crate) fn adopt(&mut self, policing: Option<Box<Policing>>) {
        self.policing = policing;
    }

    /// Whether there are no policies.
    #[inline(always)]
    pub(crate) fn is_absent(&self) -> bool {
        self.policing.is_none()
    }

    #[inline(always)]
    pub(crate) fn policing(&self) -> Option<&Policing> {
        self.policing.as_deref()
    }

    /// Adds the packets that policies were applied to since the last call to their hits.
    pub(crate) fn publish_hits(&mut self) {
        if let Some(policing) = &mut self.policing {
            policing.publish();
        }
    }

    pub(crate) fn add_to(&self, ledger: &mut Ledger) {
        ledger.discarded.merge(self.discarded);
        if let Some(copies) = &self.copies {
            (ledger.mirrored, ledger.mirror_lost) = (copies.sent(), copies.lost());
        }
    }

    /// Whether policies are known to discard all plain packets of a group, from the interface of this number in
    /// the rules.
    #[inline(always)]
    pub(crate) fn discards_group(
        &self,
        columns: &PacketColumns,
        group: usize,
        interface: u8,
    ) -> bool {
        self.policing.as_ref().is_some_and(|policing| {
            let protocols = &columns.protocol.as_chunks::<GROUP>().0[group];
            policing.discards_group(protocols, interface)
        })
    }

    /// Fetches what is known of the flows of a group.
    #[inline(always)]
    pub(crate) fn prefetch(&self, fingerprints: &[u64; GROUP], interface: u8) {
        if let Some(policing) = &self.policing {
            policing.prefetch_flows(fingerprints, interface);
        }
    }

    /// Up to 64 packets of a batch in columns, from the interface of this number in the rules.
    #[inline(never)]
    pub(crate) fn columns(
        &mut self,
        batch: &mut Batch,
        lanes: Range<usize>,
        (number, data): (u8, &[&[u8]; WIDE]),
        reasons: &mut Reasons,
    ) {
        let Some(policing) = &mut self.policing else {
            return;
        };
        if lanes.start == 0 {
            policing.begin();
        }
        let fields_of = |at: usize| {
            if batch.is_plain(at) {
                plain_fields(&batch.plain(at), number)
            } else {
                fields(batch.other(at), LinkType::ETHERNET, data[at], number)
            }
        };
        let vlan_of = |at: usize| outer_vlan(LinkType::ETHERNET, data[at]);
        policing.classify_columns(
            (batch.simd, &batch.columns),
            (lanes.clone(), number),
            fields_of,
            vlan_of,
            reasons,
        );
        let lens = batch.columns.wire_len[lanes.clone()].iter();
        let lens = lens.zip(&batch.columns.captured_len[lanes.clone()]);
        let bytes = lens.map(|(&wire, &captured)| u64::from(wire.max(captured)));
        let Wanted {
            discarded,
            mirrored,
        } = policing.apply(lanes.start, bytes);
        if mirrored != 0
            && let Some(taker) = &mut self.copies
        {
            let mut copies: [&[u8]; LANES] = [&[]; LANES];
            let mut copied = 0;
            for lane in bits(mirrored) {
                copies[copied] = data[lanes.start + lane];
                copied += 1;
            }
            taker.send(&copies[..copied]);
        }
        for lane in bits(discarded) {
            let at = lanes.start + lane;
            let bit = 1 << (at % GROUP);
            batch.wanted[at / GROUP] &= !bit;
            batch.columns.dissected[at / GROUP] &= !bit;
            self.discarded.add(batch.wire_bytes(at));
        }
    }

    /// Up to 64 packets, one by one.
    #[inline(never)]
    pub(crate) fn lanes<P: Packets + ?Sized>(
        &mut self,
        lanes: &mut Lanes,
        chosen: Chosen<'_, P>,
        parse: &ParseStage,
        reasons: &mut Reasons,
    ) {
        let Some(policing) = &mut self.policing else {
            return;
        };
        policing.begin();
        for lane in bits(lanes.wanted) {
            let packet = chosen.get(lane);
            let source = parse.source(packet.interface);
            let number = source.rules_number;
            lanes.policed[lane] = policing.push(if lanes.is_plain & 1 << lane != 0 {
                plain_fields(&lanes.plain[lane], number)
            } else {
                let link = source.interface.link;
                fields(&lanes.headers[lane], link, packet.data, number)
            });
        }
        policing.classify(reasons);
        let mut copies: [&[u8]; LANES] = [&[]; LANES];
        let mut copied = 0;
        for lane in bits(lanes.wanted) {
            let packet = chosen.get(lane);
            let bytes = wire_bytes(&packet);
            let discards = policing.discards(lanes.policed[lane], bytes);
            let link = parse.source(packet.interface).interface.link;
            if policing.mirrors(lanes.policed[lane]) && link == LinkType::ETHERNET {
                copies[copied] = packet.data;
                copied += 1;
            }
            if discards {
                lanes.wanted &= !(1 << lane);
                lanes.dissected &= !(1 << lane);
                self.discarded.add(bytes);
            }
        }
        if let Some(taker) = &mut self.copies
            && copied > 0
        {
            taker.send(&copies[..copied]);
        }
    }
}
