//! Packets or flows of several logs by time: each log is read by a thread, whose items wait in a bounded queue.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Scope, ScopedJoinHandle};
use std::vec;

use anyhow::Result;
use strata_query::{FlowRecord, PacketCopy};

/// Items that a thread hands over together, and their bytes: the last item may exceed these.
const BATCH_ITEMS: usize = 256;
const BATCH_BYTES: usize = 256 << 10;
/// Batches of a log that wait for their turn.
const BATCHES: usize = 4;

/// What is merged.
pub(super) trait Timed: Send {
    /// When its turn is, ns since 1970.
    fn ts_ns(&self) -> u64;

    /// About how many bytes of memory it takes.
    fn memory_bytes(&self) -> usize;
}

impl Timed for PacketCopy {
    fn ts_ns(&self) -> u64 {
        Self::ts_ns(self)
    }

    fn memory_bytes(&self) -> usize {
        self.kept_bytes()
    }
}

/// A flow has its turn when its last packet has arrived.
impl Timed for FlowRecord {
    fn ts_ns(&self) -> u64 {
        self.last_ns()
    }

    fn memory_bytes(&self) -> usize {
        Self::memory_bytes(self)
    }
}

/// Items of a log, from its thread, and what that says at its end.
pub(super) struct Stream<'scope, T, E> {
    batches: Receiver<Vec<T>>,
    batch: vec::IntoIter<T>,
    read: ScopedJoinHandle<'scope, Result<E>>,
}

impl<'scope, T: Timed + 'scope, E: Send + 'scope> Stream<'scope, T, E> {
    /// Starts a thread that reads a log.
    pub(super) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        read: impl FnOnce(&mut Batch<T>) -> Result<E> + Send + 'scope,
    ) -> Self {
        let (sender, batches) = sync_channel(BATCHES);
        let read = scope.spawn(move || {
            let mut batch = Batch {
                items: Vec::new(),
                bytes: 0,
                sender,
            };
            let read = read(&mut batch)?;
            // The reader may have stopped.
            let _ = batch.send();
            Ok(read)
        });
        Self {
            batches,
            batch: Vec::new().into_iter(),
            read,
        }
    }

    /// The next item, as soon as there is one; `None` at the end.
    fn next(&mut self) -> Option<T> {
        if let Some(item) = self.batch.next() {
            return Some(item);
        }
        // A thread sends no empty batch.
        self.batch = self.batches.recv().ok()?.into_iter();
        self.batch.next()
    }

    /// What its thread says at its end. A thread that still sends ends with this.
    pub(super) fn end(self) -> Result<E> {
        drop(self.batches);
        match self.read.join() {
            Ok(read) => read,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Items that a thread will hand over.
pub(super) struct Batch<T> {
    items: Vec<T>,
    bytes: usize,
    sender: SyncSender<Vec<T>>,
}

impl<T: Timed> Batch<T> {
    /// Adds an item. Breaks if no item is wanted any more.
    pub(super) fn push(&mut self, item: T) -> ControlFlow<()> {
        self.bytes = self.bytes.saturating_add(item.memory_bytes());
        self.items.push(item);
        match self.items.len() >= BATCH_ITEMS || self.bytes >= BATCH_BYTES {
            true => self.send(),
            false => ControlFlow::Continue(()),
        }
    }

    fn send(&mut self) -> ControlFlow<()> {
        self.bytes = 0;
        let items = std::mem::take(&mut self.items);
        if items.is_empty() || self.sender.send(items).is_ok() {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }
}

/// Hands out the items of all streams by time, with the number of the stream of each, until `take` breaks or fails;
/// with equal times, the first stream goes first.
pub(super) fn merge<'scope, T: Timed + 'scope, E: Send + 'scope>(
    streams: &mut [Stream<'scope, T, E>],
    mut take: impl FnMut(usize, T) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let mut items: Vec<Option<T>> = streams.iter_mut().map(Stream::next).collect();
    let heads = items.iter().enumerate();
    let mut heads: BinaryHeap<Reverse<(u64, usize)>> = heads
        .filter_map(|(index, item)| Some(Reverse((item.as_ref()?.ts_ns(), index))))
        .collect();
    while let Some(mut head) = heads.peek_mut() {
        let Reverse((_, index)) = *head;
        let item = items[index].take();
        let item = item.expect("each head is of an item");
        if take(index, item)?.is_break() {
            return Ok(());
        }
        items[index] = streams[index].next();
        match &items[index] {
            Some(next) => *head = Reverse((next.ts_ns(), index)),
            None => drop(PeekMut::pop(head)),
        }
    }
    Ok(())
}
