//! What is done on disk before a translator may write: on a thread of its own, since a disk may take
//! long, and the collector goes on to answer others and to be ended.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread::JoinHandle;

use strata_dta::append::End;
use strata_role::Result;

use super::memory::Store;
use crate::store::plan::{Manifest, Plan};
use crate::store::{MANIFEST, ends, made, pretty, replace};

/// A store that is being prepared.
pub(super) struct Preparing {
    /// For this translator.
    pub(super) peer: SocketAddr,
    pub(super) thread: JoinHandle<Result<Prepared>>,
}

/// What is to be done.
pub(super) enum What {
    /// Make the store.
    Make,
    /// Replace its description.
    Describe,
    /// Only look where lists end.
    Read,
}

/// What a thread is to do.
pub(super) struct Order {
    pub(super) dir: PathBuf,
    pub(super) manifest: Manifest,
    pub(super) plan: Plan,
    pub(super) what: What,
}

/// What is new of the store.
pub(super) enum New {
    /// All of it.
    Store(Box<Store>),
    /// Its description.
    Manifest(Box<Manifest>),
}

/// What a thread did.
pub(super) struct Prepared {
    pub(super) new: Option<New>,
    /// Where every list ends.
    pub(super) ends: Vec<End>,
}

impl Order {
    /// Does it.
    pub(super) fn prepare(self) -> Result<Prepared> {
        let Self {
            dir,
            manifest,
            plan,
            what,
        } = self;
        let new = match what {
            What::Make => {
                let memory = made(&dir, &manifest, &plan)?;
                let store = Store::new(manifest, plan.clone(), memory);
                Some(New::Store(Box::new(store)))
            }
            What::Describe => {
                replace(&dir, MANIFEST, &pretty(&manifest), true)?;
                Some(New::Manifest(Box::new(manifest)))
            }
            What::Read => None,
        };
        let ends = ends(&dir, &plan)?;
        Ok(Prepared { new, ends })
    }
}
