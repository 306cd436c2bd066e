//! One connection of a server: a client that appends to a stream, or reads one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use strata_role::{Notice, Tell};
use strata_stream::message::{From, Message, UNCOUNTED};
use strata_stream::{Origin, StreamName, siphash24};
use strata_wire::{exact, unix_ns};

use super::hosted::HostedStripe;
use super::kept::KeptCursor;
use super::shared::{ProducerSession, SharedError, SharedStreams, Turn};
use crate::peer::{Came, Peer, PeerError, Result};
use crate::{StreamDir, StreamError, StreamReader, StreamSpec, Unread};

/// How long a client may take to say what it wants, its part of TLS included.
const ASK_LIMIT: Duration = Duration::from_secs(10);
/// Between looks at what came and whether to stop, while nothing happens.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Records that are read before it is looked whether to stop.
const AT_ONCE: u64 = 1000;
/// How long a client may take, after the last record, to say that it has done with all of them.
const TAKE_LIMIT: Duration = Duration::from_secs(30);

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
    fn warn_of(&self, turn: &mut Turn<'_>, name: &StreamName) {
        for warning in turn.take_warnings() {
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
    #[error(transparent)]
    Shared(#[from] SharedError),
}

/// What a client asks for.
enum Asked {
    Append(StreamName, (u64, StreamName)),
    Tail(StreamName, Begin, u64, bool),
    Stripe(StreamName),
}

/// Where a client begins to read.
enum Begin {
    At(From),
    /// At a cursor that the server keeps under this name.
    Kept(StreamName),
}

/// What a server has.
pub(super) struct Offer {
    /// Its streams.
    pub(super) streams: Option<Arc<SharedStreams>>,
    /// Hides the ids of producers from readers, which could append in their place.
    pub(super) secret: [u64; 2],
    /// How a stream is created when a client appends to one that is not there; `None`: it is not.
    pub(super) creates: Option<StreamSpec>,
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
    let done = match (asked, &offer.streams) {
        (Asked::Append(name, producer), Some(streams)) => {
            let created = match &offer.creates {
                Some(spec) => create(streams.dir(), &name, spec),
                None => Ok(()),
            };
            let now = (Instant::now(), unix_ns());
            let producer = (producer.0, &producer.1);
            let joined = created.and_then(|()| streams.join(&name, producer, now));
            joined
                .map_err(Ended::from)
                .and_then(|session| append(peer, session, &name, served, stop))
        }
        (Asked::Tail(name, begin, max, follow), Some(streams)) => {
            let wanted = (&begin, max, follow);
            let secret = offer.secret;
            tail(peer, (streams.dir(), &name, secret), wanted, served, stop)
        }
        (Asked::Append(..) | Asked::Tail(..), None) => {
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
    let text = match &done {
        Ok(()) | Err(Ended::Peer(_)) => return done,
        // Without the paths of this machine.
        Err(Ended::Stream(error) | Ended::Shared(SharedError::Stream(error))) => said(error),
        Err(Ended::Shared(error)) => error.to_string(),
    };
    // If it is gone, what happened to the stream is what matters.
    let _ = refuse(peer, &text);
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
            format!(
                "a process on the server's machine is appending to {name}: end it, or let it append through the server"
            )
        }
        StreamError::TooLong { .. }
        | StreamError::Lost { .. }
        | StreamError::Producers { .. }
        | StreamError::Cursors { .. }
        | StreamError::Paused { .. } => error.to_string(),
        _ => error.of_disk().unwrap_or_else(|| {
            "the stream cannot be used: see the messages of its server".to_owned()
        }),
    }
}

/// Creates a stream, unless it is there.
fn create(
    dir: &StreamDir,
    name: &StreamName,
    spec: &StreamSpec,
) -> std::result::Result<(), StreamError> {
    match dir.create_stream(name, spec, unix_ns()) {
        Err(StreamError::Exists { .. }) => Ok(()),
        created => created,
    }
}

/// What the client wants, or why it cannot have it.
fn ask(peer: &mut Peer) -> Result<std::result::Result<Asked, String>> {
    let named = |name: &str, asked: &dyn Fn(StreamName) -> Asked| match name.parse() {
        Ok(name) => Ok(asked(name)),
        Err(error) => Err(strata_stream::NameError::to_string(&error)),
    };
    peer.wait_for(ASK_LIMIT, |message| match message {
        Message::Append { id, producer, name } => {
            let producer = producer.parse::<StreamName>();
            Some(match producer {
                Ok(producer) => named(name, &|name| Asked::Append(name, (id, producer.clone()))),
                Err(error) => Err(format!("the producer's name: {error}")),
            })
        }
        Message::Stripe { name } => Some(named(name, &Asked::Stripe)),
        Message::Tail {
            name,
            from,
            max,
            follow,
        } => Some(named(name, &|name| Asked::Tail(name, Begin::At(from), max, follow))),
        Message::TailKept {
            name,
            consumer,
            max,
            follow,
        } => Some(match consumer.parse::<StreamName>() {
            Ok(consumer) if !matches!(consumer.as_str(), "." | "..") => named(name, &|name| {
                Asked::Tail(name, Begin::Kept(consumer.clone()), max, follow)
            }),
            _ => Err("the cursor's name: 1 to 64 letters, digits, dots, underscores and hyphens are needed".to_owned()),
        }),
        _ => None,
    })
}

/// Appends a producer's records, until it or the server ends.
fn append(
    peer: &mut Peer,
    mut session: ProducerSession,
    name: &StreamName,
    served: &Served,
    stop: &AtomicBool,
) -> std::result::Result<(), Ended> {
    peer.put(&Message::Ready {
        record_len_max: exact(session.record_len_max()),
        next: session.next(),
    })?;
    peer.flush()?;
    peer.allow_records();
    let done = take_records(peer, &mut session, name, served, stop);
    served
        .appended
        .fetch_add(session.appended(), Ordering::Relaxed);
    let ended = done?;
    let mut turn = session.turn(Instant::now());
    let synced = match ended {
        true => turn.end(unix_ns()),
        false => turn.sync(unix_ns()),
    };
    served.warn_of(&mut turn, name);
    drop(turn);
    let (records, cursor) = synced?;
    if ended {
        peer.put(&Message::Done { records, cursor })?;
        return Ok(peer.flush()?);
    }
    peer.put(&Message::Synced(records))?;
    Ok(refuse(peer, "the server is shutting down")?)
}

/// Takes records until the client says that it was all; if not, the server ends.
fn take_records(
    peer: &mut Peer,
    session: &mut ProducerSession,
    name: &StreamName,
    served: &Served,
    stop: &AtomicBool,
) -> std::result::Result<bool, Ended> {
    while !stop.load(Ordering::Relaxed) {
        let now_ns = unix_ns();
        let mut turn = session.turn(Instant::now());
        loop {
            match peer.next_message()? {
                Some(Message::Start(number)) if number < u64::MAX => turn.start(number),
                Some(Message::Record(record)) => turn.append(now_ns, record)?,
                Some(Message::End) => return Ok(true),
                Some(_) => return Err(peer.unexpected().into()),
                None => break,
            }
        }
        let confirmed = turn.keep_up(now_ns);
        served.warn_of(&mut turn, name);
        let confirmed = confirmed?;
        let due = turn.due();
        drop(turn);
        if let Some(number) = confirmed {
            peer.put(&Message::Synced(number))?;
            peer.flush()?;
        }
        let wait = due.map_or(LOOK_EVERY, |due| {
            due.saturating_duration_since(Instant::now())
        });
        if let Came::Closed = peer.receive(wait.min(LOOK_EVERY))? {
            return Err(peer.closed().into());
        }
    }
    Ok(false)
}

fn tail(
    peer: &mut Peer,
    (dir, name, secret): (&StreamDir, &StreamName, [u64; 2]),
    (begin, max, follow): (&Begin, u64, bool),
    served: &Served,
    stop: &AtomicBool,
) -> std::result::Result<(), Ended> {
    let mut reader = dir.read(name)?;
    let mut kept = None;
    match begin {
        Begin::At(From::Cursor(cursor)) => reader.seek(*cursor, None),
        Begin::At(From::Since(time_ns)) => reader.seek_time(*time_ns)?,
        Begin::At(From::Last(records)) => reader.seek_last(*records)?,
        Begin::Kept(consumer) => {
            kept = Some(KeptCursor::open(dir, (name, consumer), &mut reader)?);
        }
    }
    peer.put(&Message::Ready {
        record_len_max: 0,
        next: 0,
    })?;
    let mut told = Unread::default();
    let mut sent = 0;
    while sent < max && !stop.load(Ordering::Relaxed) {
        let count = send_records(peer, &mut reader, AT_ONCE.min(max - sent), secret)?;
        sent += count;
        served.read.fetch_add(count, Ordering::Relaxed);
        tell_unread(peer, &reader, &mut told)?;
        peer.flush()?;
        if let Some(kept) = &mut kept {
            kept.sent(&reader, sent);
            if let Came::Closed = hear(peer, kept, Duration::ZERO)? {
                return Ok(());
            }
        }
        if count > 0 {
            continue;
        }
        if !follow {
            break;
        }
        // A client without a cursor says nothing more.
        if kept.is_none() {
            match peer.receive(Duration::ZERO)? {
                Came::Nothing => {}
                Came::Some => return Err(peer.unexpected().into()),
                Came::Closed => return Ok(()),
            }
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
    peer.flush()?;
    let Some(mut kept) = kept else {
        return Ok(());
    };
    let until = Instant::now() + TAKE_LIMIT;
    while Instant::now() < until && !stop.load(Ordering::Relaxed) {
        if let Came::Closed = hear(peer, &mut kept, LOOK_EVERY)? {
            break;
        }
    }
    Ok(())
}

/// Takes what a client says of the records that it has done with, saves its cursor then, and says so.
fn hear(
    peer: &mut Peer,
    kept: &mut KeptCursor<'_>,
    limit: Duration,
) -> std::result::Result<Came, Ended> {
    let came = peer.receive(limit)?;
    let mut has_news = false;
    while let Some(message) = peer.next_message()? {
        let is_right = match message {
            Message::Took(records) => kept.took(records),
            _ => false,
        };
        if !is_right {
            return Err(peer.unexpected().into());
        }
        has_news = true;
    }
    if has_news {
        let records = kept.save()?;
        // A client that has gone after its last word is none the worse.
        if !matches!(came, Came::Closed) {
            peer.put(&Message::Synced(records))?;
            peer.flush()?;
        }
    }
    Ok(came)
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
    secret: [u64; 2],
) -> std::result::Result<u64, Ended> {
    reader.read(max, |entry| {
        peer.put(&Message::Entry {
            next: entry.next,
            seq: entry.seq,
            time_ns: entry.time_ns,
            origin: entry.origin.map(|origin| Origin {
                id: siphash24(secret, &origin.id.to_le_bytes()).max(1),
                ..origin
            }),
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
