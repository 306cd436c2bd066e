//! A session: what a switch says, and what follows.

use std::collections::VecDeque;

use strata_store::{RelayedHeader, are_definitions};

use crate::error::RelayError;
use crate::protocol::{Begin, BlockFull, End, MS_NS, Message, Progress, SECOND_NS, Shortage};

use super::{Action, Arrivals, BlockWrite, Counts, Place, SessionOptions, Write};

/// How often the relay tells a switch that it is there.
const ALIVE_EVERY_NS: u64 = SECOND_NS;
/// How long a switch may take to hang up once it was told that nothing more is stored, and
/// to say before how far its worker is.
const LAST_WORD_LIMIT_NS: u64 = SECOND_NS;
/// How long packets of a full block may be under way after its message, where the
/// relay cannot see that they were lost.
const STRAGGLERS_NS: u64 = 100 * MS_NS;
/// And while so many others come that our own socket may still hold some of them.
const STRAGGLERS_MAX_NS: u64 = 2 * SECOND_NS;
/// A switch that says nothing for so long is lost; it has to every 100 ms.
const SILENCE_MAX_NS: u64 = 30 * SECOND_NS;
/// Definitions before one block, in bytes: a switch has some kilobytes, and what its
/// inputs say of themselves.
const DEFINITIONS_MAX: usize = 64 << 20;
/// Numbers of packets and blocks below this never wrap.
const NUMBER_MAX: u64 = 1 << 56;

/// What was given to the writers.
#[derive(Debug)]
struct Job {
    number: u64,
    /// The block; definitions have none.
    block: Option<(usize, RelayedHeader)>,
    state: JobState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobState {
    /// A writer has it.
    Given,
    Stored,
    /// Nothing after it counts: the file ends before it.
    Failed,
}

/// A block that the switch has filled.
#[derive(Clone, Copy, Debug)]
struct Full {
    block: BlockFull,
    since_ns: u64,
    /// [`Arrivals::emptied`] then.
    emptied: u64,
}

#[derive(Debug)]
enum State {
    /// The switch writes.
    Serving,
    /// It has said that this was all, and this; nothing once it is being told that the
    /// recording is closed.
    Draining(Option<Box<End>>),
    /// It was told why this is the end, and may say how far its worker is.
    Hearing { until_ns: u64 },
    /// The connection is lost; blocks that it has announced are written.
    Salvaging,
    /// Packets of blocks that were not announced may still be under way.
    Stragglers { since_ns: u64, emptied: u64 },
    /// Writers have what there was.
    Leaving,
    /// All is done, but the actions that are left.
    Over,
}

/// One switch at the relay.
#[derive(Debug)]
pub struct Session {
    peer: String,
    options: SessionOptions,
    begin: Numbers,
    state: State,
    /// Full blocks that wait for stragglers.
    full: VecDeque<Full>,
    next_block: u64,
    next_seq: u64,
    definitions: Vec<u8>,
    /// In the order in which they were given to writers.
    jobs: VecDeque<Job>,
    next_job: u64,
    progress: Progress,
    durable_seq: u64,
    failure: Option<RelayError>,
    /// When the switch was last told that the relay is there, and when it last said anything.
    spoke_ns: u64,
    heard_ns: u64,
    actions: VecDeque<Action>,
    counts: Counts,
    /// What the switch was asked to give up last.
    asked: Shortage,
}

/// What a switch has said at its beginning that matters later.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    first_block: u64,
    key: u32,
    hash_seed: [u64; 2],
}

/// Fails if blocks and packets of a switch begin with numbers that could wrap.
///
/// # Errors
///
/// What it is refused with.
pub fn check_numbers(begin: &Begin) -> Result<(), RelayError> {
    if begin.first_block >= NUMBER_MAX || begin.first_seq >= NUMBER_MAX {
        let reason = "numbers of blocks and packets begin at small ones";
        return Err(RelayError::Refused(reason.into()));
    }
    Ok(())
}

impl Session {
    /// The session of `peer`, which is sent `welcome`.
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
            },
            state: State::Serving,
            full: VecDeque::new(),
            next_block: begin.first_block,
            next_seq: begin.first_seq,
            definitions: Vec::new(),
            jobs: VecDeque::new(),
            next_job: 0,
            progress: Progress::default(),
            durable_seq: begin.first_seq,
            failure: None,
            spoke_ns: now_ns,
            heard_ns: now_ns,
            actions: VecDeque::from([Action::Send(welcome)]),
            counts: Counts::default(),
            asked: Shortage::default(),
        }
    }

    /// Whether it is asked what the switch says.
    #[must_use]
    pub fn listens(&self) -> bool {
        matches!(self.state, State::Serving | State::Hearing { .. })
    }

    /// Whether the switch writes, and nothing is known to be wrong.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        matches!(self.state, State::Serving)
    }

    /// Whether nothing is left to be done.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over) && self.actions.is_empty()
    }

    /// Asks the switch to give this up, unless it was asked for the same before; or nothing any
    /// more.
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

    /// What is to be done next.
    pub fn action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// What it has done since the last call.
    pub fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// Takes what the switch says.
    ///
    /// # Errors
    ///
    /// If it says what it may not: [`Session::lose`].
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
        if self.definitions.len() > DEFINITIONS_MAX {
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
        let expected = self.next_block + self.full.len() as u64;
        let fits = full.used as usize <= self.options.blocks.bytes;
        let waiting = self.full.back().map(|full| full.block.next_seq);
        let in_order = full.first_seq >= waiting.unwrap_or(self.next_seq);
        if full.block != expected
            || !fits
            || !in_order
            || full.next_seq < full.first_seq
            || full.next_seq >= NUMBER_MAX
        {
            return Err(self.protocol(format!("{full:?} at this point")));
        }
        if self.full.len() >= self.options.blocks.count {
            return Err(self.protocol("more full blocks than there are".into()));
        }
        self.full.push_back(Full {
            block: full,
            since_ns: now_ns,
            emptied: arrivals.emptied(),
        });
        Ok(())
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

    /// A job is done; its memory, if it was a block's, is the switch's again.
    pub fn written(&mut self, job: u64, outcome: Result<(), RelayError>) {
        let Some(job) = self.jobs.iter_mut().find(|given| given.number == job) else {
            return;
        };
        job.state = match outcome {
            Ok(()) => JobState::Stored,
            Err(error) => {
                self.failure.get_or_insert(error);
                JobState::Failed
            }
        };
        match job.state {
            JobState::Failed => self.give_nothing_more(),
            _ => self.confirm(),
        }
    }

    /// The file ends before what failed: nothing that was to come after it is given to writers.
    fn give_nothing_more(&mut self) {
        let (writes, others): (VecDeque<_>, _) = std::mem::take(&mut self.actions)
            .into_iter()
            .partition(|action| matches!(action, Action::Write(_)));
        self.actions = others;
        for action in writes {
            if let Action::Write(write) = action {
                let jobs = [Some(write.job), write.block.map(|block| block.job)];
                self.jobs.retain(|job| !jobs.contains(&Some(job.number)));
            }
        }
        if let State::Salvaging | State::Stragglers { .. } = self.state {
            self.state = State::Leaving;
        }
    }

    /// A job was not given to a writer, since there was nothing to be written.
    pub fn withdraw(&mut self, job: u64) {
        self.jobs.retain(|given| given.number != job);
    }

    /// Counts the blocks before which nothing is missing on disk, and tells the switch of
    /// them.
    fn confirm(&mut self) {
        while let Some(job) = self.jobs.front()
            && job.state == JobState::Stored
        {
            if let Some((_, header)) = job.block {
                self.durable_seq = header.next_seq;
                self.counts.blocks += 1;
                self.counts.bytes += header.stored_len() as u64;
                if let State::Serving | State::Draining(_) = self.state {
                    let stored = Message::BlockStored(header.block_number);
                    self.actions.push_back(Action::Send(stored));
                }
            }
            self.jobs.pop_front();
        }
    }

    /// Goes on as far as it can.
    ///
    /// # Errors
    ///
    /// Why it is over: [`Session::lose`].
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
                // A job that has failed was reported, and stays in line.
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

    /// Whether it waits for packets that may still be under way.
    #[must_use]
    pub fn awaits_arrivals(&self) -> bool {
        !self.full.is_empty() || matches!(self.state, State::Stragglers { .. })
    }

    /// When the next step is due, if nothing comes before and nothing is awaited of writers or
    /// of memory.
    #[must_use]
    pub fn deadline_ns(&self) -> u64 {
        match self.state {
            State::Hearing { until_ns } => until_ns,
            State::Stragglers { since_ns, .. } => since_ns + STRAGGLERS_NS,
            _ => self.spoke_ns + ALIVE_EVERY_NS,
        }
    }

    /// A switch that hears nothing takes its relay for lost.
    fn say_alive(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.spoke_ns) >= ALIVE_EVERY_NS {
            self.spoke_ns = now_ns;
            self.actions.push_back(Action::Send(Message::Alive));
        }
    }

    /// Writes all that was announced, and once that is on disk, closes the recording.
    fn drain(&mut self, arrivals: &dyn Arrivals, now_ns: u64) {
        self.write_arrived(arrivals, now_ns);
        if !self.full.is_empty() {
            return;
        }
        if !self.definitions.is_empty() {
            self.give(None);
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
        while let Some(full) = self.full.front().copied()
            && Self::is_there(&full, arrivals, now_ns)
        {
            self.full.pop_front();
            self.write_block(full.block, false);
        }
    }

    /// Whether all packets of a full block have arrived, or are lost.
    fn is_there(full: &Full, arrivals: &dyn Arrivals, now_ns: u64) -> bool {
        let waited = now_ns.saturating_sub(full.since_ns);
        arrivals.has_arrived(full.block.end_psn)
            || waited >= STRAGGLERS_MAX_NS
            || waited >= STRAGGLERS_NS && arrivals.has_taken_all(full.emptied)
    }

    /// Which of the relay's blocks the one of this number is.
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
    fn write_block(&mut self, full: BlockFull, salvaged: bool) {
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
        self.next_block = full.block + 1;
        self.next_seq = full.next_seq;
        self.give(Some((place, header)));
    }

    /// Gives the writers what was defined, and a block.
    fn give(&mut self, block: Option<(Place, RelayedHeader)>) {
        let job = self.job(None);
        let block = block.map(|(place, header)| BlockWrite {
            job: self.job(Some((place.index, header))),
            place,
            header,
        });
        self.actions.push_back(Action::Write(Write {
            job,
            definitions: std::mem::take(&mut self.definitions),
            block,
        }));
    }

    fn job(&mut self, block: Option<(usize, RelayedHeader)>) -> u64 {
        let number = self.next_job;
        self.next_job += 1;
        self.jobs.push_back(Job {
            number,
            block,
            state: JobState::Given,
        });
        number
    }

    /// It is over: the connection is lost, or of no use. The switch is told why, if there is a
    /// `last` word, and heard out; then what it has left in memory goes to disk, unless that
    /// has failed.
    pub fn lose(&mut self, last: Option<Message>, now_ns: u64) {
        match self.state {
            State::Serving | State::Draining(_) => {}
            State::Hearing { .. } => return self.leave(),
            _ => return,
        }
        // What was not said yet is not of interest any more.
        self.actions
            .retain(|action| !matches!(action, Action::Send(_) | Action::End(_)));
        match last {
            Some(last) => {
                self.actions.push_back(Action::Send(last));
                let until_ns = now_ns + LAST_WORD_LIMIT_NS;
                self.state = State::Hearing { until_ns };
            }
            None => self.leave(),
        }
    }

    /// Nobody is there any more.
    fn leave(&mut self) {
        self.actions
            .retain(|action| !matches!(action, Action::Send(_)));
        let has_failed = self.jobs.iter().any(|job| job.state == JobState::Failed);
        self.state = match has_failed {
            true => State::Leaving,
            false => State::Salvaging,
        };
    }

    /// Writes what a lost switch has left in memory without having said so.
    fn salvage(&mut self, arrivals: &dyn Arrivals) {
        let definitions = std::mem::take(&mut self.definitions);
        for _ in 0..self.options.blocks.count {
            let number = self.next_block;
            let used = arrivals.used(self.place(number), self.begin.key, number);
            let Some(used @ 1..) = used else {
                break;
            };
            // Definitions alone are of no use.
            self.definitions.extend_from_slice(&definitions);
            self.counts.salvaged += 1;
            let full = BlockFull {
                block: number,
                used: u32::try_from(used).expect("blocks have at most 1 GiB"),
                first_seq: self.next_seq,
                next_seq: self.next_seq,
                ..BlockFull::default()
            };
            self.write_block(full, true);
        }
    }
}
