//! Generated packets: their statistics, and what tshark says of them.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod statistics;
mod tshark;
