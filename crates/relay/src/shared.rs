//! Shared memory between switch and relay on one machine: the relay's blocks are
//! mapped by both, and an RDMA WRITE is a copy.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use strata_store::{RelayedHeader, SEGMENTS_AT};

/// What /proc shows the memory as.
const NAME: &str = "strata-relay";

/// Memory that was mapped.
#[derive(Debug)]
pub(crate) struct Mapping {
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
    fn map(file: File, len: usize) -> io::Result<Self> {
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

    /// Zeros without a name, that nobody can shrink.
    pub(crate) fn create(len: usize) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Nobody runs what is in it: sealed since Linux 6.3, which refuses the flag before.
        let sealed = memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL);
        let file = File::from(sealed.or_else(|_| memfd_create(NAME, flags))?);
        file.set_len(len as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(file, len)
    }

    /// What another process of this machine is handed to map it.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Its first byte.
    #[cfg(feature = "verbs")]
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    fn copy_in(&self, at: usize, bytes: &[u8]) {
        let end = at.checked_add(bytes.len());
        assert!(end.is_some_and(|end| end <= self.len), "within the mapping");
        // SAFETY: within the mapping by the assertion; `bytes` are not of it, since
        // no reference to it lasts beyond a system call.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(at), bytes.len()) };
    }
}

/// One block of shared memory, full.
#[derive(Debug)]
pub struct SharedBlock {
    mapping: Arc<Mapping>,
    at: usize,
    used: usize,
}

impl SharedBlock {
    pub(crate) fn seal(mapping: &Arc<Mapping>, at: usize, header: &RelayedHeader) -> Self {
        let mut page = [0; SEGMENTS_AT];
        let emitted = header.emit();
        page[..emitted.len()].copy_from_slice(&emitted);
        mapping.copy_in(at, &page);
        Self {
            mapping: Arc::clone(mapping),
            at,
            used: header.stored_len(),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        assert!(
            self.at + self.used <= self.mapping.len,
            "within the mapping"
        );
        // SAFETY: within the mapping by the assertion. A switch that keeps to the
        // protocol does not write to a full block; what one that does not writes, is
        // read by the kernel alone, to whom these bytes are handed.
        unsafe { std::slice::from_raw_parts(self.mapping.start.add(self.at), self.used) }
    }
}

/// The segments of a block that lies at `at`, for a look at what is in it.
pub(crate) fn copy_segments(mapping: &Mapping, at: usize, len: usize) -> Vec<u8> {
    let from = at + SEGMENTS_AT;
    assert!(from + len <= mapping.len, "within the mapping");
    let mut out = vec![0; len];
    // SAFETY: within the mapping by the assertion, and `out` has room.
    unsafe { std::ptr::copy_nonoverlapping(mapping.start.add(from), out.as_mut_ptr(), len) };
    out
}

/// The relay's blocks, as the switch has mapped them.
#[derive(Debug)]
pub struct SharedToRelay {
    mapping: Mapping,
    stride: usize,
}

impl SharedToRelay {
    /// Maps the relay's blocks, in memory of which is known that it has `blocks` times
    /// `stride` bytes and keeps them.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub(crate) fn map(file: File, blocks: usize, stride: usize) -> io::Result<Self> {
        let len = blocks.checked_mul(stride);
        let len = len.ok_or(io::ErrorKind::InvalidInput)?;
        let mapping = Mapping::map(file, len)?;
        Ok(Self { mapping, stride })
    }

    /// Copies `bytes` to `at` among the segments of a block.
    ///
    /// # Panics
    ///
    /// If that is beyond the block.
    pub fn write(&self, block: usize, at: usize, bytes: &[u8]) {
        let within = SEGMENTS_AT + at;
        assert!(within + bytes.len() <= self.stride, "within the block");
        self.mapping.copy_in(block * self.stride + within, bytes);
    }
}
