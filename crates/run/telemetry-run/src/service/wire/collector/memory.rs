//! The store of a collector, and its memory as an RDMA NIC would write it.

use strata_rdma::{Memory, Refused};
use strata_sys::words::WordsMut;

use crate::store::plan::{Manifest, Plan};

/// A region.
pub(super) enum Kept {
    /// The store.
    Store(Written),
    /// The ring of immediate reports.
    Events(Vec<u8>),
}

impl Memory for Kept {
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Refused> {
        match self {
            Self::Store(memory) => memory.write(at, bytes),
            Self::Events(memory) => memory.write(at, bytes),
        }
    }

    fn update(&mut self, at: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, Refused> {
        match self {
            Self::Store(memory) => memory.update(at, change),
            Self::Events(_) => Err(Refused),
        }
    }
}

/// Memory that is written by RDMA: whole words of 8 bytes, each of which readers find whole.
pub(super) struct Written(pub(super) WordsMut);

impl Memory for Written {
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Refused> {
        let at = self.inside(at, bytes.len())?;
        self.0.write(at, bytes);
        Ok(())
    }

    fn update(&mut self, at: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, Refused> {
        let at = self.inside(at, 8)?;
        let before = u64::from_ne_bytes(self.0.words().word(at));
        self.0.store(at, change(before));
        Ok(before)
    }
}

/// To be cleared, which is the collector's own work.
impl strata_dta::Memory for Written {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.0.write(at, bytes);
    }

    fn load(&self, at: usize) -> [u8; 8] {
        self.0.words().word(at)
    }

    fn store(&mut self, at: usize, word: u64) {
        self.0.store(at, word);
    }

    fn add(&mut self, at: usize, add: u64) -> u64 {
        self.0.add(at, add)
    }

    fn prefetch(&self, at: usize) {
        self.0.words().prefetch(at);
    }
}

impl Written {
    /// A translator writes nothing else than whole words.
    fn inside(&self, at: u64, len: usize) -> Result<usize, Refused> {
        let at = usize::try_from(at).map_err(|_| Refused)?;
        let end = at.checked_add(len).ok_or(Refused)?;
        let is_whole = at.is_multiple_of(8) && len.is_multiple_of(8);
        match is_whole && end <= self.0.words().len() {
            true => Ok(at),
            false => Err(Refused),
        }
    }
}

/// The store, once there is one.
pub(super) struct Store {
    pub(super) manifest: Manifest,
    pub(super) plan: Plan,
    /// While no translator is connected; else it is the responder's.
    pub(super) memory: Option<Written>,
}

impl Store {
    pub(super) fn new(manifest: Manifest, plan: Plan, memory: WordsMut) -> Self {
        Self {
            manifest,
            plan,
            memory: Some(Written(memory)),
        }
    }
}
