//! The queue pair against a model of a controller, written from the specification: whatever order it
//! works in, wherever queues wrap, with errors, aborts, resets and entries lost on the way, every command ends
//! as it should, or is reported as unknown. `SEEDS=1000` runs 1000 seeds, `SEED=17` one.
#![allow(clippy::print_stderr, reason = "the seed of a failed run")]

mod model;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use strata_stream::nvme::{
    Capabilities, Command, Completion, Done, Enable, EnableError, Expired, Fault, Memory, Prps,
    QueueError, QueuePair, Ring, Status, Step, register,
};
use strata_wire::mix64;

use model::{BLOCK, BLOCKS, BUFFER_PAGES, BUFFERS, Draw, Model, places};

fn seeds() -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().unwrap());
    match (number("SEED"), number("SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, count) => (0..count.unwrap_or(300)).collect(),
    }
}

/// What a command was to do.
struct Given {
    command: Command,
    buffer: usize,
    first: u64,
    /// Of a write: what.
    content: Vec<u8>,
    expected: Status,
}

/// Who gives commands, with a naive disk next to that of the model.
struct Run {
    draw: Draw,
    model: Model,
    queue: QueuePair,
    given: BTreeMap<u64, Given>,
    free: Vec<usize>,
    disk: Vec<u8>,
    next_token: u64,
    ended: u64,
    now_ns: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut draw = Draw(mix64(seed));
        let depth = u16::try_from(2 + draw.below(15)).unwrap();
        let has_shadow = draw.below(2) == 0;
        let queue = QueuePair::new(1, depth, places(has_shadow)).unwrap();
        let mut model = Model::new(depth, has_shadow, mix64(seed ^ 7));
        queue.begin(&mut model);
        Self {
            draw,
            model,
            queue,
            given: BTreeMap::new(),
            free: (0..BUFFERS).collect(),
            disk: vec![0; BLOCKS * BLOCK],
            next_token: 0,
            ended: 0,
            now_ns: 0,
        }
    }

    /// A command on blocks that no other in flight touches.
    fn give(&mut self) -> Result<(), QueueError> {
        let Some(buffer) = self.free.pop() else {
            return Ok(());
        };
        let blocks = 1 + self.draw.below(BUFFER_PAGES as u64 * 7);
        // Now and then beyond the end.
        let first = self.draw.below(BLOCKS as u64);
        let range = first..first + blocks;
        let is_free = self.given.values().all(|other| {
            let theirs = other.first..other.first + blocks_of(&other.command);
            range.end <= theirs.start || theirs.end <= range.start
        });
        if !is_free {
            self.free.push(buffer);
            return Ok(());
        }
        let len = usize::try_from(blocks).unwrap() * BLOCK;
        let kind = self.draw.below(8);
        let offset = u32::try_from(self.draw.below(64) * 4).unwrap();
        let prps = self.model.describe(buffer, offset, len);
        let count = u16::try_from(blocks).unwrap();
        let is_over = usize::try_from(range.end).unwrap() > BLOCKS;
        let (command, expected) = match kind {
            0 => (Command::flush(1), Status::SUCCESS),
            1 => (Command::flush(9), Status::generic(0x0b)),
            2..=4 => (Command::read(1, first, count, prps), out_of_range(is_over)),
            _ => (Command::write(1, first, count, prps), out_of_range(is_over)),
        };
        let content: Vec<u8> = (0..len)
            .map(|_| self.draw.next().to_le_bytes()[0])
            .collect();
        self.model.fill(prps, &content);
        let given = Given {
            command,
            buffer,
            first,
            content,
            expected,
        };
        let token = self.next_token;
        let deadline_ns = self.now_ns + 1_000_000;
        let submitted = self
            .queue
            .submit(&command, token, deadline_ns, &mut self.model);
        match submitted {
            Ok(_) => {
                self.next_token += 1;
                self.given.insert(token, given);
                Ok(())
            }
            Err(error) => {
                self.free.push(buffer);
                Err(error)
            }
        }
    }

    fn ring(&mut self, is_head: bool) {
        let ring = match is_head {
            true => self.queue.ring_head(&mut self.model),
            false => self.queue.ring(&mut self.model),
        };
        if let Ring::ReadEvent(read) = ring {
            // The controller may do something in between.
            self.model.work(2);
            let event = self.model.word(read.at);
            self.queue.event(read, event, &mut self.model);
        }
    }

    /// Reads completions, now and then fewer than it could.
    fn reap(&mut self) -> Result<(), Fault> {
        let Some((at, len)) = self.queue.look() else {
            return Ok(());
        };
        let bytes = self.model.read(at, len);
        let most = len / 16;
        let count = most
            - usize::try_from(self.draw.below(most as u64)).unwrap()
                * usize::from(self.draw.below(3) == 0);
        let mut all = Vec::new();
        let taken = self.queue.take(&bytes[..count * 16], |done| all.push(done));
        for done in all {
            self.done(done);
        }
        taken.map(drop)
    }

    fn done(&mut self, done: Done) {
        let given = self
            .given
            .remove(&done.token)
            .expect("it was given, and has not ended");
        self.free.push(given.buffer);
        self.ended += 1;
        assert_eq!(done.status, given.expected, "{:?}", given.command);
        if !done.status.is_success() || given.command.opcode == 0 {
            return;
        }
        let start = usize::try_from(given.first).unwrap() * BLOCK;
        let blocks = start..start + given.content.len();
        match given.command.opcode {
            1 => self.disk[blocks].copy_from_slice(&given.content),
            _ => {
                let read = self.model.contents(given.command.prps, given.content.len());
                // An old command that ran again may have written there; a fault says so soon.
                assert!(
                    self.model.lost > 0 || read == self.disk[blocks],
                    "a read gave something else"
                );
            }
        }
    }

    fn step(&mut self) -> Result<(), Fault> {
        match self.draw.below(6) {
            0 | 1 => match self.give() {
                Ok(()) => {}
                Err(QueueError::Full) => assert_eq!(self.queue.room(), 0),
                Err(error) => panic!("{error}"),
            },
            2 => self.ring(false),
            3 => {
                let steps = self.draw.below(4);
                self.model.work(steps);
            }
            4 => self.reap()?,
            _ => self.ring(true),
        }
        Ok(())
    }

    /// All commands end.
    fn drain(&mut self) -> Result<(), Fault> {
        for _ in 0..100_000 {
            if self.given.is_empty() {
                return Ok(());
            }
            self.ring(false);
            self.model.work(3);
            self.reap()?;
            self.ring(true);
        }
        panic!("{} commands never end", self.given.len());
    }
}

fn blocks_of(command: &Command) -> u64 {
    u64::from(command.dwords[2] & 0xffff) + 1
}

fn out_of_range(is_over: bool) -> Status {
    if is_over {
        Status::generic(0x80)
    } else {
        Status::SUCCESS
    }
}

#[test]
fn every_command_ends_as_it_should() {
    let mut ended = 0;
    for seed in seeds() {
        let mut run = Run::new(seed);
        let guard = Said(seed);
        for _ in 0..600 {
            run.step().unwrap();
        }
        run.drain().unwrap();
        assert_eq!(run.queue.in_flight(), 0);
        assert!(run.model.disk == run.disk, "the disk has something else");
        ended += run.ended;
        std::mem::forget(guard);
    }
    assert!(
        ended > 1000 || std::env::var("SEED").is_ok(),
        "{ended} commands"
    );
}

/// Says which seed failed.
struct Said(u64);

impl Drop for Said {
    fn drop(&mut self) {
        eprintln!("SEED={}", self.0);
    }
}

#[test]
fn a_lost_entry_is_noticed_before_anything_wrong_is_said() {
    let mut noticed = 0;
    for seed in seeds() {
        let mut run = Run::new(seed);
        let guard = Said(seed);
        run.model.loss = Some(60);
        let mut fault = None;
        for _ in 0..2000 {
            // What `done` asserts holds for every command that is reported as ended.
            if let Err(found) = run.step() {
                fault = Some(found);
                break;
            }
        }
        match fault {
            None => assert!(run.model.lost <= run.model.lost_unread()),
            Some(found) => {
                assert!(matches!(found, Fault::Command(_)), "{found}");
                assert!(run.model.lost > 0);
                noticed += 1;
                // Nothing more is taken until a reset, and what was in flight is not known.
                let refused = run.queue.submit(&Command::flush(1), 0, 0, &mut run.model);
                assert_eq!(refused, Err(QueueError::Failed(found)));
                let unknown: BTreeSet<u64> = run.queue.reset().into_iter().collect();
                assert_eq!(unknown, run.given.keys().copied().collect());
            }
        }
        std::mem::forget(guard);
    }
    assert!(noticed > 0 || std::env::var("SEED").is_ok());
}

#[test]
fn a_controller_that_stalls_is_asked_to_abort_and_then_reset() {
    let mut run = Run::new(3);
    let mut tokens = BTreeSet::new();
    while run.queue.room() > 0 {
        tokens.insert(run.next_token);
        let token = run.next_token;
        run.queue
            .submit(&Command::flush(1), token, 1_000, &mut run.model)
            .unwrap();
        run.next_token += 1;
    }
    let _ = run.queue.ring(&mut run.model);
    assert_eq!(run.queue.expire(999, 500), None);
    let mut aborted = BTreeSet::new();
    while let Some(expired) = run.queue.expire(1_000, 500) {
        let Expired::Abort { queue: 1, command } = expired else {
            panic!("{expired:?}");
        };
        assert!(aborted.insert(command), "once each");
    }
    assert_eq!(aborted.len(), tokens.len());
    assert_eq!(run.queue.expire(1_499, 500), None);
    assert_eq!(run.queue.expire(1_500, 500), Some(Expired::Reset));
    assert_eq!(run.queue.failed(), Some(Fault::Timeout));
    assert_eq!(run.queue.room(), 0);
    assert_eq!(run.queue.look(), None);
    assert_eq!(
        run.queue.reset().into_iter().collect::<BTreeSet<_>>(),
        tokens
    );
    // And it works again, with ids that the controller has not seen.
    let mut model = Model::new(run.queue.depth(), false, 1);
    run.queue.begin(&mut model);
    let id = run
        .queue
        .submit(&Command::flush(1), 77, 9_999, &mut model)
        .unwrap();
    assert!(!aborted.contains(&id));
}

proptest! {
    /// Whatever a controller writes: no panic, no token twice, and none that was not given.
    #[test]
    fn hostile_completions_are_held_to_what_was_given(
        depth in 2..40_u16,
        slots in prop::collection::vec(
            (any::<u16>(), any::<u16>(), 0..50_u16, 0..3_u16, any::<bool>(), any::<u32>()), 1..200),
        pieces in prop::collection::vec(1..8_usize, 1..200),
    ) {
        let mut queue = QueuePair::new(1, depth, places(false)).unwrap();
        let mut memory = Model::new(depth, false, 1);
        let mut open = BTreeSet::new();
        let mut next = 0;
        let mut slots = slots.into_iter();
        for piece in pieces {
            while queue.room() > 0 {
                queue.submit(&Command::flush(1), next, 0, &mut memory).unwrap();
                open.insert(next);
                next += 1;
            }
            let _ = queue.ring(&mut memory);
            let mut bytes = Vec::new();
            for (status, command, head, id, phase, result) in slots.by_ref().take(piece) {
                let completion = Completion {
                    result,
                    head,
                    queue: id,
                    // Mostly one that is in flight.
                    command: if status & 3 == 0 { command } else { command % (depth * 2) },
                    phase,
                    status: Status::generic(status.to_le_bytes()[0]),
                };
                bytes.extend(completion.emit());
            }
            let mut ended = Vec::new();
            let _ = queue.take(&bytes, |done| ended.push(done.token));
            for token in ended {
                prop_assert!(open.remove(&token), "{token} was not open");
            }
            prop_assert_eq!(usize::from(queue.in_flight()), open.len());
            if queue.failed().is_some() {
                let unknown = queue.reset();
                prop_assert_eq!(&unknown.iter().copied().collect::<BTreeSet<_>>(), &open);
                open.clear();
            }
        }
    }
}

/// A place for writes that are never read.
struct Nowhere;

impl Memory for Nowhere {
    fn write(&mut self, _: u64, _: &[u8]) {}
}

#[test]
fn entries_are_those_of_the_specification() {
    // As the vectors of a driver written in another language have them: opcode, id, namespace, PRP1,
    // PRP2, first block, number of blocks less 1.
    let prps = Prps {
        prp1: 0x1122_3344_5566_7000,
        prp2: 0x8000,
    };
    let entry = Command::write(1, 0x1_0000_0002, 8, prps).emit(0x0506);
    let mut expected = [0; 64];
    expected[..8].copy_from_slice(&[1, 0, 6, 5, 1, 0, 0, 0]);
    expected[24..32].copy_from_slice(&[0, 0x70, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
    expected[33] = 0x80;
    expected[40..48].copy_from_slice(&[2, 0, 0, 0, 1, 0, 0, 0]);
    expected[48] = 7;
    assert_eq!(entry, expected);
    assert_eq!(Command::parse(&entry).0, 0x0506);
    let create = Command::create_submissions(3, 16, 0x7000).emit(9);
    assert_eq!(create[0], 1);
    assert_eq!(create[40..48], [3, 0, 15, 0, 1, 0, 3, 0]);
    let slot = [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 3, 0, 4, 0, 0x01, 0x81];
    let completion = Completion::parse(&slot);
    assert_eq!(completion.status.to_string(), "LBA out of range (0x080)");
    assert_eq!(
        (completion.result, completion.head, completion.queue),
        (1, 2, 3)
    );
    assert!(completion.phase && completion.status.is_final && completion.command == 4);
    assert_eq!(completion.emit(), slot);
}

/// A controller's registers, of which only the status changes: when it likes.
#[test]
fn a_controller_is_enabled_in_its_own_time_or_not_at_all() {
    // As QEMU's: 2,048 entries, 7.5 s, no stride, pages from 4 KiB.
    let capabilities = Capabilities::parse(0x20_0f_01_07_ff | 1 << 37);
    assert_eq!(capabilities.depth_max, 2048);
    assert_eq!(capabilities.ready_limit_ns, 7_500_000_000);
    assert_eq!(capabilities.bells(0), (0x1000, 0x1004));
    assert_eq!(capabilities.bells(2), (0x1010, 0x1014));
    let mut enable = Enable::new(&capabilities, 32, 0x1_2345_6000, 0x7000);
    let mut wrote = Vec::new();
    let (mut now_ns, mut status) = (0, None);
    loop {
        now_ns += 1_000_000;
        match enable.step(now_ns, status.take()).unwrap() {
            Step::Write { at, value } => {
                assert!(at == register::CC || wrote.len() > 1 || enable.is_idle());
                wrote.push((at, value));
            }
            // Not at once.
            Step::ReadStatus if now_ns % 4_000_000 != 0 => {
                let enabled = wrote
                    .last()
                    .is_some_and(|(_, value)| value & 1 == 1 && wrote.len() > 1);
                status = Some(u32::from(!enabled));
            }
            Step::ReadStatus => {
                let enabled = wrote.len() > 1;
                status = Some(u32::from(enabled));
            }
            Step::Ready => break,
        }
    }
    assert_eq!(
        wrote,
        [
            (register::CC, 0x0046_0000),
            (register::AQA, 31 << 16 | 31),
            (register::ASQ, 0x2345_6000),
            (register::ASQ + 4, 1),
            (register::ACQ, 0x7000),
            (register::ACQ + 4, 0),
            (register::CC, 0x0046_0001),
        ]
    );
    let fails = |status: u32, late: bool| {
        let mut enable = Enable::new(&capabilities, 2, 0, 0);
        let mut now_ns = 0;
        loop {
            now_ns += if late { 1_000_000_000 } else { 1 };
            match enable.step(now_ns, Some(status)) {
                Ok(Step::Ready) => panic!("{status}"),
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    };
    assert_eq!(fails(2, false), EnableError::Fatal);
    assert_eq!(fails(u32::MAX, false), EnableError::Gone);
    assert_eq!(
        fails(1, true),
        EnableError::Slow {
            ready: false,
            limit_ms: 7500
        }
    );
    assert_eq!(
        fails(0, true),
        EnableError::Slow {
            ready: true,
            limit_ms: 7500
        }
    );
}

#[test]
fn depths_are_bounded() {
    for depth in [0, 1, 32_769, u16::MAX] {
        let refused = QueuePair::new(1, depth, places(false)).err();
        assert_eq!(refused, Some(QueueError::Depth(depth)));
    }
    let mut largest = QueuePair::new(1, 32_768, places(false)).unwrap();
    for token in 0..32_767 {
        largest
            .submit(&Command::flush(1), token, 0, &mut Nowhere)
            .unwrap();
    }
    assert_eq!(
        largest.submit(&Command::flush(1), 0, 0, &mut Nowhere),
        Err(QueueError::Full)
    );
}
