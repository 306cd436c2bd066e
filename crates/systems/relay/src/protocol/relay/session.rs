//! A session: messages of the switch, and what follows from them.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::VecDeque;

use strata_blocks::{RelayedHeader, are_definitions};
use strata_wire::segment::HEADER_LEN;

use crate::error::RelayError;
use crate::protocol::{
    Begin, BlockFull, BlockStored, End, HelloPath, MS_NS, Message, Progress, SECOND_NS, Shortage,
};

use super::{Action, Arrivals, BlockWrite, Counts, Define, Place, SessionOptions};

/// How often the relay sends a sign of life to a switch.
const ALIVE_EVERY_NS: u64 = SECOND_NS;
/// How long a switch may take to close the connection after the message that nothing more is
/// stored, and to send the worker's progress before that.
const LAST_WORD_LIMIT_NS: u64 = SECOND_NS;
/// How long packets of a full block may be in flight after its message, where the relay cannot see
/// that they were lost.
const STRAGGLERS_NS: u64 = 100 * MS_NS;
/// The same while enough others arrive for our own socket to hold some of them.
const STRAGGLERS_MAX_NS: u64 = 2 * SECOND_NS;
/// A switch that is silent for this long is lost; it must send every 100 ms.
const SILENCE_MAX_NS: u64 = 30 * SECOND_NS;
/// Maximum bytes of definitions before one block: a switch has a few kilobytes, and its inputs' own metadata.
const DEFINITIONS_MAX: usize = 64 << 20;
/// Bytes of the shortest segment: its header alone.
const SEGMENT_BYTES_MIN: u64 = HEADER_LEN as u64;
/// Numbers of packets and blocks below this never wrap.
const NUMBER_MAX: u64 = 1 << 56;

/// A job given to the writers.
#[derive(Debug)]
struct Job {
    number: u64,
    /// The block; definitions have none.
    block: Option<(usize, RelayedHeader)>,
    /// Segments that are not in it.
    missing: u64,
    state: JobState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobState {
    /// A writer has it.
    Given,
    Stored,
    /// The file ends before it, so nothing after it counts.
    Failed,
}

/// What waits for the writers, in order: a block is given to one only when all definitions before it
/// are durable. Otherwise a relay that is killed might leave packets that refer to nothing.
#[derive(Debug)]
struct Held {
    /// The job of the definitions.
    job: u64,
    /// What to write before the block; `None` once a writer has it.
    define: Option<Vec<u8>>,
    /// The block; none at the end.
    block: Option<BlockWrite>,
}

/// A block filled by the switch.
#[derive(Debug)]
struct Full {
    block: BlockFull,
    /// What was defined before it was announced.
    definitions: Vec<u8>,
    since_ns: u64,
    /// The value of [`Arrivals::emptied`] then.
    emptied: u64,
}

#[derive(Debug)]
enum State {
    /// The switch is sending.
    Serving,
    /// It has sent its end, stored here; `None` once the message that the recording is closed is on
    /// its way.
    Draining(Option<Box<End>>),
    /// It got the reason for the end of the session, and may send the worker's progress.
    Hearing { until_ns: u64 },
    /// The connection is lost; announced blocks are being written.
    Salvaging,
    /// Packets of unannounced blocks may still be in flight.
    Stragglers { since_ns: u64, emptied: u64 },
    /// Writers have everything.
    Leaving,
    /// Over, except for the remaining actions.
    Over,
}

/// One switch at the relay.
#[derive(Debug)]
pub struct Session {
    peer: String,
    options: SessionOptions,
    begin: Numbers,
    state: State,
    /// Full blocks that wait for late packets.
    full: VecDeque<Full>,
    next_block: u64,
    next_seq: u64,
    /// Sent since the last block was announced.
    definitions: Vec<u8>,
    held: VecDeque<Held>,
    /// In the order in which they are given to writers.
    jobs: VecDeque<Job>,
    next_job: u64,
    progress: Progress,
    durable_seq: u64,
    failure: Option<RelayError>,
    /// When the switch was last sent a sign of life, and when it last sent anything.
    spoke_ns: u64,
    heard_ns: u64,
    actions: VecDeque<Action>,
    counts: Counts,
    /// What the switch was last asked to give up.
    asked: Shortage,
}

/// What a switch sent at the start that is needed later.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    first_block: u64,
    key: u32,
    hash_seed: [u64; 2],
    is_unreliable: bool,
}

/// Fails if the first block and packet numbers of a switch could wrap.
///
/// # Errors
///
/// The reason for the refusal.
pub fn check_numbers(begin: &Begin) -> Result<(), RelayError> {
    let numbers = [begin.first_block, begin.first_seq, begin.unconfirmed_seq];
    if numbers.iter().any(|number| *number >= NUMBER_MAX) {
        let reason = "numbers of blocks and packets begin at small ones";
        return Err(RelayError::Refused(reason.into()));
    }
    Ok(())
}

impl Session {
    /// A session with `peer`, which is sent `welcome`.
    #[must_use]
    pub fn new(
        peer: String,
        options: SessionOptions,
        begin: &Begin,
        welcome: Message,
        now_ns: u64,
    ) -> Self {
        Self {
            peer,
            options,
            begin: Numbers {
                first_block: begin.first_block,
                key: begin.key,
                hash_seed: begin.hash_seed,
                is_unreliable: matches!(
                    begin.path,
                    HelloPath::Rdma {
                        reliable: false,
                        ..
                    }
                ),
            },
            state: State::Serving,
            full: VecDeque::new(),
            next_block: begin.first_block,
            next_seq: options.first_seq,
            definitions: Vec::new(),
            held: VecDeque::new(),
            jobs: VecDeque::new(),
            next_job: 0,
            progress: Progress::default(),
            durable_seq: options.first_seq,
            failure: None,
            spoke_ns: now_ns,
            heard_ns: now_ns,
            actions: VecDeque::from([Action::Send(welcome)]),
            counts: Counts::default(),
            asked: Shortage::default(),
        }
    }

    /// Whether the switch's messages are still wanted.
    #[must_use]
    pub fn listens(&self) -> bool {
        matches!(self.state, State::Serving | State::Hearing { .. })
    }

    /// Whether the switch is sending, and no problem is known.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        matches!(self.state, State::Serving)
    }

    /// Whether nothing is left to do.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over) && self.actions.is_empty()
    }

    /// Whether missing segments are to be counted: on an unreliable connection, nothing else tells the switch
    /// what was lost.
    #[must_use]
    pub fn counts_missing(&self) -> bool {
        self.begin.is_unreliable
    }

    /// Requests this degradation from the switch, or withdraws the request if `shortage` asks for nothing. Does nothing
    /// if the last request was the same.
    pub fn ask(&mut self, shortage: &Shortage) {
        if let State::Serving = self.state
            && !shortage.asks_as(&self.asked)
        {
            let mut shortage = shortage.clone();
            shortage.shorten();
            self.asked = shortage.clone();
            let said = Message::Shortage(Box::new(shortage));
            self.actions.push_back(Action::Send(said));
        }
    }

    /// The next action.
    pub fn action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// What it has done since the last call.
    pub fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// Processes a message from the switch.
    ///
    /// # Errors
    ///
    /// If the message is not allowed: [`Session::lose`].
    pub fn receive(
        &mut self,
        message: Message,
        arrivals: &dyn Arrivals,
        now_ns: u64,
    ) -> Result<(), RelayError> {
        self.heard_ns = now_ns;
        if let State::Hearing { .. } = self.state {
            if let Message::Progress(progress) = message {
                self.progress = progress;
            }
            return Ok(());
        }
        match message {
            Message::Definitions(records) => self.define(records),
            Message::BlockFull(full) => self.announced(full, arrivals, now_ns),
            Message::Progress(progress) => {
                self.progress = progress;
                self.checkpoint();
                Ok(())
            }
            Message::End(mut end) => {
                end.shorten();
                self.state = State::Draining(Some(end));
                Ok(())
            }
            other => Err(self.protocol(other.unexpected())),
        }
    }

    fn define(&mut self, records: Vec<u8>) -> Result<(), RelayError> {
        if !are_definitions(&records) {
            return Err(self.protocol("invalid definitions".into()));
        }
        self.definitions.extend(records);
        let full = self.full.iter().map(|full| full.definitions.len());
        let held = self.held.iter().filter_map(|held| held.define.as_ref());
        let waiting: usize = full.chain(held.map(Vec::len)).sum();
        if self.definitions.len().saturating_add(waiting) > DEFINITIONS_MAX {
            let problem = format!("more than {DEFINITIONS_MAX} bytes of definitions");
            return Err(self.protocol(problem));
        }
        Ok(())
    }

    fn announced(
        &mut self,
        full: BlockFull,
        arrivals: &dyn Arrivals,
        now_ns: u64,
    ) -> Result<(), RelayError> {
        let expected = self.next_block.saturating_add(self.full.len() as u64);
        let fits = full.used as usize <= self.options.blocks.bytes;
        let waiting = self.full.back().map(|full| full.block.next_seq);
        let in_order = full.first_seq >= waiting.unwrap_or(self.next_seq);
        if full.block != expected
            || !fits
            || !in_order
            || full.next_seq < full.first_seq
            || !Self::is_possible(&full)
            || full.next_seq >= NUMBER_MAX
        {
            return Err(self.protocol(format!("{full:?} at this point")));
        }
        if self.full.len() >= self.options.blocks.count {
            return Err(self.protocol("more full blocks than there are".into()));
        }
        self.full.push_back(Full {
            block: full,
            // Those that come after it may replace some of its own.
            definitions: std::mem::take(&mut self.definitions),
            since_ns: now_ns,
            emptied: arrivals.emptied(),
        });
        Ok(())
    }

    /// Whether a block can hold what its message claims: these numbers are added up in files.
    fn is_possible(full: &BlockFull) -> bool {
        let numbers = full.next_seq.saturating_sub(full.first_seq);
        let segments_max = u64::from(full.used) / SEGMENT_BYTES_MIN;
        full.packets <= numbers && full.packets <= full.segments && full.segments <= segments_max
    }

    fn protocol(&self, problem: String) -> RelayError {
        RelayError::Protocol {
            peer: self.peer.clone(),
            problem,
        }
    }

    fn checkpoint(&mut self) {
        let progress = &self.progress;
        self.actions.push_back(Action::Checkpoint {
            next_seq: progress.next_seq.max(self.durable_seq),
            durable_seq: self.durable_seq,
            seen: (progress.seen_packets, progress.seen_bytes),
        });
    }

    /// A job is done; its block's memory, if any, belongs to the switch again. The outcome is the number of segments
    /// that the switch has sent into the block and that are missing ([`Session::counts_missing`]).
    pub fn written(&mut self, job: u64, outcome: Result<u64, RelayError>) {
        let Some(job) = self.jobs.iter_mut().find(|given| given.number == job) else {
            return;
        };
        job.state = match outcome {
            Ok(missing) => {
                job.missing = missing;
                JobState::Stored
            }
            Err(error) => {
                self.failure.get_or_insert(error);
                JobState::Failed
            }
        };
        match job.state {
            JobState::Failed => self.give_nothing_more(),
            _ => {
                self.confirm();
                self.advance();
            }
        }
    }

    /// Gives the writers what no longer waits for definitions.
    fn advance(&mut self) {
        while let Some(first) = self.held.front_mut() {
            if let Some(definitions) = first.define.take() {
                self.actions.push_back(Action::Define(Define {
                    job: first.job,
                    definitions,
                    block_bytes: first
                        .block
                        .map_or(0, |block| block.header.stored_len() as u64),
                }));
            }
            let job = first.job;
            let mut given = self.jobs.iter();
            // One that is not in line any more is on disk, as is all before it.
            if given.any(|given| given.number == job && given.state != JobState::Stored) {
                return;
            }
            let block = first.block;
            self.held.pop_front();
            self.actions.extend(block.map(Action::Write));
        }
    }

    /// The file ends before the failed job: nothing after it is given to writers.
    fn give_nothing_more(&mut self) {
        let (writes, others): (VecDeque<_>, _) = std::mem::take(&mut self.actions)
            .into_iter()
            .partition(|action| matches!(action, Action::Define(_) | Action::Write(_)));
        self.actions = others;
        let mut not_given: Vec<u64> = Vec::new();
        for action in writes {
            match action {
                Action::Define(define) => not_given.push(define.job),
                Action::Write(write) => not_given.push(write.job),
                _ => {}
            }
        }
        for held in self.held.drain(..) {
            not_given.extend(held.define.is_some().then_some(held.job));
            not_given.extend(held.block.map(|block| block.job));
        }
        self.jobs.retain(|job| !not_given.contains(&job.number));
        if let State::Salvaging | State::Stragglers { .. } = self.state {
            self.state = State::Leaving;
        }
    }

    /// A job was not given to a writer, since there was nothing to write.
    pub fn withdraw(&mut self, job: u64) {
        self.jobs.retain(|given| given.number != job);
    }

    /// Counts the blocks with nothing missing on disk before them, and confirms them to the switch.
    fn confirm(&mut self) {
        while let Some(job) = self.jobs.front()
            && job.state == JobState::Stored
        {
            if let Some((_, header)) = job.block {
                self.durable_seq = header.next_seq;
                let (counts, bytes) = (&mut self.counts, header.stored_len() as u64);
                counts.blocks = counts.blocks.saturating_add(1);
                counts.bytes = counts.bytes.saturating_add(bytes);
                if let State::Serving | State::Draining(_) = self.state {
                    let stored = Message::BlockStored(BlockStored {
                        block: header.block_number,
                        missing: job.missing,
                    });
                    self.actions.push_back(Action::Send(stored));
                }
            }
            self.jobs.pop_front();
        }
    }

    /// Makes as much progress as possible.
    ///
    /// # Errors
    ///
    /// Why the session is over: [`Session::lose`].
    pub fn step(&mut self, arrivals: &dyn Arrivals, now_ns: u64) -> Result<(), RelayError> {
        match self.state {
            State::Serving => {
                self.write_arrived(arrivals, now_ns);
                self.say_alive(now_ns);
                if now_ns.saturating_sub(self.heard_ns) > SILENCE_MAX_NS {
                    let peer = self.peer.clone();
                    return Err(RelayError::Closed { peer });
                }
            }
            State::Draining(_) => {
                self.drain(arrivals, now_ns);
                self.say_alive(now_ns);
            }
            State::Hearing { until_ns } if now_ns < until_ns => {}
            State::Hearing { .. } => self.leave(),
            State::Salvaging => {
                self.write_arrived(arrivals, now_ns);
                if self.full.is_empty() {
                    self.state = State::Stragglers {
                        since_ns: now_ns,
                        emptied: arrivals.emptied(),
                    };
                }
            }
            State::Stragglers { since_ns, emptied } => {
                let waited = now_ns.saturating_sub(since_ns);
                let all = waited >= STRAGGLERS_NS && arrivals.has_taken_all(emptied);
                if all || waited >= STRAGGLERS_NS + STRAGGLERS_MAX_NS {
                    self.salvage(arrivals);
                    self.state = State::Leaving;
                }
            }
            State::Leaving => {
                // A failed job was reported, and stays in line.
                if !self.jobs.iter().any(|job| job.state == JobState::Given) {
                    self.checkpoint();
                    self.actions.push_back(Action::End(None));
                    self.state = State::Over;
                }
            }
            State::Over => {}
        }
        match self.failure.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Whether it waits for packets that may still be in flight.
    #[must_use]
    pub fn awaits_arrivals(&self) -> bool {
        !self.full.is_empty() || matches!(self.state, State::Stragglers { .. })
    }

    /// When the next step is due, if nothing arrives before and neither writers nor memory are
    /// awaited.
    #[must_use]
    pub fn deadline_ns(&self) -> u64 {
        match self.state {
            State::Hearing { until_ns } => until_ns,
            State::Stragglers { since_ns, .. } => since_ns.saturating_add(STRAGGLERS_NS),
            _ => self.spoke_ns.saturating_add(ALIVE_EVERY_NS),
        }
    }

    /// A silent relay is lost to its switch.
    fn say_alive(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.spoke_ns) >= ALIVE_EVERY_NS {
            self.spoke_ns = now_ns;
            self.actions.push_back(Action::Send(Message::Alive));
        }
    }

    /// Writes everything announced, and once that is on disk, closes the recording.
    fn drain(&mut self, arrivals: &dyn Arrivals, now_ns: u64) {
        self.write_arrived(arrivals, now_ns);
        if !self.full.is_empty() {
            return;
        }
        if !self.definitions.is_empty() && !self.has_failed() {
            let definitions = std::mem::take(&mut self.definitions);
            self.give(definitions, None);
        }
        if self.jobs.is_empty()
            && let State::Draining(end) = &mut self.state
        {
            match end.take() {
                Some(end) => {
                    self.checkpoint();
                    self.actions.push_back(Action::End(Some(end)));
                    self.actions.push_back(Action::Send(Message::Ended));
                }
                None if self.actions.is_empty() => self.state = State::Over,
                None => {}
            }
        }
    }

    /// Hands full blocks whose packets have arrived to the writers.
    fn write_arrived(&mut self, arrivals: &dyn Arrivals, now_ns: u64) {
        while !self.has_failed()
            && let Some(full) = self.full.front()
            && Self::is_there(full, arrivals, now_ns)
            && let Some(full) = self.full.pop_front()
        {
            self.write_block(full.block, full.definitions, false);
        }
    }

    /// Whether all packets of a full block have arrived, or are lost.
    fn is_there(full: &Full, arrivals: &dyn Arrivals, now_ns: u64) -> bool {
        let waited = now_ns.saturating_sub(full.since_ns);
        arrivals.has_arrived(full.block.end_psn)
            || waited >= STRAGGLERS_MAX_NS
            || waited >= STRAGGLERS_NS && arrivals.has_taken_all(full.emptied)
    }

    /// The place of the block with this number.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "numbers of blocks only grow from the first one, and there are at least two places"
    )]
    fn place(&self, number: u64) -> Place {
        let turn = (number - self.begin.first_block) % self.options.blocks.count as u64;
        let index = usize::try_from(turn).expect("fewer than `count`, a usize");
        let mut jobs = self.jobs.iter().filter_map(|job| job.block);
        Place {
            index,
            is_free: !jobs.any(|(at, _)| at == index),
        }
    }

    /// Takes a block from the switch and hands it to the writers.
    fn write_block(&mut self, full: BlockFull, definitions: Vec<u8>, salvaged: bool) {
        let place = self.place(full.block);
        let header = RelayedHeader {
            salvaged,
            block_number: full.block,
            recording: self.options.recording,
            worker: self.options.worker,
            used: full.used,
            key: self.begin.key,
            first_seq: full.first_seq,
            next_seq: full.next_seq,
            packets: full.packets,
            segments: full.segments,
            hash_seed: self.begin.hash_seed,
        };
        self.next_block = full.block.saturating_add(1);
        self.next_seq = full.next_seq;
        self.give(definitions, Some((place, header)));
    }

    /// Has definitions written, and then a block.
    fn give(&mut self, definitions: Vec<u8>, block: Option<(Place, RelayedHeader)>) {
        let job = self.job(None);
        let block = block.map(|(place, header)| BlockWrite {
            job: self.job(Some((place.index, header))),
            place,
            header,
        });
        self.held.push_back(Held {
            job,
            define: Some(definitions),
            block,
        });
        self.advance();
    }

    fn job(&mut self, block: Option<(usize, RelayedHeader)>) -> u64 {
        let number = self.next_job;
        self.next_job = self.next_job.saturating_add(1);
        self.jobs.push_back(Job {
            number,
            block,
            missing: 0,
            state: JobState::Given,
        });
        number
    }

    /// Ends the session: the connection is lost, or useless. A `last` message, if any, is sent to the switch, and its
    /// remaining messages are processed; then the data that it has left in memory goes to disk, unless the disk has
    /// failed.
    pub fn lose(&mut self, last: Option<Message>, now_ns: u64) {
        match self.state {
            State::Serving | State::Draining(_) => {}
            State::Hearing { .. } => return self.leave(),
            _ => return,
        }
        // Unsent messages no longer matter.
        self.actions
            .retain(|action| !matches!(action, Action::Send(_) | Action::End(_)));
        match last {
            Some(last) => {
                self.actions.push_back(Action::Send(last));
                let until_ns = now_ns.saturating_add(LAST_WORD_LIMIT_NS);
                self.state = State::Hearing { until_ns };
            }
            None => self.leave(),
        }
    }

    /// The switch is gone.
    fn leave(&mut self) {
        self.actions
            .retain(|action| !matches!(action, Action::Send(_)));
        self.state = match self.has_failed() {
            true => State::Leaving,
            false => State::Salvaging,
        };
    }

    /// Whether something could not be written: then nothing after it counts.
    fn has_failed(&self) -> bool {
        self.jobs.iter().any(|job| job.state == JobState::Failed)
    }

    /// Writes what a lost switch has left in memory unannounced.
    fn salvage(&mut self, arrivals: &dyn Arrivals) {
        // Definitions alone are useless.
        let mut definitions = std::mem::take(&mut self.definitions);
        for _ in 0..self.options.blocks.count {
            let number = self.next_block;
            let used = arrivals.used(self.place(number), self.begin.key, number);
            let Some(used @ 1..) = used else {
                break;
            };
            self.counts.salvaged = self.counts.salvaged.saturating_add(1);
            let full = BlockFull {
                block: number,
                used: u32::try_from(used).expect("blocks have at most 1 GiB"),
                first_seq: self.next_seq,
                next_seq: self.next_seq,
                ..BlockFull::default()
            };
            self.write_block(full, std::mem::take(&mut definitions), true);
        }
    }
}
