//! The file that lists a directory's stripes.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strata_store::{Disk, RealDisk};

use super::{NUMBER_MAX, Stripes};
use crate::stream::dir::StreamDir;
use crate::stream::error::{In as _, Result, StreamError};
use crate::stream::locks::Locks;
use crate::stream::pool::{MAP, MAP_LOCK, PAGES, Pool};

/// The file that lists stripes.
pub(in crate::stream) const LIST: &str = "stripes";
const LIST_BYTES_MAX: usize = 64 << 10;

/// A stripe, as the list has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::stream) struct Listed {
    /// From 1 on; pages are found by it.
    pub(super) number: u32,
    /// As its map has it, in hexadecimal.
    id: String,
    /// Its directory.
    pub(super) path: String,
}

impl Listed {
    pub(super) fn id(&self) -> Option<u64> {
        u64::from_str_radix(&self.id, 16).ok()
    }
}

impl StreamDir {
    /// Its stripes, but for itself.
    pub(in crate::stream) fn listed(&self) -> Result<Vec<Listed>> {
        if !self.disk.exists(LIST) {
            return Ok(Vec::new());
        }
        let named = || self.disk.display(LIST);
        let file = self.disk.open(LIST, false).in_file(named)?;
        let mut bytes = vec![0; LIST_BYTES_MAX];
        let read = file.read_at(&mut bytes, 0).in_file(named)?;
        let listed = serde_json::from_slice::<Vec<Listed>>(&bytes[..read]);
        let damaged = |problem| StreamError::Damaged {
            file: named(),
            problem,
        };
        let listed = listed.map_err(|error| damaged(format!("not a list of stripes: {error}")))?;
        let mut numbers = BTreeSet::new();
        for stripe in &listed {
            let is_valid = (1..=NUMBER_MAX).contains(&stripe.number) && stripe.id().is_some();
            if !is_valid || !numbers.insert(stripe.number) {
                let problem = format!(
                    "stripe {} needs a number of its own from 1 to {NUMBER_MAX}, and an id in hexadecimal",
                    stripe.path
                );
                return Err(damaged(problem));
            }
        }
        Ok(listed)
    }

    /// Stripes that cannot be used now, and why.
    ///
    /// # Errors
    ///
    /// If the list of stripes is damaged.
    pub fn gone_stripes(&self) -> Result<Vec<String>> {
        Ok(Stripes::open(self)?.gone())
    }

    /// Has pages go to a directory on another disk too, from now on. One that is a stripe of this directory
    /// already is found there from now on.
    ///
    /// # Errors
    ///
    /// If something else is there, or it cannot be written.
    pub fn add_stripe(&self, path: &Path) -> Result<()> {
        let named = || path.display().to_string();
        let disk = RealDisk::create_dir(path).in_file(named)?;
        let path = fs::canonicalize(path).in_file(named)?;
        let refuse = |problem: &str| StreamError::Damaged {
            file: path.display().to_string(),
            problem: format!("it cannot be a stripe: {problem}"),
        };
        let text = path
            .to_str()
            .ok_or_else(|| refuse("its path is not UTF-8"))?;
        if disk.exists(MAP) {
            return Err(refuse("it is a directory of streams itself"));
        }
        let found = Pool::stripe_on(&disk)?;
        if found.is_none() {
            let mut entries = fs::read_dir(&path).in_file(named)?;
            // A crash may have come between its two files.
            if entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != PAGES)) {
                return Err(refuse(
                    "it is not empty: name a new directory, on a disk of its own",
                ));
            }
        }
        self.list_stripe(Arc::new(disk), Locks::Files(path.clone()), text, found)
    }

    /// Lists a stripe, and makes its files unless they were `found`.
    pub(in crate::stream) fn list_stripe(
        &self,
        disk: Arc<dyn Disk>,
        locks: Locks,
        path: &str,
        found: Option<u64>,
    ) -> Result<()> {
        let named = || self.disk.display(LIST);
        let refuse = |problem: String| StreamError::Damaged {
            file: path.to_owned(),
            problem: format!("it cannot be a stripe: {problem}"),
        };
        let _lock = self.locks.wait(MAP_LOCK).in_file(named)?;
        let mut listed = self.listed()?;
        if let Some(id) = found {
            let known = listed.iter_mut().find(|stripe| stripe.id() == Some(id));
            let known = known.ok_or_else(|| refuse("it is one of another directory".to_owned()))?;
            path.clone_into(&mut known.path);
        } else {
            if let Some(other) = listed.iter().find(|stripe| stripe.path == path) {
                let id = &other.id;
                return Err(refuse(format!(
                    "stripe {id} belongs there, and is gone: is its disk mounted? If it is lost for good, \
                     take it out of {}",
                    named()
                )));
            }
            let last = listed.iter().map(|stripe| stripe.number).max();
            let number = last.map_or(1, |last| last + 1);
            if number > NUMBER_MAX {
                return Err(refuse(format!("{NUMBER_MAX} stripes at most")));
            }
            let mut random = [0; 8];
            getrandom::fill(&mut random)
                .map_err(io::Error::other)
                .in_file(named)?;
            let id = u64::from_le_bytes(random);
            Pool::create(disk, locks, self.pool.geometry, Some(id))?;
            listed.push(Listed {
                number,
                id: format!("{id:016x}"),
                path: path.to_owned(),
            });
        }
        let text = serde_json::to_vec_pretty(&listed).map_err(io::Error::from);
        self.disk
            .replace(LIST, &text.in_file(named)?)
            .in_file(named)
    }
}

/// The directories of a directory's stripes, for who has to be let in there.
pub(crate) fn stripe_paths(dir: &Path) -> Vec<PathBuf> {
    // If its list is damaged, who opens it says so.
    let listed = StreamDir::open(dir).and_then(|dir| dir.listed());
    let listed = listed.into_iter().flatten();
    listed.map(|stripe| stripe.path.into()).collect()
}
