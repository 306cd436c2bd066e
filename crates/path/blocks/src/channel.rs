//! How blocks travel between a worker and its writer.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError};
use std::time::Duration;

use crate::builder::{BlockBuilder, BlockCounters};
use crate::error::SinkError;

/// Counters shared by a worker and its writer.
#[derive(Debug, Default)]
pub struct Progress {
    /// The sequence number that the next packet will get.
    pub next_seq: AtomicU64,
    /// Packets seen.
    pub seen_packets: AtomicU64,
    /// Wire bytes seen.
    pub seen_bytes: AtomicU64,
    /// How long the disk had as many blocks in flight as it takes at once, ns.
    pub disk_busy_ns: AtomicU64,
    /// RDMA messages that were sent to a relay, each time they were. Where it does not acknowledge them,
    /// segments of blocks that it has stored.
    pub rdma_sent: AtomicU64,
    /// Of these, what was lost: messages that were sent again or skipped, segments that did not arrive.
    pub rdma_again: AtomicU64,
}

/// The outcome for a block.
#[derive(Debug)]
pub struct Written {
    /// The counters of its packets.
    pub counters: BlockCounters,
    /// Whether it is in the file.
    pub outcome: Result<(), SinkError>,
}

enum ToWriter {
    Block(Box<BlockBuilder>),
    /// The worker waits for the outcome of all it has submitted.
    Flush,
    Finish,
}

struct FromWriter {
    /// A block that can be filled again.
    block: Option<Box<BlockBuilder>>,
    /// The outcome for packets of this block or of earlier ones.
    written: Option<Written>,
}

/// Where the blocks of a worker go. It is called for blocks, not for packets.
pub trait Sink: Debug + Send {
    /// An empty block, if one is free now. A new sink has one.
    fn take(&mut self) -> Option<Box<BlockBuilder>>;

    /// Passes a full block on.
    ///
    /// # Errors
    ///
    /// If the receiver of blocks is gone.
    fn submit(&mut self, block: Box<BlockBuilder>) -> Result<(), SinkError>;

    /// What has become of blocks since the last call; does not wait.
    fn poll(&mut self) -> Option<Written>;

    /// Waits until the fate of some packets is known, or a block comes back empty; `None` if
    /// nothing is in flight.
    ///
    /// # Errors
    ///
    /// If the receiver of blocks is gone.
    fn wait(&mut self) -> Result<Option<Written>, SinkError>;

    /// The counters to keep up to date.
    fn progress(&self) -> &Progress;
}

/// The worker's end: takes empty blocks, gives full ones.
#[derive(Debug)]
pub struct BlockSink {
    to_writer: SyncSender<ToWriter>,
    from_writer: Receiver<FromWriter>,
    // Boxed as they travel, so that a channel moves a pointer.
    #[allow(clippy::vec_box)]
    free: Vec<Box<BlockBuilder>>,
    /// Blocks that have not come back.
    outstanding: usize,
    /// Packets whose outcome is not yet known.
    packets_outstanding: u64,
    progress: Arc<Progress>,
}

impl Debug for ToWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Block(_) => "Block",
            Self::Flush => "Flush",
            Self::Finish => "Finish",
        })
    }
}

impl BlockSink {
    /// The counters to keep up to date.
    #[must_use]
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Hands a full block to the writer.
    ///
    /// # Errors
    ///
    /// If the writer thread is gone.
    pub fn submit(&mut self, block: Box<BlockBuilder>) -> Result<(), SinkError> {
        let packets = block.counters().packets;
        let sent = self.to_writer.send(ToWriter::Block(block));
        sent.map_err(|_| SinkError::WriterGone)?;
        self.outstanding += 1;
        self.packets_outstanding += packets;
        Ok(())
    }

    /// The outcome of blocks since the last call, without waiting.
    pub fn poll(&mut self) -> Option<Written> {
        match self.from_writer.try_recv() {
            Ok(back) => Some(self.take_back(back)),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }

    /// Waits for the outcome of some packets, or until a block comes back empty (then of no
    /// packets); `None` if nothing is in flight.
    ///
    /// # Errors
    ///
    /// If the writer thread is gone.
    pub fn wait(&mut self) -> Result<Option<Written>, SinkError> {
        if self.outstanding == 0 && self.packets_outstanding == 0 {
            return Ok(None);
        }
        if self.outstanding == 0 {
            // Every block has come back, but not the outcome of their packets.
            let _ = self.to_writer.try_send(ToWriter::Flush);
        }
        let back = self.from_writer.recv().map_err(|_| SinkError::WriterGone)?;
        Ok(Some(self.take_back(back)))
    }

    fn take_back(&mut self, back: FromWriter) -> Written {
        if let Some(block) = back.block {
            self.outstanding -= 1;
            self.free.push(block);
        }
        let written = back.written.unwrap_or(Written {
            counters: BlockCounters::default(),
            outcome: Ok(()),
        });
        self.packets_outstanding -= written.counters.packets;
        written
    }

    /// A handle that ends this channel, no matter which thread owns the sink.
    #[must_use]
    pub fn end_handle(&self) -> BlockEnd {
        BlockEnd(self.to_writer.clone())
    }

    /// Registers the memory of all blocks while they are free; `register` returns whether that
    /// worked.
    pub fn register(&mut self, register: impl FnOnce(&[&[u8]]) -> bool) {
        let memory: Vec<&[u8]> = self.free.iter().map(|block| block.memory()).collect();
        if register(&memory) {
            for (number, block) in (0..).zip(&mut self.free) {
                block.set_registered(number);
            }
        }
    }

    /// An empty block, if one is free now.
    pub fn take(&mut self) -> Option<Box<BlockBuilder>> {
        self.free.pop()
    }
}

impl Sink for BlockSink {
    fn take(&mut self) -> Option<Box<BlockBuilder>> {
        Self::take(self)
    }

    fn submit(&mut self, block: Box<BlockBuilder>) -> Result<(), SinkError> {
        Self::submit(self, block)
    }

    fn poll(&mut self) -> Option<Written> {
        Self::poll(self)
    }

    fn wait(&mut self) -> Result<Option<Written>, SinkError> {
        Self::wait(self)
    }

    fn progress(&self) -> &Progress {
        Self::progress(self)
    }
}

/// A sink of `blocks` blocks, at least two, of `block_bytes`, and the end where full ones arrive.
#[must_use]
pub fn block_channel(block_bytes: usize, blocks: usize) -> (BlockSink, BlockSource) {
    channel(blocks, || BlockBuilder::new(block_bytes))
}

/// As [`block_channel`], for an end that remembers verdicts: each block defines one when it is first
/// used there, not each time it is filled.
#[must_use]
pub fn link_channel(block_bytes: usize, blocks: usize) -> (BlockSink, BlockSource) {
    channel(blocks, || BlockBuilder::new(block_bytes).keeping_verdicts())
}

fn channel(blocks: usize, new: impl Fn() -> BlockBuilder) -> (BlockSink, BlockSource) {
    let blocks = blocks.max(2);
    // Space for every block and the end marker, so that sending never waits.
    let (to_writer, inbox) = mpsc::sync_channel(blocks + 1);
    // Bounded by the blocks, and by the outcomes that the writer has yet to report.
    let (outbox, from_writer) = mpsc::channel();
    let progress = Arc::new(Progress::default());
    let free = (0..blocks).map(|_| Box::new(new()));
    let sink = BlockSink {
        to_writer,
        from_writer,
        free: free.collect(),
        outstanding: 0,
        packets_outstanding: 0,
        progress: Arc::clone(&progress),
    };
    let source = BlockSource {
        inbox,
        outbox,
        progress,
    };
    (sink, source)
}

/// Where a worker's full blocks arrive, and where their outcome is reported.
#[derive(Debug)]
pub struct BlockSource {
    inbox: Receiver<ToWriter>,
    outbox: Sender<FromWriter>,
    progress: Arc<Progress>,
}

/// Tells a [`BlockSource`] that no more will come.
#[derive(Debug)]
pub struct BlockEnd(SyncSender<ToWriter>);

impl BlockEnd {
    /// Tells it.
    pub fn end(&self) {
        // Without a receiver, it has already ended.
        let _ = self.0.send(ToWriter::Finish);
    }
}

/// What a [`BlockSource`] received.
#[derive(Debug)]
pub enum Incoming {
    /// A full block.
    Block(Box<BlockBuilder>),
    /// The worker waits for the outcome of all it has submitted.
    Flush,
    /// Nothing before the timeout.
    Nothing,
    /// There will be no more.
    End,
}

impl From<ToWriter> for Incoming {
    fn from(sent: ToWriter) -> Self {
        match sent {
            ToWriter::Block(block) => Self::Block(block),
            ToWriter::Flush => Self::Flush,
            ToWriter::Finish => Self::End,
        }
    }
}

impl BlockSource {
    /// Waits at most this long for a block.
    #[must_use]
    pub fn receive(&self, wait: Duration) -> Incoming {
        match self.inbox.recv_timeout(wait) {
            Ok(sent) => sent.into(),
            Err(RecvTimeoutError::Timeout) => Incoming::Nothing,
            Err(RecvTimeoutError::Disconnected) => Incoming::End,
        }
    }

    /// As [`BlockSource::receive`], without waiting.
    #[must_use]
    pub fn try_receive(&self) -> Incoming {
        match self.inbox.try_recv() {
            Ok(sent) => sent.into(),
            Err(TryRecvError::Empty) => Incoming::Nothing,
            Err(TryRecvError::Disconnected) => Incoming::End,
        }
    }

    /// Returns a block to be filled again, with the outcome of its packets.
    pub fn finish(&self, mut block: Box<BlockBuilder>, written: Written) {
        block.reset(0);
        // A worker that is gone needs no block back.
        let _ = self.outbox.send(FromWriter {
            block: Some(block),
            written: Some(written),
        });
    }

    /// Returns a block to be filled again. The outcome of its packets is still to be reported.
    pub fn give_back(&self, mut block: Box<BlockBuilder>) {
        block.reset(0);
        // A worker that is gone needs no block back.
        let _ = self.outbox.send(FromWriter {
            block: Some(block),
            written: None,
        });
    }

    /// Reports the outcome for packets.
    pub fn settle(&self, written: Written) {
        let _ = self.outbox.send(FromWriter {
            block: None,
            written: Some(written),
        });
    }

    /// The worker's counters.
    #[must_use]
    pub fn progress(&self) -> &Progress {
        &self.progress
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Trees;

    #[test]
    fn only_a_block_of_a_link_keeps_its_verdicts() {
        for (keeps, (mut sink, source)) in [
            (false, block_channel(1 << 16, 2)),
            (true, link_channel(1 << 16, 2)),
        ] {
            let mut block = sink.take().unwrap();
            assert!(block.needs_verdict(7));
            block.define_verdict(7, 1, Trees::None, 0, &[]);
            assert!(!block.needs_verdict(7));
            sink.submit(block).unwrap();
            let Incoming::Block(block) = source.try_receive() else {
                panic!("it was submitted");
            };
            source.give_back(block);
            while sink.poll().is_some() {}
            let block = sink.take().unwrap();
            assert_eq!(block.needs_verdict(7), !keeps);
            assert!(block.is_empty() && block.body().is_empty());
        }
    }
}
