//! What kind of packet a record is of, and how it is written: its head.

use super::fields::{Options, Transport};

/// Heads of records that are remembered; the last number of the code says that another follows.
pub(super) const HEADS: usize = 31;
/// Bits of their code.
pub(super) const HEADS_BITS: u32 = 5;

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

/// What kind of packet it is, from the lowest bit:
///
/// ```text
///  0 form u2
///  2 has_label u1
///  3 is_v6 u1             of a new flow, else 0
///  4 transport u2         of a new flow, else 0
///  6 is_odd u1            something is unusual
///  7 flags u3             of TCP: a code
/// 10 options u2           of TCP: a code
/// 12 may_fragment u1      IPv4 without DF
/// 13 no_identification u1 0, in the first IPv4 packet of a direction
/// 14 is_offloaded u1      the checksum is that of the pseudo-header
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head(pub(super) u16);

impl Head {
    /// Bits of a head.
    pub(super) const BITS: u32 = 15;
    /// How many there can be.
    pub(super) const COUNT: usize = 1 << Self::BITS;
    /// A packet that is not plain.
    pub(super) const OTHER: Self = Self(Form::Other as u16);

    const LABEL: u16 = 1 << 2;
    const V6: u16 = 1 << 3;
    pub(super) const ODD: u16 = 1 << 6;
    pub(super) const MAY_FRAGMENT: u16 = 1 << 12;
    pub(super) const NO_IDENTIFICATION: u16 = 1 << 13;
    pub(super) const OFFLOADED: u16 = 1 << 14;

    /// One with these codes of TCP, which are 0 for other transports.
    #[inline(always)]
    pub(super) const fn tcp(flags: u8, options: OptionsCode) -> Self {
        Self((flags as u16) << 7 | (options as u16) << 10)
    }

    /// The same of a known flow, which may be the last one.
    #[inline(always)]
    pub(super) const fn of_flow(self, is_last: bool) -> Self {
        let form = if is_last { Form::Same } else { Form::Known };
        Self(self.0 & !3 | form as u16)
    }

    /// The same of a new flow.
    #[inline(always)]
    pub(super) const fn of_new(self, is_v6: bool, transport: Transport) -> Self {
        Self(self.0 & !3 | Form::New as u16 | (is_v6 as u16) << 3 | (transport as u16) << 4)
    }

    /// The same, with these bits too if the condition holds.
    #[inline(always)]
    pub(super) const fn with(self, bits: u16, condition: bool) -> Self {
        Self(self.0 | if condition { bits } else { 0 })
    }

    #[inline(always)]
    pub(super) const fn with_label(self, condition: bool) -> Self {
        self.with(Self::LABEL, condition)
    }

    #[inline(always)]
    pub(super) fn has(self, bits: u16) -> bool {
        self.0 & bits != 0
    }

    #[inline(always)]
    pub(super) fn has_label(self) -> bool {
        self.has(Self::LABEL)
    }

    #[inline(always)]
    pub(super) fn is_v6(self) -> bool {
        self.has(Self::V6)
    }

    #[inline(always)]
    pub(super) fn form(self) -> Form {
        match self.0 & 3 {
            0 => Form::Same,
            1 => Form::Known,
            2 => Form::New,
            _ => Form::Other,
        }
    }

    /// Whether it is that of a packet that is not plain.
    #[inline(always)]
    pub(super) fn is_other(self) -> bool {
        self.0 & 3 == Self::OTHER.0
    }

    /// Of a new flow.
    #[inline(always)]
    pub(super) fn transport(self) -> Option<Transport> {
        match self.0 >> 4 & 3 {
            0 => Some(Transport::Tcp),
            1 => Some(Transport::Udp),
            2 => Some(Transport::Icmp),
            _ => None,
        }
    }

    /// The code of TCP's flags.
    #[inline(always)]
    pub(super) fn flags(self) -> usize {
        usize::from(self.0 >> 7 & 7)
    }

    #[inline(always)]
    pub(super) fn options(self) -> OptionsCode {
        match self.0 >> 10 & 3 {
            0 => OptionsCode::None,
            1 => OptionsCode::Stamps,
            2 => OptionsCode::Last,
            _ => OptionsCode::Raw,
        }
    }
}

/// How TCP's options are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OptionsCode {
    None = 0,
    /// Timestamps alone, aligned.
    Stamps = 1,
    /// As the last ones with [`OptionsCode::Raw`].
    Last = 2,
    Raw = 3,
}

impl OptionsCode {
    /// Of these options, if others than timestamps were `last` before.
    #[inline(always)]
    pub(super) fn of(options: &Options<'_>, last: &[u8]) -> Self {
        match options {
            Options::None => Self::None,
            Options::Stamps(..) => Self::Stamps,
            Options::Raw(bytes) if *bytes == last => Self::Last,
            Options::Raw(_) => Self::Raw,
        }
    }
}

/// What is unusual about a packet.
pub(super) mod odd {
    pub(in super::super) const TOS: u8 = 1;
    pub(in super::super) const IP_CHECKSUM: u8 = 2;
    pub(in super::super) const WIRE_LEN: u8 = 4;
    pub(in super::super) const PREFIX: u8 = 8;
    pub(in super::super) const TRANSPORT: u8 = 16;
    pub(in super::super) const ACKNOWLEDGEMENT: u8 = 32;
    pub(in super::super) const CHECKSUM: u8 = 64;
    /// Bits for all of them.
    pub(in super::super) const BITS: u32 = 7;
}

/// The shortest Ethernet frame, without check sequence.
pub(super) const FRAME_MIN: u32 = 60;

/// TCP flags that have a code: ACK, PSH ACK, SYN, SYN ACK, FIN ACK, RST ACK, RST.
pub(super) const FLAGS: [u8; 8] = [0x10, 0x18, 0x02, 0x12, 0x11, 0x14, 0x04, 0];
/// The code of any others.
pub(super) const FLAGS_OTHER: u8 = 7;
pub(super) const FLAG_CODES: [u8; 256] = {
    let mut codes = [FLAGS_OTHER; 256];
    let mut code = 0;
    while code < FLAGS_OTHER {
        codes[FLAGS[code as usize] as usize] = code;
        code += 1;
    }
    codes
};

/// The heads that are known at the start of a datagram.
pub(super) const USUAL: [u16; HEADS] = {
    const fn tcp(is_v6: bool, flags: u8, options: OptionsCode) -> u16 {
        let head = Head::tcp(flags, options);
        head.of_new(is_v6, Transport::Tcp).0
    }
    const fn known(is_last: bool, flags: u8, options: OptionsCode) -> u16 {
        Head::tcp(flags, options).of_flow(is_last).0
    }
    use OptionsCode::{Last, None, Raw, Stamps};
    const UDP: Head = Head::tcp(0, None);
    [
        tcp(false, 0, None),
        tcp(false, 0, Stamps),
        tcp(false, 1, None),
        tcp(false, 1, Stamps),
        tcp(false, 4, None),
        tcp(false, 4, Stamps),
        tcp(false, 5, None),
        tcp(false, 6, None),
        tcp(false, 2, Raw),
        tcp(false, 2, Last),
        tcp(false, 3, Raw),
        tcp(true, 0, None),
        tcp(true, 0, Stamps),
        tcp(true, 1, None),
        tcp(true, 1, Stamps),
        tcp(true, 4, None),
        tcp(true, 4, Stamps),
        tcp(true, 2, Raw),
        UDP.of_new(false, Transport::Udp).0,
        UDP.of_new(true, Transport::Udp).0,
        UDP.of_new(false, Transport::Icmp).0,
        UDP.with(Head::MAY_FRAGMENT, true)
            .of_new(false, Transport::Udp)
            .0,
        known(true, 0, None),
        known(true, 0, Stamps),
        known(true, 1, None),
        known(true, 1, Stamps),
        known(false, 0, None),
        known(false, 0, Stamps),
        known(false, 1, None),
        known(false, 1, Stamps),
        Head::OTHER.0,
    ]
};
