//! The file of a stream: description, state, page directory, table pages, in this order.

use std::sync::Arc;

use strata_store::{Disk, DiskFile};
use strata_stream::description::{DIRECTORY_AT, STATE_AT};
use strata_stream::{
    Description, Geometry, State, StreamKey, StreamName, TableUpdate, TableWriter,
};
use strata_wire::exact;

use crate::error::{In as _, Result, StreamError};

/// The name of a stream's file.
pub(crate) fn file_name(name: &StreamName) -> String {
    format!("streams/{name}.stream")
}

/// The file whose lock its appender holds.
pub(crate) fn lock_name(name: &StreamName) -> String {
    format!("streams/{name}.lock")
}

/// An open stream file.
pub(crate) struct StreamFile {
    file: Box<dyn DiskFile>,
    pub(crate) path: String,
    pub(crate) description: Description,
    pub(crate) key: StreamKey,
}

impl StreamFile {
    pub(crate) fn open(disk: &Arc<dyn Disk>, name: &StreamName, writable: bool) -> Result<Self> {
        let path = disk.display(&file_name(name));
        let file = disk
            .open(&file_name(name), writable)
            .in_file(|| path.clone())?;
        let mut bytes = [0; 256];
        let read = file.read_at(&mut bytes, 0).in_file(|| path.clone())?;
        let description = Description::parse(&bytes[..read]);
        let description = description.map_err(|source| StreamError::Description {
            file: path.clone(),
            source,
        })?;
        if description.name != *name {
            return Err(StreamError::Damaged {
                problem: format!("it is the file of stream {}, renamed", description.name),
                file: path,
            });
        }
        Ok(Self {
            file,
            path,
            key: StreamKey::new(description.key),
            description,
        })
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.description.geometry
    }

    pub(crate) fn state(&self) -> Result<Option<State>> {
        let mut bytes = [0; State::LEN];
        let read = self
            .file
            .read_at(&mut bytes, STATE_AT)
            .in_file(|| self.path.clone())?;
        Ok(State::parse(&bytes[..read], &self.key))
    }

    pub(crate) fn write_state(&mut self, state: &State) -> Result<()> {
        let bytes = state.emit(&self.key);
        let written = self.file.write_at(&bytes, STATE_AT);
        written.in_file(|| self.path.clone())
    }

    /// The state and the page table are invalid from now on.
    pub(crate) fn forget_state(&mut self) -> Result<()> {
        let written = self.file.write_at(&[0; State::LEN], STATE_AT);
        written.in_file(|| self.path.clone())
    }

    pub(crate) fn sync(&mut self) -> Result<()> {
        self.file.sync().in_file(|| self.path.clone())
    }

    fn word(&self, at: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        let read = self
            .file
            .read_at(&mut bytes, at)
            .in_file(|| self.path.clone())?;
        // Nothing was written there yet.
        Ok(if read < bytes.len() {
            0
        } else {
            u64::from_le_bytes(bytes)
        })
    }

    fn table_at(&self, table: u32) -> u64 {
        let geometry = self.geometry();
        let tables = u64::from(table) * u64::from(geometry.table_bytes);
        DIRECTORY_AT + u64::from(geometry.directory_bytes) + tables
    }

    /// The data page of a page of the stream.
    pub(crate) fn look_up(&self, index: u64) -> Result<Option<u32>> {
        let entry = self.geometry().entry(index);
        let named = self.word(DIRECTORY_AT + 8 * u64::from(entry.directory))?;
        let Some(table) = named.checked_sub(1) else {
            return Ok(None);
        };
        if table >= self.geometry().directory_entries() {
            return Err(StreamError::Damaged {
                file: self.path.clone(),
                problem: format!("entry {} of the page directory is {named}", entry.directory),
            });
        }
        let at = self.table_at(exact(table)) + 8 * u64::from(entry.table);
        Ok(entry.page(self.word(at)?))
    }

    /// Enters a page.
    pub(crate) fn enter(&mut self, table: &mut TableWriter, index: u64, page: u32) -> Result<()> {
        let update = table.put(index, page, |at| self.word(DIRECTORY_AT + u64::from(at)))?;
        self.update(&update)
    }

    fn update(&mut self, update: &TableUpdate) -> Result<()> {
        let path = || self.path.clone();
        let (table, offset, entry) = update.table;
        let at = self.table_at(table);
        if update.directory.is_some() {
            let zeros = vec![0; exact::<usize>(self.geometry().table_bytes)];
            self.file.write_at(&zeros, at).in_file(path)?;
        }
        let written = self
            .file
            .write_at(&entry.to_le_bytes(), at + u64::from(offset));
        written.in_file(path)?;
        if let Some((offset, entry)) = update.directory {
            let written = self
                .file
                .write_at(&entry.to_le_bytes(), DIRECTORY_AT + u64::from(offset));
            written.in_file(path)?;
        }
        Ok(())
    }

    /// Strikes a page out, before its data page is used for something else.
    pub(crate) fn strike(&mut self, index: u64) -> Result<()> {
        let entry = self.geometry().entry(index);
        let named = self.word(DIRECTORY_AT + 8 * u64::from(entry.directory))?;
        let Some(table) = named.checked_sub(1) else {
            return Ok(());
        };
        let at = self.table_at(exact(table)) + 8 * u64::from(entry.table);
        if entry.page(self.word(at)?).is_some() {
            let written = self.file.write_at(&[0; 8], at);
            written.in_file(|| self.path.clone())?;
        }
        Ok(())
    }

    /// Enters the pages that the page table does not have: those of stripes that were gone when it was made anew.
    pub(crate) fn complete(
        &mut self,
        table: &mut TableWriter,
        pages: impl IntoIterator<Item = (u64, u32)>,
    ) -> Result<()> {
        for (index, page) in pages {
            if self.look_up(index)? != Some(page) {
                self.enter(table, index, page)?;
            }
        }
        Ok(())
    }

    /// Makes the page table anew.
    pub(crate) fn rebuild(
        &mut self,
        pages: impl IntoIterator<Item = (u64, u32)>,
    ) -> Result<TableWriter> {
        let zeros = vec![0; exact::<usize>(self.geometry().directory_bytes)];
        let written = self.file.write_at(&zeros, DIRECTORY_AT);
        written.in_file(|| self.path.clone())?;
        let mut table = TableWriter::new(self.geometry(), 0);
        for (index, page) in pages {
            self.enter(&mut table, index, page)?;
        }
        Ok(table)
    }
}
