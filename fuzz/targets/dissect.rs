//! Any bytes as a packet of any link type.
//!
//! Input: link type (an index into `LINKS`), where to cut (two bytes), packet.
#![no_main]

use libfuzzer_sys::fuzz_target;
use strata_anonymize::{Anonymizer, Key};
use strata_fuzz::{Bounded, Chooser, LINKS};
use strata_sketch::PacketFacts;
use strata_wire::dissect::{Headers, dissect};
use strata_wire::sighting::{Differing, same_bytes};
use strata_wire::{AddressFamily, FlowHasher, LinkType, TunnelKey};

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

fuzz_target!(|bytes: &[u8]| {
    let mut choose = Chooser::new(bytes);
    let link = LINKS[usize::from(choose.u8()) % LINKS.len()];
    let cut = usize::from(choose.u16());
    let packet = choose.rest();
    let inner = dissect(link, packet, TunnelKey::Inner);
    let outer = dissect(link, packet, TunnelKey::Outer);
    for (tunnel_key, headers) in [(TunnelKey::Inner, inner), (TunnelKey::Outer, outer)] {
        assert_eq!(headers, dissect(link, packet, tunnel_key));
        makes_sense(&headers, packet);
        cuts_agree(link, packet, cut, tunnel_key, &headers);
    }
    // Whose flow it is does not change where the headers are.
    assert_eq!(inner.header_len, outer.header_len);
    assert_eq!(inner.transport_len, outer.transport_len);
    assert_eq!(
        (inner.networks, inner.incomplete),
        (outer.networks, outer.incomplete)
    );
    if inner.networks <= 1 {
        assert_eq!(inner, outer);
    }
    let mut same = Vec::new();
    let differing = Differing {
        macs: cut & 1 > 0,
        tags: cut & 2 > 0,
        ttl: cut & 4 > 0,
    };
    let (left_out, _) = same_bytes(link, packet, packet.len(), differing, &mut same);
    assert_eq!(left_out + same.len(), packet.len());
    let key = Key::parse(&[7; 32]).expect("32 bytes are a key");
    let mut anonymized = Vec::new();
    let _ = Anonymizer::new(&key).packet(link, packet, &mut anonymized);
    assert!(anonymized.len() <= packet.len());
    if inner.fragment.is_some_and(|fragment| !fragment.first) {
        assert_eq!(
            inner.transport_len, 0,
            "the ports are in the first fragment"
        );
    }
});

fn makes_sense(headers: &Headers, packet: &[u8]) {
    assert!(headers.header_len as usize <= packet.len());
    assert!(u32::from(headers.transport_len) <= headers.header_len);
    assert!(headers.outer.is_none() || headers.networks > 0);
    if headers.tcp_flags != 0 || headers.tcp_window != 0 {
        assert_eq!(headers.key.map(|key| key.protocol), Some(6));
    }
    let hasher = FlowHasher::new([1, 2]);
    for key in headers.key.iter().chain(&headers.outer) {
        assert!(key.low <= key.high);
        match key.family {
            AddressFamily::Mac => assert!(key.protocol == 0 && key.low.port == key.high.port),
            AddressFamily::Ipv4 => assert!(key.high.address <= u128::from(u32::MAX)),
            AddressFamily::Ipv6 => {}
        }
        assert_ne!(hasher.flow(key), 0);
        assert!(!key.to_string().is_empty());
    }
    let facts = PacketFacts::new(headers, 1, 0, u32::MAX);
    let own_len = headers.header_len - u32::from(headers.quoted_len);
    assert_eq!(u32::from(facts.header_len), own_len.min(65_535));
}

/// A packet whose payload was cut, as the log does it, has the same headers; one
/// that was cut within them has no more of them.
fn cuts_agree(link: LinkType, packet: &[u8], cut: usize, tunnel_key: TunnelKey, whole: &Headers) {
    let header_len = whole.header_len as usize;
    let behind = header_len + cut % (packet.len() - header_len + 1);
    for len in [header_len, behind] {
        let mut part = dissect(link, &packet[..len], tunnel_key);
        // What was cut off may have held addresses: that it may be said, not unsaid.
        assert!(part.incomplete >= whole.incomplete);
        part.incomplete = whole.incomplete;
        assert_eq!(*whole, part, "cut to {len}");
    }
    let within = cut % (header_len + 1);
    let part = dissect(link, &packet[..within], tunnel_key);
    assert!(part.header_len as usize <= within);
    assert!(part.networks <= whole.networks);
}
