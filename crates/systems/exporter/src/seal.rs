//! Datagrams that are encrypted and authenticated (docs/formats/export.md): no one without a key reads,
//! changes, forges or repeats them.
//!
//! Keys are [`strata_auth::keys`]. A sender that has the keys of its own identities cannot stand for others;
//! and since each run has a key of its own and numbers its datagrams, no nonce is ever used twice.

mod opener;

use std::fmt;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use strata_auth::keys::{IdentityKey, SALT_LEN};
use strata_wire::layout;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use opener::{Opener, SealError};

/// "Strata, encrypted".
const MAGIC: [u8; 2] = *b"SE";
const VERSION: u8 = 1;
const HEAD_LEN: usize = size_of::<Head>();
const TAG_LEN: usize = 16;
/// Bytes by which a sealed datagram is longer than the datagram in it.
pub const SEALED_MORE: usize = HEAD_LEN + TAG_LEN;

/// The start of a sealed datagram, little-endian; authenticated, not encrypted.
///
/// ```text
///  0 magic "SE"
///  2 version u8 = 1
///  3 identity u24      that of the datagram within
///  6 reserved u16 = 0
///  8 key u32           of the master key that the identity's came from
/// 12 salt [u8; 16]     random, of the sender's run
/// 28 number u64        of the run's datagrams, from 0: the nonce
/// 36 time u32          seconds since 1970
/// 40 the datagram, encrypted, and its tag of 16 bytes
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 2],
    version: u8,
    identity: [u8; 3],
    reserved: U16,
    key: U32,
    salt: [u8; SALT_LEN],
    number: U64,
    time: U32,
}
layout!(
    Head, 40,
    magic at 0, version at 2, identity at 3, reserved at 6, key at 8, salt at 12, number at 28,
    time at 36,
);

fn identity_of(bytes: [u8; 3]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0])
}

/// Whether a datagram says that it is sealed.
#[must_use]
pub fn is_sealed(datagram: &[u8]) -> bool {
    datagram.starts_with(&MAGIC)
}

/// The identity in a datagram.
///
/// # Panics
///
/// If it is too short to be one.
#[must_use]
pub fn identity_in(datagram: &[u8]) -> u32 {
    identity_of([datagram[4], datagram[5], datagram[6]])
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 8..].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

fn cipher(key: &[u8; 32]) -> LessSafeKey {
    let key = UnboundKey::new(&AES_256_GCM, key);
    LessSafeKey::new(key.expect("AES-256 has keys of 32 bytes"))
}

/// Seals the datagrams of a run: one identity's datagrams to one destination.
pub struct Sealer {
    cipher: LessSafeKey,
    head: Head,
    next: u64,
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealer")
    }
}

impl Sealer {
    /// A run with a random salt that no other run has.
    #[must_use]
    pub fn new(key: &IdentityKey, salt: [u8; SALT_LEN]) -> Self {
        Self {
            cipher: cipher(&key.of_run(&salt)),
            head: Head {
                magic: MAGIC,
                version: VERSION,
                identity: key.identity_bytes(),
                reserved: 0.into(),
                key: key.id().into(),
                salt,
                number: 0.into(),
                time: 0.into(),
            },
            next: 0,
        }
    }

    /// Uses another key of the same identity from now on. Numbers continue, so that no nonce of either key is used
    /// twice.
    ///
    /// # Panics
    ///
    /// If it is another identity's.
    pub fn use_key(&mut self, key: &IdentityKey) {
        let own = identity_of(self.head.identity);
        assert_eq!(own, key.identity(), "numbers are of one identity");
        self.cipher = cipher(&key.of_run(&self.head.salt));
        self.head.key = key.id().into();
    }

    /// Appends a datagram of this identity, sealed at this time (seconds since 1970).
    ///
    /// # Panics
    ///
    /// If the datagram is of another identity.
    pub fn seal(&mut self, now: u32, datagram: &[u8], out: &mut Vec<u8>) {
        let identity = identity_in(datagram);
        assert_eq!(identity, identity_of(self.head.identity), "its own only");
        self.head.number = self.next.into();
        self.head.time = now.into();
        self.next = self.next.checked_add(1).expect("a run is shorter");
        out.extend_from_slice(self.head.as_bytes());
        let start = out.len();
        out.extend_from_slice(datagram);
        let (nonce, aad) = (
            nonce(self.next.wrapping_sub(1)),
            Aad::from(self.head.as_bytes()),
        );
        let sealed = self
            .cipher
            .seal_in_place_separate_tag(nonce, aad, &mut out[start..]);
        let tag = sealed.expect("a datagram is shorter than the limit of AES-GCM");
        out.extend_from_slice(tag.as_ref());
    }
}
