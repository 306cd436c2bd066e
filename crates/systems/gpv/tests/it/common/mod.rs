//! What the tests of this crate share: packets at random and of captures.

use std::path::{Path, PathBuf};

use strata_capture::{Input, InputOptions, Next};
use strata_gpv::{Key, Packet, Seen};
use strata_testkit::sim::Rng;
use strata_wire::dissect::dissect;
use strata_wire::{AddressFamily, Endpoint, LinkType, Meta, Plain, TunnelKey};

/// Packets of a few flows at times that jump ahead and back, of all sizes.
pub(crate) fn random_packets(rng: &mut Rng, count: usize, flows: u64) -> Vec<Packet> {
    let mut ts_ns = 1_700_000_000_000_000_000;
    (0..count)
        .map(|_| {
            ts_ns = match rng.below(200) {
                0 => ts_ns + rng.below(6_000_000_000),
                1 => ts_ns - rng.below(2_000_000_000),
                _ => ts_ns + rng.below(20_000),
            };
            // Few flows are most of the packets.
            let flow = rng.below(flows) * rng.below(flows) / flows;
            let family = if flow.is_multiple_of(3) {
                AddressFamily::Ipv6
            } else {
                AddressFamily::Ipv4
            };
            let end = |address, port| Endpoint { address, port };
            let [a, b, c, d, ..] = rng.bits().to_le_bytes();
            Packet {
                key: Key::new(family, 6, end(u128::from(flow), 80), end(9, 443), 3),
                ts_ns,
                size: u32::try_from(rng.below(70_000) * rng.below(2) + rng.below(1500)).unwrap(),
                payload_len: u32::from(a) * 300,
                tcp_seq: u32::from(b) << 7,
                tcp_ack: u32::from(c),
                queue_depth: u32::from(d),
                tcp_window: u16::from(a) << 8,
                tcp_flags: b,
                ecn: c & 3,
                class: d,
                high_queue: a & 1 == 1,
            }
        })
        .collect()
}

/// The packets of a capture that have a flow, `None` if it is not a capture; at most `max` of them.
pub(crate) fn captured(path: &Path, max: usize) -> Option<Vec<Packet>> {
    let mut packets = Vec::new();
    walk(path, |packet, _| {
        packets.push(packet);
        packets.len() < max
    })?;
    Some(packets)
}

/// Calls `take` for each packet of a capture that has a flow, with its bytes.
pub(crate) fn for_each_packet(path: &Path, mut take: impl FnMut(Packet, &[u8])) {
    walk(path, |packet, bytes| {
        take(packet, bytes);
        true
    })
    .unwrap();
}

/// Calls `take` for each packet that has a flow until it says false; `None` if there is no capture.
fn walk(path: &Path, mut take: impl FnMut(Packet, &[u8]) -> bool) -> Option<()> {
    let mut input = Input::open(&[path.to_owned()], &InputOptions::default()).ok()?;
    let mut links = Vec::new();
    loop {
        match input.advance() {
            Ok(Next::Packets) => {
                for packet in input.batch() {
                    let link = links[usize::from(packet.interface)];
                    if let Some(features) = read(link, packet.data, packet.ts_ns, packet.wire_len)
                        && !take(features, packet.data)
                    {
                        return Some(());
                    }
                }
            }
            Ok(Next::Meta(Meta::Interface { id, interface })) => {
                links.resize(usize::from(id) + 1, LinkType::ETHERNET);
                links[usize::from(id)] = interface.link;
            }
            Ok(Next::Meta(_)) => {}
            // A damaged capture: what came before the damage.
            Ok(Next::End) | Err(_) => return Some(()),
        }
    }
}

/// A packet's features; both ways to read them agree.
pub(crate) fn read(link: LinkType, bytes: &[u8], ts_ns: u64, wire_len: u32) -> Option<Packet> {
    let seen = Seen {
        ts_ns,
        wire_len,
        ingress: 1,
    };
    let packet = Packet::read(&dissect(link, bytes, TunnelKey::Inner), bytes, seen);
    if link == LinkType::ETHERNET
        && let Some(plain) = Plain::read(bytes)
    {
        assert_eq!(packet, Some(Packet::plain(&plain, bytes, seen)));
    }
    packet
}

/// Captures with labels, which are real traffic of some length.
pub(crate) fn labelled(name: &str) -> PathBuf {
    strata_testkit::data_dir()
        .join("labelled")
        .join(name)
        .join("trace.pcap")
}
