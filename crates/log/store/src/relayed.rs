//! A relay's side of the log: recordings of many switches at a time, written block by block as
//! their segments were in the relay's memory (`docs/formats/relay.md`).

mod resume;
mod threads;
mod writer;

pub use resume::StoredSince;
pub use threads::{BlockDone, RelayWriters};
pub use writer::{Placed, RelayLog, RelayStream, StreamOptions};
