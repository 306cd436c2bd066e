//! Counting 16 packets at a time, and their features.
//!
//! [`Sketch::count_group`] does what [`Sketch::insert`] and
//! [`Feature::value`](crate::Feature::value) do packet by packet; the vector code is in
//! [`kernel`](super::kernel).

use strata_wire::wide::{GROUPS, PacketColumns, Simd};

use super::Sketch;
use super::gathered::Gathered;
use super::kernel::{Count, Fetch};
use crate::switch::Arithmetic;

impl Sketch {
    /// Whether the packets with these times all belong to the current window, buckets stay where they
    /// are meanwhile, and packets are counted exactly, so that [`Sketch::count_group`] may count them.
    #[inline]
    #[must_use]
    pub fn stays(&self, packets: usize, ts_ns_min: u64, ts_ns_max: u64) -> bool {
        let leaves = |ts_ns| self.clock.leaves(self.window_start, ts_ns);
        !leaves(ts_ns_min)
            && !leaves(ts_ns_max)
            && !self.may_spread_within(packets as u64)
            && self.arithmetic == Arithmetic::Exact
    }

    /// [`Sketch::prefetch_other`] for the packets of a group, those included that have no flow.
    ///
    /// # Panics
    ///
    /// If there is no such group.
    #[inline]
    pub fn prefetch_others(&self, simd: Simd, packets: &PacketColumns, group: usize) {
        assert!(group < GROUPS);
        simd.run(Fetch {
            sketch: self,
            packets,
            group,
        });
    }

    /// Counts the packets of a group that are in `wanted`, in order, and adds the features of those
    /// whose flow has a bucket to `flow`, of the others to `packet`. The packets must stay in the
    /// window ([`Sketch::stays`]).
    ///
    /// # Panics
    ///
    /// If there is no such group, or a block is full.
    #[inline]
    pub fn count_group(
        &mut self,
        simd: Simd,
        packets: &PacketColumns,
        (group, wanted): (usize, u16),
        flow: &mut Gathered,
        packet: &mut Gathered,
    ) {
        assert!(group < GROUPS && !flow.is_full() && !packet.is_full());
        simd.run(Count {
            sketch: self,
            packets,
            group,
            wanted,
            flow,
            packet,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BLOCK, Clock, Feature, Level, PacketFacts};
    use proptest::prelude::*;
    use strata_wire::wide::{GROUP, WIDE};

    /// What is gathered for one side: the packets' places, and the values of all features.
    fn taken(gathered: &mut Gathered) -> Vec<(u8, Vec<u32>)> {
        let (block, lanes) = gathered.block();
        let values = |place: usize| {
            (0..Feature::ALL.len())
                .map(|n| block[n * BLOCK + place])
                .collect()
        };
        let taken = lanes
            .iter()
            .enumerate()
            .map(|(place, &lane)| (lane, values(place)))
            .collect();
        gathered.advance();
        taken
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// The same as packet by packet, where many share a place or a flow, or all do.
        #[test]
        fn a_batch_in_columns_is_counted_as_packet_by_packet(
            packets in prop::collection::vec(
                (0_u64..12, any::<u32>(), any::<u16>(), any::<u16>(), 0_u64..9_000_000, any::<u8>()),
                1..=WIDE,
            ),
            flows in 1_u64..12, bits in 1_u32..5, dissected in any::<u64>(),
        ) {
            let clock = Clock::new(10_000_000_000);
            let new_sketch = || Sketch::new(bits, clock, Arithmetic::Exact);
            let mut reference = new_sketch();
            let all = || Feature::ALL.iter().copied().enumerate();
            // Starts the window.
            let mut ts_ns = 20_000_000_000;
            let first = PacketFacts { ts_ns, ..PacketFacts::default() };
            let _ = reference.insert(&first);

            let (mut columns, mut expected) = (PacketColumns::default(), [Vec::new(), Vec::new()]);
            for (lane, &(flow, size, window, ports, delay, flags)) in packets.iter().enumerate() {
                // Occasionally back in time.
                ts_ns = if delay % 7 == 0 { ts_ns - delay } else { ts_ns + delay };
                let facts = PacketFacts {
                    fingerprint: strata_wire::mix64(flow % flows + 1),
                    ts_ns,
                    size: (size >> (size % 20)).min(65_535).try_into().unwrap(),
                    header_len: 40 + ports % 60,
                    low_to_high: flags & 1 != 0,
                    answers: flags & 6 == 0,
                    tcp_window: window >> (window % 16),
                    source_port: ports,
                    destination_port: !ports,
                    protocol: 6 + flags % 2 * 11,
                    tcp_flags: flags,
                    tos: flags >> 3,
                    ttl: 64 - flags % 8,
                };
                let (group, bit) = (lane / GROUP, lane % GROUP);
                columns.fingerprint[lane] = facts.fingerprint;
                columns.ts_ns[lane] = ts_ns;
                columns.size[lane] = facts.size.into();
                columns.header_len[lane] = facts.header_len.into();
                columns.tcp_window[lane] = facts.tcp_window.into();
                columns.source_port[lane] = facts.source_port.into();
                columns.destination_port[lane] = facts.destination_port.into();
                columns.protocol[lane] = facts.protocol.into();
                columns.tcp_flags[lane] = facts.tcp_flags.into();
                columns.tos[lane] = facts.tos.into();
                columns.ttl[lane] = facts.ttl.into();
                columns.low_to_high[group] |= u16::from(facts.low_to_high) << bit;
                columns.answers[group] |= u16::from(facts.answers) << bit;
                // About seven in eight.
                if dissected >> (lane % 61) & 7 == 0 {
                    continue;
                }
                columns.dissected[group] |= 1 << bit;
                let bucket = reference.insert(&facts).copied();
                let stats = bucket.unwrap_or_default().stats();
                let side = usize::from(bucket.is_some());
                let values = all().map(|(_, feature)| match (side, feature.level()) {
                    (0, Level::Flow) => 0,
                    _ => feature.value(&facts, &stats, clock, None),
                });
                expected[side].push((u8::try_from(lane).unwrap(), values.collect::<Vec<u32>>()));
            }
            for simd in Simd::available() {
                let mut sketch = new_sketch();
                let _ = sketch.insert(&first);
                let mut sides = [Level::Packet, Level::Flow].map(|level| {
                    Gathered::new(all().filter(|(_, f)| level == Level::Flow || f.level() == level))
                });
                let mut found = [Vec::new(), Vec::new()];
                for group in 0..GROUPS {
                    let [packet, flow] = &mut sides;
                    let wanted = columns.dissected[group];
                    sketch.count_group(simd, &columns, (group, wanted), flow, packet);
                    for (side, found) in sides.iter_mut().zip(&mut found) {
                        if side.is_full() {
                            found.extend(taken(side));
                        }
                    }
                }
                for (side, found) in sides.iter_mut().zip(&mut found) {
                    found.extend(taken(side));
                }
                prop_assert_eq!(&found, &expected);
                prop_assert_eq!(reference.pressure, sketch.pressure);
                let layers = reference.layers.iter().zip(&sketch.layers);
                prop_assert!(layers.into_iter().all(|(a, b)| a[..] == b[..]));
            }
        }
    }
}
