//! The first fields of a record: what kind of packet it is, in one code; its time; its label.

use super::Label;
use super::model::{HEADS, LABELS, Model};
use super::record::Invalid;
use crate::bits::Bits;
use crate::datagram::Datagram;

/// How a record is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// Of the flow of the last plain packet that had one.
    Same = 0,
    /// Of a flow that was in the datagram.
    Known = 1,
    /// Of another flow.
    New = 2,
    /// Not plain.
    Other = 3,
}

/// What kind of packet it is. As 12 bits, from the lowest:
///
/// ```text
///  0 form u2
///  2 has_label u1
///  3 is_v6 u1         of a new flow, else 0
///  4 transport u2     of a new flow, else 0
///  6 is_odd u1
///  7 flags u3         of TCP: a code
/// 10 options u2       of TCP: a code
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) form: Form,
    pub(super) has_label: bool,
    pub(super) is_v6: bool,
    pub(super) transport: u8,
    pub(super) is_odd: bool,
    pub(super) flags: u8,
    pub(super) options: u8,
}

impl Head {
    /// Bits of a head.
    const BITS: u32 = 12;
    /// How many there can be.
    pub(super) const COUNT: usize = 1 << Self::BITS;
    /// A packet that is not plain.
    pub(super) const OTHER: Self = Self {
        form: Form::Other,
        has_label: false,
        is_v6: false,
        transport: 0,
        is_odd: false,
        flags: 0,
        options: 0,
    };

    #[inline(always)]
    pub(super) const fn bits(self) -> u16 {
        self.form as u16
            | (self.has_label as u16) << 2
            | (self.is_v6 as u16) << 3
            | (self.transport as u16) << 4
            | (self.is_odd as u16) << 6
            | (self.flags as u16) << 7
            | (self.options as u16) << 10
    }

    #[inline(always)]
    fn of(bits: u16) -> Self {
        let [low, high] = bits.to_le_bytes();
        Self {
            form: match low & 3 {
                0 => Form::Same,
                1 => Form::Known,
                2 => Form::New,
                _ => Form::Other,
            },
            has_label: low & 4 != 0,
            is_v6: low & 8 != 0,
            transport: low >> 4 & 3,
            is_odd: low & 64 != 0,
            flags: low >> 7 | (high & 3) << 1,
            options: high >> 2 & 3,
        }
    }
}

/// The heads that are known at the start of a datagram.
pub(super) const USUAL: [u16; HEADS] = {
    const NONE: u8 = 0;
    const STAMPS: u8 = 1;
    const RAW: u8 = 3;
    const fn tcp(form: Form, is_v6: bool, flags: u8, options: u8) -> u16 {
        let head = Head {
            form,
            is_v6,
            flags,
            options,
            ..Head::OTHER
        };
        head.bits()
    }
    let udp = Head {
        form: Form::New,
        transport: 1,
        ..Head::OTHER
    };
    [
        tcp(Form::New, false, 0, NONE),
        tcp(Form::New, false, 0, STAMPS),
        tcp(Form::New, false, 1, NONE),
        tcp(Form::New, false, 1, STAMPS),
        tcp(Form::New, false, 2, RAW),
        udp.bits(),
        tcp(Form::New, true, 0, STAMPS),
        tcp(Form::New, true, 1, STAMPS),
        tcp(Form::Same, false, 0, NONE),
        tcp(Form::Same, false, 0, STAMPS),
        tcp(Form::Known, false, 0, NONE),
        tcp(Form::Known, false, 0, STAMPS),
        tcp(Form::Known, false, 1, NONE),
        tcp(Form::Known, false, 1, STAMPS),
        Head::OTHER.bits(),
    ]
};

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
