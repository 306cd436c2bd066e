//! Field classes: sets of values of a field that no rule tells apart.
//!
//! Two values have the same class if every rule's span of that field contains both or neither. A
//! class is found in two steps: the first bits of the value choose a sub-space, as in the mask
//! arrays of Trident §3.3, and a branchless search finds the interval among the sub-space's sorted
//! bounds.
//!
//! Mask arrays hold the longest prefix of a sub-space and so tell apart every two values that
//! differ in it. Classes tell apart no more than they must: one host in a /16 makes two classes
//! there, not 65,536 keys; and ranges need not be split into prefixes. They are also right where a
//! rule's prefix is shorter than the sub-space's, since a span marks every sub-space that it
//! covers.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use strata_wire::{exact, mix64};

use crate::region::Span;
use crate::tss::{LengthCounts, LengthSet};

/// Maximum number of first bits that choose a sub-space.
const ROOT_BITS_MAX: u32 = 16;
/// Sub-spaces per interval, so that most contain one.
const ROOT_SPARSENESS_BITS: u32 = 2;

/// A value of a field.
pub(crate) trait Value: Copy + Ord {
    const BITS: u32;
    const MAX: Self;
    fn from_wide(value: u128) -> Self;
    /// The first 16 bits: [`ROOT_BITS_MAX`].
    fn first(self) -> u32;
}

macro_rules! value {
    ($type:ty) => {
        impl Value for $type {
            const BITS: u32 = Self::BITS;
            const MAX: Self = Self::MAX;
            #[inline(always)]
            fn from_wide(value: u128) -> Self {
                exact::<Self>(value)
            }
            #[inline(always)]
            #[allow(clippy::cast_possible_truncation, clippy::cast_lossless)]
            fn first(self) -> u32 {
                const HIDDEN: u32 = <$type>::BITS - ROOT_BITS_MAX;
                (self >> HIDDEN) as u32
            }
        }
    };
}
value!(u16);
value!(u32);
value!(u128);

/// The classes of a field. Memory: at most 2^18 bytes of sub-spaces, and per bound
/// of a rule's span up to twice the bytes of a value and of a class.
#[derive(Clone, Debug)]
pub(crate) struct FieldClasses<T> {
    /// Of the first 16 bits of a value, those that do not choose a sub-space.
    inside_bits: u32,
    root: Vec<SubSpace>,
    /// For each sub-space, where its 2^depth intervals start, sorted. The first is never read.
    bounds: Vec<T>,
    /// The class of each interval.
    classes: Vec<u32>,
    /// For each class, the lengths of the prefixes of rules that may contain it.
    lengths: Vec<LengthSet>,
    /// Number of values of each class; for figures, not for the search.
    sizes: Vec<f64>,
}

/// Where the intervals of a sub-space are: its depth in the lowest 5 bits, then the index of the
/// first.
#[derive(Clone, Copy, Debug)]
struct SubSpace(u32);

const DEPTH_BITS: u32 = 5;
const DEPTH_MASK: u32 = (1 << DEPTH_BITS) - 1;
/// Maximum number of intervals of all sub-spaces: a sub-space cannot name more. They are less than two for each bound
/// of a span, padded to twice as many, and one for each sub-space.
const PLACES_MAX: u32 = 1 << (u32::BITS - DEPTH_BITS);
const _: () =
    assert!((8 * crate::policy::SET_RULES_MAX + (1 << ROOT_BITS_MAX)) < PLACES_MAX as usize);

impl<T: Value> FieldClasses<T> {
    /// Whether no rule tells values apart.
    pub(crate) fn is_one(&self) -> bool {
        self.sizes.len() == 1
    }

    /// The classes of a field of `field_bits` bits in which rules have these spans; the type may
    /// have fewer bits.
    pub(crate) fn new(spans: &[Span], field_bits: u32) -> Self {
        let max = u128::MAX.unbounded_shr(u128::BITS.wrapping_sub(T::BITS));
        let (intervals, lengths) = intervals(spans, max, field_bits);
        let mut sizes = vec![0.0; lengths.len()];
        let ends = intervals.iter().skip(1).map(|next| next.0.wrapping_sub(1));
        for (&(start, class), end) in intervals.iter().zip(ends.chain([max])) {
            #[allow(clippy::cast_precision_loss)]
            let size = end.wrapping_sub(start) as f64 + 1.0;
            sizes[class as usize] += size;
        }
        let root_bits = root_bits(intervals.len());
        let mut classes = Self {
            inside_bits: ROOT_BITS_MAX.wrapping_sub(root_bits),
            root: Vec::with_capacity(1_usize.wrapping_shl(root_bits)),
            bounds: Vec::new(),
            classes: Vec::new(),
            lengths,
            sizes,
        };
        let mut known: HashMap<u32, SubSpace, FixedState> = HashMap::default();
        let (mut rest, width) = (&intervals[..], max.unbounded_shr(root_bits));
        for number in 0..1_u128.unbounded_shl(root_bits) {
            // All values have 16 bits at least.
            let begin = number.unbounded_shl(T::BITS.wrapping_sub(root_bits));
            // The interval with the sub-space's first value, and the one with its last.
            while let [_, after @ ..] = rest
                && after.first().is_some_and(|next| next.0 <= begin)
            {
                rest = after;
            }
            let inside = rest.partition_point(|interval| interval.0 <= begin | width);
            let inside = &rest[..inside];
            let sub_space = match inside {
                // Sub-spaces of one class share their only entry.
                [(_, class)] => *known.entry(*class).or_insert_with(|| classes.push(inside)),
                _ => classes.push(inside),
            };
            classes.root.push(sub_space);
        }
        classes
    }

    /// Adds the intervals of a sub-space, padded to a power of two with the largest value.
    fn push(&mut self, intervals: &[(u128, u32)]) -> SubSpace {
        let size = intervals.len().next_power_of_two();
        let place = exact::<u32>(self.classes.len());
        assert!(
            place < PLACES_MAX,
            "a sub-space names its place in {PLACES_MAX}"
        );
        let last = intervals.last().expect("every value is in an interval").1;
        self.classes
            .extend(intervals.iter().map(|&(_, class)| class));
        let starts = intervals.iter().map(|&(start, _)| T::from_wide(start));
        self.bounds.extend(starts);
        let padded = self
            .classes
            .len()
            .wrapping_sub(intervals.len())
            .wrapping_add(size);
        self.classes.resize(padded, last);
        self.bounds.resize(padded, T::MAX);
        SubSpace(place << DEPTH_BITS | size.trailing_zeros())
    }

    /// The class of a value; classes are numbered from 0.
    #[inline(always)]
    pub(crate) fn class(&self, value: T) -> u32 {
        // Nothing here is checked but the places: 16 bits at most are hidden of 16.
        let first = value.first().wrapping_shr(self.inside_bits);
        let SubSpace(packed) = self.root[first as usize];
        let mut place = (packed >> DEPTH_BITS) as usize;
        let mut step = 1_usize.wrapping_shl(packed & DEPTH_MASK) >> 1;
        while step > 0 {
            let next = place.wrapping_add(step);
            if self.bounds[next] <= value {
                place = next;
            }
            step >>= 1;
        }
        self.classes[place]
    }

    /// The lengths of rules' prefixes that may contain values of a class.
    pub(crate) fn lengths(&self, class: u32) -> LengthSet {
        self.lengths[class as usize]
    }

    /// How many values have a class.
    pub(crate) fn size(&self, class: u32) -> f64 {
        self.sizes[class as usize]
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        [
            size_of_val(&self.root[..]),
            size_of_val(&self.bounds[..]),
            size_of_val(&self.classes[..]),
        ]
        .iter()
        .sum()
    }
}

/// How many first bits choose a sub-space of this many intervals.
fn root_bits(intervals: usize) -> u32 {
    if intervals <= 4 {
        return 0;
    }
    let bits = intervals.next_power_of_two().trailing_zeros();
    bits.saturating_add(ROOT_SPARSENESS_BITS).min(ROOT_BITS_MAX)
}

/// Cuts a field at every bound of a span: where each interval starts, and its class; and for each
/// class the lengths of the prefixes that make up its spans.
///
/// A set of spans is identified by the XOR of a random 128-bit number for each. For 10,000 sets,
/// the probability that any two collide is 10^-31.
fn intervals(spans: &[Span], max: u128, field_bits: u32) -> (Vec<(u128, u32)>, Vec<LengthSet>) {
    let mut distinct: Vec<Span> = spans.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    distinct.retain(|span| !(span.low == 0 && span.high >= max || span.low > max));
    // Where which span starts or ends.
    let mut changes: Vec<(u128, usize)> = Vec::new();
    for (index, span) in distinct.iter().enumerate() {
        changes.push((span.low, index));
        if let Some(after) = span.high.checked_add(1).filter(|&after| after <= max) {
            changes.push((after, index));
        }
    }
    changes.sort_unstable();
    let lengths_of: Vec<LengthSet> = distinct
        .iter()
        .map(|&Span { low, high }| LengthSet::of(Span::new(low, high.min(max)), field_bits))
        .collect();
    let mut numbers: HashMap<u128, u32, FixedState> = HashMap::default();
    let mut lengths = Vec::new();
    let mut intervals: Vec<(u128, u32)> = Vec::new();
    let (mut set, mut start) = (0, 0);
    let mut changes = changes.into_iter().peekable();
    let mut is_active = vec![false; distinct.len()];
    // Updated span by span, so a class costs the same however many spans contain it.
    let mut held = LengthCounts::default();
    loop {
        while let Some((_, index)) = changes.next_if(|change| change.0 == start) {
            let number = index as u64;
            set ^= u128::from(mix64(number.wrapping_add(1))) << 64 | u128::from(mix64(!number));
            is_active[index] = !is_active[index];
            if is_active[index] {
                held.add(lengths_of[index]);
            } else {
                held.remove(lengths_of[index]);
            }
        }
        let class = *numbers.entry(set).or_insert_with(|| {
            let number = exact::<u32>(lengths.len());
            lengths.push(held.set());
            number
        });
        if intervals.last().is_none_or(|last| last.1 != class) {
            intervals.push((start, class));
        }
        match changes.peek() {
            Some(change) => start = change.0,
            None => break,
        }
    }
    (intervals, lengths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn same<T: Value>(spans: &[Span], values: &[u128]) {
        let classes = FieldClasses::<T>::new(spans, T::BITS);
        let holds = |value: u128| spans.iter().map(|s| s.contains(value)).collect::<Vec<_>>();
        for &a in values {
            let class = classes.class(T::from_wide(a));
            assert!(classes.size(class) >= 1.0);
            for &b in values {
                let equal = class == classes.class(T::from_wide(b));
                assert_eq!(equal, holds(a) == holds(b), "{a:#x} {b:#x} {spans:x?}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Same class if and only if no span tells the values apart.
        #[test]
        fn classes_tell_apart_exactly_what_spans_do(
            spans in prop::collection::vec((any::<u32>(), 0_u32..=32, any::<u32>()), 0..40),
            probes in prop::collection::vec(any::<u32>(), 8),
        ) {
            let mut values: Vec<u128> = probes.iter().map(|&v| v.into()).collect();
            let mut wide = Vec::new();
            for (at, bits, other) in spans {
                let mask = u32::MAX.unbounded_shl(32 - bits);
                let (low, high) = if other % 4 == 0 {
                    (at.min(other), at.max(other))
                } else {
                    (at & mask, at | !mask)
                };
                wide.push(Span::new(low.into(), high.into()));
                for edge in [low, high, low.wrapping_sub(1), high.wrapping_add(1)] {
                    values.push(edge.into());
                }
            }
            values.truncate(60);
            same::<u32>(&wide, &values);
            let high: Vec<Span> = wide.iter().map(|s| Span::new(s.low << 96, s.high << 96 | u128::MAX >> 32)).collect();
            let values: Vec<u128> = values.iter().map(|v| v << 96 | v).collect();
            same::<u128>(&high, &values);
        }

        #[test]
        fn ports_have_classes(
            spans in prop::collection::vec((any::<u16>(), any::<u16>()), 0..20),
            probes in prop::collection::vec(any::<u16>(), 8),
        ) {
            let mut values: Vec<u128> = probes.iter().map(|&v| v.into()).collect();
            let spans: Vec<Span> = spans.iter().map(|&(a, b)| Span::new(a.min(b).into(), a.max(b).into())).collect();
            for span in &spans {
                values.extend([span.low, span.high, span.low.saturating_sub(1), (span.high + 1).min(65_535)]);
            }
            same::<u16>(&spans, &values);
        }
    }

    /// Each value alone, or two in a row, for numbers of spans about each power of two: 4,096 spans choose a
    /// sub-space by all 16 bits of a port.
    #[test]
    fn any_number_of_ports_have_classes() {
        let around = (0..=16).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 1]);
        for (count, width) in around.flat_map(|count| [(count, 1), (count, 2)]) {
            let count: u32 = count;
            if count * width > 1 << 16 {
                continue;
            }
            // As far apart as there is room, up to the last port.
            let step = (1 << 16) / count.max(1);
            let lows: Vec<u32> = (1..=count).map(|n| (1 << 16) - n * step).collect();
            let spans: Vec<Span> = lows
                .iter()
                .map(|&low| Span::new(low.into(), (low + width - 1).into()))
                .collect();
            let classes = FieldClasses::<u16>::new(&spans, 16);
            let mut span_of = vec![None; 1 << 16];
            for (number, &low) in lows.iter().enumerate() {
                for value in low..low + width {
                    span_of[value as usize] = Some(number);
                }
            }
            let mut known: HashMap<Option<usize>, u32> = HashMap::new();
            for (value, span) in (0..=u16::MAX).zip(&span_of) {
                let class = classes.class(value);
                assert_eq!(
                    *known.entry(*span).or_insert(class),
                    class,
                    "{value} of {count}"
                );
            }
            let distinct: std::collections::HashSet<u32> = known.values().copied().collect();
            assert_eq!(distinct.len(), known.len(), "{count}");
        }
    }

    #[test]
    fn without_spans_there_is_one_class() {
        let classes = FieldClasses::<u128>::new(&[], 128);
        assert_eq!((classes.class(5), classes.class(u128::MAX)), (0, 0));
        assert!(classes.bytes() < 32);
    }
}
