//! A record's two streams. Bytes go forward from a datagram's start: values that are as long as they
//! are, as in the packet. Bits go backward from its end: codes, and values of any other length; the
//! first ones are the lowest of the last byte. So neither is filled up to where the other begins.
//!
//! Bits go through a word of 64, which `turn` empties or fills: between two turns there is room for
//! [`TURN`] of them. So a field costs a shift and an addition, and a turn one store or load.

/// Bits that may be written or read between two turns.
pub(crate) const TURN: u32 = 56;

/// Where a writer is in both streams, and the bits that are not in the buffer yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    front: usize,
    back: usize,
    held: u64,
    used: u32,
}

impl Position {
    /// Bytes begin at `front`, bits end at `back`.
    pub(crate) fn new(front: usize, back: usize) -> Self {
        Self {
            front,
            back,
            held: 0,
            used: 0,
        }
    }

    /// Bytes that bits take, the last perhaps in part.
    #[inline(always)]
    fn bit_bytes(self, end: usize) -> usize {
        end - self.back + (self.used as usize).div_ceil(8)
    }

    /// Bytes of both streams, in a buffer of so many.
    #[inline(always)]
    pub(crate) fn len(self, end: usize) -> usize {
        self.front + self.bit_bytes(end)
    }
}

/// Writes into a buffer that is longer than what may be written, by [`Writer::SLACK`].
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    bytes: &'a mut [u8],
    at: Position,
}

impl<'a> Writer<'a> {
    /// Bytes between the streams before a record that may not fit: no record takes more.
    pub(crate) const SLACK: usize = 512;

    #[inline(always)]
    pub(crate) fn new(bytes: &'a mut [u8], at: Position) -> Self {
        Self { bytes, at }
    }

    #[inline(always)]
    pub(crate) fn position(&self) -> Position {
        self.at
    }

    /// Writes `value`, which has at most `width` bits.
    #[inline(always)]
    pub(crate) fn bits(&mut self, value: u64, width: u32) {
        debug_assert!(
            width <= TURN && value >> width == 0,
            "{value} in {width} bits"
        );
        debug_assert!(self.at.used + width < 64, "a turn is missing");
        self.at.held |= value << (self.at.used & 63);
        self.at.used = self.at.used.wrapping_add(width);
    }

    /// Makes room for [`TURN`] more bits.
    #[inline(always)]
    pub(crate) fn turn(&mut self) {
        let Position {
            back, held, used, ..
        } = self.at;
        let word = self.bytes[..back].last_chunk_mut().expect("the slack");
        *word = held.to_be_bytes();
        self.at.back = back.wrapping_sub((used >> 3) as usize);
        self.at.held = held >> (used & 56);
        self.at.used = used & 7;
    }

    /// Writes the first `len` of `N` bytes.
    #[inline(always)]
    pub(crate) fn some<const N: usize>(&mut self, bytes: [u8; N], len: usize) {
        debug_assert!(len <= N);
        let front = self.at.front;
        let place = self.bytes[front..].first_chunk_mut().expect("the slack");
        *place = bytes;
        self.at.front = front.wrapping_add(len);
    }

    /// Writes bytes.
    #[inline(always)]
    pub(crate) fn all<const N: usize>(&mut self, bytes: [u8; N]) {
        self.some(bytes, N);
    }

    /// Writes the last `len` bytes of an address.
    #[inline(always)]
    pub(crate) fn last(&mut self, address: u128, len: u32) {
        let first = address << (128_u32.wrapping_sub(len * 8) & 127);
        self.some(first.to_be_bytes(), len as usize);
    }

    /// Writes bytes.
    pub(crate) fn slice(&mut self, bytes: &[u8]) {
        self.bytes[self.at.front..][..bytes.len()].copy_from_slice(bytes);
        self.at.front += bytes.len();
    }

    /// Everything written: bits after bytes, the last byte of bits filled with zeros.
    pub(crate) fn finish(mut self) -> &'a mut [u8] {
        self.turn();
        let (
            Position {
                front, back, used, ..
            },
            end,
        ) = (self.at, self.bytes.len());
        self.bytes
            .copy_within(back - (used as usize).div_ceil(8).., front);
        &mut self.bytes[..self.at.len(end)]
    }
}

/// Reads from bytes with [`Reader::PAD`] zeros before and after them.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    front: usize,
    back: usize,
    held: u64,
    used: u32,
}

impl<'a> Reader<'a> {
    /// More than a record may read past an end before somebody checks.
    pub(crate) const PAD: usize = Writer::SLACK;

    /// Reads after the first `at` bytes of those between the padding.
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Self {
        let mut reader = Self {
            bytes,
            front: Self::PAD + at,
            back: bytes.len() - Self::PAD,
            held: 0,
            used: 0,
        };
        reader.turn();
        reader
    }

    /// Bytes read of the first stream.
    pub(crate) fn front(&self) -> usize {
        self.front - Self::PAD
    }

    /// Bytes that neither stream has read; `None` if they read the same ones.
    #[inline(always)]
    pub(crate) fn rest(&self) -> Option<usize> {
        let read = self.front + (self.used as usize).div_ceil(8);
        self.back.checked_sub(read)
    }

    /// Reads so many bits.
    #[inline(always)]
    pub(crate) fn bits(&mut self, width: u32) -> u64 {
        let value = self.held & ((1_u64 << (width & 63)) - 1);
        self.held >>= width & 63;
        self.used = self.used.wrapping_add(width);
        value
    }

    /// The next bits of this turn, which are not read yet.
    #[inline(always)]
    pub(crate) fn peek(&self, width: u32) -> u64 {
        self.held & ((1_u64 << (width & 63)) - 1)
    }

    /// As [`Reader::bits`], for up to 32 of them.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "32 bits were asked for")]
    pub(crate) fn word(&mut self, width: u32) -> u32 {
        debug_assert!(width <= 32);
        self.bits(width) as u32
    }

    /// Makes room for [`TURN`] more bits.
    #[inline(always)]
    pub(crate) fn turn(&mut self) {
        self.back = self.back.wrapping_sub((self.used >> 3) as usize);
        self.used &= 7;
        let word = self.bytes[..self.back].last_chunk().expect("the padding");
        self.held = u64::from_be_bytes(*word) >> self.used;
    }

    /// The ones before the next zero, of the bits of this turn; they are not read yet.
    #[inline(always)]
    pub(crate) fn ones(&self) -> u32 {
        self.held.trailing_ones()
    }

    /// Reads `N` bytes and takes the first `len`.
    #[inline(always)]
    pub(crate) fn some<const N: usize>(&mut self, len: usize) -> [u8; N] {
        let bytes = *self.bytes[self.front..].first_chunk().expect("the padding");
        self.front = self.front.wrapping_add(len);
        bytes
    }

    /// Reads bytes.
    #[inline(always)]
    pub(crate) fn all<const N: usize>(&mut self) -> [u8; N] {
        self.some(N)
    }

    /// Reads bytes; `None` if there are not so many.
    pub(crate) fn slice(&mut self, len: usize) -> Option<&'a [u8]> {
        if self.rest()? < len {
            return None;
        }
        let bytes = &self.bytes[self.front..][..len];
        self.front += len;
        Some(bytes)
    }

    /// Whether both streams are read, and what fills the last byte of bits is zero.
    pub(crate) fn is_at_end(&mut self) -> bool {
        self.turn();
        let fill = (8 - self.used) & 7;
        self.rest() == Some(0) && self.bits(fill) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(fields in prop::collection::vec((any::<u64>(), 0_u32..=32), 0..99)) {
            let mut buffer = vec![0; 1024 + Writer::SLACK];
            let at = Position::new(3, buffer.len());
            let mut writer = Writer::new(&mut buffer, at);
            for &(value, width) in &fields {
                writer.bits(value & ((1 << width) - 1), width);
                writer.turn();
                writer.some(value.to_be_bytes(), width as usize % 9);
            }
            let bytes = writer.finish().to_vec();
            let bits: usize = fields.iter().map(|field| field.1 as usize).sum();
            let whole: usize = fields.iter().map(|field| field.1 as usize % 9).sum();
            prop_assert_eq!(bytes.len(), 3 + whole + bits.div_ceil(8));
            let pad = [0; Reader::PAD];
            let padded = [&pad[..], &bytes, &pad].concat();
            let mut reader = Reader::new(&padded, 3);
            for &(value, width) in &fields {
                prop_assert_eq!(reader.bits(width), value & ((1 << width) - 1));
                reader.turn();
                let len = width as usize % 9;
                prop_assert_eq!(&reader.some::<8>(len)[..len], &value.to_be_bytes()[..len]);
            }
            prop_assert!(reader.is_at_end());
        }
    }

    #[test]
    fn the_first_bits_are_the_lowest_of_the_last_byte() {
        let mut buffer = [0; 600];
        let mut writer = Writer::new(&mut buffer, Position::new(0, 600));
        writer.bits(0b101, 3);
        writer.all([7, 8]);
        writer.bits(0x7ff, 11);
        assert_eq!(writer.finish(), [7, 8, 0b0011_1111, 0b1111_1101]);
    }
}
