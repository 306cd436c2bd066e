//! Memory that two processes of one machine have mapped, or that a NIC writes: bytes are copied in
//! and out, and no references to them exist, since they may change at any time.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::memory::mapping::Mapping;

/// Memory that others write too.
#[derive(Debug)]
pub struct SharedMemory {
    memory: Mapping,
    file: File,
}

impl SharedMemory {
    /// Maps the first `len` bytes of a file, which must have them and keep them: if a file shrinks,
    /// a process that touches the lost part is killed.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn map(file: File, len: usize) -> io::Result<Self> {
        let memory = Mapping::of(file.as_fd(), len, 0, false)?;
        Ok(Self { memory, file })
    }

    /// Zeros that no path leads to, and that cannot be shrunk; /proc shows them as `name`.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn create(name: &str, len: usize) -> io::Result<Self> {
        Self::create_of(name, len, MemfdFlags::empty())
    }

    /// As [`SharedMemory::create`], in huge pages of 2 MiB, which are contiguous and stay where they are, so
    /// that devices may be given the address: a multiple of that.
    ///
    /// # Errors
    ///
    /// What the operating system says: that there is no memory if there are no huge pages
    /// (`/proc/sys/vm/nr_hugepages`).
    pub fn create_huge(name: &str, len: usize) -> io::Result<Self> {
        Self::create_of(name, len, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB)
    }

    fn create_of(name: &str, len: usize, pages: MemfdFlags) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | pages;
        // It is never executed: sealed since Linux 6.3; earlier kernels refuse the flag.
        let sealed = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL);
        let file = File::from(sealed.or_else(|_| memfd_create(name, flags))?);
        file.set_len(len as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(file, len)
    }

    /// What another process of this machine is given to map it.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its first byte, to be passed to a NIC.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.memory.start()
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.memory.len() == 0
    }

    fn check(&self, at: usize, len: usize) {
        let end = at.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.memory.len()),
            "within the mapping"
        );
    }

    /// Copies bytes to a place.
    ///
    /// # Panics
    ///
    /// If that is beyond the mapping.
    pub fn copy_in(&self, at: usize, bytes: &[u8]) {
        self.check(at, bytes.len());
        // SAFETY: within the mapping by the assertion; `bytes` are not part of it, since there are
        // no references to it.
        unsafe {
            let to = self.memory.start().as_ptr().add(at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// A copy of the bytes at a place, as they are now.
    ///
    /// # Panics
    ///
    /// If that is beyond the mapping.
    #[must_use]
    pub fn copy_out(&self, at: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.copy_into(at, &mut out);
        out
    }

    /// Copies the bytes at a place, as they are now, to `out`.
    ///
    /// # Panics
    ///
    /// If that is beyond the mapping.
    #[inline]
    pub fn copy_into(&self, at: usize, out: &mut [u8]) {
        self.check(at, out.len());
        // SAFETY: within the mapping by the assertion; `out` is not part of it, since there are no
        // references to it.
        unsafe {
            let from = self.memory.start().as_ptr().add(at);
            std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len());
        }
    }
}

/// A part of shared memory.
#[derive(Clone, Copy, Debug)]
pub struct SharedSlice<'a> {
    memory: &'a SharedMemory,
    at: usize,
    len: usize,
}

impl SharedSlice<'_> {
    /// A copy of it, as it is now.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.memory.copy_out(self.at, self.len)
    }

    pub(crate) fn start(&self) -> *const u8 {
        // `SharedBlock::new` has asserted that it is within the mapping.
        self.memory.start().as_ptr().wrapping_add(self.at)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Writes it to a file without a copy of our own: the kernel takes it as is.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn write_all_at(&self, file: &File, offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < self.len {
            let from = self.start().wrapping_add(done).cast();
            let to = libc::off_t::try_from(offset + done as u64).map_err(io::Error::other)?;
            // SAFETY: `len` bytes from `start` on are within the mapping, which is borrowed; the
            // kernel reads them, whatever they are by then.
            let written = unsafe { libc::pwrite(file.as_raw_fd(), from, self.len - done, to) };
            match usize::try_from(written) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
        Ok(())
    }
}

/// A part of shared memory that goes to a disk.
#[derive(Debug)]
pub struct SharedBlock {
    memory: Arc<SharedMemory>,
    at: usize,
    len: usize,
}

impl SharedBlock {
    /// This many bytes from a place on.
    ///
    /// # Panics
    ///
    /// If they are not within the mapping.
    #[must_use]
    pub fn new(memory: &Arc<SharedMemory>, at: usize, len: usize) -> Self {
        memory.check(at, len);
        let memory = Arc::clone(memory);
        Self { memory, at, len }
    }

    /// Its bytes.
    #[must_use]
    pub fn slice(&self) -> SharedSlice<'_> {
        SharedSlice {
            memory: &self.memory,
            at: self.at,
            len: self.len,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn two_mappings_of_it_see_each_others_bytes() {
        let memory = SharedMemory::create("test", 8192).unwrap();
        let other = SharedMemory::map(memory.file().try_clone().unwrap(), 8192).unwrap();
        memory.copy_in(4000, b"there");
        assert_eq!(other.copy_out(4000, 5), b"there");
    }

    #[test]
    fn a_part_is_written_to_a_file_as_it_is() {
        let memory = Arc::new(SharedMemory::create("test", 8192).unwrap());
        memory.copy_in(100, b"part");
        let block = SharedBlock::new(&memory, 100, 4);
        let file = tempfile::tempfile().unwrap();
        block.slice().write_all_at(&file, 7).unwrap();
        let mut read = [0; 4];
        file.read_exact_at(&mut read, 7).unwrap();
        assert_eq!((&read, block.slice().to_vec()), (b"part", b"part".to_vec()));
    }

    #[test]
    #[should_panic(expected = "within the mapping")]
    fn a_part_beyond_its_end_is_refused() {
        let memory = Arc::new(SharedMemory::create("test", 8192).unwrap());
        drop(SharedBlock::new(&memory, 8000, 200));
    }
}
