//! Flows in the events of lists: which met congestion, lost packets, were slow.

use std::collections::{BTreeMap, BTreeSet};

use super::super::plan::EntryKind;
use super::super::reader::TelemetryStore;
use super::super::shown;
use crate::api::answer::{TelemetryEvents, TelemetryFlow, TelemetryFlows, TelemetryQueue};
use crate::api::status::TelemetryEntry;

/// What the events of a flow say.
#[derive(Default)]
struct Events {
    count: u64,
    what: BTreeSet<&'static str>,
    queues: BTreeSet<TelemetryQueue>,
    value_max: Option<u32>,
}

impl TelemetryStore {
    /// The flows in the events that lists still have, `number` of them at most.
    ///
    /// # Errors
    ///
    /// If there is no such list, or it has no events: what could be written instead.
    pub fn answer_flows(
        &mut self,
        of: TelemetryEvents<'_>,
        number: usize,
    ) -> Result<TelemetryFlows, String> {
        let lists = match of.list {
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
                        port,
                        queue,
                        value,
                        what,
                        flow,
                        ..
                    } => (
                        flow,
                        what,
                        Some(TelemetryQueue { node, port, queue }),
                        value,
                    ),
                    TelemetryEntry::Flow {
                        flow, value, what, ..
                    } => (Some(flow), what, None, Some(value)),
                    TelemetryEntry::Bytes { .. } => return,
                };
                let is_wanted = match at {
                    Some(at) => {
                        of.node.is_none_or(|node| node == at.node)
                            && of.port.is_none_or(|port| Some(port) == at.port)
                            && of.queue.is_none_or(|queue| Some(queue) == at.queue)
                    }
                    None => of.node.is_none() && of.port.is_none() && of.queue.is_none(),
                };
                if !is_wanted {
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
                of_flow.queues.extend(at);
                of_flow.value_max = of_flow.value_max.max(value);
            });
        }
        let flow = |(flow, of_flow): (String, Events)| TelemetryFlow {
            flow,
            events: of_flow.count,
            what: of_flow.what.into_iter().map(str::to_owned).collect(),
            nodes: {
                let nodes: BTreeSet<u32> = of_flow.queues.iter().map(|at| at.node).collect();
                nodes.into_iter().collect()
            },
            queues: of_flow.queues.into_iter().collect(),
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
