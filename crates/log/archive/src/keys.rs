//! Keys of encrypted logs, in the age format (age-encryption.org/v1).
//!
//! Each part has its own key pair, to which its files are encrypted. The secret key is stored in
//! `archive.json`, encrypted to the public keys that the user named. So the compacting process
//! holds no secret, and changing keys costs one replacement of the manifest.

use std::io::{self, BufRead, Write};

use age::armor::{ArmoredReader, ArmoredWriter, Format};
use age::secrecy::ExposeSecret;
use age::stream::{StreamReader, StreamWriter};
use age::x25519;
use age::{DecryptError, Decryptor, Encryptor};
use strata_store::WrappedKey;

/// Bytes of a file under one authentication tag (age, "Payload").
pub(crate) const CHUNK_BYTES: u64 = 64 << 10;
const TAG_BYTES: u64 = 16;

/// Why a key is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// A public key is invalid.
    #[error(
        "'{text}' is not a public key: {problem}; public keys begin with age1, and `strata key new` makes a pair of keys"
    )]
    Public {
        /// What was given.
        text: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A line of a key file is not a key.
    #[error(
        "{file}: line {line} is not a key: {problem}; secret keys look like AGE-SECRET-KEY-1..., \
         public keys like age1..."
    )]
    Line {
        /// The file.
        file: String,
        /// From 1.
        line: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A key file has no keys.
    #[error("{file}: contains no {wanted}")]
    Empty {
        /// The file.
        file: String,
        /// `secret key` or `key`.
        wanted: &'static str,
    },
}

const SECRET_PREFIX: &str = "AGE-SECRET-KEY-";

/// Public keys of those who can read something encrypted.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Recipients(Vec<x25519::Recipient>);

impl std::fmt::Debug for Recipients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.texts()).finish()
    }
}

impl Recipients {
    /// Public keys as texts.
    ///
    /// # Errors
    ///
    /// If one is invalid.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, KeyError> {
        let one = |text: &str| {
            let wrong = |problem| KeyError::Public {
                text: text.to_owned(),
                problem,
            };
            text.parse().map_err(wrong)
        };
        let all: Result<_, _> = texts.into_iter().map(one).collect();
        Ok(Self(all?))
    }

    /// The public keys in a file, and those that belong to its secret keys. `file` is used in
    /// messages.
    ///
    /// # Errors
    ///
    /// If a line is neither key nor comment (#), or there is no key.
    pub fn of_file(file: &str, content: &str) -> Result<Self, KeyError> {
        let mut all = Vec::new();
        for (line, text) in lines(content) {
            let key = if text.starts_with(SECRET_PREFIX) {
                text.parse().map(|key: x25519::Identity| key.to_public())
            } else {
                text.parse()
            };
            all.push(key.map_err(wrong_line(file, line))?);
        }
        if all.is_empty() {
            let file = file.to_owned();
            return Err(KeyError::Empty {
                file,
                wanted: "key",
            });
        }
        Ok(Self(all))
    }

    /// As `age1...`.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }

    /// Whether there are none: then nothing is encrypted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The recipients of both sets.
    #[must_use]
    pub fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }
}

/// Secret keys, which allow reading.
#[derive(Clone)]
pub struct Identities(Vec<x25519::Identity>);

impl std::fmt::Debug for Identities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the keys.
        write!(f, "{} secret keys", self.0.len())
    }
}

impl Identities {
    /// A new secret key.
    #[must_use]
    pub fn generate() -> Self {
        Self(vec![x25519::Identity::generate()])
    }

    /// The secret keys in a file as written by `age-keygen`. `file` is used in messages.
    ///
    /// # Errors
    ///
    /// If a line is neither a secret key nor a comment (#), or there is no key.
    pub fn of_file(file: &str, content: &str) -> Result<Self, KeyError> {
        let mut all = Vec::new();
        for (line, text) in lines(content) {
            all.push(text.parse().map_err(wrong_line(file, line))?);
        }
        if all.is_empty() {
            let (file, wanted) = (file.to_owned(), "secret key");
            return Err(KeyError::Empty { file, wanted });
        }
        Ok(Self(all))
    }

    /// The public keys that belong to them.
    #[must_use]
    pub fn recipients(&self) -> Recipients {
        Recipients(self.0.iter().map(x25519::Identity::to_public).collect())
    }

    /// As a key file.
    #[must_use]
    pub fn to_file(&self) -> String {
        let mut text = String::new();
        for key in &self.0 {
            text += &format!("# public key: {}\n", key.to_public());
            text += key.to_string().expose_secret();
            text.push('\n');
        }
        text
    }
}

/// Lines that are not empty or comments, numbered from 1.
fn lines(content: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = content.lines().map(str::trim).enumerate();
    lines
        .filter(|(_, text)| !text.is_empty() && !text.starts_with('#'))
        .map(|(at, text)| (at + 1, text))
}

fn wrong_line(file: &str, line: usize) -> impl FnOnce(&'static str) -> KeyError {
    move |problem| KeyError::Line {
        file: file.to_owned(),
        line,
        problem,
    }
}

/// The key pair of a part.
#[derive(Clone)]
pub(crate) struct PartKey(x25519::Identity);

impl PartKey {
    pub(crate) fn generate() -> Self {
        Self(x25519::Identity::generate())
    }

    /// Encrypts the secret key to the recipients.
    pub(crate) fn wrap(&self, to: &Recipients) -> io::Result<WrappedKey> {
        let recipients = to.0.iter().map(|key| key as _);
        let encryptor = Encryptor::with_recipients(recipients).map_err(io::Error::other)?;
        let armored = ArmoredWriter::wrap_output(Vec::new(), Format::AsciiArmor)?;
        let mut output = encryptor.wrap_output(armored)?;
        output.write_all(self.0.to_string().expose_secret().as_bytes())?;
        let text = output.finish()?.finish()?;
        Ok(WrappedKey {
            to: to.texts(),
            wrapped: String::from_utf8(text).map_err(io::Error::other)?,
        })
    }

    /// Decrypts the secret key.
    pub(crate) fn unwrap(wrapped: &WrappedKey, with: &Identities) -> Result<Self, DecryptError> {
        let armored = ArmoredReader::new(wrapped.wrapped.as_bytes());
        let identities = with.0.iter().map(|key| key as _);
        let mut reader = Decryptor::new_buffered(armored)?.decrypt(identities)?;
        let mut text = String::new();
        io::Read::read_to_string(&mut reader, &mut text)?;
        let key = text
            .parse()
            .map_err(|_| DecryptError::KeyDecryptionFailed)?;
        Ok(Self(key))
    }

    /// Encrypts everything written.
    pub(crate) fn encrypt<W: Write>(&self, output: W) -> io::Result<StreamWriter<W>> {
        let public = self.0.to_public();
        let to = std::iter::once(&public as _);
        let encryptor = Encryptor::with_recipients(to).map_err(io::Error::other)?;
        encryptor.wrap_output(output)
    }

    /// Decrypts everything read.
    pub(crate) fn decrypt<R: BufRead>(&self, input: R) -> Result<StreamReader<R>, DecryptError> {
        Decryptor::new_buffered(input)?.decrypt(std::iter::once(&self.0 as _))
    }
}

/// Offset in an encrypted file of `stored` bytes of the chunk that holds byte `at` of its content
/// of `len` bytes.
pub(crate) fn chunk_offset(at: u64, len: u64, stored: u64) -> u64 {
    let chunks = len.div_ceil(CHUNK_BYTES).max(1);
    let tags = chunks.saturating_mul(TAG_BYTES);
    let head = stored.saturating_sub(len.saturating_add(tags));
    let before = (at / CHUNK_BYTES).saturating_mul(const { CHUNK_BYTES + TAG_BYTES });
    head.saturating_add(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_files_are_read_back_and_what_is_none_is_named() {
        let made = Identities::generate();
        let text = made.to_file();
        let read = Identities::of_file("k", &text).unwrap();
        assert_eq!(read.recipients(), made.recipients());
        assert_eq!(Recipients::of_file("k", &text).unwrap(), made.recipients());
        let public = made.recipients().texts().remove(0);
        assert!(text.contains(&public) && public.starts_with("age1"));
        assert_eq!(
            Recipients::parse([public.as_str()]).unwrap(),
            made.recipients()
        );
        // A mistyped letter is noticed, and not taken for another key.
        let mut mistyped = public.clone();
        let last = if mistyped.pop() == Some('q') {
            'p'
        } else {
            'q'
        };
        mistyped.push(last);
        assert!(Recipients::parse([mistyped.as_str()]).is_err());
        let bad = Identities::of_file("some.key", "# a comment\n\nhello\n").unwrap_err();
        assert!(bad.to_string().contains("some.key: line 3"), "{bad}");
        let public_only = Identities::of_file("some.key", &public).unwrap_err();
        assert!(public_only.to_string().contains("line 1"), "{public_only}");
        let empty = Identities::of_file("some.key", "#\n").unwrap_err();
        assert!(empty.to_string().contains("no secret key"), "{empty}");
        assert!(!format!("{made:?}").contains("AGE"));
    }

    #[test]
    fn a_part_key_is_read_by_those_it_is_for_alone() {
        let [one, two, other] = [(); 3].map(|()| Identities::generate());
        let key = PartKey::generate();
        let to = one.recipients().and(two.recipients());
        let wrapped = key.wrap(&to).unwrap();
        assert_eq!(wrapped.to, to.texts());
        for who in [&one, &two] {
            let back = PartKey::unwrap(&wrapped, who).unwrap();
            assert_eq!(back.0.to_public(), key.0.to_public());
        }
        assert!(matches!(
            PartKey::unwrap(&wrapped, &other),
            Err(DecryptError::NoMatchingKeys)
        ));
    }
}
