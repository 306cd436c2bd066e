//! The controller of a disk: brought up, its namespace known, a queue pair created.

use std::path::Path;
use std::time::{Duration, Instant};

use strata_stream::nvme::{
    Capabilities, Command, Content, Done, Enable, Expired, Label, ListPage, Memory, Page, Places,
    Prps, QueuePair, Ring, Shadow, Step, register,
};
use strata_sys::pci::{Registers, bus_address};
use strata_sys::shared::SharedMemory;
use strata_wire::{exact, unix_ns};

use crate::Result;

const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;
const ADMIN_DEPTH: u16 = 16;
/// Of the I/O queue pair.
pub(crate) const ID: u16 = 1;
/// Where things are in the memory of the I/O queue pair; a peer may write it.
pub(crate) const SUBMISSIONS: usize = 0;
pub(crate) const COMPLETIONS: usize = PAGE;
pub(crate) const BELLS: usize = 2 * PAGE;
const SHADOW: usize = 3 * PAGE;
const EVENTS: usize = 4 * PAGE;
pub(crate) const LISTS: usize = 16 * PAGE;
pub(crate) const DATA: usize = 64 * PAGE;
/// Bytes of a buffer, the longest command; and how many there are.
pub(crate) const BUFFER: usize = 128 << 10;
pub(crate) const BUFFERS: usize = 13;
/// Registers, as [`Memory::write`] has their addresses.
const REGISTERS: u64 = 1 << 40;
/// A command's time.
const LIMIT: Duration = Duration::from_secs(30);

/// Memory that the controller knows, and its registers.
pub(crate) struct Reach {
    pub(crate) registers: Registers,
    pub(crate) memory: SharedMemory,
    bus: u64,
}

impl Reach {
    fn new(registers: Registers) -> Result<Self> {
        let memory = SharedMemory::create_huge("nvme", HUGE)?;
        let bus = bus_address(&memory, 0)?;
        Ok(Self {
            registers,
            memory,
            bus,
        })
    }

    pub(crate) fn bus(&self, at: usize) -> u64 {
        assert!(at < HUGE);
        self.bus + at as u64
    }

    pub(crate) fn read(&self, at: u64, len: usize) -> Vec<u8> {
        self.memory.copy_out(exact(at), len)
    }

    /// A buffer's data: every page of it, in an order of its own.
    pub(crate) fn prps(&mut self, buffer: usize, len: usize) -> Result<Prps> {
        let pages: Vec<Page> = Self::order(len)
            .map(|page| Page(self.bus(DATA + buffer * BUFFER + page * PAGE)))
            .collect();
        let at = LISTS + buffer * PAGE;
        let list = ListPage {
            at: at as u64,
            bus: self.bus(at),
        };
        Ok(Prps::describe(&pages, 0, exact(len), &[list], self)?)
    }

    fn order(len: usize) -> impl Iterator<Item = usize> {
        let pages = len.div_ceil(PAGE);
        (0..pages).map(move |number| (pages - 1 - number) ^ usize::from(pages.is_multiple_of(2)))
    }

    pub(crate) fn fill(&self, buffer: usize, content: &[u8]) {
        for (page, piece) in Self::order(content.len()).zip(content.chunks(PAGE)) {
            self.memory
                .copy_in(DATA + buffer * BUFFER + page * PAGE, piece);
        }
    }

    pub(crate) fn content(&self, buffer: usize, len: usize) -> Vec<u8> {
        let mut content = vec![0; len];
        for (page, piece) in Self::order(len).zip(content.chunks_mut(PAGE)) {
            self.memory
                .copy_into(DATA + buffer * BUFFER + page * PAGE, piece);
        }
        content
    }
}

impl Memory for Reach {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        match at.checked_sub(REGISTERS) {
            Some(at) => {
                let word = bytes.try_into().expect("registers are words");
                self.registers.write(exact(at), u32::from_le_bytes(word));
            }
            None => self.memory.copy_in(exact(at), bytes),
        }
    }
}

pub(crate) struct Disk {
    pub(crate) reach: Reach,
    /// The admin queue's memory, which no peer reaches.
    own: SharedMemory,
    own_bus: u64,
    admin: QueuePair,
    pub(crate) capabilities: Capabilities,
    pub(crate) blocks: u64,
    pub(crate) block: usize,
    started: Instant,
}

/// The admin queue pair is written into other memory.
struct Admin<'a>(&'a SharedMemory, &'a Registers);

impl Memory for Admin<'_> {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        match at.checked_sub(REGISTERS) {
            Some(at) => {
                let word = bytes.try_into().expect("registers are words");
                self.1.write(exact(at), u32::from_le_bytes(word));
            }
            None => self.0.copy_in(exact(at), bytes),
        }
    }
}

impl Disk {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let registers = Registers::open(path)?;
        let at = exact(register::CAP);
        let cap = u64::from(registers.read(at)) | u64::from(registers.read(at + 4)) << 32;
        let capabilities = Capabilities::parse(cap);
        if !capabilities.is_usable {
            return Err("the controller does not take pages of 4 KiB".into());
        }
        let own = SharedMemory::create_huge("admin", HUGE)?;
        let own_bus = bus_address(&own, 0)?;
        let (tail, head) = capabilities.bells(0);
        let places = Places {
            submissions: SUBMISSIONS as u64,
            completions: COMPLETIONS as u64,
            tail: REGISTERS + tail,
            head: REGISTERS + head,
            shadow: None,
        };
        let mut disk = Self {
            reach: Reach::new(registers)?,
            own,
            own_bus,
            admin: QueuePair::new(0, ADMIN_DEPTH, places)?,
            capabilities,
            blocks: 0,
            block: 0,
            started: Instant::now(),
        };
        disk.enable()?;
        disk.identify()?;
        Ok(disk)
    }

    pub(crate) fn now_ns(&self) -> u64 {
        exact(self.started.elapsed().as_nanos())
    }

    /// Resets the controller and enables it, with an admin queue and nothing else.
    pub(crate) fn enable(&mut self) -> Result<()> {
        let completions = self.own_bus + COMPLETIONS as u64;
        let mut enable = Enable::new(
            &self.capabilities,
            ADMIN_DEPTH,
            self.own_bus + SUBMISSIONS as u64,
            completions,
        );
        let mut status = None;
        let mut is_begun = false;
        loop {
            let step = enable.step(self.now_ns(), status.take())?;
            if enable.is_idle() && !std::mem::replace(&mut is_begun, true) {
                self.admin.reset();
                self.admin
                    .begin(&mut Admin(&self.own, &self.reach.registers));
            }
            match step {
                Step::Write { at, value } => self.reach.registers.write(exact(at), value),
                Step::ReadStatus => {
                    std::thread::sleep(Duration::from_micros(100));
                    status = Some(self.reach.registers.read(exact(register::CSTS)));
                }
                Step::Ready => return Ok(()),
            }
        }
    }

    /// Runs an admin command; its result.
    pub(crate) fn admin(&mut self, command: &Command) -> Result<u32> {
        let deadline_ns = self.now_ns() + exact::<u64>(LIMIT.as_nanos());
        let memory = &mut Admin(&self.own, &self.reach.registers);
        self.admin.submit(command, 0, deadline_ns, memory)?;
        let Ring::Done = self.admin.ring(memory) else {
            unreachable!("the admin queue has no shadow");
        };
        let mut done: Option<Done> = None;
        while done.is_none() {
            if self.admin.expire(self.now_ns(), 0).is_some() {
                return Err("an admin command did not end in time".into());
            }
            let (at, len) = self.admin.look().ok_or("nothing is in flight")?;
            let bytes = self.own.copy_out(exact(at), len);
            self.admin.take(&bytes, |ended| done = Some(ended))?;
        }
        let memory = &mut Admin(&self.own, &self.reach.registers);
        let _: Ring = self.admin.ring_head(memory);
        let done = done.ok_or("no answer")?;
        match done.status.is_success() {
            true => Ok(done.result),
            false => Err(format!("admin command {:#x}: {}", command.opcode, done.status).into()),
        }
    }

    fn identify(&mut self) -> Result<()> {
        let at = 8 * PAGE;
        self.admin(&Command::identify(1, self.own_bus + at as u64))?;
        let bytes = self.own.copy_out(at, PAGE);
        // Base Specification 1.4, figure 245: NSZE, FLBAS, and LBADS of the format in use.
        self.blocks = u64::from_le_bytes(bytes[..8].try_into()?);
        let format = usize::from(bytes[26] & 15);
        self.block = 1 << bytes[128 + 4 * format + 2];
        self.admin(&Command::ask_queues(1))?;
        Ok(())
    }

    /// Creates the I/O queue pair. `bells`: doorbells are these words of memory, not registers.
    pub(crate) fn create_pair(
        &mut self,
        depth: u16,
        bells: bool,
        shadow: bool,
    ) -> Result<QueuePair> {
        let (tail, head) = self.capabilities.bells(ID);
        let at = |place: usize, bell: u64| place as u64 + bell - register::BELLS;
        let (tail_at, head_at) = match bells {
            true => (at(BELLS, tail), at(BELLS, head)),
            false => (REGISTERS + tail, REGISTERS + head),
        };
        let pair = QueuePair::new(
            ID,
            depth,
            Places {
                submissions: SUBMISSIONS as u64,
                completions: COMPLETIONS as u64,
                tail: tail_at,
                head: head_at,
                shadow: shadow.then(|| Shadow {
                    tail: at(SHADOW, tail),
                    head: at(SHADOW, head),
                    tail_event: at(EVENTS, tail),
                    head_event: at(EVENTS, head),
                }),
            },
        )?;
        self.announce(&pair, shadow)?;
        Ok(pair)
    }

    /// Tells the controller of a queue pair, zeroed.
    pub(crate) fn announce(&mut self, pair: &QueuePair, shadow: bool) -> Result<()> {
        pair.begin(&mut self.reach);
        self.reach.memory.copy_in(BELLS, &[0; PAGE]);
        let bus = |at: usize| self.reach.bus(at);
        let completions = Command::create_completions(ID, pair.depth(), bus(COMPLETIONS));
        let submissions = Command::create_submissions(ID, pair.depth(), bus(SUBMISSIONS));
        let buffers = Command::doorbell_buffers(bus(SHADOW), bus(EVENTS));
        self.admin(&completions)?;
        self.admin(&submissions)?;
        if shadow {
            self.admin(&buffers)?;
        }
        Ok(())
    }

    pub(crate) fn delete_pair(&mut self) -> Result<()> {
        self.admin(&Command::delete_submissions(ID))?;
        self.admin(&Command::delete_completions(ID))?;
        Ok(())
    }

    /// Tells the controller of what was written and taken.
    pub(crate) fn ring(&mut self, pair: &mut QueuePair) {
        for ring in [pair.ring(&mut self.reach), pair.ring_head(&mut self.reach)] {
            if let Ring::ReadEvent(event) = ring {
                let bytes = self.reach.read(event.at, 4);
                let value = u32::from_le_bytes(bytes.try_into().expect("4 bytes"));
                pair.event(event, value, &mut self.reach);
            }
        }
    }

    /// Takes what has completed.
    pub(crate) fn take(&mut self, pair: &mut QueuePair) -> Result<Vec<Done>> {
        let mut ended = Vec::new();
        if let Some((at, len)) = pair.look() {
            let bytes = self.reach.read(at, len);
            pair.take(&bytes, |done| ended.push(done))?;
        }
        Ok(ended)
    }

    /// Gives a command and waits for it.
    pub(crate) fn one(&mut self, pair: &mut QueuePair, command: &Command) -> Result<Done> {
        let deadline_ns = self.now_ns() + exact::<u64>(LIMIT.as_nanos());
        pair.submit(command, 0, deadline_ns, &mut self.reach)?;
        self.ring(pair);
        loop {
            if let Some(done) = self.take(pair)?.pop() {
                self.ring(pair);
                return Ok(done);
            }
            if let Some(Expired::Abort { .. } | Expired::Reset) = pair.expire(self.now_ns(), 0) {
                return Err("a command did not end in time".into());
            }
        }
    }

    /// Refuses a disk that holds something that Strata did not write, unless it is to be formatted.
    pub(crate) fn claim(&mut self, pair: &mut QueuePair, format: bool) -> Result<Label> {
        let ends = exact::<usize>(Label::ENDS_LEN);
        let in_end = exact::<u64>(ends / self.block).min(self.blocks);
        let mut ends = [Vec::new(), Vec::new()];
        for (end, start) in ends.iter_mut().zip([0, self.blocks - in_end]) {
            let in_one = exact::<u64>(BUFFER / self.block);
            for first in (start..start + in_end).step_by(BUFFER / self.block) {
                let blocks = in_one.min(start + in_end - first);
                let len = exact::<usize>(blocks) * self.block;
                let prps = self.reach.prps(0, len)?;
                let read = self.one(pair, &Command::read(1, first, exact(blocks), prps))?;
                if !read.status.is_success() {
                    return Err(format!("block {first}: {}", read.status).into());
                }
                end.extend(self.reach.content(0, len));
            }
        }
        let [first, last] = ends;
        match Content::of(self.blocks, &first, &last) {
            Content::Ours(label) => return Ok(label),
            Content::Foreign if !format => {
                return Err(
                    "the disk holds something that Strata did not write: to write over \
                            it, say format"
                        .into(),
                );
            }
            Content::Foreign | Content::Nothing => {}
        }
        let now_ns = unix_ns();
        let label = Label {
            id: strata_wire::mix64(now_ns),
            created_ns: now_ns,
            blocks: self.blocks,
        };
        let mut block = vec![0; PAGE];
        block[..Label::LEN].copy_from_slice(&label.emit());
        self.reach.fill(0, &block);
        let prps = self.reach.prps(0, PAGE)?;
        let write = Command::write(1, 0, exact(PAGE / self.block), prps);
        let done = self.one(pair, &write)?;
        match done.status.is_success() {
            true => Ok(label),
            false => Err(format!("block 0: {}", done.status).into()),
        }
    }
}

/// The controller writes no memory any more.
impl Drop for Disk {
    fn drop(&mut self) {
        let registers = &self.reach.registers;
        registers.write(exact(register::CC), 0);
        let end = Instant::now() + Duration::from_secs(8);
        while registers.read(exact(register::CSTS)) & 1 == 1 && Instant::now() < end {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
