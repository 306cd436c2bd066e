//! The switch's side: a worker's blocks become segments in the relay's memory.
//!
//! A worker's small blocks stay in the cache: their records are read once more,
//! cut into segments and sent. Definitions go over the control connection, which
//! loses nothing; packets by RDMA.
//!
//! [`Switch`] goes through all connections of a recording, [`Entry`] lets it into one, and
//! [`Connection`] is what both ends share from then on.

mod connection;
mod counters;
mod entry;
mod path;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use strata_rdma::RequesterCounters;
use strata_store::{
    BlockBuilder, BlockCounters, BlockSource, Incoming, RawRecord, Records, StoreError, Written,
};
use strata_wire::segment::PacketInfo;

use crate::error::RelayError;
use crate::protocol::{End, MS_NS, Message, Progress, SECOND_NS, Shortage};

use connection::Heard;
pub use connection::{Connection, Numbers};
use counters::{add, count};
pub(crate) use entry::ANSWER_LIMIT_NS;
pub use entry::Entry;
pub use path::Path;

/// RDMA packets that are gathered before they are sent.
const BATCH_PACKETS: usize = 244;
/// How often a lost relay is looked for.
const RECONNECT_EVERY_NS: u64 = 200 * MS_NS;
/// A relay that says nothing for so long is lost; it has to every second.
const SILENCE_MAX_NS: u64 = 30 * SECOND_NS;
/// How long a relay that stores nothing is waited for by who was told to end.
const PATIENCE_STOPPED_NS: u64 = 5 * SECOND_NS;
/// Problems that are reported in words.
const PROBLEMS_MAX: usize = 100;

/// What a link has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkReport {
    /// Number of the recording in the relay's log.
    pub recording: u32,
    /// Packets that were sent.
    pub packets: u64,
    /// Segments.
    pub segments: u64,
    /// Bytes of RDMA messages.
    pub bytes: u64,
    /// Blocks that the relay has on disk.
    pub blocks: u64,
    /// Times the relay was lost.
    pub disconnections: u64,
    /// Packets of which it is not known that the relay has them on disk.
    pub lost: BlockCounters,
    /// Of all connections.
    pub rdma: RequesterCounters,
    /// What went wrong, in words.
    pub problems: Vec<String>,
    /// Why the recording did not end properly at the relay, if so.
    pub failure: Option<String>,
}

/// What there is to do for who drives a [`Switch`] that is connected, once packets and then
/// messages of the connection are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The next step, at once.
    Again,
    /// The next step, as soon as answers come or so many ns are over.
    Answers(u64),
    /// A look at the worker's blocks ([`Switch::take`]), for which it may wait so many ns, and
    /// the next step.
    Receive(u64),
    /// The recording is closed.
    Done,
}

/// What there is to do without a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// A connection: then [`Switch::connected`] or [`Switch::refused`].
    Connect,
    /// Nothing before this time. Blocks are taken meanwhile.
    Wait(u64),
    /// Nothing any more: what comes is lost ([`Switch::give_up`]).
    GiveUp,
}

/// How a switch works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchOptions {
    /// A block that was begun so many ns ago is sent to disk though it is not full.
    pub flush_interval_ns: u64,
    /// Once there is nothing more to record, a relay that is away is waited for so many ns.
    pub patience_ns: u64,
}

/// A worker's block that is being sent.
struct Current {
    block: Box<BlockBuilder>,
    position: (usize, u64),
}

enum State {
    /// It has a connection.
    Serving,
    /// It has asked the relay to close the recording.
    Closing,
    /// The recording is closed.
    Closed,
    /// It looks for a relay.
    Searching {
        /// Why the last one was lost.
        problem: String,
        /// There is no use in looking.
        is_over: bool,
        next_try_ns: u64,
        give_up_ns: Option<u64>,
    },
}

/// The switch's end of a recording, through all of its connections.
pub struct Switch {
    options: SwitchOptions,
    state: State,
    current: Option<Current>,
    /// What packets refer to, by kind and reference: sent again after a reconnection.
    definitions: BTreeMap<(u8, u16), Vec<u8>>,
    /// What inputs said of themselves, with the block that was being filled: sent
    /// again if that did not reach the disk.
    additions: Vec<(u64, Vec<u8>)>,
    /// Class by verdict.
    classes: Vec<u8>,
    next_block: u64,
    /// The sequence number of the next packet to be sent.
    next_seq: u64,
    /// What is said at the end, once nothing more will come.
    ending: Option<End>,
    flush: bool,
    /// When it was told to end.
    stopped_ns: Option<u64>,
    /// What the relay asks to be given up, for as long as it is connected.
    shortage: Shortage,
    report: LinkReport,
}

impl std::fmt::Debug for Switch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Switch")
            .field("next_block", &self.next_block)
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}

impl Switch {
    /// A switch that has a first connection.
    #[must_use]
    pub fn new(options: SwitchOptions, connection: &Connection) -> Self {
        let mut switch = Self {
            options,
            state: State::Serving,
            current: None,
            definitions: BTreeMap::new(),
            additions: Vec::new(),
            classes: vec![0; 1 << 16],
            next_block: 0,
            next_seq: 0,
            ending: None,
            flush: false,
            stopped_ns: None,
            shortage: Shortage::default(),
            report: LinkReport::default(),
        };
        switch.report.recording = connection.recording();
        switch
    }

    /// What it has done so far.
    #[must_use]
    pub fn report(&self) -> &LinkReport {
        &self.report
    }

    /// What the relay asks to be given up now: nothing without a connection.
    #[must_use]
    pub fn shortage(&self) -> &Shortage {
        &self.shortage
    }

    /// The numbers of block and packet that the next connection begins with.
    #[must_use]
    pub fn next_numbers(&self) -> (u64, u64) {
        (self.next_block, self.next_seq)
    }

    /// It is to end: a relay that is away, or stores nothing, is waited for no longer than
    /// five seconds from now on.
    pub fn stop(&mut self, now_ns: u64) {
        self.stopped_ns.get_or_insert(now_ns);
    }

    /// Whether a relay has been waited for long enough by who was told to end.
    #[must_use]
    pub fn is_out_of_patience(&self, now_ns: u64) -> bool {
        let since = self.stopped_ns;
        since.is_some_and(|since| now_ns.saturating_sub(since) > PATIENCE_STOPPED_NS)
    }

    /// Whether it can take a block of the worker now.
    #[must_use]
    pub fn wants_block(&self) -> bool {
        self.current.is_none()
    }

    /// Takes what has come of the worker, the end with what [`Switch::end_with`] was told.
    pub fn take(&mut self, incoming: Incoming, connection: Option<&mut Connection>) {
        match incoming {
            Incoming::Block(block) => {
                if connection.is_some() {
                    self.flush = false;
                }
                let (first_seq, _) = block.sequence_range();
                self.current = Some(Current {
                    block,
                    position: (0, first_seq),
                });
            }
            Incoming::Flush => self.flush = true,
            Incoming::End => drop(self.ending.get_or_insert_default()),
            // The sender has nothing more: what was gathered goes out.
            Incoming::Nothing => {
                if let Some(connection) = connection {
                    connection.flush_message();
                }
                return;
            }
        }
        if let (Some(connection), Some(_)) = (connection, &self.ending) {
            connection.flush_message();
        }
    }

    /// Nothing more will come of the worker, and this is said to the relay.
    pub fn end_with(&mut self, end: End) {
        self.ending = Some(end);
    }

    /// Whether nothing more will come of the worker.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Whether the relay has closed the recording.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Takes what the relay says.
    ///
    /// # Errors
    ///
    /// Why the connection is of no use any more: [`Switch::lost`].
    pub fn receive(
        &mut self,
        connection: &mut Connection,
        message: Message,
        source: &BlockSource,
        now_ns: u64,
    ) -> Result<(), RelayError> {
        connection.set_now(now_ns);
        match (&self.state, connection.receive(message)?) {
            (_, Heard::Alive) => {}
            (_, Heard::Shortage(shortage)) => self.shortage = shortage,
            (State::Serving, Heard::Stored(block, counters)) => {
                self.report.blocks += 1;
                self.additions.retain(|(of, _)| *of > block);
                source.settle(Written {
                    counters,
                    outcome: Ok(()),
                });
            }
            (State::Closing, Heard::Ended) => {
                self.shortage = Shortage::default();
                self.state = State::Closed;
            }
            (_, Heard::Stored(..)) => return Err(connection.protocol("a stored block at its end")),
            (_, Heard::Ended) => return Err(connection.protocol("an end before its time")),
        }
        Ok(())
    }

    /// Goes on as far as it can.
    ///
    /// # Errors
    ///
    /// Why the connection is of no use any more: [`Switch::lost`].
    pub fn step(
        &mut self,
        connection: &mut Connection,
        source: &BlockSource,
        now_ns: u64,
    ) -> Result<Turn, RelayError> {
        connection.set_now(now_ns);
        if let State::Closed = self.state {
            self.take_counters(connection);
            return Ok(Turn::Done);
        }
        self.check_patience(connection, now_ns)?;
        connection.tick()?;
        if let State::Closing = self.state {
            return Ok(Turn::Answers(MS_NS));
        }
        let worked = self.pump(connection, source)?;
        self.close_old(connection, now_ns);
        connection.announce(progress(source));
        self.note_counters(connection, source);
        if self.current.is_some() {
            return Ok(match worked {
                true => Turn::Again,
                false => Turn::Answers(MS_NS * 3 / 10),
            });
        }
        if let Some(end) = &self.ending
            && connection.is_idle()
        {
            connection.send_end(end.clone());
            self.state = State::Closing;
            return Ok(Turn::Answers(MS_NS));
        }
        Ok(match connection.is_idle() {
            // Nothing comes of the worker any more.
            _ if self.ending.is_some() => {
                connection.flush_message();
                Turn::Answers(MS_NS * 3 / 10)
            }
            true => Turn::Receive(5 * MS_NS),
            false if worked => Turn::Receive(0),
            false => Turn::Receive(MS_NS / 5),
        })
    }

    /// When the next step is due, if nothing comes before.
    #[must_use]
    pub fn deadline_ns(&self, connection: &Connection) -> u64 {
        let at = connection.deadline_ns();
        let flush = connection.open_since_ns();
        flush.map_or(at, |since| {
            at.min(since + self.options.flush_interval_ns + 1)
        })
    }

    /// Fails if the relay is there, but nothing comes of it.
    fn check_patience(&self, connection: &Connection, now_ns: u64) -> Result<(), RelayError> {
        if connection.silent_ns() > SILENCE_MAX_NS {
            return Err(connection.silent(SILENCE_MAX_NS));
        }
        if self.is_out_of_patience(now_ns)
            && connection.stuck_ns() > PATIENCE_STOPPED_NS
            && (self.current.is_some() || self.ending.is_some() || !connection.is_idle())
        {
            return Err(connection.silent(PATIENCE_STOPPED_NS));
        }
        Ok(())
    }

    fn take_counters(&mut self, connection: &Connection) {
        let of = connection.counters();
        let sum = &mut self.report.rdma;
        sum.posted += of.posted;
        sum.acknowledged += of.acknowledged;
        sum.lost += of.lost;
        sum.resent += of.resent;
        sum.sequence_naks += of.sequence_naks;
        sum.timeouts += of.timeouts;
    }

    /// Says how many packets were sent so far, for whoever steers.
    fn note_counters(&self, connection: &Connection, source: &BlockSource) {
        let (of, before) = (connection.counters(), &self.report.rdma);
        let progress = source.progress();
        let note = |to: &AtomicU64, packets| to.store(packets, Ordering::Relaxed);
        note(&progress.rdma_sent, before.posted + of.posted);
        note(&progress.rdma_again, before.resent + of.resent);
    }

    /// The connection is of no use any more: what the relay did not confirm is lost. What is
    /// left to be said, if anything, is among its messages.
    pub fn lost(
        &mut self,
        connection: &mut Connection,
        problem: &RelayError,
        source: &BlockSource,
        now_ns: u64,
    ) {
        let is_over = match problem {
            RelayError::Failed(_) => true,
            RelayError::Silent { .. } => self.stopped_ns.is_some(),
            _ => false,
        };
        drop(connection.messages());
        if is_over {
            self.report.failure = Some(problem.to_string());
            connection.last_word(progress(source));
        }
        self.shortage = Shortage::default();
        self.take_counters(connection);
        self.report.disconnections += 1;
        if self.report.problems.len() < PROBLEMS_MAX {
            self.report.problems.push(problem.to_string());
        }
        self.settle_lost(connection.unconfirmed(), source);
        self.next_block = connection.next_block();
        self.state = State::Searching {
            problem: problem.to_string(),
            is_over,
            next_try_ns: now_ns,
            give_up_ns: None,
        };
    }

    fn settle_lost(&mut self, counters: BlockCounters, source: &BlockSource) {
        add(&mut self.report.lost, &counters);
        let outcome = match &self.report.failure {
            Some(reason) => StoreError::RelayFailed(reason.clone()),
            None => StoreError::RelayLost,
        };
        source.settle(Written {
            counters,
            outcome: Err(outcome),
        });
    }

    /// What there is to do without a relay.
    pub fn search(&mut self, now_ns: u64) -> Search {
        let is_impatient = self.is_out_of_patience(now_ns);
        let is_waited_for = self.ending.is_some() || self.flush;
        let State::Searching {
            is_over,
            next_try_ns,
            give_up_ns,
            ..
        } = &mut self.state
        else {
            return Search::Wait(now_ns);
        };
        if *is_over || is_impatient {
            return Search::GiveUp;
        }
        if is_waited_for {
            let end = *give_up_ns.get_or_insert(now_ns + self.options.patience_ns);
            if now_ns > end {
                return Search::GiveUp;
            }
        }
        if now_ns < *next_try_ns {
            return Search::Wait(*next_try_ns);
        }
        *next_try_ns = now_ns + RECONNECT_EVERY_NS;
        Search::Connect
    }

    /// A relay could not be reached, or has not let the switch in.
    pub fn refused(&mut self, error: &RelayError, now_ns: u64) {
        if let State::Searching {
            is_over,
            next_try_ns,
            ..
        } = &mut self.state
        {
            // Refusals pass too: of a relay that ends, or has not yet missed others.
            if let RelayError::Failed(_) = error {
                self.report.failure = Some(error.to_string());
                *is_over = true;
            }
            *next_try_ns = now_ns + RECONNECT_EVERY_NS;
        }
    }

    /// There is a relay again: it is told what packets refer to.
    pub fn connected(&mut self, connection: &mut Connection) {
        let known = self.definitions.values();
        for record in known.chain(self.additions.iter().map(|(_, bytes)| bytes)) {
            connection.define(record);
        }
        self.report.recording = connection.recording();
        self.state = State::Serving;
    }

    /// Without a relay, everything that still comes is lost: to be called after each
    /// [`Switch::take`] until it is ending.
    pub fn give_up(&mut self, source: &BlockSource) {
        if let State::Searching { problem, .. } = &self.state {
            let failure = format!("the relay did not come back: {problem}");
            self.report.failure.get_or_insert(failure);
        }
        if let Some(current) = self.current.take() {
            let mut records = Records::resume(current.block.body(), current.position);
            let mut counters = BlockCounters::default();
            while let Some(Ok(record)) = records.next_raw() {
                if let RawRecord::Packet(raw) = record {
                    count(&mut counters, &raw);
                }
            }
            source.give_back(current.block);
            self.settle_lost(counters, source);
        }
    }

    fn close_old(&mut self, connection: &mut Connection, now_ns: u64) {
        let quiet = self.current.is_none();
        let since = connection.open_since_ns();
        let old = since
            .is_some_and(|since| now_ns.saturating_sub(since) > self.options.flush_interval_ns);
        if (quiet && (self.flush || self.ending.is_some())) || old {
            connection.close_block();
        }
    }

    /// Sends packets of the current block as far as window and blocks allow;
    /// whether it got anywhere.
    fn pump(
        &mut self,
        connection: &mut Connection,
        source: &BlockSource,
    ) -> Result<bool, RelayError> {
        let Some(mut current) = self.current.take() else {
            return Ok(false);
        };
        let mut records = Records::resume(current.block.body(), current.position);
        let mut exhausted = false;
        let start = current.position;
        while connection.gathered() < BATCH_PACKETS {
            match records.next_raw() {
                Some(Ok(RawRecord::Packet(raw))) => {
                    let class = self.classes[usize::from(raw.packet.verdict)];
                    let info = PacketInfo {
                        seq: raw.packet.seq,
                        ts_ns: raw.packet.ts_ns,
                        class,
                        flags: raw.flags,
                    };
                    let pushed = connection.push(&info, raw.bytes);
                    match pushed {
                        Ok(true) => {}
                        Ok(false) => break,
                        Err(error) => {
                            self.current = Some(current);
                            return Err(error);
                        }
                    }
                    count(connection.counted(), &raw);
                    self.next_seq = raw.packet.seq + 1;
                    self.report.packets += 1;
                    current.position = records.position();
                }
                Some(Ok(RawRecord::Other {
                    verdict,
                    replaces,
                    bytes,
                })) => {
                    if let Some((id, class)) = verdict {
                        self.classes[usize::from(id)] = class;
                    }
                    match replaces {
                        Some(key) if self.definitions.get(&key).is_some_and(|k| k == bytes) => {}
                        Some(key) => {
                            self.definitions.insert(key, bytes.to_vec());
                            connection.define(bytes);
                        }
                        None => {
                            self.additions
                                .push((connection.next_block_to_close(), bytes.to_vec()));
                            connection.define(bytes);
                        }
                    }
                    current.position = records.position();
                }
                // A worker's records are right.
                Some(Err(_)) | None => {
                    exhausted = true;
                    break;
                }
            }
        }
        let worked = exhausted || current.position != start;
        let (segments, bytes) = connection.take_counts();
        self.report.segments += segments;
        self.report.bytes += bytes;
        if exhausted {
            source.give_back(current.block);
        } else {
            self.current = Some(current);
        }
        Ok(worked)
    }
}

/// How far a worker is.
fn progress(source: &BlockSource) -> Progress {
    let worker = source.progress();
    Progress {
        next_seq: worker.next_seq.load(Ordering::Relaxed),
        seen_packets: worker.seen_packets.load(Ordering::Relaxed),
        seen_bytes: worker.seen_bytes.load(Ordering::Relaxed),
    }
}
