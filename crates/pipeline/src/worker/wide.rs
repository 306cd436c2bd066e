//! The same stages for batches of up to 256 packets in columns. Anything rare sends the
//! batch to the other loop, which is the reference.

use std::ops::Range;

use strata_blocks::{PACKET_HEADER_LEN, PREFIX_LEN, PacketRun, Sink, SinkError};
use strata_capture::{PacketRef, Packets};
use strata_classify::{LANES, VerdictId};
use strata_wire::wide::{GROUP, PacketColumns, Simd, WIDE};
use strata_wire::{Headers, Keep, KeepKind, LinkType, Outcome, prefetch};

use super::{DEFINITIONS_LEN, Worker, fetch};
use crate::classifier::bits;
use crate::demand::Demand;
use crate::reasons::BY_CLASS;

/// Fewer packets than this are faster one by one.
const FEW: usize = 16;
/// Longer packets do not fit in the sums of a batch.
const LONG: usize = 1 << 24;

/// What is kept of each class's packets.
#[derive(Clone, Debug)]
struct Kept {
    /// Bytes after the headers; [`WHOLE`] for all.
    payload: [u32; 256],
    codes: [u8; 256],
}

/// More than any packet in a batch has.
const WHOLE: u32 = 1 << 30;

/// A batch in columns.
#[derive(Debug)]
pub(super) struct Wide {
    simd: Simd,
    columns: PacketColumns,
    /// Bytes up to the end of the headers, or what stands for them
    /// ([`Headers::kept_header_len`]).
    header_end: [u32; WIDE],
    kept_len: [u32; WIDE],
    verdicts: [VerdictId; WIDE],
    classes: [u8; WIDE],
    codes: [u8; WIDE],
    /// Where those are that are not plain, and their headers.
    others: Vec<(usize, Headers)>,
    /// `None` if classes alone do not say what is kept.
    kept: Option<Kept>,
}

impl Wide {
    pub(super) fn new(simd: Simd) -> Self {
        Self {
            simd,
            columns: PacketColumns::default(),
            header_end: [0; WIDE],
            kept_len: [0; WIDE],
            verdicts: [0; WIDE],
            classes: [0; WIDE],
            codes: [0; WIDE],
            others: Vec::with_capacity(WIDE),
            kept: None,
        }
    }

    /// Stores what modes demand for each class.
    pub(super) fn adopt(&mut self, demands: &[Demand]) {
        let mut kept = Kept {
            payload: [0; 256],
            codes: [0; 256],
        };
        for (class, demand) in demands.iter().enumerate() {
            let &Demand::Always(Outcome::Log(keep), BY_CLASS) = demand else {
                self.kept = None;
                return;
            };
            kept.codes[class] = keep.kind().code();
            kept.payload[class] = match keep {
                Keep::Nothing => {
                    self.kept = None;
                    return;
                }
                Keep::Header => 0,
                Keep::Partial(payload) => payload.min(WHOLE),
                Keep::Full => WHOLE,
            };
        }
        self.kept = Some(kept);
    }
}

/// What is the same for all packets of a batch, or summed over them.
struct Scanned {
    interface: u16,
    wire_bytes: u64,
    ts_ns: [u64; 2],
}

impl<S: Sink> Worker<S> {
    /// As [`Worker::lanes`], for up to 256 packets; false if it has done nothing, since they need
    /// more than it can do.
    pub(super) fn columns(
        &mut self,
        batch: &(impl Packets + ?Sized),
        start: usize,
        count: usize,
    ) -> Result<bool, SinkError> {
        let is_plain = self.policing.is_none() && self.triggers.is_none() && self.enough.is_none();
        if !is_plain || count < FEW {
            return Ok(false);
        }
        let Some(mut wide) = self.wide.take_if(|wide| wide.kept.is_some()) else {
            return Ok(false);
        };
        let mut data: [&[u8]; WIDE] = [&[]; WIDE];
        let scanned = self.scan(&mut wide, batch, start, &mut data[..count]);
        let done = match scanned {
            None => Ok(false),
            Some(scanned) => {
                self.ledger.seen.packets += count as u64;
                self.ledger.seen.bytes += scanned.wire_bytes;
                self.look_and_count(&mut wide, batch, start, (&data, count));
                self.record_columns(&mut wide, batch, start, (scanned.interface, &data[..count]))
                    .map(|()| true)
            }
        };
        self.wide = Some(wide);
        done
    }

    /// Where the packets are, how long, and when; `None` if anything about them is unusual.
    fn scan<'a>(
        &mut self,
        wide: &mut Wide,
        batch: &'a (impl Packets + ?Sized),
        start: usize,
        data: &mut [&'a [u8]],
    ) -> Option<Scanned> {
        let interface = batch.get(start).interface;
        let source = &self.sources[usize::from(interface)];
        if source.filter.is_some() || source.interface.link != LinkType::ETHERNET {
            return None;
        }
        let mut is_odd = false;
        let mut scanned = Scanned {
            interface,
            wire_bytes: 0,
            ts_ns: [u64::MAX, 0],
        };
        let columns = &mut wide.columns;
        for (lane, place) in data.iter_mut().enumerate().take(WIDE) {
            let packet = batch.get(start + lane);
            is_odd |= !packet.options.is_empty()
                | !packet.has_timestamp
                | (packet.interface != interface)
                | (packet.data.len() > LONG);
            #[allow(clippy::cast_possible_truncation, reason = "longer ones are odd")]
            let captured_len = packet.data.len() as u32;
            *place = packet.data;
            columns.ts_ns[lane] = packet.ts_ns;
            columns.captured_len[lane] = captured_len;
            columns.wire_len[lane] = packet.wire_len;
            scanned.wire_bytes += u64::from(packet.wire_len.max(captured_len));
            scanned.ts_ns[0] = scanned.ts_ns[0].min(packet.ts_ns);
            scanned.ts_ns[1] = scanned.ts_ns[1].max(packet.ts_ns);
        }
        let [earliest, latest] = scanned.ts_ns;
        is_odd |= !self.classifier.takes_columns(earliest, latest);
        (!is_odd).then_some(scanned)
    }

    /// Headers, flows and their counters: 64 packets at a time, so that lines fetched are still
    /// there.
    fn look_and_count(
        &mut self,
        wide: &mut Wide,
        batch: &(impl Packets + ?Sized),
        start: usize,
        (data, count): (&[&[u8]; WIDE], usize),
    ) {
        const GROUPS_OF_LANES: usize = LANES / GROUP;
        let hasher = self.flows.hasher();
        wide.others.clear();
        for groups in (0..count.div_ceil(GROUP)).step_by(GROUPS_OF_LANES) {
            let groups = groups..(groups + GROUPS_OF_LANES).min(count.div_ceil(GROUP));
            let ahead = start + groups.start * GROUP + LANES;
            for group in groups.clone() {
                for lane in 0..GROUP {
                    fetch(batch, ahead + (group - groups.start) * GROUP + lane, 0);
                }
                let packets = &data.as_chunks::<GROUP>().0[group];
                let columns = &mut wide.columns;
                columns.look(wide.simd, &hasher, group, packets);
                let here = (count - group * GROUP).min(GROUP);
                columns.plain[group] &= u16::MAX >> (GROUP - here);
                columns.dissected[group] = columns.plain[group];
                for fingerprint in columns.fingerprint.as_chunks::<GROUP>().0[group] {
                    self.classifier.prefetch(fingerprint);
                }
                let others = u64::from(!columns.plain[group] & u16::MAX >> (GROUP - here));
                for lane in bits(others) {
                    self.look_at_other(wide, batch, start, group * GROUP + lane);
                }
            }
            let lanes = groups.start * GROUP..groups.end * GROUP;
            for (packet, &len) in data[lanes.clone()]
                .iter()
                .zip(&wide.columns.header_len[lanes])
            {
                // The line in which the headers end, if it is another one.
                prefetch(packet, (len as usize).min(128));
            }
            self.classifier.count_columns(&wide.columns, groups);
        }
        wide.header_end = wide.columns.header_len;
        for (at, headers) in &wide.others {
            wide.header_end[*at] = headers.kept_header_len(wide.columns.captured_len[*at]);
        }
        self.classifier.finish_columns(&mut wide.verdicts);
    }

    /// Headers and flow of a packet that is not plain.
    #[inline(never)]
    fn look_at_other(
        &mut self,
        wide: &mut Wide,
        batch: &(impl Packets + ?Sized),
        start: usize,
        at: usize,
    ) {
        let packet = batch.get(start + at);
        let (headers, facts) = self.flows.find(LinkType::ETHERNET, &packet);
        wide.others.push((at, headers));
        let columns = &mut wide.columns;
        columns.fingerprint[at] = 0;
        let Some(facts) = facts else {
            return;
        };
        self.classifier.prefetch(facts.fingerprint);
        let (group, bit) = (at / GROUP, 1 << (at % GROUP));
        let put = |mask: &mut u16, is: bool| *mask = if is { *mask | bit } else { *mask & !bit };
        put(&mut columns.dissected[group], true);
        put(&mut columns.low_to_high[group], facts.low_to_high);
        put(&mut columns.answers[group], facts.answers);
        columns.fingerprint[at] = facts.fingerprint;
        columns.header_len[at] = u32::from(facts.header_len);
        columns.source_port[at] = u32::from(facts.source_port);
        columns.destination_port[at] = u32::from(facts.destination_port);
        columns.protocol[at] = u32::from(facts.protocol);
        columns.tcp_flags[at] = u32::from(facts.tcp_flags);
        columns.tcp_window[at] = u32::from(facts.tcp_window);
        columns.ttl[at] = u32::from(facts.ttl);
        columns.tos[at] = u32::from(facts.tos);
    }

    /// Records of the packets.
    fn record_columns(
        &mut self,
        wide: &mut Wide,
        batch: &(impl Packets + ?Sized),
        start: usize,
        (interface, data): (u16, &[&[u8]]),
    ) -> Result<(), SinkError> {
        let mut rest = self.find_kept(wide, data.len());
        let mut others = 0;
        let mut at = 0;
        while at < data.len() {
            let end = self.end_of_run(&wide.verdicts[at..data.len()], interface, rest) + at;
            if at < end {
                rest -= self.push_run(wide, (interface, data), at..end, &mut others);
                at = end;
                continue;
            }
            // There may not be space for all, or it refers to what is defined with it.
            rest -= PACKET_HEADER_LEN + wide.kept_len[at] as usize;
            self.record_one(wide, (at, &mut others), &batch.get(start + at))?;
            at += 1;
        }
        Ok(())
    }

    /// How many of these packets, whose records take `bytes`, can be recorded as a run. Defines the
    /// verdict of the first one where that makes it one of them.
    fn end_of_run(&mut self, verdicts: &[VerdictId], interface: u16, bytes: usize) -> usize {
        let room = self.block.room();
        let fits = |definitions: usize| room >= bytes + PREFIX_LEN + definitions;
        if !fits(DEFINITIONS_LEN) || !self.block.refers_to(interface) {
            return 0;
        }
        // As much space is needed for the next one.
        if self.block.needs_verdict(verdicts[0]) && fits(2 * DEFINITIONS_LEN) {
            self.define_reason(verdicts[0]);
        }
        let undefined = |&id: &VerdictId| self.block.needs_verdict(id);
        let end = verdicts.iter().position(undefined);
        end.unwrap_or(verdicts.len())
    }

    /// How much is kept of each packet; returns how many bytes their records take.
    fn find_kept(&self, wide: &mut Wide, count: usize) -> usize {
        let Wide {
            simd,
            kept: Some(kept),
            verdicts,
            classes,
            codes,
            kept_len,
            header_end,
            columns,
            ..
        } = wide
        else {
            return 0;
        };
        for ((&id, class), code) in verdicts.iter().zip(&mut *classes).zip(codes).take(count) {
            *class = self.classifier.class(id);
            *code = kept.codes[usize::from(*class)];
        }
        let mut bytes = count * PACKET_HEADER_LEN;
        let ends = header_end.iter().zip(&columns.captured_len);
        simd.call(|| {
            for ((kept_len, (&end, &captured)), &class) in
                kept_len.iter_mut().zip(ends).zip(&*classes).take(count)
            {
                let wanted = end.saturating_add(kept.payload[usize::from(class)]);
                *kept_len = wanted.min(captured);
                bytes += *kept_len as usize;
            }
        });
        bytes
    }

    /// Records of packets that refer only to what is defined, and for which there is space.
    /// `others` counts those before that are not plain.
    fn push_run(
        &mut self,
        wide: &Wide,
        (interface, data): (u16, &[&[u8]]),
        lanes: Range<usize>,
        others: &mut usize,
    ) -> usize {
        let columns = &wide.columns;
        let run = PacketRun {
            interface,
            first_seq: self.next_seq,
            data: &data[lanes.clone()],
            ts_ns: &columns.ts_ns[lanes.clone()],
            wire_len: &columns.wire_len[lanes.clone()],
            header_len: &wide.header_end[lanes.clone()],
            kept_len: &wide.kept_len[lanes.clone()],
            verdicts: &wide.verdicts[lanes.clone()],
            keep_codes: &wide.codes[lanes.clone()],
            classes: &wide.classes[lanes.clone()],
        };
        let block = &mut self.block;
        let len = wide.simd.call(|| block.push_run(&run));
        self.next_seq += lanes.len() as u64;
        self.packet_number += lanes.len() as u64;
        let hasher = self.flows.hasher();
        let mut noted = lanes.start;
        while let Some((at, headers)) = wide.others.get(*others).filter(|(at, _)| *at < lanes.end) {
            self.note_plain(columns, noted..*at);
            let is_whole = wide.codes[*at] == KeepKind::Full.code();
            if headers.has_no_network() && !is_whole {
                let kept_len = u64::from(wide.kept_len[*at]);
                self.ledger.header_fallback.add(kept_len);
            }
            let fingerprint = columns.fingerprint[*at];
            self.block.note_headers(headers, fingerprint, &hasher);
            noted = at + 1;
            *others += 1;
        }
        self.note_plain(columns, noted..lanes.end);
        len
    }

    /// Stores the flows of plain packets.
    #[inline]
    fn note_plain(&mut self, columns: &PacketColumns, lanes: Range<usize>) {
        let ends = columns.source[lanes.clone()]
            .iter()
            .zip(&columns.destination[lanes.clone()]);
        for (&fingerprint, (&source, &destination)) in columns.fingerprint[lanes].iter().zip(ends) {
            self.block.note_plain(fingerprint, [source, destination]);
        }
    }

    /// The record of one packet, as [`Worker::record`] makes it.
    #[inline(never)]
    fn record_one(
        &mut self,
        wide: &Wide,
        (at, others): (usize, &mut usize),
        packet: &PacketRef<'_>,
    ) -> Result<(), SinkError> {
        let lanes = &mut *self.lanes;
        lanes.header_len[0] = wide.header_end[at];
        lanes.facts[0].fingerprint = wide.columns.fingerprint[at];
        lanes.is_plain = 1;
        if let Some((_, headers)) = wide.others.get(*others).filter(|(other, _)| *other == at) {
            lanes.is_plain = 0;
            lanes.headers[0] = *headers;
            *others += 1;
        } else {
            lanes.plain[0].source = wide.columns.source[at];
            lanes.plain[0].destination = wide.columns.destination[at];
        }
        self.record(0, packet, wide.verdicts[at])
    }
}
