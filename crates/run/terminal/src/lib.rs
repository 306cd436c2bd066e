//! What all programs of Strata share at a terminal: options, signals, messages, output.
//!
//! - [`program`]: how a program begins and ends, and where the others are.
//! - Options that several commands have: [`log_options`], [`rings`], [`key`], [`recording`], [`confined`],
//!   [`logging`], [`feed`], and the packets that they choose: [`packets`], [`selection`].
//! - Values on the command line: [`address`], [`bounded`], [`text`]; the model: [`model`].
//! - What is printed: [`output`], [`listing`], [`table`], [`plain`], [`shadow`], [`progress`].
//! - The process: [`signals`], [`disk`].
//!
//! No command is here; those are in the crates of `programs`.
//!
//! Errors are for the user as they are: a line that names the option, the file or the field, and what to do.
#![forbid(unsafe_code)]
#![allow(clippy::missing_errors_doc, reason = "said once, above")]
#![allow(
    clippy::missing_panics_doc,
    reason = "none that a caller can bring about"
)]

mod arguments;
pub mod confined;
mod descriptors;
pub mod logging;
pub mod output;
pub mod packets;
pub mod program;
pub mod progress;
pub mod selection;
pub mod signals;
pub mod table;
pub mod text;

pub use arguments::{
    address, bounded, disk, feed, key, log_options, model, recording, rings, shadow,
};
pub use text::{colour, listing, plain};
