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
mod reconnect;
mod retained;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use strata_blocks::{
    BlockBuilder, BlockCounters, BlockSource, Incoming, PacketRecord, RawRecord, RecordPlace,
    Records, Written,
};
use strata_rdma::RequesterCounters;
use strata_wire::segment::PacketInfo;

use crate::error::RelayError;
use crate::protocol::{End, MS_NS, Message, Progress, SECOND_NS, Shortage};

use connection::Heard;
pub use connection::{Connection, Numbers, Resumption};
use counters::count_compact;
pub(crate) use entry::ANSWER_LIMIT_NS;
pub use entry::Entry;
pub use path::Path;
use retained::Retained;

/// RDMA packets gathered before they are sent.
const BATCH_PACKETS: usize = 244;
/// A relay that is silent for this long is lost; it must send every second.
const SILENCE_MAX_NS: u64 = 30 * SECOND_NS;
/// How long a switch that was stopped waits for a relay that stores nothing.
const PATIENCE_STOPPED_NS: u64 = 5 * SECOND_NS;

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
    /// The number of times that the relay was lost.
    pub disconnections: u64,
    /// Packets not known to be on the relay's disk.
    pub lost: BlockCounters,
    /// Of these, packets that the relay may have: it was lost before it confirmed them, and did not come back.
    pub unknown_packets: u64,
    /// Packets that the relay had on disk before it was lost, as it reported when it was back.
    pub found: BlockCounters,
    /// Packets that were sent again after it was lost.
    pub again_packets: u64,
    /// Segments of blocks on the relay's disk, and the number of segments that did not arrive, as the relay counts them
    /// on unreliable connections.
    pub segments_stored: u64,
    /// See [`LinkReport::segments_stored`].
    pub segments_missing: u64,
    /// The counters of all connections.
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
    /// The time to wait for a lost relay once there is nothing more to record, or while files are read; ns.
    pub patience_ns: u64,
    /// Whether it reads files: then its packets can wait for the relay.
    pub reads_files: bool,
    /// Whether it keeps packets until the relay has confirmed them, to send them again after the relay was lost. Packet
    /// numbers must have no gaps: those of a worker that reads files have none.
    pub resends: bool,
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
    /// The sequence number of the next packet to be sent for the first time.
    next_seq: u64,
    /// All packets before this one are confirmed, or were given up.
    confirmed_seq: u64,
    /// What was sent from there on, if it can be sent again.
    retained: Option<Retained>,
    /// What was sent from there on, if it cannot, and the connection is lost.
    unsettled: BlockCounters,
    /// The end to send once nothing more will come.
    ending: Option<End>,
    flush: bool,
    /// When it was stopped.
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
            confirmed_seq: 0,
            retained: options.resends.then(Retained::default),
            unsettled: BlockCounters::default(),
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

    /// The degradation that the relay currently requests; none without a connection.
    #[must_use]
    pub fn shortage(&self) -> &Shortage {
        &self.shortage
    }

    /// The numbers that the next connection starts with.
    #[must_use]
    pub fn next_numbers(&self) -> Resumption {
        Resumption {
            block: self.next_block,
            seq: self.next_seq,
            unconfirmed_seq: self.confirmed_seq,
            resends: self.retained.is_some(),
        }
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
        self.current.is_none() && !self.is_retaining_too_much()
    }

    fn is_retaining_too_much(&self) -> bool {
        self.retained.as_ref().is_some_and(Retained::is_full)
    }

    /// Whether packets of the worker's, new ones or once more, wait to be sent.
    fn has_packets(&self) -> bool {
        self.current.is_some() || self.retained.as_ref().is_some_and(Retained::is_sending)
    }

    /// Takes a block from the worker, or its end, with the contents of [`Switch::end_with`].
    pub fn take(&mut self, incoming: Incoming, connection: Option<&mut Connection>) {
        match incoming {
            Incoming::Block(block) => {
                if connection.is_some() {
                    self.flush = false;
                }
                if let Some(retained) = &mut self.retained {
                    retained.keep(&block);
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
            (State::Serving, Heard::Stored(stored, full, counters)) => {
                self.report.blocks += 1;
                if connection.counts_missing() {
                    self.report.segments_stored += full.segments;
                    // The relay may say what it likes.
                    self.report.segments_missing += stored.missing.min(full.segments);
                }
                self.additions.retain(|(of, _)| *of > stored.block);
                self.confirmed_seq = full.next_seq;
                if let Some(retained) = &mut self.retained {
                    retained.confirmed(full.next_seq);
                }
                source.settle(Written {
                    counters,
                    outcome: Ok(()),
                });
            }
            (State::Closing, Heard::Ended) => {
                self.shortage = Shortage::default();
                self.state = State::Closed;
            }
            (_, Heard::Stored(..)) => {
                return Err(connection.protocol("a stored block after the end"));
            }
            (_, Heard::Ended) => return Err(connection.protocol("an early end")),
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
        if self.has_packets() {
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
        if self.is_retaining_too_much() {
            connection.close_block();
            return Ok(Turn::Answers(MS_NS * 3 / 10));
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
            && (self.has_packets() || self.ending.is_some() || !connection.is_idle())
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

    /// Publishes how much was sent so far, and how much of it was lost, for the controller: RDMA messages that
    /// were sent again or skipped; without acknowledgements, segments that the relay has missed.
    fn note_counters(&self, connection: &Connection, source: &BlockSource) {
        let (of, before) = (connection.counters(), &self.report.rdma);
        let progress = source.progress();
        let note = |to: &AtomicU64, count| to.store(count, Ordering::Relaxed);
        if connection.counts_missing() {
            note(&progress.rdma_sent, self.report.segments_stored);
            note(&progress.rdma_again, self.report.segments_missing);
        } else {
            let resent = before.resent + of.resent;
            note(&progress.rdma_sent, before.posted + of.posted + resent);
            note(&progress.rdma_again, before.lost + of.lost + resent);
        }
    }

    fn close_old(&mut self, connection: &mut Connection, now_ns: u64) {
        let quiet = !self.has_packets();
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
        if self.retained.as_ref().is_some_and(Retained::is_sending) {
            let worked = self.send_again(connection);
            let (segments, bytes) = connection.take_counts();
            self.report.segments += segments;
            self.report.bytes += bytes;
            return worked;
        }
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

    /// Sends packets once more, as far as window and blocks allow; returns whether it made progress.
    fn send_again(&mut self, connection: &mut Connection) -> Result<bool, RelayError> {
        let Some(retained) = &mut self.retained else {
            return Ok(false);
        };
        let mut worked = false;
        while connection.gathered() < BATCH_PACKETS
            && let Some((packet, passed)) = retained.next()
        {
            let info = info_of(&packet, &self.classes);
            self.record.clear();
            packet.emit(&mut self.record);
            if !connection.push(&info, &self.record)? {
                break;
            }
            connection.counted().count(&packet);
            retained.pass(passed);
            self.report.again_packets += 1;
            worked = true;
        }
        // The last one may just have been sent.
        Ok(worked || retained.next().is_none())
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
                let info = info_of(&packet, &self.classes);
                self.record.clear();
                packet.emit(&mut self.record);
                if !connection.push(&info, &self.record)? {
                    return Ok(Sent::Some);
                }
                connection.counted().count(&packet);
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

/// What a packet's segments say of it.
fn info_of(packet: &PacketRecord<'_>, classes: &[u8]) -> PacketInfo {
    PacketInfo {
        seq: packet.seq,
        ts_ns: packet.ts_ns,
        class: classes[usize::from(packet.verdict)],
        flags: packet.flags(),
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
