//! The file that lists a directory's stripes.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strata_store::{Disk as _, RealDisk};

use super::{NUMBER_MAX, Open, Stripes};
use crate::dir::StreamDir;
use crate::dir::device::{self, Holds, Raw};
use crate::dir::elsewhere::{Kind, Place, Reached};
use crate::dir::locks::Locks;
use crate::dir::pool::{MAP, MAP_LOCK, PAGES, Pool};
use crate::dir::remote::{StripeServer, StripeTls};
use crate::error::{In as _, Result, StreamError};

/// The file that lists stripes.
pub(crate) const LIST: &str = "stripes";
const LIST_BYTES_MAX: usize = 64 << 10;

/// A stripe, as the list has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Listed {
    /// From 1 on; pages are found by it.
    pub(super) number: u32,
    /// As its map has it, in hexadecimal.
    id: String,
    #[serde(default, skip_serializing_if = "Kind::is_directory")]
    pub(super) kind: Kind,
    /// Where it is; of a directory, its path.
    pub(super) path: String,
    /// Of a server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tls: Option<StripeTls>,
}

impl Listed {
    pub(super) fn reach(&self, dir: &StreamDir) -> Result<Place> {
        let place = (self.kind, self.path.as_str(), self.tls.as_ref());
        dir.elsewhere.at(place, &dir.locks)
    }

    /// Whether it says itself that it is full.
    pub(super) fn is_exact(&self) -> bool {
        !self.kind.is_directory()
    }

    pub(super) fn id(&self) -> Option<u64> {
        u64::from_str_radix(&self.id, 16).ok()
    }
}

fn refused(stripe: &str, problem: &str) -> StreamError {
    StreamError::Damaged {
        file: stripe.to_owned(),
        problem: format!("it cannot be a stripe: {problem}"),
    }
}

fn utf8(path: &Path) -> Result<&str> {
    let shown = path.display();
    path.to_str().ok_or_else(|| {
        refused(
            &shown.to_string(),
            "its path is not UTF-8: name another directory",
        )
    })
}

impl StreamDir {
    /// Its stripes, but for itself.
    pub(crate) fn listed(&self) -> Result<Vec<Listed>> {
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
                    "stripe {} needs its own number from 1 to {NUMBER_MAX}, and an id in hexadecimal",
                    stripe.path
                );
                return Err(damaged(problem));
            }
        }
        Ok(listed)
    }

    /// Gets ready to ask servers that have stripes, while this process may still read what that takes; whether there
    /// are any.
    ///
    /// # Errors
    ///
    /// If the list of stripes, or a certificate for a server, cannot be read.
    pub fn meet_servers(&self) -> Result<bool> {
        let mut are_there = false;
        for listed in self.listed()? {
            let place = match listed.reach(self) {
                // A stripe that is gone costs what is on it, which those who read say.
                Err(_) if listed.kind != Kind::Server => continue,
                place => place?,
            };
            if let Place::Server(server) = place {
                are_there = true;
                server.prepare();
            }
        }
        Ok(are_there)
    }

    /// Stripes that cannot be used now, and why.
    ///
    /// # Errors
    ///
    /// If the list of stripes is damaged.
    pub fn gone_stripes(&self) -> Result<Vec<String>> {
        Ok(Stripes::open(self)?.gone())
    }

    /// Has pages go to another disk too, from now on, in a directory or at a server (`HOST:PORT/NAME`), with these
    /// files. One that is a stripe of this directory already is found there from now on.
    ///
    /// # Errors
    ///
    /// If something else is there, and it is not a device to be formatted (`formats`), or it cannot be written.
    pub fn add_stripe(
        &self,
        place: &Path,
        (formats, now_ns): (bool, u64),
        tls: Option<&StripeTls>,
    ) -> Result<()> {
        match Kind::of(place)? {
            Kind::Directory => self.add_directory(place),
            Kind::Device => self.add_device(place, formats, now_ns),
            Kind::Server => self.add_server(utf8(place)?, tls),
        }
    }

    fn add_server(&self, path: &str, tls: Option<&StripeTls>) -> Result<()> {
        let place = self.elsewhere.at((Kind::Server, path, tls), &self.locks)?;
        let Place::Server(server) = place else {
            unreachable!("it is at a server");
        };
        let connected = server.connect().in_file(|| path.to_owned())?;
        let found = connected.1.map(|(id, _)| id);
        let make = |id| self.make_at(server.as_ref(), id);
        self.list_stripe((Kind::Server, path, tls), found, make)
    }

    /// Makes a new stripe at a server.
    pub(crate) fn make_at(&self, server: &dyn StripeServer, id: u64) -> Result<()> {
        Open::make(server, id, self.pool.geometry)
    }

    fn add_device(&self, place: &Path, formats: bool, now_ns: u64) -> Result<()> {
        let name = device::stable_name(place)?;
        let text = utf8(&name)?;
        let raw = Raw::real(place)?;
        let held = device::holds(&raw, device::logical_block(&raw)?)?;
        let listed = self.listed()?;
        let is_listed = |id| listed.iter().any(|stripe| stripe.id() == Some(id));
        let found = match held {
            Holds::Stripe(id) if is_listed(id) && formats => {
                return Err(refused(
                    text,
                    &format!(
                        "it is a stripe of this directory, and --overwrite would erase its \
                     records: to give them up, first remove {id:016x} from {}",
                        self.disk.display(LIST)
                    ),
                ));
            }
            Holds::Stripe(id) if is_listed(id) => Some(id),
            Holds::Nothing => None,
            _ if formats => None,
            held => {
                let held = match held {
                    Holds::Other(held) => held,
                    _ => "a stripe of another directory".to_owned(),
                };
                return Err(refused(
                    text,
                    &format!("it contains {held}; --overwrite replaces it"),
                ));
            }
        };
        let make_locks = |id| {
            let made = self.locks.of_stripe(id).make();
            made.in_file(|| self.path.clone())
        };
        found.map_or(Ok(()), make_locks)?;
        let make = |id| {
            make_locks(id)?;
            device::format_real(&raw, self.pool.geometry, (id, now_ns))
        };
        self.list_stripe((Kind::Device, text, None), found, make)
    }

    fn add_directory(&self, path: &Path) -> Result<()> {
        let is_new = !path.exists();
        let added = self.add_existing(path);
        if added.is_err() && is_new {
            // Only if it is empty.
            let _ = fs::remove_dir(path);
        }
        added
    }

    /// Adds a directory, which is made if need be.
    fn add_existing(&self, path: &Path) -> Result<()> {
        let named = || path.display().to_string();
        let disk = RealDisk::create_dir(path).in_file(named)?;
        let path = fs::canonicalize(path).in_file(named)?;
        let text = utf8(&path)?;
        let refuse = |problem| refused(text, problem);
        if disk.exists(MAP) {
            return Err(refuse(
                "it is a directory of streams itself: name another directory",
            ));
        }
        let found = Pool::stripe_on(&disk)?;
        if found.is_none() {
            let mut entries = fs::read_dir(&path).in_file(named)?;
            // A crash may have come between its two files.
            if entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != PAGES)) {
                return Err(refuse(
                    "it is not empty: name a new directory, on a separate disk",
                ));
            }
        }
        let reached: Reached = (Arc::new(disk), Locks::Files(path.clone()));
        let make = |id| self.make_directory(reached, id);
        self.list_stripe((Kind::Directory, text, None), found, make)
    }

    /// Makes the files of a new stripe.
    pub(crate) fn make_directory(&self, (disk, locks): Reached, id: u64) -> Result<()> {
        Pool::create(disk, locks, self.pool.geometry, Some(id)).map(drop)
    }

    /// Lists a stripe, which is made unless it was `found`.
    pub(crate) fn list_stripe(
        &self,
        (kind, path, tls): (Kind, &str, Option<&StripeTls>),
        found: Option<u64>,
        make: impl FnOnce(u64) -> Result<()>,
    ) -> Result<()> {
        let named = || self.disk.display(LIST);
        let refuse = |problem: String| refused(path, &problem);
        let _lock = self.locks.wait(MAP_LOCK).in_file(named)?;
        let mut listed = self.listed()?;
        if let Some(id) = found {
            let known = listed.iter_mut().find(|stripe| stripe.id() == Some(id));
            let known =
                known.ok_or_else(|| refuse("it is a stripe of another directory".to_owned()))?;
            (known.kind, known.tls) = (kind, tls.cloned());
            path.clone_into(&mut known.path);
        } else {
            if let Some(other) = listed.iter().find(|stripe| stripe.path == path) {
                let id = &other.id;
                return Err(refuse(format!(
                    "stripe {id} is missing from there: is its disk mounted? If it is lost for \
                     good, remove it from {}",
                    named()
                )));
            }
            let last = listed.iter().map(|stripe| stripe.number).max();
            let number = last.map_or(1, |last| last + 1);
            if number > NUMBER_MAX {
                return Err(refuse(format!(
                    "a directory of streams has at most {NUMBER_MAX} stripes"
                )));
            }
            let mut random = [0; 8];
            getrandom::fill(&mut random)
                .map_err(io::Error::other)
                .in_file(named)?;
            let id = u64::from_le_bytes(random);
            make(id)?;
            listed.push(Listed {
                number,
                id: format!("{id:016x}"),
                kind,
                path: path.to_owned(),
                tls: tls.cloned(),
            });
        }
        let text = serde_json::to_vec_pretty(&listed).map_err(io::Error::from);
        self.disk
            .replace(LIST, &text.in_file(named)?)
            .in_file(named)
    }
}

/// A directory of streams and its stripes on this machine, for who has to be let in there.
#[must_use]
pub fn paths_of(dir: &Path) -> Vec<PathBuf> {
    // If its list is damaged, who opens it says so.
    let listed = StreamDir::open(dir).and_then(|dir| dir.listed());
    let listed = listed.into_iter().flatten();
    let here = listed.filter(|stripe| stripe.kind != Kind::Server);
    let stripes = here.map(|stripe| stripe.path.into());
    std::iter::once(dir.to_owned()).chain(stripes).collect()
}
