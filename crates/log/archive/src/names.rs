//! The name that a payload reveals: of a DNS query, a TLS server, an HTTP host.

/// Longer names are invalid (RFC 1035 §2.3.4).
const NAME_MAX: usize = 255;

/// What was found first in the payloads of a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) dns: Option<Box<str>>,
    pub(crate) tls: Option<Box<str>>,
    pub(crate) http: Option<Box<str>>,
}

impl Names {
    /// Looks for a name in the payload of a packet between these ports.
    pub(crate) fn look(&mut self, is_tcp: bool, ports: [u16; 2], payload: &[u8]) {
        if ports.contains(&53) || ports.contains(&5353) {
            if self.dns.is_none() {
                // Over TCP, the message is preceded by its length.
                let message = if is_tcp {
                    payload.get(2..)
                } else {
                    Some(payload)
                };
                self.dns = message.and_then(dns_question);
            }
        } else if is_tcp {
            match payload.first() {
                Some(0x16) if self.tls.is_none() => self.tls = tls_server_name(payload),
                Some(b'A'..=b'Z') if self.http.is_none() => self.http = http_host(payload),
                _ => {}
            }
        }
    }
}

/// The name of the first question (RFC 1035 §4.1).
fn dns_question(message: &[u8]) -> Option<Box<str>> {
    let questions = u16::from_be_bytes([*message.get(4)?, *message.get(5)?]);
    if questions == 0 {
        return None;
    }
    let mut name = String::new();
    let mut at = 12;
    loop {
        let len = usize::from(*message.get(at)?);
        if len == 0 {
            break;
        }
        // The first name is not compressed.
        if len > 63 {
            return None;
        }
        let label = message.get(at + 1..at + 1 + len)?;
        if !name.is_empty() {
            name.push('.');
        }
        push_printable(&mut name, label);
        if name.len() > NAME_MAX {
            return None;
        }
        at += 1 + len;
    }
    (!name.is_empty()).then(|| name.into())
}

/// The server name of a client hello (RFC 8446 §4.1.2, RFC 6066 §3).
fn tls_server_name(record: &[u8]) -> Option<Box<str>> {
    let word = |at: usize| -> Option<usize> {
        Some(usize::from(u16::from_be_bytes([
            *record.get(at)?,
            *record.get(at + 1)?,
        ])))
    };
    const HANDSHAKE: usize = 5;
    if *record.get(HANDSHAKE)? != 1 {
        return None;
    }
    // Type, length, version, random.
    let mut at = HANDSHAKE + 4 + 2 + 32;
    at += 1 + usize::from(*record.get(at)?);
    at += 2 + word(at)?;
    at += 1 + usize::from(*record.get(at)?);
    let end = at + 2 + word(at)?;
    at += 2;
    while at + 4 <= end {
        let (kind, len) = (word(at)?, word(at + 2)?);
        at += 4;
        if kind == 0 {
            let len = word(at + 3)?;
            let host = record.get(at + 5..at + 5 + len)?;
            if host.is_empty() || len > NAME_MAX {
                return None;
            }
            let mut name = String::new();
            push_printable(&mut name, host);
            return Some(name.into());
        }
        at += len;
    }
    None
}

/// The Host field of a request (RFC 9112 §3.2).
fn http_host(request: &[u8]) -> Option<Box<str>> {
    let head = &request[..request.len().min(4_096)];
    let line = head.split(|byte| *byte == b'\n').next()?;
    if !line.windows(6).any(|part| part == b" HTTP/") {
        return None;
    }
    for line in head.split(|byte| *byte == b'\n').skip(1) {
        let Some((name, value)) = line.split_first_chunk::<5>() else {
            continue;
        };
        if name.eq_ignore_ascii_case(b"host:") {
            let value = value.trim_ascii();
            if value.is_empty() || value.len() > NAME_MAX {
                return None;
            }
            let mut host = String::new();
            push_printable(&mut host, value);
            return Some(host.into());
        }
    }
    None
}

/// Non-printable bytes become dots: a peer may have sent anything.
fn push_printable(out: &mut String, bytes: &[u8]) {
    for &byte in bytes {
        let printable = byte.is_ascii_graphic();
        out.push(if printable { char::from(byte) } else { '.' });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_found() {
        let mut names = Names::default();
        let query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03www\x07example\x03org\x00\x00\x01\x00\x01";
        names.look(false, [5_000, 53], query);
        assert_eq!(names.dns.as_deref(), Some("www.example.org"));
        names.look(
            true,
            [5_000, 80],
            b"GET / HTTP/1.1\r\nAccept: */*\r\nhOST: example.org:8080\r\n\r\n",
        );
        assert_eq!(names.http.as_deref(), Some("example.org:8080"));
        let mut hello = vec![0x16, 3, 1, 0, 0, 1, 0, 0, 0, 3, 3];
        hello.extend_from_slice(&[7; 32]);
        hello.extend_from_slice(&[0, 0, 2, 0x13, 1, 1, 0]);
        let name = b"tls.example";
        hello.extend_from_slice(&[0, 24, 0, 10, 0, 0, 0, 0, 0, 16, 0, 14, 0, 0, 11]);
        hello.extend_from_slice(name);
        names.look(true, [5_000, 443], &hello);
        assert_eq!(names.tls.as_deref(), Some("tls.example"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_looked_into(
            start in prop::sample::select(vec![&b"\x16\x03\x01\x00\x00\x01"[..], b"GET / HTTP/1.1\nHost:", b"\0\0\0\0\0\x01"]),
            rest in prop::collection::vec(any::<u8>(), 0..120), port in prop::sample::select(vec![53_u16, 80]),
            is_tcp in any::<bool>(),
        ) {
            let mut payload = start.to_vec();
            payload.extend_from_slice(&rest);
            let mut names = Names::default();
            names.look(is_tcp, [port, 9], &payload);
            for name in [names.dns, names.tls, names.http].into_iter().flatten() {
                prop_assert!(name.len() <= NAME_MAX && name.is_ascii());
            }
        }
    }
}
