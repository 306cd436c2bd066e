//! pcapng of many sections, and pcap, whose payload is the fuzzer's bytes over and over, so that they
//! may be heads of blocks and records: read ahead, when heads are looked for in them, as without.
#![no_main]

use std::sync::LazyLock;

use strata_capture::InputOptions;
use strata_fuzz::capture::{Scratch, read, read_with};
use strata_fuzz::{Bounded, Chooser};

#[global_allocator]
static MEMORY: Bounded = Bounded::new();
static MADE: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("sections"));

/// Enough for walkers in each window but the first, which is read before there are any.
const FILE_BYTES: usize = 900 << 10;
const WINDOW_BYTES: usize = 256 << 10;
/// Each is something that is kept of a file, of which there is a bound.
const SECTIONS_MAX: u16 = 8_000;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let file = made(bytes);
    let path = [MADE.fill(&file).to_path_buf()];
    let Some(plain) = read(&path, 4096) else {
        return;
    };
    let mut options = InputOptions::default();
    options.window_bytes = WINDOW_BYTES;
    options.read_ahead = true;
    let ahead = read_with(&path, &options).expect("as much as without");
    assert!(plain.error.is_none() && ahead.error.is_none());
    assert!(plain.items == ahead.items);
    assert_eq!(plain.warnings, ahead.warnings);
});

/// A byte of kinds, two of sections, one of lengths, and what packets are full of.
fn made(bytes: &[u8]) -> Vec<u8> {
    let mut choose = Chooser::new(bytes);
    let kinds = choose.u8();
    let (big, ng) = (kinds & 1 != 0, kinds & 2 != 0);
    let sections = choose.u16() % SECTIONS_MAX;
    let step = usize::from(choose.u8());
    let pattern = choose.rest();
    let words = |numbers: &[u32]| -> Vec<u8> {
        let bytes = numbers.iter().map(|number| match big {
            true => number.to_be_bytes(),
            false => number.to_le_bytes(),
        });
        bytes.flatten().collect()
    };
    let halves = |first: u32, second: u32| match big {
        true => first << 16 | second,
        false => second << 16 | first,
    };
    let section = words(&[0x0a0d_0d0a, 28, 0x1a2b_3c4d, halves(1, 0), !0, !0, 28]);
    let interface = words(&[1, 20, halves(1, 0), 0, 20]);
    let mut file = match ng {
        true => [section.repeat(usize::from(sections) + 1), interface].concat(),
        false => words(&[0xa1b2_c3d4, halves(2, 4), 0, 0, 262_144, 1]),
    };
    let mut index = 0_u32;
    while file.len() < FILE_BYTES {
        let len = 60 + (index as usize * (step + 1)) % 1_440;
        let payload = pattern.iter().copied().cycle().take(len);
        let packet: Vec<u8> = payload
            .chain(std::iter::repeat_n(0, len))
            .take(len)
            .collect();
        let (wide, padded) = (len as u32, len.next_multiple_of(4));
        if ng {
            let total = padded as u32 + 32;
            file.extend(words(&[6, total, 0, 0x0006_0a24, index, wide, wide]));
            file.extend(packet);
            file.resize(file.len() + padded - len, 0);
            file.extend(words(&[total]));
        } else {
            file.extend(words(&[0x6553_f100 + index % 200, index, wide, wide]));
            file.extend(packet);
        }
        index += 1;
    }
    file
}
