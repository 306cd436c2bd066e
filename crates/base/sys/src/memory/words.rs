//! Memory in a file that one process writes while others read it: 64-bit words, each of which is
//! read and written whole, in a stated order.
//!
//! A run of words is written from the first to the last, and read from the last to the first. So
//! who finds the same number in the last word and then in the first one knows that the writer was
//! done with the run, and had not begun it again, while the words in between were read.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::memory::mapping::Mapping;

const WORD: usize = size_of::<u64>();

/// Words that another process may be writing.
#[derive(Debug)]
pub struct Words {
    memory: Mapping,
}

/// Words that this process writes, alone.
#[derive(Debug)]
pub struct WordsMut {
    words: Words,
}

impl Words {
    /// Maps the first `len` bytes of a file for reading. The file must have them and keep them: if it
    /// shrinks, a process that touches the lost part is killed.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn map(file: &File, len: usize) -> io::Result<Self> {
        let memory = Mapping::read_only(file.as_fd(), len)?;
        Ok(Self { memory })
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

    #[inline(always)]
    fn at(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(WORD), "words are aligned");
        let end = at.checked_add(WORD);
        assert!(
            end.is_some_and(|end| end <= self.memory.len()),
            "within the mapping"
        );
        // SAFETY: inside the mapping and aligned, since mappings start at a page. Everybody who has
        // it mapped uses whole words, by this module or by loads of 8 aligned bytes.
        unsafe { AtomicU64::from_ptr(self.memory.start().as_ptr().add(at).cast()) }
    }

    /// `len` bytes at `at`, as words.
    #[inline(always)]
    fn run(&self, at: usize, len: usize) -> &[AtomicU64] {
        assert!(len.is_multiple_of(WORD), "whole words");
        assert!(at.is_multiple_of(WORD), "words are aligned");
        let end = at.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.memory.len()),
            "within the mapping"
        );
        // SAFETY: as in `at`, for each of the words; they live as long as the mapping does.
        unsafe {
            let first = self.memory.start().as_ptr().add(at).cast::<AtomicU64>();
            std::slice::from_raw_parts(first, len / WORD)
        }
    }

    /// The word at `at`, a multiple of 8, as its bytes are in memory.
    ///
    /// # Panics
    ///
    /// If it is beyond the mapping.
    #[inline]
    #[must_use]
    pub fn word(&self, at: usize) -> [u8; 8] {
        // Relaxed, then a fence: memory that is mapped for reading only allows no other loads.
        let word = self.at(at).load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        word.to_ne_bytes()
    }

    /// Copies words, from the last to the first. `at` and the length are multiples of 8.
    ///
    /// # Panics
    ///
    /// If they are not, or the words are beyond the mapping.
    pub fn read(&self, at: usize, out: &mut [u8]) {
        assert!(out.len().is_multiple_of(WORD), "whole words");
        for (index, bytes) in out.chunks_exact_mut(WORD).enumerate().rev() {
            bytes.copy_from_slice(&self.word(at + index * WORD));
        }
    }

    /// Asks the CPU for the line of memory at `at`; any place is allowed.
    #[inline(always)]
    pub fn prefetch(&self, at: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let address = self.memory.start().as_ptr().wrapping_add(at);
            // SAFETY: a hint, which does not fault whatever the address; SSE is part of x86_64.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }
}

impl WordsMut {
    /// Maps the first `len` bytes of a file, which must have them and keep them, for writing. No
    /// other process may write to it meanwhile: their words and ours would take each other's place.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn map(file: &File, len: usize) -> io::Result<Self> {
        let memory = Mapping::of(file.as_fd(), len, 0, false)?;
        memory.prefer_huge_pages();
        Ok(Self {
            words: Words { memory },
        })
    }

    /// To read it.
    #[must_use]
    pub fn words(&self) -> &Words {
        &self.words
    }

    /// Writes words, from the first to the last. `at` and the length are multiples of 8.
    ///
    /// # Panics
    ///
    /// If they are not, or the words are beyond the mapping.
    #[inline]
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let places = self.words.run(at, bytes.len());
        for (place, word) in places.iter().zip(bytes.as_chunks().0) {
            place.store(u64::from_ne_bytes(*word), Ordering::Release);
        }
    }

    /// Stores a word, in the byte order of this CPU, at `at`, a multiple of 8.
    ///
    /// # Panics
    ///
    /// If it is beyond the mapping.
    #[inline(always)]
    pub fn store(&mut self, at: usize, word: u64) {
        self.words.at(at).store(word, Ordering::Release);
    }

    /// Adds to the word at `at`, a multiple of 8, in the byte order of this CPU. A sum above the largest number is the
    /// largest number. Returns the sum.
    ///
    /// # Panics
    ///
    /// If it is beyond the mapping.
    #[inline(always)]
    pub fn add(&mut self, at: usize, add: u64) -> u64 {
        // A load and a store suffice: this is the only writer.
        let place = self.words.at(at);
        let sum = place.load(Ordering::Relaxed).saturating_add(add);
        place.store(sum, Ordering::Release);
        sum
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn file(len: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len).unwrap();
        file
    }

    #[test]
    fn what_is_written_is_read_through_another_mapping() {
        let file = file(8192);
        let mut writer = WordsMut::map(&file, 8192).unwrap();
        let reader = Words::map(&file, 8192).unwrap();
        writer.store(8184, u64::MAX - 1);
        assert_eq!(reader.word(8184), (u64::MAX - 1).to_ne_bytes());
        writer.write(4088, b"01234567abcdefgh");
        let mut read = [0; 24];
        reader.read(4080, &mut read);
        assert_eq!(&read, b"\0\0\0\0\0\0\0\x0001234567abcdefgh");
        assert_eq!(writer.add(16, 5), 5);
        assert_eq!(writer.add(16, 7), 12);
        assert_eq!(reader.word(16), 12_u64.to_ne_bytes());
        for _ in 0..2 {
            assert_eq!(writer.add(16, u64::MAX - 5), u64::MAX);
        }
        assert_eq!(reader.word(16), [0xff; 8]);
    }

    #[test]
    fn a_run_with_the_same_number_at_both_ends_is_whole() {
        const LEN: usize = 320;
        let file = file(4096);
        let mut writer = WordsMut::map(&file, 4096).unwrap();
        let reader = Words::map(&file, 4096).unwrap();
        let writing = thread::spawn(move || {
            for n in 1..200_000_u64 {
                let run: Vec<u8> = n.to_ne_bytes().repeat(LEN / 8);
                writer.write(64, &run);
            }
        });
        let mut whole = 0;
        while !writing.is_finished() || whole == 0 {
            let mut run = [0; LEN];
            reader.read(64, &mut run);
            if run[..8] == run[LEN - 8..] {
                whole += 1;
                assert!(run.chunks(8).all(|word| word == &run[..8]));
            }
        }
        writing.join().unwrap();
    }

    #[test]
    #[should_panic(expected = "within the mapping")]
    fn nothing_is_written_beyond_the_end() {
        let file = file(4096);
        WordsMut::map(&file, 4096).unwrap().write(4088, &[0; 16]);
    }
}
