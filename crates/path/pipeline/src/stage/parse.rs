//! The first stage: which packets are captured at all, where their headers end, and which flow they
//! belong to.

use std::sync::Arc;

use strata_capture::{PacketRef, Packets};
use strata_classify::LANES;
use strata_filter::{Filter, Program};
use strata_wire::wide::{GROUP, Kernel, Lanes as SimdLanes, PacketColumns, WIDE};
use strata_wire::{
    Counters, FlowHasher, Interface, KeepKind, Ledger, LinkType, TunnelKey, exact, prefetch,
};

use super::batch::{Batch, Chosen, EVERY_PLACE, fetch};
use super::lanes::Lanes;
use crate::classifier::{Classifier, bits};
use crate::flows::{FlowFinder, wire_bytes};
use crate::policing::Policing;

/// Packets so long do not fit in the sums of a batch. A power of two.
const LONG: usize = 1 << 24;
/// Groups of columns that are as many packets as go through the other loop at a time.
const GROUPS_OF_LANES: usize = LANES / GROUP;

/// One interface of the input and what the filter means on it.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) interface: Interface,
    /// `None` if there is no filter; `Err` if it cannot be applied to this link type, so that none
    /// of its packets matches. Shared by all interfaces of a link type.
    filter: Option<Arc<Result<Program, String>>>,
    /// Its number in the rules of the policies.
    pub(crate) rules_number: u8,
    /// What its packets were cut to before they came.
    pub(crate) kept: KeepKind,
}

/// An interface's number in the rules of the policies.
fn rules_number(policing: Option<&Policing>, interface: &Interface) -> u8 {
    policing.map_or(0, |policing| policing.interface(interface.name()))
}

/// Capture filter, headers and flows, and the interfaces that packets come from.
#[derive(Debug)]
pub(crate) struct ParseStage {
    /// Which packets are captured at all; `None` for all.
    filter: Option<Filter>,
    /// What it means on the link types of `sources`.
    filters: Vec<(LinkType, Arc<Result<Program, String>>)>,
    sources: Vec<Source>,
    flows: FlowFinder,
    seen: Counters,
    filtered: Counters,
}

/// What is the same for all packets of a batch, or summed over them.
pub(crate) struct Scanned {
    pub(crate) interface: u16,
    wire_bytes: u64,
    /// Whether no packet is earlier than the one before.
    pub(crate) ascends: bool,
    pub(crate) earliest_ns: u64,
    pub(crate) latest_ns: u64,
}

impl ParseStage {
    pub(crate) fn new(filter: Option<Filter>, hash_seed: [u64; 2], tunnel_key: TunnelKey) -> Self {
        Self {
            filter,
            filters: Vec::new(),
            sources: Vec::new(),
            flows: FlowFinder::new(hash_seed, tunnel_key),
            seen: Counters::default(),
            filtered: Counters::default(),
        }
    }

    pub(crate) fn hasher(&self) -> FlowHasher {
        self.flows.hasher()
    }

    /// By number of the interface.
    pub(crate) fn sources(&self) -> &[Source] {
        &self.sources
    }

    #[inline(always)]
    pub(crate) fn source(&self, interface: u16) -> &Source {
        &self.sources[usize::from(interface)]
    }

    /// Packets that arrived.
    pub(crate) fn seen(&self) -> Counters {
        self.seen
    }

    /// How many packets have passed the filter.
    pub(crate) fn passed(&self) -> u64 {
        self.seen.packets - self.filtered.packets
    }

    pub(crate) fn add_to(&self, ledger: &mut Ledger) {
        ledger.seen.merge(self.seen);
        ledger.filtered.merge(self.filtered);
    }

    /// Counts packets that arrived, and were skipped before they came here.
    pub(crate) fn count_seen(&mut self, skipped: Counters) {
        self.seen.merge(skipped);
    }

    /// Counts packets that the filter skipped.
    pub(crate) fn count_filtered(&mut self, filtered: Counters) {
        self.seen.merge(filtered);
        self.filtered.merge(filtered);
    }

    /// An interface, before its first packet, or again when its description changes.
    pub(crate) fn interface(&mut self, id: u16, interface: Interface, policing: Option<&Policing>) {
        let source = Source {
            filter: self.filter_on(interface.link),
            rules_number: rules_number(policing, &interface),
            kept: interface.kept(),
            interface,
        };
        // Ids are dense and in order.
        let index = usize::from(id);
        if index < self.sources.len() {
            self.sources[index] = source;
        } else {
            self.sources.push(source);
        }
    }

    /// Looks up the interfaces' numbers in the rules of other policies.
    pub(crate) fn name_interfaces(&mut self, policing: Option<&Policing>) {
        for source in &mut self.sources {
            source.rules_number = rules_number(policing, &source.interface);
        }
    }

    /// What the filter means on a link type.
    fn filter_on(&mut self, link: LinkType) -> Option<Arc<Result<Program, String>>> {
        let filter = self.filter.as_ref()?;
        // Few: a file of 65,535 interfaces has one or two link types.
        if let Some((_, known)) = self.filters.iter().find(|(of, _)| *of == link) {
            return Some(Arc::clone(known));
        }
        let compiled = Arc::new(filter.compile(link).map_err(|e| e.to_string()));
        self.filters.push((link, Arc::clone(&compiled)));
        Some(compiled)
    }

    /// Link types on which the filter cannot be applied, and why.
    pub(crate) fn filter_problems(&self) -> Vec<(LinkType, String)> {
        let mut problems = Vec::new();
        for source in &self.sources {
            if let Some(Err(problem)) = source.filter.as_deref() {
                let entry = (source.interface.link, problem.clone());
                if !problems.contains(&entry) {
                    problems.push(entry);
                }
            }
        }
        problems
    }

    /// Why the filter cannot be applied to any interface so far; `None` if it can
    /// be applied to one, or there is no filter or interface.
    pub(crate) fn filter_fits_nowhere(&self) -> Option<String> {
        let mut problem = None;
        for source in &self.sources {
            match source.filter.as_deref() {
                Some(Err(error)) => problem = Some(error.clone()),
                _ => return None,
            }
        }
        problem
    }

    /// Moves the places, from `start` on, of the packets that pass the filter to the front; counts
    /// the others. Returns how many pass.
    pub(crate) fn choose(
        &mut self,
        batch: &(impl Packets + ?Sized),
        start: usize,
        places: &mut [u8],
    ) -> usize {
        if self.filter.is_none() {
            return places.len();
        }
        let (mut passed, mut filtered) = (0, Counters::default());
        for &place in &EVERY_PLACE[..places.len()] {
            let at = start + usize::from(place);
            fetch(batch, at + LANES, 0);
            let packet = batch.get(at);
            let source = &self.sources[usize::from(packet.interface)];
            let passes = match source.filter.as_deref() {
                None => true,
                Some(Ok(program)) => program.matches(packet.data, packet.wire_len),
                Some(Err(_)) => false,
            };
            if passes {
                places[passed] = place;
                passed += 1;
            } else {
                filtered.add(wire_bytes(&packet));
            }
        }
        self.count_filtered(filtered);
        passed
    }
}

/// Batches in columns.
impl ParseStage {
    /// Where the packets are, how long, and when; `None` if anything about them is unusual.
    pub(crate) fn scan<'a, P: Packets + ?Sized>(
        &self,
        batch: &mut Batch,
        chosen: Chosen<'a, P>,
        data: &mut [&'a [u8]; WIDE],
    ) -> Option<Scanned> {
        let interface = chosen.get(0).interface;
        if self.source(interface).interface.link != LinkType::ETHERNET {
            return None;
        }
        let columns = &mut batch.columns;
        // What any of them has, without a comparison for each.
        let (mut options, mut interfaces, mut lens, mut all_have_time) = (0, 0, 0, true);
        for ((lane, data), &place) in data.iter_mut().enumerate().zip(chosen.places) {
            let packet = chosen.batch.get(chosen.start + usize::from(place));
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
        let is_odd = options != 0 || interfaces != 0 || !all_have_time || lens >= LONG;
        let count = chosen.len();
        let (wire_bytes, ascends) = batch.simd.run(Sums { columns, count });
        let times = &columns.ts_ns[..count];
        let (mut earliest_ns, mut latest_ns) = (times[0], times[count - 1]);
        if !ascends {
            for &ts_ns in times {
                (earliest_ns, latest_ns) = (earliest_ns.min(ts_ns), latest_ns.max(ts_ns));
            }
        }
        (!is_odd).then_some(Scanned {
            interface,
            wire_bytes,
            ascends,
            earliest_ns,
            latest_ns,
        })
    }

    /// Starts with the packets of a batch.
    pub(crate) fn begin(&mut self, batch: &mut Batch, count: usize, scanned: &Scanned) {
        batch.passed += count as u64;
        batch.others.clear();
        batch.wanted.fill(0);
        self.seen.packets += count as u64;
        self.seen.bytes += scanned.wire_bytes;
    }

    /// Headers and flows of a group's plain packets. Also has a later group fetched.
    #[inline(always)]
    pub(crate) fn look_at_plain<P: Packets + ?Sized>(
        &self,
        batch: &mut Batch,
        chosen: Chosen<'_, P>,
        data: &[&[u8]; WIDE],
        group: usize,
    ) {
        let all = data.as_chunks::<GROUP>().0;
        let ahead = group + GROUPS_OF_LANES;
        match all.get(ahead) {
            Some(later) => later.iter().for_each(|packet| prefetch(packet, 0)),
            None => {
                let first = chosen.start + ahead * GROUP;
                (0..GROUP).for_each(|lane| fetch(chosen.batch, first + lane, 0));
            }
        }
        let columns = &mut batch.columns;
        columns.look(batch.simd, self.flows.keyed(), group, &all[group]);
        let here = (chosen.len() - group * GROUP).min(GROUP);
        batch.wanted[group] = u16::MAX >> (GROUP - here);
        columns.plain[group] &= batch.wanted[group];
        columns.dissected[group] = columns.plain[group];
    }

    /// Those of a group's other packets.
    #[inline(never)]
    pub(crate) fn look_at_others<P: Packets + ?Sized>(
        &mut self,
        batch: &mut Batch,
        chosen: Chosen<'_, P>,
        group: usize,
        classifier: &Classifier,
    ) {
        for lane in bits(batch.others_of(group).into()) {
            let at = group * GROUP + lane;
            self.look_at_other(batch, &chosen.get(at), at, classifier);
        }
    }

    /// Headers and flow of a packet that is not plain.
    #[inline(always)]
    fn look_at_other(
        &mut self,
        batch: &mut Batch,
        packet: &PacketRef<'_>,
        at: usize,
        classifier: &Classifier,
    ) {
        let (headers, facts) = self.flows.find(LinkType::ETHERNET, packet);
        batch.others.push((at, headers));
        let columns = &mut batch.columns;
        columns.fingerprint[at] = 0;
        let Some(facts) = facts else {
            return;
        };
        classifier.prefetch(facts.fingerprint);
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

    /// Where the headers end of each packet, once all were looked at.
    pub(crate) fn find_header_ends(batch: &mut Batch) {
        batch.header_end = batch.columns.header_len;
        for (at, headers) in &batch.others {
            batch.header_end[*at] = headers.kept_header_len(batch.columns.captured_len[*at]);
        }
    }
}

/// Packet by packet.
impl ParseStage {
    /// Where a packet's headers end, as far as they were captured, and the fingerprint of its flow, 0
    /// without one.
    pub(crate) fn flow_of(&mut self, packet: &PacketRef<'_>) -> (u32, u64) {
        let link = self.source(packet.interface).interface.link;
        if let Some((plain, facts)) = self.flows.find_plain(link, packet) {
            return (plain.header_len().into(), facts.fingerprint);
        }
        let (headers, facts) = self.flows.find(link, packet);
        let header_len = headers.kept_header_len(exact::<u32>(packet.data.len()));
        (header_len, facts.map_or(0, |facts| facts.fingerprint))
    }

    /// Headers and flow of one packet.
    #[inline(always)]
    pub(crate) fn look(
        &mut self,
        lanes: &mut Lanes,
        lane: usize,
        packet: &PacketRef<'_>,
        classifier: &Classifier,
    ) {
        self.seen.add(wire_bytes(packet));
        let source = &self.sources[usize::from(packet.interface)];
        let bit = 1 << lane;
        lanes.wanted |= bit;
        let Some((plain, facts)) = self.flows.find_plain(source.interface.link, packet) else {
            self.look_closely(lanes, lane, packet, classifier);
            return;
        };
        classifier.prefetch(facts.fingerprint);
        lanes.header_len[lane] = u32::from(plain.header_len());
        lanes.plain[lane] = plain;
        lanes.facts[lane] = facts;
        lanes.is_plain |= bit;
        lanes.dissected |= bit;
    }

    /// Headers and flow of a packet that is not plain.
    #[inline(never)]
    fn look_closely(
        &mut self,
        lanes: &mut Lanes,
        lane: usize,
        packet: &PacketRef<'_>,
        classifier: &Classifier,
    ) {
        let link = self.source(packet.interface).interface.link;
        let (headers, facts) = self.flows.find(link, packet);
        let captured_len = exact::<u32>(packet.data.len());
        lanes.header_len[lane] = headers.kept_header_len(captured_len);
        lanes.headers[lane] = headers;
        if let Some(facts) = facts {
            classifier.prefetch(facts.fingerprint);
            lanes.facts[lane] = facts;
            lanes.dissected |= 1 << lane;
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
    fn run<L: SimdLanes>(self, l: L) -> (u64, bool) {
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
