//! The packets of a relay as records of a stream too: blocks that are on disk are copied, and a thread takes
//! them apart. Neither switches nor the log wait for it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strata_blocks::{
    Definitions, RELAYED_HEADER_LEN, Record, Records, RelayedHeader, SEGMENTS_AT, Streamed,
    assemble,
};
use strata_relay::BlockTap;
use strata_role::sandbox::thread as restricted;
use strata_role::{Feed, FeedCounts};
use strata_sandbox::Role;
use strata_sys::disk::Memory;
use strata_wire::Meta;

use crate::error::{At as _, Result};

/// Bytes of blocks that wait for the thread, but two blocks at least.
const WAITING_BYTES: usize = 64 << 20;
/// How long the packets of a block may wait for the stream.
const BLOCK_LIMIT: Duration = Duration::from_secs(2);

/// A block of segments, and what its packets refer to.
struct Block {
    bytes: Vec<u8>,
    known: Definitions,
}

/// What the writers of the log and the thread share.
struct Shared {
    /// `None` at the end.
    sender: Mutex<Option<SyncSender<Block>>>,
    /// Packets of blocks that were not given to the thread.
    lost: AtomicU64,
}

/// A stream that gets the packets of a relay. Memory: 64 MiB, or four blocks of the relay if that is more.
pub(crate) struct RelayStreaming {
    shared: Arc<Shared>,
    thread: JoinHandle<Result<FeedCounts>>,
}

impl RelayStreaming {
    pub(crate) fn start(feed: Box<dyn Feed>, block_bytes: usize) -> Result<Self> {
        let waiting = (WAITING_BYTES / block_bytes).max(2);
        let (sender, receiver) = mpsc::sync_channel(waiting);
        let shared = Arc::new(Shared {
            sender: Mutex::new(Some(sender)),
            lost: AtomicU64::new(0),
        });
        let thread = thread::Builder::new().name("relay-stream".into());
        let thread = thread.spawn(move || {
            restricted(Role::Writer);
            append_all(&receiver, feed)
        });
        let thread = thread.at("cannot start the thread that appends packets to the stream")?;
        Ok(Self { shared, thread })
    }

    /// What sees the blocks.
    pub(crate) fn tap(&self) -> BlockTap {
        let shared = Arc::clone(&self.shared);
        Arc::new(move |memory: Memory<'_>, known| shared.take(memory, known))
    }

    /// Has everything written, once the relay gives no more blocks; what became of packets.
    pub(crate) fn finish(self) -> Result<FeedCounts> {
        drop(self.shared.sender().take());
        let mut counts = match self.thread.join() {
            Ok(counts) => counts?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        counts.lost += self.shared.lost.load(Ordering::Relaxed);
        Ok(counts)
    }
}

impl Shared {
    fn sender(&self) -> std::sync::MutexGuard<'_, Option<SyncSender<Block>>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a copy of a block to the thread, unless others wait for it already.
    fn take(&self, memory: Memory<'_>, known: Definitions) {
        let bytes = memory.to_vec();
        // The log has no packet either of a block whose header cannot be read.
        let Some(RelayedHeader { packets, .. }) = header(&bytes) else {
            return;
        };
        let sent = match &*self.sender() {
            Some(sender) => sender.try_send(Block { bytes, known }),
            None => return,
        };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = sent {
            self.lost.fetch_add(packets, Ordering::Relaxed);
        }
    }
}

fn header(block: &[u8]) -> Option<RelayedHeader> {
    RelayedHeader::parse(block.first_chunk::<RELAYED_HEADER_LEN>()?)
}

fn append_all(receiver: &Receiver<Block>, mut feed: Box<dyn Feed>) -> Result<FeedCounts> {
    let mut record = Vec::new();
    for Block { bytes, known } in receiver {
        let Some(header) = header(&bytes) else {
            continue;
        };
        let end = (SEGMENTS_AT + header.used as usize).min(bytes.len());
        let assembled = assemble(&header, &bytes[SEGMENTS_AT.min(end)..end], &known);
        let deadline = Instant::now() + BLOCK_LIMIT;
        each(&header, &assembled.body, |packet| {
            record.clear();
            packet.emit(&mut record);
            // One that finds no room is counted there.
            feed.put_by(&record, deadline);
        });
    }
    Ok(feed.finish()?)
}

/// The packets of an ordinary block.
fn each(header: &RelayedHeader, body: &[u8], mut take: impl FnMut(&Streamed<'_>)) {
    let mut classes: BTreeMap<u16, u8> = BTreeMap::new();
    let mut links: BTreeMap<u16, u16> = BTreeMap::new();
    for record in Records::new(body, header.first_seq) {
        match record {
            Ok(Record::Packet(packet)) => take(&Streamed {
                keep: packet.keep,
                class: classes.get(&packet.verdict).copied(),
                has_timestamp: packet.has_timestamp,
                recording: header.recording,
                worker: header.worker,
                link: links.get(&packet.interface).copied(),
                seq: packet.seq,
                ts_ns: packet.ts_ns,
                wire_len: packet.wire_len,
                captured_len: packet.captured_len,
                interface: packet.interface,
                data: packet.data,
            }),
            Ok(Record::Verdict(number, verdict)) => {
                classes.insert(number, verdict.class);
            }
            Ok(Record::Meta(Meta::Interface { id, interface })) => {
                links.insert(id, interface.link.0);
            }
            Ok(_) => {}
            // It was just put together.
            Err(_) => break,
        }
    }
}
