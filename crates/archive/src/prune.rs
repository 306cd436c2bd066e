//! Retention: whole parts and block files leave the log, the oldest first.

use std::collections::BTreeMap;
use std::sync::Arc;

use strata_store::{Archive, BlockFile, Disk, Gone, Log, Recording, Select, State};

use crate::compact::{clean_up, delete_gone, lock, replace};
use crate::error::ArchiveError;

/// How long and how much is kept. The default keeps everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// How long, ns, unless a class says otherwise.
    pub keep_ns: Option<u64>,
    /// How long, ns, by retention class.
    pub keep_class_ns: BTreeMap<String, u64>,
    /// Bytes of the whole log.
    pub bytes_max: Option<u64>,
}

impl Retention {
    /// How long this class is kept; `None` for ever.
    fn of(&self, class: &str) -> Option<u64> {
        self.keep_class_ns.get(class).copied().or(self.keep_ns)
    }

    /// How long something is kept that may be of any class.
    fn longest(&self) -> Option<u64> {
        let mut longest = self.keep_ns?;
        for keep in self.keep_class_ns.values() {
            longest = longest.max(*keep);
        }
        Some(longest)
    }
}

/// What was deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Parts.
    pub parts: u64,
    /// Block files.
    pub block_files: u64,
    /// Packets in both.
    pub packets: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// Bytes that are left.
    pub bytes_left: u64,
    /// Whether the log is still larger than wanted, since only its newest data is left.
    pub still_too_large: bool,
}

/// Something that can be deleted as a whole.
enum Piece {
    Part(u32),
    Block(Gone),
}

struct Candidate {
    piece: Piece,
    last_ns: u64,
    bytes: u64,
    packets: u64,
    keep_ns: Option<u64>,
}

/// Deletes what is older than `retention` allows at `now_ns`, then the oldest until
/// the log is small enough; the newest is never deleted. With `dry_run` it only
/// says what it would do.
///
/// # Errors
///
/// If another process compacts or prunes this log, or it cannot be read or changed.
pub fn prune(
    disk: &Arc<dyn Disk>,
    retention: &Retention,
    now_ns: u64,
    dry_run: bool,
) -> Result<Pruned, ArchiveError> {
    let _lock = lock(disk.as_ref())?;
    let mut archive = clean_up(disk.as_ref())?;
    let (mut candidates, held) = candidates(&Log::on(Arc::clone(disk))?, retention)?;
    candidates.sort_by_key(|candidate| candidate.last_ns);
    // The newest stays, whatever is asked.
    let newest = candidates.pop();
    let total: u64 = candidates.iter().chain(&newest).map(|c| c.bytes).sum();
    let mut pruned = Pruned {
        bytes_left: total + held,
        ..Pruned::default()
    };
    let (mut parts, mut gone) = (Vec::new(), Vec::new());
    for candidate in candidates {
        let age = now_ns.saturating_sub(candidate.last_ns);
        let too_old = candidate.keep_ns.is_some_and(|keep| age > keep);
        let too_large = retention
            .bytes_max
            .is_some_and(|max| pruned.bytes_left > max);
        if !too_old && !too_large {
            continue;
        }
        pruned.packets += candidate.packets;
        pruned.bytes += candidate.bytes;
        pruned.bytes_left -= candidate.bytes;
        match candidate.piece {
            Piece::Part(id) => parts.push(id),
            Piece::Block(entry) => gone.push(entry),
        }
    }
    pruned.parts = parts.len() as u64;
    pruned.block_files = gone.len() as u64;
    pruned.still_too_large = retention
        .bytes_max
        .is_some_and(|max| pruned.bytes_left > max);
    if !(dry_run || parts.is_empty() && gone.is_empty()) {
        drop_from(&mut archive, &parts, gone);
        replace(disk.as_ref(), &mut archive)?;
        delete_gone(disk.as_ref(), &mut archive)?;
    }
    Ok(pruned)
}

fn drop_from(archive: &mut Archive, parts: &[u32], gone: Vec<Gone>) {
    let (dropped, kept) = std::mem::take(&mut archive.parts)
        .into_iter()
        .partition(|part| parts.contains(&part.id));
    archive.parts = kept;
    let dropped: Vec<strata_store::Part> = dropped;
    let files = dropped.into_iter().flat_map(|part| part.files);
    archive.deleted.extend(files.map(|file| file.name));
    archive.gone.extend(gone);
}

/// What can be deleted, and the bytes of what cannot.
fn candidates(log: &Log, retention: &Retention) -> Result<(Vec<Candidate>, u64), ArchiveError> {
    let mut candidates: Vec<Candidate> = log
        .archive()
        .parts
        .iter()
        .map(|part| Candidate {
            piece: Piece::Part(part.id),
            last_ns: part.ts_max_ns,
            bytes: part.bytes(),
            packets: part.packets,
            keep_ns: retention.of(&part.retention),
        })
        .collect();
    let live = log.is_being_written();
    let last = log.recordings().last().map(|recording| recording.id);
    let mut held = 0;
    for recording in log.recordings() {
        let running = live && recording.state == State::Running && Some(recording.id) == last;
        for file in &recording.files {
            if running && !file.sealed {
                let size = log.disk().open(&file.name, false).and_then(|f| f.size());
                held += size.unwrap_or(0);
                continue;
            }
            candidates.push(of_blocks(log, recording, file, retention)?);
        }
    }
    Ok((candidates, held))
}

fn of_blocks(
    log: &Log,
    recording: &Recording,
    file: &BlockFile,
    retention: &Retention,
) -> Result<Candidate, ArchiveError> {
    let mut one = recording.clone();
    one.files = vec![file.clone()];
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
    };
    let mut last_ns = 0;
    // A damaged block's packets are lost already.
    for block in log.blocks(&one, &select).flatten() {
        if block.header.packets == 0 {
            continue;
        }
        if gone.packets == 0 {
            gone.first_seq = block.header.first_seq;
        }
        gone.packets += u64::from(block.header.packets);
        gone.next_seq = block.header.next_seq;
        last_ns = last_ns.max(block.header.ts_max_ns);
    }
    let size = log.disk().open(&file.name, false).and_then(|f| f.size());
    Ok(Candidate {
        last_ns,
        bytes: size.unwrap_or(0),
        packets: gone.packets,
        keep_ns: retention.longest(),
        piece: Piece::Block(gone),
    })
}
