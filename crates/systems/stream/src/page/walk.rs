//! One walk through the records of a page, of either form.

use std::vec;

use crate::page::Page;
use crate::page::header::{PAGE_HEADER_LEN, SEALED_HEAD_LEN};
use crate::page::linked::{self, Found};
use crate::page::mark::{self, Mark, Origin};
use crate::page::missing::Missing;
use crate::page::sealed::{self, Kind, Sealed};

/// A record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'p> {
    /// Where its head starts in the page, and where what follows it does.
    pub at: usize,
    /// The end of its padding.
    pub end: usize,
    /// Its number in the stream, from 0; a linked record does not say.
    pub seq: Option<u64>,
    /// When it was appended (ns since 1970), or earlier by as much as marks are apart.
    pub time_ns: u64,
    /// Its producer, if it came from one.
    pub origin: Option<Origin<'p>>,
    /// What was appended.
    pub payload: &'p [u8],
}

/// What a walk meets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Item<'p> {
    /// A record.
    Record(Record<'p>),
    /// Records that are not there, between the one before and the one after.
    Missing(Missing),
}

/// How far a walk has come: where another goes on, when there is more to read of the same page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reached {
    at: usize,
    /// The number of the next record, if its predecessor or a mark is known.
    number: u32,
    time_ns: u64,
    /// The last mark of a producer: where its payload is in the page, and its record's number in the page.
    producer: Option<(usize, usize, u32)>,
}

/// How much more than the page's bytes may be read in search of records: what looks like a record
/// and is not costs its length.
const SEARCH_FACTOR: usize = 16;

/// The records of a page in order, and what is missing between them.
pub struct Walk<'w, 'p> {
    page: &'w Page<'p>,
    reached: Reached,
    /// A sealed record that was found behind a gap.
    found: Option<usize>,
    /// Something between the records so far is not one.
    has_skipped: bool,
    /// Producers that have ended.
    ended: Vec<u64>,
    budget: usize,
    /// Of a page with linked records.
    linked: Option<vec::IntoIter<(Found, Option<Missing>)>>,
    /// A linked record whose gap was returned.
    pending: Option<Found>,
}

impl std::fmt::Debug for Walk<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Walk")
            .field("reached", &self.reached)
            .finish_non_exhaustive()
    }
}

impl<'p> Page<'p> {
    /// All its records. Memory: none for sealed records, 48 bytes each for linked ones.
    #[must_use]
    pub fn walk(&self) -> Walk<'_, 'p> {
        self.walk_on(Reached {
            at: PAGE_HEADER_LEN,
            number: 0,
            time_ns: self.header.created_ns,
            producer: None,
        })
    }

    /// Its records after those that another walk of this page, of which there was less then, came past.
    /// Linked records are not found without those before them: all of them come again.
    #[must_use]
    pub fn walk_on(&self, reached: Reached) -> Walk<'_, 'p> {
        let reader = linked::Reader::new(self.bytes, &self.header);
        let reached = match reader {
            Some(_) => Reached {
                at: PAGE_HEADER_LEN,
                number: 0,
                ..reached
            },
            None => reached,
        };
        Walk {
            page: self,
            reached,
            found: None,
            has_skipped: false,
            ended: Vec::new(),
            budget: SEARCH_FACTOR.wrapping_mul(self.bytes.len()),
            linked: reader.map(|reader| reader.records().into_iter()),
            pending: None,
        }
    }
}

impl Reached {
    /// The end of the last record or mark, or of the page's header.
    #[must_use]
    pub fn end(&self) -> usize {
        self.at
    }
}

impl<'p> Walk<'_, 'p> {
    /// The number, in the page, of the record after the last; of linked records, how many were
    /// there.
    #[must_use]
    pub fn next_number(&self) -> u32 {
        self.reached.number
    }

    /// How far it has come.
    #[must_use]
    pub fn reached(&self) -> Reached {
        self.reached
    }

    /// Whether all sealed records up to here follow each other, with nothing else between them.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        !self.has_skipped
    }

    /// Producers that have ended, as marks since the last call say.
    pub fn take_ended(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.ended)
    }

    /// The producer of the record with this number in the page.
    #[inline]
    fn origin(&self, number: u32) -> Option<Origin<'p>> {
        let (start, end, first) = self.reached.producer?;
        let bytes = self.page.bytes.get(start..end)?;
        let Some((_, Mark::Producer(origin))) = mark::parse(bytes) else {
            return None;
        };
        let later = u64::from(number.wrapping_sub(first));
        Some(Origin {
            number: origin.number.wrapping_add(later),
            ..origin
        })
    }

    fn next_linked(&mut self) -> Option<Item<'p>> {
        let found = match self.pending.take() {
            Some(found) => found,
            None => match self.linked.as_mut()?.next()? {
                (found, None) => found,
                (found, Some(missing)) => {
                    self.pending = Some(found);
                    return Some(Item::Missing(missing));
                }
            },
        };
        self.reached.number = self.reached.number.wrapping_add(1);
        self.reached.at = found.end;
        let start = found.end.wrapping_sub(found.len.next_multiple_of(8));
        Some(Item::Record(Record {
            at: found.at,
            end: found.end,
            seq: None,
            time_ns: self.reached.time_ns,
            origin: None,
            payload: &self.page.bytes[start..start.wrapping_add(found.len)],
        }))
    }

    /// Takes what a mark says of the records after it.
    fn note(&mut self, at: usize, read: &Sealed<'p>) {
        let Some((time_ns, mark)) = mark::parse(read.payload) else {
            return;
        };
        self.reached.time_ns = time_ns;
        match mark {
            Mark::Time | Mark::Producers { .. } => {}
            Mark::Ended(id) => self.ended.push(id),
            Mark::NoProducer => self.reached.producer = None,
            Mark::Producer(_) => {
                let start = at.wrapping_add(SEALED_HEAD_LEN);
                let end = start.wrapping_add(read.payload.len());
                self.reached.producer = Some((start, end, read.number));
            }
        }
    }

    /// The place of the next record after a hole.
    #[cold]
    fn search(&mut self, from: usize) -> Option<usize> {
        sealed::search(&self.page.key, self.page.bytes, from, &mut self.budget)
    }
}

impl<'p> Iterator for Walk<'_, 'p> {
    type Item = Item<'p>;

    #[inline]
    fn next(&mut self) -> Option<Item<'p>> {
        if self.linked.is_some() {
            return self.next_linked();
        }
        let mut at = self.found.unwrap_or(self.reached.at);
        loop {
            let Some(read) = sealed::read(&self.page.key, self.page.bytes, at) else {
                if at.wrapping_add(SEALED_HEAD_LEN) > self.page.bytes.len() {
                    return None;
                }
                at = self.search(at)?;
                // Whose records follow is known from the next mark on.
                self.has_skipped = true;
                self.reached.producer = None;
                continue;
            };
            if read.number > self.reached.number {
                let missing = u64::from(read.number.wrapping_sub(self.reached.number));
                self.reached.number = read.number;
                self.found = Some(at);
                return Some(Item::Missing(Missing::Exact(missing)));
            }
            self.found = None;
            self.reached.at = read.end;
            if read.kind == Kind::Mark {
                self.note(at, &read);
                at = read.end;
                continue;
            }
            self.reached.number = read.number.wrapping_add(1);
            return Some(Item::Record(Record {
                at,
                end: read.end,
                seq: Some(
                    self.page
                        .header
                        .first_seq
                        .wrapping_add(u64::from(read.number)),
                ),
                time_ns: self.reached.time_ns,
                origin: self.origin(read.number),
                payload: read.payload,
            }));
        }
    }
}
