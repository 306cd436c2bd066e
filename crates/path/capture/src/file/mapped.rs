//! A file that is read where the page cache has it, without a copy.
//!
//! Only what the file had when it was opened is in view. What comes behind that, since the file is still
//! being written, and what cannot be brought into memory, since it was truncated or its disk fails, is
//! read: so both end as they do without a view.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread;

use strata_sys::FileView;

/// Bytes that a thread brings into memory at a time, and those that it asks the disk for behind them.
const BROUGHT_BYTES: usize = 4 << 20;
const ASKED_BYTES: usize = 8 << 20;
/// How often that, and once more, the thread is ahead.
const AHEAD: usize = 2;

/// A file in view, and how far it is in memory.
pub(super) struct Mapped {
    file: File,
    view: Arc<FileView>,
    /// Up to here.
    brought: usize,
    /// Where a thread brings it, the next ends; it ends with the first failure.
    // Only ever used through `&mut`; the mutex makes it `Sync`.
    thread: Option<Mutex<Receiver<usize>>>,
}

impl Mapped {
    /// A view of a file of at least `bytes_min` bytes; `None` of a smaller one, or if the system refuses.
    pub(super) fn of(file: &File, ahead: bool, bytes_min: u64) -> io::Result<Option<Self>> {
        let len = file.metadata()?.len();
        let Ok(bytes) = usize::try_from(len) else {
            return Ok(None);
        };
        if bytes == 0 || len < bytes_min {
            return Ok(None);
        }
        let Ok(Some(view)) = FileView::of(file, bytes) else {
            return Ok(None);
        };
        let view = Arc::new(view);
        let thread = match ahead {
            false => None,
            true => {
                let (to_window, ends) = mpsc::sync_channel(AHEAD);
                let view = Arc::clone(&view);
                thread::Builder::new()
                    .name("strata-reader".into())
                    .spawn(move || bring_all(&view, &to_window))?;
                Some(Mutex::new(ends))
            }
        };
        Ok(Some(Self {
            file: file.try_clone()?,
            view,
            brought: 0,
            thread,
        }))
    }

    /// The bytes between two offsets in the file, which were brought.
    #[inline]
    pub(super) fn bytes(&self, start: usize, end: usize) -> &[u8] {
        self.view.bytes(start, end)
    }

    /// Whether what was looked at so far was there.
    ///
    /// # Errors
    ///
    /// If the file was truncated in the meantime.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.view.is_torn() {
            return Err(io::Error::other(
                "the file was truncated while it was read: the last packets before this may be zeros",
            ));
        }
        Ok(())
    }

    /// Has `bytes` bytes from `start` in memory, or more if one packet needs that; returns the end of
    /// those that are.
    pub(super) fn bring(&mut self, start: usize, bytes: usize, need: usize) -> usize {
        let end = start.saturating_add(bytes.max(need)).min(self.view.len());
        while self.brought < end {
            let brought = match &mut self.thread {
                Some(ends) => {
                    let ends = ends.get_mut().unwrap_or_else(|e| e.into_inner());
                    ends.recv().ok()
                }
                None => bring(&self.view, self.brought, bytes.max(need)),
            };
            match brought {
                Some(brought) => self.brought = brought,
                None => break,
            }
        }
        end.min(self.brought)
    }

    /// Whether a thread reads ahead.
    pub(super) fn is_ahead(&self) -> bool {
        self.thread.is_some()
    }

    /// The file, to be read from `start` on.
    pub(super) fn read_from(&self, start: usize) -> io::Result<File> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(start as u64))?;
        Ok(file)
    }
}

/// Brings `bytes` bytes from `start` into memory; returns their end. `None` if that fails.
fn bring(view: &FileView, start: usize, bytes: usize) -> Option<usize> {
    let end = start.saturating_add(bytes).min(view.len());
    view.bring(start..end).ok()?;
    view.ask_for(end..end.saturating_add(ASKED_BYTES).min(view.len()));
    Some(end)
}

fn bring_all(view: &FileView, to_window: &SyncSender<usize>) {
    let mut start = 0;
    while start < view.len() {
        let Some(end) = bring(view, start, BROUGHT_BYTES) else {
            return;
        };
        if to_window.send(end).is_err() {
            return;
        }
        start = end;
    }
}
