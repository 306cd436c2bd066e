//! A queue pair, from the side of who gives commands.

use strata_wire::exact;

use super::entry::{Command, Completion, ENTRY_LEN, SLOT_LEN, Status};
use super::memory::Memory;

/// Looks at a completion whose halves do not belong together before it is a fault: one may be seen while
/// it is written.
const TORN_MAX: u8 = 3;

/// Where a queue pair is, for [`Memory::write`] and reads; not bus addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// Its submission queue: 64 bytes an entry.
    pub submissions: u64,
    /// Its completion queue: 16 bytes an entry.
    pub completions: u64,
    /// The doorbell of its tail, a register or what is forwarded to one.
    pub tail: u64,
    /// The doorbell of its head.
    pub head: u64,
    /// Shadow doorbells, if the controller was given any.
    pub shadow: Option<Shadow>,
}

/// Shadow doorbells of a queue pair, and event indexes (§5.8 and §7.13). They save writes of registers
/// while a controller is busy; they do not replace them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shadow {
    /// The shadow of the tail.
    pub tail: u64,
    /// Of the head.
    pub head: u64,
    /// Where the controller says up to which tail it looks by itself.
    pub tail_event: u64,
    /// Up to which head.
    pub head_event: u64,
}

/// A command that was given and is not known to have ended.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    id: u16,
    token: u64,
    deadline_ns: u64,
    is_aborted: bool,
}

/// Why a command is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QueueError {
    /// As many are in flight as the queue holds.
    #[error("the queue is full")]
    Full,
    /// The controller has done what it must not: it has to be reset.
    #[error("the controller has to be reset: {0}")]
    Failed(Fault),
    /// Depths are from 2 to 65,535: of both queues alike, one entry less is used.
    #[error("a queue of {0} entries; 2 to 32,768 are allowed")]
    Depth(u16),
}

/// What a controller did that it must not, or what was lost on the way to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// A command completed that is not in flight: most likely its slot's new entry was lost, and the old one
    /// was executed again. What it wrote to may hold other data now.
    #[error("command {0} completed but was not in flight: an entry was lost or changed")]
    Command(u16),
    /// A completion of another submission queue.
    #[error("a completion of submission queue {0}")]
    Queue(u16),
    /// The controller claims to have read entries before their doorbell.
    #[error(
        "the submission queue's head moved to {0}, which is not between its previous head and its tail"
    )]
    Head(u16),
    /// Commands did not end in time, and could not be aborted.
    #[error("a command did not complete in time")]
    Timeout,
    /// What was read of the completion queue is not what was requested.
    #[error("{0} bytes of completions: not whole entries, or more than requested")]
    Read(usize),
}

/// A command that ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// Whose, as it was given.
    pub token: u64,
    /// How it ended.
    pub status: Status,
    /// Its result.
    pub result: u32,
}

/// A command that did not end in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expired {
    /// The admin queue is to abort it: [`Command::abort`].
    Abort {
        /// The queue's id.
        queue: u16,
        /// The command's.
        command: u16,
    },
    /// It could not be aborted: the controller is to be reset. The queue pair takes nothing more.
    Reset,
}

/// What is left to do for a doorbell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Ring {
    /// Nothing.
    Done,
    /// An event index is to be read, after all writes before it: [`QueuePair::event`] takes it.
    ReadEvent(EventRead),
}

/// An event index that is to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventRead {
    /// Where: 4 bytes.
    pub at: u64,
    which: usize,
    /// The doorbell's value, and the one before it.
    value: u16,
    before: u16,
}

/// A queue pair. Memory: 24 bytes an entry.
#[derive(Debug)]
pub struct QueuePair {
    id: u16,
    depth: u16,
    places: Places,
    /// Where the next entry goes, and how far the controller has read.
    tail: u16,
    read: u16,
    /// The next completion, and the phase that it will have.
    head: u16,
    phase: bool,
    next_id: u16,
    /// By the low bits of their ids.
    in_flight: Vec<Option<InFlight>>,
    count: u16,
    /// Tail and head as the controller knows them.
    told: [u16; 2],
    torn: u8,
    failed: Option<Fault>,
}

/// No command has this id, but an entry of zeros.
const NO_ID: u16 = 0;
const TAIL: usize = 0;
const HEAD: usize = 1;

impl QueuePair {
    /// A queue pair of this id, 0 for the admin queue. [`QueuePair::begin`] comes before the controller
    /// knows it.
    ///
    /// # Errors
    ///
    /// [`QueueError::Depth`].
    pub fn new(id: u16, depth: u16, places: Places) -> Result<Self, QueueError> {
        if !(2..=1 << 15).contains(&depth) {
            return Err(QueueError::Depth(depth));
        }
        // One more than can be in flight, at least: no command has the id 0.
        let slots = (usize::from(depth) + 1).next_power_of_two();
        Ok(Self {
            id,
            depth,
            places,
            tail: 0,
            read: 0,
            head: 0,
            phase: true,
            next_id: NO_ID + 1,
            in_flight: vec![None; slots],
            count: 0,
            told: [0; 2],
            torn: 0,
            failed: None,
        })
    }

    /// Zeroes both queues: phases of the first lap are then told from nothing, and an entry that is
    /// lost leaves a flush of no namespace, not a command of an earlier life. Before the controller knows
    /// of the queues, and not while it may still write them.
    pub fn begin(&self, memory: &mut impl Memory) {
        let entries = usize::from(self.depth);
        memory.write(self.places.submissions, &vec![0; entries * ENTRY_LEN]);
        memory.write(self.places.completions, &vec![0; entries * SLOT_LEN]);
        if let Some(shadow) = self.places.shadow {
            for at in [
                shadow.tail,
                shadow.head,
                shadow.tail_event,
                shadow.head_event,
            ] {
                memory.write(at, &[0; 4]);
            }
        }
    }

    /// As new, after the controller was reset and does not write memory any more: the tokens of commands
    /// whose outcome is unknown. Ids go on, so that no id comes again soon.
    pub fn reset(&mut self) -> Vec<u64> {
        let tokens = self.in_flight.iter_mut().filter_map(Option::take);
        let mut tokens: Vec<InFlight> = tokens.collect();
        tokens.sort_by_key(|command| command.id.wrapping_sub(self.next_id));
        (self.tail, self.read, self.head, self.count) = (0, 0, 0, 0);
        (self.phase, self.torn, self.failed) = (true, 0, None);
        self.told = [0; 2];
        tokens.into_iter().map(|command| command.token).collect()
    }

    /// Commands in flight.
    #[must_use]
    pub fn in_flight(&self) -> u16 {
        self.count
    }

    /// Why it takes nothing more, if it does not.
    #[must_use]
    pub fn failed(&self) -> Option<Fault> {
        self.failed
    }

    fn fail<T>(&mut self, fault: Fault) -> Result<T, Fault> {
        Err(*self.failed.get_or_insert(fault))
    }

    fn after(&self, place: u16) -> u16 {
        if place.wrapping_add(1) == self.depth {
            0
        } else {
            place.wrapping_add(1)
        }
    }

    /// Entries from one place on to another.
    fn between(&self, from: u16, to: u16) -> u16 {
        if to >= from {
            to.wrapping_sub(from)
        } else {
            to.wrapping_add(self.depth.wrapping_sub(from))
        }
    }

    fn slot_of(&self, id: u16) -> usize {
        usize::from(id) & self.in_flight.len().wrapping_sub(1)
    }

    /// How many commands may be given now.
    #[must_use]
    pub fn room(&self) -> u16 {
        if self.failed.is_some() {
            return 0;
        }
        // An entry that the controller has read may be written over, but there must be room for all
        // completions too.
        let entries = self
            .depth
            .saturating_sub(1)
            .saturating_sub(self.between(self.read, self.tail));
        entries.min(self.depth.saturating_sub(1).saturating_sub(self.count))
    }

    /// Writes the entry of a command; the controller hears of it with [`QueuePair::ring`].
    ///
    /// # Errors
    ///
    /// If there is no room, or the controller has to be reset.
    pub fn submit(
        &mut self,
        command: &Command,
        token: u64,
        deadline_ns: u64,
        memory: &mut impl Memory,
    ) -> Result<u16, QueueError> {
        if let Some(fault) = self.failed {
            return Err(QueueError::Failed(fault));
        }
        if self.room() == 0 {
            return Err(QueueError::Full);
        }
        // Fewer are in flight than there are slots.
        while self.next_id == NO_ID || self.in_flight[self.slot_of(self.next_id)].is_some() {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let slot = self.slot_of(id);
        self.in_flight[slot] = Some(InFlight {
            id,
            token,
            deadline_ns,
            is_aborted: false,
        });
        self.count = self.count.wrapping_add(1);
        let at = self
            .places
            .submissions
            .wrapping_add(u64::from(self.tail).wrapping_mul(ENTRY_LEN as u64));
        memory.write(at, &command.emit(id));
        self.tail = self.after(self.tail);
        Ok(id)
    }

    /// Tells the controller of the entries that were written.
    pub fn ring(&mut self, memory: &mut impl Memory) -> Ring {
        self.tell(TAIL, self.tail, memory)
    }

    /// Tells the controller of the completions that were taken.
    pub fn ring_head(&mut self, memory: &mut impl Memory) -> Ring {
        self.tell(HEAD, self.head, memory)
    }

    fn tell(&mut self, which: usize, value: u16, memory: &mut impl Memory) -> Ring {
        let before = self.told[which];
        if before == value || self.failed.is_some() {
            return Ring::Done;
        }
        self.told[which] = value;
        let Some(shadow) = self.places.shadow else {
            self.register(which, value, memory);
            return Ring::Done;
        };
        // The shadow first: a controller believes it more than the register.
        let (at, event) = match which {
            TAIL => (shadow.tail, shadow.tail_event),
            _ => (shadow.head, shadow.head_event),
        };
        memory.write(at, &u32::from(value).to_le_bytes());
        Ring::ReadEvent(EventRead {
            at: event,
            which,
            value,
            before,
        })
    }

    fn register(&self, which: usize, value: u16, memory: &mut impl Memory) {
        let at = if which == TAIL {
            self.places.tail
        } else {
            self.places.head
        };
        memory.write(at, &u32::from(value).to_le_bytes());
    }

    /// Takes an event index that was read: writes the register if the controller waits for it.
    pub fn event(&self, read: EventRead, event: u32, memory: &mut impl Memory) {
        let EventRead {
            which,
            value,
            before,
            ..
        } = read;
        // §7.13: the register is needed if the index lies from the value before to the new one.
        let [low, high, ..] = event.to_le_bytes();
        let event = u16::from_le_bytes([low, high]);
        if value.wrapping_sub(event).wrapping_sub(1) < value.wrapping_sub(before) {
            self.register(which, value, memory);
        }
    }

    /// Which bytes of the completion queue to read next, where and how many; `None` if nothing is in
    /// flight. Up to the queue's end: the rest is read after that.
    #[must_use]
    pub fn look(&self) -> Option<(u64, usize)> {
        let entries = self.count.min(self.depth.wrapping_sub(self.head));
        let at = self
            .places
            .completions
            .wrapping_add(u64::from(self.head).wrapping_mul(SLOT_LEN as u64));
        let is_wanted = entries > 0 && self.failed.is_none();
        is_wanted.then(|| (at, usize::from(entries) * SLOT_LEN))
    }

    /// Takes completions from bytes that were read where [`QueuePair::look`] said, or the first entries of
    /// them; how many there were. Nothing else may have been taken since.
    ///
    /// # Errors
    ///
    /// If the controller has to be reset; completions before that were taken.
    pub fn take(&mut self, bytes: &[u8], mut done: impl FnMut(Done)) -> Result<u16, Fault> {
        if let Some(fault) = self.failed {
            return Err(fault);
        }
        let (slots, rest) = bytes.as_chunks::<SLOT_LEN>();
        let asked = self.look().map_or(0, |(_, len)| len);
        if !rest.is_empty() || bytes.len() > asked {
            return self.fail(Fault::Read(bytes.len()));
        }
        let mut count: u16 = 0;
        for slot in slots {
            let completion = Completion::parse(slot);
            if completion.phase != self.phase {
                break;
            }
            let Some(ended) = self.ended(&completion)? else {
                break;
            };
            done(ended);
            count = count.wrapping_add(1);
        }
        Ok(count)
    }

    /// A completion of this lap; `None`: look again, since it may be half written.
    fn ended(&mut self, completion: &Completion) -> Result<Option<Done>, Fault> {
        let slot = self.slot_of(completion.command);
        let Some(command) = self.in_flight[slot].filter(|it| it.id == completion.command) else {
            return self.fail(Fault::Command(completion.command));
        };
        let is_queue = completion.queue == self.id;
        // Of entries before the doorbell's last value.
        let told = self.between(self.read, self.told[TAIL]);
        let is_head =
            completion.head < self.depth && self.between(self.read, completion.head) <= told;
        if !is_queue || !is_head {
            self.torn = self.torn.wrapping_add(1);
            if self.torn < TORN_MAX {
                return Ok(None);
            }
            return match is_queue {
                false => self.fail(Fault::Queue(completion.queue)),
                true => self.fail(Fault::Head(completion.head)),
            };
        }
        self.torn = 0;
        self.in_flight[slot] = None;
        self.count = self.count.saturating_sub(1);
        self.read = completion.head;
        self.head = self.after(self.head);
        if self.head == 0 {
            self.phase = !self.phase;
        }
        Ok(Some(Done {
            token: command.token,
            status: completion.status,
            result: completion.result,
        }))
    }

    /// Looks for a command that has not ended in time. It is to be aborted first, and has `patience_ns`
    /// from then on. Call it until it says `None`.
    pub fn expire(&mut self, now_ns: u64, patience_ns: u64) -> Option<Expired> {
        if self.failed.is_some() {
            return None;
        }
        let mut late = self.in_flight.iter_mut().flatten();
        let command = late.find(|command| command.deadline_ns <= now_ns)?;
        if command.is_aborted {
            self.failed = Some(Fault::Timeout);
            return Some(Expired::Reset);
        }
        command.is_aborted = true;
        command.deadline_ns = now_ns.saturating_add(patience_ns);
        Some(Expired::Abort {
            queue: self.id,
            command: command.id,
        })
    }

    /// Its depth, as the commands that create it have it.
    #[must_use]
    pub fn depth(&self) -> u16 {
        self.depth
    }

    /// Bytes of its submission queue, and of its completion queue.
    #[must_use]
    pub fn bytes(&self) -> (usize, usize) {
        let depth = exact::<usize>(self.depth);
        (depth.wrapping_mul(ENTRY_LEN), depth.wrapping_mul(SLOT_LEN))
    }
}
