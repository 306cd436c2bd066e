//! The same stages for batches of up to 256 packets in columns. Anything rare sends the
//! batch to the other loop, which is the reference.

use std::ops::Range;

use strata_blocks::{BlockBuilder, PacketRun, Sink, SinkError};
use strata_capture::{PacketRef, Packets};
use strata_classify::{LANES, VerdictId};
use strata_wire::wide::{GROUP, GROUPS, Kernel, Lanes, PacketColumns, Simd, WIDE};
use strata_wire::{Headers, KeepKind, LinkType, prefetch};

use super::detail::KeptByDetail;
use super::record::define_reason;
use super::{DEFINITIONS_LEN, Worker, fetch};
use crate::classifier::bits;
use crate::demand::{Budgeted, Demands, Kept};

/// Fewer packets than this are faster one by one.
const FEW: usize = 16;
/// Packets so long do not fit in the sums of a batch. A power of two.
const LONG: usize = 1 << 24;

/// A batch in columns.
#[derive(Debug)]
pub(super) struct Wide {
    pub(super) simd: Simd,
    pub(super) columns: PacketColumns,
    /// Bytes up to the end of the headers, or what stands for them
    /// ([`Headers::kept_header_len`]).
    pub(super) header_end: [u32; WIDE],
    pub(super) kept_len: [u32; WIDE],
    /// Bytes after the headers that are wanted, also of packets that came without them.
    pub(super) wanted_payload: [u32; WIDE],
    /// The numbers of verdicts, where the kernel cuts packets.
    pub(super) classified: [VerdictId; WIDE],
    /// Once it is known what is kept: the numbers of verdicts and who decided.
    pub(super) verdicts: [VerdictId; WIDE],
    /// See [`PacketRun::kinds`].
    pub(super) kinds: [u32; WIDE],
    /// What is demanded, see [`Kept::kind`].
    pub(super) demands: [u32; WIDE],
    /// Where those are that are not plain, and their headers.
    pub(super) others: Vec<(usize, Headers)>,
    /// Those that no policy discards.
    pub(super) wanted: [u16; GROUPS],
    /// Those that are recorded.
    pub(super) recorded: [u16; GROUPS],
    /// Those whose flows ask for them by themselves, where there are triggers.
    pub(super) asked: [u16; GROUPS],
    /// Those about which the budget of detail has decided.
    pub(super) offered: [u16; GROUPS],
    /// What modes ask for, by class: for each that there could be, so that none has to be checked.
    pub(super) by_class: Box<[Kept; 256]>,
    /// What the budget of detail decides, by class.
    pub(super) budgeted: Vec<Budgeted>,
    /// Whether every packet is recorded, and its class says how much of it.
    is_by_class: bool,
    /// Or it is that and the budget of detail, which say so.
    by_detail: Option<Box<KeptByDetail>>,
    /// Payload on the wire and steps of scores, with a budget of detail.
    pub(super) payload: [u32; WIDE],
    pub(super) steps: [u32; WIDE],
}

impl Wide {
    pub(super) fn new(simd: Simd) -> Self {
        Self {
            simd,
            columns: PacketColumns::default(),
            header_end: [0; WIDE],
            kept_len: [0; WIDE],
            wanted_payload: [0; WIDE],
            classified: [0; WIDE],
            verdicts: [0; WIDE],
            kinds: [0; WIDE],
            demands: [0; WIDE],
            others: Vec::with_capacity(WIDE),
            wanted: [0; GROUPS],
            recorded: [0; GROUPS],
            asked: [0; GROUPS],
            offered: [0; GROUPS],
            by_class: Box::new([Kept::default(); 256]),
            budgeted: Vec::new(),
            is_by_class: false,
            by_detail: None,
            payload: [0; WIDE],
            steps: [0; WIDE],
        }
    }

    /// Stores what modes demand for each class, of which some are anomalous.
    pub(super) fn adopt(&mut self, demands: &[Demands], anomalous: impl Iterator<Item = bool>) {
        let classes = (0..=u8::MAX).zip(demands);
        self.budgeted.clear();
        self.is_by_class = true;
        for ((class, demand), by_class) in classes.zip(&mut *self.by_class) {
            *by_class = demand.kept(class);
            self.is_by_class &= by_class.is_by_class();
            self.budgeted.push(demand.within_budget(class));
        }
        self.by_detail = KeptByDetail::new(demands, anomalous).map(Box::new);
    }

    /// Records all packets, and of each as many bytes after the headers as `kept_len` says.
    pub(super) fn record_all(&mut self) {
        self.recorded = self.wanted;
        self.simd.run(KeptLen {
            kept_len: &mut self.kept_len,
            wanted_payload: &mut self.wanted_payload,
            header_end: &self.header_end,
            captured_len: &self.columns.captured_len,
        });
    }
}

/// Turns how many bytes after the headers are wanted into how many bytes are kept, and remembers the
/// former.
pub(super) struct KeptLen<'a> {
    pub(super) kept_len: &'a mut [u32; WIDE],
    pub(super) wanted_payload: &'a mut [u32; WIDE],
    pub(super) header_end: &'a [u32; WIDE],
    pub(super) captured_len: &'a [u32; WIDE],
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

/// Bytes on the wire of the first packets of a batch, and whether none of them is earlier than the
/// one before.
struct Sums<'a> {
    columns: &'a PacketColumns,
    count: usize,
}

impl Kernel for Sums<'_> {
    type Output = (u64, bool);

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> (u64, bool) {
        let Self { columns, count } = self;
        let captured = columns.captured_len.as_chunks().0.iter();
        let lens = captured.zip(columns.wire_len.as_chunks().0);
        let times = columns.ts_ns.as_chunks::<GROUP>().0;
        let (mut sums, mut is_earlier, mut last) = (l.set_64(0), 0, 0);
        for (group, ((captured, wire), now)) in lens.zip(times).enumerate() {
            let here = count.saturating_sub(group * GROUP).min(GROUP);
            let lanes = !(u32::MAX << here);
            #[allow(clippy::cast_possible_truncation, reason = "a group has 16 bits")]
            let lanes = lanes as u16;
            if lanes == 0 {
                break;
            }
            let size = l.max(l.load(captured), l.load(wire));
            sums = l.add_64(sums, l.widen(l.only(l.mask(lanes), size)));
            let mut before = [last; GROUP];
            before[1..].copy_from_slice(&now[..GROUP - 1]);
            is_earlier |= lanes & !l.le_64(l.load_64(&before), l.load_64(now));
            last = now[GROUP - 1];
        }
        let mut all = [0; GROUP];
        l.store_64(sums, &mut all);
        (all.into_iter().sum(), is_earlier == 0)
    }
}

/// What is the same for all packets of a batch, or summed over them.
struct Scanned {
    interface: u16,
    wire_bytes: u64,
    /// Whether no packet is earlier than the one before.
    ascends: bool,
    /// Whether they can be counted and classified in columns.
    is_counted: bool,
}

/// Packets of a batch while they are recorded.
pub(super) struct Recording<'a, P: ?Sized> {
    batch: &'a P,
    /// Where in the batch they are: at these places from `start` on.
    start: usize,
    places: &'a [u8],
    pub(super) data: &'a [&'a [u8]; WIDE],
    interface: u16,
    ascends: bool,
    /// The next packet.
    next: usize,
    /// How many of those before it are not plain.
    others: usize,
    /// How many from it on are to be recorded, as far as that is decided.
    pub(super) pending: u64,
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
        if count < FEW {
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
                self.look_and_count(&mut wide, batch, (start, places), (&scanned, &data));
                if self.is_tapped {
                    self.show_columns(&wide, batch, (start, places));
                }
                if self.is_exporting() {
                    self.export_columns(&wide, batch, (start, places));
                }
                let recording = Recording {
                    batch,
                    start,
                    places,
                    data: &data,
                    interface: scanned.interface,
                    ascends: scanned.ascends,
                    next: 0,
                    others: 0,
                    pending: 0,
                };
                self.record_columns(&mut wide, recording).map(|()| true)
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
        let columns = &mut wide.columns;
        // What any of them has, without a comparison for each.
        let (mut options, mut interfaces, mut lens, mut all_have_time) = (0, 0, 0, true);
        for ((lane, data), &place) in data.iter_mut().enumerate().zip(places) {
            let packet = batch.get(start + usize::from(place));
            options |= packet.options.len();
            interfaces |= packet.interface ^ interface;
            lens |= packet.data.len();
            all_have_time &= packet.has_timestamp;
            #[allow(clippy::cast_possible_truncation, reason = "longer ones are odd")]
            let captured_len = packet.data.len() as u32;
            *data = packet.data;
            columns.ts_ns[lane] = packet.ts_ns;
            columns.captured_len[lane] = captured_len;
            columns.wire_len[lane] = packet.wire_len;
        }
        let mut is_odd = options != 0 || interfaces != 0 || !all_have_time || lens >= LONG;
        let count = places.len();
        let (wire_bytes, ascends) = wide.simd.run(Sums { columns, count });
        let times = &columns.ts_ns[..count];
        let (mut earliest, mut latest) = (times[0], times[count - 1]);
        if !ascends {
            for &ts_ns in times {
                (earliest, latest) = (earliest.min(ts_ns), latest.max(ts_ns));
            }
        }
        let is_counted = self.classifier.takes_columns(count, earliest, latest);
        // Whatever their times, policies may discard most of them; and no window of the table of flows begins
        // before a packet is counted.
        is_odd |= !is_counted && (self.policing.is_none() || self.shadowed.is_some());
        (!is_odd).then_some(Scanned {
            interface,
            wire_bytes,
            ascends,
            is_counted,
        })
    }

    /// Headers, flows and their counters: 64 packets at a time, so that lines fetched are still
    /// there.
    fn look_and_count(
        &mut self,
        wide: &mut Wide,
        batch: &(impl Packets + ?Sized),
        (start, places): (usize, &[u8]),
        (scanned, data): (&Scanned, &[&[u8]; WIDE]),
    ) {
        const GROUPS_OF_LANES: usize = LANES / GROUP;
        let count = places.len();
        let interface = scanned.interface;
        let hasher = self.flows.hasher();
        wide.others.clear();
        wide.wanted.fill(0);
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
                if !self.discards_group(&wide.columns, group, interface) {
                    for fingerprint in wide.columns.fingerprint.as_chunks::<GROUP>().0[group] {
                        self.classifier.prefetch(fingerprint);
                    }
                }
                let others = u64::from(!wide.columns.plain[group] & wide.wanted[group]);
                for lane in bits(others) {
                    let at = group * GROUP + lane;
                    let packet = batch.get(start + usize::from(places[at]));
                    self.look_at_other(wide, &packet, at);
                }
                self.prefetch_flows(&wide.columns.fingerprint, group, interface);
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
            if scanned.is_counted {
                self.classifier.count_columns(&wide.columns, groups);
            }
        }
        wide.header_end = wide.columns.header_len;
        for (at, headers) in &wide.others {
            wide.header_end[*at] = headers.kept_header_len(wide.columns.captured_len[*at]);
        }
        if scanned.is_counted {
            self.classifier.finish_columns(&mut wide.verdicts);
        } else {
            let (columns, verdicts) = (&wide.columns, &mut wide.verdicts);
            self.classifier.classify_columns(columns, count, verdicts);
        }
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

    /// Whether policies are known to discard all plain packets of a group.
    #[inline(always)]
    fn discards_group(&self, columns: &PacketColumns, group: usize, interface: u16) -> bool {
        self.policing.as_ref().is_some_and(|policing| {
            let number = self.sources[usize::from(interface)].rules_number;
            let protocols = &columns.protocol.as_chunks::<GROUP>().0[group];
            policing.discards_group(protocols, number)
        })
    }

    /// Fetches what policies and triggers know of the flows of a group.
    #[inline(always)]
    fn prefetch_flows(&self, fingerprints: &[u64; WIDE], group: usize, interface: u16) {
        let fingerprints = &fingerprints.as_chunks::<GROUP>().0[group];
        if let Some(policing) = &self.policing {
            let number = self.sources[usize::from(interface)].rules_number;
            policing.prefetch_flows(fingerprints, number);
        }
        if let Some(triggers) = &self.triggers {
            triggers.prefetch(fingerprints);
        }
    }

    /// Records of the packets.
    fn record_columns<P: Packets + ?Sized>(
        &mut self,
        wide: &mut Wide,
        mut recording: Recording<'_, P>,
    ) -> Result<(), SinkError> {
        if wide.wanted == [0; GROUPS] && self.triggers.is_none() {
            return Ok(());
        }
        let is_alone = self.policing.is_none() && self.triggers.is_none();
        if self.enough.is_some() {
            wide.classified = wide.verdicts;
        }
        let by_detail = wide.by_detail.take();
        let decided = match &by_detail {
            _ if !is_alone => self.decide_columns(wide, &mut recording),
            Some(kept) => {
                self.find_detail(wide, kept, recording.places.len());
                Ok(())
            }
            None if wide.is_by_class => {
                self.find_kept(wide, recording.places.len());
                Ok(())
            }
            None => self.decide_columns(wide, &mut recording),
        };
        wide.by_detail = by_detail;
        decided?;
        if self.enough.is_some() {
            self.mind_columns(wide, recording.interface);
        }
        if self.shadowed.is_some() {
            self.compare_columns(wide);
        }
        let count = recording.places.len();
        self.record_until(wide, &mut recording, count)
    }

    /// Records of the packets up to this one.
    pub(super) fn record_until<P: Packets + ?Sized>(
        &mut self,
        wide: &Wide,
        recording: &mut Recording<'_, P>,
        end: usize,
    ) -> Result<(), SinkError> {
        while recording.next < end {
            self.push_run(wide, recording, end);
            let at = recording.next;
            if at < end {
                // It refers to what is not defined yet, or does not fit.
                let place = recording.places[at];
                let packet = recording.batch.get(recording.start + usize::from(place));
                self.record_one(wide, (at, &mut recording.others), &packet)?;
                recording.next += 1;
            }
        }
        recording.pending = 0;
        Ok(())
    }

    /// How much is kept of each packet.
    fn find_kept(&mut self, wide: &mut Wide, count: usize) {
        self.packet_number += count as u64;
        let classes = self.classifier.classes_and_steps();
        let groups = wide.kept_len.as_chunks_mut::<GROUP>().0.iter_mut();
        let groups = groups.zip(wide.kinds.as_chunks_mut::<GROUP>().0);
        let groups = groups.zip(wide.verdicts.as_chunks::<GROUP>().0);
        for ((kept_lens, kinds), ids) in groups.take(count.div_ceil(GROUP)) {
            for ((kept_len, kind), &id) in kept_lens.iter_mut().zip(kinds).zip(ids) {
                let [class, _] = classes[usize::from(id)];
                let kept = &wide.by_class[usize::from(class)];
                (*kept_len, *kind) = (kept.payload, kept.kind);
            }
        }
        wide.record_all();
    }

    /// Records of packets before `end`, as long as they need no check of their own.
    fn push_run<P: Packets + ?Sized>(
        &mut self,
        wide: &Wide,
        recording: &mut Recording<'_, P>,
        end: usize,
    ) {
        let columns = &wide.columns;
        let run = PacketRun {
            interface: recording.interface,
            count: end,
            data: recording.data,
            ts_ns: &columns.ts_ns,
            ascends: recording.ascends,
            wire_len: &columns.wire_len,
            captured_len: &columns.captured_len,
            header_len: &wide.header_end,
            kept_len: &wide.kept_len,
            verdicts: &wide.verdicts,
            kinds: &wide.kinds,
            recorded: &wide.recorded,
        };
        let (simd, seq) = (wide.simd, self.next_seq);
        let (classifier, reasons) = (&self.classifier, &self.reasons);
        let define = |block: &mut BlockBuilder, reason| {
            define_reason(block, classifier, reasons, reason);
        };
        let (block, others) = (&mut self.block, &mut recording.others);
        let from = recording.next;
        let (stopped, count) = block.push_run(simd, &run, (from, seq), DEFINITIONS_LEN, define);
        let lanes = from..stopped;
        recording.next = stopped;
        self.next_seq += count;
        let is_whole = count == lanes.len() as u64;
        let hasher = self.flows.hasher();
        skip_others(wide, others, lanes.start);
        let mut noted = lanes.start;
        while let Some((at, headers)) = wide.others.get(*others).filter(|(at, _)| *at < lanes.end) {
            self.note_plain(wide, noted..*at, is_whole);
            noted = at + 1;
            *others += 1;
            if !is_in(&wide.recorded, *at) {
                continue;
            }
            let keeps_all = wide.kinds[*at] >> 8 == u32::from(KeepKind::Full.code());
            if headers.has_no_network() && !keeps_all {
                let kept_len = u64::from(wide.kept_len[*at]);
                self.ledger.header_fallback.add(kept_len);
            }
            let fingerprint = columns.fingerprint[*at];
            self.block.note_headers(headers, fingerprint, &hasher);
        }
        self.note_plain(wide, noted..lanes.end, is_whole);
    }

    /// Stores the flows of plain packets: of those that are recorded, if not all are.
    #[inline]
    fn note_plain(&mut self, wide: &Wide, lanes: Range<usize>, is_whole: bool) {
        let columns = &wide.columns;
        let mut note = |lanes: Range<usize>| {
            let flows = &columns.fingerprint[lanes.clone()];
            let ends = (&columns.source[lanes.clone()], &columns.destination[lanes]);
            self.block.note_plain_run(flows, ends.0, ends.1);
        };
        if is_whole {
            note(lanes);
        } else {
            let recorded = lanes.filter(|&at| is_in(&wide.recorded, at));
            recorded.for_each(|at| note(at..at + 1));
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

/// Whether a packet of a batch is in a set.
#[inline(always)]
pub(super) fn is_in(set: &[u16; GROUPS], at: usize) -> bool {
    set[at / GROUP] >> (at % GROUP) & 1 != 0
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
