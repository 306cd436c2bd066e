//! Opening a stream for appending: where it goes on.

use std::collections::{BTreeMap, VecDeque};
use std::thread;
use std::time::{Duration, Instant};

use strata_stream::{
    Cursor, Held, INDEX_JUMP, Item, Page, PageHeader, PageWriter, Recovered, State, StreamName,
    TableWriter, recovered,
};
use strata_sys::AlignedBytes;
use strata_wire::exact;

use super::recovery::Pages;
use super::{Appended, LIST_PART, StreamAppender};
use crate::dir::StreamDir;
use crate::dir::file::{StreamFile, file_name, lock_name};
use crate::dir::footing::Footing;
use crate::dir::locks::Lock;
use crate::dir::pool::{MAP, PAGES};
use crate::dir::stripes::{LIST, Stripes, stripe_of};
use crate::error::{In as _, Result, StreamError};
use crate::stream::memory::{Files, Memory, Target};

/// Bytes of a block, unless pages are smaller.
const BLOCK_BYTES: usize = 256 << 10;
/// Blocks in flight at a time at most, so that several stripes are written at once.
const IN_FLIGHT_MAX: usize = 64;
/// How long to wait for a reader that looks whether somebody appends.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

impl StreamDir {
    /// Starts appending to a stream. One process may at a time.
    ///
    /// # Errors
    ///
    /// If another does, or a file is damaged.
    pub fn append(&self, name: &StreamName, now_ns: u64) -> Result<StreamAppender> {
        StreamAppender::open(self, name, now_ns)
    }
}

impl StreamAppender {
    fn open(dir: &StreamDir, name: &StreamName, now_ns: u64) -> Result<Self> {
        let mut file = dir.file(name, true)?;
        let lock = Self::lock(dir, name)?;
        let mut footing = Footing::open(&dir.disk, &[&file_name(name), PAGES, MAP])?;
        footing.look()?;
        let mut stripes = Stripes::open(dir)?;
        stripes.join(file.description.id, &dir.owners()?, now_ns)?;
        let stored = file.state()?;
        let was_clean = stored.as_ref().is_some_and(|state| state.is_clean);
        let mut found = recovered_pages(&mut stripes, &file, true, stored.as_ref())?;
        let last_index = found.pages.last_key_value().map(|(&index, _)| index);
        if let (None, Some(gone)) = (&stored, stripes.gone().first()) {
            return Err(unknown_end(dir, &file, gone));
        }
        let pages = Pages {
            stripes: &mut stripes,
            file: &file,
            found: &mut found,
        };
        let mut opened = pages.open(stored.as_ref())?;
        let list_len_max = file.geometry().page_len() / LIST_PART;
        opened.producers.forget(now_ns, list_len_max, |_| false);
        let known = known_pages(&stripes, &file, &found, stored.as_ref());
        let first = known.first_key_value().map(|(&index, _)| index);
        let oldest = found.oldest(
            &file.description.retention,
            file.geometry(),
            stored.as_ref(),
        );
        let mut state = stored.unwrap_or_else(State::unknown);
        state.oldest = oldest.or(first).unwrap_or(state.oldest);
        state.is_producers = false;
        let last = found.pages.last_key_value().map(|(_, &last)| last);
        let pages = known.iter().map(|(&index, &(page, _))| (index, page));
        let table = if was_clean {
            state.is_clean = false;
            file.write_state(&state)?;
            let mut table = TableWriter::new(file.geometry(), state.tables);
            file.complete(&mut table, pages)?;
            table
        } else {
            file.forget_state()?;
            file.rebuild(pages)?
        };
        file.sync()?;
        stripes.release(file.description.id, &found.unused)?;
        let page_len = file.geometry().page_len();
        let block_bytes = BLOCK_BYTES.min(page_len);
        let pages_path = dir.disk.display(PAGES);
        let in_flight = in_flight(&stripes, dir.disk.in_flight(), page_len / block_bytes);
        let files = (
            files_for_blocks(&mut stripes, now_ns)?,
            stripes.are_several(),
        );
        let memory = Memory::new(files, block_bytes, in_flight, state.next_seq);
        let mut memory = memory.in_file(|| pages_path.clone())?;
        memory.written = state.end;
        let mut appender = Self {
            memory,
            writer: None,
            held: VecDeque::new(),
            table,
            first_seq: state.next_seq,
            // The end of a page that was begun, or the start of one that was not.
            next_index: state.end.index + u64::from(state.end.offset > 0),
            unsynced_pages: 0,
            marked_ns: 0,
            total: Appended::default(),
            at_open: Appended::default(),
            kept: (Cursor::START, 0),
            producers: opened.producers,
            lost_before: 0,
            state,
            dir: dir.clone(),
            stripes,
            file,
            pages_path,
            few_pages: in_flight + 3,
            lock,
            footing,
        };
        for (index, (page, created_ns)) in known {
            appender.held.push_back((Held { index, created_ns }, page));
        }
        if let (Some((page, header)), true) = (last, was_clean) {
            appender.go_on(page, header)?;
        } else {
            if let Some(seq) = opened.next_seq {
                appender.state.next_seq = seq;
                appender.memory.settle(seq);
            }
            let later = last_index.map_or(0, |index| index + 1);
            appender.next_index = appender.next_index.max(later);
            appender.begin_after_crash(last, was_clean)?;
        }
        appender.start(was_clean, now_ns)?;
        Ok(appender)
    }

    /// Says where the stream goes on.
    fn start(&mut self, was_clean: bool, now_ns: u64) -> Result<()> {
        let (now, _) = self.state.recent();
        self.total = Appended {
            records: now.records.max(self.state.next_seq),
            bytes: now.bytes,
        };
        self.at_open = self.total;
        self.kept = (self.end(), 0);
        match was_clean {
            true => self.publish(now_ns)?,
            // From here on, the list of producers in a page counts.
            false => self.sync(now_ns)?,
        }
        self.state.synced_seq = self.state.next_seq;
        Ok(())
    }

    /// Readers hold the lock for moments.
    fn lock(dir: &StreamDir, name: &StreamName) -> Result<Lock> {
        let file = lock_name(name);
        let start = Instant::now();
        loop {
            let taken = dir.locks.take(&file).in_file(|| dir.disk.display(&file))?;
            match taken {
                Some(lock) => return Ok(lock),
                None if start.elapsed() < LOCK_PATIENCE => {
                    thread::sleep(Duration::from_millis(5));
                }
                None => {
                    return Err(StreamError::InUse {
                        dir: dir.path.clone(),
                        name: name.to_string(),
                    });
                }
            }
        }
    }

    /// Goes on where the stream was closed: in the same page, if its records are sealed.
    fn go_on(&mut self, page: u32, header: PageHeader) -> Result<()> {
        let end = self.state.end;
        self.next_index = self.next_index.max(header.index + 1);
        if header.index != end.index || end.offset == 0 {
            return Ok(());
        }
        let at = exact::<usize>(end.offset);
        let block_bytes = self.memory.current.memory.len();
        let block_start = at / block_bytes * block_bytes;
        let key = self.file.key.clone();
        let page_len = self.file.geometry().page_len();
        let places = (at, block_start);
        let resumed = PageWriter::resume(&header, &key, page_len, places, self.state.number);
        let Some(writer) = resumed.filter(|_| at < page_len) else {
            return Ok(());
        };
        let there = &mut self.memory.current.memory[..at - block_start];
        let read = self.stripes.read_at(page, block_start as u64, there)?;
        if read != Some(at - block_start) {
            // Not what the state says: leave it alone.
            return Ok(());
        }
        let target = Target {
            index: header.index,
            stripe: stripe_of(page),
            page_at: self.stripes.page_at(page),
            first_seq: header.first_seq,
        };
        let page_bytes = self.file.geometry().page_bytes;
        let began = self.memory.go_on(target, block_start, page_bytes);
        began.in_file(|| self.pages_path.clone())?;
        self.first_seq = header.first_seq;
        self.writer = Some(writer);
        Ok(())
    }

    /// Goes on in a new page, with a number that no reader has seen.
    fn begin_after_crash(
        &mut self,
        last: Option<(u32, PageHeader)>,
        was_clean: bool,
    ) -> Result<()> {
        if let Some((page, header)) = last {
            let records = records_of(&mut self.stripes, &self.file, page, header)?;
            self.state.next_seq = self
                .state
                .next_seq
                .max(header.first_seq + u64::from(records));
            self.next_index = self.next_index.max(header.index);
        }
        if !was_clean {
            self.next_index += INDEX_JUMP;
        }
        self.first_seq = self.state.next_seq;
        self.memory
            .skip_to(self.state.next_seq, Cursor::page(self.next_index));
        Ok(())
    }
}

/// Its state is damaged, and a stripe that may have its last pages is gone.
fn unknown_end(dir: &StreamDir, file: &StreamFile, gone: &str) -> StreamError {
    StreamError::Damaged {
        problem: format!(
            "its state (bytes 4096 to 4367) is damaged, and its last pages may be on a stripe that \
             is missing ({gone}): bring the stripe back, or remove it from {}",
            dir.disk.display(LIST)
        ),
        file: file.path.clone(),
    }
}

/// What the pages of a stream say: of those that maps of owners say are its own, or, if these may be older than
/// the pages, of all.
pub(crate) fn recovered_pages(
    stripes: &mut Stripes,
    file: &StreamFile,
    are_mapped: bool,
    state: Option<&State>,
) -> Result<Recovered> {
    let id = file.description.id;
    let page_len = file.geometry().page_len();
    let read = stripes.headers(are_mapped.then_some(id), None)?.into_iter();
    let read = read.filter_map(|(page, bytes)| {
        let parse = |bytes: &[u8]| PageHeader::parse(bytes, id, &file.key, page_len).ok();
        let header = bytes.and_then(|bytes| parse(&bytes));
        (header.is_some() || are_mapped).then_some((page, header))
    });
    // Of two copies of a page, the one at the place that the page table names.
    let mut read: Vec<_> = read.collect();
    read.sort_by_cached_key(|&(page, header)| {
        let named = header.map(|header: PageHeader| file.look_up(header.index));
        !matches!(named, Some(Ok(Some(named))) if named == page)
    });
    let mut found = recovered(read);
    let oldest = state.map(|state| state.oldest);
    found.trim(&file.description.retention, file.geometry(), oldest);
    Ok(found)
}

/// How many records of a page there have been, as those that are left say.
fn records_of(
    stripes: &mut Stripes,
    file: &StreamFile,
    page: u32,
    header: PageHeader,
) -> Result<u32> {
    let mut bytes = AlignedBytes::zeroed(file.geometry().page_len());
    let read = stripes.read_at(page, 0, &mut bytes)?.unwrap_or(usize::MIN);
    let page = Page::new(
        header,
        file.key.page(header.index, header.lap),
        &bytes[..read],
    );
    let mut walk = page.walk();
    for item in walk.by_ref() {
        let (Item::Record(_) | Item::Missing(_)) = item;
    }
    Ok(walk.next_number())
}

/// The number of records of a stream whose appender has not closed it, as its pages say.
pub(crate) fn recovered_records(
    stripes: &mut Stripes,
    file: &StreamFile,
    state: &State,
) -> Result<u64> {
    let found = recovered_pages(stripes, file, false, Some(state))?;
    let Some((_, &(page, header))) = found.pages.last_key_value() else {
        return Ok(state.next_seq);
    };
    let records = records_of(stripes, file, page, header)?;
    Ok(state.next_seq.max(header.first_seq + u64::from(records)))
}

/// Pages of a stream by number: the data page, and when it was begun.
type Known = BTreeMap<u64, (u32, u64)>;

/// Pages that were found, and those that the page table has on stripes that are gone.
fn known_pages(
    stripes: &Stripes,
    file: &StreamFile,
    found: &Recovered,
    state: Option<&State>,
) -> Known {
    let headers = found.pages.iter();
    let headers = headers.map(|(&index, &(page, header))| (index, (page, header.created_ns)));
    let mut known: Known = headers.collect();
    let (Some(state), false) = (state, stripes.gone().is_empty()) else {
        return known;
    };
    let round = file.geometry().pages_max();
    let last = state.end.index + INDEX_JUMP;
    let mut created_ns = 0;
    for index in state.oldest.max(last.saturating_sub(round))..=last {
        if let Some(&(_, begun_ns)) = known.get(&index) {
            created_ns = begun_ns;
        } else if let Ok(Some(page)) = file.look_up(index)
            && stripes.is_gone(page)
        {
            known.insert(index, (page, created_ns));
        }
    }
    known
}

/// Blocks in flight: with several stripes, enough to write all of them at a time.
fn in_flight(stripes: &Stripes, of_disk: usize, blocks_of_page: usize) -> usize {
    match stripes.count() {
        1 => of_disk,
        count => of_disk.max((count * blocks_of_page).min(IN_FLIGHT_MAX)),
    }
}

/// The files of stripes that can be written.
fn files_for_blocks(stripes: &mut Stripes, now_ns: u64) -> Result<Files> {
    let mut files = Files::new();
    for number in stripes.usable() {
        match stripes.for_blocks(number).expect("it can be used") {
            Ok(file) => {
                files.insert(number, file);
            }
            Err(error) if number == 0 => return Err(error),
            Err(error) => stripes.fail(number, &error.to_string(), now_ns),
        }
    }
    Ok(files)
}
