//! Sixteen lanes, whatever registers a machine has: what vector code of the data path is written in.
//!
//! A kernel is written once, for any [`Lanes`], and compiled for each set of instructions:
//! [`Simd::run`](super::Simd::run). Everything in it must be `#[inline(always)]`, since code is
//! compiled for the instructions of the function that it ends up in; a closure that is called at
//! several places, or handed to `map` of an array, may not end up there. Own traits instead of a
//! library's: kernels live from masks, packing, byte permutations and repeated values, which
//! those offer for none or one of the instruction sets.

use super::{BitRow, ByteLanes, GROUP};

/// What is done for any [`Lanes`].
pub trait Kernel {
    /// What it results in.
    type Output;

    /// Does it.
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// Operations on 16 lanes. Implemented by proofs that this machine has the instructions, so that
/// they are safe to call. Numbers are unsigned.
pub trait Lanes: ByteLanes {
    /// 16 numbers of 32 bits.
    type U32: Copy;
    /// 16 numbers of 64 bits.
    type U64: Copy;
    /// 16 floating-point numbers of 64 bits.
    type F64: Copy;
    /// Which of the lanes.
    type Mask: Copy;
    /// How the lanes of a mask are put next to each other.
    type Packing: Copy;
    /// 64 numbers of 32 bits that are compared with many others.
    type Words: Copy;
    /// The same of 16 bits.
    type Halves: Copy;
    /// The same of 8 bits.
    type Bytes: Copy;
    /// A bit for each packet of a batch.
    type Row: Copy;

    /// Which four of 64 numbers the bits of a comparison stand for, from the lowest four bits on.
    const FOURS: [u8; 16];
    /// Groups of lanes that fit in registers, where steps that wait for each other are done for
    /// several groups at once.
    const AT_ONCE: usize;

    /// The same in all lanes.
    fn set(self, value: u32) -> Self::U32;
    /// Lanes in order.
    fn load(self, values: &[u32; GROUP]) -> Self::U32;
    /// The first 16 of these in order; 0 in the lanes beyond the last value.
    fn load_first(self, values: &[u32]) -> Self::U32;
    /// Lanes in order.
    fn store(self, values: Self::U32, to: &mut [u32; GROUP]);
    /// Sums, wrapping.
    fn add(self, a: Self::U32, b: Self::U32) -> Self::U32;
    /// Differences, wrapping.
    fn sub(self, a: Self::U32, b: Self::U32) -> Self::U32;
    /// The low halves of products.
    fn mul(self, a: Self::U32, b: Self::U32) -> Self::U32;
    /// The smaller ones.
    fn min(self, a: Self::U32, b: Self::U32) -> Self::U32;
    /// The larger ones.
    fn max(self, a: Self::U32, b: Self::U32) -> Self::U32;
    /// Bits in both.
    fn and(self, a: Self::U32, b: Self::U32) -> Self::U32;
    /// Bits in either.
    fn or(self, a: Self::U32, b: Self::U32) -> Self::U32;
    /// Shifted to higher bits, by less than 32.
    fn shl(self, values: Self::U32, bits: u32) -> Self::U32;
    /// Shifted to lower bits, by less than 32.
    fn shr(self, values: Self::U32, bits: u32) -> Self::U32;
    /// Squares: their low and high halves.
    fn square(self, values: Self::U32) -> (Self::U32, Self::U32);
    /// Sums of 16-bit halves, at most 65,535 each.
    fn add_halves(self, a: Self::U32, b: Self::U32) -> Self::U32;
    /// The smaller 16-bit halves.
    fn min_halves(self, a: Self::U32, b: Self::U32) -> Self::U32;
    /// The larger 16-bit halves.
    fn max_halves(self, a: Self::U32, b: Self::U32) -> Self::U32;
    /// The low bytes of 64 numbers in order.
    fn low_bytes(self, values: [Self::U32; 4]) -> Self::U8;
    /// What a table has at places from 2^`step` on that are less than 2^(`step` + 1), as the nodes of
    /// a step of a binary search are; arbitrary for others.
    #[inline(always)]
    fn look_up_step(self, table: &[u32; 256], step: u32, places: Self::U32) -> Self::U32 {
        let _ = step;
        let mut numbers = [0; GROUP];
        self.store(places, &mut numbers);
        self.load(&numbers.map(|place| table[place as usize % table.len()]))
    }
    /// Rows become columns.
    fn transpose(self, rows: [Self::U32; GROUP]) -> [Self::U32; GROUP];

    /// Where both are equal.
    fn eq(self, a: Self::U32, b: Self::U32) -> Self::Mask;
    /// Where `a` is at most `b`.
    fn le(self, a: Self::U32, b: Self::U32) -> Self::Mask;
    /// Where the top bit is set.
    fn top(self, values: Self::U32) -> Self::Mask;
    /// Where either of two values is that of an earlier lane too.
    fn repeats(self, values: [Self::U32; 2]) -> Self::Mask;
    /// `yes` where the mask is set, else `no`.
    fn choose(self, mask: Self::Mask, yes: Self::U32, no: Self::U32) -> Self::U32;
    /// `values` where the mask is set, else 0.
    fn only(self, mask: Self::Mask, values: Self::U32) -> Self::U32;
    /// A mask from its bits.
    fn mask(self, bits: u16) -> Self::Mask;
    /// The bits of a mask.
    fn bits(self, mask: Self::Mask) -> u16;
    /// Lanes in both masks.
    fn both(self, a: Self::Mask, b: Self::Mask) -> Self::Mask;
    /// Lanes in either mask.
    fn either(self, a: Self::Mask, b: Self::Mask) -> Self::Mask;
    /// Lanes in one mask and not in the other.
    fn one_of(self, a: Self::Mask, b: Self::Mask) -> Self::Mask;
    /// Lanes not in the mask.
    fn not(self, mask: Self::Mask) -> Self::Mask;

    /// How these lanes are packed.
    fn packing(self, mask: u16) -> Self::Packing;
    /// Stores the lanes of a packing one after another; what follows them is arbitrary.
    fn pack(self, packing: Self::Packing, values: Self::U32, to: &mut [u32; GROUP]);
    /// The same for the first of them only, as many as there are places, less than 16.
    fn pack_first(self, packing: Self::Packing, values: Self::U32, to: &mut [u32]);

    /// The same in all lanes.
    fn set_64(self, value: u64) -> Self::U64;
    /// Lanes in order.
    fn load_64(self, values: &[u64; GROUP]) -> Self::U64;
    /// Lanes in order.
    fn store_64(self, values: Self::U64, to: &mut [u64; GROUP]);
    /// Zeros above.
    fn widen(self, values: Self::U32) -> Self::U64;
    /// The low halves.
    fn narrow(self, values: Self::U64) -> Self::U32;
    /// Sums, wrapping.
    fn add_64(self, a: Self::U64, b: Self::U64) -> Self::U64;
    /// Differences, wrapping.
    fn sub_64(self, a: Self::U64, b: Self::U64) -> Self::U64;
    /// 1 where a sum is less than one of its parts, else 0.
    fn carry_64(self, sum: Self::U64, part: Self::U64) -> Self::U64;
    /// Products of the low halves.
    fn mul_low_halves(self, a: Self::U64, b: Self::U64) -> Self::U64;
    /// The low halves of products with the same number.
    fn mul_64(self, a: Self::U64, b: u64) -> Self::U64;
    /// The smaller ones.
    fn min_64(self, a: Self::U64, b: Self::U64) -> Self::U64;
    /// The larger ones.
    fn max_64(self, a: Self::U64, b: Self::U64) -> Self::U64;
    /// Bits in both.
    fn and_64(self, a: Self::U64, b: Self::U64) -> Self::U64;
    /// Bits in either.
    fn or_64(self, a: Self::U64, b: Self::U64) -> Self::U64;
    /// Bits in one of both.
    fn xor_64(self, a: Self::U64, b: Self::U64) -> Self::U64;
    /// Shifted to higher bits, by less than 64.
    fn shl_64(self, values: Self::U64, bits: u32) -> Self::U64;
    /// Shifted to lower bits, by less than 64.
    fn shr_64(self, values: Self::U64, bits: u32) -> Self::U64;
    /// Where both are equal.
    fn eq_64(self, a: Self::U64, b: Self::U64) -> u16;
    /// Where `a` is at most `b`.
    fn le_64(self, a: Self::U64, b: Self::U64) -> u16;

    /// The same numbers.
    fn floats(self, values: Self::U32) -> Self::F64;
    /// The same in all lanes.
    fn set_float(self, value: f64) -> Self::F64;
    /// Sums.
    fn add_floats(self, a: Self::F64, b: Self::F64) -> Self::F64;
    /// Differences.
    fn sub_floats(self, a: Self::F64, b: Self::F64) -> Self::F64;
    /// Products.
    fn mul_floats(self, a: Self::F64, b: Self::F64) -> Self::F64;
    /// Quotients.
    fn div_floats(self, a: Self::F64, b: Self::F64) -> Self::F64;
    /// 0 in place of negative numbers.
    fn positive(self, a: Self::F64) -> Self::F64;
    /// Without the fraction, for numbers from 0 to 2^32 - 1; else arbitrary.
    fn whole(self, values: Self::F64) -> Self::U32;
    /// The bits of the nearest 32-bit floating-point numbers.
    fn short_bits(self, values: Self::F64) -> Self::U32;
    /// The same of numbers below 2^24, which are exact.
    fn bits_of_short(self, values: Self::U32) -> Self::U32;

    /// 64 numbers to compare; their comparisons are in the order of [`Lanes::FOURS`]. What they are
    /// compared with has its top bit inverted, since most machines compare signed numbers.
    fn words(self, values: &[u32; 64]) -> Self::Words;
    /// The same, at most 65,535 each.
    fn halves(self, values: &[u32; 64]) -> Self::Halves;
    /// The same, at most 255 each.
    fn bytes(self, values: &[u32; 64]) -> Self::Bytes;
    /// Which numbers are greater.
    fn words_above(self, values: Self::Words, than: i32, to: &mut u64);
    /// Which numbers are greater.
    fn halves_above(self, values: Self::Halves, than: i16, to: &mut u64);
    /// Which numbers are greater.
    fn bytes_above(self, values: Self::Bytes, than: i8, to: &mut u64);

    /// A row from memory.
    fn row(self, row: &BitRow) -> Self::Row;
    /// A row to memory.
    fn store_row(self, row: Self::Row, to: &mut BitRow);
    /// Bits in both.
    fn and_rows(self, a: Self::Row, b: Self::Row) -> Self::Row;
    /// Bits in `a` that are not in `b`.
    fn without(self, a: Self::Row, b: Self::Row) -> Self::Row;
    /// Bits in either.
    fn or_rows(self, a: Self::Row, b: Self::Row) -> Self::Row;
    /// Bits in one of both.
    fn xor_rows(self, a: Self::Row, b: Self::Row) -> Self::Row;
    /// Bits of each word shifted to higher ones, by less than 64.
    fn shl_row(self, row: Self::Row, bits: u32) -> Self::Row;
    /// Bits of each word shifted to lower ones, by less than 64.
    fn shr_row(self, row: Self::Row, bits: u32) -> Self::Row;

    /// The words of plain headers, of 16 packets each: source and destination address, ports,
    /// EtherType to type of service, length and fragment, time to live to TCP flags, TCP window.
    /// Arbitrary for packets of fewer than 50 bytes.
    fn heads(self, packets: &[&[u8]; GROUP]) -> [Self::U32; 7];
}
