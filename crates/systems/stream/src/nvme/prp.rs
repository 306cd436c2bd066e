//! Physical region pages: where in memory a command's data are (Base Specification 1.4, §4.3).

use super::memory::Memory;

/// Bytes of a page, as the host configures the controller when it enables it.
const PAGE: u64 = 4096;
/// Entries of a page of a list.
const ENTRIES: usize = 512;

/// A page of data: its bus address, a multiple of 4,096.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page(pub u64);

/// A page for a list: where it is written, and its bus address. Two numbers for the same byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListPage {
    /// For [`Memory::write`].
    pub at: u64,
    /// For the controller.
    pub bus: u64,
}

/// The two words of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Prps {
    /// The first page, and where in it the data begin.
    pub prp1: u64,
    /// Nothing, the second page, or the list of all but the first.
    pub prp2: u64,
}

/// Data that cannot be described.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PrpError {
    /// An address is not that of a page: bits 0 to 11 are not 0.
    #[error("{0:#x} is not the address of a page of 4,096 bytes")]
    Unaligned(u64),
    /// The data begin where no dword does, or behind their first page.
    #[error("data cannot begin at byte {0} of a page: only at multiples of 4 below 4,096")]
    Offset(u32),
    /// There are no data, or more or less than the pages hold.
    #[error(
        "{len} bytes that begin at byte {offset} of the first page need {needed} pages, not {given}"
    )]
    Pages {
        /// Bytes.
        len: u32,
        /// Where they begin.
        offset: u32,
        /// Pages that are needed.
        needed: u64,
        /// Pages that are given.
        given: u64,
    },
    /// The list needs more pages.
    #[error("the list needs {needed} pages, not {given}")]
    List {
        /// Pages that are needed.
        needed: usize,
        /// Pages that are given.
        given: usize,
    },
}

/// How many pages the list of `pages` pages of data takes: in each but the last, the last entry names the
/// next.
#[must_use]
pub fn list_pages(data_pages: usize) -> usize {
    match data_pages {
        0..=2 => 0,
        pages if pages.wrapping_sub(1) <= ENTRIES => 1,
        pages => pages.wrapping_sub(2).div_ceil(ENTRIES - 1),
    }
}

impl Prps {
    /// Describes `len` bytes that begin at `offset` of the first of these pages, and writes the list, if
    /// one is needed. A list that is in memory may be used again by commands of the same data.
    ///
    /// # Errors
    ///
    /// If the controller would refuse them, or take other memory: wrong bus addresses it cannot detect.
    pub fn describe(
        pages: &[Page],
        offset: u32,
        len: u32,
        list: &[ListPage],
        memory: &mut impl Memory,
    ) -> Result<Self, PrpError> {
        if u64::from(offset) >= PAGE || !offset.is_multiple_of(4) {
            return Err(PrpError::Offset(offset));
        }
        let needed = u64::from(offset)
            .wrapping_add(u64::from(len))
            .div_ceil(PAGE);
        let given = pages.len() as u64;
        if len == 0 || needed != given {
            return Err(PrpError::Pages {
                len,
                offset,
                needed,
                given,
            });
        }
        let wanted = list_pages(pages.len());
        if list.len() < wanted {
            return Err(PrpError::List {
                needed: wanted,
                given: list.len(),
            });
        }
        let list = &list[..wanted];
        let data = pages.iter().map(|page| page.0);
        let all = data.chain(
            list.iter()
                .flat_map(|page| [page.bus, page.at & (PAGE - 1)]),
        );
        if let Some(wrong) = all
            .into_iter()
            .find(|address| !address.is_multiple_of(PAGE))
        {
            return Err(PrpError::Unaligned(wrong));
        }
        let prp1 = pages[0].0.wrapping_add(u64::from(offset));
        let rest = &pages[1..];
        let prp2 = match (rest, list) {
            ([], _) => 0,
            ([second], _) => second.0,
            (_, list) => {
                write_list(rest, list, memory);
                list[0].bus
            }
        };
        Ok(Self { prp1, prp2 })
    }
}

fn write_list(mut rest: &[Page], list: &[ListPage], memory: &mut impl Memory) {
    for (number, page) in list.iter().enumerate() {
        let next = list.get(number.wrapping_add(1));
        let count = match next {
            Some(_) => ENTRIES - 1,
            None => rest.len(),
        };
        let (these, others) = rest.split_at(count);
        rest = others;
        let addresses = these.iter().map(|page| page.0);
        let addresses = addresses.chain(next.map(|next| next.bus));
        let bytes: Vec<u8> = addresses.flat_map(u64::to_le_bytes).collect();
        memory.write(page.at, &bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// The pages of `len` bytes, as a controller finds them: first address and length of each piece.
    /// `entry` reads 8 bytes of a list. The naive reading of the specification; an error is the status code.
    fn walk(
        prps: Prps,
        len: u32,
        mut entry: impl FnMut(u64) -> u64,
    ) -> Result<Vec<(u64, u64)>, u8> {
        let mut pieces = Vec::new();
        if !prps.prp1.is_multiple_of(4) {
            return Err(0x13);
        }
        let mut left = u64::from(len);
        let first = left.min(PAGE - prps.prp1 % PAGE);
        pieces.push((prps.prp1, first));
        left -= first;
        let mut put = |address: u64, left: &mut u64| {
            if !address.is_multiple_of(PAGE) {
                return Err(0x13);
            }
            let piece = (*left).min(PAGE);
            pieces.push((address, piece));
            *left -= piece;
            Ok(())
        };
        if left > 0 && left <= PAGE {
            put(prps.prp2, &mut left)?;
        }
        let mut at = prps.prp2;
        while left > 0 {
            let is_last = at % PAGE == PAGE - 8;
            let address = entry(at);
            if is_last && left > PAGE {
                if !address.is_multiple_of(8) {
                    return Err(0x13);
                }
                at = address;
                continue;
            }
            put(address, &mut left)?;
            at += 8;
        }
        Ok(pieces)
    }

    #[derive(Default)]
    struct Bytes(BTreeMap<u64, u8>);

    impl Memory for Bytes {
        fn write(&mut self, at: u64, bytes: &[u8]) {
            self.0.extend((at..).zip(bytes.iter().copied()));
        }
    }

    proptest! {
        #[test]
        fn a_controller_finds_the_pages_that_were_described(
            count in 1..1600_usize,
            offset in 0..1024_u32,
            cut in 0..4096_u32,
            seed: u64,
        ) {
            let offset = offset * 4;
            let pages: Vec<Page> = (0..count as u64)
                .map(|n| Page(strata_wire::mix64(seed ^ n) << 12 & 0xffff_ffff_f000))
                .collect();
            let room = u32::try_from(count).unwrap() * 4096 - offset;
            let least = (u32::try_from(count).unwrap() - 1) * 4096 + 1;
            let len = room.saturating_sub(cut).max(least.saturating_sub(offset)).max(1);
            let list: Vec<ListPage> = (0..list_pages(count) as u64)
                .map(|n| ListPage { at: 0x7000_0000 + n * 4096, bus: 0x9_0000_0000 + n * 8192 })
                .collect();
            let mut memory = Bytes::default();
            let prps = Prps::describe(&pages, offset, len, &list, &mut memory).unwrap();
            // The list, by its bus addresses.
            let entry = |bus: u64| {
                let (number, within) = ((bus - 0x9_0000_0000) / 8192, bus % 4096);
                let at = 0x7000_0000 + number * 4096 + within;
                let bytes: Vec<u8> = (at..at + 8).map(|at| memory.0[&at]).collect();
                u64::from_le_bytes(bytes.try_into().unwrap())
            };
            let found = walk(prps, len, entry).unwrap();
            let mut left = u64::from(len);
            let mut expected = Vec::new();
            for (number, page) in pages.iter().enumerate() {
                let begin = if number == 0 { u64::from(offset) } else { 0 };
                let piece = left.min(4096 - begin);
                expected.push((page.0 + begin, piece));
                left -= piece;
            }
            prop_assert_eq!(left, 0);
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn what_a_controller_would_refuse_is_not_described() {
        let mut memory = Bytes::default();
        let list = [ListPage { at: 0, bus: 0x1000 }];
        let mut of = |pages: &[u64], offset, len, list: &[ListPage]| {
            let pages: Vec<Page> = pages.iter().copied().map(Page).collect();
            Prps::describe(&pages, offset, len, list, &mut memory)
        };
        assert_eq!(of(&[0x2000], 2, 8, &[]), Err(PrpError::Offset(2)));
        assert_eq!(of(&[0x2000], 4096, 8, &[]), Err(PrpError::Offset(4096)));
        assert_eq!(of(&[0x2008], 0, 8, &[]), Err(PrpError::Unaligned(0x2008)));
        assert!(matches!(
            of(&[0x2000], 0, 0, &[]),
            Err(PrpError::Pages { .. })
        ));
        assert!(matches!(
            of(&[0x2000], 8, 4096, &[]),
            Err(PrpError::Pages { .. })
        ));
        let three = [0x2000, 0x3000, 0x4000];
        assert!(matches!(
            of(&three, 0, 12_288, &[]),
            Err(PrpError::List { .. })
        ));
        assert_eq!(
            of(&three, 0, 12_288, &[ListPage { at: 0, bus: 0x1008 }]),
            Err(PrpError::Unaligned(0x1008))
        );
        let prps = of(&three, 0, 12_288, &list).unwrap();
        assert_eq!(
            prps,
            Prps {
                prp1: 0x2000,
                prp2: 0x1000
            }
        );
        assert_eq!(
            [list_pages(513), list_pages(514), list_pages(1024)],
            [1, 2, 2]
        );
    }
}
