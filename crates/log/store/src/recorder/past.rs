//! A worker's finished files: listing them, cutting torn ones, and deleting the oldest where their
//! number is limited.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::block::index::index_name;
use crate::error::StoreError;
use crate::manifest::{Overwritten, Recording};
use crate::writer::OpenFile;

use super::Shared;

/// A worker's files still to be cut, at most: more are left to readers.
const UNCUT_MAX: usize = 16;

/// A finished file.
struct Ended {
    name: String,
    packets: u64,
    /// The sequence number after its last packet.
    next_seq: u64,
}

/// A worker's finished files.
pub(super) struct Past {
    shared: Arc<Shared>,
    worker: u16,
    /// The oldest first.
    ended: VecDeque<Ended>,
    /// Files that end with a failed block and could not be cut yet, with the next sequence number.
    uncut: Vec<(Arc<OpenFile>, u64)>,
    /// Files to be deleted once no process reads the log.
    doomed: Vec<String>,
}

impl Past {
    pub(super) fn new(shared: &Arc<Shared>, worker: u16) -> Self {
        Self {
            shared: Arc::clone(shared),
            worker,
            ended: VecDeque::new(),
            uncut: Vec::new(),
            doomed: Vec::new(),
        }
    }

    /// Adds a complete file.
    pub(super) fn push(&mut self, file: &OpenFile, next_seq: u64) {
        self.ended.push_back(Ended {
            name: file.name().to_owned(),
            packets: file.whole().packets,
            next_seq,
        });
    }

    /// Adds a file that ends before a block that could not be written.
    pub(super) fn push_torn(&mut self, file: Arc<OpenFile>, next_seq: u64) {
        if file.whole().blocks == 0 {
            self.forget(file.name().to_owned());
            return;
        }
        file.end_index();
        self.uncut.push((file, next_seq));
        self.cut();
    }

    /// Cuts files after their last good block. If that fails, readers do it.
    pub(super) fn cut(&mut self) {
        for (file, next_seq) in std::mem::take(&mut self.uncut) {
            if file.cut().is_err() {
                self.uncut.push((file, next_seq));
                continue;
            }
            // If the manifest cannot be written now, its next version has this.
            let _ = file.seal();
            self.push(&file, next_seq);
        }
        self.uncut.truncate(UNCUT_MAX);
    }

    /// Removes a file without blocks from the log.
    fn forget(&mut self, name: String) {
        // If the manifest cannot be written now, its next version is without it.
        let _ = self
            .shared
            .update(|recording| recording.files.retain(|file| file.name != name));
        self.doomed.push(name);
    }

    /// Removes the oldest files from the log, until one more would make at most `most`; 0 for no
    /// limit.
    pub(super) fn overwrite(&mut self, most: usize) -> Result<(), StoreError> {
        while most > 0 && self.ended.len() >= most {
            let Some(oldest) = self.ended.pop_front() else {
                break;
            };
            let worker = self.worker;
            let written = self
                .shared
                .update(|recording| take_out(recording, worker, &oldest));
            // The next version of the manifest is without it in any case.
            self.doomed.push(oldest.name);
            written?;
        }
        self.delete_doomed();
        Ok(())
    }

    /// Deletes files that are no longer in the manifest, unless somebody reads the log: they may
    /// have read an older manifest.
    pub(super) fn delete_doomed(&mut self) {
        let log = &self.shared.log;
        let disk = log.disk();
        if !self.doomed.is_empty()
            // The manifest on disk may still name them.
            && !log.is_behind()
            && let Ok(Some(_alone)) = disk.lock_for_deleting()
        {
            // A file that cannot be deleted is tried again.
            self.doomed.retain(|name| {
                let removed = disk.remove(&index_name(name));
                removed.and_then(|()| disk.remove(name)).is_err()
            });
        }
    }
}

/// Removes a file from the manifest, and counts it as overwritten.
fn take_out(recording: &mut Recording, worker: u16, file: &Ended) {
    recording.files.retain(|listed| listed.name != file.name);
    let overwritten = &mut recording.overwritten;
    let known = overwritten.iter().position(|entry| entry.worker == worker);
    let known = known.unwrap_or_else(|| {
        overwritten.push(Overwritten {
            worker,
            ..Overwritten::default()
        });
        overwritten.len() - 1
    });
    let entry = &mut overwritten[known];
    entry.files += 1;
    entry.packets += file.packets;
    entry.next_seq = file.next_seq;
}
