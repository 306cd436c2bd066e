//! The program as its users run it: each module starts its roles as processes and compares what they
//! say, send and keep with other programs and with naive ones.
//!
//! One binary, so that the program's crates are linked once and the threads of the tests are kept busy:
//! a test shares its process with all others. What cannot has a binary of its own next to this folder:
//! `attack`, `interfaces`, `strangers`.
//!
//! ```text
//! program    command line, start, units      recording  interfaces and standard input, while it runs
//! log        what is kept, and read          serve      HTTP API of logs, for browsers
//! ask, gpv   queries, vectors                agents     agents and their controller
//! collector  exports and who receives them   telemetry  reports, collectors, translators
//! relay      switch and relay                streams    streams, their disks and servers
//! common     helpers
//! ```
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod agents;
mod ask;
mod collector;
mod common;
mod documents;
mod gpv;
mod log;
mod program;
mod recording;
mod relay;
mod serve;
mod streams;
mod telemetry;
