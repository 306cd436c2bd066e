//! A stream of this machine as the output of a role that must not wait for it.

use std::path::PathBuf;
use std::sync::Arc;

use strata_sandbox::Role;
use strata_stream::StreamName;

use super::dir::StreamDir;
use super::error::Result;
use super::feed::{StreamFeed, WhenFull};
use crate::notice::{Notice, Tell};
use crate::sandbox::thread;

/// Opens a stream for records that may be lost; warns when they begin to be, and when they no longer are.
pub(crate) fn feed_to((dir, name): &(PathBuf, StreamName), tell: &Tell) -> Result<StreamFeed> {
    let named = format!("{}/{name}", dir.display());
    let tell = Arc::clone(tell);
    let warn = move |text: &str| tell(&Notice::Warning(format!("stream {named}: {text}")));
    let begin = || thread(Role::Writer);
    let dir = StreamDir::open(dir)?;
    StreamFeed::open(dir, name, WhenFull::Lose, Box::new(warn), begin)
}
