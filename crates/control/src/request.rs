//! Requests to the API, and its answers to them: the same types at both ends.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What went wrong.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Refusal {
    /// A message in plain English.
    pub error: String,
}

/// A mode to switch to.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModeRequest {
    /// Name of the mode; several are joined by `+`.
    pub mode: String,
    /// Return to the previous modes after this many seconds.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// Reason, for the events.
    #[serde(default)]
    pub why: String,
}

/// A policy to add.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyRequest {
    /// Packets to match, in tcpdump's filter language.
    #[serde(rename = "match")]
    pub matches: String,
    /// Action on them.
    pub action: String,
    /// Priority; the largest number wins.
    #[serde(default = "priority_default")]
    pub priority: u16,
    /// Match packets of this interface only.
    #[serde(default)]
    pub interface: Option<String>,
    /// Never delete the data kept for them to free disk space.
    #[serde(default)]
    pub protect: bool,
    /// Reason, for the events.
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
