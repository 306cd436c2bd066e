//! Any text as a query in Marple's language, run over vectors of any tuples.
//!
//! Input: the query up to a zero byte, then tuples.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use strata_fuzz::{Bounded, Chooser};
use strata_gpv::marple::{Flows, Limits, Query, compile};
use strata_gpv::{Full, Key, Reason, Vector};
use strata_wire::{AddressFamily, Endpoint};

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

const LIMITS: Limits = Limits {
    groups_max: 50,
    rows_max: 100,
    bytes_max: 1 << 20,
};

fuzz_target!(|bytes: &[u8]| -> Corpus {
    let end = bytes
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(bytes.len());
    let Ok(text) = std::str::from_utf8(&bytes[..end]) else {
        return Corpus::Reject;
    };
    let program = match compile(text, &[("n", "3"), ("delta", "5ms")]) {
        Ok(program) => program,
        Err(error) => {
            assert!(error.line > 0 && error.column > 0 && !error.message.is_empty());
            assert!(!error.to_string().is_empty());
            return Corpus::Keep;
        }
    };
    assert!(program.instructions() <= 4096);
    let mut query = Query::new::<Full>(program.clone(), LIMITS).expect("every column is there");
    let mut again = Query::new::<Full>(program.clone(), LIMITS).expect("as before");
    let mut third = Query::new::<Full>(program, LIMITS).expect("as before");
    let mut flows = Flows::new();
    let mut choose = Chooser::new(bytes.get(end + 1..).unwrap_or(&[]));
    let mut packets = 0;
    while !choose.is_empty() {
        let (key, start_ns, tuples) = vector(&mut choose);
        packets += tuples.len() as u64;
        let (narrow, wide) = tuples.split_at(tuples.len() / 2);
        let mut vector = Vector {
            key,
            start_ns,
            pieces: [narrow, wide],
            reason: Reason::Full,
            saturated: false,
            slot: 0,
        };
        query.take(1, &vector);
        // The same packets in two vectors, of numbered flows.
        vector.pieces = [narrow, &[]];
        let first = vector;
        vector.pieces = [wide, &[]];
        flows.ask(1, &[first, vector], &mut [&mut again, &mut third]);
    }
    let counters = *query.counters();
    assert_eq!((counters.packets, counters.not_ip), (packets, 0));
    let (answer, twin) = (query.answer(), again.answer());
    assert_eq!(format!("{answer:?}"), format!("{twin:?}"));
    assert_eq!(format!("{answer:?}"), format!("{:?}", third.answer()));
    assert!(answer.rows.len() <= 100);
    assert!(
        answer
            .rows
            .iter()
            .all(|row| row.len() == answer.names.len())
    );
    Corpus::Keep
});

fn vector(choose: &mut Chooser<'_>) -> (Key, u64, Vec<Full>) {
    let end = |byte: u8| Endpoint {
        address: u128::from(byte % 16),
        port: u16::from(byte / 16),
    };
    let (source, destination) = (end(choose.u8()), end(choose.u8()));
    let family = match choose.u8() % 2 {
        0 => AddressFamily::Ipv4,
        _ => AddressFamily::Ipv6,
    };
    let protocol = choose.u8();
    let key = Key::new(family, protocol, source, destination, 1);
    let start_ns = u64::from(choose.u32()) << 24;
    let count = 1 + choose.u8() % 8;
    let tuples = (0..count).map(|_| Full {
        delta_ns: choose.u32(),
        size: choose.u16(),
        payload_len: choose.u16(),
        tcp_seq: choose.u32(),
        tcp_flags: choose.u8(),
        queue_depth: u32::from(choose.u8()),
        ..Full::default()
    });
    (key, start_ns, tuples.collect())
}
