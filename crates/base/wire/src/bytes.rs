//! Reading integers at an offset. All return `None` past the end, never panic.

#[inline(always)]
pub(crate) fn u8_at(data: &[u8], at: usize) -> Option<u8> {
    data.get(at).copied()
}

#[inline(always)]
pub(crate) fn be16(data: &[u8], at: usize) -> Option<u16> {
    let bytes = data.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}

#[inline(always)]
pub(crate) fn be32(data: &[u8], at: usize) -> Option<u32> {
    let bytes = data.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

#[inline(always)]
pub(crate) fn be64(data: &[u8], at: usize) -> Option<u64> {
    let bytes: [u8; 8] = data.get(at..at.checked_add(8)?)?.try_into().ok()?;
    Some(u64::from_be_bytes(bytes))
}

#[inline(always)]
pub(crate) fn be128(data: &[u8], at: usize) -> Option<u128> {
    let bytes: [u8; 16] = data.get(at..at.checked_add(16)?)?.try_into().ok()?;
    Some(u128::from_be_bytes(bytes))
}

#[inline(always)]
pub(crate) fn le16(data: &[u8], at: usize) -> Option<u16> {
    be16(data, at).map(u16::swap_bytes)
}

#[inline(always)]
pub(crate) fn le32(data: &[u8], at: usize) -> Option<u32> {
    be32(data, at).map(u32::swap_bytes)
}

/// As [`be16`], for a view already checked to hold a whole header.
#[inline(always)]
pub(crate) fn held16(header: &[u8], at: usize) -> u16 {
    be16(header, at).expect("a view has its whole header")
}

/// As [`held16`], for [`be32`].
#[inline(always)]
pub(crate) fn held32(header: &[u8], at: usize) -> u32 {
    be32(header, at).expect("a view has its whole header")
}

/// As [`held16`], for [`be64`].
#[inline(always)]
pub(crate) fn held64(header: &[u8], at: usize) -> u64 {
    be64(header, at).expect("a view has its whole header")
}

/// As [`held16`], for [`be128`].
#[inline(always)]
pub(crate) fn held128(header: &[u8], at: usize) -> u128 {
    be128(header, at).expect("a view has its whole header")
}
