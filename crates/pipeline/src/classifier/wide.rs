//! The classifier for batches in columns: what [`Classifier::classify`] does, 16 and 64 packets
//! at a time across a batch of 256.

use strata_classify::{LANES, VerdictId, Verdicts};
use strata_sketch::{Gathered, Level};
use strata_wire::wide::{GROUP, GROUPS, PacketColumns, Simd, WIDE};

use super::{Classifier, Side, bits};

/// What the packets of a batch in columns need until they have verdicts.
#[derive(Debug)]
pub(super) struct Wide {
    simd: Simd,
    /// Packets without a bucket, and with one.
    sides: [WideSide; 2],
    /// By place in the batch: the key by which a verdict is found.
    keys: [u64; WIDE],
    /// Where its leaves are, among those of its side.
    places: [u8; WIDE],
}

/// The packets of one side.
#[derive(Debug)]
struct WideSide {
    level: Level,
    gathered: Gathered,
    /// For each block of the batch so far, the leaves of every tree.
    leaves: [Vec<[u16; LANES]>; WIDE / LANES],
    blocks: usize,
}

impl WideSide {
    fn new(side: &Side) -> Self {
        let leaves = || vec![[0; LANES]; side.forest.tree_count()];
        Self {
            level: side.level,
            gathered: Gathered::new(side.asked.iter().copied()),
            leaves: [leaves(), leaves(), leaves(), leaves()],
            blocks: 0,
        }
    }
}

impl Wide {
    pub(super) fn new(simd: Simd, packet: &Side, flow: &Side) -> Self {
        Self {
            simd,
            sides: [WideSide::new(packet), WideSide::new(flow)],
            keys: [0; WIDE],
            places: [0; WIDE],
        }
    }
}

impl Classifier {
    /// Whether packets with these timestamps may be classified in columns.
    #[inline]
    pub(crate) fn takes_columns(&self, ts_ns_min: u64, ts_ns_max: u64) -> bool {
        self.wide.is_some()
            && self.flow.forest.tree_count() > 0
            && self.sketch.stays(ts_ns_min, ts_ns_max)
    }

    /// Counts the packets of these groups, and evaluates them as soon as a block is full.
    pub(crate) fn count_columns(
        &mut self,
        packets: &PacketColumns,
        groups: std::ops::Range<usize>,
    ) {
        let Some(mut wide) = self.wide.take() else {
            return;
        };
        for group in groups.clone() {
            for lane in bits(packets.dissected[group].into()) {
                self.sketch
                    .prefetch_other(packets.fingerprint[group * GROUP + lane]);
            }
        }
        for group in groups {
            let wanted = packets.dissected[group];
            let [packet, flow] = &mut wide.sides;
            let (flow, packet) = (&mut flow.gathered, &mut packet.gathered);
            self.sketch
                .count_group(wide.simd, packets, (group, wanted), flow, packet);
            for side in 0..2 {
                if wide.sides[side].gathered.is_full() {
                    self.evaluate_block(&mut wide, side);
                }
            }
        }
        self.wide = Some(wide);
    }

    /// Finds the leaves of the packets in the first block of a side.
    fn evaluate_block(&mut self, wide: &mut Wide, side: usize) {
        let Wide {
            simd,
            sides,
            keys,
            places,
        } = wide;
        let side = &mut sides[side];
        let (block, lanes) = side.gathered.block();
        let leaves = &mut side.leaves[side.blocks];
        let forest = match side.level {
            Level::Packet => &self.packet.forest,
            Level::Flow => {
                self.samples.take(block, lanes);
                &self.flow.forest
            }
        };
        forest.leaves(block, lanes.len(), leaves);
        let mut found = [0; LANES];
        let (verdicts, level) = (&self.verdicts, side.level);
        let wanted = &mut found[..lanes.len()];
        simd.call(|| verdicts.keys(level, leaves, wanted));
        for ((place, &lane), key) in (0..).zip(lanes).zip(found) {
            keys[usize::from(lane)] = key;
            places[usize::from(lane)] = place;
        }
        let first = (side.blocks * LANES).to_le_bytes()[0];
        for &lane in lanes {
            places[usize::from(lane)] |= first;
        }
        side.blocks += 1;
        side.gathered.advance();
    }

    /// Gives the packets of a batch their verdicts, in order.
    pub(crate) fn finish_columns(
        &mut self,
        dissected: &[u16; GROUPS],
        verdicts: &mut [VerdictId; WIDE],
    ) {
        let Some(mut wide) = self.wide.take() else {
            return;
        };
        for side in 0..2 {
            if !wide.sides[side].gathered.block().1.is_empty() {
                self.evaluate_block(&mut wide, side);
            }
            wide.sides[side].blocks = 0;
        }
        let all = verdicts.as_chunks_mut::<GROUP>().0;
        for ((group, &dissected), verdicts) in dissected.iter().enumerate().zip(all) {
            *verdicts = [Verdicts::UNCLASSIFIED_ID; GROUP];
            for lane in bits(dissected.into()) {
                let at = group * GROUP + lane;
                let (key, place) = (wide.keys[at], usize::from(wide.places[at]));
                let side = &wide.sides[Verdicts::level_of(key) as usize];
                let leaves = &side.leaves[place / LANES];
                verdicts[lane] = self.verdicts.find(side.level, key, leaves, place % LANES);
            }
        }
        let known = &self.verdicts;
        self.samples.count(|lane| known.anomaly(verdicts[lane]));
        self.wide = Some(wide);
    }
}
