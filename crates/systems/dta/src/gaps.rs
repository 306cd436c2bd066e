//! Numbers that have not come, as a bounded list of ranges; and how many of them are believed to be
//! losses.
//!
//! Numbers have 32 bits and wrap; shorter ones are counted on by who keeps the list.

/// Ranges that are remembered. A number of an older one that comes late is no longer known to be late.
pub(crate) const RANGES_MAX: usize = 64;

/// Numbers `first..first + count`, with a mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Range<M> {
    first: u32,
    count: u32,
    mark: M,
}

impl<M> Range<M> {
    /// How many of its numbers are before `first`, and how many after `first + count`, if it holds
    /// all of these.
    fn around(&self, first: u32, count: u32) -> Option<(u32, u32)> {
        let before = first.wrapping_sub(self.first);
        let after = self.count.checked_sub(before)?.checked_sub(count)?;
        Some((before, after))
    }
}

/// Ranges of numbers that have not come, oldest first.
#[derive(Clone, Debug)]
pub(crate) struct Gaps<M>(Vec<Range<M>>);

impl<M> Default for Gaps<M> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<M: Copy> Gaps<M> {
    /// These numbers have not come. Beyond [`RANGES_MAX`] ranges, the oldest is forgotten.
    pub(crate) fn open(&mut self, first: u32, count: u32, mark: M) {
        if self.0.len() >= RANGES_MAX {
            self.0.remove(0);
        }
        self.0.push(Range { first, count, mark });
    }

    /// These numbers have come: takes them out of the range that holds all of them, and returns its
    /// mark; `None` if there is no such range.
    pub(crate) fn close(&mut self, first: u32, count: u32) -> Option<M> {
        let found = self.0.iter().enumerate();
        let mut found =
            found.filter_map(|(index, range)| Some((index, range.around(first, count)?)));
        let (index, (before, after)) = found.next()?;
        let range = self.0.remove(index);
        let pieces = [(first.wrapping_add(count), after), (range.first, before)];
        for (first, count) in pieces.into_iter().filter(|&(_, count)| count > 0) {
            let piece = Range {
                first,
                count,
                ..range
            };
            self.0.insert(index, piece);
        }
        self.0.truncate(RANGES_MAX);
        Some(range.mark)
    }

    /// The first of these numbers have come, at least one: if they have not come before, takes them out of their range,
    /// and returns its mark and how many they are; otherwise, how many came before or are no longer known.
    pub(crate) fn close_first(&mut self, first: u32, count: u32) -> (Option<M>, u32) {
        let holds = self.0.iter().find_map(|range| {
            let before = first.wrapping_sub(range.first);
            range.count.checked_sub(before).filter(|&left| left > 0)
        });
        if let Some(left) = holds {
            let closed = left.min(count);
            return (self.close(first, closed), closed);
        }
        let until_next = self.0.iter().map(|range| range.first.wrapping_sub(first));
        (None, until_next.fold(count, u32::min))
    }

    /// Forgets the ranges whose mark is not wanted any more; the others may have another one.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&mut M) -> bool) {
        self.0.retain_mut(|range| keep(&mut range.mark));
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
