//! Blocks on their way to files, and the accounting of their packets.

use std::sync::atomic::Ordering;

use strata_blocks::{BlockCounters, Progress, SinkError, Written};
use strata_policy::ClassKept;
use strata_wire::{Counters, DropReason, Ledger, Outcome};

use super::RecordStage;

impl RecordStage {
    /// Counters shared with the writer of its blocks.
    pub(crate) fn progress(&self) -> &Progress {
        self.sink.progress()
    }

    /// The counters of this stage, and of packets that [`RecordStage::skip`] counted.
    pub(crate) fn ledger(&self) -> Ledger {
        let mut ledger = self.ledger;
        // The current block is added up when this is called or the block is handed over.
        in_flight(&mut ledger, &self.block.counters());
        ledger
    }

    /// How much has been kept of the packets of each class.
    pub(crate) fn kept(&self) -> Vec<ClassKept> {
        let mut by_class = self.by_class.clone();
        by_class.merge(self.block.class_counts());
        by_class.list()
    }

    /// Counts packets that were dropped before they came here.
    pub(crate) fn count_dropped(&mut self, reason: DropReason, dropped: Counters) {
        self.ledger.dropped[reason as usize].merge(dropped);
    }

    /// Counts a packet that is not recorded.
    #[inline(always)]
    pub(crate) fn skip(&mut self, outcome: Outcome, class: u8, bytes: u64) {
        match outcome {
            Outcome::Log(_) => unreachable!("what is kept is recorded"),
            Outcome::SampledOut => {
                self.ledger.sampled_out.add(bytes);
                self.by_class.sampled_out(class, bytes);
            }
            Outcome::Discard => {
                self.ledger.discarded.add(bytes);
                self.by_class.dropped(class, bytes);
            }
        }
    }

    #[cold]
    pub(super) fn room_for(&mut self, needed: usize) -> Result<(), SinkError> {
        if !self.block.is_empty() {
            self.next_block()?;
        }
        self.block.grow(needed);
        Ok(())
    }

    /// Hands the block to the writer if it has packets; see [`RecordStage::next_block`].
    pub(crate) fn end_block(&mut self) -> Result<(), SinkError> {
        if self.block.is_empty() {
            return Ok(());
        }
        self.next_block()
    }

    /// Hands the block to the writer and waits for an empty one: a file can wait.
    pub(super) fn next_block(&mut self) -> Result<(), SinkError> {
        self.take_written();
        let empty = loop {
            if let Some(block) = self.sink.take() {
                break block;
            }
            match self.sink.wait()? {
                Some(written) => self.account(written),
                None => return Err(SinkError::WriterGone),
            }
        };
        self.blocks_handed_over += 1;
        let full = std::mem::replace(&mut self.block, empty);
        in_flight(&mut self.ledger, &full.counters());
        self.by_class.merge(full.class_counts());
        self.sink.submit(full)
    }

    /// Counts what has been written by now.
    fn take_written(&mut self) {
        while let Some(written) = self.sink.poll() {
            self.account(written);
        }
    }

    /// Moves a block's packets from `in_flight` to where they ended.
    fn account(&mut self, written: Written) {
        let counters = written.counters;
        let in_flight = &mut self.ledger.in_flight;
        in_flight.packets -= counters.packets;
        in_flight.bytes -= counters.logged_bytes;
        match written.outcome {
            Ok(()) => {
                self.ledger.logged.packets += counters.packets;
                let promoted: u64 = counters.promoted_bytes.iter().sum();
                self.ledger.logged.bytes += counters.logged_bytes + promoted;
                self.ledger.promoted.packets += counters.promoted_packets;
                self.ledger.promoted.bytes += promoted;
                // The blocks with their headers came earlier, and are in files.
                let cut = self.ledger.cut_bytes.iter_mut();
                for (sum, bytes) in cut.zip(counters.promoted_bytes) {
                    *sum -= bytes;
                }
            }
            Err(error) => {
                let reason = match error {
                    // It reconnects by itself.
                    SinkError::RelayLost | SinkError::RelayFailed(_) => DropReason::RelayLost,
                    SinkError::Full { .. } => DropReason::DiskFull,
                    // Blocks behind the one that ended the writer are lost for its reason.
                    SinkError::WriterGone => self.ended_by.unwrap_or(DropReason::WriteError),
                    _ => DropReason::WriteError,
                };
                let dropped = &mut self.ledger.dropped[reason as usize];
                dropped.packets += counters.packets;
                dropped.bytes += counters.wire_bytes;
                for (sum, bytes) in self.ledger.cut_bytes.iter_mut().zip(counters.cut_bytes) {
                    *sum -= bytes;
                }
                let goes_on = matches!(
                    error,
                    SinkError::RelayLost | SinkError::Full { goes_on: true, .. }
                );
                if !goes_on {
                    self.ended_by.get_or_insert(reason);
                    self.write_error.get_or_insert(error);
                }
            }
        }
    }

    /// A batch is over, of all packets `seen` so far: says how far it came, and counts what has been written.
    pub(crate) fn batch_done(&mut self, seen: Counters) -> Result<(), SinkError> {
        let progress = self.sink.progress();
        progress.next_seq.store(self.next_seq, Ordering::Relaxed);
        progress.seen_packets.store(seen.packets, Ordering::Relaxed);
        progress.seen_bytes.store(seen.bytes, Ordering::Relaxed);
        self.take_written();
        self.write_error.take().map_or(Ok(()), Err)
    }

    /// Hands the block to the writer if it was started before the last call, so that packets do not
    /// wait for more to come; and counts what has been written.
    pub(crate) fn flush_old(&mut self) -> Result<(), SinkError> {
        self.take_written();
        if self.blocks_handed_over == self.blocks_at_flush {
            self.end_block()?;
        }
        self.blocks_at_flush = self.blocks_handed_over;
        self.write_error.take().map_or(Ok(()), Err)
    }

    /// Writes what is left and waits until everything is in files. Afterwards nothing is in flight.
    ///
    /// # Errors
    ///
    /// The first write error that was not returned before.
    pub(crate) fn finish(&mut self) -> Result<(), SinkError> {
        self.end_block()?;
        while let Some(written) = self.sink.wait()? {
            self.account(written);
        }
        self.write_error.take().map_or(Ok(()), Err)
    }
}

/// Counts the packets of a block as in flight.
fn in_flight(ledger: &mut Ledger, counters: &BlockCounters) {
    ledger.in_flight.packets += counters.packets;
    ledger.in_flight.bytes += counters.logged_bytes;
    for (sum, bytes) in ledger.cut_bytes.iter_mut().zip(counters.cut_bytes) {
        *sum += bytes;
    }
}
