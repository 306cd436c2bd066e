//! One connection of a server: the client's request, and clients that append.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use strata_role::Notice;
use strata_stream::message::Message;
use strata_stream::{NamePattern, StreamName};
use strata_wire::{exact, unix_ns};

use super::connection::{Begin, Ended, LOOK_EVERY, Served, refuse, said};
use super::hosted::HostedStripe;
use super::shared::{ProducerSession, SharedError, SharedStreams};
use super::tailing::{tail, tail_several};
use crate::peer::{Came, Peer, Result};
use crate::{ReaderPlaces, StreamSpec};

/// How long a client may take to say what it wants, its part of TLS included.
const ASK_LIMIT: Duration = Duration::from_secs(10);

/// What a client asks for.
enum Asked {
    Append(StreamName, (u64, StreamName)),
    Tail(StreamName, Begin, u64, bool),
    Several(NamePattern, Begin, u64, bool),
    Stripe(StreamName),
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
    /// For streams that clients read together.
    pub(super) places: ReaderPlaces,
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
                Some(spec) => streams.create(&name, spec),
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
        (Asked::Several(pattern, begin, max, follow), Some(streams)) => {
            let wanted = (&begin, max, follow);
            let of = (streams.dir(), &pattern, &offer.places);
            tail_several(peer, of, (wanted, offer.secret), served, stop)
        }
        (Asked::Append(..) | Asked::Tail(..) | Asked::Several(..), None) => {
            return Ok(refuse(peer, "this server has stripes only, no streams")?);
        }
        (Asked::Stripe(name), _) => {
            let mut stripes = offer.stripes.iter();
            match stripes.find(|stripe| stripe.name == name) {
                Some(stripe) => pages(peer, stripe, served, stop),
                None => {
                    return Ok(refuse(
                        peer,
                        &format!("this server offers no stripe {name} (--offer-stripe)"),
                    )?);
                }
            }
        }
    };
    let text = match &done {
        Ok(()) | Err(Ended::Peer(_)) => return done,
        Err(Ended::Refused(text)) => return Ok(refuse(peer, text)?),
        // Without the paths of this machine.
        Err(Ended::Stream(error) | Ended::Shared(SharedError::Stream(error))) => said(error),
        Err(Ended::Shared(error)) => error.to_string(),
    };
    // If it is gone, what happened to the stream is what matters.
    let _ = refuse(peer, &text);
    done
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
        } => Some(match NamePattern::of(name) {
            Some(pattern) => Ok(Asked::Several(pattern, Begin::At(from), max, follow)),
            None => named(name, &|name| Asked::Tail(name, Begin::At(from), max, follow)),
        }),
        Message::TailKept {
            name,
            consumer,
            max,
            follow,
        } => Some(match consumer.parse::<StreamName>() {
            Ok(consumer) if !matches!(consumer.as_str(), "." | "..") => {
                let begin = Begin::Kept(consumer);
                match NamePattern::of(name) {
                    Some(pattern) => Ok(Asked::Several(pattern, begin, max, follow)),
                    None => named(name, &|name| Asked::Tail(name, begin.clone(), max, follow)),
                }
            }
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
