//! Fingerprints of a client by its client hello.
//!
//! Sources: JA3, by its authors (github.com/salesforce/ja3); JA4 of the TLS client, by FoxIO
//! (`technical_details/JA4.md`, BSD licence; their other fingerprints have another licence and are left out).

use std::fmt::Write as _;

use md5::{Digest as _, Md5};
use ring::digest::{SHA256, digest};

use crate::hello::{Hello, extension};

/// What carries a client hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tls,
    Dtls,
    Quic,
}

/// The MD5 digest of five lists.
pub(crate) fn ja3(hello: &Hello) -> Box<str> {
    let mut text = hello.version.to_string();
    let formats = hello.point_formats.iter().map(|&format| u16::from(format));
    let lists = [
        meaningful(&hello.ciphers).collect::<Vec<_>>(),
        meaningful(&hello.extensions).collect(),
        meaningful(&hello.groups).collect(),
        formats.collect(),
    ];
    for list in lists {
        let list: Vec<String> = list.iter().map(u16::to_string).collect();
        text.push(',');
        text.push_str(&list.join("-"));
    }
    hex(&Md5::digest(text)).into()
}

/// What can be read, and two parts of SHA-256 digests.
pub(crate) fn ja4(hello: &Hello, transport: Transport) -> Box<str> {
    let mut ciphers: Vec<u16> = meaningful(&hello.ciphers).collect();
    let mut extensions: Vec<u16> = meaningful(&hello.extensions).collect();
    let transport = match transport {
        Transport::Tls => 't',
        Transport::Dtls => 'd',
        Transport::Quic => 'q',
    };
    let server = match extensions.contains(&extension::SERVER_NAME) {
        true => 'd',
        false => 'i',
    };
    let mut text = format!(
        "{transport}{}{server}{:02}{:02}{}",
        version(hello),
        ciphers.len().min(99),
        extensions.len().min(99),
        protocol(&hello.protocol),
    );
    ciphers.sort_unstable();
    extensions.retain(|kind| ![extension::SERVER_NAME, extension::ALPN].contains(kind));
    extensions.sort_unstable();
    let mut last = list(extensions);
    let signatures = list(meaningful(&hello.signatures));
    if !signatures.is_empty() {
        last = format!("{last}_{signatures}");
    }
    for list in [list(ciphers), last] {
        let digest = match list.is_empty() {
            true => "0".repeat(12),
            false => hex(digest(&SHA256, list.as_bytes()).as_ref())
                .chars()
                .take(12)
                .collect(),
        };
        text.push('_');
        text.push_str(&digest);
    }
    text.into()
}

/// The highest version that the client offers.
fn version(hello: &Hello) -> &'static str {
    // Of the versions of DTLS, the highest has the lowest number.
    let rank = |version: &u16| {
        if *version >> 8 == 0xfe {
            !*version
        } else {
            *version
        }
    };
    let offered = meaningful(&hello.versions).max_by_key(rank);
    match offered.unwrap_or(hello.version) {
        0x0304 => "13",
        0x0303 => "12",
        0x0302 => "11",
        0x0301 => "10",
        0x0300 => "s3",
        0x0002 => "s2",
        0xfeff => "d1",
        0xfefd => "d2",
        0xfefc => "d3",
        _ => "00",
    }
}

/// The first and the last character of a protocol's name, or of its hexadecimal digits.
fn protocol(name: &[u8]) -> String {
    let (Some(first), Some(last)) = (name.first(), name.last()) else {
        return "00".to_owned();
    };
    if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() {
        return String::from_iter([char::from(*first), char::from(*last)]);
    }
    format!("{:x}{:x}", first >> 4, last & 0x0f)
}

/// Values other than those of GREASE (RFC 8701 §2).
fn meaningful(values: &[u16]) -> impl Iterator<Item = u16> {
    let is_grease = |value: u16| value & 0x0f0f == 0x0a0a && value >> 8 == value & 0xff;
    values
        .iter()
        .copied()
        .filter(move |&value| !is_grease(value))
}

/// Four hexadecimal digits each.
fn list(values: impl IntoIterator<Item = u16>) -> String {
    let values: Vec<String> = values
        .into_iter()
        .map(|value| format!("{value:04x}"))
        .collect();
    values.join(",")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("texts can be written");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::protocol;

    /// Source: FoxIO, `technical_details/JA4.md`, section ALPN Extension Value.
    #[test]
    fn protocols_are_shortened_as_published() {
        for (name, short) in [
            (&b"h2"[..], "h2"),
            (b"http/1.1", "h1"),
            (b"", "00"),
            (b"x", "xx"),
            (&[0xab], "ab"),
            (&[0x20], "20"),
            (&[0xab, 0xcd], "ad"),
            (&[0x20, 0x61], "21"),
            (&[0x30, 0xab], "3b"),
            (&[0x61, 0x20], "60"),
            (&[0x30, 0x31, 0xab, 0xcd], "3d"),
            (&[0x30, 0xab, 0xcd, 0x31], "01"),
        ] {
            assert_eq!(protocol(name), short, "{name:x?}");
        }
    }
}
