//! Why a packet was kept: who decided, and of the forest, the conditions with the packet's values.

pub mod would;

use std::ops::ControlFlow;

use serde::Serialize;
use strata_classify::{Condition, Model, Sign, Signs, is_of_shadow, kind_of, leaves_of_reason};
use strata_sketch::{
    Arithmetic, Clock, ExactTable, Feature, FlowStats, Level, PacketFacts, RangeTable,
};
use strata_store::{Log, Recording};
use strata_wire::FlowKey;
use utoipa::ToSchema;

use crate::answers::refused::Refused;
use crate::packets::{Packet, earlier, of_flow};
use crate::search::found::words;
use crate::work::Stop;

/// Trees that are shown, and signs.
const TREES_TOLD: usize = 3;
const SIGNS_TOLD: usize = 5;
/// Packets of a flow that are counted again for a packet's values.
const PACKETS_MAX: usize = 200_000;

/// Of the one flow that is counted: any but 0, which stands for none.
const FINGERPRINT: u64 = 1;

/// What the forest knew of a packet.
struct Values {
    facts: PacketFacts,
    /// `None` if the log does not tell.
    flow: Option<FlowStats>,
    clock: Clock,
    averages: Option<RangeTable>,
}

impl Values {
    /// A feature's value as an integer that trees compare.
    fn of(&self, feature: Feature) -> Option<u32> {
        let flow = match feature.level() {
            Level::Packet => FlowStats::default(),
            Level::Flow => self.flow?,
        };
        Some(feature.value(&self.facts, &flow, self.clock, self.averages.as_ref()))
    }
}

/// The model of a recording whose trees a reason names, if it can be read.
pub(crate) fn model(log: &Log, recording: &Recording, reason: &str) -> Option<Model> {
    let json = match is_of_shadow(reason) {
        true => log.shadow_json(recording).ok()??,
        false => log.model_json(recording).ok()?,
    };
    Model::from_json(&json).ok()
}

/// Why a packet was kept.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "decider": "forest",
    "words": "Kept whole: the forest classifies this flow as botnet, with a mean share of 0.930 in its 30 trees: many \
              packets, no pauses.",
    "reason": "flow-trees:12,3,7",
    "class": "botnet",
    "score": 0.93,
    "granularity": "full",
    "mode": "default",
    "unsure": null,
    "values_from": "flow",
    "signs": [{
        "words": "packets of the flow over 12", "ordinary": "60 % in training: 3 to 30", "value_text": "20",
    }],
    "trees": [{
        "tree": 0,
        "share": 0.98,
        "conditions": [{
            "feature": "flow.packets", "what": "packets of the flow in its window", "words": "flow.packets > 12",
            "above": 12, "at_most": null, "unit": "", "value": 20, "value_text": "20", "holds": true,
        }],
    }],
    "more_trees": 27,
}))]
pub(crate) struct Why {
    decider: Decider,
    /// The whole in a sentence or two.
    words: String,
    /// As in an export's comment.
    reason: String,
    #[schema(required)]
    class: Option<String>,
    #[schema(required)]
    score: Option<f64>,
    granularity: String,
    mode: String,
    /// In words, if the packet is unlike the training data.
    #[schema(required)]
    unsure: Option<String>,
    #[schema(required)]
    values_from: Option<ValuesFrom>,
    /// The features that support the class, the strongest first, at most 5.
    signs: Vec<WhySign>,
    /// The trees most sure, at most 3.
    trees: Vec<WhyTree>,
    more_trees: usize,
}

/// The decider of a packet.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Decider {
    Forest,
    Policy,
    Default,
    Mode,
    Sampling,
    Alert,
    FirstBytes,
    LookBack,
    Detail,
    OverBudget,
    Class,
    Other,
}

/// Where values come from: this packet alone; or the flow's packets in the log, up to this one.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ValuesFrom {
    Packet,
    Flow,
}

pub(crate) fn of(log: &Log, packet: &Packet, flow: &FlowKey, stop: &Stop) -> Result<Why, Refused> {
    let class = packet.class.as_deref().unwrap_or("unknown");
    let recording = log
        .recordings()
        .iter()
        .find(|one| one.id == packet.recording);
    let decided = leaves_of_reason(&packet.reason);
    let model = match (&decided, recording) {
        (Some(_), Some(recording)) => model(log, recording, &packet.reason),
        _ => None,
    };
    let (mut trees, mut more, mut unsure, mut values_from) = (Vec::new(), 0, None, None);
    let mut found = Vec::new();
    let mut signs = Vec::new();
    if let (Some((level, leaves)), Some(model)) = (&decided, &model) {
        let values = values(log, model, packet, flow, (*level, stop))?;
        values_from = values.as_ref().map(|_| match level {
            Level::Packet => ValuesFrom::Packet,
            Level::Flow => ValuesFrom::Flow,
        });
        (trees, more) = told(model, *level, class, leaves, values.as_ref());
        found = signs_of(model, class, &packet.reason);
        signs = shown(&found, values.as_ref(), model.clock());
        unsure = unsure_words(model, *level, leaves);
    }
    let forest = decided.as_ref();
    let forest = forest.map(|(level, leaves)| (*level, leaves.len()));
    Ok(Why {
        decider: decider(&packet.reason),
        words: sentence(packet, class, forest, &found),
        reason: packet.reason.clone(),
        class: packet.class.clone(),
        score: packet.score,
        granularity: packet.granularity.clone(),
        mode: packet.mode.clone(),
        unsure,
        values_from,
        signs,
        trees,
        more_trees: more,
    })
}

/// A feature that speaks for the class, in words of traffic.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct WhySign {
    /// Between which bounds packets with this reason are.
    words: String,
    /// The middle of the distribution in training, if the model has it.
    #[schema(required)]
    ordinary: Option<String>,
    /// This packet's value with its unit; empty if the log does not tell.
    value_text: String,
}

/// What speaks for a class, the strongest first; nothing if it was not the forest that decided.
pub(crate) fn signs_of(model: &Model, class: &str, reason: &str) -> Vec<Sign> {
    let Some((level, leaves)) = leaves_of_reason(reason) else {
        return Vec::new();
    };
    Signs::new(model, level, class).map_or_else(Vec::new, |signs| signs.of(&leaves))
}

/// The strongest signs, of which no packet is shown.
pub(crate) fn strongest(signs: &[Sign], clock: Clock) -> Vec<WhySign> {
    shown(signs, None, clock)
}

fn shown(signs: &[Sign], values: Option<&Values>, clock: Clock) -> Vec<WhySign> {
    let signs = signs.iter().take(SIGNS_TOLD);
    let each = signs.map(|sign| WhySign {
        words: sign.words.clone(),
        ordinary: sign.ordinary.clone(),
        value_text: condition(&sign.condition, values, clock).value_text,
    });
    each.collect()
}

/// A tree that votes for a class, and why.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct WhyTree {
    tree: usize,
    /// Share of the class in its leaf, 0 to 1.
    share: f64,
    conditions: Vec<WhyCondition>,
}

/// A condition of a tree, on the way to its leaf.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct WhyCondition {
    feature: String,
    /// The feature in words.
    what: &'static str,
    /// The condition.
    words: String,
    #[schema(required)]
    above: Option<f64>,
    #[schema(required)]
    at_most: Option<f64>,
    unit: String,
    /// This packet's value; null if the log does not tell.
    #[schema(required)]
    value: Option<f64>,
    /// With its unit; empty without a value.
    value_text: String,
    /// Whether the condition holds for `value`: not if the log does not have all that the recorder saw.
    #[schema(required)]
    holds: Option<bool>,
}

/// The trees that vote most clearly for a class, with their conditions, and how many others there
/// are.
pub(crate) fn trees(model: &Model, class: &str, reason: &str) -> (Vec<WhyTree>, usize) {
    match leaves_of_reason(reason) {
        Some((level, leaves)) => told(model, level, class, &leaves, None),
        None => (Vec::new(), 0),
    }
}

fn told(
    model: &Model,
    level: Level,
    class: &str,
    leaves: &[u16],
    values: Option<&Values>,
) -> (Vec<WhyTree>, usize) {
    let clearest = model.clearest(level, class, leaves);
    let more = clearest.len().saturating_sub(TREES_TOLD);
    let trees = clearest
        .iter()
        .take(TREES_TOLD)
        .map(|&(tree, leaf, share)| {
            let conditions = model.conditions(level, tree, leaf);
            let conditions = conditions
                .iter()
                .flatten()
                .map(|one| condition(one, values, model.clock()));
            WhyTree {
                tree,
                share,
                conditions: conditions.collect(),
            }
        });
    (trees.collect(), more)
}

fn condition(condition: &Condition, values: Option<&Values>, clock: Clock) -> WhyCondition {
    let feature = condition.feature();
    let value = feature.and_then(|feature| values?.of(feature));
    let holds = feature.zip(value).map(|(feature, value)| {
        let limit = |threshold: f64| feature.encode(threshold, clock);
        let is_above = condition
            .above
            .is_none_or(|above| limit(above).is_none_or(|limit| value > limit));
        let is_below = condition
            .at_most
            .is_none_or(|most| limit(most).is_some_and(|limit| value <= limit));
        is_above && is_below
    });
    let number = feature
        .zip(value)
        .map(|(feature, value)| feature.decode(value, clock));
    WhyCondition {
        feature: condition.name.clone(),
        what: feature.map_or("", Feature::description),
        words: condition.to_string(),
        above: condition.above,
        at_most: condition.at_most,
        unit: condition.unit.clone(),
        value: number,
        value_text: number.map_or_else(String::new, |number| condition.quantity(number)),
        holds,
    }
}

/// A packet's values: of flows, by counting the flow's packets in the log again, as the recorder's
/// sketch did; those that were not recorded are missing.
fn values(
    log: &Log,
    model: &Model,
    packet: &Packet,
    flow: &FlowKey,
    (level, stop): (Level, &Stop),
) -> Result<Option<Values>, Refused> {
    let clock = model.clock();
    let averages = match model.sketch_arithmetic() {
        Arithmetic::Exact => None,
        Arithmetic::Switch { delta } => Some(RangeTable::new(delta)),
    };
    let facts = PacketFacts::new(&packet.headers, FINGERPRINT, packet.ts_ns, packet.wire_len);
    let mut values = Values {
        facts,
        flow: None,
        clock,
        averages,
    };
    if level == Level::Packet {
        return Ok(Some(values));
    }
    let mut table = ExactTable::new(clock);
    let (mut ties, mut counted) = (0_usize, 0_usize);
    let from = packet.ts_ns.saturating_sub(clock.window_ns());
    let read_from = match packet.tie.has_fragments {
        true => from.min(earlier(packet.ts_ns, None)),
        false => from,
    };
    let span = (Some(read_from), packet.ts_ns.checked_add(1));
    of_flow(log, flow, span, stop, |logged, headers| {
        counted = counted.saturating_add(1);
        if logged.recording != packet.recording || logged.ts_ns < from {
            return ControlFlow::Continue(());
        }
        let facts = PacketFacts::new(&headers, FINGERPRINT, logged.ts_ns, logged.wire_len);
        let known = table.insert(&facts);
        if logged.ts_ns == packet.ts_ns {
            if ties == packet.tie.before {
                values.flow = known;
                return ControlFlow::Break(());
            }
            ties = ties.saturating_add(1);
        }
        match counted < PACKETS_MAX {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    })?;
    Ok(values.flow.is_some().then_some(values))
}

fn unsure_words(model: &Model, level: Level, leaves: &[u16]) -> Option<String> {
    let (unmet, all) = model.unmet(level, leaves).filter(|(unmet, _)| *unmet > 0)?;
    Some(format!(
        "unlike the training data, where {unmet} of {all} pairs of these leaves never occurred"
    ))
}

fn decider(reason: &str) -> Decider {
    let (kind, rest) = reason.split_once(':').unwrap_or((reason, ""));
    match kind {
        "flow-trees" | "packet-trees" | "shadow-flow-trees" | "shadow-packet-trees" => {
            Decider::Forest
        }
        "policy" if rest == "default" => Decider::Default,
        "policy" => Decider::Policy,
        "mode" => Decider::Mode,
        "sampling" => Decider::Sampling,
        "alert" => Decider::Alert,
        "first-bytes" => Decider::FirstBytes,
        "look-back" => Decider::LookBack,
        "detail" => Decider::Detail,
        "over-budget" => Decider::OverBudget,
        "class" => Decider::Class,
        _ => Decider::Other,
    }
}

/// The whole in a sentence.
fn sentence(
    packet: &Packet,
    class: &str,
    forest: Option<(Level, usize)>,
    signs: &[Sign],
) -> String {
    // A packet without payload is whole as its headers.
    let is_whole = packet.data.len() as u64 >= u64::from(packet.wire_len);
    let kept = match (packet.granularity.as_str(), is_whole) {
        ("full", true) => "Kept whole",
        ("full", false) => "Kept as captured",
        ("partial", false) => "Kept in part",
        ("partial", true) => "Kept in part, which includes all of it",
        ("header", false) => "Headers kept",
        ("header", true) => "Headers kept, and there is no payload",
        _ => "Kept",
    };
    let Some((level, trees)) = forest else {
        return format!("{kept}: {}.", words(&packet.reason, class));
    };
    let what = match level {
        Level::Flow => "flow",
        Level::Packet => "packet",
    };
    let share = packet.score.map_or_else(String::new, |score| {
        format!(", with a mean share of {score:.3} in its {trees} trees")
    });
    let mode = match packet.mode.as_str() {
        "" => String::new(),
        mode => format!(" Mode {mode} gives this class this granularity."),
    };
    let signs = match signs.is_empty() {
        true => String::new(),
        false => format!(": {}", kind_of(signs)),
    };
    format!("{kept}: the forest classifies this {what} as {class}{share}{signs}.{mode}")
}
