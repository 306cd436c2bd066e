//! Files of parts, checked as they are read: every byte returned is the byte that was written.
//!
//! The checksums in `sums/` cover each 64 KiB of a file as stored, and so what no format's own
//! checksums cover: footers, page headers, Bloom filters, headers of encrypted files.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use strata_store::{Disk, DiskFile, FileKind, Part, PartFile, ReadOnlyFile};

use crate::error::Mismatch;
use crate::files::{SUM_BYTES, Sums};
use crate::part::{SumsFile, name_of};

/// Checksums of a part's files, piece by piece; empty if they are missing or damaged.
pub(crate) type Pieces = HashMap<FileKind, Arc<[u32]>>;

/// Reads the checksums of a part.
pub(crate) fn pieces_of(disk: &dyn Disk, part: &Part) -> Pieces {
    let read = || -> Option<Pieces> {
        let file = part.file(FileKind::Sums)?;
        let opened = disk.open(&name_of(disk, part, file), false).ok()?;
        let bytes = read_all(opened.as_ref()).ok()?;
        if crc32c::crc32c(&bytes) != file.crc {
            return None;
        }
        let sums: SumsFile = serde_json::from_slice(&bytes).ok()?;
        let sums = sums.files.into_iter();
        Some(sums.map(|file| (file.kind, file.pieces.into())).collect())
    };
    read().into_iter().flatten().collect()
}

fn read_all(file: &dyn DiskFile) -> io::Result<Vec<u8>> {
    let size = usize::try_from(file.size()?).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut bytes = vec![0; size];
    read_whole(file, &mut bytes, 0)?;
    Ok(bytes)
}

/// Fills the buffer.
fn read_whole(file: &dyn DiskFile, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    let mut done = 0_usize;
    while done < buffer.len() {
        let at = offset.saturating_add(done as u64);
        match file.read_at(&mut buffer[done..], at)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => done = done.saturating_add(read),
        }
    }
    Ok(())
}

/// Where a piece begins.
fn start_of(number: usize) -> u64 {
    (number as u64).saturating_mul(SUM_BYTES as u64)
}

fn damaged(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

/// A part's file, checked as it is read.
pub(crate) struct CheckedFile {
    file: Box<dyn DiskFile>,
    len: u64,
    pieces: Arc<[u32]>,
    /// The last piece that was read in part: sequential readers want the rest.
    last: Mutex<(usize, Vec<u8>)>,
}

impl CheckedFile {
    /// Without checksums of its pieces, as in parts of old versions or with damage in `sums/`, the
    /// file is read once now and compared with its checksum in `archive.json`.
    pub(crate) fn new(
        file: Box<dyn DiskFile>,
        listed: &PartFile,
        pieces: Option<Arc<[u32]>>,
    ) -> io::Result<Self> {
        let len = file.size()?;
        if len != listed.bytes {
            let problem = format!("it has {len} bytes, but {} were written", listed.bytes);
            return Err(damaged(problem));
        }
        let count = len.div_ceil(SUM_BYTES as u64);
        let pieces = match pieces.filter(|pieces| pieces.len() as u64 == count) {
            Some(pieces) => pieces,
            None => sums_of(file.as_ref(), listed)?,
        };
        Ok(Self {
            file,
            len,
            pieces,
            last: Mutex::new((usize::MAX, Vec::new())),
        })
    }

    /// Reads a piece, of which the last may be shorter.
    fn piece(&self, number: usize, buffer: &mut [u8]) -> io::Result<()> {
        let offset = start_of(number);
        read_whole(self.file.as_ref(), buffer, offset)?;
        if self.pieces.get(number) != Some(&crc32c::crc32c(buffer)) {
            let len = buffer.len();
            let mismatch = Mismatch { len, offset };
            return Err(io::Error::new(io::ErrorKind::InvalidData, mismatch));
        }
        Ok(())
    }
}

fn sums_of(file: &dyn DiskFile, listed: &PartFile) -> io::Result<Arc<[u32]>> {
    let mut sums = Sums::default();
    let mut buffer = vec![0; SUM_BYTES];
    while sums.bytes < listed.bytes {
        let left = usize::try_from(listed.bytes.saturating_sub(sums.bytes)).unwrap_or(SUM_BYTES);
        let piece = &mut buffer[..left.min(SUM_BYTES)];
        read_whole(file, piece, sums.bytes)?;
        sums.add(piece);
    }
    sums.close();
    if sums.crc != listed.crc {
        return Err(damaged("the checksum of the file does not match".into()));
    }
    Ok(sums.pieces.into())
}

impl ReadOnlyFile for CheckedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = self.len.saturating_sub(offset);
        let wanted = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rest = &mut buffer[..wanted];
        let mut at = offset;
        while !rest.is_empty() {
            const PIECE: u64 = SUM_BYTES as u64;
            let number = usize::try_from(at / PIECE).map_err(io::Error::other)?;
            let start = start_of(number);
            let small = |bytes| usize::try_from(bytes).expect("no more than a piece");
            let len = small(self.len.saturating_sub(start).min(SUM_BYTES as u64));
            let within = small(at.saturating_sub(start));
            let take = len.saturating_sub(within).min(rest.len());
            let (out, after) = std::mem::take(&mut rest).split_at_mut(take);
            if take == len {
                self.piece(number, out)?;
            } else {
                if last.0 != number {
                    last.0 = usize::MAX;
                    last.1.resize(len, 0);
                    self.piece(number, &mut last.1)?;
                    last.0 = number;
                }
                out.copy_from_slice(&last.1[within..][..take]);
            }
            rest = after;
            at = at.saturating_add(take as u64);
        }
        Ok(wanted)
    }

    fn will_read(&self, bytes: Range<u64>) {
        // Whole pieces will be.
        let piece = SUM_BYTES as u64;
        let end = bytes.end.min(self.len).checked_next_multiple_of(piece);
        let end = end.unwrap_or(self.len);
        self.file
            .will_read(bytes.start & !piece.wrapping_sub(1)..end.min(self.len));
    }

    fn len(&self) -> u64 {
        self.len
    }
}
