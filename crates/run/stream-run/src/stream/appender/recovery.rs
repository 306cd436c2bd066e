//! Which records of each producer a stream has, when it is opened for appending: the newest page lists them as they
//! were when it was begun, and its records say what has come since. After a crash, the list counts up to the last sync:
//! pages from there on are read.

use strata_stream::{Form, Item, Page, PageHeader, Producers, Recovered, State};
use strata_sys::AlignedBytes;
use strata_wire::exact;

use super::SECTOR;
use crate::dir::file::StreamFile;
use crate::dir::stripes::{Stripes, stripe_of};
use crate::error::{In as _, Result};

/// The producers of a stream that is opened.
pub(super) struct Opened {
    pub(super) producers: Producers,
    /// The number of the next record, if producers appended last and there was a crash: what the stream does not have,
    /// they send again.
    pub(super) next_seq: Option<u64>,
}

/// Where records are missing that had not been synced.
struct Hole {
    /// The page with the last record before it, and where the hole begins there.
    index: u64,
    at: usize,
    /// The number of the first record that is missing.
    seq: u64,
}

/// What the newest pages have.
#[derive(Default)]
struct Walked {
    hole: Option<Hole>,
    /// The number after the last record.
    end_seq: Option<u64>,
}

/// The pages of a stream that is opened for appending.
pub(super) struct Pages<'a> {
    pub(super) stripes: &'a mut Stripes,
    pub(super) file: &'a StreamFile,
    pub(super) found: &'a mut Recovered,
}

impl Pages<'_> {
    /// Finds the producers. After a crash, in a stream that has producers, a record behind one that is missing is
    /// discarded: producers send both again, in their order. Neither had been synced.
    pub(super) fn open(mut self, state: Option<&State>) -> Result<Opened> {
        let was_clean = state.is_some_and(|state| state.is_clean);
        let has_producers = state.is_some_and(|state| state.has_producers);
        let is_producers = state.is_some_and(|state| state.is_producers);
        let synced_seq = state.map_or(0, |state| state.synced_seq);
        let mut opened = Opened {
            producers: Producers::default(),
            next_seq: None,
        };
        // Linked records have no marks.
        if self.file.description.form != Form::Sealed {
            return Ok(opened);
        }
        let producers = &mut opened.producers;
        let mut buffer = AlignedBytes::zeroed(self.file.geometry().page_len());
        let synced_seq = if was_clean { u64::MAX } else { synced_seq };
        let (from, synced_seq) = self.start(producers, synced_seq, &mut buffer)?;
        let walked = self.walk(producers, from, synced_seq, &mut buffer)?;
        opened.next_seq = walked.end_seq.filter(|_| !was_clean && is_producers);
        let hole = walked
            .hole
            .filter(|_| !was_clean && (has_producers || !producers.is_empty()));
        if let Some(hole) = hole {
            opened.next_seq = Some(hole.seq);
            self.discard(&hole, &mut buffer)?;
        }
        Ok(opened)
    }

    /// The page from which on records are to be read, and the number of the first record that may not have been synced;
    /// `producers` are those at the start of the page.
    fn start(
        &mut self,
        producers: &mut Producers,
        mut synced_seq: u64,
        buffer: &mut AlignedBytes,
    ) -> Result<(u64, u64)> {
        let newest_first: Vec<_> = self.found.pages.iter().rev().map(copied).collect();
        let mut from = u64::MAX;
        for (index, page, header) in newest_first {
            from = index;
            let Some(page) = self.read(page, header, buffer)? else {
                continue;
            };
            let Some((synced, listed)) = page.producers() else {
                continue;
            };
            synced_seq = synced_seq.max(synced);
            // Without producers before it, or with all of their records synced, nothing before it matters.
            let is_enough = listed.is_empty() || header.first_seq <= synced_seq;
            if is_enough {
                *producers = listed;
                break;
            }
        }
        Ok((from, synced_seq))
    }

    fn read<'b>(
        &mut self,
        page: u32,
        header: PageHeader,
        buffer: &'b mut AlignedBytes,
    ) -> Result<Option<Page<'b>>> {
        let Some(read) = self.stripes.read_at(page, 0, buffer)? else {
            return Ok(None);
        };
        // When the file has grown further, zeros follow: a record may end with them.
        buffer[read..].fill(0);
        let key = self.file.key.page(header.index, header.lap);
        Ok(Some(Page::new(header, key, buffer)))
    }

    /// Notes the records from a page on, up to the first hole behind the last sync.
    fn walk(
        &mut self,
        producers: &mut Producers,
        from: u64,
        synced_seq: u64,
        buffer: &mut AlignedBytes,
    ) -> Result<Walked> {
        let mut walked = Walked::default();
        let pages: Vec<_> = self.found.pages.range(from..).map(copied).collect();
        // Where the page before ends.
        let mut end: Option<Hole> = None;
        for (index, page, header) in pages {
            if let Some(before) = end.take()
                && header.first_seq > before.seq.max(synced_seq)
            {
                walked.hole = Some(before);
                return Ok(walked);
            }
            let mut hole = Hole {
                index,
                at: 0,
                seq: header.first_seq,
            };
            let Some(page) = self.read(page, header, buffer)? else {
                end = Some(hole);
                continue;
            };
            walked.end_seq.get_or_insert(header.first_seq);
            let mut walk = page.walk();
            let begin = page.list_end().unwrap_or(walk.reached().end());
            let mut whole = (begin, header.first_seq);
            while let Some(item) = walk.next() {
                for id in walk.take_ended() {
                    producers.end(id);
                }
                let next_seq = header.first_seq + u64::from(walk.next_number());
                if !walk.is_whole() && next_seq > synced_seq {
                    (hole.at, hole.seq) = whole;
                    walked.hole = Some(hole);
                    return Ok(walked);
                }
                if let Item::Record(record) = item {
                    if let Some(origin) = record.origin {
                        if producers.get(origin.id).is_none()
                            && let Ok(name) = origin.name.parse()
                        {
                            producers.meet(origin.id, &name, record.time_ns);
                        }
                        producers.took(origin.id, origin.number.wrapping_add(1), record.time_ns);
                    }
                    whole = (record.end, next_seq);
                    walked.end_seq = Some(next_seq);
                }
            }
            for id in walk.take_ended() {
                producers.end(id);
            }
            (hole.at, hole.seq) = whole;
            end = Some(hole);
        }
        Ok(walked)
    }

    /// Discards what is behind a hole.
    fn discard(&mut self, hole: &Hole, buffer: &mut AlignedBytes) -> Result<()> {
        let later = self.found.pages.split_off(&(hole.index + 1));
        for (page, _) in later.into_values() {
            // Not found again, by its header, after the next crash.
            buffer[..SECTOR].fill(0);
            self.write(page, 0, &buffer[..SECTOR])?;
            self.found.unused.push(page);
        }
        let Some(&(page, header)) = self.found.pages.get(&hole.index) else {
            return Ok(());
        };
        if hole.at > 0 && self.read(page, header, buffer)?.is_some() {
            buffer[hole.at..].fill(0);
            let from = hole.at / SECTOR * SECTOR;
            self.write(page, from, &buffer[from..])?;
        }
        Ok(())
    }

    fn write(&mut self, page: u32, offset: usize, bytes: &[u8]) -> Result<()> {
        let Some(file) = self.stripes.for_blocks(stripe_of(page)) else {
            return Ok(());
        };
        let mut file = file?;
        let at = self.stripes.page_at(page) + exact::<u64>(offset);
        let written = file.write_at(bytes, at).and_then(|()| file.sync());
        written.in_file(|| self.file.path.clone())
    }
}

fn copied((&index, &(page, header)): (&u64, &(u32, PageHeader))) -> (u64, u32, PageHeader) {
    (index, page, header)
}
