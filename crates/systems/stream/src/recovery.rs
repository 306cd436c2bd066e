//! What pages say about a stream, when its page table may not be believed: after a crash.

use std::collections::BTreeMap;

use crate::page::header::PageHeader;
use crate::retention::Retention;
use crate::state::State;
use crate::table::Geometry;

/// How many page numbers are skipped after a crash: more pages than can have been begun, and shown
/// to readers, since the disk last confirmed that it had one. So no cursor that a reader was given
/// before the crash lies after what is appended from now on.
pub const INDEX_JUMP: u64 = 128;

/// The pages of a stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recovered {
    /// By number in the stream: the data page, and what its header says.
    pub pages: BTreeMap<u64, (u32, PageHeader)>,
    /// Data pages that the stream does not need: older uses, and what was never begun.
    pub unused: Vec<u32>,
}

impl Recovered {
    /// Gives up what the stream had given up before: pages before `oldest`, if that is known, beyond
    /// its size, and beyond what a page table holds.
    pub fn trim(&mut self, retention: &Retention, geometry: Geometry, oldest: Option<u64>) {
        let Some((&last, _)) = self.pages.last_key_value() else {
            return;
        };
        let round = last.saturating_add(1).saturating_sub(geometry.pages_max());
        let first = round.max(oldest.map_or(round, |oldest| oldest.min(last)));
        let kept = self.pages.split_off(&first);
        let old = std::mem::replace(&mut self.pages, kept);
        self.unused.extend(old.into_values().map(|(page, _)| page));
        let allowed = retention
            .bytes
            // A page has bytes.
            .map(|bytes| {
                bytes
                    .div_euclid(u64::from(geometry.page_bytes.max(1)))
                    .max(2)
            });
        while allowed.is_some_and(|allowed| self.pages.len() as u64 > allowed) {
            if let Some((_, (page, _))) = self.pages.pop_first() {
                self.unused.push(page);
            }
        }
    }

    /// The first page that the stream has not given up, be it there or lost: what the state says, unless that may be
    /// older than pages that were given up. `None`: it is not known.
    #[must_use]
    pub fn oldest(
        &self,
        retention: &Retention,
        geometry: Geometry,
        state: Option<&State>,
    ) -> Option<u64> {
        let state = state?;
        let (&last, _) = self.pages.last_key_value()?;
        let pages = last.saturating_add(1).saturating_sub(state.oldest);
        let page_bytes = u64::from(geometry.page_bytes);
        let fits = |bytes: u64| pages < bytes.div_euclid(page_bytes.max(1));
        let is_short = pages < geometry.pages_max() && retention.bytes.is_none_or(fits);
        let is_true = state.is_clean || (retention.age.is_none() && is_short);
        is_true.then_some(state.oldest.min(last))
    }
}

/// Puts data pages in order. `read` are those that belong to the stream: the number of each, and its
/// header if it has one of this stream.
#[must_use]
pub fn recovered(read: impl IntoIterator<Item = (u32, Option<PageHeader>)>) -> Recovered {
    let mut recovered = Recovered::default();
    for (page, header) in read {
        let Some(header) = header else {
            recovered.unused.push(page);
            continue;
        };
        // Two pages of a number: the earlier one was given up, and the disk forgot that.
        let other = recovered.pages.get(&header.index);
        if other.is_some_and(|(_, other)| other.created_ns >= header.created_ns) {
            recovered.unused.push(page);
        } else if let Some((older, _)) = recovered.pages.insert(header.index, (page, header)) {
            recovered.unused.push(older);
        }
    }
    recovered
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::header::Form;

    #[test]
    fn pages_come_in_order_and_the_later_of_two_counts() {
        let header = |index, created_ns| PageHeader {
            stream: 1,
            index,
            lap: created_ns,
            first_seq: 0,
            created_ns,
            record_magic: 0,
            form: Form::Sealed,
        };
        let read = [
            (4, Some(header(7, 10))),
            (5, None),
            (6, Some(header(6, 9))),
            (7, Some(header(7, 12))),
            (8, Some(header(7, 11))),
        ];
        let mut recovered = recovered(read);
        let pages: Vec<_> = recovered
            .pages
            .iter()
            .map(|(&index, &(page, _))| (index, page))
            .collect();
        assert_eq!(pages, [(6, 6), (7, 7)]);
        assert_eq!(recovered.unused, [5, 4, 8]);
        let retention = Retention::default();
        recovered.trim(&retention, Geometry::default(), Some(7));
        assert_eq!(
            (recovered.pages.len(), recovered.unused.last()),
            (1, Some(&6))
        );
        // The last page stays.
        recovered.trim(&retention, Geometry::default(), Some(70));
        assert_eq!(recovered.pages.len(), 1);
    }
}
