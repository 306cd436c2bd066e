//! Byte orders.

/// The byte order of a file or section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Little,
    Big,
}

const WITHIN: &str = "the field lies within the bytes";

/// The 16-bit number at `at`.
#[inline(always)]
pub(crate) fn u16_at<const BIG: bool>(bytes: &[u8], at: usize) -> u16 {
    let field = *bytes[at..].first_chunk().expect(WITHIN);
    if BIG {
        u16::from_be_bytes(field)
    } else {
        u16::from_le_bytes(field)
    }
}

/// The 32-bit number at `at`.
#[inline(always)]
pub(crate) fn u32_at<const BIG: bool>(bytes: &[u8], at: usize) -> u32 {
    let field = *bytes[at..].first_chunk().expect(WITHIN);
    if BIG {
        u32::from_be_bytes(field)
    } else {
        u32::from_le_bytes(field)
    }
}

impl Order {
    /// The 16-bit number at `at`, which must lie within `bytes`.
    pub(crate) fn u16(self, bytes: &[u8], at: usize) -> u16 {
        match self {
            Self::Little => u16_at::<false>(bytes, at),
            Self::Big => u16_at::<true>(bytes, at),
        }
    }

    /// The 32-bit number at `at`, which must lie within `bytes`.
    pub(crate) fn u32(self, bytes: &[u8], at: usize) -> u32 {
        match self {
            Self::Little => u32_at::<false>(bytes, at),
            Self::Big => u32_at::<true>(bytes, at),
        }
    }

    /// A 64-bit time in two halves, the high one first in both orders.
    pub(crate) fn halves(self, bytes: &[u8], at: usize) -> u64 {
        let halves: &[u8; 8] = bytes[at..].first_chunk().expect(WITHIN);
        u64::from(self.u32(halves, 0)) << 32 | u64::from(self.u32(halves, 4))
    }
}
