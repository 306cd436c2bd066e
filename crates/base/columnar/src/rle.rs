//! The RLE and bit-packing hybrid of Parquet's levels and numbers of dictionary entries (Encodings.md of the
//! Parquet format, "Run Length Encoding / Bit-Packing Hybrid"), without the length before it.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use parquet::errors::{ParquetError, Result};

/// Equal values that are worth a run of their own.
const RUN_MIN: usize = 8;

/// Appends values of `width` bits: runs of 8 or more equal ones as count and value, all else packed in groups
/// of 8, of which the last one is padded with zeros.
///
/// # Panics
///
/// If `width` is more than 32. A value of more than `width` bits spoils others: the caller knows the largest.
#[allow(clippy::arithmetic_side_effects, reason = "places in a slice")]
pub fn write(values: &[u32], width: u8, out: &mut Vec<u8>) {
    let mut packer = Packer::new(width, out);
    let mut at = 0;
    while at < values.len() {
        let start = next_run(values, at);
        packer.packed(&values[at..start]);
        let count = equal(&values[start..]);
        if count > 0 {
            packer.run(values[start], count);
        }
        at = start + count;
    }
    packer.literals();
}

/// Where the next [`RUN_MIN`] equal values start, from `at` on, where others end; or the end.
#[allow(clippy::arithmetic_side_effects, reason = "places in a slice")]
fn next_run(values: &[u32], mut at: usize) -> usize {
    while let Some(run) = values.get(at..at + RUN_MIN) {
        // None starts before the last value that differs from the one before it: usually the last
        // of these, so that most values are not looked at.
        match (1..RUN_MIN).rev().find(|&n| run[n] != run[n - 1]) {
            Some(n) => at += n,
            None => return at,
        }
    }
    values.len()
}

/// How many values from the start are equal.
#[allow(clippy::arithmetic_side_effects, reason = "places in a slice")]
fn equal(values: &[u32]) -> usize {
    let Some(&first) = values.first() else {
        return 0;
    };
    // The compiler compares several at a time.
    let same = |values: &&[u32; 16]| values.iter().fold(0, |bits, v| bits | (v ^ first)) == 0;
    let (wide, _) = values.as_chunks::<16>();
    let start = 16 * wide.iter().take_while(same).count();
    let others = values[start..].iter().take_while(|value| **value == first);
    start + others.count()
}

/// As [`write()`], for one value repeated `count` times.
///
/// # Panics
///
/// As [`write()`].
pub fn repeated(value: u32, count: usize, width: u8, out: &mut Vec<u8>) {
    let mut packer = Packer::new(width, out);
    packer.run(value, count);
    packer.literals();
}

/// Values packed together, at most; a multiple of 8.
const LITERALS_MAX: usize = 504;

struct Packer<'a> {
    width: u32,
    /// Values waiting to be packed.
    literals: Vec<u32>,
    out: &'a mut Vec<u8>,
}

#[allow(
    clippy::arithmetic_side_effects,
    reason = "counts of values in memory, and widths of at most 32 bits"
)]
impl<'a> Packer<'a> {
    fn new(width: u8, out: &'a mut Vec<u8>) -> Self {
        assert!(width <= 32, "values have at most 32 bits");
        Self {
            width: u32::from(width),
            literals: Vec::with_capacity(LITERALS_MAX),
            out,
        }
    }

    /// Adds `value`, `count` times.
    fn run(&mut self, value: u32, mut count: usize) {
        // Only whole groups can be packed, except for the last.
        let missing = (8 - self.literals.len() % 8) % 8;
        let same = [value; 2 * RUN_MIN];
        if count < RUN_MIN + missing {
            return self.packed(&same[..count]);
        }
        self.packed(&same[..missing]);
        count -= missing;
        self.literals();
        self.varint((count as u64) << 1);
        let bytes = self.width.div_ceil(8) as usize;
        self.out.extend_from_slice(&value.to_le_bytes()[..bytes]);
    }

    /// Adds values that are packed.
    fn packed(&mut self, mut values: &[u32]) {
        while !values.is_empty() {
            let room = LITERALS_MAX - self.literals.len();
            let (now, later) = values.split_at(room.min(values.len()));
            self.literals.extend_from_slice(now);
            if self.literals.len() == LITERALS_MAX {
                self.literals();
            }
            values = later;
        }
    }

    /// Packs the waiting values, padded with zeros to a whole group.
    fn literals(&mut self) {
        if self.literals.is_empty() {
            return;
        }
        let groups = self.literals.len().div_ceil(8);
        self.literals.resize(groups * 8, 0);
        self.varint((groups as u64) << 1 | 1);
        let (mut bits, mut held) = (0_u64, 0);
        for value in &self.literals {
            bits |= u64::from(*value) << held;
            held += self.width;
            if held >= 32 {
                self.out.extend_from_slice(&bits.to_le_bytes()[..4]);
                bits >>= 32;
                held -= 32;
            }
        }
        // Groups of 8 take whole bytes.
        let left = held as usize / 8;
        self.out.extend_from_slice(&bits.to_le_bytes()[..left]);
        self.literals.clear();
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.out.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.out.push(value.to_le_bytes()[0]);
    }
}

/// Reads values of `width` bits until `out` has `count` of them, as any writer may have written them, from bytes
/// that may be any. A few bytes may stand for all values, so `count` bounds the memory: 4 bytes each.
///
/// # Errors
///
/// If there are fewer values, or some have more bits.
pub fn read(bytes: &[u8], width: u8, count: usize, out: &mut Vec<u32>) -> Result<()> {
    if width > 32 {
        return Err(wrong("numbers of more than 32 bits"));
    }
    let width = usize::from(width);
    let mut rest = bytes;
    // Each run takes bytes, also one of no values.
    while let Some(left) = count.checked_sub(out.len()).filter(|left| *left > 0) {
        let (header, after) = varint(rest)?;
        let groups = usize::try_from(header >> 1)?;
        if header & 1 == 0 {
            let (value, after) = cut(after, width.div_ceil(8))?;
            let value = u32::try_from(little_endian(value, 0))?;
            if u64::from(value) >> width != 0 {
                return Err(wrong("a number of too many bits"));
            }
            out.extend(std::iter::repeat_n(value, groups.min(left)));
            rest = after;
        } else {
            let values = groups.saturating_mul(8).min(left);
            let len = groups.saturating_mul(width);
            // Some writers end a page with the last value.
            let needed = values.saturating_mul(width).div_ceil(8);
            let len = len.min(after.len()).max(needed);
            let (packed, after) = cut(after, len)?;
            unpack(packed, width, values, out);
            rest = after;
        }
    }
    Ok(())
}

/// Numbers of at most 32 bits, one after the other.
#[allow(
    clippy::arithmetic_side_effects,
    reason = "a place in a page, and shifts by less than 64"
)]
#[allow(clippy::cast_possible_truncation, reason = "masked")]
fn unpack(packed: &[u8], width: usize, values: usize, out: &mut Vec<u32>) {
    let mask = (1_u64 << width) - 1;
    let number = |n: usize| {
        let bit = n * width;
        (little_endian(packed, bit / 8) >> (bit % 8) & mask) as u32
    };
    out.extend((0..values).map(number));
}

/// Up to 8 bytes from here on, as zeros after the end.
fn little_endian(bytes: &[u8], at: usize) -> u64 {
    let rest = bytes.get(at..).unwrap_or(&[]);
    match rest.first_chunk() {
        Some(word) => u64::from_le_bytes(*word),
        None => {
            let shifted = rest.iter().rev();
            shifted.fold(0, |word, byte| word << 8 | u64::from(*byte))
        }
    }
}

/// A number in 7 bits a byte, of at most 32 bits.
fn varint(bytes: &[u8]) -> Result<(u64, &[u8])> {
    let mut value = 0;
    for (at, byte) in bytes.iter().enumerate().take(5) {
        value |= u64::from(byte & 0x7f) << at.saturating_mul(7);
        if byte & 0x80 == 0 {
            return Ok((value, bytes.split_at(at.saturating_add(1)).1));
        }
    }
    Err(wrong("a run without length"))
}

fn cut(bytes: &[u8], len: usize) -> Result<(&[u8], &[u8])> {
    let cut = bytes.split_at_checked(len);
    cut.ok_or_else(|| wrong("numbers that end too early"))
}

fn wrong(problem: &str) -> ParquetError {
    ParquetError::General(problem.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The naive twin looks at one value after the other.
        #[test]
        fn runs_are_those_that_a_look_at_every_value_finds(
            runs in proptest::collection::vec((0_u32..4, prop_oneof![8 => 1_usize..4, 3 => 1_usize..40, 1 => 1_usize..1200]), 0..200),
        ) {
            let values: Vec<u32> = runs
                .into_iter()
                .flat_map(|(value, count)| std::iter::repeat_n(value, count))
                .collect();
            let (mut found, mut expected) = (Vec::new(), Vec::new());
            write(&values, 2, &mut found);
            let mut packer = Packer::new(2, &mut expected);
            for run in values.chunk_by(|a, b| a == b) {
                packer.run(run[0], run.len());
            }
            packer.literals();
            prop_assert_eq!(found, expected);
        }

        /// What was written is read back.
        #[test]
        fn numbers_of_any_width_are_read(
            width in 0_u8..=32,
            runs in prop::collection::vec((any::<u32>(), prop_oneof![4 => 1_usize..3, 1 => 1_usize..600]), 1..60),
        ) {
            let mask = u32::try_from((1_u64 << width) - 1).unwrap();
            let numbers = runs.into_iter();
            let numbers: Vec<u32> = numbers
                .flat_map(|(number, times)| std::iter::repeat_n(number & mask, times))
                .collect();
            let (mut bytes, mut found) = (Vec::new(), Vec::new());
            write(&numbers, width, &mut bytes);
            read(&bytes, width, numbers.len(), &mut found).unwrap();
            prop_assert_eq!(found, numbers);
        }

        /// Bytes from anywhere are read, or refused.
        #[test]
        fn no_bytes_are_too_strange(
            bytes in prop::collection::vec(any::<u8>(), 0..60),
            width in any::<u8>(),
            count in 0_usize..300,
        ) {
            let mut found = Vec::new();
            if read(&bytes, width, count, &mut found).is_ok() {
                prop_assert_eq!(found.len(), count);
                prop_assert!(found.iter().all(|number| u64::from(*number) >> width == 0));
            }
        }
    }
}
