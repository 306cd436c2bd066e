//! What entries of lists say, if they are not only bytes that their reporter knows.
//!
//! - [`node`]: what happened to a packet at a node, as INT reports become entries;
//! - [`flow`]: what a recording, or a query known ahead, says of a flow;
//! - [`listed`]: entries as records of a stream.

pub mod flow;
pub mod listed;
pub mod node;
