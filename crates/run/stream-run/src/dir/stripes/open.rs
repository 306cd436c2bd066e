//! A stripe that can be used: a pool of pages on a disk of this machine, or at a server.

use std::io;

use strata_store::DiskFile;
use strata_stream::Geometry;
use strata_wire::exact;

use crate::dir::elsewhere::Place;
use crate::dir::locks::Lock;
use crate::dir::pool::{Owners, PAGES, Pool};
use crate::dir::remote::{HeaderBytes, Remote, StripeServer};
use crate::error::{In as _, Result, StreamError};

/// Its pages.
pub(super) enum Open {
    Here {
        pool: Pool,
        /// For reading.
        pages: Box<dyn DiskFile>,
        /// Of who appends.
        user: Option<Lock>,
    },
    Server(Remote),
}

const DAMAGED_STREAM: &str = "the description of a stream of this directory is damaged, so the \
pages in use are not known; repair or delete that stream";

/// What an error of a server is one of.
fn server() -> String {
    "its server".to_owned()
}

impl Open {
    /// The pages of a directory itself.
    pub(super) fn of(pool: Pool) -> Result<Self> {
        let pages = pool.pages()?;
        Ok(Self::Here {
            pool,
            pages,
            user: None,
        })
    }

    /// Makes a new stripe at a server.
    pub(super) fn make(at: &dyn StripeServer, id: u64, geometry: Geometry) -> Result<()> {
        let made = at.connect();
        let made = made.and_then(|(link, _)| Remote::new(link, geometry).make(id, geometry));
        made.in_file(server)
    }

    /// What is at a place, if it is this stripe of a directory with these sizes of pages.
    pub(super) fn at(
        place: Place,
        (id, geometry): (Option<u64>, Geometry),
        path: &str,
    ) -> Result<Self> {
        let other = |problem: &str| StreamError::Damaged {
            file: path.to_owned(),
            problem: problem.to_owned(),
        };
        let (open, there) = match place {
            Place::Here((disk, locks)) => {
                let pool = Pool::open(disk, locks, id)?;
                let there = pool.geometry;
                (Self::of(pool)?, there)
            }
            Place::Server(at) => {
                let (link, there) = at.connect().in_file(server)?;
                let there = there.filter(|&(there, _)| Some(there) == id);
                let there = there.map(|(_, geometry)| geometry);
                let there =
                    there.ok_or_else(|| other("the server has a different stripe of this name"))?;
                (Self::Server(Remote::new(link, there)), there)
            }
        };
        let is_same = there == geometry;
        is_same
            .then_some(open)
            .ok_or_else(|| other("its pages differ in size from those of its directory"))
    }

    /// Joins those who append, to a stream.
    pub(super) fn join(&mut self, stream: u64, streams: &Owners) -> Result<()> {
        match self {
            Self::Here { pool, user, .. } => *user = Some(pool.join(streams)?),
            // It would take the pages of a stream that it does not know for free.
            Self::Server(_) if streams.has_unknown => {
                return Err(io::Error::other(DAMAGED_STREAM)).in_file(server);
            }
            Self::Server(remote) => {
                let streams: Vec<u64> = streams.ids.iter().copied().collect();
                remote.join(stream, &streams).in_file(server)?;
            }
        }
        Ok(())
    }

    pub(super) fn is_there(&self) -> bool {
        match self {
            Self::Here { pool, pages, .. } => {
                pool.disk.leads_to(PAGES, pages.as_ref()) && self.holds_lock()
            }
            Self::Server(remote) => remote.is_there(),
        }
    }

    /// Whether the lock of who appends, if it has one, is still the one that others would find.
    pub(super) fn holds_lock(&self) -> bool {
        match self {
            Self::Here { pool, user, .. } => user.as_ref().is_none_or(|lock| pool.holds(lock)),
            Self::Server(_) => true,
        }
    }

    /// A page of a stream.
    pub(super) fn take(&self, stream: u64) -> Result<u32> {
        match self {
            Self::Here { pool, .. } => pool.take(stream),
            Self::Server(remote) => remote.take().in_file(server),
        }
    }

    pub(super) fn release(&self, stream: u64, pages: &[u32]) -> Result<()> {
        match self {
            Self::Here { pool, .. } => pool.release(stream, pages),
            Self::Server(remote) => remote.release(pages).in_file(server),
        }
    }

    /// How many pages a stream has.
    pub(super) fn owned(&self, stream: u64) -> Result<u64> {
        match self {
            Self::Here { pool, .. } => {
                let owners = pool.owners()?.into_iter();
                Ok(owners.filter(|&owner| owner == stream).count() as u64)
            }
            Self::Server(remote) => remote.owned(stream).in_file(server),
        }
    }

    /// The file of pages, for writing blocks.
    pub(super) fn for_blocks(&self) -> Result<Box<dyn DiskFile>> {
        match self {
            Self::Here { pool, .. } => pool.pages_for_blocks(),
            Self::Server(remote) => Ok(remote.for_blocks()),
        }
    }

    pub(super) fn read_at(&self, page: u32, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        match self {
            Self::Here { pool, pages, .. } => {
                let read = pages.read_at(buffer, pool.page_at(page) + offset);
                read.in_file(|| format!("{}: page {page}", pool.disk.display(PAGES)))
            }
            Self::Server(remote) => remote.read_at(page, offset, buffer).in_file(server),
        }
    }

    /// Headers of a stream's pages, or, if it is `None`, of all.
    pub(super) fn headers(&self, owner: Option<u64>) -> Result<Vec<(u32, HeaderBytes)>> {
        let (pool, pages) = match self {
            Self::Here { pool, pages, .. } => (pool, pages),
            Self::Server(remote) => return remote.headers(owner).in_file(server),
        };
        let owners = match owner {
            Some(_) => pool.owners()?,
            None => vec![0; exact(pool.count(pages.as_ref())?)],
        };
        let wanted = (0..)
            .zip(&owners)
            .filter(|&(_, &of)| owner.is_none_or(|owner| owner == of));
        let read = wanted.map(|(page, _): (u32, _)| {
            let bytes = pool.header_bytes(pages.as_ref(), page)?;
            Ok((page, bytes))
        });
        read.collect()
    }
}
