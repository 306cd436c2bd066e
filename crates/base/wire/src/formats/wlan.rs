//! IEEE 802.11 frames, and the radio headers that captures put before them.

use crate::bytes::{be16, be32, be64, le16, le32, u8_at};

/// Frame control, the first two bytes of a frame (IEEE 802.11-2020 §9.2.4.1).
///
/// ```text
/// bit 0      2     4         8     9       10       11             14          15
/// +---------+------+---------+-----+-------+--------+------+------+-----------+------+
/// | version | type | subtype | to  | from  | more   | ...         | protected | +HTC |
/// |         |      |         | DS  | DS    | fragm. |             |           |      |
/// +---------+------+---------+-----+-------+--------+------+------+-----------+------+
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Control {
    kind: Kind,
    subtype: u8,
    flags: u8,
}

/// What a frame is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Beacons, association, authentication.
    Management,
    /// Acknowledgements and the like.
    Control,
    /// What carries packets.
    Data,
}

const TO_DS: u8 = 0x01;
const FROM_DS: u8 = 0x02;
const PROTECTED: u8 = 0x40;
const HT_CONTROL: u8 = 0x80;
/// In the subtype of data frames.
const NO_DATA: u8 = 0x4;
const QOS: u8 = 0x8;
/// Bytes of a header with three addresses.
const THREE_ADDRESSES: usize = 24;

impl Control {
    /// The frame control at the start of `frame`; `None` if it is cut short, or of an unknown
    /// version or type.
    #[must_use]
    pub fn read(frame: &[u8]) -> Option<Self> {
        let (first, flags) = (u8_at(frame, 0)?, u8_at(frame, 1)?);
        let kind = match first & 0x0f {
            0x0 => Kind::Management,
            0x4 => Kind::Control,
            0x8 => Kind::Data,
            _ => return None,
        };
        Some(Self {
            kind,
            subtype: first >> 4,
            flags,
        })
    }

    /// What the frame is for.
    #[must_use]
    pub fn kind(self) -> Kind {
        self.kind
    }

    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn is_qos(self) -> bool {
        self.kind == Kind::Data && self.subtype & QOS != 0
    }

    fn has_four_addresses(self) -> bool {
        self.kind == Kind::Data && self.has(TO_DS) && self.has(FROM_DS)
    }

    /// Where the QoS control field is.
    fn qos_at(self) -> usize {
        const FOUR_ADDRESSES: usize = THREE_ADDRESSES + 6;
        if self.has_four_addresses() {
            FOUR_ADDRESSES
        } else {
            THREE_ADDRESSES
        }
    }

    /// Bytes of the MAC header (§9.3): 10 to 36.
    #[must_use]
    pub fn header_len(self) -> usize {
        match self.kind {
            // CTS and ACK have one address.
            Kind::Control if matches!(self.subtype, 12 | 13) => 10,
            Kind::Control => 16,
            Kind::Management if self.has(HT_CONTROL) => THREE_ADDRESSES + 4,
            Kind::Management => THREE_ADDRESSES,
            Kind::Data if !self.is_qos() => self.qos_at(),
            Kind::Data if self.has(HT_CONTROL) => self.qos_at().wrapping_add(2 + 4),
            Kind::Data => self.qos_at().wrapping_add(2),
        }
    }

    /// Destination and source in the low 48 bits (table 9-30), if `frame` is a frame with both and
    /// holds them.
    #[must_use]
    pub fn addresses(self, frame: &[u8]) -> Option<(u128, u128)> {
        let (destination, source) = match self.kind {
            Kind::Control if self.header_len() < 16 => return None,
            Kind::Control | Kind::Management => (4, 10),
            Kind::Data => match (self.has(TO_DS), self.has(FROM_DS)) {
                (false, false) => (4, 10),
                (false, true) => (4, 16),
                (true, false) => (16, 10),
                (true, true) => (16, 24),
            },
        };
        Some((mac(frame, destination)?, mac(frame, source)?))
    }

    /// Whether what follows the header of `frame` can be read: data, from the first fragment, not
    /// encrypted.
    #[must_use]
    pub fn has_readable_data(self, frame: &[u8]) -> bool {
        // §9.2.4.4: the fragment number is in the low four bits of sequence control.
        let first_fragment = le16(frame, 22).is_some_and(|sequence| sequence & 0x0f == 0);
        self.kind == Kind::Data
            && self.subtype & NO_DATA == 0
            && !self.has(PROTECTED)
            && first_fragment
    }

    /// Whether what follows the header is an A-MSDU (§9.2.4.5.9): subframes with headers of
    /// their own.
    #[must_use]
    pub fn is_aggregate(self, frame: &[u8]) -> bool {
        self.is_qos() && u8_at(frame, self.qos_at()).is_some_and(|qos| qos & 0x80 != 0)
    }
}

/// A MAC address in the low 48 bits.
pub(crate) fn mac(bytes: &[u8], at: usize) -> Option<u128> {
    let (high, low) = (be16(bytes, at)?, be32(bytes, at.checked_add(2)?)?);
    Some(u128::from(high) << 32 | u128::from(low))
}

/// Radiotap (<https://www.radiotap.org/>) at the start of `bytes`: its length, and whether the
/// 802.11 header after it is padded to a multiple of four bytes.
#[must_use]
pub fn radiotap(bytes: &[u8]) -> Option<(usize, bool)> {
    const EXTENDED: u32 = 1 << 31;
    const TSFT: u32 = 1;
    const FLAGS: u32 = 2;
    const DATA_PADDED: u8 = 0x20;
    let (version, len) = (u8_at(bytes, 0)?, usize::from(le16(bytes, 2)?));
    if version != 0 || len < 8 {
        return None;
    }
    let first = le32(bytes, 4)?;
    if first & FLAGS == 0 {
        return Some((len, false));
    }
    // More words of presence bits; each takes four bytes of the header, which ends them.
    // At most `len`, which has 16 bits, and 20.
    let mut at = 4_usize;
    while at.wrapping_add(4) <= len && le32(bytes, at)? & EXTENDED != 0 {
        at = at.wrapping_add(4);
    }
    at = at.wrapping_add(4);
    if first & TSFT != 0 {
        at = at.next_multiple_of(8).wrapping_add(8);
    }
    let padded = at < len && u8_at(bytes, at)? & DATA_PADDED != 0;
    Some((len, padded))
}

/// The length of an AVS header, which starts with 0x80211xxx.
#[must_use]
pub fn avs(bytes: &[u8]) -> Option<usize> {
    let both = be64(bytes, 0)?;
    if both >> 44 != 0x8_0211 {
        return None;
    }
    stated(both & 0xffff_ffff)
}

/// The length that a header states, which holds at least the words that state it.
fn stated(len: u64) -> Option<usize> {
    usize::try_from(len).ok().filter(|&len| len >= 8)
}

/// The length of a Prism header: the one it states in the byte order of the capturing machine, else
/// the usual one. Some drivers put an AVS header there.
#[must_use]
pub fn prism(bytes: &[u8]) -> Option<usize> {
    /// Two of the message codes of `wlan-ng`, monitor frames.
    const CODES: [u32; 2] = [0x41, 0x44];
    const USUAL_LEN: usize = 144;
    if let Some(len) = avs(bytes) {
        return Some(len);
    }
    let (code, len) = (be32(bytes, 0)?, be32(bytes, 4)?);
    let len = if CODES.contains(&code) {
        len
    } else if CODES.contains(&code.swap_bytes()) {
        len.swap_bytes()
    } else {
        return Some(USUAL_LEN);
    };
    stated(len.into())
}
