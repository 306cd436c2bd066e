//! From the segments of a block to packets.

use super::{Segment, SegmentHeader, Segments};

/// The contents of a block, put in order. Segments may be in any order and repeated. Memory: 56
/// bytes per segment.
#[derive(Clone, Debug, Default)]
pub struct Assembly<'a> {
    /// By sequence number and index, each once.
    segments: Vec<Segment<'a>>,
}

/// The segments found of one packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a, 'b> {
    segments: &'b [Segment<'a>],
}

impl<'a> Assembly<'a> {
    /// Reads block number `block` (its low half), written with `key`.
    #[must_use]
    pub fn of(bytes: &'a [u8], key: u32, block: u32) -> Self {
        let segments = Segments::new(bytes, key, block);
        let mut segments: Vec<_> = segments.map(|(_, segment)| segment).collect();
        let place = |segment: &Segment<'_>| (segment.header.seq, segment.header.index);
        // Stable, and fast on nearly sorted input.
        segments.sort_by_key(place);
        segments.dedup_by_key(|segment| place(segment));
        Self { segments }
    }

    /// Segments found.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// The packets, by sequence number, of which at least one segment was found.
    pub fn packets(&self) -> impl Iterator<Item = Packet<'a, '_>> {
        let same = |a: &Segment<'_>, b: &Segment<'_>| a.header.seq == b.header.seq;
        self.segments
            .chunk_by(same)
            .map(|segments| Packet { segments })
    }
}

impl<'a, 'b> Packet<'a, 'b> {
    /// The header of the first segment found.
    #[must_use]
    pub fn header(&self) -> &'b SegmentHeader {
        &self.segments[0].header
    }

    /// Missing segments.
    #[must_use]
    pub fn missing(&self) -> usize {
        usize::from(self.header().total).saturating_sub(self.segments.len())
    }

    /// Whether every segment is there.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let total = self.header().total;
        let in_order = self.segments.iter().enumerate();
        self.missing() == 0
            && in_order.fold(true, |all, (index, segment)| {
                all && usize::from(segment.header.index) == index && segment.header.total == total
            })
    }

    /// Its bytes from the start, up to the first missing segment.
    pub fn parts(&self) -> impl Iterator<Item = &'a [u8]> + 'b {
        let present = self.segments.iter().enumerate();
        present
            .take_while(|(index, segment)| usize::from(segment.header.index) == *index)
            .map(|(_, segment)| segment.payload)
    }
}
