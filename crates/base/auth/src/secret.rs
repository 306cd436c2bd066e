//! A secret that both ends know, and how each proves to the other that it does without revealing it
//! (HMAC-SHA256 over the messages of both, RFC 2104).
//!
//! It keeps strangers out. It does not encrypt: packets in flight are readable.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ring::hmac;

/// Fewest bytes of a secret, without surrounding white space.
const LEN_MIN: usize = 16;
/// Maximum bytes.
const LEN_MAX: usize = 4096;
/// Permissions of everybody but the file's owner.
const OTHERS: u32 = 0o077;

/// Bytes of a proof.
pub const PROOF_LEN: usize = 32;

/// The shared secret.
#[derive(Clone)]
pub struct Secret(hmac::Key);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A file with a secret that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {problem}")]
pub struct UnusableSecret {
    /// The file.
    pub file: String,
    /// What is wrong with it.
    pub problem: String,
}

impl Secret {
    /// A secret with these bytes.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// The content of a file, without surrounding white space.
    ///
    /// # Errors
    ///
    /// If it cannot be read, is too short or too long for a secret, or if anyone but its owner may
    /// read or write it.
    pub fn read(path: &Path) -> Result<Self, UnusableSecret> {
        let refuse = |problem: String| UnusableSecret {
            file: path.display().to_string(),
            problem,
        };
        let open = |path: &Path| -> std::io::Result<(u32, bool, Vec<u8>)> {
            let file = File::open(path)?;
            let metadata = file.metadata()?;
            let mut bytes = Vec::new();
            // One byte more, to detect that it is too long.
            file.take(LEN_MAX as u64 + 1).read_to_end(&mut bytes)?;
            let mode = metadata.permissions().mode();
            Ok((mode, metadata.is_file(), bytes))
        };
        let (mode, is_file, bytes) = open(path).map_err(|error| refuse(error.to_string()))?;
        if is_file && mode & OTHERS != 0 {
            return Err(refuse(format!(
                "mode {:04o} lets others read or change this secret: `chmod 600` the file",
                mode & 0o7777
            )));
        }
        let secret = bytes.trim_ascii();
        if bytes.len() > LEN_MAX || secret.len() < LEN_MIN {
            return Err(refuse(format!(
                "a secret must be {LEN_MIN} to {LEN_MAX} bytes long: make one with `openssl rand \
                 -hex 32`"
            )));
        }
        Ok(Self::new(secret))
    }

    /// Proves that this end knows it, to the end that has drawn part of `text` at random. Texts of
    /// different protocols and of both ends must differ.
    #[must_use]
    pub fn sign(&self, text: &[u8]) -> [u8; PROOF_LEN] {
        let tag = hmac::sign(&self.0, text);
        let mut proof = [0; PROOF_LEN];
        proof.copy_from_slice(tag.as_ref());
        proof
    }

    /// Whether the other end has made this proof with [`Secret::sign`]; in a time that does not depend
    /// on the proof.
    #[must_use]
    pub fn is_signed(&self, text: &[u8], proof: &[u8]) -> bool {
        hmac::verify(&self.0, text, proof).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_proof_is_good_for_its_text_and_its_secret_only() {
        let secret = Secret::new(b"a secret of some length");
        let proof = secret.sign(b"text");
        assert!(secret.is_signed(b"text", &proof));
        assert!(!secret.is_signed(b"next", &proof));
        assert!(!secret.is_signed(b"text", &proof[1..]));
        assert!(!Secret::new(b"another secret of some length").is_signed(b"text", &proof));
    }

    #[test]
    fn a_file_that_others_may_read_and_a_short_one_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let write = |content: &[u8], mode: u32| {
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Secret::read(&path).map_err(|error| error.to_string())
        };
        assert!(write(b"0123456789abcdef\n", 0o600).is_ok());
        for mode in [0o640, 0o604, 0o620, 0o602] {
            let refused = write(b"0123456789abcdef\n", mode).unwrap_err();
            assert!(refused.contains("chmod 600"), "{refused}");
        }
        assert!(write(b" 0123456789abcde \n", 0o600).is_err());
        assert!(write(&[b'x'; LEN_MAX + 1], 0o600).is_err());
        assert!(Secret::read(&dir.path().join("none")).is_err());
    }
}
