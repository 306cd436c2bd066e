//! What a switch that reads files keeps of packets it has sent, until the relay has confirmed them.

use std::collections::VecDeque;

use strata_blocks::{BlockBuilder, BlockCounters, RawRecord, RecordPlace, Records};

/// Bytes from which on no more blocks are taken from the worker until the relay has confirmed some. A relay
/// has 32 MiB of memory for a worker by default.
const BYTES_MAX: usize = 256 << 20;

/// The records of a worker's block.
struct Kept {
    records: Vec<u8>,
    first_seq: u64,
    next_seq: u64,
}

/// The worker's blocks of which the relay has not confirmed all. Memory: 256 MiB, and one block.
#[derive(Default)]
pub(super) struct Retained {
    blocks: VecDeque<Kept>,
    bytes: usize,
    again: Option<Again>,
}

/// Packets that are being sent again.
struct Again {
    /// The block, counted from the front, and the position in it.
    block: usize,
    place: RecordPlace,
    /// The first and the one after the last of them.
    from_seq: u64,
    end_seq: u64,
}

impl Retained {
    /// Keeps a copy of a block that is about to be sent.
    pub(super) fn keep(&mut self, block: &BlockBuilder) {
        let (first_seq, next_seq) = block.sequence_range();
        // Definitions are remembered elsewhere.
        if next_seq > first_seq {
            self.bytes += block.body().len();
            self.blocks.push_back(Kept {
                records: block.body().to_vec(),
                first_seq,
                next_seq,
            });
        }
    }

    /// Every packet before this one is on the relay's disk.
    pub(super) fn confirmed(&mut self, next_seq: u64) {
        while let Some(first) = self.blocks.front()
            && first.next_seq <= next_seq
            && self.again.as_ref().is_none_or(|again| again.block > 0)
        {
            self.bytes -= first.records.len();
            self.blocks.pop_front();
            if let Some(again) = &mut self.again {
                again.block -= 1;
            }
        }
    }

    /// Whether the relay has to confirm some first.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= BYTES_MAX
    }

    /// The counters of the packets with these numbers.
    pub(super) fn count(&self, numbers: std::ops::Range<u64>) -> BlockCounters {
        let mut counters = BlockCounters::default();
        for block in &self.blocks {
            if block.next_seq <= numbers.start || block.first_seq >= numbers.end {
                continue;
            }
            let mut records = Records::new(&block.records, block.first_seq);
            while let Some(Ok(record)) = records.next_raw() {
                if let RawRecord::Packet(packet) = record
                    && numbers.contains(&packet.seq)
                {
                    counters.count(&packet);
                }
            }
        }
        counters
    }

    /// Has the packets with these numbers sent again.
    pub(super) fn begin_again(&mut self, numbers: std::ops::Range<u64>) {
        self.again = None;
        self.confirmed(numbers.start);
        let first = self.blocks.front();
        self.again = first.filter(|_| !numbers.is_empty()).map(|first| Again {
            block: 0,
            place: RecordPlace::first(first.first_seq),
            from_seq: numbers.start,
            end_seq: numbers.end,
        });
    }

    /// Nothing is sent again for now.
    pub(super) fn stop(&mut self) {
        self.again = None;
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether packets are being sent again.
    pub(super) fn is_sending(&self) -> bool {
        self.again.is_some()
    }

    /// The next packet to be sent again, until [`Retained::pass`].
    pub(super) fn next(&mut self) -> Option<(strata_blocks::PacketRecord<'_>, Passed)> {
        let again = self.again.as_mut()?;
        loop {
            let Some(block) = self.blocks.get(again.block) else {
                self.again = None;
                return None;
            };
            if block.first_seq >= again.end_seq {
                self.again = None;
                return None;
            }
            let mut records = Records::at(&block.records, again.place.clone());
            while let Some(Ok(record)) = records.next_raw() {
                let RawRecord::Packet(packet) = record else {
                    continue;
                };
                if packet.seq >= again.end_seq {
                    break;
                }
                if packet.seq >= again.from_seq {
                    let after = records.into_place();
                    return Some((packet, Passed(after)));
                }
            }
            again.block += 1;
            let next = self.blocks.get(again.block);
            again.place = next.map_or_else(RecordPlace::default, |next| {
                RecordPlace::first(next.first_seq)
            });
        }
    }

    /// The packet that [`Retained::next`] returned was sent.
    pub(super) fn pass(&mut self, Passed(after): Passed) {
        if let Some(again) = &mut self.again {
            again.place = after;
        }
    }
}

/// A position after a packet.
pub(super) struct Passed(RecordPlace);
