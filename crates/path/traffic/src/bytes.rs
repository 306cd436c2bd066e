//! Parts of payloads.

/// Copies parts one after another, as far as they fit.
pub(crate) fn put<const N: usize>(out: &mut [u8], parts: [&[u8]; N]) -> usize {
    let mut at = 0;
    for part in parts {
        let len = part.len().min(out.len() - at);
        out[at..at + len].copy_from_slice(&part[..len]);
        at += len;
    }
    at
}

/// The last `N` hexadecimal digits of a number.
pub(crate) fn hex<const N: usize>(mut number: u64) -> [u8; N] {
    let mut digits = [b'0'; N];
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number & 15) as usize];
        number >>= 4;
    }
    digits
}

/// The last `N` decimal digits of a number.
pub(crate) fn decimal<const N: usize>(mut number: u64) -> [u8; N] {
    let mut digits = [b'0'; N];
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789"[(number % 10) as usize];
        number /= 10;
    }
    digits
}

/// Any bytes as letters.
pub(crate) fn letters(bytes: &mut [u8]) {
    for byte in bytes {
        *byte = b'a' + (*byte & 15);
    }
}
