//! Keyed functions: SipHash-2-4, and the tag of a sealed record.
//!
//! A tag is AES-128, a pseudorandom permutation, of what the universal hash NH (RFC 4418, section
//! 5.2, here with words of 64 bits) makes of a record. NH takes one multiplication for 16 bytes and AES
//! is ten instructions of the CPU, so a tag costs little more than reading the record; two different
//! records have the same NH with a probability of 2^-64, if they were chosen without the key; and
//! tags do not reveal NH's key, since AES hides what it returned. SipHash-2-4 hashes what is
//! hashed once a page or less, of any length.

use aes::Aes128;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use strata_wire::wide::joined;

/// Bytes of a record that NH reduces to 16.
pub(crate) const CHUNK_LEN: usize = 1024;
const PAIRS: usize = CHUNK_LEN / 16;

/// SipHash-2-4 of little-endian words, of which the last holds up to 7 bytes of the message below
/// the message's length modulo 256.
#[inline]
pub(crate) fn siphash_words(key: [u64; 2], words: impl IntoIterator<Item = u64>) -> u64 {
    let mut sip = Sip::new(key);
    for word in words {
        sip.absorb(word);
    }
    sip.finish()
}

/// SipHash-2-4 of bytes (Aumasson and Bernstein, INDOCRYPT 2012).
#[must_use]
pub fn siphash24(key: [u64; 2], message: &[u8]) -> u64 {
    let mut sip = Sip::new(key);
    let (words, rest) = message.as_chunks::<8>();
    for word in words {
        sip.absorb(u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    last[7] = message.len().to_le_bytes()[0];
    sip.absorb(u64::from_le_bytes(last));
    sip.finish()
}

struct Sip([u64; 4]);

impl Sip {
    #[inline]
    fn new([k0, k1]: [u64; 2]) -> Self {
        Self([
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ])
    }

    #[inline]
    fn absorb(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.round();
        self.0[0] ^= word;
    }

    #[inline]
    fn finish(mut self) -> u64 {
        self.0[2] ^= 0xff;
        for _ in 0..4 {
            self.round();
        }
        self.0[0] ^ self.0[1] ^ self.0[2] ^ self.0[3]
    }

    #[inline]
    fn round(&mut self) {
        let [v0, v1, v2, v3] = &mut self.0;
        *v0 = v0.wrapping_add(*v1);
        *v2 = v2.wrapping_add(*v3);
        *v1 = v1.rotate_left(13) ^ *v0;
        *v3 = v3.rotate_left(16) ^ *v2;
        *v0 = v0.rotate_left(32);
        *v2 = v2.wrapping_add(*v1);
        *v0 = v0.wrapping_add(*v3);
        *v1 = v1.rotate_left(17) ^ *v2;
        *v3 = v3.rotate_left(21) ^ *v0;
        *v2 = v2.rotate_left(32);
    }
}

/// The key of a stream, and what is derived from it once. About 1 KiB.
#[derive(Clone)]
pub struct StreamKey {
    sip: [u64; 2],
    /// Words of NH: for the pair of a record's place and head, then for a chunk.
    first: [u64; 2],
    chunk: Box<[[u64; 2]; PAIRS]>,
}

impl std::fmt::Debug for StreamKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StreamKey")
    }
}

/// Which key is derived: the first byte of what is hashed for it.
mod purpose {
    pub(super) const PAGE: u64 = 1;
    pub(super) const HASH: u64 = 2;
}

impl StreamKey {
    /// The key made of 16 random bytes.
    #[must_use]
    pub fn new(bytes: [u8; 16]) -> Self {
        let whole = u128::from_le_bytes(bytes);
        #[allow(clippy::cast_possible_truncation, reason = "the two halves")]
        let sip = [whole as u64, (whole >> 64) as u64];
        // Messages of 16 bytes: two words, and the length alone in the third.
        let word = |number: u64| siphash_words(sip, [purpose::HASH, number, 16 << 56]);
        let pair = |number: u64| {
            [
                word(number.wrapping_mul(2)),
                word(number.wrapping_mul(2).wrapping_add(1)),
            ]
        };
        let mut chunk = Box::new([[0; 2]; PAIRS]);
        for (number, keys) in (1..).zip(chunk.iter_mut()) {
            *keys = pair(number);
        }
        Self {
            sip,
            first: pair(0),
            chunk,
        }
    }

    /// A tag over bytes that are not a record: headers of pages, descriptions.
    #[must_use]
    pub fn tag(&self, bytes: &[u8]) -> u64 {
        siphash24(self.sip, bytes)
    }

    /// The key of one use of a page.
    #[must_use]
    pub fn page(&self, index: u64, lap: u64) -> PageKey {
        let word = |number: u64| {
            // A message of 32 bytes.
            let words = [purpose::PAGE, number, index, lap, 32 << 56];
            siphash_words(self.sip, words)
        };
        let aes = u128::from(word(1)) << 64 | u128::from(word(0));
        PageKey {
            aes: Aes128::new(&aes.to_le_bytes().into()),
            check: [word(2) | 1, word(3) | 1],
            stream: self.clone(),
        }
    }
}

/// The key of one use of a page: tags of records in it are valid nowhere else.
#[derive(Clone)]
pub struct PageKey {
    aes: Aes128,
    check: [u64; 2],
    stream: StreamKey,
}

impl std::fmt::Debug for PageKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PageKey")
    }
}

impl PageKey {
    /// The 16 bits that say that a head could be at this place, before the whole record is read.
    #[inline]
    pub(crate) fn check(&self, at: usize, head: u64) -> u64 {
        let [of_head, of_place] = self.check;
        let sum = head.wrapping_mul(of_head);
        sum.wrapping_add((at as u64).wrapping_mul(of_place)) >> 48
    }

    /// The tag of a record at this place of the page: its head's lower 48 bits, and its payload.
    #[inline]
    pub(crate) fn tag(&self, at: usize, head: u64, payload: &[u8]) -> u64 {
        let place = multiplied([at as u64, head], self.stream.first);
        if payload.len() > CHUNK_LEN {
            return self.tag_of_long(place, payload);
        }
        low_half(self.encrypted(place.wrapping_add(nh(payload, &self.stream.chunk))))
    }

    /// The length is in the head, so nothing has to be added at the end.
    #[inline(never)]
    fn tag_of_long(&self, place: u128, payload: &[u8]) -> u64 {
        let chunks = payload.chunks(CHUNK_LEN);
        low_half(chunks.fold(place, |before, chunk| {
            self.encrypted(before.wrapping_add(nh(chunk, &self.stream.chunk)))
        }))
    }

    #[inline]
    fn encrypted(&self, sum: u128) -> u128 {
        let mut block = joined(low_half(sum), low_half(sum >> 64)).into();
        self.aes.encrypt_block(&mut block);
        u128::from_le_bytes(block.into())
    }
}

#[inline]
#[allow(clippy::cast_possible_truncation, reason = "half of it")]
fn low_half(block: u128) -> u64 {
    block as u64
}

#[inline]
fn multiplied(message: [u64; 2], key: [u64; 2]) -> u128 {
    let [a, b] = [
        message[0].wrapping_add(key[0]),
        message[1].wrapping_add(key[1]),
    ];
    u128::from(a).wrapping_mul(u128::from(b))
}

/// NH of at most a chunk; what is missing from its last 16 bytes are zeros.
#[inline]
fn nh(bytes: &[u8], keys: &[[u64; 2]; PAIRS]) -> u128 {
    let pair = |bytes: &[u8; 16]| {
        let (low, high) = bytes.split_at(8);
        [word(low), word(high)]
    };
    let (pairs, rest) = bytes.as_chunks::<16>();
    let mut sum = 0_u128;
    for (message, &key) in pairs.iter().zip(keys) {
        sum = sum.wrapping_add(multiplied(pair(message), key));
    }
    if !rest.is_empty() {
        let message = match rest.len().checked_sub(8) {
            None => [last(bytes, rest.len()), 0],
            Some(0) => [word(rest), 0],
            Some(more) => [word(rest), last(bytes, more)],
        };
        sum = sum.wrapping_add(multiplied(message, keys[pairs.len()]));
    }
    sum
}

/// The first eight bytes.
#[inline]
fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("8 bytes"))
}

/// The last `len` bytes, 1 to 7.
#[inline]
fn last(bytes: &[u8], len: usize) -> u64 {
    match bytes.last_chunk() {
        Some(last) => u64::from_le_bytes(*last) >> 64_usize.wrapping_sub(len.wrapping_mul(8)),
        None => bytes
            .iter()
            .rev()
            .fold(0, |sum, &byte| sum << 8 | u64::from(byte)),
    }
}

#[cfg(test)]
mod tests {
    use std::hash::Hasher;

    use proptest::prelude::*;
    use ring::aead::quic::{AES_128, HeaderProtectionKey};
    use siphasher::sip::SipHasher24;

    use super::*;

    #[test]
    fn siphash_is_that_of_its_authors() {
        // Appendix A of their paper.
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let message: Vec<u8> = (0..15).collect();
        assert_eq!(siphash24(key, &message), 0xa129_ca61_49be_45e5);
    }

    /// AES by another's code: five bytes of it, as QUIC protects headers with (RFC 9001, section 5.4.3).
    fn aes_start(key: [u64; 2], block: u128) -> u64 {
        let key: Vec<u8> = key.iter().flat_map(|word| word.to_le_bytes()).collect();
        let key = HeaderProtectionKey::new(&AES_128, &key).unwrap();
        let [a, b, c, d, e] = key.new_mask(&block.to_le_bytes()).unwrap();
        u64::from_le_bytes([a, b, c, d, e, 0, 0, 0])
    }

    /// AES as `aes` has it, which the vector below and [`aes_start`] hold it to.
    fn aes(key: [u64; 2], block: u128) -> u128 {
        let key: Vec<u8> = key.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut bytes = block.to_le_bytes().into();
        Aes128::new_from_slice(&key)
            .unwrap()
            .encrypt_block(&mut bytes);
        u128::from_le_bytes(bytes.into())
    }

    #[test]
    fn aes_is_that_of_the_standard() {
        // FIPS 197, appendix B.
        let key = [0xa6d2_ae28_1615_7e2b, 0x3c4f_cf09_8815_f7ab];
        let block = 0x3407_37e0_a298_3131_8d30_5a88_a8f6_4332;
        assert_eq!(aes(key, block), 0x320b_6a19_9785_11dc_fb09_dc02_1d84_2539);
    }

    /// The tag as the format describes it: NH by the book, SipHash and AES by others' code. The block
    /// that it is the low half of, and the key and the block that this is the encryption of.
    fn naive_tag(
        stream: [u8; 16],
        index: u64,
        lap: u64,
        at: u64,
        head: u64,
        payload: &[u8],
    ) -> (u128, [u64; 2], u128) {
        let sip = |key: [u64; 2], message: &[u8]| {
            let mut hasher = SipHasher24::new_with_keys(key[0], key[1]);
            hasher.write(message);
            hasher.finish()
        };
        let words = |words: &[u64]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        let half = |at: usize| u64::from_le_bytes(stream[at..at + 8].try_into().unwrap());
        let key = [half(0), half(8)];
        let page = |number| sip(key, &words(&[1, number, index, lap]));
        let nh_key: Vec<u64> = (0..130)
            .map(|number| sip(key, &words(&[2, number])))
            .collect();
        let product = |a: u64, b: u64, number: usize| {
            let a = a.wrapping_add(nh_key[number]);
            u128::from(a) * u128::from(b.wrapping_add(nh_key[number + 1]))
        };
        let page_key = [page(0), page(1)];
        let mut sum = product(at, head, 0);
        let mut padded = payload.to_vec();
        padded.resize(payload.len().next_multiple_of(16), 0);
        let mut chunks = padded.chunks(1024).peekable();
        loop {
            for (number, bytes) in chunks.next().unwrap_or(&[]).chunks(16).enumerate() {
                let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                sum = sum.wrapping_add(product(word(0), word(8), 2 + 2 * number));
            }
            let block = aes(page_key, sum);
            if chunks.peek().is_none() {
                return (block, page_key, sum);
            }
            sum = block;
        }
    }

    proptest! {
        #[test]
        fn siphash_is_that_of_another_crate(key: [u64; 2], message in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut other = SipHasher24::new_with_keys(key[0], key[1]);
            other.write(&message);
            prop_assert_eq!(siphash24(key, &message), other.finish());
        }

        #[test]
        fn tags_are_those_of_a_naive_program(
            stream: [u8; 16], index: u64, lap: u64, at in 0_u64..1 << 22, head in 0_u64..1 << 48,
            len in prop_oneof![0_usize..100, 1000_usize..1100, 2040_usize..2060, 0_usize..5000], fill: u64,
        ) {
            let byte = |n: u64| (n.wrapping_mul(fill | 1) >> 13).to_le_bytes()[0];
            let payload: Vec<u8> = (0..len as u64).map(byte).collect();
            let key = StreamKey::new(stream).page(index, lap);
            let (block, aes_key, sum) = naive_tag(stream, index, lap, at, head, &payload);
            let tag = key.tag(usize::try_from(at).unwrap(), head, &payload);
            prop_assert_eq!(tag, low_half(block));
            prop_assert_eq!(tag & 0xff_ffff_ffff, aes_start(aes_key, sum));
        }
    }
}
