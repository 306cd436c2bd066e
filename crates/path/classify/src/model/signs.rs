//! Why a forest decided as it did, in words of traffic: the features that speak for a class.
//!
//! A tree's expected share of a class changes at each split on the way to a leaf, and this change is
//! credited to the feature of the split (Saabas 2014). What is expected below a node follows from
//! the shares of its leaves and from the distributions in training, taken as independent: so the
//! order of the signs is an estimate. Their bounds are exact: the packet was within them.

use std::collections::BTreeMap;

use strata_sketch::{Feature, Level};

use super::explain::{Bounds, Condition};
use super::{Distribution, Model, Tree};

/// Signs below this share of all that speaks for the class are not listed.
const SHARE_MIN: f64 = 0.05;

/// A feature that speaks for the class of a packet.
#[derive(Clone, Debug, PartialEq)]
pub struct Sign {
    /// In two or three words, such as `long pauses`; empty if the values are neither low nor high.
    pub kind: String,
    /// Between which bounds the packet was, such as `longest pause over 4.93 s`.
    pub words: String,
    /// The middle of the distribution in training, such as `52 % in training: 60 to 351 bytes`.
    pub ordinary: Option<String>,
    /// The bounds.
    pub condition: Condition,
    /// How much it adds to the share of the class, 0 to 1.
    pub weight: f64,
}

/// What speaks for a class in one of a model's forests.
#[derive(Debug)]
pub struct Signs<'a> {
    model: &'a Model,
    level: Level,
    class: usize,
    /// By tree and node: the share of the class to be expected there.
    expected: Vec<Vec<f64>>,
}

impl<'a> Signs<'a> {
    /// `None` if the model has no such class.
    #[must_use]
    pub fn new(model: &'a Model, level: Level, class: &str) -> Option<Self> {
        let class = model.class_index(class)?;
        let trees = model.trees(level).iter();
        let expected = trees.map(|tree| expected(model, tree, class)).collect();
        Some(Self {
            model,
            level,
            class,
            expected,
        })
    }

    /// Whether these are the signs of that class.
    #[must_use]
    pub fn is_of(&self, level: Level, class: &str) -> bool {
        self.level == level && self.model.class_index(class) == Some(self.class)
    }

    /// The signs of packets that reached these leaves, the strongest first.
    #[must_use]
    pub fn of(&self, leaves: &[u16]) -> Vec<Sign> {
        let mut bounds = BTreeMap::new();
        let mut credits: BTreeMap<usize, f64> = BTreeMap::new();
        let trees = self.model.trees(self.level).iter().zip(&self.expected);
        for ((tree, expected), &leaf) in trees.zip(leaves) {
            tree.walk_up(leaf, &mut bounds, |feature, parent, child| {
                let [parent, child] = [parent, child].map(|node| expected.get(node).copied());
                if let (Some(parent), Some(child)) = (parent, child) {
                    *credits.entry(feature).or_insert(0.0) += child - parent;
                }
            });
        }
        credits.retain(|_, credit| *credit > 0.0);
        let all: f64 = credits.values().sum();
        let mut signs: Vec<Sign> = credits
            .into_iter()
            .filter(|(_, credit)| *credit >= SHARE_MIN * all)
            .filter_map(|(feature, credit)| {
                let condition = self.model.condition(feature, *bounds.get(&feature)?);
                #[allow(clippy::cast_precision_loss)]
                let weight = credit / leaves.len().max(1) as f64;
                Some(self.sign(condition, weight))
            })
            .collect();
        signs.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        signs
    }

    fn sign(&self, condition: Condition, weight: f64) -> Sign {
        let training = self.model.distribution(&condition.name);
        let feature = condition.feature();
        let kind = feature.map_or_else(String::new, |feature| kind(feature, &condition, training));
        let words = feature.map_or_else(|| condition.to_string(), |of| words(of, &condition));
        let ordinary = feature.zip(training).and_then(|(feature, training)| {
            let (low, high, share) = training.middle()?;
            let middle = values(feature, &condition, Some(low), Some(high));
            Some(format!("{:.0} % in training: {middle}", share * 100.0))
        });
        Sign {
            kind,
            words,
            ordinary,
            condition,
            weight,
        }
    }
}

/// The kind of traffic that signs describe: the strongest that is low or high.
#[must_use]
pub fn kind_of(signs: &[Sign]) -> &str {
    let mut kinds = signs.iter().map(|sign| sign.kind.as_str());
    kinds
        .find(|kind| !kind.is_empty())
        .unwrap_or("no feature alone")
}

/// By node of a tree, the share of a class to be expected there.
fn expected(model: &Model, tree: &Tree, class: usize) -> Vec<f64> {
    let mut shares = vec![0.0; tree.nodes.len()];
    let mut bounds = vec![(None, None); model.features.len()];
    below(model, tree, class, 0, &mut bounds, &mut shares);
    shares
}

/// Fills in the shares of a node and of all below it. No deeper than a model's trees, 64.
fn below(
    model: &Model,
    tree: &Tree,
    class: usize,
    at: usize,
    bounds: &mut [Bounds],
    shares: &mut [f64],
) -> f64 {
    let Some(node) = tree.nodes.get(at) else {
        return 0.0;
    };
    let share = match (node.feature, node.at_most, node.left, node.right) {
        (Some(feature), Some(at_most), Some(left), Some(right)) if feature < bounds.len() => {
            let (above, most) = bounds[feature];
            let name = model.features.get(feature).map(|used| used.name.as_str());
            let training = name.and_then(|name| model.distribution(name));
            let goes_left = training.map_or(0.5, |of| of.share_left(above, at_most, most));
            bounds[feature] = (above, Some(at_most));
            let of_left = below(model, tree, class, left, bounds, shares);
            bounds[feature] = (Some(at_most), most);
            let of_right = below(model, tree, class, right, bounds, shares);
            bounds[feature] = (above, most);
            goes_left * of_left + (1.0 - goes_left) * of_right
        }
        _ => {
            let classes = node.classes.as_ref();
            classes.and_then(|of| of.get(class)).copied().unwrap_or(0.0)
        }
    };
    shares[at] = share;
    share
}

impl Distribution {
    /// The share of packets with at most this value; between edges by proportion.
    fn at_most(&self, value: f64) -> f64 {
        let (mut sum, mut low) = (0.0, 0.0);
        // The last range has no upper end: as wide as all before it.
        let end = self.edges.last().map_or(1.0, |last| last * 2.0);
        let ends = self.edges.iter().copied().chain([end]);
        for (high, share) in ends.zip(&self.shares) {
            if value < high {
                let within = (value - low) / (high - low);
                return match within.is_finite() {
                    true => sum + share * within.clamp(0.0, 1.0),
                    false => sum,
                };
            }
            (sum, low) = (sum + share, high);
        }
        sum
    }

    /// Of the packets above one value and at most another, the share with at most `at_most`.
    fn share_left(&self, above: Option<f64>, at_most: f64, most: Option<f64>) -> f64 {
        let low = above.map_or(0.0, |above| self.at_most(above));
        let high = most.map_or(1.0, |most| self.at_most(most));
        let left = (self.at_most(at_most) - low) / (high - low);
        match left.is_finite() {
            true => left.clamp(0.0, 1.0),
            false => 0.5,
        }
    }

    /// Two edges with about the middle half of all packets between them, and their exact share.
    fn middle(&self) -> Option<(f64, f64, f64)> {
        let mut sums = Vec::with_capacity(self.edges.len());
        let mut sum = 0.0;
        for (edge, share) in self.edges.iter().zip(&self.shares) {
            sum += share;
            sums.push((*edge, sum));
        }
        let (low, before) = *sums
            .iter()
            .rfind(|(_, sum)| *sum <= 0.25)
            .or(sums.first())?;
        let (high, until) = *sums.iter().find(|(_, sum)| *sum >= 0.75).or(sums.last())?;
        (low < high && before < until).then_some((low, high, until - before))
    }
}

/// Whether all values are among the lower, or among the upper half of those in training.
fn half(condition: &Condition, training: Option<&Distribution>) -> Option<Half> {
    let Some(training) = training else {
        return match (condition.above, condition.at_most) {
            (None, Some(_)) => Some(Half::Low),
            (Some(_), None) => Some(Half::High),
            _ => None,
        };
    };
    let at_most = condition.at_most.map(|most| training.at_most(most));
    let above = condition.above.map(|above| training.at_most(above));
    if at_most.is_some_and(|share| share <= 0.5) {
        return Some(Half::Low);
    }
    above
        .is_some_and(|share| share >= 0.5)
        .then_some(Half::High)
}

#[derive(Clone, Copy)]
enum Half {
    Low,
    High,
}

/// A sign in two or three words.
fn kind(feature: Feature, condition: &Condition, training: Option<&Distribution>) -> String {
    if feature == Feature::Protocol {
        return protocols(condition);
    }
    if condition.at_most.is_some_and(|most| most < 1.0) {
        let nothing = match feature {
            Feature::BackwardBytes | Feature::BackwardSizeMax | Feature::BackwardHeaderBytes => {
                "no answer"
            }
            Feature::ForwardBytes => "nothing from the client",
            Feature::PayloadLen => "no payload",
            _ => "",
        };
        if !nothing.is_empty() {
            return nothing.to_owned();
        }
    }
    let Some(half) = half(condition, training) else {
        return String::new();
    };
    let (low, high) = match feature {
        Feature::Size => ("a small packet", "a large packet"),
        Feature::HeaderLen => ("short headers", "long headers"),
        Feature::PayloadLen => ("little payload", "much payload"),
        Feature::SourcePort => ("a low source port", "a high source port"),
        Feature::DestinationPort => ("a low destination port", "a high destination port"),
        Feature::LowerPort => ("a low port", "only high ports"),
        Feature::TcpWindow => ("a small TCP window", "a large TCP window"),
        Feature::Ttl => ("a low TTL", "a high TTL"),
        Feature::Tos | Feature::Ecn => ("no priority", "a priority"),
        Feature::Packets => ("few packets so far", "many packets"),
        Feature::Bytes => ("few bytes so far", "many bytes"),
        Feature::SizeMin => ("tiny packets", "no small packets"),
        Feature::SizeMax => ("no large packets", "large packets"),
        Feature::SizeAvg => ("small packets", "large packets"),
        Feature::SizeVar => ("packets of one size", "packets of many sizes"),
        Feature::IpdSum => ("short-lived", "long-lived"),
        Feature::IpdMin => ("packets close together", "no packets close together"),
        Feature::IpdMax => ("no pauses", "long pauses"),
        Feature::IpdAvg => ("fast", "slow"),
        Feature::IpdVar => ("an even pace", "an uneven pace"),
        Feature::ForwardBytes => ("little from the client", "much from the client"),
        Feature::BackwardBytes => ("little from the server", "much from the server"),
        Feature::BackwardSizeMin => ("tiny answers", "no small answers"),
        Feature::BackwardSizeMax => ("no large answers", "large answers"),
        Feature::BackwardHeaderBytes => ("few answers", "many answers"),
        Feature::WindowForward => (
            "a small window of the client",
            "a large window of the client",
        ),
        Feature::WindowBackward => (
            "a small window of the server",
            "a large window of the server",
        ),
        Feature::Backward => ("from the client", "from the server"),
        Feature::TcpFlags | Feature::Protocol => ("", ""),
    };
    let words = match half {
        Half::Low => low,
        Half::High => high,
    };
    words.to_owned()
}

/// A sign with its bounds.
fn words(feature: Feature, condition: &Condition) -> String {
    let noun = match feature {
        Feature::Size => "packet size",
        Feature::HeaderLen => "headers",
        Feature::PayloadLen => "payload",
        Feature::Protocol => return protocols(condition),
        Feature::SourcePort => "source port",
        Feature::DestinationPort => "destination port",
        Feature::LowerPort => "lower port",
        Feature::TcpFlags => "TCP flags",
        Feature::TcpWindow => "TCP window",
        Feature::Ttl => "TTL",
        Feature::Tos => "type of service",
        Feature::Ecn => "ECN",
        Feature::Packets => "packets of the flow",
        Feature::Bytes => "bytes of the flow",
        Feature::SizeMin => "smallest packet",
        Feature::SizeMax => "largest packet",
        Feature::SizeAvg => "average packet",
        Feature::SizeVar => "standard deviation of sizes",
        Feature::IpdSum => "duration",
        Feature::IpdMin => "shortest pause",
        Feature::IpdMax => "longest pause",
        Feature::IpdAvg => "average pause",
        Feature::IpdVar => "standard deviation of pauses",
        Feature::ForwardBytes => "from the client",
        Feature::BackwardBytes => "from the server",
        Feature::BackwardSizeMin => "smallest answer",
        Feature::BackwardSizeMax => "largest answer",
        Feature::BackwardHeaderBytes => "headers of answers",
        Feature::WindowForward => "first window of the client",
        Feature::WindowBackward => "first window of the server",
        Feature::Backward => {
            return match condition.at_most.is_some_and(|most| most < 1.0) {
                true => String::from("from the client"),
                false => String::from("from the server"),
            };
        }
    };
    let values = values(feature, condition, condition.above, condition.at_most);
    format!("{noun} {values}")
}

/// A range of values: `at most 68 bytes`, `over 2 s`, `13 to 28`.
fn values(feature: Feature, of: &Condition, above: Option<f64>, at_most: Option<f64>) -> String {
    // Of variances, the square root: in the unit of what varies.
    let quantity = |value: f64| match feature {
        Feature::SizeVar => super::explain::quantity(value.sqrt().round(), "bytes"),
        Feature::IpdVar => super::explain::quantity(value.sqrt() * 1e3, "ns"),
        _ => of.quantity(value),
    };
    // Of integers, the first that is above; averages, times and variances have none.
    let is_integer = !matches!(
        feature,
        Feature::SizeAvg
            | Feature::SizeVar
            | Feature::IpdSum
            | Feature::IpdMin
            | Feature::IpdMax
            | Feature::IpdAvg
            | Feature::IpdVar
    );
    match (above, at_most) {
        (None, None) => String::from("of any value"),
        (Some(above), None) => format!("over {}", quantity(above)),
        (None, Some(most)) => format!("at most {}", quantity(most)),
        (Some(above), Some(most)) if is_integer => {
            let [first, last] = [above.floor() + 1.0, most.floor()];
            match first >= last {
                true => quantity(last),
                false => format!("{} to {}", of.number(first), quantity(last)),
            }
        }
        (Some(above), Some(most)) => format!("{} to {}", quantity(above), quantity(most)),
    }
}

/// IP protocols by number, 0 for what is not IP.
const PROTOCOLS: [(f64, &str); 7] = [
    (0.0, "not IP"),
    (1.0, "ICMP"),
    (6.0, "TCP"),
    (17.0, "UDP"),
    (47.0, "GRE"),
    (50.0, "ESP"),
    (58.0, "ICMPv6"),
];

/// The protocols within bounds, by name.
fn protocols(condition: &Condition) -> String {
    let is_within = |number: f64| {
        condition.above.is_none_or(|above| number > above)
            && condition.at_most.is_none_or(|most| number <= most)
    };
    let (within, without): (Vec<_>, Vec<_>) = PROTOCOLS
        .into_iter()
        .partition(|(number, _)| is_within(*number));
    let names = |of: &[(f64, &'static str)], between: &str| {
        let names: Vec<&str> = of.iter().map(|(_, name)| *name).collect();
        names.join(between)
    };
    match (condition.at_most, within.as_slice()) {
        (Some(_), [(0.0, _)]) => String::from("not IP"),
        (Some(_), [(0.0, _), ip @ ..] | ip @ [_, ..]) => names(ip, " or "),
        (None, [_, ..]) => match without.as_slice() {
            [] => String::from("any protocol"),
            [(_, _)] => String::from("IP"),
            [_, (_, one)] => format!("not {one}"),
            [_, ip @ ..] => format!("neither {}", names(ip, " nor ")),
        },
        (_, []) => {
            let values = values(
                Feature::Protocol,
                condition,
                condition.above,
                condition.at_most,
            );
            format!("protocol {values}")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Long flows are anomalous, and the more so if they are TCP.
    fn model() -> Model {
        let json = json!({
            "format": "strata-model", "version": 1, "name": "test", "window_ns": 10_000_000_000_u64,
            "classes": [{"name": "benign", "anomalous": false}, {"name": "scan", "anomalous": true}],
            "features": [{"name": "packets", "unit": "packets"}, {"name": "protocol", "unit": "number"}],
            "flow_trees": [{"nodes": [
                {"feature": 0, "at_most": 12.0, "left": 1, "right": 2},
                {"classes": [1.0, 0.0]},
                {"feature": 1, "at_most": 6.0, "left": 3, "right": 4},
                {"feature": 0, "at_most": 40.0, "left": 5, "right": 6},
                {"classes": [0.6, 0.4]},
                {"classes": [0.2, 0.8]},
                {"classes": [0.0, 1.0]},
            ]}],
            "packet_trees": [{"nodes": [{"classes": [1.0, 0.0]}]}],
            "decision": {"rules": [{"class": "benign", "score_at_least": 0.5}], "otherwise": "scan"},
            "distributions": {
                "features": [{"name": "packets", "edges": [2.0, 8.0, 30.0], "shares": [0.2, 0.4, 0.2, 0.2]}],
                "scores": [1.0],
            },
        });
        Model::from_json(json.to_string().as_bytes()).expect("a model")
    }

    #[test]
    fn signs_are_in_words_of_traffic_and_beside_what_is_ordinary() {
        let model = model();
        let signs = Signs::new(&model, Level::Flow, "scan").expect("a class of the model");
        let found = signs.of(&[5]);
        let words: Vec<&str> = found.iter().map(|sign| sign.words.as_str()).collect();
        assert_eq!(words, ["packets of the flow 13 to 40", "ICMP or TCP"]);
        assert_eq!(found[0].kind, "many packets");
        let ordinary = found[0].ordinary.as_deref();
        assert_eq!(ordinary, Some("60 % in training: 3 to 30"));
        assert_eq!(found[1].ordinary, None);
        assert_eq!(kind_of(&found), "many packets");
        // What is left for the class of a short flow speaks against it.
        assert_eq!(signs.of(&[1]), []);
        assert_eq!(kind_of(&[]), "no feature alone");
        let signs = Signs::new(&model, Level::Flow, "benign").expect("a class of the model");
        let found = signs.of(&[1]);
        assert_eq!(found[0].words, "packets of the flow at most 12");
        // Twelve packets are more than half of all have in training: that is not few.
        assert_eq!(kind_of(&found), "no feature alone");
        assert!(Signs::new(&model, Level::Flow, "botnet").is_none());
    }

    #[test]
    fn the_share_below_a_value_is_that_of_the_ranges_below_it() {
        let of = Distribution {
            name: String::from("packets"),
            edges: vec![2.0, 8.0, 30.0],
            shares: vec![0.2, 0.4, 0.2, 0.2],
        };
        for (value, share) in [
            (0.0, 0.0),
            (2.0, 0.2),
            (5.0, 0.4),
            (8.0, 0.6),
            (30.0, 0.8),
            (45.0, 0.9),
            (1e9, 1.0),
        ] {
            assert!((of.at_most(value) - share).abs() < 1e-9, "{value}");
        }
        let (low, high, share) = of.middle().expect("edges");
        assert_eq!((low, high), (2.0, 30.0));
        assert!((share - 0.6).abs() < 1e-9);
    }
}
