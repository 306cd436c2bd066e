//! What exporters send, and what readers make of what arrives.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;
mod headers;
mod packets;
mod sealed;
