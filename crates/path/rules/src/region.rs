//! Sets of packets with a range in every field: boxes in the space of headers.

use std::fmt;

use crate::packet::{Field, PacketFields};

/// The values from `low` to `high`, both included; never empty.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Span {
    /// The first value.
    pub low: u128,
    /// The last value.
    pub high: u128,
}

impl Span {
    /// The values from `low` to `high`.
    ///
    /// # Panics
    ///
    /// If `low` is greater than `high`.
    #[must_use]
    pub fn new(low: u128, high: u128) -> Self {
        assert!(low <= high, "a span holds at least one value");
        Self { low, high }
    }

    /// One value.
    #[must_use]
    pub fn one(value: u128) -> Self {
        Self::new(value, value)
    }

    /// Every value of a field.
    #[must_use]
    pub const fn all(field: Field) -> Self {
        Self {
            low: 0,
            high: field.max(),
        }
    }

    /// Whether `value` is in it.
    #[inline]
    #[must_use]
    pub fn contains(self, value: u128) -> bool {
        self.low <= value && value <= self.high
    }

    fn intersect(self, other: Self) -> Option<Self> {
        let (low, high) = (self.low.max(other.low), self.high.min(other.high));
        (low <= high).then_some(Self { low, high })
    }

    /// The prefixes that make up the span, as value and mask, in a field of `bits` bits.
    pub(crate) fn prefixes(self, bits: u32) -> Vec<(u128, u128)> {
        let all = ones(bits);
        let mut prefixes = Vec::new();
        let mut low = self.low;
        loop {
            // The largest aligned block that starts at `low` and does not extend past `high`.
            let mut host = low.trailing_zeros().min(bits);
            while host > 0 && low | ones(host) > self.high {
                host = host.wrapping_sub(1);
            }
            prefixes.push((low, all & !ones(host)));
            let last = low | ones(host);
            match last.checked_add(1) {
                Some(next) if last < self.high => low = next,
                _ => return prefixes,
            }
        }
    }
}

/// The `count` lowest bits.
fn ones(count: u32) -> u128 {
    u128::MAX.unbounded_shr(u128::BITS.wrapping_sub(count))
}

/// The packets whose fields are all in these spans.
///
/// A test of an address also tests the family, so that an address of one family is never mistaken
/// for one of another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Region {
    spans: [Span; Field::ALL.len()],
}

impl Region {
    /// Every packet.
    pub const ALL: Self = Self {
        spans: {
            let mut spans = [Span { low: 0, high: 0 }; Field::ALL.len()];
            let mut index = 0;
            while index < spans.len() {
                spans[index] = Span::all(Field::ALL[index]);
                index += 1;
            }
            spans
        },
    };

    /// This region, restricted to `span` in `field`.
    #[must_use]
    pub fn with(mut self, field: Field, span: Span) -> Self {
        self.spans[field as usize] = span;
        self
    }

    /// The span of a field.
    #[inline]
    #[must_use]
    pub fn span(&self, field: Field) -> Span {
        self.spans[field as usize]
    }

    /// Whether it restricts a field at all.
    #[must_use]
    pub fn tests(&self, field: Field) -> bool {
        self.span(field) != Span::all(field)
    }

    /// Whether it contains a packet.
    #[inline]
    #[must_use]
    pub fn contains(&self, packet: &PacketFields) -> bool {
        Field::ALL
            .iter()
            .all(|&field| self.span(field).contains(packet.value(field)))
    }

    /// The packets in both; `None` if they do not overlap.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        let mut both = *self;
        for (mine, theirs) in both.spans.iter_mut().zip(other.spans) {
            *mine = mine.intersect(theirs)?;
        }
        Some(both)
    }

    /// Whether it contains all packets of `other`.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let pairs = self.spans.iter().zip(&other.spans);
        pairs
            .into_iter()
            .all(|(mine, theirs)| mine.low <= theirs.low && theirs.high <= mine.high)
    }

    /// The packets outside it, as regions that do not overlap.
    #[must_use]
    pub fn complement(&self) -> Vec<Self> {
        let mut regions = Vec::new();
        // Inside in the fields before this one, outside in this one. The family is the first field,
        // so addresses outside are of the same family.
        let mut inside = Self::ALL;
        for field in Field::ALL {
            let Span { low, high } = self.span(field);
            if let Some(before) = low.checked_sub(1) {
                regions.push(inside.with(field, Span::new(0, before)));
            }
            let is_address = matches!(field, Field::Source | Field::Destination);
            let is_v4 = inside.span(Field::Family) == Span::one(4);
            let last = if is_address && is_v4 {
                u32::MAX.into()
            } else {
                field.max()
            };
            if let Some(after) = high.checked_add(1).filter(|&after| after <= last) {
                regions.push(inside.with(field, Span::new(after, field.max())));
            }
            inside = inside.with(field, Span { low, high });
        }
        regions
    }

    /// How many rules of prefixes, in every field, it takes to express this region.
    #[must_use]
    pub fn prefix_rules(&self) -> usize {
        Field::ALL
            .iter()
            .map(|&field| self.prefixes(field).len())
            .product()
    }

    /// The prefixes that make up the span of a field, as value and mask; at most two for each bit.
    #[must_use]
    pub fn prefixes(&self, field: Field) -> Vec<(u128, u128)> {
        self.prefix_span(field).prefixes(field.bits())
    }

    /// The span of a field for splitting into prefixes: an IPv4 address has 32 bits, and VLAN and
    /// family have unused values, so that "up to the last" takes only one prefix.
    fn prefix_span(&self, field: Field) -> Span {
        let span = self.span(field);
        let is_last = span.high == field.max();
        match field {
            Field::Vlan if is_last => Span::new(span.low, 0x1fff),
            Field::Source | Field::Destination
                if self.span(Field::Family) == Span::one(4) && self.tests(field) =>
            {
                Span::new(span.low, span.high.min(u32::MAX.into()).max(span.low))
            }
            _ => span,
        }
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for field in Field::ALL {
            if self.tests(field) {
                let Span { low, high } = self.span(field);
                let join = if first { "" } else { ", " };
                write!(f, "{join}{field:?} {low:#x}..={high:#x}")?;
                first = false;
            }
        }
        if first { f.write_str("any") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn prefixes_make_up_their_span(a in any::<u16>(), b in any::<u16>(), probe in any::<u16>()) {
            let span = Span::new(a.min(b).into(), a.max(b).into());
            let prefixes = span.prefixes(16);
            prop_assert!(prefixes.len() <= 30);
            for value in [probe, a, b, a.wrapping_sub(1), b.wrapping_add(1)] {
                let inside = prefixes.iter().filter(|(v, m)| u128::from(value) & m == *v).count();
                prop_assert_eq!(inside, usize::from(span.contains(value.into())));
            }
        }
    }

    #[test]
    fn the_widest_spans_are_one_prefix() {
        assert_eq!(Span::new(0, u128::MAX).prefixes(128), [(0, 0)]);
        assert_eq!(Span::one(u128::MAX).prefixes(128), [(u128::MAX, u128::MAX)]);
        assert_eq!(Span::new(1, 65534).prefixes(16).len(), 30);
        assert_eq!(Region::ALL.prefix_rules(), 1);
        let others = Region::ALL.complement();
        assert!(others.is_empty());
    }
}
