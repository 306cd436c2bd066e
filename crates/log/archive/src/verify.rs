//! Verification: every byte of a log is what was written.

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::sync::Arc;

use strata_blocks::{BlockHeader, ClassCount};
use strata_store::{
    BlockFile, Checkpoint, Damage, Disk, FileKind, Log, MissingFile, Part, PartFile, Recording,
    Select, State, StoreError, check_drift, checkpoint_name, drift_name, index_name, verify_index,
};

use crate::compact::jobs::defined::Defined;
use crate::disk::ClearDisk;
use crate::error::ArchiveError;
use crate::files::{Input, SUM_BYTES};
use crate::keys::{CHUNK_BYTES, Identities, chunk_offset};
use crate::part::{self, SumsFile, name_of};

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Files read.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets in them.
    pub packets: u64,
    /// Encrypted files of which only the stored bytes were checked, for lack of a key.
    pub not_decrypted: u64,
    /// What differs from what was written.
    pub damage: Vec<Damage>,
    /// What is not as it was meant to be although no byte was changed afterwards: what a crash or a power
    /// failure kept from being written of an index or of one of two checkpoints.
    pub warnings: Vec<Damage>,
    /// Recordings of which packets are known to be lost, and the number of these packets: between blocks, or
    /// after the last one. They never were in a file, so no file is damaged.
    pub lost: Vec<(u32, u64)>,
}

/// Reads every file of a log and checks it against its checksums, which cover the stored bytes:
/// encrypted files need no key. With keys they are decrypted too, which finds changes made together
/// with the checksum.
///
/// # Errors
///
/// If a file cannot be read, or a key is the wrong one; damage is not an error.
pub fn verify(log: &Log, keys: Option<&Identities>) -> Result<Verified, ArchiveError> {
    verify_telling(log, keys, &mut |_| ControlFlow::Continue(()))
}

/// As [`verify`]. After each block file and each part, `tell` gets what was verified so far; if it
/// breaks, that is all.
///
/// # Errors
///
/// As [`verify`].
pub fn verify_telling(
    log: &Log,
    keys: Option<&Identities>,
    tell: &mut dyn FnMut(&Verified) -> ControlFlow<()>,
) -> Result<Verified, ArchiveError> {
    let disk = log.disk().as_ref();
    let clear = keys.map(|keys| ClearDisk::without_checks(Arc::clone(log.disk()), keys.clone()));
    let mut verified = Verified::default();
    let being_written = log.being_written();
    for recording in log.recordings() {
        verified.models(disk, recording)?;
        verified.drift(disk, recording)?;
        if !being_written(recording) {
            verified.checkpoints(disk, recording)?;
        }
        for file in &recording.files {
            verified.block_file(log, recording, file)?;
            if tell(&verified).is_break() {
                return Ok(verified);
            }
        }
        if !being_written(recording) {
            verified.sequence(log, recording)?;
        }
    }
    for part in &log.archive().parts {
        verified.part(disk, clear.as_ref(), part)?;
        if tell(&verified).is_break() {
            return Ok(verified);
        }
    }
    Ok(verified)
}

impl Verified {
    fn note(&mut self, file: String, offset: u64, problem: impl Into<String>) {
        self.damage.push(Damage {
            file,
            offset,
            problem: problem.into(),
            missing: None,
        });
    }

    fn models(&mut self, disk: &dyn Disk, recording: &Recording) -> Result<(), ArchiveError> {
        self.model(disk, (&recording.model_file, recording.model_crc))?;
        match &recording.shadow {
            Some(shadow) => self.model(disk, (&shadow.model_file, shadow.model_crc)),
            None => Ok(()),
        }
    }

    fn model(&mut self, disk: &dyn Disk, (file, crc): (&str, u32)) -> Result<(), ArchiveError> {
        let named = disk.display(file);
        let Ok(input) = Input::open(disk, file) else {
            self.damage.push(Damage {
                file: named,
                offset: 0,
                problem: String::from("the file with the recording's model is missing"),
                missing: Some(MissingFile {
                    part: None,
                    packets: 0,
                }),
            });
            return Ok(());
        };
        self.files += 1;
        self.bytes = self.bytes.saturating_add(input.size());
        let sums = input
            .sums()
            .map_err(ArchiveError::io(named.clone(), "read"))?;
        if sums.crc != crc {
            self.note(named, 0, "the checksum of the file does not match");
        }
        Ok(())
    }

    fn block_file(
        &mut self,
        log: &Log,
        recording: &Recording,
        file: &BlockFile,
    ) -> Result<(), ArchiveError> {
        let disk = log.disk().as_ref();
        let (mut gaps, mut found) = (Vec::new(), BTreeMap::new());
        let mut defined = Defined::default();
        let select = Select {
            without_index: true,
            ..Select::default()
        };
        for block in log.blocks_in(recording, file, &select) {
            match block {
                Ok(block) => {
                    self.packets = self.packets.saturating_add(block.header.packets.into());
                    gaps.push(block.ends);
                    defined.take_in(&block);
                    found.insert(block.offset, (block.header, block.summary.counts));
                    for at in block.damaged_segments {
                        let problem = "the checksum of the segment here does not match";
                        self.note(block.file.clone(), at, problem);
                    }
                }
                Err(StoreError::Damage(damage)) => self.damage.push(damage),
                Err(error) => return Err(error.into()),
            }
        }
        if let Some((offset, problem)) = defined.problem() {
            self.note(disk.display(&file.name), offset, problem);
        }
        if let Ok(input) = Input::open(disk, &file.name) {
            self.files += 1;
            self.bytes = self.bytes.saturating_add(input.size());
            self.padding(disk, &file.name, &input, &gaps)?;
            self.index(disk, recording, file, &found)?;
        }
        Ok(())
    }

    /// Packets that are known to be lost.
    fn sequence(&mut self, log: &Log, recording: &Recording) -> Result<(), ArchiveError> {
        let (_, loss) = log.accounting(recording)?;
        if loss.packets > 0 {
            self.lost.push((recording.id, loss.packets));
        }
        Ok(())
    }

    fn index(
        &mut self,
        disk: &dyn Disk,
        recording: &Recording,
        file: &BlockFile,
        blocks: &BTreeMap<u64, (BlockHeader, Vec<ClassCount>)>,
    ) -> Result<(), ArchiveError> {
        let name = index_name(&file.name);
        let named = disk.display(&name);
        if let Ok(input) = Input::open(disk, &name) {
            self.files += 1;
            self.bytes = self.bytes.saturating_add(input.size());
        }
        let found = verify_index(disk, recording, file, blocks);
        let Some(found) = found.map_err(ArchiveError::io(named.clone(), "read"))? else {
            return Ok(());
        };
        let damage = Damage {
            file: named,
            offset: found.offset,
            problem: found.problem.to_owned(),
            missing: None,
        };
        // It is not synced, so a recording that ended abruptly may have any part of it.
        if found.is_torn || recording.state == State::Running {
            self.warnings.push(damage);
        } else {
            self.damage.push(damage);
        }
        Ok(())
    }

    /// A small file, if it is there.
    fn content(&mut self, disk: &dyn Disk, name: &str) -> Result<Option<Vec<u8>>, ArchiveError> {
        if !disk.exists(name) {
            return Ok(None);
        }
        let input = Input::open(disk, name)?;
        let read = input.read_all();
        let content = read.map_err(ArchiveError::io(disk.display(name), "read"))?;
        self.files += 1;
        self.bytes = self.bytes.saturating_add(content.len() as u64);
        Ok(Some(content))
    }

    fn drift(&mut self, disk: &dyn Disk, recording: &Recording) -> Result<(), ArchiveError> {
        let name = drift_name(recording.id);
        if let Some(content) = self.content(disk, &name)?
            && let Err(problem) = check_drift(&content)
        {
            self.note(disk.display(&name), 0, problem);
        }
        Ok(())
    }

    fn checkpoints(&mut self, disk: &dyn Disk, recording: &Recording) -> Result<(), ArchiveError> {
        for worker in 0..=u16::MAX {
            let name = checkpoint_name(recording.id, worker);
            let Some(content) = self.content(disk, &name)? else {
                break;
            };
            let problems = Checkpoint::problems(&content);
            // A crash tears at most one, since they are written in turn.
            let torn = recording.state == State::Running && Checkpoint::latest(&content).is_some();
            for (offset, problem) in problems {
                let damage = Damage {
                    file: disk.display(&name),
                    offset,
                    problem: problem.to_owned(),
                    missing: None,
                };
                if torn {
                    self.warnings.push(damage);
                } else {
                    self.damage.push(damage);
                }
            }
        }
        Ok(())
    }

    /// Between blocks there are zeros, which no checksum covers.
    fn padding(
        &mut self,
        disk: &dyn Disk,
        name: &str,
        input: &Input,
        gaps: &[(u64, u64)],
    ) -> Result<(), ArchiveError> {
        for &(start, end) in gaps {
            let len = usize::try_from(end - start);
            let mut bytes = vec![0; len.expect("blocks are padded to 4,096 bytes")];
            let read = input.read_at(&mut bytes, start);
            let read = read.map_err(ArchiveError::io(disk.display(name), "read"))?;
            if let Some(at) = bytes[..read].iter().position(|byte| *byte != 0) {
                self.note(
                    disk.display(name),
                    start + at as u64,
                    "a byte between blocks is not zero; nothing is lost",
                );
            }
        }
        Ok(())
    }

    fn part(
        &mut self,
        disk: &dyn Disk,
        clear: Option<&ClearDisk>,
        part: &Part,
    ) -> Result<(), ArchiveError> {
        self.packets = self.packets.saturating_add(part.packets);
        let mut pieces = HashMap::new();
        if part.file(FileKind::Sums).is_some()
            && let Ok(input) = part::open(disk, part, FileKind::Sums)
        {
            // If it is damaged, its own checksum will show it below.
            if let Ok(bytes) = input.read_all()
                && let Ok(file) = serde_json::from_slice::<SumsFile>(&bytes)
            {
                pieces.extend(file.files.into_iter().map(|file| (file.kind, file.pieces)));
            }
        }
        for file in &part.files {
            let name = name_of(disk, part, file);
            let named = disk.display(&name);
            let Ok(input) = Input::open(disk, &name) else {
                self.damage
                    .push(Damage::missing(named, part.id, part.packets));
                continue;
            };
            self.files += 1;
            self.bytes = self.bytes.saturating_add(input.size());
            if input.size() != file.bytes {
                let problem = format!("the file should have {} bytes", file.bytes);
                self.note(named.clone(), input.size().min(file.bytes), problem);
            }
            let sums = input
                .sums()
                .map_err(ArchiveError::io(named.clone(), "read"))?;
            if sums.crc == file.crc && sums.bytes == file.bytes {
                if file.is_encrypted() {
                    self.decrypted(disk, clear, part, file)?;
                }
                continue;
            }
            let mut found = false;
            if let Some(pieces) = pieces.get(&file.kind) {
                for (n, (is, should)) in sums.pieces.iter().zip(pieces).enumerate() {
                    if is != should {
                        found = true;
                        let problem = format!(
                            "the checksum of the {SUM_BYTES} bytes from here does not match"
                        );
                        self.note(named.clone(), (n * SUM_BYTES) as u64, problem);
                    }
                }
            }
            if !found && input.size() == file.bytes {
                self.note(named, 0, "the checksum of the file does not match");
            }
        }
        Ok(())
    }

    /// Decrypts a file whose stored bytes match the manifest.
    fn decrypted(
        &mut self,
        disk: &dyn Disk,
        clear: Option<&ClearDisk>,
        part: &Part,
        file: &PartFile,
    ) -> Result<(), ArchiveError> {
        let Some(clear) = clear else {
            self.not_decrypted += 1;
            return Ok(());
        };
        let name = name_of(disk, part, file);
        let (offset, problem) = match Input::open(clear, &name) {
            Ok(input) => match undecryptable(&input) {
                None => return Ok(()),
                Some(at) => (chunk_offset(at, input.size(), file.bytes), CHANGED.into()),
            },
            Err(ArchiveError::Io { source, .. }) if source.kind() == ErrorKind::InvalidData => {
                (0, source.to_string())
            }
            Err(error) => return Err(error),
        };
        self.note(disk.display(&name), offset, problem);
        Ok(())
    }
}

const CHANGED: &str = "the data here cannot be decrypted, although its checksum is right: it was \
changed on purpose, not by accident";

/// The first chunk of an encrypted file that cannot be decrypted, if any.
fn undecryptable(input: &Input) -> Option<u64> {
    let chunk_len = usize::try_from(CHUNK_BYTES).expect("64 KiB");
    let mut chunk = vec![0; chunk_len];
    let mut chunks = (0..input.size()).step_by(chunk.len());
    chunks.find(|&at| input.read_at(&mut chunk, at).is_err())
}
