//! A worker's blocks being written to files, and the accounting of their packets.

use strata_blocks::{BlockCounters, Sink, SinkError, Written};
use strata_policy::{ClassKept, DetailCounts};
use strata_wire::{Counters, DropReason, Ledger};

use super::Worker;

impl<S: Sink> Worker<S> {
    /// Counts packets that the kernel skipped because of the capture filter.
    pub fn count_filtered(&mut self, filtered: Counters) {
        self.ledger.seen.merge(filtered);
        self.ledger.filtered.merge(filtered);
    }

    /// Counts packets that the kernel skipped to keep within the CPU budget.
    pub fn count_sampled_out(&mut self, sampled_out: Counters) {
        self.ledger.seen.merge(sampled_out);
        self.ledger.dropped[DropReason::CpuBudget as usize].merge(sampled_out);
    }

    /// The counters so far.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        let mut ledger = self.ledger;
        if let Some(copies) = &self.copies {
            (ledger.mirrored, ledger.mirror_lost) = (copies.sent(), copies.lost());
        }
        // The current block is added up when this is called or the block is handed over.
        in_flight(&mut ledger, &self.block.counters());
        ledger
    }

    /// How much has been kept so far of the packets of each class, as first decided: what is
    /// promoted later is not counted again. Packets that policies drop before classification are in
    /// no class.
    #[must_use]
    pub fn kept(&self) -> Vec<ClassKept> {
        let mut by_class = self.by_class.clone();
        by_class.merge(self.block.class_counts());
        by_class.list()
    }

    /// What became of payload while there was a budget of detail; `None` if there was none.
    #[must_use]
    pub fn detail(&self) -> Option<DetailCounts> {
        self.detail.as_ref().map(|detail| detail.counts())
    }

    #[cold]
    pub(super) fn room_for(&mut self, needed: usize) -> Result<(), SinkError> {
        if !self.block.is_empty() {
            self.next_block()?;
        }
        self.block.grow(needed);
        Ok(())
    }

    /// Hands the block to the writer and waits for an empty one: a file can wait.
    pub(super) fn next_block(&mut self) -> Result<(), SinkError> {
        while let Some(written) = self.sink.poll() {
            self.account(written);
        }
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

    /// Moves a block's packets from `in_flight` to where they ended.
    pub(super) fn account(&mut self, written: Written) {
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

    /// Hands the block to the writer if it was started before the last call, so that packets do not
    /// wait for more to come; and counts what has been written.
    ///
    /// # Errors
    ///
    /// If the log cannot be written.
    pub fn flush_old(&mut self) -> Result<(), SinkError> {
        while let Some(written) = self.sink.poll() {
            self.account(written);
        }
        if !self.block.is_empty() && self.blocks_handed_over == self.blocks_at_flush {
            self.next_block()?;
        }
        self.blocks_at_flush = self.blocks_handed_over;
        self.write_error.take().map_or(Ok(()), Err)
    }

    /// Writes what is left and waits until everything is in files. Afterwards
    /// nothing is in flight.
    ///
    /// # Errors
    ///
    /// The first write error, unless [`Worker::batch`] has returned it.
    pub fn finish(&mut self) -> Result<(), SinkError> {
        if let Some(tap) = &mut self.tap {
            tap.finish();
        }
        if let Some(exports) = &mut self.exports {
            exports.finish();
        }
        self.publish_hits();
        self.apply_alerts()?;
        if !self.block.is_empty() {
            self.next_block()?;
        }
        while let Some(written) = self.sink.wait()? {
            self.account(written);
        }
        self.write_error.take().map_or(Ok(()), Err)
    }
}

/// Counts the packets of a block as in flight.
pub(super) fn in_flight(ledger: &mut Ledger, counters: &BlockCounters) {
    ledger.in_flight.packets += counters.packets;
    ledger.in_flight.bytes += counters.logged_bytes;
    for (sum, bytes) in ledger.cut_bytes.iter_mut().zip(counters.cut_bytes) {
        *sum += bytes;
    }
}
