//! A disk in memory that drops what was not synced.

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use strata_store::{Disk, DiskFile};
use strata_wire::mix64;

/// What a real disk writes atomically.
const SECTOR: usize = 512;

#[derive(Clone, Debug, Default)]
struct Content {
    /// What survives a crash for certain.
    durable: Vec<u8>,
    /// What reads return.
    current: Vec<u8>,
    /// Written since the last sync: offset and length.
    pending: Vec<(usize, usize)>,
    bytes_read: u64,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<String, Content>,
    operations: u64,
    crash_at: Option<u64>,
    /// Which operations fail, and with what error.
    failing: Option<(Range<u64>, io::ErrorKind)>,
    in_flight: usize,
    is_unplugged: bool,
    locked: bool,
    compacting: bool,
    readers: u32,
}

impl State {
    fn reached(&self) -> io::Result<()> {
        match self.is_unplugged {
            true => Err(io::Error::other("the virtual disk is unplugged")),
            false => Ok(()),
        }
    }

    /// Counts an operation that changes the disk; an error after the simulated power loss.
    fn step(&mut self) -> io::Result<()> {
        self.reached()?;
        self.operations += 1;
        if self.crash_at.is_some_and(|at| self.operations > at) {
            return Err(io::Error::other("the virtual disk has lost power"));
        }
        match &self.failing {
            Some((which, kind)) if which.contains(&self.operations) => Err((*kind).into()),
            _ => Ok(()),
        }
    }
}

/// A virtual disk. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

impl SimDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every change after the first `operations` fails.
    pub fn crash_after(&self, operations: u64) {
        self.state().crash_at = Some(operations);
    }

    /// Of the changes from now on, only the `operation`th fails, for lack of space.
    pub fn fail_once(&self, operation: u64) {
        self.fail(operation, 1, io::ErrorKind::StorageFull);
    }

    /// Of the changes from now on, `count` fail, starting with the `operation`th.
    pub fn fail(&self, operation: u64, count: u64, kind: io::ErrorKind) {
        let mut state = self.state();
        let first = state.operations.saturating_add(operation);
        state.failing = Some((first..first.saturating_add(count), kind));
    }

    /// Takes the disk away: it has no files, and those that are open fail; or brings it back as it was.
    pub fn unplug(&self, is_unplugged: bool) {
        self.state().is_unplugged = is_unplugged;
    }

    /// Allows this many blocks in flight at a time.
    pub fn set_in_flight(&self, blocks: usize) {
        self.state().in_flight = blocks;
    }

    /// Changes so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// The disk as found after a power loss now: each unsynced sector is there or not, depending on
    /// `seed`.
    #[must_use]
    pub fn after_power_loss(&self, seed: u64) -> Self {
        let state = self.state();
        let mut draw = seed;
        let mut files = BTreeMap::new();
        for (name, content) in &state.files {
            let mut survived = content.durable.clone();
            for &(offset, len) in &content.pending {
                for start in (offset..offset + len).step_by(SECTOR) {
                    draw = mix64(draw.wrapping_add(0x9e37_79b9_7f4a_7c15));
                    let end = (start + SECTOR)
                        .min(offset + len)
                        .min(content.current.len());
                    if draw & 1 == 0 || start >= end {
                        continue;
                    }
                    if survived.len() < end {
                        survived.resize(end, 0);
                    }
                    survived[start..end].copy_from_slice(&content.current[start..end]);
                }
            }
            let content = Content {
                durable: survived.clone(),
                current: survived,
                pending: Vec::new(),
                bytes_read: 0,
            };
            files.insert(name.clone(), content);
        }
        Self {
            state: Arc::new(Mutex::new(State {
                files,
                ..State::default()
            })),
        }
    }

    /// The disk as a process finds it that starts after another was killed now: all that was written is there, and what
    /// was not synced can still be lost. This one stays as it is for the process that was killed.
    #[must_use]
    pub fn after_kill(&self) -> Self {
        let files = self.state().files.clone();
        Self {
            state: Arc::new(Mutex::new(State {
                files,
                ..State::default()
            })),
        }
    }

    /// Flips one bit of a file, as a failing disk would.
    ///
    /// # Panics
    ///
    /// If the file has no such byte.
    pub fn flip_bit(&self, name: &str, byte: usize, bit: u8) {
        let mut state = self.state();
        let content = state.files.get_mut(name).expect("the file exists");
        content.current[byte] ^= 1 << (bit % 8);
        content.durable = content.current.clone();
    }

    /// Bytes read from a file, counting repeats; 0 if it does not exist.
    #[must_use]
    pub fn bytes_read(&self, name: &str) -> u64 {
        self.state()
            .files
            .get(name)
            .map_or(0, |content| content.bytes_read)
    }

    /// Names of all files.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.state().files.keys().cloned().collect()
    }
}

fn not_found(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no file {name}"))
}

impl Disk for SimDisk {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        state.step()?;
        if state.files.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.files.insert(name.to_owned(), Content::default());
        drop(state);
        self.open(name, true)
    }

    fn in_flight(&self) -> usize {
        self.state().in_flight.max(1)
    }

    fn open(&self, name: &str, _writable: bool) -> io::Result<Box<dyn DiskFile>> {
        if !self.exists(name) {
            return Err(not_found(name));
        }
        Ok(Box::new(SimFile {
            disk: self.clone(),
            name: name.to_owned(),
        }))
    }

    fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        let content = Content {
            durable: content.to_vec(),
            current: content.to_vec(),
            pending: Vec::new(),
            bytes_read: 0,
        };
        state.files.insert(name.to_owned(), content);
        Ok(())
    }

    fn exists(&self, name: &str) -> bool {
        let state = self.state();
        !state.is_unplugged && state.files.contains_key(name)
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Any + Send>>> {
        let mut state = self.state();
        if std::mem::replace(&mut state.locked, true) {
            return Ok(None);
        }
        Ok(Some(Box::new(SimLock(self.clone()))))
    }

    fn lock_for_compacting(&self) -> io::Result<Option<Box<dyn Any + Send>>> {
        let mut state = self.state();
        if std::mem::replace(&mut state.compacting, true) {
            return Ok(None);
        }
        Ok(Some(Box::new(SimCompaction(self.clone()))))
    }

    fn lock_for_reading(&self) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        self.state().readers += 1;
        Ok(Some(Box::new(SimReader(self.clone()))))
    }

    fn lock_for_deleting(&self) -> io::Result<Option<Box<dyn Any + Send>>> {
        // No thread starts reading during this one call.
        let free = self.state().readers == 0;
        Ok(free.then(|| Box::new(()) as Box<dyn Any + Send>))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        state.files.remove(name);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        let content = state.files.remove(from).ok_or_else(|| not_found(from))?;
        state.files.insert(to.to_owned(), content);
        Ok(())
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let state = self.state();
        let within = |name: &String| {
            let rest = name.strip_prefix(dir)?.strip_prefix('/')?;
            (!rest.contains('/')).then(|| rest.to_owned())
        };
        Ok(state.files.keys().filter_map(within).collect())
    }

    fn display(&self, name: &str) -> String {
        name.to_owned()
    }
}

struct SimCompaction(SimDisk);

impl Drop for SimCompaction {
    fn drop(&mut self) {
        self.0.state().compacting = false;
    }
}

struct SimReader(SimDisk);

impl Drop for SimReader {
    fn drop(&mut self) {
        self.0.state().readers -= 1;
    }
}

struct SimLock(SimDisk);

impl Drop for SimLock {
    fn drop(&mut self) {
        self.0.state().locked = false;
    }
}

struct SimFile {
    disk: SimDisk,
    name: String,
}

fn to_usize(offset: u64) -> io::Result<usize> {
    usize::try_from(offset).map_err(io::Error::other)
}

impl DiskFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.disk.state();
        state.reached()?;
        let content = state
            .files
            .get_mut(&self.name)
            .ok_or_else(|| not_found(&self.name))?;
        let from = content.current.get(to_usize(offset)?..).unwrap_or(&[]);
        let len = from.len().min(buffer.len());
        buffer[..len].copy_from_slice(&from[..len]);
        content.bytes_read += len as u64;
        Ok(len)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let offset = to_usize(offset)?;
        let mut state = self.disk.state();
        state.step()?;
        let content = state
            .files
            .get_mut(&self.name)
            .ok_or_else(|| not_found(&self.name))?;
        let end = offset + bytes.len();
        if content.current.len() < end {
            content.current.resize(end, 0);
        }
        content.current[offset..end].copy_from_slice(bytes);
        content.pending.push((offset, bytes.len()));
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        let content = state
            .files
            .get_mut(&self.name)
            .ok_or_else(|| not_found(&self.name))?;
        let len = content.current.len().max(content.durable.len());
        content.durable.resize(len, 0);
        for (offset, len) in content.pending.drain(..) {
            let written = offset..offset + len;
            content.durable[written.clone()].copy_from_slice(&content.current[written]);
        }
        Ok(())
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        let len = to_usize(len)?;
        let mut state = self.disk.state();
        state.step()?;
        let content = state
            .files
            .get_mut(&self.name)
            .ok_or_else(|| not_found(&self.name))?;
        content.current.resize(len, 0);
        content.durable = content.current.clone();
        content.pending.clear();
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        let state = self.disk.state();
        state.reached()?;
        let content = state
            .files
            .get(&self.name)
            .ok_or_else(|| not_found(&self.name))?;
        Ok(content.current.len() as u64)
    }
}
