//! Writes and reads from this process, each verified, with injected errors, full queues and resets.

use std::path::Path;
use std::time::{Duration, Instant};

use strata_stream::nvme::{Command, Done, Expired, Label, Prps, QueueError, QueuePair, Status};
use strata_wire::{exact, mix64};

use crate::Result;
use crate::disk::{BUFFER, BUFFERS, Disk, LISTS};

/// Between resets, and between commands that must fail.
const RESET_EVERY: u64 = 997;
const ERROR_EVERY: u64 = 97;
/// Depths that are run, the last one with shadow doorbells.
const DEPTHS: [u16; 6] = [2, 3, 5, 16, 64, 16];

struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.0)
    }

    fn below(&mut self, bound: usize) -> usize {
        exact(self.next() % bound as u64)
    }
}

/// What a command in flight is to do.
#[derive(Clone, Copy)]
enum Given {
    Write {
        place: usize,
        seed: u64,
        len: usize,
    },
    Read {
        place: usize,
    },
    /// It must end so.
    Fail(Status),
    Flush,
}

#[derive(Default, Debug)]
struct Counts {
    writes: u64,
    reads: u64,
    errors: u64,
    resets: u64,
    unknown: u64,
    full: u64,
}

/// Content that says whose it is: every word differs.
fn content(seed: u64, len: usize) -> Vec<u8> {
    let words = (0..exact::<u64>(len / 8)).map(|at| mix64(seed ^ at << 32));
    words.flat_map(u64::to_le_bytes).collect()
}

struct Exercise {
    disk: Disk,
    pair: QueuePair,
    has_shadow: bool,
    draw: Draw,
    /// What each piece of the disk holds: seed and length; `None` if unknown.
    places: Vec<Option<(u64, usize)>>,
    /// By buffer.
    in_flight: [Option<Given>; BUFFERS],
    counts: Counts,
}

impl Exercise {
    fn first_block(&self, place: usize) -> u64 {
        Label::ENDS_LEN / self.disk.block as u64 + exact::<u64>(place * (BUFFER / self.disk.block))
    }

    fn submit(&mut self, buffer: usize, given: Given, command: &Command) -> Result<bool> {
        let deadline_ns = self.disk.now_ns() + 60_000_000_000;
        let token = buffer as u64;
        let given_id = self
            .pair
            .submit(command, token, deadline_ns, &mut self.disk.reach);
        match given_id {
            Ok(_) => {
                self.in_flight[buffer] = Some(given);
                Ok(true)
            }
            Err(QueueError::Full) => {
                self.counts.full += 1;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn is_busy(&self, wanted: usize) -> bool {
        self.in_flight.iter().flatten().any(|given| match given {
            Given::Write { place, .. } | Given::Read { place } => *place == wanted,
            Given::Fail(_) | Given::Flush => false,
        })
    }

    /// Gives one more command, if there is room.
    fn give(&mut self, must_fail: bool) -> Result<bool> {
        let Some(buffer) = self.in_flight.iter().position(Option::is_none) else {
            return Ok(false);
        };
        if must_fail {
            let (command, status) = self.wrong(buffer)?;
            return self.submit(buffer, Given::Fail(status), &command);
        }
        let mut place = self.draw.below(self.places.len());
        while self.is_busy(place) {
            place = (place + 1) % self.places.len();
        }
        let first = self.first_block(place);
        let blocks = |len: usize| exact::<u16>(len / self.disk.block);
        match self.places[place] {
            Some((_, len)) if self.draw.below(2) == 0 => {
                let prps = self.disk.reach.prps(buffer, len)?;
                self.disk.reach.fill(buffer, &vec![0xee; len]);
                let command = Command::read(1, first, blocks(len), prps);
                self.submit(buffer, Given::Read { place }, &command)
            }
            _ => {
                let len = match self.draw.below(64) {
                    0 => BUFFER,
                    1..4 => 12 << 10,
                    4..8 => 8 << 10,
                    8..12 => 512,
                    _ => 4 << 10,
                };
                let seed = self.draw.next();
                let prps = self.disk.reach.prps(buffer, len)?;
                self.disk.reach.fill(buffer, &content(seed, len));
                let command = Command::write(1, first, blocks(len), prps);
                let is_given = self.submit(buffer, Given::Write { place, seed, len }, &command)?;
                if is_given {
                    self.places[place] = None;
                }
                Ok(is_given)
            }
        }
    }

    /// A command that the controller has to refuse, and how.
    fn wrong(&mut self, buffer: usize) -> Result<(Command, Status)> {
        let prps = self.disk.reach.prps(buffer, 4096)?;
        let blocks = exact(4096 / self.disk.block);
        let end = self.disk.blocks;
        Ok(match self.draw.below(5) {
            0 => (Command::write(1, end, blocks, prps), Status::generic(0x80)),
            1 => (
                Command::read(1, end - 1, blocks, prps),
                Status::generic(0x80),
            ),
            2 => (
                Command {
                    opcode: 0x7f,
                    ..Command::flush(1)
                },
                Status::generic(0x01),
            ),
            3 => (
                Command::read(0xffff_0000, 0, blocks, prps),
                Status::generic(0x0b),
            ),
            _ => {
                let list = self.disk.reach.prps(buffer, BUFFER)?;
                let unaligned = self.disk.reach.bus(LISTS) + 8;
                let at = LISTS + buffer * 4096;
                self.disk.reach.memory.copy_in(at, &unaligned.to_le_bytes());
                let blocks = exact(BUFFER / self.disk.block);
                (Command::read(1, 0, blocks, list), Status::generic(0x13))
            }
        })
    }

    fn ended(&mut self, done: Done) -> Result<()> {
        let buffer = exact::<usize>(done.token);
        let given = self.in_flight[buffer].take();
        let given = given.ok_or("a command that was not given has ended")?;
        let expected = match given {
            Given::Fail(status) => status,
            _ => Status::SUCCESS,
        };
        if (done.status.kind, done.status.code) != (expected.kind, expected.code) {
            return Err(format!("ended with {}, not with {expected}", done.status).into());
        }
        match given {
            Given::Write { place, seed, len } => {
                self.places[place] = Some((seed, len));
                self.counts.writes += 1;
            }
            Given::Read { place } => {
                let (seed, len) = self.places[place].ok_or("a read of what is not known")?;
                if self.disk.reach.content(buffer, len) != content(seed, len) {
                    return Err(format!("place {place} holds something else").into());
                }
                self.counts.reads += 1;
            }
            Given::Fail(_) => self.counts.errors += 1,
            Given::Flush => {}
        }
        Ok(())
    }

    fn take(&mut self) -> Result<()> {
        for done in self.disk.take(&mut self.pair)? {
            self.ended(done)?;
        }
        if self.pair.expire(self.disk.now_ns(), 0).is_some() {
            return Err("a command did not end in time".into());
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<()> {
        self.disk.ring(&mut self.pair);
        while self.pair.in_flight() > 0 {
            self.take()?;
            self.disk.ring(&mut self.pair);
        }
        Ok(())
    }

    /// As many as the queue holds, and not one more.
    fn fill_up(&mut self) -> Result<()> {
        let depth = usize::from(self.pair.depth());
        for number in 0..depth - 1 {
            let deadline_ns = self.disk.now_ns() + 60_000_000_000;
            let buffer = number % BUFFERS;
            self.in_flight[buffer] = Some(Given::Flush);
            self.pair.submit(
                &Command::flush(1),
                buffer as u64,
                deadline_ns,
                &mut self.disk.reach,
            )?;
        }
        let one_more = self
            .pair
            .submit(&Command::flush(1), 0, 0, &mut self.disk.reach);
        if one_more != Err(QueueError::Full) {
            return Err(format!("{one_more:?}, with {} in flight", depth - 1).into());
        }
        self.counts.full += 1;
        self.disk.ring(&mut self.pair);
        let mut ended = 0;
        while ended < depth - 1 {
            for done in self.disk.take(&mut self.pair)? {
                ended += usize::from(done.status.is_success());
            }
            self.disk.ring(&mut self.pair);
        }
        self.in_flight = [None; BUFFERS];
        Ok(())
    }

    /// Resets the controller with commands whose doorbell was not rung: what becomes of them is
    /// unknown. With commands that it works on, [`slow`] does that once: QEMU 7.2 crashes now and
    /// then.
    fn reset(&mut self) -> Result<()> {
        self.drain()?;
        for _ in 0..3 {
            self.give(false)?;
        }
        self.disk.enable()?;
        for token in self.pair.reset() {
            self.counts.unknown += 1;
            // Writes have struck out their places already.
            self.in_flight[exact::<usize>(token)] = None;
        }
        if self.in_flight.iter().any(Option::is_some) {
            return Err("the reset has forgotten a command".into());
        }
        self.counts.resets += 1;
        self.disk.announce(&self.pair, self.has_shadow)
    }

    fn commands(&mut self, count: u64) -> Result<()> {
        self.fill_up()?;
        let mut given = 0;
        while given < count {
            let burst = 1 + self.draw.below(usize::from(self.pair.depth()));
            for _ in 0..burst {
                let must_fail = given % ERROR_EVERY == ERROR_EVERY - 1;
                if given >= count || !self.give(must_fail)? {
                    break;
                }
                given += 1;
                if given.is_multiple_of(RESET_EVERY) {
                    self.reset()?;
                }
            }
            self.disk.ring(&mut self.pair);
            self.take()?;
        }
        self.drain()
    }

    /// Reads everything that is known to be on the disk.
    fn read_all(&mut self) -> Result<usize> {
        let mut read = 0;
        for place in 0..self.places.len() {
            let Some((seed, len)) = self.places[place] else {
                continue;
            };
            let prps = self.disk.reach.prps(0, len)?;
            let blocks = exact(len / self.disk.block);
            let first = self.first_block(place);
            let command = Command::read(1, first, blocks, prps);
            let done = self.disk.one(&mut self.pair, &command)?;
            let is_same = self.disk.reach.content(0, len) == content(seed, len);
            if !done.status.is_success() || !is_same {
                return Err(format!("place {place} at the end: {}", done.status).into());
            }
            read += 1;
        }
        Ok(read)
    }
}

pub(crate) fn run(path: &Path, commands: u64, seed: u64, format: bool) -> Result<()> {
    let start = Instant::now();
    let mut disk = Disk::open(path)?;
    println!(
        "DISK {} blocks of {} bytes, queues of at most {} entries",
        disk.blocks, disk.block, disk.capabilities.depth_max
    );
    let mut pair = disk.create_pair(DEPTHS[0], false, false)?;
    let label = disk.claim(&mut pair, format)?;
    if disk.claim(&mut pair, false)? != label {
        return Err("the label that was written is not the one that is read".into());
    }
    println!("LABEL {:016x}", label.id);
    disk.delete_pair()?;
    let ends = 2 * Label::ENDS_LEN / disk.block as u64;
    let places = exact::<usize>((disk.blocks - ends) * disk.block as u64) / BUFFER;
    let pair = disk.create_pair(DEPTHS[0], false, false)?;
    let mut exercise = Exercise {
        disk,
        pair,
        has_shadow: false,
        draw: Draw(seed),
        places: vec![None; places],
        in_flight: [None; BUFFERS],
        counts: Counts::default(),
    };
    for (number, depth) in DEPTHS.into_iter().enumerate() {
        if number > 0 {
            exercise.disk.delete_pair()?;
            exercise.has_shadow = number + 1 == DEPTHS.len();
            exercise.pair = exercise
                .disk
                .create_pair(depth, false, exercise.has_shadow)?;
        }
        exercise.commands(commands.div_ceil(DEPTHS.len() as u64))?;
    }
    let read = exercise.read_all()?;
    let Counts {
        writes,
        reads,
        errors,
        resets,
        unknown,
        full,
    } = exercise.counts;
    println!(
        "DONE {writes} {reads} {errors} {resets} {unknown} {full} {read} {:.1}",
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// A flush that is given up.
fn flush() -> Command {
    Command::flush(1)
}

/// On a disk that does two commands a second: what does not end in time is aborted, and then the
/// controller is reset; commands that were in flight are known, and the disk goes on.
pub(crate) fn slow(path: &Path) -> Result<()> {
    let mut disk = Disk::open(path)?;
    let mut pair = disk.create_pair(16, false, false)?;
    disk.claim(&mut pair, false)?;
    let prps: Prps = disk.reach.prps(0, 4096)?;
    let blocks = exact(4096 / disk.block);
    println!("THROTTLE");
    std::io::stdin().read_line(&mut String::new())?;
    let given = 6;
    for token in 0..given {
        let first = Label::ENDS_LEN / disk.block as u64 + 8 * token;
        let command = Command::write(1, first, blocks, prps);
        let deadline_ns = disk.now_ns() + 200_000_000;
        pair.submit(&command, token, deadline_ns, &mut disk.reach)?;
    }
    disk.ring(&mut pair);
    let (mut ended, mut aborts) = (0, 0);
    'reset: loop {
        std::thread::sleep(Duration::from_millis(10));
        ended += disk.take(&mut pair)?.len() as u64;
        disk.ring(&mut pair);
        while let Some(expired) = pair.expire(disk.now_ns(), 100_000_000) {
            match expired {
                // Bit 0 of the result: not aborted, as controllers may.
                Expired::Abort { queue, command } => {
                    aborts += 1;
                    disk.admin(&Command::abort(queue, command))?;
                }
                Expired::Reset => break 'reset,
            }
        }
        if ended == given {
            return Err("nothing was late: is the disk throttled?".into());
        }
    }
    let refused = pair.submit(&flush(), 0, 0, &mut disk.reach).is_err();
    disk.enable()?;
    let unknown = pair.reset();
    let is_all = unknown.len() as u64 + ended == given;
    println!("UNTHROTTLE");
    std::io::stdin().read_line(&mut String::new())?;
    disk.announce(&pair, false)?;
    let done = disk.one(&mut pair, &flush())?;
    if !refused || !is_all || !done.status.is_success() {
        return Err(format!(
            "{ended} ended, {unknown:?} were in flight, after the reset: {}",
            done.status
        )
        .into());
    }
    println!("DONE {ended} {aborts} {}", unknown.len());
    Ok(())
}
