//! The log being written.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use strata_wire::unix_ns;

use crate::disk::Disk;
use crate::error::{StoreError, io_error};
use crate::manifest::stored::read_manifest;
use crate::manifest::{About, MANIFEST_NAME, Manifest, Recording, ShadowModel, VERSION};

/// How to tell, before the manifest is replaced, that the log is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Its manifest exists.
    Manifest,
    /// Its writer checks for its own files.
    OwnFiles,
}

/// A log being written: its disk and its manifest.
pub(crate) struct LogWriter {
    disk: Arc<dyn Disk>,
    manifest: Mutex<Manifest>,
    presence: Presence,
    /// Whether the manifest on disk is older than the one in memory.
    is_behind: AtomicBool,
}

impl LogWriter {
    /// The log on `disk`, which may hold recordings or nothing yet. The caller holds its lock.
    ///
    /// # Errors
    ///
    /// If its manifest cannot be read.
    pub(crate) fn open(disk: Arc<dyn Disk>, presence: Presence) -> Result<Self, StoreError> {
        let manifest = read_or_begin(disk.as_ref())?;
        Ok(Self {
            disk,
            manifest: Mutex::new(manifest),
            presence,
            is_behind: AtomicBool::new(false),
        })
    }

    pub(crate) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// A file's name as shown in messages.
    pub(crate) fn display(&self, name: &str) -> String {
        self.disk.display(name)
    }

    fn manifest(&self) -> MutexGuard<'_, Manifest> {
        self.manifest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The result of `look` on the manifest.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Manifest) -> T) -> T {
        look(&self.manifest())
    }

    /// Whether the manifest on disk is older than the one in memory.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }

    /// Writes the manifest in its current form.
    pub(crate) fn write_again(&self) -> Result<(), StoreError> {
        self.write(&self.manifest())
    }

    fn write(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let replaced = self.disk.replace(MANIFEST_NAME, &manifest.to_json());
        self.is_behind.store(replaced.is_err(), Ordering::Relaxed);
        replaced.map_err(io_error(self.display(MANIFEST_NAME), "write"))
    }

    /// Fails if the log was removed: files still open, or a new directory of that name, are not
    /// part of it.
    pub(crate) fn check_there(&self) -> Result<(), StoreError> {
        if self.disk.exists(MANIFEST_NAME) {
            return Ok(());
        }
        let gone = io::Error::from_raw_os_error(libc::ENOENT);
        Err(io_error(self.display(MANIFEST_NAME), "find")(gone))
    }

    /// The number of the recording that `is_known` accepts; otherwise, of a new one.
    ///
    /// # Errors
    ///
    /// If the manifest or the model cannot be written.
    pub(crate) fn recording(
        &self,
        about: &About,
        session: Option<&str>,
        is_known: impl Fn(&Recording) -> bool,
    ) -> Result<u32, StoreError> {
        let mut manifest = self.manifest();
        if let Some(known) = manifest.recordings.iter().find(|known| is_known(known)) {
            return Ok(known.id);
        }
        let last = manifest.recordings.iter().map(|r| r.id).fold(0, u32::max);
        let id = last.checked_add(1).ok_or_else(|| StoreError::Manifest {
            file: self.display(MANIFEST_NAME),
            problem: format!("recording number {last} is the maximum"),
        })?;
        let store = |file: &str, json: &[u8]| {
            let stored = self.disk.replace(file, json);
            stored.map_err(io_error(self.display(file), "write"))
        };
        let model_file = format!("models/r{id:04}.json");
        store(&model_file, &about.model_json)?;
        let mut recording = Recording::begun(id, about, model_file, unix_ns());
        if let Some((model, json)) = &about.shadow {
            let model_file = format!("models/r{id:04}-shadow.json");
            store(&model_file, json)?;
            recording.shadow = Some(ShadowModel {
                model: model.clone(),
                model_file,
                model_crc: crc32c::crc32c(json),
            });
        }
        recording.session = session.map(str::to_owned);
        manifest.recordings.push(recording);
        manifest.version = VERSION;
        self.write(&manifest)?;
        Ok(id)
    }

    /// Changes a recording's entry, on disk before it returns. If that fails, the next version will
    /// still have the change.
    pub(crate) fn update(
        &self,
        recording: u32,
        change: impl FnOnce(&mut Recording),
    ) -> Result<(), StoreError> {
        self.update_or(recording, change, |_| ())
    }

    /// Changes a recording's entry in memory: its next version on disk has the change.
    pub(crate) fn note(&self, recording: u32, change: impl FnOnce(&mut Recording)) {
        let mut manifest = self.manifest();
        if let Some(entry) = manifest.recordings.iter_mut().find(|r| r.id == recording) {
            change(entry);
            self.is_behind.store(true, Ordering::Relaxed);
        }
    }

    /// As [`LogWriter::update`], but a change that cannot be written is reverted by `undo`.
    pub(crate) fn update_or(
        &self,
        recording: u32,
        change: impl FnOnce(&mut Recording),
        undo: impl FnOnce(&mut Recording),
    ) -> Result<(), StoreError> {
        if self.presence == Presence::Manifest {
            self.check_there()?;
        }
        let mut manifest = self.manifest();
        let place = manifest.recordings.iter().position(|r| r.id == recording);
        if let Some(place) = place {
            change(&mut manifest.recordings[place]);
        }
        let written = self.write(&manifest);
        if let (Err(_), Some(place)) = (&written, place) {
            undo(&mut manifest.recordings[place]);
        }
        written
    }
}

/// The manifest of the log, or of a new one.
fn read_or_begin(disk: &dyn Disk) -> Result<Manifest, StoreError> {
    match read_manifest(disk)? {
        Some(manifest) => Ok(manifest),
        None => Ok(Manifest::default()),
    }
}
