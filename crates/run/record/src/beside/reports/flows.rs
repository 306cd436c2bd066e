//! What is reported of packets: bytes by host, the class of each flow, anomalous flows, and gaps and
//! retransmissions of TCP. No I/O: vectors in, reports out.

use std::collections::HashMap;
use std::mem;
use std::net::IpAddr;

use strata_dta::event::flow::{ANOMALIES, FLOW_EVENT_LEN_MAX, FlowEvent, FlowEventKind, LOSSES};
use strata_dta::key::{FiveTuple, Key};
use strata_dta::protocol::Report;
use strata_gpv::{Full, Key as FlowKey, Vector};
use strata_pipeline::NO_CLASS;
use strata_wire::ip_addr;

/// Flows of a generation; two generations are remembered. About 20 MB in all.
const FLOWS_MAX: usize = 65_536;
/// Hosts whose bytes are gathered before they are reported.
const HOSTS_MAX: usize = 4096;
/// The class of a flow is reported again so long after the last time, if packets come: other keys
/// may have taken its places.
const AGAIN_NS: u64 = 10_000_000_000;
/// Copies of a class.
const REDUNDANCY: u8 = 2;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;

/// Takes a report; whether there was room for it.
pub(super) type Out<'a> = dyn FnMut(&Report<'_>) -> bool + 'a;

/// What is known of a flow, of one direction.
#[derive(Clone, Copy, Debug)]
struct Flow {
    /// The class that was reported, and when by the packets' times.
    reported: Option<(u8, u64)>,
    /// The anomalous class that was reported.
    anomalous: Option<u8>,
    stream: Stream,
}

/// A flow of which nothing is known.
const UNKNOWN: Flow = Flow {
    reported: None,
    anomalous: None,
    stream: Stream {
        next: None,
        epoch: 0,
    },
};

/// How far a TCP stream has come.
#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The sequence number after the last one that was seen.
    next: Option<u32>,
    /// Before packets were lost between the worker and here, it means nothing.
    epoch: u32,
}

/// A segment.
#[derive(Clone, Copy, Debug)]
struct Segment {
    seq: u32,
    payload: u32,
    flags: u8,
}

/// Flows and hosts of a recording.
pub(super) struct Flows {
    /// By class, whether it is anomalous.
    anomalous: Vec<bool>,
    young: HashMap<FlowKey, Flow>,
    /// Those of the generation before, as far as no packet came since.
    old: HashMap<FlowKey, Flow>,
    hosts: HashMap<IpAddr, u64>,
    epoch: u32,
}

impl Flows {
    /// Nothing yet, of a model with these classes.
    pub(super) fn new(anomalous: Vec<bool>) -> Self {
        Self {
            anomalous,
            young: HashMap::new(),
            old: HashMap::new(),
            hosts: HashMap::new(),
            epoch: 0,
        }
    }

    /// Some packets were lost on their way here: a gap would be our own.
    pub(super) fn skip(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Takes packets of a flow in their order.
    pub(super) fn take(&mut self, vector: &Vector<'_, Full>, out: &mut Out<'_>) {
        let Some(tuple) = five_tuple(&vector.key) else {
            return;
        };
        let bytes = vector.tuples().map(|packet| u64::from(packet.size)).sum();
        self.add(tuple.source, bytes, out);
        let mut flow = self.flow(&vector.key);
        for (packet, time_ns) in vector.tuples().zip(vector.times_ns()) {
            self.class(&mut flow, &tuple, packet.class, time_ns, out);
            if tuple.protocol != 6 {
                continue;
            }
            let segment = Segment {
                seq: packet.tcp_seq,
                payload: u32::from(packet.payload_len),
                flags: packet.tcp_flags,
            };
            if let Some((kind, value)) = flow.stream.take(segment, self.epoch) {
                let flow = tuple;
                event(LOSSES, &FlowEvent { kind, value, flow }, out);
            }
        }
        self.young.insert(vector.key, flow);
    }

    /// Reports what was gathered of hosts.
    pub(super) fn flush(&mut self, out: &mut Out<'_>) {
        for (host, bytes) in self.hosts.drain() {
            out(&Report::KeyIncrement {
                redundancy: 1,
                key: Key::address(host).bytes(),
                counter: bytes,
            });
        }
    }

    fn add(&mut self, host: IpAddr, bytes: u64, out: &mut Out<'_>) {
        if self.hosts.len() >= HOSTS_MAX && !self.hosts.contains_key(&host) {
            self.flush(out);
        }
        let sum = self.hosts.entry(host).or_insert(0);
        *sum = sum.saturating_add(bytes);
    }

    /// What is known of a flow; there is room for it among the young ones then.
    fn flow(&mut self, key: &FlowKey) -> Flow {
        if let Some(flow) = self.young.get(key) {
            return *flow;
        }
        if self.young.len() >= FLOWS_MAX {
            self.old = mem::take(&mut self.young);
        }
        self.old.remove(key).unwrap_or(UNKNOWN)
    }

    fn class(&self, flow: &mut Flow, tuple: &FiveTuple, class: u8, now_ns: u64, out: &mut Out<'_>) {
        if class == NO_CLASS {
            return;
        }
        let is_due = flow.reported.is_none_or(|(reported, at_ns)| {
            reported != class || now_ns.saturating_sub(at_ns) >= AGAIN_NS
        });
        if is_due {
            let is_taken = out(&Report::KeyWrite {
                redundancy: REDUNDANCY,
                key: Key::flow(tuple).bytes(),
                data: &u32::from(class).to_be_bytes(),
            });
            if is_taken {
                flow.reported = Some((class, now_ns));
            }
        }
        let is_anomalous = self.anomalous.get(usize::from(class)) == Some(&true);
        if is_anomalous && flow.anomalous != Some(class) {
            let anomaly = FlowEvent {
                kind: FlowEventKind::Anomalous,
                value: class.into(),
                flow: *tuple,
            };
            if event(ANOMALIES, &anomaly, out) {
                flow.anomalous = Some(class);
            }
        }
    }
}

fn five_tuple(key: &FlowKey) -> Option<FiveTuple> {
    let (source, destination) = (key.source(), key.destination());
    Some(FiveTuple {
        source: ip_addr(key.family(), source.address)?,
        destination: ip_addr(key.family(), destination.address)?,
        source_port: source.port,
        destination_port: destination.port,
        protocol: key.protocol(),
    })
}

fn event(list: u32, event: &FlowEvent, out: &mut Out<'_>) -> bool {
    let mut data = Vec::with_capacity(FLOW_EVENT_LEN_MAX);
    event.emit(&mut data);
    out(&Report::Append { list, data: &data })
}

impl Stream {
    /// Takes the next segment: a gap before it, or what of it came before, in bytes. By the rules of
    /// Wireshark's `tcp.analysis`: gaps are its lost segments, retransmissions are those that it
    /// calls so and those that are out of order. (It also calls a segment so that was recorded after its
    /// own acknowledgement.)
    fn take(&mut self, segment: Segment, epoch: u32) -> Option<(FlowEventKind, u32)> {
        let Segment {
            seq,
            payload,
            flags,
        } = segment;
        // Its number may be anything.
        if flags & RST != 0 {
            return None;
        }
        let takes_a_number = flags & (SYN | FIN) != 0;
        let end = seq
            .wrapping_add(payload)
            .wrapping_add(u32::from(takes_a_number));
        let known = self.next.filter(|_| self.epoch == epoch);
        self.epoch = epoch;
        let Some(next) = known else {
            self.next = Some(end);
            return None;
        };
        // Another connection between the same ports.
        if flags & SYN != 0 && end != next {
            self.next = Some(end);
            return None;
        }
        let ahead = seq.wrapping_sub(next).cast_signed();
        if end.wrapping_sub(next).cast_signed() > 0 {
            self.next = Some(end);
        }
        if ahead > 0 {
            return Some((FlowEventKind::Gap, ahead.unsigned_abs()));
        }
        if ahead == 0 || payload == 0 && !takes_a_number {
            return None;
        }
        let is_keepalive = ahead == -1 && payload <= 1 && !takes_a_number;
        // After a keepalive with a byte, that byte is sent with those that follow.
        let is_after_keepalive = ahead == -1 && payload > 1;
        if is_keepalive || is_after_keepalive {
            return None;
        }
        let again = end.wrapping_sub(seq).min(ahead.unsigned_abs());
        Some((FlowEventKind::Retransmission, again))
    }
}

#[cfg(test)]
#[path = "flows_tests.rs"]
mod tests;
