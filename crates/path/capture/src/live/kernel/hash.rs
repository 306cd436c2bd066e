//! The keyed hash of flows, as user space and as the kernel's programs compute it.

use strata_bpf::{Alu, Assembler, Condition, Label, Operand, Reg};
use strata_wire::Endpoint;

const MULTIPLIER: u64 = 0x9fb2_1c65_1e98_df25;

/// One step of a hash: mixes a word in.
#[inline]
pub(super) fn step(hash: u64, word: u64) -> u64 {
    let mixed = (hash ^ word).wrapping_mul(MULTIPLIER);
    mixed ^ mixed >> 32
}

/// An end's hash, to be added to the other end's.
#[inline]
pub(super) fn fold(key: u64, [a, b, port]: [u64; 3]) -> u64 {
    step(step(step(key, a), b), port)
}

/// Address and port as a little-endian machine loads them from network order.
#[inline]
pub(super) fn raw_ipv4(end: Endpoint) -> u64 {
    #[allow(clippy::cast_possible_truncation)]
    let address = (end.address as u32).to_be();
    u64::from(address) << 16 | u64::from(end.port.to_be())
}

#[inline]
pub(super) fn raw_ipv6(end: Endpoint) -> [u64; 3] {
    #[allow(clippy::cast_possible_truncation)]
    let halves = [(end.address >> 64) as u64, end.address as u64];
    let [high, low] = halves.map(u64::to_be);
    [high, low, u64::from(end.port.to_be())]
}

/// [`step`] in a program: mixes a word into `hash`; uses `R4`.
pub(super) fn write_step(asm: &mut Assembler, hash: Reg, word: Reg) {
    asm.alu64(Alu::Xor, hash, word);
    asm.set_u64(Reg::R4, MULTIPLIER);
    asm.alu64(Alu::Mul, hash, Reg::R4);
    asm.set(Reg::R4, hash);
    asm.alu64(Alu::ShiftRight, Reg::R4, 32);
    asm.alu64(Alu::Xor, hash, Reg::R4);
}

/// Where [`copy_headers`] stores headers on the stack.
pub(super) const HEADERS_AT: i16 = -48;

/// Copies `bytes` of the packet in `R6`, from `offset` on, to the stack, or continues at `none`. `load_bytes`
/// is the helper for it. Uses `R0` to `R5`.
pub(super) fn copy_headers(
    asm: &mut Assembler,
    load_bytes: i32,
    offset: impl Into<Operand>,
    bytes: i32,
    none: Label,
) {
    asm.set(Reg::R1, Reg::R6);
    asm.set(Reg::R2, offset);
    asm.set(Reg::R3, Reg::R10);
    asm.alu64(Alu::Add, Reg::R3, i32::from(HEADERS_AT));
    asm.set(Reg::R4, bytes);
    asm.call(load_bytes);
    asm.jump_if(Condition::NotEqual, Reg::R0, 0, none);
}
