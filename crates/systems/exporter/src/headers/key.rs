//! What identifies a flow, and the places that flows and addresses have.

use super::fields::Transport;

/// What identifies a flow, from the direction of its first packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    /// Source and destination: of IPv4 the halves of the first word, of IPv6 two words each.
    pub(super) ends: [u64; 4],
    pub(super) ports: u32,
    pub(super) transport: Transport,
    pub(super) is_v6: bool,
}

impl Key {
    pub(super) const EMPTY: Self = Self {
        ends: [0; 4],
        ports: 0,
        transport: Transport::Tcp,
        is_v6: false,
    };

    /// Of a packet with these fields.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "the halves")]
    pub(super) fn new<const V6: bool>(
        source: u128,
        destination: u128,
        ports: u32,
        transport: Transport,
    ) -> Self {
        let ends = if V6 {
            let high = |address: u128| (address >> 64) as u64;
            let (of, to) = (source, destination);
            [high(of), of as u64, high(to), to as u64]
        } else {
            [(source as u64) << 32 | destination as u64, 0, 0, 0]
        };
        Self {
            ends,
            ports,
            transport,
            is_v6: V6,
        }
    }

    /// Source and destination, of a flow over IPv6 or not.
    #[inline(always)]
    pub(super) fn addresses<const V6: bool>(&self) -> (u128, u128) {
        let [a, b, c, d] = self.ends;
        let [a, b, c, d]: [u128; 4] = [a.into(), b.into(), c.into(), d.into()];
        if V6 {
            (a << 64 | b, c << 64 | d)
        } else {
            (a >> 32, a & 0xffff_ffff)
        }
    }

    /// From the other direction.
    #[inline(always)]
    pub(super) fn reversed(&self) -> Self {
        let [a, b, c, d] = self.ends;
        Self {
            ends: if self.is_v6 {
                [c, d, a, b]
            } else {
                [a.rotate_left(32), 0, 0, 0]
            },
            ports: self.ports.rotate_left(16),
            ..*self
        }
    }

    /// Whether it is this one.
    #[inline(always)]
    pub(super) fn is(&self, other: &Self) -> bool {
        self.ends[0] == other.ends[0]
            && self.ports == other.ports
            && (self.transport, self.is_v6) == (other.transport, other.is_v6)
            && (!other.is_v6 || self.ends == other.ends)
    }

    /// Becomes another one: what that does not have stays as it is, and means nothing.
    #[inline(always)]
    pub(super) fn set(&mut self, key: &Self) {
        self.ends[0] = key.ends[0];
        if key.is_v6 {
            self.ends = key.ends;
        }
        self.ports = key.ports;
        self.transport = key.transport;
        self.is_v6 = key.is_v6;
    }

    /// Where the flow is: the same for both directions.
    #[inline(always)]
    pub(super) fn place(&self) -> u8 {
        let [a, b, c, d] = self.ends;
        let ends = if self.is_v6 {
            words_mixed(a, b) ^ words_mixed(c, d)
        } else {
            (a ^ a >> 32) & 0xffff_ffff
        };
        let ports = self.ports ^ self.ports.rotate_left(16);
        place(ends ^ u64::from(ports) << 20)
    }
}

/// The place of an address.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the halves")]
pub(super) fn address_place(address: u128) -> u8 {
    place(words_mixed((address >> 64) as u64, address as u64))
}

#[inline(always)]
fn words_mixed(high: u64, low: u64) -> u64 {
    low ^ high.rotate_left(29)
}

/// The place of what has this hash.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "8 bits")]
pub(super) fn place(word: u64) -> u8 {
    (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}
