//! A file of TLS secrets, in the format of NSS key logs (SSLKEYLOGFILE, draft-ietf-tls-keylogfile).

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use strata_wire::Printable;
use tracing::warn;

/// A larger file is refused: some hundred thousand connections.
const BYTES_MAX: u64 = 64 << 20;

/// The file's bytes, if each line is a comment or a secret; none, with a warning, if it has no secrets.
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
    let mut has_secrets = false;
    for (number, line) in (1_u64..).zip(bytes.split(|&byte| byte == b'\n')) {
        let is_secret = is_secret(line);
        ensure!(
            is_secret || is_comment(line),
            "{named}:{number}: neither a comment nor a TLS secret (LABEL, client random and secret, \
             both in hexadecimal)"
        );
        has_secrets |= is_secret;
    }
    if !has_secrets {
        warn!(
            "{}: this file has no TLS secrets, so nothing can be decrypted with it: was \
             SSLKEYLOGFILE set when the browser or server started?",
            Printable(&named.to_string())
        );
        return Ok(Vec::new());
    }
    Ok(bytes)
}

fn is_comment(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    line.is_empty() || line.starts_with(b"#")
}

fn is_secret(line: &[u8]) -> bool {
    let line = line.trim_ascii();
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
    use super::{is_comment, is_secret};

    #[test]
    fn lines_are_comments_or_secrets() {
        let (comment, secret, neither) = ((true, false), (false, true), (false, false));
        for (line, is) in [
            ("", comment),
            (" \r", comment),
            ("# a comment\r", comment),
            ("CLIENT_RANDOM 00ff 1234abCD\r", secret),
            ("SERVER_TRAFFIC_SECRET_0 00 11", secret),
            ("RSA 0011223344556677 00", secret),
            ("CLIENT_RANDOM 00ff", neither),
            ("CLIENT_RANDOM 00ff 12 34", neither),
            ("CLIENT_RANDOM 00ff 12zz", neither),
            ("client random 00", neither),
            ("-----BEGIN PRIVATE KEY-----", neither),
        ] {
            let line_is = (is_comment(line.as_bytes()), is_secret(line.as_bytes()));
            assert_eq!(line_is, is, "{line}");
        }
    }
}
