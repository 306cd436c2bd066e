//! What policies and modes decide about a batch in columns, where classes alone do not say it.

use std::ops::Range;

use strata_blocks::Sink;
use strata_classify::LANES;
use strata_wire::wide::{GROUP, PacketColumns};
use strata_wire::{FlowKey, Headers, LinkType, Plain};

use super::Worker;
use super::wide::Wide;
use crate::policing::{fields, plain_fields};

/// Whether a packet of a batch is in a set.
#[inline(always)]
pub(super) fn is_in(set: &[u16], at: usize) -> bool {
    set[at / GROUP] >> (at % GROUP) & 1 != 0
}

/// The headers of a plain packet.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "columns of small numbers")]
pub(super) fn plain(columns: &PacketColumns, at: usize) -> Plain {
    let network_len = 34;
    Plain {
        source: columns.source[at],
        destination: columns.destination[at],
        source_port: columns.source_port[at] as u16,
        destination_port: columns.destination_port[at] as u16,
        tcp_window: columns.tcp_window[at] as u16,
        transport_len: (columns.header_len[at] - network_len) as u8,
        protocol: columns.protocol[at] as u8,
        tcp_flags: columns.tcp_flags[at] as u8,
        tos: columns.tos[at] as u8,
        ttl: columns.ttl[at] as u8,
    }
}

/// The headers of a packet that is not plain.
fn other(others: &[(usize, Headers)], at: usize) -> &Headers {
    let place = others.binary_search_by_key(&at, |(other, _)| *other);
    &others[place.expect("a packet is plain or among the others")].1
}

impl Wide {
    fn flow_key(&self, at: usize) -> FlowKey {
        if is_in(&self.columns.plain, at) {
            plain(&self.columns, at).headers().flow_key()
        } else {
            other(&self.others, at).flow_key()
        }
    }

    fn wire_bytes(&self, at: usize) -> u64 {
        let wire_len = self.columns.wire_len[at];
        u64::from(wire_len.max(self.columns.captured_len[at]))
    }
}

impl<S: Sink> Worker<S> {
    /// Finds the policies of up to 64 packets, and takes those that nobody wants out of the batch
    /// before they cost more.
    #[inline(never)]
    pub(super) fn police_columns(
        &mut self,
        wide: &mut Wide,
        lanes: Range<usize>,
        (interface, data): (u16, &[&[u8]]),
    ) {
        let Some(policing) = &mut self.policing else {
            return;
        };
        if lanes.start == 0 {
            policing.begin();
        }
        let number = self.sources[usize::from(interface)].rules_number;
        for at in lanes.clone() {
            policing.push(if is_in(&wide.columns.plain, at) {
                plain_fields(&plain(&wide.columns, at), number)
            } else {
                let headers = other(&wide.others, at);
                fields(headers, LinkType::ETHERNET, data[at], number)
            });
        }
        policing.classify();
        let mut copies: [&[u8]; LANES] = [&[]; LANES];
        let mut copied = 0;
        for (at, place) in (0..lanes.end).zip(0..=u8::MAX).skip(lanes.start) {
            let bytes = wide.wire_bytes(at);
            let discards = policing.discards(place, bytes, &mut self.reasons);
            if policing.mirrors(place) {
                copies[copied] = data[at];
                copied += 1;
            }
            if discards {
                let bit = 1 << (at % GROUP);
                wide.wanted[at / GROUP] &= !bit;
                wide.columns.dissected[at / GROUP] &= !bit;
                self.ledger.discarded.add(bytes);
            }
        }
        if let Some(taker) = &mut self.copies
            && copied > 0
        {
            taker.send(&copies[..copied]);
        }
    }

    /// How much is kept of each packet, and who decided.
    #[inline(never)]
    pub(super) fn decide_columns(&mut self, wide: &mut Wide, count: usize) {
        wide.recorded.clear();
        for (at, place) in (0..count).zip(0..=u8::MAX) {
            if !is_in(&wide.wanted, at) {
                continue;
            }
            let verdict = wide.verdicts[at];
            let class = self.classifier.class(verdict);
            self.packet_number += 1;
            let (outcome, decider) = self.decided(place, class, || wide.flow_key(at));
            let Some(keep) = self.kept_of(outcome, class, wide.wire_bytes(at)) else {
                continue;
            };
            wide.kept_len[at] = keep.kept_len(wide.header_end[at], wide.columns.captured_len[at]);
            wide.kinds[at] = u32::from(class) | u32::from(keep.kind().code()) << 8;
            wide.verdicts[at] = self.reason(verdict, decider);
            match wide.recorded.last_mut() {
                Some(run) if run.end == at => run.end += 1,
                _ => wide.recorded.push(at..at + 1),
            }
        }
    }
}
