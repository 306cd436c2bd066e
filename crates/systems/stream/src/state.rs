//! How far a stream has come, as its file says. It is rewritten as the stream grows; what pages say
//! counts if it is damaged or out of date.

use zerocopy::FromBytes;
use zerocopy::little_endian::{U32, U64};

use crate::cursor::Cursor;
use crate::key::StreamKey;
use crate::layout::{SampleBytes, StateBytes};

const MAGIC: [u8; 8] = *b"STRASTAT";
const LEN: usize = size_of::<StateBytes>();
/// How many samples are kept.
const SAMPLES: usize = 8;
/// Between samples.
const SAMPLE_NS: u64 = 10_000_000_000;

/// How much had been appended at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// ns since 1970.
    pub time_ns: u64,
    /// Records since the stream was created.
    pub records: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
}

/// How far a stream has come.
///
/// ```text
///   0 magic "STRASTAT"
///   8 flags u64               bit 0: no appender, and all of this is true; bit 1: producers have appended;
///                            bit 2: they append, or did so last
///  16 index u64               the end: up to here, records are in the file
///  24 offset u32
///  28 number u32              records of the last page
///  32 next_seq u64            number of the next record
///  40 oldest u64              number of the oldest page
///  48 directory_entries u64   table pages so far
///  56 time_ns u64             when this was written
///  64 synced_seq u64          records with a smaller number survive a loss of power
///  72 samples 8 * 24          time_ns, records, bytes u64 each: now, and about every 10 s before
/// 264 tag u64                 SipHash-2-4 of bytes 0 to 263 with the stream's key
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// Whether there is no appender, and everything that was appended is on disk.
    pub is_clean: bool,
    /// Whether producers have ever appended to it.
    pub has_producers: bool,
    /// Whether they append now, or did so last.
    pub is_producers: bool,
    /// The end: records before it are in the file.
    pub end: Cursor,
    /// Records of the last page.
    pub number: u32,
    /// The number of the next record.
    pub next_seq: u64,
    /// The number of the oldest page.
    pub oldest: u64,
    /// Table pages.
    pub tables: u32,
    /// When it was written, ns since 1970.
    pub time_ns: u64,
    /// Records with a smaller number survive a loss of power.
    pub synced_seq: u64,
    /// Newest first; the rest are zeros.
    samples: [Sample; SAMPLES],
}

impl State {
    /// Bytes of a state.
    pub const LEN: usize = LEN;

    /// That of a new stream.
    #[must_use]
    pub fn new(now_ns: u64) -> Self {
        Self {
            is_clean: true,
            time_ns: now_ns,
            ..Self::default()
        }
    }

    /// Without a record of how far a stream has come: its pages tell.
    #[must_use]
    pub fn unknown() -> Self {
        Self::default()
    }

    /// How much there was now, and at the start of the last minute or so.
    #[must_use]
    pub fn recent(&self) -> (Sample, Sample) {
        let known = self.samples.iter().take_while(|sample| sample.time_ns > 0);
        let oldest = known.last().copied();
        (self.samples[0], oldest.unwrap_or(self.samples[0]))
    }

    /// More was appended.
    pub fn sample(&mut self, now: Sample) {
        if now.time_ns.saturating_sub(self.samples[1].time_ns) >= SAMPLE_NS {
            self.samples.copy_within(..SAMPLES - 1, 1);
        }
        self.samples[0] = now;
        self.time_ns = now.time_ns;
    }

    /// Its bytes.
    #[must_use]
    pub fn emit(&self, key: &StreamKey) -> [u8; LEN] {
        let state = StateBytes {
            magic: MAGIC,
            flags: U64::new(
                u64::from(self.is_clean)
                    | u64::from(self.has_producers) << 1
                    | u64::from(self.is_producers) << 2,
            ),
            index: U64::new(self.end.index),
            offset: U32::new(self.end.offset),
            number: U32::new(self.number),
            next_seq: U64::new(self.next_seq),
            oldest: U64::new(self.oldest),
            directory_entries: U64::new(self.tables.into()),
            time_ns: U64::new(self.time_ns),
            synced_seq: U64::new(self.synced_seq),
            samples: self.samples.map(|sample| SampleBytes {
                time_ns: U64::new(sample.time_ns),
                records: U64::new(sample.records),
                bytes: U64::new(sample.bytes),
            }),
            tag: U64::new(0),
        };
        let mut bytes: [u8; LEN] = zerocopy::transmute!(state);
        let tag = key.tag(&bytes[..LEN - 8]);
        bytes[LEN - 8..].copy_from_slice(&tag.to_le_bytes());
        bytes
    }

    /// The state in these bytes; `None` if it is not whole, which may be as it is being written.
    #[must_use]
    pub fn parse(bytes: &[u8], key: &StreamKey) -> Option<Self> {
        let (read, _) = StateBytes::read_from_prefix(bytes).ok()?;
        let is_whole = read.magic == MAGIC && key.tag(&bytes[..LEN - 8]) == read.tag.get();
        if !is_whole {
            return None;
        }
        Some(Self {
            is_clean: read.flags.get() & 1 != 0,
            has_producers: read.flags.get() & 2 != 0,
            is_producers: read.flags.get() & 4 != 0,
            end: Cursor {
                index: read.index.get(),
                offset: read.offset.get(),
            },
            number: read.number.get(),
            next_seq: read.next_seq.get(),
            oldest: read.oldest.get(),
            tables: u32::try_from(read.directory_entries.get()).ok()?,
            time_ns: read.time_ns.get(),
            synced_seq: read.synced_seq.get(),
            samples: read.samples.map(|sample| Sample {
                time_ns: sample.time_ns.get(),
                records: sample.records.get(),
                bytes: sample.bytes.get(),
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_back_whole_or_not_at_all() {
        let key = StreamKey::new([9; 16]);
        let mut state = State {
            is_clean: true,
            has_producers: true,
            end: Cursor::page(4),
            number: 3,
            next_seq: 9,
            synced_seq: 8,
            oldest: 1,
            tables: 2,
            ..State::default()
        };
        let sample = |seconds: u64| Sample {
            time_ns: 1 + seconds * 1_000_000_000,
            records: 10 * seconds,
            bytes: 0,
        };
        for seconds in 0..200 {
            state.sample(sample(seconds));
        }
        let (now, before) = state.recent();
        assert_eq!(now, sample(199));
        assert!((50..=80).contains(&(199 - (before.time_ns - 1) / 1_000_000_000)));
        let bytes = state.emit(&key);
        assert_eq!(State::parse(&bytes, &key), Some(state));
        for at in 0..bytes.len() {
            let mut torn = bytes;
            torn[at] ^= 4;
            assert_eq!(State::parse(&torn, &key), None);
        }
        assert_eq!(State::parse(&[], &key), None);
    }
}
