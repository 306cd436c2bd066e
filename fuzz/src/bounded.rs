//! An allocator with a bound.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that a target may hold at a time. The largest thing that Strata
/// allocates on purpose is a capture's window, which grows with what is read.
const BYTES_MAX: usize = 256 << 20;

/// The system's allocator, which refuses more than 256 MiB at a time: the
/// allocation then fails, the process aborts, and libFuzzer keeps the input.
/// libFuzzer's own limit sees memory once it is touched only.
#[derive(Debug, Default)]
pub struct Bounded {
    held: AtomicUsize,
}

impl Bounded {
    /// Nothing is held yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            held: AtomicUsize::new(0),
        }
    }

    fn take(&self, bytes: usize) -> bool {
        let before = self.held.fetch_add(bytes, Ordering::Relaxed);
        let fits = before.saturating_add(bytes) <= BYTES_MAX;
        if !fits {
            self.give(bytes);
        }
        fits
    }

    fn give(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

// SAFETY: every block comes from and goes back to `System` with the layout that
// the caller gave; counting never unwinds, and a refusal is a null pointer.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !self.take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise about `layout`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !self.take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise about `layout`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        self.give(layout.size());
        // SAFETY: the caller's promise about `block` and `layout`.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.take(size) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise about `block`, `layout` and `size`.
        let moved = unsafe { System.realloc(block, layout, size) };
        self.give(if moved.is_null() { size } else { layout.size() });
        moved
    }
}
