//! Fields of any number of bits, the first in the lowest bits of the first byte.
//!
//! Bits go through a word of 64, which [`Bits::turn`] empties or fills: between two turns there is
//! room for [`TURN`] bits. So a field costs a shift and an addition, and a turn one load or store.

/// Bits that may be written or read between two turns.
pub(crate) const TURN: u32 = 56;

/// Writes fields, or reads them: what codes a record calls the same functions for both.
pub(crate) trait Bits {
    /// Whether fields are written.
    const WRITES: bool;

    /// Writes `value`, which has at most `width` bits; or reads so many. Returns the value.
    fn bits(&mut self, value: u64, width: u32) -> u64;

    /// Makes room for [`TURN`] more bits.
    fn turn(&mut self);

    /// As [`Bits::bits`], for up to 32 bits.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "32 bits were asked for")]
    fn word(&mut self, value: u32, width: u32) -> u32 {
        self.bits(u64::from(value), width) as u32
    }

    /// As [`Bits::bits`], for up to 16 bits.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "16 bits were asked for")]
    fn half(&mut self, value: u16, width: u32) -> u16 {
        self.bits(u64::from(value), width) as u16
    }

    /// As [`Bits::bits`], for up to 8 bits.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "8 bits were asked for")]
    fn byte(&mut self, value: u8, width: u32) -> u8 {
        self.bits(u64::from(value), width) as u8
    }

    /// One bit.
    #[inline(always)]
    fn flag(&mut self, value: bool) -> bool {
        self.bits(u64::from(value), 1) != 0
    }

    /// Bytes, with turns before, between and after them.
    #[inline]
    fn raw(&mut self, bytes: &mut [u8]) {
        self.turn();
        let mut words = bytes.chunks_exact_mut(4);
        for word in &mut words {
            let value = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            word.copy_from_slice(&self.word(value, 32).to_le_bytes());
            self.turn();
        }
        for byte in words.into_remainder() {
            *byte = self.byte(*byte, 8);
        }
        self.turn();
    }

    /// Runs what is rare and not inlined, with a copy: what others have a reference to has to be in
    /// memory at all times, what only this function has is in registers.
    fn apart<R>(&mut self, run: impl FnOnce(&mut Self) -> R) -> R;
}

/// Where a writer is: bytes before, and bits that are not among them yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Position {
    at: usize,
    held: u64,
    used: u32,
}

impl Position {
    /// After the first `at` bytes.
    pub(crate) fn new(at: usize) -> Self {
        Self {
            at,
            ..Self::default()
        }
    }

    /// Bytes up to the last bit.
    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        self.at + self.used.div_ceil(8) as usize
    }
}

/// Writes into a buffer that is longer than what may be written, by [`BitWriter::SLACK`].
#[derive(Debug)]
pub(crate) struct BitWriter<'a> {
    bytes: &'a mut [u8],
    at: usize,
    held: u64,
    used: u32,
}

impl<'a> BitWriter<'a> {
    /// Bytes that may be written past the room: of one record, and a whole word.
    pub(crate) const SLACK: usize = 512;

    #[inline(always)]
    pub(crate) fn new(bytes: &'a mut [u8], position: Position) -> Self {
        let Position { at, held, used } = position;
        Self {
            bytes,
            at,
            held,
            used,
        }
    }

    /// Where it is.
    #[inline(always)]
    pub(crate) fn position(&self) -> Position {
        let (at, held, used) = (self.at, self.held, self.used);
        Position { at, held, used }
    }

    /// Everything written, its last byte filled with zeros.
    pub(crate) fn finish(mut self) -> &'a mut [u8] {
        self.turn();
        let len = self.position().len();
        &mut self.bytes[..len]
    }
}

impl Bits for BitWriter<'_> {
    const WRITES: bool = true;

    #[inline(always)]
    fn bits(&mut self, value: u64, width: u32) -> u64 {
        debug_assert!(
            width <= TURN && value >> width == 0,
            "{value} in {width} bits"
        );
        debug_assert!(self.used + width < 64, "a turn is missing");
        self.held |= value << (self.used & 63);
        self.used += width;
        value
    }

    #[inline(always)]
    fn turn(&mut self) {
        let word: &mut [u8; 8] = (&mut self.bytes[self.at..self.at + 8])
            .try_into()
            .expect("8 bytes");
        *word = self.held.to_le_bytes();
        self.at += (self.used >> 3) as usize;
        self.held >>= self.used & 56;
        self.used &= 7;
    }

    #[inline(always)]
    fn apart<R>(&mut self, run: impl FnOnce(&mut Self) -> R) -> R {
        let mut copy = BitWriter::new(std::mem::take(&mut self.bytes), self.position());
        let result = run(&mut copy);
        *self = copy;
        result
    }
}

/// Reads from bytes that end with [`BitReader::PAD`] zeros more.
#[derive(Debug)]
pub(crate) struct BitReader<'a> {
    bytes: &'a [u8],
    at: usize,
    held: u64,
    used: u32,
}

impl<'a> BitReader<'a> {
    /// Zeros after the last byte: more than a record may read past it before somebody checks.
    pub(crate) const PAD: usize = BitWriter::SLACK;

    /// Reads from byte `at` on.
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Self {
        let mut reader = Self {
            bytes,
            at,
            held: 0,
            used: 0,
        };
        reader.turn();
        reader
    }

    /// Bytes read, the last perhaps in part.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.at + self.used.div_ceil(8) as usize
    }

    /// Whether it read past the last byte, which is before the padding.
    #[inline(always)]
    pub(crate) fn is_past_end(&self) -> bool {
        self.len() + Self::PAD > self.bytes.len()
    }

    /// The ones before the next zero, of the bits of this turn; they are not read yet.
    #[inline(always)]
    pub(crate) fn ones(&self) -> u32 {
        self.held.trailing_ones()
    }

    /// Whether the bits between the last one read and the next byte are zero.
    pub(crate) fn ends_with_zeros(&mut self) -> bool {
        self.turn();
        let rest = (8 - self.used) & 7;
        self.bits(0, rest) == 0
    }
}

impl Bits for BitReader<'_> {
    const WRITES: bool = false;

    #[inline(always)]
    fn bits(&mut self, _: u64, width: u32) -> u64 {
        let value = self.held & ((1_u64 << (width & 63)) - 1);
        self.held >>= width & 63;
        self.used += width;
        value
    }

    #[inline(always)]
    fn turn(&mut self) {
        self.at += (self.used >> 3) as usize;
        self.used &= 7;
        let word: [u8; 8] = self.bytes[self.at..self.at + 8]
            .try_into()
            .expect("8 bytes");
        self.held = u64::from_le_bytes(word) >> self.used;
    }

    #[inline(always)]
    fn apart<R>(&mut self, run: impl FnOnce(&mut Self) -> R) -> R {
        let mut copy = Self { ..*self };
        let result = run(&mut copy);
        *self = copy;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(fields in prop::collection::vec((any::<u64>(), 0_u32..=32), 0..99)) {
            let mut buffer = vec![0; 512 + BitWriter::SLACK];
            let mut writer = BitWriter::new(&mut buffer, Position::new(0));
            for &(value, width) in &fields {
                writer.bits(value & ((1 << width) - 1), width);
                writer.turn();
            }
            let mut bytes = writer.finish().to_vec();
            let bits: usize = fields.iter().map(|field| field.1 as usize).sum();
            prop_assert_eq!(bytes.len(), bits.div_ceil(8));
            bytes.resize(bytes.len() + BitReader::PAD, 0);
            let mut reader = BitReader::new(&bytes, 0);
            for &(value, width) in &fields {
                prop_assert_eq!(reader.bits(0, width), value & ((1 << width) - 1));
                reader.turn();
            }
            prop_assert!(reader.ends_with_zeros() && !reader.is_past_end());
        }
    }

    #[test]
    fn the_first_field_is_in_the_lowest_bits() {
        let mut buffer = [0; 64];
        let mut writer = BitWriter::new(&mut buffer, Position::new(0));
        writer.bits(0b101, 3);
        writer.bits(0x7ff, 11);
        assert_eq!(writer.finish(), [0b1111_1101, 0b0011_1111]);
    }
}
