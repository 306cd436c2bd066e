//! How a switch is admitted: from its first message until it has sent all that a session needs.
//!
//! ```text
//! hello -> challenge -> proof (with a secret) -> model, begin -> session
//! ```
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use strata_auth::secret::Secret;

use crate::error::RelayError;
use crate::protocol::proof::Prover;
use crate::protocol::{
    BODY_LEN_MAX, Begin, Challenge, FIRST_LEN_MAX, Hello, MS_NS, Message, SECOND_NS,
};

/// How long it may take until a session starts, in total.
const HANDSHAKE_LIMIT_NS: u64 = 5 * SECOND_NS;
/// How long a refused switch may take to read why.
const LEAVE_LIMIT_NS: u64 = 200 * MS_NS;

/// The conditions for admitting a switch.
#[derive(Clone, Copy, Debug)]
pub struct Gate<'a> {
    /// The secret that a switch must prove to know.
    pub secret: Option<&'a Secret>,
    /// Whether it has already shown a certificate.
    pub has_tls: bool,
}

#[derive(Debug)]
enum Stage {
    /// Nothing has arrived.
    Hello,
    /// It must prove that it knows the secret.
    Proof(Hello, Challenge),
    /// It must describe what it records.
    Begin(Hello, Vec<u8>),
    /// It was refused.
    Leaving,
}

/// What a switch that may start a session has sent.
#[derive(Debug)]
pub struct Beginning {
    /// Its identity.
    pub hello: Hello,
    /// What it records.
    pub begin: Begin,
    /// The contents of the model file.
    pub model: Vec<u8>,
}

/// A switch not yet admitted.
#[derive(Debug)]
pub struct Entrance {
    peer: String,
    stage: Stage,
    ends_ns: u64,
    is_proved: bool,
    /// Why, if it was refused.
    refused: Option<String>,
    out: Vec<Message>,
}

impl Entrance {
    /// A switch that has just connected, as errors name it.
    #[must_use]
    pub fn new(peer: String, now_ns: u64) -> Self {
        Self {
            peer,
            stage: Stage::Hello,
            ends_ns: now_ns.saturating_add(HANDSHAKE_LIMIT_NS),
            is_proved: false,
            refused: None,
            out: Vec::new(),
        }
    }

    /// A switch that is refused, even if it is genuine.
    #[must_use]
    pub fn turned_away(peer: String, reason: String, now_ns: u64) -> Self {
        let mut entrance = Self::new(peer, now_ns);
        entrance.stage = entrance.refuse(reason, now_ns);
        entrance
    }

    /// Messages to be sent, in order.
    pub fn messages(&mut self) -> std::vec::Drain<'_, Message> {
        self.out.drain(..)
    }

    /// Whether it has a certificate, or knows the secret.
    #[must_use]
    pub fn is_proved(&self) -> bool {
        self.is_proved
    }

    /// Whether it has sent anything.
    #[must_use]
    pub fn has_spoken(&self) -> bool {
        !matches!(self.stage, Stage::Hello)
    }

    /// Why it was refused, if it was.
    #[must_use]
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// The longest body currently accepted.
    #[must_use]
    pub fn body_len_max(&self) -> usize {
        match self.stage {
            Stage::Begin(..) => BODY_LEN_MAX,
            _ => FIRST_LEN_MAX,
        }
    }

    /// Bytes buffered from it.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        match &self.stage {
            Stage::Begin(_, model) => model.capacity(),
            _ => 0,
        }
    }

    /// Processes a message, answering a hello with these random numbers; returns what it records
    /// once it may start.
    ///
    /// # Errors
    ///
    /// If the message is not allowed: the connection is to be closed.
    pub fn receive(
        &mut self,
        message: Message,
        gate: Gate<'_>,
        nonce: [u64; 4],
        now_ns: u64,
    ) -> Result<Option<Beginning>, RelayError> {
        let stage = std::mem::replace(&mut self.stage, Stage::Leaving);
        self.stage = match (stage, message) {
            (Stage::Leaving, _) => Stage::Leaving,
            (Stage::Hello, Message::Hello(hello)) => self.hello(*hello, gate, nonce, now_ns),
            (Stage::Proof(hello, challenge), Message::Proof(proof)) => {
                self.proof(hello, &challenge, &proof, gate, now_ns)
            }
            (Stage::Begin(hello, _), Message::Model(model)) => Stage::Begin(hello, model),
            (Stage::Begin(hello, model), Message::Begin(begin)) => match begin.check() {
                Err(problem) => self.refuse(problem, now_ns),
                Ok(()) => {
                    let begin = *begin;
                    return Ok(Some(Beginning {
                        hello,
                        begin,
                        model,
                    }));
                }
            },
            (_, other) => {
                return Err(RelayError::Protocol {
                    peer: self.peer.clone(),
                    problem: other.unexpected(),
                });
            }
        };
        Ok(None)
    }

    fn hello(&mut self, hello: Hello, gate: Gate<'_>, nonce: [u64; 4], now_ns: u64) -> Stage {
        let secret = gate.secret.is_some();
        // Without a valid certificate it would not get this far.
        self.is_proved = gate.has_tls;
        if let Err(problem) = hello.check() {
            return self.refuse(problem, now_ns);
        }
        if secret && !hello.secret {
            let problem = "it requires a shared secret: give the switch --secret-file, with a copy \
                           of the relay's file";
            return self.refuse(problem.into(), now_ns);
        }
        let challenge = Challenge { nonce, secret };
        self.out.push(Message::Challenge(challenge.clone()));
        match secret {
            true => Stage::Proof(hello, challenge),
            false => Stage::Begin(hello, Vec::new()),
        }
    }

    fn proof(
        &mut self,
        hello: Hello,
        challenge: &Challenge,
        proof: &[u8],
        gate: Gate<'_>,
        now_ns: u64,
    ) -> Stage {
        let is_right = |s: &&Secret| Prover::Switch.has_proved(s, &hello, challenge, proof);
        let Some(secret) = gate.secret.filter(is_right) else {
            let problem = "the shared secrets differ: the files of --secret-file must be the \
                           same at both ends";
            return self.refuse(problem.into(), now_ns);
        };
        self.is_proved = true;
        let ours = Prover::Relay.proof(secret, &hello, challenge);
        self.out.push(Message::Proof(ours));
        Stage::Begin(hello, Vec::new())
    }

    /// Sends the reason; the connection is closed once that was read.
    fn refuse(&mut self, reason: String, now_ns: u64) -> Stage {
        self.ends_ns = now_ns.saturating_add(LEAVE_LIMIT_NS);
        self.out.push(Message::Refused(reason.clone()));
        self.refused = Some(reason);
        Stage::Leaving
    }

    /// Advances the time.
    ///
    /// # Errors
    ///
    /// If the switch took too long, or was refused long enough ago to have read the reason: the connection is to be
    /// closed.
    pub fn tick(&self, now_ns: u64) -> Result<(), RelayError> {
        if now_ns < self.ends_ns {
            return Ok(());
        }
        let late = || String::from("it did not identify itself in time");
        Err(RelayError::Refused(
            self.refused.clone().unwrap_or_else(late),
        ))
    }
}
