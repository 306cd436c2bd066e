//! Clients that read: one stream, or several together in order of time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use strata_role::Notice;
use strata_stream::message::{From, Message, UNCOUNTED};
use strata_stream::{Cursor, NamePattern, Origin, StreamName, siphash24};

use super::connection::{Begin, Ended, LOOK_EVERY, Served, refuse, said};
use crate::peer::{Came, Peer, Result};
use crate::stream::kept::KeptCursor;
use crate::{
    Entry, ReaderPlaces, SeveralFrom, SeveralReader, SeveralWarning, StreamDir, StreamError,
    StreamReader, Unread,
};

/// Records that are read before it is looked whether to stop.
const AT_ONCE: u64 = 1000;
/// How long a client may take, after the last record, to say that it has done with all of them.
const TAKE_LIMIT: Duration = Duration::from_secs(30);
/// Cursors of a stream, so that clients do not fill the disk with them.
const CURSORS_MAX: usize = 1024;
/// The last records of several streams, at most: 8 bytes of memory for each and stream.
const LAST_MAX: u64 = 10_000;

/// A cursor, or several, that are kept for a client.
trait Keeps {
    /// The client has done with this number of records; whether it can have that number.
    fn took(&mut self, records: u64) -> bool;
    /// Saves the cursor after these records; their number.
    fn save(&mut self) -> std::result::Result<u64, StreamError>;
}

impl Keeps for KeptCursor {
    fn took(&mut self, records: u64) -> bool {
        Self::took(self, records)
    }

    fn save(&mut self) -> std::result::Result<u64, StreamError> {
        Self::save(self)
    }
}

impl Keeps for SeveralReader {
    fn took(&mut self, records: u64) -> bool {
        Self::took(self, records)
    }

    fn save(&mut self) -> std::result::Result<u64, StreamError> {
        Self::save(self)
    }
}

/// Sends records of a stream, until the client has them or one end stops.
pub(super) fn tail(
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
            kept = Some(KeptCursor::open(
                dir,
                (name, consumer),
                Some(CURSORS_MAX),
                &mut reader,
            )?);
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
        tell_unread(peer, reader.unread(), &mut told)?;
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
        if kept.is_none() && is_gone(peer)? {
            return Ok(());
        }
        reader.wait(LOOK_EVERY);
        reader.refresh()?;
    }
    if sent < max && stop.load(Ordering::Relaxed) {
        return Ok(refuse(peer, "the server is shutting down")?);
    }
    finish(peer, (sent, reader.cursor()), kept.as_mut(), stop)
}

/// Says that these were all records, and takes what the client still says of them.
fn finish<K: Keeps>(
    peer: &mut Peer,
    (records, cursor): (u64, Cursor),
    kept: Option<&mut K>,
    stop: &AtomicBool,
) -> std::result::Result<(), Ended> {
    peer.put(&Message::Done { records, cursor })?;
    peer.flush()?;
    let Some(kept) = kept else {
        return Ok(());
    };
    let until = Instant::now() + TAKE_LIMIT;
    while Instant::now() < until && !stop.load(Ordering::Relaxed) {
        if let Came::Closed = hear(peer, kept, LOOK_EVERY)? {
            break;
        }
    }
    Ok(())
}

/// Where to begin in several streams.
fn several_from(begin: &Begin) -> std::result::Result<SeveralFrom, Ended> {
    let refused = |text: String| Err(Ended::Refused(text));
    match begin {
        Begin::Kept(consumer) => Ok(SeveralFrom::Kept(consumer.clone(), Some(CURSORS_MAX))),
        Begin::At(From::Since(time_ns)) => Ok(SeveralFrom::Since(*time_ns)),
        Begin::At(From::Cursor(Cursor::START)) => Ok(SeveralFrom::Start),
        Begin::At(From::Cursor(cursor)) => refused(format!(
            "{cursor} is a position in one stream: several streams are read from 0.0, or from a kept cursor"
        )),
        Begin::At(From::Last(records)) if *records > LAST_MAX => refused(format!(
            "-n {records}: a server reads at most the last {LAST_MAX} records of several streams; \
             for more, give --cursor or --since"
        )),
        Begin::At(From::Last(records)) => Ok(SeveralFrom::Last(*records)),
    }
}

/// Sends records of several streams, as [`tail`] does of one.
pub(super) fn tail_several(
    peer: &mut Peer,
    (dir, pattern, places): (&StreamDir, &NamePattern, &ReaderPlaces),
    ((begin, max, follow), secret): ((&Begin, u64, bool), [u64; 2]),
    served: &Served,
    stop: &AtomicBool,
) -> std::result::Result<(), Ended> {
    let mut reader = SeveralReader::open(dir, pattern, several_from(begin)?, places)?;
    let is_kept = matches!(begin, Begin::Kept(_));
    if reader.is_empty() && !follow {
        let warnings = reader.take_warnings();
        let texts = warnings.iter().map(|warning| warned(warning, served));
        let text = texts.collect::<Vec<_>>().join("; ");
        return Err(Ended::Refused(match text.is_empty() {
            true => format!("no stream matches {} here", pattern.as_str()),
            false => text,
        }));
    }
    peer.put(&Message::Ready {
        record_len_max: 0,
        next: 0,
    })?;
    let mut told = Unread::default();
    let mut sent = 0;
    let mut current = None;
    while sent < max && !stop.load(Ordering::Relaxed) {
        let count = reader.read(AT_ONCE.min(max - sent), |name, entry| {
            if current.as_ref() != Some(name) {
                peer.put(&Message::Of(name.as_str()))?;
                current = Some(name.clone());
            }
            Ok::<(), Ended>(put_entry(peer, entry, secret)?)
        })?;
        sent += count;
        served.read.fetch_add(count, Ordering::Relaxed);
        for warning in reader.take_warnings() {
            peer.put(&Message::Warning(&warned(&warning, served)))?;
        }
        tell_unread(peer, reader.unread(), &mut told)?;
        peer.flush()?;
        // Before the client is heard: what it has done with makes room for more records.
        let was_ahead = reader.is_ahead();
        if is_kept {
            let limit = match was_ahead {
                true => LOOK_EVERY,
                false => Duration::ZERO,
            };
            if let Came::Closed = hear(peer, &mut reader, limit)? {
                return Ok(());
            }
        }
        if count > 0 || was_ahead {
            continue;
        }
        if !follow {
            break;
        }
        if !is_kept && is_gone(peer)? {
            return Ok(());
        }
        reader.look(LOOK_EVERY)?;
    }
    if sent < max && stop.load(Ordering::Relaxed) {
        return Ok(refuse(peer, "the server is shutting down")?);
    }
    let kept = is_kept.then_some(&mut reader);
    finish(peer, (sent, Cursor::START), kept, stop)
}

/// The text of a warning for a client; the server's messages have the whole error.
fn warned(warning: &SeveralWarning, served: &Served) -> String {
    match warning {
        SeveralWarning::Unreadable(name, error) => {
            (served.tell)(&Notice::warning(format!("stream {name}: {error}")));
            // Without the paths of this machine.
            format!("{name}: {}", said(error))
        }
        SeveralWarning::LeftOut(text) => text.clone(),
    }
}

/// Whether a client has gone that has nothing more to say.
fn is_gone(peer: &mut Peer) -> Result<bool> {
    match peer.receive(Duration::ZERO)? {
        Came::Nothing => Ok(false),
        Came::Some => Err(peer.unexpected()),
        Came::Closed => Ok(true),
    }
}

/// Takes what a client says of the records that it has done with, saves its cursor then, and says so.
fn hear(
    peer: &mut Peer,
    kept: &mut impl Keeps,
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

fn send_records(
    peer: &mut Peer,
    reader: &mut StreamReader,
    max: u64,
    secret: [u64; 2],
) -> std::result::Result<u64, Ended> {
    reader.read(max, |entry| {
        put_entry(peer, entry, secret)?;
        Ok::<bool, Ended>(true)
    })
}

fn put_entry(peer: &mut Peer, entry: &Entry<'_>, secret: [u64; 2]) -> Result<()> {
    peer.put(&Message::Entry {
        next: entry.next,
        seq: entry.seq,
        time_ns: entry.time_ns,
        origin: entry.origin.map(|origin| Origin {
            id: siphash24(secret, &origin.id.to_le_bytes()).max(1),
            ..origin
        }),
        payload: entry.payload,
    })
}

fn tell_unread(peer: &mut Peer, unread: Unread, told: &mut Unread) -> Result<()> {
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
