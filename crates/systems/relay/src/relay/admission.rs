//! Admits switches: connections from the first byte until a switch has sent all that a session
//! needs. One thread serves all of them, so that none occupies a thread, and what they hold is
//! bounded in number and bytes.
//!
//! [`Entrance`] decides what each may send, and the answers.
//!
//! When there are too many, one that has sent nothing is closed: of the address that has most of
//! them, the oldest. One that has authenticated goes last, and before it one from an address that a
//! switch was admitted from before. A real switch is through within milliseconds, so what is closed
//! is idle.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::channel::Channel;
use crate::error::RelayError;
use crate::protocol::FIRST_LEN_MAX;
use crate::protocol::relay::{Beginning, Entrance, Gate};
use crate::random::nonce;

use super::Inner;

/// Maximum number of connections without a session, from all sources.
pub(super) const PENDING_MAX: usize = 64;
/// The same from one address.
pub(super) const PENDING_PER_SOURCE: usize = 32;
/// Maximum bytes that they have sent, in total.
const PENDING_BYTES_MAX: usize = 64 << 20;
/// Maximum number of addresses of admitted switches that are remembered.
const KNOWN_MAX: usize = 256;
/// How often strangers are reported.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// Connections accepted before the existing ones get their turn.
const ACCEPT_AT_ONCE: usize = 8;

/// A switch that may start a session.
pub(super) struct Admitted {
    pub(super) channel: Channel,
    source: IpAddr,
    pub(super) beginning: Beginning,
}

struct Pending {
    channel: Channel,
    source: IpAddr,
    entrance: Entrance,
}

impl Pending {
    fn held_bytes(&self) -> usize {
        self.channel.held_bytes() + self.entrance.held_bytes()
    }

    /// Sends pending messages, and sets the limit for the next one.
    fn say(&mut self) -> Result<(), RelayError> {
        self.channel.set_limit(self.entrance.body_len_max());
        for message in self.entrance.messages() {
            self.channel.send(&message)?;
        }
        Ok(())
    }
}

/// What happens to a pending connection.
#[allow(
    clippy::large_enum_variant,
    reason = "made once per turn, and moved on"
)]
enum Next {
    Stays(Pending),
    Begins(Box<Admitted>),
}

pub(super) struct Admission<'a> {
    inner: &'a Inner,
    pending: Vec<Pending>,
    known: VecDeque<IpAddr>,
    /// Connections that ended without a session since the last report, and the last reason.
    strangers: u64,
    last_stranger: String,
    reported: Option<Instant>,
    started: Instant,
}

impl<'a> Admission<'a> {
    pub(super) fn new(inner: &'a Inner) -> Self {
        Self {
            inner,
            pending: Vec::new(),
            known: VecDeque::new(),
            strangers: 0,
            last_stranger: String::new(),
            reported: None,
            started: Instant::now(),
        }
    }

    /// The time for the protocol.
    fn now(&self) -> u64 {
        let since = self.started.elapsed().as_nanos();
        u64::try_from(since).expect("no relay runs for 584 years")
    }

    /// Waits up to `limit` for something to arrive.
    pub(super) fn wait(&self, listener: &TcpListener, limit: Duration) -> io::Result<()> {
        let pending = self.pending.iter().map(|p| p.channel.stream().as_fd());
        let all = pending.chain([listener.as_fd()]);
        let mut all: Vec<PollFd<'_>> = all
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
        match poll(&mut all, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Accepts waiting connections; an error concerns the process or the machine.
    pub(super) fn accept(&mut self, listener: &TcpListener) -> io::Result<()> {
        for _ in 0..ACCEPT_AT_ONCE {
            match listener.accept() {
                Ok((stream, peer)) => self.add(stream, peer.ip().to_canonical()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // The connection was closed before.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn add(&mut self, stream: TcpStream, source: IpAddr) {
        let of_source = self.pending.iter().filter(|p| p.source == source).count();
        if of_source >= PENDING_PER_SOURCE || self.pending.len() >= PENDING_MAX {
            let only = (of_source >= PENDING_PER_SOURCE).then_some(source);
            self.remove_one(only);
        }
        match self.opened(stream) {
            Ok(channel) => {
                let entrance = Entrance::new(channel.peer().to_owned(), self.now());
                self.pending.push(Pending {
                    channel,
                    source,
                    entrance,
                });
            }
            Err(error) => self.note(source, &error.to_string()),
        }
    }

    fn opened(&self, stream: TcpStream) -> io::Result<Channel> {
        let tls = self.inner.options.tls.as_ref();
        let tls = tls.map(|tls| tls.connection()).transpose();
        let tls = tls.map_err(io::Error::other)?;
        let mut channel = Channel::new(stream, tls.map(rustls::Connection::Server))?;
        channel.set_limit(FIRST_LEN_MAX);
        Ok(channel)
    }

    /// Closes a pending connection to make room.
    fn remove_one(&mut self, of: Option<IpAddr>) {
        let count = |source: IpAddr| self.pending.iter().filter(|p| p.source == source).count();
        let candidates = self.pending.iter().enumerate();
        let candidates = candidates.filter(|(_, p)| of.is_none_or(|only| only == p.source));
        // They are in order of age, and the first of equals is taken.
        let victim = candidates.min_by_key(|(_, p)| {
            let of_source = usize::MAX - count(p.source);
            let is_known = self.known.contains(&p.source);
            (
                p.entrance.is_proved(),
                is_known,
                p.entrance.has_spoken(),
                of_source,
            )
        });
        if let Some((index, _)) = victim {
            let gone = self.pending.remove(index);
            self.note(gone.source, "closed to make room for others");
        }
    }

    /// Advances the connections, and returns those that may start a session.
    pub(super) fn advance(&mut self) -> Vec<Admitted> {
        let mut admitted = Vec::new();
        let mut stay = Vec::new();
        for pending in std::mem::take(&mut self.pending) {
            let source = pending.source;
            match self.step(pending) {
                Ok(Next::Stays(pending)) => stay.push(pending),
                Ok(Next::Begins(begins)) => {
                    self.remember(source);
                    admitted.push(*begins);
                }
                Err(error) => self.note(source, &error.to_string()),
            }
        }
        self.pending = stay;
        while self.pending.iter().map(Pending::held_bytes).sum::<usize>() > PENDING_BYTES_MAX {
            self.remove_one(None);
        }
        self.report();
        admitted
    }

    /// Advances one connection.
    fn step(&self, mut pending: Pending) -> Result<Next, RelayError> {
        let now = self.now();
        let gate = Gate {
            secret: self.inner.options.secret.as_ref(),
            has_tls: self.inner.options.tls.is_some(),
        };
        loop {
            let message = match pending.channel.poll() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(error) => {
                    return Err(match pending.entrance.refused() {
                        Some(reason) => RelayError::Refused(reason.to_owned()),
                        None => error,
                    });
                }
            };
            let begins = pending.entrance.receive(message, gate, nonce()?, now)?;
            if let Some(beginning) = begins {
                let admitted = Admitted {
                    channel: pending.channel,
                    source: pending.source,
                    beginning,
                };
                return Ok(Next::Begins(Box::new(admitted)));
            }
            pending.say()?;
        }
        pending.entrance.tick(now)?;
        Ok(Next::Stays(pending))
    }

    /// Refuses a switch since all sessions are taken.
    pub(super) fn turn_away(&mut self, admitted: Admitted) {
        let most = self.inner.options.switches_max;
        let reason = format!("it serves {most} connections of switches, the maximum (--switches)");
        let peer = admitted.channel.peer().to_owned();
        let mut pending = Pending {
            entrance: Entrance::turned_away(peer, reason, self.now()),
            channel: admitted.channel,
            source: admitted.source,
        };
        if pending.say().is_ok() {
            self.pending.push(pending);
        }
    }

    fn remember(&mut self, source: IpAddr) {
        self.known.retain(|known| *known != source);
        self.known.push_back(source);
        if self.known.len() > KNOWN_MAX {
            self.known.pop_front();
        }
    }

    fn note(&mut self, source: IpAddr, why: &str) {
        self.strangers += 1;
        self.last_stranger = format!("{source}: {why}");
    }

    /// Reports how many came in vain, not each of them: their number is not ours to control.
    fn report(&mut self) {
        let due = self
            .reported
            .is_none_or(|last| last.elapsed() >= REPORT_EVERY);
        if self.strangers == 0 || !due {
            return;
        }
        self.reported = Some(Instant::now());
        let (count, last) = (self.strangers, &self.last_stranger);
        (self.inner.report)(&match count {
            1 => format!("a connection ended before it was admitted: {last}"),
            _ => format!("{count} connections ended before they were admitted; the last: {last}"),
        });
        self.strangers = 0;
    }
}
