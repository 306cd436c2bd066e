//! A cache of data read from objects.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

/// Minimum read of an object: a request takes as long as about a megabyte.
pub(crate) const PIECE_BYTES: u64 = 1 << 20;
/// Pieces read at once by a reader that continues where the last piece ended.
const AHEAD: u64 = 8;
/// Pieces held for all objects together: 64 MiB.
const HELD: usize = 64;

/// Pieces of objects, most recently used first. Objects do not change while they are listed.
#[derive(Debug, Default)]
pub(crate) struct Pieces(VecDeque<(Arc<str>, u64, Bytes)>);

impl Pieces {
    /// A piece by its object and number.
    pub(crate) fn get(&mut self, object: &Arc<str>, piece: u64) -> Option<Bytes> {
        let place = self.place(object, piece)?;
        let held = self.0.remove(place)?;
        let bytes = held.2.clone();
        self.0.push_front(held);
        Some(bytes)
    }

    /// Which bytes to read when a piece of an object of `len` bytes is missing.
    pub(crate) fn wanted(&self, object: &Arc<str>, piece: u64, len: u64) -> Range<u64> {
        let sequential = piece > 0 && self.place(object, piece - 1).is_some();
        let ahead = if sequential { AHEAD } else { 1 };
        let beyond = (piece + 1..piece + ahead).find(|next| self.place(object, *next).is_some());
        let end = beyond.unwrap_or(piece + ahead);
        piece * PIECE_BYTES..(end * PIECE_BYTES).min(len)
    }

    /// Adds bytes that start with piece `first`.
    pub(crate) fn put(&mut self, object: &Arc<str>, first: u64, mut bytes: Bytes) {
        let mut piece = first;
        while !bytes.is_empty() {
            let len = bytes
                .len()
                .min(usize::try_from(PIECE_BYTES).expect("a piece fits into memory"));
            // A copy, so that dropping a piece frees its memory.
            let one = Bytes::copy_from_slice(&bytes.split_to(len));
            self.0.push_front((Arc::clone(object), piece, one));
            piece += 1;
        }
        self.0.truncate(HELD);
    }

    /// Forgets an object.
    pub(crate) fn forget(&mut self, object: &str) {
        self.0.retain(|(held, _, _)| &**held != object);
    }

    fn place(&self, object: &Arc<str>, piece: u64) -> Option<usize> {
        let mut held = self.0.iter();
        held.position(|(of, number, _)| *number == piece && of == object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: u64 = PIECE_BYTES;

    fn zeros(pieces: u64) -> Bytes {
        vec![0; usize::try_from(pieces * P).unwrap()].into()
    }

    #[test]
    fn sequential_readers_read_ahead_and_memory_is_bounded() {
        let object: Arc<str> = "s3://b/one".into();
        let mut pieces = Pieces::default();
        assert_eq!(pieces.wanted(&object, 3, 100 * P), 3 * P..4 * P);
        assert_eq!(pieces.wanted(&object, 3, 3 * P + 7), 3 * P..3 * P + 7);
        pieces.put(&object, 3, zeros(1));
        assert_eq!(pieces.get(&object, 3).unwrap().len() as u64, P);
        assert!(pieces.get(&object, 4).is_none());
        assert_eq!(pieces.wanted(&object, 4, 100 * P), 4 * P..12 * P);
        pieces.put(&object, 6, zeros(1));
        assert_eq!(pieces.wanted(&object, 4, 100 * P), 4 * P..6 * P);
        let other: Arc<str> = "s3://b/other".into();
        for first in 0..200 {
            pieces.put(&other, first, zeros(1));
        }
        assert_eq!(pieces.0.len(), HELD);
        assert!(pieces.get(&object, 3).is_none() && pieces.get(&other, 199).is_some());
        pieces.forget("s3://b/other");
        assert!(pieces.0.is_empty());
    }
}
