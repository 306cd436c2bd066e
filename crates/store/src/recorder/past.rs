//! A worker's files that are ended: they are listed, cut if need be, and the oldest deleted
//! where there may only be so many.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::error::StoreError;
use crate::index::index_name;
use crate::manifest::{Overwritten, Recording};
use crate::writer::OpenFile;

use super::Shared;

/// Files of a worker that are still to be cut at most: more are left to readers.
const UNCUT_MAX: usize = 16;

/// A file that is ended.
struct Ended {
    name: String,
    packets: u64,
    /// The sequence number after its last packet.
    next_seq: u64,
}

/// Files of a worker that are ended.
pub(super) struct Past {
    shared: Arc<Shared>,
    worker: u16,
    /// The oldest first.
    ended: VecDeque<Ended>,
    /// Files that end with a block that failed and could not yet be cut, with the next sequence
    /// number.
    uncut: Vec<(Arc<OpenFile>, u64)>,
    /// Files that leave the log once nobody reads it.
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

    /// A file is complete.
    pub(super) fn push(&mut self, file: &OpenFile, next_seq: u64) {
        self.ended.push_back(Ended {
            name: file.name().to_owned(),
            packets: file.whole().packets,
            next_seq,
        });
    }

    /// A file ends before a block that could not be written.
    pub(super) fn push_torn(&mut self, file: Arc<OpenFile>, next_seq: u64) {
        if file.whole().blocks == 0 {
            self.forget(file.name().to_owned());
            return;
        }
        file.end_index();
        self.uncut.push((file, next_seq));
        self.cut();
    }

    /// Cuts files after their last good block. If that is not possible, readers do it.
    pub(super) fn cut(&mut self) {
        for (file, next_seq) in std::mem::take(&mut self.uncut) {
            if file.cut().is_err() {
                self.uncut.push((file, next_seq));
                continue;
            }
            // If the manifest cannot be written now, its next version says it.
            let _ = file.seal();
            self.push(&file, next_seq);
        }
        self.uncut.truncate(UNCUT_MAX);
    }

    /// Takes a file without a block out of the log.
    fn forget(&mut self, name: String) {
        // If the manifest cannot be written now, its next version is without it.
        let _ = self
            .shared
            .update(|recording| recording.files.retain(|file| file.name != name));
        self.doomed.push(name);
    }

    /// Takes the oldest files out of the log, so that there is room for one more of at most so
    /// many; 0 for any number.
    pub(super) fn overwrite(&mut self, most: usize) -> Result<(), StoreError> {
        while most > 0 && self.ended.len() >= most {
            let Some(oldest) = self.ended.pop_front() else {
                break;
            };
            let worker = self.worker;
            let written = self
                .shared
                .update(|recording| take_out(recording, worker, &oldest));
            // It is taken out of the next version all the same.
            self.doomed.push(oldest.name);
            written?;
        }
        self.delete_doomed();
        Ok(())
    }

    /// Deletes files that are no longer in the manifest, unless somebody reads the log: who
    /// does may have read the manifest before.
    pub(super) fn delete_doomed(&mut self) {
        let log = &self.shared.log;
        let disk = log.disk();
        if !self.doomed.is_empty()
            // The manifest on disk may still name them.
            && !log.is_behind()
            && let Ok(Some(_alone)) = disk.lock_for_deleting()
        {
            // What cannot be deleted is tried again.
            self.doomed.retain(|name| {
                let removed = disk.remove(&index_name(name));
                removed.and_then(|()| disk.remove(name)).is_err()
            });
        }
    }
}

/// Takes a file out of the manifest, and counts it among those that were overwritten.
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
