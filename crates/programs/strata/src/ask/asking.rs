//! Packets into vectors, and vectors into queries.

use std::fmt;
use std::slice::from_ref;

use anyhow::Result;
use strata_capture::PacketRef;
use strata_filter::Filter;
use strata_gpv::agent::Record;
use strata_gpv::marple::{Answer, Flows, Query};
use strata_gpv::{Cache, Full, Grouped, Packet, Parameters, Seen, Vector};
use strata_pipeline::{FlowFinder, wire_bytes};
use strata_query::ByLink;
use strata_terminal::selection::say_no_match;
use strata_terminal::text::{count_of, time};
use strata_wire::dissect::protocol;
use strata_wire::{AddressFamily, Headers, LinkType, TunnelKey, exact, grouped};
use tracing::{info, warn};

use super::questions::{self, Compiled, Lack, Shape};

/// Packets that go through the cache together.
const BATCH: usize = 256;

/// A query, at work.
pub(super) struct Asked {
    pub(super) name: String,
    pub(super) text: String,
    pub(super) query: Query,
}

/// Queries over the same packets.
pub(super) struct Asking {
    pub(super) queries: Vec<Asked>,
    flows: Flows,
    cache: Cache<Full>,
    finder: FlowFinder,
    filter: Option<ByLink>,
    batch: Vec<Packet>,
    /// Whether a flow is one of an interface: queries name `ingress`.
    by_ingress: bool,
    needs: Needs,
    skips_incomplete: bool,
    /// Packets that are still wanted; `None` for all that come.
    left: Option<u64>,
    pub(super) counted: Counted,
    /// Remarks on the answer in addition to counts: its sampling.
    pub(super) remarks: Vec<String>,
    /// What was lost before the queries saw it.
    pub(super) incomplete: Vec<String>,
}

/// What became of packets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    /// Matched by the filter.
    pub(super) packets: u64,
    /// Not matched.
    filtered: u64,
    /// Without an IP header that can be read.
    not_ip: u64,
    /// Skipped, since bytes that a query needs are missing.
    incomplete: u64,
    /// Without a time.
    no_time: u64,
}

/// Headers of which a query reads fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Needs {
    ports: bool,
    tcp: bool,
    payload: bool,
}

/// A packet of which bytes that a query needs are missing.
#[derive(Debug)]
pub(super) struct Incomplete(String);

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Incomplete {}

const PORTS: [&str; 2] = ["srcport", "dstport"];
const TCP: [&str; 4] = ["tcpseq", "tcpack", "tcpflags", "tcpwindow"];
const PAYLOAD: [&str; 1] = ["payload_len"];

impl Asking {
    pub(super) fn new(
        compiled: Vec<Compiled>,
        skips_incomplete: bool,
        count: Option<u64>,
    ) -> Result<Self> {
        let seed = strata_gpv_run::seed()?;
        let fields: Vec<&str> = compiled.iter().flat_map(|c| c.program.fields()).collect();
        let any = |names: &[&str]| fields.iter().any(|field| names.contains(field));
        let needs = Needs {
            ports: any(&PORTS),
            tcp: any(&TCP),
            payload: any(&PAYLOAD),
        };
        let by_ingress = any(&["ingress"]);
        let queries = compiled.into_iter().map(|compiled| {
            let Compiled {
                name,
                text,
                program,
                limits,
                params: _,
            } = compiled;
            let query = Query::new::<Full>(program, limits)?;
            Ok(Asked { name, text, query })
        });
        Ok(Self {
            queries: queries.collect::<Result<_>>()?,
            flows: Flows::new(),
            cache: Cache::new(Parameters::PAPER, seed)?,
            finder: FlowFinder::new([seed, !seed], TunnelKey::Inner),
            filter: None,
            batch: Vec::with_capacity(BATCH),
            by_ingress,
            needs,
            skips_incomplete,
            left: count,
            counted: Counted::default(),
            remarks: Vec::new(),
            incomplete: Vec::new(),
        })
    }

    /// Only packets that match this are queried.
    pub(super) fn filter(&mut self, filter: Option<Filter>) {
        self.filter = filter.map(|filter| ByLink::new(filter, say_no_match));
    }

    /// Refuses queries that need what packets of this source do not have.
    pub(super) fn check(&self, lacks: &[Lack]) -> Result<()> {
        let queries = self.queries.iter();
        questions::check(
            queries.map(|asked| {
                (
                    asked.name.as_str(),
                    asked.text.as_str(),
                    asked.query.program(),
                )
            }),
            lacks,
        )
    }

    /// Whether as many packets as were wanted have been taken.
    pub(super) fn is_done(&self) -> bool {
        self.left == Some(0)
    }

    /// Takes a packet of this class, if the filter matches it.
    ///
    /// Fails if bytes that a query needs are missing.
    pub(super) fn packet(
        &mut self,
        link: LinkType,
        packet: &PacketRef<'_>,
        class: u8,
    ) -> Result<(), Incomplete> {
        if self.is_done() {
            return Ok(());
        }
        if let Some(filter) = &mut self.filter
            && !filter.matches(link, packet.data, packet.wire_len)
        {
            self.counted.filtered += 1;
            return Ok(());
        }
        self.left = self.left.map(|left| left - 1);
        self.counted.packets += 1;
        self.counted.no_time += u64::from(!packet.has_timestamp);
        let seen = Seen {
            ts_ns: packet.ts_ns,
            wire_len: exact(wire_bytes(packet)),
            ingress: if self.by_ingress { packet.interface } else { 0 },
        };
        let features = match self.finder.find_plain(link, packet) {
            Some((plain, _)) => Some(Packet::plain(&plain, packet.data, seen)),
            None => {
                let (headers, _) = self.finder.find(link, packet);
                if let Some(problem) = self.incomplete(&headers, packet) {
                    if !self.skips_incomplete {
                        return Err(problem);
                    }
                    self.counted.incomplete += 1;
                    return Ok(());
                }
                Packet::read(&headers, packet.data, seen)
            }
        };
        match features.filter(|features| features.key.family() != AddressFamily::Mac) {
            None => self.counted.not_ip += 1,
            Some(features) => {
                self.batch.push(Packet { class, ..features });
                if self.batch.len() == BATCH {
                    self.push();
                }
            }
        }
        Ok(())
    }

    /// What is missing of a packet that some query needs.
    fn incomplete(&self, headers: &Headers, packet: &PacketRef<'_>) -> Option<Incomplete> {
        let missing = missing(headers, packet)?;
        let is_needed = missing.ports && self.needs.ports
            || missing.tcp && self.needs.tcp
            || missing.payload && self.needs.payload;
        if !is_needed {
            return None;
        }
        let lacks = |field: &&str| {
            missing.ports && PORTS.contains(field)
                || missing.tcp && TCP.contains(field)
                || missing.payload && PAYLOAD.contains(field)
        };
        let mut queries = self.queries.iter();
        let (name, field) = queries.find_map(|asked| {
            let fields = asked.query.program().fields();
            Some((&asked.name, fields.into_iter().find(|field| lacks(field))?))
        })?;
        Some(Incomplete(format!(
            "{name} needs {field}, but packet {} ({}) has only {} of its {} bytes, without the \
             whole transport header: --skip-incomplete skips incomplete packets",
            grouped(self.counted.packets),
            time(packet.ts_ns),
            grouped(packet.data.len() as u64),
            grouped(wire_bytes(packet)),
        )))
    }

    /// Takes vectors from elsewhere.
    pub(super) fn vectors(&mut self, vectors: &[Vector<'_, Full>]) {
        let packets: usize = vectors.iter().map(Grouped::count).sum();
        let packets = packets as u64;
        self.counted.packets += packets;
        self.left = self.left.map(|left| left.saturating_sub(packets));
        self.flows.ask(0, vectors, &mut at_work(&mut self.queries));
    }

    /// Takes packets of a flow that were put together of vectors of this switch.
    pub(super) fn record(&mut self, switch: u32, record: &Record<'_, Full>) {
        let packets = record.count() as u64;
        self.counted.packets = self.counted.packets.saturating_add(packets);
        self.left = self.left.map(|left| left.saturating_sub(packets));
        self.flows
            .ask(switch, from_ref(record), &mut at_work(&mut self.queries));
    }

    fn push(&mut self) {
        let (flows, mut queries) = (&mut self.flows, at_work(&mut self.queries));
        let mut ask = |vector: &Vector<'_, Full>| flows.ask(0, from_ref(vector), &mut queries);
        self.cache.push(&self.batch, &mut ask);
        self.batch.clear();
    }

    /// Brings every packet so far before the queries.
    pub(super) fn flush(&mut self) {
        self.push();
        let (flows, mut queries) = (&mut self.flows, at_work(&mut self.queries));
        let mut ask = |vector: &Vector<'_, Full>| flows.ask(0, from_ref(vector), &mut queries);
        self.cache.flush(&mut ask);
    }

    /// The answers so far, in the order of the queries, with their texts and remarks.
    pub(super) fn answers(&mut self) -> Vec<(String, Vec<String>, Answer)> {
        let remarks = &self.remarks;
        let answers = self.queries.iter_mut();
        let answer = |asked: &mut Asked| {
            let answer = asked.query.answer();
            (asked.text.clone(), remarks.clone(), answer)
        };
        answers.map(answer).collect()
    }

    /// What the answers look like.
    pub(super) fn shapes(&self) -> Vec<Shape> {
        let shape = |asked: &Asked| {
            let program = asked.query.program();
            Shape {
                name: asked.name.clone(),
                columns: program.names().to_vec(),
                kinds: program.kinds(),
                is_of_packets: program.is_of_packets(),
            }
        };
        self.queries.iter().map(shape).collect()
    }

    /// Reports which packets were queried, and what the answers do not include. An error if that
    /// makes one incomplete.
    pub(super) fn report(&self) -> Result<()> {
        let Counted {
            packets,
            filtered,
            not_ip,
            incomplete,
            no_time,
        } = self.counted;
        let mut said = format!("{} processed", count_of(packets, "packet"));
        if filtered > 0 {
            said += &format!("; the filter does not match {}", grouped(filtered));
        }
        if not_ip > 0 {
            said += &format!("; {} without an IP header were left out", grouped(not_ip));
        }
        info!("{said}");
        if incomplete > 0 {
            warn!(
                "{} skipped: bytes that queries need were not captured or not kept",
                count_of(incomplete, "packet")
            );
        }
        if no_time > 0 {
            warn!(
                "{} without a timestamp: processed as if they had arrived in 1970",
                count_of(no_time, "packet")
            );
        }
        for Asked { name, query, .. } in &self.queries {
            let (counters, limits) = (query.counters(), query.limits());
            if counters.refused > 0 {
                warn!(
                    "{name}: the answer has {} groups, the most that --groups-max and --memory-max \
                     allow, and {} of other groups are missing from it",
                    grouped(limits.groups_max.into()),
                    count_of(counters.refused, "packet")
                );
            }
            if counters.cut > 0 {
                warn!(
                    "{name}: the answer has {} rows, the most that --rows-max and --memory-max \
                     allow, and {} more were left out",
                    grouped(limits.rows_max.into()),
                    grouped(counters.cut)
                );
            }
        }
        for remark in self.remarks.iter().chain(&self.incomplete) {
            warn!("{remark}");
        }
        if let Some(problem) = self.filter.as_ref().and_then(ByLink::misfit) {
            return Err(anyhow::anyhow!(
                "the filter cannot be applied to any interface of the input: {problem}"
            ));
        }
        let mut queries = self.queries.iter().map(|asked| asked.query.counters());
        let is_cut = queries.any(|counters| counters.refused + counters.cut > 0);
        match is_cut || !self.incomplete.is_empty() {
            true => Err(anyhow::anyhow!(
                "the answer is incomplete (see the warnings above)"
            )),
            false => Ok(()),
        }
    }
}

fn at_work(queries: &mut [Asked]) -> Vec<&mut Query> {
    queries.iter_mut().map(|asked| &mut asked.query).collect()
}

/// The headers of a packet that were cut when it was captured or kept.
fn missing(headers: &Headers, packet: &PacketRef<'_>) -> Option<Needs> {
    let is_whole = packet.data.len() as u64 >= u64::from(packet.wire_len);
    let is_later = headers.fragment.is_some_and(|fragment| !fragment.first);
    if is_whole || is_later {
        return None;
    }
    let taken = usize::from(headers.transport_len);
    let at = usize::try_from(headers.header_len)
        .ok()?
        .checked_sub(taken)?;
    let is_tcp = match headers.key?.protocol {
        protocol::TCP => true,
        protocol::UDP => false,
        _ => return None,
    };
    let fixed = if is_tcp { 20 } else { 8 };
    // With its options, as the header says.
    let whole = match packet.data.get(at + 12) {
        Some(offset) if is_tcp && taken > 12 => usize::from(offset >> 4) * 4,
        _ => fixed,
    };
    let missing = Needs {
        ports: taken < 4,
        tcp: is_tcp && taken < fixed,
        payload: taken < whole.max(fixed),
    };
    (missing != Needs::default()).then_some(missing)
}
