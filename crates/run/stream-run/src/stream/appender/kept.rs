//! How many of the records that were appended are in the stream.

use strata_stream::{Item, PAGE_HEADER_LEN, Page, PageHeader};
use strata_sys::AlignedBytes;
use strata_wire::exact;

use super::StreamAppender;
use crate::error::{Result, StreamError};

impl StreamAppender {
    /// All that was appended was written now, but what went with stripes.
    pub(super) fn mark_kept(&mut self) {
        self.kept = (self.end(), self.appended().records - self.memory.lost);
    }

    /// How many of the records that were appended since it was opened are in the stream. After a failure, what is there
    /// is counted: blocks that were full had been written before. Of what came after the last
    /// [`StreamAppender::flush`], pages are read; memory: one page.
    pub fn kept(&mut self) -> u64 {
        let (from, mut kept) = self.kept;
        // What fails here is not found below.
        let _ = self.memory.drain();
        if self.end() == from || self.footing.look().is_err() {
            return kept;
        }
        let later = self.held.iter().map(|(held, page)| (held.index, *page));
        let later: Vec<_> = later.filter(|&(index, _)| index >= from.index).collect();
        for (index, page) in later {
            let offset = if index == from.index { from.offset } else { 0 };
            // Of a page that cannot be read, readers have none either.
            if let Ok(Some(count)) = self.count(index, page, offset) {
                kept += count;
            }
        }
        kept.min(self.appended().records)
    }

    /// Records of a page from an offset on, as its file has them; `None` if it has another page, or none.
    fn count(&mut self, index: u64, page: u32, offset: u32) -> Result<Option<u64>> {
        let (id, page_len) = (self.file.description.id, self.file.geometry().page_len());
        let mut bytes = AlignedBytes::zeroed(page_len);
        let Some(read) = self.stripes.read_at(page, 0, &mut bytes)? else {
            return Ok(None);
        };
        let there = &bytes[..read];
        let header = there.first_chunk::<PAGE_HEADER_LEN>();
        let header =
            header.and_then(|bytes| PageHeader::parse(bytes, id, &self.file.key, page_len).ok());
        let Some(header) = header.filter(|header| header.index == index) else {
            return Ok(None);
        };
        let page = Page::new(header, self.file.key.page(index, header.lap), there);
        let offset = exact::<usize>(offset);
        let is_later =
            |item: &Item<'_>| matches!(item, Item::Record(record) if record.at >= offset);
        Ok(Some(page.walk().filter(is_later).count() as u64))
    }

    /// Records that were not written since it was opened, or not synced, because their stripe failed: an upper
    /// bound. Other stripes have those that came after them.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.memory.lost
    }

    /// Whether nothing was lost with a stripe, for callers that have to be sure of each record.
    ///
    /// # Errors
    ///
    /// How much was.
    pub fn all_kept(&self) -> Result<()> {
        match self.lost() {
            0 => Ok(()),
            records => Err(StreamError::Lost { records }),
        }
    }

    /// What there is to say of stripes, once: that one fails, or is written again.
    pub fn take_warnings(&mut self) -> Vec<String> {
        self.stripes.take_said()
    }
}
