//! The first fields of a record: what kind of packet it is, in one code; its time; its label.

use super::kind::{HEADS, HEADS_BITS, Head};
use super::model::{LABELS, Model};
use super::{Invalid, Label};
use crate::bits::{Reader, Writer};
use crate::datagram::Datagram;

/// A head: the number of one that is known; or [`HEADS`], and itself.
#[inline(always)]
pub(super) fn write_head(w: &mut Writer<'_>, m: &mut Model, known: u8, head: Head) {
    w.bits(u64::from(known), HEADS_BITS);
    if usize::from(known) == HEADS {
        w.bits(u64::from(head.0), Head::BITS);
        w.turn();
        m.add_head(head.0);
    }
}

#[inline(always)]
pub(super) fn read_head(r: &mut Reader<'_>, m: &mut Model) -> Head {
    let code = r.word(HEADS_BITS) as usize;
    if code < HEADS {
        return Head(m.heads[code]);
    }
    let head = super::code::low16(r.word(Head::BITS));
    r.turn();
    m.add_head(head);
    Head(head)
}

/// Ones before the zero of a time difference that is written whole.
const TIME_ESCAPE: u32 = 15;

/// The difference to the last packet's time: its high bits as that number of ones and a zero, its
/// low bits as they are; or 15 ones and all of it.
#[inline(always)]
pub(super) fn write_time(w: &mut Writer<'_>, datagram: &Datagram, units: u64, difference: u64) {
    if let Some((value, width)) = short_time(datagram, units) {
        w.bits(value, width);
    } else {
        w.bits((1 << TIME_ESCAPE) - 1, TIME_ESCAPE);
        w.all(difference.to_be_bytes());
    }
    w.turn();
}

/// A time difference that is not written whole, and in how many bits.
#[inline(always)]
pub(super) fn short_time(datagram: &Datagram, units: u64) -> Option<(u64, u32)> {
    let width = datagram.time_bits & 63;
    let high = units >> width;
    if high >= u64::from(TIME_ESCAPE) {
        return None;
    }
    let low = units & (1_u64 << width).wrapping_sub(1);
    let high = u32::from(high.to_le_bytes()[0]);
    // The ones, a zero, and what is low.
    let value = ((low << 1 | 1) << high).wrapping_sub(1);
    Some((value, high.wrapping_add(1).wrapping_add(width)))
}

/// Reads what [`write_time`] wrote: the difference, in ns.
#[inline(always)]
pub(super) fn read_time(r: &mut Reader<'_>, datagram: &Datagram) -> u64 {
    let (ones, width) = (r.ones(), datagram.time_bits);
    let difference = if ones < TIME_ESCAPE {
        r.bits(ones.wrapping_add(1));
        let units = u64::from(ones) << (width & 63) | r.bits(width);
        // At most 40 bits and a factor of 1000.
        units.wrapping_mul(if datagram.in_microseconds { 1000 } else { 1 })
    } else {
        r.bits(TIME_ESCAPE);
        u64::from_be_bytes(r.all())
    };
    r.turn();
    difference
}

/// A label that is not the last one's.
#[inline(never)]
pub(super) fn write_label(w: &mut Writer<'_>, m: &mut Model, label: Label) {
    let known = m.labels[..m.label_count].iter();
    let found = known.enumerate().find(|(_, known)| **known == label);
    let code = found.map_or(LABELS, |(index, _)| index);
    w.bits(code as u64, 4);
    w.turn();
    if code == LABELS {
        w.all(label.policy.to_be_bytes());
        w.all([label.class]);
        w.all(label.one_in.to_be_bytes());
        m.add_label(label);
    }
    m.label = label;
}

/// Reads what [`write_label`] wrote, into the model.
#[inline(never)]
pub(super) fn read_label(r: &mut Reader<'_>, m: &mut Model) -> Result<(), Invalid> {
    let code = r.word(4) as usize;
    r.turn();
    if code == LABELS {
        let policy = u16::from_be_bytes(r.all());
        let [class] = r.all();
        let one_in = u32::from_be_bytes(r.all());
        m.label = Label {
            policy,
            class,
            one_in,
        };
        m.add_label(m.label);
    } else if code < m.label_count {
        m.label = m.labels[code];
    } else {
        return Err(Invalid("a reference to a missing label"));
    }
    Ok(())
}
