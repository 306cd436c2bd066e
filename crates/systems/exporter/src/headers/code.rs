//! Fields with a code: how a writer says a value by what is expected, and what a reader makes of it.
//! A code says how many bits of value follow, by a table, without a branch: which one it is cannot be
//! predicted by the CPU.

use std::hint::select_unpredictable;

use super::model::{Near, PLACE_BITS};
use crate::bits::Width;

/// A code, and what follows it.
pub(super) type Coded = (usize, u32);

/// IPv4 address: the place of a known one; low bits, the others as the last one's, or as those of the
/// last one of another /8; all.
pub(super) const ADDRESS: [u32; 8] = [PLACE_BITS, 16, 20, 24, 16, 20, 24, 32];

/// The widths by code again, for [`super::fast::read`].
pub(super) static ADDRESS_WIDTHS: [Width; 8] = Width::all(ADDRESS);
pub(super) static LEN_WIDTHS: [Width; 8] = Width::all(LEN);
pub(super) static TTL_WIDTHS: [Width; 4] = Width::all(TTL);
pub(super) static WINDOW_WIDTHS: [Width; 4] = Width::all(WINDOW);
pub(super) static TTL_SEEN_WIDTHS: [Width; 2] = Width::all([0, 8]);
pub(super) static WINDOW_SEEN_WIDTHS: [Width; 4] = Width::all(WINDOW_SEEN);
pub(super) static IDENTIFICATION_WIDTHS: [Width; 4] = Width::all(IDENTIFICATION);
pub(super) static SEQUENCE_WIDTHS: [Width; 4] = Width::all(SEQUENCE);
pub(super) static STAMP_WIDTHS: [Width; 4] = Width::all(STAMP);
pub(super) static FORWARD_WIDTHS: [Width; 4] = Width::all(FORWARD);

/// The bits that follow each code.
pub(super) const ADDRESS_MASKS: [u32; 8] = masks(ADDRESS);

/// All ones in each of these widths, up to 32.
#[allow(clippy::cast_possible_truncation, reason = "at most 32 bits")]
const fn masks(widths: [u32; 8]) -> [u32; 8] {
    let mut masks = [0; 8];
    let mut code = 0;
    while code < masks.len() {
        masks[code] = (1_u64 << widths[code]).wrapping_sub(1) as u32;
        code = code.wrapping_add(1);
    }
    masks
}

/// Codes by what is enough, of the last one (even) or the other one.
const NEAREST: [u8; 16] = [1, 4, 2, 5, 3, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7];

#[inline(always)]
pub(super) fn address(address: u32, near: Near) -> usize {
    // 0 if the low 16 bits are enough, 1 if 20 are, 2 if 24 are.
    let beyond = |other: u32| (address ^ other | 0x8000).ilog2().wrapping_sub(12) >> 2;
    let (last, other) = (beyond(near.last) << 1, beyond(near.other) << 1 | 1);
    usize::from(NEAREST[last.min(other) as usize & 15])
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "all of 32 bits")]
pub(super) fn address_of((code, value): Coded, near: Near) -> u32 {
    let reference = if code < 4 { near.last } else { near.other };
    let width = ADDRESS[code & 7];
    (u64::from(reference) >> width << width) as u32 | value
}

/// Bytes of an IPv6 address that follow, by its code; those before are the last one's.
pub(super) const ADDRESS_V6: [u32; 8] = [0, 8, 10, 16, 16, 16, 16, 16];

#[inline(always)]
pub(super) fn address_v6_of(code: usize, bytes: [u8; 16], near: u128) -> u128 {
    let said = u128::from_be_bytes(bytes);
    match ADDRESS_V6[code & 7].wrapping_mul(8) {
        bits @ 1..128 => near >> bits << bits | said >> 128_u32.wrapping_sub(bits),
        _ => said,
    }
}

/// Payload length: 0; 0, in a frame filled up to the shortest one; the full one; 5 bits; 5, filled up;
/// 8; 11; 16.
pub(super) const LEN: [u32; 8] = [0, 0, 0, 5, 5, 8, 11, 16];

#[inline(always)]
pub(super) fn len(len: u16, full: u16, is_padded: bool) -> usize {
    let is = usize::from;
    let code = is(len >= 32)
        .wrapping_mul(2)
        .wrapping_add(3)
        .wrapping_add(is(len >= 256))
        .wrapping_add(is(len >= 2048));
    let code = if len == full { 2 } else { code };
    let code = if len == 0 { 0 } else { code };
    code.wrapping_add(is(is_padded))
}

/// The length, and whether the frame is filled up.
#[inline(always)]
pub(super) fn len_of((code, value): Coded, full: u16) -> (u16, bool) {
    let len = select_unpredictable(code == 2, full, low16(value));
    (len, code == 1 || code == 4)
}

/// Time to live of a direction that was not seen: the last such; up to 15 hops below 64; below 128;
/// as it is.
pub(super) const TTL: [u32; 4] = [0, 4, 4, 8];

#[inline(always)]
pub(super) fn ttl(ttl: u8, usual: u8) -> Coded {
    let (of_64, of_128) = (64_u8.wrapping_sub(ttl), 128_u8.wrapping_sub(ttl));
    let coded = (3, ttl);
    let coded = if of_128 < 16 { (2, of_128) } else { coded };
    let coded = if of_64 < 16 { (1, of_64) } else { coded };
    let (code, value) = if ttl == usual { (0, 0) } else { coded };
    (code, u32::from(value))
}

#[inline(always)]
pub(super) fn ttl_of((code, value): Coded, usual: u8) -> u8 {
    let [value, ..] = value.to_le_bytes();
    // Less than what, and inverted if it is the value itself.
    const FROM: [(u8, u8); 4] = [(0, 0), (64, 0), (128, 0), (255, 255)];
    let (from, inverted) = FROM[code & 3];
    let said = from.wrapping_sub(value ^ inverted);
    select_unpredictable(code == 0, usual, said)
}

/// TCP's window in a direction that was not seen: the last such; 10 bits; 16.
pub(super) const WINDOW: [u32; 4] = [0, 10, 16, 16];

#[inline(always)]
pub(super) fn window(window: u16, usual: u16) -> Coded {
    let code = if window < 0x400 { 1 } else { 2 };
    if window == usual {
        (0, 0)
    } else {
        (code, u32::from(window))
    }
}

#[inline(always)]
pub(super) fn window_of((code, value): Coded, usual: u16) -> u16 {
    select_unpredictable(code == 0, usual, low16(value))
}

/// The same in one that was: as before; near that; 16 bits.
pub(super) const WINDOW_SEEN: [u32; 4] = [0, 8, 16, 16];

#[inline(always)]
pub(super) fn window_seen(window: u16, last: u16) -> Coded {
    let step = window.wrapping_sub(last).wrapping_add(128);
    let coded = if step < 256 { (1, step) } else { (2, window) };
    let (code, value) = if window == last { (0, 0) } else { coded };
    (code, u32::from(value))
}

#[inline(always)]
pub(super) fn window_seen_of((code, value): Coded, last: u16) -> u16 {
    let value = low16(value);
    let near = last.wrapping_add(value).wrapping_sub(128);
    [last, near, value, value][code & 3]
}

/// IPv4's identification: one more; the same; up to 255 more; 16 bits.
pub(super) const IDENTIFICATION: [u32; 4] = [0, 0, 8, 16];

#[inline(always)]
pub(super) fn identification(identification: u16, last: u16) -> Coded {
    let step = identification.wrapping_sub(last);
    let coded = if step < 256 {
        (2, step)
    } else {
        (3, identification)
    };
    let coded = if step == 0 { (1, 0) } else { coded };
    let (code, value) = if step == 1 { (0, 0) } else { coded };
    (code, u32::from(value))
}

#[inline(always)]
pub(super) fn identification_of((code, value): Coded, last: u16) -> u16 {
    let value = low16(value);
    let next = last.wrapping_add(1);
    [next, last, last.wrapping_add(value), value][code & 3]
}

/// TCP's sequence number: the expected one; near that; 32 bits.
pub(super) const SEQUENCE: [u32; 4] = [0, 16, 32, 32];

#[inline(always)]
pub(super) fn sequence(sequence: u32, expected: u32) -> Coded {
    let step = sequence.wrapping_sub(expected).wrapping_add(0x8000);
    let coded = if step < 0x1_0000 {
        (1, step)
    } else {
        (2, sequence)
    };
    if sequence == expected { (0, 0) } else { coded }
}

#[inline(always)]
pub(super) fn sequence_of((code, value): Coded, expected: u32) -> u32 {
    let near = expected.wrapping_add(value).wrapping_sub(0x8000);
    [expected, near, value, value][code & 3]
}

/// TCP's timestamp: the same; up to 255 later; up to 65,535; 32 bits.
pub(super) const STAMP: [u32; 4] = [0, 8, 16, 32];

#[inline(always)]
pub(super) fn stamp(stamp: u32, last: u32) -> Coded {
    let step = stamp.wrapping_sub(last);
    let coded = if step < 0x1_0000 {
        (2, step)
    } else {
        (3, stamp)
    };
    let coded = if step < 0x100 { (1, step) } else { coded };
    if step == 0 { (0, 0) } else { coded }
}

#[inline(always)]
pub(super) fn stamp_of((code, value): Coded, last: u32) -> u32 {
    if code == 3 {
        value
    } else {
        last.wrapping_add(value)
    }
}

/// A number that stays; becomes what the other direction says; goes forward by up to 65,535; 32 bits.
pub(super) const FORWARD: [u32; 4] = [0, 0, 16, 32];

#[inline(always)]
pub(super) fn forward(value: u32, last: u32, other: u32) -> Coded {
    let step = value.wrapping_sub(last);
    let coded = if step < 0x1_0000 {
        (2, step)
    } else {
        (3, value)
    };
    let coded = if value == other { (1, 0) } else { coded };
    if step == 0 { (0, 0) } else { coded }
}

#[inline(always)]
pub(super) fn forward_of((code, value): Coded, last: u32, other: u32) -> u32 {
    [last, other, last.wrapping_add(value), value][code & 3]
}

#[inline(always)]
#[allow(
    clippy::cast_possible_truncation,
    reason = "as many bits as a table says"
)]
pub(super) fn low16(value: u32) -> u16 {
    value as u16
}
