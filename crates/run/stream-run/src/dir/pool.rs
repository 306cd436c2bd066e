//! The data pages that the streams of a directory share, and who owns which: those in the directory itself, or
//! in one of its stripes.
//!
//! `pages.map`, in a stripe `stripe.map`, has 4 KiB that say what the pages are, and then 8 bytes for each: the id of the stream
//! that owns it, or 0. It is changed under a lock. It is not synced: after a loss of power, the
//! first process to append rebuilds it from the headers of pages.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use strata_store::{Disk, DiskFile};
use strata_stream::{Geometry, PAGE_HEADER_LEN, PageHeader};
use strata_wire::exact;

use crate::dir::locks::{Lock, Locks};
use crate::error::{In as _, Result, StreamError};

pub(crate) const MAP: &str = "pages.map";
pub(crate) const STRIPE_MAP: &str = "stripe.map";
pub(crate) const PAGES: &str = "pages";
pub(crate) const MAP_LOCK: &str = "pages.lock";
pub(crate) const USERS_LOCK: &str = "users.lock";
const MAGIC: [u8; 8] = *b"STRAPOOL";
const STRIPE_MAGIC: [u8; 8] = *b"STRIPED1";
/// The map of a new directory says the same, but for owners, which are found anew.
pub(crate) const MEND_MAP: &str = ": to repair it, stop the processes that append, and copy the \
pages.map of a new directory that `strata stream create` makes with the same --pages";
const MAP_HEADER: u64 = 4096;
const ENTRY: u64 = 8;
/// Pages of a directory, or of a stripe: their numbers have 28 bits (`stripes`), and a page table stores them plus 1.
pub(crate) const PAGES_MAX: u32 = (1 << 28) - 1;
/// The owner of a page that is free.
const NOBODY: u64 = 0;

/// Streams that pages of a directory can belong to.
#[derive(Default)]
pub(crate) struct Owners {
    pub(crate) ids: BTreeSet<u64>,
    /// There are streams whose descriptions cannot be read, so any other id may be that of one of them.
    pub(crate) has_unknown: bool,
}

impl Owners {
    /// Who owns a page: the stream that its header claims; if that is not among `streams`, what is known of no
    /// stream stays with one that may still be mended.
    fn of_page(&self, claimed: Option<u64>, before: Option<u64>) -> u64 {
        let may_own = |id: &u64| match self.has_unknown {
            true => *id != NOBODY,
            false => self.ids.contains(id),
        };
        let is_unknown = |id: &u64| self.has_unknown && !self.ids.contains(id);
        let owner = claimed.filter(may_own);
        owner.or(before.filter(is_unknown)).unwrap_or(NOBODY)
    }
}

/// The pages of a directory.
#[derive(Clone)]
pub(crate) struct Pool {
    pub(crate) disk: Arc<dyn Disk>,
    locks: Locks,
    pub(crate) geometry: Geometry,
    /// Of a stripe.
    id: Option<u64>,
}

fn map_of(id: Option<u64>) -> &'static str {
    if id.is_some() { STRIPE_MAP } else { MAP }
}

/// The start of the map: magic, three sizes and, of a stripe, which it is.
pub(crate) fn map_header(geometry: Geometry, id: Option<u64>) -> Vec<u8> {
    let mut bytes = if id.is_some() { STRIPE_MAGIC } else { MAGIC }.to_vec();
    for size in [
        geometry.directory_bytes,
        geometry.table_bytes,
        geometry.page_bytes,
    ] {
        bytes.extend(size.to_le_bytes());
    }
    bytes.extend(id.map(u64::to_le_bytes).into_iter().flatten());
    let sum = strata_stream::siphash24([0, 0], &bytes);
    bytes.extend(sum.to_le_bytes());
    bytes.resize(exact(MAP_HEADER), 0);
    bytes
}

/// Bytes of a map of `pages` pages.
pub(crate) fn map_len(pages: u64) -> u64 {
    MAP_HEADER + ENTRY * pages
}

impl Pool {
    pub(crate) fn create(
        disk: Arc<dyn Disk>,
        locks: Locks,
        geometry: Geometry,
        id: Option<u64>,
    ) -> Result<Self> {
        let pool = Self {
            disk,
            locks,
            geometry,
            id,
        };
        let created = pool.disk.create(PAGES).map(drop);
        match created {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(error).in_file(|| pool.disk.display(PAGES));
            }
            _ => {}
        }
        // Last, since a directory with a map is one of streams.
        let map = map_of(id);
        let written = pool.disk.replace(map, &map_header(geometry, id));
        written.in_file(|| pool.disk.display(map))?;
        Ok(pool)
    }

    /// The pages of a directory, or those of its stripe `id`.
    pub(crate) fn open(disk: Arc<dyn Disk>, locks: Locks, id: Option<u64>) -> Result<Self> {
        let named = || disk.display(map_of(id));
        let mut header = [0; 36];
        let map = disk.open(map_of(id), false).in_file(named)?;
        let read = map.read_at(&mut header, 0).in_file(named)?;
        let size = |at: usize| {
            u32::from_le_bytes(*header[at..].first_chunk().expect("the header is longer"))
        };
        let geometry = Geometry {
            directory_bytes: size(8),
            table_bytes: size(12),
            page_bytes: size(16),
        };
        let expected = map_header(geometry, id);
        let len = if id.is_some() { 36 } else { 28 };
        if read < len || expected[..len] != header[..len] {
            let whose = match id {
                Some(_) => "the map of this stripe, but of another one",
                None => "those of a map of pages of version 1",
            };
            let mend = id.map_or(MEND_MAP, |_| "");
            return Err(StreamError::Damaged {
                file: named(),
                problem: format!("bytes 0 to {} are not {whose}{mend}", len - 1),
            });
        }
        Ok(Self {
            disk,
            locks,
            geometry: geometry.checked()?,
            id,
        })
    }

    /// Which stripe of some directory this disk has, if it has one.
    pub(crate) fn stripe_on(disk: &dyn Disk) -> Result<Option<u64>> {
        if !disk.exists(STRIPE_MAP) {
            return Ok(None);
        }
        let named = || disk.display(STRIPE_MAP);
        let mut header = [0; 28];
        let map = disk.open(STRIPE_MAP, false).in_file(named)?;
        map.read_at(&mut header, 0).in_file(named)?;
        let id = header.last_chunk().expect("it has 28 bytes");
        Ok(Some(u64::from_le_bytes(*id)))
    }

    fn map_name(&self) -> String {
        self.disk.display(map_of(self.id))
    }

    /// The file of pages, for reading.
    pub(crate) fn pages(&self) -> Result<Box<dyn DiskFile>> {
        let opened = self.disk.open(PAGES, false);
        opened.in_file(|| self.disk.display(PAGES))
    }

    /// The file of pages, for writing blocks.
    pub(crate) fn pages_for_blocks(&self) -> Result<Box<dyn DiskFile>> {
        let opened = self.disk.open_for_blocks(PAGES);
        opened.in_file(|| self.disk.display(PAGES))
    }

    pub(crate) fn page_at(&self, page: u32) -> u64 {
        u64::from(page) * u64::from(self.geometry.page_bytes)
    }

    /// How many pages the file has, whole or not.
    pub(crate) fn count(&self, pages: &dyn DiskFile) -> Result<u64> {
        let len = pages.size().in_file(|| self.disk.display(PAGES))?;
        Ok(len.div_ceil(u64::from(self.geometry.page_bytes)))
    }

    /// Owners of all pages.
    pub(crate) fn owners(&self) -> Result<Vec<u64>> {
        let named = || self.map_name();
        let map = self.disk.open(map_of(self.id), false).in_file(named)?;
        let len = map.size().in_file(named)?.saturating_sub(MAP_HEADER);
        let mut bytes = vec![0; exact::<usize>(len / ENTRY * ENTRY)];
        let read = map.read_at(&mut bytes, MAP_HEADER).in_file(named)?;
        bytes.truncate(read);
        let entries = bytes.as_chunks::<8>().0;
        Ok(entries
            .iter()
            .map(|entry| u64::from_le_bytes(*entry))
            .collect())
    }

    /// The owner of a page; `None`: there is no such page.
    pub(crate) fn owner(&self, page: u32) -> Result<Option<u64>> {
        let named = || self.map_name();
        let map = self.disk.open(map_of(self.id), false).in_file(named)?;
        let mut entry = [0; 8];
        let at = MAP_HEADER + u64::from(page) * ENTRY;
        let read = map.read_at(&mut entry, at).in_file(named)?;
        Ok((read == entry.len()).then_some(u64::from_le_bytes(entry)))
    }

    fn set_owner(&self, page: u32, owner: u64) -> Result<()> {
        let named = || self.map_name();
        let mut map = self.disk.open(map_of(self.id), true).in_file(named)?;
        let at = MAP_HEADER + u64::from(page) * ENTRY;
        map.write_at(&owner.to_le_bytes(), at).in_file(named)
    }

    /// A page for a stream: one without an owner, or another at the end.
    pub(crate) fn take(&self, stream: u64) -> Result<u32> {
        let named = || self.map_name();
        let _lock = self.locks.wait(MAP_LOCK).in_file(named)?;
        let owners = self.owners()?;
        let free = owners.iter().position(|&owner| owner == NOBODY);
        let page = free.unwrap_or(owners.len());
        let page: u32 = exact(page);
        if page >= PAGES_MAX {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge)).in_file(named);
        }
        self.set_owner(page, stream)?;
        Ok(page)
    }

    /// These pages have no owner any more.
    pub(crate) fn release(&self, stream: u64, pages: &[u32]) -> Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        let named = || self.map_name();
        let _lock = self.locks.wait(MAP_LOCK).in_file(named)?;
        let owners = self.owners()?;
        for &page in pages {
            if owners.get(exact::<usize>(page)) == Some(&stream) {
                self.set_owner(page, NOBODY)?;
            }
        }
        Ok(())
    }

    /// The header that is stored in a page, whosever it is; `None` if the file ends before.
    pub(crate) fn header_bytes(
        &self,
        pages: &dyn DiskFile,
        page: u32,
    ) -> Result<Option<[u8; PAGE_HEADER_LEN]>> {
        let mut bytes = [0; PAGE_HEADER_LEN];
        let read = pages.read_at(&mut bytes, self.page_at(page));
        let read = read.in_file(|| format!("{}: page {page}", self.disk.display(PAGES)))?;
        Ok((read == bytes.len()).then_some(bytes))
    }

    /// Joins the appenders. Without another one, the machine may have lost power since the last, so
    /// the map is made anew from what headers of pages say; `streams` are those there are.
    pub(crate) fn join(&self, streams: &Owners) -> Result<Lock> {
        let named = || self.map_name();
        let _lock = self.locks.wait(MAP_LOCK).in_file(named)?;
        let alone = self.locks.take(USERS_LOCK).in_file(named)?;
        let Some(users) = alone else {
            return self.locks.shared(USERS_LOCK).in_file(named);
        };
        self.rebuild(streams)?;
        users.share().in_file(named)?;
        Ok(users)
    }

    /// Whether the lock of those who append is still the one that others would find.
    pub(crate) fn holds(&self, lock: &Lock) -> bool {
        self.locks.holds(USERS_LOCK, lock)
    }

    /// Pages belong to the streams that their headers name. A page that a stream had given up comes
    /// back to it, and is given up again.
    fn rebuild(&self, streams: &Owners) -> Result<()> {
        let named = || self.map_name();
        let pages = self.pages()?;
        let count = self.count(pages.as_ref())?;
        let owners = self.owners()?;
        let mut map = self.disk.open(map_of(self.id), true).in_file(named)?;
        for page in 0..exact::<u32>(count.max(owners.len() as u64)) {
            let header = self.header_bytes(pages.as_ref(), page)?;
            let claimed = header.and_then(|bytes| PageHeader::claimed_stream(&bytes));
            let before = owners.get(exact::<usize>(page)).copied();
            let owner = streams.of_page(claimed, before);
            if before != Some(owner) {
                let at = MAP_HEADER + u64::from(page) * ENTRY;
                map.write_at(&owner.to_le_bytes(), at).in_file(named)?;
            }
        }
        Ok(())
    }
}
