//! The packets of one step, borrowed from their sources' windows.

use crate::file::Source;
use crate::packet::{Descriptor, PacketRef, Packets};

/// The packets of one step of an [`Input`](crate::Input), in order.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    pub(super) descriptors: &'a [Descriptor],
    pub(super) sources: &'a [Source],
    /// The window of the only source, so that it is not looked up for each packet.
    pub(super) only: Option<&'a [u8]>,
}

impl<'a> Batch<'a> {
    /// Packets in the batch, [`BATCH_MAX`](crate::BATCH_MAX) at most.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.descriptors.len()
    }

    /// Whether it is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.descriptors.is_empty()
    }

    /// The packet at `index`.
    ///
    /// # Panics
    /// If `index` is not below [`len`](Self::len).
    #[inline(always)]
    #[must_use]
    pub fn get(&self, index: usize) -> PacketRef<'a> {
        let found = &self.descriptors[index];
        let window = match self.only {
            Some(window) => window,
            None => self.source(found).window_bytes(),
        };
        let at = found.offset as usize;
        PacketRef {
            ts_ns: found.ts_ns,
            interface: found.interface,
            wire_len: found.wire_len,
            data: &window[at..][..found.len as usize],
            options: match found.options_len {
                0 => &[],
                _ => self.options(found),
            },
            has_timestamp: found.options_at & Descriptor::NO_TIME == 0,
        }
    }

    fn source(&self, found: &Descriptor) -> &'a Source {
        &self.sources[usize::from(found.source)]
    }

    /// Out of line, since most packets have none.
    #[inline(never)]
    fn options(&self, found: &Descriptor) -> &'a [u8] {
        let source = self.source(found);
        let bytes = if found.options_at & Descriptor::IN_SCRATCH == 0 {
            source.window_bytes()
        } else {
            source.scratch_bytes()
        };
        let at = (found.options_at & Descriptor::OPTIONS_OFFSET) as usize;
        &bytes[at..][..found.options_len as usize]
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

    #[inline(always)]
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
