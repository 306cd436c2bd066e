//! Addresses of an agent's destinations that are names. A thread looks up each, since an answer may take long; the
//! recording could not while it starts, and may do little afterwards.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use strata_role::{Notice, Result, RoleError, Tell, Waker};

use super::{Desk, NamedHost};

/// A name that was found is looked up again after this time.
const EVERY: Duration = Duration::from_secs(30);
/// One that was not is after this, and twice as long each time, up to that.
const AGAIN: Duration = Duration::from_secs(1);
/// The first recording waits for answers at most this long, rather than getting them right after its
/// start.
const FIRST: Duration = Duration::from_millis(500);

/// What is known of destinations that are names, by the names that policies use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) addresses: BTreeMap<String, SocketAddr>,
    /// Why the others have none.
    pub(super) problems: BTreeMap<String, String>,
}

/// Looks names up until it is dropped.
pub(super) struct Names {
    _ends: Vec<Sender<()>>,
}

/// One of them.
struct Name {
    name: String,
    at: NamedHost,
    address: Option<SocketAddr>,
    /// As last reported; empty without one.
    problem: String,
    desk: Desk,
    supervisor: Waker,
    tell: Tell,
}

impl Names {
    /// Begins, and waits a moment for the first answers.
    pub(super) fn start(
        all: &BTreeMap<String, NamedHost>,
        desk: &Desk,
        supervisor: &Waker,
        tell: &Tell,
    ) -> Result<Self> {
        let (mut ends, (answered, answers)) = (Vec::new(), channel());
        for (name, at) in all {
            let (end, ended) = channel();
            let looked_up = Name {
                name: name.clone(),
                at: at.clone(),
                address: None,
                problem: String::new(),
                desk: desk.clone(),
                supervisor: supervisor.clone(),
                tell: Tell::clone(tell),
            };
            let answered = answered.clone();
            let work = move || looked_up.run(&answered, &ended);
            // It may be waiting for a name server when the agent ends.
            let thread = thread::Builder::new().name("strata-names".into());
            thread
                .spawn(work)
                .map_err(RoleError::thread("looks up names of collectors"))?;
            ends.push(end);
        }
        let started = Instant::now();
        let left = || FIRST.saturating_sub(started.elapsed());
        let _ = ends.iter().try_for_each(|_| answers.recv_timeout(left()));
        Ok(Self { _ends: ends })
    }
}

impl Name {
    fn run(mut self, answered: &Sender<()>, ended: &Receiver<()>) {
        let mut again = AGAIN;
        loop {
            let wait = match find(&self.at, self.address) {
                Ok(address) => {
                    self.found(address);
                    again = AGAIN;
                    EVERY
                }
                Err(error) => {
                    self.not_found(&error.to_string());
                    let wait = again;
                    again = (again * 2).min(EVERY);
                    wait
                }
            };
            let _ = answered.send(());
            if ended.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    fn found(&mut self, address: SocketAddr) {
        if self.address == Some(address) {
            return;
        }
        if self.address.is_some() || !self.problem.is_empty() {
            let what = format!(
                "--destination {}: {} is {}",
                self.name,
                self.at.destination,
                address.ip()
            );
            (self.tell)(&Notice::info("interfaces", what));
        }
        self.address = Some(address);
        self.problem.clear();
        self.publish();
    }

    /// An address that was found once is used until there is another.
    fn not_found(&mut self, why: &str) {
        if self.address.is_some() || self.problem == why {
            return;
        }
        why.clone_into(&mut self.problem);
        let what = format!(
            "--destination {}: {}: its address is not known: {why}; it will be looked up again, and \
             nothing is sent to it until then",
            self.name, self.at.destination
        );
        (self.tell)(&Notice::warning(what));
        self.publish();
    }

    fn publish(&self) {
        let mut shared = self.desk.lock();
        let names = &mut shared.names;
        if let Some(address) = self.address {
            names.addresses.insert(self.name.clone(), address);
        }
        match self.problem.is_empty() {
            true => names.problems.remove(&self.name),
            false => names
                .problems
                .insert(self.name.clone(), self.problem.clone()),
        };
        drop(shared);
        self.supervisor.wake();
    }
}

/// An address of a destination: the one it had if it still has that, or one to which there is a way, if there is.
fn find(at: &NamedHost, known: Option<SocketAddr>) -> std::io::Result<SocketAddr> {
    let host = (at.host.as_str(), at.port);
    let all: Vec<SocketAddr> = host.to_socket_addrs()?.collect();
    let has_way = |to: &&SocketAddr| {
        let any: SocketAddr = match to {
            SocketAddr::V4(_) => ([0; 4], 0).into(),
            SocketAddr::V6(_) => ([0; 16], 0).into(),
        };
        UdpSocket::bind(any).is_ok_and(|socket| socket.connect(to).is_ok())
    };
    let usable: Vec<SocketAddr> = all.iter().filter(has_way).copied().collect();
    let candidates = if usable.is_empty() { all } else { usable };
    let same = known.filter(|known| candidates.contains(known));
    let found = same.or(candidates.first().copied());
    found.ok_or_else(|| std::io::Error::other("the name has no address"))
}
