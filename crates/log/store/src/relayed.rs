//! A relay's side of the log: recordings of many switches at a time, written block by block as
//! their segments were in the relay's memory (`docs/formats/relay.md`).

mod log;
mod resume;
mod threads;

pub use log::{Placed, RelayLog, RelayStream, StreamOptions};
pub use resume::StoredSince;
pub use threads::{BlockDone, RelayWriters};
