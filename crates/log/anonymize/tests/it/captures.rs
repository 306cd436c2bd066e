//! Real packets of all kinds: their outermost addresses, found here without the help of the crate, are gone.

use strata_anonymize::{Anonymizer, Left};
use strata_capture::{Input, InputOptions, Next};
use strata_testkit::format_captures;
use strata_wire::checksum::Sum;
use strata_wire::dissect::dissect;
use strata_wire::{AddressFamily, LinkType, Meta, TunnelKey};

use crate::common::{anonymizer, holds};

/// Of each capture; some have hundreds of thousands.
const PACKETS_MAX: usize = 500;

#[derive(Default, Debug)]
struct Seen {
    captures: usize,
    packets: usize,
    macs: usize,
    ipv4: usize,
    right: usize,
    ipv6: usize,
    nothing: usize,
    walked: usize,
}

/// Whether an address is one that does not occur by chance: those of few different bytes may.
fn is_telling(address: &[u8]) -> bool {
    let mut bytes = address.to_vec();
    bytes.sort_unstable();
    bytes.dedup();
    bytes.len() >= 5
}

/// EtherType and place of what follows it in a frame.
fn network(frame: &[u8]) -> Option<(u16, usize)> {
    let mut at = 12;
    loop {
        let kind = u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?);
        at += 2;
        match kind {
            0x8100 | 0x88a8 | 0x9100 | 0x9200 if at < 12 + 8 * 4 => at += 2,
            _ => return Some((kind, at)),
        }
    }
}

fn check(anonymizer: &mut Anonymizer, link: LinkType, packet: &[u8], seen: &mut Seen) {
    let mut out = Vec::new();
    seen.packets += 1;
    if anonymizer.packet(link, packet, &mut out) == Left::Nothing {
        assert!(out.is_empty());
        seen.nothing += 1;
        return;
    }
    assert!(out.len() <= packet.len());
    let mut other = packet.to_vec();
    for byte in &mut other[out.len()..] {
        *byte ^= 0x55;
    }
    let mut other_out = Vec::new();
    let _ = anonymizer.packet(link, &other, &mut other_out);
    if other_out.len() == out.len() {
        assert_eq!(out, other_out, "bytes that are cut have an influence");
    }

    // Those that the log's own walk finds, in tunnels too.
    let headers = dissect(link, packet, TunnelKey::Inner);
    for key in [headers.key, headers.outer].into_iter().flatten() {
        for end in [key.low, key.high] {
            let octets = end.address.to_be_bytes();
            let address = match key.family {
                AddressFamily::Ipv6 => &octets[..],
                AddressFamily::Mac => &octets[10..],
                _ => continue,
            };
            if is_telling(address) {
                assert!(!holds(&out, address), "{address:02x?} in {out:02x?}");
                seen.walked += 1;
            }
        }
    }

    let found = match link {
        LinkType::ETHERNET => {
            for mac in packet[..packet.len().min(12)].as_chunks::<6>().0 {
                if is_telling(mac) {
                    assert!(!holds(&out, mac), "{mac:02x?} in {out:02x?}");
                    seen.macs += 1;
                }
            }
            network(packet)
        }
        LinkType::RAW => match packet.first().map(|first| first >> 4) {
            Some(4) => Some((0x0800, 0)),
            Some(6) => Some((0x86dd, 0)),
            _ => None,
        },
        LinkType::LINUX_SLL => packet
            .get(14..16)
            .map(|kind| (u16::from_be_bytes([kind[0], kind[1]]), 16)),
        _ => None,
    };
    let Some((kind, at)) = found else { return };
    let header = &packet[at.min(packet.len())..];
    let first = header.first().copied();
    match (kind, first.map(|first| (first >> 4, first & 0x0f))) {
        (0x0800, Some((4, words @ 5..))) if header.len() >= 20 => {
            for field in [12..16, 16..20] {
                let octets: [u8; 4] = header[field.clone()].try_into().unwrap();
                let expected = anonymizer.addresses().ipv4(octets.into()).octets();
                assert_eq!(out[at + field.start..at + field.end], expected);
            }
            seen.ipv4 += 1;
            let len = usize::from(words) * 4;
            if header.len() >= len && Sum::over(&header[..len]) == 0xffff {
                assert_eq!(Sum::over(&out[at..at + len]), 0xffff);
                seen.right += 1;
            }
        }
        (0x86dd, Some((6, _))) if header.len() >= 40 => {
            for field in [8..24, 24..40] {
                let octets: [u8; 16] = header[field.clone()].try_into().unwrap();
                let expected = anonymizer.addresses().ipv6(octets.into()).octets();
                assert_eq!(out[at + field.start..at + field.end], expected);
                if is_telling(&octets) {
                    assert!(!holds(&out, &octets), "{octets:02x?} in {out:02x?}");
                }
            }
            seen.ipv6 += 1;
        }
        _ => {}
    }
}

#[test]
fn addresses_of_real_packets_are_gone() {
    let mut anonymizer = anonymizer();
    let mut seen = Seen::default();
    for path in format_captures() {
        // The corpus also has broken captures.
        let Ok(mut input) = Input::open(&[path], &InputOptions::default()) else {
            continue;
        };
        seen.captures += 1;
        let mut links = Vec::new();
        let before = seen.packets;
        while seen.packets < before + PACKETS_MAX {
            match input.advance() {
                Ok(Next::Packets) => {
                    for packet in input.batch() {
                        let link = links[usize::from(packet.interface)];
                        check(&mut anonymizer, link, packet.data, &mut seen);
                    }
                }
                Ok(Next::Meta(Meta::Interface { interface, .. })) => links.push(interface.link),
                Ok(Next::Meta(_)) => {}
                Ok(Next::End) | Err(_) => break,
            }
        }
    }
    assert!(
        seen.captures > 1_000 && seen.macs > 20_000 && seen.ipv6 > 1_500 && seen.right > 10_000,
        "{seen:?}"
    );
}
