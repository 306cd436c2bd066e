//! Any datagrams at a DTA translator, an INT mapper in front of it and a reporter; then any memory
//! under the queries: every report is counted once, and nothing is written outside the stores.
//!
//! Input: 2 bytes of choices, then datagrams, each after its length (u16) and a byte that says where
//! it goes and, in bit 7, that its opcode is made a known one, since chance does not.
#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use libfuzzer_sys::fuzz_target;
use strata_dta::append::{Append, Cursor, End};
use strata_dta::int::mapping::Mapper;
use strata_dta::int::table::Table;
use strata_dta::key_increment::KeyIncrement;
use strata_dta::key_write::{Agreement, KeyWrite};
use strata_dta::postcarding::{Dictionary, Merge, Postcarding, Values};
use strata_dta::protocol::packed::Repr;
use strata_dta::protocol::{Flags, Report};
use strata_dta::reporter::{Reporter, ReporterOptions};
use strata_dta::translator::{Options, Rate, Translator};
use strata_dta::{KeyHasher, Local, Operation, Origin, Room, Sink};
use strata_fuzz::{Bounded, Chooser};

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

const SWITCH: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// A query known ahead.
const WATCH: &str = "[[watch]]\nname = \"slow\"\nabove = 9\nlist = 4\n";

/// Memory of exactly the stores' length: a write beyond it is a panic.
struct Collector(Vec<u8>, Room);

impl Sink for Collector {
    const KEEPS_ORIGINS: bool = true;
    const MERGES: bool = true;

    fn room(&self, _: Operation) -> Room {
        self.1
    }

    fn write(&mut self, at: u64, bytes: &[u8], _: &[Origin]) {
        let at = usize::try_from(at).expect("an address within memory");
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn merge(&mut self, at: u64, chunk: &[u8], how: Merge, _: &[Origin]) {
        Local::new(&mut self.0).merge(at, chunk, how, &[]);
    }

    fn fetch_add(&mut self, at: u64, add: u64, _: &[Origin]) {
        let at = usize::try_from(at).expect("an address within memory");
        let counter: &mut [u8; 8] = self.0[at..].first_chunk_mut().expect("8 bytes");
        *counter = u64::from_ne_bytes(*counter).wrapping_add(add).to_ne_bytes();
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut choose = Chooser::new(bytes);
    let choices = choose.u16();
    let hasher = KeyHasher::new([1, 2]);
    let key_write = KeyWrite::new(0, 64, 20, 32);
    let mut end = key_write.memory_len();
    let dictionary = Dictionary {
        at: end,
        len: 8,
        above: 20,
    };
    end += 64;
    let postcarding = Postcarding::new(end, 64, 5, 16, 2, hasher).with_dictionary(dictionary);
    end += postcarding.memory_len();
    let key_increment = KeyIncrement::new(end, 64, 2);
    end += key_increment.memory_len();
    let append = Append::new(end, 2, 4, 3, 18);
    end += append.memory_len();
    let mut options = Options::new(hasher);
    options.collectors = 1 + usize::from(choices & 1);
    options.key_write = (choices & 2 == 0).then_some(key_write);
    options.postcarding = (choices & 4 == 0).then_some(postcarding);
    options.key_increment = Some(key_increment);
    options.append = Some(append);
    options.cache_rows = 4;
    if choices & 8 != 0 {
        options.rate = Some(Rate {
            operations_per_second: 1000,
            burst: 10,
        });
    }
    let room = match choices >> 4 & 3 {
        0 => Room::Gone,
        1 => Room::Operations(3),
        _ => Room::Operations(100),
    };
    let memory = vec![0; usize::try_from(end).expect("a few KiB")];
    let mut sinks: Vec<Collector> = (0..options.collectors)
        .map(|n| {
            Collector(
                memory.clone(),
                if n == 0 { Room::Operations(100) } else { room },
            )
        })
        .collect();
    let mut translator = Translator::new::<Collector>(options, |_| End::default());
    let hop_from = ["ttl", "arrival", "stack", "ttl"][usize::from(choices >> 6 & 3)];
    let table = format!("hop-from = \"{hop_from}\"\n{WATCH}");
    let table = Table::parse(&table).expect("the default table and a query");
    let mut mapper = Mapper::new(table, 18);
    let mut reporter = Reporter::new(ReporterOptions::new(1));
    let mut nacks = Vec::new();
    let mut now_ns = 0;
    while !choose.is_empty() {
        let len = usize::from(choose.u16()) % 600;
        let what = choose.u8();
        let mut datagram = choose.take(len).to_vec();
        if what & 0x80 != 0
            && let Some(first) = datagram.first_mut()
        {
            const KNOWN: [u8; 8] = [1, 2, 3, 4, 0x21, 0x22, 0x23, 0x24];
            *first = KNOWN[usize::from(*first) % 8];
        }
        now_ns += u64::from(what) << 16;
        match what & 3 {
            0 | 1 => translator.receive(SWITCH, &datagram, now_ns, &mut sinks, &mut nacks),
            2 => {
                let mut each = |report: &Report<'_>| {
                    let flags = Flags::of_event(report);
                    let mut out = Vec::new();
                    Repr::of(report, flags).emit(&[*report], &mut out);
                    reporter.report(report, flags, 0, now_ns, &mut |_| {});
                };
                let _ = mapper.map(&datagram, &mut each);
                if what & 4 != 0 {
                    mapper.settle(&mut each);
                }
            }
            _ => reporter.receive(&datagram, now_ns),
        }
        translator.tick(now_ns, &mut sinks);
        reporter.tick(now_ns, &mut |datagram| {
            assert!(datagram.len() <= 1432);
        });
        for nack in nacks.drain(..) {
            let mut bytes = Vec::new();
            nack.emit(&mut bytes);
            reporter.receive(&bytes, now_ns);
        }
    }
    translator.finish(&mut sinks);
    assert!(
        translator
            .reporters()
            .all(|(_, counters)| counters.balances())
    );
    let counters = mapper.counters();
    assert!(
        counters.above <= counters.summed,
        "one query, an event for a sum at most"
    );
    // Queries answer from whatever is there.
    let values = Values::new(&postcarding, 0..20);
    let memory = &mut sinks[0].0;
    for (byte, noise) in memory.iter_mut().zip(bytes.iter().cycle()) {
        *byte ^= noise & u8::try_from(choices >> 8).expect("8 bits");
    }
    for n in 0..20_u32 {
        let key = hasher.hash(&n.to_be_bytes());
        let _ = key_write.get(memory, key, 4, Agreement::Plurality);
        if let Some(path) = postcarding.get(memory, key, &values) {
            let known = path.values().iter().flatten().count();
            assert!(!path.is_whole() || known == usize::from(path.extent().hops));
        }
        let _ = key_increment.get(memory, key);
    }
    for list in 0..2 {
        let mut cursor = Cursor::new(list);
        for _ in 0..4 {
            let _ = cursor.read(&append, memory, |entry| assert_eq!(entry.len(), 18));
        }
        let _ = append.end(memory, list);
    }
});
