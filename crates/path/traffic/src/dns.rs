//! DNS queries and answers. What a flow asks follows from its number.
#![allow(
    clippy::cast_possible_truncation,
    reason = "header fields hold low bits"
)]

use strata_wire::{exact, mix64};

use crate::bytes::{hex, put};

const LABEL_MAX: usize = 10;

/// Bytes of the first label of a name, at most [`LABEL_MAX`].
fn label_len(number: u64) -> usize {
    3 + (mix64(number) >> 61) as usize
}

/// Addresses in an answer.
fn answers(number: u64) -> usize {
    1 + (mix64(number) >> 50 & 3) as usize
}

const DNS_HEADER_LEN: usize = 12;
const DOMAIN: &[u8] = b"\x07example\x03com\x00";
/// Bytes of an address record whose name is a pointer.
const RECORD_LEN: usize = 16;

/// Bytes of the query or the answer of a flow.
pub(crate) fn dns_len(number: u64, query: bool) -> u32 {
    let question = 1 + label_len(number) + DOMAIN.len() + 4;
    let records = if query {
        0
    } else {
        answers(number) * RECORD_LEN
    };
    exact::<u32>(DNS_HEADER_LEN + question + records)
}

/// A query for an address, or its answer (RFC 1035 §4).
pub(crate) fn dns(number: u64, query: bool, payload: &mut [u8]) {
    let bits = mix64(number);
    let count = answers(number) as u8;
    let (flags, answers) = if query {
        ([1, 0], 0)
    } else {
        ([0x81, 0x80], count)
    };
    let id = [bits as u8, (bits >> 8) as u8];
    let label = &hex::<LABEL_MAX>(bits.rotate_left(20))[..label_len(number)];
    let type_and_class: &[u8] = &[0, 1, 0, 1];
    let counts = [0, 1, 0, answers, 0, 0, 0, 0];
    let mut at = put(
        payload,
        [
            &id,
            &flags,
            &counts,
            &[label.len() as u8],
            label,
            DOMAIN,
            type_and_class,
        ],
    );
    for index in 0..answers {
        let address = [172, 16, bits.to_be_bytes()[3], index];
        let pointer_to_end: &[u8] = &[0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4];
        at += put(&mut payload[at..], [pointer_to_end, &address]);
    }
}
