//! Shared memory between switch and relay on one machine: the relay's blocks are
//! mapped by both, and an RDMA WRITE is a copy.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;
use std::sync::Arc;

use strata_store::{RelayedHeader, SEGMENTS_AT};

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
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a literal C string.
        let fd = unsafe { libc::memfd_create(c"strata-relay".as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, owned by nothing else.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(len as u64)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: no pointers.
        if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Self::map(file, len)
    }

    /// Where another process of this machine finds it.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
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
    /// Maps the relay's blocks.
    ///
    /// # Errors
    ///
    /// What the operating system says, and if the file is too small.
    pub fn open(path: &Path, blocks: usize, stride: usize) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let len = blocks
            .checked_mul(stride)
            .ok_or(io::ErrorKind::InvalidInput)?;
        if file.metadata()?.len() < len as u64 || len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
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
