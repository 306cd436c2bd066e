//! A file of TLS secrets, in the format of NSS key logs (SSLKEYLOGFILE, draft-ietf-tls-keylogfile).

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

/// A larger file is refused: some hundred thousand connections.
const BYTES_MAX: u64 = 64 << 20;

/// The file's bytes, if each line is a comment or a secret.
///
/// # Errors
///
/// If the file cannot be read, or a line is something else: with its number, and without what it has.
pub(super) fn read(file: &Path) -> Result<Vec<u8>> {
    let named = file.display();
    let mut bytes = Vec::new();
    let opened = File::open(file);
    let read = opened.and_then(|opened| opened.take(BYTES_MAX + 1).read_to_end(&mut bytes));
    read.with_context(|| format!("{named}: cannot read TLS secrets"))?;
    ensure!(
        bytes.len() as u64 <= BYTES_MAX,
        "{named}: larger than 64 MiB, the limit for a TLS key log"
    );
    for (number, line) in (1_u64..).zip(bytes.split(|&byte| byte == b'\n')) {
        ensure!(
            is_comment_or_secret(line),
            "{named}:{number}: neither a comment nor a TLS secret (LABEL, client random and secret, \
             both in hexadecimal)"
        );
    }
    Ok(bytes)
}

fn is_comment_or_secret(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    if line.is_empty() || line.starts_with(b"#") {
        return true;
    }
    let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let is_hex = |word: &[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_hexdigit);
    let is_label = |word: &[u8]| {
        let is_part =
            |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_';
        !word.is_empty() && word.iter().all(is_part)
    };
    matches!(words.as_slice(), [label, random, secret]
        if is_label(label) && is_hex(random) && is_hex(secret))
}

#[cfg(test)]
mod tests {
    use super::is_comment_or_secret;

    #[test]
    fn lines_are_comments_or_secrets() {
        for (line, is) in [
            ("", true),
            ("# a comment\r", true),
            ("CLIENT_RANDOM 00ff 1234abCD\r", true),
            ("SERVER_TRAFFIC_SECRET_0 00 11", true),
            ("RSA 0011223344556677 00", true),
            ("CLIENT_RANDOM 00ff", false),
            ("CLIENT_RANDOM 00ff 12 34", false),
            ("CLIENT_RANDOM 00ff 12zz", false),
            ("client random 00", false),
            ("-----BEGIN PRIVATE KEY-----", false),
        ] {
            assert_eq!(is_comment_or_secret(line.as_bytes()), is, "{line}");
        }
    }
}
