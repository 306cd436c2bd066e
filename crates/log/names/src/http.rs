//! Requests and status lines of HTTP/1.

use super::{name, text};

const HEAD_MAX: usize = 4_096;
/// Longest method; the longest registered one has 17 characters (IANA, HTTP Method Registry).
const METHOD_MAX: usize = 32;
/// Bytes of a request target and of a User-Agent field that are kept.
const URI_MAX: usize = 1_024;
const AGENT_MAX: usize = 512;

/// What the head of a request says.
pub(crate) struct Request {
    /// `None` if it is longer than any.
    pub(crate) method: Option<Box<str>>,
    pub(crate) uri: Box<str>,
    /// As far as its head was there.
    pub(crate) host: Option<Box<str>>,
    pub(crate) user_agent: Option<Box<str>>,
}

/// The request that a payload begins with (RFC 9112 §3).
pub(crate) fn request(payload: &[u8]) -> Option<Request> {
    let head = payload.get(..HEAD_MAX).unwrap_or(payload);
    let mut lines = head.split(|byte| *byte == b'\n');
    let line = lines.next()?;
    let version = line.windows(6).rposition(|part| part == b" HTTP/")?;
    let line = line.get(..version)?;
    let space = line.iter().position(|byte| *byte == b' ')?;
    let (method, target) = line.split_at_checked(space)?;
    // More than one space may be between them (RFC 9112 §3).
    let mut words = target
        .split(|byte| *byte == b' ')
        .filter(|word| !word.is_empty());
    let is_method = |byte: &u8| byte.is_ascii_uppercase() || matches!(byte, b'-' | b'_');
    if !method.iter().all(is_method) {
        return None;
    }
    let mut request = Request {
        method: name(method).filter(|_| method.len() <= METHOD_MAX),
        uri: text(words.next()?, URI_MAX)?,
        host: None,
        user_agent: None,
    };
    let mut lines = lines.peekable();
    while let Some(line) = lines.next() {
        // The last line may go on in a later packet.
        let is_whole = lines.peek().is_some();
        if line.trim_ascii().is_empty() {
            break;
        }
        if request.host.is_none() {
            request.host = field(line, b"host:").and_then(name);
        }
        if is_whole && request.user_agent.is_none() {
            let agent = field(line, b"user-agent:");
            request.user_agent = agent.and_then(|agent| text(agent, AGENT_MAX));
        }
    }
    Some(request)
}

/// The value of a field of this name, which is in lower case, with its colon.
fn field<'a>(line: &'a [u8], field: &[u8]) -> Option<&'a [u8]> {
    let (found, value) = line.split_at_checked(field.len())?;
    let is_it = found.eq_ignore_ascii_case(field);
    is_it.then(|| value.trim_ascii())
}

/// The code of the status line that a payload begins with (RFC 9112 §4).
pub(crate) fn status(payload: &[u8]) -> Option<u16> {
    let after = payload.strip_prefix(b"HTTP/1.")?;
    let ([b'0'..=b'9', b' '], rest) = after.split_first_chunk::<2>()? else {
        return None;
    };
    let code = rest.first_chunk::<3>()?;
    let ends = rest.get(3).is_none_or(|byte| !byte.is_ascii_digit());
    if !ends || !matches!(code, [b'1'..=b'9', ..]) {
        return None;
    }
    std::str::from_utf8(code).ok()?.parse().ok()
}
