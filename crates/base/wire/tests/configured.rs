//! Other ports of tunnels than the usual ones, which are set for a whole process: so this is one of its
//! own, with a single test.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

#[allow(dead_code, reason = "`it` uses the rest")]
#[path = "it/common/mod.rs"]
mod common;

use common::{DESTINATION, assert_cuts_agree, ethernet, inner, ip4, packet, udp};
use strata_wire::dissect::protocol;
use strata_wire::ethernet::ethertype;
use strata_wire::tunnel::{TunnelKind, Tunnels, TunnelsError};
use strata_wire::wide::{GROUP, PacketColumns, Simd};
use strata_wire::{FlowHasher, LinkType, Plain};

/// A datagram between these ports that holds this.
fn datagram(source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    let ip = ip4(1, 2, protocol::UDP, &udp(source, destination, payload));
    ethernet(ethertype::IPV4, &ip)
}

/// The headers are those of the walk, by every path.
fn assert_paths_agree(packets: &[Vec<u8>]) {
    let heads: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
    let mut group = [&[][..]; GROUP];
    for (place, head) in group.iter_mut().zip(heads) {
        *place = head;
    }
    let mut columns = PacketColumns::default();
    for (len, packet) in columns.captured_len.iter_mut().zip(group) {
        *len = u32::try_from(packet.len()).unwrap();
    }
    for simd in Simd::available() {
        columns.look(simd, &FlowHasher::new([1, 2]), 0, &group);
        for (lane, packet) in group.iter().enumerate() {
            let plain = Plain::read(packet);
            assert_eq!(columns.plain[0] >> lane & 1 != 0, plain.is_some(), "{lane}");
        }
    }
}

#[test]
fn ports_are_those_in_force_on_every_path() {
    let (ip, header) = packet();
    let vxlan = [
        &[8, 0, 0, 0, 0, 0, 1, 0][..],
        &ethernet(ethertype::IPV4, &ip),
    ]
    .concat();
    let gtp = [&[0x30, 255, 0, 0, 0, 0, 0, 1][..], &ip].concat();
    let packets: Vec<Vec<u8>> = [
        (9, 4789, &vxlan),
        (9, 8473, &vxlan),
        (8473, 9, &vxlan),
        (9, 2153, &gtp),
        (2153, 9, &gtp),
        (9, 8472, &vxlan),
        (9, 53, &vxlan),
    ]
    .into_iter()
    .map(|(source, destination, payload)| datagram(source, destination, payload))
    .collect();
    let found = || -> Vec<bool> {
        let is_inner = |packet: &Vec<u8>| {
            assert_cuts_agree("configured", LinkType::ETHERNET, packet);
            let headers = inner(LinkType::ETHERNET, packet);
            let is_inner = headers.endpoints().1.address == u128::from(DESTINATION);
            let plain = Plain::read(packet).map(|plain| plain.headers());
            assert!(plain.is_none_or(|plain| plain == headers));
            assert!(!is_inner || headers.header_len as usize > 42 + header);
            is_inner
        };
        assert_paths_agree(&packets);
        packets.iter().map(is_inner).collect()
    };
    assert_eq!(found(), [true, false, false, false, false, true, false]);

    // Of VXLAN only 4789 and 8473, as a configuration says; one more of GTP-U, which either end has.
    let table = Tunnels::default().with(&[(TunnelKind::Vxlan, vec![4789, 8473])]);
    let table = table.unwrap().and_text("gtp-u=2153").unwrap();
    table.clone().put_in_force().unwrap();
    assert_eq!(found(), [true, true, false, true, true, false, false]);
    assert_eq!(*Tunnels::in_force(), table);
    table.clone().put_in_force().unwrap();
    assert_eq!(
        Tunnels::default().put_in_force(),
        Err(TunnelsError::InForce)
    );

    // A log that was recorded with others adds to them, and takes none away.
    let of_log = Tunnels::default().with(&[(TunnelKind::Vxlan, vec![53])]);
    of_log.clone().unwrap().extend_in_force().unwrap();
    of_log.unwrap().extend_in_force().unwrap();
    assert_eq!(found(), [true, true, false, true, true, false, true]);
    let other = Tunnels::default().with(&[(TunnelKind::Geneve, vec![53])]);
    let error = other.unwrap().extend_in_force().unwrap_err();
    assert_eq!(
        error.to_string(),
        "port 53 is given to both vxlan and geneve"
    );
    assert_eq!(found(), [true, true, false, true, true, false, true]);
}
