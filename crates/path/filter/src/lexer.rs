//! Words, numbers, addresses and operators.
//!
//! The longest match wins, so that `80-90` and `ftp-data` are one word each
//! and `len-4` is a name: write `len - 4`.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use crate::ast::MacAddress;
use crate::error::ParseError;
use crate::names::{self, Keyword};

/// Longer expressions are refused.
pub(crate) const EXPRESSION_BYTES_MAX: usize = 1 << 20;

/// No address, and no name, is longer.
const WORD_BYTES_MAX: usize = 256;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    Keyword(Keyword),
    Number(u32),
    /// Two to four decimal numbers with dots: the address, left aligned, and how many of its bits
    /// were given.
    V4(Ipv4Addr, u8),
    V6(Ipv6Addr),
    Mac(MacAddress),
    /// A name; also one that is a keyword, written with a backslash.
    Name(String),
    Sign(&'static str),
    End,
}

#[derive(Clone, Debug)]
pub(crate) struct Spanned {
    pub(crate) token: Token,
    pub(crate) span: Range<usize>,
}

/// Longest first.
const SIGNS: &[&str] = &[
    "&&", "||", "<=", ">=", "==", "!=", "<<", ">>", "(", ")", "[", "]", ":", "!", "=", "<", ">",
    "+", "-", "*", "/", "%", "&", "|", "^",
];

pub(crate) fn tokens(text: &str) -> Result<Vec<Spanned>, ParseError> {
    if text.len() > EXPRESSION_BYTES_MAX {
        let message = format!(
            "the expression has {} bytes; the limit is {EXPRESSION_BYTES_MAX}",
            text.len()
        );
        let start: String = text.chars().take(80).collect();
        return Err(ParseError::new(&start, 0..0, message));
    }
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        if matches!(first, ' ' | '\t' | '\r' | '\n') {
            at = at.saturating_add(1);
            continue;
        }
        let (token, bytes) = one(text, at, first)?;
        found.push(Spanned {
            token,
            span: at..at.saturating_add(bytes),
        });
        at = at.saturating_add(bytes);
    }
    found.push(Spanned {
        token: Token::End,
        span: text.len()..text.len(),
    });
    Ok(found)
}

fn one(text: &str, at: usize, first: char) -> Result<(Token, usize), ParseError> {
    let rest = &text[at..];
    if first == '\\' {
        let bytes = rest[1..]
            .find([' ', '!', '(', ')', '\n', '\t', '\r'])
            .unwrap_or(rest.len().saturating_sub(1));
        if bytes == 0 {
            let message = "a backslash goes directly before a name, as in 'ip proto \\tcp'";
            return Err(ParseError::new(text, at..at.saturating_add(1), message));
        }
        return Ok((
            Token::Name(rest[1..=bytes].to_owned()),
            bytes.saturating_add(1),
        ));
    }
    let word = word_bytes(rest);
    if let Some(found) = colon_address(rest, word) {
        return Ok(found);
    }
    if word > 0 {
        let token = word_token(&rest[..word])
            .map_err(|message| ParseError::new(text, at..at.saturating_add(word), message))?;
        return Ok((token, word));
    }
    if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
        return Ok((Token::Sign(sign), sign.len()));
    }
    let message = format!("'{}' has no meaning in a filter", first.escape_default());
    let end = at.saturating_add(first.len_utf8());
    Err(ParseError::new(text, at..end, message))
}

/// The length of the word at the start: letters, digits, `.`, `-` and `_`, the
/// last two not at an end.
fn word_bytes(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    if !bytes.first().is_some_and(u8::is_ascii_alphanumeric) {
        return 0;
    }
    let run = bytes
        .iter()
        .position(|b| !(b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_')))
        .unwrap_or(bytes.len());
    let trimmed = bytes[..run].iter().rposition(|b| !matches!(b, b'-' | b'_'));
    trimmed.map_or(0, |last| last.saturating_add(1))
}

/// A link-layer or IPv6 address with colons, if one starts here that is longer than the word.
fn colon_address(rest: &str, word: usize) -> Option<(Token, usize)> {
    let bytes = rest.as_bytes();
    // The longest IPv6 address has 45 characters.
    let run = bytes
        .iter()
        .take(46)
        .position(|b| !(b.is_ascii_hexdigit() || matches!(b, b':' | b'.')))
        .unwrap_or(bytes.len().min(46));
    if !bytes[..run].contains(&b':') {
        return None;
    }
    for end in (word.saturating_add(1)..=run).rev() {
        let candidate = &rest[..end];
        if let Some(mac) = mac(candidate) {
            return Some((Token::Mac(mac), end));
        }
        if let Ok(address) = candidate.parse::<Ipv6Addr>() {
            return Some((Token::V6(address), end));
        }
    }
    None
}

/// The forms of pcap-filter(7), each with one kind of separator.
fn mac(word: &str) -> Option<MacAddress> {
    let mut address = [0; 6];
    for separator in [':', '-', '.'] {
        if word.matches(separator).count() != 5 {
            continue;
        }
        for (byte, digits) in address.iter_mut().zip(word.split(separator)) {
            *byte = hex(digits, 1..=2)?;
        }
        return Some(MacAddress(address));
    }
    let digits: String = if word.matches('.').count() == 2 && word.len() == 14 {
        if word.split('.').any(|group| group.len() != 4) {
            return None;
        }
        word.replace('.', "")
    } else {
        word.to_owned()
    };
    if digits.len() != 12 || !digits.is_ascii() {
        return None;
    }
    let (pairs, _) = digits.as_bytes().as_chunks::<2>();
    for (byte, pair) in address.iter_mut().zip(pairs) {
        *byte = hex(std::str::from_utf8(pair).ok()?, 2..=2)?;
    }
    Some(MacAddress(address))
}

fn hex(digits: &str, length: std::ops::RangeInclusive<usize>) -> Option<u8> {
    let valid = length.contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
    valid.then(|| u8::from_str_radix(digits, 16).ok())?
}

fn word_token(word: &str) -> Result<Token, String> {
    if word.len() > WORD_BYTES_MAX {
        return Err(format!(
            "a word of {} characters is neither a name nor a number",
            word.len()
        ));
    }
    if let Some(keyword) = names::keyword(word) {
        return Ok(match keyword {
            Keyword::Constant(value) => Token::Number(value),
            other => Token::Keyword(other),
        });
    }
    if let Some(address) = mac(word) {
        return Ok(Token::Mac(address));
    }
    if let Some(number) = number(word) {
        return number.map(Token::Number);
    }
    let parts: Vec<&str> = word.split('.').collect();
    let numeric = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if (2..=4).contains(&parts.len()) && parts.iter().all(numeric) {
        return dotted(word, &parts);
    }
    Ok(Token::Name(word.to_owned()))
}

/// A number in C syntax, if the word is one: decimal, octal with a leading 0,
/// hexadecimal with a leading 0x.
fn number(word: &str) -> Option<Result<u32, String>> {
    let hexadecimal = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X"));
    let (digits, radix) = match hexadecimal {
        Some(digits) if !digits.is_empty() => (digits, 16),
        Some(_) => return None,
        None if word.starts_with('0') => (word, 8),
        None => (word, 10),
    };
    let valid = |b: u8| {
        if radix == 16 {
            b.is_ascii_hexdigit()
        } else {
            b.is_ascii_digit()
        }
    };
    if !digits.bytes().all(valid) {
        return None;
    }
    if radix == 8 && digits.bytes().any(|b| b > b'7') {
        return Some(Err(format!(
            "{word} starts with 0 and so is octal, where digits are 0 to 7; drop the leading 0 \
             for decimal"
        )));
    }
    Some(
        u32::from_str_radix(digits, radix).map_err(|_| {
            format!("{word} does not fit in 32 bits; the largest number is 4294967295")
        }),
    )
}

fn dotted(word: &str, parts: &[&str]) -> Result<Token, String> {
    let mut address = [0; 4];
    for (byte, part) in address.iter_mut().zip(parts) {
        *byte = part
            .parse()
            .map_err(|_| format!("{word} is not an IPv4 address: {part} is more than 255"))?;
    }
    let bits = [0, 8, 16, 24, 32][parts.len()];
    Ok(Token::V4(Ipv4Addr::from(address), bits))
}
