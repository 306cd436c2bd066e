//! Sketch, features and forest of one model, for a batch at a time.

mod shadow;
mod wide;

use strata_classify::{
    ClassesAndSteps, Columns, Drift, Forest, Kernel, LANES, Model, RankRows, Verdict, VerdictId,
    Verdicts,
};
use strata_sketch::{
    Arithmetic, BITS_DEFAULT, Bucket, Clock, Feature, Level, PacketFacts, Preparation, Pressure,
    RangeTable, Sketch, TableSize,
};

use crate::path::DataPath;
use crate::samples::Samples;
use shadow::Shadow;
pub use shadow::ShadowError;
use wide::Wide;

/// Of a table of flows that is never used.
const BITS_TINY: u32 = 8;

/// One model at work.
#[derive(Debug)]
pub struct Classifier {
    sketch: Sketch,
    verdicts: Verdicts,
    features: Features,
    flow: Side,
    packet: Side,
    /// For each packet of `flow`: its flow's bucket right after the packet.
    buckets: [Bucket; LANES],
    classified: Classified,
    samples: Samples,
    shadow: Option<Box<Shadow>>,
    /// For batches in columns, where the path has them.
    wide: Option<Box<Wide>>,
}

/// Turns facts and buckets into the columns that a forest compares.
#[derive(Debug)]
struct Features {
    clock: Clock,
    averages: Option<RangeTable>,
    columns: Box<Columns>,
}

/// The forest of one level, and the packets of a batch that it decides on, one after another.
#[derive(Debug)]
struct Side {
    level: Level,
    forest: Forest,
    /// The features of the model, and their columns.
    asked: Vec<(usize, Feature)>,
    ranks: RankRows,
    leaves: Vec<[u16; LANES]>,
    facts: [PacketFacts; LANES],
    /// The keys by which the packets' verdicts are found.
    keys: [u64; LANES],
    /// The packets' places in the batch.
    lanes: [u8; LANES],
    count: usize,
}

impl Side {
    /// `shadow` gets the same features.
    fn new(model: &Model, shadow: Option<&Model>, level: Level, kernel: Kernel) -> Self {
        let forest = Forest::up_to(model, level, kernel);
        let mut is_asked = model.asked(level);
        for (is_asked, also) in is_asked
            .iter_mut()
            .zip(shadow.iter().flat_map(|s| s.asked(level)))
        {
            *is_asked |= also;
        }
        if let (Level::Flow, Some(drift)) = (level, Drift::new(model)) {
            drift.asked().for_each(|column| is_asked[column] = true);
        }
        let features = model.feature_list().into_iter().enumerate();
        Self {
            level,
            asked: features.filter(|(column, _)| is_asked[*column]).collect(),
            ranks: RankRows::default(),
            leaves: vec![[0; LANES]; forest.tree_count()],
            forest,
            facts: [PacketFacts::default(); LANES],
            keys: [0; LANES],
            lanes: [0; LANES],
            count: 0,
        }
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)]
    fn push(&mut self, lane: usize, facts: &PacketFacts) {
        self.facts[self.count] = *facts;
        self.lanes[self.count] = lane as u8;
        self.count += 1;
    }

    /// Finds the leaves of its packets, and their keys.
    #[inline]
    fn evaluate(
        &mut self,
        features: &mut Features,
        buckets: &[Bucket; LANES],
        verdicts: &Verdicts,
    ) {
        let facts = &self.facts[..self.count];
        for &(column, feature) in &self.asked {
            let column = &mut features.columns[column * LANES..][..facts.len()];
            let averages = features.averages.as_ref();
            feature.fill(
                column,
                facts,
                &buckets[..facts.len()],
                features.clock,
                averages,
            );
        }
        self.forest.leaves(
            &features.columns,
            self.count,
            &mut self.ranks,
            &mut self.leaves,
        );
        verdicts.keys(self.level, &self.leaves, &mut self.keys[..self.count]);
    }

    /// The verdict on its packet at `place`.
    #[inline(always)]
    fn verdict(&self, place: usize, verdicts: &mut Verdicts) -> VerdictId {
        verdicts.find(self.level, self.keys[place], &self.leaves, place)
    }
}

/// The verdicts of a batch, by lane.
pub type Classified = [VerdictId; LANES];

impl Classifier {
    /// A classifier for the best path on this machine, with an empty sketch of layers of 2^16
    /// buckets ([`BITS_DEFAULT`]).
    ///
    /// # Panics
    ///
    /// If there is no memory.
    #[must_use]
    pub fn new(model: &Model) -> Self {
        Self::on(DataPath::best(), model, Self::small(model))
    }

    /// An empty sketch of layers of 2^16 buckets.
    pub(crate) fn small(model: &Model) -> Sketch {
        let sketch = model.new_sketch(TableSize::fixed(BITS_DEFAULT));
        sketch.expect("memory for a small table of flows")
    }

    /// A classifier for this path, with a sketch made for this model ([`Model::new_sketch`]).
    ///
    /// # Panics
    ///
    /// If the machine does not support the path.
    #[must_use]
    pub fn on(path: DataPath, model: &Model, sketch: Sketch) -> Self {
        Self::made(path, model, None, sketch)
    }

    /// The same, with a second model that is judged by the features of this one.
    ///
    /// # Panics
    ///
    /// If the machine does not support the path, or the shadow needs other features
    /// ([`Classifier::check_shadow`]).
    #[must_use]
    pub fn with_shadow(path: DataPath, model: &Model, shadow: &Model, sketch: Sketch) -> Self {
        let checked = Self::check_shadow(model, shadow);
        assert_eq!(checked, Ok(()), "a shadow is checked before it is used");
        Self::made(path, model, Some(shadow), sketch)
    }

    /// Whether a second model can be judged by the features of a first.
    ///
    /// # Errors
    ///
    /// If it needs others.
    pub fn check_shadow(model: &Model, shadow: &Model) -> Result<(), ShadowError> {
        Shadow::check(model, shadow)
    }

    fn made(path: DataPath, model: &Model, shadow: Option<&Model>, sketch: Sketch) -> Self {
        let clock = model.clock();
        let arithmetic = model.sketch_arithmetic();
        let averages = match arithmetic {
            Arithmetic::Exact => None,
            Arithmetic::Switch { delta } => Some(RangeTable::new(delta)),
        };
        let flow = Side::new(model, shadow, Level::Flow, path.kernel());
        let packet = Side::new(model, shadow, Level::Packet, path.kernel());
        let wide = path
            .simd()
            .map(|simd| Box::new(Wide::new(simd, model, &packet, &flow)));
        Self {
            wide,
            sketch,
            verdicts: Verdicts::new(model),
            features: Features {
                clock,
                averages,
                columns: Box::new([0; size_of::<Columns>() / size_of::<u32>()]),
            },
            flow,
            packet,
            buckets: [Bucket::default(); LANES],
            classified: [Verdicts::UNCLASSIFIED_ID; LANES],
            samples: Samples::new(model),
            shadow: shadow.map(|shadow| Box::new(Shadow::new(shadow, path.kernel()))),
        }
    }

    /// Puts another model and its shadow in the place of these, which need the same features
    /// ([`Classifier::check_shadow`]): flows keep what was counted of them, verdicts and drift begin
    /// anew.
    pub(crate) fn replace(&mut self, path: DataPath, model: &Model, shadow: &Model) {
        let tiny = model.new_sketch(TableSize::fixed(BITS_TINY));
        let tiny = tiny.expect("memory for a handful of flows");
        let mut next = Self::with_shadow(path, model, shadow, tiny);
        std::mem::swap(&mut next.sketch, &mut self.sketch);
        *self = next;
    }

    /// What the shadow says about the packet at a place in the batch: class and step, see
    /// [`Verdicts::class_and_step`].
    ///
    /// # Panics
    ///
    /// If there is no shadow.
    #[inline]
    pub(crate) fn of_shadow(&self, at: usize) -> [u8; 2] {
        let shadow = self
            .shadow
            .as_ref()
            .expect("a shadow is asked if there is one");
        shadow.class_and_step(at)
    }

    /// What is known about the traffic's distributions.
    #[must_use]
    pub fn drift(&self) -> Option<&Drift> {
        self.samples.drift()
    }

    /// A verdict by its number.
    #[inline]
    #[must_use]
    pub fn verdict(&self, id: VerdictId) -> &Verdict {
        self.verdicts.get(id)
    }

    /// The class of a verdict.
    #[inline]
    #[must_use]
    pub fn class(&self, id: VerdictId) -> u8 {
        self.verdicts.class(id)
    }

    /// The class of a verdict and the step of its score ([`Verdicts::class_and_step`]).
    #[inline]
    #[must_use]
    pub fn class_and_step(&self, id: VerdictId) -> [u8; 2] {
        self.verdicts.class_and_step(id)
    }

    /// The same of all verdicts, by number.
    #[inline]
    pub(crate) fn classes_and_steps(&self) -> &ClassesAndSteps {
        self.verdicts.classes_and_steps()
    }

    /// Whether each class is anomalous, and last whether what is not dissected is.
    pub(crate) fn anomalous(&self) -> impl Iterator<Item = bool> {
        self.verdicts.anomalous()
    }

    /// Pressure on the sketch's buckets so far.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        self.sketch.pressure()
    }

    /// Memory for more flows, to be prepared by another thread; see [`Sketch::preparation`].
    #[inline]
    pub(crate) fn preparation(&mut self) -> Option<Preparation> {
        self.sketch.preparation()
    }

    /// Fetches a flow's bucket ahead of [`Classifier::classify`].
    #[inline]
    pub fn prefetch(&self, fingerprint: u64) {
        self.sketch.prefetch(fingerprint);
    }

    /// Counts the packets of a batch, in order, and gives each its verdict. Only lanes whose bit in
    /// `dissected` is set are classified, whatever facts the others have.
    ///
    /// # Panics
    ///
    /// If there are more than [`LANES`] packets.
    #[inline]
    pub fn classify(&mut self, facts: &[PacketFacts], dissected: u64) {
        assert!(facts.len() <= LANES);
        self.classified = [Verdicts::UNCLASSIFIED_ID; LANES];
        let serves_flows = self.flow.forest.tree_count() > 0;
        (self.flow.count, self.packet.count) = (0, 0);
        if let Some(shadow) = &mut self.shadow {
            shadow.begin();
        }
        for lane in bits(dissected) {
            self.sketch.prefetch_other(facts[lane].fingerprint);
        }
        for lane in bits(dissected) {
            match self.sketch.insert(&facts[lane]) {
                Some(bucket) if serves_flows => {
                    self.buckets[self.flow.count] = *bucket;
                    self.flow.push(lane, &facts[lane]);
                }
                _ => self.packet.push(lane, &facts[lane]),
            }
        }
        let mut with_bucket = 0;
        if self.flow.count > 0 {
            let features = &mut self.features;
            self.flow.evaluate(features, &self.buckets, &self.verdicts);
            let lanes = &self.flow.lanes[..self.flow.count];
            self.samples.take(&features.columns, lanes);
            if let Some(shadow) = &mut self.shadow {
                shadow.judge(Level::Flow, &features.columns, lanes);
            }
            with_bucket = lanes.iter().fold(0, |mask, &lane| mask | 1_u64 << lane);
        }
        if self.packet.count > 0 {
            let features = &mut self.features;
            self.packet
                .evaluate(features, &self.buckets, &self.verdicts);
            if let Some(shadow) = &mut self.shadow {
                let lanes = &self.packet.lanes[..self.packet.count];
                shadow.judge(Level::Packet, &features.columns, lanes);
            }
        }
        // In order of arrival, since that numbers the verdicts.
        let sides = [&self.packet, &self.flow];
        let mut places = [0; 2];
        for lane in bits(dissected) {
            let side = usize::from(with_bucket >> lane & 1 != 0);
            self.classified[lane] = sides[side].verdict(places[side], &mut self.verdicts);
            places[side] += 1;
        }
        let (verdicts, classified) = (&self.verdicts, &self.classified);
        self.samples
            .count(|lane| verdicts.anomaly(classified[lane]));
    }

    /// What [`Classifier::classify`] found last.
    #[inline]
    #[must_use]
    pub fn classified(&self) -> &Classified {
        &self.classified
    }
}

/// The positions of the set bits, from the lowest.
#[inline(always)]
pub(crate) fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        // Clears the lowest bit.
        mask &= mask.wrapping_sub(1);
        (lane < 64).then_some(lane as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever else is in its batch, a packet gets the verdict it would get alone: with a
        /// bucket, without one because other flows hold its places, or not dissected.
        #[test]
        fn a_batch_is_judged_as_packet_by_packet(
            batches in prop::collection::vec(
                (
                    prop::collection::vec((0_u64..6, any::<u16>(), any::<u16>(), any::<u8>()), 1..=LANES),
                    any::<u64>(), any::<u64>(),
                ),
                1..5,
            ),
        ) {
            let path = strata_testkit::workspace_root().join("models/default.json");
            let model = Model::from_json(&std::fs::read(path).unwrap()).unwrap();
            let mut classifier = Classifier::new(&model);
            let mut sketch = Classifier::small(&model);
            let verdicts = Verdicts::new(&model);
            let mut ts_ns = 1_000_000_000;
            for (packets, some, more) in batches {
                // About three in four.
                let dissected = (some | more) & (u64::MAX >> (LANES - packets.len()));
                let facts: Vec<PacketFacts> = packets.iter().map(|&(flow, size, window, flags)| {
                    ts_ns += u64::from(window) * 1_000;
                    PacketFacts {
                        // All contend for the same two places.
                        fingerprint: 0x1234 << 48 | flow << 20 | 0x5678,
                        ts_ns,
                        size,
                        header_len: 54,
                        low_to_high: flags & 1 != 0,
                        tcp_window: window,
                        protocol: if flags & 2 != 0 { 6 } else { 17 },
                        tcp_flags: flags,
                        ..PacketFacts::default()
                    }
                }).collect();
                classifier.classify(&facts, dissected);
                for (lane, facts) in facts.iter().enumerate() {
                    let id = classifier.classified()[lane];
                    if dissected & 1 << lane == 0 {
                        prop_assert_eq!(id, Verdicts::UNCLASSIFIED_ID);
                        continue;
                    }
                    let (level, flow) = match sketch.insert(facts) {
                        Some(bucket) => (Level::Flow, bucket.stats()),
                        None => (Level::Packet, Bucket::default().stats()),
                    };
                    let features = model.feature_list().into_iter();
                    let values: Vec<u32> =
                        features.map(|f| f.value(facts, &flow, model.clock(), None)).collect();
                    let leaves = model.leaves_naive(level, &values);
                    prop_assert_eq!(classifier.verdict(id), &verdicts.judge(level, &leaves));
                }
            }
        }
    }
}
