//! A telemetry store: a directory with its description, its memory, and who writes it. Who asks it
//! is in `reader`.
//!
//! ```text
//! telemetry.json   what lies where: made once, and kept
//! memory           the file that is mapped, of a fixed length
//! status.json      what the writer has counted, every second
//! lock             held by the process that writes
//! ```

pub(crate) mod candidates;
pub(crate) mod counted;
pub(crate) mod fading;
pub(crate) mod generations;
pub(crate) mod plan;
pub(crate) mod reader;
pub(crate) mod share;
pub(crate) mod sink;
pub(crate) mod witnesses;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};
use strata_dta::append::End;
use strata_role::{At as _, Result, RoleError, require};
use strata_sandbox::{Owner, make_log_dir};
use strata_sys::words::{Words, WordsMut};
use strata_sys::{Growing, pause};
use strata_wire::exact;

use crate::store::plan::{Manifest, NamedList, Plan, TelemetryLayout};

/// The description.
pub(super) const MANIFEST: &str = "telemetry.json";
/// The memory itself.
pub(super) const MEMORY: &str = "memory";
/// Copies of parts of the memory may use this much, and as much again for a query.
const COPIED_MAX: usize = 64 << 20;
const PAGE_BYTES: usize = 4096;
/// What the writer has counted.
pub(super) const STATUS: &str = "status.json";
const LOCK: &str = "lock";
/// How many times the lock is tried, and the wait after each.
const LOCK_TRIES: u32 = 5;
const LOCK_WAIT: Duration = Duration::from_millis(20);
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

/// A store's directory that this process may write, alone as long as it has this.
pub(super) struct Locked {
    /// Held as long as it is written.
    pub(super) lock: File,
    /// What is there already.
    pub(super) found: Option<(Manifest, Plan)>,
}

impl Locked {
    /// Makes the directory, if need be, and locks it.
    pub(super) fn open(dir: &Path, owner: &Owner) -> Result<Self> {
        refuse_foreign(dir)?;
        make_log_dir(dir, MANIFEST, &ENTRIES, owner).at("cannot create the store")?;
        let named = dir.display();
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(dir.join(LOCK))
            .at_with(|| format!("{named}/{LOCK}"))?;
        let is_locked = take(&lock).at_with(|| format!("{named}/{LOCK}"))?;
        if !is_locked {
            return Err(RoleError::Refused(format!(
                "{named}: another process writes this store: end it first, or name another store"
            )));
        }
        let found = match fs::read_to_string(dir.join(MANIFEST)) {
            Ok(text) => Some(Manifest::parse(&text).at_with(|| format!("{named}/{MANIFEST}"))?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).at_with(|| format!("{named}/{MANIFEST}")),
        };
        Ok(Self { lock, found })
    }
}

/// Takes the lock; false if another process has it. One that only checks it ([`telemetry_is_written`])
/// holds it for an instant, so it is tried again.
fn take(lock: &File) -> io::Result<bool> {
    for _ in 0..LOCK_TRIES {
        match lock.try_lock() {
            Ok(()) => return Ok(true),
            Err(fs::TryLockError::WouldBlock) => pause::backoff(LOCK_WAIT),
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(false)
}

impl Writing {
    /// Opens a store whose parameters agree with `layout`, or makes one.
    pub(super) fn open(
        dir: &Path,
        layout: &TelemetryLayout,
        lists: &[NamedList],
        owner: &Owner,
    ) -> Result<Self> {
        let Locked { lock, found } = Locked::open(dir, owner)?;
        if let Some((mut manifest, plan)) = found {
            agree(&dir.display().to_string(), layout, &plan)?;
            if let Some(share) = manifest.share.filter(|share| share.of > 1) {
                return Err(RoleError::Refused(format!(
                    "{}: this is the store of collector {share} of a translator, with only its \
                     share of the keys and lists: continue it with `strata telemetry collect`, or \
                     name another store",
                    dir.display()
                )));
            }
            let is_new = manifest.lists != lists;
            manifest.lists = lists.to_vec();
            let memory = continued(dir, &manifest, &plan, is_new)?;
            return Ok(Self {
                plan,
                memory,
                continued: true,
                lock,
            });
        }
        let manifest = new_manifest(layout, lists)?;
        let plan = manifest.plan()?;
        Ok(Self {
            memory: made(dir, &manifest, &plan)?,
            plan,
            continued: false,
            lock,
        })
    }
}

/// The memory of a store, for reading.
pub(super) fn mapped(dir: &Path, plan: &Plan) -> Result<Words> {
    let path = dir.join(MEMORY);
    let file = File::open(&path).at_with(|| path.display().to_string())?;
    map(&path, &file, plan, Words::map)
}

/// Where every list ends.
///
/// Read through a mapping of its own: a page that the writer's mapping has read is mapped for reading
/// there, so its first write has to unmap it everywhere. That interrupts all CPUs on which this
/// process runs, and has taken 2 ms in a virtual machine.
pub(super) fn ends(dir: &Path, plan: &Plan) -> Result<Vec<End>> {
    let words = mapped(dir, plan)?;
    let mut copy = Copied::new(plan)?;
    let lists = 0..plan.append.lists();
    Ok(lists
        .map(|list| {
            copy.list(&words, list, 0);
            plan.append.end(&copy.bytes, list)
        })
        .collect())
}

/// Fails if the options that are given are not those of a store that exists.
pub(super) fn agree(named: &str, layout: &TelemetryLayout, plan: &Plan) -> Result<()> {
    match layout.difference(&plan.parameters) {
        Some((option, wanted, there)) => Err(RoleError::Refused(format!(
            "{named}: this store was made with {option} {there}, not {wanted}: leave the option \
             out to continue it, or name another store"
        ))),
        None => Ok(()),
    }
}

/// Describes a store that does not exist yet.
pub(super) fn new_manifest(layout: &TelemetryLayout, lists: &[NamedList]) -> Result<Manifest> {
    let random = || getrandom::u64().map_err(io::Error::other);
    Manifest::new([random()?, random()?], layout.decided(), lists.to_vec())
}

/// The memory of a store that exists; its description is replaced if it `is_new`.
pub(super) fn continued(
    dir: &Path,
    manifest: &Manifest,
    plan: &Plan,
    is_new: bool,
) -> Result<WordsMut> {
    let path = dir.join(MEMORY);
    let file = OpenOptions::new().read(true).write(true).open(&path);
    let file = file.at_with(|| path.display().to_string())?;
    let memory = map(&path, &file, plan, WordsMut::map)?;
    // It may have been copied by a program that leaves zeros out.
    reserve(&path, &file, plan)?;
    if is_new {
        replace(dir, MANIFEST, &pretty(manifest), true)?;
    }
    Ok(memory)
}

/// Makes a store.
pub(super) fn made(dir: &Path, manifest: &Manifest, plan: &Plan) -> Result<WordsMut> {
    let path = dir.join(MEMORY);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        // What a start that failed has left.
        .truncate(true)
        .open(&path)
        .at_with(|| path.display().to_string())?;
    let made = reserve(&path, &file, plan).and_then(|()| {
        let mut memory = map(&path, &file, plan, WordsMut::map)?;
        for generation in 0..plan.parameters.generations {
            candidates::empty(plan, &mut memory, generation);
        }
        replace(dir, MANIFEST, &pretty(manifest), true)?;
        Ok(memory)
    });
    if made.is_err() {
        // What could be had of it is not kept from others.
        let _ = fs::remove_file(&path);
    }
    made
}

/// Has the file system find a place for all of the memory now: a page that finds none later would end
/// the process.
fn reserve(path: &Path, file: &File, plan: &Plan) -> Result<()> {
    let bytes = plan.places.bytes;
    fallocate(file, FallocateFlags::empty(), 0, bytes)
        .map_err(io::Error::from)
        .at_with(|| {
            format!(
                "{}: cannot reserve {bytes} bytes for the store's memory: make room there, or give a \
                 new store a smaller --store-memory",
                path.display(),
            )
        })
}

/// The directory of a translator that has its collectors elsewhere: what it counts, and a lock.
pub(super) fn counting(dir: &Path, owner: &Owner) -> Result<File> {
    let named = dir.display();
    require(!dir.join(MANIFEST).exists(), || {
        format!(
            "{named}: this directory holds a telemetry store, and with --collector, reports go \
             into the stores of the collectors: name another directory, for the counters only"
        )
    })?;
    Ok(Locked::open(dir, owner)?.lock)
}

/// The counters of the writer of a store, or of a translator, at most about a second old, as JSON; `None` if neither
/// has run.
///
/// # Errors
///
/// If there is no such directory, or it cannot be read.
pub fn telemetry_status(dir: &Path) -> Result<Option<String>> {
    let path = dir.join(STATUS);
    match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Says what is wrong if there is no store.
            require(dir.join(LOCK).exists(), || no_store(dir))?;
            Ok(None)
        }
        read => read.map(Some).at_with(|| path.display().to_string()),
    }
}

/// Whether a process writes a store now, or counts as a translator; `None` if that cannot be seen. A process that ends
/// properly says so in its status before this is false: call it first.
#[must_use]
pub fn telemetry_is_written(dir: &Path) -> Option<bool> {
    let lock = File::open(dir.join(LOCK)).ok()?;
    // Shared, so that several can ask at the same time.
    match lock.try_lock_shared() {
        Ok(()) => Some(false),
        Err(fs::TryLockError::WouldBlock) => Some(true),
        Err(fs::TryLockError::Error(_)) => None,
    }
}

/// Why there is no store in a directory.
pub(super) fn no_store(dir: &Path) -> String {
    let named = dir.display();
    match dir.join(STATUS).exists() {
        true => format!(
            "{named}: no store yet, or the directory of a translator, whose reports are with its \
             collectors: query the stores there (`strata telemetry status` names the collectors)"
        ),
        false => format!("{named}: no telemetry store: `strata telemetry run -o` makes one"),
    }
}

/// A description as it is in its file.
pub(super) fn pretty(manifest: &Manifest) -> String {
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
        Some(foreign) if !dir.join(MANIFEST).exists() => Err(RoleError::Refused(format!(
            "{}: this directory holds {foreign:?} and is not a telemetry store: name an empty \
             directory or one that does not exist yet",
            dir.display()
        ))),
        _ => Ok(()),
    }
}

/// Maps the memory of a store, which must be as long as its description says.
pub(super) fn map<T>(
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
            "{}: this file has {len} bytes, but its description says {needed}: it is damaged",
            named()
        )
    })?;
    map(file, exact::<usize>(needed))
        .at_with(|| format!("{}: cannot map its {needed} bytes (ulimit -v?)", named()))
}

/// Copies of those parts of a store that a query needs, at the places where they are in the store:
/// the memory itself changes while it is looked at. Its pages are taken as they are used.
pub(super) struct Copied {
    plan: Plan,
    pub(super) bytes: Growing<u8>,
    /// Maximum bytes of the pages that were used.
    used: usize,
}

impl Copied {
    pub(super) fn new(plan: &Plan) -> Result<Self> {
        let len = exact::<usize>(plan.places.bytes);
        let bytes = Growing::new(len, len).at("cannot reserve address space for a copy")?;
        Ok(Self {
            plan: plan.clone(),
            bytes,
            used: 0,
        })
    }

    /// Gives memory back, if much of it is used: between queries, of which none needs what was
    /// copied for another. So a process that answers queries for long does not become as large as
    /// the store.
    pub(super) fn tidy(&mut self) {
        // Without address space for another one, the old one does.
        if self.used > COPIED_MAX
            && let Ok(fresh) = Self::new(&self.plan)
        {
            *self = fresh;
        }
    }

    /// Copies these bytes.
    pub(super) fn copy(&mut self, words: &Words, at: u64, len: usize) {
        let at = exact::<usize>(at);
        words.read(at, &mut self.bytes[at..at + len]);
        self.used += len + PAGE_BYTES;
    }

    /// The slots of a list's latest batches, that many at most; the number of the first of them.
    pub(super) fn latest(&mut self, words: &Words, list: u32, batches: u64) -> u64 {
        let places = self.plan.places;
        let slots = u64::from(places.append_slots);
        let ring = places.append_at + u64::from(list) * slots * places.append_slot_bytes;
        let at = |slot: u64| ring + slot * places.append_slot_bytes;
        let len = exact::<usize>(places.append_slot_bytes);
        // A slot begins with 1 + the number of its batch.
        let next = (0..slots).map(|slot| u64::from_le_bytes(words.word(exact(at(slot)))));
        let next = next.max().expect("a list has slots");
        let first = next.saturating_sub(batches.min(slots));
        for batch in (first..next).rev() {
            self.copy(words, at(batch % slots), len);
        }
        first
    }

    /// The ring of a list, from the slot before that of batch `next` back to it: so of two batches, if
    /// the later one is there, the earlier one is too.
    pub(super) fn list(&mut self, words: &Words, list: u32, next: u64) {
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
