//! What packets were recorded with, and why they were kept as they were, in words.

use serde::{Deserialize, Serialize};
use strata_wire::Printable;

use crate::decider::Decider;
use crate::format::VerdictRecord;

/// What the packets of a block were recorded with, as its context record says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Context {
    /// The mode's name.
    pub mode: String,
    /// The model's name.
    pub model: String,
    /// Names of the classes, by index.
    pub classes: Vec<String>,
    /// Granularity of each class, as text.
    pub granularities: Vec<String>,
    /// Who decides on that of each class, as text; `forest` where the class itself makes the
    /// difference. Older logs do not say: there it is always the forest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deciders: Vec<String>,
    /// The policies, as text; they go before the granularities of classes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<String>,
    /// Filters of the policies that protect: their packets are not deleted to make room.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub protected: Vec<String>,
}

/// Whether packets that are recorded with this context may be ones that a policy protects.
/// What cannot be read may say so.
pub(crate) fn may_protect(json: &[u8]) -> bool {
    Context::from_json(json).map_or(true, |context| !context.protected.is_empty())
}

impl Context {
    /// Reads the JSON of a context record. What an older version did not write is empty.
    ///
    /// # Errors
    ///
    /// What is wrong with it, in words.
    pub fn from_json(json: &[u8]) -> Result<Self, String> {
        let read = serde_json::from_slice(json);
        read.map_err(|error| format!("a context record that cannot be read: {error}"))
    }
}

/// Why a packet was kept as it was: who decided; where that is the forest, which of its trees,
/// and the leaf of each.
#[must_use]
pub fn reason(verdict: Option<&VerdictRecord>, context: &Context) -> String {
    let Some(verdict) = verdict else {
        return String::from("not-recorded");
    };
    match &verdict.decider {
        Decider::Class => {
            let decider = context.deciders.get(usize::from(verdict.class));
            match decider {
                Some(text) if text != "forest" => Printable(text).to_string(),
                _ => trees(verdict),
            }
        }
        Decider::Forest(_) => trees(verdict),
        other => other.to_string(),
    }
}

/// Which trees decided on the class, and the leaf of each.
fn trees(verdict: &VerdictRecord) -> String {
    let level = match verdict.level {
        0 => return String::from("not-dissected"),
        1 => "packet-trees",
        _ => "flow-trees",
    };
    let leaves: Vec<String> = verdict.leaves.iter().map(ToString::to_string).collect();
    if leaves.is_empty() {
        return level.to_owned();
    }
    format!("{level}:{}", leaves.join(","))
}
