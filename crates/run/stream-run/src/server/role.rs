//! The role that serves a directory of streams.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::CapabilitySet;
use strata_auth::tls::ServerTls;
use strata_role::sandbox::{Reach, give_up, thread as restrict, unconfined};
use strata_role::{At as _, Handle, Notice, Result, RoleError, Spec, Tell};
use strata_sandbox::{Owner, Role};
use strata_stream::StreamName;
use strata_sys::pause::backoff;
use strata_sys::socket;

use super::connection::{Ended, Served};
use super::hosted::HostedStripe;
use super::intake::StreamIntake;
use super::serving::{Offer, serve};
use super::shared::SharedStreams;
use crate::peer::{Peer, PeerError};
use crate::{ReaderPlaces, StreamDir, StreamSpec, paths_of, random_id};

/// Connections at a time that have said what they want.
const CLIENTS_MAX: usize = 256;
/// Streams that clients read together, several at a time: about 5 MiB of memory for each.
const TOGETHER_MAX: usize = 256;
/// Connections that have not yet, in all and from one address.
const STRANGERS_MAX: usize = 64;
const STRANGERS_OF_ONE_MAX: usize = 8;
/// Between looks whether to stop.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Between warnings about connections; those between are counted.
const WARN_EVERY: Duration = Duration::from_secs(1);
/// How long connections may take to end with the server.
const END_LIMIT: Duration = Duration::from_secs(40);

/// A stripe for a directory of another machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostedSpec {
    /// How clients ask for it.
    pub name: StreamName,
    /// The directory that has it, or will.
    pub path: PathBuf,
    /// Bytes of its pages, at most.
    pub bytes_max: u64,
}

/// A server of streams.
#[derive(Debug)]
pub struct StreamServeSpec {
    /// The directory of streams, if there is one.
    pub dir: Option<PathBuf>,
    /// How a stream is created when a client appends to one that is not there; `None`: the client is refused.
    pub creates: Option<StreamSpec>,
    /// Another way for records into streams of the directory.
    pub intake: Option<Box<dyn StreamIntake>>,
    /// Stripes for directories of other machines.
    pub stripes: Vec<HostedSpec>,
    /// Where clients connect.
    pub listen: SocketAddr,
    /// With TLS: both ends show certificates.
    pub tls: Option<ServerTls>,
    /// Whose user and group it runs as.
    pub owner: Owner,
    /// Whether to drop what is not needed once it listens.
    pub sandboxed: bool,
}

/// What a server did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamServeOutcome {
    /// Connections that were served.
    pub connections: u64,
    /// Those that were refused: too many, or not from a client.
    pub refused: u64,
    /// Records that clients have appended.
    pub appended: u64,
    /// Records that were sent to clients.
    pub read: u64,
}

impl Spec for StreamServeSpec {
    type Running = ();
    type Outcome = StreamServeOutcome;
    type Error = RoleError;
    const THREAD: &'static str = "strata-streams";

    fn start(self, stop: Arc<AtomicBool>, tell: Tell) -> Result<Handle<Self>> {
        let dir = self.dir.as_deref().map(StreamDir::open).transpose()?;
        if let Some(dir) = &dir {
            dir.meet_servers()?;
        }
        let hosted = self.stripes.iter();
        let hosted = hosted.map(|spec| {
            let stripe = HostedStripe::open(&spec.name, &spec.path, spec.bytes_max)?;
            Ok(Arc::new(stripe))
        });
        let stripes = hosted.collect::<Result<Vec<_>>>()?;
        let listener = TcpListener::bind(self.listen);
        let listener = listener.at_with(|| format!("cannot listen on TCP {}", self.listen))?;
        listener
            .set_nonblocking(true)
            .at("cannot set up the socket")?;
        let address = listener
            .local_addr()
            .at("cannot get the address of the socket")?;
        if self.sandboxed {
            let streams = self.dir.iter().flat_map(|dir| paths_of(dir));
            let reach = Reach {
                write: streams
                    .chain(self.stripes.into_iter().map(|spec| spec.path))
                    .collect(),
                ..Reach::default()
            };
            give_up(&self.owner, &reach, CapabilitySet::empty(), &tell)?;
        } else {
            unconfined();
        }
        let mut what = format!("streams on TCP {address}");
        if let Some(dir) = &self.dir {
            what = format!("{what}, in {}", dir.display());
        }
        if !stripes.is_empty() {
            let names: Vec<&str> = stripes.iter().map(|stripe| stripe.name.as_str()).collect();
            what = format!("{what}, stripes {}", names.join(" "));
        }
        let streams = dir.map(SharedStreams::new);
        let intake = match (self.intake, &streams) {
            (Some(intake), Some(streams)) => {
                Some(intake.start(streams, self.creates.as_ref(), &tell)?)
            }
            (Some(_), None) => {
                let text = "records need a directory of streams";
                return Err(RoleError::Invalid(text.to_owned()));
            }
            (None, _) => None,
        };
        tell(&Notice::serving(address, what));
        let server = Server {
            offer: Offer {
                streams,
                secret: [
                    random_id().at("cannot get random numbers")?,
                    random_id().at("cannot get random numbers")?,
                ],
                creates: self.creates,
                stripes,
                places: ReaderPlaces::new(TOGETHER_MAX),
            },
            tls: self.tls,
            stop: Arc::clone(&stop),
            served: Served::new(Arc::clone(&tell)),
            tell,
            connections: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            present: Mutex::default(),
            warned: Mutex::new(None),
        };
        Handle::run((), stop, move || {
            let outcome = Arc::new(server).run(&listener);
            // Its records are confirmed in any case.
            let more = intake.map_or(0, |intake| intake.end());
            outcome.map(|outcome| StreamServeOutcome {
                appended: outcome.appended.saturating_add(more),
                ..outcome
            })
        })
    }
}

/// Connections that there are.
#[derive(Debug, Default)]
struct Present {
    strangers: HashMap<IpAddr, usize>,
    clients: usize,
}

struct Server {
    offer: Offer,
    tls: Option<ServerTls>,
    stop: Arc<AtomicBool>,
    tell: Tell,
    served: Served,
    connections: AtomicU64,
    refused: AtomicU64,
    present: Mutex<Present>,
    /// When it last warned.
    warned: Mutex<Option<Instant>>,
}

/// A connection's place among those there are, given up when it is dropped.
struct Place {
    server: Arc<Server>,
    address: IpAddr,
    is_client: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut present = self.server.present();
        match self.is_client {
            true => present.clients -= 1,
            false => leave(&mut present, self.address),
        }
    }
}

fn leave(present: &mut Present, address: IpAddr) {
    if let Some(count) = present.strangers.get_mut(&address) {
        *count -= 1;
        if *count == 0 {
            present.strangers.remove(&address);
        }
    }
}

impl Place {
    /// The client has said what it wants.
    fn admit(&mut self) {
        let mut present = self.server.present();
        leave(&mut present, self.address);
        present.clients += 1;
        self.is_client = true;
    }
}

impl Server {
    fn present(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(self: Arc<Self>, listener: &TcpListener) -> Result<StreamServeOutcome> {
        while !self.stop.load(Ordering::Relaxed) {
            let sockets = std::iter::once(listener.as_fd());
            socket::wait_any(sockets, LOOK_EVERY).at("cannot wait for connections")?;
            match listener.accept() {
                Ok((stream, address)) => Self::admit(&self, stream, address),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock
                    | ErrorKind::Interrupted
                    | ErrorKind::ConnectionAborted => {}
                    // Too many files, mostly: some will be closed.
                    _ => {
                        self.warn(&format!("cannot accept a connection: {error}"));
                        backoff(LOOK_EVERY);
                    }
                },
            }
        }
        (self.tell)(&Notice::ending(false));
        let start = Instant::now();
        while Arc::strong_count(&self) > 1 && start.elapsed() < END_LIMIT {
            backoff(Duration::from_millis(5));
        }
        Ok(StreamServeOutcome {
            connections: self.connections.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            appended: self.served.appended.load(Ordering::Relaxed),
            read: self.served.read.load(Ordering::Relaxed),
        })
    }

    /// Starts a thread for a connection, if there may be one more.
    fn admit(self: &Arc<Self>, stream: TcpStream, address: SocketAddr) {
        let address = address.ip().to_canonical();
        let Some(place) = self.place(address) else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            self.warn(&format!("too many connections: refused one from {address}"));
            return;
        };
        let spawned = thread::Builder::new()
            .name("stream-client".into())
            .spawn(move || {
                restrict(Role::Files);
                place.server.clone().connection(stream, place);
            });
        if let Err(error) = spawned {
            self.refused.fetch_add(1, Ordering::Relaxed);
            self.warn(&format!(
                "cannot start a thread for {address}, which is refused: {error} (see the limits of \
                 threads: ulimit -u, pids.max)"
            ));
        }
    }

    fn place(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let mut present = self.present();
        let strangers: usize = present.strangers.values().sum();
        let is_full = present.clients + strangers >= CLIENTS_MAX + STRANGERS_MAX
            || present.clients >= CLIENTS_MAX
            || strangers >= STRANGERS_MAX;
        let of_one = present.strangers.get(&address).map_or(0, |count| *count);
        if is_full || of_one >= STRANGERS_OF_ONE_MAX {
            return None;
        }
        present.strangers.insert(address, of_one + 1);
        drop(present);
        Some(Place {
            server: Arc::clone(self),
            address,
            is_client: false,
        })
    }

    fn connection(&self, stream: TcpStream, mut place: Place) {
        let tls = self.tls.as_ref().map(ServerTls::connection).transpose();
        let peer = match tls {
            Ok(tls) => Peer::accepted(stream, tls).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let mut peer = match peer {
            Ok(peer) => peer,
            Err(error) => return self.warn(&format!("{}: {error}", place.address)),
        };
        let mut is_admitted = false;
        let admitted = || {
            is_admitted = true;
            place.admit();
        };
        let done = serve(&mut peer, &self.offer, &self.served, &self.stop, admitted);
        let counter = match is_admitted {
            true => &self.connections,
            false => &self.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        match done {
            // Clients come and go.
            Ok(()) | Err(Ended::Peer(PeerError::Closed { .. })) => {}
            Err(error) => self.warn(&error.to_string()),
        }
    }

    /// Says what is wrong with a connection, not too often.
    fn warn(&self, text: &str) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if warned.is_none_or(|at| now - at >= WARN_EVERY) {
            *warned = Some(now);
            drop(warned);
            (self.tell)(&Notice::warning(text));
        }
    }
}
