//! How far a command is, on standard error while that is a terminal.

use std::io::{self, IsTerminal as _, stderr};
use std::ops::Range;
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use strata_store::{Disk, DiskFile, DiskLayer, Log, ReadOnlyFile};

use crate::logging;

/// How a bar of a known number of bytes looks.
const UP_TO_BYTES: &str = "{percent:>3} % {wide_bar} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, \
                           {eta} left";

/// A bar that goes when it is dropped, or that was never shown.
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

    /// This one, unless none is wanted.
    #[must_use]
    pub fn unless(is_hidden: bool, shown: impl FnOnce() -> Self) -> Self {
        match is_hidden {
            true => Self::none(),
            false => shown(),
        }
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
        Self::shown(ProgressBar::new(count), UP_TO_BYTES)
    }

    /// From now on bytes are counted, of this number; a bar that counts them already stays as it is.
    pub fn expect_bytes(&self, count: u64) {
        if self.0.is_hidden() || self.0.length() == Some(count) {
            return;
        }
        if let Ok(style) = ProgressStyle::with_template(UP_TO_BYTES) {
            self.0.set_style(style);
        }
        self.0.set_length(count);
    }

    /// Bytes that are read, of an unknown number.
    #[must_use]
    pub fn of_bytes() -> Self {
        let template = "{spinner} {decimal_bytes} read, {decimal_bytes_per_sec}, {elapsed}";
        Self::shown(ProgressBar::new_spinner(), template)
    }

    /// This many are done.
    pub fn set(&self, done: u64) {
        self.0.set_position(done);
    }

    /// The bar goes, so that results can be printed.
    pub fn end(&self) {
        self.0.finish_and_clear();
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
        self.end();
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

impl Watched {
    fn watched(&self, file: Box<dyn DiskFile>) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(WatchedFile {
            len: file.size()?,
            file,
            bar: self.bar.clone(),
        }))
    }
}

impl DiskLayer for Watched {
    fn below(&self) -> &dyn Disk {
        self.below.as_ref()
    }

    fn open(&self, name: &str, writable: bool) -> io::Result<Box<dyn DiskFile>> {
        let file = self.below.open(name, writable)?;
        match writable {
            true => Ok(file),
            false => self.watched(file),
        }
    }

    fn open_direct(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.watched(self.below.open_direct(name)?)
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

#[cfg(test)]
mod tests {
    use strata_testkit_disk::SimDisk;

    use super::*;

    /// However a file is opened: compaction opens block files for direct reading.
    #[test]
    fn all_that_is_read_of_a_watched_disk_counts() {
        let below: Arc<dyn Disk> = Arc::new(SimDisk::new());
        below
            .create("file")
            .unwrap()
            .write_at(&[7; 100], 0)
            .unwrap();
        let bar = ProgressBar::hidden();
        let disk: Arc<dyn Disk> = Arc::new(Watched {
            below,
            bar: bar.clone(),
        });
        let mut buffer = [0; 40];
        disk.open("file", false)
            .unwrap()
            .read_at(&mut buffer, 0)
            .unwrap();
        assert_eq!(bar.position(), 40);
        let direct = disk.open_direct("file").unwrap();
        assert_eq!(direct.read_at(&mut buffer, 80).unwrap(), 20);
        assert_eq!(bar.position(), 60);
    }
}
