//! Headers of any other form: the bytes that differ from an earlier one, or all.

use super::code::Invalid;
use crate::bits::{BitReader, BitWriter, Bits};

/// How many are remembered.
const RECENT: usize = 4;
/// Bytes that are remembered of each; what is longer differs from zeros.
const KEPT: usize = 256;
/// Bytes that one bit says are all the same.
const GROUP: usize = 8;

/// The last of these headers.
#[derive(Debug)]
pub(super) struct Recent {
    bytes: Box<[[u8; KEPT]; RECENT]>,
    lens: [usize; RECENT],
    count: usize,
    next: usize,
}

impl Recent {
    pub(super) fn new() -> Self {
        Self {
            bytes: Box::new([[0; KEPT]; RECENT]),
            lens: [0; RECENT],
            count: 0,
            next: 0,
        }
    }

    pub(super) fn restart(&mut self) {
        self.count = 0;
        self.next = 0;
    }

    fn add(&mut self, header: &[u8]) {
        let kept = header.len().min(KEPT);
        let place = &mut self.bytes[self.next];
        place[..kept].copy_from_slice(&header[..kept]);
        place[kept..].fill(0);
        self.lens[self.next] = header.len();
        self.next = (self.next + 1) % RECENT;
        self.count = (self.count + 1).min(RECENT);
    }

    /// The one with the most bytes in common, if that is more than what saying so costs.
    fn best(&self, header: &[u8]) -> Option<usize> {
        let common = |index: usize| {
            let pairs = self.bytes[index].iter().zip(header);
            pairs.filter(|(a, b)| a == b).count()
        };
        let best = (0..self.count).map(|index| (common(index), index)).max()?;
        (best.0 > header.len() / 4).then_some(best.1)
    }

    fn byte(&self, reference: usize, at: usize) -> u8 {
        match self.bytes[reference % RECENT].get(at) {
            Some(&byte) => byte,
            // The format says that what is not kept is 0.
            None => 0,
        }
    }
}

/// Bytes that a record takes at most, if it says everything.
pub(super) fn len_max(header: &[u8]) -> usize {
    // Form, time, label, lengths, reference; and what a partial byte and a word take.
    header.len() + 32
}

/// Writes a header after the common fields. `room` is for a record that mentions an earlier one.
pub(super) fn write(
    b: &mut BitWriter<'_>,
    recent: &mut Recent,
    header: &[u8],
    wire_len: u32,
    room: usize,
) {
    let len = header.len();
    b.turn();
    b.half(strata_wire::exact::<u16>(len), 16);
    let is_whole = u32::try_from(len).is_ok_and(|len| len == wire_len);
    b.flag(is_whole);
    b.turn();
    b.word(
        if is_whole { 0 } else { wire_len },
        if is_whole { 0 } else { 32 },
    );
    // Every group's mask can take 9 bits more.
    let fits = len_max(header) + len.div_ceil(GROUP) * 9 / 8 < room;
    let reference = if fits { recent.best(header) } else { None };
    b.flag(reference.is_some());
    b.turn();
    match reference {
        None => {
            let mut pieces = header.chunks_exact(4);
            for piece in &mut pieces {
                b.word(u32::from_le_bytes(piece.try_into().expect("4 bytes")), 32);
                b.turn();
            }
            for &byte in pieces.remainder() {
                b.byte(byte, 8);
            }
            b.turn();
        }
        Some(reference) => {
            b.bits(reference as u64, 2);
            for (number, group) in header.chunks(GROUP).enumerate() {
                let differs = |(at, &byte): (usize, &u8)| {
                    u8::from(byte != recent.byte(reference, number * GROUP + at)) << at
                };
                let mask = group.iter().enumerate().map(differs).sum::<u8>();
                b.flag(mask != 0);
                if mask == 0 {
                    b.turn();
                    continue;
                }
                b.byte(mask, 8);
                b.turn();
                for (at, &byte) in group.iter().enumerate() {
                    if mask >> at & 1 != 0 {
                        b.byte(byte, 8);
                        b.turn();
                    }
                }
            }
        }
    }
    recent.add(header);
}

/// Reads what [`write`] wrote: the header, and the packet's length on the wire.
pub(super) fn read(
    b: &mut BitReader<'_>,
    recent: &mut Recent,
    out: &mut Vec<u8>,
) -> Result<u32, Invalid> {
    b.turn();
    let len = usize::from(b.half(0, 16));
    let is_whole = b.flag(false);
    b.turn();
    let said = b.word(0, if is_whole { 0 } else { 32 });
    let wire_len = if is_whole {
        strata_wire::exact::<u32>(len)
    } else {
        said
    };
    let has_reference = b.flag(false);
    b.turn();
    let reference = if has_reference {
        let reference = usize::from(b.byte(0, 2));
        if reference >= recent.count {
            return Err(Invalid("a difference to a header that was not there"));
        }
        Some(reference)
    } else {
        None
    };
    out.clear();
    while out.len() < len {
        if b.is_past_end() {
            return Err(Invalid("a cut header"));
        }
        let group = (len - out.len()).min(GROUP);
        match reference {
            None => {
                for _ in 0..group {
                    b.turn();
                    out.push(b.byte(0, 8));
                }
            }
            Some(reference) => {
                b.turn();
                let mask = if b.flag(false) { b.byte(0, 8) } else { 0 };
                for at in 0..group {
                    b.turn();
                    let byte = if mask >> at & 1 != 0 {
                        b.byte(0, 8)
                    } else {
                        recent.byte(reference, out.len())
                    };
                    out.push(byte);
                }
            }
        }
    }
    b.turn();
    recent.add(out);
    Ok(wire_len)
}
