//! Disks that tests and measurements put a log on. Never linked into the program.
//!
//! - [`SimDisk`]: in memory; loses power, fails or fills up when told;
//! - [`NullDisk`]: discards what is written;
//! - [`small`]: logs of a few blocks.
#![deny(unsafe_code)]

mod null;
mod sim;
pub mod small;

pub use null::NullDisk;
pub use sim::SimDisk;
