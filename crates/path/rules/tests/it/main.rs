//! Policies and their rules: compared with linear scans, and with the filters that they come from.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod come_and_go;
mod search;
mod support;
mod translate;
