//! What commands print and write of the packets of one log, or of several, which they read in the order of an export:
//!
//! - [`read`]: a line for each packet, in the notation of tcpdump;
//! - [`grep`]: those lines for packets whose kept payload has a pattern;
//! - [`top`]: sums by flow, host, country and other keys;
//! - [`export`]: packets or flow records, as files and for collectors.
//!
//! Each is a command: its arguments, and `run`, which prints. Errors are for the user as they are: a line that names
//! the option, the file or the field, and what to do.
#![forbid(unsafe_code)]
#![allow(clippy::missing_errors_doc, reason = "said once, above")]

pub mod export;
pub mod flows;
pub mod grep;
mod line;
mod names;
pub mod read;
pub mod top;
