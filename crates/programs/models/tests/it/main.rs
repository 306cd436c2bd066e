//! The program as it is installed, and the tables that it writes for a switch, run there.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::print_stderr, reason = "says why it did not run")]

mod p4;
mod program;
