//! Commands that make and send traffic.

pub(crate) mod generate;
pub(crate) mod replay;
mod sending;
