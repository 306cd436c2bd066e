//! The cut table: how much of a flow's packets is enough.
//!
//! The cut table is memory shared between us and the programs: 2^20 entries of 8 bytes, found by a
//! keyed hash of addresses, ports and protocol, the same in either direction.
//!
//! ```text
//!  63          24 23    16 15      0
//!  | hash, upper | second | length |      one word, read and written at once
//! ```
//!
//! An entry is valid while its second is the current one or one of the two before, so a flow that
//! user space no longer confirms is captured whole again.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "offsets in our stack and table, and lengths of 16 bits above 1"
)]

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use strata_bpf::{Alu, Assembler, Condition, Label, Reg, Shared, Width};
use strata_wire::{AddressFamily, FlowKey, exact};

use super::hash::{HEADERS_AT as AT, copy_headers, fold, raw_ipv4, raw_ipv6, step, write_step};
use super::{COUNTER_WORDS, SKB_PROTOCOL, XDP_LOAD_BYTES};

/// Places in the shared memory, in words of 8 bytes, after the counters.
pub(super) const SECOND_AT: usize = COUNTER_WORDS;
const TABLE_AT: usize = 1024;
/// Entries of the cut table: 8 MiB.
const TABLE_ENTRIES: usize = 1 << 20;
/// The part of a hash that is the tag, above second and length.
const TAG_SHIFT: i32 = 24;

/// Words of the shared memory with a table, and without.
pub(super) const WORDS: usize = TABLE_AT + TABLE_ENTRIES;
pub(super) const WORDS_WITHOUT: usize = TABLE_AT;

/// Seconds for which an entry is valid, after the one in which it was made.
const LIFETIME_SECONDS: i32 = 2;

/// No packet is cut to fewer bytes.
pub const CUT_BYTES_MIN: u16 = 256;
/// An entry that does not cut yet counts down from here: this many packets of a flow must agree
/// before the first one is cut.
const AGREED: u16 = u16::MAX;
const AGREE_PACKETS: u16 = 4;

/// Lengths to which the kernel cuts packets of flows whose verdict is known; shared by all workers.
///
/// Time: one memory access per call. An attacker cannot aim at an entry without the key; where two
/// flows share one, the later takes it, and a flow whose 44 bits of hash are another's is cut as
/// that one is.
#[derive(Debug, Clone)]
pub struct CutTable {
    shared: Arc<Shared>,
    key: u64,
}

impl CutTable {
    pub(super) fn new(shared: Arc<Shared>, key: u64) -> Self {
        Self { shared, key }
    }

    /// Says that `bytes` of each further packet of a flow are enough, at least [`CUT_BYTES_MIN`].
    /// Takes effect after a few packets that agree, and must be repeated with each packet of the
    /// flow.
    #[inline]
    pub fn cut(&self, flow: &FlowKey, bytes: u16) {
        let Some(hash) = self.hash(flow) else {
            return;
        };
        let entry = &self.shared.words()[place(hash)];
        let found = entry.load(Relaxed);
        let second = self.shared.words()[SECOND_AT].load(Relaxed) & 0xff;
        let known = (found ^ hash) >> TAG_SHIFT == 0 && is_fresh(found, second);
        #[allow(clippy::cast_possible_truncation)]
        let length = match found as u16 {
            _ if !known => AGREED - 1,
            length if length > AGREED - AGREE_PACKETS + 1 => length - 1,
            _ => bytes.max(CUT_BYTES_MIN),
        };
        let wanted = hash >> TAG_SHIFT << TAG_SHIFT | second << 16 | u64::from(length);
        if found != wanted {
            entry.store(wanted, Relaxed);
        }
    }

    /// As [`CutTable::cut`], but from the next packet on: what is known of the flow does not depend
    /// on more of its packets, as with a policy.
    #[inline]
    pub fn cut_at_once(&self, flow: &FlowKey, bytes: u16) {
        let Some(hash) = self.hash(flow) else {
            return;
        };
        let entry = &self.shared.words()[place(hash)];
        let second = self.shared.words()[SECOND_AT].load(Relaxed) & 0xff;
        let length = bytes.max(CUT_BYTES_MIN);
        let wanted = hash >> TAG_SHIFT << TAG_SHIFT | second << 16 | u64::from(length);
        if entry.load(Relaxed) != wanted {
            entry.store(wanted, Relaxed);
        }
    }

    /// Says that a flow's packets are wanted whole.
    #[inline]
    pub fn keep_whole(&self, flow: &FlowKey) {
        let Some(hash) = self.hash(flow) else {
            return;
        };
        let entry = &self.shared.words()[place(hash)];
        if (entry.load(Relaxed) ^ hash) >> TAG_SHIFT == 0 {
            entry.store(0, Relaxed);
        }
    }

    /// Ages the entries: the current second, by any clock that runs evenly.
    pub fn set_second(&self, second: u64) {
        self.shared.words()[SECOND_AT].store(second & 0xff, Relaxed);
    }

    /// As the program computes it; `None` for flows that it does not cut.
    #[inline]
    fn hash(&self, flow: &FlowKey) -> Option<u64> {
        if flow.protocol != 6 && flow.protocol != 17 {
            return None;
        }
        let mut hash = self.key;
        match flow.family {
            AddressFamily::Ipv4 => {
                let (low, high) = (raw_ipv4(flow.low), raw_ipv4(flow.high));
                hash = step(hash, low.min(high));
                hash = step(hash, low.max(high) | u64::from(flow.protocol) << 48);
            }
            AddressFamily::Ipv6 => {
                let (low, high) = (raw_ipv6(flow.low), raw_ipv6(flow.high));
                hash = step(hash, fold(self.key, low).wrapping_add(fold(self.key, high)));
                hash = step(hash, u64::from(flow.protocol) << 48);
            }
            AddressFamily::Mac => return None,
        }
        Some(hash)
    }
}

fn is_fresh(entry: u64, second: u64) -> bool {
    second.wrapping_sub(entry >> 16) & 0xff <= u64::from(LIFETIME_SECONDS.unsigned_abs())
}

#[allow(clippy::cast_possible_truncation)]
fn place(hash: u64) -> usize {
    TABLE_AT + hash as usize % TABLE_ENTRIES
}

/// Continues at `found` with the length in the cut table in `R0`, or falls through. Fragments,
/// options, extension headers and other protocols are not looked up.
pub(super) fn look_up(
    asm: &mut Assembler,
    table: &CutTable,
    network: i32,
    load_bytes: i32,
    found: Label,
) {
    let (ipv6, look, whole) = (asm.label(), asm.label(), asm.label());
    if load_bytes == XDP_LOAD_BYTES {
        // The header alone tells version and protocol; after other EtherTypes there is nothing in
        // the table, except for one packet in 2^40.
        copy_headers(asm, load_bytes, network, 24, whole);
        asm.load(Width::Byte, Reg::R0, Reg::R10, AT);
        asm.alu64(Alu::ShiftRight, Reg::R0, 4);
        asm.jump_if(Condition::Equal, Reg::R0, 6, ipv6);
    } else {
        asm.load(Width::Word, Reg::R0, Reg::R6, SKB_PROTOCOL);
        asm.network_order(Reg::R0, 16);
        asm.jump_if(Condition::Equal, Reg::R0, 0x86dd, ipv6);
        asm.jump_if(Condition::NotEqual, Reg::R0, 0x0800, whole);
        copy_headers(asm, load_bytes, network, 24, whole);
    }
    hash_ipv4(asm, table, whole);
    asm.jump(look);
    asm.bind(ipv6);
    copy_headers(asm, load_bytes, network, 44, whole);
    hash_ipv6(asm, table, whole);
    asm.bind(look);
    read_entry(asm, table, whole);
    // A length beyond the agreed ones does not cut.
    let agreed = i32::from(AGREED - AGREE_PACKETS);
    asm.jump_if(Condition::LessEqual, Reg::R0, agreed, found);
    asm.bind(whole);
}

/// `R1` = the hash of the flow whose IPv4 header is on the stack, or continues at `none`.
fn hash_ipv4(asm: &mut Assembler, table: &CutTable, none: Label) {
    asm.load(Width::Byte, Reg::R0, Reg::R10, AT);
    asm.jump_if(Condition::NotEqual, Reg::R0, 0x45, none);
    asm.load(Width::Half, Reg::R0, Reg::R10, AT + 6);
    asm.network_order(Reg::R0, 16);
    asm.jump_if(Condition::AnyBit, Reg::R0, 0x3fff, none);
    asm.load(Width::Byte, Reg::R5, Reg::R10, AT + 9);
    tcp_or_udp(asm, Reg::R5, none);
    for (reg, address, port) in [(Reg::R2, 12, 20), (Reg::R3, 16, 22)] {
        asm.load(Width::Word, reg, Reg::R10, AT + address);
        asm.alu64(Alu::ShiftLeft, reg, 16);
        asm.load(Width::Half, Reg::R0, Reg::R10, AT + port);
        asm.alu64(Alu::Or, reg, Reg::R0);
    }
    let ordered = asm.label();
    asm.jump_if(Condition::LessEqual, Reg::R2, Reg::R3, ordered);
    asm.set(Reg::R0, Reg::R2);
    asm.set(Reg::R2, Reg::R3);
    asm.set(Reg::R3, Reg::R0);
    asm.bind(ordered);
    asm.alu64(Alu::ShiftLeft, Reg::R5, 48);
    asm.alu64(Alu::Or, Reg::R3, Reg::R5);
    asm.set_u64(Reg::R1, table.key);
    write_step(asm, Reg::R1, Reg::R2);
    write_step(asm, Reg::R1, Reg::R3);
}

/// `R1` = the hash of the flow whose IPv6 header is on the stack, or continues at `none`.
fn hash_ipv6(asm: &mut Assembler, table: &CutTable, none: Label) {
    asm.load(Width::Byte, Reg::R5, Reg::R10, AT + 6);
    tcp_or_udp(asm, Reg::R5, none);
    asm.set(Reg::R3, 0);
    for (address, port) in [(8, 40), (24, 42)] {
        asm.set_u64(Reg::R1, table.key);
        asm.load(Width::Double, Reg::R2, Reg::R10, AT + address);
        write_step(asm, Reg::R1, Reg::R2);
        asm.load(Width::Double, Reg::R2, Reg::R10, AT + address + 8);
        write_step(asm, Reg::R1, Reg::R2);
        asm.load(Width::Half, Reg::R2, Reg::R10, AT + port);
        write_step(asm, Reg::R1, Reg::R2);
        asm.alu64(Alu::Add, Reg::R3, Reg::R1);
    }
    asm.set_u64(Reg::R1, table.key);
    write_step(asm, Reg::R1, Reg::R3);
    asm.alu64(Alu::ShiftLeft, Reg::R5, 48);
    write_step(asm, Reg::R1, Reg::R5);
}

/// Continues at `none` unless the protocol is TCP or UDP.
fn tcp_or_udp(asm: &mut Assembler, protocol: Reg, none: Label) {
    let known = asm.label();
    asm.jump_if(Condition::Equal, protocol, 6, known);
    asm.jump_if(Condition::NotEqual, protocol, 17, none);
    asm.bind(known);
}

/// `R0` = the length of the entry of the hash in `R1`, if the entry is its own and valid.
fn read_entry(asm: &mut Assembler, table: &CutTable, none: Label) {
    let mask = exact::<i32>(TABLE_ENTRIES - 1);
    let number = table.shared.number();
    let at = |words: usize| exact::<i32>(words * 8);
    asm.set(Reg::R0, Reg::R1);
    asm.alu64(Alu::And, Reg::R0, mask);
    asm.alu64(Alu::ShiftLeft, Reg::R0, 3);
    asm.shared_address(Reg::R2, number, at(TABLE_AT));
    asm.alu64(Alu::Add, Reg::R2, Reg::R0);
    asm.load(Width::Double, Reg::R0, Reg::R2, 0);
    asm.alu64(Alu::Xor, Reg::R1, Reg::R0);
    asm.alu64(Alu::ShiftRight, Reg::R1, TAG_SHIFT);
    asm.jump_if(Condition::NotEqual, Reg::R1, 0, none);
    asm.shared_address(Reg::R2, number, at(SECOND_AT));
    asm.load(Width::Double, Reg::R2, Reg::R2, 0);
    asm.set(Reg::R1, Reg::R0);
    asm.alu64(Alu::ShiftRight, Reg::R1, 16);
    asm.alu64(Alu::Sub, Reg::R2, Reg::R1);
    asm.alu64(Alu::And, Reg::R2, 0xff);
    asm.jump_if(Condition::Greater, Reg::R2, LIFETIME_SECONDS, none);
    asm.alu64(Alu::And, Reg::R0, 0xffff);
}
