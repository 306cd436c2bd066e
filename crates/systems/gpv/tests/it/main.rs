//! Grouped packet vectors: from packets through caches and networks to answers.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod agent;
mod applications;
mod common;
mod core_link;
mod exactly_once;
mod export;
mod format;
mod marple;
mod published;
mod switch;
