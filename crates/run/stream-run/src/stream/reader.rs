//! Reading a stream: from a cursor on, page by page, while another process may append.

mod lost;

use std::collections::BTreeMap;
use std::mem;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use strata_stream::{
    Cursor, Form, Item, Origin, PAGE_HEADER_LEN, Page, PageHeader, Reached, Record, State,
    StreamKey, StreamName, Walk,
};
use strata_sys::AlignedBytes;
use strata_wire::{exact, unix_ns};

use crate::dir::StreamDir;
use crate::dir::file::{StreamFile, file_name};
use crate::dir::footing::Footing;
use crate::dir::pool::PAGES;
use crate::dir::stripes::Stripes;
use crate::error::{Result, StreamError};
use crate::stream::appender::{MARK_NS, recovered_pages};
use crate::stream::changes::Changes;
use lost::Had;

/// How long to wait for a process that is about to append to say how far the stream goes.
const PATIENCE: Duration = Duration::from_secs(5);

/// A record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// Where reading goes on after it.
    pub next: Cursor,
    /// Its number in the stream, unless its form has none.
    pub seq: Option<u64>,
    /// When it was appended, ns since 1970: up to 10 ms earlier, or of linked records, when its
    /// page was begun.
    pub time_ns: u64,
    /// Its producer, if it came from one.
    pub origin: Option<Origin<'a>>,
    /// What was appended.
    pub payload: &'a [u8],
}

/// Records that could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unread {
    /// Missing: at least, and at most.
    pub missing: (u64, u64),
    /// Deleted before they were read, as far as their numbers are known.
    pub expired: u64,
    /// Others were too: reading began in a page that had been deleted, at a record whose number is not known.
    pub expired_uncounted: bool,
}

/// Where the pages of a stream are, and where it ends.
enum Map {
    /// As its file says, which the appender keeps.
    File,
    /// As the headers of pages say: there is no appender, and the last one has crashed.
    Headers(BTreeMap<u64, u32>),
}

/// A stream that is read. Memory: one page.
pub struct StreamReader {
    dir: StreamDir,
    name: StreamName,
    file: StreamFile,
    footing: Footing,
    stripes: Stripes,
    map: Map,
    oldest: u64,
    end: Cursor,
    /// How many records the stream is known to have had up to its end.
    had: Had,
    cursor: Cursor,
    /// The number of the next record, if one before it was read.
    next_seq: Option<u64>,
    unread: Unread,
    /// Records before this time (ns since 1970) are passed over, until one of it comes.
    not_before_ns: Option<u64>,
    /// Missing in the current page: at least, and at most.
    page_missing: (u64, u64),
    buffer: AlignedBytes,
    /// What is in it.
    loaded: Option<Loaded>,
    /// Once somebody has waited.
    changes: Option<Changes>,
}

impl std::fmt::Debug for StreamReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamReader")
            .field("file", &self.file.path)
            .field("cursor", &self.cursor)
            .finish_non_exhaustive()
    }
}

/// A page in memory, as far as it was written: what is written of it later follows.
struct Loaded {
    header: PageHeader,
    len: usize,
    /// How far it was read.
    reached: Option<Reached>,
}

impl Loaded {
    fn page<'b>(&self, key: &StreamKey, buffer: &'b [u8]) -> Page<'b> {
        let key = key.page(self.header.index, self.header.lap);
        Page::new(self.header, key, &buffer[..self.len])
    }
}

impl StreamDir {
    /// Reads a stream from its oldest record on.
    ///
    /// # Errors
    ///
    /// If a file is damaged.
    pub fn read(&self, name: &StreamName) -> Result<StreamReader> {
        StreamReader::open(self, name)
    }
}

impl StreamReader {
    fn open(dir: &StreamDir, name: &StreamName) -> Result<Self> {
        let file = dir.file(name, false)?;
        let mut reader = Self {
            dir: dir.clone(),
            name: name.clone(),
            footing: Footing::open(&dir.disk, &[&file_name(name), PAGES])?,
            stripes: Stripes::open(dir)?,
            buffer: AlignedBytes::zeroed(file.geometry().page_len()),
            loaded: None,
            file,
            map: Map::File,
            oldest: 0,
            end: Cursor::START,
            had: Had::Unknown,
            cursor: Cursor::START,
            next_seq: None,
            unread: Unread::default(),
            not_before_ns: None,
            page_missing: (0, 0),
            changes: None,
        };
        reader.refresh()?;
        Ok(reader)
    }

    /// Looks how far the stream goes now.
    ///
    /// # Errors
    ///
    /// If a file is damaged or cannot be read.
    pub fn refresh(&mut self) -> Result<()> {
        self.footing.look()?;
        let start = Instant::now();
        loop {
            let state = self.file.state()?;
            let is_appended = self.dir.is_appended(&self.name)?;
            match state {
                Some(state) if state.is_clean || is_appended => {
                    self.map = Map::File;
                    (self.oldest, self.end) = (state.oldest, state.end);
                    self.had = Had::of(Some(&state));
                    return Ok(());
                }
                // It is just being written, or made anew.
                None if is_appended && start.elapsed() < PATIENCE => {
                    thread::sleep(Duration::from_millis(5));
                }
                None if is_appended => {
                    return Err(StreamError::Damaged {
                        file: self.file.path.clone(),
                        problem: "its state (bytes 4096 to 4367) is damaged, although a process \
                                  appends: end that process, and start it again"
                            .to_owned(),
                    });
                }
                state => return self.read_headers(state.as_ref()),
            }
        }
    }

    /// Waits until there may be more to read, or for this time, or until a signal; then
    /// [`StreamReader::refresh`] says how far it goes. The first call does not wait, since what came
    /// before it is not noticed.
    pub fn wait(&mut self, limit: Duration) {
        match &self.changes {
            Some(changes) => changes.wait(limit),
            None => self.changes = Some(Changes::of(Path::new(&self.file.path))),
        }
    }

    /// After a crash of the appender, everything that is in the pages counts.
    fn read_headers(&mut self, state: Option<&State>) -> Result<()> {
        let found = recovered_pages(&mut self.stripes, &self.file, false, state)?;
        self.had = Had::of(state);
        let map: BTreeMap<u64, u32> = found
            .pages
            .iter()
            .map(|(&index, &(page, _))| (index, page))
            .collect();
        let description = &self.file.description;
        let oldest = found.oldest(&description.retention, description.geometry, state);
        let first = map.first_key_value().map(|(&index, _)| index);
        self.oldest = oldest.or(first).unwrap_or(Cursor::START.index);
        self.end = map
            .last_key_value()
            .map_or(Cursor::START, |(&index, _)| Cursor {
                index,
                offset: self.file.geometry().page_bytes,
            });
        self.map = Map::Headers(map);
        Ok(())
    }

    /// Where reading goes on.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// The end, as it was when it was last looked at.
    #[must_use]
    pub fn end(&self) -> Cursor {
        self.end
    }

    /// The number of the next record, if one before it was read.
    #[must_use]
    pub fn next_seq(&self) -> Option<u64> {
        self.next_seq
    }

    /// What could not be read since the stream was opened.
    #[must_use]
    pub fn unread(&self) -> Unread {
        self.unread
    }

    /// Goes on at a cursor. `next_seq` is the number of the record there, if it is known: then what
    /// was deleted before it could be read is counted.
    pub fn seek(&mut self, cursor: Cursor, next_seq: Option<u64>) {
        self.cursor = cursor;
        self.next_seq = next_seq;
        self.not_before_ns = None;
        self.page_missing = (0, 0);
    }

    /// Goes on at the end: with what is appended from now on.
    ///
    /// # Errors
    ///
    /// If a page cannot be read.
    pub fn seek_end(&mut self) -> Result<()> {
        self.seek(self.end, None);
        if let Map::Headers(_) = self.map {
            // The last record ends before the page does.
            let end = self.places(self.end.index)?.last().map(|&(_, end, _)| end);
            self.cursor.offset = end.unwrap_or(self.end.offset);
        }
        Ok(())
    }

    /// Goes on with the last `records` records.
    ///
    /// # Errors
    ///
    /// If a page cannot be read.
    pub fn seek_last(&mut self, records: u64) -> Result<()> {
        if records == 0 {
            return self.seek_end();
        }
        let mut wanted = exact::<usize>(records.min(1 << 40));
        let mut index = self.end.index;
        let mut cursor = Cursor::page(index);
        loop {
            if self.page_of(index)?.is_some() {
                let places = self.places(index)?;
                if let Some(from) = places.len().checked_sub(wanted) {
                    let offset = places.get(from).map_or(0, |&(at, _, _)| at);
                    cursor = Cursor { index, offset };
                    break;
                }
                wanted -= places.len();
                cursor = Cursor::page(index);
            }
            if index <= self.oldest {
                break;
            }
            index -= 1;
        }
        self.seek(cursor, None);
        Ok(())
    }

    /// The times of the last `records` records, oldest first, ns since 1970. Memory: 8 bytes each, and a page. Where
    /// reading goes on stays the same.
    ///
    /// # Errors
    ///
    /// If a page cannot be read.
    pub fn last_times(&mut self, records: u64) -> Result<Vec<u64>> {
        let wanted = exact::<usize>(records.min(1 << 40));
        let mut newest_first = Vec::new();
        let mut index = self.end.index;
        while newest_first.len() < wanted {
            if self.page_of(index)?.is_some() {
                let places = self.places(index)?.into_iter().rev();
                let times = places.map(|(_, _, time_ns)| time_ns);
                newest_first.extend(times.take(wanted - newest_first.len()));
            }
            if index <= self.oldest {
                break;
            }
            index -= 1;
        }
        newest_first.reverse();
        Ok(newest_first)
    }

    /// Goes on with the records since a time (ns since 1970), which may be to come; a few older ones, of
    /// the 10 ms before it, may come first.
    ///
    /// # Errors
    ///
    /// If a page cannot be read.
    pub fn seek_time(&mut self, since_ns: u64) -> Result<()> {
        let since_ns = since_ns.saturating_sub(MARK_NS);
        // The last page that was begun before: later ones have nothing older, but for clocks that
        // were set back.
        let mut index = self.oldest;
        let mut at = self.oldest;
        while at <= self.end.index {
            if let Some(created_ns) = self.begun_ns(at)? {
                if created_ns > since_ns {
                    break;
                }
                index = at;
            }
            at += 1;
        }
        let place = self.places(index)?;
        let first = place.iter().find(|&&(_, _, time_ns)| time_ns >= since_ns);
        let cursor = match first {
            Some(&(offset, _, _)) => Cursor { index, offset },
            None => place
                .last()
                .map_or(Cursor::page(index), |&(_, offset, _)| Cursor {
                    index,
                    offset,
                }),
        };
        let not_before_ns = first.is_none().then_some(since_ns);
        self.seek(cursor, None);
        self.not_before_ns = not_before_ns;
        Ok(())
    }

    /// When a page was begun, if it is there: its header says so.
    fn begun_ns(&mut self, index: u64) -> Result<Option<u64>> {
        let Some(page) = self.page_of(index)? else {
            return Ok(None);
        };
        let mut bytes = [0; PAGE_HEADER_LEN];
        let read = self.stripes.read_at(page, 0, &mut bytes)?;
        if read != Some(bytes.len()) {
            return Ok(None);
        }
        let (id, page_len) = (self.file.description.id, self.file.geometry().page_len());
        let header = PageHeader::parse(&bytes, id, &self.file.key, page_len).ok();
        let header = header.filter(|header| header.index == index);
        Ok(header.map(|header| header.created_ns))
    }

    /// Whether a record is from before the time that is waited for.
    fn is_early(&mut self, record: &Record<'_>, form: Form) -> bool {
        let Some(not_before_ns) = self.not_before_ns else {
            return false;
        };
        // Linked records have the time of their page: it counts when they are read.
        let time_ns = match form {
            Form::Sealed => record.time_ns,
            Form::Linked { .. } => unix_ns(),
        };
        let is_early = time_ns < not_before_ns;
        if !is_early {
            self.not_before_ns = None;
        }
        is_early
    }

    /// The records of a page: where they start and end, and their times.
    fn places(&mut self, index: u64) -> Result<Vec<(u32, u32, u64)>> {
        self.load(index)?;
        let Some(loaded) = &self.loaded else {
            return Ok(Vec::new());
        };
        let page = loaded.page(&self.file.key, &self.buffer);
        let records = page.walk().filter_map(|item| match item {
            Item::Record(record) => Some((exact(record.at), exact(record.end), record.time_ns)),
            Item::Missing(_) => None,
        });
        Ok(records.collect())
    }

    fn page_of(&self, index: u64) -> Result<Option<u32>> {
        match &self.map {
            Map::File => self.file.look_up(index),
            Map::Headers(map) => Ok(map.get(&index).copied()),
        }
    }

    /// Reads a page as far as it is written, or what was added since. `None`: it was given up, or nothing of
    /// it can be read.
    fn load(&mut self, index: u64) -> Result<Option<&Loaded>> {
        let before = self.loaded.take();
        let before = before.filter(|loaded| loaded.header.index == index);
        let len = if index < self.end.index {
            self.buffer.len()
        } else {
            exact::<usize>(self.end.offset).min(self.buffer.len())
        };
        let there = before.as_ref().map_or(0, |loaded| loaded.len);
        if there >= len && there > 0 {
            self.loaded = before;
            return Ok(self.loaded.as_ref());
        }
        let Some(page) = self.page_of(index)? else {
            return Ok(None);
        };
        let buffer = &mut self.buffer[there..len];
        let Some(read) = self.stripes.read_at(page, there as u64, buffer)? else {
            return Ok(None);
        };
        let len = there + read;
        // What was struck out meanwhile may have been overwritten.
        if len < PAGE_HEADER_LEN || self.page_of(index)? != Some(page) {
            return Ok(None);
        }
        let page_len = self.file.geometry().page_len();
        let id = self.file.description.id;
        let header = PageHeader::parse(&self.buffer[..len], id, &self.file.key, page_len);
        // Or a page that was never written before a crash, or an earlier use of it.
        let header = header.ok().filter(|header| header.index == index);
        self.loaded = header.map(|header| Loaded {
            header,
            len,
            reached: before.and_then(|before| before.reached),
        });
        Ok(self.loaded.as_ref())
    }

    /// Reads up to `max` records from the cursor on; returns their number: 0 at the end of what was
    /// there at the last [`StreamReader::refresh`]. `each` may end it by returning false, after the
    /// record that it was given.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or that of `each`.
    pub fn read<E: From<StreamError>>(
        &mut self,
        max: u64,
        mut each: impl FnMut(&Entry<'_>) -> std::result::Result<bool, E>,
    ) -> std::result::Result<u64, E> {
        let mut count = 0;
        let oldest = Cursor::page(self.oldest);
        if self.cursor < oldest {
            // 0.0 is the oldest record, whichever that is.
            let is_counted = self.next_seq.is_some() || self.cursor == Cursor::START;
            self.unread.expired_uncounted |= !is_counted;
            self.cursor = oldest;
        }
        if self.cursor == Cursor::START {
            self.next_seq = Some(0);
        }
        let mut is_at_end = self.cursor >= self.end;
        while count < max && self.cursor < self.end {
            let index = self.cursor.index;
            if self.load(index)?.is_some() {
                let (more, goes_on) = self.read_page(max - count, &mut each)?;
                count += more;
                if !goes_on {
                    return Ok(count);
                }
            }
            if index >= self.end.index {
                is_at_end = true;
                break;
            }
            self.cursor = Cursor::page(index + 1);
            is_at_end = self.cursor >= self.end;
        }
        if is_at_end {
            self.count_lost_end();
        }
        Ok(count)
    }

    /// Stripes that could not be read, and why.
    #[must_use]
    pub fn gone_stripes(&self) -> Vec<String> {
        self.stripes.gone()
    }

    /// Reads records of the page in the buffer; how many, and whether to go on with the next page.
    fn read_page<E>(
        &mut self,
        max: u64,
        each: &mut impl FnMut(&Entry<'_>) -> std::result::Result<bool, E>,
    ) -> std::result::Result<(u64, bool), E> {
        let mut loaded = self.loaded.take().expect("a page was loaded");
        let header = loaded.header;
        if self.cursor.offset == 0 {
            self.enter_page(&header);
        }
        let buffer = mem::take(&mut self.buffer);
        let page = loaded.page(&self.file.key, &buffer);
        let from = exact::<usize>(self.cursor.offset);
        let before = loaded.reached.filter(|reached| reached.end() <= from);
        let mut walk = match before {
            Some(reached) => page.walk_on(reached),
            None => page.walk(),
        };
        if header.form != Form::Sealed {
            // All of them come again, with what is missing between them.
            self.page_missing = (0, 0);
        }
        let read = self.read_records((&page, &mut walk), header, (from, max), each);
        loaded.reached = Some(walk.reached());
        if read.as_ref().is_ok_and(|&(_, goes_on)| goes_on)
            && (header.form == Form::Sealed || from == 0)
        {
            // What was counted at the end is not missing again.
            let next_seq = header.first_seq + u64::from(walk.next_number());
            self.next_seq = self.next_seq.max(Some(next_seq));
        }
        drop(walk);
        (self.buffer, self.loaded) = (buffer, Some(loaded));
        read
    }

    /// Reads records of a walk from a place of the page on; how many, and whether no more are there.
    fn read_records<E>(
        &mut self,
        (page, walk): (&Page<'_>, &mut Walk<'_, '_>),
        header: PageHeader,
        (from, max): (usize, u64),
        each: &mut impl FnMut(&Entry<'_>) -> std::result::Result<bool, E>,
    ) -> std::result::Result<(u64, bool), E> {
        let mut count = 0;
        let mut missing = (0, 0);
        while let Some(item) = walk.next() {
            let record = match item {
                Item::Record(record) if record.at >= from => record,
                Item::Record(_) => {
                    missing = (0, 0);
                    continue;
                }
                Item::Missing(gap) => {
                    let (min, max) = self.uncounted(gap, &header, walk.next_number());
                    missing = (missing.0 + min, missing.1 + max);
                    continue;
                }
            };
            let missing = mem::take(&mut missing);
            self.cursor.offset = exact(record.end);
            self.next_seq = Some(header.first_seq + u64::from(walk.next_number()));
            if self.is_early(&record, header.form) {
                continue;
            }
            self.count_missing(missing);
            count += 1;
            let goes_on = each(&Entry {
                next: self.cursor,
                seq: record.seq,
                time_ns: record.time_ns,
                origin: record.origin,
                payload: record.payload,
            })?;
            let is_later = |item| matches!(item, Item::Record(record) if record.at >= exact(self.cursor.offset));
            if !goes_on || (count == max && page.walk_on(walk.reached()).any(is_later)) {
                return Ok((count, false));
            }
        }
        if missing.1 > 0 {
            // A mark says so, after the last record: it is not to be read again.
            self.count_missing(missing);
            let reached = exact(walk.reached().end());
            self.cursor.offset = self.cursor.offset.max(reached);
        }
        Ok((count, true))
    }
}
