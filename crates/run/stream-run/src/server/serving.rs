//! One connection of a server: a client that appends to a stream, or reads one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use strata_role::{Notice, Tell};
use strata_stream::StreamName;
use strata_stream::message::{From, Message, UNCOUNTED};
use strata_wire::{exact, unix_ns};

use super::hosted::HostedStripe;
use crate::peer::{Came, Peer, PeerError, Result};
use crate::{Kept, StreamAppender, StreamDir, StreamError, StreamReader, Unread, Upkeep};

/// How long a client may take to say what it wants, its part of TLS included.
const ASK_LIMIT: Duration = Duration::from_secs(10);
/// Between looks at what came and whether to stop, while nothing happens.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Records that are read before it is looked whether to stop.
const AT_ONCE: u64 = 1000;

/// What all connections of a server did.
pub(super) struct Served {
    pub(super) appended: AtomicU64,
    pub(super) read: AtomicU64,
    tell: Tell,
}

impl Served {
    pub(super) fn new(tell: Tell) -> Self {
        Self {
            appended: AtomicU64::new(0),
            read: AtomicU64::new(0),
            tell,
        }
    }

    /// Says what is wrong with stripes of a stream.
    fn warn_of(&self, appender: &mut StreamAppender, name: &StreamName) {
        for warning in appender.take_warnings() {
            (self.tell)(&Notice::warning(format!("stream {name}: {warning}")));
        }
    }
}

/// What ends a connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error(transparent)]
    Stream(#[from] StreamError),
}

/// What a client asks for.
enum Asked {
    Append(StreamName),
    Tail(StreamName, From, u64, bool),
    Stripe(StreamName),
}

/// What a server has.
pub(super) struct Offer {
    /// Its streams.
    pub(super) dir: Option<StreamDir>,
    /// Stripes of other directories.
    pub(super) stripes: Vec<Arc<HostedStripe>>,
}

/// Serves a client until it or the server ends. `admitted` is called once it has said what it wants.
pub(super) fn serve(
    peer: &mut Peer,
    offer: &Offer,
    served: &Served,
    stop: &AtomicBool,
    admitted: impl FnOnce(),
) -> std::result::Result<(), Ended> {
    let asked = ask(peer)?;
    admitted();
    let asked = match asked {
        Ok(asked) => asked,
        Err(text) => return Ok(refuse(peer, &text)?),
    };
    let done = match (asked, &offer.dir) {
        (Asked::Append(name), Some(dir)) => append(peer, dir, &name, served, stop),
        (Asked::Tail(name, from, max, follow), Some(dir)) => {
            let wanted = (from, max, follow);
            tail(peer, dir, &name, wanted, served, stop)
        }
        (Asked::Append(_) | Asked::Tail(..), None) => {
            return Ok(refuse(peer, "this server has stripes only, no streams")?);
        }
        (Asked::Stripe(name), _) => {
            let mut stripes = offer.stripes.iter();
            match stripes.find(|stripe| stripe.name == name) {
                Some(stripe) => pages(peer, stripe, served, stop),
                None => return Ok(refuse(peer, &format!("no stripe {name} is offered here"))?),
            }
        }
    };
    if let Err(Ended::Stream(error)) = &done {
        // Without the paths of this machine.
        let text = said(error);
        // If it is gone, what happened to the stream is what matters.
        let _ = refuse(peer, &text);
    }
    done
}

fn refuse(peer: &mut Peer, text: &str) -> Result<()> {
    peer.put(&Message::Refused(text))?;
    peer.flush()
}

/// The text of an error for a client.
fn said(error: &StreamError) -> String {
    match error {
        StreamError::Unknown { name, .. } => format!("no stream {name} here"),
        StreamError::InUse { name, .. } => {
            format!("another process is appending to {name}, and only one may")
        }
        StreamError::TooLong { .. } | StreamError::Lost { .. } => error.to_string(),
        StreamError::File { source, .. } => format!("the stream's disk: {source}"),
        _ => "the stream cannot be used: see the messages of its server".to_owned(),
    }
}

/// What the client wants, or why it cannot have it.
fn ask(peer: &mut Peer) -> Result<std::result::Result<Asked, String>> {
    let named = |name: &str, asked: &dyn Fn(StreamName) -> Asked| match name.parse() {
        Ok(name) => Ok(asked(name)),
        Err(error) => Err(strata_stream::NameError::to_string(&error)),
    };
    peer.wait_for(ASK_LIMIT, |message| match message {
        Message::Append { name } => Some(named(name, &Asked::Append)),
        Message::Stripe { name } => Some(named(name, &Asked::Stripe)),
        Message::Tail {
            name,
            from,
            max,
            follow,
        } => Some(named(name, &|name| Asked::Tail(name, from, max, follow))),
        _ => None,
    })
}

fn append(
    peer: &mut Peer,
    dir: &StreamDir,
    name: &StreamName,
    served: &Served,
    stop: &AtomicBool,
) -> std::result::Result<(), Ended> {
    let mut appender = dir.append(name, unix_ns())?;
    let taken = take_records(peer, &mut appender, name, served, stop);
    served.warn_of(&mut appender, name);
    // What came before the connection ended counts, however it did.
    let cursor = appender.end();
    let synced = appender.sync(unix_ns());
    served
        .appended
        .fetch_add(appender.kept(), Ordering::Relaxed);
    if let Err(Ended::Stream(error)) = taken {
        return Err(error.into());
    }
    synced?;
    let is_kept = appender.all_kept();
    let records = appender.close(unix_ns())?.records;
    let taken = taken?;
    is_kept?;
    if !taken {
        let text =
            format!("the server is shutting down; it has {records} records of this connection");
        return Ok(refuse(peer, &text)?);
    }
    peer.put(&Message::Done { records, cursor })?;
    Ok(peer.flush()?)
}

/// Takes records until the client says that it was all; if not, the server ends.
fn take_records(
    peer: &mut Peer,
    appender: &mut StreamAppender,
    name: &StreamName,
    served: &Served,
    stop: &AtomicBool,
) -> std::result::Result<bool, Ended> {
    let record_len_max = exact(appender.record_len_max());
    peer.put(&Message::Ready { record_len_max })?;
    peer.flush()?;
    peer.allow_records();
    let mut upkeep = Upkeep::new(Instant::now());
    while !stop.load(Ordering::Relaxed) {
        let now_ns = unix_ns();
        let mut has_come = false;
        loop {
            match peer.next_message()? {
                Some(Message::Record(record)) => appender.append(now_ns, record)?,
                Some(Message::End) => return Ok(true),
                Some(_) => return Err(peer.unexpected().into()),
                None => break,
            }
            has_come = true;
        }
        if has_come {
            upkeep.appended(Instant::now());
        }
        let kept = upkeep.run(appender, Instant::now(), now_ns)?;
        served.warn_of(appender, name);
        appender.all_kept()?;
        if kept == Kept::Synced {
            peer.put(&Message::Synced(appender.appended().records))?;
            peer.flush()?;
        }
        let due = upkeep.due().saturating_duration_since(Instant::now());
        if let Came::Closed = peer.receive(due.min(LOOK_EVERY))? {
            return Err(peer.closed().into());
        }
    }
    Ok(false)
}

fn tail(
    peer: &mut Peer,
    dir: &StreamDir,
    name: &StreamName,
    (from, max, follow): (From, u64, bool),
    served: &Served,
    stop: &AtomicBool,
) -> std::result::Result<(), Ended> {
    let mut reader = dir.read(name)?;
    match from {
        From::Cursor(cursor) => reader.seek(cursor, None),
        From::Since(time_ns) => reader.seek_time(time_ns)?,
        From::Last(records) => reader.seek_last(records)?,
    }
    peer.put(&Message::Ready { record_len_max: 0 })?;
    let mut told = Unread::default();
    let mut sent = 0;
    while sent < max && !stop.load(Ordering::Relaxed) {
        let count = send_records(peer, &mut reader, AT_ONCE.min(max - sent))?;
        sent += count;
        served.read.fetch_add(count, Ordering::Relaxed);
        tell_unread(peer, &reader, &mut told)?;
        peer.flush()?;
        if count > 0 {
            continue;
        }
        if !follow {
            break;
        }
        // A client that follows says nothing more.
        match peer.receive(Duration::ZERO)? {
            Came::Nothing => {}
            Came::Some => return Err(peer.unexpected().into()),
            Came::Closed => return Ok(()),
        }
        reader.wait(LOOK_EVERY);
        reader.refresh()?;
    }
    if sent < max && stop.load(Ordering::Relaxed) {
        return Ok(refuse(peer, "the server is shutting down")?);
    }
    let cursor = reader.cursor();
    peer.put(&Message::Done {
        records: sent,
        cursor,
    })?;
    Ok(peer.flush()?)
}

/// Does with pages of a stripe what a client asks, in its order.
fn pages(
    peer: &mut Peer,
    stripe: &Arc<HostedStripe>,
    served: &Served,
    stop: &AtomicBool,
) -> std::result::Result<(), Ended> {
    let mut session = stripe.session()?;
    peer.put(&Message::Answer(session.there()))?;
    peer.flush()?;
    peer.allow_records();
    let mut has_failed = false;
    while !stop.load(Ordering::Relaxed) {
        while let Some(message) = peer.next_message()? {
            let Message::Request(request) = message else {
                return Err(peer.unexpected().into());
            };
            let (answer, problem) = session.answer(&request);
            peer.put(&Message::Answer(answer))?;
            // The first says enough.
            if let Some(problem) = problem.filter(|_| !has_failed) {
                has_failed = true;
                let name = &stripe.name;
                (served.tell)(&Notice::warning(format!("stripe {name}: {problem}")));
            }
        }
        peer.flush()?;
        if let Came::Closed = peer.receive(LOOK_EVERY)? {
            return Ok(());
        }
    }
    Ok(refuse(peer, "the server is shutting down")?)
}

fn send_records(
    peer: &mut Peer,
    reader: &mut StreamReader,
    max: u64,
) -> std::result::Result<u64, Ended> {
    reader.read(max, |entry| {
        peer.put(&Message::Entry {
            next: entry.next,
            seq: entry.seq,
            time_ns: entry.time_ns,
            payload: entry.payload,
        })?;
        Ok::<bool, Ended>(true)
    })
}

fn tell_unread(peer: &mut Peer, reader: &StreamReader, told: &mut Unread) -> Result<()> {
    let unread = reader.unread();
    if unread == *told {
        return Ok(());
    }
    *told = unread;
    let missing = unread.missing;
    let expired = match unread.expired_uncounted {
        true => UNCOUNTED,
        false => unread.expired,
    };
    peer.put(&Message::Unread { missing, expired })
}
