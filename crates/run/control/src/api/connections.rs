//! The connections to the API, a bounded number: when it is full, those that have not shown their
//! authorization make way for new ones.

use std::any::Any;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::process::{Resource, getrlimit};
use tokio::sync::oneshot;

/// Maximum number of connections over TCP; half of them from one source.
const TCP_MAX: usize = 128;
/// Maximum number of connections of agents, half of them from one source.
const AGENTS_MAX: usize = 20_000;
/// Maximum number of connections over the Unix socket. They are counted separately, so strangers keep no local operator
/// out.
const LOCAL_MAX: usize = 32;
/// The API uses at most one in this many of the descriptors that the process may open.
const DESCRIPTORS_SHARE: u64 = 8;

/// How many connections there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    all: usize,
    per_source: usize,
}

impl Limits {
    /// For TCP.
    pub(super) fn tcp() -> Self {
        let all = within_descriptors(TCP_MAX);
        Self {
            all,
            per_source: all / 2,
        }
    }

    /// For agents, which stay connected; many may come from behind one address.
    pub(super) fn agents() -> Self {
        let all = within_descriptors(AGENTS_MAX);
        Self {
            all,
            per_source: all / 2,
        }
    }

    /// For the Unix socket: only its owner, root and `--group` may connect.
    pub(super) fn local() -> Self {
        let all = within_descriptors(LOCAL_MAX);
        Self {
            all,
            per_source: all,
        }
    }
}

/// As many as wanted, but well below the process's descriptor limit.
fn within_descriptors(most: usize) -> usize {
    let descriptors = getrlimit(Resource::Nofile).current;
    let share = descriptors.map_or(most, |all| {
        usize::try_from(all / DESCRIPTORS_SHARE).map_or(most, |share| share.min(most))
    });
    share.max(2)
}

/// The source of a connection, as far as connections are counted together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Source {
    /// The Unix socket.
    Local,
    /// IPv4, also as written in IPv6.
    V4(Ipv4Addr),
    /// The first 64 bits of an IPv6 address: one host may have all addresses with this prefix (RFC
    /// 4291, section 2.5.4).
    V6([u16; 4]),
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Self::V6([a, b, c, d])
            }
        }
    }
}

#[derive(Debug)]
struct Open {
    source: Source,
    /// Whether it has shown its authorization.
    proved: bool,
    /// The connection ends when this is dropped.
    _stay: oneshot::Sender<()>,
}

#[derive(Debug)]
struct Table {
    limits: Limits,
    next: u64,
    /// By number, so oldest first.
    open: BTreeMap<u64, Open>,
}

impl Table {
    /// Frees a place for this source if need be; returns whether there is one.
    fn make_room(&mut self, source: Source) -> bool {
        let of_source = self.open.values().filter(|open| open.source == source);
        if of_source.count() >= self.limits.per_source {
            return self.close_oldest(|open| open.source == source);
        }
        if self.open.len() < self.limits.all {
            return true;
        }
        let crowd = self.with_most();
        crowd.is_some_and(|crowd| self.close_oldest(|open| open.source == crowd))
    }

    /// The source with the most unauthorized connections: a few strangers with many connections
    /// push out their own, not somebody else's.
    fn with_most(&self) -> Option<Source> {
        let mut unproved = BTreeMap::<Source, usize>::new();
        for open in self.open.values().filter(|open| !open.proved) {
            *unproved.entry(open.source).or_default() += 1;
        }
        let most = unproved.into_iter().max_by_key(|&(_, count)| count);
        most.map(|(source, _)| source)
    }

    /// Ends the oldest unauthorized connection among these.
    fn close_oldest(&mut self, is_one: impl Fn(&Open) -> bool) -> bool {
        let mut open = self.open.iter();
        let oldest = open.find(|(_, open)| !open.proved && is_one(open));
        let oldest = oldest.map(|(&number, _)| number);
        oldest.is_some_and(|number| self.open.remove(&number).is_some())
    }
}

/// The connections of a listener.
#[derive(Clone, Debug)]
pub(super) struct Connections(Arc<Mutex<Table>>);

impl Connections {
    pub(super) fn new(limits: Limits) -> Self {
        Self(Arc::new(Mutex::new(Table {
            limits,
            next: 0,
            open: BTreeMap::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection, and signals when it has to go; `None` if all present ones have shown
    /// their authorization.
    pub(super) fn admit(&self, source: Source) -> Option<(Connection, oneshot::Receiver<()>)> {
        let mut table = self.lock();
        if !table.make_room(source) {
            return None;
        }
        let (stay, gone) = oneshot::channel();
        let number = table.next;
        table.next += 1;
        let open = Open {
            source,
            proved: false,
            _stay: stay,
        };
        table.open.insert(number, open);
        let connection = Connection(Arc::new(Place {
            connections: self.clone(),
            number,
            lasts: AtomicBool::new(false),
            kept: OnceLock::new(),
        }));
        Some((connection, gone))
    }
}

/// One connection; clones share it. Its place is free once all are dropped.
#[derive(Clone, Debug)]
pub struct Connection(Arc<Place>);

#[derive(Debug)]
struct Place {
    connections: Connections,
    number: u64,
    /// Whether its answer has no end.
    lasts: AtomicBool,
    /// Dropped with the connection.
    kept: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl Connection {
    /// Marks it authorized, so that it need not make way for others.
    pub fn prove(&self) {
        if let Some(open) = self.0.connections.lock().open.get_mut(&self.0.number) {
            open.proved = true;
        }
    }

    /// Its answer goes on until the client has enough.
    pub fn lasts(&self) {
        self.0.lasts.store(true, Ordering::Relaxed);
    }

    /// Makes something that is dropped when the connection has ended; nothing, if it has one already.
    pub(super) fn keep<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) {
        self.0.kept.get_or_init(|| Box::new(make()));
    }

    /// Ends it at once, whatever is being sent.
    pub fn end(&self) {
        self.0.connections.lock().open.remove(&self.0.number);
    }

    /// Whether its answer goes on until the client has enough.
    pub(super) fn is_lasting(&self) -> bool {
        self.0.lasts.load(Ordering::Relaxed)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.lock().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(last: u8) -> Source {
        IpAddr::from([192, 0, 2, last]).into()
    }

    #[test]
    fn who_has_proved_nothing_makes_way() {
        let connections = Connections::new(Limits {
            all: 4,
            per_source: 2,
        });
        let mut admitted: Vec<_> = [1, 1, 1, 2, 2]
            .map(|last| connections.admit(from(last)))
            .into();
        let gone = |admitted: &mut Vec<Option<(Connection, oneshot::Receiver<()>)>>| {
            let gone = admitted.iter_mut().flatten();
            gone.map(|(_, gone)| gone.try_recv() == Err(oneshot::error::TryRecvError::Closed))
                .collect::<Vec<bool>>()
        };
        // The third of the first source took the place of the first.
        assert_eq!(gone(&mut admitted), [true, false, false, false, false]);
        // Another source finds all places taken: the oldest of the source with the most
        // unauthorized connections goes, though the first source has an older one.
        admitted[1].as_ref().unwrap().0.prove();
        admitted.push(connections.admit(from(3)));
        assert_eq!(
            gone(&mut admitted),
            [true, false, false, true, false, false]
        );
        for (connection, _) in admitted.iter().flatten() {
            connection.prove();
        }
        assert!(connections.admit(from(4)).is_none(), "all may ask");
        admitted.pop();
        assert!(
            connections.admit(from(4)).is_some(),
            "a place is free again"
        );
        assert_eq!(
            connections.lock().open.len(),
            3,
            "no place is taken for ever"
        );
    }

    #[test]
    fn what_a_connection_keeps_is_dropped_at_its_end() {
        let connections = Connections::new(Limits {
            all: 4,
            per_source: 2,
        });
        let (connection, _gone) = connections.admit(from(1)).unwrap();
        let first = Arc::new(());
        connection.keep(|| Arc::clone(&first));
        let of_request = connection.clone();
        of_request.keep(|| -> () { panic!("it has one already") });
        drop(of_request);
        assert_eq!(Arc::strong_count(&first), 2);
        drop(connection);
        assert_eq!(Arc::strong_count(&first), 1);
    }

    #[test]
    fn a_source_is_a_host() {
        let source = |address: &str| Source::from(address.parse::<IpAddr>().unwrap());
        assert_eq!(source("::ffff:192.0.2.1"), from(1));
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
    }
}
