//! Counting the records of a stream that cannot be read: by the numbers of those before and after them, and at the end by
//! what the stream's state says.

use std::mem;

use strata_stream::{Form, Missing, PageHeader, State};
use strata_wire::exact;

use super::{Map, StreamReader};
use crate::error::Result;

/// Attempts at reading a state that its appender writes at the same time.
const STATE_ATTEMPTS: u32 = 3;

/// The number of the record after those that a stream's state says are before its end.
#[derive(Clone, Copy)]
pub(super) enum Had {
    /// The appender has closed the stream: the end is after the record before this one.
    All(u64),
    /// It appends, or it has crashed: records before this one were synced; there may be later ones.
    Synced(u64),
    /// The state is damaged.
    Unknown,
}

impl Had {
    pub(super) fn of(state: Option<&State>) -> Self {
        match state {
            Some(state) if state.is_clean => Self::All(state.next_seq),
            Some(state) => Self::Synced(state.synced_seq),
            None => Self::Unknown,
        }
    }
}

impl StreamReader {
    /// Counts what is missing at the end of the stream: after the last record that can be read, where no later record
    /// tells. While a process appends, the records that were synced count, in a page that is there as far as it was
    /// written; the cursor passes them, and what comes next is read after them.
    pub(super) fn count_lost_end(&mut self) {
        let there = self.loaded.as_ref();
        let there = there.filter(|loaded| loaded.header.index == self.end.index);
        let end_len = exact::<usize>(self.end.offset).min(self.buffer.len());
        let (end_seq, passes) = match (self.had, &self.map) {
            (Had::All(seq), _) => (seq, true),
            (Had::Synced(seq), Map::Headers(_)) => (seq, false),
            (Had::Synced(seq), Map::File) if there.is_some_and(|page| page.len >= end_len) => {
                (seq, true)
            }
            _ => return,
        };
        // Records before the time that is waited for are passed over, also if they are lost.
        let Some(next_seq) = self.next_seq.filter(|_| self.not_before_ns.is_none()) else {
            return;
        };
        let missing = end_seq.saturating_sub(next_seq);
        if missing == 0 && there.is_some() {
            return;
        }
        let (min, max) = mem::take(&mut self.page_missing);
        match self.file.description.form {
            Form::Sealed => {
                self.unread.missing.0 += missing;
                self.unread.missing.1 += missing;
            }
            // Of linked records, some were counted where the page has holes.
            Form::Linked { .. } => {
                self.unread.missing.0 += missing.saturating_sub(max);
                self.unread.missing.1 += missing.saturating_sub(min);
            }
        }
        self.next_seq = self.next_seq.max(Some(end_seq));
        if passes {
            self.cursor = self.cursor.max(self.end);
        }
        // The appender may write the block again, whole: later linked records are found by those before them.
        self.loaded = None;
    }

    /// What of a gap in a page was not counted yet: at least, and at most. `number` is that of the record after it.
    pub(super) fn uncounted(&self, gap: Missing, header: &PageHeader, number: u32) -> (u64, u64) {
        let (min, max) = gap.bounds();
        match (header.form, self.next_seq) {
            (Form::Sealed, Some(next_seq)) => {
                let later = (header.first_seq + u64::from(number)).saturating_sub(next_seq);
                (min.min(later), max.min(later))
            }
            _ => (min, max),
        }
    }

    /// Counts what is missing in a page.
    pub(super) fn count_missing(&mut self, (min, max): (u64, u64)) {
        self.unread.missing.0 += min;
        self.unread.missing.1 += max;
        self.page_missing.0 += min;
        self.page_missing.1 += max;
    }

    /// Pages that the page table names and that are not what it says, in words.
    pub(crate) fn unreadable_pages(&mut self) -> Result<Vec<String>> {
        let mut problems = Vec::new();
        let mut index = self.oldest;
        while index < self.end.index || (index == self.end.index && self.end.offset > 0) {
            if let Some(page) = self.page_of(index)?
                && self.load(index)?.is_none()
                && self.page_of(index)? == Some(page)
                && !self.stripes.is_gone(page)
            {
                problems.push(format!(
                    "page {index} of the stream (data page {page}) is damaged: its header is not \
                     that of this page"
                ));
            }
            index += 1;
        }
        Ok(problems)
    }

    /// The number of its pages that are on stripes that cannot be read.
    pub(crate) fn pages_gone(&self) -> Result<u64> {
        let mut gone = 0;
        let mut index = self.oldest;
        while index < self.end.index || (index == self.end.index && self.end.offset > 0) {
            let page = self.page_of(index)?;
            gone += u64::from(page.is_some_and(|page| self.stripes.is_gone(page)));
            index += 1;
        }
        Ok(gone)
    }

    /// Counts what is missing before a page.
    pub(super) fn enter_page(&mut self, header: &PageHeader) {
        let (min, max) = mem::take(&mut self.page_missing);
        let Some(next_seq) = self.next_seq else {
            return;
        };
        let skipped = header.first_seq.saturating_sub(next_seq);
        if skipped > 0 && header.index <= self.oldest_now(header.index) {
            self.unread.expired += skipped;
            return;
        }
        match header.form {
            Form::Sealed => {
                self.unread.missing.0 += skipped;
                self.unread.missing.1 += skipped;
            }
            // Of linked records, some were counted where the page has holes.
            Form::Linked { .. } => {
                self.unread.missing.0 += skipped.saturating_sub(max);
                self.unread.missing.1 += skipped.saturating_sub(min);
            }
        }
    }

    /// The oldest page that the stream has not given up. The appender may have given up pages since the last look: its
    /// state names the new oldest one before the pages leave the table. `index` is that of a page that was read.
    fn oldest_now(&self, index: u64) -> u64 {
        let is_old = index > self.oldest && matches!(self.map, Map::File);
        // A state that is being written is whole at the next attempt.
        let read = || (0..STATE_ATTEMPTS).find_map(|_| self.file.state().ok().flatten());
        let state = is_old.then(read).flatten();
        state.map_or(self.oldest, |state| self.oldest.max(state.oldest))
    }
}
