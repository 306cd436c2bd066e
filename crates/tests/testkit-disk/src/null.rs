//! A disk for measurements.

use std::any::Any;
use std::io;

use strata_store::{Disk, DiskFile};

/// A disk that discards what is written, to measure everything but the disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullDisk;

struct NullFile;

impl Disk for NullDisk {
    fn create(&self, _: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(NullFile))
    }

    fn open(&self, name: &str, _: bool) -> io::Result<Box<dyn DiskFile>> {
        Err(io::Error::other(format!("{name}: this disk forgets")))
    }

    fn replace(&self, _: &str, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn exists(&self, _: &str) -> bool {
        false
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Any + Send>>> {
        Ok(Some(Box::new(())))
    }

    fn display(&self, name: &str) -> String {
        name.to_owned()
    }
}

impl DiskFile for NullFile {
    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
        Ok(0)
    }

    fn write_at(&mut self, _: &[u8], _: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(0)
    }
}
