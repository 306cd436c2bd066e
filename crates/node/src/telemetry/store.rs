//! A telemetry store: a directory with its description, its memory, and who writes it.
//!
//! ```text
//! telemetry.json   what lies where: made once, and kept
//! memory           the file that is mapped, of a fixed length
//! status.json      what the writer has counted, every second
//! lock             held by the process that writes
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use strata_dta::REDUNDANCY_MAX;
use strata_dta::append::{Cursor, End};
use strata_dta::key::Key;
use strata_dta::key_write::Agreement;
use strata_dta::postcarding::{Path as HopPath, Values};
use strata_sandbox::{Owner, make_log_dir};
use strata_sys::Growing;
use strata_sys::words::{Words, WordsMut};
use strata_wire::exact;

use super::candidates;
use super::plan::{Manifest, NamedList, Plan, TelemetryLayout};
use crate::error::{At as _, NodeError, Result, require};

/// The description.
pub(super) const MANIFEST: &str = "telemetry.json";
const MEMORY: &str = "memory";
/// What the writer has counted.
pub(super) const STATUS: &str = "status.json";
const LOCK: &str = "lock";
/// All that a store has.
const ENTRIES: [&str; 6] = [
    MANIFEST,
    "telemetry.json.new",
    MEMORY,
    STATUS,
    "status.json.new",
    LOCK,
];

/// Replaces a file of the store: readers find the old one or the new one, also after a loss of power
/// if it is `durable`.
pub(super) fn replace(dir: &Path, name: &str, text: &str, durable: bool) -> Result<()> {
    let new = dir.join(format!("{name}.new"));
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        if durable { file.sync_data() } else { Ok(()) }
    });
    written.at_with(|| new.display().to_string())?;
    let path = dir.join(name);
    fs::rename(&new, &path).at_with(|| path.display().to_string())
}

/// A store that this process writes, alone as long as it has this.
pub(super) struct Writing {
    pub(super) plan: Plan,
    pub(super) memory: WordsMut,
    /// Whether it existed.
    pub(super) continued: bool,
    /// Held as long as it is written.
    pub(super) lock: File,
}

impl Writing {
    /// Opens a store whose parameters agree with `layout`, or makes one.
    pub(super) fn open(
        dir: &Path,
        layout: &TelemetryLayout,
        lists: &[NamedList],
        owner: &Owner,
    ) -> Result<Self> {
        refuse_foreign(dir)?;
        make_log_dir(dir, MANIFEST, &ENTRIES, owner).at("cannot make the store")?;
        let named = dir.display();
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(dir.join(LOCK))
            .at_with(|| format!("{named}/{LOCK}"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                return Err(NodeError::Refused(format!(
                    "{named}: another process writes this store: end it first, or name another store"
                )));
            }
            Err(fs::TryLockError::Error(error)) => {
                return Err(error).at_with(|| format!("{named}/{LOCK}"));
            }
        }
        let description = fs::read_to_string(dir.join(MANIFEST));
        match description {
            Ok(text) => {
                let (manifest, plan) =
                    Manifest::parse(&text).at_with(|| format!("{named}/{MANIFEST}"))?;
                Self::continued(dir, layout, lists, lock, (manifest, plan))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Self::made(dir, layout, lists, lock)
            }
            Err(error) => Err(error).at_with(|| format!("{named}/{MANIFEST}")),
        }
    }

    fn continued(
        dir: &Path,
        layout: &TelemetryLayout,
        lists: &[NamedList],
        lock: File,
        (mut manifest, plan): (Manifest, Plan),
    ) -> Result<Self> {
        let named = dir.display();
        if let Some((option, wanted, there)) = layout.difference(&plan.parameters) {
            return Err(NodeError::Refused(format!(
                "{named}: this store was made with {option} {there}, not {wanted}: leave the option \
                 out to continue it, or name another store"
            )));
        }
        let path = dir.join(MEMORY);
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.at_with(|| path.display().to_string())?;
        let memory = map(&path, &file, &plan, WordsMut::map)?;
        if lists != manifest.lists {
            manifest.lists = lists.to_vec();
            replace(dir, MANIFEST, &pretty(&manifest), true)?;
        }
        Ok(Self {
            plan,
            memory,
            continued: true,
            lock,
        })
    }

    fn made(dir: &Path, layout: &TelemetryLayout, lists: &[NamedList], lock: File) -> Result<Self> {
        let random = || getrandom::u64().map_err(io::Error::other);
        let seed = [random()?, random()?];
        let parameters = layout.decided();
        let manifest = Manifest::new(seed, parameters, lists.to_vec())?;
        let plan = Plan::new(seed, parameters)?;
        let path = dir.join(MEMORY);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            // What a start that failed has left.
            .truncate(true)
            .open(&path)
            .at_with(|| path.display().to_string())?;
        // All of it now: a page that finds no space later would end the process.
        fallocate(&file, FallocateFlags::empty(), 0, plan.places.bytes)
            .map_err(io::Error::from)
            .at_with(|| {
                format!(
                    "{}: cannot reserve {} bytes of memory for the store (--memory)",
                    path.display(),
                    plan.places.bytes
                )
            })?;
        let memory = map(&path, &file, &plan, WordsMut::map)?;
        replace(dir, MANIFEST, &pretty(&manifest), true)?;
        Ok(Self {
            plan,
            memory,
            continued: false,
            lock,
        })
    }

    /// Where every list ends.
    pub(super) fn ends(&self) -> Result<Vec<End>> {
        let mut copy = Copied::new(&self.plan)?;
        let lists = 0..self.plan.append.lists();
        Ok(lists
            .map(|list| {
                copy.list(self.memory.words(), list, 0);
                self.plan.append.end(&copy.bytes, list)
            })
            .collect())
    }
}

fn pretty(manifest: &Manifest) -> String {
    serde_json::to_string_pretty(manifest).expect("a description is plain data")
}

/// Fails if the directory holds something other than a store.
fn refuse_foreign(dir: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Ok(());
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    let foreign = names
        .into_iter()
        .find(|name| ENTRIES.iter().all(|ours| name != ours));
    match foreign {
        Some(foreign) if !dir.join(MANIFEST).exists() => Err(NodeError::Refused(format!(
            "{}: holds {foreign:?} and is no telemetry store: name an empty directory or one that \
             does not exist yet",
            dir.display()
        ))),
        _ => Ok(()),
    }
}

fn map<T>(
    path: &Path,
    file: &File,
    plan: &Plan,
    map: impl FnOnce(&File, usize) -> io::Result<T>,
) -> Result<T> {
    let named = || path.display().to_string();
    let len = file.metadata().at_with(named)?.len();
    let needed = plan.places.bytes;
    require(len >= needed, || {
        format!(
            "{}: has {len} bytes, and its description says {needed}: it is damaged",
            named()
        )
    })?;
    map(file, exact::<usize>(needed)).at_with(named)
}

/// Copies of those parts of a store that a query needs, at the places where they are in the store:
/// the memory itself changes while it is looked at. Its pages are taken as they are used.
struct Copied {
    plan: Plan,
    bytes: Growing<u8>,
}

impl Copied {
    fn new(plan: &Plan) -> Result<Self> {
        let len = exact::<usize>(plan.places.bytes);
        let bytes = Growing::new(len, len).at("cannot reserve address space for a copy")?;
        Ok(Self {
            plan: plan.clone(),
            bytes,
        })
    }

    fn copy(&mut self, words: &Words, at: u64, len: usize) {
        let at = exact::<usize>(at);
        words.read(at, &mut self.bytes[at..at + len]);
    }

    /// The ring of a list, from the slot before that of batch `next` back to it: so of two batches, if
    /// the later one is there, the earlier one is too.
    fn list(&mut self, words: &Words, list: u32, next: u64) {
        let places = self.plan.places;
        let slots = u64::from(places.append_slots);
        let ring = places.append_at + u64::from(list) * slots * places.append_slot_bytes;
        let len = exact::<usize>(places.append_slot_bytes);
        for ahead in (0..slots).rev() {
            let slot = (next % slots + ahead) % slots;
            self.copy(words, ring + slot * places.append_slot_bytes, len);
        }
    }
}

/// A value that a key has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The value.
    pub data: Vec<u8>,
    /// Copies that hold it, at least.
    pub agreeing: u8,
}

/// What was added for a key.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Counted {
    /// At most this.
    pub at_most: u64,
    /// By so much it may be too large.
    pub excess_max: f64,
    /// With this probability, by more.
    pub doubt: f64,
}

/// A store that is read, whether a process writes it or not.
pub struct TelemetryStore {
    dir: PathBuf,
    plan: Plan,
    words: Words,
    copied: Copied,
    lists: Vec<NamedList>,
    values: Option<Values>,
}

impl std::fmt::Debug for TelemetryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TelemetryStore({})", self.dir.display())
    }
}

impl TelemetryStore {
    /// Opens a store for reading.
    ///
    /// # Errors
    ///
    /// If there is none, it is damaged, or cannot be read.
    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join(MANIFEST);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(NodeError::Refused(format!(
                    "{}: no telemetry store: `strata telemetry run -o` makes one",
                    dir.display()
                )));
            }
            read => read.at_with(|| path.display().to_string())?,
        };
        let (mut manifest, plan) = Manifest::parse(&text).at_with(|| path.display().to_string())?;
        manifest
            .lists
            .retain(|list| list.number < plan.append.lists());
        let path = dir.join(MEMORY);
        let file = File::open(&path).at_with(|| path.display().to_string())?;
        let words = map(&path, &file, &plan, Words::map)?;
        Ok(Self {
            dir: dir.to_owned(),
            copied: Copied::new(&plan)?,
            plan,
            words,
            lists: manifest.lists,
            values: None,
        })
    }

    /// The value of a key, written with up to `redundancy` copies, if at least `agree` of those that
    /// are left hold it, and fewer any other.
    ///
    /// # Panics
    ///
    /// If the redundancy is not 1 to 4.
    pub fn value(&mut self, key: &Key, redundancy: u8, agree: u8) -> Option<Found> {
        let hash = self.plan.hasher.hash(key.bytes());
        let places = self.plan.places;
        let len = exact::<usize>(places.key_write_slot_bytes);
        for n in 0..redundancy {
            let slot = hash.place(n, places.key_write_slots);
            let at = places.key_write_at + slot * places.key_write_slot_bytes;
            self.copied.copy(&self.words, at, len);
        }
        let get = |agreement| {
            let store = &self.plan.key_write;
            store.get(&self.copied.bytes, hash, redundancy, agreement)
        };
        let data = get(Agreement::AtLeast(agree.max(1)))?;
        let agreeing = (1..=REDUNDANCY_MAX).rev();
        let agreeing = agreeing.filter(|&least| get(Agreement::AtLeast(least)).is_some());
        Some(Found {
            data: data.to_vec(),
            agreeing: agreeing.max().expect("one at least agrees"),
        })
    }

    /// What was added for a key.
    #[must_use]
    pub fn count(&self, key: &Key) -> u64 {
        let hash = self.plan.hasher.hash(key.bytes());
        candidates::count(&self.plan, &self.words, hash)
    }

    /// [`TelemetryStore::count`] with its bound, for which all counters are read.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a bound need not be exact")]
    pub fn count_bounded(&self, key: &Key) -> Counted {
        let places = self.plan.places;
        let counters = (0..u64::from(places.key_increment_counters)).map(|n| {
            let at = exact::<usize>(places.key_increment_at + n * 8);
            u64::from_ne_bytes(self.words.word(at))
        });
        let sum = counters.fold(0, u64::saturating_add);
        let mean = sum as f64 / f64::from(places.key_increment_counters);
        Counted {
            at_most: self.count(key),
            excess_max: std::f64::consts::E * mean,
            doubt: (-f64::from(self.plan.parameters.redundancy)).exp(),
        }
    }

    /// What the hops of a flow's path reported.
    pub fn path(&mut self, key: &Key) -> Option<HopPath> {
        let hash = self.plan.hasher.hash(key.bytes());
        let places = self.plan.places;
        let len = exact::<usize>(places.postcarding_chunk_bytes);
        for n in 0..self.plan.parameters.redundancy {
            let chunk = hash.place(n, places.postcarding_chunks);
            let at = places.postcarding_at + chunk * places.postcarding_chunk_bytes;
            self.copied.copy(&self.words, at, len);
        }
        let plan = &self.plan;
        let values = self.values.get_or_insert_with(|| plan.values());
        plan.postcarding.get(&self.copied.bytes, hash, values)
    }

    /// Keys of Key-Increment with the largest counts, of those that the writer has met often.
    #[must_use]
    pub fn top(&self, count: usize) -> Vec<(Key, u64)> {
        let keys = candidates::keys(&self.words);
        let mut all: Vec<_> = keys.map(|key| (key, self.count(&key))).collect();
        all.sort_by(|(a, m), (b, n)| n.cmp(m).then_with(|| a.bytes().cmp(b.bytes())));
        all.truncate(count);
        all
    }

    /// Lists that have names.
    #[must_use]
    pub fn lists(&self) -> &[NamedList] {
        &self.lists
    }

    /// Lists in all.
    #[must_use]
    pub fn lists_len(&self) -> u32 {
        self.plan.append.lists()
    }

    /// Bytes of an entry.
    #[must_use]
    pub fn entry_bytes(&self) -> usize {
        self.plan.parameters.entry_bytes
    }

    /// A place before the oldest entry of a list that is still there.
    ///
    /// # Panics
    ///
    /// If there is no such list.
    #[must_use]
    pub fn cursor(&self, list: u32) -> TelemetryCursor {
        assert!(list < self.lists_len(), "a list of the store");
        TelemetryCursor {
            list,
            cursor: Cursor::new(list),
        }
    }

    /// Gives all entries after a place to `entry`; returns how many were overwritten before they
    /// were read, or never arrived.
    pub fn read(&mut self, cursor: &mut TelemetryCursor, mut entry: impl FnMut(&[u8])) -> u64 {
        let next = cursor.cursor.next().batches;
        self.copied.list(&self.words, cursor.list, next);
        let mut missed = 0;
        let store = &self.plan.append;
        while let Some(read) = cursor.cursor.read(store, &self.copied.bytes, &mut entry) {
            missed += read.missed;
        }
        missed
    }

    /// What the writer has counted until a second ago, as JSON; `None` if none has run.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn status(&self) -> Result<Option<String>> {
        let path = self.dir.join(STATUS);
        match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some).at_with(|| path.display().to_string()),
        }
    }
}

/// A reader's place in a list.
#[derive(Clone, Copy, Debug)]
pub struct TelemetryCursor {
    list: u32,
    cursor: Cursor,
}
