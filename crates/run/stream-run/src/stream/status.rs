//! What is known of a stream without reading it.

use strata_stream::{Description, State, StreamName};

use crate::dir::stripes::Stripes;
use crate::dir::{SavedCursor, StreamDir, cursors_of};
use crate::error::{In as _, Result};
use crate::stream::appender::recovered_records;

/// What `strata stream list` shows of a stream.
#[derive(Clone, Debug)]
pub struct StreamStatus {
    /// What it is.
    pub description: Description,
    /// How far it has come; `None` if it never had an appender, or after a crash.
    pub state: Option<State>,
    /// Whether a process appends.
    pub is_appended: bool,
    /// Data pages that it owns.
    pub pages: u64,
    /// Saved cursors by name.
    pub cursors: Vec<(String, SavedCursor)>,
    /// Saved cursors that cannot be read, and why.
    pub problems: Vec<String>,
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
        let mut stripes = Stripes::open(self)?;
        let pages = stripes.owned(file.description.id)?;
        let mut state = file.state()?;
        if let Some(state) = state
            .as_mut()
            .filter(|state| !state.is_clean && !is_appended)
        {
            // It is as old as the last time that it was written.
            state.next_seq = recovered_records(&mut stripes, &file, state)?;
        }
        let folder = cursors_of(name);
        let (mut cursors, mut problems) = (Vec::new(), Vec::new());
        for consumer in self.disk.list(&folder).in_file(|| self.path.clone())? {
            let Ok(consumer) = consumer.parse::<StreamName>() else {
                continue;
            };
            match self.saved(name, &consumer) {
                Ok(saved) => cursors.extend(saved.map(|saved| (consumer.to_string(), saved))),
                Err(error) => problems.push(error.to_string()),
            }
        }
        Ok(StreamStatus {
            state,
            is_appended,
            pages,
            description: file.description,
            cursors,
            problems,
        })
    }
}
