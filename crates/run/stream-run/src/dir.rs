//! A directory of streams.

pub(crate) mod device;
pub(crate) mod elsewhere;
pub(crate) mod file;
pub(crate) mod footing;
pub(crate) mod link;
pub(crate) mod locks;
pub(crate) mod pool;
pub(crate) mod remote;
pub(crate) mod stripes;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strata_store::{Disk, RealDisk};
use strata_stream::description::DIRECTORY_AT;
use strata_stream::{Cursor, Description, Form, Geometry, Retention, State, StreamName};
use strata_wire::exact;

use super::error::{In as _, Result, StreamError};
use crate::dir::device::{Raw, SIMULATED};
use crate::dir::elsewhere::{Elsewhere, Kind, Place};
use crate::dir::file::{StreamFile, file_name, lock_name};
use crate::dir::locks::Locks;
use crate::dir::pool::{MAP, MEND_MAP, Owners, PAGES, Pool, STRIPE_MAP};
use crate::dir::remote::StripeServer;

/// A stream to be created.
#[derive(Clone, Copy, Debug)]
pub struct StreamSpec {
    /// How much is kept.
    pub retention: Retention,
    /// How its records are written.
    pub form: Form,
}

/// A directory of streams.
#[derive(Clone)]
pub struct StreamDir {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) locks: Locks,
    pub(super) pool: Pool,
    pub(super) path: String,
    /// How its stripes are reached.
    pub(super) elsewhere: Elsewhere,
}

/// A cursor that was saved under a consumer's name.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedCursor {
    /// The cursor as text.
    pub cursor: String,
    /// The number of the next record, if records of the stream have one.
    pub next_seq: Option<u64>,
    /// Records that were missing among those read since the cursor was first saved, at least.
    pub missing: u64,
    /// Records that had been deleted before they were read.
    pub expired: u64,
    /// When it was saved, ns since 1970.
    pub time_ns: u64,
}

impl SavedCursor {
    /// That of a consumer who has read nothing.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }
}

impl std::fmt::Debug for StreamDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamDir")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

/// Whether a directory has a file of that name.
fn has(dir: &Path, name: &str) -> Result<bool> {
    let path = dir.join(name);
    match fs::metadata(&path) {
        Ok(found) => Ok(found.is_file()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(false),
        Err(error) => Err(error).in_file(|| path.display().to_string()),
    }
}

impl StreamDir {
    /// A directory that exists.
    ///
    /// # Errors
    ///
    /// If it is not one of streams, or cannot be read.
    pub fn open(path: &Path) -> Result<Self> {
        let named = path.display().to_string();
        if has(path, STRIPE_MAP)? {
            return Err(StreamError::IsStripe { dir: named });
        }
        if !has(path, MAP)? {
            if has(path, PAGES)? && path.join("streams").is_dir() {
                return Err(StreamError::Damaged {
                    file: path.join(MAP).display().to_string(),
                    problem: format!("it is missing{MEND_MAP}"),
                });
            }
            return Err(StreamError::NotStreams { dir: named });
        }
        let locks = Locks::Files(path.to_path_buf());
        Self::on(Arc::new(RealDisk::at(path)), locks, named)
    }

    /// A directory, made if need be; pages of one that exists keep their sizes.
    ///
    /// # Errors
    ///
    /// If something else is there, its pages have other sizes, or it cannot be written.
    pub fn create(path: &Path, geometry: Option<Geometry>) -> Result<Self> {
        let named = path.display().to_string();
        if has(path, MAP)? || has(path, STRIPE_MAP)? {
            let dir = Self::open(path)?;
            let there = dir.pool.geometry;
            return match geometry {
                Some(wanted) if wanted != there => Err(StreamError::Damaged {
                    file: named,
                    problem: format!(
                        "its pages have other sizes ({}), which all its streams share: leave out --pages",
                        sizes(there)
                    ),
                }),
                _ => Ok(dir),
            };
        }
        let is_foreign = match fs::read_dir(path) {
            // A crash may have come between the two files of a new directory.
            Ok(mut entries) => {
                entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != PAGES))
            }
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        };
        if is_foreign {
            return Err(StreamError::Foreign { dir: named });
        }
        let disk = RealDisk::create_dir(path).in_file(|| named.clone())?;
        let locks = Locks::Files(path.to_path_buf());
        Self::make(
            Arc::new(disk),
            locks,
            named,
            geometry.unwrap_or(Geometry::PAPER),
        )
    }

    /// Removes a directory that has neither streams nor stripes; whether it has none. What else was put there stays.
    ///
    /// # Errors
    ///
    /// If it cannot be read or removed.
    pub fn remove_unused(&self) -> Result<bool> {
        let Locks::Files(root) = &self.locks else {
            return Ok(false);
        };
        let named = || self.path.clone();
        let _lock = self.locks.wait(pool::MAP_LOCK).in_file(named)?;
        if !self.names()?.is_empty() || !self.listed()?.is_empty() {
            return Ok(false);
        }
        let gone = |removed: io::Result<()>| match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
        // Only locks of devices that were not taken; the files that make it a directory of streams go last.
        gone(fs::remove_dir_all(root.join("stripe-locks"))).in_file(named)?;
        for folder in ["streams", "cursors"] {
            gone(fs::remove_dir(root.join(folder))).in_file(named)?;
        }
        for file in [MAP, PAGES, pool::USERS_LOCK, pool::MAP_LOCK] {
            gone(fs::remove_file(root.join(file))).in_file(named)?;
        }
        fs::remove_dir(root).in_file(named)?;
        Ok(true)
    }

    fn on(disk: Arc<dyn Disk>, locks: Locks, path: String) -> Result<Self> {
        let pool = Pool::open(Arc::clone(&disk), locks.clone(), None)?;
        Ok(Self {
            disk,
            locks,
            pool,
            path,
            elsewhere: Elsewhere::real(),
        })
    }

    fn make(disk: Arc<dyn Disk>, locks: Locks, path: String, geometry: Geometry) -> Result<Self> {
        let geometry = geometry.checked()?;
        let pool = Pool::create(Arc::clone(&disk), locks.clone(), geometry, None)?;
        Ok(Self {
            disk,
            locks,
            pool,
            path,
            elsewhere: Elsewhere::real(),
        })
    }

    /// A directory on a disk of a simulation, which has one process: made if it is not there.
    ///
    /// # Errors
    ///
    /// As of [`StreamDir::open`].
    pub fn simulated(disk: Arc<dyn Disk>, geometry: Geometry) -> Result<Self> {
        let locks = Locks::Simulated(Arc::default());
        if disk.exists(MAP) {
            Self::on(disk, locks, "simulated".to_owned())
        } else {
            Self::make(disk, locks, "simulated".to_owned(), geometry)
        }
    }

    /// As [`StreamDir::simulated`], with stripes on other disks, in an order that stays. What has a file `device`
    /// is a device of that size.
    ///
    /// # Errors
    ///
    /// As of [`StreamDir::open`].
    pub fn simulated_stripes(
        disk: Arc<dyn Disk>,
        stripes: Vec<Arc<dyn Disk>>,
        geometry: Geometry,
    ) -> Result<Self> {
        let locks = || Locks::Simulated(Arc::default());
        let mut dir = Self::simulated(disk, geometry)?;
        let reached = stripes.into_iter().map(|disk| (disk, locks()));
        let reached: Vec<_> = reached.collect();
        let places = reached.iter().cloned().map(Place::Here);
        dir.elsewhere = Elsewhere::Simulated(Arc::new(places.collect()));
        for (at, reached) in reached.into_iter().enumerate().skip(dir.listed()?.len()) {
            let path = at.to_string();
            if reached.0.exists(SIMULATED) {
                let raw = Raw::simulated(reached.0);
                let make = |id| device::format(&raw, geometry, (id, 1), 512);
                dir.list_stripe((Kind::Device, &path, None), None, make)?;
            } else {
                let make = |id| dir.make_directory(reached, id);
                dir.list_stripe((Kind::Directory, &path, None), None, make)?;
            }
        }
        Ok(dir)
    }

    /// As [`StreamDir::simulated`], with stripes at servers, in an order that stays.
    ///
    /// # Errors
    ///
    /// As of [`StreamDir::open`].
    pub fn simulated_servers(
        disk: Arc<dyn Disk>,
        servers: &[Arc<dyn StripeServer>],
        geometry: Geometry,
    ) -> Result<Self> {
        let mut dir = Self::simulated(disk, geometry)?;
        let places = servers.iter().cloned().map(Place::Server);
        dir.elsewhere = Elsewhere::Simulated(Arc::new(places.collect()));
        for (at, server) in servers.iter().enumerate().skip(dir.listed()?.len()) {
            let make = |id| dir.make_at(server.as_ref(), id);
            dir.list_stripe((Kind::Server, &at.to_string(), None), None, make)?;
        }
        Ok(dir)
    }

    /// The sizes of its pages.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.pool.geometry
    }

    /// Creates a stream.
    ///
    /// # Errors
    ///
    /// If it exists, or cannot be written.
    pub fn create_stream(&self, name: &StreamName, spec: &StreamSpec, now_ns: u64) -> Result<()> {
        let file = file_name(name);
        let named = || self.disk.display(&file);
        let _lock = self.locks.wait(pool::MAP_LOCK).in_file(named)?;
        if self.disk.exists(&file) {
            return Err(StreamError::Exists {
                dir: self.path.clone(),
                name: name.to_string(),
            });
        }
        let id = u64::from_le_bytes(random().in_file(named)?);
        let description = Description {
            // 0 is not an id.
            id: id.max(1),
            key: random().in_file(named)?,
            created_ns: now_ns,
            retention: spec.retention,
            geometry: self.pool.geometry,
            form: spec.form,
            name: name.clone(),
        };
        let mut bytes = description.emit();
        let directory = u64::from(self.pool.geometry.directory_bytes);
        bytes.resize(exact(DIRECTORY_AT + directory), 0);
        let key = strata_stream::StreamKey::new(description.key);
        let state = State::new(now_ns);
        let at = exact::<usize>(strata_stream::description::STATE_AT);
        bytes[at..at + State::LEN].copy_from_slice(&state.emit(&key));
        self.disk.replace(&file, &bytes).in_file(named)
    }

    /// Names of its streams, sorted.
    ///
    /// # Errors
    ///
    /// If they cannot be listed.
    pub fn names(&self) -> Result<Vec<StreamName>> {
        let files = self.disk.list("streams").in_file(|| self.path.clone())?;
        let name = |file: &String| file.strip_suffix(".stream")?.parse().ok();
        Ok(files.iter().filter_map(name).collect())
    }

    pub(super) fn file(&self, name: &StreamName, writable: bool) -> Result<StreamFile> {
        if !self.disk.exists(&file_name(name)) {
            return Err(StreamError::Unknown {
                dir: self.path.clone(),
                name: name.to_string(),
            });
        }
        let file = StreamFile::open(&self.disk, name, writable)?;
        if file.description.geometry != self.pool.geometry {
            return Err(StreamError::Damaged {
                file: file.path,
                problem: format!(
                    "it is the file of a stream in another directory: its pages are {}, those here {}",
                    sizes(file.description.geometry),
                    sizes(self.pool.geometry)
                ),
            });
        }
        Ok(file)
    }

    /// Its streams, for who owns which page: one that is damaged costs the others nothing, and keeps its pages.
    pub(super) fn owners(&self) -> Result<Owners> {
        let mut owners = Owners::default();
        for name in self.names()? {
            match self.file(&name, false) {
                Ok(file) => {
                    owners.ids.insert(file.description.id);
                }
                Err(_) => owners.has_unknown = true,
            }
        }
        Ok(owners)
    }

    pub(super) fn is_appended(&self, name: &StreamName) -> Result<bool> {
        let lock = lock_name(name);
        self.locks
            .is_taken(&lock)
            .in_file(|| self.disk.display(&lock))
    }

    /// The cursor that was saved under a name.
    ///
    /// # Errors
    ///
    /// If it is damaged.
    pub fn saved(&self, name: &StreamName, consumer: &StreamName) -> Result<Option<SavedCursor>> {
        let path = format!("{}/{consumer}", cursors_of(name));
        let named = || self.disk.display(&path);
        if !self.disk.exists(&path) {
            return Ok(None);
        }
        let file = self.disk.open(&path, false).in_file(named)?;
        let mut bytes = [0; 1024];
        let read = file.read_at(&mut bytes, 0).in_file(named)?;
        let saved = serde_json::from_slice::<SavedCursor>(&bytes[..read]);
        let problem = match saved {
            Ok(saved) if saved.cursor.parse::<Cursor>().is_ok() => return Ok(Some(saved)),
            Ok(saved) => format!("{:?} is not a cursor", saved.cursor),
            Err(error) => error.to_string(),
        };
        Err(StreamError::Damaged {
            file: named(),
            problem: format!("not a saved cursor: {problem}; delete it to begin again"),
        })
    }

    /// The number of cursors that are saved for a stream.
    pub(crate) fn count_saved(&self, name: &StreamName) -> Result<usize> {
        let saved = self.disk.list(&cursors_of(name));
        let saved = saved.in_file(|| self.path.clone())?;
        let is_one = |file: &&String| file.parse::<StreamName>().is_ok();
        Ok(saved.iter().filter(is_one).count())
    }

    /// Saves a cursor under a name, in place of the one before. Of several processes that save under one
    /// name, the last counts.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn save(
        &self,
        name: &StreamName,
        consumer: &StreamName,
        saved: &SavedCursor,
    ) -> Result<()> {
        let path = format!("{}/{consumer}", cursors_of(name));
        let text = serde_json::to_vec(saved).map_err(io::Error::from);
        let named = || self.disk.display(&path);
        let text = text.in_file(named)?;
        // Each process writes a file of its own, with a name that no cursor has.
        let own = u64::from_le_bytes(random().in_file(named)?);
        let own = format!("{}/~{consumer}.{own:016x}", cursors_of(name));
        let replaced = self.disk.replace(&own, &text);
        let replaced = replaced.and_then(|()| self.disk.rename(&own, &path));
        if replaced.is_err() {
            let _ = self.disk.remove(&own);
        }
        replaced.in_file(named)
    }
}

/// The folder of a stream's saved cursors.
pub(super) fn cursors_of(name: &StreamName) -> String {
    format!("cursors/{name}.stream")
}

/// Sizes of pages as people write them.
pub(super) fn sizes(geometry: Geometry) -> String {
    let of = |bytes: u32| match bytes {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{}MiB", bytes >> 20),
        bytes if bytes.is_multiple_of(1 << 10) => format!("{}KiB", bytes >> 10),
        bytes => format!("{bytes}B"),
    };
    let Geometry {
        directory_bytes,
        table_bytes,
        page_bytes,
    } = geometry;
    format!(
        "{}-{}-{}",
        of(directory_bytes),
        of(table_bytes),
        of(page_bytes)
    )
}
