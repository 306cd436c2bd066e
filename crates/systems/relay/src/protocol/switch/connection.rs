//! One connection to a relay: queue pair, the blocks in use, messages.

use std::collections::VecDeque;

use strata_blocks::BlockCounters;
use strata_rdma::{PacketBatch, RequesterCounters};
use strata_wire::roce::Packet;
use strata_wire::segment::{BlockWriter, Layout, PacketInfo};

use crate::error::RelayError;
use crate::protocol::{
    BlockFull, BlockStored, End, MS_NS, Message, Progress, SECOND_NS, Shortage, Stored, Welcome,
    WelcomePath,
};

use super::path::Path;

/// How often the relay is sent the worker's progress.
const PROGRESS_EVERY_NS: u64 = 100 * MS_NS;
/// Definitions are sent before they exceed this many bytes.
const DEFINITIONS_MAX: usize = 1 << 20;

/// The first numbers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Number of the first block.
    pub block: u64,
    /// Sequence number of the first packet.
    pub seq: u64,
    /// Key of the segments' checksums.
    pub key: u32,
}

/// The position at which a connection continues the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Resumption {
    /// Number of the first block.
    pub block: u64,
    /// Sequence number of the next new packet.
    pub seq: u64,
    /// Sequence number of the first packet not known to be stored.
    pub unconfirmed_seq: u64,
    /// Whether packets from there on are sent again if the relay does not have them.
    pub resends: bool,
}

impl Resumption {
    /// The first numbers of a connection to the relay of this welcome.
    #[must_use]
    pub fn numbers(&self, welcome: &Welcome, key: u32) -> Numbers {
        Numbers {
            block: self.block,
            // Whatever the relay says.
            seq: match self.resends {
                true => welcome
                    .stored
                    .next_seq
                    .clamp(self.unconfirmed_seq, self.seq),
                false => self.seq,
            },
            key,
        }
    }
}

/// A block being filled, or full but not known to be on disk.
struct Block {
    number: u64,
    /// Which of the relay's blocks it is.
    place: usize,
    full: BlockFull,
    counted: BlockCounters,
    /// Once this many RDMA packets have settled, all of it has arrived.
    end: u64,
    begun_ns: u64,
}

/// A connection to a relay that has admitted the switch: the blocks in use, and messages.
pub struct Connection {
    peer: String,
    welcome: Welcome,
    path: Path,
    writer: BlockWriter,
    first_block: u64,
    next_block: u64,
    next_seq: u64,
    open: Option<Block>,
    /// Full, but not announced.
    closing: VecDeque<Block>,
    /// Announced, but not confirmed.
    announced: VecDeque<Block>,
    definitions: Vec<u8>,
    /// Messages to be sent.
    out: Vec<Message>,
    /// The time of the last step: what is posted before the next one counts as posted then, since
    /// reading the clock per packet would cost as much as copying it.
    now_ns: u64,
    last_progress_ns: u64,
    /// When the relay last sent anything, and when it last had stored something, or had nothing to
    /// store.
    heard_ns: u64,
    moved_ns: u64,
    counted: (u64, u64),
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.peer)
            .field("next_block", &self.next_block)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// A connection to `peer` that starts with these block and packet numbers.
    #[must_use]
    pub fn new(
        peer: String,
        begin: Numbers,
        welcome: Welcome,
        path: Path,
        layout: Layout,
        now_ns: u64,
    ) -> Self {
        let mtu = match &welcome.path {
            WelcomePath::Rdma { mtu, .. } => *mtu,
            WelcomePath::SharedMemory { .. } => 4096,
        };
        let writer = BlockWriter::new(begin.key, layout, mtu, welcome.block_bytes);
        Self {
            peer,
            welcome,
            path,
            writer,
            first_block: begin.block,
            next_block: begin.block,
            next_seq: begin.seq,
            open: None,
            closing: VecDeque::new(),
            announced: VecDeque::new(),
            definitions: Vec::new(),
            out: Vec::new(),
            now_ns,
            last_progress_ns: now_ns,
            heard_ns: now_ns,
            moved_ns: now_ns,
            counted: (0, 0),
        }
    }

    /// What the relay said that it has.
    pub(super) fn stored(&self) -> Stored {
        self.welcome.stored
    }

    /// Whether only the relay can say what was lost on the way.
    pub(super) fn counts_missing(&self) -> bool {
        !self.path.is_reliable()
    }

    pub(super) fn recording(&self) -> u32 {
        self.welcome.recording
    }

    /// Number of the next block to be opened.
    pub(super) fn next_block(&self) -> u64 {
        self.next_block
    }

    /// Number of the next block to be closed: definitions made now go before it.
    pub(super) fn next_block_to_close(&self) -> u64 {
        self.open
            .as_ref()
            .map_or(self.next_block, |open| open.number)
    }

    pub(super) fn counters(&self) -> RequesterCounters {
        self.path.counters()
    }

    /// The counters of everything not known to be on the relay's disk.
    pub(super) fn unconfirmed(&self) -> BlockCounters {
        let mut sum = BlockCounters::default();
        let blocks = self.announced.iter().chain(&self.closing).chain(&self.open);
        for block in blocks {
            sum.add(&block.counted);
        }
        sum
    }

    /// Whether nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_none() && self.closing.is_empty() && self.announced.is_empty()
    }

    /// Since when the open block has been open, if there is one.
    pub(super) fn open_since_ns(&self) -> Option<u64> {
        self.open.as_ref().map(|open| open.begun_ns)
    }

    /// RDMA packets waiting to be sent.
    pub(super) fn gathered(&self) -> usize {
        self.path.gathered()
    }

    /// Segments and bytes since the last call.
    pub(super) fn take_counts(&mut self) -> (u64, u64) {
        std::mem::take(&mut self.counted)
    }

    /// The counters of the open block.
    ///
    /// # Panics
    ///
    /// If no block is open: a packet was just pushed into it.
    pub(super) fn counted(&mut self) -> &mut BlockCounters {
        &mut self.open.as_mut().expect("a block is open").counted
    }

    /// Sends a definition before the next block that is announced.
    pub(super) fn define(&mut self, record: &[u8]) {
        self.definitions.extend_from_slice(record);
    }

    /// Puts a packet into the open block, or a new one; false if there is currently no space for
    /// it, in the window or among the blocks. `packet` is its record.
    #[inline]
    pub(super) fn push(&mut self, info: &PacketInfo, packet: &[u8]) -> Result<bool, RelayError> {
        // One message for it, and one that a full block leaves unfinished.
        let is_whole = self.writer.takes_whole(packet.len()) && self.path.room() >= 2;
        match &mut self.open {
            Some(open) if is_whole => {
                open.full.packets += 1;
                open.full.next_seq = info.seq + 1;
                self.next_seq = info.seq + 1;
                self.counted.0 += 1;
                if self.writer.push_whole(info, packet) {
                    self.gather_message();
                }
                Ok(true)
            }
            _ => self.push_anywhere(info, packet),
        }
    }

    /// As [`Connection::push`], for a packet that does not fit in the message being gathered.
    fn push_anywhere(&mut self, info: &PacketInfo, packet: &[u8]) -> Result<bool, RelayError> {
        // One more for the message that a full block leaves unfinished.
        if self.path.room() < self.writer.messages_max(packet.len()) + 1 {
            return Ok(false);
        }
        if self.open.is_some() && !self.writer.fits(packet.len()) {
            self.close_block();
        }
        if self.open.is_none() && !self.begin_block() {
            return Ok(false);
        }
        if !self.writer.fits(packet.len()) {
            let bytes = packet.len();
            return Err(RelayError::PacketTooLarge { bytes });
        }
        let segments = self.writer.segments();
        let (now, place) = (self.now_ns, self.place());
        let mut bytes = 0;
        let path = &mut self.path;
        self.writer.push(info, packet, &mut |at, message| {
            bytes += message.len() as u64;
            path.post(place, at, message, now);
        });
        self.counted.0 += self.writer.segments() - segments;
        self.counted.1 += bytes;
        if let Some(open) = &mut self.open {
            open.full.packets += 1;
            open.full.next_seq = info.seq + 1;
        }
        self.next_seq = info.seq + 1;
        Ok(true)
    }

    /// The open block's index at the relay, and the distance between blocks.
    fn place(&self) -> (usize, usize) {
        let place = self.open.as_ref().map_or(0, |open| open.place);
        (place, self.welcome.block_stride)
    }

    fn begin_block(&mut self) -> bool {
        if self.closing.len() + self.announced.len() >= self.welcome.blocks {
            return false;
        }
        let number = self.next_block;
        self.next_block += 1;
        self.writer.begin(number);
        let turn = (number - self.first_block) % self.welcome.blocks as u64;
        self.open = Some(Block {
            number,
            place: usize::try_from(turn).expect("fewer than `blocks`, a usize"),
            full: BlockFull {
                block: number,
                first_seq: self.next_seq,
                next_seq: self.next_seq,
                ..BlockFull::default()
            },
            counted: BlockCounters::default(),
            end: 0,
            begun_ns: self.now_ns,
        });
        true
    }

    /// The open block is full, or old enough. It stays open while the window has no space for its
    /// last message.
    pub(super) fn close_block(&mut self) {
        if self.path.room() == 0 {
            return;
        }
        self.gather_message();
        let Some(mut open) = self.open.take() else {
            return;
        };
        open.full.used = u32::try_from(self.writer.used()).expect("blocks have at most 1 GiB");
        open.full.segments = self.writer.segments();
        (open.end, open.full.end_psn) = self.path.next();
        self.closing.push_back(open);
    }

    /// Posts the message being gathered.
    fn gather_message(&mut self) {
        if self.open.is_none() {
            return;
        }
        let (now, place) = (self.now_ns, self.place());
        let (path, bytes) = (&mut self.path, &mut self.counted.1);
        self.writer.flush(&mut |at, message| {
            *bytes += message.len() as u64;
            path.post(place, at, message, now);
        });
    }

    /// Posts the message being gathered, and holds nothing back.
    pub(super) fn flush_message(&mut self) {
        if self.path.room() > 0 {
            self.gather_message();
        }
    }

    /// Announces blocks that have arrived whole, and the worker's progress, to the relay.
    pub(super) fn announce(&mut self, worker: Progress) {
        if self.definitions.len() > DEFINITIONS_MAX {
            self.send_definitions();
        }
        let settled = self.path.settled();
        while let Some(block) = pop_if(&mut self.closing, |block| block.end <= settled) {
            self.send_definitions();
            self.out.push(Message::BlockFull(block.full));
            self.announced.push_back(block);
        }
        // At once, so that a relay that loses this switch can read the packets it was sent. While a block
        // waits to be announced, they go after it: they may replace some of its own.
        if self.closing.is_empty() {
            self.send_definitions();
        }
        if self.now_ns - self.last_progress_ns >= PROGRESS_EVERY_NS {
            self.last_progress_ns = self.now_ns;
            self.out.push(Message::Progress(worker));
        }
        if self.is_idle() {
            self.moved_ns = self.now_ns;
        }
    }

    /// Sends the worker's progress at the end of this connection.
    pub(super) fn last_word(&mut self, worker: Progress) {
        self.out.push(Message::Progress(worker));
    }

    /// How long the relay has been silent.
    pub(super) fn silent_ns(&self) -> u64 {
        self.now_ns - self.heard_ns
    }

    /// How long the relay has stored nothing it was sent.
    pub(super) fn stuck_ns(&self) -> u64 {
        self.now_ns - self.moved_ns
    }

    /// The error for a relay that did nothing for this long.
    pub(super) fn silent(&self, limit_ns: u64) -> RelayError {
        RelayError::Silent {
            peer: self.peer.clone(),
            seconds: limit_ns / SECOND_NS,
        }
    }

    fn send_definitions(&mut self) {
        if !self.definitions.is_empty() {
            let records = std::mem::take(&mut self.definitions);
            self.out.push(Message::Definitions(records));
        }
    }

    /// Processes a message from the relay.
    pub(super) fn receive(&mut self, message: Message) -> Result<Heard, RelayError> {
        self.heard_ns = self.now_ns;
        match message {
            Message::Alive => Ok(Heard::Alive),
            Message::Refused(reason) => Err(RelayError::Refused(reason)),
            Message::Failed(reason) => Err(RelayError::Failed(reason)),
            Message::BlockStored(stored) => {
                let block = pop_if(&mut self.announced, |block| block.number == stored.block);
                let block = block.ok_or_else(|| self.protocol("a block out of turn"))?;
                self.moved_ns = self.now_ns;
                Ok(Heard::Stored(stored, block.full, block.counted))
            }
            Message::Ended => Ok(Heard::Ended),
            Message::Shortage(mut shortage) => {
                shortage.shorten();
                Ok(Heard::Shortage(*shortage))
            }
            other => Err(self.protocol(&other.unexpected())),
        }
    }

    /// Asks the relay to close the recording.
    pub(super) fn send_end(&mut self, mut end: End) {
        end.shorten();
        self.send_definitions();
        self.moved_ns = self.now_ns;
        self.out.push(Message::End(Box::new(end)));
    }

    pub(super) fn protocol(&self, problem: &str) -> RelayError {
        RelayError::Protocol {
            peer: self.peer.clone(),
            problem: problem.to_owned(),
        }
    }

    /// Sets the current time.
    pub(super) fn set_now(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Processes an RDMA packet from the relay.
    ///
    /// # Errors
    ///
    /// If the queue pair has failed.
    pub fn receive_packet(&mut self, packet: &Packet<'_>, now_ns: u64) -> Result<(), RelayError> {
        self.set_now(now_ns);
        self.path.receive(packet, self.now_ns)
    }

    /// Advances the queue pair's time.
    pub(super) fn tick(&mut self) -> Result<(), RelayError> {
        self.path.tick(self.now_ns)
    }

    /// When the queue pair, or the next progress message, is due.
    pub(super) fn deadline_ns(&self) -> u64 {
        let progress = self.last_progress_ns + PROGRESS_EVERY_NS;
        self.path
            .deadline_ns()
            .map_or(progress, |at| at.min(progress))
    }

    /// RDMA packets to be sent, before the messages; the caller clears the batch after sending.
    pub fn packets(&mut self) -> Option<&mut PacketBatch> {
        self.path.outgoing()
    }

    /// Whether RDMA packets are awaited.
    #[must_use]
    pub fn awaits_packets(&self) -> bool {
        self.path.is_waiting()
    }

    /// Messages to be sent, in order.
    pub fn messages(&mut self) -> std::vec::Drain<'_, Message> {
        self.out.drain(..)
    }
}

/// A message from the relay.
pub(super) enum Heard {
    /// It is alive.
    Alive,
    /// This block is on its disk, as it was announced, with these counters.
    Stored(BlockStored, BlockFull, BlockCounters),
    /// Give this up.
    Shortage(Shortage),
    /// The recording is closed.
    Ended,
}

/// The first block, if it meets the condition.
fn pop_if(blocks: &mut VecDeque<Block>, is: impl FnOnce(&Block) -> bool) -> Option<Block> {
    if blocks.front().is_some_and(is) {
        return blocks.pop_front();
    }
    None
}
