//! Packets of overlapping runs, in order of arrival: a merge sort that spills to disk when memory
//! is not enough.
//!
//! A run comes in the order of its flows, in which its payload is stored, so it is decompressed
//! once. It is sorted in memory; what does not fit is written, sorted, to an unnamed temporary
//! file, encrypted with a key that exists only in memory: the log may be encrypted too.

mod texts;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use chacha20poly1305::aead::{AeadInPlace, KeyInit, OsRng};
use chacha20poly1305::{ChaCha20Poly1305, Nonce, Tag};
use strata_wire::prefetch;

use crate::exporter::JudgementKey;

use texts::Texts;

/// Memory for packets waiting for their turn, at most, if nothing else is said.
pub const MEMORY_BYTES: usize = 256 << 20;
/// Memory is allocated in pieces of this size.
const SLAB_BYTES: usize = 1 << 20;
/// Bytes read at a time from a sorted piece on disk.
const CHUNK_BYTES: usize = 256 << 10;
/// How far ahead of its turn a packet in memory is fetched into the cache.
const PACKETS_AHEAD: usize = 8;
const TAG_BYTES: usize = 16;
/// Texts that get a number; others are written out with their packet.
const TEXTS_MAX: usize = 1 << 16;
/// In place of a number: the text is written out.
const WRITTEN_OUT: u32 = u32::MAX;

/// When a packet arrived, and its position among packets of the same time.
pub(crate) type Arrival = (u64, i64);

/// A packet that waits, or waited, for its turn.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Waiting<'a> {
    pub(crate) arrival: Arrival,
    pub(crate) ts_ns: u64,
    pub(crate) wire_len: u32,
    pub(crate) captured_len: u32,
    pub(crate) header_len: u16,
    pub(crate) interface: u16,
    pub(crate) has_timestamp: bool,
    pub(crate) score: Option<f32>,
    pub(crate) flow_share: f32,
    /// Class, granularity, reason, mode.
    pub(crate) texts: [&'a [u8]; 4],
    /// What they are known by once it has waited.
    pub(crate) key: Option<JudgementKey>,
    pub(crate) options: &'a [u8],
    pub(crate) data: &'a [u8],
}

/// ```text
///  0 time + late u64 | tie i64 | ts_ns u64
/// 24 wire_len u32 | captured_len u32 | header_len u16 | interface u16
/// 36 flags u8 (1 has a time, 2 has a score), 0 u8, 0 u16 | score f32 | flow_share f32
/// 48 numbers of 4 texts u32 | options length u32 | data length u32
/// 72 options | data | texts that have no number, each after its length u32
/// ```
const HEAD_BYTES: usize = 72;

const HAS_TIME: u8 = 1;
const HAS_SCORE: u8 = 2;

/// Lengths of packets and their options come from 32-bit fields.
fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a packet and its options have less than 4 GiB")
}

impl Waiting<'_> {
    fn len(&self, numbers: &[u32; 4]) -> usize {
        let written_out = self.texts.iter().zip(numbers);
        let written_out = written_out.filter(|(_, number)| **number == WRITTEN_OUT);
        let texts: usize = written_out.map(|(text, _)| 4 + text.len()).sum();
        HEAD_BYTES + self.options.len() + self.data.len() + texts
    }

    fn emit(&self, numbers: &[u32; 4], out: &mut Vec<u8>) {
        let time = if self.has_timestamp { HAS_TIME } else { 0 };
        let score = self.score.map_or(0, |_| HAS_SCORE);
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&self.arrival.0.to_le_bytes());
        head[8..16].copy_from_slice(&self.arrival.1.to_le_bytes());
        head[16..24].copy_from_slice(&self.ts_ns.to_le_bytes());
        head[24..28].copy_from_slice(&self.wire_len.to_le_bytes());
        head[28..32].copy_from_slice(&self.captured_len.to_le_bytes());
        head[32..34].copy_from_slice(&self.header_len.to_le_bytes());
        head[34..36].copy_from_slice(&self.interface.to_le_bytes());
        head[36] = time | score;
        head[40..44].copy_from_slice(&self.score.unwrap_or(0.0).to_le_bytes());
        head[44..48].copy_from_slice(&self.flow_share.to_le_bytes());
        let lengths = [self.options, self.data].map(|bytes| length(bytes.len()));
        let words = numbers.iter().chain(&lengths);
        for (place, word) in head[48..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&head);
        out.extend_from_slice(self.options);
        out.extend_from_slice(self.data);
        for (text, number) in self.texts.iter().zip(numbers) {
            if *number == WRITTEN_OUT {
                out.extend_from_slice(&length(text.len()).to_le_bytes());
                out.extend_from_slice(text);
            }
        }
    }
}

/// The output of [`Waiting::emit`], read in order.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        self.take(N).try_into().expect("it has that length")
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn length(&mut self) -> usize {
        self.u32() as usize
    }
}

/// The packet at the start of `bytes`, and its length there.
fn parse<'a>(bytes: &'a [u8], known: &'a Texts) -> (Waiting<'a>, usize) {
    let mut read = Fields(bytes);
    let arrival = arrival_of(read.take(16));
    let ts_ns = u64::from_le_bytes(read.array());
    let (wire_len, captured_len) = (read.u32(), read.u32());
    let header_len = u16::from_le_bytes(read.array());
    let interface = u16::from_le_bytes(read.array());
    let [flags, ..] = read.array::<4>();
    let score = f32::from_le_bytes(read.array());
    let flow_share = f32::from_le_bytes(read.array());
    let numbers = [(); 4].map(|()| read.u32());
    let (options, data) = (read.length(), read.length());
    let (options, data) = (read.take(options), read.take(data));
    let texts = numbers.map(|number| {
        if number == WRITTEN_OUT {
            let len = read.length();
            read.take(len)
        } else {
            &known.texts[number as usize]
        }
    });
    let packet = Waiting {
        arrival,
        ts_ns,
        wire_len,
        captured_len,
        header_len,
        interface,
        has_timestamp: flags & HAS_TIME != 0,
        score: (flags & HAS_SCORE != 0).then_some(score),
        flow_share,
        texts,
        key: (!numbers.contains(&WRITTEN_OUT)).then_some(JudgementKey {
            origin: known.origin,
            numbers,
            values: [score.to_bits(), flow_share.to_bits()],
        }),
        options,
        data,
    };
    (packet, bytes.len() - read.0.len())
}

fn arrival_of(bytes: &[u8]) -> Arrival {
    let mut read = Fields(bytes);
    (
        u64::from_le_bytes(read.array()),
        i64::from_le_bytes(read.array()),
    )
}

/// Packets in memory.
#[derive(Default)]
struct Batch {
    slabs: Vec<Vec<u8>>,
    /// Arrival, slab, offset in it, length; in order once sorted.
    index: Vec<(Arrival, u32, u32, u32)>,
    bytes: usize,
}

impl Batch {
    fn push(&mut self, packet: &Waiting<'_>, numbers: &[u32; 4]) {
        let len = packet.len(numbers);
        let room = self
            .slabs
            .last()
            .map_or(0, |slab| slab.capacity() - slab.len());
        if room < len {
            let size = len.max(SLAB_BYTES);
            self.slabs.push(Vec::with_capacity(size));
            self.bytes += size;
        }
        let number = length(self.slabs.len() - 1);
        if let Some(slab) = self.slabs.last_mut() {
            let at = length(slab.len());
            packet.emit(numbers, slab);
            self.index.push((packet.arrival, number, at, length(len)));
            self.bytes += size_of_val(&self.index[0]);
        }
    }

    /// Packets of a piece follow each other in time, not in memory.
    fn soon(&self, n: usize) {
        if let Some((_, slab, at, _)) = self.index.get(n) {
            let packet = &self.slabs[*slab as usize][*at as usize..];
            prefetch(packet, 0);
            prefetch(packet, 64);
        }
    }

    fn packet(&self, n: usize) -> &[u8] {
        let (_, slab, at, len) = self.index[n];
        &self.slabs[slab as usize][at as usize..][..len as usize]
    }
}

/// A sorted piece.
enum Piece {
    /// In memory, from this index position on.
    Memory(Batch, usize),
    Disk(Spilled),
}

/// A sorted piece on disk.
struct Spilled {
    /// Each chunk's offset in the file, length and number.
    chunks: VecDeque<(u64, usize, u64)>,
    /// The current chunk.
    chunk: Vec<u8>,
    at: usize,
}

/// The temporary file.
struct Spill {
    file: File,
    cipher: ChaCha20Poly1305,
    end: u64,
    chunks: u64,
}

impl Spill {
    fn new() -> io::Result<Self> {
        Ok(Self {
            file: tempfile::tempfile()?,
            cipher: ChaCha20Poly1305::new(&ChaCha20Poly1305::generate_key(&mut OsRng)),
            end: 0,
            chunks: 0,
        })
    }

    /// From a number that no other chunk has, so that no nonce is used twice.
    fn nonce(number: u64) -> Nonce {
        let mut nonce = Nonce::default();
        nonce[..8].copy_from_slice(&number.to_le_bytes());
        nonce
    }

    fn write(&mut self, chunk: &mut Vec<u8>, to: &mut Spilled) -> io::Result<()> {
        if chunk.is_empty() {
            return Ok(());
        }
        let number = self.chunks;
        let nonce = Self::nonce(number);
        let tag = self.cipher.encrypt_in_place_detached(&nonce, &[], chunk);
        chunk.extend_from_slice(&tag.map_err(|_| io::ErrorKind::FileTooLarge)?);
        self.file.write_all_at(chunk, self.end)?;
        to.chunks.push_back((self.end, chunk.len(), number));
        self.end += chunk.len() as u64;
        self.chunks += 1;
        chunk.clear();
        Ok(())
    }

    fn read(&self, from: &mut Spilled) -> io::Result<()> {
        let next = from
            .chunks
            .pop_front()
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        let (offset, len, number) = next;
        from.at = 0;
        from.chunk.resize(len, 0);
        self.file.read_exact_at(&mut from.chunk, offset)?;
        let tag = Tag::clone_from_slice(&from.chunk[len - TAG_BYTES..]);
        from.chunk.truncate(len - TAG_BYTES);
        let nonce = Self::nonce(number);
        let opened = self
            .cipher
            .decrypt_in_place_detached(&nonce, &[], &mut from.chunk, &tag);
        opened.map_err(|_| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "it was changed while it was read",
            )
        })
    }
}

/// Sorts packets, holding [`MEMORY_BYTES`] of them in memory.
pub(crate) struct ByTime {
    memory_bytes: usize,
    texts: Texts,
    /// Packets of the run being added.
    pending: Batch,
    /// By number, in the order of the runs.
    pieces: BTreeMap<u64, Piece>,
    next_piece: u64,
    /// The first packet of each piece.
    firsts: BinaryHeap<Reverse<(Arrival, u64)>>,
    /// The piece whose first packet was returned.
    given: Option<u64>,
    /// Bytes of the pieces in memory.
    held: usize,
    spill: Option<Spill>,
}

impl ByTime {
    pub(crate) fn new(memory_bytes: usize) -> Self {
        Self {
            memory_bytes,
            texts: Texts::new(),
            pending: Batch::default(),
            pieces: BTreeMap::new(),
            next_piece: 0,
            firsts: BinaryHeap::new(),
            given: None,
            held: 0,
            spill: None,
        }
    }

    /// Adds a packet; within a run, in any order.
    pub(crate) fn push(&mut self, packet: &Waiting<'_>) -> io::Result<()> {
        self.advance()?;
        let numbers = self.texts.numbers(packet.texts);
        self.pending.push(packet, &numbers);
        while self.held + self.pending.bytes > self.memory_bytes {
            self.make_room()?;
        }
        Ok(())
    }

    /// Ends a run: its packets may now be returned.
    pub(crate) fn end_run(&mut self) {
        let mut batch = std::mem::take(&mut self.pending);
        batch.index.sort_by_key(|(arrival, ..)| *arrival);
        let Some((first, ..)) = batch.index.first() else {
            return;
        };
        self.firsts.push(Reverse((*first, self.next_piece)));
        self.held += batch.bytes;
        self.pieces.insert(self.next_piece, Piece::Memory(batch, 0));
        self.next_piece += 1;
    }

    /// When the next packet arrived.
    pub(crate) fn first(&mut self) -> io::Result<Option<Arrival>> {
        self.advance()?;
        Ok(self.firsts.peek().map(|Reverse((arrival, _))| *arrival))
    }

    /// The next packet.
    pub(crate) fn next(&mut self) -> io::Result<Option<Waiting<'_>>> {
        self.advance()?;
        let Some(Reverse((_, number))) = self.firsts.pop() else {
            return Ok(None);
        };
        self.given = Some(number);
        Ok(match self.pieces.get(&number) {
            Some(Piece::Memory(batch, at)) => {
                batch.soon(*at + PACKETS_AHEAD);
                Some(parse(batch.packet(*at), &self.texts).0)
            }
            Some(Piece::Disk(spilled)) => Some(parse(&spilled.chunk[spilled.at..], &self.texts).0),
            None => None,
        })
    }

    /// Advances in the piece whose first packet was returned.
    fn advance(&mut self) -> io::Result<()> {
        let Some(number) = self.given.take() else {
            return Ok(());
        };
        let first = match self.pieces.get_mut(&number) {
            Some(Piece::Memory(batch, at)) => {
                *at += 1;
                let first = batch.index.get(*at).map(|(arrival, ..)| *arrival);
                if first.is_none() {
                    self.held -= batch.bytes;
                }
                first
            }
            Some(Piece::Disk(spilled)) => {
                spilled.at += parse(&spilled.chunk[spilled.at..], &self.texts).1;
                if spilled.at == spilled.chunk.len() && !spilled.chunks.is_empty() {
                    let spill = self.spill.as_ref().ok_or(io::ErrorKind::NotFound)?;
                    spill.read(spilled)?;
                }
                let rest = &spilled.chunk[spilled.at..];
                (!rest.is_empty()).then(|| arrival_of(&rest[..16]))
            }
            None => None,
        };
        match first {
            Some(first) => self.firsts.push(Reverse((first, number))),
            None => drop(self.pieces.remove(&number)),
        }
        Ok(())
    }

    /// Writes the largest piece in memory to disk.
    fn make_room(&mut self) -> io::Result<()> {
        let in_memory = self
            .pieces
            .iter()
            .filter_map(|(number, piece)| match piece {
                Piece::Memory(batch, _) => Some((batch.bytes, *number)),
                Piece::Disk(_) => None,
            });
        let largest = in_memory
            .max()
            .filter(|(bytes, _)| *bytes > self.pending.bytes);
        if let Some((bytes, number)) = largest {
            if let Some(Piece::Memory(batch, at)) = self.pieces.remove(&number) {
                let spilled = self.spill(&batch, at)?;
                self.held -= bytes;
                self.pieces.insert(number, Piece::Disk(spilled));
            }
            return Ok(());
        }
        let mut batch = std::mem::take(&mut self.pending);
        batch.index.sort_by_key(|(arrival, ..)| *arrival);
        if let Some((first, ..)) = batch.index.first() {
            let spilled = self.spill(&batch, 0)?;
            self.firsts.push(Reverse((*first, self.next_piece)));
            self.pieces.insert(self.next_piece, Piece::Disk(spilled));
            self.next_piece += 1;
        }
        Ok(())
    }

    fn spill(&mut self, batch: &Batch, from: usize) -> io::Result<Spilled> {
        let spill = match &mut self.spill {
            Some(spill) => spill,
            none => none.insert(Spill::new()?),
        };
        let mut spilled = Spilled {
            chunks: VecDeque::new(),
            chunk: Vec::new(),
            at: 0,
        };
        let mut chunk = Vec::with_capacity(CHUNK_BYTES + SLAB_BYTES);
        for n in from..batch.index.len() {
            chunk.extend_from_slice(batch.packet(n));
            if chunk.len() >= CHUNK_BYTES {
                spill.write(&mut chunk, &mut spilled)?;
            }
        }
        spill.write(&mut chunk, &mut spilled)?;
        spill.read(&mut spilled)?;
        Ok(spilled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet<'a>(arrival: Arrival, text: &'a [u8], data: &'a [u8]) -> Waiting<'a> {
        Waiting {
            arrival,
            ts_ns: arrival.0 ^ 5,
            wire_len: 77,
            captured_len: 66,
            header_len: 14,
            interface: 3,
            has_timestamp: arrival.0 & 1 == 0,
            score: (arrival.1 & 1 == 0).then_some(0.25),
            flow_share: 0.5,
            texts: [b"class", text, b"", b"mode"],
            key: None,
            options: &data[..data.len() / 2],
            data,
        }
    }

    proptest! {
        /// Runs with any overlap come out as from a stable sort, whatever the memory.
        #[test]
        fn packets_come_as_a_stable_sort_has_them(
            runs in prop::collection::vec(
                prop::collection::vec((0_u64..50, 0_i64..3, 0_usize..2_000), 0..40), 0..6),
            memory in 0_usize..100_000, known in prop::bool::ANY,
        ) {
            let bytes: Vec<u8> = (0..2_000_u32).map(|n| n.to_le_bytes()[0]).collect();
            let mut sorter = ByTime::new(memory);
            if known {
                // All numbers are taken: texts are written out.
                sorter.texts.texts = vec![Box::default(); TEXTS_MAX];
            }
            let mut expected = Vec::new();
            for run in &runs {
                for (n, (time, tie, len)) in run.iter().enumerate() {
                    // Within a run no two packets have the same arrival.
                    let arrival = (*time, tie * 1_000 + i64::try_from(n).unwrap());
                    let one = packet(arrival, &bytes[..len / 7], &bytes[..*len]);
                    sorter.push(&one).unwrap();
                    expected.push(one);
                }
                sorter.end_run();
            }
            expected.sort_by_key(|one| one.arrival);
            for one in &expected {
                prop_assert_eq!(sorter.first().unwrap(), Some(one.arrival));
                let next = sorter.next().unwrap().map(|next| Waiting { key: None, ..next });
                prop_assert_eq!(next.as_ref(), Some(one));
                prop_assert!(sorter.held + sorter.pending.bytes <= memory);
            }
            prop_assert!(sorter.next().unwrap().is_none());
            prop_assert!(sorter.pieces.is_empty() && sorter.held == 0);
        }
    }

    #[test]
    fn what_is_given_out_meanwhile_stays_in_order_and_in_memory() {
        let data = [7; 3_000];
        let mut sorter = ByTime::new(4 << 20);
        let mut given = Vec::new();
        for run in 0..20_u64 {
            for n in 0..1_000_u64 {
                // From its last packet to its first.
                let arrival = (run * 500 + 999 - n, i64::try_from(run).unwrap());
                sorter.push(&packet(arrival, b"t", &data)).unwrap();
                assert!(sorter.held + sorter.pending.bytes <= 4 << 20);
            }
            sorter.end_run();
            while sorter
                .first()
                .unwrap()
                .is_some_and(|first| first.0 < (run + 1) * 500)
            {
                given.push(sorter.next().unwrap().unwrap().arrival);
            }
        }
        while let Some(packet) = sorter.next().unwrap() {
            given.push(packet.arrival);
        }
        assert_eq!(given.len(), 20_000);
        assert!(given.is_sorted());
        let spilled = sorter.spill.unwrap().end;
        assert!(spilled > 30 << 20, "{spilled} bytes were on disk");
    }

    #[test]
    fn nothing_of_a_packet_can_be_read_on_disk() {
        let data: Vec<u8> = b"a secret".repeat(300);
        let mut sorter = ByTime::new(0);
        sorter.push(&packet((1, 2), b"reason", &data)).unwrap();
        let spill = sorter.spill.as_ref().unwrap();
        let mut stored = vec![0; usize::try_from(spill.end).unwrap()];
        spill.file.read_exact_at(&mut stored, 0).unwrap();
        assert!(stored.len() > data.len());
        assert!(!stored.windows(8).any(|bytes| bytes == b"a secret"));
        assert_eq!(sorter.next().unwrap().unwrap().data, data);
    }
}
