//! A query's words.

use std::net::IpAddr;

use super::error::QueryError;
use super::fields::address_words;

/// Maximum bytes of a query.
const TEXT_MAX: usize = 64 * 1024;

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Token<'a> {
    Word(&'a str),
    Int(i64),
    Real(f64),
    /// High and low word.
    Address([u64; 2]),
    Sign(&'static str),
    End,
}

/// A token and the byte at which it begins.
pub(super) type Placed<'a> = (Token<'a>, usize);

/// Signs, longer ones before their beginnings.
const SIGNS: [&str; 23] = [
    "==", "!=", "<=", ">=", "<", ">", "=", "!", "+", "-", "*", "/", "(", ")", "[", "]", "{", "}",
    ",", ";", ":", "&&", "||",
];

/// The words of a query, the last of which is [`Token::End`].
pub(super) fn tokens<'a>(
    text: &'a str,
    parameters: &[(&str, &'a str)],
) -> Result<Vec<Placed<'a>>, QueryError> {
    if text.len() > TEXT_MAX {
        let message = format!(
            "a query of {} bytes: at most {TEXT_MAX} are allowed",
            text.len()
        );
        return Err(QueryError::new(text, 0, message));
    }
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        if first.is_whitespace() {
            at = at.wrapping_add(first.len_utf8());
        } else if first == '#' {
            at = at.wrapping_add(rest.find('\n').unwrap_or(rest.len()));
        } else if first.is_ascii_digit() {
            let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '.'));
            let word = &rest[..end.unwrap_or(rest.len())];
            tokens.push((number(word).map_err(|m| QueryError::new(text, at, m))?, at));
            at = at.wrapping_add(word.len());
        } else if first == '"' {
            let end = rest[1..]
                .find(['"', '\n'])
                .map_or(rest.len(), |end| end.wrapping_add(1));
            let address = quoted(&rest[1..end.max(1)]).filter(|_| rest[end..].starts_with('"'));
            let message = "quotes are for addresses, such as \"2001:db8::1\"";
            let words = address.ok_or_else(|| QueryError::new(text, at, message))?;
            tokens.push((Token::Address(words), at));
            at = at.wrapping_add(end).wrapping_add(1);
        } else if first.is_ascii_alphabetic() || first == '_' || first == '$' {
            let end = rest[1..].find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            let word = &rest[..end.map_or(rest.len(), |end| end.wrapping_add(1))];
            let token = match word.strip_prefix('$') {
                Some(name) => parameter(name, parameters),
                None => Ok(Token::Word(word)),
            };
            tokens.push((token.map_err(|m| QueryError::new(text, at, m))?, at));
            at = at.wrapping_add(word.len());
        } else if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            tokens.push((Token::Sign(sign), at));
            at = at.wrapping_add(sign.len());
        } else {
            let message = format!("{first:?} has no meaning here");
            return Err(QueryError::new(text, at, message));
        }
    }
    tokens.push((Token::End, text.len()));
    Ok(tokens)
}

fn parameter<'a>(name: &str, parameters: &[(&str, &'a str)]) -> Result<Token<'a>, String> {
    let value = parameters.iter().find(|(known, _)| *known == name);
    match value {
        Some((_, value)) => number(value).map_err(|error| format!("parameter {name}: {error}")),
        None if name.is_empty() => Err("a parameter is written $name".to_owned()),
        None => Err(format!("parameter {name} has no value: give it one")),
    }
}

/// An address of either family.
fn quoted(word: &str) -> Option<[u64; 2]> {
    Some(match word.parse().ok()? {
        IpAddr::V4(v4) => address_words(u128::from(v4.to_bits()), 4),
        IpAddr::V6(v6) => address_words(v6.to_bits(), 6),
    })
}

/// `7`, `0.2`, `5ms`, `10.0.0.1`.
fn number<'a>(word: &str) -> Result<Token<'a>, String> {
    if word.contains(':') {
        let words = quoted(word).ok_or_else(|| format!("{word} is not an address"))?;
        return Ok(Token::Address(words));
    }
    if word.matches('.').count() == 3 {
        let address: std::net::Ipv4Addr = word
            .parse()
            .map_err(|_| format!("{word} is not an IPv4 address"))?;
        return Ok(Token::Address(address_words(
            u128::from(address.to_bits()),
            4,
        )));
    }
    let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &word[digits.len()..] {
        "" => 1,
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        other => return Err(format!("{other:?} is not a unit: write ns, us, ms or s")),
    };
    let wrong = || format!("{word} is not a number, or is too large");
    if digits.contains('.') {
        let real: f64 = digits.parse().map_err(|_| wrong())?;
        return Ok(Token::Real(real * f64::from(unit)));
    }
    let int: i64 = digits.parse().map_err(|_| wrong())?;
    int.checked_mul(i64::from(unit))
        .map(Token::Int)
        .ok_or_else(wrong)
}
