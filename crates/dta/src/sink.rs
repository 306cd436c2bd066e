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
}

/// Operations between being asked for and being done: as many lines of memory are fetched
/// meanwhile.
const DELAYED: usize = 32;
/// Longest write that is delayed; what is longer goes by itself to memory that is written in
/// order.
const DELAYED_LEN_MAX: usize = 32;

/// A write that waits for its line of memory.
#[derive(Clone, Copy)]
struct Write {
    at: usize,
    len: usize,
    bytes: [u8; DELAYED_LEN_MAX],
}

/// A collector's memory in this process. An operation waits while 32 others are asked for, so that
/// its line of memory is there when it is done: [`Local::flush`] before reading, or dropping it,
/// does the rest. Memory used beside the collector's: about 2 KiB.
pub struct Local<'a> {
    memory: &'a mut [u8],
    writes: Box<[Write; DELAYED]>,
    /// Writes asked for, with those that were none when it began.
    written: usize,
    adds: [(usize, u64); DELAYED],
    added: usize,
}

impl std::fmt::Debug for Local<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Local({} bytes)", self.memory.len())
    }
}

impl<'a> Local<'a> {
    /// Writes to this memory.
    #[must_use]
    pub fn new(memory: &'a mut [u8]) -> Self {
        let nothing = Write {
            at: 0,
            len: 0,
            bytes: [0; DELAYED_LEN_MAX],
        };
        Self {
            memory,
            writes: Box::new([nothing; DELAYED]),
            written: 0,
            adds: [(usize::MAX, 0); DELAYED],
            added: 0,
        }
    }

    /// Does what waits.
    pub fn flush(&mut self) {
        for n in 0..DELAYED {
            let write = &mut self.writes[(self.written + n) % DELAYED];
            put(self.memory, write);
            write.len = 0;
        }
        for n in 0..DELAYED {
            let slot = &mut self.adds[(self.added + n) % DELAYED];
            let (at, add) = std::mem::replace(slot, (usize::MAX, 0));
            add_at(self.memory, at, add);
        }
    }

    /// The memory, with everything done.
    #[must_use]
    pub fn memory(&mut self) -> &[u8] {
        self.flush();
        self.memory
    }
}

impl Drop for Local<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

#[inline(always)]
fn put(memory: &mut [u8], write: &Write) {
    // The usual length, as one store.
    if write.len == 8 {
        let word: &[u8; 8] = write.bytes.first_chunk().expect("a write has 8 bytes");
        memory[write.at..write.at + 8].copy_from_slice(word);
    } else if write.len == DELAYED_LEN_MAX {
        memory[write.at..write.at + DELAYED_LEN_MAX].copy_from_slice(&write.bytes);
    } else {
        memory[write.at..write.at + write.len].copy_from_slice(&write.bytes[..write.len]);
    }
}

#[inline(always)]
fn add_at(memory: &mut [u8], at: usize, add: u64) {
    if at == usize::MAX {
        return;
    }
    let counter: &mut [u8; 8] = memory[at..]
        .first_chunk_mut()
        .expect("a counter lies in the memory");
    *counter = u64::from_ne_bytes(*counter).wrapping_add(add).to_ne_bytes();
}

impl Sink for Local<'_> {
    const KEEPS_ORIGINS: bool = false;

    #[inline(always)]
    fn room(&self, _: Operation) -> Room {
        Room::Operations(usize::MAX)
    }

    #[inline(always)]
    fn write(&mut self, at: u64, bytes: &[u8], _: &[Origin]) {
        let at = exact::<usize>(at);
        if bytes.len() > DELAYED_LEN_MAX {
            self.memory[at..at + bytes.len()].copy_from_slice(bytes);
            return;
        }
        prefetch(self.memory, at);
        let write = &mut self.writes[self.written % DELAYED];
        put(self.memory, write);
        write.at = at;
        write.len = bytes.len();
        match <[u8; 8]>::try_from(bytes) {
            Ok(word) => write.bytes[..8].copy_from_slice(&word),
            Err(_) => write.bytes[..bytes.len()].copy_from_slice(bytes),
        }
        self.written = self.written.wrapping_add(1);
    }

    #[inline(always)]
    fn fetch_add(&mut self, at: u64, add: u64, _: &[Origin]) {
        let at = exact::<usize>(at);
        prefetch(self.memory, at);
        let slot = &mut self.adds[self.added % DELAYED];
        let (before, waiting) = std::mem::replace(slot, (at, add));
        add_at(self.memory, before, waiting);
        self.added = self.added.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_done_in_order_and_none_is_left_waiting() {
        let mut memory = vec![0; 4096];
        let mut naive = memory.clone();
        {
            let mut local = Local::new(&mut memory);
            for n in 0..500_u64 {
                let at = n * 37 % 100 * 8;
                local.write(at, &n.to_le_bytes(), &[]);
                let start = usize::try_from(at).unwrap();
                naive[start..start + 8].copy_from_slice(&n.to_le_bytes());
                local.fetch_add(2048 + at, n, &[]);
                add_at(&mut naive, 2048 + start, n);
            }
        }
        assert_eq!(memory, naive);
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn nothing_is_written_beyond_the_memory() {
        let mut memory = vec![0; 64];
        Local::new(&mut memory).write(60, &[1; 8], &[]);
    }
}
