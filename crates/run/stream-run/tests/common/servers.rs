//! Servers that have stripes, and a network to them that loses connections: with what was under way, with its answers, or
//! so that it arrives much later, when others use the stripe.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use strata_stream::Geometry;
use strata_stream::message::{Answer, Message, Request};
use strata_stream_run::{HostedSession, HostedStripe, StripeConnection, StripeLink, StripeServer};
use strata_testkit_disk::SimDisk;

use super::simulated::Draw;

/// What a connection has sent that has not arrived.
type Late = (HostedSession, VecDeque<Vec<u8>>);

struct World {
    draw: Draw,
    stripe: Arc<HostedStripe>,
    disk: SimDisk,
    /// Which process it is.
    process: u64,
    is_down: bool,
    /// One message in this number loses its connection; 0: none does.
    lost_in: u64,
    late: Vec<Late>,
    /// One answer in this number is a lie; 0: all are true.
    lies_in: u64,
}

/// A server. Clones share it.
#[derive(Clone)]
pub(crate) struct SimServer(Arc<Mutex<World>>);

/// Bytes for all stripes.
const ROOM: u64 = 1 << 40;

fn hosted(disk: &SimDisk) -> Arc<HostedStripe> {
    let name = "disk".parse().expect("a name");
    Arc::new(HostedStripe::simulated(&name, Arc::new(disk.clone()), ROOM))
}

impl SimServer {
    pub(crate) fn new(disk: &SimDisk, seed: u64) -> Self {
        Self(Arc::new(Mutex::new(World {
            draw: Draw(seed),
            stripe: hosted(disk),
            disk: disk.clone(),
            process: 0,
            is_down: false,
            lost_in: 0,
            late: Vec::new(),
            lies_in: 0,
        })))
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().expect("no step has failed")
    }

    pub(crate) fn shared(&self) -> Arc<dyn StripeServer> {
        Arc::new(self.clone())
    }

    /// kill -9, and started again.
    pub(crate) fn restart(&self) {
        let mut world = self.world();
        let late = std::mem::take(&mut world.late);
        world.process += 1;
        world.stripe = hosted(&world.disk);
        drop(world);
        drop(late);
    }

    /// All that was under way for long arrives.
    pub(crate) fn settle(&self) {
        let mut world = self.world();
        for (mut session, requests) in std::mem::take(&mut world.late) {
            for request in requests {
                drop(answered(&mut session, &request));
            }
        }
    }

    pub(crate) fn set_down(&self, is_down: bool) {
        self.world().is_down = is_down;
    }

    pub(crate) fn set_lost_in(&self, messages: u64) {
        self.world().lost_in = messages;
    }

    pub(crate) fn set_lies_in(&self, answers: u64) {
        self.world().lies_in = answers;
    }
}

impl World {
    /// Whether a message is to lose its connection.
    fn loses(&mut self) -> bool {
        self.lost_in > 0 && self.draw.below(self.lost_in) == 0
    }

    /// Another answer than this one, as a frame.
    fn lie(&mut self, answer: Answer<'_>) -> Vec<u8> {
        let drawn = self.draw.below(u64::MAX);
        let changed;
        let entries;
        let lie = match (answer, drawn % 4) {
            (_, 0) => Answer::Failed {
                is_full: drawn & 4 == 0,
                text: "a lie",
            },
            (Answer::Number(_), 1) => Answer::Number(drawn),
            (Answer::Number(_), _) => Answer::Number(drawn >> 62),
            (Answer::Bytes(bytes), 1) => Answer::Bytes(&bytes[..bytes.len() / 2]),
            (Answer::Bytes(bytes), _) => {
                let mut copy = bytes.to_vec();
                let place = self.draw.index(copy.len().max(1));
                copy[place.min(bytes.len())..].fill(7);
                changed = copy;
                Answer::Bytes(&changed)
            }
            (Answer::Headers { entries, .. }, 1) => {
                let next = u32::try_from(drawn >> 60).ok();
                Answer::Headers { next, entries }
            }
            (
                Answer::Headers {
                    entries: true_ones,
                    next,
                },
                _,
            ) => {
                let mut copy = true_ones.to_vec();
                copy.reverse();
                copy.extend_from_within(..copy.len().min(1));
                entries = copy;
                let entries = &entries;
                Answer::Headers { next, entries }
            }
            _ => Answer::Number(drawn),
        };
        frame(&Message::Answer(lie))
    }

    /// Some of what was under way for long arrives.
    fn deliver_late(&mut self) {
        while !self.late.is_empty() && self.draw.below(400) == 0 {
            let at = self.draw.index(self.late.len());
            let (session, requests) = &mut self.late[at];
            match requests.pop_front() {
                Some(request) => drop(answered(session, &request)),
                None => drop(self.late.swap_remove(at)),
            }
        }
    }
}

fn frame(message: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    message.emit(&mut out);
    out
}

/// What a server answers, as a frame.
fn answered(session: &mut HostedSession, request: &[u8]) -> Vec<u8> {
    let Ok(Message::Request(request)) = Message::parse(&request[4..]) else {
        panic!("it is a request");
    };
    frame(&Message::Answer(session.answer(&request).0))
}

fn lost() -> io::Error {
    io::Error::new(ErrorKind::ConnectionReset, "the connection is lost")
}

impl StripeServer for SimServer {
    fn connect(&self) -> io::Result<StripeConnection> {
        let mut world = self.world();
        world.deliver_late();
        if world.is_down || world.loses() {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        let session = world.stripe.session().map_err(io::Error::other)?;
        let Answer::There { id, sizes } = session.there() else {
            panic!("it says what there is");
        };
        let [directory_bytes, table_bytes, page_bytes] = sizes;
        let geometry = Geometry {
            directory_bytes,
            table_bytes,
            page_bytes,
        };
        let link = SimLink {
            server: self.clone(),
            process: world.process,
            session: Some(session),
            requests: VecDeque::new(),
            answers: VecDeque::new(),
        };
        Ok((Box::new(link), (id != 0).then_some((id, geometry))))
    }
}

struct SimLink {
    server: SimServer,
    process: u64,
    /// `None`: the connection is lost.
    session: Option<HostedSession>,
    /// On their way.
    requests: VecDeque<Vec<u8>>,
    answers: VecDeque<Vec<u8>>,
}

impl SimLink {
    /// The connection is lost; what was under way arrives late, or never.
    fn lose(&mut self, world: &mut World) {
        let requests = std::mem::take(&mut self.requests);
        let session = self.session.take();
        if let Some(session) = session
            && self.process == world.process
            && world.draw.below(2) == 0
        {
            world.late.push((session, requests));
        }
    }

    fn is_lost(&mut self, world: &mut World) -> bool {
        if world.is_down || self.process != world.process || world.loses() {
            self.lose(world);
        }
        self.session.is_none()
    }
}

impl Drop for SimLink {
    fn drop(&mut self) {
        let server = self.server.clone();
        // A step has failed if it is poisoned.
        if let Ok(mut world) = server.0.lock() {
            self.lose(&mut world);
        }
    }
}

impl StripeLink for SimLink {
    fn send(&mut self, request: &Request<'_>) -> io::Result<()> {
        let server = self.server.clone();
        let mut world = server.world();
        world.deliver_late();
        self.requests.push_back(frame(&Message::Request(*request)));
        match self.is_lost(&mut world) {
            true => Err(lost()),
            false => Ok(()),
        }
    }

    fn receive(&mut self, limit: Duration, take: &mut dyn FnMut(Answer<'_>)) -> io::Result<bool> {
        let server = self.server.clone();
        let mut world = server.world();
        world.deliver_late();
        if self.is_lost(&mut world) {
            return Err(lost());
        }
        // Some arrive before they are waited for.
        let wanted = match limit.is_zero() {
            true => world.draw.below(2),
            false => 1,
        };
        for _ in 0..wanted {
            let request = self.requests.pop_front();
            let session = self.session.as_mut().expect("it is not lost");
            self.answers
                .extend(request.map(|request| answered(session, &request)));
        }
        // The answer may be lost after the request was executed.
        if self.is_lost(&mut world) {
            return Err(lost());
        }
        let Some(answer) = self.answers.pop_front() else {
            assert!(
                limit.is_zero(),
                "nothing is under way that could be awaited"
            );
            return Ok(false);
        };
        let Ok(Message::Answer(said)) = Message::parse(&answer[4..]) else {
            panic!("it is an answer");
        };
        let lies_in = world.lies_in;
        if lies_in > 0 && world.draw.below(lies_in) == 0 {
            let lie = world.lie(said);
            let Ok(Message::Answer(lie)) = Message::parse(&lie[4..]) else {
                panic!("a lie is an answer too");
            };
            take(lie);
        } else {
            take(said);
        }
        Ok(true)
    }

    fn is_there(&mut self) -> bool {
        let server = self.server.clone();
        let mut world = server.world();
        !self.is_lost(&mut world)
    }
}
