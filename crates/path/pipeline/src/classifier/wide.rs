//! The classifier for batches in columns: what [`Classifier::classify`] does, 16 and 64 packets
//! at a time across a batch of 256.

use strata_classify::{Forest, LANES, Model, RankRows, RowForest, VerdictId, Verdicts};
use strata_sketch::{Gathered, Level, PacketFacts, Sketch};
use strata_wire::wide::{GROUP, GROUPS, PacketColumns, Simd, WIDE};

use super::shadow::Shadow;
use super::{Classifier, Side, bits};
use crate::samples::Samples;

/// Blocks of a batch.
const BLOCKS: usize = WIDE / LANES;

/// What the packets of a batch in columns need until they have verdicts.
#[derive(Debug)]
pub(super) struct Wide {
    simd: Simd,
    /// Packets without a bucket, and with one.
    sides: [WideSide; 2],
    unknown: Unknown,
}

/// Packets whose verdicts are not known by their keys alone, by place in the batch.
#[derive(Debug)]
struct Unknown {
    /// By side and group.
    lanes: [[u16; GROUPS]; 2],
    /// The key by which a verdict is found.
    keys: [u64; WIDE],
    /// Where its leaves are, among those of its side, if it has [`Found::Leaves`].
    places: [u8; WIDE],
}

impl Unknown {
    #[inline]
    fn add(&mut self, side: usize, lane: u8, key: u64, place: u8) {
        let at = usize::from(lane);
        self.lanes[side][at / GROUP] |= 1 << (at % GROUP);
        self.keys[at] = key;
        self.places[at] = place;
    }
}

/// The packets of one side.
#[derive(Debug)]
struct WideSide {
    level: Level,
    gathered: Gathered,
    found: Found,
    blocks: usize,
}

/// How the leaves of a side's packets are found.
#[derive(Debug)]
enum Found {
    /// As keys, for all blocks together.
    Keys {
        forest: Box<RowForest>,
        /// By block: the packets' places in the batch.
        lanes: [[u8; LANES]; BLOCKS],
        counts: [usize; BLOCKS],
    },
    /// For each block of the batch so far, the leaves of every tree.
    Leaves([Vec<[u16; LANES]>; BLOCKS]),
}

impl WideSide {
    fn new(simd: Simd, model: &Model, side: &Side) -> Self {
        let leaves = || vec![[0; LANES]; side.forest.tree_count()];
        let found = match RowForest::new(model, side.level, simd) {
            Some(forest) => Found::Keys {
                forest: Box::new(forest),
                lanes: [[0; LANES]; BLOCKS],
                counts: [0; BLOCKS],
            },
            None => Found::Leaves([leaves(), leaves(), leaves(), leaves()]),
        };
        Self {
            level: side.level,
            gathered: Gathered::new(side.asked.iter().copied()),
            found,
            blocks: 0,
        }
    }
}

impl Wide {
    pub(super) fn new(simd: Simd, model: &Model, packet: &Side, flow: &Side) -> Self {
        let side = |side| WideSide::new(simd, model, side);
        Self {
            simd,
            sides: [side(packet), side(flow)],
            unknown: Unknown {
                lanes: [[0; GROUPS]; 2],
                keys: [0; WIDE],
                places: [0; WIDE],
            },
        }
    }
}

/// Who judges packets.
struct Judges<'a> {
    /// Those without a bucket, and those with one.
    forests: [(&'a Forest, &'a mut RankRows); 2],
    verdicts: &'a mut Verdicts,
    samples: &'a mut Samples,
    shadow: Option<&'a mut Shadow>,
}

impl Classifier {
    /// Whether packets with these timestamps may be classified in columns.
    #[inline]
    pub(crate) fn takes_columns(&self, packets: usize, (earliest, latest): (u64, u64)) -> bool {
        self.wide.is_some()
            && self.flow.forest.tree_count() > 0
            && self.sketch.stays(packets, earliest, latest)
    }

    /// Counts the packets of these groups, and evaluates them as soon as a block is full.
    pub(crate) fn count_columns(
        &mut self,
        packets: &PacketColumns,
        groups: std::ops::Range<usize>,
    ) {
        let (Some(wide), mut judges, sketch) = self.parts() else {
            return;
        };
        if let Some(shadow) = judges.shadow.as_mut().filter(|_| groups.start == 0) {
            shadow.begin();
        }
        // Those that policies discard have no business in the tables of flows, not even a look.
        let counted = groups.filter(|&group| packets.dissected[group] != 0);
        for group in counted.clone() {
            sketch.prefetch_others(wide.simd, packets, group);
        }
        for group in counted {
            let wanted = packets.dissected[group];
            let [packet, flow] = &mut wide.sides;
            let (flow, packet) = (&mut flow.gathered, &mut packet.gathered);
            sketch.count_group(wide.simd, packets, (group, wanted), flow, packet);
            for side in 0..2 {
                if wide.sides[side].gathered.is_full() {
                    wide.evaluate_block(side, &mut judges);
                }
            }
        }
    }

    /// Counts and classifies packets of a batch in columns one by one, at whatever times: the first `count`,
    /// as far as they have a flow and policies have left them.
    pub(crate) fn classify_columns(
        &mut self,
        packets: &PacketColumns,
        count: usize,
        verdicts: &mut [VerdictId; WIDE],
    ) {
        *verdicts = [Verdicts::UNCLASSIFIED_ID; WIDE];
        let groups = &packets.dissected[..count.div_ceil(GROUP)];
        let parts = groups.chunks(LANES / GROUP).zip(verdicts.chunks_mut(LANES));
        for (part, (groups, verdicts)) in parts.enumerate() {
            let together = |all, (&group, place)| all | u64::from(group) << (place * GROUP);
            let dissected: u64 = groups.iter().zip(0..).fold(0, together);
            if dissected == 0 {
                continue;
            }
            let mut facts = [PacketFacts::default(); LANES];
            for lane in bits(dissected) {
                facts[lane] = PacketFacts::in_columns(packets, part * LANES + lane);
            }
            self.classify(&facts, dissected);
            verdicts.copy_from_slice(&self.classified);
        }
    }

    /// Gives the packets of a batch their verdicts, in order.
    pub(crate) fn finish_columns(&mut self, verdicts: &mut [VerdictId; WIDE]) {
        let (Some(wide), mut judges, _) = self.parts() else {
            return;
        };
        *verdicts = [Verdicts::UNCLASSIFIED_ID; WIDE];
        for side in 0..2 {
            if !wide.sides[side].gathered.block().1.is_empty() {
                wide.evaluate_block(side, &mut judges);
            }
            wide.find_known(side, judges.verdicts, verdicts);
        }
        for group in 0..GROUPS {
            let [packet, flow] = [0, 1].map(|side| wide.unknown.lanes[side][group]);
            for lane in bits(u64::from(packet | flow)) {
                let side = &wide.sides[usize::from(flow >> lane & 1)];
                let at = group * GROUP + lane;
                verdicts[at] = side.find_unknown(&wide.unknown, at, judges.verdicts);
            }
        }
        wide.unknown.lanes = [[0; GROUPS]; 2];
        wide.sides.iter_mut().for_each(|side| side.blocks = 0);
        let known = &*judges.verdicts;
        judges.samples.count(|lane| known.anomaly(verdicts[lane]));
    }

    /// What batches in columns need, who judges their packets, and where flows are counted.
    fn parts(&mut self) -> (Option<&mut Wide>, Judges<'_>, &mut Sketch) {
        let judges = Judges {
            forests: [
                (&self.packet.forest, &mut self.packet.ranks),
                (&self.flow.forest, &mut self.flow.ranks),
            ],
            verdicts: &mut self.verdicts,
            samples: &mut self.samples,
            shadow: self.shadow.as_deref_mut(),
        };
        (self.wide.as_deref_mut(), judges, &mut self.sketch)
    }
}

impl Wide {
    /// Evaluates the first block of a side.
    fn evaluate_block(&mut self, side: usize, judges: &mut Judges<'_>) {
        let Wide {
            simd,
            sides,
            unknown,
        } = self;
        let number = side;
        let side = &mut sides[side];
        let (block, lanes) = side.gathered.block();
        if side.level == Level::Flow {
            judges.samples.take(block, lanes);
        }
        if let Some(shadow) = &mut judges.shadow {
            shadow.judge(side.level, block, lanes);
        }
        match &mut side.found {
            Found::Keys {
                forest,
                lanes: all,
                counts,
            } => {
                forest.compare(block, side.blocks);
                all[side.blocks][..lanes.len()].copy_from_slice(lanes);
                counts[side.blocks] = lanes.len();
            }
            Found::Leaves(leaves) => {
                let leaves = &mut leaves[side.blocks];
                let (forest, ranks) = &mut judges.forests[number];
                forest.leaves(block, lanes.len(), ranks, leaves);
                let mut found = [0; LANES];
                let (verdicts, level) = (&*judges.verdicts, side.level);
                let wanted = &mut found[..lanes.len()];
                simd.call(|| verdicts.keys(level, leaves, wanted));
                let first = (side.blocks * LANES).to_le_bytes()[0];
                for ((place, &lane), key) in (first..=u8::MAX).zip(lanes).zip(found) {
                    unknown.add(number, lane, key, place);
                }
            }
        }
        side.blocks += 1;
        side.gathered.advance();
    }

    /// The verdicts that are known by the keys of a side.
    #[inline]
    fn find_known(&mut self, side: usize, known: &Verdicts, verdicts: &mut [VerdictId; WIDE]) {
        let Self { sides, unknown, .. } = self;
        let WideSide {
            level,
            found:
                Found::Keys {
                    forest,
                    lanes,
                    counts,
                },
            blocks: blocks @ 1..,
            ..
        } = &mut sides[side]
        else {
            return;
        };
        forest.find_keys();
        for block in 0..*blocks {
            let lanes = &lanes[block];
            let mut differences = 0;
            forest.each_key(block, counts[block], |place, key| {
                let (verdict, difference) = known.probe_key(*level, key);
                verdicts[usize::from(lanes[place % LANES])] = verdict;
                differences |= difference;
            });
            if differences != 0 {
                forest.each_key(block, counts[block], |place, key| {
                    if known.probe_key(*level, key).1 != 0 {
                        unknown.add(side, lanes[place % LANES], key, 0);
                    }
                });
            }
        }
    }
}

impl WideSide {
    /// The verdict of a packet in [`Unknown`].
    fn find_unknown(&self, unknown: &Unknown, at: usize, known: &mut Verdicts) -> VerdictId {
        let key = unknown.keys[at];
        match &self.found {
            Found::Keys { forest, .. } => known.learn_key(self.level, key, forest),
            Found::Leaves(leaves) => {
                let place = usize::from(unknown.places[at]);
                let leaves = &leaves[place / LANES];
                known.find(self.level, key, leaves, place % LANES)
            }
        }
    }
}
