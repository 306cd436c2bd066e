//! The pieces of a log that can be deleted: parts, and block files that are no longer written to.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;

use strata_blocks::ClassCount;
use strata_store::{
    ARCHIVE_NAME, BlockFile, Damage, Disk, Gone, Log, MANIFEST_NAME, Part, Recording, Select,
    StoreError, add_counts,
};

use crate::compact::anomalous::Anomalous;
use crate::error::ArchiveError;
use crate::prune::plan::{Importance, Piece, PieceKind, retention_class};
use crate::retention::{PROTECTED, retention_name};

/// What a log consists of.
pub(crate) struct Found {
    /// What can be deleted.
    pub(crate) pieces: Vec<Piece>,
    /// Bytes of block files that cannot be deleted yet.
    pub(crate) held: u64,
    pub(crate) being_written: Vec<Being>,
    pub(crate) unknown_models: Vec<Damage>,
}

impl Found {
    /// When the newest packet arrived, ns.
    pub(crate) fn newest_ns(&self) -> Option<u64> {
        let whole = self.pieces.iter().filter(|piece| piece.packets > 0);
        let whole = whole.map(|piece| piece.last_ns);
        whole
            .chain(self.being_written.iter().map(|being| being.last_ns))
            .max()
    }
}

/// A block file still being written, with packets.
pub(crate) struct Being {
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
    pub(crate) classes: Vec<String>,
    pub(crate) protected: bool,
}

/// Files of a log that no deletion frees, in its directory and in directories below it; `blocks` also holds block
/// files, which are counted on their own.
const FIXED_FILES: [&str; 3] = [MANIFEST_NAME, ARCHIVE_NAME, "policies.jsonl"];
const FIXED_DIRS: [(&str, &str); 3] = [("models", ""), ("drift", ""), ("blocks", ".checkpoint")];

/// Bytes of the files that no deletion frees: manifests, models, checkpoints, statistics of drift, and policies that
/// were added at run time.
///
/// # Errors
///
/// If a directory or a size cannot be read; a missing file counts as empty.
pub(crate) fn fixed_bytes(disk: &dyn Disk) -> Result<u64, ArchiveError> {
    let mut names: Vec<String> = FIXED_FILES.map(str::to_owned).into();
    for (dir, ending) in FIXED_DIRS {
        let listed = disk.list(dir);
        let listed = listed.map_err(ArchiveError::io(disk.display(dir), "list"))?;
        let fixed = listed.iter().filter(|name| name.ends_with(ending));
        names.extend(fixed.map(|name| format!("{dir}/{name}")));
    }
    let mut total = 0_u64;
    for name in names {
        let opened = disk.open(&name, false);
        match opened.and_then(|opened| opened.size()) {
            Ok(bytes) => total = total.saturating_add(bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(ArchiveError::io(disk.display(&name), "open")(error)),
        }
    }
    Ok(total)
}

/// What of a log can be deleted, and how many bytes cannot be: for [`crate::prune::plan`].
///
/// # Errors
///
/// If the log cannot be read.
pub fn deletable(log: &Log) -> Result<(Vec<Piece>, u64), ArchiveError> {
    let found = pieces(log)?;
    let fixed = fixed_bytes(log.disk().as_ref())?;
    Ok((found.pieces, found.held.saturating_add(fixed)))
}

pub(crate) fn pieces(log: &Log) -> Result<Found, ArchiveError> {
    let mut found = Found {
        pieces: Vec::new(),
        held: 0,
        being_written: Vec::new(),
        unknown_models: Vec::new(),
    };
    let being_written = log.being_written();
    for recording in log.recordings() {
        let parts = log.archive().parts.iter();
        let mut parts = parts
            .filter(|part| part.recording == recording.id)
            .peekable();
        if parts.peek().is_some() {
            let mut anomalous = Anomalous::of(log, recording);
            if let Anomalous::Known(classes) = &mut anomalous {
                *classes = classes.iter().map(|name| retention_class(name)).collect();
            }
            let parts = parts.map(|part| of_part(part, recording, &anomalous));
            found.pieces.extend(parts);
            found.unknown_models.extend(anomalous.into_problem());
        }
        // By worker, the time of the last packet in its files so far.
        let mut last_ns = BTreeMap::new();
        for file in &recording.files {
            let content = Content::of(log, recording, file)?;
            let classes = of_file(&content.counts, &recording.classes);
            if being_written(recording) && !file.sealed {
                found.held = found.held.saturating_add(log.file_bytes(file)?);
                found
                    .being_written
                    .extend(content.times.map(|(first_ns, last_ns)| Being {
                        first_ns,
                        last_ns,
                        classes: classes.clone(),
                        protected: content.protected,
                    }));
                continue;
            }
            // A file without readable packets may hold data that belongs to earlier ones.
            let last = last_ns.entry(file.worker).or_insert(ended_ns(recording));
            *last = content.times.map_or(*last, |(_, last_ns)| last_ns);
            found.pieces.push(Piece {
                importance: Importance::Anomalous,
                recording: recording.id,
                holds_protected: content.protected,
                counts: content.counts,
                last_ns: *last,
                bytes: log.file_bytes(file)?,
                remote: false,
                packets: content.entry.packets,
                what: PieceKind::Block {
                    entry: content.entry,
                    classes,
                },
            });
        }
    }
    Ok(found)
}

/// When a recording ended, as far as is known.
fn ended_ns(recording: &Recording) -> u64 {
    recording.ended_ns.unwrap_or(recording.started_ns)
}

pub(crate) fn of_part(part: &Part, recording: &Recording, anomalous: &Anomalous) -> Piece {
    let importance = if part.retention == PROTECTED {
        Importance::Protected
    } else if anomalous.holds(&part.retention) {
        Importance::Anomalous
    } else {
        Importance::Ordinary
    };
    let is_protected = importance == Importance::Protected;
    let counts = part.counts.iter().filter(|_| !is_protected);
    let classes: BTreeSet<String> = counts
        .map(|count| of_count(count, &recording.classes))
        .collect();
    Piece {
        what: PieceKind::Part {
            id: part.id,
            retention: part.retention.clone(),
            classes: classes.into_iter().collect(),
        },
        importance,
        // A part without packets holds metadata of the recording's inputs.
        last_ns: if part.packets == 0 {
            ended_ns(recording)
        } else {
            part.ts_max_ns
        },
        bytes: part.bytes(),
        remote: part.is_remote(),
        packets: part.packets,
        recording: part.recording,
        counts: part.counts.clone(),
        holds_protected: false,
    }
}

/// The retention class of packets that were counted; that of packets without a class, if the recording has none of
/// this number.
fn of_count(count: &ClassCount, classes: &[String]) -> String {
    retention_name(classes.get(usize::from(count.class)).map(String::as_str))
}

/// The retention classes that packets of a block file may have: those of the recording, and that of packets without
/// one, if some were counted.
fn of_file(counts: &[ClassCount], classes: &[String]) -> Vec<String> {
    let mut all: Vec<String> = classes.iter().map(|name| retention_class(name)).collect();
    let without = counts
        .iter()
        .find(|count| usize::from(count.class) >= classes.len());
    all.extend(without.map(|count| of_count(count, classes)));
    all
}

/// The content of a block file, from the headers of its blocks.
struct Content {
    entry: Gone,
    /// Arrival of its first and last packet.
    times: Option<(u64, u64)>,
    /// Whether a policy may protect some.
    protected: bool,
    counts: Vec<ClassCount>,
}

impl Content {
    fn of(log: &Log, recording: &Recording, file: &BlockFile) -> Result<Self, ArchiveError> {
        let select = Select {
            without_records: true,
            ..Select::default()
        };
        let mut gone = Gone {
            name: file.name.clone(),
            recording: recording.id,
            worker: file.worker,
            packets: 0,
            first_seq: 0,
            next_seq: 0,
            incomplete: 0,
        };
        let (mut times, mut protected, mut counts) = (None, false, Vec::new());
        for block in log.blocks_in(recording, file, &select) {
            let block = match block {
                Ok(block) => block,
                // A damaged block's packets are lost already.
                Err(StoreError::Damage(_)) => continue,
                Err(error) => return Err(error.into()),
            };
            let header = &block.header;
            if header.packets == 0 {
                continue;
            }
            if gone.packets == 0 {
                gone.first_seq = header.first_seq;
            }
            gone.packets = gone.packets.saturating_add(header.packets.into());
            gone.next_seq = header.next_seq;
            gone.incomplete = gone.incomplete.saturating_add(block.incomplete.into());
            add_counts(&mut counts, &block.summary.counts);
            let (first, last) = times.unwrap_or((header.ts_min_ns, header.ts_max_ns));
            times = Some((first.min(header.ts_min_ns), last.max(header.ts_max_ns)));
            protected |= header.is_protected();
        }
        Ok(Self {
            entry: gone,
            times,
            protected,
            counts,
        })
    }
}

#[cfg(test)]
mod tests {
    use strata_wire::KeepKind;

    use super::*;

    #[test]
    fn packets_without_a_verdict_have_the_class_of_those_without_one() {
        let classes = ["benign", "an other"].map(str::to_owned);
        let count = |class| ClassCount {
            class,
            keep: KeepKind::Full,
            packets: 1,
            wire_bytes: 60,
            logged_bytes: 60,
        };
        let of = |class| of_count(&count(class), &classes);
        assert_eq!([0, 1, 255].map(of), ["benign", "an_other", "unknown"]);
        let file = |counts: &[u8]| {
            of_file(
                &counts.iter().map(|c| count(*c)).collect::<Vec<_>>(),
                &classes,
            )
        };
        assert_eq!(file(&[0, 1]), ["benign", "an_other"]);
        assert_eq!(file(&[0, 255]), ["benign", "an_other", "unknown"]);
        assert_eq!(file(&[]), ["benign", "an_other"]);
    }
}
