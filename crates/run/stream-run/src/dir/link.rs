//! A stripe that another machine's server of streams has, over TCP.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use strata_auth::tls::{ClientTls, TlsFiles};
use strata_stream::message::{Answer, MAGIC, Message, Request};
use strata_stream::{Geometry, StreamName};

use crate::client::{connect, explained};
use crate::dir::remote::{StripeConnection, StripeLink, StripeServer, StripeTls};
use crate::peer::{Came, Peer, PeerError};

/// How long a server may take to be connected, to answer, or to take what it is sent.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
const TAKE_LIMIT: Duration = Duration::from_secs(15);
/// Between attempts to reach a server, however many want to.
const TRY_EVERY: Duration = Duration::from_secs(10);

/// What was read to ask a server.
#[derive(Clone)]
struct Ready {
    addresses: Vec<SocketAddr>,
    tls: Option<ClientTls>,
}

#[derive(Default)]
struct State {
    ready: Option<Ready>,
    /// When it was not reached, and why.
    failed: Option<(Instant, String)>,
}

/// A server and the stripe that it has.
pub(crate) struct TcpStripe {
    address: String,
    name: StreamName,
    tls: Option<StripeTls>,
    state: Mutex<State>,
}

#[allow(clippy::needless_pass_by_value, reason = "given to map_err")]
fn said(error: PeerError) -> io::Error {
    let kind = match &error {
        PeerError::Slow { .. } | PeerError::Silent { .. } => ErrorKind::TimedOut,
        _ => ErrorKind::Other,
    };
    io::Error::new(kind, error.to_string())
}

impl TcpStripe {
    pub(crate) fn new(address: &str, name: StreamName, tls: Option<StripeTls>) -> Self {
        Self {
            address: address.to_owned(),
            name,
            tls,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ready(&self) -> io::Result<Ready> {
        if let Some(ready) = &self.state().ready {
            return Ok(ready.clone());
        }
        let tls = self.tls.as_ref().map(|files| {
            ClientTls::new(&TlsFiles {
                certificate: &files.certificate,
                key: &files.key,
                authority: &files.authority,
            })
        });
        let ready = Ready {
            tls: tls.transpose().map_err(io::Error::other)?,
            addresses: self.address.to_socket_addrs()?.collect(),
        };
        self.state().ready = Some(ready.clone());
        Ok(ready)
    }

    fn ask(&self) -> io::Result<(TcpLink, Option<(u64, Geometry)>)> {
        let Ready { addresses, tls } = self.ready()?;
        let peer = connect(&self.address, addresses, tls.as_ref(), CONNECT_LIMIT);
        let mut peer = peer.map_err(said)?;
        peer.set_chunk_limit(TAKE_LIMIT);
        peer.put_bytes(&MAGIC);
        let name = self.name.as_str();
        let asked = peer.put(&Message::Stripe { name });
        asked.and_then(|()| peer.flush()).map_err(said)?;
        let answer = peer.wait_for(TAKE_LIMIT, |message| match message {
            Message::Answer(Answer::There { id, sizes }) => Some(Ok((id, sizes))),
            Message::Refused(text) => Some(Err(io::Error::other(text.to_owned()))),
            _ => None,
        });
        let answer = answer.map_err(|error| said(explained(error)))?;
        let (id, [directory_bytes, table_bytes, page_bytes]) = answer?;
        let geometry = Geometry {
            directory_bytes,
            table_bytes,
            page_bytes,
        };
        Ok((TcpLink { peer }, (id != 0).then_some((id, geometry))))
    }
}

impl StripeServer for TcpStripe {
    fn connect(&self) -> io::Result<StripeConnection> {
        if let Some((at, text)) = &self.state().failed
            && at.elapsed() < TRY_EVERY
        {
            return Err(io::Error::other(text.clone()));
        }
        let asked = self.ask();
        let failed = asked.as_ref().err();
        let failed = failed.map(|error| (Instant::now(), error.to_string()));
        self.state().failed = failed;
        let (link, there) = asked?;
        Ok((Box::new(link), there))
    }

    fn prepare(&self) {
        // The client gets the reason of a failure.
        let _ = self.ready();
    }
}

struct TcpLink {
    peer: Peer,
}

impl StripeLink for TcpLink {
    fn send(&mut self, request: &Request<'_>) -> io::Result<()> {
        let sent = self.peer.put(&Message::Request(*request));
        sent.and_then(|()| self.peer.flush()).map_err(said)
    }

    fn receive(&mut self, limit: Duration, take: &mut dyn FnMut(Answer<'_>)) -> io::Result<bool> {
        let end = Instant::now() + limit;
        loop {
            match self.peer.next_message().map_err(said)? {
                Some(Message::Answer(answer)) => {
                    take(answer);
                    return Ok(true);
                }
                Some(Message::Refused(text)) => return Err(io::Error::other(text.to_owned())),
                Some(_) => return Err(said(self.peer.unexpected())),
                None => {}
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.peer.receive(left).map_err(said)? {
                Came::Some => {}
                Came::Nothing if left.is_zero() => return Ok(false),
                Came::Nothing => {}
                Came::Closed => return Err(said(self.peer.closed())),
            }
        }
    }

    fn is_there(&mut self) -> bool {
        matches!(
            self.peer.receive(Duration::ZERO),
            Ok(Came::Some | Came::Nothing)
        )
    }
}
