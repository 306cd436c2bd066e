//! Arguments on the command line that several commands have.

pub mod address;
pub mod bounded;
pub mod disk;
pub mod feed;
pub mod key;
pub mod log_options;
pub mod model;
pub mod recording;
pub mod rings;
pub mod shadow;
