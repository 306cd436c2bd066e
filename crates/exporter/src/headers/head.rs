//! The first fields of a record: what kind of packet it is, in one code; its time; its label.

use super::Label;
use super::code::Invalid;
use super::kind::{HEADS, Head};
use super::model::{LABELS, Model};
use crate::bits::Bits;
use crate::datagram::Datagram;

/// A head: the number of one that is known, or itself. `known` is that number, or [`HEADS`].
#[inline(always)]
pub(super) fn head<B: Bits>(b: &mut B, m: &mut Model, known: usize, head: u16) -> Head {
    let code = usize::from(b.byte(known.to_le_bytes()[0], 4));
    if code < HEADS {
        return Head::of(m.heads[code]);
    }
    let bits = b.half(head, Head::BITS);
    b.turn();
    m.add_head(bits);
    Head::of(bits)
}

/// A label that is not the last one's.
#[inline(never)]
pub(super) fn label<B: Bits>(b: &mut B, m: &mut Model, label: Label) -> Result<Label, Invalid> {
    let known = m.labels[..m.label_count].iter();
    let found = known
        .enumerate()
        .find(|(_, known)| B::WRITES && **known == label);
    let code = b.byte(found.map_or(LABELS, |(index, _)| index).to_le_bytes()[0], 4);
    let code = usize::from(code);
    let label = if code == LABELS {
        let label = Label {
            policy: b.half(label.policy, 16),
            class: b.byte(label.class, 8),
            one_in: {
                b.turn();
                b.word(label.one_in, 32)
            },
        };
        m.add_label(label);
        label
    } else if code < m.label_count {
        m.labels[code]
    } else {
        return Err(Invalid("a label that was not there"));
    };
    b.turn();
    m.label = label;
    Ok(label)
}

/// Ones before the zero of a time difference that is written whole.
const TIME_ESCAPE: u32 = 15;

/// The difference to the last packet's time: its high bits as so many ones and a zero, its low bits
/// as they are; or 15 ones and all of it.
#[inline(always)]
pub(super) fn write_time<B: Bits>(b: &mut B, datagram: &Datagram, last_ns: u64, ts_ns: u64) {
    let difference = ts_ns.wrapping_sub(last_ns);
    let units = if datagram.in_microseconds {
        difference / 1000
    } else {
        difference
    };
    let (high, width) = (units >> datagram.time_bits, datagram.time_bits);
    if high < u64::from(TIME_ESCAPE) && ts_ns >= last_ns {
        let high = strata_wire::exact::<u32>(high);
        b.bits((1 << high) - 1, high + 1);
        b.bits(units & ((1 << width) - 1), width);
    } else {
        b.bits((1 << TIME_ESCAPE) - 1, TIME_ESCAPE);
        b.turn();
        b.bits(difference & 0xffff_ffff, 32);
        b.turn();
        b.bits(difference >> 32, 32);
    }
    b.turn();
}

/// Reads what [`write_time`] wrote; `ones` is how many there are. The packet's time.
#[inline(always)]
pub(super) fn read_time<B: Bits>(b: &mut B, datagram: &Datagram, last_ns: u64, ones: u32) -> u64 {
    let difference = if ones < TIME_ESCAPE {
        b.bits(0, ones + 1);
        let width = datagram.time_bits;
        let units = u64::from(ones) << width | b.bits(0, width);
        // At most 40 bits and a factor of 1000.
        if datagram.in_microseconds {
            units * 1000
        } else {
            units
        }
    } else {
        b.bits(0, TIME_ESCAPE);
        b.turn();
        let low = b.bits(0, 32);
        b.turn();
        low | b.bits(0, 32) << 32
    };
    b.turn();
    last_ns.wrapping_add(difference)
}
