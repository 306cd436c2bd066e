//! Stripes of other machines' directories that a server has: who asks names pages, never files, and writes none but
//! those of the stream that it appends to.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use strata_store::{Disk, DiskFile, RealDisk};
use strata_stream::message::{
    ALL_STREAMS, Answer, HEADER_ENTRY_LEN, HEADERS_MAX, PAGES_MAX, Request, Sizes,
};
use strata_stream::{Geometry, StreamName};
use strata_wire::exact;

use crate::dir::footing::lost;
use crate::dir::locks::{Lock, Locks};
use crate::dir::pool::{MAP, MAP_LOCK, Owners, PAGES, Pool, STRIPE_MAP, USERS_LOCK};
use crate::error::{In as _, Result, StreamError};

/// Held by the server that has a stripe.
const SERVER_LOCK: &str = "server.lock";

/// Who appends to a stream: the last that has said so.
type Claim = Arc<Mutex<u64>>;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A place for a stripe of another machine's directory.
pub struct HostedStripe {
    pub(super) name: StreamName,
    disk: Arc<dyn Disk>,
    locks: Locks,
    bytes_max: u64,
    /// Those who append, by stream.
    claims: Mutex<BTreeMap<u64, Claim>>,
    sessions: AtomicU64,
    /// Held from the first client that appends on, so that the map of owners is made anew once at most.
    user: Mutex<Option<Lock>>,
    _server: Option<Lock>,
}

impl std::fmt::Debug for HostedStripe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostedStripe")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The files of a stripe, which is empty but for them before a client makes it one.
const FILES: [&str; 5] = [PAGES, STRIPE_MAP, MAP_LOCK, USERS_LOCK, SERVER_LOCK];

impl HostedStripe {
    /// A directory that has a stripe or is to have one, made if need be; with a limit on the bytes of its
    ///pages.
    ///
    /// # Errors
    ///
    /// If something else is there, another server has it, or it cannot be written.
    pub fn open(name: &StreamName, path: &Path, bytes_max: u64) -> Result<Self> {
        let named = || path.display().to_string();
        let disk = RealDisk::create_dir(path).in_file(named)?;
        let refuse = |problem: &str| StreamError::Damaged {
            file: named(),
            problem: format!("it cannot be offered as a stripe: {problem}"),
        };
        if disk.exists(MAP) {
            return Err(refuse(
                "it is a directory of streams itself: name another directory",
            ));
        }
        let mut entries = fs::read_dir(path).in_file(named)?;
        let is_foreign = |name: &str| !FILES.contains(&name);
        let has_foreign = entries.any(|entry| {
            entry.is_ok_and(|entry| entry.file_name().to_str().is_none_or(is_foreign))
        });
        if !disk.exists(STRIPE_MAP) && has_foreign {
            return Err(refuse(
                "it is not empty: name a new directory, or one that was a stripe before",
            ));
        }
        let locks = Locks::Files(path.to_path_buf());
        let server = locks.take(SERVER_LOCK).in_file(named)?;
        let server = server.ok_or_else(|| refuse("another server is using it"))?;
        Ok(Self::of(
            name,
            Arc::new(disk),
            locks,
            bytes_max,
            Some(server),
        ))
    }

    /// A stripe on a disk of a simulation; a server that is started anew has another.
    #[must_use]
    pub fn simulated(name: &StreamName, disk: Arc<dyn Disk>, bytes_max: u64) -> Self {
        Self::of(
            name,
            disk,
            Locks::Simulated(Arc::default()),
            bytes_max,
            None,
        )
    }

    fn of(
        name: &StreamName,
        disk: Arc<dyn Disk>,
        locks: Locks,
        bytes_max: u64,
        server: Option<Lock>,
    ) -> Self {
        Self {
            name: name.clone(),
            disk,
            locks,
            bytes_max,
            claims: Mutex::default(),
            sessions: AtomicU64::new(1),
            user: Mutex::new(None),
            _server: server,
        }
    }

    /// Looks whether the lock of those who append is still the one that another process would find: such a process would
    /// make the map of owners anew. The next client to join takes the lock again.
    fn look(&self, pool: &Pool) -> Result<()> {
        let mut user = locked(&self.user);
        if user.as_ref().is_some_and(|lock| !pool.holds(lock)) {
            *user = None;
            return Err(lost(self.disk.display(USERS_LOCK)));
        }
        Ok(())
    }

    /// A client that asks for it.
    ///
    /// # Errors
    ///
    /// If the disk cannot be read.
    pub fn session(self: &Arc<Self>) -> Result<HostedSession> {
        let mut session = HostedSession {
            number: self.sessions.fetch_add(1, Ordering::Relaxed),
            stripe: Arc::clone(self),
            open: None,
            claimed: None,
            buffer: Vec::new(),
            entries: Vec::new(),
            problem: String::new(),
        };
        session.open()?;
        Ok(session)
    }
}

/// Its files, once it is a stripe.
struct Open {
    id: u64,
    pool: Pool,
    pages: Box<dyn DiskFile>,
}

/// What a client asks of a stripe, and is answered.
pub struct HostedSession {
    stripe: Arc<HostedStripe>,
    number: u64,
    open: Option<Open>,
    /// The stream that the client appends to.
    claimed: Option<(u64, Claim)>,
    buffer: Vec<u8>,
    entries: Vec<[u8; HEADER_ENTRY_LEN]>,
    problem: String,
}

impl std::fmt::Debug for HostedSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostedSession")
            .field("stripe", &self.stripe)
            .finish_non_exhaustive()
    }
}

impl Drop for HostedSession {
    fn drop(&mut self) {
        let Some((stream, claim)) = self.claimed.take() else {
            return;
        };
        let mut claims = locked(&self.stripe.claims);
        if *locked(&claim) == self.number {
            claims.remove(&stream);
        }
    }
}

/// An answer, before what it borrows is known.
enum Outcome {
    Done,
    Number(u64),
    Headers(Option<u32>),
    Bytes(usize),
}

/// Why something cannot be done.
#[derive(Debug, thiserror::Error)]
enum Problem {
    /// It is the client's.
    #[error("{0}")]
    Refused(&'static str),
    /// It is this machine's.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

type Answered<T> = std::result::Result<T, Problem>;

fn refused<T>(text: &'static str) -> Answered<T> {
    Err(Problem::Refused(text))
}

impl HostedSession {
    fn open(&mut self) -> Result<()> {
        let stripe = &self.stripe;
        if let Some(id) = Pool::stripe_on(stripe.disk.as_ref())? {
            let pool = Pool::open(Arc::clone(&stripe.disk), stripe.locks.clone(), Some(id))?;
            let opened = pool.disk.open(PAGES, true);
            let pages = opened.in_file(|| pool.disk.display(PAGES))?;
            self.open = Some(Open { id, pool, pages });
        }
        Ok(())
    }

    /// What there is.
    #[must_use]
    pub fn there(&self) -> Answer<'static> {
        let Some(open) = &self.open else {
            return Answer::There {
                id: 0,
                sizes: [0; 3],
            };
        };
        let geometry = open.pool.geometry;
        let sizes = [
            geometry.directory_bytes,
            geometry.table_bytes,
            geometry.page_bytes,
        ];
        let id = open.id;
        Answer::There { id, sizes }
    }

    /// Executes a request; also returns what to report here, if it failed.
    pub fn answer(&mut self, request: &Request<'_>) -> (Answer<'_>, Option<StreamError>) {
        match self.outcome(request) {
            Ok(Outcome::Done) => (Answer::Done, None),
            Ok(Outcome::Number(number)) => (Answer::Number(number), None),
            Ok(Outcome::Headers(next)) => {
                let entries = &self.entries;
                (Answer::Headers { next, entries }, None)
            }
            Ok(Outcome::Bytes(len)) => (Answer::Bytes(&self.buffer[..len]), None),
            Err(Problem::Refused(text)) => {
                let is_full = false;
                (Answer::Failed { is_full, text }, None)
            }
            Err(Problem::Stream(error)) => {
                let is_full = error.is_full();
                // Without the paths of this machine.
                self.problem = match &error {
                    StreamError::File { source, .. } => source.to_string(),
                    _ => "the stripe cannot be used: see the messages of its server".to_owned(),
                };
                let text = &self.problem;
                (Answer::Failed { is_full, text }, Some(error))
            }
        }
    }

    fn outcome(&mut self, request: &Request<'_>) -> Answered<Outcome> {
        if let &Request::Make { id, sizes } = request {
            self.make(id, sizes)?;
            return Ok(Outcome::Done);
        }
        let Some(open) = &mut self.open else {
            return refused(
                "this stripe does not exist on the server: create a stream with --stripe \
                 HOST:PORT/NAME",
            );
        };
        match *request {
            Request::Make { .. } | Request::Join { .. } => {}
            Request::Take => {
                let stream = claimed(self.claimed.as_ref(), self.number)?;
                let page = open.take(stream, self.stripe.bytes_max)?;
                return Ok(Outcome::Number(page.into()));
            }
            Request::Release { pages } => {
                let stream = claimed(self.claimed.as_ref(), self.number)?;
                let pages: Vec<u32> = pages.iter().map(|page| u32::from_le_bytes(*page)).collect();
                open.pool.release(stream, &pages)?;
            }
            Request::Owned { stream } => {
                let owners = open.pool.owners()?;
                let own = owners.iter().filter(|&&owner| owner == stream);
                return Ok(Outcome::Number(own.count() as u64));
            }
            Request::Headers { stream, from } => {
                return open.headers(stream, from, &mut self.entries);
            }
            Request::Read { page, offset, len } => {
                self.buffer.resize(exact(len), 0);
                let read = open.read(page, offset, &mut self.buffer)?;
                return Ok(Outcome::Bytes(read));
            }
            Request::Write {
                page,
                offset,
                bytes,
            } => write(
                open,
                (self.claimed.as_ref(), self.number),
                (page, offset),
                bytes,
            )?,
            Request::Sync => {
                self.stripe.look(&open.pool)?;
                let synced = open.pages.sync();
                synced.in_file(|| open.pool.disk.display(PAGES))?;
            }
        }
        if let &Request::Join { stream, streams } = request {
            self.join(stream, streams)?;
        }
        Ok(Outcome::Done)
    }

    fn make(&mut self, id: u64, sizes: Sizes) -> Answered<()> {
        let [directory_bytes, table_bytes, page_bytes] = sizes;
        let geometry = Geometry {
            directory_bytes,
            table_bytes,
            page_bytes,
        };
        let stripe = &self.stripe;
        let lock = stripe.locks.wait(MAP_LOCK);
        let lock = lock.in_file(|| stripe.disk.display(MAP_LOCK))?;
        if id == 0 || Pool::stripe_on(stripe.disk.as_ref())?.is_some() {
            return refused("the offered directory is a stripe already");
        }
        let (disk, locks) = (Arc::clone(&stripe.disk), stripe.locks.clone());
        Pool::create(
            disk,
            locks,
            geometry.checked().map_err(StreamError::from)?,
            Some(id),
        )?;
        drop(lock);
        Ok(self.open()?)
    }

    /// The client appends to a stream: no other client does from now on, not even one whose connection was lost
    /// silently, however late what it has sent is read.
    fn join(&mut self, stream: u64, streams: &[[u8; 8]]) -> Answered<()> {
        let open = self.open.as_ref().expect("it was looked at before");
        let mut user = locked(&self.stripe.user);
        if user.is_none() {
            let ids = streams.iter().map(|id| u64::from_le_bytes(*id));
            let streams = Owners {
                ids: ids.collect(),
                has_unknown: false,
            };
            *user = Some(open.pool.join(&streams)?);
        }
        drop(user);
        if self.claimed.is_some() {
            return refused("this connection appends to a stream already");
        }
        let mut claims = locked(&self.stripe.claims);
        let claim = Arc::clone(claims.entry(stream).or_default());
        *locked(&claim) = self.number;
        self.claimed = Some((stream, claim));
        Ok(())
    }
}

/// The stream that a session appends to.
fn claimed(claimed: Option<&(u64, Claim)>, number: u64) -> Answered<u64> {
    let Some((stream, claim)) = claimed else {
        return refused(NONE);
    };
    match *locked(claim) == number {
        true => Ok(*stream),
        false => refused(FENCED),
    }
}

/// Said to who only reads, and to who was replaced.
const NONE: &str = "this connection does not append to a stream";
const FENCED: &str = "another connection has since begun to append to the stream";

/// Writes, unless another session has taken the stream over; until then, that one waits.
fn write(
    open: &mut Open,
    (claimed, number): (Option<&(u64, Claim)>, u64),
    (page, offset): (u32, u32),
    bytes: &[u8],
) -> Answered<()> {
    let Some((stream, claim)) = claimed else {
        return refused(NONE);
    };
    let claim = locked(claim);
    if *claim != number {
        return refused(FENCED);
    }
    let page_bytes = u64::from(open.pool.geometry.page_bytes);
    if u64::from(offset) + bytes.len() as u64 > page_bytes {
        return refused("it writes beyond the page");
    }
    if open.pool.owner(page)? != Some(*stream) {
        return refused("the page belongs to another stream");
    }
    let at = open.pool.page_at(page) + u64::from(offset);
    let written = open.pages.write_at(bytes, at);
    Ok(written.in_file(|| open.pool.disk.display(PAGES))?)
}

impl Open {
    /// A page that has its space.
    fn take(&mut self, stream: u64, bytes_max: u64) -> Result<u32> {
        let named = || self.pool.disk.display(PAGES);
        if !self.pool.disk.leads_to(PAGES, self.pages.as_ref()) {
            let gone = io::Error::new(ErrorKind::NotFound, "removed, renamed or unmounted");
            return Err(gone).in_file(named);
        }
        let page = self.pool.take(stream)?;
        let start = self.pool.page_at(page);
        let end = start + u64::from(self.pool.geometry.page_bytes);
        let made = match end > bytes_max || page >= PAGES_MAX {
            true => Err(io::Error::new(
                ErrorKind::StorageFull,
                "it is as large as its server permits (strata stream serve --stripe-max)",
            )),
            false => self.pages.size().and_then(|size| match size >= end {
                true => Ok(()),
                false => self.pages.grow(start..end),
            }),
        };
        if let Err(error) = made {
            self.pool.release(stream, &[page])?;
            return Err(error).in_file(named);
        }
        Ok(page)
    }

    fn read(&self, page: u32, offset: u32, buffer: &mut [u8]) -> Answered<usize> {
        let page_bytes = exact::<usize>(self.pool.geometry.page_bytes);
        if exact::<usize>(offset) + buffer.len() > page_bytes {
            return refused("it reads beyond the page");
        }
        let at = self.pool.page_at(page) + u64::from(offset);
        let read = self.pages.read_at(buffer, at);
        Ok(read.in_file(|| self.pool.disk.display(PAGES))?)
    }

    fn headers(
        &self,
        stream: u64,
        from: u32,
        entries: &mut Vec<[u8; HEADER_ENTRY_LEN]>,
    ) -> Answered<Outcome> {
        entries.clear();
        let wanted: Vec<u32> = match stream {
            ALL_STREAMS => (0..exact(self.pool.count(self.pages.as_ref())?)).collect(),
            stream => {
                let owners = (0..).zip(self.pool.owners()?);
                let own = owners.filter(|&(_, owner)| owner == stream);
                own.map(|(page, _)| page).collect()
            }
        };
        for page in wanted.into_iter().filter(|&page| page >= from) {
            if entries.len() == HEADERS_MAX {
                return Ok(Outcome::Headers(Some(page)));
            }
            let header = self.pool.header_bytes(self.pages.as_ref(), page)?;
            let mut entry = [0; HEADER_ENTRY_LEN];
            entry[..4].copy_from_slice(&page.to_le_bytes());
            if let Some(header) = header {
                entry[4] = 1;
                entry[5..].copy_from_slice(&header);
            }
            entries.push(entry);
        }
        Ok(Outcome::Headers(None))
    }
}
