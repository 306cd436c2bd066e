//! Records of ours. Each says its length and number, and a keyed tag over both, its place, the
//! page's use and the payload says that it is one, whatever surrounds it.
//!
//! ```text
//! 0 head u64   bits  0-20 bytes of the payload
//!              bit     21 set: not a record but a mark, whose payload is a time (ns since 1970)
//!              bits 22-23 1
//!              bits 24-47 number of the record in its page; of a mark, of the record after it
//!              bits 48-63 check: keyed, of bits 0-47 and the place
//! 8 tag u64    keyed, of bits 0-47, the place and the payload
//! 16 payload   padded with zeros to a multiple of 8
//! ```

use crate::key::PageKey;
use crate::page::header::{ALIGN, RECORD_LEN_MAX, SEALED_HEAD_LEN};

const LEN_BITS: u32 = 21;
const MARK: u64 = 1 << 21;
const FIXED: u64 = 1 << 22;
const FIXED_BITS: u64 = 3 << 22;
const NUMBER_SHIFT: u32 = 24;
const CHECKED_BITS: u64 = (1 << 48) - 1;

/// What follows a head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Record,
    Mark,
}

/// The head of a record with this number at this place.
#[inline]
pub(crate) fn head(
    key: &PageKey,
    at: usize,
    number: u32,
    kind: Kind,
    payload: &[u8],
) -> [u8; SEALED_HEAD_LEN] {
    debug_assert!(payload.len() <= RECORD_LEN_MAX && number < 1 << 24);
    let mut head = payload.len() as u64 | FIXED | u64::from(number) << NUMBER_SHIFT;
    if kind == Kind::Mark {
        head |= MARK;
    }
    let whole = head | key.check(at, head) << 48;
    let tag = key.tag(at, head, payload);
    let mut bytes = [0; SEALED_HEAD_LEN];
    bytes[..8].copy_from_slice(&whole.to_le_bytes());
    bytes[8..].copy_from_slice(&tag.to_le_bytes());
    bytes
}

/// A record or mark that is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sealed<'p> {
    pub(crate) kind: Kind,
    pub(crate) number: u32,
    pub(crate) payload: &'p [u8],
    pub(crate) end: usize,
}

/// What the head at a place promises: kind, number, length of the payload.
#[inline]
fn promised(key: &PageKey, page: &[u8], at: usize) -> Option<(u64, usize)> {
    let head = u64::from_le_bytes(*page.get(at..)?.first_chunk()?);
    if head & FIXED_BITS != FIXED || key.check(at, head & CHECKED_BITS) != head >> 48 {
        return None;
    }
    let len = usize::try_from(head & ((1 << LEN_BITS) - 1)).ok()?;
    let end = at
        .wrapping_add(SEALED_HEAD_LEN)
        .wrapping_add(len.next_multiple_of(ALIGN));
    (len <= RECORD_LEN_MAX && end <= page.len()).then_some((head & CHECKED_BITS, len))
}

/// The record at a place of a page, if a whole one is there.
#[inline]
pub(crate) fn read<'p>(key: &PageKey, page: &'p [u8], at: usize) -> Option<Sealed<'p>> {
    let (head, len) = promised(key, page, at)?;
    verified(key, page, at, head, len)
}

#[inline]
fn verified<'p>(
    key: &PageKey,
    page: &'p [u8],
    at: usize,
    head: u64,
    len: usize,
) -> Option<Sealed<'p>> {
    let tag = u64::from_le_bytes(*page[at.wrapping_add(8)..].first_chunk()?);
    let payload = &page[at.wrapping_add(SEALED_HEAD_LEN)..][..len];
    if key.tag(at, head, payload) != tag {
        return None;
    }
    let is_mark = head & MARK != 0;
    Some(Sealed {
        kind: if is_mark { Kind::Mark } else { Kind::Record },
        #[allow(clippy::cast_possible_truncation, reason = "24 bits")]
        number: (head >> NUMBER_SHIFT) as u32,
        payload,
        end: at
            .wrapping_add(SEALED_HEAD_LEN)
            .wrapping_add(len.next_multiple_of(ALIGN)),
    })
}

/// Looks for the next record from a place on: where it is. `budget` is how many bytes of what only
/// looks like records may be read; with none left, nothing more is found.
pub(crate) fn search(key: &PageKey, page: &[u8], from: usize, budget: &mut usize) -> Option<usize> {
    let mut at = from.next_multiple_of(ALIGN);
    while at.wrapping_add(SEALED_HEAD_LEN) <= page.len() {
        if let Some((head, len)) = promised(key, page, at) {
            *budget = budget.checked_sub(len)?;
            if verified(key, page, at, head, len).is_some() {
                return Some(at);
            }
        }
        at = at.wrapping_add(ALIGN);
    }
    None
}
