//! How far compaction is behind: complete block files that are not compacted yet.

use std::collections::BTreeSet;

use strata_store::{BlockFile, Log, Recording};

use crate::compact::is_complete;

/// What could be compacted, and is not yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uncompacted {
    /// Complete block files.
    pub files: u64,
    /// Their bytes; of files that cannot be opened, what the manifest says.
    pub bytes: u64,
    /// The first of them of each recording and worker, by name in the log: the oldest is among these.
    pub first: Vec<String>,
}

/// What of a log, or of one of its recordings, could be compacted and is not yet.
#[must_use]
pub fn uncompacted(log: &Log, of: Option<&Recording>) -> Uncompacted {
    let is_complete = is_complete(log);
    let mut found = Uncompacted::default();
    let mut seen = BTreeSet::new();
    let recordings = log.recordings().iter();
    for recording in recordings.filter(|one| of.is_none_or(|of| of.id == one.id)) {
        let files = recording.files.iter();
        for file in files.filter(|file| is_complete(recording, file)) {
            found.files = found.files.saturating_add(1);
            found.bytes = found.bytes.saturating_add(bytes_of(log, file));
            if seen.insert((recording.id, file.worker)) {
                found.first.push(file.name.clone());
            }
        }
    }
    found
}

/// The size of a complete file. The manifest has none of the last ones of a recording that ended abruptly.
fn bytes_of(log: &Log, file: &BlockFile) -> u64 {
    if file.sealed {
        return file.bytes;
    }
    let opened = log.disk().open(&file.name, false);
    let size = opened.and_then(|opened| opened.size());
    size.map_or(file.bytes, |bytes| bytes.max(file.bytes))
}
