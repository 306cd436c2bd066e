//! Labelled packets, as the commands about models and about classifiers of flows read them, and the Python package
//! that trains on them.
//!
//! Errors are for the user as they are: a line that names the option, the file or the field, and what to do.
#![forbid(unsafe_code)]
#![allow(clippy::missing_errors_doc, reason = "said once, above")]

pub mod labelled;
pub mod python;
