//! How the fields of a new flow are written, found with a table each: the same as [`code`] says with comparisons, of which
//! no CPU predicts the result.

use std::hint::select_unpredictable;

use crate::headers::code;
use crate::headers::model::{Model, Near, PLACE_BITS};

/// A way to write a value: after its code, how many of its low bits.
#[derive(Clone, Copy)]
struct Way {
    mask: u32,
    width: u8,
    code: u8,
}

impl Way {
    const NONE: Self = Self::new(0, 0);

    #[allow(clippy::cast_possible_truncation, reason = "at most 32 bits")]
    const fn new(code: u8, width: u32) -> Self {
        Self {
            mask: (1_u64 << width).wrapping_sub(1) as u32,
            width: width as u8,
            code,
        }
    }

    #[inline(always)]
    fn of(self, value: u32) -> Said {
        Said {
            code: u64::from(self.code),
            value: u64::from(value & self.mask),
            width: u32::from(self.width),
        }
    }
}

/// A value as it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Said {
    pub(super) code: u64,
    pub(super) value: u64,
    pub(super) width: u32,
}

/// Of an address: 0 if it is known; by the highest bit that differs from the last one; 32 more, from the other one.
static ADDRESSES: [Way; 64] = {
    let mut ways = [Way::NONE; 64];
    ways[0] = Way::new(0, PLACE_BITS);
    let mut bit = 15;
    while bit < 32 {
        // 15, up to 19, up to 23, all others.
        let nearness = if bit < 24 { (bit - 12) >> 2 } else { 3 };
        let codes = [[1, 4], [2, 5], [3, 6], [7, 7]][nearness];
        let mut other = 0;
        while other < 2 {
            let code = codes[other];
            ways[other * 32 + bit] = Way::new(code, code::ADDRESS[code as usize]);
            other += 1;
        }
        bit += 1;
    }
    ways
};

/// An IPv4 address of a new flow, the source's (0) or the destination's; it is remembered.
///
/// The last one and the other one are of different /8 (unless both are of 0/8, where [`code`] looks at both): what is
/// in that of the last one is nearer to it, what is not is at least as near to the other one.
#[inline(always)]
pub(super) fn address(m: &mut Model, prefix: usize, end: usize, address: u32) -> Said {
    let (place, is_known) = m.add_address(address);
    let near = &mut m.prefix_mut(prefix).near[end];
    let before = *near;
    near.follow(address);
    let (last, other) = (address ^ before.last, address ^ before.other);
    let is_other = last >> 24 != 0;
    let differs = if is_other { other } else { last };
    let bit = (differs | 0x8000).ilog2();
    let mut way = if is_other { bit | 32 } else { bit };
    if address >> 24 == 0 {
        way = of_zero(address, before);
    }
    let way = if is_known { 0 } else { way };
    let value = if is_known { place.into() } else { address };
    ADDRESSES[way as usize & 63].of(value)
}

/// The way of any address that is not known.
#[cold]
fn of_zero(address: u32, near: Near) -> u32 {
    let code = code::address(address, near);
    let is_way = |way: &u32| usize::from(ADDRESSES[*way as usize].code) == code;
    (15..64).find(is_way).expect("every code has one")
}

/// Of a payload's length: by how many bits it has; the full one.
static LENS: [Way; 18] = {
    let mut ways = [Way::new(7, 16); 18];
    let mut bits = 0;
    while bits <= 11 {
        let code = [0, 3, 3, 3, 3, 3, 5, 5, 5, 6, 6, 6][bits];
        ways[bits] = Way::new(code, code::LEN[code as usize]);
        bits += 1;
    }
    ways[FULL as usize] = Way::new(2, 0);
    ways
};
const FULL: u32 = 17;

/// A payload's length.
#[inline(always)]
pub(super) fn len(len: u16, full: u16, is_padded: bool) -> Said {
    // How many bits: 0 of 0. The full one is never less than 56, so a frame with that is not filled up.
    let bits = (u32::from(len) << 1 | 1).ilog2();
    let way = select_unpredictable(len == full, FULL, bits);
    const PLACES: usize = LENS.len();
    let mut said = LENS[way as usize % PLACES].of(len.into());
    // The next code is that of a frame that is filled up.
    said.code = said.code.wrapping_add(u64::from(is_padded));
    said
}

/// Of times to live that are not the last one: value, width, code.
#[allow(clippy::cast_possible_truncation, reason = "below 256")]
static TTLS: [[u8; 4]; 256] = {
    let mut all = [[0; 4]; 256];
    let mut ttl = 0;
    while ttl < 256 {
        let value = ttl as u8;
        all[ttl] = match value {
            49..=64 => [64 - value, 4, 1, 0],
            113..=128 => [128 - value, 4, 2, 0],
            _ => [value, 8, 3, 0],
        };
        ttl += 1;
    }
    all
};

/// A time to live.
#[inline(always)]
pub(super) fn ttl(ttl: u8, usual: u8) -> Said {
    let known = u32::from_le_bytes(TTLS[usize::from(ttl)]);
    let known = select_unpredictable(ttl == usual, 0, known);
    let [value, width, code, _] = known.to_le_bytes();
    Said {
        code: code.into(),
        value: value.into(),
        width: width.into(),
    }
}

/// TCP's window.
#[inline(always)]
pub(super) fn window(window: u16, usual: u16) -> Said {
    let code = if window < 0x400 { 1 } else { 2 };
    let code = if window == usual { 0 } else { code };
    WINDOWS[code].of(window.into())
}

static WINDOWS: [Way; 3] = [Way::new(0, 0), Way::new(1, 10), Way::new(2, 16)];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::index;
    use proptest::prelude::*;

    #[test]
    fn lengths_times_to_live_and_windows_are_written_as_the_other_writer_does() {
        for number in 0..=u16::MAX {
            for usual in [64, 56, 512, 1448, 1460, number | 1] {
                let width = |code: usize, widths: &[u32]| widths[code];
                for is_padded in [false, number < 18 && usual >= 56] {
                    let said = len(number, usual, is_padded);
                    let code = code::len(number, usual, is_padded);
                    assert_eq!(
                        (said.code, said.width),
                        (code as u64, width(code, &code::LEN))
                    );
                    let value = if said.width == 0 { 0 } else { number };
                    assert_eq!(said.value, u64::from(value));
                }
                let said = window(number, usual);
                let (code, value) = code::window(number, usual);
                let expected = (code as u64, u64::from(value), width(code, &code::WINDOW));
                assert_eq!((said.code, said.value, said.width), expected);
                let [number, usual] = [number, usual].map(|of| of.to_le_bytes()[0]);
                let said = ttl(number, usual);
                let (code, value) = code::ttl(number, usual);
                let expected = (code as u64, u64::from(value), width(code, &code::TTL));
                assert_eq!((said.code, said.value, said.width), expected);
            }
        }
    }

    proptest! {
        /// Also those of 0/8, and what is known.
        #[test]
        fn addresses_are_written_as_the_other_writer_does(
            all in prop::collection::vec((0_u32..4, any::<u32>(), 0_u32..33), 1..200),
        ) {
            let mut models = [Model::new(), Model::new()];
            for model in &mut models {
                model.add_prefix(&[0; 14]);
            }
            for (net, address, width) in all {
                // Few networks, and a few bits that differ.
                let bits = u32::try_from((1_u64 << width) - 1).unwrap();
                let address = net << 24 | address & bits;
                let said = super::address(&mut models[0], 0, 1, address);
                let expected = index::address(&mut models[1], 0, 1, address);
                prop_assert_eq!(said.code, expected.code as u64);
                prop_assert_eq!((said.value, said.width), (expected.value, expected.width));
            }
        }
    }
}
