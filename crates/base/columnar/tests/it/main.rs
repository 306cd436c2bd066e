//! What is written here is read by others: Arrow's own reader of streams, and parquet's of rows.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod parquet;
mod stream;
