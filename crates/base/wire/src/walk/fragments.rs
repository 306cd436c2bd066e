//! Later fragments get the ports of their packet's first one.

use crate::walk::headers::{Fragment, Headers};
use crate::words::flow::{FlowHasher, FlowKey, mix64};

/// Entries of the table: 24 bytes each, 96 KiB.
const ENTRIES: usize = 1 << 12;
/// How long a packet's fragments may take to arrive (RFC 8200 §4.5: 60 s).
const LIFETIME_NS: u64 = 60_000_000_000;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    identity: u64,
    ts_ns: u64,
    source_port: u16,
    destination_port: u16,
}

/// A bounded, direct-mapped table of first fragments: a newer one replaces an older one in its
/// slot. A later fragment that arrives before its first, or whose first was replaced, keeps a flow
/// key without ports.
#[derive(Debug)]
pub struct FragmentTable {
    entries: Vec<Entry>,
}

impl Default for FragmentTable {
    fn default() -> Self {
        Self {
            entries: vec![Entry::default(); ENTRIES],
        }
    }
}

impl FragmentTable {
    /// A fragment belongs to a first one that arrived less than this before it, ns.
    pub const LIFETIME_NS: u64 = LIFETIME_NS;

    /// Stores the ports of a first fragment; gives them to a later one.
    #[inline]
    pub fn resolve(
        &mut self,
        headers: &mut Headers,
        fragment: Fragment,
        hasher: &FlowHasher,
        ts_ns: u64,
    ) {
        let (mut source, mut destination) = headers.endpoints();
        let Some(key) = headers.key else {
            return;
        };
        let ports = (source.port, destination.port);
        (source.port, destination.port) = (0, 0);
        let (bare, direction) = FlowKey::new(key.family, key.protocol, source, destination);
        // The sender chooses identifications, so each direction has its own.
        let identity = hasher.flow(&bare)
            ^ mix64(u64::from(fragment.identification) << 1 | u64::from(direction));
        #[allow(clippy::cast_possible_truncation)]
        let entry = &mut self.entries[identity as usize % ENTRIES];
        if fragment.first {
            *entry = Entry {
                identity,
                ts_ns,
                source_port: ports.0,
                destination_port: ports.1,
            };
        } else if entry.identity == identity && ts_ns.abs_diff(entry.ts_ns) < LIFETIME_NS {
            source.port = entry.source_port;
            destination.port = entry.destination_port;
            let (with_ports, low_to_high) =
                FlowKey::new(key.family, key.protocol, source, destination);
            headers.key = Some(with_ports);
            headers.low_to_high = low_to_high;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::flow::{AddressFamily, Endpoint};

    fn fragment(from: u128, to: u128, port: u16, id: u32, first: bool) -> (Headers, Fragment) {
        let end = |address, port| Endpoint { address, port };
        let (source, destination) = if first { (port, 53) } else { (0, 0) };
        let (key, low_to_high) = FlowKey::new(
            AddressFamily::Ipv4,
            17,
            end(from, source),
            end(to, destination),
        );
        let headers = Headers {
            key: Some(key),
            low_to_high,
            ..Headers::default()
        };
        let fragment = Fragment {
            identification: id,
            first,
        };
        (headers, fragment)
    }

    #[test]
    fn later_fragments_join_the_flow_of_their_first() {
        let hasher = FlowHasher::new([1, 2]);
        let mut table = FragmentTable::default();
        let mut resolve = |(mut headers, fragment): (Headers, Fragment), ts_ns| {
            table.resolve(&mut headers, fragment, &hasher, ts_ns);
            headers
        };
        let first = resolve(fragment(9, 5, 4000, 7, true), 0);
        let later = resolve(fragment(9, 5, 0, 7, false), 10);
        assert_eq!(later.key, first.key);
        assert_eq!(later.low_to_high, first.low_to_high);
        let other_id = resolve(fragment(9, 5, 0, 8, false), 10);
        assert_ne!(other_id.key, first.key);
        let other_direction = resolve(fragment(5, 9, 0, 7, false), 10);
        assert_ne!(other_direction.key, first.key);
        let too_late = resolve(fragment(9, 5, 0, 7, false), LIFETIME_NS + 1);
        assert_ne!(too_late.key, first.key);
    }
}
