//! The client hello in the first packets of a QUIC connection. They are encrypted with a key that follows from the
//! connection ID of the client's first packet, so that anyone who has seen it can read them.
//!
//! Sources: RFC 9000 §17.2.2 (Initial packets) and §19 (frames), RFC 9001 §5 (their protection), RFC 9369 §3 (version 2).

use std::collections::BTreeMap;
use std::fmt;

use ring::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey, quic};
use ring::hkdf::{HKDF_SHA256, KeyType, Okm, Prk, Salt};

use crate::bytes::Bytes;
use crate::hello::{HELLO_MAX, Hello};

/// Long header, and the bit that is always set.
const FORM_BITS: u8 = 0xc0;
const ID_MAX: usize = 20;
/// Where the sample begins, after the beginning of the packet number.
const SAMPLE_AT: usize = 4;
/// Packets of a datagram that are read.
const PACKETS_MAX: usize = 4;
/// Parts of a client hello that are kept.
const PARTS_MAX: usize = 256;

/// What the versions of QUIC do not have in common.
struct Version {
    /// The type of Initial packets: two bits of the first byte.
    initial: u8,
    salt: [u8; 20],
    /// Labels of key, initialization vector and header protection.
    labels: [&'static str; 3],
}

const LABELS: [&str; 3] = ["quic key", "quic iv", "quic hp"];

const ONE: Version = Version {
    initial: 0,
    salt: [
        0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17, 0x9a, 0xe6, 0xa4, 0xc8, 0x0c,
        0xad, 0xcc, 0xbb, 0x7f, 0x0a,
    ],
    labels: LABELS,
};

const TWO: Version = Version {
    initial: 1,
    salt: [
        0x0d, 0xed, 0xe3, 0xde, 0xf7, 0x00, 0xa6, 0xdb, 0x81, 0x93, 0x81, 0xbe, 0x6e, 0x26, 0x9d,
        0xcb, 0xf9, 0xbd, 0x2e, 0xd9,
    ],
    labels: ["quicv2 key", "quicv2 iv", "quicv2 hp"],
};

/// Drafts 29 to 32.
const DRAFT_29: Version = Version {
    initial: 0,
    salt: [
        0xaf, 0xbf, 0xec, 0x28, 0x99, 0x93, 0xd2, 0x4c, 0x9e, 0x97, 0x86, 0xf1, 0x9c, 0x61, 0x11,
        0xe0, 0x43, 0x90, 0xa8, 0x99,
    ],
    labels: LABELS,
};

/// Drafts 23 to 28.
const DRAFT_23: Version = Version {
    initial: 0,
    salt: [
        0xc3, 0xee, 0xf7, 0x12, 0xc7, 0x2e, 0xbb, 0x5a, 0x11, 0xa7, 0xd2, 0x43, 0x2b, 0xb4, 0x63,
        0x65, 0xbe, 0xf9, 0xf5, 0x02,
    ],
    labels: LABELS,
};

fn version(number: u32) -> Option<&'static Version> {
    match number {
        1 | 0xff00_0021..=0xff00_0022 => Some(&ONE),
        0x6b33_43cf => Some(&TWO),
        0xff00_001d..=0xff00_0020 => Some(&DRAFT_29),
        // Two of Facebook's are draft 27.
        0xff00_0017..=0xff00_001c | 0xface_b002 | 0xface_b00e => Some(&DRAFT_23),
        // Which makes the server name the versions that it has.
        _ if number & 0x0f0f_0f0f == 0x0a0a_0a0a => Some(&DRAFT_29),
        _ => None,
    }
}

/// Whether a datagram with this first byte may begin with an Initial packet of a version that is known.
pub(crate) fn may_be_initial(first: u8) -> bool {
    first & FORM_BITS == FORM_BITS
}

/// What is known of a connection from its first packets.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    keys: Option<Keys>,
    /// Of the first packet that could be decrypted.
    version: Option<u32>,
    /// Parts of the client hello by their place.
    parts: BTreeMap<usize, Vec<u8>>,
    /// Bytes of parts that have come: twice [`HELLO_MAX`] at most, since some may have come twice.
    taken: usize,
}

impl Connection {
    /// The version of the client's first packet that could be decrypted.
    pub(crate) fn version(&self) -> Option<u32> {
        self.version
    }

    /// The client hello, as far as it is there, after one more datagram; `None` if it is of no use.
    pub(crate) fn hello(&mut self, datagram: &[u8]) -> Option<Hello> {
        let mut left = Bytes(datagram);
        let mut is_changed = false;
        for _ in 0..PACKETS_MAX {
            let Some(frames) = self.packet(&mut left) else {
                break;
            };
            is_changed |= self.frames(Bytes(&frames));
        }
        if !is_changed {
            return None;
        }
        let mut message = Vec::new();
        for (&at, part) in &self.parts {
            let Some(known) = message.len().checked_sub(at) else {
                break;
            };
            message.extend_from_slice(part.get(known..).unwrap_or(&[]));
        }
        Hello::of_message(&message)
    }

    /// The frames of the next packet; `None` if it is no Initial packet of the client.
    fn packet(&mut self, left: &mut Bytes<'_>) -> Option<Vec<u8>> {
        let whole = left.0;
        let first = left.byte()?;
        let number = left.number()?;
        let version = version(number)?;
        if !may_be_initial(first) || (first >> 4) & 3 != version.initial {
            return None;
        }
        let destination = left.short()?;
        if destination.len() > ID_MAX {
            return None;
        }
        let _source = left.short()?;
        let token_len = left.varint()?;
        left.take(token_len)?;
        let len = left.varint()?;
        let header = whole.get(..whole.len().checked_sub(left.0.len())?)?;
        let protected = left.take(len)?;
        if let Some(frames) = self
            .keys
            .as_ref()
            .and_then(|keys| keys.open(header, protected))
        {
            return Some(frames);
        }
        // The first packet, or the first one after the server has asked to begin again.
        let keys = Keys::of(version, destination)?;
        let frames = keys.open(header, protected)?;
        self.keys = Some(keys);
        self.version = self.version.or(Some(number));
        (self.parts, self.taken) = (BTreeMap::new(), 0);
        Some(frames)
    }

    /// Takes parts of the client hello; whether there was one.
    fn frames(&mut self, mut frames: Bytes<'_>) -> bool {
        let mut is_changed = false;
        while let Some((at, data)) = next_part(&mut frames) {
            let end = at.saturating_add(data.len());
            let taken = self.taken.saturating_add(data.len());
            if end <= HELLO_MAX && taken <= 2 * HELLO_MAX && self.parts.len() < PARTS_MAX {
                self.taken = taken;
                let known = self.parts.entry(at).or_default();
                if known.len() < data.len() {
                    *known = data.to_vec();
                }
                is_changed = true;
            }
        }
        is_changed
    }
}

/// The next part of the handshake, and its place; `None` after the last one, or at a frame that does not belong here.
fn next_part<'a>(frames: &mut Bytes<'a>) -> Option<(usize, &'a [u8])> {
    loop {
        match frames.byte()? {
            // Padding and ping.
            0 | 1 => {}
            // Acknowledgements, with and without counts of congestion.
            kind @ (2 | 3) => {
                let (_largest, _delay) = (frames.varint()?, frames.varint()?);
                let ranges = frames.varint()?;
                frames.varint()?;
                for _ in 0..ranges {
                    let (_gap, _len) = (frames.varint()?, frames.varint()?);
                }
                if kind == 3 {
                    for _count in 0..3 {
                        frames.varint()?;
                    }
                }
            }
            6 => {
                let at = frames.varint()?;
                let len = frames.varint()?;
                return Some((at, frames.take(len)?));
            }
            _ => return None,
        }
    }
}

/// The client's keys of Initial packets.
struct Keys {
    data: LessSafeKey,
    iv: [u8; aead::NONCE_LEN],
    header: quic::HeaderProtectionKey,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

impl Keys {
    fn of(version: &Version, destination: &[u8]) -> Option<Self> {
        let initial = Salt::new(HKDF_SHA256, &version.salt).extract(destination);
        let secret = expand(&initial, "client in", HKDF_SHA256)?;
        let [key, iv, header] = version.labels;
        Some(Self {
            data: LessSafeKey::new(expand::<_, UnboundKey>(&secret, key, &aead::AES_128_GCM)?),
            iv: expand::<_, Iv>(&secret, iv, IvLen)?.0,
            header: expand(&secret, header, &quic::AES_128)?,
        })
    }

    /// The frames of a packet, from its header until the length, and what follows. `None` if they are of other keys.
    fn open(&self, header: &[u8], protected: &[u8]) -> Option<Vec<u8>> {
        let sample = protected
            .get(SAMPLE_AT..)?
            .get(..self.header.algorithm().sample_len())?;
        let mask = self.header.new_mask(sample).ok()?;
        let mut known = header.to_vec();
        let first = known.first_mut()?;
        *first ^= mask[0] & 0x0f;
        let number_len = usize::from(*first & 3).saturating_add(1);
        let (number, data) = protected.split_at_checked(number_len)?;
        let number: Vec<u8> = number
            .iter()
            .zip(&mask[1..])
            .map(|(byte, mask)| byte ^ mask)
            .collect();
        known.extend_from_slice(&number);
        let mut nonce = self.iv;
        for (byte, number) in nonce.iter_mut().rev().zip(number.iter().rev()) {
            *byte ^= number;
        }
        let nonce = Nonce::assume_unique_for_key(nonce);
        let mut data = data.to_vec();
        let len = self
            .data
            .open_in_place(nonce, Aad::from(known), &mut data)
            .ok()?
            .len();
        data.truncate(len);
        Some(data)
    }
}

struct Iv([u8; aead::NONCE_LEN]);

struct IvLen;

impl KeyType for IvLen {
    fn len(&self) -> usize {
        aead::NONCE_LEN
    }
}

impl From<Okm<'_, IvLen>> for Iv {
    fn from(okm: Okm<'_, IvLen>) -> Self {
        let mut iv = [0; aead::NONCE_LEN];
        okm.fill(&mut iv).expect("it has this length");
        Self(iv)
    }
}

/// HKDF-Expand-Label of TLS 1.3 without a context (RFC 8446 §7.1).
fn expand<L: KeyType, Key: for<'a> From<Okm<'a, L>>>(
    secret: &Prk,
    label: &str,
    kind: L,
) -> Option<Key> {
    let out_len = u16::try_from(kind.len()).ok()?.to_be_bytes();
    let label_len = u8::try_from(label.len()).ok()?.checked_add(6)?;
    let info: [&[u8]; 5] = [&out_len, &[label_len], b"tls13 ", label.as_bytes(), &[0]];
    Some(secret.expand(&info, kind).ok()?.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_are_bounded(datagrams in prop::collection::vec(prop::collection::vec(
            prop_oneof![any::<u8>(), 0..8_u8], 0..80), 0..40)) {
            let mut connection = Connection::default();
            for frames in &datagrams {
                connection.frames(Bytes(frames));
            }
            let held: usize = connection.parts.values().map(Vec::len).sum();
            prop_assert!(held <= 2 * HELLO_MAX && connection.parts.len() <= PARTS_MAX);
        }
    }
}
