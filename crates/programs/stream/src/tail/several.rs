//! `strata stream tail` of several streams of a directory, merged by the times of their records.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use strata_stream::{Cursor, Origin, StreamName};
use strata_stream_run::{Entry, SavedCursor, StreamDir, StreamError, StreamReader, Unread};
use strata_terminal::output::{refuse, standard};
use strata_terminal::signals::stop_on_signal;
use strata_terminal::text;
use strata_wire::unix_ns;

use super::{Args, LAST, SAVE_EVERY, consumer_name, say_what_is_missing, show, since_ns};
use crate::place::Pattern;
use crate::say_what_is_gone;

/// Streams that are read at once, each with a page of memory.
const STREAMS_MAX: usize = 64;
/// Records of each stream that wait to be merged have at most these bytes, or one of them has.
const WAITING_BYTES: usize = 1 << 20;
const WAITING: u64 = 256;
/// The last records that can be found among those of several streams: 8 bytes of memory for each and stream.
const LAST_MAX: u64 = 1_000_000;
/// Between looks at streams that are followed and have nothing new.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Records between two looks at the time.
const AT_ONCE: u64 = 256;

/// A record that was read and waits for older ones of other streams.
struct Waiting {
    next: Cursor,
    seq: Option<u64>,
    time_ns: u64,
    /// Its producer: an id, a name and the record's number.
    origin: Option<(u64, String, u64)>,
    payload: Vec<u8>,
}

impl Waiting {
    fn of(entry: &Entry<'_>) -> Self {
        Self {
            next: entry.next,
            seq: entry.seq,
            time_ns: entry.time_ns,
            origin: entry
                .origin
                .map(|origin| (origin.id, origin.name.to_owned(), origin.number)),
            payload: entry.payload.to_vec(),
        }
    }

    fn entry(&self) -> Entry<'_> {
        let origin = self.origin.as_ref();
        Entry {
            next: self.next,
            seq: self.seq,
            time_ns: self.time_ns,
            origin: origin.map(|(id, name, number)| Origin {
                id: *id,
                name,
                number: *number,
            }),
            payload: &self.payload,
        }
    }
}

/// A stream.
struct Source {
    name: StreamName,
    reader: StreamReader,
    waiting: VecDeque<Waiting>,
    /// Nothing more was there at the last look.
    is_at_end: bool,
    /// Where reading went on when the waiting records were read, with what could not be read until then, and the number
    /// of them that were printed since.
    start: (Cursor, Option<u64>),
    unread_before: Unread,
    printed: u64,
    /// As its cursor was saved before this process.
    saved: SavedCursor,
}

impl Source {
    fn new(name: StreamName, reader: StreamReader) -> Self {
        Self {
            name,
            start: (reader.cursor(), reader.next_seq()),
            unread_before: reader.unread(),
            reader,
            waiting: VecDeque::new(),
            is_at_end: false,
            printed: 0,
            saved: SavedCursor::none(),
        }
    }

    /// Reads some records, if none waits.
    fn fill(&mut self) -> Result<()> {
        if !self.waiting.is_empty() || self.is_at_end {
            return Ok(());
        }
        self.start = (self.reader.cursor(), self.reader.next_seq());
        self.unread_before = self.reader.unread();
        self.printed = 0;
        let (waiting, mut bytes) = (&mut self.waiting, 0);
        let count = self.reader.read::<StreamError>(WAITING, |entry| {
            bytes += entry.payload.len();
            waiting.push_back(Waiting::of(entry));
            Ok(bytes < WAITING_BYTES)
        })?;
        self.is_at_end = count == 0;
        Ok(())
    }

    fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.waiting.pop_front();
        self.printed += u64::from(waiting.is_some());
        waiting
    }

    /// Where reading goes on after what was printed, and what could not be read before that. Records that wait were read
    /// and not printed, so those before them are read again.
    fn reached(&self, dir: &StreamDir) -> Result<(Cursor, Option<u64>, Unread)> {
        if self.waiting.is_empty() {
            let reader = &self.reader;
            return Ok((reader.cursor(), reader.next_seq(), reader.unread()));
        }
        let (cursor, next_seq) = self.start;
        if self.printed == 0 {
            return Ok((cursor, next_seq, self.unread_before));
        }
        let mut again = dir.read(&self.name)?;
        again.seek(cursor, next_seq);
        again.read::<StreamError>(self.printed, |_| Ok(true))?;
        let (before, since) = (self.unread_before, again.unread());
        let unread = Unread {
            missing: (
                before.missing.0 + since.missing.0,
                before.missing.1 + since.missing.1,
            ),
            expired: before.expired + since.expired,
            expired_uncounted: before.expired_uncounted || since.expired_uncounted,
        };
        Ok((again.cursor(), again.next_seq(), unread))
    }

    fn save(&self, dir: &StreamDir, consumer: &StreamName) -> Result<()> {
        let (cursor, next_seq, unread) = self.reached(dir)?;
        let saved = SavedCursor {
            cursor: cursor.to_string(),
            next_seq,
            missing: self.saved.missing + unread.missing.0,
            expired: self.saved.expired + unread.expired,
            time_ns: unix_ns(),
        };
        Ok(dir.save(&self.name, consumer, &saved)?)
    }
}

/// Where to begin in each stream.
enum Begin {
    Last(u64),
    Since(u64),
    Start,
    Kept(StreamName),
}

fn begin(args: &Args) -> Result<Begin> {
    if let Some(since) = &args.since {
        return Ok(Begin::Since(since_ns(since, args.follow)?));
    }
    let Some(cursor) = &args.cursor else {
        let last = args.records.unwrap_or(LAST);
        if last > LAST_MAX {
            return Err(refuse(format!(
                "-n {last}: of several streams, at most {LAST_MAX} without --cursor or --since"
            )));
        }
        return Ok(Begin::Last(last));
    };
    if let Some(consumer) = cursor.strip_prefix('@') {
        return Ok(Begin::Kept(consumer_name(consumer)?));
    }
    match cursor.parse::<Cursor>() {
        Ok(Cursor::START) => Ok(Begin::Start),
        Ok(_) => Err(refuse(format!(
            "--cursor {cursor}: is a position in one stream: for several streams, write @NAME, or 0.0 for all records"
        ))),
        Err(error) => Err(refuse(format!("--cursor: {error}"))),
    }
}

/// The streams that are read.
struct Sources<'a> {
    dir: &'a StreamDir,
    pattern: &'a Pattern,
    sources: Vec<Source>,
    /// Streams that could not be opened, and how often.
    failed: BTreeMap<StreamName, u32>,
    is_full: bool,
}

impl Sources<'_> {
    /// Opens the streams that match and are not open yet. One that was just created may not be whole: it is tried twice.
    fn open(&mut self, begin: &Begin) -> Result<()> {
        for name in self.dir.names()? {
            let is_known = self.sources.iter().any(|source| source.name == name);
            let tries = self.failed.get(&name).copied();
            if is_known || tries > Some(1) || !self.pattern.matches(name.as_str()) {
                continue;
            }
            if self.sources.len() == STREAMS_MAX {
                if !self.is_full {
                    text::warn(&format!(
                        "{}: more than {STREAMS_MAX} streams match: {name} and later ones are not read",
                        self.pattern.text()
                    ));
                }
                self.is_full = true;
                break;
            }
            let opened = self.dir.read(&name).map_err(anyhow::Error::from);
            let placed = opened.and_then(|mut reader| {
                let saved = self.place(&name, &mut reader, begin)?;
                Ok((reader, saved))
            });
            match placed {
                Ok((reader, saved)) => {
                    self.failed.remove(&name);
                    let mut source = Source::new(name, reader);
                    source.saved = saved;
                    self.sources.push(source);
                }
                Err(error) => {
                    let tries = self.failed.entry(name).or_insert(0);
                    *tries += 1;
                    if *tries > 1 {
                        text::warn(&text::chain(&error));
                    }
                }
            }
        }
        // The order of those with records of the same time.
        self.sources.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(())
    }

    /// Goes to where a stream begins; the cursor that was saved of it.
    fn place(
        &self,
        name: &StreamName,
        reader: &mut StreamReader,
        begin: &Begin,
    ) -> Result<SavedCursor> {
        match begin {
            Begin::Since(since_ns) => reader.seek_time(*since_ns)?,
            Begin::Start | Begin::Last(_) => reader.seek(Cursor::START, None),
            Begin::Kept(consumer) => {
                if let Some(saved) = self.dir.saved(name, consumer)? {
                    let cursor = saved
                        .cursor
                        .parse()
                        .expect("it was parsed when it was read");
                    reader.seek(cursor, saved.next_seq);
                    return Ok(saved);
                }
                reader.seek(Cursor::START, None);
            }
        }
        Ok(SavedCursor::none())
    }

    /// Goes to the last records of all streams together.
    fn seek_last(&mut self, records: u64) -> Result<()> {
        let mut times = Vec::new();
        for source in &mut self.sources {
            times.push(source.reader.last_times(records)?);
        }
        let mut counts = vec![0; times.len()];
        for _ in 0..records {
            let last = (0..times.len()).filter_map(|of| Some((*times[of].last()?, of)));
            let Some((_, of)) = last.max() else {
                break;
            };
            times[of].pop();
            counts[of] += 1;
        }
        for (source, count) in self.sources.iter_mut().zip(counts) {
            source.reader.seek_last(count)?;
        }
        Ok(())
    }

    /// The stream with the oldest record that waits, which is that of the first name if several have one of its time.
    fn oldest(&mut self) -> Result<Option<&mut Source>> {
        for source in &mut self.sources {
            source.fill()?;
        }
        let oldest = self
            .sources
            .iter_mut()
            .filter(|source| !source.waiting.is_empty());
        Ok(oldest.min_by_key(|source| source.waiting.front().map(|record| record.time_ns)))
    }

    /// Waits until there may be more, and looks at all streams again.
    fn look(&mut self, begin: &Begin) -> Result<()> {
        if let Some(source) = self.sources.first_mut() {
            source.reader.wait(LOOK_EVERY);
        }
        for source in &mut self.sources {
            source.reader.refresh()?;
            source.is_at_end = false;
        }
        // A stream that comes now is read from its first record on, or from its saved cursor on.
        self.open(match begin {
            Begin::Kept(_) => begin,
            _ => &Begin::Start,
        })
    }

    fn save(&self, consumer: &StreamName) -> Result<()> {
        self.sources
            .iter()
            .try_for_each(|source| source.save(self.dir, consumer))
    }

    fn unread(&self) -> Unread {
        let mut all = Unread::default();
        for source in &self.sources {
            let unread = source.reader.unread();
            all.missing.0 += unread.missing.0;
            all.missing.1 += unread.missing.1;
            all.expired += unread.expired;
            all.expired_uncounted |= unread.expired_uncounted;
        }
        all
    }
}

/// Of the streams of a directory of this machine whose names match.
pub(crate) fn run(args: &Args, path: &Path, pattern: &Pattern) -> Result<()> {
    let shown = args.shown()?;
    let stop = stop_on_signal()?;
    let begin = begin(args)?;
    let dir = crate::prepare(path)?;
    args.sandbox.confine(&crate::reach(path))?;
    let mut sources = Sources {
        dir: &dir,
        pattern,
        sources: Vec::new(),
        failed: BTreeMap::new(),
        is_full: false,
    };
    sources.open(&begin)?;
    // What was being created is there by now.
    sources.open(&begin)?;
    if sources.sources.is_empty() && !args.follow {
        bail!(
            "{}: no stream matches {}: `strata stream list` lists the streams",
            path.display(),
            pattern.text()
        );
    }
    if let Begin::Last(records) = begin {
        sources.seek_last(records)?;
    }
    let mut left = match (args.records, &begin) {
        (Some(records), Begin::Since(_) | Begin::Start | Begin::Kept(_)) => records,
        _ => u64::MAX,
    };
    let mut out = io::BufWriter::with_capacity(1 << 16, standard());
    let mut saved_at = Instant::now();
    let mut printed = 0_u64;
    while left > 0 && !stop.load(Ordering::Relaxed) {
        let source = sources.oldest()?;
        if let Some(source) = source {
            if let Some(record) = source.pop() {
                show(&mut out, shown, &record.entry(), Some(&source.name))?;
            }
            left -= 1;
            printed += 1;
            if !printed.is_multiple_of(AT_ONCE) {
                continue;
            }
        } else {
            out.flush()?;
        }
        let is_idle = sources
            .sources
            .iter()
            .all(|source| source.waiting.is_empty());
        if let Begin::Kept(consumer) = &begin
            && saved_at.elapsed() >= SAVE_EVERY
        {
            out.flush()?;
            sources.save(consumer)?;
            saved_at = Instant::now();
        }
        if is_idle && sources.sources.iter().all(|source| source.is_at_end) {
            if !args.follow {
                break;
            }
            sources.look(&begin)?;
        }
    }
    out.flush()?;
    if let Begin::Kept(consumer) = &begin {
        sources.save(consumer)?;
    }
    say_what_is_gone(&dir.gone_stripes()?);
    say_what_is_missing(sources.unread(), args.cursor.as_deref());
    let unreadable = sources.failed.values().filter(|&&tries| tries > 1).count();
    if unreadable > 0 {
        bail!(
            "{} of {} cannot be read",
            text::count_of(unreadable as u64, "stream"),
            path.display()
        );
    }
    Ok(())
}
