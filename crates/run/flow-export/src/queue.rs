//! From a worker to the thread that sends flows.

use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use strata_archive::MeteredPacket;
use strata_pipeline::{Tap, Tapped};
use strata_wire::{FlowShare, Interface, LinkType, clamped, exact};

/// A chunk goes to the thread once it has this many bytes, or packets.
const CHUNK_BYTES: usize = 256 << 10;
const CHUNK_PACKETS: usize = 4096;
/// Or is this old.
const HAND_OVER_EVERY: Duration = Duration::from_millis(100);

/// A packet without its payload.
#[derive(Clone, Copy, Debug)]
struct Entry {
    ts_ns: u64,
    wire_len: u32,
    captured_len: u32,
    /// Where its bytes are in the chunk.
    at: u32,
    len: u32,
    header_len: u16,
    interface: u16,
    link: LinkType,
    has_timestamp: bool,
}

/// Packets of a worker on their way to the thread.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) worker: u16,
    entries: Vec<Entry>,
    bytes: Vec<u8>,
}

impl Chunk {
    /// Its packets, as they are metered.
    pub(crate) fn packets(&self) -> impl Iterator<Item = MeteredPacket<'_>> {
        self.entries.iter().map(|entry| MeteredPacket {
            interface: entry.interface,
            link: entry.link,
            ts_ns: entry.ts_ns,
            has_timestamp: entry.has_timestamp,
            wire_len: entry.wire_len,
            captured_len: entry.captured_len,
            header_len: entry.header_len,
            data: &self.bytes[entry.at as usize..][..entry.len as usize],
            // Not in what is sent.
            options: &[],
            class: None,
            score: None,
            share: FlowShare::ALL,
        })
    }

    /// An empty one with the memory that it needs.
    fn new() -> Self {
        Self {
            worker: 0,
            entries: Vec::with_capacity(CHUNK_PACKETS),
            bytes: Vec::with_capacity(CHUNK_BYTES),
        }
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
    }
}

/// Chunks to be filled again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spare(Arc<Mutex<Vec<Chunk>>>);

impl Spare {
    pub(crate) fn put(&self, mut chunk: Chunk) {
        chunk.clear();
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        spare.push(chunk);
    }

    fn take(&self) -> Option<Chunk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }
}

/// Copies the headers of what a worker is shown for the thread that makes flows of them.
#[derive(Debug)]
pub struct FlowTap {
    /// Number of the worker.
    worker: u16,
    /// By interface.
    links: BTreeMap<u16, LinkType>,
    chunk: Chunk,
    handed_over: Instant,
    /// `None` once no more packets come, or the thread is gone.
    to: Option<SyncSender<Chunk>>,
    spare: Spare,
    /// Packets that are in no flow, since the thread had no time.
    lost: Arc<AtomicU64>,
    /// Whether to wait for the thread instead.
    waits: bool,
}

impl FlowTap {
    pub(crate) fn new(
        worker: u16,
        to: SyncSender<Chunk>,
        spare: Spare,
        lost: &Arc<AtomicU64>,
        waits: bool,
    ) -> Self {
        Self {
            worker,
            links: BTreeMap::new(),
            chunk: Chunk {
                worker,
                ..Chunk::new()
            },
            handed_over: Instant::now(),
            to: Some(to),
            spare,
            lost: Arc::clone(lost),
            waits,
        }
    }

    fn hand_over(&mut self) {
        self.handed_over = Instant::now();
        if self.chunk.entries.is_empty() {
            return;
        }
        let next = self.spare.take().unwrap_or_else(Chunk::new);
        let mut chunk = mem::replace(&mut self.chunk, next);
        self.chunk.worker = self.worker;
        let Some(to) = &self.to else {
            return self.lose(chunk);
        };
        if self.waits {
            if let Err(unsent) = to.send(chunk) {
                self.to = None;
                self.lose(unsent.0);
            }
            return;
        }
        match to.try_send(chunk) {
            Ok(()) => return,
            Err(TrySendError::Full(unsent)) => chunk = unsent,
            Err(TrySendError::Disconnected(unsent)) => {
                self.to = None;
                chunk = unsent;
            }
        }
        self.lose(chunk);
    }

    fn lose(&self, chunk: Chunk) {
        let packets = exact::<u64>(chunk.entries.len());
        self.lost.fetch_add(packets, Ordering::Relaxed);
        self.spare.put(chunk);
    }
}

impl Tap for FlowTap {
    fn interface(&mut self, id: u16, interface: &Interface) {
        self.links.insert(id, interface.link);
    }

    fn is_wanted(&mut self) -> bool {
        if self.handed_over.elapsed() >= HAND_OVER_EVERY {
            self.hand_over();
        }
        true
    }

    fn take(&mut self, tapped: &Tapped<'_>) {
        let packet = &tapped.packet;
        let header_len = exact::<usize>(tapped.header_len).min(packet.data.len());
        let header = &packet.data[..header_len];
        let Some(&link) = self.links.get(&packet.interface) else {
            // Its description comes before its first packet.
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.chunk.entries.push(Entry {
            ts_ns: packet.ts_ns,
            wire_len: packet.wire_len,
            captured_len: exact(packet.data.len()),
            at: exact(self.chunk.bytes.len()),
            len: exact(header_len),
            header_len: clamped(header_len),
            interface: packet.interface,
            link,
            has_timestamp: packet.has_timestamp,
        });
        self.chunk.bytes.extend_from_slice(header);
        if self.chunk.bytes.len() >= CHUNK_BYTES || self.chunk.entries.len() >= CHUNK_PACKETS {
            self.hand_over();
        }
    }

    fn finish(&mut self) {
        self.hand_over();
        self.to = None;
    }
}
