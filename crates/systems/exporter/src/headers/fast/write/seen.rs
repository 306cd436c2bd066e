//! The record of a packet of a direction that was in the datagram.

use super::super::shape::Shape;
use super::{Bits, Packet, part};
use crate::bits::{Reserved, TURN};
use crate::headers::code;
use crate::headers::index::Found;
use crate::headers::model::{Model, PLACE_BITS, Side, halves};

impl<const LEN: usize> Shape<LEN> {
    /// Writes a packet of a direction that was in the datagram.
    #[inline(always)]
    pub(super) fn write_seen(
        w: &mut Reserved<'_>,
        m: &mut Model,
        packet: &Packet<'_, LEN>,
        found: Found,
    ) {
        let h = packet.h;
        let len = Self::len(m, packet);
        let is_last = found.context == m.last_context;
        let sides = &m.context(found.context).expect("it was found").sides;
        let (last, other) = (&sides[found.side & 1], &sides[found.side & 1 ^ 1]);
        let side = found.side as u64 & 1;
        let (place, place_width) = match is_last {
            true => (side, 1),
            false => (
                u64::from(found.context) | side << PLACE_BITS,
                PLACE_BITS + 1,
            ),
        };
        let ttl = Self::ttl(h);
        let is_ttl = ttl == last.ttl;
        let mut codes = len.code | u64::from(!is_ttl) << 3;
        let mut values = Bits::default();
        values.push(
            if is_ttl { 0 } else { ttl.into() },
            if is_ttl { 0 } else { 8 },
        );
        let label = Self::flow_label(h);
        let is_label = label == last.flow_label;
        if Self::V6 {
            codes |= u64::from(!is_label) << 4;
        } else {
            let identification = u16::from_be(Self::identification(h));
            let (code, value) = code::identification(identification, last.identification());
            codes |= (code as u64) << 4;
            values.push(value.into(), code::IDENTIFICATION[code]);
        }
        values.push(len.value, len.width);
        if Self::V6 && !is_label {
            values.push(label.into(), 20);
        }
        let numbers = Numbers::new(h, last, other);
        let at = const { if Self::V6 { 5 } else { 6 } };
        codes |= numbers.codes << at;
        codes = place | codes << place_width;
        w.bits(
            codes,
            place_width
                .wrapping_add(at)
                .wrapping_add(Self::TCP_CODES_SEEN),
        );
        w.turn();
        w.bits(values.bits, values.width);
        w.turn();
        w.some(Self::checksum(h), if packet.is_known { 0 } else { 2 });
        if !Self::UDP {
            numbers.write(w);
        }
        let prefix = usize::from(last.prefix);
        m.follow(found.context, found.side, Self::side(packet, prefix, m.tos));
    }
}

/// TCP's numbers of a direction that was seen, by what is expected of them.
struct Numbers {
    /// Their codes, the first in the lowest bits.
    codes: u64,
    /// What follows them: window and sequence number; the others.
    values: Bits,
    later: [(u32, u32); 3],
}

impl Numbers {
    #[inline(always)]
    fn new<const LEN: usize>(h: &[u8; LEN], last: &Side, other: &Side) -> Self {
        if Shape::<LEN>::UDP {
            let (codes, values, later) = (0, Bits::default(), [(0, 0); 3]);
            return Self {
                codes,
                values,
                later,
            };
        }
        let window = u16::from_be_bytes(part(h, Shape::<LEN>::AT.wrapping_add(14)));
        let (sequence, acknowledgement) = halves(Shape::<LEN>::numbers_in(h));
        let window = code::window_seen(window, last.window());
        let sequence = code::sequence(sequence, last.sequence());
        let acknowledgement =
            code::forward(acknowledgement, last.acknowledgement(), other.sequence());
        let (stamp, echo) = if Shape::<LEN>::STAMPS {
            let (stamp, echo) = halves(Shape::<LEN>::stamps_in(h));
            (
                code::stamp(stamp, last.stamp()),
                code::forward(echo, last.echo(), other.stamp()),
            )
        } else {
            ((0, 0), (0, 0))
        };
        let codes =
            window.0 | sequence.0 << 2 | acknowledgement.0 << 4 | stamp.0 << 6 | echo.0 << 8;
        let mut values = Bits::default();
        values.push(window.1.into(), code::WINDOW_SEEN[window.0 & 3]);
        values.push(sequence.1.into(), code::SEQUENCE[sequence.0 & 3]);
        Self {
            codes: codes as u64,
            values,
            later: [
                (acknowledgement.1, code::FORWARD[acknowledgement.0 & 3]),
                (stamp.1, code::STAMP[stamp.0 & 3]),
                (echo.1, code::FORWARD[echo.0 & 3]),
            ],
        }
    }

    /// Writes what follows the codes.
    #[inline(always)]
    fn write(&self, w: &mut Reserved<'_>) {
        w.bits(self.values.bits, self.values.width);
        w.turn();
        let width = self.later.iter().map(|value| value.1).sum::<u32>();
        if width <= TURN {
            for (value, width) in self.later {
                w.bits(value.into(), width);
            }
            w.turn();
            return;
        }
        for (value, width) in self.later {
            w.bits(value.into(), width);
            w.turn();
        }
    }
}
