//! What packets were recorded with, and why they were kept as they were, in plain English.

use strata_wire::{Context, Decider, Printable};

use crate::format::{Trees, VerdictRecord};

/// Whether a policy may protect packets recorded with this context. If it cannot be read, assume
/// so.
pub(crate) fn may_protect(json: &[u8]) -> bool {
    Context::from_json(json).map_or(true, |context| !context.protected.is_empty())
}

/// Why a packet was kept as it was: who decided; if that was the forest, which of its trees, and
/// the leaf of each.
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
                _ => trees(verdict, context),
            }
        }
        Decider::Forest(_) => trees(verdict, context),
        other => other.to_string(),
    }
}

/// Which trees decided on the class, and the leaf of each.
fn trees(verdict: &VerdictRecord, context: &Context) -> String {
    let level = match verdict.trees {
        Trees::None => return String::from("not-dissected"),
        Trees::Packet => "packet-trees",
        Trees::Flow => "flow-trees",
    };
    let of = if context.of_shadow { "shadow-" } else { "" };
    let leaves: Vec<String> = verdict.leaves.iter().map(ToString::to_string).collect();
    if leaves.is_empty() {
        return format!("{of}{level}");
    }
    format!("{of}{level}:{}", leaves.join(","))
}
