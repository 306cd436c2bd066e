//! Where a translator's operations go.

use strata_wire::{exact, prefetch};

/// A reporter, by its number at the translator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Origin(pub u16);

/// Whether operations can be taken now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// So many.
    Operations(usize),
    /// None, and none later: the collector is gone.
    Gone,
}

/// What is to be done with memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// Bytes are written.
    Write,
    /// Something is added to 8 bytes.
    FetchAdd,
}

/// Takes operations on a collector's memory, whose first byte is at 0. They are done in order.
///
/// `origins` are the reporters whose reports an operation completes, one for each report: only
/// the last copy of a report names it, so when that copy has arrived, all have.
pub trait Sink {
    /// Whether it makes use of `origins`; if not, nobody need keep them.
    const KEEPS_ORIGINS: bool;

    /// How many operations of a kind can be taken now.
    fn room(&self, operation: Operation) -> Room;

    /// Puts `bytes` at `at`.
    fn write(&mut self, at: u64, bytes: &[u8], origins: &[Origin]);

    /// Adds to the 8 bytes at `at`, a multiple of 8, modulo 2^64.
    fn fetch_add(&mut self, at: u64, add: u64, origins: &[Origin]);

    /// [`Sink::write`] of 8 bytes.
    #[inline(always)]
    fn write_word(&mut self, at: u64, word: [u8; 8], origins: &[Origin]) {
        self.write(at, &word, origins);
    }

    /// `len` bytes at `at` are going to be written, in a while.
    #[inline(always)]
    fn expect(&mut self, _at: u64, _len: usize) {}
}

/// Operations between being asked for and being done: as many lines of memory are fetched
/// meanwhile.
const DELAYED: usize = 32;
/// Longest write that is delayed; what is longer goes by itself to memory that is
/// [expected](Sink::expect) to be written.
const DELAYED_LEN_MAX: usize = 32;
const LINE: usize = 64;

/// Memory of this process that operations are done on. Places are bytes from its front.
///
/// All of it panics beyond the memory: places follow from the parameters of the stores.
pub trait Memory {
    /// Puts `bytes` at `at`.
    fn write(&mut self, at: usize, bytes: &[u8]);

    /// Stores 8 bytes, in the byte order of this CPU, at `at`, a multiple of 8.
    fn store(&mut self, at: usize, word: u64);

    /// Adds to the 8 bytes at `at`, a multiple of 8, modulo 2^64, in the byte order of this CPU.
    fn add(&mut self, at: usize, add: u64);

    /// Asks the CPU for the line at `at`, which may be anywhere.
    fn prefetch(&self, at: usize);
}

impl Memory for &mut [u8] {
    #[inline(always)]
    fn write(&mut self, at: usize, bytes: &[u8]) {
        self[at..][..bytes.len()].copy_from_slice(bytes);
    }

    #[inline(always)]
    fn store(&mut self, at: usize, word: u64) {
        *place(self, at) = word.to_ne_bytes();
    }

    #[inline(always)]
    fn add(&mut self, at: usize, add: u64) {
        let place = place(self, at);
        *place = u64::from_ne_bytes(*place).wrapping_add(add).to_ne_bytes();
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
    len: usize,
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

/// What was asked of a memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Operations {
    /// Writes.
    pub writes: u64,
    /// Additions.
    pub additions: u64,
}

/// A collector's memory in this process. An operation waits while 32 others of its kind are asked
/// for, so that its line of memory is there when it is done: [`Local::flush`] before reading, or
/// dropping it, does the rest. Kinds are writes of 8 bytes, longer and shorter writes, and
/// additions: only operations of one kind are in order, so no two of them share a place. Memory
/// used beside the collector's: about 2 KiB.
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
            long: 0,
        }
    }

    /// What it was asked for, done or not.
    #[must_use]
    pub fn operations(&self) -> Operations {
        Operations {
            writes: [self.written, self.stored, self.long]
                .into_iter()
                .fold(0, usize::wrapping_add) as u64,
            additions: self.added as u64,
        }
    }

    /// The memory as it is, with operations that still wait: for parts of it that none goes to, or
    /// where the latest of them do not matter.
    #[must_use]
    pub fn unflushed(&mut self) -> &mut M {
        &mut self.memory
    }

    /// [`Local::unflushed`], to read it.
    #[must_use]
    pub fn memory_as_is(&self) -> &M {
        &self.memory
    }

    /// Does what waits.
    pub fn flush(&mut self) {
        for n in 0..DELAYED {
            let write = &mut self.writes[self.written.wrapping_add(n) % DELAYED];
            put(&mut self.memory, write);
            write.len = 0;
        }
        for n in 0..DELAYED {
            let slot = &mut self.words[self.stored.wrapping_add(n) % DELAYED];
            store(&mut self.memory, std::mem::replace(slot, NOWHERE));
        }
        for n in 0..DELAYED {
            let slot = &mut self.adds[self.added.wrapping_add(n) % DELAYED];
            add(&mut self.memory, std::mem::replace(slot, NOWHERE));
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
    // A usual length, as two stores.
    if write.len == DELAYED_LEN_MAX {
        memory.write(write.at, &write.bytes);
    } else if write.len > 0 {
        memory.write(write.at, &write.bytes[..write.len]);
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

impl<M: Memory> Sink for Local<M> {
    const KEEPS_ORIGINS: bool = false;

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
        self.memory.prefetch(at);
        let write = &mut self.writes[self.written % DELAYED];
        put(&mut self.memory, write);
        write.at = at;
        write.len = bytes.len();
        write.bytes[..bytes.len()].copy_from_slice(bytes);
        self.written = self.written.wrapping_add(1);
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
    fn expect(&mut self, at: u64, len: usize) {
        let at = exact::<usize>(at);
        // Places anywhere may be asked for.
        let end = at.wrapping_add(len);
        for line in (at..end).step_by(LINE) {
            self.memory.prefetch(line);
        }
        self.memory.prefetch(end.wrapping_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_done_in_order_and_none_is_left_waiting() {
        let mut memory = vec![0; 8192];
        let mut naive = memory.clone();
        {
            let mut local = Local::new(&mut memory);
            for n in 0..500_u64 {
                let at = n * 37 % 100 * 8;
                local.write(at, &n.to_le_bytes(), &[]);
                let start = usize::try_from(at).unwrap();
                naive[start..start + 8].copy_from_slice(&n.to_le_bytes());
                let long = [n.to_le_bytes(); 4].concat();
                local.write(4096 + at * 4, &long, &[]);
                naive[4096 + start * 4..][..32].copy_from_slice(&long);
                local.fetch_add(2048 + at, n, &[]);
                let at = 2048 + start;
                (&mut naive[..]).add(at, n);
            }
            let operations = Operations {
                writes: 1000,
                additions: 500,
            };
            assert_eq!(local.operations(), operations);
        }
        assert_eq!(memory, naive);
    }

    #[test]
    #[should_panic(expected = "lies in the memory")]
    fn nothing_is_written_beyond_the_memory() {
        let mut memory = vec![0; 64];
        Local::new(&mut memory).write(60, &[1; 8], &[]);
    }
}
