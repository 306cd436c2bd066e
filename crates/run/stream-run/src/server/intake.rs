//! Another way for records into the streams of a server, such as a protocol that agents speak.

use std::fmt::Debug;
use std::sync::Arc;

use strata_role::{Result, Tell};

use super::shared::SharedStreams;
use crate::StreamSpec;

/// A receiver of records that is not running yet.
pub trait StreamIntake: Debug + Send {
    /// Begins to receive, in the sandbox of the server: records are appended by sessions of `streams`. `creates` is how a
    /// stream is created that is not there; `None`: it is not.
    ///
    /// # Errors
    ///
    /// If it cannot listen, or a stream cannot be used.
    fn start(
        self: Box<Self>,
        streams: &Arc<SharedStreams>,
        creates: Option<&StreamSpec>,
        tell: &Tell,
    ) -> Result<Box<dyn RunningIntake>>;
}

/// A receiver of records.
pub trait RunningIntake: Send {
    /// Ends it, once what it has received is durable; the number of appended records.
    fn end(self: Box<Self>) -> u64;
}
