//! Sketch, features and forest of one model, for a batch at a time.

use strata_classify::{Columns, Forest, LANES, Model, Verdict, VerdictId, Verdicts};
use strata_sketch::{
    Arithmetic, BITS_DEFAULT, Clock, Feature, FlowStats, Level, PacketFacts, Pressure, RangeTable,
    Sketch,
};

/// One model at work.
#[derive(Debug)]
pub struct Classifier {
    sketch: Sketch,
    verdicts: Verdicts,
    clock: Clock,
    averages: Option<RangeTable>,
    features: Vec<Feature>,
    flow: Side,
    packet: Side,
}

/// The packets of a batch that one forest serves.
#[derive(Debug)]
struct Side {
    level: Level,
    forest: Forest,
    facts: [PacketFacts; LANES],
    flows: [FlowStats; LANES],
    /// Which lane of the batch each is.
    lanes: [u8; LANES],
    count: usize,
    columns: Box<Columns>,
    leaves: Vec<[u16; LANES]>,
}

impl Side {
    fn new(model: &Model, level: Level) -> Self {
        let forest = Forest::new(model, level);
        Self {
            level,
            facts: [PacketFacts::default(); LANES],
            flows: [FlowStats::default(); LANES],
            lanes: [0; LANES],
            count: 0,
            columns: Box::new([0; size_of::<Columns>() / size_of::<u32>()]),
            leaves: vec![[0; LANES]; forest.tree_count()],
            forest,
        }
    }

    #[inline]
    fn push(&mut self, lane: usize, facts: &PacketFacts, flow: FlowStats) {
        self.facts[self.count] = *facts;
        self.flows[self.count] = flow;
        // A lane is below 64.
        self.lanes[self.count] = u8::try_from(lane).unwrap_or(u8::MAX);
        self.count += 1;
    }
}

/// The classes of a batch, by lane.
pub type Classified = [VerdictId; LANES];

impl Classifier {
    /// A classifier with empty sketches.
    #[must_use]
    pub fn new(model: &Model) -> Self {
        let clock = model.clock();
        let arithmetic = model.sketch_arithmetic();
        let averages = match arithmetic {
            Arithmetic::Exact => None,
            Arithmetic::Switch { delta } => Some(RangeTable::new(delta)),
        };
        Self {
            sketch: Sketch::new(BITS_DEFAULT, clock, arithmetic),
            verdicts: Verdicts::new(model),
            clock,
            averages,
            features: model.feature_list(),
            flow: Side::new(model, Level::Flow),
            packet: Side::new(model, Level::Packet),
        }
    }

    /// A verdict by its number.
    #[inline]
    #[must_use]
    pub fn verdict(&self, id: VerdictId) -> &Verdict {
        self.verdicts.get(id)
    }

    /// Pressure on the sketch's buckets so far.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        self.sketch.pressure()
    }

    /// Fetches the bucket of a flow ahead of [`Classifier::classify`].
    #[inline]
    pub fn prefetch(&self, fingerprint: u64) {
        self.sketch.prefetch(fingerprint);
    }

    /// Counts the packets of a batch, in order, and gives each its verdict.
    /// `facts[lane]` is `None` for packets that are not classified.
    ///
    /// # Panics
    ///
    /// If there are more than [`LANES`] packets.
    #[inline]
    pub fn classify(&mut self, facts: &[Option<PacketFacts>]) -> Classified {
        assert!(facts.len() <= LANES);
        let mut classified = [Verdicts::UNCLASSIFIED_ID; LANES];
        self.flow.count = 0;
        self.packet.count = 0;
        let serves_flows = self.flow.forest.tree_count() > 0;
        for (lane, facts) in facts.iter().enumerate() {
            let Some(facts) = facts else {
                continue;
            };
            let flow = self.sketch.insert(facts).map(|bucket| bucket.stats());
            match flow {
                Some(flow) if serves_flows => self.flow.push(lane, facts, flow),
                _ => self.packet.push(lane, facts, FlowStats::default()),
            }
        }
        for side in [&mut self.flow, &mut self.packet] {
            let count = side.count;
            if count == 0 {
                continue;
            }
            for (column, feature) in side.columns.chunks_exact_mut(LANES).zip(&self.features) {
                let (facts, flows) = (&side.facts[..count], &side.flows[..count]);
                feature.fill(
                    &mut column[..count],
                    facts,
                    flows,
                    self.clock,
                    self.averages.as_ref(),
                );
            }
            side.forest.leaves(&side.columns, &mut side.leaves);
            for (place, &lane) in side.lanes[..count].iter().enumerate() {
                let id = self.verdicts.decide(side.level, &side.leaves, place);
                classified[usize::from(lane)] = id;
            }
        }
        classified
    }
}
