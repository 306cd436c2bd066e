//! Bytes that are read from the front. What is not there is `None`, and nothing is taken then.

/// The bytes that are left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.0.split_at_checked(len)?;
        self.0 = left;
        Some(taken)
    }

    fn array<const LEN: usize>(&mut self) -> Option<[u8; LEN]> {
        let (taken, left) = self.0.split_first_chunk()?;
        self.0 = left;
        Some(*taken)
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn word(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// A number of three bytes.
    pub(crate) fn len24(&mut self) -> Option<usize> {
        let [a, b, c] = self.array()?;
        usize::try_from(u32::from_be_bytes([0, a, b, c])).ok()
    }

    pub(crate) fn number(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// What a length of one byte precedes.
    pub(crate) fn short(&mut self) -> Option<&'a [u8]> {
        let mut ahead = *self;
        let len = ahead.byte()?;
        let taken = ahead.take(len.into())?;
        *self = ahead;
        Some(taken)
    }

    /// What a length of two bytes precedes.
    pub(crate) fn long(&mut self) -> Option<&'a [u8]> {
        let mut ahead = *self;
        let len = ahead.word()?;
        let taken = ahead.take(len.into())?;
        *self = ahead;
        Some(taken)
    }

    /// A number of QUIC: 1 to 8 bytes (RFC 9000 §16).
    pub(crate) fn varint(&mut self) -> Option<usize> {
        let first = *self.0.first()?;
        let len = 1_usize.checked_shl(u32::from(first >> 6))?;
        let bytes = self.take(len)?;
        let mut number = u64::from(first & 0x3f);
        for &byte in bytes.get(1..)? {
            number = number << 8 | u64::from(byte);
        }
        usize::try_from(number).ok()
    }
}
