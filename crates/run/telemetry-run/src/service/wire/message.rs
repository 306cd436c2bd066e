//! What a translator and a collector say to each other before RDMA packets go from one to the other,
//! and while they do: a line of JSON each, over TCP (`docs/formats/dta.md`, "Translator and collector").
//!
//! ```text
//! translator                              collector
//! hello, nonce             -->
//!                          <--  challenge, nonce
//! proof                    -->
//!                          <--  store: proof, its description if there is one
//! begin: description, QP   -->
//!                          <--  welcome: QP, region, ends of lists, keys with large counts
//! alive                    <->  alive, every second
//!                          <--  watched: whether immediate reports are wanted
//! turn: a generation       -->
//!                          <--  turned: it has begun
//!                          <--  faded: all counters were made smaller
//! end                      -->
//! ```

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use strata_role::RoleError;

use serde::{Deserialize, Serialize};
use strata_auth::secret::{PROOF_LEN, Secret};
use strata_sys::socket;
use strata_wire::Printable;

/// Of these messages.
pub(super) const VERSION: u32 = 5;
/// Bytes of a message before its sender has proved who it is.
pub(super) const FIRST_LEN_MAX: usize = 4 << 10;
/// Bytes of what a translator says after that: the description of a store.
pub(super) const BEGIN_LEN_MAX: usize = 1 << 20;
/// Bytes of any message: the ends of a million lists.
pub(super) const LEN_MAX: usize = 64 << 20;
/// Messages that are looked at before anything else is done: a peer that sends more waits.
pub(super) const MESSAGES_AT_ONCE: usize = 8;
/// How often each says that it is still there.
pub(super) const ALIVE_EVERY: Duration = Duration::from_secs(1);
/// A peer that is silent for this long is taken for gone.
pub(super) const SILENT_MAX: Duration = Duration::from_secs(5);
/// Bytes that are read at once.
const READ_LEN: usize = 16 << 10;

impl From<CollectorError> for RoleError {
    fn from(error: CollectorError) -> Self {
        Self::own(error)
    }
}

/// Why a connection between translator and collector fails.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    /// The collector cannot be connected to.
    #[error("collector {peer}: cannot connect: is `strata telemetry collect` running there?")]
    Unreachable {
        /// The collector.
        peer: String,
        /// What the operating system says.
        source: io::Error,
    },
    /// The connection is broken.
    #[error("{peer}: the connection broke")]
    Broken {
        /// The other end.
        peer: String,
        /// What the operating system says.
        source: io::Error,
    },
    /// The other end has closed the connection.
    #[error("{peer}: closed the connection")]
    Closed {
        /// The other end.
        peer: String,
    },
    /// No message arrived in time.
    #[error("{peer}: no answer within {} s", .limit.as_secs())]
    Silent {
        /// The other end.
        peer: String,
        /// How long this end waited.
        limit: Duration,
    },
    /// The received bytes are not a message, or not one that is allowed at this point.
    #[error("{peer}: unexpected message: {}; do both ends run the same version of Strata?", Printable(.problem))]
    Protocol {
        /// The other end.
        peer: String,
        /// What was wrong.
        problem: String,
    },
    /// The other end refuses.
    #[error("{peer} refuses this translator: {}", Printable(.reason))]
    Refused {
        /// The other end.
        peer: String,
        /// Why.
        reason: String,
    },
    /// Another translator is connected; it may end soon.
    #[error("{peer}: this collector is in use already: {}", Printable(.reason))]
    Busy {
        /// The collector.
        peer: String,
        /// By whom.
        reason: String,
    },
    /// The other end does not know the secret.
    #[error(
        "{peer}: does not know the secret in the file of --secret-file, so no reports are sent to it"
    )]
    Impostor {
        /// The other end.
        peer: String,
    },
}

impl CollectorError {
    /// Whether trying again later may help, without anybody changing an option.
    pub(crate) fn passes(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::Broken { .. }
            | Self::Closed { .. }
            | Self::Silent { .. }
            | Self::Busy { .. } => true,
            Self::Protocol { .. } | Self::Refused { .. } | Self::Impostor { .. } => false,
        }
    }
}

/// A translator's first message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    /// Random, drawn when the translator started: the same after reconnecting.
    pub(super) instance: u64,
    /// Random.
    pub(super) nonce: [u64; 2],
    /// Whether it wants the collector to prove that it knows the secret.
    pub(super) secret: bool,
}

/// The collector's answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Challenge {
    pub(super) version: u32,
    /// Random.
    pub(super) nonce: [u64; 2],
    /// Whether the translator must prove that it knows the secret.
    pub(super) secret: bool,
}

/// What the translator is going to write, and from where.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Begin {
    /// The description of the store (`telemetry.json`), with the lists of this collector and its
    /// place among those of the translator.
    pub(super) manifest: String,
    /// The translator's queue pair.
    pub(super) qpn: u32,
    /// Sequence number of its first packet.
    pub(super) psn: u32,
    /// The UDP port that takes answers.
    pub(super) port: u16,
    /// The largest RDMA MTU of its path.
    pub(super) mtu: usize,
}

/// Where it may write.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Welcome {
    /// The collector's queue pair.
    pub(super) qpn: u32,
    /// Remote key of the memory.
    pub(super) rkey: u32,
    /// Virtual address of its first byte.
    pub(super) va: u64,
    /// RDMA MTU.
    pub(super) mtu: usize,
    /// UDP port of RoCEv2.
    pub(super) port: u16,
    /// Atomic operations that may be in flight.
    pub(super) atomics: usize,
    /// Lists that are not empty: number, batches, entries.
    pub(super) ends: Vec<(u32, u64, u64)>,
    /// Remote key of the ring of immediate reports, at virtual address 0.
    pub(super) events: u32,
    /// The table of keys with large counts: entry, how often it was written, key in hexadecimal
    /// digits, count.
    pub(super) largest: Vec<(usize, u64, String, u64)>,
    /// The largest count that any other key may have, if that is known.
    pub(super) others: Option<u64>,
    /// The dictionary of large values that hops report, in order.
    pub(super) values: Vec<u32>,
    /// The number of the youngest generation, and when it began in ns since 1970, if the store has
    /// generations; 0 if it has none yet. The table of keys above is that of this one.
    pub(super) generation: Option<(u64, u64)>,
}

/// A message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Message {
    Hello(Hello),
    Challenge(Challenge),
    /// Hexadecimal digits; none without a secret.
    Proof(String),
    Store {
        proof: String,
        manifest: Option<String>,
    },
    Begin(Begin),
    Welcome(Welcome),
    Alive,
    /// Whether somebody at the collector wants immediate reports.
    Watched(bool),
    /// The generation of this number is to begin, or to be there: translator.
    Turn {
        number: u64,
        begun_ns: u64,
    },
    /// It is there, and empty if it was not there before: collector.
    Turned {
        number: u64,
    },
    /// All counters were set to 0, or halved.
    Faded {
        halved: bool,
    },
    End,
    /// No, for this reason.
    Refused(String),
    /// Not now, for this reason.
    Busy(String),
}

/// The end that proves that it knows the secret. The proof of one is not that of the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Prover {
    Translator,
    Collector,
}

/// What a proof is made of: the numbers that both ends have drawn.
fn text(prover: Prover, hello: &Hello, challenge: &Challenge) -> Vec<u8> {
    let mut text = match prover {
        Prover::Translator => b"strata telemetry: translator\0".to_vec(),
        Prover::Collector => b"strata telemetry: collector \0".to_vec(),
    };
    text.extend(hello.instance.to_le_bytes());
    for word in hello.nonce.iter().chain(&challenge.nonce) {
        text.extend(word.to_le_bytes());
    }
    text
}

/// The proof that this end knows the secret, if it has one.
pub(super) fn proof(
    secret: Option<&Secret>,
    prover: Prover,
    hello: &Hello,
    challenge: &Challenge,
) -> String {
    let proof = secret.map(|secret| secret.sign(&text(prover, hello, challenge)));
    let digits = |proof: [u8; PROOF_LEN]| proof.map(|byte| format!("{byte:02x}")).concat();
    proof.map_or_else(String::new, digits)
}

/// Whether the other end knows the secret.
pub(super) fn is_proof(
    secret: &Secret,
    prover: Prover,
    hello: &Hello,
    challenge: &Challenge,
    digits: &str,
) -> bool {
    let bytes = digits.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    });
    let bytes: Option<Vec<u8>> = bytes.take(PROOF_LEN + 1).collect();
    bytes.is_some_and(|bytes| secret.is_signed(&text(prover, hello, challenge), &bytes))
}

/// Two random words.
pub(super) fn nonce() -> io::Result<[u64; 2]> {
    let word = || getrandom::u64().map_err(io::Error::other);
    Ok([word()?, word()?])
}

/// A connection that carries messages; it does not block.
#[derive(Debug)]
pub(super) struct Lines {
    stream: TcpStream,
    peer: String,
    received: Vec<u8>,
    /// Bytes of it that have no line end.
    scanned: usize,
    unsent: Vec<u8>,
    len_max: usize,
    closed: bool,
    heard: Instant,
}

impl Lines {
    pub(super) fn new(stream: TcpStream, peer: String, len_max: usize) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            peer,
            received: Vec::new(),
            scanned: 0,
            unsent: Vec::new(),
            len_max,
            closed: false,
            heard: Instant::now(),
        })
    }

    pub(super) fn peer(&self) -> &str {
        &self.peer
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// From now on, messages may be so long.
    pub(super) fn set_len_max(&mut self, len_max: usize) {
        self.len_max = len_max;
    }

    /// Nothing could be heard while something else was done.
    pub(super) fn listen_again(&mut self) {
        self.heard = Instant::now();
    }

    /// When something came last.
    pub(super) fn heard(&self) -> Instant {
        self.heard
    }

    fn broken(&self, source: io::Error) -> CollectorError {
        CollectorError::Broken {
            peer: self.peer.clone(),
            source,
        }
    }

    pub(super) fn not_understood(&self, problem: &str) -> CollectorError {
        CollectorError::Protocol {
            peer: self.peer.clone(),
            problem: problem.to_owned(),
        }
    }

    /// Sends a message as far as possible without waiting; the rest with the next call of this or
    /// [`Lines::poll`].
    pub(super) fn send(&mut self, message: &Message) -> Result<(), CollectorError> {
        let line = serde_json::to_string(message).expect("a message is plain data");
        self.unsent.extend(line.as_bytes());
        self.unsent.push(b'\n');
        if self.unsent.len() > 2 * LEN_MAX {
            return Err(self.broken(ErrorKind::TimedOut.into()));
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), CollectorError> {
        let mut sent = 0;
        let result = loop {
            if sent == self.unsent.len() {
                break Ok(());
            }
            match self.stream.write(&self.unsent[sent..]) {
                Ok(len) => sent += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Err(self.broken(error)),
            }
        };
        self.unsent.drain(..sent);
        result
    }

    /// The next message, if it has arrived. No more is read than it needs, so that little is moved
    /// however many messages come at once.
    pub(super) fn poll(&mut self) -> Result<Option<Message>, CollectorError> {
        // What the other end has said before it closed is the better explanation.
        let flushed = self.flush();
        let mut buffer = [0; READ_LEN];
        loop {
            if let Some(message) = self.next()? {
                return Ok(Some(message));
            }
            if self.closed {
                return Err(CollectorError::Closed {
                    peer: self.peer.clone(),
                });
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => self.closed = true,
                Ok(len) => {
                    self.received.extend_from_slice(&buffer[..len]);
                    self.heard = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return flushed.map(|()| None);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(error)),
            }
        }
    }

    fn next(&mut self) -> Result<Option<Message>, CollectorError> {
        let rest = &self.received[self.scanned..];
        let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
            self.scanned = self.received.len();
            return match self.received.len() > self.len_max {
                true => Err(self.not_understood("a message that is too long")),
                false => Ok(None),
            };
        };
        let end = self.scanned + end;
        let message = serde_json::from_slice(&self.received[..end]);
        self.received.drain(..=end);
        self.scanned = 0;
        match message {
            Ok(message) => Ok(Some(message)),
            Err(error) => Err(self.not_understood(&error.to_string())),
        }
    }

    /// The next message; an error without one in time. "Alive" does not count.
    pub(super) fn wait(&mut self, limit: Duration) -> Result<Message, CollectorError> {
        let start = Instant::now();
        loop {
            let is_alive = match self.poll()? {
                Some(Message::Alive) => true,
                Some(message) => return Ok(message),
                None => false,
            };
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                let peer = self.peer.clone();
                return Err(CollectorError::Silent { peer, limit });
            }
            if !is_alive {
                self.wait_ready(left)?;
            }
        }
    }

    /// Waits so long until something comes, or a tenth of a second while something is to be sent.
    pub(super) fn wait_ready(&self, limit: Duration) -> Result<(), CollectorError> {
        let limit = match self.unsent.is_empty() {
            true => limit,
            false => limit.min(Duration::from_millis(100)),
        };
        let ready = socket::wait(self.stream.as_fd(), false, limit);
        ready.map(drop).map_err(|error| self.broken(error))
    }
}

impl AsFd for Lines {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn said() -> (Hello, Challenge) {
        let hello = Hello {
            version: VERSION,
            instance: 9,
            nonce: [1, 2],
            secret: true,
        };
        let challenge = Challenge {
            version: VERSION,
            nonce: [3, 4],
            secret: true,
        };
        (hello, challenge)
    }

    #[test]
    fn a_proof_is_good_for_its_connection_its_end_and_its_secret_only() {
        let (hello, challenge) = said();
        let secret = Secret::new(b"a secret of some length");
        let digits = proof(Some(&secret), Prover::Translator, &hello, &challenge);
        let is = |secret: &Secret, prover, hello: &Hello, digits: &str| {
            is_proof(secret, prover, hello, &challenge, digits)
        };
        assert!(is(&secret, Prover::Translator, &hello, &digits));
        assert!(!is(&secret, Prover::Collector, &hello, &digits));
        let other = Secret::new(b"another secret of some length");
        assert!(!is(&other, Prover::Translator, &hello, &digits));
        let mut again = hello.clone();
        again.nonce[1] += 1;
        assert!(!is(&secret, Prover::Translator, &again, &digits));
        for wrong in [
            "",
            "zz",
            &digits[2..],
            &format!("{digits}00"),
            "\u{e4}\u{e4}",
        ] {
            assert!(!is(&secret, Prover::Translator, &hello, wrong), "{wrong}");
        }
        assert_eq!(proof(None, Prover::Collector, &hello, &challenge), "");
    }

    fn pair(len_max: usize) -> (Lines, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        (Lines::new(stream, "peer".into(), len_max).unwrap(), other)
    }

    #[test]
    fn messages_are_lines_whatever_pieces_they_come_in() {
        let (mut lines, mut other) = pair(200);
        let limit = Duration::from_secs(10);
        let (hello, _) = said();
        let text = serde_json::to_string(&Message::Hello(hello.clone())).unwrap();
        let (front, back) = text.split_at(text.len() / 2);
        other
            .write_all(format!("\"alive\"\n{front}").as_bytes())
            .unwrap();
        assert!(matches!(
            lines.wait(Duration::from_millis(20)),
            Err(CollectorError::Silent { .. })
        ));
        other
            .write_all(format!("{back}\n\"end\"\n").as_bytes())
            .unwrap();
        assert_eq!(lines.wait(limit).unwrap(), Message::Hello(hello));
        assert_eq!(lines.wait(limit).unwrap(), Message::End);
        drop(other);
        let closed = lines.wait(limit).unwrap_err();
        assert!(matches!(closed, CollectorError::Closed { .. }) && closed.passes());
    }

    #[test]
    fn signs_of_life_do_not_extend_the_wait_for_a_message() {
        let (mut lines, mut other) = pair(200);
        let flood =
            std::thread::spawn(
                move || while other.write_all(&b"\"alive\"\n".repeat(999)).is_ok() {},
            );
        for limit in [Duration::ZERO, Duration::from_millis(20)] {
            let silent = lines.wait(limit).unwrap_err();
            assert!(matches!(silent, CollectorError::Silent { .. }), "{silent}");
        }
        assert!(
            lines.received.len() <= READ_LEN,
            "no more than what is read at once"
        );
        drop(lines);
        flood.join().unwrap();
    }

    #[test]
    fn what_is_no_message_or_too_long_is_refused() {
        for wrong in [
            "\n",
            "{}\n",
            "\"hello\"\n",
            "{\"begin\":{\"qpn\":-1}}\n",
            &"x".repeat(300),
        ] {
            let (mut lines, mut other) = pair(200);
            other.write_all(wrong.as_bytes()).unwrap();
            let refused = lines.wait(Duration::from_secs(10)).unwrap_err();
            assert!(
                matches!(refused, CollectorError::Protocol { .. }),
                "{wrong}: {refused}"
            );
            assert!(!refused.passes());
        }
    }
}
