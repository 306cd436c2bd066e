//! The version that a client or server of SSH sends first.

use super::text;

/// Longest version line, with its end (RFC 4253 §4.2).
const LINE_MAX: usize = 255;

/// The version line that a payload begins with, without its end; `None` if it is longer than allowed, or not all
/// of it was there.
pub(crate) fn version(payload: &[u8]) -> Option<Box<str>> {
    let line = payload.get(..LINE_MAX).unwrap_or(payload);
    let end = line.iter().position(|byte| *byte == b'\n')?;
    let line = line.get(..end)?;
    if !line.starts_with(b"SSH-") {
        return None;
    }
    text(line.trim_ascii_end(), LINE_MAX)
}
