//! Bytes that begin as a pcapng file does: as they are, and with the second
//! lengths of blocks made to agree with the first, which chance does not do.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::Corpus;
use strata_fuzz::Bounded;
use strata_fuzz::capture::{Scratch, check};

#[global_allocator]
static MEMORY: Bounded = Bounded::new();
static ORIGINAL: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("pcapng"));
static WRITTEN: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("pcapng-written"));

const SECTION: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| -> Corpus {
    if !bytes.starts_with(&SECTION) {
        return Corpus::Reject;
    }
    check(&ORIGINAL, &WRITTEN, bytes);
    let repaired = repaired(bytes);
    if repaired != bytes {
        check(&ORIGINAL, &WRITTEN, &repaired);
    }
    Corpus::Keep
});

fn repaired(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let (mut at, mut big) = (0, false);
    while let Some(head) = out.get(at..).and_then(|rest| rest.first_chunk::<12>()) {
        if head[..4] == SECTION {
            big = head[8..] == 0x1a2b_3c4d_u32.to_be_bytes();
        }
        let stated = [head[4], head[5], head[6], head[7]];
        let len = if big {
            u32::from_be_bytes(stated)
        } else {
            u32::from_le_bytes(stated)
        };
        let Some(end) = (len as usize)
            .checked_next_multiple_of(4)
            .and_then(|len| at.checked_add(len))
        else {
            break;
        };
        if len < 12 || end > out.len() {
            break;
        }
        out[end - 4..end].copy_from_slice(&stated);
        at = end;
    }
    out
}
