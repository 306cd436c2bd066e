//! How far a command is, on standard error while that is a terminal.

use std::io::{self, IsTerminal as _, stderr};
use std::ops::Range;
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use strata_store::{Disk, DiskFile, DiskLayer, Log, ReadOnlyFile};

use crate::logging;

/// A bar that goes when it is dropped, or is not there.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    fn shown(bar: ProgressBar, template: &str) -> Self {
        if !stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template(template);
        let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        logging::write_above(bar.clone());
        Self(bar)
    }

    /// None, as where standard output goes to the same terminal.
    #[must_use]
    pub fn none() -> Self {
        Self(ProgressBar::hidden())
    }

    /// Packets, of an unknown number.
    #[must_use]
    pub fn of_packets() -> Self {
        let template = "{spinner} {human_pos} packets, {per_sec}, {elapsed}";
        Self::shown(ProgressBar::new_spinner(), template)
    }

    /// Packets, of this number.
    #[must_use]
    pub fn up_to_packets(count: u64) -> Self {
        let template = "{percent:>3} % {wide_bar} {human_pos} packets, {per_sec}, {eta} left";
        Self::shown(ProgressBar::new(count), template)
    }

    /// Bytes that are read, of this number.
    #[must_use]
    pub fn up_to_bytes(count: u64) -> Self {
        let template =
            "{percent:>3} % {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        Self::shown(ProgressBar::new(count), template)
    }

    /// Bytes that are read, of an unknown number.
    #[must_use]
    pub fn of_bytes() -> Self {
        let template = "{spinner} {bytes} read, {bytes_per_sec}, {elapsed}";
        Self::shown(ProgressBar::new_spinner(), template)
    }

    /// This many are done.
    pub fn set(&self, done: u64) {
        self.0.set_position(done);
    }

    /// A disk of which all bytes that are read count.
    #[must_use]
    pub fn watch(&self, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        match self.0.is_hidden() {
            true => disk,
            false => Arc::new(Watched {
                below: disk,
                bar: self.0.clone(),
            }),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Bytes of all files of a log, as far as its manifests know them.
#[must_use]
pub fn bytes_of(log: &Log) -> u64 {
    let blocks = log.recordings().iter().flat_map(|one| &one.files);
    let blocks = blocks.map(|file| file.bytes);
    let parts = log.archive().parts.iter().flat_map(|part| &part.files);
    let parts = parts.map(|file| file.bytes);
    blocks.chain(parts).fold(0, u64::saturating_add)
}

struct Watched {
    below: Arc<dyn Disk>,
    bar: ProgressBar,
}

impl DiskLayer for Watched {
    fn below(&self) -> &dyn Disk {
        self.below.as_ref()
    }

    fn open(&self, name: &str, writable: bool) -> io::Result<Box<dyn DiskFile>> {
        let file = self.below.open(name, writable)?;
        if writable {
            return Ok(file);
        }
        Ok(Box::new(WatchedFile {
            len: file.size()?,
            file,
            bar: self.bar.clone(),
        }))
    }
}

struct WatchedFile {
    file: Box<dyn DiskFile>,
    len: u64,
    bar: ProgressBar,
}

impl ReadOnlyFile for WatchedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let read = self.file.read_at(buffer, offset)?;
        self.bar.inc(read as u64);
        Ok(read)
    }

    fn will_read(&self, bytes: Range<u64>) {
        self.file.will_read(bytes);
    }

    fn len(&self) -> u64 {
        self.len
    }
}
