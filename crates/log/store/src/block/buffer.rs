//! Reusable memory for the records of blocks: touching a fresh page takes longer than reading into
//! it.

use std::ops::{Deref, Range};
use std::sync::{Mutex, PoisonError};

use strata_blocks::ALIGNMENT;

/// Buffers kept for reuse, at most, and bytes of one at most.
const SPARE_MAX: usize = 16;
const SPARE_BYTES_MAX: usize = 4 << 20;

static SPARE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// Some bytes.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    /// May be longer: bytes written once need not be cleared again.
    bytes: Vec<u8>,
    used: Range<usize>,
}

impl Buffer {
    /// `len` bytes with arbitrary content, to be overwritten, aligned for direct reads.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`len` is of a block within its file, of 2^34 bytes at most; `start` is below 4,096"
    )]
    pub(crate) fn of_any_content(len: usize) -> Self {
        let spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let start = |bytes: &Vec<u8>| bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        let spare = spare.filter(|bytes| bytes.len() >= start(bytes) + len);
        let bytes = spare.unwrap_or_else(|| vec![0; len + ALIGNMENT]);
        let start = start(&bytes);
        Self {
            used: start..start + len,
            bytes,
        }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.used.clone()]
    }

    /// Keeps only this part of its bytes.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "asserted to be a part of what there is"
    )]
    pub(crate) fn keep(&mut self, part: Range<usize>) {
        assert!(
            part.start <= part.end && part.end <= self.used.len(),
            "a part of it"
        );
        self.used = self.used.start + part.start..self.used.start + part.end;
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.used.clone()]
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        let used = 0..bytes.len();
        Self { bytes, used }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if (1..=SPARE_BYTES_MAX).contains(&self.bytes.capacity()) {
            let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
            if spare.len() < SPARE_MAX {
                spare.push(std::mem::take(&mut self.bytes));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_has_the_length_asked_for_whatever_was_before() {
        for len in [10, 3, 100_000, 0, 7] {
            let mut buffer = Buffer::of_any_content(len);
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr().align_offset(ALIGNMENT), 0);
            buffer.as_mut_slice().fill(9);
            buffer.keep(len / 2..len);
            assert_eq!(&*buffer, &vec![9; len - len / 2]);
        }
    }
}
