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
pub(crate) struct Covered {
    pub(crate) complete: bool,
    /// If the answer is not complete: the reason, and what to do.
    #[schema(required)]
    pub(crate) why: Option<String>,
    /// Packets that retention deleted, if they may be of this time; or why nothing was found, if that is likely a
    /// mistake: no packet of the log has this class, or this reason.
    #[schema(required)]
    pub(crate) remark: Option<String>,
    /// Packets searched.
    pub(crate) packets: u64,
    #[schema(required)]
    pub(crate) from: Option<String>,
    #[schema(required)]
    pub(crate) to: Option<String>,
    /// Damaged places skipped.
    pub(crate) damaged: u64,
    pub(crate) encrypted_packets: u64,
    /// Time that it took.
    pub(crate) seconds: f64,
}

/// An event of a recording.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Event)]
pub(crate) struct RecorderEvent {
    pub(crate) id: String,
    pub(crate) at: String,
    pub(crate) who: String,
    pub(crate) what: String,
    pub(crate) why: String,
    /// It was not requested.
    pub(crate) alert: bool,
    #[schema(required)]
    pub(crate) acknowledged: Option<Acknowledged>,
}

/// The user who acknowledged an event, and the time.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Acknowledged {
    pub(crate) who: String,
    pub(crate) at: String,
}

/// A layer or field; `start` and `length` are bytes of the packet.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"name": "ip.ttl", "label": "Time to Live: 64", "start": 22, "length": 1, "fields": []}))]
pub(crate) struct Field {
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
