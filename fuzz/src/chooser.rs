//! Decisions from bytes.

/// Takes a target's decisions from the front of the fuzzer's bytes. Past their
/// end every decision is 0, so that each prefix of an input is one too.
#[derive(Clone, Debug)]
pub struct Chooser<'a> {
    bytes: &'a [u8],
}

impl<'a> Chooser<'a> {
    /// Decides by these bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.bytes.split_at(N.min(self.bytes.len()));
        self.bytes = rest;
        let mut out = [0; N];
        out[..taken.len()].copy_from_slice(taken);
        out
    }

    /// A byte.
    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// Two bytes, little-endian.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Four bytes, little-endian.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Eight bytes, little-endian.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Whether nothing is left to decide by.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Up to `len` of the next bytes.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(len.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }

    /// All that is left.
    #[must_use]
    pub fn rest(self) -> &'a [u8] {
        self.bytes
    }
}
