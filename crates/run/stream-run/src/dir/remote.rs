//! A stripe of a directory that is at a server of streams: its pages are requested there, over a connection. What
//! happens to the connection happens to the stripe: once it is lost, or an answer does not come in time, the stripe is gone,
//! as a disk is that fails.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use strata_store::DiskFile;
use strata_stream::message::{ALL_STREAMS, Answer, PAGES_MAX, PIECE_LEN_MAX, Request, STREAMS_MAX};
use strata_stream::{Geometry, PAGE_HEADER_LEN};
use strata_sys::disk::Pending;
use strata_wire::exact;

/// How long an answer may take: a server that is slower is gone.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// What a data page has at its start; `None` if its file ends before.
pub(crate) type HeaderBytes = Option<[u8; PAGE_HEADER_LEN]>;

/// A connection to a server's stripe.
pub trait StripeLink: Send {
    /// Sends a request.
    ///
    /// # Errors
    ///
    /// If the connection is lost, or does not take it in time.
    fn send(&mut self, request: &Request<'_>) -> io::Result<()>;

    /// Gives the next answer to `take`; whether there was one within the time.
    ///
    /// # Errors
    ///
    /// If the connection is lost, or has something else.
    fn receive(&mut self, limit: Duration, take: &mut dyn FnMut(Answer<'_>)) -> io::Result<bool>;

    /// Whether the other end is still there, as far as can be known without asking it.
    fn is_there(&mut self) -> bool;
}

/// A connection that has requested a stripe, and what is there: its id, if it is one already, and the sizes of its
/// pages.
pub type StripeConnection = (Box<dyn StripeLink>, Option<(u64, Geometry)>);

/// How a server's stripe is reached.
pub trait StripeServer: Send + Sync {
    /// A new connection to it.
    ///
    /// # Errors
    /// If the server cannot be reached.
    fn connect(&self) -> io::Result<StripeConnection>;

    /// Reads what [`StripeServer::connect`] needs, which tells what fails.
    fn prepare(&self) {}
}

/// The files for connections to a server over TLS.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StripeTls {
    /// The certificate of this end.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities of the server's.
    pub authority: PathBuf,
}

/// Requests and answers of a connection, in their order.
struct Conversation {
    link: Box<dyn StripeLink>,
    sent: u64,
    answered: u64,
    /// Writes that failed and were not reported yet.
    failed: BTreeMap<u64, io::Error>,
    /// No more requests are sent.
    broken: Option<(ErrorKind, String)>,
}

fn unexpected() -> io::Error {
    io::Error::new(
        ErrorKind::InvalidData,
        "the server's answer does not match the request",
    )
}

/// Why the server cannot do it, if it says so.
fn failure(answer: &Answer<'_>) -> Option<io::Error> {
    let Answer::Failed { is_full, text } = answer else {
        return None;
    };
    let kind = match is_full {
        true => ErrorKind::StorageFull,
        false => ErrorKind::Other,
    };
    Some(io::Error::new(kind, (*text).to_owned()))
}

impl Conversation {
    fn whole(&self) -> io::Result<()> {
        let broken = self.broken.as_ref();
        broken.map_or(Ok(()), |(kind, text)| {
            Err(io::Error::new(*kind, text.clone()))
        })
    }

    fn broke<T>(&mut self, error: io::Error) -> io::Result<T> {
        self.broken = Some((error.kind(), error.to_string()));
        Err(error)
    }

    /// Sends a request; its number.
    fn send(&mut self, request: &Request<'_>) -> io::Result<u64> {
        self.whole()?;
        if let Err(error) = self.link.send(request) {
            return self.broke(error);
        }
        self.sent += 1;
        Ok(self.sent - 1)
    }

    /// Receives an answer, if one comes by then: to a write, unless it is the one that `take` is for.
    fn receive(
        &mut self,
        limit: Duration,
        wanted: Option<u64>,
        take: &mut dyn FnMut(Answer<'_>),
    ) -> io::Result<bool> {
        self.whole()?;
        let number = self.answered;
        let mut is_odd = false;
        let failed = &mut self.failed;
        let received = self.link.receive(limit, &mut |answer| {
            if wanted == Some(number) {
                take(answer);
            } else if let Some(error) = failure(&answer) {
                failed.insert(number, error);
            } else {
                is_odd = answer != Answer::Done;
            }
        });
        match received {
            Ok(_) if is_odd => self.broke(unexpected()),
            Ok(has_come) => {
                self.answered += u64::from(has_come);
                Ok(has_come)
            }
            Err(error) => self.broke(error),
        }
    }

    /// Waits for the answer to a request, and those before it.
    fn wait_for(&mut self, number: u64, take: &mut dyn FnMut(Answer<'_>)) -> io::Result<()> {
        let end = Instant::now() + ANSWER_LIMIT;
        while self.answered <= number {
            let left = end.saturating_duration_since(Instant::now());
            if !self.receive(left, Some(number), take)? && left.is_zero() {
                let late = format!("no answer in {} s", ANSWER_LIMIT.as_secs());
                return self.broke(io::Error::new(ErrorKind::TimedOut, late));
            }
        }
        Ok(())
    }

    /// Asks, and waits for the answer; `take` says whether it is one.
    fn ask(
        &mut self,
        request: &Request<'_>,
        mut take: impl FnMut(Answer<'_>) -> bool,
    ) -> io::Result<()> {
        let number = self.send(request)?;
        self.hear(number, &mut take)
    }

    fn hear(&mut self, number: u64, take: &mut dyn FnMut(Answer<'_>) -> bool) -> io::Result<()> {
        let mut heard = Ok(true);
        self.wait_for(number, &mut |answer| {
            heard = match failure(&answer) {
                Some(error) => Err(error),
                None => Ok(take(answer)),
            };
        })?;
        match heard {
            Ok(true) => Ok(()),
            Ok(false) => self.broke(unexpected()),
            Err(error) => Err(error),
        }
    }
}

/// A stripe at a server. Clones share the connection.
#[derive(Clone)]
pub(crate) struct Remote {
    conversation: Arc<Mutex<Conversation>>,
    page_bytes: u64,
}

/// A page as it is numbered there, and an offset in it.
fn place(page: u32, offset: u64) -> (u32, u32) {
    (page, exact(offset))
}

impl Remote {
    pub(crate) fn new(link: Box<dyn StripeLink>, geometry: Geometry) -> Self {
        let conversation = Conversation {
            link,
            sent: 0,
            answered: 0,
            failed: BTreeMap::new(),
            broken: None,
        };
        Self {
            conversation: Arc::new(Mutex::new(conversation)),
            page_bytes: geometry.page_bytes.into(),
        }
    }

    fn conversation(&self) -> MutexGuard<'_, Conversation> {
        self.conversation
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn done(&self, request: &Request<'_>) -> io::Result<()> {
        let is_done = |answer: Answer<'_>| answer == Answer::Done;
        self.conversation().ask(request, is_done)
    }

    fn number(&self, request: &Request<'_>) -> io::Result<u64> {
        let mut number = 0;
        self.conversation().ask(request, |answer| {
            let Answer::Number(said) = answer else {
                return false;
            };
            number = said;
            true
        })?;
        Ok(number)
    }

    /// Makes it a stripe of a directory.
    pub(crate) fn make(&self, id: u64, geometry: Geometry) -> io::Result<()> {
        let sizes = [
            geometry.directory_bytes,
            geometry.table_bytes,
            geometry.page_bytes,
        ];
        self.done(&Request::Make { id, sizes })
    }

    /// Appends to a stream from now on; these are all streams of its directory.
    pub(crate) fn join(&self, stream: u64, streams: &[u64]) -> io::Result<()> {
        if streams.len() > STREAMS_MAX {
            let text =
                format!("directories with stripes at a server have at most {STREAMS_MAX} streams");
            return Err(io::Error::other(text));
        }
        let streams: Vec<[u8; 8]> = streams.iter().map(|id| id.to_le_bytes()).collect();
        let streams = &streams;
        self.done(&Request::Join { stream, streams })
    }

    /// A page for the stream that is appended to.
    pub(crate) fn take(&self) -> io::Result<u32> {
        let page = self.number(&Request::Take)?;
        let page = u32::try_from(page).ok().filter(|&page| page < PAGES_MAX);
        page.ok_or_else(unexpected)
    }

    pub(crate) fn release(&self, pages: &[u32]) -> io::Result<()> {
        let pages: Vec<[u8; 4]> = pages.iter().map(|page| page.to_le_bytes()).collect();
        for pages in pages.chunks(PIECE_LEN_MAX / 4) {
            self.done(&Request::Release { pages })?;
        }
        Ok(())
    }

    pub(crate) fn owned(&self, stream: u64) -> io::Result<u64> {
        self.number(&Request::Owned { stream })
    }

    /// Headers of a stream's pages, or, if it is `None`, of all.
    pub(crate) fn headers(&self, stream: Option<u64>) -> io::Result<Vec<(u32, HeaderBytes)>> {
        let mut headers: Vec<(u32, HeaderBytes)> = Vec::new();
        let mut next = Some(0);
        let stream = stream.unwrap_or(ALL_STREAMS);
        while let Some(from) = next {
            let request = Request::Headers { stream, from };
            self.conversation().ask(&request, |answer| {
                let Answer::Headers {
                    next: then,
                    entries,
                } = answer
                else {
                    return false;
                };
                for entry in entries {
                    let (page, rest) = entry.split_first_chunk().expect("4 bytes are the page's");
                    let bytes = rest.last_chunk().expect("64 bytes are the header");
                    let is_there = rest[0] == 1;
                    headers.push((u32::from_le_bytes(*page), is_there.then_some(*bytes)));
                }
                next = then;
                // So it ends.
                then.is_none_or(|then| then > from && then < PAGES_MAX && !entries.is_empty())
            })?;
        }
        let pages = headers.iter().map(|&(page, _)| page);
        let are_pages = pages.clone().is_sorted_by(|a, b| a < b) && pages.max() < Some(PAGES_MAX);
        are_pages.then_some(headers).ok_or_else(unexpected)
    }

    /// Reads bytes of a page, as many as there are: in one round trip.
    pub(crate) fn read_at(&self, page: u32, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut conversation = self.conversation();
        let mut numbers = Vec::new();
        for at in (0..buffer.len()).step_by(PIECE_LEN_MAX) {
            let (page, offset) = place(page, offset + at as u64);
            let len = exact(PIECE_LEN_MAX.min(buffer.len() - at));
            numbers.push(conversation.send(&Request::Read { page, offset, len })?);
        }
        let mut read = 0;
        let pieces = buffer.chunks_mut(PIECE_LEN_MAX).zip(numbers);
        for ((piece, number), at) in pieces.zip((0..).step_by(PIECE_LEN_MAX)) {
            conversation.hear(number, &mut |answer| {
                let Answer::Bytes(bytes) = answer else {
                    return false;
                };
                let Some(there) = piece.get_mut(..bytes.len()) else {
                    return false;
                };
                there.copy_from_slice(bytes);
                // What comes after a gap does not count.
                if read == at {
                    read += bytes.len();
                }
                true
            })?;
        }
        Ok(read)
    }

    /// Whether the connection is there.
    pub(crate) fn is_there(&self) -> bool {
        let mut conversation = self.conversation();
        conversation.broken.is_none() && conversation.link.is_there()
    }

    /// Its pages, for writing blocks.
    pub(crate) fn for_blocks(&self) -> Box<dyn DiskFile> {
        Box::new(RemotePages(self.clone()))
    }
}

/// A write that is under way.
struct UnderWay {
    remote: Remote,
    /// Its number, or why it was not sent.
    number: Result<u64, Option<io::Error>>,
}

impl Pending for UnderWay {
    fn is_ended(&mut self) -> bool {
        let Ok(number) = self.number else {
            return true;
        };
        let mut conversation = self.remote.conversation();
        while conversation.answered <= number {
            match conversation.receive(Duration::ZERO, None, &mut |_| ()) {
                Ok(true) => {}
                Ok(false) => return false,
                // Waiting tells why.
                Err(_) => return true,
            }
        }
        true
    }

    fn wait(&mut self) -> io::Result<()> {
        let number = match &mut self.number {
            Ok(number) => *number,
            Err(error) => return Err(error.take().unwrap_or_else(unexpected)),
        };
        let mut conversation = self.remote.conversation();
        if conversation.answered <= number {
            conversation.hear(number, &mut |answer| answer == Answer::Done)?;
        }
        conversation.failed.remove(&number).map_or(Ok(()), Err)
    }
}

/// Pages at a server as a file: one that was taken has its space.
struct RemotePages(Remote);

impl RemotePages {
    fn page(&self, offset: u64) -> (u32, u32) {
        let page_bytes = self.0.page_bytes;
        place(exact(offset / page_bytes), offset % page_bytes)
    }
}

impl DiskFile for RemotePages {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let (page, offset) = self.page(offset);
        self.0.read_at(page, offset.into(), buffer)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let begun = self.begin_write(bytes, offset);
        begun.map_or(Ok(()), |mut pending| pending.wait())
    }

    fn begin_write(&mut self, bytes: &[u8], offset: u64) -> Option<Box<dyn Pending>> {
        let (page, offset) = self.page(offset);
        let request = Request::Write {
            page,
            offset,
            bytes,
        };
        let number = self.0.conversation().send(&request);
        Some(Box::new(UnderWay {
            remote: self.0.clone(),
            number: number.map_err(Some),
        }))
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.done(&Request::Sync)
    }

    fn set_len(&mut self, _len: u64) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn grow(&mut self, _bytes: Range<u64>) -> io::Result<()> {
        Ok(())
    }
}
