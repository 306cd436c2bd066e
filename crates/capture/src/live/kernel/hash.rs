//! The keyed hash of flows, as user space and as the kernel's programs compute it.

use strata_bpf::{Alu, Assembler, Reg};
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
    let bytes = end.address.to_be_bytes();
    let word = |at: usize| {
        let half = bytes[at..].first_chunk();
        half.map_or(0, |half: &[u8; 8]| u64::from_ne_bytes(*half))
    };
    [word(0), word(8), u64::from(end.port.to_be())]
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
