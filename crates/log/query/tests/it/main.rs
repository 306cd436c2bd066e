//! What is read from logs, old ones too.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod left_out;
mod old_log;
mod once;
