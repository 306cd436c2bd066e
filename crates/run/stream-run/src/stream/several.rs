//! Several streams of a directory, read together in order of time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use strata_stream::{Cursor, NamePattern, Origin, StreamName};
use strata_sys::pause::backoff;

use super::kept::KeptCursor;
use crate::error::Result;
use crate::{Entry, StreamDir, StreamError, StreamReader, Unread};

/// Streams that are read together, each with a page of memory.
pub const SEVERAL_MAX: usize = 64;
/// Records of each stream that wait to be merged have at most these bytes, or one of them has.
const WAITING_BYTES: usize = 1 << 20;
const WAITING: u64 = 256;
/// Changes from one stream to another among the records that were read and are not done with; 16 bytes each.
const RUNS_MAX: usize = 1 << 20;

/// Where to begin in each stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SeveralFrom {
    /// With this number of records at the end of all together: 8 bytes of memory for each and stream.
    Last(u64),
    /// With the records since this time, ns since 1970.
    Since(u64),
    /// With the oldest record.
    Start,
    /// At the cursors that are kept under this name. A stream that has none yet and this number of others, if one is
    /// given, is not read.
    Kept(StreamName, Option<usize>),
}

/// What does not work of several streams.
#[derive(Debug)]
pub enum SeveralWarning {
    /// This stream cannot be read.
    Unreadable(StreamName, StreamError),
    /// More streams match than are read; the text has the first of those.
    LeftOut(String),
}

/// Places for streams that are read together, shared by readers: each stream takes about 5 MiB of memory.
#[derive(Clone, Debug)]
pub struct ReaderPlaces(Arc<AtomicUsize>);

impl ReaderPlaces {
    /// This number of places.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(count)))
    }

    fn take(&self) -> Option<ReaderPlace> {
        let less = |free: usize| free.checked_sub(1);
        let taken = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.is_ok().then(|| ReaderPlace(Arc::clone(&self.0)))
    }
}

/// A place, free again when this is dropped.
struct ReaderPlace(Arc<AtomicUsize>);

impl Drop for ReaderPlace {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

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
    /// It stays the same when other streams come.
    number: usize,
    reader: StreamReader,
    waiting: VecDeque<Waiting>,
    /// Nothing more was there at the last look.
    is_at_end: bool,
    /// Records that were passed on.
    sent: u64,
    /// Of these, the reader has done with this number.
    took: u64,
    kept: Option<KeptCursor>,
    _place: ReaderPlace,
}

impl Source {
    /// Reads some records, if none waits.
    fn fill(&mut self) -> Result<()> {
        if !self.waiting.is_empty() || self.is_at_end {
            return Ok(());
        }
        // All that was read was passed on.
        if let Some(kept) = &mut self.kept {
            kept.sent(&self.reader, self.sent);
        }
        let (waiting, mut bytes) = (&mut self.waiting, 0_usize);
        let count = self.reader.read::<StreamError>(WAITING, |entry| {
            bytes = bytes.saturating_add(entry.payload.len());
            waiting.push_back(Waiting::of(entry));
            Ok(bytes < WAITING_BYTES)
        })?;
        self.is_at_end = count == 0;
        // What is missing at the end may be known now.
        if let Some(kept) = self.kept.as_mut().filter(|_| count == 0) {
            kept.sent(&self.reader, self.sent);
        }
        Ok(())
    }

    fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.waiting.pop_front()?;
        self.sent = self.sent.saturating_add(1);
        if let Some(kept) = &mut self.kept {
            kept.sent_one();
        }
        Some(waiting)
    }
}

/// Streams whose names match a pattern, at most [`SEVERAL_MAX`].
pub struct SeveralReader {
    dir: StreamDir,
    pattern: NamePattern,
    from: SeveralFrom,
    places: ReaderPlaces,
    /// By name.
    sources: Vec<Source>,
    opened: usize,
    /// Streams that could not be opened, and how often.
    failed: BTreeMap<StreamName, u32>,
    is_full: bool,
    warnings: Vec<SeveralWarning>,
    /// Records that were passed on and are not done with, in their order: the number of a stream, and of its records.
    runs: VecDeque<(usize, u64)>,
    sent: u64,
    took: u64,
}

impl std::fmt::Debug for SeveralReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SeveralReader")
            .field("pattern", &self.pattern)
            .field("streams", &self.sources.len())
            .finish_non_exhaustive()
    }
}

impl SeveralReader {
    /// Opens the streams that match. Those that cannot be read are warned of.
    ///
    /// # Errors
    ///
    /// If the directory cannot be read, or a stream that was opened.
    pub fn open(
        dir: &StreamDir,
        pattern: &NamePattern,
        from: SeveralFrom,
        places: &ReaderPlaces,
    ) -> Result<Self> {
        let mut reader = Self {
            dir: dir.clone(),
            pattern: pattern.clone(),
            from,
            places: places.clone(),
            sources: Vec::new(),
            opened: 0,
            failed: BTreeMap::new(),
            is_full: false,
            warnings: Vec::new(),
            runs: VecDeque::new(),
            sent: 0,
            took: 0,
        };
        reader.open_more()?;
        // What was being created is there by now.
        reader.open_more()?;
        if let SeveralFrom::Last(records) = reader.from {
            reader.seek_last(records)?;
        }
        // A stream that comes later is read from its first record on, or from its saved cursor on.
        if !matches!(reader.from, SeveralFrom::Kept(..)) {
            reader.from = SeveralFrom::Start;
        }
        Ok(reader)
    }

    /// Whether no stream is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// The number of matching streams that cannot be read.
    #[must_use]
    pub fn unreadable(&self) -> usize {
        self.failed.values().filter(|&&tries| tries > 1).count()
    }

    /// What there is to say of streams that are not read.
    pub fn take_warnings(&mut self) -> Vec<SeveralWarning> {
        std::mem::take(&mut self.warnings)
    }

    /// What could not be read so far, of all streams.
    #[must_use]
    pub fn unread(&self) -> Unread {
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

    /// Opens the streams that match and are not open yet. One that was just created may not be whole: it is tried twice.
    fn open_more(&mut self) -> Result<()> {
        for name in self.dir.names()? {
            let is_known = self.sources.iter().any(|source| source.name == name);
            let tries = self.failed.get(&name).copied();
            if is_known || tries > Some(1) || !self.pattern.matches(name.as_str()) {
                continue;
            }
            let is_room = self.sources.len() < SEVERAL_MAX;
            let Some(place) = is_room.then(|| self.places.take()).flatten() else {
                self.say_full(&name);
                break;
            };
            match self.open_one(&name) {
                Ok((reader, kept)) => {
                    self.failed.remove(&name);
                    self.sources.push(Source {
                        name,
                        number: self.opened,
                        reader,
                        waiting: VecDeque::new(),
                        is_at_end: false,
                        sent: 0,
                        took: 0,
                        kept,
                        _place: place,
                    });
                    self.opened += 1;
                }
                Err(error) => {
                    let tries = self.failed.entry(name.clone()).or_insert(0);
                    *tries += 1;
                    if *tries > 1 {
                        let warning = SeveralWarning::Unreadable(name, error);
                        self.warnings.push(warning);
                    }
                }
            }
        }
        // The order of those with records of the same time.
        self.sources.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(())
    }

    /// Says once that streams are left out.
    fn say_full(&mut self, name: &StreamName) {
        if !self.is_full {
            let pattern = self.pattern.as_str();
            let text = match self.sources.len() < SEVERAL_MAX {
                true => format!(
                    "{pattern}: {name} and later streams are not read: too many streams are read together here"
                ),
                false => format!(
                    "{pattern}: more than {SEVERAL_MAX} streams match: {name} and later ones are not read"
                ),
            };
            self.warnings.push(SeveralWarning::LeftOut(text));
        }
        self.is_full = true;
    }

    fn open_one(&self, name: &StreamName) -> Result<(StreamReader, Option<KeptCursor>)> {
        let mut reader = self.dir.read(name)?;
        match &self.from {
            SeveralFrom::Since(since_ns) => reader.seek_time(*since_ns)?,
            SeveralFrom::Start | SeveralFrom::Last(_) => reader.seek(Cursor::START, None),
            SeveralFrom::Kept(consumer, max) => {
                let kept = KeptCursor::open(&self.dir, (name, consumer), *max, &mut reader)?;
                return Ok((reader, Some(kept)));
            }
        }
        Ok((reader, None))
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

    /// Passes at most `max` of the records that are there now to `each`, in order of time, and of names if several have
    /// one time; their number. Fewer than that also if too many were not [taken](Self::took).
    ///
    /// # Errors
    ///
    /// If a stream cannot be read, or that of `each`.
    pub fn read<E: From<StreamError>>(
        &mut self,
        max: u64,
        mut each: impl FnMut(&StreamName, &Entry<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<u64, E> {
        let mut count = 0;
        while count < max && self.runs.len() < RUNS_MAX {
            for source in &mut self.sources {
                source.fill()?;
            }
            let waiting = self.sources.iter_mut();
            let waiting = waiting.filter(|source| !source.waiting.is_empty());
            let oldest =
                waiting.min_by_key(|source| source.waiting.front().map(|record| record.time_ns));
            let Some(source) = oldest else {
                break;
            };
            let Some(record) = source.pop() else {
                break;
            };
            each(&source.name, &record.entry())?;
            if source.kept.is_some() {
                match self.runs.back_mut() {
                    Some((number, records)) if *number == source.number => *records += 1,
                    _ => self.runs.push_back((source.number, 1)),
                }
            }
            count += 1;
            self.sent += 1;
        }
        Ok(count)
    }

    /// Whether the records that were passed on and are not done with are the most that are remembered: no more are read.
    #[must_use]
    pub fn is_ahead(&self) -> bool {
        self.runs.len() >= RUNS_MAX
    }

    /// The reader has done with this number of records in all; whether it can have that number.
    pub fn took(&mut self, records: u64) -> bool {
        if !(self.took..=self.sent).contains(&records) {
            return false;
        }
        let mut more = records - self.took;
        self.took = records;
        let mut counts = BTreeMap::<usize, u64>::new();
        while more > 0
            && let Some((number, run)) = self.runs.front_mut()
        {
            let of_run = more.min(*run);
            *counts.entry(*number).or_default() += of_run;
            more -= of_run;
            *run -= of_run;
            if *run == 0 {
                self.runs.pop_front();
            }
        }
        for source in &mut self.sources {
            if let Some(more) = counts.get(&source.number) {
                source.took += more;
            }
        }
        true
    }

    /// Saves the cursor of each stream after the records that the reader has done with; their number.
    ///
    /// # Errors
    ///
    /// If a cursor cannot be written.
    ///
    /// # Panics
    ///
    /// Never: each stream has passed on the records that were counted for it.
    pub fn save(&mut self) -> Result<u64> {
        for source in &mut self.sources {
            if let Some(kept) = &mut source.kept {
                let can_be = kept.took(source.took);
                assert!(
                    can_be,
                    "no more than was passed on, and no less than before"
                );
                kept.save()?;
            }
        }
        Ok(self.took)
    }

    /// Waits up to `limit` until there may be more, and looks at all streams again, also for new ones.
    ///
    /// # Errors
    ///
    /// As of [`SeveralReader::open`].
    pub fn look(&mut self, limit: Duration) -> Result<()> {
        match self.sources.first_mut() {
            Some(source) => source.reader.wait(limit),
            None => backoff(limit),
        }
        for source in &mut self.sources {
            source.reader.refresh()?;
            source.is_at_end = false;
        }
        self.open_more()
    }

    /// The number of records that were passed on.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }
}
