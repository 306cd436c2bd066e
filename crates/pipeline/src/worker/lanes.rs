//! The loop that takes up to 64 packets through the stages one by one: the reference for batches in
//! columns.

use strata_blocks::{Sink, SinkError};
use strata_capture::{PacketRef, Packets};
use strata_classify::LANES;
use strata_sketch::PacketFacts;
use strata_wire::{Headers, LinkType, Plain, exact};

use super::{Worker, fetch};
use crate::classifier::bits;
use crate::flows::wire_bytes;
use crate::policing::{fields, plain_fields};

/// The packets of a batch between the stages; sets of lanes are masks.
#[derive(Debug)]
pub(super) struct Lanes {
    pub(super) facts: [PacketFacts; LANES],
    /// Bytes up to the end of the headers, or what stands for them
    /// ([`Headers::kept_header_len`]).
    pub(super) header_len: [u32; LANES],
    /// For lanes in `is_plain`.
    pub(super) plain: [Plain; LANES],
    /// For the other lanes.
    pub(super) headers: Box<[Headers; LANES]>,
    /// Passed the filter.
    pub(super) wanted: u64,
    pub(super) is_plain: u64,
    /// Has a flow, so that it can be classified.
    pub(super) dissected: u64,
    /// For lanes in `wanted`, the place among the packets that policies have seen.
    pub(super) policed: [u8; LANES],
}

impl Lanes {
    pub(super) fn new() -> Self {
        Self {
            facts: [PacketFacts::default(); LANES],
            header_len: [0; LANES],
            plain: [Plain::default(); LANES],
            headers: Box::new([Headers::default(); LANES]),
            wanted: 0,
            is_plain: 0,
            dissected: 0,
            policed: [0; LANES],
        }
    }

    pub(super) fn headers(&self, lane: usize) -> Headers {
        if self.is_plain & 1 << lane != 0 {
            self.plain[lane].headers()
        } else {
            self.headers[lane]
        }
    }
}

impl<S: Sink> Worker<S> {
    /// Up to 64 packets, at these places from `start` on.
    pub(super) fn lanes(
        &mut self,
        batch: &(impl Packets + ?Sized),
        (start, places): (usize, &[u8]),
    ) -> Result<(), SinkError> {
        self.lanes.wanted = 0;
        self.lanes.is_plain = 0;
        self.lanes.dissected = 0;
        for (lane, &place) in places.iter().enumerate() {
            let at = start + usize::from(place);
            // Two lines hold the headers of upcoming packets. One is fetched here and one below,
            // since the CPU stalls when it is asked for more than a dozen or two at a time.
            fetch(batch, at + LANES, 0);
            self.look(lane, &batch.get(at));
        }
        let passed = self.lanes.wanted;
        if self.policing.is_some() {
            self.apply_policies(batch, (start, places));
        }
        let facts = &self.lanes.facts[..places.len()];
        self.classifier.classify(facts, self.lanes.dissected);
        if self.is_tapped {
            self.show(batch, (start, places), passed);
        }
        if self.is_exporting() {
            self.export(batch, (start, places), passed);
        }
        self.prefetch_triggers();
        for lane in bits(self.lanes.wanted) {
            let at = start + usize::from(places[lane]);
            fetch(batch, at + LANES, 1);
            let verdict = self.classifier.classified()[lane];
            self.record(lane, &batch.get(at), verdict)?;
        }
        Ok(())
    }

    /// Finds the policies of the batch's packets, and discards those that nobody wants before they
    /// cost more.
    #[inline(never)]
    fn apply_policies(&mut self, batch: &(impl Packets + ?Sized), (start, places): (usize, &[u8])) {
        let Some(policing) = &mut self.policing else {
            return;
        };
        let lanes = &mut *self.lanes;
        policing.begin();
        for lane in bits(lanes.wanted) {
            let packet = batch.get(start + usize::from(places[lane]));
            let source = &self.sources[usize::from(packet.interface)];
            let number = source.rules_number;
            lanes.policed[lane] = policing.push(if lanes.is_plain & 1 << lane != 0 {
                plain_fields(&lanes.plain[lane], number)
            } else {
                fields(
                    &lanes.headers[lane],
                    source.interface.link,
                    packet.data,
                    number,
                )
            });
        }
        policing.classify(&mut self.reasons);
        let mut copies: [&[u8]; LANES] = [&[]; LANES];
        let mut copied = 0;
        for lane in bits(lanes.wanted) {
            let packet = batch.get(start + usize::from(places[lane]));
            let bytes = wire_bytes(&packet);
            let discards = policing.discards(lanes.policed[lane], bytes);
            let source = &self.sources[usize::from(packet.interface)];
            if policing.mirrors(lanes.policed[lane]) && source.interface.link == LinkType::ETHERNET
            {
                copies[copied] = packet.data;
                copied += 1;
            }
            if discards {
                lanes.wanted &= !(1 << lane);
                lanes.dissected &= !(1 << lane);
                self.ledger.discarded.add(bytes);
            }
        }
        if let Some(taker) = &mut self.copies
            && copied > 0
        {
            taker.send(&copies[..copied]);
        }
    }

    /// Headers and flow of one packet.
    #[inline(always)]
    fn look(&mut self, lane: usize, packet: &PacketRef<'_>) {
        self.ledger.seen.add(wire_bytes(packet));
        let source = &self.sources[usize::from(packet.interface)];
        let lanes = &mut *self.lanes;
        let bit = 1 << lane;
        lanes.wanted |= bit;
        let Some((plain, facts)) = self.flows.find_plain(source.interface.link, packet) else {
            self.look_closely(lane, packet);
            return;
        };
        self.classifier.prefetch(facts.fingerprint);
        lanes.header_len[lane] = u32::from(plain.header_len());
        lanes.plain[lane] = plain;
        lanes.facts[lane] = facts;
        lanes.is_plain |= bit;
        lanes.dissected |= bit;
    }

    /// Headers and flow of a packet that is not plain.
    #[inline(never)]
    fn look_closely(&mut self, lane: usize, packet: &PacketRef<'_>) {
        let link = self.sources[usize::from(packet.interface)].interface.link;
        let (headers, facts) = self.flows.find(link, packet);
        let captured_len = exact::<u32>(packet.data.len());
        self.lanes.header_len[lane] = headers.kept_header_len(captured_len);
        self.lanes.headers[lane] = headers;
        if let Some(facts) = facts {
            self.classifier.prefetch(facts.fingerprint);
            self.lanes.facts[lane] = facts;
            self.lanes.dissected |= 1 << lane;
        }
    }
}
