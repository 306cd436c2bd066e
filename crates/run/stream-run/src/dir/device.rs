//! A block device as a stripe: what would be files of a directory is at fixed places of the device.
//!
//! ```text
//! layout   the places
//! format   making a device a stripe, if it holds nothing that somebody may want
//! foreign  what it holds otherwise
//! place    how a device is called, and whether somebody else uses it
//! ```
//!
//! The device is itself a file of a [`Disk`]: of `/dev`, or of a simulation.

mod foreign;
mod format;
mod layout;
mod place;

use std::any::Any;
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use strata_store::{Disk, DiskFile, RealDisk};
use strata_stream::nvme::Label;
use strata_sys::AlignedBytes;
use strata_wire::exact;

use crate::dir::locks::Locks;
use crate::dir::pool::{MAP_LOCK, PAGES, STRIPE_MAP};
use crate::error::{In as _, Result, StreamError};
use layout::{LAYOUT_AT, Layout, MAP_AT};

pub(crate) use format::{Holds, format, format_real, holds, logical_block};
pub(crate) use place::{is_device, stable_name};

/// How often the layout is read again if another process is just writing it.
const LAYOUT_READS_MAX: u32 = 1000;

/// What is read past the page cache is multiples of this, and at most this much at a time.
const SECTOR: u64 = 4096;
const CHUNK: usize = 1 << 20;

/// The file of a simulated disk that is a device.
pub(crate) const SIMULATED: &str = "device";

/// A device, as a file of a disk.
#[derive(Clone)]
pub(crate) struct Raw {
    disk: Arc<dyn Disk>,
    name: String,
    /// As it is called in messages.
    pub(crate) shown: String,
    /// The device itself, unless it is simulated.
    path: Option<PathBuf>,
}

impl Raw {
    /// The block device that a path leads to.
    pub(crate) fn real(place: &Path) -> Result<Self> {
        let path = place::resolved(place)?;
        let parts = path.parent().zip(path.file_name());
        let (folder, name) = parts.expect("a device is in a directory");
        let name = name.to_str().ok_or_else(|| StreamError::Damaged {
            file: path.display().to_string(),
            problem: "its name is not UTF-8".to_owned(),
        })?;
        Ok(Self {
            disk: Arc::new(RealDisk::at(folder)),
            name: name.to_owned(),
            shown: place.display().to_string(),
            path: Some(path),
        })
    }

    /// That of a simulated disk.
    pub(crate) fn simulated(disk: Arc<dyn Disk>) -> Self {
        Self {
            disk,
            name: SIMULATED.to_owned(),
            shown: "simulated device".to_owned(),
            path: None,
        }
    }

    fn open(&self, writable: bool) -> io::Result<Box<dyn DiskFile>> {
        self.disk.open(&self.name, writable)
    }
}

/// A stripe on a device.
pub(crate) struct Device {
    raw: Raw,
    locks: Locks,
    layout: Layout,
    id: u64,
    writer: Arc<Mutex<Writer>>,
}

/// How maps and layouts are written. It stays open: each time that a device which was open for writing is
/// closed, udev looks what is on it now.
#[derive(Default)]
struct Writer {
    file: Option<Box<dyn DiskFile>>,
    /// Keeps others from mounting the device, or from making something of it.
    claim: Option<File>,
}

impl Writer {
    fn file(&mut self, raw: &Raw) -> io::Result<&mut dyn DiskFile> {
        let file = match self.file.take() {
            Some(file) => file,
            None => raw.open(true)?,
        };
        self.claim(raw);
        Ok(self.file.insert(file).as_mut())
    }

    /// One of those who append has it.
    fn claim(&mut self, raw: &Raw) {
        if self.claim.is_none() {
            self.claim = raw.path.as_ref().and_then(|path| place::claim(path).ok());
        }
    }
}

fn lock(writer: &Mutex<Writer>) -> MutexGuard<'_, Writer> {
    writer.lock().unwrap_or_else(PoisonError::into_inner)
}

fn invalid(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

fn read_label(file: &dyn DiskFile) -> io::Result<Option<Label>> {
    let mut bytes = [0; Label::LEN];
    file.read_at(&mut bytes, 0)?;
    Ok(Label::parse(&bytes))
}

fn read_layout(file: &dyn DiskFile) -> io::Result<Layout> {
    for _ in 0..LAYOUT_READS_MAX {
        let mut bytes = [0; Layout::LEN];
        file.read_at(&mut bytes, LAYOUT_AT)?;
        if let Some(layout) = Layout::parse(&bytes) {
            return Ok(layout);
        }
        // Another process may just have written half of it.
        thread::yield_now();
    }
    Err(invalid("bytes 4096 to 4135 are not the layout of a stripe"))
}

/// The id of the stripe that a device is, and where its parts are.
fn stripe_on(raw: &Raw) -> Result<(u64, Layout)> {
    let named = || raw.shown.clone();
    let file = raw.open(false).in_file(named)?;
    let label = read_label(file.as_ref()).in_file(named)?;
    let refuse = |problem: &str| StreamError::Damaged {
        file: named(),
        problem: problem.to_owned(),
    };
    let label =
        label.ok_or_else(|| refuse("not a stripe: its first block has no label of Strata"))?;
    let layout = read_layout(file.as_ref()).in_file(named)?;
    if file.size().in_file(named)? < layout.pages_at + layout.room() {
        return Err(refuse(
            "it is smaller than when it became a stripe: restore its former size",
        ));
    }
    Ok((label.id, layout))
}

impl Device {
    /// A device that is a stripe; `locks` are those of a stripe with this id.
    pub(crate) fn open(raw: Raw, locks: impl FnOnce(u64) -> Locks) -> Result<Self> {
        let (id, layout) = stripe_on(&raw)?;
        Ok(Self {
            locks: locks(id),
            layout,
            id,
            writer: Arc::default(),
            raw,
        })
    }

    pub(crate) fn locks(&self) -> &Locks {
        &self.locks
    }

    fn region(&self, direct: Option<Direct>) -> io::Result<Region> {
        let (start, room) = match direct {
            Some(_) => (self.layout.pages_at, self.layout.room()),
            None => (MAP_AT, self.layout.map_len()),
        };
        Ok(Region {
            start,
            room,
            cached: self.raw.open(false)?,
            direct,
            raw: self.raw.clone(),
            writer: Arc::clone(&self.writer),
            locks: self.locks.clone(),
        })
    }

    fn pages(&self, file: Box<dyn DiskFile>, is_for_blocks: bool) -> io::Result<Box<dyn DiskFile>> {
        let direct = Direct {
            file,
            is_for_blocks,
            chunk: RefCell::new(AlignedBytes::zeroed(CHUNK)),
        };
        Ok(Box::new(self.region(Some(direct))?))
    }
}

impl Disk for Device {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Err(io::Error::new(io::ErrorKind::Unsupported, name))
    }

    fn open_for_blocks(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        if name != PAGES {
            return Err(io::Error::new(io::ErrorKind::Unsupported, name));
        }
        let file = self.raw.disk.open_for_blocks(&self.raw.name)?;
        // A device that is read-only can be opened for writing. Each write says so, one of nothing too.
        if let Some(shared) = file.shared() {
            shared.write_at(&[], 0)?;
        }
        self.pages(file, true)
    }

    fn in_flight(&self) -> usize {
        self.raw.disk.in_flight()
    }

    fn open(&self, name: &str, _writable: bool) -> io::Result<Box<dyn DiskFile>> {
        match name {
            PAGES => self.pages(self.raw.disk.open_direct(&self.raw.name)?, false),
            STRIPE_MAP => Ok(Box::new(self.region(None)?)),
            _ => Err(io::Error::new(io::ErrorKind::NotFound, name)),
        }
    }

    fn replace(&self, name: &str, _content: &[u8]) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, name))
    }

    fn exists(&self, name: &str) -> bool {
        name == PAGES || name == STRIPE_MAP
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Any + Send>>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Whether the device is there, and still this stripe.
    fn leads_to(&self, _name: &str, file: &dyn DiskFile) -> bool {
        let mut writer = lock(&self.writer);
        if writer.file.is_some() {
            writer.claim(&self.raw);
        }
        let label = self
            .raw
            .open(false)
            .and_then(|file| read_label(file.as_ref()));
        self.raw.disk.leads_to(&self.raw.name, file)
            && label.is_ok_and(|label| label.is_some_and(|label| label.id == self.id))
    }

    fn display(&self, name: &str) -> String {
        match name {
            PAGES => self.raw.shown.clone(),
            _ => format!("{} ({name})", self.raw.shown),
        }
    }
}

/// Pages past the page cache, also for reading: what the kernel has cached of a device, it drops before a write that
/// several are in flight with, and not after it. So a reader might keep what was there before.
struct Direct {
    file: Box<dyn DiskFile>,
    /// Whether it is open for writing.
    is_for_blocks: bool,
    chunk: RefCell<AlignedBytes>,
}

impl Direct {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut chunk = self.chunk.borrow_mut();
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let start = at / SECTOR * SECTOR;
            let skip = exact::<usize>(at - start);
            let left = &mut buffer[done..];
            let len = (skip + left.len()).next_multiple_of(exact(SECTOR));
            let len = len.min(CHUNK);
            let read = self.file.read_at(&mut chunk[..len], start)?;
            let found = chunk.get(skip..read).unwrap_or(&[]);
            let count = found.len().min(left.len());
            if count == 0 {
                break;
            }
            left[..count].copy_from_slice(&found[..count]);
            done += count;
        }
        Ok(done)
    }
}

/// A part of a device as a file.
struct Region {
    start: u64,
    room: u64,
    /// For reading maps and layouts, which are written through the page cache too.
    cached: Box<dyn DiskFile>,
    /// Of pages.
    direct: Option<Direct>,
    raw: Raw,
    writer: Arc<Mutex<Writer>>,
    locks: Locks,
}

impl Region {
    fn file(&self) -> &dyn DiskFile {
        let direct = self.direct.as_ref().map(|direct| &direct.file);
        direct.unwrap_or(&self.cached).as_ref()
    }
}

impl DiskFile for Region {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = self.size()?.saturating_sub(offset);
        let len = exact::<usize>(left.min(buffer.len() as u64));
        let (buffer, at) = (&mut buffer[..len], self.start + offset);
        match &self.direct {
            Some(direct) => direct.read_at(buffer, at),
            None => self.cached.read_at(buffer, at),
        }
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if offset + bytes.len() as u64 > self.room {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let at = self.start + offset;
        match &mut self.direct {
            Some(direct) if direct.is_for_blocks => direct.file.write_at(bytes, at),
            _ => lock(&self.writer).file(&self.raw)?.write_at(bytes, at),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        match &mut self.direct {
            Some(direct) if direct.is_for_blocks => direct.file.sync(),
            _ => lock(&self.writer).file(&self.raw)?.sync(),
        }
    }

    fn set_len(&mut self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn size(&self) -> io::Result<u64> {
        match self.direct {
            Some(_) => Ok(read_layout(self.cached.as_ref())?.pages_len),
            None => Ok(self.room),
        }
    }

    /// Begins more pages. What was there before may be a page of the same stream, if the device was
    /// formatted again: its header must not be found, so it is written over before the page counts.
    fn grow(&mut self, bytes: Range<u64>) -> io::Result<()> {
        if bytes.end > self.room {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let _lock = self.locks.wait(MAP_LOCK)?;
        let mut layout = read_layout(self.cached.as_ref())?;
        let (from, page) = (layout.pages_len, u64::from(layout.page_bytes));
        let until = bytes.end.next_multiple_of(page);
        if until <= from {
            return Ok(());
        }
        let mut writer = lock(&self.writer);
        let file = writer.file(&self.raw)?;
        for at in (from..until).step_by(usize::try_from(page).map_err(io::Error::other)?) {
            file.write_at(&[0; 4096], self.start + at)?;
        }
        file.sync()?;
        layout.pages_len = until;
        file.write_at(&layout.emit(), LAYOUT_AT)?;
        file.sync()
    }

    fn shared(&self) -> Option<Arc<File>> {
        self.file().shared()
    }

    fn start(&self) -> u64 {
        self.start + self.file().start()
    }
}
