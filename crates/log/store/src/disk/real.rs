//! A file as the system has it.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt as _};
use std::sync::Arc;

use rustix::fs::{Advice, FallocateFlags, SeekFrom, fadvise, fallocate, seek};
use rustix::io::Errno;

use super::DiskFile;

/// A file of a directory, or a device.
pub(super) struct RealFile(pub(super) Arc<File>);

impl DiskFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.0.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn size(&self) -> io::Result<u64> {
        let metadata = self.0.metadata()?;
        match metadata.file_type().is_block_device() {
            true => Ok(seek(&*self.0, SeekFrom::End(0))?),
            false => Ok(metadata.len()),
        }
    }

    fn allocate(&mut self, len: u64) -> io::Result<()> {
        match fallocate(&*self.0, FallocateFlags::KEEP_SIZE, 0, len) {
            // The file system does not support it.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            allocated => Ok(allocated?),
        }
    }

    fn grow(&mut self, bytes: Range<u64>) -> io::Result<()> {
        let len = bytes.end - bytes.start;
        match fallocate(&*self.0, FallocateFlags::empty(), bytes.start, len) {
            // The file system does not support it.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            grown => Ok(grown?),
        }
    }

    fn will_read(&self, bytes: Range<u64>) {
        let len = bytes.end.checked_sub(bytes.start).and_then(NonZeroU64::new);
        // What the system cannot do ahead, it does when the bytes are read.
        let _ = len.map(|len| fadvise(&*self.0, bytes.start, Some(len), Advice::WillNeed));
    }

    fn shared(&self) -> Option<Arc<File>> {
        Some(Arc::clone(&self.0))
    }
}
