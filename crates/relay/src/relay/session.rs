//! One switch at the relay, from its first word until all it sent is on disk.

mod memory;

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, atomic::Ordering};
use std::time::{Duration, Instant};

use strata_store::{
    About, DiskBlock, RelayStream, RelayedHeader, StoreError, StreamOptions, are_definitions,
};
use strata_wire::Ledger;

use crate::control::{Begin, BlockFull, Channel, Hello, Message, Progress, Welcome};
use crate::error::{RelayError, io_error};
use crate::link::unexpected;
use crate::memory::Writable;

use super::Inner;
use super::admission::Admitted;
use memory::{Memory, Place};

/// How often the relay tells a switch that it is there.
const ALIVE_EVERY: Duration = Duration::from_secs(1);
/// How long a switch may take to hang up once it was told that nothing more is stored, and
/// to say before how far its worker is.
const LAST_WORD_LIMIT: Duration = Duration::from_secs(1);
/// How long packets of a full block may be under way after its message, where the
/// relay cannot see that they were lost.
const STRAGGLERS: Duration = Duration::from_millis(100);
/// And while so many others come that our own socket may still hold some of them.
const STRAGGLERS_MAX: Duration = Duration::from_secs(2);
/// A switch that says nothing for so long is lost; it has to every 100 ms.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Definitions before one block, in bytes: a switch has some kilobytes, and what its
/// inputs say of themselves.
const DEFINITIONS_MAX: usize = 64 << 20;
/// Numbers of packets and blocks below this never wrap.
const NUMBER_MAX: u64 = 1 << 56;
/// How long a connection waits for an earlier one of the same switch to end.
const MAKE_WAY_LIMIT: Duration = Duration::from_secs(5);
/// How long the loop rests when nothing happens.
const REST: Duration = Duration::from_micros(500);

/// What a writer thread reports.
struct Done {
    job: u64,
    /// Its memory; none if the thread was lost with it.
    block: Option<Writable>,
    outcome: Result<(), StoreError>,
}

/// Reports a job exactly once, also if the thread that has it panics: the session waits for
/// each.
struct Reporter {
    job: u64,
    to: Option<Sender<Done>>,
}

impl Reporter {
    fn report(mut self, block: Writable, outcome: Result<(), StoreError>) {
        self.send(Some(block), outcome);
    }

    fn send(&mut self, block: Option<Writable>, outcome: Result<(), StoreError>) {
        if let Some(to) = self.to.take() {
            // The session waits for all of its jobs.
            let _ = to.send(Done {
                job: self.job,
                block,
                outcome,
            });
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.send(None, Err(StoreError::WriterGone));
    }
}

/// What was given to the writers.
struct Job {
    number: u64,
    /// The relay's place of the block, and what it held; definitions have none.
    block: Option<(usize, BlockFull, u64)>,
    state: JobState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum JobState {
    /// A writer has it.
    Given,
    Stored,
    /// Nothing after it counts: the file ends before it.
    Failed,
}

/// A block that the switch has filled.
#[derive(Clone, Copy)]
struct Full {
    block: BlockFull,
    since: Instant,
    /// [`Inner::emptied`] then.
    emptied: u64,
}

struct Session<'a> {
    inner: &'a Arc<Inner>,
    worker: u16,
    begin: Begin,
    memory: Memory,
    stream: RelayStream,
    /// Full blocks that wait for stragglers.
    full: VecDeque<Full>,
    next_block: u64,
    next_seq: u64,
    definitions: Vec<u8>,
    /// In the order in which they were given to writers.
    jobs: VecDeque<Job>,
    next_job: u64,
    done: Receiver<Done>,
    to_done: Sender<Done>,
    progress: Progress,
    durable_seq: u64,
    failure: Option<StoreError>,
    /// When the switch was last told that the relay is there.
    spoke: Instant,
}

pub(super) fn serve(inner: &Arc<Inner>, admitted: Admitted) -> Result<(), RelayError> {
    let mut channel = admitted.channel;
    let ends = |stream: &TcpStream| Ok((stream.local_addr()?, stream.peer_addr()?));
    let (local, peer) = ends(channel.stream()).map_err(io_error("control connection"))?;
    let (hello, model) = (admitted.hello, admitted.model);
    let (mut session, welcome) =
        match Session::begin(inner, &hello, admitted.begin, model, local, peer) {
            Ok(begun) => begun,
            Err(error) => {
                let told = inner.note_failure(&error);
                let told = told.unwrap_or_else(|| Message::Refused(reason(&error)));
                hear_out(&mut channel, &told, |_| ());
                return Err(error);
            }
        };
    let welcomed = channel.send(&Message::Welcome(Box::new(welcome)));
    let served = welcomed.and_then(|()| session.run(&mut channel));
    if let Err(error) = &served {
        session.say_why(&mut channel, error);
    }
    let left = session.leave(served.is_err());
    if let Err(error) = &left {
        inner.note_failure(error);
    }
    served.and(left)
}

/// Why a switch is refused, as it is told.
fn reason(error: &RelayError) -> String {
    match error {
        RelayError::Refused(reason) => reason.clone(),
        other => other.to_string(),
    }
}

/// Says the last word, and hears what the switch says until it has hung up.
fn hear_out(channel: &mut Channel, last: &Message, mut hear: impl FnMut(Message)) {
    let mut listens = channel.send(last).is_ok();
    let end = Instant::now() + LAST_WORD_LIMIT;
    while listens && Instant::now() < end {
        match channel.poll() {
            Ok(Some(message)) => hear(message),
            Ok(None) => std::thread::sleep(REST),
            Err(_) => listens = false,
        }
    }
}

fn protocol(channel: &Channel, problem: String) -> RelayError {
    RelayError::Protocol {
        peer: channel.peer().to_owned(),
        problem,
    }
}

impl<'a> Session<'a> {
    fn begin(
        inner: &'a Arc<Inner>,
        hello: &Hello,
        begin: Begin,
        model: Vec<u8>,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Result<(Self, Welcome), RelayError> {
        if begin.first_block >= NUMBER_MAX || begin.first_seq >= NUMBER_MAX {
            let reason = "numbers of blocks and packets begin at small ones";
            return Err(RelayError::Refused(reason.into()));
        }
        let options = StreamOptions {
            about: About {
                program: begin.program.clone(),
                inputs: begin.inputs.clone(),
                filter: begin.filter.clone(),
                mode: begin.mode.clone(),
                model: begin.model.clone(),
                model_json: model,
                classes: begin.classes.clone(),
                hash_seed: begin.hash_seed,
                look_back: false,
                live: false,
            },
            session: hello.session.clone(),
            worker: hello.worker,
            rotate_bytes: inner.options.rotate_bytes,
        };
        let stream = Self::stream(inner, &options)?;
        let (block_bytes, blocks) = (inner.options.block_bytes, inner.options.blocks.max(2));
        let (memory, path, block_stride) = Memory::new(inner, &begin, local, peer)?;
        let welcome = Welcome {
            recording: stream.recording(),
            block_bytes,
            block_stride,
            blocks,
            path,
        };
        let (to_done, done) = mpsc::channel();
        let session = Self {
            inner,
            memory,
            stream,
            full: VecDeque::new(),
            next_block: begin.first_block,
            next_seq: begin.first_seq,
            definitions: Vec::new(),
            jobs: VecDeque::new(),
            next_job: 0,
            done,
            to_done,
            progress: Progress::default(),
            durable_seq: begin.first_seq,
            failure: None,
            spoke: Instant::now(),
            worker: hello.worker,
            begin,
        };
        Ok((session, welcome))
    }

    /// The stream of a worker. An earlier connection of it, whose end the relay has not seen,
    /// makes way.
    fn stream(inner: &Inner, options: &StreamOptions) -> Result<RelayStream, StoreError> {
        let end = Instant::now() + MAKE_WAY_LIMIT;
        loop {
            match inner.log.stream(options) {
                Err(StoreError::StreamTaken) if Instant::now() < end && !inner.stopped() => {
                    std::thread::sleep(REST);
                }
                stream => return stream,
            }
        }
    }

    /// Works until the switch has ended its recording, or is lost.
    fn run(&mut self, channel: &mut Channel) -> Result<(), RelayError> {
        let mut heard = Instant::now();
        loop {
            let mut worked = false;
            while let Some(message) = channel.poll()? {
                worked = true;
                heard = Instant::now();
                if let Message::End(mut end) = message {
                    end.shorten();
                    self.drain(channel)?;
                    let ledger = end.books.as_ref().map(Ledger::from);
                    let books = ledger.as_ref().map(|ledger| (ledger, end.warnings));
                    self.checkpoint()?;
                    self.stream.end(books)?;
                    return channel.send(&Message::Ended);
                }
                self.take(channel, message)?;
            }
            worked |= self.write_arrived()?;
            worked |= self.collect(Duration::ZERO, Some(&mut *channel))?;
            self.say_alive(channel)?;
            if let Some(reason) = self.inner.failure() {
                return Err(RelayError::Failed(reason));
            }
            if self.inner.stopped() {
                return Err(RelayError::Refused("the relay is stopping".into()));
            }
            if self.stream.is_wanted() {
                let reason = "the same switch has connected again";
                return Err(RelayError::Refused(reason.into()));
            }
            if heard.elapsed() > SILENCE_MAX {
                let peer = channel.peer().to_owned();
                return Err(RelayError::Closed { peer });
            }
            if !worked {
                self.collect(REST, Some(&mut *channel))?;
            }
        }
    }

    /// A switch that hears nothing takes its relay for lost.
    fn say_alive(&mut self, channel: &mut Channel) -> Result<(), RelayError> {
        if self.spoke.elapsed() < ALIVE_EVERY {
            return Ok(());
        }
        self.spoke = Instant::now();
        channel.send(&Message::Alive)
    }

    /// Tells the switch why this is the end, and hears how far its worker was.
    fn say_why(&mut self, channel: &mut Channel, error: &RelayError) {
        let last = match (self.inner.note_failure(error), error) {
            (Some(failed), _) => failed,
            (None, RelayError::Refused(_) | RelayError::Store(_) | RelayError::Protocol { .. }) => {
                Message::Refused(reason(error))
            }
            _ => return,
        };
        hear_out(channel, &last, |message| {
            if let Message::Progress(progress) = message {
                self.progress = progress;
            }
        });
    }

    fn take(&mut self, channel: &Channel, message: Message) -> Result<(), RelayError> {
        match message {
            Message::Definitions(records) => {
                if !are_definitions(&records) {
                    return Err(protocol(channel, "invalid definitions".into()));
                }
                self.definitions.extend(records);
                if self.definitions.len() > DEFINITIONS_MAX {
                    let problem = format!("more than {DEFINITIONS_MAX} bytes of definitions");
                    return Err(protocol(channel, problem));
                }
            }
            Message::BlockFull(full) => {
                let expected = self.next_block + self.full.len() as u64;
                let fits = full.used as usize <= self.inner.options.block_bytes;
                let waiting = self.full.back().map(|full| full.block.next_seq);
                let in_order = full.first_seq >= waiting.unwrap_or(self.next_seq);
                if full.block != expected
                    || !fits
                    || !in_order
                    || full.next_seq < full.first_seq
                    || full.next_seq >= NUMBER_MAX
                {
                    return Err(protocol(channel, format!("{full:?} at this point")));
                }
                if self.full.len() >= self.inner.options.blocks.max(2) {
                    return Err(protocol(channel, "more full blocks than there are".into()));
                }
                self.full.push_back(Full {
                    block: full,
                    since: Instant::now(),
                    emptied: self.inner.emptied(),
                });
            }
            Message::Progress(progress) => {
                self.progress = progress;
                self.checkpoint()?;
            }
            other => return Err(protocol(channel, unexpected(&other))),
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), RelayError> {
        let progress = &self.progress;
        let seen = (progress.seen_packets, progress.seen_bytes);
        let next = progress.next_seq.max(self.durable_seq);
        Ok(self.stream.checkpoint(next, self.durable_seq, seen)?)
    }

    /// Hands full blocks whose packets have arrived to the writers.
    fn write_arrived(&mut self) -> Result<bool, RelayError> {
        let mut worked = false;
        while let Some(full) = self.full.front().copied() {
            if !self.is_there(&full) {
                break;
            }
            self.full.pop_front();
            self.write_block(full.block, false)?;
            worked = true;
        }
        Ok(worked)
    }

    /// Whether all packets of a full block have arrived, or are lost.
    fn is_there(&self, full: &Full) -> bool {
        if self.memory.has_arrived(self.inner, full.block.end_psn) {
            return true;
        }
        let waited = full.since.elapsed();
        waited >= STRAGGLERS_MAX || waited >= STRAGGLERS && self.inner.has_taken_all(full.emptied)
    }

    /// Which of the relay's blocks the one of this number is.
    fn place(&self, number: u64) -> Place {
        let turn = (number - self.begin.first_block) % self.inner.options.blocks.max(2) as u64;
        let index = usize::try_from(turn).unwrap_or(0);
        let mut jobs = self.jobs.iter().filter_map(|job| job.block);
        Place {
            index,
            is_free: !jobs.any(|(at, _, _)| at == index),
        }
    }

    /// Takes a block from the switch and hands it to the writers.
    fn write_block(&mut self, full: BlockFull, salvaged: bool) -> Result<(), RelayError> {
        let place = self.place(full.block);
        let header = RelayedHeader {
            salvaged,
            block_number: full.block,
            recording: self.stream.recording(),
            worker: self.worker,
            used: full.used,
            key: self.begin.key,
            first_seq: full.first_seq,
            next_seq: full.next_seq,
            packets: full.packets,
            segments: full.segments,
            hash_seed: self.begin.hash_seed,
        };
        self.write_definitions(header.stored_len() as u64)?;
        // The switch may have announced one that is on its way to disk.
        let block = self.memory.take(self.inner, place, &header);
        let block = block.ok_or_else(|| RelayError::Refused("a block that was not its".into()))?;
        self.next_block = full.block + 1;
        self.next_seq = full.next_seq;
        let bytes = header.stored_len() as u64;
        self.give(block, Some((place.index, full, bytes)))
    }

    /// Writes what is to be defined before a block of so many bytes.
    fn write_definitions(&mut self, before: u64) -> Result<(), RelayError> {
        let records = std::mem::take(&mut self.definitions);
        match self.stream.definitions(&records, before)? {
            Some(block) => self.give(Writable::Definitions(Box::new(block)), None),
            None => Ok(()),
        }
    }

    fn give(
        &mut self,
        block: Writable,
        of: Option<(usize, BlockFull, u64)>,
    ) -> Result<(), RelayError> {
        let len = block.bytes().len() as u64;
        let packets = of.map(|(_, full, _)| full.packets);
        let placed = self.stream.place(len, packets)?;
        let number = self.next_job;
        self.next_job += 1;
        self.jobs.push_back(Job {
            number,
            block: of,
            state: JobState::Given,
        });
        let reporter = Reporter {
            job: number,
            to: Some(self.to_done.clone()),
        };
        let done = move |block: Writable, outcome| reporter.report(block, outcome);
        self.inner.writers.write(placed, block, Box::new(done));
        Ok(())
    }

    /// Takes blocks back from the writers, and tells the switch of those before which
    /// nothing is missing on disk.
    fn collect(
        &mut self,
        wait: Duration,
        channel: Option<&mut Channel>,
    ) -> Result<bool, RelayError> {
        let mut worked = false;
        while let Ok(done) = self
            .done
            .recv_timeout(if worked { Duration::ZERO } else { wait })
        {
            worked = true;
            self.settle(done);
        }
        self.confirm(channel)?;
        match self.failure.take() {
            Some(error) => Err(error.into()),
            None => Ok(worked),
        }
    }

    /// Takes a block back from a writer.
    fn settle(&mut self, done: Done) {
        let number = done.job;
        let Some(job) = self.jobs.iter_mut().find(|job| job.number == number) else {
            return;
        };
        job.state = match done.outcome {
            Ok(()) => JobState::Stored,
            Err(error) => {
                self.failure.get_or_insert(error);
                JobState::Failed
            }
        };
        if let (Some((place, _, _)), Some(block)) = (job.block, done.block) {
            self.memory.give_back(self.inner, place, block);
        }
    }

    /// Counts the blocks before which nothing is missing on disk, and tells the switch of
    /// them.
    fn confirm(&mut self, mut channel: Option<&mut Channel>) -> Result<(), RelayError> {
        while let Some(job) = self.jobs.front()
            && job.state == JobState::Stored
        {
            if let Some((_, full, bytes)) = job.block {
                self.durable_seq = full.next_seq;
                let counters = &self.inner.counters;
                counters.blocks.fetch_add(1, Ordering::Relaxed);
                counters.bytes.fetch_add(bytes, Ordering::Relaxed);
                if let Some(channel) = channel.as_deref_mut() {
                    channel.send(&Message::BlockStored(full.block))?;
                }
            }
            self.jobs.pop_front();
        }
        Ok(())
    }

    /// Writes all that was announced, and waits for it.
    fn drain(&mut self, channel: &mut Channel) -> Result<(), RelayError> {
        while !self.full.is_empty() {
            if !self.write_arrived()? {
                std::thread::sleep(REST);
            }
            self.collect(Duration::ZERO, Some(&mut *channel))?;
            self.say_alive(channel)?;
        }
        self.write_definitions(0)?;
        while !self.jobs.is_empty() {
            self.collect(Duration::from_millis(10), Some(&mut *channel))?;
            self.say_alive(channel)?;
        }
        Ok(())
    }

    /// The connection is over: what a lost switch has left in memory goes to disk, unless
    /// that has failed.
    fn leave(mut self, lost: bool) -> Result<(), RelayError> {
        let mut result = Ok(());
        let failed = |job: &Job| job.state == JobState::Failed;
        if lost && !self.jobs.iter().any(failed) {
            result = self.salvage();
        }
        // A job that has failed was reported, and stays in line.
        while self.jobs.iter().any(|job| job.state == JobState::Given)
            && let Ok(done) = self.done.recv()
        {
            self.settle(done);
        }
        result = result.and(self.confirm(None));
        if let Some(error) = self.failure.take() {
            result = result.and(Err(error.into()));
        }
        self.memory.release(self.inner);
        if lost {
            let checked = self.checkpoint();
            let ended = self.stream.end(None).map_err(RelayError::from);
            result = result.and(checked).and(ended);
        }
        result
    }

    fn salvage(&mut self) -> Result<(), RelayError> {
        while let Some(full) = self.full.pop_front() {
            while !self.is_there(&full) {
                std::thread::sleep(REST);
            }
            self.write_block(full.block, false)?;
        }
        // Packets of blocks that were not announced may still be under way.
        let emptied = self.inner.emptied();
        std::thread::sleep(STRAGGLERS);
        let end = Instant::now() + STRAGGLERS_MAX;
        while !self.inner.has_taken_all(emptied) && Instant::now() < end {
            std::thread::sleep(REST);
        }
        let definitions = std::mem::take(&mut self.definitions);
        for _ in 0..self.inner.options.blocks.max(2) {
            let number = self.next_block;
            let key = self.begin.key;
            let place = self.place(number);
            let Some(used) = self.memory.used(self.inner, place, key, number) else {
                break;
            };
            if used == 0 {
                break;
            }
            // Definitions alone are of no use.
            self.definitions.extend_from_slice(&definitions);
            self.inner.counters.salvaged.fetch_add(1, Ordering::Relaxed);
            let full = BlockFull {
                block: number,
                used: u32::try_from(used).unwrap_or(0),
                first_seq: self.next_seq,
                next_seq: self.next_seq,
                ..BlockFull::default()
            };
            self.write_block(full, true)?;
        }
        Ok(())
    }
}
