//! Reports in memory into stores in memory, on one core, next to a hash map and a cuckoo table:
//! `cargo run --release -p strata-dta --example dta_speed [STORE_MIB] [MILLION_REPORTS] [ONLY]`,
//! where ONLY is a part of the names of lines, such as "Append".
//!
//! Instructions per report, which do not depend on who else uses the machine: those of `translate` in
//! `CARGO_PROFILE_RELEASE_STRIP=none cargo build --release -p strata-dta --example dta_speed` and
//! `valgrind --tool=callgrind target/release/examples/dta_speed 64 1 "Key-Write N=1, packed"`,
//! then `callgrind_annotate --inclusive=yes`.
//!
//! Reports lie as datagrams in one buffer, as a socket would leave them, and go through the whole
//! translator: header, sequence, hash, store. The limit is printed first: random lines of the same
//! memory, with nothing else to do.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "prints a table")]
#![allow(clippy::cast_precision_loss, reason = "rates")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rank among keys"
)]

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;

use strata_dta::append::{Append, End};
use strata_dta::key_increment::KeyIncrement;
use strata_dta::key_increment::largest::Largest;
use strata_dta::key_write::{Agreement, KeyWrite};
use strata_dta::postcarding::Postcarding;
use strata_dta::protocol::{Flags, Report, packed, published};
use strata_dta::translator::{Options, Translator};
use strata_dta::{KeyHasher, Local, Memory, Origin};
use strata_sys::Growing;
use strata_wire::{mix64, prefetch};

/// Reports whose flows come in any order, for Postcards.
const MIXED: u32 = 200;

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn line(what: &str, reports: usize, seconds: f64, bar: Option<f64>, limit: f64) -> f64 {
    let rate = reports as f64 / seconds / 1e6;
    let bar = bar.map_or(String::new(), |bar| {
        format!("bar {bar:4.0}, {:4.2} of it", rate / bar)
    });
    println!(
        "{what:44} {rate:8.1} M/s  {:5.2} of the limit  {bar}",
        rate / limit
    );
    rate
}

/// Datagrams one after the other.
#[derive(Default)]
struct Datagrams {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    reports: usize,
}

impl Datagrams {
    /// One report each, as a switch sends it.
    fn published<'a>(reports: impl Iterator<Item = Report<'a>>) -> Self {
        let mut all = Self::default();
        for report in reports {
            let repr = published::Repr {
                sequence: None,
                flags: Flags::default(),
                report,
            };
            repr.emit(&mut all.bytes);
            all.ends.push(all.bytes.len());
            all.reports += 1;
        }
        all
    }

    /// Hundred reports each.
    fn packed(reports: &[Report<'_>], key_len: u8, data_len: u8, redundancy: u8) -> Self {
        let mut all = Self::default();
        for chunk in reports.chunks(100) {
            let repr = packed::Repr {
                primitive: chunk[0].primitive(),
                flags: Flags::default(),
                sequence: u32::try_from(all.reports).unwrap(),
                time_ns: 0,
                key_len,
                data_len,
                redundancy,
                session: 0,
            };
            repr.emit(chunk, &mut all.bytes);
            all.ends.push(all.bytes.len());
            all.reports += chunk.len();
        }
        all
    }

    fn each(&self, mut take: impl FnMut(&[u8])) {
        let mut start = 0;
        for &end in &self.ends {
            take(&self.bytes[start..end]);
            start = end;
        }
    }

    /// Through a translator into `memory`.
    fn run(&self, what: &str, bar: f64, options: &Options, memory: &mut [u8], limit: f64) {
        if !wanted(what) {
            return;
        }
        self.run_over(what, bar, options, memory, limit);
    }

    /// The same into any memory.
    fn run_over<M: Memory>(&self, what: &str, bar: f64, options: &Options, memory: M, limit: f64) {
        let mut translator = Translator::new::<Local<M>>(options.clone(), |_| End::default());
        let origin = translator.reporter([127, 0, 0, 1].into()).unwrap();
        let mut sinks = [Local::over(memory)];
        let seconds = seconds(|| translate(self, &mut translator, origin, &mut sinks));
        assert_eq!(translator.counters(origin).accepted, self.reports as u64);
        line(what, self.reports, seconds, Some(bar), limit);
    }
}

/// What is measured: a function of its own, so that its instructions can be counted.
#[inline(never)]
fn translate<M: Memory>(
    datagrams: &Datagrams,
    translator: &mut Translator,
    origin: Origin,
    sinks: &mut [Local<M>; 1],
) {
    let mut nacks = Vec::new();
    datagrams.each(|bytes| translator.receive_from(origin, bytes, 1, sinks, &mut nacks));
    translator.finish(sinks);
    sinks[0].flush();
}

/// Memory beside which the keys with the largest counts are kept, as a collector does.
struct Keeping<'a> {
    memory: &'a mut [u8],
    largest: Largest,
}

impl Memory for Keeping<'_> {
    #[inline(always)]
    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.memory.write(at, bytes);
    }

    #[inline(always)]
    fn load(&self, at: usize) -> [u8; 8] {
        self.memory.load(at)
    }

    #[inline(always)]
    fn store(&mut self, at: usize, word: u64) {
        self.memory.store(at, word);
    }

    #[inline(always)]
    fn add(&mut self, at: usize, add: u64) -> u64 {
        self.memory.add(at, add)
    }

    #[inline(always)]
    fn prefetch(&self, at: usize) {
        prefetch(self.memory, at);
    }

    #[inline(always)]
    fn floor(&self) -> u64 {
        self.largest.floor()
    }

    #[inline(always)]
    fn exceeds(&mut self, key: &[u8], place: usize, count: u64) {
        black_box(self.largest.offer(key, place as u64, count));
    }
}

/// Whether a line is wanted.
fn wanted(what: &str) -> bool {
    let only = std::env::args().nth(3);
    only.is_none_or(|only| what.contains(&only))
}

fn keys(count: usize) -> Vec<[u8; 4]> {
    let key = |n: usize| u32::try_from(mix64(n as u64) >> 32).unwrap().to_be_bytes();
    (0..count).map(key).collect()
}

/// Random lines of `memory`, fetched ahead and written: what the memory can do.
fn limit(memory: &mut [u8], count: usize) -> f64 {
    let lines = memory.len() as u64 / 64;
    let at = |n: usize| usize::try_from(mix64(n as u64) % lines).unwrap() * 64;
    let seconds = seconds(|| {
        for n in 0..count {
            prefetch(memory, at(n + 32));
            let word: &mut [u8; 8] = memory[at(n)..].first_chunk_mut().unwrap();
            *word = n.to_le_bytes();
        }
    });
    count as f64 / seconds / 1e6
}

/// A table of two buckets of four entries a key, that moves entries out of the way.
struct Cuckoo {
    entries: Vec<(u32, u32)>,
    mask: usize,
}

impl Cuckoo {
    fn new(entries: usize) -> Self {
        let buckets = (entries / 4).next_power_of_two();
        Self {
            entries: vec![(0, 0); buckets * 4],
            mask: buckets - 1,
        }
    }

    fn put(&mut self, mut key: u32, mut value: u32) -> bool {
        let mut hash = mix64(u64::from(key));
        for turn in 0..64 {
            let first = usize::try_from(hash & 0xffff_ffff).unwrap() & self.mask;
            let second = usize::try_from(hash >> 32).unwrap() & self.mask;
            for bucket in [first, second] {
                for entry in &mut self.entries[bucket * 4..bucket * 4 + 4] {
                    if entry.0 == key || *entry == (0, 0) {
                        *entry = (key, value);
                        return true;
                    }
                }
            }
            let moved = &mut self.entries[second * 4 + turn % 4];
            (key, value) = std::mem::replace(moved, (key, value));
            hash = mix64(u64::from(key));
        }
        false
    }
}

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .take(2)
        .map(|n| n.parse::<usize>().unwrap());
    let mib = arguments.next().map_or(1024, |n| n);
    let count = arguments.next().map_or(10, |n| n) * 1_000_000;
    // In huge pages, as collectors should have it; every page is present before anything is timed.
    let mut memory = Growing::<u8>::new(mib << 20, mib << 20).unwrap();
    memory.fill(1);
    let memory = &mut memory[..];
    let limit = limit(memory, count);
    println!("{mib} MiB, {count} reports; limit: random lines, fetched ahead: {limit:.1} M/s");
    let hasher = KeyHasher::new([1, 2]);
    let keys = keys(count);
    let slots = u32::try_from(memory.len() / 8).unwrap();

    let mut options = Options::new(hasher);
    options.key_write = Some(KeyWrite::new(0, slots, 4, 32));
    options.key_increment = Some(KeyIncrement::new(0, slots, 1));
    for (redundancy, bar) in [(1, 40.0), (2, 25.0)] {
        let report = |key| Report::KeyWrite {
            redundancy,
            key,
            data: &[1, 2, 3, 4],
        };
        let reports: Vec<_> = keys.iter().map(|key| report(&key[..])).collect();
        let datagrams = Datagrams::published(reports.iter().copied());
        datagrams.run(
            &format!("Key-Write N={redundancy}, published"),
            bar,
            &options,
            memory,
            limit,
        );
        let datagrams = Datagrams::packed(&reports, 4, 4, redundancy);
        datagrams.run(
            &format!("Key-Write N={redundancy}, packed"),
            bar,
            &options,
            memory,
            limit,
        );
    }
    if wanted("queries") {
        queries(&options, memory, &keys, limit);
    }
    for (redundancy, bar) in [(1, 25.0), (2, 15.0)] {
        let report = |key| Report::KeyIncrement {
            redundancy,
            key,
            counter: 1,
        };
        let reports: Vec<_> = keys.iter().map(|key| report(&key[..])).collect();
        let datagrams = Datagrams::packed(&reports, 4, 8, redundancy);
        options.key_increment = Some(KeyIncrement::new(0, slots, redundancy));
        datagrams.run(
            &format!("Key-Increment N={redundancy}, packed"),
            bar,
            &options,
            memory,
            limit,
        );
    }
    largest_keys(&mut options, memory, &keys, limit);
    postcards(memory, hasher, count, limit);
    append(memory, hasher, count, limit);
    if wanted("tables") {
        tables(&keys, limit);
    }
}

/// Key-Increment with a table of the largest counts: of keys that all have few reports, and of keys of
/// which the first 1,000 have half of all reports.
fn largest_keys(options: &mut Options, memory: &mut [u8], keys: &[[u8; 4]], limit: f64) {
    let slots = u32::try_from(memory.len() / 8).unwrap();
    options.key_increment = Some(KeyIncrement::new(0, slots, 2));
    for (skewed, what) in [
        (false, "Key-Increment N=2 and largest keys, packed"),
        (true, "Key-Increment N=2 and largest of skewed keys"),
    ] {
        if !wanted(what) {
            continue;
        }
        let rank = |n: usize| (keys.len() as f64).powf(n as f64 / keys.len() as f64) as usize;
        let key = |n: usize| match skewed {
            true => &keys[rank(usize::try_from(mix64(n as u64)).unwrap() % keys.len())],
            false => &keys[n],
        };
        let report = |n: usize| Report::KeyIncrement {
            redundancy: 2,
            key: key(n),
            counter: 1,
        };
        let reports: Vec<_> = (0..keys.len()).map(report).collect();
        let datagrams = Datagrams::packed(&reports, 4, 8, 2);
        memory.fill(0);
        let keeping = Keeping {
            memory: &mut *memory,
            largest: Largest::new(1024),
        };
        datagrams.run_over(what, 15.0, options, keeping, limit);
    }
}

fn queries(options: &Options, memory: &[u8], keys: &[[u8; 4]], limit: f64) {
    const AHEAD: usize = 16;
    let store = options.key_write.unwrap();
    let mut found = 0_usize;
    let time = seconds(|| {
        for chunk in keys.chunks(AHEAD) {
            let mut hashes = [Default::default(); AHEAD];
            for (hash, key) in hashes.iter_mut().zip(chunk) {
                *hash = options.hasher.hash(key);
                store.prefetch(memory, *hash, 2);
            }
            for &hash in &hashes[..chunk.len()] {
                let value = store.get(memory, hash, 2, Agreement::Plurality);
                found += usize::from(value.is_some());
            }
        }
    });
    line(
        "queries N=2, 16 at a time",
        keys.len(),
        time,
        Some(10.0),
        limit,
    );
    println!(
        "  {:.3} % answered",
        found as f64 / keys.len() as f64 * 100.0
    );
}

fn postcards(memory: &mut [u8], hasher: KeyHasher, count: usize, limit: f64) {
    let chunks = u32::try_from(memory.len() / 32).unwrap();
    let mut options = Options::new(hasher);
    options.postcarding = Some(Postcarding::new(0, chunks, 5, 32, 1, hasher));
    // Five hops of 200 flows, hop by hop: within 1,000 reports.
    let flow = |n: u32| n / (5 * MIXED) * MIXED + n % MIXED;
    let flows: Vec<_> = (0..u32::try_from(count).unwrap())
        .map(|n| flow(n).to_be_bytes())
        .collect();
    let report = |(n, key): (u32, &'_ [u8; 4])| (u8::try_from(n / MIXED % 5).unwrap(), *key);
    let hops: Vec<_> = (0..).zip(&flows).map(report).collect();
    let reports: Vec<_> = hops
        .iter()
        .map(|(hop, key)| Report::Postcard {
            key,
            hop: *hop,
            path_len: None,
            value: 7,
        })
        .collect();
    let datagrams = Datagrams::packed(&reports, 4, 4, 0);
    datagrams.run("Postcards B=5, packed", 60.0, &options, memory, limit);
    let datagrams = Datagrams::published(reports.iter().copied());
    datagrams.run("Postcards B=5, published", 60.0, &options, memory, limit);
}

fn append(memory: &mut [u8], hasher: KeyHasher, count: usize, limit: f64) {
    let slot = Append::new(0, 1, 2, 16, 4).slot_len();
    let slots = u32::try_from(memory.len() / slot / 256).unwrap();
    let mut options = Options::new(hasher);
    options.append = Some(Append::new(0, 256, slots, 16, 4));
    let report = |n: usize| Report::Append {
        list: u32::try_from(mix64(n as u64) >> 56).unwrap(),
        data: &[1, 2, 3, 4],
    };
    let reports: Vec<_> = (0..count).map(report).collect();
    let datagrams = Datagrams::packed(&reports, 0, 4, 0);
    datagrams.run(
        "Append 4 B, 256 lists at random, batch 16",
        300.0,
        &options,
        memory,
        limit,
    );
}

/// The same keys and values into tables that find a key again for certain.
fn tables(keys: &[[u8; 4]], limit: f64) {
    let mut map: HashMap<u32, u32> = HashMap::with_capacity(keys.len());
    let time = seconds(|| {
        for key in keys {
            map.insert(u32::from_be_bytes(*key), 1);
        }
    });
    black_box(&map);
    line(
        "for comparison: HashMap of std (SipHash)",
        keys.len(),
        time,
        None,
        limit,
    );
    drop(map);
    let mut cuckoo = Cuckoo::new(keys.len() * 2);
    let mut full = 0_u64;
    let time = seconds(|| {
        for key in keys {
            full += u64::from(!cuckoo.put(u32::from_be_bytes(*key), 1));
        }
    });
    black_box(&cuckoo.entries);
    line(
        "for comparison: cuckoo table, 2 x 4",
        keys.len(),
        time,
        None,
        limit,
    );
    assert_eq!(full, 0, "the cuckoo table was full");
}
