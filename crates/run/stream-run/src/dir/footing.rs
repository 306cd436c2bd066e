//! The files that a stream stands on. Who has them open looks from time to time whether they are still those of
//! the directory, and not shorter than they were: what is written to a file that was removed is gone.

use std::sync::Arc;

use strata_store::{Disk, DiskFile};

use crate::error::{In as _, Result, StreamError};

/// Files that are not removed, nor become shorter, while a stream is used.
pub(crate) struct Footing {
    disk: Arc<dyn Disk>,
    files: Vec<(String, Box<dyn DiskFile>, u64)>,
}

impl Footing {
    pub(crate) fn open(disk: &Arc<dyn Disk>, names: &[&str]) -> Result<Self> {
        let mut files = Vec::new();
        for &name in names {
            let file = disk.open(name, false).in_file(|| disk.display(name))?;
            files.push((name.to_owned(), file, 0));
        }
        Ok(Self {
            disk: Arc::clone(disk),
            files,
        })
    }

    /// Looks whether they are there.
    ///
    /// # Errors
    ///
    /// If one is not, or is shorter than when it was last looked at.
    pub(crate) fn look(&mut self) -> Result<()> {
        for (name, file, known) in &mut self.files {
            let path = self.disk.display(name);
            if !self.disk.leads_to(name, file.as_ref()) {
                return Err(lost(path));
            }
            let len = file.size().in_file(|| path.clone())?;
            if len < *known {
                return Err(StreamError::Damaged {
                    file: path,
                    problem: format!("cut from {known} to {len} bytes while this process used it"),
                });
            }
            *known = len;
        }
        Ok(())
    }
}

/// A path leads to something else than what is open.
pub(crate) fn lost(file: String) -> StreamError {
    StreamError::Damaged {
        file,
        problem: "removed, renamed or replaced while this process used it".to_owned(),
    }
}
