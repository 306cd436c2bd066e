//! Disks and files that change some of what lies below them, and leave the rest.

use std::any::Any;
use std::io;
use std::ops::Range;

use super::{Disk, DiskFile};

/// A disk that treats some files in its own way; all others are on the disk below.
pub trait DiskLayer: Send + Sync {
    /// The disk below.
    fn below(&self) -> &dyn Disk;

    /// As [`Disk::create`].
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.below().create(name)
    }

    /// As [`Disk::open`].
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn open(&self, name: &str, writable: bool) -> io::Result<Box<dyn DiskFile>> {
        self.below().open(name, writable)
    }

    /// As [`Disk::open_direct`].
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn open_direct(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.below().open_direct(name)
    }

    /// As [`Disk::exists`].
    fn exists(&self, name: &str) -> bool {
        self.below().exists(name)
    }

    /// As [`Disk::remove`].
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn remove(&self, name: &str) -> io::Result<()> {
        self.below().remove(name)
    }

    /// As [`Disk::reach`].
    ///
    /// # Errors
    ///
    /// If the tier is away, or cannot be made.
    fn reach(&self, tier: &str, is_new: bool) -> io::Result<()> {
        self.below().reach(tier, is_new)
    }

    /// As [`Disk::display`].
    fn display(&self, name: &str) -> String {
        self.below().display(name)
    }
}

impl<L: DiskLayer> Disk for L {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        DiskLayer::create(self, name)
    }

    fn open(&self, name: &str, writable: bool) -> io::Result<Box<dyn DiskFile>> {
        DiskLayer::open(self, name, writable)
    }

    fn exists(&self, name: &str) -> bool {
        DiskLayer::exists(self, name)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        DiskLayer::remove(self, name)
    }

    fn reach(&self, tier: &str, is_new: bool) -> io::Result<()> {
        DiskLayer::reach(self, tier, is_new)
    }

    fn display(&self, name: &str) -> String {
        DiskLayer::display(self, name)
    }

    fn create_for_blocks(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.below().create_for_blocks(name)
    }

    fn open_for_blocks(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.below().open_for_blocks(name)
    }

    fn open_direct(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        DiskLayer::open_direct(self, name)
    }

    fn in_flight(&self) -> usize {
        self.below().in_flight()
    }

    fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        self.below().replace(name, content)
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Any + Send>>> {
        self.below().lock()
    }

    fn lock_for_compacting(&self) -> io::Result<Option<Box<dyn Any + Send>>> {
        self.below().lock_for_compacting()
    }

    fn lock_for_reading(&self) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        self.below().lock_for_reading()
    }

    fn lock_for_deleting(&self) -> io::Result<Option<Box<dyn Any + Send>>> {
        self.below().lock_for_deleting()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.below().rename(from, to)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.below().list(dir)
    }

    fn hold_ahead(&self, name: &str, descriptors: usize) -> io::Result<()> {
        self.below().hold_ahead(name, descriptors)
    }

    fn let_go(&self) {
        self.below().let_go();
    }

    fn leads_to(&self, name: &str, file: &dyn DiskFile) -> bool {
        self.below().leads_to(name, file)
    }
}

/// A file that can only be read.
pub trait ReadOnlyFile: Send {
    /// As [`DiskFile::read_at`].
    ///
    /// # Errors
    ///
    /// The error of the operating system, or of the layer that checks what is read.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// As [`DiskFile::will_read`].
    fn will_read(&self, _bytes: Range<u64>) {}

    /// Its length in bytes.
    fn len(&self) -> u64;

    /// Whether it is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<F: ReadOnlyFile> DiskFile for F {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        ReadOnlyFile::read_at(self, buffer, offset)
    }

    fn write_at(&mut self, _bytes: &[u8], _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn set_len(&mut self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.len())
    }

    fn will_read(&self, bytes: Range<u64>) {
        ReadOnlyFile::will_read(self, bytes);
    }
}
