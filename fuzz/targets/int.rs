//! Any telemetry reports of INT from several nodes, parts and versions in turn, lost, repeated, late, forged
//! and from nodes that start again: nothing overflows, and losses never exceed what can be lost.
//!
//! Input: 4 bytes a step: what happens, which node, and by how much its number goes on.
#![no_main]

use libfuzzer_sys::fuzz_target;
use strata_dta::int::mapping::Mapper;
use strata_dta::int::table::Table;
use strata_fuzz::{Bounded, Chooser};

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

/// Datagrams that a source may lose between two times of settling.
const LOST_MAX: u64 = 1 << 16;

/// A datagram without reports: its version, its node, the part of it, its number.
fn datagram(version: u8, node: u32, hw_id: u8, sequence: u32) -> Vec<u8> {
    let words = match version {
        1 => vec![0x1400_0000 | u32::from(hw_id), node, sequence, 0],
        _ => {
            let part = u32::from(hw_id) << 22;
            vec![0x2000_0000 | part | sequence & 0x3f_ffff, node]
        }
    };
    words.into_iter().flat_map(u32::to_be_bytes).collect()
}

fuzz_target!(|bytes: &[u8]| {
    let mut choose = Chooser::new(bytes);
    let mut mapper = Mapper::new(Table::parse("").expect("an empty table"), 56);
    let mut next = [0_u32; 16];
    let (mut settled, mut before) = (0_u64, mapper.counters());
    while !choose.is_empty() {
        let (what, who, by) = (choose.u8(), choose.u8(), choose.u16());
        let source = usize::from(who % 16);
        let number = &mut next[source];
        *number = match what % 8 {
            // The next one, a few lost, many lost, one of those before.
            0..=3 => number.wrapping_add(1),
            4 => number.wrapping_add(u32::from(by % 64)),
            5 => number.wrapping_add(u32::from(by) << (what >> 3)),
            6 => number.wrapping_sub(u32::from(by % 5000)),
            // It starts again, or somebody says so.
            _ => u32::from(by) << (what >> 3 & 1) * 16,
        };
        if what >= 0xf0 {
            mapper.settle(&mut |_| {});
            settled += 1;
        }
        let bytes = match what {
            // What only looks like one.
            0xe0..=0xef => choose.take(usize::from(by % 64)).to_vec(),
            _ => datagram(1 + who % 2, u32::from(who >> 1 & 3), who >> 3 & 1, *number),
        };
        let _ = mapper.map(&bytes, &mut |_| {});
        let after = mapper.counters();
        assert!(
            after.missing + 1 >= before.missing,
            "one comes late at a time"
        );
        assert!(after.jumps >= before.jumps && after.repeated >= before.repeated);
        before = after;
    }
    // Sources: versions, nodes, parts, and what looked like one.
    let sources = 16 + before.datagrams;
    assert!(before.missing <= (settled + 1) * sources * LOST_MAX);
});
