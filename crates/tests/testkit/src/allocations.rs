//! A counting allocator, for tests that a loop does not allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Allocations of this thread so far, if [`CountingAllocator`] is the program's allocator;
/// 0 otherwise.
#[must_use]
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// The system allocator, counting by thread: for `#[global_allocator]`.
#[derive(Debug)]
pub struct CountingAllocator;

// SAFETY: every call goes to the system allocator unchanged.
#[allow(unsafe_code, reason = "there is no other way to see allocations")]
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Gone already while a thread ends.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller upholds the contract of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}
