//! Keys that exported datagrams are sealed with (docs/formats/export.md), and the file that they are in.
//!
//! Keys come from each other by HKDF: that of an identity from a master key, that of a sender's run from the
//! identity's and a random salt. Who has an identity's key cannot make another's.

use std::fmt;
use std::fmt::Write as _;

use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};

/// Bytes of every key.
pub const KEY_LEN: usize = 32;
/// Bytes of a run's salt.
pub const SALT_LEN: usize = 16;
/// Maximum number of keys of a file: two of each interface that a host may capture.
const KEYS_MAX: usize = 2048;

/// What each derived key is for.
const FOR_ID: &[u8] = b"strata export key 1";
const FOR_IDENTITY: &[u8] = b"strata export identity 1";
const FOR_RUN: &[u8] = b"strata export run 1";

/// Bytes that HKDF gives.
struct Bytes(usize);

impl KeyType for Bytes {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-SHA256 (RFC 5869).
fn derive<const LEN: usize>(salt: &[u8], key: &[u8; KEY_LEN], purpose: &[&[u8]]) -> [u8; LEN] {
    let extracted: Prk = Salt::new(HKDF_SHA256, salt).extract(key);
    let mut bytes = [0; LEN];
    let expanded = extracted.expand(purpose, Bytes(LEN));
    let filled = expanded.and_then(|output| output.fill(&mut bytes));
    filled.expect("a block of HKDF has 32 bytes");
    bytes
}

fn identity_bytes(identity: u32) -> [u8; 3] {
    let [low, middle, high, zero] = identity.to_le_bytes();
    assert_eq!(zero, 0, "identities have 24 bits");
    [low, middle, high]
}

/// A key from which that of every identity comes: of a controller, and of collectors.
#[derive(Clone, PartialEq, Eq)]
pub struct MasterKey([u8; KEY_LEN]);

/// The key of one identity.
#[derive(Clone, PartialEq, Eq)]
pub struct IdentityKey {
    identity: u32,
    /// Of the master key that it came from.
    id: u32,
    key: [u8; KEY_LEN],
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterKey({:08x})", self.id())
    }
}

impl fmt::Debug for IdentityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdentityKey({}, {:08x})", self.identity, self.id)
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().wrapping_mul(2));
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A key of 64 hexadecimal digits.
fn key(text: &str) -> Option<[u8; KEY_LEN]> {
    let mut key = [0; KEY_LEN];
    if text.len() != 2 * KEY_LEN || !text.is_ascii() {
        return None;
    }
    for (byte, two) in key.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let two = std::str::from_utf8(two).ok()?;
        if two.starts_with('+') {
            return None;
        }
        *byte = u8::from_str_radix(two, 16).ok()?;
    }
    Some(key)
}

impl MasterKey {
    /// A key of these random bytes.
    #[must_use]
    pub fn new(bytes: [u8; KEY_LEN]) -> Self {
        Self(bytes)
    }

    /// What datagrams call it.
    #[must_use]
    pub fn id(&self) -> u32 {
        u32::from_le_bytes(derive(&[], &self.0, &[FOR_ID]))
    }

    /// The key of an identity.
    #[must_use]
    pub fn of(&self, identity: u32) -> IdentityKey {
        IdentityKey {
            identity,
            id: self.id(),
            key: derive(&[], &self.0, &[FOR_IDENTITY, &identity_bytes(identity)]),
        }
    }

    /// Its line in a file.
    #[must_use]
    pub fn line(&self) -> String {
        hexadecimal(&self.0)
    }
}

impl IdentityKey {
    /// Whose it is.
    #[must_use]
    pub fn identity(&self) -> u32 {
        self.identity
    }

    /// Whose it is, as datagrams say it: 24 bits, little-endian.
    #[must_use]
    pub fn identity_bytes(&self) -> [u8; 3] {
        identity_bytes(self.identity)
    }

    /// The number of the master key that it came from.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The key of a sender's run with this salt.
    #[must_use]
    pub fn of_run(&self, salt: &[u8; SALT_LEN]) -> [u8; KEY_LEN] {
        derive(salt, &self.key, &[FOR_RUN])
    }

    /// Its line in a file.
    #[must_use]
    pub fn line(&self) -> String {
        format!(
            "{} {:08x} {}",
            self.identity,
            self.id,
            hexadecimal(&self.key)
        )
    }
}

/// What is wrong with a file of keys.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseKeysError {
    /// A line is no key.
    #[error(
        "line {0} is not a key: write 64 hexadecimal digits (`openssl rand -hex 32`), or an \
         identity, a key number and 64 digits, as a controller writes them"
    )]
    Line(usize),
    /// There are too many.
    #[error("contains more than {KEYS_MAX} keys: remove old ones")]
    TooMany,
    /// There is no key.
    #[error("contains no key: write 64 hexadecimal digits on a line (`openssl rand -hex 32`)")]
    None,
}

/// The keys of a file: the first that fits seals, all of them open.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SealKeys {
    masters: Vec<(u32, MasterKey)>,
    identities: Vec<IdentityKey>,
}

impl SealKeys {
    /// Reads a file: a key on each line; empty ones and those that begin with `#` are nothing.
    ///
    /// # Errors
    ///
    /// The first line that is wrong.
    pub fn parse(text: &str) -> Result<Self, ParseKeysError> {
        let mut keys = Self::default();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if keys.masters.len().wrapping_add(keys.identities.len()) >= KEYS_MAX {
                return Err(ParseKeysError::TooMany);
            }
            keys.line(line)
                .ok_or(ParseKeysError::Line(at.wrapping_add(1)))?;
        }
        match keys == Self::default() {
            true => Err(ParseKeysError::None),
            false => Ok(keys),
        }
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let mut words = line.split_ascii_whitespace();
        match (words.next()?, words.next(), words.next(), words.next()) {
            (master, None, None, None) => {
                let master = MasterKey(key(master)?);
                self.masters.push((master.id(), master));
            }
            (identity, Some(id), Some(digits), None) => {
                let identity = identity.parse().ok();
                self.identities.push(IdentityKey {
                    identity: identity.filter(|number| (1..1 << 24).contains(number))?,
                    id: u32::from_str_radix(id, 16).ok()?,
                    key: key(digits)?,
                });
            }
            _ => return None,
        }
        Some(())
    }

    /// The master key that comes first.
    #[must_use]
    pub fn master(&self) -> Option<&MasterKey> {
        self.masters.first().map(|(_, master)| master)
    }

    /// The key with which datagrams of an identity are sealed; `None` if the identity has no key.
    #[must_use]
    pub fn to_seal(&self, identity: u32) -> Option<IdentityKey> {
        let mut own = self.identities.iter();
        let own = own.find(|key| key.identity == identity).cloned();
        own.or_else(|| self.master().map(|master| master.of(identity)))
    }

    /// The key of an identity with which a datagram says that it was sealed.
    #[must_use]
    pub fn to_open(&self, identity: u32, id: u32) -> Option<IdentityKey> {
        let is_it = |key: &&IdentityKey| key.identity == identity && key.id == id;
        let own = self.identities.iter().find(is_it).cloned();
        let master = self.masters.iter().find(|(known, _)| *known == id);
        own.or_else(|| master.map(|(_, master)| master.of(identity)))
    }
}
