//! A model of a controller with one queue pair and one namespace, written from the specification; what
//! is not specified, it does in any order.

use strata_stream::nvme::{
    Command, Completion, ListPage, Memory, Page, Places, Prps, Shadow, Status, list_pages,
};
use strata_wire::mix64;

pub(super) const PAGE: usize = 4096;
pub(super) const BLOCK: usize = 512;
pub(super) const BLOCKS: usize = 400;
/// Buffers of commands, and pages of each.
pub(super) const BUFFERS: usize = 20;
pub(super) const BUFFER_PAGES: usize = 5;

/// Memory: queues, doorbells, lists, buffers. Who gives commands counts from `AT`, the controller from
/// `BUS`.
const AT: u64 = 0x5000_0000;
const BUS: u64 = 0x7_0000_0000;
const SUBMISSIONS: usize = 0;
const COMPLETIONS: usize = PAGE;
const SHADOW: usize = 2 * PAGE;
const LISTS: usize = 4 * PAGE;
const DATA: usize = LISTS + BUFFERS * PAGE;
const LEN: usize = DATA + 2 * BUFFERS * BUFFER_PAGES * PAGE;
/// Registers.
const TAIL: u64 = 0x1008;
const HEAD: u64 = 0x100c;

pub(super) struct Draw(pub(super) u64);

impl Draw {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.0)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

pub(super) fn places(has_shadow: bool) -> Places {
    let at = |offset: usize| AT + offset as u64;
    Places {
        submissions: at(SUBMISSIONS),
        completions: at(COMPLETIONS),
        tail: TAIL,
        head: HEAD,
        shadow: has_shadow.then(|| Shadow {
            tail: at(SHADOW),
            head: at(SHADOW + 4),
            tail_event: at(SHADOW + PAGE),
            head_event: at(SHADOW + PAGE + 4),
        }),
    }
}

/// A command that was fetched, and from where.
struct Fetched {
    id: u16,
    command: Command,
}

pub(super) struct Model {
    memory: Vec<u8>,
    pub(super) disk: Vec<u8>,
    depth: u16,
    has_shadow: bool,
    draw: Draw,
    /// What it knows of doorbells.
    tail: u16,
    cq_head: u16,
    sq_head: u16,
    cq_tail: u16,
    phase: bool,
    fetched: Vec<Fetched>,
    /// It looks at shadows until it has found nothing to do.
    is_awake: bool,
    /// One entry in this number is lost on its way.
    pub(super) loss: Option<u64>,
    pub(super) lost: u64,
    /// Slots whose latest entry was lost, and not fetched since.
    stale: Vec<usize>,
}

fn offset(at: u64, base: u64) -> usize {
    usize::try_from(at.checked_sub(base).expect("an address of the memory")).unwrap()
}

impl Memory for Model {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        let word = || u32::from_le_bytes(bytes.try_into().expect("doorbells are whole words"));
        match at {
            TAIL | HEAD => {
                let value = u16::try_from(word()).unwrap();
                assert!(value < self.depth, "a doorbell of {value}");
                if self.has_shadow {
                    // The value of a register does not matter then.
                    self.is_awake = true;
                    self.look();
                } else if at == TAIL {
                    self.tail = value;
                } else {
                    self.cq_head = value;
                }
            }
            _ => {
                let start = offset(at, AT);
                if start < COMPLETIONS && bytes.len() == 64 {
                    let slot = start / 64;
                    self.stale.retain(|&stale| stale != slot);
                    if self.loss.is_some_and(|one_in| self.draw.below(one_in) == 0) {
                        self.lost += 1;
                        self.stale.push(slot);
                        return;
                    }
                }
                self.memory[start..start + bytes.len()].copy_from_slice(bytes);
            }
        }
    }
}

impl Model {
    pub(super) fn new(depth: u16, has_shadow: bool, seed: u64) -> Self {
        Self {
            memory: vec![0xa5; LEN],
            disk: vec![0; BLOCKS * BLOCK],
            depth,
            has_shadow,
            draw: Draw(seed),
            tail: 0,
            cq_head: 0,
            sq_head: 0,
            cq_tail: 0,
            phase: true,
            fetched: Vec::new(),
            is_awake: false,
            loss: None,
            lost: 0,
            stale: Vec::new(),
        }
    }

    pub(super) fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let start = offset(at, AT);
        self.memory[start..start + len].to_vec()
    }

    pub(super) fn word(&self, at: u64) -> u32 {
        u32::from_le_bytes(self.read(at, 4).try_into().unwrap())
    }

    /// Lost entries that were not fetched in vain.
    pub(super) fn lost_unread(&self) -> u64 {
        self.stale.len() as u64
    }

    /// A buffer's pages, in an order of their own, and its list.
    pub(super) fn describe(&mut self, buffer: usize, offset: u32, len: usize) -> Prps {
        let needed = (usize::try_from(offset).unwrap() + len).div_ceil(PAGE);
        let page = |number: usize| {
            // Every other page, from the last to the first: no two are adjacent.
            let place = buffer * 2 * BUFFER_PAGES + 2 * (BUFFER_PAGES - 1 - number);
            Page(BUS + (DATA + place * PAGE) as u64)
        };
        let pages: Vec<Page> = (0..needed).map(page).collect();
        let at = (LISTS + buffer * PAGE) as u64;
        let list = ListPage {
            at: AT + at,
            bus: BUS + at,
        };
        assert!(list_pages(needed) <= 1);
        Prps::describe(&pages, offset, u32::try_from(len).unwrap(), &[list], self).unwrap()
    }

    /// The pieces of memory of a command, as §4.3 finds them.
    fn pieces(&self, prps: Prps, len: usize) -> Vec<(usize, usize)> {
        let place = |bus: u64| offset(bus, BUS);
        let first = len.min(PAGE - place(prps.prp1) % PAGE);
        let mut pieces = vec![(place(prps.prp1), first)];
        let mut left = len - first;
        let mut entry = prps.prp2;
        let is_list = left > PAGE;
        while left > 0 {
            let page = match is_list {
                true => {
                    let at = place(entry);
                    let bytes = self.memory[at..at + 8].try_into().unwrap();
                    u64::from_le_bytes(bytes)
                }
                false => entry,
            };
            assert!(page.is_multiple_of(PAGE as u64), "a PRP of {page:#x}");
            let piece = left.min(PAGE);
            pieces.push((place(page), piece));
            left -= piece;
            entry += 8;
        }
        pieces
    }

    pub(super) fn fill(&mut self, prps: Prps, mut content: &[u8]) {
        for (at, len) in self.pieces(prps, content.len()) {
            let (these, rest) = content.split_at(len);
            self.memory[at..at + len].copy_from_slice(these);
            content = rest;
        }
    }

    pub(super) fn contents(&self, prps: Prps, len: usize) -> Vec<u8> {
        let pieces = self.pieces(prps, len);
        let bytes = pieces
            .into_iter()
            .flat_map(|(at, len)| &self.memory[at..at + len]);
        bytes.copied().collect()
    }

    fn shadow(&self, number: usize) -> u16 {
        let at = SHADOW + 4 * number;
        u16::from_le_bytes(self.memory[at..at + 2].try_into().unwrap())
    }

    fn set_event(&mut self, number: usize, value: u16) {
        let at = SHADOW + PAGE + 4 * number;
        self.memory[at..at + 4].copy_from_slice(&u32::from(value).to_le_bytes());
    }

    fn look(&mut self) {
        if self.has_shadow {
            (self.tail, self.cq_head) = (self.shadow(0), self.shadow(1));
            assert!(self.tail < self.depth && self.cq_head < self.depth);
        }
    }

    /// Works for `steps` steps, if there is something to do.
    pub(super) fn work(&mut self, steps: u64) {
        for _ in 0..steps {
            if self.has_shadow && !self.is_awake {
                return;
            }
            let is_fetching = self.draw.below(2) == 0;
            if is_fetching && self.sq_head != self.tail {
                self.fetch();
            } else if !self.fetched.is_empty() && !self.is_full() {
                let nth = self.draw.below(self.fetched.len() as u64);
                let fetched = self.fetched.swap_remove(usize::try_from(nth).unwrap());
                self.execute(&fetched);
            } else if self.has_shadow {
                self.rest();
            }
        }
    }

    /// Nothing to do, or no room: it says so, looks once more, and sleeps if that is still so.
    fn rest(&mut self) {
        self.set_event(0, self.tail);
        self.set_event(1, self.cq_head);
        self.look();
        let has_work = self.sq_head != self.tail || (!self.fetched.is_empty() && !self.is_full());
        self.is_awake = has_work;
    }

    fn is_full(&self) -> bool {
        (self.cq_tail + 1) % self.depth == self.cq_head
    }

    fn fetch(&mut self) {
        let slot = usize::from(self.sq_head);
        let at = SUBMISSIONS + 64 * slot;
        let entry = self.memory[at..at + 64].try_into().unwrap();
        let (id, command) = Command::parse(&entry);
        self.fetched.push(Fetched { id, command });
        self.sq_head = (self.sq_head + 1) % self.depth;
    }

    fn execute(&mut self, fetched: &Fetched) {
        let command = &fetched.command;
        let status = match (command.opcode, command.namespace) {
            (0..=2, namespace) if namespace != 1 => Status::generic(0x0b),
            (0, _) => Status::SUCCESS,
            (1 | 2, _) => self.transfer(command),
            _ => Status::generic(0x01),
        };
        let completion = Completion {
            result: 0,
            head: self.sq_head,
            queue: 1,
            command: fetched.id,
            phase: self.phase,
            status,
        };
        let at = COMPLETIONS + 16 * usize::from(self.cq_tail);
        self.memory[at..at + 16].copy_from_slice(&completion.emit());
        self.cq_tail = (self.cq_tail + 1) % self.depth;
        self.phase ^= self.cq_tail == 0;
    }

    fn transfer(&mut self, command: &Command) -> Status {
        let [low, high, blocks, ..] = command.dwords;
        let first = u64::from(high) << 32 | u64::from(low);
        let blocks = u64::from(blocks & 0xffff) + 1;
        if first + blocks > BLOCKS as u64 {
            return Status::generic(0x80);
        }
        let mut at = usize::try_from(first).unwrap() * BLOCK;
        let len = usize::try_from(blocks).unwrap() * BLOCK;
        for (place, len) in self.pieces(command.prps, len) {
            let memory = &mut self.memory[place..place + len];
            let disk = &mut self.disk[at..at + len];
            match command.opcode {
                1 => disk.copy_from_slice(memory),
                _ => memory.copy_from_slice(disk),
            }
            at += len;
        }
        Status::SUCCESS
    }
}
