//! Where data pages are: in the directory of streams, and in directories on other disks, its stripes, over
//! which the pages of each stream go in turn. A stripe that is gone costs the records on it.
//!
//! The directory itself has number 0; the file `stripes` in it lists the others. A stripe has `pages` and a map of its own,
//! which says whose it is, so that the empty directory that an unmounted disk leaves is not taken for it.

mod list;

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;

use strata_store::DiskFile;
use strata_stream::PAGE_HEADER_LEN;
use strata_wire::exact;

use super::dir::StreamDir;
use super::error::{Result, StreamError};
use super::locks::Lock;
use super::pool::{PAGES, Pool};

pub(crate) use list::stripe_paths;
pub(super) use list::{LIST, Listed};

/// The number of a stripe is in the upper bits of a data page's number.
const PAGE_BITS: u32 = 28;
const NUMBER_MAX: u32 = u32::MAX >> PAGE_BITS;
/// Before the first attempt to write a stripe that has failed, doubled for each that fails, up to the other.
const RETRY_NS: u64 = 10_000_000_000;
const RETRY_NS_MAX: u64 = 640_000_000_000;

/// The stripe of a data page, and the page's number there.
fn parts(page: u32) -> (u32, u32) {
    (page >> PAGE_BITS, page & ((1 << PAGE_BITS) - 1))
}

/// The stripe of a data page.
pub(super) fn stripe_of(page: u32) -> u32 {
    parts(page).0
}

struct Open {
    pool: Pool,
    /// For reading.
    pages: Box<dyn DiskFile>,
    /// Of who appends.
    _user: Option<Lock>,
}

struct Stripe {
    number: u32,
    path: String,
    /// Not that of the directory itself.
    id: Option<u64>,
    /// Or why it is not.
    open: std::result::Result<Open, String>,
    /// When it is tried again, and how long to wait after that.
    retry_ns: u64,
    wait_ns: u64,
}

impl Stripe {
    fn of(listed: &Listed) -> Self {
        Self {
            number: listed.number,
            path: listed.path.clone(),
            id: listed.id(),
            open: Err(String::new()),
            retry_ns: 0,
            wait_ns: RETRY_NS,
        }
    }

    fn open(&mut self, dir: &StreamDir) {
        let (disk, locks) = match self.number {
            0 => (Arc::clone(&dir.disk), dir.locks.clone()),
            _ => dir.elsewhere.at(&self.path),
        };
        let opened = Pool::open(disk, locks, self.id).and_then(|pool| {
            let pages = pool.pages()?;
            let is_same = pool.geometry == dir.pool.geometry;
            is_same.then_some((pool, pages)).ok_or_else(|| {
                let problem = "its pages have other sizes than those of its directory".to_owned();
                let file = self.path.clone();
                StreamError::Damaged { file, problem }
            })
        });
        self.open = match opened {
            Ok((pool, pages)) => Ok(Open {
                pool,
                pages,
                _user: None,
            }),
            Err(error) => Err(error.to_string()),
        };
    }

    fn join(&mut self, streams: &BTreeSet<u64>) -> Result<()> {
        if let Ok(open) = &mut self.open {
            open._user = Some(open.pool.join(streams)?);
        }
        Ok(())
    }

    fn is_there(&self) -> bool {
        let leads_to = |open: &Open| open.pool.disk.leads_to(PAGES, open.pages.as_ref());
        self.open.as_ref().is_ok_and(leads_to)
    }

    fn close(&mut self, problem: String) {
        self.open = Err(problem);
    }
}

/// What was removed or unmounted while it was open.
const NOT_THERE: &str = "removed, renamed or unmounted";

/// The stripes of a directory, for one who appends to a stream or reads it.
pub(super) struct Stripes {
    dir: StreamDir,
    all: Vec<Stripe>,
    is_joined: bool,
    /// What is to be told.
    said: Vec<String>,
}

/// What a data page has at its start; `None` if its file ends before.
pub(super) type HeaderBytes = Option<[u8; PAGE_HEADER_LEN]>;

impl Stripes {
    /// Those that can be opened. The directory itself has to be there.
    pub(super) fn open(dir: &StreamDir) -> Result<Self> {
        let own = Stripe {
            number: 0,
            path: dir.path.clone(),
            id: None,
            open: Ok(Open {
                pool: dir.pool.clone(),
                pages: dir.pool.pages()?,
                _user: None,
            }),
            retry_ns: 0,
            wait_ns: RETRY_NS,
        };
        let mut stripes = Self {
            dir: dir.clone(),
            all: vec![own],
            is_joined: false,
            said: Vec::new(),
        };
        stripes.list()?;
        Ok(stripes)
    }

    /// Opens those of the list that are not known yet.
    fn list(&mut self) -> Result<()> {
        for listed in self.dir.listed()? {
            if self.at(listed.number).is_none() {
                let mut stripe = Stripe::of(&listed);
                stripe.open(&self.dir);
                self.all.push(stripe);
            }
        }
        Ok(())
    }

    fn at(&self, number: u32) -> Option<&Stripe> {
        self.all.iter().find(|stripe| stripe.number == number)
    }

    fn at_mut(&mut self, number: u32) -> Option<&mut Stripe> {
        self.all.iter_mut().find(|stripe| stripe.number == number)
    }

    fn opened(&self, number: u32) -> Option<&Open> {
        self.at(number).and_then(|stripe| stripe.open.as_ref().ok())
    }

    /// Whether there are others than the directory itself.
    pub(super) fn are_several(&self) -> bool {
        self.all.len() > 1
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Numbers of those that can be used.
    pub(super) fn usable(&self) -> Vec<u32> {
        let usable = self.all.iter().filter(|stripe| stripe.open.is_ok());
        usable.map(|stripe| stripe.number).collect()
    }

    /// Those that cannot be used, and why.
    pub(super) fn gone(&self) -> Vec<String> {
        let gone = self.all.iter().filter_map(|stripe| {
            let problem = stripe.open.as_ref().err()?;
            Some(format!("stripe {}: {problem}", stripe.path))
        });
        gone.collect()
    }

    pub(super) fn is_gone(&self, page: u32) -> bool {
        self.opened(stripe_of(page)).is_none()
    }

    /// What is to be told, once.
    pub(super) fn take_said(&mut self) -> Vec<String> {
        mem::take(&mut self.said)
    }

    /// Joins those who append; to be left alone are stripes where that fails.
    pub(super) fn join(&mut self, streams: &BTreeSet<u64>, now_ns: u64) -> Result<()> {
        self.is_joined = true;
        for at in 0..self.all.len() {
            let joined = self.all[at].join(streams);
            match joined {
                Err(error) if self.all[at].number == 0 => return Err(error),
                Err(error) => self.all[at].close(error.to_string()),
                Ok(()) => {}
            }
            if let Err(problem) = &self.all[at].open {
                let problem = problem.clone();
                self.tell_gone(at, &problem, now_ns);
            }
        }
        Ok(())
    }

    fn tell_gone(&mut self, at: usize, problem: &str, now_ns: u64) {
        let stripe = &mut self.all[at];
        stripe.retry_ns = now_ns.saturating_add(stripe.wait_ns);
        stripe.wait_ns = (2 * stripe.wait_ns).min(RETRY_NS_MAX);
        self.said.push(format!(
            "stripe {}: {problem}: what is on it cannot be read; records go to the other stripes",
            stripe.path
        ));
    }

    /// A stripe cannot be written: it is left alone for a while.
    pub(super) fn fail(&mut self, number: u32, problem: &str, now_ns: u64) {
        let at = self.all.iter().position(|stripe| stripe.number == number);
        let Some(at) = at.filter(|&at| self.all[at].open.is_ok()) else {
            return;
        };
        self.all[at].close(problem.to_owned());
        self.tell_gone(at, problem, now_ns);
    }

    /// Leaves those alone that are no longer where they were.
    pub(super) fn look(&mut self, now_ns: u64) {
        let others = self.all.iter().filter(|stripe| stripe.number > 0);
        let removed = others.filter(|stripe| stripe.open.is_ok() && !stripe.is_there());
        let removed: Vec<u32> = removed.map(|stripe| stripe.number).collect();
        for number in removed {
            self.fail(number, NOT_THERE, now_ns);
        }
    }

    /// Whether it is time to try again one that has failed.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        let is_due = |stripe: &Stripe| stripe.open.is_err() && stripe.retry_ns <= now_ns;
        self.all.iter().any(is_due)
    }

    /// Tries those again that have failed, if it is time: numbers of those that are back.
    pub(super) fn retry(&mut self, streams: &BTreeSet<u64>, now_ns: u64) -> Vec<u32> {
        let mut back = Vec::new();
        for stripe in &mut self.all {
            if stripe.open.is_ok() || stripe.retry_ns > now_ns {
                continue;
            }
            stripe.open(&self.dir);
            if let Err(error) = stripe.join(streams) {
                stripe.close(error.to_string());
            }
            if stripe.open.is_ok() {
                self.said
                    .push(format!("stripe {}: written again", stripe.path));
                back.push(stripe.number);
            } else {
                stripe.retry_ns = now_ns.saturating_add(stripe.wait_ns);
                stripe.wait_ns = (2 * stripe.wait_ns).min(RETRY_NS_MAX);
            }
        }
        back
    }

    /// A stripe has been written for a while: should it fail, it is soon tried again.
    pub(super) fn trust(&mut self, number: u32) {
        if let Some(stripe) = self.at_mut(number) {
            stripe.wait_ns = RETRY_NS;
        }
    }

    /// The file of a stripe's pages, for writing blocks.
    pub(super) fn for_blocks(&self, number: u32) -> Option<Result<Box<dyn DiskFile>>> {
        Some(self.opened(number)?.pool.pages_for_blocks())
    }

    /// Where in its file a page is.
    pub(super) fn page_at(&self, page: u32) -> u64 {
        self.dir.pool.page_at(parts(page).1)
    }

    /// Data pages that are a stream's, or, if maps of owners may be older than pages, all; of one stripe, or
    /// all that can be read.
    pub(super) fn headers(
        &mut self,
        owner: Option<u64>,
        only: Option<u32>,
    ) -> Result<Vec<(u32, HeaderBytes)>> {
        let mut read = Vec::new();
        for stripe in &mut self.all {
            let Ok(open) = &stripe.open else {
                continue;
            };
            if only.is_some_and(|only| only != stripe.number) {
                continue;
            }
            match open.headers(owner, stripe.number) {
                Ok(headers) => read.extend(headers),
                Err(error) if stripe.number == 0 => return Err(error),
                Err(error) => stripe.close(error.to_string()),
            }
        }
        Ok(read)
    }

    /// Reads bytes of a data page from an offset on; `None` if its stripe is gone.
    pub(super) fn read_at(
        &mut self,
        page: u32,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<Option<usize>> {
        let (number, within) = parts(page);
        self.reach(number)?;
        let at = self.dir.pool.page_at(within) + offset;
        let Some(stripe) = self.at_mut(number) else {
            return Ok(None);
        };
        let Ok(open) = &stripe.open else {
            return Ok(None);
        };
        match open.pages.read_at(buffer, at) {
            Ok(read) => Ok(Some(read)),
            Err(source) => {
                let file = format!("{}: page {within}", open.pool.disk.display(PAGES));
                let error = StreamError::File { file, source };
                if number == 0 {
                    return Err(error);
                }
                stripe.close(error.to_string());
                Ok(None)
            }
        }
    }

    /// Opens a stripe that is read, if it is there now and was not.
    fn reach(&mut self, number: u32) -> Result<()> {
        if self.is_joined || number == 0 {
            return Ok(());
        }
        if self.at(number).is_none() {
            self.list()?;
        }
        let Some(at) = self.all.iter().position(|stripe| stripe.number == number) else {
            return Ok(());
        };
        if self.all[at].open.is_ok() && !self.all[at].is_there() {
            self.all[at].close(NOT_THERE.to_owned());
        }
        if self.all[at].open.is_err() {
            self.all[at].open(&self.dir);
        }
        Ok(())
    }

    /// The stripe whose turn it is for a page of a stream; another one, if it is gone.
    pub(super) fn turn(&self, index: u64) -> Option<u32> {
        let count = self.all.len() as u64;
        let first = exact::<usize>(index % count);
        let (before, from) = self.all.split_at(first);
        let mut in_turn = from.iter().chain(before);
        let usable = in_turn.find(|stripe| stripe.open.is_ok());
        usable.map(|stripe| stripe.number)
    }

    /// A page of this stripe for a stream.
    pub(super) fn take(&self, stream: u64, number: u32) -> Result<u32> {
        let open = self.opened(number).expect("a stripe that can be used");
        Ok(open.pool.take(stream)? | (number << PAGE_BITS))
    }

    /// Nobody owns these pages any more. Those of stripes that are gone are found when they are back.
    pub(super) fn release(&mut self, stream: u64, pages: &[u32]) -> Result<()> {
        for stripe in &mut self.all {
            let Ok(open) = &stripe.open else {
                continue;
            };
            let own = pages.iter().map(|&page| parts(page));
            let own = own.filter(|&(number, _)| number == stripe.number);
            let own: Vec<u32> = own.map(|(_, within)| within).collect();
            match open.pool.release(stream, &own) {
                Err(error) if stripe.number == 0 => return Err(error),
                // It is noticed when it is written.
                _ => {}
            }
        }
        Ok(())
    }

    /// How many data pages a stream has.
    pub(super) fn owned(&self, stream: u64) -> Result<u64> {
        let mut count = 0;
        for stripe in &self.all {
            let Ok(open) = &stripe.open else {
                continue;
            };
            match open.pool.owners() {
                Ok(owners) => {
                    let own = owners.into_iter().filter(|&owner| owner == stream);
                    count += own.count() as u64;
                }
                Err(error) if stripe.number == 0 => return Err(error),
                Err(_) => {}
            }
        }
        Ok(count)
    }
}

impl Open {
    fn headers(&self, owner: Option<u64>, number: u32) -> Result<Vec<(u32, HeaderBytes)>> {
        let owners = match owner {
            Some(_) => self.pool.owners()?,
            None => vec![0; exact(self.pool.count(self.pages.as_ref())?)],
        };
        let wanted = (0..)
            .zip(&owners)
            .filter(|&(_, &of)| owner.is_none_or(|owner| owner == of));
        let read = wanted.map(|(page, _): (u32, _)| {
            let bytes = self.pool.header_bytes(self.pages.as_ref(), page)?;
            Ok((page | (number << PAGE_BITS), bytes))
        });
        read.collect()
    }
}
