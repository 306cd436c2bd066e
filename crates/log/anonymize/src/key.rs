//! The key of Crypto-PAn, as a file has it.

use std::fmt;

/// Bytes of a key: 16 for AES, 16 for padding.
const LEN: usize = 32;

/// The key of Crypto-PAn: the key of AES-128, and the block that becomes the padding once it is encrypted. With the
/// key, addresses can be guessed and the guesses checked: it is a secret, which `Debug` does not print.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; LEN]);

/// Why bytes are no key. The text continues the name of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    /// Neither 32 bytes nor 64 digits.
    #[error(
        "is {bytes} bytes long, not the 32 bytes or 64 hexadecimal digits of a Crypto-PAn key: \
         `openssl rand -hex 32 > anon.key` makes one"
    )]
    Length {
        /// Bytes, without `0x` before and white space after them.
        bytes: usize,
    },
    /// 32 digits, which are half a key.
    #[error(
        "has 32 hexadecimal digits, which are half a Crypto-PAn key: `openssl rand -hex 32 > anon.key` makes a whole one"
    )]
    Half,
    /// As long as 64 digits, but not all are digits.
    #[error(
        "is not hexadecimal at byte {at}: a Crypto-PAn key is 32 bytes or 64 hexadecimal digits, and \
         `openssl rand -hex 32 > anon.key` makes one"
    )]
    Digit {
        /// Counted from 1.
        at: usize,
    },
}

impl Key {
    /// A key as a file has it: 32 bytes; or 64 hexadecimal digits, perhaps with `0x` before and white space after them.
    ///
    /// # Errors
    ///
    /// If it is neither.
    pub fn parse(bytes: &[u8]) -> Result<Self, KeyError> {
        if let Ok(key) = bytes.try_into() {
            // Random bytes are not all digits.
            let is_half = bytes.iter().all(u8::is_ascii_hexdigit);
            return if is_half {
                Err(KeyError::Half)
            } else {
                Ok(Self(key))
            };
        }
        let text = bytes.trim_ascii_end();
        let digits = text.strip_prefix(b"0x").unwrap_or(text);
        let (pairs, rest) = digits.as_chunks::<2>();
        if pairs.len() != LEN || !rest.is_empty() {
            let bytes = digits.len();
            return Err(KeyError::Length { bytes });
        }
        if let Some(index) = digits.iter().position(|byte| !byte.is_ascii_hexdigit()) {
            let digits_at = text.len().saturating_sub(digits.len());
            let at = index.saturating_add(digits_at).saturating_add(1);
            return Err(KeyError::Digit { at });
        }
        let mut key = [0; LEN];
        for (byte, [high, low]) in key.iter_mut().zip(pairs) {
            *byte = value(*high) << 4 | value(*low);
        }
        Ok(Self(key))
    }

    /// The key of AES-128.
    pub(crate) fn cipher(&self) -> [u8; 16] {
        self.halves()[0]
    }

    /// What becomes the padding.
    pub(crate) fn padding(&self) -> [u8; 16] {
        self.halves()[1]
    }

    fn halves(&self) -> &[[u8; 16]; 2] {
        let (halves, _) = self.0.as_chunks();
        halves.try_into().expect("32 bytes are two halves of 16")
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(not shown)")
    }
}

/// The value of a hexadecimal digit.
fn value(digit: u8) -> u8 {
    let value = char::from(digit).to_digit(16);
    let value = value.and_then(|value| u8::try_from(value).ok());
    value.expect("all bytes were found to be digits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_digits_are_the_same_key() {
        let bytes: Vec<u8> = (0x90..0xb0).collect();
        let key = Key::parse(&bytes).unwrap();
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let upper = digits.to_uppercase();
        for text in [
            digits.clone(),
            format!("{upper}\n"),
            format!("0x{digits}\r\n \t"),
        ] {
            assert_eq!(Key::parse(text.as_bytes()), Ok(key.clone()), "{text:?}");
        }
        assert_eq!(
            (key.cipher()[0], key.cipher()[15], key.padding()[0]),
            (0x90, 0x9f, 0xa0)
        );
        assert!(!format!("{key:?}").contains("90"));
        assert!(Key::parse(&[7; 32]).is_ok());
    }

    #[test]
    fn what_is_no_key_says_why() {
        let error = |bytes: &[u8]| Key::parse(bytes).unwrap_err().to_string();
        assert_eq!(
            error(&[0; 12]),
            "is 12 bytes long, not the 32 bytes or 64 hexadecimal digits of a Crypto-PAn key: `openssl rand -hex 32 > \
             anon.key` makes one"
        );
        for (text, bytes) in [
            (String::new(), 0),
            ("0x".to_owned(), 0),
            ("a".repeat(63), 63),
            ("a".repeat(65) + "\n", 65),
            (" ".to_owned() + &"a".repeat(64), 65),
        ] {
            assert_eq!(
                Key::parse(text.as_bytes()),
                Err(KeyError::Length { bytes }),
                "{text}"
            );
        }
        assert_eq!(Key::parse(&[b'0'; 32]), Err(KeyError::Half));
        let at = |text: String| Key::parse(text.as_bytes()).unwrap_err();
        assert_eq!(at("a".repeat(63) + "g"), KeyError::Digit { at: 64 });
        assert_eq!(
            at("0x:".to_owned() + &"a".repeat(63)),
            KeyError::Digit { at: 3 }
        );
        assert!(error("x".repeat(64).as_bytes()).contains("at byte 1: "));
    }
}
