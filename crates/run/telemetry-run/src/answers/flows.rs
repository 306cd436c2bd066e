//! Flows in the events of lists: which met congestion, lost packets, were slow.

use std::collections::{BTreeMap, BTreeSet};

use super::super::plan::EntryKind;
use super::super::reader::TelemetryStore;
use super::super::shown;
use crate::api::answer::{TelemetryFlow, TelemetryFlows};
use crate::api::status::TelemetryEntry;

/// What the events of a flow say.
#[derive(Default)]
struct Events {
    count: u64,
    what: BTreeSet<&'static str>,
    nodes: BTreeSet<u32>,
    value_max: Option<u32>,
}

impl TelemetryStore {
    /// The flows in the events that lists still have, `number` of them at most: of all lists of events,
    /// or of one, at all nodes or at one.
    ///
    /// # Errors
    ///
    /// If there is no such list, or it has no events: what could be written instead.
    pub fn answer_flows(
        &mut self,
        list: Option<&str>,
        node: Option<u32>,
        number: usize,
    ) -> Result<TelemetryFlows, String> {
        let lists = match list {
            Some(name) => vec![self.find_list(name)?],
            None => {
                let lists = self.lists().iter().map(|list| (list.number, list.entries));
                lists
                    .filter(|(_, kind)| *kind != EntryKind::Bytes)
                    .collect()
            }
        };
        if let [(number, EntryKind::Bytes)] = lists[..] {
            return Err(format!(
                "the entries of list {number} are not events: `strata telemetry list STORE` says which \
                 lists have events"
            ));
        }
        let mut flows: BTreeMap<String, Events> = BTreeMap::new();
        let (mut events, mut without_flow, mut overwritten) = (0, 0, 0);
        for (list, kind) in lists {
            let mut cursor = self.cursor(list);
            overwritten += self.read(&mut cursor, |bytes| {
                let (flow, what, at, value) = match shown::entry(kind, bytes) {
                    TelemetryEntry::Node {
                        node,
                        value,
                        what,
                        flow,
                        ..
                    } => (flow, what, Some(node), value),
                    TelemetryEntry::Flow {
                        flow, value, what, ..
                    } => (Some(flow), what, None, Some(value)),
                    TelemetryEntry::Bytes { .. } => return,
                };
                if node.is_some() && at != node {
                    return;
                }
                events += 1;
                let Some(flow) = flow else {
                    without_flow += 1;
                    return;
                };
                let of_flow = flows.entry(flow).or_default();
                of_flow.count += 1;
                of_flow.what.insert(what);
                of_flow.nodes.extend(at);
                of_flow.value_max = of_flow.value_max.max(value);
            });
        }
        let flow = |(flow, of_flow): (String, Events)| TelemetryFlow {
            flow,
            events: of_flow.count,
            what: of_flow.what.into_iter().map(str::to_owned).collect(),
            nodes: of_flow.nodes.into_iter().collect(),
            value_max: of_flow.value_max,
        };
        let mut flows: Vec<TelemetryFlow> = flows.into_iter().map(flow).collect();
        flows.sort_by_key(|flow| std::cmp::Reverse(flow.events));
        let in_all = flows.len() as u64;
        flows.truncate(number);
        Ok(TelemetryFlows {
            flows,
            in_all,
            events,
            without_flow,
            overwritten,
        })
    }
}
