//! Flows of a log that a user names, and when they had packets.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::ControlFlow;

use strata_archive::ArchiveError;
use strata_archive::parts::community_id_seeded;
use strata_capture::PacketRef;
use strata_filter::{CompileError, Filter};
use strata_pipeline::FlowFinder;
use strata_query::{ByLink, Find, packets_until};
use strata_store::{Damage, Log};
use strata_wire::{AddressFamily, FlowKey, LinkType, TunnelKey, count_of, grouped};

use crate::flows::{address, labelled_key};

/// More flows are not labelled at once: each takes some 200 bytes of memory.
const FLOWS_MAX: usize = 1 << 20;
/// Up to this number of flows, their packets are looked for by address; with more, the whole log is
/// read.
const NARROWED_MAX: usize = 32;
/// After a pause as long as this, the same addresses and ports are another flow.
const PAUSE_NS: u64 = 300 * 1_000_000_000;

/// Which flows are meant: those with a packet that is found, and with one of the IDs.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// The times of packets, and a filter that says where they may be.
    pub find: Find<'a>,
    /// Community IDs of flows; all flows, if empty.
    pub community_ids: &'a [String],
    /// The seed of these.
    pub community_id_seed: u16,
}

/// Why flows of a log cannot be found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChoiceError {
    /// They do not fit into memory.
    #[error(
        "more than {} flows match: narrow the filter or the times",
        grouped(FLOWS_MAX as u64)
    )]
    Many,
    /// The filter means nothing on any link of the log.
    #[error("the filter cannot be applied to any interface of the log: {0}")]
    Misfit(CompileError),
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] ArchiveError),
    /// Packets of the flows may be among what is damaged.
    #[error(
        "{} in the log: no flow was labelled, since some of its packets may be missing",
        count_of(.0.len() as u64, "damaged place")
    )]
    Damaged(Vec<Damage>),
}

/// A time in which a flow has packets.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Of its first packet, ns since 1970.
    pub from_ns: u64,
    /// Of its last packet, ns since 1970.
    pub to_ns: u64,
    /// Whether its first packet goes from the low to the high endpoint.
    pub low_to_high: bool,
}

impl Span {
    fn meets(&self, other: &Self) -> bool {
        self.from_ns <= other.to_ns && other.from_ns <= self.to_ns
    }
}

/// Flows, and when they had packets.
#[derive(Debug, Default)]
pub struct Flows {
    /// By key; of each at least one.
    pub spans: HashMap<FlowKey, Vec<Span>>,
    /// Packets that no label can name: without IP addresses, or a time.
    pub unnamed: u64,
}

impl Flows {
    /// Adds a packet of a flow that is known, or may be added.
    fn put(spans: &mut Vec<Span>, ts_ns: u64, low_to_high: bool) {
        let near = |span: &&mut Span| {
            let since = ts_ns.saturating_sub(span.to_ns);
            since.max(span.from_ns.saturating_sub(ts_ns)) <= PAUSE_NS
        };
        // The latest is the last, but for packets that come late.
        match spans.iter_mut().rev().find(near) {
            Some(span) => {
                if ts_ns < span.from_ns {
                    (span.from_ns, span.low_to_high) = (ts_ns, low_to_high);
                }
                span.to_ns = span.to_ns.max(ts_ns);
            }
            None => spans.push(Span {
                from_ns: ts_ns,
                to_ns: ts_ns,
                low_to_high,
            }),
        }
    }

    /// Joins what late packets have brought together.
    fn join(&mut self) {
        for spans in self.spans.values_mut() {
            spans.sort_by_key(|span| span.from_ns);
            spans.dedup_by(|next, last| {
                let is_one = next.from_ns.saturating_sub(last.to_ns) <= PAUSE_NS;
                if is_one {
                    last.to_ns = last.to_ns.max(next.to_ns);
                }
                is_one
            });
        }
    }
}

/// Flows with packets that match, and when these were. `by_link` is what packets have to match.
///
/// # Errors
///
/// If there are too many, or the log cannot be read or is damaged.
pub fn matching(
    log: &Log,
    choice: &Choice<'_>,
    by_link: Option<ByLink>,
) -> Result<Flows, ChoiceError> {
    let mut flows = Flows::default();
    // Whether a flow has one of the IDs.
    let mut known: HashMap<FlowKey, bool> = HashMap::new();
    let has_id = |key: FlowKey, known: &mut HashMap<FlowKey, bool>| {
        if choice.community_ids.is_empty() {
            return true;
        }
        if known.len() >= FLOWS_MAX {
            known.clear();
        }
        *known.entry(key).or_insert_with(|| {
            let id = community_id_seeded(&key, choice.community_id_seed);
            choice.community_ids.contains(&id)
        })
    };
    each_packet(log, &choice.find, by_link, |found, ts_ns, low_to_high| {
        let Some(key) = found else {
            flows.unnamed += u64::from(choice.community_ids.is_empty());
            return Ok(());
        };
        if !has_id(key, &mut known) {
            return Ok(());
        }
        let is_full = flows.spans.len() >= FLOWS_MAX;
        match flows.spans.entry(key) {
            Entry::Occupied(mut spans) => Flows::put(spans.get_mut(), ts_ns, low_to_high),
            Entry::Vacant(_) if is_full => return Err(ChoiceError::Many),
            Entry::Vacant(vacant) => {
                Flows::put(vacant.insert(Vec::new()), ts_ns, low_to_high);
            }
        }
        Ok(())
    })?;
    flows.join();
    Ok(flows)
}

/// The same flows with all of their packets.
///
/// # Errors
///
/// If the log cannot be read, or is damaged.
pub fn whole(log: &Log, matching: &Flows) -> Result<Flows, ChoiceError> {
    let spans = matching.spans.keys().map(|key| (*key, Vec::new()));
    let mut flows = Flows {
        spans: spans.collect(),
        unnamed: 0,
    };
    let narrowing = narrowing(matching.spans.keys());
    let find = Find {
        filter: narrowing.as_ref(),
        ..Find::default()
    };
    each_packet(log, &find, None, |found, ts_ns, low_to_high| {
        if let Some(spans) = found.and_then(|key| flows.spans.get_mut(&key)) {
            Flows::put(spans, ts_ns, low_to_high);
        }
        Ok(())
    })?;
    flows.join();
    Ok(flows)
}

/// The spans of whole flows in which packets match, in the order of their times.
#[must_use]
pub fn labelled(matching: &Flows, whole: &Flows) -> Vec<(FlowKey, Span)> {
    let flows = whole.spans.iter().flat_map(|(key, spans)| {
        let matching = &matching.spans[key];
        let meets = |span: &&Span| matching.iter().any(|matched| matched.meets(span));
        spans.iter().filter(meets).map(move |span| (*key, *span))
    });
    let mut flows: Vec<(FlowKey, Span)> = flows.collect();
    flows.sort_by_key(|(key, span)| (span.from_ns, span.to_ns, key.low, key.high));
    flows
}

/// A filter that says where packets of a few flows may be: later fragments too, and what is in
/// tunnels, so without ports.
fn narrowing<'a>(flows: impl ExactSizeIterator<Item = &'a FlowKey>) -> Option<Filter> {
    if flows.len() > NARROWED_MAX {
        return None;
    }
    let hosts = flows.map(|key| {
        let [low, high] = [key.low, key.high].map(|end| address(key.family, end));
        format!("(host {low} and host {high})")
    });
    let hosts: Vec<String> = hosts.collect();
    Filter::parse(&hosts.join(" or ")).ok()
}

/// Calls `each` for packets of a log: its flow, if a label can name it, its time, and whether it goes
/// from the low to the high endpoint.
fn each_packet(
    log: &Log,
    find: &Find<'_>,
    mut by_link: Option<ByLink>,
    mut each: impl FnMut(Option<FlowKey>, u64, bool) -> Result<(), ChoiceError>,
) -> Result<(), ChoiceError> {
    // As training finds them.
    let mut finder = FlowFinder::new([0, 0], TunnelKey::Inner);
    let mut one = |link: LinkType, packet: &PacketRef<'_>| {
        let (headers, facts) = finder.find(link, packet);
        let key = labelled_key(&headers)
            .filter(|key| packet.has_timestamp && key.family != AddressFamily::Mac);
        let low_to_high = facts.is_none_or(|facts| facts.low_to_high);
        each(key, packet.ts_ns, low_to_high)
    };
    let read = packets_until(log, find, by_link.as_mut(), |logged, packet| {
        one(logged.link, packet).map(ControlFlow::Continue)
    })?;
    if let Some(problem) = by_link.as_ref().and_then(ByLink::misfit) {
        return Err(ChoiceError::Misfit(problem.clone()));
    }
    match read? {
        damage if damage.is_empty() => Ok(()),
        damage => Err(ChoiceError::Damaged(damage)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use strata_wire::Endpoint;

    use super::*;

    fn flow(n: u8) -> FlowKey {
        let end = |last: u8, port| Endpoint {
            address: u32::from_be_bytes([10, 0, n, last]).into(),
            port,
        };
        FlowKey::new(AddressFamily::Ipv4, 6, end(1, 80), end(2, 50_000)).0
    }

    /// A few flows are looked for by an index of addresses: also where they have no ports.
    #[test]
    fn a_few_flows_are_looked_for_by_their_addresses() {
        let hosts = |texts: &[&str]| -> Vec<IpAddr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let one = narrowing([flow(1)].iter()).unwrap();
        assert_eq!(
            one.host_bounds(),
            [hosts(&["10.0.1.1"]), hosts(&["10.0.1.2"])]
        );
        assert!(one.flow_bound().is_none());
        let flows: Vec<FlowKey> = (0..=32).map(flow).collect();
        let some = narrowing(flows[..32].iter()).unwrap();
        assert_eq!(some.host_bounds().iter().map(Vec::len).max(), Some(32));
        assert!(narrowing(flows.iter()).is_none());
    }
}
