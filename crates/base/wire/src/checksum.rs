//! The sum of the Internet checksum (RFC 1071).

/// A sum of 16-bit words in ones' complement, over pieces of which all but the last are of even length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of one piece: 0xffff, or 0 if all is 0, where it holds its own checksum.
    #[must_use]
    pub fn over(bytes: &[u8]) -> u16 {
        let mut sum = Self::default();
        sum.add(bytes);
        sum.fold()
    }

    /// Adds a piece; fewer than 2^32 bytes in all.
    pub fn add(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<4>();
        // 2^32 words of 32 bits fit.
        for word in words {
            self.0 = self.0.wrapping_add(u64::from(u32::from_be_bytes(*word)));
        }
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        self.0 = self.0.wrapping_add(u64::from(u32::from_be_bytes(last)));
    }

    /// Adds a number of 16 bits.
    pub fn add_number(&mut self, number: u16) {
        self.0 = self.0.wrapping_add(u64::from(number));
    }

    /// The sum in 16 bits.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "folded to 16 bits")]
    pub fn fold(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff).wrapping_add(sum >> 16);
        }
        sum as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_byte_by_byte_checksum() {
        for len in 0..70 {
            let bytes: Vec<u8> = (0..len).map(|n: u8| n.wrapping_mul(151) ^ 0xa5).collect();
            let naive = crate::formats::ipv4::checksum(&bytes);
            assert_eq!(!Sum::over(&bytes), naive, "{len}");
            let mut pieces = Sum::default();
            let (first, rest) = bytes.split_at(usize::from(len) / 4 * 2);
            pieces.add(first);
            pieces.add(rest);
            assert_eq!(pieces.fold(), !naive, "{len}");
        }
    }
}
