//! A record's two streams. Bytes go forward from a datagram's start: values that are as long as they
//! are, as in the packet. Bits go backward from its end: codes, and values of any other length; the
//! first ones are the lowest of the last byte. So neither is filled up before the other begins, unless a
//! datagram is to be as long as others.
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
        end.wrapping_sub(self.back)
            .wrapping_add((self.used as usize).div_ceil(8))
    }

    /// Bytes of both streams, in a buffer of a given size.
    #[inline(always)]
    pub(crate) fn len(self, end: usize) -> usize {
        self.front.wrapping_add(self.bit_bytes(end))
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
        debug_assert!(self.at.used.wrapping_add(width) < 64, "a turn is missing");
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
        let first = address << (128_u32.wrapping_sub(len.wrapping_mul(8)) & 127);
        self.some(first.to_be_bytes(), len as usize);
    }

    /// Writes bytes.
    pub(crate) fn slice(&mut self, bytes: &[u8]) {
        self.bytes[self.at.front..][..bytes.len()].copy_from_slice(bytes);
        self.at.front = self.at.front.wrapping_add(bytes.len());
    }

    /// Everything written: bits after bytes, the last byte of bits filled with zeros; and zeros between both
    /// up to this length, if it is less.
    pub(crate) fn finish(mut self, len: usize) -> &'a mut [u8] {
        self.turn();
        let (
            Position {
                front, back, used, ..
            },
            end,
        ) = (self.at, self.bytes.len());
        let len = len.max(self.at.len(end));
        let back = back.wrapping_sub((used as usize).div_ceil(8));
        let bits_at = len.wrapping_sub(end.wrapping_sub(back));
        self.bytes.copy_within(back.., bits_at);
        self.bytes[front..bits_at].fill(0);
        &mut self.bytes[..len]
    }
}

/// Writes a record of which it is known that it is short: bytes are reserved for all of it at once, so a field is never
/// the one for which there is no room, and nothing is checked for it.
pub(crate) struct Reserved<'a> {
    at: Position,
    front: &'a mut [u8; FRONT_MAX + 16],
    back: &'a mut [u8; BACK_MAX + 8],
    /// Where the next byte is, and where the next bits are.
    front_at: usize,
    back_at: usize,
}

/// One less than the bytes that such a record may have in each stream: a mask of places.
const FRONT_MAX: usize = 127;
const BACK_MAX: usize = 63;
const _: () = assert!(FRONT_MAX + 16 + BACK_MAX + 8 <= Writer::SLACK);

impl<'a> Reserved<'a> {
    #[inline(always)]
    pub(crate) fn new(bytes: &'a mut [u8], at: Position) -> Self {
        let free = &mut bytes[at.front..at.back];
        let (front, free) = free.split_first_chunk_mut().expect("the slack");
        let back = free.last_chunk_mut().expect("the slack");
        Self {
            at,
            front,
            back,
            front_at: 0,
            back_at: BACK_MAX,
        }
    }

    /// Where a writer is after it.
    #[inline(always)]
    pub(crate) fn position(&self) -> Position {
        Position {
            front: self.at.front.wrapping_add(self.front_at),
            back: self
                .at
                .back
                .wrapping_sub(BACK_MAX)
                .wrapping_add(self.back_at),
            ..self.at
        }
    }

    /// As [`Writer::bits`].
    #[inline(always)]
    pub(crate) fn bits(&mut self, value: u64, width: u32) {
        debug_assert!(width == 64 || value >> width == 0, "{value}");
        debug_assert!(self.at.used.wrapping_add(width) <= 64, "a turn is missing");
        self.at.held |= value << (self.at.used & 63);
        self.at.used = self.at.used.wrapping_add(width);
    }

    /// Writes up to 64 bits, with turns after them.
    #[inline(always)]
    pub(crate) fn long(&mut self, value: u64, width: u32) {
        if width <= TURN {
            self.bits(value, width);
        } else {
            self.bits(value & 0xffff_ffff, 32);
            self.turn();
            self.bits(value >> 32, width.wrapping_sub(32));
        }
        self.turn();
    }

    /// As [`Writer::turn`].
    #[inline(always)]
    pub(crate) fn turn(&mut self) {
        let Position { held, used, .. } = self.at;
        let place = self.back_at & BACK_MAX;
        self.back[place..place.wrapping_add(8)].copy_from_slice(&held.to_be_bytes());
        self.back_at = self.back_at.wrapping_sub((used >> 3) as usize);
        self.at.held = held >> (used & 56);
        self.at.used = used & 7;
    }

    /// As [`Writer::some`], of at most 16.
    #[inline(always)]
    pub(crate) fn some<const N: usize>(&mut self, bytes: [u8; N], len: usize) {
        const { assert!(N <= 16) };
        debug_assert!(len <= N);
        let place = self.front_at & FRONT_MAX;
        self.front[place..place.wrapping_add(N)].copy_from_slice(&bytes);
        self.front_at = self.front_at.wrapping_add(len);
    }

    /// Writes bytes.
    #[inline(always)]
    pub(crate) fn all<const N: usize>(&mut self, bytes: [u8; N]) {
        self.some(bytes, N);
    }

    /// As [`Writer::last`].
    #[inline(always)]
    pub(crate) fn last(&mut self, address: u128, len: u32) {
        let first = address << (128_u32.wrapping_sub(len.wrapping_mul(8)) & 127);
        self.some(first.to_be_bytes(), len as usize);
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
            front: Self::PAD.wrapping_add(at),
            back: bytes.len().wrapping_sub(Self::PAD),
            held: 0,
            used: 0,
        };
        reader.turn();
        reader
    }

    /// Bytes read of the first stream.
    pub(crate) fn front(&self) -> usize {
        self.front.wrapping_sub(Self::PAD)
    }

    /// Bytes that neither stream has read; `None` if they read the same ones.
    #[inline(always)]
    pub(crate) fn rest(&self) -> Option<usize> {
        let read = self.front.wrapping_add((self.used as usize).div_ceil(8));
        self.back.checked_sub(read)
    }

    /// Reads `width` bits.
    #[inline(always)]
    pub(crate) fn bits(&mut self, width: u32) -> u64 {
        let value = self.held & ((1_u64 << (width & 63)).wrapping_sub(1));
        self.held >>= width & 63;
        self.used = self.used.wrapping_add(width);
        value
    }

    /// The next bits of this turn, which are not read yet.
    #[inline(always)]
    pub(crate) fn peek(&self, width: u32) -> u64 {
        self.held & ((1_u64 << (width & 63)).wrapping_sub(1))
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

    /// Reads bytes; `None` if there are fewer.
    pub(crate) fn slice(&mut self, len: usize) -> Option<&'a [u8]> {
        if self.rest()? < len {
            return None;
        }
        let bytes = &self.bytes[self.front..][..len];
        self.front = self.front.wrapping_add(len);
        Some(bytes)
    }

    /// Whether both streams are read: what fills the last byte of bits, and bytes between them, are zeros.
    pub(crate) fn is_at_end(&mut self) -> bool {
        self.turn();
        let fill = 8_u32.wrapping_sub(self.used) & 7;
        let Some(rest) = self.rest() else {
            return false;
        };
        let between = &self.bytes[self.front..][..rest];
        self.bits(fill) == 0 && between.iter().all(|&byte| byte == 0)
    }
}

/// What is ahead of a reader: as many bytes of both streams as one short record may have, so that nothing is checked for
/// each field. See [`Reserved`].
pub(crate) struct Ahead<'a> {
    front: &'a [u8; FRONT_MAX + 16],
    back: &'a [u8; BACK_MAX + 8],
    front_at: usize,
    back_at: usize,
    held: u64,
    used: u32,
}

impl<'a> Reader<'a> {
    #[inline(always)]
    pub(crate) fn ahead(&self) -> Ahead<'a> {
        let back = &self.bytes[..self.back];
        Ahead {
            front: self.bytes[self.front..].first_chunk().expect("the padding"),
            back: back.last_chunk().expect("the padding"),
            front_at: 0,
            back_at: BACK_MAX,
            held: self.held,
            used: self.used,
        }
    }

    /// Goes to where this is, which was ahead.
    #[inline(always)]
    pub(crate) fn follow(&mut self, ahead: &Ahead<'_>) {
        self.front = self.front.wrapping_add(ahead.front_at);
        self.back = self.back.wrapping_sub(BACK_MAX).wrapping_add(ahead.back_at);
        self.held = ahead.held;
        self.used = ahead.used;
    }
}

impl Ahead<'_> {
    /// As [`Reader::peek`].
    #[inline(always)]
    pub(crate) fn peek(&self, width: u32) -> u64 {
        self.held & ((1_u64 << (width & 63)).wrapping_sub(1))
    }

    /// Skips `width` bits, which were seen already.
    #[inline(always)]
    pub(crate) fn skip(&mut self, width: u32) {
        self.held >>= width & 63;
        self.used = self.used.wrapping_add(width);
    }

    /// Reads up to 32 bits.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "32 bits were asked for")]
    pub(crate) fn word(&mut self, width: Width) -> u32 {
        let value = self.held as u32 & width.mask;
        self.skip(width.bits);
        value
    }

    /// As [`Reader::turn`].
    #[inline(always)]
    pub(crate) fn turn(&mut self) {
        self.back_at = self.back_at.wrapping_sub((self.used >> 3) as usize);
        self.used &= 7;
        let place = self.back_at & BACK_MAX;
        let word = self.back[place..place.wrapping_add(8)]
            .try_into()
            .expect("8 bytes");
        self.held = u64::from_be_bytes(word) >> self.used;
    }

    /// As [`Reader::some`], of at most 16.
    #[inline(always)]
    pub(crate) fn some<const N: usize>(&mut self, len: usize) -> [u8; N] {
        const { assert!(N <= 16) };
        let place = self.front_at & FRONT_MAX;
        self.front_at = self.front_at.wrapping_add(len);
        self.front[place..place.wrapping_add(N)]
            .try_into()
            .expect("its length")
    }
}

/// A width of up to 32 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Width {
    bits: u32,
    mask: u32,
}

impl Width {
    #[allow(clippy::cast_possible_truncation, reason = "at most 32 bits")]
    pub(crate) const fn new(bits: u32) -> Self {
        Self {
            bits,
            mask: (1_u64 << bits).wrapping_sub(1) as u32,
        }
    }

    /// One for each of these.
    pub(crate) const fn all<const N: usize>(widths: [u32; N]) -> [Self; N] {
        let mut all = [Self::new(0); N];
        let mut index = 0;
        while index < N {
            all[index] = Self::new(widths[index]);
            index = index.wrapping_add(1);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            fields in prop::collection::vec((any::<u64>(), 0_u32..=32), 0..99), len in 0_usize..1024,
        ) {
            let mut buffer = vec![0; 1024 + Writer::SLACK];
            let at = Position::new(3, buffer.len());
            let mut writer = Writer::new(&mut buffer, at);
            for &(value, width) in &fields {
                writer.bits(value & ((1 << width) - 1), width);
                writer.turn();
                writer.some(value.to_be_bytes(), width as usize % 9);
            }
            let bytes = writer.finish(len).to_vec();
            let bits: usize = fields.iter().map(|field| field.1 as usize).sum();
            let whole: usize = fields.iter().map(|field| field.1 as usize % 9).sum();
            let (front, bits) = (3 + whole, bits.div_ceil(8));
            prop_assert_eq!(bytes.len(), len.max(front + bits));
            let between = front..bytes.len() - bits;
            let pad = [0; Reader::PAD];
            let mut padded = [&pad[..], &bytes, &pad].concat();
            let mut reader = Reader::new(&padded, 3);
            for &(value, width) in &fields {
                prop_assert_eq!(reader.bits(width), value & ((1 << width) - 1));
                reader.turn();
                let len = width as usize % 9;
                prop_assert_eq!(&reader.some::<8>(len)[..len], &value.to_be_bytes()[..len]);
            }
            prop_assert!(reader.is_at_end());
            for at in between {
                // Nothing can be hidden there.
                padded[Reader::PAD + at] = 1;
                let mut reader = Reader::new(&padded, 3);
                for &(_, width) in &fields {
                    reader.bits(width);
                    reader.turn();
                    reader.some::<8>(width as usize % 9);
                }
                prop_assert!(!reader.is_at_end());
                padded[Reader::PAD + at] = 0;
            }
        }
    }

    #[test]
    fn the_first_bits_are_the_lowest_of_the_last_byte() {
        let mut buffer = [0; 600];
        let mut writer = Writer::new(&mut buffer, Position::new(0, 600));
        writer.bits(0b101, 3);
        writer.all([7, 8]);
        writer.bits(0x7ff, 11);
        let bytes = [7, 8, 0b0011_1111, 0b1111_1101];
        assert_eq!(writer.finish(0), bytes);
    }
}
