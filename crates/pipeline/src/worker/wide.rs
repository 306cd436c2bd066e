//! The same stages for batches of up to 256 packets in columns. Anything rare sends the
//! batch to the other loop, which is the reference.

use std::ops::Range;

use strata_blocks::{BlockBuilder, PacketRun, Sink, SinkError};
use strata_capture::{PacketRef, Packets};
use strata_classify::{LANES, VerdictId};
use strata_wire::wide::{GROUP, GROUPS, Kernel, Lanes, PacketColumns, Simd, WIDE};
use strata_wire::{Headers, Keep, KeepKind, LinkType, Outcome, prefetch};

use super::record::define_reason;
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
    /// The class, and [`KeepKind::code`] from bit 8 on.
    kinds: [u32; 256],
}

/// More than any packet in a batch has.
const WHOLE: u32 = 1 << 30;

/// A batch in columns.
#[derive(Debug)]
pub(super) struct Wide {
    simd: Simd,
    pub(super) columns: PacketColumns,
    /// Bytes up to the end of the headers, or what stands for them
    /// ([`Headers::kept_header_len`]).
    pub(super) header_end: [u32; WIDE],
    pub(super) kept_len: [u32; WIDE],
    /// Once it is known what is kept: the numbers of verdicts and who decided.
    pub(super) verdicts: [VerdictId; WIDE],
    /// See [`PacketRun::kinds`].
    pub(super) kinds: [u32; WIDE],
    /// Where those are that are not plain, and their headers.
    pub(super) others: Vec<(usize, Headers)>,
    /// Those that no policy discards.
    pub(super) wanted: [u16; GROUPS],
    /// Those that are recorded.
    pub(super) recorded: Vec<Range<usize>>,
    /// `None` if classes alone do not say what is kept, or packets are not recorded.
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
            kinds: [0; WIDE],
            others: Vec::with_capacity(WIDE),
            wanted: [0; GROUPS],
            recorded: Vec::with_capacity(WIDE),
            kept: None,
        }
    }

    /// Stores what modes demand for each class.
    pub(super) fn adopt(&mut self, demands: &[Demand]) {
        let mut kept = Kept {
            payload: [0; 256],
            kinds: [0; 256],
        };
        for (number, demand) in (0_u32..256).zip(demands) {
            let class = number as usize;
            let &Demand::Always(Outcome::Log(keep), BY_CLASS) = demand else {
                self.kept = None;
                return;
            };
            kept.kinds[class] = number | u32::from(keep.kind().code()) << 8;
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

/// Turns how many bytes after the headers are wanted into how many bytes are kept.
struct KeptLen<'a> {
    kept_len: &'a mut [u32; WIDE],
    header_end: &'a [u32; WIDE],
    captured_len: &'a [u32; WIDE],
}

impl Kernel for KeptLen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let chunks = self.kept_len.as_chunks_mut().0.iter_mut();
        let headers = self.header_end.as_chunks().0;
        let captured = self.captured_len.as_chunks().0;
        for (kept_len, (header, captured)) in chunks.zip(headers.iter().zip(captured)) {
            let captured = l.load(captured);
            // Neither is so long that a sum overflows.
            let header = l.min(l.load(header), captured);
            let wanted = l.add(header, l.load(kept_len));
            l.store(l.min(wanted, captured), kept_len);
        }
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
        (start, places): (usize, &[u8]),
    ) -> Result<bool, SinkError> {
        let count = places.len();
        if self.triggers.is_some() || self.enough.is_some() || count < FEW {
            return Ok(false);
        }
        let Some(mut wide) = self.wide.take() else {
            return Ok(false);
        };
        let mut data: [&[u8]; WIDE] = [&[]; WIDE];
        let scanned = self.scan(&mut wide, batch, (start, places), &mut data);
        let done = match scanned {
            None => Ok(false),
            Some(scanned) => {
                self.packets_in_columns += count as u64;
                self.ledger.seen.packets += count as u64;
                self.ledger.seen.bytes += scanned.wire_bytes;
                let of = (scanned.interface, &data);
                self.look_and_count(&mut wide, batch, (start, places), of);
                if self.is_tapped {
                    self.show_columns(&wide, batch, (start, places));
                }
                let data = &data[..count];
                self.record_columns(&mut wide, batch, (start, places), (&scanned, data))
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
        (start, places): (usize, &[u8]),
        data: &mut [&'a [u8]; WIDE],
    ) -> Option<Scanned> {
        let interface = batch.get(start + usize::from(*places.first()?)).interface;
        let source = &self.sources[usize::from(interface)];
        if source.interface.link != LinkType::ETHERNET {
            return None;
        }
        let mut is_odd = false;
        let mut scanned = Scanned {
            interface,
            wire_bytes: 0,
            ts_ns: [u64::MAX, 0],
        };
        let columns = &mut wide.columns;
        for ((lane, data), &place) in data.iter_mut().enumerate().zip(places) {
            let packet = batch.get(start + usize::from(place));
            is_odd |= !packet.options.is_empty()
                | !packet.has_timestamp
                | (packet.interface != interface)
                | (packet.data.len() > LONG);
            #[allow(clippy::cast_possible_truncation, reason = "longer ones are odd")]
            let captured_len = packet.data.len() as u32;
            *data = packet.data;
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
        (start, places): (usize, &[u8]),
        (interface, data): (u16, &[&[u8]; WIDE]),
    ) {
        const GROUPS_OF_LANES: usize = LANES / GROUP;
        let count = places.len();
        let hasher = self.flows.hasher();
        wide.others.clear();
        for groups in (0..count.div_ceil(GROUP)).step_by(GROUPS_OF_LANES) {
            let groups = groups..(groups + GROUPS_OF_LANES).min(count.div_ceil(GROUP));
            for group in groups.clone() {
                let all = data.as_chunks::<GROUP>().0;
                let ahead = group + GROUPS_OF_LANES;
                match all.get(ahead) {
                    Some(later) => later.iter().for_each(|packet| prefetch(packet, 0)),
                    None => {
                        (0..GROUP).for_each(|lane| fetch(batch, start + ahead * GROUP + lane, 0));
                    }
                }
                let packets = &all[group];
                let columns = &mut wide.columns;
                columns.look(wide.simd, &hasher, group, packets);
                let here = (count - group * GROUP).min(GROUP);
                wide.wanted[group] = u16::MAX >> (GROUP - here);
                columns.plain[group] &= wide.wanted[group];
                columns.dissected[group] = columns.plain[group];
                for fingerprint in columns.fingerprint.as_chunks::<GROUP>().0[group] {
                    self.classifier.prefetch(fingerprint);
                }
                let others = u64::from(!columns.plain[group] & wide.wanted[group]);
                for lane in bits(others) {
                    let at = group * GROUP + lane;
                    let packet = batch.get(start + usize::from(places[at]));
                    self.look_at_other(wide, &packet, at);
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
            if self.policing.is_some() {
                let lanes = groups.start * GROUP..count.min(groups.end * GROUP);
                self.police_columns(wide, lanes, (interface, data));
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
    fn look_at_other(&mut self, wide: &mut Wide, packet: &PacketRef<'_>, at: usize) {
        let (headers, facts) = self.flows.find(LinkType::ETHERNET, packet);
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
        (start, places): (usize, &[u8]),
        (scanned, data): (&Scanned, &[&[u8]]),
    ) -> Result<(), SinkError> {
        if wide.kept.is_some() && self.policing.is_none() {
            self.find_kept(wide, data.len());
        } else {
            self.decide_columns(wide, data.len());
        }
        let mut others = 0;
        for run in 0..wide.recorded.len() {
            let Range { start: mut at, end } = wide.recorded[run].clone();
            let ts_range_ns = if (at, end) == (0, data.len()) {
                scanned.ts_ns
            } else {
                let times = wide.columns.ts_ns[at..end].iter();
                times.fold([u64::MAX, 0], |[min, max], &ts| [min.min(ts), max.max(ts)])
            };
            let run = (scanned.interface, ts_range_ns, &data[..end]);
            while at < end {
                at = self.push_run(wide, run, at, &mut others);
                if at < end {
                    // It refers to what is not defined yet, or does not fit.
                    let packet = batch.get(start + usize::from(places[at]));
                    self.record_one(wide, (at, &mut others), &packet)?;
                    at += 1;
                }
            }
        }
        Ok(())
    }

    /// How much is kept of each packet.
    fn find_kept(&mut self, wide: &mut Wide, count: usize) {
        self.packet_number += count as u64;
        let Wide {
            simd,
            kept: Some(kept),
            verdicts,
            kinds,
            kept_len,
            header_end,
            columns,
            recorded,
            ..
        } = wide
        else {
            return;
        };
        let lens = kept_len.iter_mut().zip(kinds);
        for ((kept_len, kind), &id) in lens.zip(&*verdicts).take(count) {
            let class = usize::from(self.classifier.class(id));
            (*kept_len, *kind) = (kept.payload[class], kept.kinds[class]);
        }
        recorded.clear();
        recorded.push(0..count);
        simd.run(KeptLen {
            kept_len,
            header_end,
            captured_len: &columns.captured_len,
        });
    }

    /// Records of packets from one on, as long as they need no check of their own; returns the
    /// first that does. `others` counts those before that are not plain.
    fn push_run(
        &mut self,
        wide: &Wide,
        (interface, ts_range_ns, data): (u16, [u64; 2], &[&[u8]]),
        from: usize,
        others: &mut usize,
    ) -> usize {
        let columns = &wide.columns;
        let run = PacketRun {
            interface,
            data,
            ts_ns: &columns.ts_ns,
            ts_range_ns,
            wire_len: &columns.wire_len,
            captured_len: &columns.captured_len,
            header_len: &wide.header_end,
            kept_len: &wide.kept_len,
            verdicts: &wide.verdicts,
            kinds: &wide.kinds,
        };
        let (simd, seq) = (wide.simd, self.next_seq);
        let (classifier, reasons) = (&self.classifier, &self.reasons);
        let define = |block: &mut BlockBuilder, reason| {
            define_reason(block, classifier, reasons, reason);
        };
        let block = &mut self.block;
        let end = block.push_run(simd, &run, (from, seq), DEFINITIONS_LEN, define);
        let lanes = from..end;
        self.next_seq += lanes.len() as u64;
        let hasher = self.flows.hasher();
        skip_others(wide, others, lanes.start);
        let mut noted = lanes.start;
        while let Some((at, headers)) = wide.others.get(*others).filter(|(at, _)| *at < lanes.end) {
            self.note_plain(columns, noted..*at);
            let is_whole = wide.kinds[*at] >> 8 == u32::from(KeepKind::Full.code());
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
        end
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
        skip_others(wide, others, at);
        if let Some((_, headers)) = wide.others.get(*others).filter(|(other, _)| *other == at) {
            lanes.is_plain = 0;
            lanes.headers[0] = *headers;
            *others += 1;
        } else {
            lanes.plain[0].source = wide.columns.source[at];
            lanes.plain[0].destination = wide.columns.destination[at];
        }
        let [class, code, ..] = wide.kinds[at].to_le_bytes();
        let kept = (KeepKind::of_flags(code), wide.kept_len[at]);
        self.push(0, packet, class, kept, wide.verdicts[at])
    }
}

/// Skips those that are not plain and come before a packet: they are not recorded.
fn skip_others(wide: &Wide, others: &mut usize, at: usize) {
    while wide
        .others
        .get(*others)
        .is_some_and(|(other, _)| *other < at)
    {
        *others += 1;
    }
}
