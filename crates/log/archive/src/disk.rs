//! The disk of a log at rest, on which files of parts are checked as they are read, and encrypted
//! ones are decrypted.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

pub(crate) mod changes;
pub(crate) mod checked;
pub(crate) mod encryption;

use std::collections::HashMap;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use age::DecryptError;
use age::stream::StreamReader;
use strata_store::{
    Disk, DiskFile, DiskLayer, ENCRYPTED, FileKind, Part, PartFile, ReadOnlyFile, STAGING,
    WrappedKey, read_archive,
};

use crate::disk::checked::{CheckedFile, Pieces, pieces_of};
use crate::keys::{Identities, PartKey, chunk_offset};
use crate::part::staging_name;

/// An age header with one recipient takes about 200 bytes; data are read bypassing the buffer.
const HEAD_BYTES: usize = 512;

/// A log's disk on which files of parts are read as plaintext: checked against their checksums, and
/// decrypted. All other files are as on the disk below.
pub struct ClearDisk {
    below: Arc<dyn Disk>,
    identities: Option<Identities>,
    /// Whether reads are compared with the checksums.
    checks: bool,
    parts: Mutex<Parts>,
}

/// By number.
#[derive(Default)]
struct Parts {
    listed: HashMap<u32, Part>,
    sums: HashMap<u32, Pieces>,
    keys: HashMap<u32, PartKey>,
}

impl ClearDisk {
    /// Reads with these keys. Without keys, opening an encrypted file is an error that says what is
    /// missing.
    #[must_use]
    pub fn new(below: Arc<dyn Disk>, identities: Option<Identities>) -> Self {
        Self {
            below,
            identities,
            checks: true,
            parts: Mutex::default(),
        }
    }

    /// For use after the stored bytes were already checked.
    pub(crate) fn without_checks(below: Arc<dyn Disk>, identities: Identities) -> Self {
        Self {
            checks: false,
            ..Self::new(below, Some(identities))
        }
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry of a part's file in `archive.json`, if it is one.
    fn listed(&self, name: &str) -> io::Result<Option<(u32, PartFile)>> {
        let (Some(number), true) = (part_of(name), is_of_a_part(name)) else {
            return Ok(None);
        };
        let mut parts = self.parts();
        if let Some(file) = parts
            .listed
            .get(&number)
            .and_then(|part| file_of(part, name))
        {
            return Ok(Some((number, file.clone())));
        }
        // The log may have changed since then.
        let archive = read_archive(self.below.as_ref()).map_err(io::Error::other)?;
        let listed = archive.parts.into_iter();
        parts.listed = listed.map(|part| (part.id, part)).collect();
        let file = parts
            .listed
            .get(&number)
            .and_then(|part| file_of(part, name));
        Ok(file.map(|file| (number, file.clone())))
    }

    /// Checks a file of a part as it is read.
    fn checked(&self, file: Box<dyn DiskFile>, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let Some((number, listed)) = self.listed(name)? else {
            return Ok(file);
        };
        if !self.checks {
            return Ok(file);
        }
        let mut parts = self.parts();
        if !parts.sums.contains_key(&number)
            && let Some(part) = parts.listed.get(&number)
        {
            let pieces = pieces_of(self.below.as_ref(), part);
            parts.sums.insert(number, pieces);
        }
        let pieces = parts
            .sums
            .get(&number)
            .and_then(|sums| sums.get(&listed.kind));
        let pieces = pieces.cloned();
        drop(parts);
        Ok(Box::new(CheckedFile::new(file, &listed, pieces)?))
    }

    fn key_of(&self, name: &str) -> io::Result<PartKey> {
        let number =
            part_of(name).ok_or_else(|| damaged("its name is not that of a part's file"))?;
        let mut parts = self.parts();
        if let Some(key) = parts.keys.get(&number) {
            return Ok(key.clone());
        }
        let part = parts.listed.get(&number);
        let wrapped = part.and_then(|part| part.key.as_ref());
        let wrapped = wrapped.ok_or_else(|| damaged("archive.json has no key for it"))?;
        let key = unwrap(wrapped, self.identities.as_ref())?;
        parts.keys.insert(number, key.clone());
        Ok(key)
    }
}

/// Whether this can be the name of a part's file.
fn is_of_a_part(name: &str) -> bool {
    let kinds = [
        FileKind::Packets,
        FileKind::Flows,
        FileKind::Payload,
        FileKind::Meta,
        FileKind::Sums,
    ];
    let mut dirs = name.rsplit('/').skip(1);
    dirs.any(|dir| dir == STAGING || kinds.iter().any(|kind| dir == kind.dir()))
}

fn file_of<'a>(part: &'a Part, name: &str) -> Option<&'a PartFile> {
    part.files.iter().find(|file| {
        file.name == name || staging_name(part.id, file.kind, file.is_encrypted()) == name
    })
}

/// Opens the key of a part. Without the right secret key, an error of kind `PermissionDenied`.
pub(crate) fn unwrap(wrapped: &WrappedKey, with: Option<&Identities>) -> io::Result<PartKey> {
    let to = wrapped.to.join(" and ");
    let denied = |text: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    let Some(identities) = with else {
        return denied(format!(
            "it is encrypted to {to}: name the file with the secret key (--key, or STRATA_KEY)"
        ));
    };
    match PartKey::unwrap(wrapped, identities) {
        Ok(key) => Ok(key),
        Err(DecryptError::NoMatchingKeys) => denied(format!(
            "it is encrypted to {to}, but the given key is {}",
            identities.recipients().texts().join(" and ")
        )),
        Err(error) => Err(damaged(&format!("its key in archive.json: {error}"))),
    }
}

fn damaged(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem.to_owned())
}

/// The part a file belongs to, from the start of its name.
fn part_of(name: &str) -> Option<u32> {
    let (_, file) = name.rsplit_once('/')?;
    file.split('.').next()?.parse().ok()
}

impl DiskLayer for ClearDisk {
    fn below(&self) -> &dyn Disk {
        self.below.as_ref()
    }

    fn open(&self, name: &str, writable: bool) -> io::Result<Box<dyn DiskFile>> {
        let file = self.below.open(name, writable)?;
        if writable {
            return Ok(file);
        }
        let file = self.checked(file, name)?;
        if !name.ends_with(ENCRYPTED) {
            return Ok(file);
        }
        let key = self.key_of(name)?;
        Ok(Box::new(ClearFile::new(file, &key)?))
    }
}

/// The content of an encrypted file, decrypted as it is read.
struct ClearFile {
    stream: Mutex<StreamReader<BufReader<Stored>>>,
    len: u64,
    stored: u64,
}

impl ClearFile {
    fn new(file: Box<dyn DiskFile>, key: &PartKey) -> io::Result<Self> {
        let stored = file.size()?;
        let input = BufReader::with_capacity(
            HEAD_BYTES,
            Stored {
                file,
                at: 0,
                len: stored,
            },
        );
        let mut stream = key.decrypt(input).map_err(|error| match error {
            DecryptError::Io(error) => damaged(&format!("its age header: {error}")),
            error => damaged(&format!("its age header: {error}")),
        })?;
        // Decrypts the last chunk, so that a truncated file is noticed here.
        let len = stream.seek(SeekFrom::End(0))?;
        Ok(Self {
            stream: Mutex::new(stream),
            len,
            stored,
        })
    }
}

impl ReadOnlyFile for ClearFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = self.len.saturating_sub(offset);
        let wanted = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let mut done = 0_usize;
        let mut read = || -> io::Result<()> {
            stream.seek(SeekFrom::Start(offset))?;
            while done < wanted {
                match stream.read(&mut buffer[done..wanted])? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    n => done = done.saturating_add(n),
                }
            }
            Ok(())
        };
        if wanted > 0 {
            read().map_err(|error| {
                let at = chunk_offset(offset.saturating_add(done as u64), self.len, self.stored);
                let problem = format!("the data at offset {at} cannot be decrypted: {error}");
                io::Error::new(error.kind(), problem)
            })?;
        }
        Ok(done)
    }

    fn len(&self) -> u64 {
        self.len
    }
}

/// A file as a stream.
struct Stored {
    file: Box<dyn DiskFile>,
    at: u64,
    len: u64,
}

impl Read for Stored {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at = self.at.saturating_add(read as u64);
        Ok(read)
    }
}

impl Seek for Stored {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.len.checked_add_signed(by),
        };
        self.at = target.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
