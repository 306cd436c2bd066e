//! One flow's registers: a bucket of exactly one cache line.
#![allow(
    unsafe_code,
    reason = "a derive of zerocopy, which checks that zeros are a value"
)]

use zerocopy::FromZeros;

use crate::facts::{FlowStats, PacketFacts};
use crate::switch::{Arithmetic, approximate_square, register_16};

/// Votes against a bucket are counted in 15 bits; see [`Bucket::vote`].
const VOTES_MAX: u16 = 0x7fff;
/// The bit of `votes` that holds the flow's direction.
const FORWARD_IS_LOW_TO_HIGH: u16 = 0x8000;
/// Sums of squares are 48 bits wide.
const SQUARES_MAX: u64 = (1 << 48) - 1;

/// The registers of one flow in one window.
///
/// ```text
///  0 tag u64              identity and epoch, see `Sketch`
///  8 packets u32          both directions, as all that does not say "backward"
/// 12 bytes u32            wire bytes
/// 16 backward_bytes u32
/// 20 first u32            ticks since the window began
/// 24 last u32             ticks; never runs backwards
/// 28 ipd_min u32          ticks
/// 32 ipd_max u32          ticks
/// 36 size_squares u32     low half of 48 bits, bytes^2
/// 40 ipd_squares u32      low half of 48 bits, ticks^2
/// 44 size_squares u16     high part
/// 46 ipd_squares u16      high part
/// 48 size_min u16
/// 50 size_max u16
/// 52 backward_size_min u16
/// 54 backward_size_max u16
/// 56 backward_header_words u16   headers in units of 4 bytes
/// 58 window_forward u16   TCP window of the first packet each way
/// 60 window_backward u16
/// 62 votes u16            low 15 bits: votes against; top bit: direction
/// ```
///
/// Every sum saturates. A window is at most 2^24 ticks (see `Clock`), so sums of
/// delays and of their squares, at most 2^24 and 2^48, cannot overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
#[repr(C, align(64))]
pub struct Bucket {
    pub(crate) tag: u64,
    packets: u32,
    bytes: u32,
    backward_bytes: u32,
    first: u32,
    last: u32,
    ipd_min: u32,
    ipd_max: u32,
    size_squares_low: u32,
    ipd_squares_low: u32,
    size_squares_high: u16,
    ipd_squares_high: u16,
    size_min: u16,
    size_max: u16,
    backward_size_min: u16,
    backward_size_max: u16,
    backward_header_words: u16,
    window_forward: u16,
    window_backward: u16,
    votes: u16,
}

const _: () = assert!(size_of::<Bucket>() == 64 && align_of::<Bucket>() == 64);

#[inline(always)]
#[allow(clippy::cast_possible_truncation)]
fn split_48(value: u64) -> (u32, u16) {
    let value = value.min(SQUARES_MAX);
    (value as u32, (value >> 32) as u16)
}

#[inline(always)]
fn join_48(low: u32, high: u16) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

impl Bucket {
    /// A bucket that holds one packet, the first of its flow in this window.
    #[inline]
    pub(crate) fn claim(tag: u64, facts: &PacketFacts, now: u32, arithmetic: Arithmetic) -> Self {
        let forward = facts.low_to_high != facts.answers;
        let mut bucket = Self {
            tag,
            first: now,
            last: now,
            ipd_min: u32::MAX,
            size_min: u16::MAX,
            backward_size_min: u16::MAX,
            votes: if forward { FORWARD_IS_LOW_TO_HIGH } else { 0 },
            ..Self::default()
        };
        bucket.add_sizes(facts, arithmetic);
        bucket
    }

    /// Adds a further packet of the flow.
    #[inline]
    pub(crate) fn update(&mut self, facts: &PacketFacts, now: u32, arithmetic: Arithmetic) {
        // A capture may run backwards; a negative delay counts as 0, and the sum of all delays
        // stays `last - first`.
        let delay = now.saturating_sub(self.last);
        self.last = self.last.max(now);
        let (delay, square) = match arithmetic {
            Arithmetic::Exact => (delay, u64::from(delay) * u64::from(delay)),
            Arithmetic::Switch { .. } => (register_16(delay), approximate_square(delay)),
        };
        self.ipd_min = self.ipd_min.min(delay);
        self.ipd_max = self.ipd_max.max(delay);
        let squares = join_48(self.ipd_squares_low, self.ipd_squares_high) + square;
        (self.ipd_squares_low, self.ipd_squares_high) = split_48(squares);
        self.add_sizes(facts, arithmetic);
    }

    #[inline(always)]
    fn add_sizes(&mut self, facts: &PacketFacts, arithmetic: Arithmetic) {
        let size = facts.size;
        let packets_max = match arithmetic {
            Arithmetic::Exact => u32::MAX,
            Arithmetic::Switch { .. } => u32::from(u16::MAX),
        };
        self.packets = self.packets.saturating_add(1).min(packets_max);
        self.bytes = self.bytes.saturating_add(u32::from(size));
        self.size_min = self.size_min.min(size);
        self.size_max = self.size_max.max(size);
        let square = match arithmetic {
            Arithmetic::Exact => u64::from(size) * u64::from(size),
            Arithmetic::Switch { .. } => approximate_square(u32::from(size)),
        };
        let squares = join_48(self.size_squares_low, self.size_squares_high) + square;
        (self.size_squares_low, self.size_squares_high) = split_48(squares);
        // A packet's direction cannot be predicted, so no branch depends on it.
        let backward = facts.low_to_high != self.forward_is_low_to_high();
        let mask = if backward { u16::MAX } else { 0 };
        let backward_size = size & mask;
        self.backward_bytes = self.backward_bytes.saturating_add(u32::from(backward_size));
        self.backward_size_min = self.backward_size_min.min(size | !mask);
        self.backward_size_max = self.backward_size_max.max(backward_size);
        let words = (facts.header_len / 4) & mask;
        self.backward_header_words = self.backward_header_words.saturating_add(words);
        let first = |window: u16, mask: u16| {
            let unset = if window == 0 { u16::MAX } else { 0 };
            window | facts.tcp_window & mask & unset
        };
        self.window_forward = first(self.window_forward, !mask);
        self.window_backward = first(self.window_backward, mask);
    }

    /// One vote of another flow for this bucket. Returns whether the vote succeeds: once `lambda`
    /// votes have come for every packet of the owner (Elastic Sketch's replacement, which TitanLog
    /// §IV-A leaves open). Votes stop counting at 32,767, so a flow of more packets than that over
    /// `lambda` stays for the rest of the window.
    #[inline]
    pub(crate) fn vote(&mut self, lambda: u32) -> bool {
        let votes = self.votes & VOTES_MAX;
        if votes < VOTES_MAX {
            self.votes += 1;
        }
        u64::from(votes) + 1 >= u64::from(lambda) * u64::from(self.packets)
    }

    #[inline]
    pub(crate) fn packets(&self) -> u32 {
        self.packets
    }

    #[inline]
    fn forward_is_low_to_high(&self) -> bool {
        self.votes & FORWARD_IS_LOW_TO_HIGH != 0
    }

    /// The registers as plain numbers; minima of empty sets are 0.
    #[inline(always)]
    #[must_use]
    pub fn stats(&self) -> FlowStats {
        let ipd_min = if self.packets > 1 { self.ipd_min } else { 0 };
        let backward_min = if self.backward_bytes > 0 {
            self.backward_size_min
        } else {
            0
        };
        FlowStats {
            packets: self.packets,
            bytes: self.bytes,
            backward_bytes: self.backward_bytes,
            ipd_sum: self.last - self.first,
            ipd_min,
            ipd_max: self.ipd_max,
            size_squares: join_48(self.size_squares_low, self.size_squares_high),
            ipd_squares: join_48(self.ipd_squares_low, self.ipd_squares_high),
            size_min: self.size_min,
            size_max: self.size_max,
            backward_size_min: backward_min,
            backward_size_max: self.backward_size_max,
            backward_header_bytes: u32::from(self.backward_header_words) * 4,
            window_forward: self.window_forward,
            window_backward: self.window_backward,
            forward_is_low_to_high: self.forward_is_low_to_high(),
        }
    }
}
