//! What a shortage lowered, for the status.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a shortage made a recording keep instead of what it was asked to, the latest time.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LoweredStatus {
    /// Whether it does so now.
    pub now: bool,
    /// Times that it did.
    pub times: u64,
    /// Seconds for which it did, altogether.
    pub seconds: f64,
    /// When it began the latest time, in RFC 3339.
    pub at: String,
    /// The mode and the budget of detail that were asked for.
    pub from: String,
    /// Those that took their place.
    pub to: String,
    /// The shortage.
    pub why: String,
    /// What prevents it.
    pub prevent: String,
}
