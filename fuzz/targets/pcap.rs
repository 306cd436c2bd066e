//! Any bytes but pcapng as a capture file: pcap, or compressed.
#![no_main]

use std::sync::LazyLock;

use strata_fuzz::Bounded;
use strata_fuzz::capture::{Scratch, check};

#[global_allocator]
static MEMORY: Bounded = Bounded::new();
static ORIGINAL: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("pcap"));
static WRITTEN: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("pcap-written"));

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if !bytes.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]) {
        check(&ORIGINAL, &WRITTEN, bytes);
    }
});
