//! What appending and walking cost, beside memcpy of the same bytes: `stream_speed [MIB [ROUNDS
//! [ONLY]]]`. Everything is in memory; rounds are interleaved, and medians are printed.
//!
//! With `ONLY` (`append 64`, `walk 64`, `append 1024`, `walk 1024`), one round of that, for counting
//! instructions: `valgrind --tool=callgrind --toggle-collect='*stream_speed::append*'`.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Instant;

use strata_stream::{AppendError, Blocks, Form, Item, Page, PageHeader, PageWriter, StreamKey};

const PAGE: usize = 4 << 20;
const BLOCK: usize = 256 << 10;

/// Blocks that lie one after the other in memory.
struct InMemory<'m> {
    memory: &'m mut [u8],
    block: usize,
}

impl Blocks for InMemory<'_> {
    type Error = std::convert::Infallible;

    #[inline]
    fn current(&mut self) -> &mut [u8] {
        &mut self.memory[self.block * BLOCK..][..BLOCK]
    }

    fn full(&mut self, _: usize, _: u32) -> Result<(), Self::Error> {
        self.block += 1;
        Ok(())
    }
}

/// Each use of a page has a lap of its own, or records of an earlier one would be valid.
fn header(index: u64, len: usize) -> PageHeader {
    PageHeader {
        stream: 1,
        index,
        lap: len as u64,
        first_seq: 0,
        created_ns: 0,
        record_magic: 0,
        form: Form::Sealed,
    }
}

/// Appends records of a size until the pages are full; how many.
#[inline(never)]
fn append(pages: &mut [u8], source: &[u8], len: usize, key: &StreamKey) -> u64 {
    let mut records = 0;
    let mut payloads = source.chunks_exact(len).cycle();
    let mut payload = payloads.next().unwrap();
    for (index, memory) in (0..).zip(pages.chunks_exact_mut(PAGE)) {
        let mut blocks = InMemory { memory, block: 0 };
        let mut writer = PageWriter::begin(&header(index, len), key, PAGE, &mut blocks).unwrap();
        loop {
            match writer.append(&mut blocks, payload) {
                Ok(()) => records += 1,
                Err(AppendError::Full) => break,
                Err(error) => panic!("{error}"),
            }
            payload = payloads.next().unwrap();
        }
    }
    records
}

/// Walks through all records; how many.
#[inline(never)]
fn walk(pages: &[u8], len: usize, key: &StreamKey) -> u64 {
    let mut records = 0;
    for (index, bytes) in (0..).zip(pages.chunks_exact(PAGE)) {
        let header = header(index, len);
        let page = Page::new(header, key.page(header.index, header.lap), bytes);
        for item in page.walk() {
            match item {
                Item::Record(record) => {
                    black_box(record.payload);
                    records += 1;
                }
                Item::Missing(missing) => panic!("{missing:?}"),
            }
        }
    }
    records
}

/// Copies as many records as were appended, to where their payloads are.
#[inline(never)]
fn copy(to: &mut [u8], source: &[u8], len: usize, pitch: usize) -> u64 {
    let mut records = 0;
    for (place, payload) in to
        .chunks_exact_mut(pitch)
        .zip(source.chunks_exact(len).cycle())
    {
        place[..len].copy_from_slice(payload);
        records += 1;
    }
    records
}

fn timed(run: impl FnOnce() -> u64) -> f64 {
    let start = Instant::now();
    let records = run();
    #[allow(clippy::cast_precision_loss, reason = "few")]
    let records = records as f64;
    start.elapsed().as_secs_f64() * 1e9 / records
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| {
        arguments
            .get(at)
            .map_or(default, |text| text.parse().expect("a number"))
    };
    let (mib, rounds) = (number(0, 256), number(1, 5));
    let only = arguments.get(2).map(String::as_str);
    let key = StreamKey::new([9; 16]);
    let mut pages = vec![1; (mib << 20) / PAGE * PAGE];
    let mut copied = pages.clone();
    let source: Vec<u8> = (0..pages.len())
        .map(|at| (at * 31).to_le_bytes()[0])
        .collect();
    if let Some(only) = only {
        let (what, len) = only.split_once(' ').expect("append or walk, and a size");
        let len = len.parse().expect("a size");
        let records = append(&mut pages, &source, len, &key);
        if what == "walk" {
            assert_eq!(walk(&pages, len, &key), records);
        }
        println!("{records} records");
        return;
    }
    for (len, append_bar, walk_bar) in [(64, 25.0, 15.0), (1024, 1.5, 1.2)] {
        let mut times = [const { Vec::new() }; 4];
        for _ in 0..rounds {
            times[0].push(timed(|| append(&mut pages, &source, len, &key)));
            times[1].push(timed(|| copy(&mut copied, &source, len, len + 16)));
            times[2].push(timed(|| walk(&pages, len, &key)));
            times[3].push(timed(|| {
                copied.copy_from_slice(&pages);
                (pages.len() / (len + 16)) as u64
            }));
            black_box(&copied);
        }
        let [append, copy, walk, copy_all] = times.map(median);
        let ratio = [append / copy, walk / copy_all];
        let bars = if len == 64 {
            [format!("{append_bar} ns"), format!("{walk_bar} ns")]
        } else {
            [
                format!("{append_bar} of memcpy"),
                format!("{walk_bar} of memcpy"),
            ]
        };
        println!(
            "append {len} B: {append:.1} ns, memcpy {copy:.1} ns, ratio {:.2}, bar {}",
            ratio[0], bars[0]
        );
        println!(
            "walk {len} B: {walk:.1} ns, memcpy {copy_all:.1} ns, ratio {:.2}, bar {}",
            ratio[1], bars[1]
        );
    }
}
