//! Files of a log's disk as streams: written once, read at any offset.

pub(crate) mod payload;

use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use age::stream::StreamWriter;
use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use strata_store::{Disk, DiskFile};
use strata_tables::TableInput;

use crate::error::ArchiveError;
use crate::keys::PartKey;

/// Bytes under one checksum: how precisely damage can be located.
pub(crate) const SUM_BYTES: usize = 64 << 10;
/// Bytes written at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// Checksums of what was written, as stored, for the manifest and for verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) bytes: u64,
    /// CRC-32C of the whole.
    pub(crate) crc: u32,
    /// CRC-32C of each [`SUM_BYTES`]; the last piece may be shorter.
    pub(crate) pieces: Vec<u32>,
    in_piece: usize,
    piece: u32,
}

impl Sums {
    pub(crate) fn add(&mut self, mut bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        while !bytes.is_empty() {
            let take = bytes.len().min(SUM_BYTES - self.in_piece);
            self.piece = crc32c::crc32c_append(self.piece, &bytes[..take]);
            self.in_piece += take;
            bytes = &bytes[take..];
            if self.in_piece == SUM_BYTES {
                self.close();
            }
        }
    }

    /// Ends the last piece.
    pub(crate) fn close(&mut self) {
        if self.in_piece > 0 {
            self.pieces.push(self.piece);
            (self.in_piece, self.piece) = (0, 0);
        }
    }
}

/// A new file, written from start to end.
pub(crate) struct Output(Layer);

enum Layer {
    Clear(Stored),
    Encrypted(Box<StreamWriter<Stored>>),
}

/// The bytes stored on the disk.
struct Stored {
    file: Box<dyn DiskFile>,
    buffer: Vec<u8>,
    flushed: u64,
    sums: Sums,
}

impl Output {
    /// A file, encrypted if there is a key.
    pub(crate) fn create(
        disk: &dyn Disk,
        name: &str,
        key: Option<&PartKey>,
    ) -> Result<Self, ArchiveError> {
        let create = || -> io::Result<Layer> {
            let stored = Stored {
                file: disk.create(name)?,
                buffer: Vec::with_capacity(BUFFER_BYTES),
                flushed: 0,
                sums: Sums::default(),
            };
            Ok(match key {
                None => Layer::Clear(stored),
                Some(key) => Layer::Encrypted(Box::new(key.encrypt(stored)?)),
            })
        };
        let layer = create().map_err(ArchiveError::io(disk.display(name), "create"))?;
        Ok(Self(layer))
    }

    /// Makes the file survive a crash.
    pub(crate) fn finish(self) -> io::Result<Sums> {
        let mut stored = match self.0 {
            Layer::Clear(stored) => stored,
            Layer::Encrypted(stream) => stream.finish()?,
        };
        stored.write_out()?;
        stored.file.sync()?;
        stored.sums.close();
        Ok(stored.sums)
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Layer::Clear(stored) => stored.write(bytes),
            Layer::Encrypted(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stored {
    fn write_out(&mut self) -> io::Result<()> {
        self.file.write_at(&self.buffer, self.flushed)?;
        self.flushed += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

impl Write for Stored {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sums.add(bytes);
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER_BYTES {
            self.write_out()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An existing file, read at any offset.
#[derive(Clone)]
pub struct Input {
    file: Arc<Mutex<Box<dyn DiskFile>>>,
    len: u64,
}

impl Input {
    /// Opens a file.
    ///
    /// # Errors
    ///
    /// If it cannot be opened.
    pub fn open(disk: &dyn Disk, name: &str) -> Result<Self, ArchiveError> {
        let file = disk.open(name, false);
        let opened = file.and_then(|file| Ok((file.size()?, file)));
        let (len, file) = opened.map_err(ArchiveError::io(disk.display(name), "open"))?;
        Ok(Self {
            file: Arc::new(Mutex::new(file)),
            len,
        })
    }

    /// A stream starting at an offset.
    pub(crate) fn at(&self, offset: u64) -> InputAt {
        InputAt {
            input: self.clone(),
            at: offset,
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.len
    }

    /// Reads as many bytes as there are, up to the buffer's length.
    pub(crate) fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.read_at(buffer, offset)
    }

    /// These bytes will be read soon.
    pub(crate) fn will_read(&self, bytes: Range<u64>) {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.will_read(bytes);
    }

    /// The whole content of a small file.
    pub(crate) fn read_all(&self) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        self.at(0).read_to_end(&mut content)?;
        Ok(content)
    }

    /// Reads the whole file to compute its checksums.
    pub(crate) fn sums(&self) -> io::Result<Sums> {
        let mut sums = Sums::default();
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let read = self.read_at(&mut buffer, sums.bytes)?;
            if read == 0 {
                break;
            }
            sums.add(&buffer[..read]);
        }
        sums.close();
        Ok(sums)
    }
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Input")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Length for Input {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for Input {
    type T = io::BufReader<InputAt>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(io::BufReader::new(self.at(start)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let end = start.checked_add(length as u64);
        if end.is_none_or(|end| end > self.len) {
            return Err(ParquetError::EOF(format!(
                "{length} bytes at offset {start} of a file of {} bytes",
                self.len
            )));
        }
        let mut buffer = vec![0; length];
        let read = self.read_at(&mut buffer, start)?;
        buffer.truncate(read);
        Ok(buffer.into())
    }
}

/// A position in an [`Input`].
#[derive(Debug)]
pub struct InputAt {
    input: Input,
    at: u64,
}

impl InputAt {
    pub(crate) fn input(&self) -> &Input {
        &self.input
    }

    pub(crate) fn position(&self) -> u64 {
        self.at
    }
}

impl Read for InputAt {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl TableInput for Input {
    fn will_read(&self, bytes: Range<u64>) {
        Self::will_read(self, bytes);
    }
}
