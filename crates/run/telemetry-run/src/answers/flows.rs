//! Flows in the events of lists: which met congestion, lost packets, were slow.

use std::collections::{BTreeSet, HashMap};

use strata_dta::event::flow::FlowEvent;
use strata_dta::event::node::NodeEvent;
use strata_dta::key::FiveTuple;

use super::super::shown;
use crate::api::answer::{TelemetryEvents, TelemetryFlow, TelemetryFlows, TelemetryQueue};
use crate::store::plan::EntryKind;
use crate::store::reader::TelemetryStore;

/// Flows that are told apart; events of further ones are counted. Memory: some 300 bytes each.
const FLOWS_MAX: usize = 100_000;

/// What an entry of a list says.
struct Event {
    flow: Option<FiveTuple>,
    what: &'static str,
    at: Option<TelemetryQueue>,
    value: Option<u32>,
}

impl Event {
    fn is_at(&self, of: &TelemetryEvents<'_>) -> bool {
        match self.at {
            Some(at) => {
                of.node.is_none_or(|node| node == at.node)
                    && of.port.is_none_or(|port| Some(port) == at.port)
                    && of.queue.is_none_or(|queue| Some(queue) == at.queue)
            }
            None => of.node.is_none() && of.port.is_none() && of.queue.is_none(),
        }
    }
}

/// The event of an entry; `None` if it is none.
fn event(kind: EntryKind, bytes: &[u8]) -> Option<Event> {
    match kind {
        EntryKind::NodeEvent => NodeEvent::parse(bytes).map(|event| Event {
            flow: event.flow,
            what: shown::node_event(event.kind),
            at: Some(TelemetryQueue {
                node: event.node,
                port: event.port,
                queue: event.queue,
            }),
            value: event.value,
        }),
        EntryKind::FlowEvent => FlowEvent::parse(bytes).map(|event| Event {
            flow: Some(event.flow),
            what: shown::flow_event(event.kind),
            at: None,
            value: Some(event.value),
        }),
        EntryKind::Bytes => None,
    }
}

/// What the events of a flow say.
#[derive(Default)]
struct Events {
    count: u64,
    what: BTreeSet<&'static str>,
    queues: BTreeSet<TelemetryQueue>,
    value_max: Option<u32>,
}

impl TelemetryStore {
    /// At most `number` flows of the events that lists still have.
    ///
    /// # Errors
    ///
    /// If there is no such list, or it has no events; the text says what can be written instead.
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
                "the entries of list {number} are not events: `strata telemetry list STORE` shows \
                 the lists that have events"
            ));
        }
        self.tidy();
        let mut flows: HashMap<FiveTuple, Events> = HashMap::new();
        let (mut events, mut overwritten) = (0, 0);
        let (mut without_flow, mut of_further_flows, mut not_events) = (0, 0, 0);
        for (list, kind) in lists {
            let mut cursor = self.cursor(list);
            overwritten += self.read(&mut cursor, |bytes| {
                let Some(event) = event(kind, bytes) else {
                    not_events += 1;
                    return;
                };
                if !event.is_at(&of) {
                    return;
                }
                let Event {
                    flow,
                    what,
                    at,
                    value,
                } = event;
                events += 1;
                let Some(flow) = flow else {
                    without_flow += 1;
                    return;
                };
                if flows.len() >= FLOWS_MAX && !flows.contains_key(&flow) {
                    of_further_flows += 1;
                    return;
                }
                let of_flow = flows.entry(flow).or_default();
                of_flow.count += 1;
                of_flow.what.insert(what);
                of_flow.queues.extend(at);
                of_flow.value_max = of_flow.value_max.max(value);
            });
            self.tidy();
        }
        let flow = |(flow, of_flow): (FiveTuple, Events)| TelemetryFlow {
            flow: flow.to_string(),
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
        flows.sort_by(|a, b| b.events.cmp(&a.events).then_with(|| a.flow.cmp(&b.flow)));
        let in_all = flows.len() as u64;
        flows.truncate(number);
        Ok(TelemetryFlows {
            flows,
            in_all,
            events,
            without_flow,
            of_further_flows,
            not_events,
            overwritten,
        })
    }
}
