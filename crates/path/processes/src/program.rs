//! The programs, which are all attached to the root cgroup (version 2), so they run for all processes.
//!
//! One runs when a process creates a socket, and notes the process by the socket's cookie. Another one runs when a
//! socket sends or receives a packet, and notes the socket's process by the packet's addresses and ports. The first
//! packet of a connection that comes in is received by the socket that listens, so its process is noted. Both let all
//! sockets and packets pass.
//!
//! `R6` is the context, and later a slot's sequence number; `R7` the time of the oldest slot of a set; `R8` the slot to
//! be written; `R9` the set.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "places on the stack and in slots, which are constants"
)]

use strata_bpf::{Alu, Assembler, Condition, Label, Reg, Width};
use strata_wire::dissect::protocol;
use strata_wire::exact;

use crate::table::{
    BUSY, FACTOR, FIRST_SLOT_AT, FOLD, KEY_WORDS, REPLACED, SET_BYTES, SETS, SLOT_BYTES, Table,
    WAYS, at,
};

/// Helpers (linux/bpf.h).
mod helper {
    pub(super) const TIME: i32 = 5;
    pub(super) const PID: i32 = 14;
    pub(super) const NAME: i32 = 16;
    pub(super) const LOAD_BYTES: i32 = 26;
    pub(super) const COOKIE: i32 = 46;
    pub(super) const CGROUP: i32 = 80;
}

/// Where the stack has the key, from the frame pointer on; its parts; then headers; and the socket's cookie.
const KEY: i16 = -40;
const OWN: i16 = KEY;
const PEER: i16 = KEY + 16;
const OWN_PORT: i16 = KEY + 32;
const PEER_PORT: i16 = KEY + 34;
const PROTOCOL: i16 = KEY + 36;
const HEADER: i16 = KEY - 40;
const COOKIE: i16 = HEADER - 8;
/// The process of the socket, in place of the headers, which are not needed any more: its words in a slot.
const COPY: i16 = HEADER;
const COPIED: [usize; 4] = [at::PROCESS, at::NAME, at::NAME + 1, at::CGROUP];
/// The IPv4 address in an IPv6 address, and the ones before it.
const MAPPED: i16 = 12;
const ONES: i16 = 10;
/// Names of processes, bytes.
const NAME_BYTES: i32 = 16;
/// What lets a socket or a packet pass.
const PASS: i32 = 1;

/// Whether a socket sends or receives a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Sent,
    Received,
}

/// The program for new sockets.
pub(crate) fn of_sockets(sockets: &Table) -> Vec<u64> {
    let mut asm = Assembler::new();
    let end = asm.label();
    asm.set(Reg::R6, Reg::R1);
    write_no_key(&mut asm);
    write_cookie(&mut asm, end);
    asm.load(Width::Double, Reg::R1, Reg::R10, COOKIE);
    asm.store(Width::Double, Reg::R10, KEY, Reg::R1);
    write_set(&mut asm, sockets);
    let known = asm.label();
    write_choice(&mut asm, known);
    asm.bind(known);
    write_lock(&mut asm, sockets, end);
    asm.call(helper::PID);
    asm.alu64(Alu::ShiftRight, Reg::R0, 32);
    asm.store(Width::Double, Reg::R8, word_of(0, at::PROCESS), Reg::R0);
    asm.call(helper::CGROUP);
    asm.store(Width::Double, Reg::R8, word_of(0, at::CGROUP), Reg::R0);
    asm.set(Reg::R1, Reg::R8);
    asm.alu64(Alu::Add, Reg::R1, i32::from(word_of(0, at::NAME)));
    asm.set(Reg::R2, NAME_BYTES);
    asm.call(helper::NAME);
    write_unlock(&mut asm);
    asm.bind(end);
    asm.set(Reg::R0, PASS);
    asm.exit();
    asm.finish().expect("it has some hundred instructions")
}

/// The program for packets.
pub(crate) fn of_packets(sockets: &Table, flows: &Table, way: Way) -> Vec<u64> {
    let mut asm = Assembler::new();
    let end = asm.label();
    asm.set(Reg::R6, Reg::R1);
    write_no_key(&mut asm);
    write_key(&mut asm, way, end);
    write_cookie(&mut asm, end);
    write_set(&mut asm, flows);
    let (known, chosen) = (asm.label(), asm.label());
    write_choice(&mut asm, known);
    asm.jump(chosen);
    asm.bind(known);
    // Of the same socket, there is nothing new.
    asm.load(Width::Double, Reg::R1, Reg::R8, word_of(0, at::COOKIE));
    asm.load(Width::Double, Reg::R2, Reg::R10, COOKIE);
    asm.jump_if(Condition::Equal, Reg::R1, Reg::R2, end);
    asm.bind(chosen);
    write_socket(&mut asm, sockets, end);
    write_copy(&mut asm, flows, end);
    write_lock(&mut asm, flows, end);
    for (at, word) in COPIED.into_iter().enumerate() {
        asm.load(Width::Double, Reg::R1, Reg::R10, copy_of(at));
        asm.store(Width::Double, Reg::R8, word_of(0, word), Reg::R1);
    }
    write_unlock(&mut asm);
    asm.bind(end);
    asm.set(Reg::R0, PASS);
    asm.exit();
    asm.finish().expect("it has some hundred instructions")
}

fn write_no_key(asm: &mut Assembler) {
    for word in 0..KEY_WORDS {
        asm.store(Width::Double, Reg::R10, KEY + exact::<i16>(word * 8), 0);
    }
}

/// The cookie of the context's socket to the stack; continues at `end` without one.
fn write_cookie(asm: &mut Assembler, end: Label) {
    asm.set(Reg::R1, Reg::R6);
    asm.call(helper::COOKIE);
    asm.jump_if(Condition::Equal, Reg::R0, 0, end);
    asm.store(Width::Double, Reg::R10, COOKIE, Reg::R0);
}

/// Bytes of the packet, from the IP header on, to the stack's header; the place is in `R2`. Continues at `end` if they
/// are not there.
fn write_header(asm: &mut Assembler, bytes: i32, end: Label) {
    asm.set(Reg::R1, Reg::R6);
    asm.set(Reg::R3, Reg::R10);
    asm.alu64(Alu::Add, Reg::R3, i32::from(HEADER));
    asm.set(Reg::R4, bytes);
    asm.call(helper::LOAD_BYTES);
    asm.jump_if(Condition::NotEqual, Reg::R0, 0, end);
}

/// Writes the key of a packet to the stack, or continues at `end` if it is of neither TCP nor UDP, or a later fragment.
fn write_key(asm: &mut Assembler, way: Way, end: Label) {
    let (ipv4, has_addresses, has_protocol) = (asm.label(), asm.label(), asm.label());
    // Places of the sender's and the receiver's.
    let (first, second) = match way {
        Way::Sent => (OWN, PEER),
        Way::Received => (PEER, OWN),
    };
    asm.set(Reg::R2, 0);
    write_header(asm, 20, end);
    asm.load(Width::Byte, Reg::R7, Reg::R10, HEADER);
    asm.set(Reg::R1, Reg::R7);
    asm.alu64(Alu::ShiftRight, Reg::R1, 4);
    asm.jump_if(Condition::Equal, Reg::R1, 4, ipv4);
    asm.jump_if(Condition::NotEqual, Reg::R1, 6, end);
    asm.set(Reg::R2, 0);
    write_header(asm, 40, end);
    for word in [0, 8] {
        asm.load(Width::Double, Reg::R1, Reg::R10, HEADER + 8 + word);
        asm.store(Width::Double, Reg::R10, first + word, Reg::R1);
        asm.load(Width::Double, Reg::R1, Reg::R10, HEADER + 24 + word);
        asm.store(Width::Double, Reg::R10, second + word, Reg::R1);
    }
    asm.load(Width::Byte, Reg::R8, Reg::R10, HEADER + 6);
    asm.set(Reg::R7, 40);
    asm.jump(has_addresses);
    asm.bind(ipv4);
    asm.load(Width::Half, Reg::R1, Reg::R10, HEADER + 6);
    asm.network_order(Reg::R1, 16);
    asm.alu64(Alu::And, Reg::R1, 0x1fff);
    asm.jump_if(Condition::NotEqual, Reg::R1, 0, end);
    asm.load(Width::Word, Reg::R1, Reg::R10, HEADER + 12);
    asm.store(Width::Word, Reg::R10, first + MAPPED, Reg::R1);
    asm.store(Width::Half, Reg::R10, first + ONES, 0xffff);
    asm.load(Width::Word, Reg::R1, Reg::R10, HEADER + 16);
    asm.store(Width::Word, Reg::R10, second + MAPPED, Reg::R1);
    asm.store(Width::Half, Reg::R10, second + ONES, 0xffff);
    asm.load(Width::Byte, Reg::R8, Reg::R10, HEADER + 9);
    asm.alu64(Alu::And, Reg::R7, 0xf);
    asm.alu64(Alu::ShiftLeft, Reg::R7, 2);
    asm.bind(has_addresses);
    asm.jump_if(
        Condition::Equal,
        Reg::R8,
        i32::from(protocol::TCP),
        has_protocol,
    );
    asm.jump_if(Condition::NotEqual, Reg::R8, i32::from(protocol::UDP), end);
    asm.bind(has_protocol);
    asm.store(Width::Word, Reg::R10, PROTOCOL, Reg::R8);
    asm.set(Reg::R2, Reg::R7);
    write_header(asm, 4, end);
    let (first, second) = match way {
        Way::Sent => (OWN_PORT, PEER_PORT),
        Way::Received => (PEER_PORT, OWN_PORT),
    };
    asm.load(Width::Half, Reg::R1, Reg::R10, HEADER);
    asm.network_order(Reg::R1, 16);
    asm.store(Width::Half, Reg::R10, first, Reg::R1);
    asm.load(Width::Half, Reg::R1, Reg::R10, HEADER + 2);
    asm.network_order(Reg::R1, 16);
    asm.store(Width::Half, Reg::R10, second, Reg::R1);
}

/// `R9` = the set of the key.
fn write_set(asm: &mut Assembler, table: &Table) {
    asm.set_u64(Reg::R1, table.seed());
    asm.set_u64(Reg::R3, FACTOR);
    for word in 0..KEY_WORDS {
        asm.load(
            Width::Double,
            Reg::R2,
            Reg::R10,
            KEY + exact::<i16>(word * 8),
        );
        asm.alu64(Alu::Xor, Reg::R1, Reg::R2);
        write_mixed(asm);
    }
    write_place(asm, table);
}

/// Mixes the bits of `R1`, with the factor in `R3`.
fn write_mixed(asm: &mut Assembler) {
    asm.alu64(Alu::Mul, Reg::R1, Reg::R3);
    asm.set(Reg::R2, Reg::R1);
    asm.alu64(Alu::ShiftRight, Reg::R2, exact::<i32>(FOLD));
    asm.alu64(Alu::Xor, Reg::R1, Reg::R2);
}

/// `R9` = the set with the hash in `R1`.
fn write_place(asm: &mut Assembler, table: &Table) {
    asm.alu64(Alu::And, Reg::R1, exact::<i32>(SETS - 1));
    asm.alu64(Alu::Mul, Reg::R1, exact::<i32>(SET_BYTES));
    asm.shared_address(Reg::R9, table.number(), exact::<i32>(FIRST_SLOT_AT));
    asm.alu64(Alu::Add, Reg::R9, Reg::R1);
}

/// A word of a slot of the set, bytes.
fn word_of(way: usize, word: usize) -> i16 {
    exact::<i16>(way * SLOT_BYTES + word * 8)
}

/// `R8` = the slot of the key, and continues at `known` with 0 in `R7`; else the oldest slot, with its time in `R7`.
fn write_choice(asm: &mut Assembler, known: Label) {
    asm.set_u64(Reg::R7, u64::MAX);
    asm.set(Reg::R8, Reg::R9);
    for way in 0..WAYS {
        let (other, next) = (asm.label(), asm.label());
        for word in 0..KEY_WORDS {
            asm.load(
                Width::Double,
                Reg::R1,
                Reg::R9,
                word_of(way, at::KEY + word),
            );
            asm.load(
                Width::Double,
                Reg::R2,
                Reg::R10,
                KEY + exact::<i16>(word * 8),
            );
            asm.jump_if(Condition::NotEqual, Reg::R1, Reg::R2, other);
        }
        asm.set(Reg::R8, Reg::R9);
        asm.alu64(Alu::Add, Reg::R8, i32::from(word_of(way, 0)));
        asm.set(Reg::R7, 0);
        asm.jump(known);
        asm.bind(other);
        asm.load(Width::Double, Reg::R1, Reg::R9, word_of(way, at::TIME));
        asm.jump_if(Condition::GreaterEqual, Reg::R1, Reg::R7, next);
        asm.set(Reg::R7, Reg::R1);
        asm.set(Reg::R8, Reg::R9);
        asm.alu64(Alu::Add, Reg::R8, i32::from(word_of(way, 0)));
        asm.bind(next);
    }
}

/// Where the stack has a word of the process.
fn copy_of(at: usize) -> i16 {
    COPY + exact::<i16>(at * 8)
}

/// `R9` = the slot of the socket; continues at `end` if its process is not known.
fn write_socket(asm: &mut Assembler, sockets: &Table, end: Label) {
    let found = asm.label();
    asm.set_u64(Reg::R1, sockets.seed());
    asm.set_u64(Reg::R3, FACTOR);
    asm.load(Width::Double, Reg::R2, Reg::R10, COOKIE);
    asm.alu64(Alu::Xor, Reg::R1, Reg::R2);
    write_mixed(asm);
    // The other words of its key are 0.
    for _ in 1..KEY_WORDS {
        write_mixed(asm);
    }
    write_place(asm, sockets);
    for way in 0..WAYS {
        let other = asm.label();
        asm.load(Width::Double, Reg::R1, Reg::R9, word_of(way, at::KEY));
        asm.load(Width::Double, Reg::R2, Reg::R10, COOKIE);
        asm.jump_if(Condition::NotEqual, Reg::R1, Reg::R2, other);
        asm.alu64(Alu::Add, Reg::R9, i32::from(word_of(way, 0)));
        asm.jump(found);
        asm.bind(other);
    }
    asm.jump(end);
    asm.bind(found);
    // One that is used is not the oldest.
    asm.call(helper::TIME);
    asm.store(Width::Double, Reg::R9, word_of(0, at::TIME), Reg::R0);
}

/// The process in the slot at `R9` to the stack. Continues at `end`, and counts a flow that is not noted, if another CPU
/// writes the slot or has used it for another socket meanwhile. `R6` is its sequence number.
fn write_copy(asm: &mut Assembler, flows: &Table, end: Label) {
    let (busy, copied) = (asm.label(), asm.label());
    // An exchange of 0 for 0 changes nothing, and is in order with what is loaded before and after it.
    let read_sequence = |asm: &mut Assembler| {
        asm.set(Reg::R0, 0);
        asm.set(Reg::R1, 0);
        asm.atomic_compare_exchange(Reg::R9, word_of(0, at::SEQUENCE), Reg::R1);
    };
    read_sequence(asm);
    asm.set(Reg::R6, Reg::R0);
    asm.alu64(Alu::And, Reg::R0, 1);
    asm.jump_if(Condition::NotEqual, Reg::R0, 0, busy);
    for (at, word) in COPIED.into_iter().enumerate() {
        asm.load(Width::Double, Reg::R1, Reg::R9, word_of(0, word));
        asm.store(Width::Double, Reg::R10, copy_of(at), Reg::R1);
    }
    asm.load(Width::Double, Reg::R3, Reg::R9, word_of(0, at::KEY));
    read_sequence(asm);
    asm.jump_if(Condition::NotEqual, Reg::R0, Reg::R6, busy);
    asm.load(Width::Double, Reg::R2, Reg::R10, COOKIE);
    asm.jump_if(Condition::Equal, Reg::R3, Reg::R2, copied);
    asm.bind(busy);
    write_count(asm, flows, BUSY);
    asm.jump(end);
    asm.bind(copied);
}

/// Locks the slot at `R8`, and writes key, cookie and time. `R6` is its sequence number before. Continues at `end` if
/// another CPU has it.
fn write_lock(asm: &mut Assembler, table: &Table, end: Label) {
    let (busy, locked, own) = (asm.label(), asm.label(), asm.label());
    asm.load(Width::Double, Reg::R6, Reg::R8, word_of(0, at::SEQUENCE));
    asm.set(Reg::R1, Reg::R6);
    asm.alu64(Alu::And, Reg::R1, 1);
    asm.jump_if(Condition::NotEqual, Reg::R1, 0, busy);
    asm.set(Reg::R0, Reg::R6);
    asm.set(Reg::R1, Reg::R6);
    asm.alu64(Alu::Add, Reg::R1, 1);
    asm.atomic_compare_exchange(Reg::R8, word_of(0, at::SEQUENCE), Reg::R1);
    asm.jump_if(Condition::Equal, Reg::R0, Reg::R6, locked);
    asm.bind(busy);
    write_count(asm, table, BUSY);
    asm.jump(end);
    asm.bind(locked);
    // It replaces another one, unless the slot is the key's or was never used.
    asm.jump_if(Condition::Equal, Reg::R7, 0, own);
    write_count(asm, table, REPLACED);
    asm.bind(own);
    for word in 0..KEY_WORDS {
        asm.load(
            Width::Double,
            Reg::R1,
            Reg::R10,
            KEY + exact::<i16>(word * 8),
        );
        asm.store(Width::Double, Reg::R8, word_of(0, at::KEY + word), Reg::R1);
    }
    asm.load(Width::Double, Reg::R1, Reg::R10, COOKIE);
    asm.store(Width::Double, Reg::R8, word_of(0, at::COOKIE), Reg::R1);
    asm.call(helper::TIME);
    asm.store(Width::Double, Reg::R8, word_of(0, at::TIME), Reg::R0);
}

fn write_unlock(asm: &mut Assembler) {
    asm.set(Reg::R1, Reg::R6);
    asm.alu64(Alu::Add, Reg::R1, 2);
    asm.atomic_exchange(Reg::R8, word_of(0, at::SEQUENCE), Reg::R1);
}

fn write_count(asm: &mut Assembler, table: &Table, counter: usize) {
    asm.shared_address(Reg::R1, table.number(), exact::<i32>(counter * 8));
    asm.set(Reg::R2, 1);
    asm.atomic_add(Reg::R1, 0, Reg::R2);
}
