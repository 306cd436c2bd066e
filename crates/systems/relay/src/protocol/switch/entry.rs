//! How a switch is admitted: hello, proofs, and what is recorded.

use strata_auth::secret::Secret;

use crate::error::RelayError;
use crate::protocol::proof::Prover;
use crate::protocol::{BODY_LEN_MAX, Begin, Challenge, Hello, Message, SECOND_NS, Welcome};

/// How long a relay may take to answer, in total.
pub(crate) const ANSWER_LIMIT_NS: u64 = 5 * SECOND_NS;

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    Challenge,
    Proof(Challenge),
    Welcome,
}

/// A switch not yet admitted.
pub struct Entry {
    peer: String,
    secret: Option<Secret>,
    hello: Hello,
    begin: Begin,
    model: Vec<u8>,
    stage: Stage,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry")
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}

impl Entry {
    /// Sends hello to `peer`, which must know the `secret` if there is one.
    ///
    /// # Errors
    ///
    /// If the description of the recording exceeds a relay's limits.
    pub fn new(
        peer: String,
        secret: Option<Secret>,
        hello: Hello,
        mut begin: Begin,
        model: Vec<u8>,
        out: &mut Vec<Message>,
    ) -> Result<Self, RelayError> {
        begin.shorten();
        begin.check().map_err(RelayError::Refused)?;
        if model.len() > BODY_LEN_MAX {
            return Err(RelayError::Refused(format!(
                "the model has {} bytes: a relay accepts at most {BODY_LEN_MAX}",
                model.len()
            )));
        }
        out.push(Message::Hello(Box::new(hello.clone())));
        Ok(Self {
            peer,
            secret,
            hello,
            begin,
            model,
            stage: Stage::Challenge,
        })
    }

    /// Processes a message from the relay, and answers; returns the welcome once admitted.
    ///
    /// # Errors
    ///
    /// If the relay refuses, does not know the secret, or sends a message that is not allowed.
    pub fn receive(
        &mut self,
        message: Message,
        out: &mut Vec<Message>,
    ) -> Result<Option<Welcome>, RelayError> {
        let impostor = || RelayError::Impostor {
            peer: self.peer.clone(),
        };
        match (&self.stage, message) {
            (_, Message::Refused(reason)) => return Err(RelayError::Refused(reason)),
            (_, Message::Failed(reason)) => return Err(RelayError::Failed(reason)),
            (Stage::Challenge, Message::Challenge(challenge)) => match &self.secret {
                None => self.describe(out),
                Some(_) if !challenge.secret => return Err(impostor()),
                Some(secret) => {
                    let proof = Prover::Switch.proof(secret, &self.hello, &challenge);
                    out.push(Message::Proof(proof));
                    self.stage = Stage::Proof(challenge);
                }
            },
            (Stage::Proof(challenge), Message::Proof(proof)) => {
                let knows = |secret: &Secret| {
                    Prover::Relay.has_proved(secret, &self.hello, challenge, &proof)
                };
                if !self.secret.as_ref().is_some_and(knows) {
                    return Err(impostor());
                }
                self.describe(out);
            }
            (Stage::Welcome, Message::Welcome(welcome)) => {
                welcome.check().map_err(|problem| self.protocol(problem))?;
                return Ok(Some(*welcome));
            }
            (_, other) => return Err(self.protocol(other.unexpected())),
        }
        Ok(None)
    }

    /// The relay is authenticated as required: it may learn what is recorded.
    fn describe(&mut self, out: &mut Vec<Message>) {
        self.stage = Stage::Welcome;
        out.push(Message::Model(std::mem::take(&mut self.model)));
        out.push(Message::Begin(Box::new(self.begin.clone())));
    }

    fn protocol(&self, problem: String) -> RelayError {
        RelayError::Protocol {
            peer: self.peer.clone(),
            problem,
        }
    }
}
