//! Events of nodes, with the flow that had them, as INT reports become entries of lists.
//!
//! ```text
//!  0 node u32      | egress interface u32 | queue u8
//!  9 kind u8       1 dropped, 2 congested, 3 other; plus 0x40 if a flow of IPv4 follows, 0x80 if one
//!                  of IPv6
//! 10 value u32     drop reason, queue occupancy or else latency
//! 14 time u32      low half of the ingress time
//! 18 flow          13 bytes, of IPv6 37, as its key (see `key`)
//! ```
//!
//! Big-endian; all ones mean not known. 18 bytes without a flow, 31 or 55 with one.

use crate::key::{FiveTuple, Key};

/// Bytes of an event without its flow.
pub const NODE_EVENT_LEN: usize = 18;
const IPV4: u8 = 0x40;
const IPV6: u8 = 0x80;

/// The kind of an event of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeEventKind {
    /// A packet was dropped; the value is the reason.
    Dropped,
    /// A packet met a congested queue; the value is its occupancy.
    Congested,
    /// Anything else.
    Other,
}

impl NodeEventKind {
    const ALL: [(Self, u8); 3] = [(Self::Dropped, 1), (Self::Congested, 2), (Self::Other, 3)];

    fn number(self) -> u8 {
        match self {
            Self::Dropped => 1,
            Self::Congested => 2,
            Self::Other => 3,
        }
    }
}

/// An event of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeEvent {
    /// The kind.
    pub kind: NodeEventKind,
    /// The node.
    pub node: u32,
    /// The port that the packet left by.
    pub port: Option<u32>,
    /// The queue.
    pub queue: Option<u8>,
    /// Its value: see the kind.
    pub value: Option<u32>,
    /// Low half of the packet's arrival time at the node, in the unit of the node.
    pub time: Option<u32>,
    /// The flow of the packet.
    pub flow: Option<FiveTuple>,
}

impl NodeEvent {
    /// Appends its bytes to `out`, without the flow if they would be longer than `len_max`.
    pub fn emit(&self, len_max: usize, out: &mut Vec<u8>) {
        let key = self.flow.map(|flow| Key::flow(&flow));
        let is_short = |key: &Key| NODE_EVENT_LEN.saturating_add(key.bytes().len()) <= len_max;
        let key = key.filter(is_short);
        let family = match (&key, self.flow) {
            (Some(_), Some(flow)) if flow.source.is_ipv4() => IPV4,
            (Some(_), _) => IPV6,
            (None, _) => 0,
        };
        let word = |word: Option<u32>| word.map_or([0xff; 4], u32::to_be_bytes);
        out.extend(self.node.to_be_bytes());
        out.extend(word(self.port));
        out.extend([
            self.queue.map_or(0xff, |queue| queue),
            self.kind.number() | family,
        ]);
        out.extend(word(self.value));
        out.extend(word(self.time));
        out.extend(key.iter().flat_map(Key::bytes));
    }

    /// The event of an entry, which may be padded; `None` if the entry is not an event.
    #[must_use]
    pub fn parse(entry: &[u8]) -> Option<Self> {
        let (event, flow) = entry.split_first_chunk::<NODE_EVENT_LEN>()?;
        let word = |at: usize| {
            event[at..]
                .first_chunk()
                .map(|word| u32::from_be_bytes(*word))
        };
        let known = |at: usize| word(at).filter(|&word| word != u32::MAX);
        let [.., queue, kind, _, _, _, _, _, _, _, _] = *event;
        let flow = match kind & (IPV4 | IPV6) {
            0 => None,
            IPV4 => Some(FiveTuple::parse(flow.get(..13)?)?),
            IPV6 => Some(FiveTuple::parse(flow.get(..37)?)?),
            _ => return None,
        };
        let mut kinds = NodeEventKind::ALL.into_iter();
        let (kind, _) = kinds.find(|(_, number)| *number == kind & !(IPV4 | IPV6))?;
        Some(Self {
            kind,
            node: word(0)?,
            port: known(4),
            queue: (queue != u8::MAX).then_some(queue),
            value: known(10),
            time: known(14),
            flow,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_as_it_was_written_with_its_flow_if_that_fits() {
        let flows = [
            (None, 18),
            (Some("10.0.0.1:1024 > 10.0.0.2:80 tcp"), 31),
            (Some("[2001:db8::1]:5 > [2001:db8::2]:6 tcp"), 55),
        ];
        for (flow, len) in flows {
            for (kind, number) in NodeEventKind::ALL {
                let event = NodeEvent {
                    kind,
                    node: 0x0a0b_0c0d,
                    port: Some(3),
                    queue: None,
                    value: Some(4),
                    time: None,
                    flow: flow.map(|flow| flow.parse().unwrap()),
                };
                let mut bytes = Vec::new();
                event.emit(55, &mut bytes);
                assert_eq!((bytes.len(), bytes[9] & 0x3f), (len, number));
                assert_eq!(bytes[..9], [10, 11, 12, 13, 0, 0, 0, 3, 0xff]);
                assert_eq!(bytes[10..18], [0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff]);
                assert_eq!(NodeEvent::parse(&bytes), Some(event));
                assert_eq!(NodeEvent::parse(&bytes[..len - 1]), None);
                let mut short = Vec::new();
                event.emit(len - usize::from(flow.is_some()), &mut short);
                assert_eq!(short.len(), 18);
                let without = NodeEvent {
                    flow: None,
                    ..event
                };
                bytes.resize(64, 0);
                short.resize(64, 0);
                assert_eq!(NodeEvent::parse(&bytes), Some(event));
                assert_eq!(NodeEvent::parse(&short), Some(without));
                bytes[9] = 4;
                assert_eq!(NodeEvent::parse(&bytes), None);
            }
        }
    }
}
