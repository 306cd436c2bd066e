//! Parts that several answers of the API have.

use serde::Serialize;
use utoipa::ToSchema;

/// Coverage of an answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "complete": false, "why": "stopped after 30 s: narrow the time or the filter",
    "remark": null, "packets": 20_000_000, "from": null, "to": null, "damaged": 0, "encrypted_packets": 0,
    "seconds": 30.0,
}))]
#[allow(
    missing_docs,
    reason = "the description of the API says only what a name does not"
)]
pub struct Covered {
    pub complete: bool,
    /// If the answer is not complete: the reason, and what to do.
    #[schema(required)]
    pub why: Option<String>,
    /// Packets that retention deleted, if they may be of this time; or why nothing was found, if that is likely a
    /// mistake: no packet of the log has this class, or this reason.
    #[schema(required)]
    pub remark: Option<String>,
    /// Packets searched.
    pub packets: u64,
    #[schema(required)]
    pub from: Option<String>,
    #[schema(required)]
    pub to: Option<String>,
    /// Damaged places skipped.
    pub damaged: u64,
    pub encrypted_packets: u64,
    /// Time that it took.
    pub seconds: f64,
}

/// An event of a recording.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Event)]
#[allow(
    missing_docs,
    reason = "the description of the API says only what a name does not"
)]
pub struct RecorderEvent {
    pub id: String,
    pub at: String,
    pub who: String,
    pub what: String,
    pub why: String,
    /// It was not requested.
    pub alert: bool,
    #[schema(required)]
    pub acknowledged: Option<Acknowledged>,
}

/// The user who acknowledged an event, and the time.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[allow(
    missing_docs,
    reason = "the description of the API says only what a name does not"
)]
pub struct Acknowledged {
    pub who: String,
    pub at: String,
}

/// A layer or field; `start` and `length` are bytes of the packet.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"name": "ip.ttl", "label": "Time to Live: 64", "start": 22, "length": 1, "fields": []}))]
pub struct Field {
    /// tshark's filter name, as in `ip.ttl`.
    #[schema(required)]
    pub(crate) name: Option<String>,
    pub(crate) label: String,
    #[schema(required)]
    pub(crate) start: Option<u64>,
    #[schema(required)]
    pub(crate) length: Option<u64>,
    #[schema(no_recursion)]
    pub(crate) fields: Vec<Field>,
}
