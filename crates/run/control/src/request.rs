//! Requests to the API, and its answers to them: the same types at both ends.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::config::PolicyConfig;

use crate::query_report::QueryReport;

/// The error.
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

/// A budget of detail to switch to.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DetailRequest {
    /// The budget, as in `10%`, `50MB/s` or `20GB/day`; or `none`.
    pub detail: String,
    /// Reason, for the events.
    #[serde(default)]
    pub why: String,
}

/// Which of the two models of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum InForce {
    /// The model that it was started with.
    Own,
    /// Its shadow.
    Shadow,
}

/// The model that is to decide.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelRequest {
    /// `shadow` promotes the shadow model, `own` goes back to the model that the recording was
    /// started with.
    pub in_force: InForce,
    /// Reason, for the events.
    #[serde(default)]
    pub why: String,
}

/// When to export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportTimesRequest {
    /// Only what is captured from this time on, ns since 1970; by default as much as ever.
    #[serde(default)]
    pub from: Option<u64>,
    /// Only what is captured before this time, ns since 1970; by default without end.
    #[serde(default)]
    pub until: Option<u64>,
}

/// A policy to add.
// What `flatten` leaves over is refused too: the test below sees to that.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyRequest {
    /// The policy itself.
    #[serde(flatten)]
    pub policy: PolicyConfig,
    /// Reason, for the events.
    #[serde(default)]
    pub why: String,
}

/// The number of a new policy.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
pub struct PolicyAdded {
    /// Its number.
    pub id: u32,
}

/// A query to install.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QueryRequest {
    /// The name by which it is listed, asked and removed.
    pub name: String,
    /// The name of a query that comes with Strata, or a text in Marple's language.
    pub query: String,
    /// Values of its parameters.
    #[serde(default)]
    pub params: BTreeMap<String, String>,
    /// Groups of each groupby at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups_max: Option<u64>,
    /// Rows at most, if rows are packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_max: Option<u64>,
    /// Bytes of groups and rows at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_max: Option<u64>,
    /// What of its groups is reported to the telemetry collector of the recording: `value=N`, `add=N` or
    /// `list=N`, and the column after a colon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub report: Option<QueryReport>,
    /// Reason, for the events.
    #[serde(default)]
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_for_policies_have_no_other_fields() {
        let read = |text: &str| serde_json::from_str::<PolicyRequest>(text);
        let request = read(r#"{"match": "tcp", "action": "drop", "why": "noise"}"#).unwrap();
        assert_eq!(request.policy.priority, strata_rules::PRIORITY_DEFAULT);
        assert_eq!((&*request.policy.matches, &*request.why), ("tcp", "noise"));
        let written = serde_json::to_value(&request).unwrap();
        let keys: Vec<&String> = written.as_object().unwrap().keys().collect();
        assert_eq!(
            keys,
            ["action", "interface", "match", "priority", "protect", "why"]
        );
        for (text, problem) in [
            (r#"{"match": "tcp", "action": "drop", "prio": 7}"#, "prio"),
            (r#"{"match": "tcp"}"#, "action"),
            (
                r#"{"match": "tcp", "action": "drop", "priority": 65536}"#,
                "65536",
            ),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
