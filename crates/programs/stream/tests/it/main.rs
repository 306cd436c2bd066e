//! The program `strata-stream` alone; `crates/programs/strata/tests/it/streams` has the others.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a failed step is a failed test, which says why"
)]

mod common;
mod parquet;
mod program;
mod sizes;
