//! Strata under attack: each role of the program runs as a user starts it, while strangers take
//! descriptors, threads, memory, disk, numbers and texts from it.
//!
//! Each attack has a process of its own. During it and after it, the process lives within stated
//! bounds ([`harness::Bounds`]), goes on with its work, answers who may ask, shows no control
//! character that a stranger sent, and ends on SIGINT; what it wrote passes `strata verify`, and
//! every packet is in its counters. All of it happens on loopback and in namespaces of the test's
//! own.
//!
//! ```text
//! harness    budget, process, bounds         record     live (token, mutual TLS), disks, stdin
//! strangers  what they send                  relay, switch, compact
//! ```
//!
//! A new role is a [`harness::Site`] and a test with its list of attacks.
//!
//! Environment, all optional: `STRATA_ATTACK_SECONDS` (30) is shared by all attacks, each of which
//! is done at least once; `STRATA_ATTACK_SEED` repeats what is random; `STRATA_ATTACK_ONLY` is a
//! part of an attack's name; `STRATA_ATTACK_PROGRAM` is another build of the program.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::print_stderr, reason = "says what it does")]

mod compact;
mod harness;
mod record;
mod relay;
mod strangers;
mod switch;
