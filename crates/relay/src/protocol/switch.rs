//! The switch's side: a worker's blocks become segments in the relay's memory.
//!
//! A worker's small blocks stay in the cache: their records are read once more, cut into segments
//! and sent. Definitions go over the control connection, which loses nothing; packets by RDMA.
//!
//! [`Switch`] lasts through all connections of a recording, [`Entry`] gets it admitted to one, and
//! [`Connection`] is the shared state of both ends from then on.

mod connection;
mod counters;
mod entry;
mod path;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use strata_blocks::{
    BlockBuilder, BlockCounters, BlockSource, Incoming, RawRecord, RecordPlace, Records, SinkError,
    Written,
};
use strata_rdma::RequesterCounters;
use strata_wire::segment::PacketInfo;

use crate::error::RelayError;
use crate::protocol::{End, MS_NS, Message, Progress, SECOND_NS, Shortage};

use connection::Heard;
pub use connection::{Connection, Numbers};
use counters::{add, count, count_compact};
pub(crate) use entry::ANSWER_LIMIT_NS;
pub use entry::Entry;
pub use path::Path;

/// RDMA packets gathered before they are sent.
const BATCH_PACKETS: usize = 244;
/// How often to try to reconnect to a lost relay.
const RECONNECT_EVERY_NS: u64 = 200 * MS_NS;
/// A relay that is silent for this long is lost; it must send every second.
const SILENCE_MAX_NS: u64 = 30 * SECOND_NS;
/// How long a switch that was told to stop waits for a relay that stores nothing.
const PATIENCE_STOPPED_NS: u64 = 5 * SECOND_NS;
/// Most problems reported as text.
const PROBLEMS_MAX: usize = 100;

/// What a link has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkReport {
    /// Number of the recording in the relay's log.
    pub recording: u32,
    /// Packets sent.
    pub packets: u64,
    /// Segments.
    pub segments: u64,
    /// Bytes of RDMA messages.
    pub bytes: u64,
    /// Blocks on the relay's disk.
    pub blocks: u64,
    /// How often the relay was lost.
    pub disconnections: u64,
    /// Packets not known to be on the relay's disk.
    pub lost: BlockCounters,
    /// Of all connections.
    pub rdma: RequesterCounters,
    /// Problems, in plain English.
    pub problems: Vec<String>,
    /// Why the recording did not end properly at the relay, if so.
    pub failure: Option<String>,
}

/// What the driver of a connected [`Switch`] must do, after sending the connection's packets and
/// then its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The next step, at once.
    Again,
    /// The next step, as soon as answers arrive or this many ns have passed.
    Answers(u64),
    /// Check the worker's blocks ([`Switch::take`]), waiting up to this many ns, then the next
    /// step.
    Receive(u64),
    /// The recording is closed.
    Done,
}

/// What to do without a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// Connect: then [`Switch::connected`] or [`Switch::refused`].
    Connect,
    /// Wait until this time. Blocks are taken meanwhile.
    Wait(u64),
    /// Nothing any more: what arrives is lost ([`Switch::give_up`]).
    GiveUp,
}

/// The options of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchOptions {
    /// A block open for this many ns is sent to disk even if it is not full.
    pub flush_interval_ns: u64,
    /// How long to wait for a lost relay once there is nothing more to record, ns.
    pub patience_ns: u64,
}

/// A worker's block being sent.
struct Current {
    block: Box<BlockBuilder>,
    place: RecordPlace,
}

enum State {
    /// Connected.
    Serving,
    /// Has asked the relay to close the recording.
    Closing,
    /// The recording is closed.
    Closed,
    /// Looking for a relay.
    Searching {
        /// Why the last one was lost.
        problem: String,
        /// Whether looking is pointless.
        is_over: bool,
        next_try_ns: u64,
        give_up_ns: Option<u64>,
    },
}

/// The switch's end of a recording, across all of its connections.
pub struct Switch {
    options: SwitchOptions,
    state: State,
    current: Option<Current>,
    /// What packets refer to, by kind and reference: sent again after a reconnection.
    definitions: BTreeMap<(u8, u16), Vec<u8>>,
    /// Metadata of the inputs, with the block being filled at the time: sent again if that did not
    /// reach the disk.
    additions: Vec<(u64, Vec<u8>)>,
    /// Class by verdict.
    classes: Vec<u8>,
    /// The record of a packet that is not compact, as it is sent.
    record: Vec<u8>,
    next_block: u64,
    /// The sequence number of the next packet to be sent.
    next_seq: u64,
    /// The end to send once nothing more will come.
    ending: Option<End>,
    flush: bool,
    /// When it was told to end.
    stopped_ns: Option<u64>,
    /// What the relay asks to be given up, while it is connected.
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
    /// A switch with its first connection.
    #[must_use]
    pub fn new(options: SwitchOptions, connection: &Connection) -> Self {
        let mut switch = Self {
            options,
            state: State::Serving,
            current: None,
            definitions: BTreeMap::new(),
            additions: Vec::new(),
            classes: vec![0; 1 << 16],
            record: Vec::new(),
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

    /// What the relay currently asks to be given up: nothing without a connection.
    #[must_use]
    pub fn shortage(&self) -> &Shortage {
        &self.shortage
    }

    /// The block and packet numbers that the next connection starts with.
    #[must_use]
    pub fn next_numbers(&self) -> (u64, u64) {
        (self.next_block, self.next_seq)
    }

    /// Tells it to end: from now on it waits at most five seconds for a relay that is away, or
    /// stores nothing.
    pub fn stop(&mut self, now_ns: u64) {
        self.stopped_ns.get_or_insert(now_ns);
    }

    /// Whether a switch told to end has waited long enough for a relay.
    #[must_use]
    pub fn is_out_of_patience(&self, now_ns: u64) -> bool {
        let since = self.stopped_ns;
        since.is_some_and(|since| now_ns.saturating_sub(since) > PATIENCE_STOPPED_NS)
    }

    /// Whether it can currently take a block of the worker.
    #[must_use]
    pub fn wants_block(&self) -> bool {
        self.current.is_none()
    }

    /// Takes a block from the worker, or its end, with the contents of [`Switch::end_with`].
    pub fn take(&mut self, incoming: Incoming, connection: Option<&mut Connection>) {
        match incoming {
            Incoming::Block(block) => {
                if connection.is_some() {
                    self.flush = false;
                }
                let (first_seq, _) = block.sequence_range();
                self.current = Some(Current {
                    block,
                    place: RecordPlace::first(first_seq),
                });
            }
            Incoming::Flush => self.flush = true,
            Incoming::End => drop(self.ending.get_or_insert_default()),
            // The sender is idle: send what was gathered.
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

    /// Nothing more will come from the worker; this is the end to send to the relay.
    pub fn end_with(&mut self, end: End) {
        self.ending = Some(end);
    }

    /// Whether nothing more will come from the worker.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Whether the relay has closed the recording.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Processes a message from the relay.
    ///
    /// # Errors
    ///
    /// Why the connection is unusable: [`Switch::lost`].
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

    /// Makes as much progress as possible.
    ///
    /// # Errors
    ///
    /// Why the connection is unusable: [`Switch::lost`].
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
            // Nothing more comes from the worker.
            _ if self.ending.is_some() => {
                connection.flush_message();
                Turn::Answers(MS_NS * 3 / 10)
            }
            true => Turn::Receive(5 * MS_NS),
            false if worked => Turn::Receive(0),
            false => Turn::Receive(MS_NS / 5),
        })
    }

    /// When the next step is due, if nothing arrives before.
    #[must_use]
    pub fn deadline_ns(&self, connection: &Connection) -> u64 {
        let at = connection.deadline_ns();
        let flush = connection.open_since_ns();
        flush.map_or(at, |since| {
            at.min(since + self.options.flush_interval_ns + 1)
        })
    }

    /// Fails if the relay is there, but makes no progress.
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

    /// Publishes how many packets were sent so far, for the controller.
    fn note_counters(&self, connection: &Connection, source: &BlockSource) {
        let (of, before) = (connection.counters(), &self.report.rdma);
        let progress = source.progress();
        let note = |to: &AtomicU64, packets| to.store(packets, Ordering::Relaxed);
        note(&progress.rdma_sent, before.posted + of.posted);
        note(&progress.rdma_again, before.resent + of.resent);
    }

    /// The connection is unusable: what the relay did not confirm is lost. Any last words are among
    /// its messages.
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
            Some(reason) => SinkError::RelayFailed(reason.clone()),
            None => SinkError::RelayLost,
        };
        source.settle(Written {
            counters,
            outcome: Err(outcome),
        });
    }

    /// What to do without a relay.
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

    /// A relay could not be reached, or did not admit the switch.
    pub fn refused(&mut self, error: &RelayError, now_ns: u64) {
        if let State::Searching {
            is_over,
            next_try_ns,
            ..
        } = &mut self.state
        {
            // Refusals may be temporary: of a relay that is ending, or has not yet missed others.
            if let RelayError::Failed(_) = error {
                self.report.failure = Some(error.to_string());
                *is_over = true;
            }
            *next_try_ns = now_ns + RECONNECT_EVERY_NS;
        }
    }

    /// There is a relay again: it is sent the definitions that packets refer to.
    pub fn connected(&mut self, connection: &mut Connection) {
        let known = self.definitions.values();
        for record in known.chain(self.additions.iter().map(|(_, bytes)| bytes)) {
            connection.define(record);
        }
        self.report.recording = connection.recording();
        self.state = State::Serving;
    }

    /// Without a relay, everything that still arrives is lost: to be called after each
    /// [`Switch::take`] until it is ending.
    pub fn give_up(&mut self, source: &BlockSource) {
        if let State::Searching { problem, .. } = &self.state {
            let failure = format!("the relay did not come back: {problem}");
            self.report.failure.get_or_insert(failure);
        }
        if let Some(current) = self.current.take() {
            let mut records = Records::at(current.block.body(), current.place);
            let mut counters = BlockCounters::default();
            while let Some(Ok(record)) = records.next_raw() {
                if let RawRecord::Packet(packet) = record {
                    count(&mut counters, &packet);
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

    /// Sends packets of the current block as far as window and blocks allow; returns whether it
    /// made progress.
    fn pump(
        &mut self,
        connection: &mut Connection,
        source: &BlockSource,
    ) -> Result<bool, RelayError> {
        let Some(current) = self.current.take() else {
            return Ok(false);
        };
        let Current { block, place } = current;
        let start = place.clone();
        let mut records = Records::at(block.body(), place);
        let sent = self.send(connection, &mut records);
        let place = records.into_place();
        let (segments, bytes) = connection.take_counts();
        self.report.segments += segments;
        self.report.bytes += bytes;
        if let Ok(Sent::All) = sent {
            source.give_back(block);
            return Ok(true);
        }
        let worked = place != start;
        self.current = Some(Current { block, place });
        sent.map(|_| worked)
    }

    /// Sends records until window or blocks are full, or enough packets are gathered.
    fn send(
        &mut self,
        connection: &mut Connection,
        records: &mut Records<'_>,
    ) -> Result<Sent, RelayError> {
        while connection.gathered() < BATCH_PACKETS {
            let Some(packet) = records.compact() else {
                match self.send_other(connection, records)? {
                    Sent::One => continue,
                    sent => return Ok(sent),
                }
            };
            let info = PacketInfo {
                seq: packet.seq,
                ts_ns: packet.ts_ns,
                class: self.classes[usize::from(packet.verdict)],
                flags: packet.flags,
            };
            if !connection.push(&info, packet.bytes)? {
                return Ok(Sent::Some);
            }
            count_compact(connection.counted(), &packet);
            self.next_seq = packet.seq + 1;
            self.report.packets += 1;
            records.pass(&packet);
        }
        Ok(Sent::Some)
    }

    /// Sends the next record, whatever it is.
    fn send_other(
        &mut self,
        connection: &mut Connection,
        records: &mut Records<'_>,
    ) -> Result<Sent, RelayError> {
        let mut after = records.clone();
        match after.next_raw() {
            Some(Ok(RawRecord::Packet(packet))) => {
                let info = PacketInfo {
                    seq: packet.seq,
                    ts_ns: packet.ts_ns,
                    class: self.classes[usize::from(packet.verdict)],
                    flags: packet.flags(),
                };
                self.record.clear();
                packet.emit(&mut self.record);
                if !connection.push(&info, &self.record)? {
                    return Ok(Sent::Some);
                }
                count(connection.counted(), &packet);
                self.next_seq = packet.seq + 1;
                self.report.packets += 1;
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
            }
            // A worker's records are valid.
            Some(Err(_)) | None => return Ok(Sent::All),
        }
        *records = after;
        Ok(Sent::One)
    }
}

/// How much of a worker's block was sent.
enum Sent {
    /// One more record.
    One,
    /// As many as possible now.
    Some,
    /// All of it.
    All,
}

/// The worker's progress.
fn progress(source: &BlockSource) -> Progress {
    let worker = source.progress();
    Progress {
        next_seq: worker.next_seq.load(Ordering::Relaxed),
        seen_packets: worker.seen_packets.load(Ordering::Relaxed),
        seen_bytes: worker.seen_bytes.load(Ordering::Relaxed),
    }
}
