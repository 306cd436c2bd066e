//! From INT to DTA: a table in TOML says which report becomes what (paper, table 2).
//!
//! ```toml
//! extends = "built-in"     # the default; or nothing
//! udp-port = 5000          # of INT-MD over UDP; or dscp = 23
//! [[report]]
//! name = "latency"         # for messages and counters
//! when = "always"          # or tracked, congested, dropped
//! primitive = "key-write"  # or postcard, append, key-increment
//! key = "node-flow"        # or flow, source, destination, node, queue; none for append
//! data = "hop-latency"     # or node, queue-depth, tx-utilization, egress-interface, event, packets
//! redundancy = 2           # of key-write and key-increment
//! list = 0                 # of append
//! [[watch]]
//! name = "slow"            # of the list
//! above = 100000           # an event for each packet whose latencies have a larger sum
//! list = 4
//! ```

use serde::Deserialize;
use strata_wire::exact;

use super::report::{self, Packet};
use super::sequence::{Number, Sequences};
use super::stack::{Inner, Marks};
use super::watch::{Sums, WATCHES_MAX, Watch};
use super::{Hop, IntError};
use crate::hash::REDUNDANCY_MAX;
use crate::key::{FiveTuple, Key};
use crate::protocol::Report;
use crate::tally;

/// Bytes of an event: node u32, egress interface u32, queue u8, kind u8 (1 dropped, 2 congested,
/// 3 other), value u32 (drop reason, queue occupancy or latency), low half of the ingress time.
pub const EVENT_LEN: usize = 18;

/// The built-in table, which is the default, and which others extend: path tracing, latency and
/// queue depth by Key-Write, congestion and drops as events in lists 0 and 1.
pub const DEFAULT: &str = r#"
# The built-in table of INT. A table of --table extends it, unless it says extends = "nothing".
udp-port = 5000

[[report]]
name = "path"
when = "tracked"
primitive = "postcard"
key = "flow"
data = "node"

[[report]]
name = "latency"
when = "always"
primitive = "key-write"
key = "node-flow"
data = "hop-latency"
redundancy = 2

[[report]]
name = "queue"
when = "always"
primitive = "key-write"
key = "queue"
data = "queue-depth"
redundancy = 2

[[report]]
name = "congestion"
when = "congested"
primitive = "append"
data = "event"
list = 0

[[report]]
name = "drops"
when = "dropped"
primitive = "append"
data = "event"
list = 1
"#;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum When {
    Always,
    Tracked,
    Congested,
    Dropped,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum To {
    Postcard,
    KeyWrite,
    Append,
    KeyIncrement,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Of {
    Flow,
    Source,
    Destination,
    Node,
    Queue,
    NodeFlow,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Data {
    Node,
    HopLatency,
    QueueDepth,
    TxUtilization,
    EgressInterface,
    Event,
    Packets,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Rule {
    name: String,
    when: When,
    primitive: To,
    key: Option<Of>,
    data: Data,
    redundancy: Option<u8>,
    list: Option<u32>,
}

/// What a table begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Extends {
    /// With all of the built-in table: a report of the same name takes the place of the built-in one.
    #[default]
    BuiltIn,
    /// With nothing.
    Nothing,
}

/// Which INT reports become which DTA reports.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Table {
    #[serde(default)]
    extends: Extends,
    udp_port: Option<u16>,
    dscp: Option<u8>,
    #[serde(default)]
    report: Vec<Rule>,
    #[serde(default)]
    watch: Vec<Watch>,
}

/// Why a table is refused.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// Not TOML, or not of this form; says the line.
    #[error(transparent)]
    Toml(#[from] toml::de::Error),
    /// Entries that do not fit each other.
    #[error("report {name:?}: {problem}")]
    Report {
        /// Its name.
        name: String,
        /// What is wrong and what to do.
        problem: &'static str,
    },
    /// A query known ahead whose events cannot go where it says.
    #[error("watch {name:?}: {problem}")]
    Watch {
        /// Its name.
        name: String,
        /// What is wrong and what to do.
        problem: &'static str,
    },
    /// More than 6 bits.
    #[error("dscp = {0}: a DSCP is below 64")]
    Dscp(u8),
}

impl Table {
    /// Reads a table.
    ///
    /// # Errors
    ///
    /// [`TableError`].
    pub fn parse(text: &str) -> Result<Self, TableError> {
        let mut table: Self = toml::from_str(text)?;
        if let Some(dscp) = table.dscp.filter(|&dscp| dscp >= 64) {
            return Err(TableError::Dscp(dscp));
        }
        for rule in &table.report {
            rule.check().map_err(|problem| TableError::Report {
                name: rule.name.clone(),
                problem,
            })?;
        }
        if table.extends == Extends::BuiltIn {
            table.extend(toml::from_str(DEFAULT)?)?;
        }
        for (watch, before) in table.watch.iter().zip(0..) {
            let refused = |problem| TableError::Watch {
                name: watch.name.clone(),
                problem,
            };
            if before == WATCHES_MAX {
                return Err(refused("at most 8 are allowed"));
            }
            if table
                .report
                .iter()
                .any(|rule| rule.list == Some(watch.list))
            {
                return Err(refused(
                    "a report appends something else to its list: name another one",
                ));
            }
        }
        Ok(table)
    }

    /// Puts what it does not say itself before it.
    fn extend(&mut self, built_in: Self) -> Result<(), TableError> {
        self.udp_port = self.udp_port.or(built_in.udp_port);
        let is_own = |rule: &Rule| self.report.iter().any(|own| own.name == rule.name);
        let mut all = built_in.report;
        all.retain(|rule| !is_own(rule));
        let is_taken = |own: &&Rule| {
            all.iter()
                .any(|rule| own.list.is_some() && own.list == rule.list)
        };
        if let Some(own) = self.report.iter().find(is_taken) {
            return Err(TableError::Report {
                name: own.name.clone(),
                problem: "a report of the built-in table appends to its list: name another list, give \
                          it the name of that report to replace it, or write extends = \"nothing\"",
            });
        }
        all.append(&mut self.report);
        self.report = all;
        Ok(())
    }

    /// The lists that it appends to, with the names of the reports that do, and whether these are
    /// events.
    pub fn lists(&self) -> impl Iterator<Item = (u32, &str, bool)> {
        let lists = self.report.iter();
        lists.filter_map(|rule| Some((rule.list?, rule.name.as_str(), rule.data == Data::Event)))
    }

    /// The lists of its queries known ahead, with their names: events of flows.
    pub fn watched(&self) -> impl Iterator<Item = (u32, &str)> {
        self.watch.iter().map(|watch| (watch.list, &*watch.name))
    }
}

impl Rule {
    fn check(&self) -> Result<(), &'static str> {
        let is_append = self.primitive == To::Append;
        if is_append != self.key.is_none() {
            return Err("every primitive but append has a key, and append has none");
        }
        if is_append != self.list.is_some() {
            return Err("append has a list, and nothing else has one");
        }
        let is_counted = self.primitive == To::KeyIncrement;
        let has_copies = is_counted || self.primitive == To::KeyWrite;
        if self.redundancy.is_some() && !has_copies {
            return Err("only key-write and key-increment have a redundancy");
        }
        if self
            .redundancy
            .is_some_and(|n| !(1..=REDUNDANCY_MAX).contains(&n))
        {
            return Err("a redundancy is 1 to 4");
        }
        if is_counted != (self.data == Data::Packets) {
            return Err("key-increment adds packets, and nothing else does");
        }
        if self.primitive == To::Postcard && self.data == Data::Event {
            return Err("a postcard has 4 bytes of data, an event 18");
        }
        Ok(())
    }
}

/// What a mapper counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IntCounters {
    /// Datagrams.
    pub datagrams: u64,
    /// Those that were not understood, or from some report on.
    pub refused: u64,
    /// Individual reports.
    pub reports: u64,
    /// Reports of packets whose INT-MD stack was not understood; the rest of them was.
    pub bad_stacks: u64,
    /// DTA reports made of them.
    pub mapped: u64,
    /// DTA reports not made, since the node did not say what they need.
    pub incomplete: u64,
    /// Datagrams that nodes sent and that did not come, by their sequence numbers.
    pub missing: u64,
    /// Datagrams whose number had come before, or was too old to be missed.
    pub repeated: u64,
    /// Sequence numbers that went on elsewhere: a node has started again, or somebody else uses its
    /// name. What was lost at that moment is not known.
    pub jumps: u64,
    /// Datagrams of nodes whose numbers are not followed, since there are too many nodes.
    pub not_followed: u64,
    /// Packets whose latencies were summed for the queries known ahead.
    pub summed: u64,
    /// Events of those whose sum was above a threshold.
    pub above: u64,
    /// Those that may have been above one: a hop did not say its latency, or its report is missing.
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
}

/// A hop with its place, and what the report says of the packet there.
struct Seen<'a> {
    hop: &'a Hop,
    index: u8,
    path_len: Option<u8>,
    flow: Option<&'a FiveTuple>,
    kind: u8,
}

impl Mapper {
    /// A mapper by a table.
    #[must_use]
    pub fn new(table: Table) -> Self {
        Self {
            marks: Marks {
                udp_port: table.udp_port,
                dscp: table.dscp,
            },
            rules: table.report,
            sums: Sums::new(table.watch),
            counters: IntCounters::default(),
            sequences: Sequences::default(),
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

    /// Answers the queries known ahead for packets whose hops have not all reported since the last
    /// time, and waits no longer for datagrams that were missing then: to be called every 100 ms or so.
    pub fn settle(&mut self, each: &mut dyn FnMut(&Report<'_>)) {
        self.sequences.settle();
        if let Some(sums) = &mut self.sums {
            sums.settle(each);
        }
    }

    /// Forgets what it remembers of nodes and of packets whose hops have not all reported, and keeps
    /// its counters: after a fault within [`Mapper::map`], which may have left a part of that undone.
    pub fn forget(&mut self) {
        self.sequences = Sequences::default();
        if let Some(sums) = &mut self.sums {
            sums.forget();
        }
    }

    /// Gives the DTA reports of the payload of a UDP datagram to `each`.
    ///
    /// # Errors
    ///
    /// Why it, or the rest of it, was not understood; that is counted too.
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
                Some(Ok(inner)) => Some(inner),
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
        let gathered = hops.len();
        if report.is_hop || gathered == 0 {
            hops.push(report.hop);
        }
        let kind = match (report.dropped, report.congested) {
            (true, _) => 1,
            (false, true) => 2,
            (false, false) => 3,
        };
        let is_whole = stack.is_some_and(|stack| !stack.is_incomplete) && !report.intermediate;
        let path_len = u8::try_from(hops.len()).ok().filter(|_| is_whole);
        let last = hops.len().checked_sub(1);
        for (index, hop) in hops.iter().enumerate() {
            // Without a stack, the time to live says where the node is.
            let index_of_hop = match (stack, inner) {
                (None, Some(inner)) => place(inner.ttl),
                // A stack has HOPS_MAX hops at most.
                _ => exact::<u8>(index),
            };
            let seen = Seen {
                hop,
                index: index_of_hop,
                path_len,
                flow,
                kind,
            };
            if let (Some(sums), Some(flow)) = (&mut self.sums, flow) {
                // There are more hops than found room in the packet.
                let is_cut = stack.is_some_and(|stack| stack.is_incomplete);
                let path_len = if is_cut { Some(u8::MAX) } else { path_len };
                sums.hop(flow, index_of_hop, path_len, hop.hop_latency, each);
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

/// Nodes before this one, by the time to live that it found: packets start with 64, 128 or 255.
fn place(ttl: u8) -> u8 {
    match ttl {
        0..=64 => 64_u8.abs_diff(ttl),
        65..=128 => 128_u8.abs_diff(ttl),
        129.. => 255_u8.abs_diff(ttl),
    }
}

impl Rule {
    /// `None` if something that it needs is not known.
    fn emit(&self, seen: &Seen<'_>, each: &mut dyn FnMut(&Report<'_>)) -> Option<()> {
        let hop = seen.hop;
        let mut event = [0; EVENT_LEN];
        let word = match self.data {
            Data::Node => hop.node?,
            Data::HopLatency => hop.hop_latency?,
            Data::QueueDepth => hop.queue_occupancy?,
            Data::TxUtilization => hop.tx_utilization?,
            Data::EgressInterface => hop.egress_interface?,
            Data::Event => {
                event = seen.event()?;
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
                hop: seen.index,
                path_len: seen.path_len,
                value: word,
            },
            To::Append => unreachable!("append has a list"),
        });
        Some(())
    }
}

impl Seen<'_> {
    fn event(&self) -> Option<[u8; EVENT_LEN]> {
        let hop = self.hop;
        let value = match self.kind {
            1 => hop.drop_reason.map(u32::from),
            _ => hop.queue_occupancy.or(hop.hop_latency),
        };
        let mut event = [0; EVENT_LEN];
        event[..4].copy_from_slice(&hop.node?.to_be_bytes());
        // All ones: not known.
        let egress = hop.egress_interface.map_or([0xff; 4], u32::to_be_bytes);
        event[4..8].copy_from_slice(&egress);
        event[8] = hop.queue.map_or(0xff, |queue| queue);
        event[9] = self.kind;
        event[10..14].copy_from_slice(&value.map_or([0xff; 4], u32::to_be_bytes));
        let time = hop.ingress_time.map_or([0xff; 8], u64::to_be_bytes);
        event[14..].copy_from_slice(&time[4..]);
        Some(event)
    }
}
