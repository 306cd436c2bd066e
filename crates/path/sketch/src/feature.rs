//! The feature vector: what a model may ask for about a packet and its flow.
//!
//! Every feature is held as a `u32` that grows with its value, so that a tree compares only
//! integers. A threshold in the feature's unit becomes such an integer once, when a model is loaded
//! ([`Feature::encode`]); `value <= threshold` is then decided exactly. Averages are held in steps
//! (1/256 byte, 1 tick) and rounded down, so `average <= C` with C in whole steps is the integer
//! comparison `sum < (C + step) * count`, without any rounding.

use strata_wire::clamped;

use crate::bucket::Bucket;
use crate::clock::Clock;
use crate::facts::{FlowStats, PacketFacts};
use crate::switch::RangeTable;

/// Which packets have the feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// Every packet.
    Packet,
    /// Packets whose flow has a bucket.
    Flow,
}

/// How a value in the feature's unit becomes an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    /// Multiplied by this, rounded down.
    Scaled(u32),
    /// Nanoseconds in ticks of the clock, rounded down.
    Ticks,
    /// The bits of a non-negative `f32`, which sort as its values do.
    FloatBits,
}

macro_rules! features {
    ($($variant:ident $name:literal $unit:literal $level:ident $coding:expr, $doc:literal;)*) => {
        /// One feature, by its name in model files and snapshots.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Feature {
            $(#[doc = $doc] $variant,)*
        }

        impl Feature {
            /// All features, packet level first.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name in model files.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The unit of thresholds in model files.
            #[must_use]
            pub fn unit(self) -> &'static str {
                match self { $(Self::$variant => $unit,)* }
            }

            /// Which packets have it.
            #[must_use]
            pub fn level(self) -> Level {
                match self { $(Self::$variant => Level::$level,)* }
            }

            /// What it is, in a sentence.
            #[must_use]
            pub fn description(self) -> &'static str {
                match self { $(Self::$variant => $doc,)* }
            }

            fn coding(self) -> Coding {
                match self { $(Self::$variant => $coding,)* }
            }

            /// [`Feature::value`] for a row of packets: dispatched once per row, not per packet.
            /// All slices have the same length.
            #[inline]
            pub fn fill(
                self,
                column: &mut [u32],
                facts: &[PacketFacts],
                flows: &[Bucket],
                clock: Clock,
                averages: Option<&RangeTable>,
            ) {
                match self {
                    // Only the registers that the feature needs are read.
                    $(Self::$variant => each(column, facts, flows, |facts, flow| {
                        Self::$variant.value(facts, &flow.stats(), clock, averages)
                    }),)*
                }
            }
        }
    };
}

/// A value for each packet, four at a time: in a loop over few packets, the loop itself is a good
/// part of the cost.
#[inline(always)]
fn each(
    column: &mut [u32],
    facts: &[PacketFacts],
    flows: &[Bucket],
    value: impl Fn(&PacketFacts, &Bucket) -> u32,
) {
    let (fours, rest) = column.as_chunks_mut::<4>();
    let (facts_of_fours, facts_of_rest) = facts.as_chunks::<4>();
    let (flows_of_fours, flows_of_rest) = flows.as_chunks::<4>();
    for ((out, facts), flows) in fours.iter_mut().zip(facts_of_fours).zip(flows_of_fours) {
        *out = [0, 1, 2, 3].map(|n| value(&facts[n], &flows[n]));
    }
    for ((out, facts), flow) in rest.iter_mut().zip(facts_of_rest).zip(flows_of_rest) {
        *out = value(facts, flow);
    }
}

features! {
    Size "size" "bytes" Packet Coding::Scaled(1), "Length of the packet on the wire.";
    HeaderLen "header_len" "bytes" Packet Coding::Scaled(1), "Length of all headers.";
    PayloadLen "payload_len" "bytes" Packet Coding::Scaled(1), "Length on the wire after the headers.";
    Protocol "protocol" "number" Packet Coding::Scaled(1), "IP protocol number; 0 if the packet is not IP.";
    SourcePort "source_port" "number" Packet Coding::Scaled(1), "Source port; for a packet that is not IP, its EtherType.";
    DestinationPort "destination_port" "number" Packet Coding::Scaled(1), "Destination port; for a packet that is not IP, its EtherType.";
    LowerPort "lower_port" "number" Packet Coding::Scaled(1), "The lower of the two ports: usually the service.";
    TcpFlags "tcp_flags" "bits" Packet Coding::Scaled(1), "TCP flags from CWR (128) down to FIN (1).";
    TcpWindow "tcp_window" "bytes" Packet Coding::Scaled(1), "TCP window, unscaled.";
    Ttl "ttl" "hops" Packet Coding::Scaled(1), "Time to live or hop limit.";
    Tos "tos" "bits" Packet Coding::Scaled(1), "Type of service or traffic class: DSCP and ECN.";
    Ecn "ecn" "number" Packet Coding::Scaled(1), "ECN codepoint (RFC 3168 §5): 3 is congestion experienced.";
    Packets "packets" "packets" Flow Coding::Scaled(1), "Packets of the flow in this window.";
    Bytes "bytes" "bytes" Flow Coding::Scaled(1), "Wire bytes of the flow in this window.";
    SizeMin "size_min" "bytes" Flow Coding::Scaled(1), "Smallest packet.";
    SizeMax "size_max" "bytes" Flow Coding::Scaled(1), "Largest packet.";
    SizeAvg "size_avg" "bytes" Flow Coding::Scaled(256), "Average packet size.";
    SizeVar "size_var" "bytes^2" Flow Coding::FloatBits, "Variance of packet sizes.";
    IpdSum "ipd_sum" "ns" Flow Coding::Ticks, "Sum of inter-packet delays: last arrival minus first.";
    IpdMin "ipd_min" "ns" Flow Coding::Ticks, "Smallest inter-packet delay.";
    IpdMax "ipd_max" "ns" Flow Coding::Ticks, "Largest inter-packet delay.";
    IpdAvg "ipd_avg" "ns" Flow Coding::Ticks, "Average inter-packet delay.";
    IpdVar "ipd_var" "us^2" Flow Coding::FloatBits, "Variance of inter-packet delays.";
    ForwardBytes "forward_bytes" "bytes" Flow Coding::Scaled(1), "Wire bytes from the initiator.";
    BackwardBytes "backward_bytes" "bytes" Flow Coding::Scaled(1), "Wire bytes to the initiator.";
    BackwardSizeMin "backward_size_min" "bytes" Flow Coding::Scaled(1), "Smallest packet to the initiator; 0 without any.";
    BackwardSizeMax "backward_size_max" "bytes" Flow Coding::Scaled(1), "Largest packet to the initiator.";
    BackwardHeaderBytes "backward_header_bytes" "bytes" Flow Coding::Scaled(1), "Header bytes of packets to the initiator.";
    WindowForward "window_forward" "bytes" Flow Coding::Scaled(1), "TCP window of the initiator's first packet.";
    WindowBackward "window_backward" "bytes" Flow Coding::Scaled(1), "TCP window of the first packet to the initiator.";
    Backward "backward" "0 or 1" Flow Coding::Scaled(1), "1 if this packet goes to the initiator.";
}

impl Feature {
    /// The feature of that name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|f| f.name() == name)
    }

    /// The largest integer whose value is at most `threshold`: `value <= threshold` exactly if
    /// `integer <= encode(threshold)`. `None` if the threshold is below every value, `u32::MAX` if
    /// above all.
    #[must_use]
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss
    )]
    pub fn encode(self, threshold: f64, clock: Clock) -> Option<u32> {
        if threshold.is_nan() || threshold < 0.0 {
            return None;
        }
        // Minus zero is zero, but its bits are not those of a small number.
        let threshold = threshold.abs();
        Some(match self.coding() {
            // `as` saturates.
            Coding::Scaled(scale) => (threshold * f64::from(scale)).floor() as u32,
            Coding::Ticks => (threshold / clock.tick_ns() as f64).floor() as u32,
            Coding::FloatBits => {
                let nearest = threshold as f32;
                let bits = nearest.to_bits();
                if f64::from(nearest) > threshold {
                    bits - 1
                } else {
                    bits
                }
            }
        })
    }

    /// The value of an integer, in the feature's unit.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn decode(self, integer: u32, clock: Clock) -> f64 {
        match self.coding() {
            Coding::Scaled(scale) => f64::from(integer) / f64::from(scale),
            Coding::Ticks => f64::from(integer) * clock.tick_ns() as f64,
            Coding::FloatBits => f64::from(f32::from_bits(integer)),
        }
    }

    /// The feature of one packet, as an integer. `averages` is a switch's range table; without it
    /// averages are exact.
    #[inline(always)]
    #[must_use]
    pub fn value(
        self,
        facts: &PacketFacts,
        flow: &FlowStats,
        clock: Clock,
        averages: Option<&RangeTable>,
    ) -> u32 {
        let wide = u32::from;
        match self {
            Self::Size => wide(facts.size),
            Self::HeaderLen => wide(facts.header_len),
            Self::PayloadLen => wide(facts.size.saturating_sub(facts.header_len)),
            Self::Protocol => wide(facts.protocol.into()),
            Self::SourcePort => wide(facts.source_port),
            Self::DestinationPort => wide(facts.destination_port),
            Self::LowerPort => wide(facts.source_port.min(facts.destination_port)),
            Self::TcpFlags => wide(facts.tcp_flags.into()),
            Self::TcpWindow => wide(facts.tcp_window),
            Self::Ttl => wide(facts.ttl.into()),
            Self::Tos => wide(facts.tos.into()),
            Self::Ecn => wide((facts.tos & 3).into()),
            Self::Packets => flow.packets,
            Self::Bytes => flow.bytes,
            Self::SizeMin => wide(flow.size_min),
            Self::SizeMax => wide(flow.size_max),
            Self::SizeAvg => average(flow.bytes, 256, flow.packets, averages),
            Self::SizeVar => variance(flow.size_squares, flow.bytes, flow.packets, 1.0),
            Self::IpdSum => flow.ipd_sum,
            Self::IpdMin => flow.ipd_min,
            Self::IpdMax => flow.ipd_max,
            Self::IpdAvg => average(flow.ipd_sum, 1, flow.packets.saturating_sub(1), averages),
            Self::IpdVar => {
                #[allow(clippy::cast_precision_loss)]
                let tick_us = clock.tick_ns() as f64 / 1e3;
                let delays = flow.packets.saturating_sub(1);
                variance(flow.ipd_squares, flow.ipd_sum, delays, tick_us * tick_us)
            }
            Self::ForwardBytes => flow.bytes - flow.backward_bytes.min(flow.bytes),
            Self::BackwardBytes => flow.backward_bytes,
            Self::BackwardSizeMin => wide(flow.backward_size_min),
            Self::BackwardSizeMax => wide(flow.backward_size_max),
            Self::BackwardHeaderBytes => flow.backward_header_bytes,
            Self::WindowForward => wide(flow.window_forward),
            Self::WindowBackward => wide(flow.window_backward),
            Self::Backward => u32::from(facts.low_to_high != flow.forward_is_low_to_high),
        }
    }
}

/// `sum * scale / count`, rounded down; 0 if there is nothing to average.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn average(sum: u32, scale: u32, count: u32, table: Option<&RangeTable>) -> u32 {
    if count == 0 {
        return 0;
    }
    let scaled = u64::from(sum) * u64::from(scale);
    match table {
        None => clamped::<u32>(scaled / u64::from(count)),
        #[allow(clippy::cast_precision_loss)]
        Some(table) => (scaled as f64 / table.stands_for(count)) as u32,
    }
}

/// The population variance of `count` values, as the bits of an `f32`.
#[inline(always)]
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
fn variance(squares: u64, sum: u32, count: u32, unit: f64) -> u32 {
    if count == 0 {
        return 0;
    }
    let count = f64::from(count);
    let mean = f64::from(sum) / count;
    let variance = (squares as f64 / count - mean * mean).max(0.0);
    ((variance * unit) as f32).to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for &feature in Feature::ALL {
            assert_eq!(Feature::by_name(feature.name()), Some(feature));
        }
        assert_eq!(Feature::by_name("colour"), None);
    }

    #[test]
    fn thresholds_decide_as_real_numbers_do() {
        let clock = Clock::new(60_000_000_000);
        let tick = 4096.0;
        assert_eq!(Feature::Size.encode(59.5, clock), Some(59));
        assert_eq!(Feature::Size.encode(60.0, clock), Some(60));
        assert_eq!(Feature::Size.encode(-0.5, clock), None);
        assert_eq!(Feature::SizeVar.encode(-0.0, clock), Some(0));
        assert_eq!(Feature::Size.encode(1e30, clock), Some(u32::MAX));
        assert_eq!(Feature::IpdMin.encode(tick * 3.0 - 1.0, clock), Some(2));
        assert_eq!(Feature::IpdMin.encode(tick * 3.0, clock), Some(3));
        for threshold in [0.0, 0.1, 1.0, 12_345.678, 1e12] {
            let limit = Feature::SizeVar.encode(threshold, clock).unwrap();
            assert!(Feature::SizeVar.decode(limit, clock) <= threshold);
            assert!(Feature::SizeVar.decode(limit + 1, clock) > threshold);
        }
    }

    #[test]
    fn averages_compare_exactly_by_cross_multiplication() {
        // average <= C  <=>  sum * 256 < (C * 256 + 1) * count, C in 1/256 bytes.
        let clock = Clock::new(1_000_000);
        let facts = PacketFacts::default();
        for count in 1..60_u32 {
            for sum in (count * 40..count * 1500).step_by(37) {
                let flow = FlowStats {
                    packets: count,
                    bytes: sum,
                    ..FlowStats::default()
                };
                let value = Feature::SizeAvg.value(&facts, &flow, clock, None);
                for threshold in [40.0, 100.5, 100.0 + 1.0 / 256.0, 777.25, 1499.0] {
                    let limit = Feature::SizeAvg.encode(threshold, clock).unwrap();
                    let crossed = u64::from(sum) * 256 < (u64::from(limit) + 1) * u64::from(count);
                    assert_eq!(value <= limit, crossed, "{sum}/{count} <= {threshold}");
                }
            }
        }
    }
}
