//! Strata under attack: each role of the program runs as a user starts it, while strangers try to
//! use up its descriptors, threads, memory, disk and numbers, and send hostile text.
//!
//! Each attack has its own process. During and after the attack, the process stays within stated
//! bounds ([`harness::Bounds`]), keeps working, answers authorized clients, shows no control
//! character that a stranger sent, and ends on SIGINT; its output passes `strata verify`, and every
//! packet is in its counters. Everything happens on loopback and in namespaces of the test's own.
//!
//! ```text
//! harness    budget, process, bounds         record     live (token, mutual TLS), disks, stdin
//! strangers  what they send                  relay, switch, compact
//! commands   all commands                    roles      every other one that faces strangers
//! ```
//!
//! A new role is a [`harness::Site`] and a test with its list of attacks: a test compares them with the
//! list of commands.
//!
//! A binary of its own: it raises the limit of descriptors of its process, which programs inherit, and all
//! of its tests share a budget of time.
//!
//! Environment, all optional: `STRATA_ATTACK_SECONDS` (30) is shared by all attacks, each of which
//! runs at least once; `STRATA_ATTACK_SEED` repeats random choices; `STRATA_ATTACK_ONLY` is a part
//! of an attack's name; `STRATA_ATTACK_PROGRAM` is another build of the program.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::print_stderr, reason = "says what it does")]

#[path = "../it/common/commands.rs"]
mod commands;
mod compact;
mod harness;
mod record;
mod relay;
mod roles;
mod strangers;
mod switch;
