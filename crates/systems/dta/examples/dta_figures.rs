//! Figures 12, 14, 15 and 16 of the paper at our sizes, a JSON object a line:
//! `cargo run --release -p strata-dta --example dta_figures [MILLION_REPORTS]`. Figure 13 is in
//! `dta_theory`, and 10 and 11 are speeds, of `dta_speed`.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures")]
#![allow(clippy::cast_precision_loss, reason = "rates and shares")]

use std::hint::black_box;
use std::time::Instant;

use strata_dta::append::{Append, Cursor, End};
use strata_dta::key_write::{Agreement, KeyWrite};
use strata_dta::postcarding::Postcarding;
use strata_dta::protocol::{Flags, Report, packed};
use strata_dta::theory::Bounds;
use strata_dta::translator::{Options, Translator};
use strata_dta::{KeyHasher, Local, Origin};
use strata_sys::Growing;
use strata_wire::mix64;

const HASHER: [u64; 2] = [21, 22];
/// Reports of a datagram.
const PACKED: usize = 100;
const HOPS: u32 = 5;

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn memory(len: usize) -> Growing<u8> {
    let mut memory = Growing::new(len, len).unwrap();
    memory.fill(1);
    memory.fill(0);
    memory
}

/// Figure 12: how many of all keys of a store answer, by load factor and copies.
fn queryability(slots: u32) {
    for redundancy in 1..=4 {
        for load in [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2] {
            let store = KeyWrite::new(0, slots, 4, 32);
            let hasher = KeyHasher::new(HASHER);
            let mut bytes = vec![0; usize::try_from(store.memory_len()).unwrap()];
            let mut local = Local::new(&mut bytes);
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let keys = (f64::from(slots) * load) as u32;
            for key in 0..keys {
                let key = key.to_be_bytes();
                let hash = hasher.hash(&key);
                store
                    .put(hash, redundancy, &key, Origin(0), &mut local)
                    .unwrap();
            }
            drop(local);
            let (mut answered, mut formula) = (0_u32, 0.0);
            for key in 0..keys {
                let bytes_of = key.to_be_bytes();
                let value = store.get(
                    &bytes,
                    hasher.hash(&bytes_of),
                    redundancy,
                    Agreement::Plurality,
                );
                assert!(
                    value.is_none_or(|value| value == bytes_of),
                    "a value that was never written"
                );
                answered += u32::from(value.is_some());
                let since = f64::from(keys - key) / f64::from(slots);
                formula += 1.0 - Bounds::key_write(since, redundancy, 32).no_answer_max();
            }
            println!(
                r#"{{"figure":12,"n":{redundancy},"load":{load},"answered":{:.5},"formula":{:.5}}}"#,
                f64::from(answered) / f64::from(keys),
                formula / f64::from(keys),
            );
        }
    }
}

/// Packed datagrams of reports.
fn datagrams(reports: &[Report<'_>]) -> Vec<Vec<u8>> {
    let mut sequence = 0;
    let mut all = Vec::new();
    for chunk in reports.chunks(PACKED) {
        let mut repr = packed::Repr::of(&chunk[0], Flags::default());
        repr.sequence = sequence;
        sequence += u32::try_from(chunk.len()).unwrap();
        let mut bytes = Vec::new();
        repr.emit(chunk, &mut bytes);
        all.push(bytes);
    }
    all
}

/// Takes datagrams; seconds.
fn taken(
    translator: &mut Translator,
    sinks: &mut [Local<&mut [u8]>; 1],
    datagrams: &[Vec<u8>],
) -> f64 {
    let origin = translator.reporter([127, 0, 0, 1].into()).unwrap();
    let mut nacks = Vec::new();
    seconds(|| {
        for bytes in datagrams {
            translator.receive_from(origin, bytes, 1, sinks, &mut nacks);
        }
    })
}

/// Figure 14: whole paths, by the flows that report meanwhile and the rows of the cache.
fn paths(reports: usize) {
    let mut memory = memory(256 << 20);
    for rows in [8 << 10, 32 << 10, 128 << 10] {
        for flows in [100, 1_000, 10_000, 100_000] {
            let hasher = KeyHasher::new(HASHER);
            let chunks = u32::try_from(memory.len() / 32).unwrap();
            let mut options = Options::new(hasher);
            options.postcarding = Some(Postcarding::new(0, chunks, 5, 32, 1, hasher));
            options.cache_rows = rows;
            // The flow that is drawn reports its next hop; after its last, another flow takes its
            // place.
            let mut active: Vec<(u32, u8)> = (0..flows).map(|flow| (flow, 0)).collect();
            let mut next = flows;
            let postcards: Vec<_> = (0..reports as u64)
                .map(|n| {
                    let drawn = usize::try_from(mix64(n) % u64::from(flows)).unwrap();
                    let (flow, hop) = active[drawn];
                    active[drawn] = (flow, hop + 1);
                    if u32::from(hop) + 1 == HOPS {
                        active[drawn] = (next, 0);
                        next += 1;
                    }
                    (flow.to_be_bytes(), hop)
                })
                .collect();
            let report = |(key, hop): &'_ ([u8; 4], u8)| (*key, *hop);
            let held: Vec<_> = postcards.iter().map(report).collect();
            let all: Vec<_> = held
                .iter()
                .map(|(key, hop)| Report::Postcard {
                    key,
                    hop: *hop,
                    path_len: None,
                    value: 7,
                })
                .collect();
            let datagrams = datagrams(&all);
            let mut translator = Translator::new::<Local<&mut [u8]>>(options, |_| End::default());
            let mut sinks = [Local::new(&mut memory)];
            let seconds = taken(&mut translator, &mut sinks, &datagrams);
            let counters = translator.cache().unwrap().counters();
            let whole = counters.complete as f64;
            println!(
                r#"{{"figure":14,"rows":{rows},"flows":{flows},"whole":{:.5},"mpaths":{:.2},"mpostcards":{:.2}}}"#,
                whole / (whole + counters.collided as f64),
                whole / seconds / 1e6,
                reports as f64 / seconds / 1e6,
            );
        }
    }
}

/// Figures 15 and 16: entries of 4 bytes into one list and out of it, by batch and length of the
/// ring.
fn lists(reports: usize) {
    let words: Vec<[u8; 4]> = (0..u32::try_from(reports).unwrap())
        .map(u32::to_be_bytes)
        .collect();
    let all: Vec<_> = words
        .iter()
        .map(|data| Report::Append { list: 0, data })
        .collect();
    let datagrams = datagrams(&all);
    for mib in [1, 64, 1024] {
        let mut memory = memory(mib << 20);
        for batch in [1, 2, 4, 8, 16, 64] {
            memory.fill(0);
            let slot = Append::new(0, 1, 2, batch, 4).slot_len();
            let slots = u32::try_from((mib << 20) / slot).unwrap();
            let store = Append::new(0, 1, slots, batch, 4);
            let mut options = Options::new(KeyHasher::new(HASHER));
            options.append = Some(store);
            let mut translator = Translator::new::<Local<&mut [u8]>>(options, |_| End::default());
            // In turns, as long as a quarter of the ring: written, then read.
            let turn = (slots as usize / 4 * batch / PACKED).clamp(1, datagrams.len());
            let mut cursor = Cursor::new(0);
            let (mut writing, mut reading, mut read, mut missed) = (0.0, 0.0, 0, 0);
            for some in datagrams.chunks(turn) {
                let mut sinks = [Local::new(&mut memory)];
                writing += taken(&mut translator, &mut sinks, some);
                drop(sinks);
                reading += seconds(|| {
                    let mut sum = 0_u64;
                    let mut add = |entry: &[u8]| sum += u64::from(entry[3]);
                    while let Some(found) = cursor.read(&store, &memory, &mut add) {
                        read += found.entries;
                        missed += found.missed;
                    }
                    black_box(sum);
                });
            }
            assert_eq!(missed, 0, "the reader was lapped");
            println!(
                r#"{{"figure":15,"ring_mib":{mib},"batch":{batch},"written":{:.1},"read":{:.1}}}"#,
                reports as f64 / writing / 1e6,
                read as f64 / reading / 1e6,
            );
        }
    }
}

fn main() {
    let million = std::env::args().nth(1).map_or(10, |n| n.parse().unwrap());
    queryability(1 << 20);
    paths(million * 1_000_000);
    lists(million * 1_000_000);
}
