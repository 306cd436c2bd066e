//! The memory of a store, as a translator's operations reach it.

use strata_dta::{Operation, Origin, Room, Sink};
use strata_sys::words::WordsMut;
use strata_wire::exact;

use super::plan::Places;

/// Operations between being asked for and being done, while their lines of memory come.
const DELAYED: usize = 32;
/// Longest write that is delayed; longer ones go to memory that is written in order.
const DELAYED_LEN_MAX: usize = 32;

/// Operations that were done, by the part of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Done {
    pub(super) key_write: u64,
    pub(super) postcarding: u64,
    pub(super) append: u64,
    pub(super) key_increment: u64,
}

#[derive(Clone, Copy)]
enum Delayed {
    Nothing,
    Write(usize, u8, [u8; DELAYED_LEN_MAX]),
    Add(usize, u64),
}

/// Memory of this process, in a file. Operations are done in order; up to 32 wait for their lines of
/// memory until [`Mapped::flush`].
pub(super) struct Mapped {
    memory: WordsMut,
    places: Places,
    delayed: [Delayed; DELAYED],
    next: usize,
    pub(super) done: Done,
}

impl Mapped {
    pub(super) fn new(memory: WordsMut, places: Places) -> Self {
        Self {
            memory,
            places,
            delayed: [Delayed::Nothing; DELAYED],
            next: 0,
            done: Done::default(),
        }
    }

    /// Does what waits.
    pub(super) fn flush(&mut self) {
        for _ in 0..DELAYED {
            self.delay(Delayed::Nothing);
        }
    }

    /// The memory, with everything done.
    pub(super) fn memory(&mut self) -> &mut WordsMut {
        self.flush();
        &mut self.memory
    }

    fn delay(&mut self, operation: Delayed) {
        let oldest = std::mem::replace(&mut self.delayed[self.next], operation);
        self.next = (self.next + 1) % DELAYED;
        match oldest {
            Delayed::Nothing => {}
            Delayed::Write(at, len, bytes) => self.memory.write(at, &bytes[..usize::from(len)]),
            Delayed::Add(at, add) => self.memory.add(at, add),
        }
    }
}

impl Sink for Mapped {
    const KEEPS_ORIGINS: bool = false;

    fn room(&self, _: Operation) -> Room {
        Room::Operations(usize::MAX)
    }

    fn write(&mut self, at: u64, bytes: &[u8], _: &[Origin]) {
        let done = &mut self.done;
        *if at >= self.places.append_at {
            &mut done.append
        } else if at >= self.places.postcarding_at {
            &mut done.postcarding
        } else {
            &mut done.key_write
        } += 1;
        let at = exact::<usize>(at);
        if bytes.len() > DELAYED_LEN_MAX {
            self.memory.write(at, bytes);
            return;
        }
        self.memory.words().prefetch(at);
        let mut held = [0; DELAYED_LEN_MAX];
        held[..bytes.len()].copy_from_slice(bytes);
        self.delay(Delayed::Write(at, exact::<u8>(bytes.len()), held));
    }

    fn expect(&mut self, at: u64, len: usize) {
        /// Bytes of a line of memory.
        const LINE: usize = 64;
        let at = exact::<usize>(at);
        for line in 0..len.div_ceil(LINE) {
            self.memory.words().prefetch(at + line * LINE);
        }
    }

    fn fetch_add(&mut self, at: u64, add: u64, _: &[Origin]) {
        self.done.key_increment += 1;
        let at = exact::<usize>(at);
        self.memory.words().prefetch(at);
        self.delay(Delayed::Add(at, add));
    }
}
