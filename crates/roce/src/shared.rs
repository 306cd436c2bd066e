//! Shared memory between two processes of one machine: blocks are mapped by both, and an RDMA
//! WRITE is a copy.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// Memory that was mapped.
#[derive(Debug)]
pub struct Mapping {
    start: *mut u8,
    len: usize,
    file: File,
}

// SAFETY: the memory is reached through raw pointers alone, by copies; who copies
// where at what time is settled by the protocol of blocks.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and nothing borrows from it.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

impl Mapping {
    /// Maps the first `len` bytes of a file, of which is known that it has them and keeps them:
    /// a file that becomes smaller ends the process that touches what it had.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn map(file: File, len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping, at an address of the system's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            start: start.cast(),
            len,
            file,
        })
    }

    /// Zeros that no path leads to, and that nobody can shrink; /proc shows them as `name`.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn create(name: &str, len: usize) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Nobody runs what is in it: sealed since Linux 6.3, which refuses the flag before.
        let sealed = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL);
        let file = File::from(sealed.or_else(|_| memfd_create(name, flags))?);
        file.set_len(len as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(file, len)
    }

    /// What another process of this machine is handed to map it.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its first byte.
    #[cfg(feature = "verbs")]
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    /// Copies bytes to a place.
    ///
    /// # Panics
    ///
    /// If that is beyond the mapping.
    pub fn copy_in(&self, at: usize, bytes: &[u8]) {
        let end = at.checked_add(bytes.len());
        assert!(end.is_some_and(|end| end <= self.len), "within the mapping");
        // SAFETY: within the mapping by the assertion; `bytes` are not of it, since
        // no reference to it lasts beyond a system call.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(at), bytes.len()) };
    }
    /// A copy of the bytes at a place.
    ///
    /// # Panics
    ///
    /// If that is beyond the mapping.
    #[must_use]
    pub fn copy_out(&self, at: usize, len: usize) -> Vec<u8> {
        let end = at.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "within the mapping");
        let mut out = vec![0; len];
        // SAFETY: within the mapping by the assertion, and `out` has room.
        unsafe { std::ptr::copy_nonoverlapping(self.start.add(at), out.as_mut_ptr(), len) };
        out
    }
}

/// Bytes of a mapping that are handed to the kernel.
#[derive(Debug)]
pub struct SharedBlock {
    mapping: Arc<Mapping>,
    at: usize,
    len: usize,
}

impl SharedBlock {
    /// So many bytes from a place on.
    ///
    /// # Panics
    ///
    /// If they are not within the mapping.
    #[must_use]
    pub fn new(mapping: &Arc<Mapping>, at: usize, len: usize) -> Self {
        let end = at.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= mapping.len),
            "within the mapping"
        );
        Self {
            mapping: Arc::clone(mapping),
            at,
            len,
        }
    }

    /// These bytes, to be read by the kernel alone.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: within the mapping, as `new` has asserted. A peer that keeps to the
        // protocol does not write to a full block; what one that does not writes, is
        // read by the kernel alone, to whom these bytes are handed.
        unsafe { std::slice::from_raw_parts(self.mapping.start.add(self.at), self.len) }
    }
}

/// Blocks of another process, as the one that fills them has mapped them.
#[derive(Debug)]
pub struct SharedToPeer {
    mapping: Mapping,
    stride: usize,
    first: usize,
}

impl SharedToPeer {
    /// Maps blocks, in memory of which is known that it has `blocks` times `stride` bytes and
    /// keeps them. The first `first` bytes of each are not to be written.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn map(file: File, blocks: usize, stride: usize, first: usize) -> io::Result<Self> {
        let len = blocks.checked_mul(stride);
        let len = len.ok_or(io::ErrorKind::InvalidInput)?;
        let mapping = Mapping::map(file, len)?;
        Ok(Self {
            mapping,
            stride,
            first,
        })
    }

    /// Copies `bytes` to `at` behind the first bytes of a block.
    ///
    /// # Panics
    ///
    /// If that is beyond the block.
    pub fn write(&self, block: usize, at: usize, bytes: &[u8]) {
        let within = self.first + at;
        assert!(within + bytes.len() <= self.stride, "within the block");
        self.mapping.copy_in(block * self.stride + within, bytes);
    }
}
