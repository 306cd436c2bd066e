//! Keyed functions: SipHash-2-4, and the tag of a sealed record.
//!
//! A tag is SipHash-2-4, a pseudorandom function, of what the universal hash NH (RFC 4418, section
//! 5.2, here with words of 64 bits) makes of each KiB of a record. NH takes one multiplication for
//! 16 bytes, so a tag costs little more than reading the record, which SipHash alone would not; two
//! different records of a length have the same NH with a probability of 2^-64, whoever chose them
//! without the key; and nobody learns NH's key from tags, since SipHash hides what it returned.

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
        let pair = |number: u64| [word(2 * number), word(2 * number + 1)];
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
        PageKey {
            sip: [word(0), word(1)],
            check: [word(2) | 1, word(3) | 1],
            stream: self.clone(),
        }
    }
}

/// The key of one use of a page: tags of records in it are valid nowhere else.
#[derive(Clone, Debug)]
pub struct PageKey {
    sip: [u64; 2],
    check: [u64; 2],
    stream: StreamKey,
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
        let key = &self.stream;
        let mut sip = Sip::new(self.sip);
        let first = multiplied([at as u64, head], key.first);
        let (chunks, rest) = payload.as_chunks::<CHUNK_LEN>();
        let mut sum = first;
        let mut hashed = 16_usize;
        for (number, chunk) in chunks.iter().enumerate() {
            if number > 0 {
                absorb(&mut sip, sum);
                hashed += 16;
                sum = 0;
            }
            sum = sum.wrapping_add(nh(chunk, &key.chunk[..]));
        }
        if !chunks.is_empty() && !rest.is_empty() {
            absorb(&mut sip, sum);
            hashed += 16;
            sum = 0;
        }
        sum = sum.wrapping_add(nh(rest, &key.chunk[..]));
        absorb(&mut sip, sum);
        let len = (hashed + 7) as u64 & 0xff;
        sip.absorb(head | len << 56);
        sip.finish()
    }
}

#[inline]
fn absorb(sip: &mut Sip, sum: u128) {
    #[allow(clippy::cast_possible_truncation, reason = "the two halves")]
    let [low, high] = [sum as u64, (sum >> 64) as u64];
    sip.absorb(low);
    sip.absorb(high);
}

#[inline]
fn multiplied(message: [u64; 2], key: [u64; 2]) -> u128 {
    let [a, b] = [
        message[0].wrapping_add(key[0]),
        message[1].wrapping_add(key[1]),
    ];
    u128::from(a) * u128::from(b)
}

/// NH of at most a chunk; what is missing from its last 16 bytes are zeros.
#[inline]
fn nh(bytes: &[u8], keys: &[[u64; 2]]) -> u128 {
    let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
    let pair = |bytes: &[u8; 16]| {
        let (low, high) = bytes.split_at(8);
        let [low, high] = [low, high].map(|half| half.first_chunk().expect("8 bytes"));
        [word(low), word(high)]
    };
    let (pairs, rest) = bytes.as_chunks::<16>();
    let mut sum = 0_u128;
    for (message, &key) in pairs.iter().zip(keys) {
        sum = sum.wrapping_add(multiplied(pair(message), key));
    }
    if !rest.is_empty() {
        let mut last = [0; 16];
        last[..rest.len()].copy_from_slice(rest);
        sum = sum.wrapping_add(multiplied(pair(&last), keys[pairs.len()]));
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::hash::Hasher;

    use proptest::prelude::*;
    use siphasher::sip::SipHasher24;

    use super::*;

    #[test]
    fn siphash_is_that_of_its_authors() {
        // Appendix A of their paper.
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let message: Vec<u8> = (0..15).collect();
        assert_eq!(siphash24(key, &message), 0xa129_ca61_49be_45e5);
    }

    /// The tag as the format describes it: NH by the book, SipHash by another's code.
    fn naive_tag(
        stream: [u8; 16],
        index: u64,
        lap: u64,
        at: u64,
        head: u64,
        payload: &[u8],
    ) -> u64 {
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
        let mut message = Vec::new();
        let mut sum = product(at, head, 0);
        let mut padded = payload.to_vec();
        padded.resize(payload.len().next_multiple_of(16), 0);
        let mut chunks = padded.chunks(1024).peekable();
        loop {
            for (number, bytes) in chunks.next().unwrap_or(&[]).chunks(16).enumerate() {
                let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                sum = sum.wrapping_add(product(word(0), word(8), 2 + 2 * number));
            }
            message.extend(sum.to_le_bytes());
            sum = 0;
            if chunks.peek().is_none() {
                break;
            }
        }
        message.extend(&head.to_le_bytes()[..7]);
        sip([page(0), page(1)], &message)
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
            let expected = naive_tag(stream, index, lap, at, head, &payload);
            prop_assert_eq!(key.tag(usize::try_from(at).unwrap(), head, &payload), expected);
        }
    }
}
