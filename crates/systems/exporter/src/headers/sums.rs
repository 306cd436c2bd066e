//! Checksums of IPv4 and of what follows IP (RFC 1071): what is known of those in a header, and sums.

/// What a header's checksums are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sums {
    /// IPv4's is what it has to be.
    pub(super) is_ip_right: bool,
    /// The transport's is that of the pseudo-header only: the network card's task.
    pub(super) is_offloaded: bool,
    /// It is what it has to be if no payload follows.
    pub(super) is_empty_right: bool,
}

impl Sums {
    /// The transport's checksum is one of those that a reader knows of a packet without payload.
    #[inline(always)]
    pub(super) fn is_known(self) -> bool {
        self.is_offloaded | self.is_empty_right
    }
}

/// A sum of 32-bit words as they are in memory, which is congruent to that of their halves.
#[inline(always)]
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks();
    words
        .iter()
        .map(|word| u64::from(u32::from_ne_bytes(*word)))
        .sum()
}

/// The same of a multiple of 4 bytes, as they are on the wire.
#[inline(never)]
pub(super) fn raw_sum(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks();
    words
        .iter()
        .map(|word| u64::from(u32::from_be_bytes(*word)))
        .sum()
}

/// A sum of 32-bit words, which is congruent to that of their halves.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)]
pub(super) fn words(address: u128) -> u64 {
    let (high, low) = ((address >> 64) as u64, address as u64);
    (high >> 32)
        .wrapping_add(high & 0xffff_ffff)
        .wrapping_add(low >> 32)
        .wrapping_add(low & 0xffff_ffff)
}

/// The ones' complement sum of 16 bits.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "folded to 16 bits")]
pub(super) fn fold(sum: u64) -> u16 {
    // Both halves and what is carried are in the upper one.
    let sum = (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32;
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

/// A sum of words of 64 bits, congruent to that of their 16-bit parts (RFC 1071 section 2): what is carried out comes
/// in again.
#[inline(always)]
pub(super) fn add(a: u64, b: u64) -> u64 {
    let (sum, is_carried) = a.overflowing_add(b);
    sum.wrapping_add(u64::from(is_carried))
}
