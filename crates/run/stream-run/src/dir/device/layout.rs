//! What a device says of itself: where the pages of a stripe are on it, and how far they go.
//!
//! ```text
//!        0 label        says that Strata may write here, and the stripe's id (`strata_stream::nvme::Label`)
//!     4096 layout
//!     8192 stripe.map   as in a directory; until pages begin
//! pages_at pages        until the device ends
//! ```

use strata_stream::siphash24;

use crate::dir::pool::{PAGES_MAX, map_len};

pub(super) const LABEL_BYTES: usize = 4096;
pub(super) const LAYOUT_AT: u64 = 4096;
pub(super) const MAP_AT: u64 = 8192;
/// Pages begin at a multiple of this, which suits flash and RAIDs.
const ALIGNMENT: u64 = 4 << 20;
const MAGIC: [u8; 8] = *b"STRADISK";

/// Where things are. It is within a sector, so that it is never written by half.
///
/// ```text
///  0 magic "STRADISK"
///  8 pages_at u64    where pages begin
/// 16 page_bytes u32
/// 20 pages u32       how many there is room for
/// 24 pages_len u64   bytes of the pages that have been begun, or will be next
/// 32 check u64       SipHash-2-4 of bytes 0 to 31 with the key 0
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    pub(super) pages_at: u64,
    pub(super) page_bytes: u32,
    pub(super) pages: u32,
    pub(super) pages_len: u64,
}

impl Layout {
    pub(super) const LEN: usize = 40;

    /// That of a device of `size` bytes, without any pages yet; `None` if it has no room for one.
    pub(super) fn of(size: u64, page_bytes: u32) -> Option<Self> {
        let page = u64::from(page_bytes);
        let most = (size / page).min(u64::from(PAGES_MAX));
        let pages_at = (MAP_AT + map_len(most)).next_multiple_of(ALIGNMENT);
        let pages = (size.checked_sub(pages_at)? / page).min(most);
        let pages = u32::try_from(pages).ok().filter(|&pages| pages > 0)?;
        Some(Self {
            pages_at,
            page_bytes,
            pages,
            pages_len: 0,
        })
    }

    /// The least that a device must have for one page.
    pub(super) fn size_min(page_bytes: u32) -> u64 {
        ALIGNMENT + u64::from(page_bytes)
    }

    /// Bytes that all its pages have.
    pub(super) fn room(&self) -> u64 {
        u64::from(self.pages) * u64::from(self.page_bytes)
    }

    pub(super) fn map_len(&self) -> u64 {
        map_len(self.pages.into())
    }

    pub(super) fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.pages_at.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.page_bytes.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.pages.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.pages_len.to_le_bytes());
        let check = siphash24([0, 0], &bytes[..32]);
        bytes[32..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// `None` without a layout, or if it is impossible.
    pub(super) fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let long = |at: usize| bytes[at..].first_chunk().copied().map(u64::from_le_bytes);
        let short = |at: usize| bytes[at..].first_chunk().copied().map(u32::from_le_bytes);
        let layout = Self {
            pages_at: long(8)?,
            page_bytes: short(16)?,
            pages: short(20)?,
            pages_len: long(24)?,
        };
        let is_whole = bytes[..8] == MAGIC && long(32)? == siphash24([0, 0], &bytes[..32]);
        let can_be = (1..=PAGES_MAX).contains(&layout.pages)
            && layout.page_bytes > 0
            && layout.pages_at.checked_add(layout.room()).is_some()
            && layout.pages_at >= MAP_AT + layout.map_len()
            && layout.pages_len <= layout.room();
        (is_whole && can_be).then_some(layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_pages_as_fit_lie_between_the_map_and_the_end() {
        for page_bytes in [1 << 16, 4 << 20, 64 << 20] {
            let least = Layout::size_min(page_bytes);
            assert_eq!(Layout::of(least - 1, page_bytes), None);
            assert_eq!(Layout::of(least, page_bytes).unwrap().pages, 1);
            for size in [100 << 20, 1 << 30, (2 << 40) + 512, u64::MAX >> 8] {
                let layout = Layout::of(size, page_bytes).unwrap();
                let end = layout.pages_at + layout.room();
                assert!(end <= size && layout.pages_at.is_multiple_of(4 << 20));
                assert!(MAP_AT + layout.map_len() <= layout.pages_at);
                let is_full = size - end < u64::from(page_bytes) + (4 << 20);
                assert!(is_full || layout.pages == PAGES_MAX, "{size} {page_bytes}");
                assert_eq!(Layout::parse(&layout.emit()), Some(layout));
            }
        }
    }

    #[test]
    fn a_layout_of_which_a_bit_is_wrong_is_none() {
        let bytes = Layout::of(1 << 30, 4 << 20).unwrap().emit();
        for bit in 0..8 * Layout::LEN {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Layout::parse(&damaged), None, "{bit}");
        }
    }
}
