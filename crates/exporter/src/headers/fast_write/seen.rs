//! The record of a packet of a direction that was in the datagram.

use super::super::code;
use super::super::index::Found;
use super::super::model::{Model, PLACE_BITS, Side, halves};
use super::super::shape::Shape;
use super::{After, Packet, len_value};
use crate::bits::{TURN, Writer};

impl<const LEN: usize> Shape<LEN> {
    /// Writes a packet of a direction that was in the datagram.
    #[inline(always)]
    pub(super) fn write_seen(w: &mut Writer<'_>, m: &mut Model, packet: &Packet, found: Found) {
        let (ip, after) = (&packet.ip, &packet.after);
        let sides = m.context(found.context).expect("it was found").sides;
        let (last, other) = (&sides[found.side & 1], &sides[found.side & 1 ^ 1]);
        let len = Self::len(m, packet);
        let is_last = found.context == m.last_context;
        let side = found.side as u64 & 1;
        let (place, place_width) = match is_last {
            true => (side, 1),
            false => (
                u64::from(found.context) | side << PLACE_BITS,
                PLACE_BITS + 1,
            ),
        };
        let is_ttl = ip.ttl == last.ttl;
        let mut codes = len as u64 | u64::from(!is_ttl) << 3;
        let mut width = 4;
        let identification =
            code::identification(u16::from_be(ip.identification), last.identification());
        let is_label = ip.flow_label == last.flow_label;
        if Self::V6 {
            codes |= u64::from(!is_label) << width;
            width += 1;
        } else {
            codes |= (identification.0 as u64) << width;
            width += 2;
        }
        let numbers = Numbers::new::<LEN>(after, last, other);
        codes |= numbers.codes << width;
        width += Self::TCP_CODES_SEEN;
        w.bits(place | codes << place_width, place_width + width);
        w.bits(
            if is_ttl { 0 } else { ip.ttl.into() },
            if is_ttl { 0 } else { 8 },
        );
        if !Self::V6 {
            let width = code::IDENTIFICATION[identification.0];
            w.bits(identification.1.into(), width);
        }
        w.turn();
        let (len_bits, len_width) = len_value(len, after.payload_len);
        w.bits(len_bits, len_width);
        if Self::V6 {
            let width = if is_label { 0 } else { 20 };
            w.bits(if is_label { 0 } else { ip.flow_label.into() }, width);
        }
        let len = if Self::is_known(after) { 0 } else { 2 };
        w.some(after.checksum.to_ne_bytes(), len);
        if !Self::UDP {
            numbers.write(w);
        }
        w.turn();
        let prefix = usize::from(last.prefix);
        m.follow(found.context, found.side, Self::side(packet, prefix, m.tos));
    }
}

/// TCP's numbers of a direction that was seen, by what is expected of them.
struct Numbers {
    /// Their codes, the first in the lowest bits.
    codes: u64,
    /// What follows them: window, sequence and acknowledgement number, timestamps.
    values: [(u32, u32); 5],
}

impl Numbers {
    #[inline(always)]
    fn new<const LEN: usize>(after: &After, last: &Side, other: &Side) -> Self {
        let (sequence, acknowledgement) = halves(after.numbers);
        let window = code::window_seen(u16::from_be(after.window), last.window());
        let sequence = code::sequence(sequence, last.sequence());
        let acknowledgement =
            code::forward(acknowledgement, last.acknowledgement(), other.sequence());
        let (stamp, echo) = halves(after.stamps);
        let (stamp, echo) = match Shape::<LEN>::STAMPS {
            true => (
                code::stamp(stamp, last.stamp()),
                code::forward(echo, last.echo(), other.stamp()),
            ),
            false => ((0, 0), (0, 0)),
        };
        let codes =
            window.0 | sequence.0 << 2 | acknowledgement.0 << 4 | stamp.0 << 6 | echo.0 << 8;
        Self {
            codes: if Shape::<LEN>::UDP { 0 } else { codes as u64 },
            values: [
                (window.1, code::WINDOW_SEEN[window.0]),
                (sequence.1, code::SEQUENCE[sequence.0]),
                (acknowledgement.1, code::FORWARD[acknowledgement.0]),
                (stamp.1, code::STAMP[stamp.0]),
                (echo.1, code::FORWARD[echo.0]),
            ],
        }
    }

    /// Writes what follows the codes; 36 bits of this turn are taken.
    #[inline(always)]
    fn write(&self, w: &mut Writer<'_>) {
        let [window, later @ ..] = self.values;
        w.bits(window.0.into(), window.1);
        w.turn();
        let width: u32 = later.iter().map(|value| value.1).sum();
        if width <= TURN {
            later
                .iter()
                .for_each(|&(value, width)| w.bits(value.into(), width));
            return;
        }
        for (value, width) in later {
            w.bits(value.into(), width);
            w.turn();
        }
    }
}
