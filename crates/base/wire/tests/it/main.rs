//! Packets and their headers, byte by byte.
//!
//! `configured` has a binary of its own.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod carried;
mod common;
mod dissect;
mod lanes;
mod quoted;
mod segments;
