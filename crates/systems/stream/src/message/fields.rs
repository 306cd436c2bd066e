//! The fields of a frame.

use strata_wire::exact;

use super::Sizes;
use crate::Cursor;

/// Takes a field.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn sizes(&mut self) -> Option<Sizes> {
        Some([self.u32()?, self.u32()?, self.u32()?])
    }

    /// All that is left.
    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub(super) fn cursor(&mut self) -> Option<Cursor> {
        let (index, offset) = (self.u64()?, self.u32()?);
        Some(Cursor { index, offset })
    }

    /// An id, and a name after its length.
    pub(super) fn named(&mut self) -> Option<(u64, &'a str)> {
        Some((self.u64()?, self.name()?))
    }

    /// A name after its length.
    pub(super) fn name(&mut self) -> Option<&'a str> {
        let [len] = self.take()?;
        let (name, rest) = self.0.split_at_checked(usize::from(len))?;
        self.0 = rest;
        std::str::from_utf8(name).ok()
    }

    pub(super) fn text(self) -> Option<&'a str> {
        std::str::from_utf8(self.0).ok()
    }

    /// What was read, if nothing is left.
    pub(super) fn end<T>(self, read: Option<T>) -> Option<T> {
        read.filter(|_| self.0.is_empty())
    }
}

pub(super) fn put_cursor(out: &mut Vec<u8>, cursor: Cursor) {
    out.extend_from_slice(&cursor.index.to_le_bytes());
    out.extend_from_slice(&cursor.offset.to_le_bytes());
}

/// An id, and a name of at most 255 bytes, after its length.
pub(super) fn put_named(out: &mut Vec<u8>, id: u64, name: &str) {
    out.extend_from_slice(&id.to_le_bytes());
    put_name(out, name);
}

/// A name of at most 255 bytes, after its length.
pub(super) fn put_name(out: &mut Vec<u8>, name: &str) {
    out.push(exact(name.len()));
    out.extend_from_slice(name.as_bytes());
}
