//! The host of an HTTP request.

use super::name;

const HEAD_MAX: usize = 4_096;

/// The Host field of a request (RFC 9112 §3.2).
pub(crate) fn host(request: &[u8]) -> Option<Box<str>> {
    let head = request.get(..HEAD_MAX).unwrap_or(request);
    let mut lines = head.split(|byte| *byte == b'\n');
    let request = lines.next()?;
    if !request.windows(6).any(|part| part == b" HTTP/") {
        return None;
    }
    let value = lines.find_map(|line| {
        let (field, value) = line.split_first_chunk::<5>()?;
        field.eq_ignore_ascii_case(b"host:").then_some(value)
    })?;
    name(value.trim_ascii())
}
