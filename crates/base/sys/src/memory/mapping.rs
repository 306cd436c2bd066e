//! Memory from mmap(2), for the other modules.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

/// Reading and writing.
const ACCESS: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Memory that is unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory owned by one value; nothing in it is tied to the thread that
// made it.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives atomics, and slices only under an unsafe contract.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a descriptor at `offset`, for reading and writing, shared with others;
    /// present in memory from the start if `populate`.
    pub(crate) fn of(
        fd: BorrowedFd<'_>,
        len: usize,
        offset: i64,
        populate: bool,
    ) -> io::Result<Self> {
        let populate = if populate { libc::MAP_POPULATE } else { 0 };
        let flags = libc::MAP_SHARED | populate;
        Self::map(fd.as_raw_fd(), len, ACCESS, flags, offset)
    }

    /// As [`Mapping::of`], for reading only: writing to it ends the process.
    pub(crate) fn read_only(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        Self::map(fd.as_raw_fd(), len, libc::PROT_READ, libc::MAP_SHARED, 0)
    }

    /// Huge pages are preferred, where the system and what is mapped have them.
    pub(crate) fn prefer_huge_pages(&self) {
        // Without huge pages it fails, and changes nothing.
        let _ = self.advise(0..self.len, libc::MADV_HUGEPAGE);
    }

    /// Our own memory, initially zero.
    pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        Self::map(-1, len, ACCESS, flags, 0)
    }

    /// Our own address space, without memory: nothing can be read or written before
    /// [`Mapping::allow`]. Where the system has huge pages, it prefers them.
    pub(crate) fn reserved(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let mapping = Self::map(-1, len, libc::PROT_NONE, flags, 0)?;
        mapping.prefer_huge_pages();
        Ok(mapping)
    }

    fn map(fd: i32, len: usize, protection: i32, flags: i32, offset: i64) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses; it overlaps nothing.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).expect("no mapping is at address 0");
        Ok(Self { start, len })
    }

    /// From `at` on, a multiple of the page size, nothing can be read or written any more.
    pub(crate) fn forbid(&mut self, at: usize) -> io::Result<()> {
        assert!(at <= self.len);
        // SAFETY: within the mapping, which is borrowed mutably: nothing refers to it.
        let done = unsafe {
            let start = self.start.as_ptr().add(at).cast();
            libc::mprotect(start, self.len - at, libc::PROT_NONE)
        };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// These bytes can be read and written from now on; to the pages that they touch.
    pub(crate) fn allow(&self, bytes: Range<usize>) -> io::Result<()> {
        let (start, len) = self.pages(bytes);
        // SAFETY: within the mapping; more access than before makes no reference invalid.
        let done = unsafe { libc::mprotect(start, len, ACCESS) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Makes these bytes, which can be read and written, present in memory; they keep their values.
    /// Fails with `EINVAL` before Linux 5.14.
    pub(crate) fn populate(&self, bytes: Range<usize>) -> io::Result<()> {
        self.advise(bytes, libc::MADV_POPULATE_WRITE)
    }

    /// Makes these bytes of a file present in memory. Fails with `EFAULT` if the file does not have them, and
    /// with `EINVAL` before Linux 5.14.
    pub(crate) fn populate_read(&self, bytes: Range<usize>) -> io::Result<()> {
        self.advise(bytes, libc::MADV_POPULATE_READ)
    }

    /// Has these bytes of a file read from its disk, as a hint.
    pub(crate) fn will_need(&self, bytes: Range<usize>) {
        // What it cannot read now is read when it is touched.
        let _ = self.advise(bytes, libc::MADV_WILLNEED);
    }

    /// Advice that changes no value, about the pages that hold these bytes.
    fn advise(&self, bytes: Range<usize>, advice: i32) -> io::Result<()> {
        let (start, len) = self.pages(bytes);
        // SAFETY: advice about our own mapping, of a kind that changes no value.
        let done = unsafe { libc::madvise(start, len, advice) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// The pages that hold these bytes.
    fn pages(&self, bytes: Range<usize>) -> (*mut libc::c_void, usize) {
        assert!(bytes.start <= bytes.end && bytes.end <= self.len);
        let start = bytes.start - bytes.start % rustix::param::page_size();
        // SAFETY: within the mapping, which starts at a page.
        let first = unsafe { self.start.as_ptr().add(start) };
        (first.cast(), bytes.end - start)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The 32-bit word at `at`, which others write too.
    #[inline]
    pub(crate) fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.len);
        // SAFETY: inside the mapping and aligned; mappings start at a page. All that share the word
        // use single aligned loads and stores.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    /// Some of its bytes.
    ///
    /// # Safety
    ///
    /// As long as the slice lives, these bytes are not written.
    #[inline]
    pub(crate) unsafe fn bytes(&self, at: usize, len: usize) -> &[u8] {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: inside the mapping; the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at), len) }
    }

    /// As [`Mapping::bytes`], for writing.
    ///
    /// # Safety
    ///
    /// As long as the slice lives, these bytes are not read or written in any other way.
    #[inline]
    pub(crate) unsafe fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: inside the mapping; the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(at), len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and nothing borrows from it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
