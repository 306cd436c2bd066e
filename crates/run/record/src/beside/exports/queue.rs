//! From a worker to the thread that exports.

use std::collections::BTreeMap;
use std::mem;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};

use strata_capture::BATCH_MAX;
use strata_control::ExportTimes;
use strata_pipeline::{ExportedPacket, Exports, PolicyExport};
use strata_rules::DestinationName;
use strata_wire::{Interface, Keep, LinkType, clamped, exact, mix64};

use super::own::{Own, OwnTraffic};

/// A chunk goes to the thread once it has this many bytes, or packets.
const CHUNK_BYTES: usize = 256 << 10;
const CHUNK_PACKETS: usize = 4096;
/// A chunk that is not full goes so long after the one before, by the packets' times: to wake the thread costs as
/// much as to compress a hundred headers.
const HAND_OVER_EVERY_NS: u64 = 20_000_000;

/// What is exported of a packet to a destination.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Where its bytes are in the chunk.
    at: u32,
    len: u32,
    pub(super) ts_ns: u64,
    pub(super) wire_len: u32,
    pub(super) one_in: u32,
    pub(super) policy: u16,
    pub(super) stream: StreamKey,
    pub(super) class: u8,
}

/// Packets of an interface to a destination.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct StreamKey {
    /// Place of the destination.
    pub(super) target: u16,
    pub(super) interface: u16,
    /// Whether they are headers, which are compressed.
    pub(super) is_header: bool,
}

/// An interface, as the input describes it.
#[derive(Clone, Debug)]
pub(super) struct Described {
    pub(super) id: u16,
    pub(super) link: LinkType,
    pub(super) name: Option<String>,
}

/// Packets on their way to the thread.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    pub(super) entries: Vec<Entry>,
    bytes: Vec<u8>,
    /// Interfaces that packets from this chunk on are of.
    pub(super) interfaces: Vec<Described>,
    /// Packets that were lost before this chunk.
    pub(super) lost: BTreeMap<StreamKey, u64>,
}

impl Chunk {
    pub(super) fn bytes(&self, entry: &Entry) -> &[u8] {
        &self.bytes[entry.at as usize..][..entry.len as usize]
    }

    fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.interfaces.is_empty() && self.lost.is_empty()
    }

    fn is_full(&self) -> bool {
        self.bytes.len() >= CHUNK_BYTES || self.entries.len() >= CHUNK_PACKETS
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
        self.interfaces.clear();
        self.lost.clear();
    }
}

/// Chunks that the thread has read, for workers to fill again: their memory is there, and in caches.
#[derive(Clone, Debug, Default)]
pub(super) struct Spare(Arc<Mutex<Vec<Chunk>>>);

impl Spare {
    /// More are given back to the system: they are from a time when much waited.
    const MAX: usize = 4;

    /// Gives a chunk back, unless it is a large one.
    pub(super) fn put(&self, mut chunk: Chunk) {
        chunk.clear();
        let mut chunks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if chunks.len() < Self::MAX && chunk.bytes.capacity() <= 2 * CHUNK_BYTES {
            chunks.push(chunk);
        }
    }

    fn take(&self) -> Chunk {
        let spare = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| Chunk {
            bytes: Vec::with_capacity(CHUNK_BYTES),
            ..Chunk::default()
        })
    }
}

/// The end of the queue at a worker.
#[derive(Debug)]
pub(crate) struct ExportQueue {
    /// `None` once no more packets come.
    queue: Option<SyncSender<Chunk>>,
    targets: Vec<DestinationName>,
    own_traffic: Arc<OwnTraffic>,
    /// All of that, as it was after `own_changes` changes.
    own: Vec<Own>,
    own_changes: u64,
    links: Vec<LinkType>,
    times: Arc<ExportTimes>,
    waits: bool,
    chunk: Chunk,
    spare: Spare,
    /// Packets that came so far, and until the batch began.
    offered: u64,
    before_batch: u64,
    /// Time of the latest packet, and of the latest one when a chunk was handed over.
    latest_ns: u64,
    handed_over_ns: u64,
}

impl ExportQueue {
    pub(super) fn new(
        queue: SyncSender<Chunk>,
        targets: &[DestinationName],
        own_traffic: Arc<OwnTraffic>,
        times: Arc<ExportTimes>,
        spare: Spare,
        waits: bool,
    ) -> Self {
        Self {
            queue: Some(queue),
            targets: targets.to_vec(),
            own_changes: own_traffic.changes(),
            own: own_traffic.all(),
            own_traffic,
            links: Vec::new(),
            times,
            waits,
            chunk: spare.take(),
            spare,
            offered: 0,
            before_batch: 0,
            latest_ns: 0,
            handed_over_ns: 0,
        }
    }

    /// Hands over what was taken; or loses it, if the queue is full and the caller may not wait.
    fn hand_over(&mut self, waits: bool) {
        let Some(queue) = &self.queue else {
            return;
        };
        if self.chunk.is_empty() {
            return;
        }
        let chunk = mem::replace(&mut self.chunk, self.spare.take());
        let back = match waits {
            true => queue.send(chunk).err().map(|error| error.0),
            false => match queue.try_send(chunk) {
                Ok(()) => None,
                Err(TrySendError::Full(back) | TrySendError::Disconnected(back)) => Some(back),
            },
        };
        let Some(mut back) = back else {
            self.handed_over_ns = self.latest_ns;
            return;
        };
        // There is room in it: it waits for the queue, and takes what comes meanwhile.
        if back.is_full() {
            for entry in back.entries.drain(..) {
                *back.lost.entry(entry.stream).or_default() += 1;
            }
            back.bytes.clear();
        }
        self.spare.put(mem::replace(&mut self.chunk, back));
    }
}

impl Exports for ExportQueue {
    fn interface(&mut self, id: u16, interface: &Interface) {
        let index = usize::from(id);
        if self.links.len() <= index {
            self.links.resize(index + 1, LinkType(0));
        }
        self.links[index] = interface.link;
        self.chunk.interfaces.push(Described {
            id,
            link: interface.link,
            name: interface.name().map(str::to_owned),
        });
    }

    fn take(&mut self, exported: &ExportedPacket<'_>, exports: &[PolicyExport]) {
        let packet = &exported.packet;
        let link = self.links[usize::from(packet.interface)];
        if !self.times.now().contains(&packet.ts_ns) {
            return;
        }
        let changes = self.own_traffic.changes();
        if changes != self.own_changes {
            self.own = self.own_traffic.all();
            self.own_changes = changes;
        }
        if self.own.iter().any(|own| own.has_sent(link, packet.data)) {
            return;
        }
        self.latest_ns = packet.ts_ns;
        let captured = exact::<u32>(packet.data.len());
        // Which packets are drawn depends on them alone, so that a file gives the same ones again.
        let draw = packet.ts_ns ^ (u64::from(packet.wire_len) << 48) ^ self.offered;
        self.offered += 1;
        for PolicyExport { policy, export } in exports {
            if export.one_in > 1 && !mix64(draw).is_multiple_of(export.one_in.into()) {
                continue;
            }
            let Some(target) = self.targets.iter().position(|name| *name == export.to) else {
                // Policies are checked against the destinations.
                continue;
            };
            let len = export.keep.kept_len(exported.header_len, captured);
            let at = exact::<u32>(self.chunk.bytes.len());
            let kept = &packet.data[..len as usize];
            self.chunk.bytes.extend_from_slice(kept);
            self.chunk.entries.push(Entry {
                at,
                len,
                ts_ns: packet.ts_ns,
                wire_len: packet.wire_len,
                one_in: exported.one_in.saturating_mul(export.one_in),
                policy: clamped::<u16>(*policy),
                stream: StreamKey {
                    target: exact::<u16>(target),
                    interface: packet.interface,
                    is_header: export.keep == Keep::Header,
                },
                class: exported.class,
            });
        }
        if self.chunk.is_full() {
            self.hand_over(self.waits);
        }
    }

    fn batch_done(&mut self) {
        let packets = self.offered - mem::replace(&mut self.before_batch, self.offered);
        let since_ns = self.latest_ns.abs_diff(self.handed_over_ns);
        // A caller that waits reads files: nothing signals that no more packets come for a while.
        let is_due = packets == 0 || self.waits || since_ns >= HAND_OVER_EVERY_NS;
        // After a full batch more is there already: what was captured while a worker could not run would take
        // all of the queue in small parts of chunks.
        if is_due && packets < BATCH_MAX as u64 {
            self.hand_over(self.waits);
        }
    }

    fn finish(&mut self) {
        // Waiting now loses no packet.
        self.hand_over(true);
        self.queue = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, sync_channel};
    use strata_capture::PacketRef;
    use strata_rules::Export;

    /// A worker's end of a queue of this many chunks, for one destination.
    fn queue(chunks: usize, export: Export, waits: bool) -> (ExportQueue, Receiver<Chunk>) {
        let (sender, receiver) = sync_channel(chunks);
        let times = ExportTimes::new(0..u64::MAX);
        let to = [export.to];
        let own = Arc::new(OwnTraffic::new(std::iter::empty()));
        let mut queue = ExportQueue::new(sender, &to, own, times, Spare::default(), waits);
        queue.interface(0, &Interface::new(LinkType::ETHERNET, 65_535));
        (queue, receiver)
    }

    fn give(queue: &mut ExportQueue, export: Export, ts_ns: u64) {
        let packet = ExportedPacket {
            packet: PacketRef {
                ts_ns,
                interface: 0,
                wire_len: 60,
                data: &[0; 60],
                options: &[],
                has_timestamp: true,
            },
            header_len: 14,
            class: 0,
            one_in: 3,
        };
        queue.take(&packet, &[PolicyExport { policy: 1, export }]);
    }

    /// What was captured while no thread could run fits into as many chunks as its packets fill, also if the
    /// thread cannot run either; what comes alone is not kept back, nor is anything once no more comes.
    #[test]
    fn full_batches_share_chunks() {
        let export: Export = "header -> a".parse().unwrap();
        let (mut queue, receiver) = queue(4, export, false);
        for number in 0..4 * CHUNK_PACKETS {
            give(&mut queue, export, number as u64);
            if (number + 1) % BATCH_MAX == 0 {
                queue.batch_done();
            }
        }
        let later_ns = HAND_OVER_EVERY_NS + 4 * CHUNK_PACKETS as u64;
        give(&mut queue, export, later_ns);
        let chunks: Vec<Chunk> = receiver.try_iter().collect();
        let lens: Vec<usize> = chunks.iter().map(|chunk| chunk.entries.len()).collect();
        assert_eq!(lens, [CHUNK_PACKETS; 4]);
        assert!(chunks.iter().all(|chunk| chunk.lost.is_empty()));
        queue.batch_done();
        let last: Vec<Chunk> = receiver.try_iter().collect();
        assert_eq!(last.len(), 1);
        assert_eq!((last[0].entries.len(), last[0].lost.len()), (1, 0));
        // Without packets, what a full batch or one soon after has left is handed over too.
        for packets in [BATCH_MAX, 1] {
            (0..packets).for_each(|_| give(&mut queue, export, later_ns + 1));
            queue.batch_done();
            assert_eq!(receiver.try_iter().count(), 0);
            queue.batch_done();
            assert_eq!(receiver.try_iter().count(), 1);
        }
        // Also if a clock goes back.
        give(&mut queue, export, 1);
        queue.batch_done();
        assert_eq!(receiver.try_iter().count(), 1);
    }

    /// While the thread cannot run, packets that come slowly share a chunk too: no packet is lost before it is
    /// full.
    #[test]
    fn what_is_not_full_waits_for_the_queue() {
        let export: Export = "header -> a".parse().unwrap();
        let (mut queue, receiver) = queue(1, export, false);
        for number in 1..=100 {
            give(&mut queue, export, number * HAND_OVER_EVERY_NS);
            queue.batch_done();
        }
        let first: Vec<Chunk> = receiver.try_iter().collect();
        queue.batch_done();
        let chunks = first.into_iter().chain(receiver.try_iter());
        let counts: Vec<_> = chunks
            .map(|chunk| (chunk.entries.len(), chunk.lost.len()))
            .collect();
        assert_eq!(counts, [(1, 0), (99, 0)]);
    }

    /// One packet in this number is exported, and states how many it stands for.
    #[test]
    fn a_share_of_packets_is_exported() {
        let export: Export = "header 1/10 -> a".parse().unwrap();
        let (mut queue, receiver) = queue(64, export, true);
        for ts_ns in 0..10_000 {
            give(&mut queue, export, ts_ns * 1000);
        }
        queue.finish();
        let entries: Vec<Entry> = receiver.iter().flat_map(|chunk| chunk.entries).collect();
        assert!(
            (850..1150).contains(&entries.len()),
            "{} of 10,000",
            entries.len()
        );
        assert!(entries.iter().all(|entry| entry.one_in == 30));
    }
}
