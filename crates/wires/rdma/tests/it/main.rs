//! Requesters and responders, with a network between them.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod network;
mod reads;
