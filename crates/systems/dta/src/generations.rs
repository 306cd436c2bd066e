//! Generations: values, paths and counters by time, so that old ones make way all at once.
//!
//! Of Key-Write, Postcarding and Key-Increment, the memory has a store for each generation, all of
//! the same size. Reports go to the youngest. At the end of a period, the oldest is cleared, in
//! pieces between which reports are taken, and then is the youngest. Who asks looks into all that
//! there are: with N copies in G generations, a query reads G x N lines.
//!
//! ```text
//! table, 64 bytes for each generation
//!  0 number u64, little-endian: from 1; 0 if it holds nothing or is being cleared
//!  8 begun u64: ns since 1970
//! 16 zeros
//! ```
//!
//! Periods end at their multiples since 1970, such as full hours. A number is never used again, so
//! a reader who finds the same numbers before and after a query has read what these generations
//! held.

use std::ops::Range;

use strata_wire::exact;

use crate::sink::Memory;

/// Maximum number of generations.
pub const GENERATIONS_MAX: u8 = 4;
/// Bytes of an entry of the table.
pub const ENTRY_LEN: u64 = 64;
const BEGUN_AT: u64 = 8;
/// Zeros that are written at once.
const ZEROS: [u8; 4096] = [0; 4096];

/// The position of generations in the memory: the same at writers and readers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Generations {
    table: u64,
    count: u8,
    stride: u64,
}

/// A generation that holds something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Generation {
    /// Its index in the memory, from 0.
    pub index: u8,
    /// Its number in the history of the store, from 1.
    pub number: u64,
    /// When it began, in ns since 1970.
    pub begun_ns: u64,
}

impl Generations {
    /// `count` generations, whose stores lie `stride` bytes apart, described by a table at `table`
    /// of the memory.
    ///
    /// # Panics
    ///
    /// If there are not 2 to 4, or table or stride are not multiples of 64.
    #[must_use]
    pub fn new(table: u64, count: u8, stride: u64) -> Self {
        assert!((2..=GENERATIONS_MAX).contains(&count), "generations");
        assert!(table.is_multiple_of(64) && stride.is_multiple_of(64));
        Self {
            table,
            count,
            stride,
        }
    }

    /// Bytes between the stores of the first generation and those of this one.
    #[must_use]
    pub fn offset(&self, index: u8) -> u64 {
        u64::from(index).wrapping_mul(self.stride)
    }

    /// The generations that hold something, youngest first. `word` reads a little-endian word of the memory.
    pub fn read(&self, mut word: impl FnMut(u64) -> u64) -> Vec<Generation> {
        let entries = (0..self.count).filter_map(|index| {
            let at = self.entry(index);
            let number = word(at);
            let generation = Generation {
                index,
                number,
                begun_ns: word(at.wrapping_add(BEGUN_AT)),
            };
            (number > 0 && word(at) == number).then_some(generation)
        });
        let mut all: Vec<Generation> = entries.collect();
        all.sort_by_key(|generation| std::cmp::Reverse(generation.number));
        all
    }

    fn entry(&self, index: u8) -> u64 {
        let offset = u64::from(index).wrapping_mul(ENTRY_LEN);
        self.table.wrapping_add(offset)
    }

    /// The index of the generation with this number, if generations are used in turn: it takes the place of the oldest.
    ///
    /// # Panics
    ///
    /// Never: generations are 2 at least.
    #[must_use]
    pub fn index(&self, number: u64) -> u8 {
        let turn = number.wrapping_sub(1).checked_rem(u64::from(self.count));
        exact::<u8>(turn.expect("generations are 2 at least"))
    }

    /// Writes a generation into the table: from now on, readers read it.
    pub fn put<M: Memory>(&self, memory: &mut M, generation: Generation) {
        let at = exact::<usize>(self.entry(generation.index));
        memory.store(at.wrapping_add(8), generation.begun_ns.to_le());
        memory.store(at, generation.number.to_le());
    }

    /// From now on it holds nothing.
    fn retire<M: Memory>(&self, memory: &mut M, index: u8) {
        memory.store(exact::<usize>(self.entry(index)), 0);
    }
}

/// A generation that is being cleared, in pieces.
#[derive(Clone, Debug)]
pub struct Clearing {
    index: u8,
    /// What is left of its stores.
    left: Vec<Range<u64>>,
}

impl Clearing {
    /// Begins to clear the generation with this index, which readers no longer read. `regions` are the stores of the
    /// first generation, in whole words.
    pub fn new<M: Memory>(
        generations: &Generations,
        regions: &[Range<u64>],
        index: u8,
        memory: &mut M,
    ) -> Self {
        generations.retire(memory, index);
        let offset = generations.offset(index);
        let shifted = |region: &Range<u64>| {
            region.start.wrapping_add(offset)..region.end.wrapping_add(offset)
        };
        let left = regions.iter().map(shifted);
        // An empty region would never be done.
        let left = left.filter(|region| !region.is_empty()).collect();
        Self { index, left }
    }

    /// Clears at most `bytes_max` bytes; returns whether all are cleared.
    pub fn step<M: Memory>(&mut self, bytes_max: usize, memory: &mut M) -> bool {
        let mut budget = bytes_max as u64 & !7;
        while let Some(region) = self.left.last_mut() {
            if budget == 0 {
                return false;
            }
            let len = region
                .end
                .saturating_sub(region.start)
                .min(budget)
                .min(ZEROS.len() as u64);
            let len_bytes = exact::<usize>(len);
            memory.write(exact::<usize>(region.start), &ZEROS[..len_bytes]);
            region.start = region.start.wrapping_add(len);
            budget = budget.wrapping_sub(len);
            if region.is_empty() {
                self.left.pop();
            }
        }
        true
    }
}

/// Whether a generation that began at `begun_ns` is over at `now_ns`. If the clock is set back by a little, the end of
/// a period is repeated. If it is set back by more, it had been wrong, and the generation is over: otherwise, the
/// youngest generation would last until the clock has caught up.
///
/// # Panics
///
/// If the period is 0.
#[must_use]
pub fn is_over(begun_ns: u64, now_ns: u64, period_ns: u64) -> bool {
    let period = |time_ns: u64| time_ns.checked_div(period_ns).expect("a period");
    let (now, begun) = (period(now_ns), period(begun_ns));
    !(begun.saturating_sub(1)..=begun).contains(&now)
}

/// What the writer of a store is doing.
#[derive(Clone, Debug)]
enum State {
    /// The youngest generation fills.
    Filling,
    /// It does, while another one is cleared.
    Clearing(Clearing),
}

/// The writer's half: chooses the generation that reports go to, and clears the one to be used next.
#[derive(Clone, Debug)]
pub struct Turning {
    generations: Generations,
    /// The stores of the first generation.
    regions: Vec<Range<u64>>,
    period_ns: u64,
    /// Youngest first.
    present: Vec<Generation>,
    state: State,
}

impl Turning {
    /// Continues with the existing generations, or begins the first one in a memory of zeros. `regions` are the stores
    /// of the first generation.
    ///
    /// # Panics
    ///
    /// If the period is 0, or regions are not whole words.
    pub fn new<M: Memory>(
        generations: Generations,
        regions: Vec<Range<u64>>,
        period_ns: u64,
        present: Vec<Generation>,
        now_ns: u64,
        memory: &mut M,
    ) -> Self {
        assert!(period_ns > 0, "a period");
        let ends = regions.iter().flat_map(|region| [region.start, region.end]);
        assert!({ ends }.all(|end| end.is_multiple_of(8)), "whole words");
        let mut turning = Self {
            generations,
            regions,
            period_ns,
            present,
            state: State::Filling,
        };
        if turning.present.is_empty() {
            turning.begin(0, 1, now_ns, memory);
        }
        turning
    }

    fn begin<M: Memory>(&mut self, index: u8, number: u64, begun_ns: u64, memory: &mut M) {
        let generation = Generation {
            index,
            number,
            begun_ns,
        };
        self.generations.put(memory, generation);
        self.present.insert(0, generation);
        self.state = State::Filling;
    }

    /// The generation that reports go to.
    #[must_use]
    pub fn youngest(&self) -> Generation {
        self.present[0]
    }

    /// The generations that hold something, youngest first.
    #[must_use]
    pub fn present(&self) -> &[Generation] {
        &self.present
    }

    /// Whether a generation is being cleared: [`Turning::step`] should be called again soon.
    #[must_use]
    pub fn is_clearing(&self) -> bool {
        matches!(self.state, State::Clearing(_))
    }

    /// Begins and continues clearing when due, at most `bytes_max` bytes per call. When a generation is cleared,
    /// returns it: reports go to it from now on. No operation on the memory of a generation other than the youngest may
    /// be waiting ([`Local::flush`](crate::Local::flush)).
    ///
    /// # Panics
    ///
    /// Never: the period is not 0.
    pub fn step<M: Memory>(
        &mut self,
        now_ns: u64,
        bytes_max: usize,
        memory: &mut M,
    ) -> Option<Generation> {
        if let State::Filling = self.state {
            if !is_over(self.youngest().begun_ns, now_ns, self.period_ns) {
                return None;
            }
            self.retire_one(memory);
        }
        let State::Clearing(clearing) = &mut self.state else {
            return None;
        };
        let index = clearing.index;
        if !clearing.step(bytes_max, memory) {
            return None;
        }
        let number = self.youngest().number.wrapping_add(1);
        self.begin(index, number, now_ns, memory);
        Some(self.youngest())
    }

    /// Chooses the one to be cleared: one that holds nothing, or the oldest.
    fn retire_one<M: Memory>(&mut self, memory: &mut M) {
        let is_free = |index: &u8| self.present.iter().all(|there| there.index != *index);
        let free = (0..self.generations.count).find(is_free);
        let index = free.unwrap_or_else(|| {
            let oldest = self.present.pop();
            oldest.expect("generations are 2 at least").index
        });
        let clearing = Clearing::new(&self.generations, &self.regions, index, memory);
        self.state = State::Clearing(clearing);
    }
}
