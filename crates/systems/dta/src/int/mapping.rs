//! What becomes of INT reports: DTA reports by a [`Table`], and answers to queries known ahead.

use strata_wire::exact;

use super::place::Places;
use super::report::{self, Packet};
use super::sequence::{Number, Sequences};
use super::stack::{Inner, Marks};
use super::table::{Data, Of, Rule, Table, To, When};
use super::watch::Sums;
use super::{Hop, IntError};
use crate::event::node::{NodeEvent, NodeEventKind};
use crate::key::{FiveTuple, Key};
use crate::protocol::Report;
use crate::tally;

/// The counters of a mapper.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IntCounters {
    /// Datagrams.
    pub datagrams: u64,
    /// Datagrams that were not understood, entirely or from some report on.
    pub refused: u64,
    /// Individual reports.
    pub reports: u64,
    /// Reports of packets whose INT-MD stack was not understood; the rest of the report was.
    pub bad_stacks: u64,
    /// Reports of packets that have an INT-MD stack according to the headers, but not the mark of the table.
    pub unmarked_stacks: u64,
    /// DTA reports made of them.
    pub mapped: u64,
    /// DTA reports that were not made, because the node did not report the fields that they need, or its place on the
    /// path.
    pub incomplete: u64,
    /// Datagrams that nodes sent and that did not arrive, according to sequence numbers.
    pub missing: u64,
    /// Datagrams whose number had arrived before, or was too old to count as missing.
    pub repeated: u64,
    /// Jumps of sequence numbers: a node has restarted, or another sender uses its number. The number of datagrams lost
    /// at that moment is not known.
    pub jumps: u64,
    /// Datagrams of nodes whose numbers are not followed, because there are too many nodes.
    pub not_followed: u64,
    /// Packets whose latencies were summed for the queries known ahead.
    pub summed: u64,
    /// Events for packets whose sum was above a threshold.
    pub above: u64,
    /// Sums that may have been above a threshold: a hop did not report its latency, or its report is missing.
    pub undecided: u64,
}

/// Makes DTA reports of INT datagrams.
#[derive(Debug)]
pub struct Mapper {
    marks: Marks,
    rules: Vec<Rule>,
    sums: Option<Sums>,
    counters: IntCounters,
    sequences: Sequences,
    places: Places,
    /// Maximum bytes of an event.
    event_len: usize,
}

/// A hop with its place, and what the report says of the packet there.
struct Seen<'a> {
    hop: &'a Hop,
    index: Option<u8>,
    path_len: Option<u8>,
    flow: Option<&'a FiveTuple>,
    kind: NodeEventKind,
    event_len: usize,
}

impl Mapper {
    /// A mapper by a table, for lists with entries of this length. If an event with its flow is longer, it is stored
    /// without its flow.
    #[must_use]
    pub fn new(table: Table, entry_len: usize) -> Self {
        Self {
            marks: table.marks(),
            places: table.places(),
            rules: table.report,
            sums: Sums::new(table.watch),
            counters: IntCounters::default(),
            sequences: Sequences::default(),
            event_len: entry_len,
        }
    }

    /// Its counters.
    #[must_use]
    pub fn counters(&self) -> IntCounters {
        let Some(compared) = self.sums.as_ref().map(Sums::compared) else {
            return self.counters;
        };
        IntCounters {
            summed: compared.packets,
            above: compared.above,
            undecided: compared.undecided,
            mapped: self.counters.mapped.wrapping_add(compared.above),
            ..self.counters
        }
    }

    /// Concludes the watches for packets whose hops have not all reported since the last call, and stops waiting for
    /// datagrams that were missing then. To be called about every 100 ms.
    pub fn settle(&mut self, each: &mut dyn FnMut(&Report<'_>)) {
        self.sequences.settle();
        self.places.settle();
        if let Some(sums) = &mut self.sums {
            sums.settle(each);
        }
    }

    /// Forgets the state of nodes, and of packets whose hops have not all reported, but keeps the counters. To be
    /// called after a panic within [`Mapper::map`], which may have left this state incomplete.
    pub fn forget(&mut self) {
        self.sequences = Sequences::default();
        self.places.forget();
        if let Some(sums) = &mut self.sums {
            sums.forget();
        }
    }

    /// Gives the DTA reports of the payload of a UDP datagram to `each`.
    ///
    /// # Errors
    ///
    /// Why the datagram, or the rest of it, was not understood; this is counted, too.
    pub fn map(&mut self, bytes: &[u8], each: &mut dyn FnMut(&Report<'_>)) -> Result<(), IntError> {
        tally::one(&mut self.counters.datagrams);
        let mapped = self.datagram(bytes, each);
        if mapped.is_err() {
            tally::one(&mut self.counters.refused);
        }
        mapped
    }

    fn datagram(
        &mut self,
        bytes: &[u8],
        each: &mut dyn FnMut(&Report<'_>),
    ) -> Result<(), IntError> {
        let packet = Packet::new_checked(bytes)?;
        self.follow(&packet);
        for report in packet.reports() {
            let report = report?;
            tally::one(&mut self.counters.reports);
            let marks = self.marks;
            let inner = report
                .packet
                .map(|(link, bytes)| Inner::read(link, bytes, &marks));
            let inner = match inner {
                Some(Err(_)) => {
                    tally::one(&mut self.counters.bad_stacks);
                    None
                }
                Some(Ok(inner)) => {
                    tally::add(&mut self.counters.unmarked_stacks, inner.is_unmarked.into());
                    Some(inner)
                }
                None => None,
            };
            self.report(&report, inner.as_ref(), each);
        }
        Ok(())
    }

    fn follow(&mut self, packet: &Packet<'_>) {
        let counters = &mut self.counters;
        match self.sequences.arrive(packet) {
            Number::New { missing } => {
                tally::add(&mut counters.missing, u64::from(missing));
            }
            // It was counted when its gap began.
            Number::Late => counters.missing = counters.missing.saturating_sub(1),
            Number::Repeated => tally::one(&mut counters.repeated),
            Number::Jump => tally::one(&mut counters.jumps),
            Number::NotFollowed => tally::one(&mut counters.not_followed),
        }
    }

    fn report(
        &mut self,
        report: &report::Report<'_>,
        inner: Option<&Inner<'_>>,
        each: &mut dyn FnMut(&Report<'_>),
    ) {
        let flow = inner.and_then(|inner| inner.flow.as_ref());
        let stack = inner.and_then(|inner| inner.stack);
        // From the first hop of the path to the last, which is the node that reports.
        let mut hops: Vec<Hop> = stack.iter().flat_map(|stack| stack.hops().rev()).collect();
        match hops.last_mut() {
            // The sink has added to the stack what the report says, or a part of it.
            Some(last) if last.node.is_some() && last.node == report.hop.node => {
                last.complete(&report.hop);
            }
            Some(_) if !report.is_hop => {}
            _ => hops.push(report.hop),
        }
        let kind = match (report.dropped, report.congested) {
            (true, _) => NodeEventKind::Dropped,
            (false, true) => NodeEventKind::Congested,
            (false, false) => NodeEventKind::Other,
        };
        let is_whole = stack.is_some_and(|stack| !stack.is_incomplete) && !report.intermediate;
        let path_len = u8::try_from(hops.len()).ok().filter(|_| is_whole);
        let last = hops.len().checked_sub(1);
        for (index, hop) in hops.iter().enumerate() {
            let index_of_hop = match (stack, inner) {
                (None, Some(inner)) => self.places.of(inner, hop.node),
                // A stack has HOPS_MAX hops at most.
                _ => Some(exact::<u8>(index)),
            };
            let seen = Seen {
                hop,
                index: index_of_hop,
                path_len,
                flow,
                kind,
                event_len: self.event_len,
            };
            if let (Some(sums), Some(flow), Some(place)) = (&mut self.sums, flow, index_of_hop) {
                // There are more hops than found room in the packet.
                let is_cut = stack.is_some_and(|stack| stack.is_incomplete);
                let path_len = if is_cut { Some(u8::MAX) } else { path_len };
                sums.hop(flow, place, path_len, hop.hop_latency, each);
            }
            let reports_itself = Some(index) == last;
            for rule in &self.rules {
                let applies = match rule.when {
                    When::Always => true,
                    When::Tracked => report.tracked,
                    When::Congested => report.congested && reports_itself,
                    When::Dropped => report.dropped && reports_itself,
                };
                if !applies {
                    continue;
                }
                match rule.emit(&seen, each) {
                    Some(()) => tally::one(&mut self.counters.mapped),
                    None => tally::one(&mut self.counters.incomplete),
                }
            }
        }
    }
}

impl Rule {
    /// `None` if something that it needs is not known.
    fn emit(&self, seen: &Seen<'_>, each: &mut dyn FnMut(&Report<'_>)) -> Option<()> {
        let hop = seen.hop;
        let mut event = Vec::new();
        let word = match self.data {
            Data::Node => hop.node?,
            Data::HopLatency => hop.hop_latency?,
            Data::QueueDepth => hop.queue_occupancy?,
            Data::TxUtilization => hop.tx_utilization?,
            Data::EgressInterface => hop.egress_interface?,
            Data::Event => {
                seen.event()?.emit(seen.event_len, &mut event);
                0
            }
            Data::Packets => 1,
        };
        let word_bytes = word.to_be_bytes();
        let data = match self.data {
            Data::Event => &event[..],
            _ => &word_bytes[..],
        };
        if let Some(list) = self.list {
            each(&Report::Append { list, data });
            return Some(());
        }
        let key = match self.key? {
            Of::Flow => Key::flow(seen.flow?),
            Of::Source => Key::address(seen.flow?.source),
            Of::Destination => Key::address(seen.flow?.destination),
            Of::Node => Key::node(hop.node?),
            Of::Queue => Key::queue(hop.node?, hop.egress_interface?, hop.queue?),
            Of::NodeFlow => Key::flow_at(hop.node?, seen.flow?),
        };
        let redundancy = self.redundancy.map_or(2, |redundancy| redundancy);
        let key = key.bytes();
        each(&match self.primitive {
            To::KeyWrite => Report::KeyWrite {
                redundancy,
                key,
                data,
            },
            To::KeyIncrement => Report::KeyIncrement {
                redundancy,
                key,
                counter: u64::from(word),
            },
            To::Postcard => Report::Postcard {
                key,
                hop: seen.index?,
                path_len: seen.path_len,
                value: word,
            },
            To::Append => unreachable!("append has a list"),
        });
        Some(())
    }
}

impl Seen<'_> {
    fn event(&self) -> Option<NodeEvent> {
        let hop = self.hop;
        let value = match self.kind {
            NodeEventKind::Dropped => hop.drop_reason.map(u32::from),
            _ => hop.queue_occupancy.or(hop.hop_latency),
        };
        Some(NodeEvent {
            kind: self.kind,
            node: hop.node?,
            port: hop.egress_interface,
            queue: hop.queue,
            value,
            // Its low half.
            time: hop
                .ingress_time
                .map(|time| exact::<u32>(time & u64::from(u32::MAX))),
            flow: self.flow.copied(),
        })
    }
}
