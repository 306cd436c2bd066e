//! Memory that grows where it is, for tables whose size follows their load.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use zerocopy::FromZeros;

use crate::memory::mapping::Mapping;

/// Huge pages of most machines. Memory starts at a multiple of it, so that all of it can have them.
const HUGE_PAGE: usize = 2 << 20;
/// Memory that is made present with one system call. Other threads that map memory wait for it, a
/// millisecond or two.
const STEP: usize = 8 << 20;

/// A slice that starts as zeros and may get longer, up to a length for which address space is
/// reserved from the start: so it never moves, and growing copies nothing. Memory is taken as it is
/// touched, in huge pages where the system has them for who asks (madvise(2), `MADV_HUGEPAGE`).
pub struct Growing<T> {
    start: NonNull<T>,
    len: usize,
    len_max: usize,
    mapping: Arc<Mapping>,
    /// Another holds it while it makes present what is beyond `len`.
    next: Arc<()>,
    _values: PhantomData<T>,
}

// SAFETY: it owns its values, as a `Vec<T>` does.
unsafe impl<T: Send> Send for Growing<T> {}
// SAFETY: as above; a shared reference only reads.
unsafe impl<T: Sync> Sync for Growing<T> {}

impl<T: FromZeros + Copy> Growing<T> {
    /// `len` zeros, which may become `len_max`.
    ///
    /// # Errors
    ///
    /// If the system refuses that much address space or memory.
    ///
    /// # Panics
    ///
    /// If there is nothing to reserve, or `len` is more than `len_max`.
    pub fn new(len: usize, len_max: usize) -> io::Result<Self> {
        assert!(0 < len && len <= len_max && size_of::<T>() > 0);
        const { assert!(align_of::<T>() <= HUGE_PAGE) };
        let too_much = || io::Error::from(io::ErrorKind::OutOfMemory);
        let bytes = len_max
            .checked_mul(size_of::<T>())
            .and_then(|bytes| bytes.checked_add(HUGE_PAGE))
            .ok_or_else(too_much)?;
        let mapping = Mapping::reserved(bytes)?;
        let skipped = mapping.start().align_offset(HUGE_PAGE);
        assert!(skipped <= HUGE_PAGE);
        // SAFETY: within the mapping, which is longer than the values by a huge page.
        let start = unsafe { mapping.start().add(skipped) };
        let mut growing = Self {
            start: start.cast(),
            len: 0,
            len_max,
            mapping: Arc::new(mapping),
            next: Arc::default(),
            _values: PhantomData,
        };
        growing.grow(len)?;
        Ok(growing)
    }

    /// The most values that it may have.
    #[must_use]
    pub fn len_max(&self) -> usize {
        self.len_max
    }

    /// Where in the mapping some of the values are.
    fn bytes(&self, values: Range<usize>) -> Range<usize> {
        let start = self.start.addr().get() - self.mapping.start().addr().get();
        start + values.start * size_of::<T>()..start + values.end * size_of::<T>()
    }

    /// Makes it at least this long: what is new is zero.
    ///
    /// # Errors
    ///
    /// If the system has no memory, or what is beyond is still being made present: then nothing
    /// has changed.
    ///
    /// # Panics
    ///
    /// If that is more than it may have.
    pub fn grow(&mut self, len: usize) -> io::Result<()> {
        assert!(len <= self.len_max);
        if len <= self.len {
            return Ok(());
        }
        let bytes = self.bytes(self.len..len);
        Arc::get_mut(&mut self.next).ok_or(io::ErrorKind::ResourceBusy)?;
        self.mapping.allow(bytes)?;
        self.len = len;
        Ok(())
    }

    /// What it lacks to this length, for a thread that makes it present meanwhile; `None` if there
    /// is such a thread already, or nothing is lacking.
    ///
    /// # Panics
    ///
    /// If that is more than it may have.
    #[must_use]
    pub fn beyond(&mut self, len: usize) -> Option<Beyond> {
        assert!(len <= self.len_max);
        let bytes = self.bytes(self.len..len.max(self.len));
        Arc::get_mut(&mut self.next)?;
        (!bytes.is_empty()).then(|| Beyond {
            bytes,
            mapping: Arc::clone(&self.mapping),
            _next: Arc::clone(&self.next),
        })
    }

    /// Makes all that it has present, so that no first touch of a page takes time later.
    ///
    /// # Errors
    ///
    /// If the system has no memory.
    pub fn make_present(&mut self) -> io::Result<()> {
        let bytes = self.bytes(0..self.len);
        // SAFETY: its values, which are borrowed mutably.
        unsafe { make_present(&self.mapping, bytes) }
    }
}

impl<T> Deref for Growing<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` values within the mapping, which may be read; zeros are values
        // (`FromZeros`, which `new` requires). Nothing else touches them.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Growing<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T> fmt::Debug for Growing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Growing({} of {})", self.len, self.len_max)
    }
}

/// The memory by which a [`Growing`] is about to grow. While it exists, that cannot.
#[derive(Debug)]
pub struct Beyond {
    bytes: Range<usize>,
    mapping: Arc<Mapping>,
    _next: Arc<()>,
}

impl Beyond {
    /// Makes it present. May take a tenth of a second per GB, during which its owner goes on.
    ///
    /// # Errors
    ///
    /// If the system has no memory.
    pub fn make_present(self) -> io::Result<()> {
        self.mapping.allow(self.bytes.clone())?;
        // SAFETY: no value of its owner, which cannot grow into it, and there is no other one like
        // this: `beyond` gives none while one exists.
        unsafe { make_present(&self.mapping, self.bytes) }
    }
}

/// Touches memory without changing it.
///
/// # Safety
///
/// Within the mapping, allowed, and not touched by other code meanwhile.
unsafe fn make_present(mapping: &Mapping, bytes: Range<usize>) -> io::Result<()> {
    let mut from = bytes.start;
    while from < bytes.end {
        let until = (from + STEP).min(bytes.end);
        match mapping.populate(from..until) {
            // Linux before 5.14.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                for at in (from..until).step_by(4096) {
                    // SAFETY: within the mapping, and only here, as the caller guarantees;
                    // volatile, since it is never read.
                    unsafe {
                        let byte = mapping.start().as_ptr().add(at);
                        byte.write_volatile(byte.read_volatile());
                    }
                }
            }
            done => done?,
        }
        from = until;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn it_grows_where_it_is_and_keeps_what_it_has() {
        let mut growing: Growing<u64> = Growing::new(1000, 1 << 20).unwrap();
        assert!(growing.as_ptr().addr().is_multiple_of(HUGE_PAGE));
        growing.fill(7);
        let before = growing.as_ptr();
        growing.grow(1 << 20).unwrap();
        assert_eq!((growing.as_ptr(), growing.len()), (before, 1 << 20));
        assert!(growing[..1000].iter().all(|&value| value == 7));
        assert!(growing[1000..].iter().all(|&value| value == 0));
        growing.make_present().unwrap();
        assert!(growing[..1000].iter().all(|&value| value == 7));
        growing.grow(5).unwrap();
        assert_eq!(growing.len(), 1 << 20, "it never shrinks");
    }

    #[test]
    fn another_thread_makes_present_what_is_beyond() {
        let mut growing: Growing<u64> = Growing::new(1 << 10, 1 << 21).unwrap();
        let beyond = growing.beyond(1 << 21).unwrap();
        assert!(growing.beyond(1 << 21).is_none(), "only once at a time");
        let refused = growing.grow(1 << 21).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
        assert_eq!(growing.len(), 1 << 10);
        let maker = thread::spawn(move || beyond.make_present());
        growing.fill(3);
        maker.join().unwrap().unwrap();
        growing.grow(1 << 21).unwrap();
        assert!(growing[1 << 10..].iter().all(|&value| value == 0));
        assert!(growing.beyond(1 << 21).is_none(), "nothing is lacking");
    }

    #[test]
    fn too_much_is_an_error() {
        assert!(Growing::<u64>::new(1, usize::MAX).is_err());
        assert!(Growing::<u64>::new(1, usize::MAX / 64).is_err());
    }
}
