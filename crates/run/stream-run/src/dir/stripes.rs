//! Where data pages are: in the directory of streams, and in directories on other disks, its stripes, over
//! which the pages of each stream go in turn. A stripe that is gone costs the records on it.
//!
//! The directory itself has number 0; the file `stripes` in it lists the others. A stripe has `pages` and a map of its own,
//! which says whose it is, so that the empty directory that an unmounted disk leaves is not taken for it.

mod list;
mod open;

use std::mem;

use strata_store::DiskFile;
use strata_wire::exact;

use crate::dir::StreamDir;
use crate::dir::pool::Owners;
use crate::dir::remote::HeaderBytes;
use crate::error::{Result, StreamError};

pub use list::paths_of;
pub(crate) use list::{LIST, Listed};
use open::Open;

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
pub(crate) fn stripe_of(page: u32) -> u32 {
    parts(page).0
}

struct Stripe {
    number: u32,
    path: String,
    /// As it is listed; `None`: the directory itself.
    listed: Option<Listed>,
    /// Or why it is not.
    open: std::result::Result<Open, String>,
    /// When it is tried again, and how long to wait after that.
    retry_ns: u64,
    wait_ns: u64,
    /// Whether it had no page any more.
    is_full: bool,
}

impl Stripe {
    fn of(listed: Listed) -> Self {
        Self {
            number: listed.number,
            path: listed.path.clone(),
            listed: Some(listed),
            open: Err(String::new()),
            retry_ns: 0,
            wait_ns: RETRY_NS,
            is_full: false,
        }
    }

    fn open(&mut self, dir: &StreamDir) {
        let opened = match &self.listed {
            None => Open::of(dir.pool.clone()),
            Some(listed) => listed.reach(dir).and_then(|place| {
                let expected = (listed.id(), dir.pool.geometry);
                Open::at(place, expected, &self.path)
            }),
        };
        self.open = opened.map_err(|error| error.to_string());
    }

    fn join(&mut self, stream: u64, streams: &Owners) -> Result<()> {
        match &mut self.open {
            Ok(open) => open.join(stream, streams),
            Err(_) => Ok(()),
        }
    }

    fn is_there(&self) -> bool {
        self.open.as_ref().is_ok_and(Open::is_there)
    }

    fn close(&mut self, problem: String) {
        self.open = Err(problem);
    }
}

/// What was removed or unmounted while it was open.
const NOT_THERE: &str = "removed, renamed or unmounted";

/// The stripes of a directory, for one who appends to a stream or reads it.
pub(crate) struct Stripes {
    dir: StreamDir,
    all: Vec<Stripe>,
    /// The stream that is appended to, unless one is read.
    joined: Option<u64>,
    /// Messages to report.
    said: Vec<String>,
}

impl Stripes {
    /// Those that can be opened. The directory itself has to be there.
    pub(crate) fn open(dir: &StreamDir) -> Result<Self> {
        let own = Stripe {
            number: 0,
            path: dir.path.clone(),
            listed: None,
            open: Ok(Open::of(dir.pool.clone())?),
            retry_ns: 0,
            wait_ns: RETRY_NS,
            is_full: false,
        };
        let mut stripes = Self {
            dir: dir.clone(),
            all: vec![own],
            joined: None,
            said: Vec::new(),
        };
        stripes.list()?;
        Ok(stripes)
    }

    /// Opens those of the list that are not known yet.
    fn list(&mut self) -> Result<()> {
        for listed in self.dir.listed()? {
            if self.at(listed.number).is_none() {
                let mut stripe = Stripe::of(listed);
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
    pub(crate) fn are_several(&self) -> bool {
        self.all.len() > 1
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Numbers of those that can be used.
    pub(crate) fn usable(&self) -> Vec<u32> {
        let usable = self.all.iter().filter(|stripe| stripe.open.is_ok());
        usable.map(|stripe| stripe.number).collect()
    }

    /// Those that cannot be used, and why.
    pub(crate) fn gone(&self) -> Vec<String> {
        let gone = self.all.iter().filter_map(|stripe| {
            let problem = stripe.open.as_ref().err()?;
            Some(format!("stripe {}: {problem}", stripe.path))
        });
        gone.collect()
    }

    pub(crate) fn is_gone(&self, page: u32) -> bool {
        self.opened(stripe_of(page)).is_none()
    }

    /// Messages to report, once.
    pub(crate) fn take_said(&mut self) -> Vec<String> {
        mem::take(&mut self.said)
    }

    /// Joins those who append, to a stream; to be left alone are stripes where that fails.
    pub(crate) fn join(&mut self, stream: u64, streams: &Owners, now_ns: u64) -> Result<()> {
        self.joined = Some(stream);
        for at in 0..self.all.len() {
            let joined = self.all[at].join(stream, streams);
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
            "stripe {}: {problem}: its records cannot be read; new ones go to the other stripes",
            stripe.path
        ));
    }

    /// A stripe cannot be written: it is left alone for a while.
    pub(crate) fn fail(&mut self, number: u32, problem: &str, now_ns: u64) {
        let at = self.all.iter().position(|stripe| stripe.number == number);
        let Some(at) = at.filter(|&at| self.all[at].open.is_ok()) else {
            return;
        };
        self.all[at].close(problem.to_owned());
        self.tell_gone(at, problem, now_ns);
    }

    /// Leaves those alone that are no longer where they were; their numbers.
    pub(crate) fn look(&mut self, now_ns: u64) -> Vec<u32> {
        let others = self.all.iter().filter(|stripe| stripe.number > 0);
        let removed = others.filter(|stripe| stripe.open.is_ok() && !stripe.is_there());
        let removed: Vec<u32> = removed.map(|stripe| stripe.number).collect();
        for &number in &removed {
            self.fail(number, NOT_THERE, now_ns);
        }
        removed
    }

    /// Whether the lock of who appends to the directory is still the one that others would find.
    pub(crate) fn holds_own_lock(&self) -> bool {
        self.opened(0).is_none_or(Open::holds_lock)
    }

    /// Whether it is time to try again one that has failed.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        let is_due = |stripe: &Stripe| stripe.open.is_err() && stripe.retry_ns <= now_ns;
        self.all.iter().any(is_due)
    }

    /// Tries those again that have failed, if it is time: numbers of those that are back.
    pub(crate) fn retry(&mut self, streams: &Owners, now_ns: u64) -> Vec<u32> {
        let mut back = Vec::new();
        let joined = self.joined.expect("who appends has joined");
        for stripe in &mut self.all {
            if stripe.open.is_ok() || stripe.retry_ns > now_ns {
                continue;
            }
            stripe.open(&self.dir);
            if let Err(error) = stripe.join(joined, streams) {
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
    pub(crate) fn trust(&mut self, number: u32) {
        if let Some(stripe) = self.at_mut(number) {
            stripe.wait_ns = RETRY_NS;
        }
    }

    /// The file of a stripe's pages, for writing blocks.
    pub(crate) fn for_blocks(&self, number: u32) -> Option<Result<Box<dyn DiskFile>>> {
        Some(self.opened(number)?.for_blocks())
    }

    /// Where in its file a page is.
    pub(crate) fn page_at(&self, page: u32) -> u64 {
        self.dir.pool.page_at(parts(page).1)
    }

    /// Data pages that are a stream's, or, if maps of owners may be older than pages, all; of one stripe, or
    /// all that can be read.
    pub(crate) fn headers(
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
            let number = stripe.number << PAGE_BITS;
            match open.headers(owner) {
                Ok(headers) => {
                    read.extend(
                        headers
                            .into_iter()
                            .map(|(page, bytes)| (page | number, bytes)),
                    );
                }
                Err(error) if stripe.number == 0 => return Err(error),
                Err(error) => stripe.close(error.to_string()),
            }
        }
        Ok(read)
    }

    /// Reads bytes of a data page from an offset on; `None` if its stripe is gone.
    pub(crate) fn read_at(
        &mut self,
        page: u32,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<Option<usize>> {
        let (number, within) = parts(page);
        self.reach(number)?;
        let Some(stripe) = self.at_mut(number) else {
            return Ok(None);
        };
        let Ok(open) = &stripe.open else {
            return Ok(None);
        };
        match open.read_at(within, offset, buffer) {
            Ok(read) => Ok(Some(read)),
            Err(error) if number == 0 => Err(error),
            Err(error) => {
                stripe.close(error.to_string());
                Ok(None)
            }
        }
    }

    /// Opens a stripe that is read, if it is there now and was not.
    fn reach(&mut self, number: u32) -> Result<()> {
        if self.joined.is_some() || number == 0 {
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

    /// The stripe whose turn it is for a page of a stream; another one, if it is gone or one of those that are full.
    pub(crate) fn turn(&self, index: u64, full: &[u32]) -> Option<u32> {
        let count = self.all.len() as u64;
        let first = exact::<usize>(index % count);
        let (before, from) = self.all.split_at(first);
        let mut in_turn = from.iter().chain(before);
        let usable = in_turn.find(|stripe| stripe.open.is_ok() && !full.contains(&stripe.number));
        usable.map(|stripe| stripe.number)
    }

    /// Whether a device or a server had no page any more when one was wanted.
    pub(crate) fn is_full(&self, number: u32) -> bool {
        self.at(number).is_some_and(|stripe| stripe.is_full)
    }

    /// A page of this stripe for a stream.
    pub(crate) fn take(&mut self, stream: u64, number: u32) -> Result<u32> {
        let stripe = self.at_mut(number).expect("a stripe that is listed");
        let open = stripe.open.as_ref().expect("a stripe that can be used");
        let taken = open.take(stream);
        let was_full = stripe.is_full;
        // A file system that is full fails in other ways too.
        let has_none = taken.as_ref().is_err_and(StreamError::is_full);
        stripe.is_full = has_none && stripe.listed.as_ref().is_some_and(Listed::is_exact);
        if stripe.is_full && !was_full {
            let said = format!(
                "stripe {}: full: records go to the other stripes",
                stripe.path
            );
            self.said.push(said);
        }
        Ok(taken? | (number << PAGE_BITS))
    }

    /// These pages have no owner any more. Those of stripes that are gone are found when they are
    /// back.
    pub(crate) fn release(&mut self, stream: u64, pages: &[u32]) -> Result<()> {
        for stripe in &mut self.all {
            let Ok(open) = &stripe.open else {
                continue;
            };
            let own = pages.iter().map(|&page| parts(page));
            let own = own.filter(|&(number, _)| number == stripe.number);
            let own: Vec<u32> = own.map(|(_, within)| within).collect();
            match open.release(stream, &own) {
                Err(error) if stripe.number == 0 => return Err(error),
                // It is noticed when it is written.
                _ => {}
            }
        }
        Ok(())
    }

    /// How many data pages a stream has.
    pub(crate) fn owned(&self, stream: u64) -> Result<u64> {
        let mut count = 0;
        for stripe in &self.all {
            let Ok(open) = &stripe.open else {
                continue;
            };
            match open.owned(stream) {
                Ok(owned) => count += owned,
                Err(error) if stripe.number == 0 => return Err(error),
                Err(_) => {}
            }
        }
        Ok(count)
    }
}
