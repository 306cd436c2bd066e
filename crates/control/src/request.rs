//! What the API is asked for, and what it answers to that: the same types at both ends.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What went wrong.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Refusal {
    /// In words.
    pub error: String,
}

/// A mode to go on with.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModeRequest {
    /// Name of the mode; several joined by `+`.
    pub mode: String,
    /// After so many seconds the modes before are back.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// Why, for the events.
    #[serde(default)]
    pub why: String,
}

/// A policy to add.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyRequest {
    /// Which packets, in tcpdump's language.
    #[serde(rename = "match")]
    pub matches: String,
    /// What is done.
    pub action: String,
    /// A larger number goes first.
    #[serde(default = "priority_default")]
    pub priority: u16,
    /// Only packets of this interface.
    #[serde(default)]
    pub interface: Option<String>,
    /// Whether what is kept of them is not deleted to make room.
    #[serde(default)]
    pub protect: bool,
    /// Why, for the events.
    #[serde(default)]
    pub why: String,
}

fn priority_default() -> u16 {
    strata_rules::PRIORITY_DEFAULT
}

/// The number of a new policy.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
pub struct PolicyAdded {
    /// Its number.
    pub id: u32,
}
