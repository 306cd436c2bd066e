//! Fetching headers into the cache, several at once.
//!
//! Where a record ends is known only from its header, so going through a window of a file that another
//! core has read, or a block of a ring, is one cache miss after the other. Here it is cut into pieces. A walker in each
//! piece finds something that looks like a record and goes on from there, all in turns, so that
//! their misses overlap.
//!
//! ```text
//! from      |    found   |   found    |   not found  | found
//! 1 > > > > > 2 > > > > > 3 > > > > > > > > > > > > > 4 > > > > end
//! ```
//!
//! Nothing depends on what walkers find. Packets are described as without them, from the
//! start, header by header; a walker that takes payload for a record has wasted its time, at most as
//! much as the window's packets would take if they were empty.

use std::ops::Range;

use memchr::memmem::Finder;

/// Walkers in a window: misses in flight.
const WALKERS: usize = 16;
/// In a smaller piece there are too few records for its walker to be worth its search.
const PIECE_BYTES_MIN: usize = 16 << 10;
/// Bytes in which a walker looks for its first record, and places there that it looks at.
const SEARCH_BYTES_MAX: usize = 64 << 10;
const CANDIDATES_MAX: usize = 32;

/// From one packet's header to the next, on average: closer ones are not fetched in advance.
pub(crate) const CLOSE_BYTES: usize = 256;

/// The records of a format, one after another.
pub(crate) trait Chain {
    /// Bytes of a header that neighbours have in common: all but the lowest ones of a time.
    fn alike(&self) -> Range<usize>;

    /// Where the record after the one at `at` starts; `None` if there is no well-formed header. The
    /// bytes there may be any: payload, whose sender chose them, and from the middle of a record.
    fn after(&self, bytes: &[u8], at: usize) -> Option<usize>;
}

/// Goes through the records of `bytes` from the one at `from` on, and passes the places of their
/// headers to `touch`, in no order.
pub(crate) fn walk(bytes: &[u8], from: usize, chain: &impl Chain, mut touch: impl FnMut(usize)) {
    let piece_bytes = bytes.len().saturating_sub(from) / WALKERS;
    if piece_bytes < PIECE_BYTES_MIN {
        return;
    }
    let alike = chain.alike();
    // A piece is longer than a header.
    let finder = Finder::new(&bytes[from..][alike]);
    let mut walkers: [Range<usize>; WALKERS] = std::array::from_fn(|_| 0..0);
    let mut end = bytes.len();
    for (number, walker) in walkers.iter_mut().enumerate().rev() {
        // Within the bytes, since there are as many pieces as walkers.
        let piece = from.wrapping_add(number.wrapping_mul(piece_bytes));
        let start = match number {
            0 => Some(from),
            _ => find(
                bytes,
                piece..piece.wrapping_add(piece_bytes),
                chain,
                &finder,
            ),
        };
        if let Some(start) = start {
            *walker = start..end;
            end = start;
        }
    }
    let mut walking = true;
    while walking {
        walking = false;
        for walker in &mut walkers {
            if walker.start < walker.end {
                touch(walker.start);
                walker.start = chain.after(bytes, walker.start).unwrap_or(walker.end);
                walking = true;
            }
        }
    }
}

/// The first place in a piece where there seem to be three records in a row, or as many as fit.
fn find(
    bytes: &[u8],
    piece: Range<usize>,
    chain: &impl Chain,
    finder: &Finder<'_>,
) -> Option<usize> {
    let alike = chain.alike();
    let is_alike = |at: usize| match bytes.get(at..).and_then(|rest| rest.get(alike.clone())) {
        Some(found) => found == finder.needle(),
        None => true,
    };
    let follows = |at: usize| {
        let next = chain.after(bytes, at)?;
        is_alike(next).then_some(next)
    };
    let is_record = |at: usize| match follows(at) {
        Some(next) if next < bytes.len() => follows(next).is_some(),
        next => next.is_some(),
    };
    let piece_bytes = &bytes[piece.clone()];
    let searched = &piece_bytes[..piece_bytes.len().min(SEARCH_BYTES_MAX)];
    let searched = searched.get(alike.start..)?;
    let candidates = finder.find_iter(searched).take(CANDIDATES_MAX);
    let mut places = candidates.map(|at| piece.start.wrapping_add(at));
    places.find(|&at| is_record(at))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A record is a time, its length, and that many bytes.
    struct Plain<const BIG: bool>;

    const HEADER_BYTES: usize = 8;
    const TIME: u32 = 0x6553_f100;

    impl<const BIG: bool> Chain for Plain<BIG> {
        fn alike(&self) -> Range<usize> {
            if BIG { 0..3 } else { 1..4 }
        }

        fn after(&self, bytes: &[u8], at: usize) -> Option<usize> {
            let header = bytes.get(at..)?.first_chunk::<HEADER_BYTES>()?;
            let [.., a, b, c, d] = *header;
            let len = match BIG {
                true => u32::from_be_bytes([a, b, c, d]),
                false => u32::from_le_bytes([a, b, c, d]),
            };
            let len = len as usize;
            (len <= 262_144).then_some(at + HEADER_BYTES + len)
        }
    }

    /// Records of these lengths with this in them, and where they start.
    fn records<const BIG: bool>(lens: &[usize], payload: &[u8]) -> (Vec<u8>, Vec<usize>) {
        let number = |number: u32| match BIG {
            true => number.to_be_bytes(),
            false => number.to_le_bytes(),
        };
        let (mut bytes, mut starts) = (Vec::new(), Vec::new());
        for (index, &len) in (0_u32..).zip(lens) {
            starts.push(bytes.len());
            bytes.extend_from_slice(&number(TIME + index % 200));
            bytes.extend_from_slice(&number(u32::try_from(len).unwrap()));
            bytes.extend(payload.iter().cycle().take(len));
        }
        (bytes, starts)
    }

    fn touched(bytes: &[u8], from: usize, chain: &impl Chain) -> Vec<usize> {
        let mut all = Vec::new();
        walk(bytes, from, chain, |at| all.push(at));
        all
    }

    /// Each header is fetched, once, and all walkers have taken part: their places interleave.
    #[test]
    fn walkers_meet() {
        let lens: Vec<usize> = (0..2_000).map(|index| 40 + index * 7 % 1_400).collect();
        let (little, starts) = records::<false>(&lens, b"some payload");
        let (big, _) = records::<true>(&lens, b"some payload");
        let from = starts[1];
        let both = [
            touched(&little, from, &Plain::<false>),
            touched(&big, from, &Plain::<true>),
        ];
        for all in both {
            let back = all.windows(2).filter(|pair| pair[1] < pair[0]).count();
            assert!(back > 100, "{back}");
            let mut sorted = all.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, starts[1..]);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever the bytes are, the work is bounded by them.
        #[test]
        fn any_bytes_end(
            noise in prop::collection::vec(any::<u8>(), 1..5_000),
            lens in prop::collection::vec(0_usize..3_000, 1..200),
            from in any::<prop::sample::Index>(),
        ) {
            let (mut bytes, starts) = records::<true>(&lens, &noise);
            bytes.extend(noise.iter().cycle().take(300_000));
            let from = starts[from.index(starts.len())];
            let all = touched(&bytes, from, &Plain::<true>);
            prop_assert!(all.len() <= bytes.len() / HEADER_BYTES + WALKERS);
            prop_assert!(all.iter().all(|&at| (from..bytes.len()).contains(&at)));
        }
    }
}
