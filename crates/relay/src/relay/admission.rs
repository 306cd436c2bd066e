//! Who is let in: connections from the first byte until a switch has said all that a session
//! needs. One thread serves all of them, so that none takes a thread, and what they hold is
//! bounded in number and bytes.
//!
//! ```text
//! hello -> challenge -> proof (with a secret) -> model, beginning -> session
//! ```
//!
//! When there are too many, one goes that has said nothing, of the address that has most of
//! them, and of these the oldest. One that has proved who it is goes last, and before it one
//! that comes from where a switch was let in before. A real switch is through within
//! milliseconds, so what goes is idle.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::control::{
    BODY_LEN_MAX, Begin, Challenge, Channel, FIRST_LEN_MAX, Hello, Message, nonce,
};
use crate::error::RelayError;
use crate::link::unexpected;
use crate::secret::Prover;

use super::Inner;

/// Connections that have not begun a session, of all sources.
pub(super) const PENDING_MAX: usize = 64;
/// And of one address.
pub(super) const PENDING_PER_SOURCE: usize = 32;
/// Bytes that they have sent, all together.
const PENDING_BYTES_MAX: usize = 64 << 20;
/// How long it may take until a session begins, in all.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// How long who was refused may take to read why.
const LEAVE_LIMIT: Duration = Duration::from_millis(200);
/// Addresses from which switches were let in that are remembered.
const KNOWN_MAX: usize = 256;
/// How often strangers are reported.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// Connections that are accepted before those that are there get their turn.
const ACCEPT_AT_ONCE: usize = 8;

/// A switch that may begin a session.
pub(super) struct Admitted {
    pub(super) channel: Channel,
    source: IpAddr,
    pub(super) hello: Hello,
    pub(super) begin: Begin,
    pub(super) model: Vec<u8>,
}

enum Stage {
    /// Nothing has come.
    Hello,
    /// It is to prove that it knows the secret.
    Proof(Hello, Challenge),
    /// It is to say what it records.
    Begin(Hello, Vec<u8>),
    /// It was refused.
    Leaving,
}

struct Pending {
    channel: Channel,
    source: IpAddr,
    stage: Stage,
    ends: Instant,
    /// It has a certificate, or knows the secret.
    is_proved: bool,
    /// Why, if it was.
    refused: Option<String>,
}

impl Pending {
    fn held_bytes(&self) -> usize {
        let model = match &self.stage {
            Stage::Begin(_, model) => model.capacity(),
            _ => 0,
        };
        self.channel.held_bytes() + model
    }
}

/// What becomes of a pending connection.
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
    /// Connections that ended without a session since the last report, and why the last did.
    strangers: u64,
    last_stranger: String,
    reported: Option<Instant>,
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
        }
    }

    /// Waits until something comes, for so long.
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

    /// Takes connections that have come; an error is one of the process or the machine.
    pub(super) fn accept(&mut self, listener: &TcpListener) -> io::Result<()> {
        for _ in 0..ACCEPT_AT_ONCE {
            match listener.accept() {
                Ok((stream, peer)) => self.add(stream, peer.ip().to_canonical()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // Of a connection that went away before.
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
            Ok(channel) => self.pending.push(Pending {
                channel,
                source,
                stage: Stage::Hello,
                ends: Instant::now() + HANDSHAKE_LIMIT,
                is_proved: false,
                refused: None,
            }),
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

    /// Lets one go that waits, to make room.
    fn remove_one(&mut self, of: Option<IpAddr>) {
        let count = |source: IpAddr| self.pending.iter().filter(|p| p.source == source).count();
        let candidates = self.pending.iter().enumerate();
        let candidates = candidates.filter(|(_, p)| of.is_none_or(|only| only == p.source));
        // They stand in the order of their age, and the first of equals is taken.
        let victim = candidates.min_by_key(|(_, p)| {
            let of_source = usize::MAX - count(p.source);
            let is_known = self.known.contains(&p.source);
            (
                p.is_proved,
                is_known,
                !matches!(p.stage, Stage::Hello),
                of_source,
            )
        });
        if let Some((index, _)) = victim {
            let gone = self.pending.remove(index);
            self.note(gone.source, "made room for others");
        }
    }

    /// Lets connections go on, and gives those that may begin a session.
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

    /// What a connection does now.
    fn step(&self, mut pending: Pending) -> Result<Next, RelayError> {
        loop {
            let message = match pending.channel.poll() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(error) => {
                    return Err(match pending.refused {
                        Some(reason) => RelayError::Refused(reason),
                        None => error,
                    });
                }
            };
            let stage = std::mem::replace(&mut pending.stage, Stage::Leaving);
            pending.stage = match (stage, message) {
                (Stage::Leaving, _) => Stage::Leaving,
                (Stage::Hello, Message::Hello(hello)) => self.hello(&mut pending, *hello)?,
                (Stage::Proof(hello, challenge), Message::Proof(proof)) => {
                    self.proof(&mut pending, hello, &challenge, &proof)?
                }
                (Stage::Begin(hello, _), Message::Model(model)) => Stage::Begin(hello, model),
                (Stage::Begin(hello, model), Message::Begin(begin)) => match begin.check() {
                    Err(problem) => Self::refuse(&mut pending, problem)?,
                    Ok(()) => {
                        let admitted = Admitted {
                            channel: pending.channel,
                            source: pending.source,
                            hello,
                            begin: *begin,
                            model,
                        };
                        return Ok(Next::Begins(Box::new(admitted)));
                    }
                },
                (_, other) => {
                    return Err(RelayError::Protocol {
                        peer: pending.channel.peer().to_owned(),
                        problem: unexpected(&other),
                    });
                }
            };
        }
        if Instant::now() < pending.ends {
            return Ok(Next::Stays(pending));
        }
        let why = pending.refused;
        let late = || String::from("it did not say in time who it is");
        Err(RelayError::Refused(why.unwrap_or_else(late)))
    }

    fn hello(&self, pending: &mut Pending, hello: Hello) -> Result<Stage, RelayError> {
        let secret = self.inner.options.secret.is_some();
        // Whose certificate is not right does not get so far.
        pending.is_proved = self.inner.options.tls.is_some();
        if let Err(problem) = hello.check() {
            return Self::refuse(pending, problem);
        }
        if secret && !hello.secret {
            let problem = "it wants a shared secret: give the switch --secret-file, with what \
                           the relay's file holds";
            return Self::refuse(pending, problem.into());
        }
        let challenge = Challenge {
            nonce: nonce()?,
            secret,
        };
        let message = Message::Challenge(challenge.clone());
        pending.channel.send(&message)?;
        Ok(match secret {
            true => Stage::Proof(hello, challenge),
            false => Self::beginning(pending, hello),
        })
    }

    fn proof(
        &self,
        pending: &mut Pending,
        hello: Hello,
        challenge: &Challenge,
        proof: &[u8],
    ) -> Result<Stage, RelayError> {
        let secret = self.inner.options.secret.as_ref();
        let known = secret.filter(|s| s.is_proof(Prover::Switch, &hello, challenge, proof));
        let Some(secret) = known else {
            let problem = "the shared secrets differ: the files of --secret-file must hold the \
                           same at both ends";
            return Self::refuse(pending, problem.into());
        };
        pending.is_proved = true;
        let ours = secret.proof(Prover::Relay, &hello, challenge);
        pending.channel.send(&Message::Proof(ours))?;
        Ok(Self::beginning(pending, hello))
    }

    /// It is who it may be: what it says now may be large.
    fn beginning(pending: &mut Pending, hello: Hello) -> Stage {
        pending.channel.set_limit(BODY_LEN_MAX);
        Stage::Begin(hello, Vec::new())
    }

    /// Says why not; the connection is closed once that was read.
    fn refuse(pending: &mut Pending, reason: String) -> Result<Stage, RelayError> {
        pending.channel.set_limit(FIRST_LEN_MAX);
        pending.ends = Instant::now() + LEAVE_LIMIT;
        let said = Message::Refused(reason.clone());
        pending.refused = Some(reason);
        pending.channel.send(&said)?;
        Ok(Stage::Leaving)
    }

    /// A switch that is let in no further, since all sessions are taken.
    pub(super) fn turn_away(&mut self, admitted: Admitted) {
        let most = self.inner.options.switches_max;
        let reason = format!("it serves {most} connections of switches, and no more (--switches)");
        let source = admitted.source;
        let mut pending = Pending {
            channel: admitted.channel,
            source,
            stage: Stage::Leaving,
            ends: Instant::now(),
            is_proved: false,
            refused: None,
        };
        if Self::refuse(&mut pending, reason).is_ok() {
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

    /// Says how many came in vain, not about each: their number is not ours.
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
            1 => format!("a connection ended before it was let in: {last}"),
            _ => format!("{count} connections ended before they were let in; the last: {last}"),
        });
        self.strangers = 0;
    }
}
