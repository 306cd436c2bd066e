//! A file's bytes where the page cache has them: read without a copy.
//!
//! A page that the file no longer has when it is touched, since the file was truncated or the disk
//! failed, would end the process with SIGBUS. Here it reads as zeros from then on, and the view is
//! torn, which its reader asks before it believes what it has read.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::blocked::handle;
use crate::memory::mapping::Mapping;

/// Views at a time; more files than that are read by copying.
const VIEWS_MAX: usize = 64;

/// What the signal handler knows of each view.
static VIEWS: [Place; VIEWS_MAX] = [const { Place::empty() }; VIEWS_MAX];

/// Where a view is in memory: both are 0 without a view.
struct Place {
    is_taken: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
    is_torn: AtomicBool,
}

impl Place {
    const fn empty() -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            is_torn: AtomicBool::new(false),
        }
    }

    fn take() -> Option<&'static Self> {
        VIEWS
            .iter()
            .find(|place| !place.is_taken.swap(true, Ordering::AcqRel))
    }

    fn give_back(&self) {
        self.end.store(0, Ordering::Release);
        self.start.store(0, Ordering::Release);
        self.is_taken.store(false, Ordering::Release);
    }
}

/// The first bytes of a file.
///
/// What another process writes to the file in place is seen here at some time. Pages that the file
/// loses read as zeros: see [`FileView::is_torn`].
pub struct FileView {
    memory: Mapping,
    place: &'static Place,
}

impl std::fmt::Debug for FileView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileView")
            .field("len", &self.memory.len())
            .finish_non_exhaustive()
    }
}

impl FileView {
    /// A view of the first `len` bytes of a regular file; `None` if there are too many views already.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn of(file: &File, len: usize) -> io::Result<Option<Self>> {
        static HANDLED: AtomicBool = AtomicBool::new(false);
        if !HANDLED.load(Ordering::Acquire) {
            // Twice at once does no harm.
            handle(libc::SIGBUS, on_fault)?;
            HANDLED.store(true, Ordering::Release);
        }
        let Some(place) = Place::take() else {
            return Ok(None);
        };
        let memory = Mapping::read_only(file.as_fd(), len).inspect_err(|_| place.give_back())?;
        let start = memory.start().as_ptr().addr();
        place.is_torn.store(false, Ordering::Release);
        place.start.store(start, Ordering::Release);
        // It does not wrap: it is a place in memory.
        place.end.store(start + len, Ordering::Release);
        Ok(Some(Self { memory, place }))
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

    /// Brings these bytes into memory, from the disk if need be.
    ///
    /// # Errors
    ///
    /// If the file does not have them any longer, or cannot be read; `EINVAL` before Linux 5.14.
    pub fn bring(&self, bytes: Range<usize>) -> io::Result<()> {
        self.memory.populate_read(bytes)
    }

    /// Asks for these bytes without waiting for them.
    pub fn ask_for(&self, bytes: Range<usize>) {
        self.memory.will_need(bytes);
    }

    /// The bytes from `start` to `end`.
    ///
    /// # Panics
    ///
    /// If they are not within the view.
    #[inline]
    #[must_use]
    pub fn bytes(&self, start: usize, end: usize) -> &[u8] {
        // SAFETY: we do not write them, and every page of them can be read, in the worst case as zeros.
        // Another process that writes to the file changes plain bytes, of which all are valid.
        unsafe { self.memory.bytes(start, end - start) }
    }

    /// Whether some of its bytes were read as zeros because the file did not have them any longer.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        self.place.is_torn.load(Ordering::Acquire)
    }
}

impl Drop for FileView {
    fn drop(&mut self) {
        self.place.give_back();
    }
}

extern "C" fn on_fault(
    _signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a siginfo_t, and a SIGBUS has an address in it.
    let at = unsafe { (*info).si_addr() }.addr();
    let found = VIEWS.iter().find(|place| {
        let start = place.start.load(Ordering::Acquire);
        start <= at && at < place.end.load(Ordering::Acquire)
    });
    if let Some(place) = found {
        place.is_torn.store(true, Ordering::Release);
        let page = at - at % rustix::param::page_size();
        let len = place.end.load(Ordering::Acquire).saturating_sub(page);
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: from a page of the view to its end; who reads there sees zeros instead of a fault.
        let zeros = unsafe {
            let start = std::ptr::without_provenance_mut(page);
            libc::mmap(start, len, libc::PROT_READ, flags, -1, 0)
        };
        if zeros != libc::MAP_FAILED {
            return;
        }
    }
    // Not ours: what happened is repeated without a handler.
    // SAFETY: safe in a signal handler.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;

    const LEN: usize = 100_000;

    fn file_of(len: usize) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; len]).unwrap();
        file
    }

    /// What the file had when it was brought, or at least when it was touched; zeros where it has lost it.
    #[test]
    fn lost_bytes_are_zeros() {
        let file = file_of(LEN);
        let view = FileView::of(&file, LEN).unwrap().unwrap();
        view.bring(0..LEN).unwrap();
        assert!(view.bytes(0, LEN).iter().all(|&byte| byte == 7));
        file.set_len(10_000).unwrap();
        assert!(!view.is_torn());
        let page = rustix::param::page_size();
        let lost = 10_000_usize.next_multiple_of(page);
        assert!(view.bytes(0, 10_000).iter().all(|&byte| byte == 7));
        assert!(view.bytes(10_000, lost).iter().all(|&byte| byte == 0));
        assert!(!view.is_torn(), "the last page is there");
        assert!(view.bring(lost..LEN).is_err());
        assert!(view.bytes(lost, LEN).iter().all(|&byte| byte == 0));
        assert!(view.is_torn());
        // Its place is free again, and says nothing about the next one.
        drop(view);
        let other = file_of(LEN);
        let view = FileView::of(&other, LEN).unwrap().unwrap();
        assert!(view.bytes(0, LEN).iter().all(|&byte| byte == 7));
        assert!(!view.is_torn());
    }

    #[test]
    fn what_is_not_there_cannot_be_brought() {
        let file = file_of(LEN);
        let view = FileView::of(&file, 2 * LEN).unwrap().unwrap();
        assert_eq!((view.len(), view.is_empty()), (2 * LEN, false));
        view.bring(0..LEN).unwrap();
        assert!(view.bring(LEN..2 * LEN).is_err());
        assert!(!view.is_torn());
    }
}
