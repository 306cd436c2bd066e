//! What is known of a stream without reading it.

use strata_stream::{Description, State, StreamName};

use super::dir::{SavedCursor, StreamDir, cursors_of};
use super::error::{In as _, Result};
use super::stripes::Stripes;

/// What `strata stream list` shows of a stream.
#[derive(Clone, Debug)]
pub struct StreamStatus {
    /// What it is.
    pub description: Description,
    /// How far it has come; `None` if nobody has appended, or after a crash.
    pub state: Option<State>,
    /// Whether a process appends.
    pub is_appended: bool,
    /// Data pages that it owns.
    pub pages: u64,
    /// Saved cursors by name.
    pub cursors: Vec<(String, SavedCursor)>,
}

impl StreamDir {
    /// What is known of a stream without reading its records.
    ///
    /// # Errors
    ///
    /// If a file is damaged.
    pub fn status(&self, name: &StreamName) -> Result<StreamStatus> {
        let file = self.file(name, false)?;
        let is_appended = self.is_appended(name)?;
        let pages = Stripes::open(self)?.owned(file.description.id)?;
        let folder = cursors_of(name);
        let mut cursors = Vec::new();
        for consumer in self.disk.list(&folder).in_file(|| self.path.clone())? {
            if let Ok(consumer) = consumer.parse::<StreamName>()
                && let Some(saved) = self.saved(name, &consumer)?
            {
                cursors.push((consumer.to_string(), saved));
            }
        }
        Ok(StreamStatus {
            state: file.state()?,
            is_appended,
            pages,
            description: file.description,
            cursors,
        })
    }
}
