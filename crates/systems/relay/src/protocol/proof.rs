//! How switch and relay prove to each other that they know the secret: a proof is of the messages of
//! both, so that it is valid for one connection only.

use strata_auth::secret::{PROOF_LEN, Secret};

use super::{Challenge, Hello};

/// The end that proves that it knows the secret. Neither's proof is valid for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prover {
    Switch,
    Relay,
}

impl Prover {
    fn text(self, hello: &Hello, challenge: &Challenge) -> Vec<u8> {
        let mut text = match self {
            Self::Switch => b"strata control: switch\0".to_vec(),
            Self::Relay => b"strata control: relay \0".to_vec(),
        };
        for word in hello.nonce.iter().chain(&challenge.nonce) {
            text.extend(word.to_le_bytes());
        }
        text.extend(hello.worker.to_le_bytes());
        text.extend(hello.session.as_bytes());
        text
    }

    /// This end's proof.
    pub(crate) fn proof(
        self,
        secret: &Secret,
        hello: &Hello,
        challenge: &Challenge,
    ) -> [u8; PROOF_LEN] {
        secret.sign(&self.text(hello, challenge))
    }

    /// Compares in a time that does not depend on the proof.
    pub(crate) fn has_proved(
        self,
        secret: &Secret,
        hello: &Hello,
        challenge: &Challenge,
        proof: &[u8],
    ) -> bool {
        secret.is_signed(&self.text(hello, challenge), proof)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> (Hello, Challenge) {
        let hello = Hello {
            session: "s".into(),
            worker: 1,
            nonce: [1, 2, 3, 4],
            secret: true,
        };
        let challenge = Challenge {
            nonce: [5, 6, 7, 8],
            secret: true,
        };
        (hello, challenge)
    }

    #[test]
    fn a_proof_is_good_for_its_connection_its_end_and_its_secret_only() {
        let (hello, challenge) = said();
        let secret = Secret::new(b"a secret of some length");
        let proof = Prover::Switch.proof(&secret, &hello, &challenge);
        assert!(Prover::Switch.has_proved(&secret, &hello, &challenge, &proof));
        assert!(!Prover::Relay.has_proved(&secret, &hello, &challenge, &proof));
        assert!(!Prover::Switch.has_proved(&secret, &hello, &challenge, &proof[1..]));
        let other = Secret::new(b"another secret of some length");
        assert!(!Prover::Switch.has_proved(&other, &hello, &challenge, &proof));
        let mut again = challenge.clone();
        again.nonce[3] += 1;
        assert!(!Prover::Switch.has_proved(&secret, &hello, &again, &proof));
        let mut renamed = hello.clone();
        renamed.session.push('x');
        assert!(!Prover::Switch.has_proved(&secret, &renamed, &challenge, &proof));
    }
}
