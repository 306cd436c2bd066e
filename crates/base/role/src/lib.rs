//! What all long-running roles share.
//!
//! ```text
//! handle     a role, from its description to its outcome
//! notice     what it says while it runs
//! error      why it could not start, or failed
//! sandbox    what it drops once all is open
//! feed       where its records go as well: a stream
//! directory  a directory that others could write to is warned of
//! waker      what ends its wait
//! ```
//!
//! Nothing here prints, reads arguments or handles signals: that is the program's.
#![forbid(unsafe_code)]

mod directory;
mod error;
mod feed;
mod handle;
mod notice;
pub mod sandbox;
mod waker;

pub use directory::warn_if_shared;
pub use error::{At, Result, RoleError, cause_is_denied, chain, require, require_valid};
pub use feed::{Feed, FeedCounts, FeedSpec};
pub use handle::{Handle, Spec, start};
pub use notice::{Level, Notice, Tell};
pub use waker::{Waker, wait_for};
