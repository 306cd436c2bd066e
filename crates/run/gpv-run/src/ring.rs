//! A ring of datagrams in a file, for an agent on the same machine: one process writes it without
//! ever waiting, others read it without a system call. What a reader does not take in time is
//! written over, and it counts that. `docs/formats/gpv.md` has the layout.
//!
//! Memory: the file, which both map; a reader one datagram more.

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate};
use strata_sys::words::{Words, WordsMut};

use crate::error::{At as _, Result, VectorError};

const MAGIC: [u8; 8] = *b"SGPVRING";
const VERSION: u32 = 1;

// Where words are; slots begin at `HEADER`.
const SHAPE: usize = 8;
const SLOTS: usize = 16;
const ENDED: usize = 24;
const WRITTEN: usize = 32;
const HEADER: usize = 64;

/// Bytes of a slot in addition to the datagram: its number twice, and its length.
const AROUND: usize = 24;
/// Maximum bytes of a slot.
const SLOT_MAX: usize = 128 << 10;
/// Bytes of a ring.
const BYTES_MIN: u64 = 1 << 16;
const BYTES_MAX: u64 = 64 << 30;

/// The end that writes. Its file is locked as long as it lives.
pub(crate) struct RingWriter {
    words: WordsMut,
    slot_len: usize,
    slots: u64,
    written: u64,
    /// A slot while it is put together.
    slot: Vec<u8>,
    _locked: File,
}

impl RingWriter {
    /// A new ring of about `bytes` bytes, for datagrams of at most `datagram_max` bytes, in place of
    /// one without a writer.
    pub(crate) fn create(path: &Path, bytes: u64, datagram_max: usize) -> Result<Self> {
        let name = path.display();
        if !(BYTES_MIN..=BYTES_MAX).contains(&bytes) {
            return Err(VectorError::Refused(format!(
                "--ring-size: a ring must be 64 KiB to 64 GiB large, not {bytes} bytes"
            )));
        }
        replaceable(path)?;
        let slot_len = datagram_max.next_multiple_of(8) + AROUND;
        let slots = (bytes - HEADER as u64) / slot_len as u64;
        if slots < 2 {
            let problem = format!("a ring of {bytes} bytes has no room for two datagrams");
            return Err(broken(path, problem));
        }
        let len: usize = strata_wire::exact(HEADER as u64 + slots * slot_len as u64);
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        // It has no name before it is whole.
        let created = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")));
        let created = created.at_with(|| format!("{name}: cannot create a ring"))?;
        let file = created.as_file().try_clone()?;
        // All of it at once: a page for which there is no room later would end the program.
        fallocate(&file, FallocateFlags::empty(), 0, len as u64)
            .at_with(|| format!("{name}: cannot reserve {len} bytes for the ring"))?;
        file.try_lock()
            .at_with(|| format!("{name}: cannot lock it"))?;
        let mut words = WordsMut::map(&file, len).at_with(|| format!("{name}: cannot map it"))?;
        let shape = u64::from(VERSION) | (slot_len as u64) << 32;
        words.store(SHAPE, shape.to_le());
        words.store(SLOTS, slots.to_le());
        words.write(0, &MAGIC);
        created
            .persist(path)
            .at_with(|| format!("{name}: cannot create a ring"))?;
        Ok(Self {
            words,
            slot_len,
            slots,
            written: 0,
            slot: Vec::with_capacity(slot_len),
            _locked: file,
        })
    }

    /// Writes a datagram over the oldest one.
    ///
    /// # Panics
    ///
    /// If it does not fit into a slot.
    pub(crate) fn put(&mut self, datagram: &[u8]) {
        assert!(datagram.len() + AROUND <= self.slot_len, "fits into a slot");
        let (number, at) = slot_of(self.written, self.slots, self.slot_len);
        self.slot.clear();
        self.slot.extend(number.to_le_bytes());
        self.slot.extend((datagram.len() as u64).to_le_bytes());
        self.slot.extend(datagram);
        let whole = self.slot.len().next_multiple_of(8);
        self.slot.resize(whole, 0);
        self.words.write(at, &self.slot);
        self.words.store(at + self.slot_len - 8, number.to_le());
        self.written += 1;
        self.words.store(WRITTEN, self.written.to_le());
    }

    /// Says that no more will come.
    pub(crate) fn end(&mut self) {
        self.words.store(ENDED, 1_u64.to_le());
    }
}

fn broken(ring: &Path, problem: impl Into<String>) -> VectorError {
    VectorError::Ring {
        ring: ring.display().to_string(),
        problem: problem.into(),
    }
}

/// Fails if there is something else than a ring without a writer.
fn replaceable(path: &Path) -> Result<()> {
    let name = path.display();
    let mut file = match open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).at_with(|| format!("{name}: cannot open it")),
    };
    let mut magic = [0; MAGIC.len()];
    let is_ring = file.metadata()?.is_file() && file.read_exact(&mut magic).is_ok();
    if !is_ring || magic != MAGIC {
        return Err(VectorError::Refused(format!(
            "{name} exists, but is not a ring of vectors: name another file with --ring, or \
             remove it"
        )));
    }
    if is_written(&file)? {
        return Err(VectorError::Refused(format!(
            "{name}: another strata gpv run writes to this ring: name another file with --ring"
        )));
    }
    Ok(())
}

/// Opens a ring; without waiting for somebody else, should it be a named pipe.
fn open(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Whether a writer lives.
fn is_written(file: &File) -> Result<bool> {
    match file.try_lock_shared() {
        Ok(()) => {
            file.unlock()?;
            Ok(false)
        }
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

/// The number that a slot has while it holds the datagram after `before` others, and where it is.
fn slot_of(before: u64, slots: u64, slot_len: usize) -> (u64, usize) {
    let slot: usize = strata_wire::exact(before % slots);
    (before + 1, HEADER + slot * slot_len)
}

/// What a reader finds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A datagram, in the reader's buffer.
    Datagram,
    /// Nothing yet.
    Nothing,
    /// Nothing, and no more will come.
    End,
    /// Nothing, and the writer has gone without a word.
    Abandoned,
}

/// An end that reads, from the oldest datagram on.
pub(crate) struct RingReader {
    words: Words,
    file: File,
    slot_len: usize,
    slots: u64,
    next: u64,
    /// Datagrams that were written over before they were read.
    pub(crate) overwritten: u64,
    buffer: Vec<u8>,
    len: usize,
}

/// Whether this file is a ring.
pub(crate) fn is_ring(path: &Path) -> bool {
    let mut magic = [0; MAGIC.len()];
    // A pipe would lose what is read here.
    let file = open(path).and_then(|file| match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(ErrorKind::Unsupported.into()),
    });
    let read = file.and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == MAGIC
}

impl RingReader {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let name = path.display();
        let file = open(path).at_with(|| {
            format!("{name}: cannot open the ring, which strata gpv run --ring makes")
        })?;
        let len = file.metadata()?.len();
        let mut magic = [0; MAGIC.len()];
        let read = (&file).read_exact(&mut magic);
        if read.is_err() || magic != MAGIC || len < HEADER as u64 {
            return Err(broken(path, "not a ring of vectors"));
        }
        let words = Words::map(&file, strata_wire::exact(len))
            .at_with(|| format!("{name}: cannot map it"))?;
        let word = |at| u64::from_le_bytes(words.word(at));
        let (shape, slots) = (word(SHAPE), word(SLOTS));
        let [version, slot_len] = [shape & 0xffff_ffff, shape >> 32];
        if version != u64::from(VERSION) {
            let problem =
                format!("a ring of version {version}, but this Strata reads version {VERSION}");
            return Err(broken(path, problem));
        }
        let slot_len: usize = strata_wire::exact(slot_len);
        let needed = slots.checked_mul(slot_len as u64);
        let needed = needed.and_then(|bytes| bytes.checked_add(HEADER as u64));
        let is_whole = slot_len.is_multiple_of(8)
            && (AROUND + 8..=SLOT_MAX).contains(&slot_len)
            && slots > 0
            && needed.is_some_and(|needed| needed <= len);
        if !is_whole {
            let shape = format!("{slots} slots of {slot_len} bytes in a file of {len}");
            return Err(broken(path, format!("damaged: byte 8: {shape}")));
        }
        let written = word(WRITTEN);
        Ok(Self {
            words,
            file,
            slot_len,
            slots,
            next: written.saturating_sub(slots),
            overwritten: 0,
            buffer: vec![0; slot_len],
            len: 0,
        })
    }

    /// The datagram found last.
    pub(crate) fn datagram(&self) -> &[u8] {
        &self.buffer[16..16 + self.len]
    }

    /// Reads the next datagram.
    pub(crate) fn read(&mut self) -> Result<Found> {
        loop {
            // Before the count: what was written until then is read.
            let has_ended = self.word(ENDED) != 0;
            let written = self.word(WRITTEN);
            if written <= self.next {
                return self.nothing(has_ended);
            }
            // Those that were written over, or are being written over now.
            let oldest = written.saturating_sub(self.slots);
            if oldest > self.next {
                self.overwritten += oldest - self.next;
                self.next = oldest;
            }
            let is_whole = self.read_slot();
            self.next += 1;
            if is_whole {
                return Ok(Found::Datagram);
            }
            self.overwritten += 1;
        }
    }

    /// A slot is written from the first word to the last, so it is whole if its number is found in
    /// the last word, and then, when all else has been read, in the first one.
    fn read_slot(&mut self) -> bool {
        let (number, at) = slot_of(self.next, self.slots, self.slot_len);
        if self.word(at + self.slot_len - 8) != number {
            return false;
        }
        let len = self.word(at + 8);
        if len > (self.slot_len - AROUND) as u64 {
            return false;
        }
        self.len = strata_wire::exact(len);
        let end = 16 + self.len.next_multiple_of(8);
        self.words.read(at, &mut self.buffer[..end]);
        self.buffer[..8] == number.to_le_bytes() && self.buffer[8..16] == len.to_le_bytes()
    }

    fn nothing(&self, has_ended: bool) -> Result<Found> {
        if has_ended {
            return Ok(Found::End);
        }
        if is_written(&self.file)? {
            return Ok(Found::Nothing);
        }
        // What it wrote last is read first.
        let is_over = self.word(WRITTEN) <= self.next;
        Ok(match (is_over, self.word(ENDED) != 0) {
            (false, _) => Found::Nothing,
            (true, true) => Found::End,
            (true, false) => Found::Abandoned,
        })
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.words.word(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(number: u64) -> Vec<u8> {
        let len: usize = strata_wire::exact(8 + number * 37 % 500);
        number.to_le_bytes().into_iter().cycle().take(len).collect()
    }

    #[test]
    fn what_is_written_is_read_and_what_was_written_over_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ring");
        let mut writer = RingWriter::create(&path, 1 << 16, 508).unwrap();
        let slots = writer.slots;
        let mut early = RingReader::open(&path).unwrap();
        assert_eq!(early.read().unwrap(), Found::Nothing);
        for number in 0..slots {
            writer.put(&datagram(number));
        }
        for number in 0..10 {
            assert_eq!(early.read().unwrap(), Found::Datagram);
            assert_eq!(early.datagram(), datagram(number));
        }
        for number in slots..slots + 25 {
            writer.put(&datagram(number));
        }
        let mut late = RingReader::open(&path).unwrap();
        writer.end();
        for (reader, from, lost) in [(&mut early, 25, 15), (&mut late, 25, 0)] {
            for number in from..slots + 25 {
                assert_eq!(reader.read().unwrap(), Found::Datagram);
                assert_eq!(reader.datagram(), datagram(number));
            }
            assert_eq!(reader.read().unwrap(), Found::End);
            assert_eq!(reader.overwritten, lost);
        }
    }

    #[test]
    fn a_reader_that_races_with_the_writer_gets_only_whole_datagrams() {
        const COUNT: u64 = 300_000;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ring");
        let mut writer = RingWriter::create(&path, 1 << 16, 508).unwrap();
        let mut reader = RingReader::open(&path).unwrap();
        let writing = std::thread::spawn(move || {
            for number in 0..COUNT {
                writer.put(&datagram(number));
            }
            writer.end();
        });
        let mut got = 0;
        loop {
            match reader.read().unwrap() {
                Found::Datagram => {
                    let bytes = reader.datagram();
                    let number = u64::from_le_bytes(*bytes.first_chunk().unwrap());
                    assert_eq!(bytes, datagram(number));
                    // Each is one of those that were read, or counted.
                    assert_eq!(number, got + reader.overwritten);
                    got += 1;
                }
                Found::Nothing => std::thread::yield_now(),
                Found::End => break,
                Found::Abandoned => panic!("it ended"),
            }
        }
        writing.join().unwrap();
        assert_eq!(got + reader.overwritten, COUNT);
    }

    #[test]
    fn only_a_ring_without_a_writer_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ring");
        let writer = RingWriter::create(&path, 1 << 16, 508).unwrap();
        let error = RingWriter::create(&path, 1 << 16, 508).err().unwrap();
        assert!(
            error.to_string().contains("another strata gpv run"),
            "{error}"
        );
        let mut reader = RingReader::open(&path).unwrap();
        assert_eq!(reader.read().unwrap(), Found::Nothing);
        drop(writer);
        assert_eq!(reader.read().unwrap(), Found::Abandoned);
        RingWriter::create(&path, 1 << 16, 508).unwrap();
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        assert!(RingWriter::create(&pipe, 1 << 16, 508).is_err());
        assert!(RingReader::open(&pipe).is_err());
        std::fs::write(&path, "a diary").unwrap();
        let error = RingWriter::create(&path, 1 << 16, 508).err().unwrap();
        assert!(error.to_string().contains("not a ring"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"a diary");
        assert!(RingReader::open(&path).is_err());
    }

    #[test]
    fn a_damaged_ring_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ring");
        drop(RingWriter::create(&path, 1 << 16, 508).unwrap());
        let whole = std::fs::read(&path).unwrap();
        for (at, bytes, what) in [
            (0, u64::from_le_bytes(*b"SGPVRINX"), "not a ring"),
            (8, 2 | 532 << 32, "version 2"),
            (8, 1 | 532 << 33, "damaged"),
            (8, 1, "damaged"),
            (16, u64::MAX, "damaged"),
            (16, 0, "damaged"),
        ] {
            let mut damaged = whole.clone();
            damaged[at..at + 8].copy_from_slice(&bytes.to_le_bytes());
            std::fs::write(&path, damaged).unwrap();
            let error = RingReader::open(&path).err().unwrap();
            assert!(error.to_string().contains(what), "{error}");
        }
        // Whatever counts and numbers say, reading ends.
        let mut damaged = whole;
        damaged[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        std::fs::write(&path, damaged).unwrap();
        let mut reader = RingReader::open(&path).unwrap();
        assert_eq!(reader.read().unwrap(), Found::Abandoned);
    }
}
