//! Ports of a new flow: that of a service, one of the last two or by its place in a table, and the
//! other one.

use super::model::Services;

/// Even codes are for a destination that is a service; from this one on, both are written.
pub(super) const BOTH: usize = 6;
/// Codes with a place in the table.
const PLACE: usize = 4;

/// Bits of the place.
#[inline(always)]
pub(super) fn place_width(code: usize) -> u32 {
    const WIDTHS: [u32; 8] = [0, 0, 0, 0, 4, 4, 0, 0];
    WIDTHS[code & 7]
}

/// The code, the place, and a word that has what follows in its high bits; the service is learned.
#[inline(always)]
pub(super) fn write(m: &mut Services, ports: u32) -> (usize, u16, u32) {
    let (from, to) = split(ports);
    let [first, second] = m.last;
    let (from_place, to_place) = (Services::place(from), Services::place(to));
    let is = |is: bool, code: u32| u32::from(is) << code;
    let codes = is(to == first, 0)
        | is(from == first, 1)
        | is(to == second, 2)
        | is(from == second, 3)
        | is(to == m.at(to_place), 4)
        | is(from == m.at(from_place), 5)
        | is(true, 6);
    let code = codes.trailing_zeros() as usize;
    let (service, other, place) = if code & 1 == 0 {
        (to, from, to_place)
    } else {
        (from, to, from_place)
    };
    if code >= BOTH {
        m.learn(from, to);
        return (code, 0, ports);
    }
    m.follow(service);
    let place = if code < PLACE { 0 } else { place };
    (code, place, u32::from(other) << 16)
}

/// The ports.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "one of four")]
pub(super) fn read(m: &mut Services, code: usize, place: u16, word: u32) -> u32 {
    let (first, second) = split(word);
    if code >= BOTH {
        m.learn(first, second);
        return word;
    }
    let by_place = m.at(place);
    // Shifts instead of comparisons, since no CPU predicts which it is.
    let [last, before] = m.last.map(u64::from);
    let by_place = u64::from(by_place);
    let known = last | before << 16 | by_place << 32 | by_place << 48;
    let service = (known >> (code >> 1 & 3).wrapping_mul(16)) as u16;
    m.follow(service);
    let both = u32::from(first) << 16 | u32::from(service);
    both.rotate_left(if code & 1 == 0 { 0 } else { 16 })
}

#[inline(always)]
fn split(ports: u32) -> (u16, u16) {
    let [a, b, c, d] = ports.to_be_bytes();
    (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
}
