//! Memory at an address suitable for direct writes.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Addresses, offsets and lengths of direct reads and writes are multiples of this.
pub const ALIGNMENT: usize = 4096;

/// Bytes that start at a multiple of [`ALIGNMENT`]. They stay in place when the value moves. The
/// default has none.
pub struct AlignedBytes {
    /// Points into [`AlignedBytes::room`], which is not touched otherwise.
    start: NonNull<u8>,
    len: usize,
    room: Vec<u8>,
}

// SAFETY: it owns its bytes, as a `Vec<u8>` does.
unsafe impl Send for AlignedBytes {}
// SAFETY: as above; a shared reference only reads.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// This many zeros. Memory is taken page by page as it is touched.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self::within(vec![0; len + ALIGNMENT], len)
    }

    fn within(mut room: Vec<u8>, len: usize) -> Self {
        let at = room.as_ptr().align_offset(ALIGNMENT);
        let start = NonNull::from(&mut room[at..at + len]).cast();
        Self { start, len, room }
    }

    /// This many zeros in memory that has been touched, if there is that much.
    ///
    /// # Errors
    ///
    /// If there is not enough memory.
    pub fn try_touched(len: usize) -> io::Result<Self> {
        let all = len
            .checked_add(ALIGNMENT)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let mut room = Vec::new();
        room.try_reserve_exact(all)?;
        room.resize(all, 0);
        Ok(Self::within(room, len))
    }

    /// This many zeros in memory that has been touched, since the first touch of a page may take
    /// microseconds.
    #[must_use]
    pub fn touched(len: usize) -> Self {
        let mut bytes = Self::zeroed(len);
        for page in bytes.chunks_mut(ALIGNMENT) {
            let byte: *mut u8 = page.as_mut_ptr();
            // SAFETY: the first byte of a page that is borrowed mutably; volatile, since
            // writing a zero over a zero would be skipped.
            unsafe { byte.write_volatile(0) };
        }
        bytes
    }
}

impl Default for AlignedBytes {
    fn default() -> Self {
        Self {
            start: NonNull::dangling(),
            len: 0,
            room: Vec::new(),
        }
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes of `room`, initialised, or none. `room` is never touched except to be
        // freed, so they are borrowed only through `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBytes {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let room = self.room.len();
        write!(f, "AlignedBytes({} of {room})", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_aligned_and_stay_where_they_are() {
        for len in [0, 1, 4096, 100_000] {
            for mut bytes in [AlignedBytes::zeroed(len), AlignedBytes::touched(len)] {
                assert!(bytes.as_ptr().addr().is_multiple_of(ALIGNMENT));
                assert!(bytes.len() == len && bytes.iter().all(|&byte| byte == 0));
                let before = bytes.as_ptr();
                bytes.fill(7);
                let moved = Box::new(bytes);
                assert!(moved.as_ptr() == before && moved.iter().all(|&byte| byte == 7));
            }
        }
        assert!(AlignedBytes::default().is_empty());
    }
}
