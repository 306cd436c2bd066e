//! Where a translator's operations go.

mod extent;
mod waiting;

use strata_wire::{exact, prefetch};

use crate::hash::REDUNDANCY_MAX;
use crate::protocol::KEY_LEN_MAX;

pub(crate) use self::extent::{CHUNK_LEN_MAX, SLOT_LEN};
pub use self::extent::{Extent, Merge};
use self::waiting::{NO_COUNT, Short, Waiting};

/// A reporter, by its number at the translator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Origin(pub u16);

/// Whether operations can be taken now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// This number of operations can be taken.
    Operations(usize),
    /// No operations can be taken now or later: the collector is gone.
    Gone,
}

/// The kinds of operations on memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// Bytes are written.
    Write,
    /// Something is added to 8 bytes.
    FetchAdd,
}

/// The addition of a report to the counters of a key.
#[derive(Clone, Copy, Debug)]
pub struct Addition<'a> {
    /// The key, of 1 to 40 bytes.
    pub key: &'a [u8],
    /// The positions of its counters: different multiples of 8. Only the first `places_len` are valid; the others are
    /// arbitrary.
    pub places: [u64; REDUNDANCY_MAX as usize],
    /// The number of valid positions, 1 to [`REDUNDANCY_MAX`].
    pub places_len: u8,
    /// The number added to each counter.
    pub add: u64,
}

impl Addition<'_> {
    /// Where its counters lie: the first, which completes the report, and the others.
    #[inline(always)]
    pub(crate) fn split(&self) -> (u64, &[u64]) {
        let [first, ..] = self.places;
        (first, &self.places[1..usize::from(self.places_len)])
    }
}

/// Takes operations on a collector's memory, whose first byte is at 0. They are done in order. `origins`
/// are the reporters whose reports an operation completes, one for each report: only the last copy of a
/// report names it, so when that copy has arrived, all have.
pub trait Sink {
    /// Whether it makes use of `origins`; if not, they need not be kept.
    const KEEPS_ORIGINS: bool;

    /// How many operations of a kind can be taken now.
    fn room(&self, operation: Operation) -> Room;

    /// Puts `bytes` at `at`.
    fn write(&mut self, at: u64, bytes: &[u8], origins: &[Origin]);

    /// Whether [`Sink::merge`] keeps what is in the memory.
    const MERGES: bool = false;

    /// [`Sink::write`] of a chunk of Postcarding that keeps unknown slots of a chunk of the same key. Memory
    /// behind a NIC cannot do that: the chunk replaces the other.
    #[inline(always)]
    fn merge(&mut self, at: u64, chunk: &[u8], _how: Merge, origins: &[Origin]) {
        self.write(at, chunk, origins);
    }

    /// What was requested before is done, or at least sent, before what is requested after.
    fn settle(&mut self) {}

    /// Adds to the 8 bytes at `at`, a multiple of 8. In memory of this process, a sum above 2^64 - 1 is 2^64 - 1;
    /// memory behind a NIC has the sum modulo 2^64.
    fn fetch_add(&mut self, at: u64, add: u64, origins: &[Origin]);

    /// [`Sink::fetch_add`] to each of a key's counters. The one at the first place completes the
    /// report of `origin`.
    ///
    /// # Panics
    ///
    /// If there is no place, or more than there may be.
    #[inline(always)]
    fn count(&mut self, addition: &Addition<'_>, origin: Origin) {
        let (first, others) = addition.split();
        for &at in others.iter().rev() {
            self.fetch_add(at, addition.add, &[]);
        }
        self.fetch_add(first, addition.add, &[origin]);
    }

    /// [`Sink::write`] of 8 bytes.
    #[inline(always)]
    fn write_word(&mut self, at: u64, word: [u8; 8], origins: &[Origin]) {
        self.write(at, &word, origins);
    }

    /// `len` bytes at `at` are going to be written, in a while.
    #[inline(always)]
    fn expect(&mut self, _at: u64, _len: usize) {}
}

/// Operations between request and execution: as many lines of memory are fetched meanwhile.
const DELAYED: usize = 32;
/// The same in keys, which have one line or several.
const KEYS_DELAYED: usize = 32;
/// Writes whose lines are asked for together: a part of [`DELAYED`].
const ASKED: usize = 8;
const _: () = assert!(DELAYED.is_multiple_of(ASKED));
/// Longest write that is delayed; longer ones go by themselves to [expected](Sink::expect) memory.
const DELAYED_LEN_MAX: usize = 32;
const LINE: usize = 64;

/// Memory of this process that operations are done on. Places are bytes from its front. All of it panics
/// beyond the memory: places follow from the parameters of the stores.
pub trait Memory {
    /// Puts `bytes` at `at`.
    fn write(&mut self, at: usize, bytes: &[u8]);

    /// The 8 bytes at `at`, a multiple of 8.
    fn load(&self, at: usize) -> [u8; 8];

    /// Stores 8 bytes, in the byte order of this CPU, at `at`, a multiple of 8.
    fn store(&mut self, at: usize, word: u64);

    /// Adds to the 8 bytes at `at`, a multiple of 8, in the byte order of this CPU. A sum above 2^64 - 1 is
    /// 2^64 - 1, so that no counter becomes smaller. Returns the sum.
    fn add(&mut self, at: usize, add: u64) -> u64;

    /// [`Memory::exceeds`] is for keys whose smallest counter is above this.
    #[inline(always)]
    fn floor(&self) -> u64 {
        u64::MAX
    }

    /// A report has made the smallest counter of `key` `count`; the first of its counters is at `place`.
    #[inline(always)]
    fn exceeds(&mut self, _key: &[u8], _place: usize, _count: u64) {}

    /// Asks the CPU for the line at `at`, which may be anywhere.
    fn prefetch(&self, at: usize);
}

impl Memory for &mut [u8] {
    #[inline(always)]
    fn write(&mut self, at: usize, bytes: &[u8]) {
        self[at..][..bytes.len()].copy_from_slice(bytes);
    }

    #[inline(always)]
    fn load(&self, at: usize) -> [u8; 8] {
        let word = self[at..].first_chunk();
        *word.expect("a word lies in the memory")
    }

    #[inline(always)]
    fn store(&mut self, at: usize, word: u64) {
        *place(self, at) = word.to_ne_bytes();
    }

    #[inline(always)]
    fn add(&mut self, at: usize, add: u64) -> u64 {
        let place = place(self, at);
        let sum = u64::from_ne_bytes(*place).saturating_add(add);
        *place = sum.to_ne_bytes();
        sum
    }

    #[inline(always)]
    fn prefetch(&self, at: usize) {
        prefetch(self, at);
    }
}

/// The eight bytes of a place.
#[inline(always)]
fn place(memory: &mut [u8], at: usize) -> &mut [u8; 8] {
    let place = memory[at..].first_chunk_mut();
    place.expect("a word lies in the memory")
}

/// A write that waits for its line of memory.
#[derive(Clone, Copy)]
struct Write {
    at: usize,
    len: u32,
    /// Unless it replaces what is there.
    merge: Option<Merge>,
    bytes: [u8; DELAYED_LEN_MAX],
}

/// Eight bytes that wait for their line of memory.
#[derive(Clone, Copy)]
struct Word {
    at: usize,
    word: u64,
}

/// Where nothing waits.
const NOWHERE: Word = Word {
    at: usize::MAX,
    word: 0,
};

/// Operations requested of a memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Operations {
    /// Writes.
    pub writes: u64,
    /// Additions.
    pub additions: u64,
}

/// A collector's memory in this process. An operation waits while 32 others of its kind are
/// requested, so that its line of memory is there when it is done: [`Local::flush`] before reading,
/// or dropping it, does the rest. Kinds are writes of 8 bytes, longer and shorter writes,
/// additions, and additions to all counters of a key: only operations of one kind are in order, so
/// no two of them share a place, except additions. Memory used beside the collector's: about 6 KiB.
pub struct Local<M: Memory> {
    memory: M,
    writes: Box<[Write; DELAYED]>,
    /// Writes asked for.
    written: usize,
    words: [Word; DELAYED],
    /// As `written`, of 8 bytes.
    stored: usize,
    adds: [Word; DELAYED],
    added: usize,
    counts: Box<[Waiting; KEYS_DELAYED]>,
    /// As `written`, in keys.
    counted: usize,
    /// Additions of these beyond the first of each.
    further: usize,
    /// Writes that were too long to wait.
    long: usize,
}

impl<M: Memory> std::fmt::Debug for Local<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Local({:?})", self.operations())
    }
}

impl<'a> Local<&'a mut [u8]> {
    /// Writes to this memory.
    #[must_use]
    pub fn new(memory: &'a mut [u8]) -> Self {
        Self::over(memory)
    }

    /// The memory, with everything done.
    #[must_use]
    pub fn memory(&mut self) -> &[u8] {
        self.flush();
        self.memory
    }
}

impl<M: Memory> Local<M> {
    /// Writes to this memory.
    #[must_use]
    pub fn over(memory: M) -> Self {
        let nothing = Write {
            at: 0,
            len: 0,
            merge: None,
            bytes: [0; DELAYED_LEN_MAX],
        };
        Self {
            memory,
            writes: Box::new([nothing; DELAYED]),
            written: 0,
            words: [NOWHERE; DELAYED],
            stored: 0,
            adds: [NOWHERE; DELAYED],
            added: 0,
            counts: Box::new([NO_COUNT; KEYS_DELAYED]),
            counted: 0,
            further: 0,
            long: 0,
        }
    }

    /// Requested operations, done or not.
    #[must_use]
    pub fn operations(&self) -> Operations {
        Operations {
            writes: [self.written, self.stored, self.long]
                .into_iter()
                .fold(0, usize::wrapping_add) as u64,
            additions: [self.added, self.counted, self.further]
                .into_iter()
                .fold(0, usize::wrapping_add) as u64,
        }
    }

    /// The memory with operations that still wait: for parts where the latest do not matter.
    #[must_use]
    pub fn unflushed(&mut self) -> &mut M {
        &mut self.memory
    }

    /// [`Local::unflushed`], to read it.
    #[must_use]
    pub fn memory_as_is(&self) -> &M {
        &self.memory
    }

    /// [`Sink::count`] of a key of any length with any number of counters.
    #[inline(never)]
    fn count_any(&mut self, addition: &Addition<'_>) {
        let places = addition.places.map(exact::<usize>);
        for &at in &places[..usize::from(addition.places_len)] {
            self.memory.prefetch(at);
        }
        let mut key = [0; KEY_LEN_MAX];
        key[..addition.key.len()].copy_from_slice(addition.key);
        let now = Waiting {
            places,
            add: addition.add,
            short: Short::new(addition.key, addition.places_len),
            key,
        };
        let waiting = &mut self.counts[self.counted % KEYS_DELAYED];
        let before = std::mem::replace(waiting, now);
        self.counted = self.counted.wrapping_add(1);
        let further = usize::from(addition.places_len).wrapping_sub(1);
        self.further = self.further.wrapping_add(further);
        count(&mut self.memory, &before);
    }

    /// Performs the waiting operations.
    pub fn flush(&mut self) {
        for n in 0..DELAYED {
            let write = &mut self.writes[self.written.wrapping_add(n) % DELAYED];
            put(&mut self.memory, write);
            (write.len, write.merge) = (0, None);
        }
        for n in 0..DELAYED {
            let slot = &mut self.words[self.stored.wrapping_add(n) % DELAYED];
            store(&mut self.memory, std::mem::replace(slot, NOWHERE));
        }
        for n in 0..DELAYED {
            let slot = &mut self.adds[self.added.wrapping_add(n) % DELAYED];
            add(&mut self.memory, std::mem::replace(slot, NOWHERE));
        }
        for n in 0..KEYS_DELAYED {
            let waiting = &mut self.counts[self.counted.wrapping_add(n) % KEYS_DELAYED];
            let before = std::mem::replace(waiting, NO_COUNT);
            count(&mut self.memory, &before);
        }
    }
}

impl<M: Memory> Drop for Local<M> {
    fn drop(&mut self) {
        self.flush();
    }
}

#[inline(always)]
fn put(memory: &mut impl Memory, write: &Write) {
    let len = write.len as usize;
    if let Some(how) = write.merge {
        merge(memory, write.at, &write.bytes[..len], how);
    } else if len == DELAYED_LEN_MAX {
        // A usual length, as two stores.
        memory.write(write.at, &write.bytes);
    } else if len > 0 {
        memory.write(write.at, &write.bytes[..len]);
    }
}

#[inline(never)]
fn merge(memory: &mut impl Memory, at: usize, chunk: &[u8], how: Merge) {
    let mut there = [0; CHUNK_LEN_MAX];
    let there = &mut there[..chunk.len()];
    let words = there.as_chunks_mut::<8>().0;
    for (at, word) in (at..).step_by(8).zip(words) {
        *word = memory.load(at);
    }
    if how.into(chunk, there) {
        memory.write(at, there);
    }
}

#[inline(always)]
fn store(memory: &mut impl Memory, Word { at, word }: Word) {
    if at != usize::MAX {
        memory.store(at, word);
    }
}

#[inline(always)]
fn add(memory: &mut impl Memory, Word { at, word }: Word) {
    if at != usize::MAX {
        memory.add(at, word);
    }
}

/// Adds to the counters of a key, and holds the smallest of them against the floor.
fn count(memory: &mut impl Memory, waiting: &Waiting) {
    let (len, short) = (waiting.short.key_len(), waiting.short.key());
    let key = if len == 4 {
        &short
    } else {
        &waiting.key[..len]
    };
    let places = &waiting.places[..waiting.short.places_len()];
    let mut least = u64::MAX;
    for &at in places {
        least = least.min(memory.add(at, waiting.add));
    }
    if least > memory.floor()
        && let [first, ..] = places
    {
        memory.exceeds(key, *first, least);
    }
}

impl<M: Memory> Local<M> {
    /// Writes, or merges, 32 bytes at most once their line of memory is there.
    #[inline(always)]
    fn delay(&mut self, at: usize, bytes: &[u8], merge: Option<Merge>) {
        let write = &mut self.writes[self.written % DELAYED];
        put(&mut self.memory, write);
        write.at = at;
        // At most DELAYED_LEN_MAX.
        write.len = exact::<u32>(bytes.len());
        write.merge = merge;
        match <&[u8; DELAYED_LEN_MAX]>::try_from(bytes) {
            // A usual length, as two stores.
            Ok(all) => write.bytes = *all,
            Err(_) => write.bytes[..bytes.len()].copy_from_slice(bytes),
        }
        let asked = self.written % ASKED;
        self.written = self.written.wrapping_add(1);
        // A prefetch of a page that the TLB does not have holds up what follows it. Walks of page
        // tables go on side by side if nothing is between them.
        if asked == ASKED - 1 {
            let first = self.written.wrapping_sub(ASKED) % DELAYED;
            for write in &self.writes[first..][..ASKED] {
                self.memory.prefetch(write.at);
            }
        }
    }
}

impl<M: Memory> Sink for Local<M> {
    const KEEPS_ORIGINS: bool = false;
    const MERGES: bool = true;

    #[inline(always)]
    fn room(&self, _: Operation) -> Room {
        Room::Operations(usize::MAX)
    }

    #[inline(always)]
    fn write(&mut self, at: u64, bytes: &[u8], _: &[Origin]) {
        let at = exact::<usize>(at);
        if bytes.len() > DELAYED_LEN_MAX {
            self.memory.write(at, bytes);
            self.long = self.long.wrapping_add(1);
            return;
        }
        if let Ok(word) = <[u8; 8]>::try_from(bytes) {
            self.write_word(at as u64, word, &[]);
            return;
        }
        self.delay(at, bytes, None);
    }

    fn settle(&mut self) {
        self.flush();
    }

    #[inline(always)]
    fn merge(&mut self, at: u64, chunk: &[u8], how: Merge, _: &[Origin]) {
        let at = exact::<usize>(at);
        if chunk.len() > DELAYED_LEN_MAX {
            merge(&mut self.memory, at, chunk, how);
            self.long = self.long.wrapping_add(1);
            return;
        }
        self.delay(at, chunk, Some(how));
    }

    #[inline(always)]
    fn write_word(&mut self, at: u64, word: [u8; 8], _: &[Origin]) {
        let at = exact::<usize>(at);
        self.memory.prefetch(at);
        let word = u64::from_ne_bytes(word);
        let slot = &mut self.words[self.stored % DELAYED];
        store(&mut self.memory, std::mem::replace(slot, Word { at, word }));
        self.stored = self.stored.wrapping_add(1);
    }

    #[inline(always)]
    fn fetch_add(&mut self, at: u64, word: u64, _: &[Origin]) {
        let at = exact::<usize>(at);
        self.memory.prefetch(at);
        let slot = &mut self.adds[self.added % DELAYED];
        add(&mut self.memory, std::mem::replace(slot, Word { at, word }));
        self.added = self.added.wrapping_add(1);
    }

    #[inline(always)]
    fn count(&mut self, addition: &Addition<'_>, _: Origin) {
        let short = Short::new(addition.key, addition.places_len);
        let [first, second, ..] = addition.places.map(exact::<usize>);
        let waiting = &mut self.counts[self.counted % KEYS_DELAYED];
        let before = waiting.short;
        // Usually all keys have four bytes, and one counter or two.
        let is_usual = short.key_len() == 4 && short.places_len() <= 2;
        if !is_usual || !before.has_lens_of(short) {
            self.count_any(addition);
            return;
        }
        self.memory.prefetch(first);
        let [first_before, second_before, ..] = waiting.places;
        let add_before = waiting.add;
        // What waited is done once it does not wait any more.
        waiting.places[0] = first;
        if short.places_len() == 2 {
            self.memory.prefetch(second);
            waiting.places[1] = second;
        }
        waiting.short = short;
        waiting.add = addition.add;
        self.counted = self.counted.wrapping_add(1);
        let mut least = self.memory.add(first_before, add_before);
        if short.places_len() == 2 {
            self.further = self.further.wrapping_add(1);
            least = least.min(self.memory.add(second_before, add_before));
        }
        if least > self.memory.floor() {
            self.memory.exceeds(&before.key(), first_before, least);
        }
    }

    #[inline(always)]
    fn expect(&mut self, at: u64, len: usize) {
        let at = exact::<usize>(at);
        // Requests may name any place.
        let end = at.wrapping_add(len);
        for line in (at..end).step_by(LINE) {
            self.memory.prefetch(line);
        }
        self.memory.prefetch(end.wrapping_sub(1));
    }
}

#[cfg(test)]
mod tests;
