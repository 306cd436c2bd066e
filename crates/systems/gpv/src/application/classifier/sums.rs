//! What is summed over a flow's packets, for its features.

use strata_wire::exact;
use strata_wire::wide::{GROUP, Kernel, Lanes, Simd};

use super::FIRST;
use crate::tuple::{Basic, Column, Tuple};
use crate::vector::Grouped;

/// Sums over the packets of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sums {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    /// Of sizes.
    pub(super) squares: u64,
    /// Of delays in ns.
    pub(super) delay_squares: f64,
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    /// Sizes of the first packets. As many as lanes, so that they are stored at once; those after
    /// [`FIRST`] are arbitrary.
    pub(super) first: [u32; GROUP],
}

impl Sums {
    /// Those of a group; with vector code, if there is some, for the paper's tuples.
    #[inline(always)]
    pub(super) fn of<T: Tuple, G: Grouped<T>>(group: &G, simd: Option<Simd>) -> Self {
        let mut sums = Self::default();
        group.for_each_run(|start_ns, tuples| match T::words(tuples) {
            Some(words) => sums.add_words(start_ns, words, simd),
            None => sums.add_tuples(start_ns, tuples),
        });
        sums
    }

    pub(super) fn duration_ns(&self) -> u64 {
        self.last_ns.saturating_sub(self.first_ns)
    }

    /// Where the times of a run follow those before it.
    #[inline(always)]
    #[allow(clippy::cast_precision_loss, reason = "delays squared are estimates")]
    fn join(&mut self, first_ns: u64) {
        if self.packets == 0 {
            self.first_ns = first_ns;
        } else {
            let delay = first_ns.saturating_sub(self.last_ns) as f64;
            self.delay_squares += delay * delay;
        }
    }

    /// Adds a run of words of the paper's form.
    #[inline(always)]
    #[allow(clippy::cast_precision_loss, reason = "delays squared are estimates")]
    fn add_words(&mut self, start_ns: u64, words: &[u32], simd: Option<Simd>) {
        let (&[first, ..], &[.., last]) = (words, words) else {
            return;
        };
        self.join(start_ns.wrapping_add(Basic(first).delta_ns()));
        let known: usize = exact(self.packets.min(FIRST as u64));
        let of_run = if known == 0 {
            WordSums::of(words, &mut self.first, simd)
        } else {
            let mut sizes = [0; GROUP];
            let sums = WordSums::of(words, &mut sizes, simd);
            for (first, size) in self.first[known..FIRST].iter_mut().zip(sizes) {
                *first = size;
            }
            sums
        };
        self.bytes = self.bytes.wrapping_add(of_run.bytes);
        self.squares = self.squares.wrapping_add(of_run.squares);
        self.delay_squares += of_run.delay_squares_us as f64 * 1e6;
        self.packets = self.packets.wrapping_add(words.len() as u64);
        self.last_ns = start_ns.wrapping_add(Basic(last).delta_ns());
    }

    /// Adds a run of tuples, one after the other.
    #[inline(always)]
    #[allow(clippy::cast_precision_loss, reason = "delays squared are estimates")]
    fn add_tuples<T: Tuple>(&mut self, start_ns: u64, tuples: &[T]) {
        let known: usize = exact(self.packets.min(FIRST as u64));
        for (first, tuple) in self.first[known..FIRST].iter_mut().zip(tuples) {
            *first = tuple.get(Column::Size);
        }
        let Some(tuple) = tuples.first() else {
            return;
        };
        let mut last = tuple.delta_ns();
        self.join(start_ns.wrapping_add(last));
        let (mut bytes, mut squares, mut delays) = (0_u64, 0_u64, 0.0_f64);
        for tuple in tuples {
            let (size, at) = (tuple.get(Column::Size), tuple.delta_ns());
            bytes = bytes.wrapping_add(u64::from(size));
            squares = squares.wrapping_add(u64::from(size).wrapping_mul(u64::from(size)));
            let delay = at.saturating_sub(last) as f64;
            delays += delay * delay;
            last = at;
        }
        self.bytes = self.bytes.wrapping_add(bytes);
        self.squares = self.squares.wrapping_add(squares);
        self.delay_squares += delays;
        self.packets = self.packets.wrapping_add(tuples.len() as u64);
        self.last_ns = start_ns.wrapping_add(last);
    }
}

/// Sums over a run of the paper's words, which are exact, so that their order does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WordSums {
    bytes: u64,
    /// Of sizes.
    squares: u64,
    /// Of the delays between packets; where times go back, there is no delay.
    delay_squares_us: u64,
}

/// So few words that no sum overflows its lane: the squares of 2^10 sizes of 11 bits are below 2^32.
const WORDS_MAX: usize = GROUP << 10;

impl WordSums {
    /// Those of words, and the sizes of the first ones: 0 where there are fewer.
    #[inline(always)]
    fn of(words: &[u32], sizes: &mut [u32; GROUP], simd: Option<Simd>) -> Self {
        match simd {
            Some(simd) if words.len() <= WORDS_MAX => simd.run(Wide { words, sizes }),
            _ => Self::naive(words, sizes),
        }
    }

    /// The twin of [`Wide`].
    fn naive(words: &[u32], sizes: &mut [u32; GROUP]) -> Self {
        let mut sums = Self::default();
        sizes.fill(0);
        for (to, word) in sizes.iter_mut().zip(words) {
            *to = Basic(*word).size();
        }
        let mut last = words.first().map_or(0, |word| Basic(*word).delta_us());
        for word in words {
            let (size, at) = (u64::from(Basic(*word).size()), Basic(*word).delta_us());
            let delay = u64::from(at.saturating_sub(last));
            sums.bytes = sums.bytes.wrapping_add(size);
            sums.squares = sums.squares.wrapping_add(size.wrapping_mul(size));
            sums.delay_squares_us = sums
                .delay_squares_us
                .wrapping_add(delay.wrapping_mul(delay));
            last = at;
        }
        sums
    }
}

/// 16 words at a time, and the word after each: beyond the last there are zeros, which have no size
/// and come after nothing.
struct Wide<'a> {
    words: &'a [u32],
    sizes: &'a mut [u32; GROUP],
}

impl Kernel for Wide<'_> {
    type Output = WordSums;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> WordSums {
        let mut words = self.words;
        let size_bits = l.set(crate::tuple::BASIC_SIZE_MAX);
        let (mut bytes, mut squares, mut delays) = (l.set(0), l.set(0), l.set_64(0));
        let mut is_first = true;
        while let [_, following @ ..] = words {
            let (now, next) = (l.load_first(words), l.load_first(following));
            let size = l.and(l.shr(now, 1), size_bits);
            let at = l.shr(now, crate::tuple::BASIC_DELTA_SHIFT);
            let then = l.shr(next, crate::tuple::BASIC_DELTA_SHIFT);
            let delay = l.widen(l.sub(l.max(at, then), at));
            bytes = l.add(bytes, size);
            squares = l.add(squares, l.mul(size, size));
            delays = l.add_64(delays, l.mul_low_halves(delay, delay));
            if is_first {
                l.store(size, self.sizes);
                is_first = false;
            }
            words = words.get(GROUP..).unwrap_or(&[]);
        }
        let (mut small, mut large) = ([[0; GROUP]; 2], [0; GROUP]);
        l.store(bytes, &mut small[0]);
        l.store(squares, &mut small[1]);
        l.store_64(delays, &mut large);
        // No sum overflows: there are so few words.
        let sum = |lanes: &[u32; GROUP]| {
            let lanes = lanes.iter().map(|lane| u64::from(*lane));
            lanes.fold(0_u64, u64::wrapping_add)
        };
        WordSums {
            bytes: sum(&small[0]),
            squares: sum(&small[1]),
            delay_squares_us: large.into_iter().fold(0, u64::wrapping_add),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Times that go on, and some that go back.
        #[test]
        fn words_are_summed_as_one_by_one(
            words in prop::collection::vec((any::<u32>(), 0..8_u8), 0..200),
            rising: bool,
        ) {
            let mut words: Vec<u32> = words
                .into_iter()
                .map(|(word, kind)| match kind { 0 => 0, 1 => u32::MAX, _ => word })
                .collect();
            if rising {
                words.sort_unstable();
            }
            let mut wanted_sizes = [7; GROUP];
            let wanted = WordSums::naive(&words, &mut wanted_sizes);
            for simd in Simd::available() {
                let mut sizes = [0; GROUP];
                prop_assert_eq!(WordSums::of(&words, &mut sizes, Some(simd)), wanted);
                prop_assert_eq!(sizes, wanted_sizes);
            }
        }
    }

    #[test]
    fn no_lane_overflows_and_longer_runs_are_summed_too() {
        for len in [WORDS_MAX - 1, WORDS_MAX, WORDS_MAX + 1, 65_535] {
            // The longest delay every other time, and always the largest size.
            let words: Vec<u32> = (0..len)
                .map(|n| if n % 2 == 0 { 0xfff } else { u32::MAX })
                .collect();
            let (size, delay) = (2047_u64, (1_u64 << 20) - 1);
            let wanted = WordSums {
                bytes: size * len as u64,
                squares: size * size * len as u64,
                delay_squares_us: delay * delay * (len as u64 / 2),
            };
            let each = Simd::available().into_iter().map(Some).chain([None]);
            for simd in each {
                assert_eq!(WordSums::of(&words, &mut [0; GROUP], simd), wanted, "{len}");
            }
        }
    }
}
