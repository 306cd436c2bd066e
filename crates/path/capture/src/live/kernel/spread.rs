//! The program of a fanout group: which worker gets a packet.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "offsets in a packet's first bytes, which are constants"
)]

use strata_bpf::{Alu, Assembler, Condition, Label, Reg, TooLarge, Width};

use super::hash::write_step;
use super::{LINK, NETWORK, SKB_PROTOCOL};

/// The program of a fanout group: a number from the pair of outermost IP addresses, after VLAN
/// tags, MPLS labels and PPPoE, else from the pair of MAC addresses. Fragments have no ports and
/// replies have them swapped, so ports are not used.
///
/// An outgoing packet starts at its link-layer header here, an incoming one at its network header;
/// so all offsets count from these.
pub(super) fn spread(ethernet: bool, key: u64) -> Result<Vec<u64>, TooLarge> {
    let mut asm = Assembler::new();
    let labels = Spread {
        ipv4: asm.label(),
        ipv6: asm.label(),
        other: asm.label(),
        pppoe: asm.label(),
        mpls: asm.label(),
        by_version: asm.label(),
    };
    asm.set(Reg::R6, Reg::R1);
    // R8: from the network header to the IP header.
    asm.set(Reg::R8, 0);
    asm.load(Width::Word, Reg::R0, Reg::R6, SKB_PROTOCOL);
    asm.network_order(Reg::R0, 16);
    for tag in 0..3 {
        let vlan = asm.label();
        asm.jump_if(Condition::Equal, Reg::R0, 0x0800, labels.ipv4);
        asm.jump_if(Condition::Equal, Reg::R0, 0x86dd, labels.ipv6);
        asm.jump_if(Condition::Equal, Reg::R0, 0x8864, labels.pppoe);
        asm.jump_if(Condition::Equal, Reg::R0, 0x8847, labels.mpls);
        if tag == 2 {
            asm.bind(vlan);
            asm.jump(labels.other);
            break;
        }
        asm.jump_if(Condition::Equal, Reg::R0, 0x8100, vlan);
        asm.jump_if(Condition::NotEqual, Reg::R0, 0x88a8, labels.other);
        asm.bind(vlan);
        asm.load_packet_at(Width::Half, Reg::R8, NETWORK + 2);
        asm.alu64(Alu::Add, Reg::R8, 4);
    }
    asm.bind(labels.pppoe);
    // RFC 2516 section 4, RFC 1661: six bytes, then the protocol.
    asm.load_packet_at(Width::Half, Reg::R8, NETWORK + 6);
    asm.alu64(Alu::Add, Reg::R8, 8);
    asm.jump_if(Condition::Equal, Reg::R0, 0x0021, labels.ipv4);
    asm.jump_if(Condition::Equal, Reg::R0, 0x0057, labels.ipv6);
    asm.jump(labels.other);
    asm.bind(labels.mpls);
    for _ in 0..4 {
        // RFC 3032 section 2.1: the bottom of the stack has its bit set.
        asm.load_packet_at(Width::Byte, Reg::R8, NETWORK + 2);
        asm.alu64(Alu::Add, Reg::R8, 4);
        asm.jump_if(Condition::AnyBit, Reg::R0, 1, labels.by_version);
    }
    asm.jump(labels.other);
    asm.bind(labels.by_version);
    asm.load_packet_at(Width::Byte, Reg::R8, NETWORK);
    asm.alu64(Alu::ShiftRight, Reg::R0, 4);
    asm.jump_if(Condition::Equal, Reg::R0, 4, labels.ipv4);
    asm.jump_if(Condition::Equal, Reg::R0, 6, labels.ipv6);
    asm.jump(labels.other);

    asm.bind(labels.ipv4);
    spread_by(&mut asm, key, [&[12], &[16]], |asm, offset| {
        asm.load_packet_at(Width::Word, Reg::R8, NETWORK + offset);
    });
    asm.bind(labels.ipv6);
    let ends: [&[i32]; 2] = [&[8, 12, 16, 20], &[24, 28, 32, 36]];
    spread_by(&mut asm, key, ends, |asm, offset| {
        asm.load_packet_at(Width::Word, Reg::R8, NETWORK + offset);
    });
    asm.bind(labels.other);
    if ethernet {
        // The upper four bytes lie at 0 and 6, the lower two after them.
        spread_by(&mut asm, key, [&[0, 2], &[6, 8]], |asm, offset| {
            asm.load_packet(Width::Word, LINK + offset);
        });
    } else {
        asm.set(Reg::R0, 0);
        asm.exit();
    }
    asm.finish()
}

struct Spread {
    ipv4: Label,
    ipv6: Label,
    other: Label,
    pppoe: Label,
    mpls: Label,
    by_version: Label,
}

/// Ends the program with a number from the words of both ends, the same in either order.
fn spread_by(asm: &mut Assembler, key: u64, ends: [&[i32]; 2], load: impl Fn(&mut Assembler, i32)) {
    asm.set(Reg::R7, 0);
    for words in ends {
        asm.set_u64(Reg::R9, key);
        for &offset in words {
            load(asm, offset);
            write_step(asm, Reg::R9, Reg::R0);
        }
        asm.alu64(Alu::Add, Reg::R7, Reg::R9);
    }
    asm.set_u64(Reg::R9, key);
    write_step(asm, Reg::R9, Reg::R7);
    asm.set(Reg::R0, Reg::R9);
    asm.alu64(Alu::ShiftRight, Reg::R0, 32);
    asm.exit();
}
