//! What kind of packet a record is of, and how it is written.

/// Heads of records that are remembered; the last number of the code says that another follows.
pub(super) const HEADS: usize = 15;

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
    pub(super) const BITS: u32 = 12;
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
    pub(super) fn of(bits: u16) -> Self {
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
