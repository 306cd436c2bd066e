//! Headers of any other form: the bytes that differ from an earlier one, or all.

use super::Invalid;
use crate::bits::{Reader, Writer};

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
        self.next = self.next.wrapping_add(1) % RECENT;
        self.count = self.count.wrapping_add(1).min(RECENT);
    }

    /// The remembered header with the most bytes equal to those of `header`, if more than a quarter of `header` is
    /// equal: with fewer, a reference costs more than it saves.
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
    header.len().wrapping_add(32)
}

/// Writes a header after the common fields. `room` is for a record that mentions an earlier one.
#[inline(never)]
pub(super) fn write(
    w: &mut Writer<'_>,
    recent: &mut Recent,
    header: &[u8],
    wire_len: u32,
    room: usize,
) {
    let len = header.len();
    w.all(strata_wire::exact::<u16>(len).to_be_bytes());
    let is_whole = u32::try_from(len).is_ok_and(|len| len == wire_len);
    // Every group's mask can take 9 bits more.
    let fits = len_max(header).wrapping_add(len.div_ceil(GROUP).wrapping_mul(9) / 8) < room;
    let reference = if fits { recent.best(header) } else { None };
    w.bits(u64::from(is_whole), 1);
    w.bits(u64::from(reference.is_some()), 1);
    if !is_whole {
        w.all(wire_len.to_be_bytes());
    }
    if let Some(reference) = reference {
        w.bits(reference as u64, 2);
        for (number, group) in header.chunks(GROUP).enumerate() {
            w.turn();
            let differs = |(at, &byte): (usize, &u8)| {
                u8::from(
                    byte != recent.byte(reference, number.wrapping_mul(GROUP).wrapping_add(at)),
                ) << at
            };
            let mask = group.iter().enumerate().map(differs).sum::<u8>();
            w.bits(u64::from(mask != 0), 1);
            w.bits(u64::from(mask), if mask == 0 { 0 } else { 8 });
            for (at, &byte) in group.iter().enumerate() {
                w.some([byte], usize::from(mask >> at & 1));
            }
        }
    } else {
        w.slice(header);
    }
    w.turn();
    recent.add(header);
}

/// Reads what [`write`] wrote: the header, and the packet's length on the wire.
#[inline(never)]
pub(super) fn read(
    r: &mut Reader<'_>,
    recent: &mut Recent,
    out: &mut Vec<u8>,
) -> Result<u32, Invalid> {
    const CUT: Invalid = Invalid("a truncated header");
    let len = u16::from_be_bytes(r.all());
    let is_whole = r.bits(1) != 0;
    let has_reference = r.bits(1) != 0;
    let wire_len = if is_whole {
        len.into()
    } else {
        u32::from_be_bytes(r.all())
    };
    let len = usize::from(len);
    out.clear();
    if has_reference {
        let reference = r.word(2) as usize;
        if reference >= recent.count {
            return Err(Invalid("a difference from a missing header"));
        }
        while out.len() < len {
            r.turn();
            r.rest().ok_or(CUT)?;
            let has_mask = r.bits(1) != 0;
            let mask = r.bits(if has_mask { 8 } else { 0 });
            for at in 0..len.wrapping_sub(out.len()).min(GROUP) {
                let is_said = mask >> at & 1 != 0;
                let [said] = r.some(usize::from(is_said));
                let same = recent.byte(reference, out.len());
                out.push(if is_said { said } else { same });
            }
        }
    } else {
        out.extend_from_slice(r.slice(len).ok_or(CUT)?);
    }
    r.turn();
    recent.add(out);
    Ok(wire_len)
}
