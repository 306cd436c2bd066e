//! What is to be kept of packets, and how that changes: the vocabulary shared by those who steer
//! and those who work on packets.
//!
//! - [`Mode`]: from class to granularity (TitanLog §VI-A);
//! - [`Plan`]: the modes and policies of a moment, worked out for a model. It never changes;
//!   another is published in its place, and each worker continues with that from its next batch. So
//!   no packet is treated by half of a change, and none waits for one;
//! - [`Steering`]: where plans are published; [`Follower`]: a worker's view of it;
//! - [`Detail`]: the budget of detail, which goes to short flows and to the start of the others;
//! - [`ClassKept`]: what came of it; [`ShadowCounts`]: what another model would have kept;
//!   [`WorkerCounts`]: all that workers count.
//!
//! Used by `control` and `pipeline`; no I/O, no threads.
#![forbid(unsafe_code)]

mod counts;
mod detail;
mod kept;
mod mode;
mod plan;
mod shadow;
mod steering;

pub use counts::WorkerCounts;
pub use detail::{
    BudgetError, Detail, DetailBudget, DetailCounts, DetailLoads, DetailOffer, DetailSite, Over,
    Survey, Surveyor,
};
pub use kept::ClassKept;
pub use mode::{Mode, ModeConfig, ModeError};
pub use plan::{DetailPlan, ModeDemands, Plan, demands, is_left_to_class};
pub use shadow::{ShadowClass, ShadowCounts};
pub use steering::{Delays, Follower, Steering};
