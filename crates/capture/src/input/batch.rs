//! The packets of one step, borrowed from their sources' windows.

use crate::file::Source;
use crate::packet::{Descriptor, PacketRef, Packets};

/// The packets of one step of an [`Input`](crate::Input), in order.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    pub(super) descriptors: &'a [Descriptor],
    pub(super) sources: &'a [Source],
}

impl<'a> Batch<'a> {
    /// Packets in the batch, [`BATCH_MAX`](crate::BATCH_MAX) at most.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.descriptors.len()
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.descriptors.is_empty()
    }

    /// The packet at `index`.
    ///
    /// # Panics
    /// If `index` is not below [`len`](Self::len).
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> PacketRef<'a> {
        let found = &self.descriptors[index];
        let source = &self.sources[usize::from(found.source)];
        let options = if found.options_len == 0 {
            &[][..]
        } else {
            let bytes = if found.options_at & Descriptor::IN_SCRATCH == 0 {
                source.window_bytes()
            } else {
                source.scratch_bytes()
            };
            let at = (found.options_at & Descriptor::OPTIONS_OFFSET) as usize;
            &bytes[at..at + found.options_len as usize]
        };
        let at = found.offset as usize;
        PacketRef {
            ts_ns: found.ts_ns,
            interface: found.interface,
            wire_len: found.wire_len,
            data: &source.window_bytes()[at..at + found.len as usize],
            options,
            has_timestamp: found.options_at & Descriptor::NO_TIME == 0,
        }
    }

    /// The packets in order.
    #[inline]
    #[must_use]
    pub fn iter(&self) -> BatchIter<'a> {
        BatchIter {
            batch: *self,
            range: 0..self.len(),
        }
    }
}

impl Packets for Batch<'_> {
    #[inline]
    fn len(&self) -> usize {
        Batch::len(self)
    }

    #[inline]
    fn get(&self, index: usize) -> PacketRef<'_> {
        Batch::get(self, index)
    }
}

impl<'a> IntoIterator for Batch<'a> {
    type Item = PacketRef<'a>;
    type IntoIter = BatchIter<'a>;

    #[inline]
    fn into_iter(self) -> BatchIter<'a> {
        self.iter()
    }
}

/// Iterator over the packets of a [`Batch`].
#[derive(Clone)]
pub struct BatchIter<'a> {
    batch: Batch<'a>,
    range: std::ops::Range<usize>,
}

impl<'a> Iterator for BatchIter<'a> {
    type Item = PacketRef<'a>;

    #[inline]
    fn next(&mut self) -> Option<PacketRef<'a>> {
        self.range.next().map(|index| self.batch.get(index))
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.range.size_hint()
    }
}

impl ExactSizeIterator for BatchIter<'_> {}
