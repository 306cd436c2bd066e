//! Bytes of any kind, and packets that are almost right.

use proptest::prelude::*;
use strata_anonymize::Left;
use strata_wire::LinkType;

use crate::common::anonymizer;
use crate::frames::cases;

const LINKS: [LinkType; 14] = [
    LinkType::ETHERNET,
    LinkType::RAW,
    LinkType::RAW_12,
    LinkType::RAW_14,
    LinkType::IPV4,
    LinkType::IPV6,
    LinkType::NULL,
    LinkType::LOOP,
    LinkType::LINUX_SLL,
    LinkType::LINUX_SLL2,
    LinkType::PPP,
    LinkType::PPP_ETHER,
    LinkType::IEEE802_11,
    LinkType(u16::MAX),
];

/// A link type and bytes that may be a packet of it.
fn packets() -> impl Strategy<Value = (LinkType, Vec<u8>)> {
    let random = (
        prop::sample::select(LINKS.to_vec()),
        prop::collection::vec(any::<u8>(), 0..200),
    );
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let almost = (
        any::<prop::sample::Index>(),
        changes,
        any::<prop::sample::Index>(),
    );
    let almost = almost.prop_map(|(which, changes, cut)| {
        let mut cases = cases();
        let case = cases.swap_remove(which.index(cases.len()));
        let mut packet = case.packet;
        for (at, byte) in changes {
            // Mostly in the headers.
            let at = at.index(packet.len().min(120));
            packet[at] = byte;
        }
        // Most are not cut.
        packet.truncate(cut.index(packet.len() * 4));
        (case.link, packet)
    });
    prop_oneof![random, almost]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn become_no_more_bytes_and_always_the_same((link, packet) in packets()) {
        let (mut out, mut again) = (vec![3; 7], Vec::new());
        let mut anonymizer = anonymizer();
        let left = anonymizer.packet(link, &packet, &mut out);
        prop_assert!(out.len() <= packet.len());
        prop_assert_eq!(anonymizer.packet(link, &packet, &mut again), left);
        prop_assert_eq!(&out, &again);
        let is_unknown = matches!(link, LinkType::IEEE802_11 | LinkType(u16::MAX));
        prop_assert_eq!(left == Left::Nothing, is_unknown);
        prop_assert!(left == Left::Beginning || out.is_empty());
    }

    /// Other bytes behind what is left may make more of the packet understood, but change nothing before; and where
    /// nothing more is understood, no checksum tells of them.
    #[test]
    fn say_nothing_of_what_was_cut((link, packet) in packets(), mask in 1_u8..) {
        let (mut out, mut other_out) = (Vec::new(), Vec::new());
        let mut anonymizer = anonymizer();
        let _ = anonymizer.packet(link, &packet, &mut out);
        let mut other = packet.clone();
        for byte in &mut other[out.len()..] {
            *byte ^= mask;
        }
        let _ = anonymizer.packet(link, &other, &mut other_out);
        if out.len() < packet.len() {
            prop_assert!(other_out.len() >= out.len());
        }
        if other_out.len() == out.len() {
            prop_assert_eq!(out, other_out);
        }
    }
}
