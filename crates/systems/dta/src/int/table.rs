//! From INT to DTA: a table in TOML says which report becomes what (paper, table 2).
//!
//! ```toml
//! extends = "built-in"     # the default; or nothing
//! hop-from = "ttl"         # the default; or arrival, stack: where a node is on the path, if it
//!                          # reports for itself
//! first-ttl = 64           # TTL that the first node reports for packets that began with 64
//! udp-port = 5000          # of INT-MD over UDP; or dscp = 23. Without both, it is recognised
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

use super::place::{HopFrom, Places};
use super::stack::Marks;
use super::watch::{WATCHES_MAX, Watch};
use crate::hash::REDUNDANCY_MAX;

/// The built-in table, which is the default, and which others extend: path tracing, latency and
/// queue depth by Key-Write, congestion and drops as events in lists 0 and 1.
pub const DEFAULT: &str = r#"
# The built-in table of INT. A table of --table extends it, unless it says extends = "nothing".
# INT-MD is recognised by its headers, unless a table says udp-port or dscp.
hop-from = "ttl"
first-ttl = 64

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
pub(super) enum When {
    Always,
    Tracked,
    Congested,
    Dropped,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum To {
    Postcard,
    KeyWrite,
    Append,
    KeyIncrement,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Of {
    Flow,
    Source,
    Destination,
    Node,
    Queue,
    NodeFlow,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Data {
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
pub(super) struct Rule {
    name: String,
    pub(super) when: When,
    pub(super) primitive: To,
    pub(super) key: Option<Of>,
    pub(super) data: Data,
    pub(super) redundancy: Option<u8>,
    pub(super) list: Option<u32>,
}

/// What the first node sees of packets of most systems.
const FIRST_TTL: u8 = 64;

fn first_ttl() -> u8 {
    FIRST_TTL
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

/// The rules by which INT reports become DTA reports.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Table {
    #[serde(default)]
    extends: Extends,
    #[serde(default)]
    hop_from: HopFrom,
    #[serde(default = "first_ttl")]
    first_ttl: u8,
    udp_port: Option<u16>,
    dscp: Option<u8>,
    #[serde(default)]
    pub(super) report: Vec<Rule>,
    #[serde(default)]
    pub(super) watch: Vec<Watch>,
}

/// Why a table is refused.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// Not TOML, or not a table of this form; the error names the line.
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
    /// A watch whose events cannot go to the list that it names.
    #[error("watch {name:?}: {problem}")]
    Watch {
        /// Its name.
        name: String,
        /// What is wrong and what to do.
        problem: &'static str,
    },
    /// More than 6 bits.
    #[error("dscp = {0}: write a number from 0 to 63")]
    Dscp(u8),
    /// Not a time to live that a first node can see.
    #[error(
        "first-ttl = {0}: write 64 if nodes report packets on arrival, 63 if they report them on \
         departure"
    )]
    FirstTtl(u8),
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
        if !(33..=FIRST_TTL).contains(&table.first_ttl) {
            return Err(TableError::FirstTtl(table.first_ttl));
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
                    "a report appends other data to its list: name another list",
                ));
            }
        }
        Ok(table)
    }

    /// Puts what it does not say itself before it.
    fn extend(&mut self, built_in: Self) -> Result<(), TableError> {
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

    pub(super) fn marks(&self) -> Marks {
        Marks {
            udp_port: self.udp_port,
            dscp: self.dscp,
        }
    }

    pub(super) fn places(&self) -> Places {
        Places::new(self.hop_from, self.first_ttl)
    }

    /// The lists that reports append to, with the names of these reports, and whether the entries are events.
    pub fn lists(&self) -> impl Iterator<Item = (u32, &str, bool)> {
        let lists = self.report.iter();
        lists.filter_map(|rule| Some((rule.list?, rule.name.as_str(), rule.data == Data::Event)))
    }

    /// The lists of its watches, with their names; the entries are events of flows.
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
            return Err("append has a list, and no other primitive has one");
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
            return Err("key-increment adds packets, and no other primitive does");
        }
        if self.primitive == To::Postcard && self.data == Data::Event {
            return Err("a postcard has 4 bytes of data, an event 18");
        }
        Ok(())
    }
}
