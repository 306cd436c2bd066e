//! What the operator's page shows of logs: flows found and paged through, packets, why they were kept, what a log holds.
//!
//! ```text
//! storage          what a log holds, and what will leave it
//! packet           a packet: its bytes, and why it was kept; as tshark shows it
//! why              the conditions of the forest; what a policy would have matched
//! packets          the packets of a flow; dissect: their headers
//! filters          a filter or a policy as it is typed
//! search           searches: flows found, their totals over time; results, which wait to be paged through
//! logs             logs, opened for each request
//! work             work off the server's thread, bounded; answers as they come; programs that answer
//! answers          forms that all answers share: refusals, times, what an answer covers
//! ```
//!
//! Each function answers one request, for a user who may make it: paths, logins and what users keep are in `serve`,
//! which uses this crate. Threads and asynchronous code are in `work` only. Answers are types of which `serve` makes
//! `openapi.yaml`.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

pub mod answers;
pub mod filters;
pub mod logs;
pub mod packet;
pub mod packets;
pub mod search;
pub mod storage;
pub mod why;
pub mod work;

use std::path::Path;

use strata_store::Log;

/// Opens the log in a directory; the error is for people.
pub type OpenLog = dyn Fn(&Path) -> Result<Log, String> + Send + Sync;
