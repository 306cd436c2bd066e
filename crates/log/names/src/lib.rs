//! What the first payload of a flow reveals: names that a client asks for, fingerprints of the client, and names of the
//! server.
//!
//! - [`Names`]: what was found in a flow, packet by packet.
//! - [`Begun`]: messages of all flows that go on in a later packet.
//!
//! ```text
//! lib            which protocol a payload may be of
//! dns, http      a name each
//! hello          the client hello of TLS, as far as it is there; its records, in TCP and in DTLS
//! fingerprint    JA3 and JA4 of a client hello
//! server         the certificate of a TLS server
//! certificate    names in a certificate
//! quic           the first packets of a QUIC connection, which anyone can decrypt
//! begun          messages of which a part has come
//! bytes          bytes that are read from the front
//! ```
//!
//! All input is untrusted. No I/O, and no other crate of Strata.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod begun;
mod bytes;
mod certificate;
mod dns;
mod fingerprint;
mod hello;
mod http;
mod quic;
mod server;
#[cfg(test)]
mod tests;

pub use begun::Begun;
use fingerprint::Transport;
use hello::{HELLO_MAX, Hello};
use server::{FLIGHT_MAX, Flight};

/// Longer names are invalid (RFC 1035 §2.3.4).
const NAME_MAX: usize = 255;
/// Payloads of a flow that are looked into for the rest of a client hello.
const LOOKS_MAX: u8 = 16;
/// Those that are looked into for the rest of a certificate, of both directions.
const SERVER_LOOKS_MAX: u8 = 32;
const DNS_PORTS: [u16; 2] = [53, 5353];

/// What was found first in the payloads of a flow. Texts have at most 255 printable ASCII characters, but for the
/// certificate's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The name of a DNS query or its answer.
    pub dns: Option<Box<str>>,
    /// The server name in a client hello of TLS, DTLS or QUIC.
    pub server: Option<Box<str>>,
    /// Names in the certificate of a TLS server, up to TLS 1.2 and over TCP, if all of it was there, in order: a JSON list
    /// of the subject's common names, then the DNS names. The first 16 of at most 255 bytes each, as far as they have at
    /// most 2,048 bytes together.
    pub certificate: Option<Box<str>>,
    /// The client's fingerprint by JA3: 32 hexadecimal digits.
    pub ja3: Option<Box<str>>,
    /// The client's fingerprint by JA4: 36 characters.
    pub ja4: Option<Box<str>>,
    /// The host of an HTTP request.
    pub http: Option<Box<str>>,
    /// Payloads that were looked into after a part of a client hello; 0 before.
    looks: u8,
    /// Payloads that were looked into after the beginning of a server's records; 0 before.
    server_looks: u8,
}

/// A payload, as far as it was kept.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    /// A number of the flow. Those of flows that exist at the same time differ.
    pub flow: u32,
    /// Whether it is of TCP, else of UDP or another protocol.
    pub is_tcp: bool,
    /// Both ports.
    pub ports: [u16; 2],
    /// The sequence number of its first byte; only used with TCP.
    pub sequence: u32,
    /// Its bytes.
    pub bytes: &'a [u8],
}

impl Names {
    /// Looks for names and fingerprints in the payload of one more packet of a flow.
    pub fn look(&mut self, begun: &mut Begun, payload: &Payload<'_>) {
        let &Payload { is_tcp, bytes, .. } = payload;
        if payload.ports.iter().any(|port| DNS_PORTS.contains(port)) {
            if self.dns.is_none() {
                // Over TCP, the message is preceded by its length.
                let message = if is_tcp { bytes.get(2..) } else { Some(bytes) };
                self.dns = message.and_then(dns::question);
            }
            return;
        }
        match (is_tcp, bytes.first()) {
            _ if self.ja4.is_some() => {}
            (true, Some(0x16)) if self.looks == 0 => self.begin(begun, payload),
            // Once the server has begun, its stream has the place of the client's.
            (true, _) if self.looks > 0 && self.server_looks == 0 => self.go_on(begun, payload),
            (false, Some(0x16)) => {
                if let Some(hello) = Hello::of_datagram(bytes) {
                    self.found(&hello, Transport::Dtls);
                }
            }
            (false, Some(first)) if quic::may_be_initial(*first) => self.initial(begun, payload),
            _ => {}
        }
        if is_tcp && self.certificate.is_none() {
            self.look_for_certificate(begun, payload);
        }
        if let (true, None, Some(b'A'..=b'Z')) = (is_tcp, &self.http, bytes.first()) {
            self.http = http::host(bytes);
        }
    }

    /// The first payload of a TLS connection.
    fn begin(&mut self, begun: &mut Begun, payload: &Payload<'_>) {
        let Some(hello) = Hello::of_records(payload.bytes) else {
            return;
        };
        self.found(&hello, Transport::Tls);
        if !hello.whole {
            self.looks = 1;
            begun.begin_stream(payload, HELLO_MAX);
        }
    }

    /// A later payload of a TLS connection whose client hello was not whole.
    fn go_on(&mut self, begun: &mut Begun, payload: &Payload<'_>) {
        if self.is_looking() {
            let bytes = begun.stream(payload);
            if let Some(hello) = bytes.and_then(Hello::of_records) {
                self.found(&hello, Transport::Tls);
            }
        }
    }

    fn initial(&mut self, begun: &mut Begun, payload: &Payload<'_>) {
        if self.is_looking() {
            let connection = begun.connection(payload.flow, self.looks == 1);
            if let Some(hello) = connection.and_then(|connection| connection.hello(payload.bytes)) {
                self.found(&hello, Transport::Quic);
            }
        }
    }

    /// The first payloads of a TLS server.
    fn look_for_certificate(&mut self, begun: &mut Begun, payload: &Payload<'_>) {
        let is_first = self.server_looks == 0;
        let flight = match (is_first, payload.bytes.first()) {
            (true, Some(&first)) if Flight::may_begin(first) => Flight::of_records(payload.bytes),
            (false, _) if self.server_looks < SERVER_LOOKS_MAX => {
                self.server_looks = self.server_looks.saturating_add(1);
                let bytes = begun.stream(payload);
                bytes.map_or(Flight::Unfinished, Flight::of_records)
            }
            _ => return,
        };
        match flight {
            Flight::Certificate(der) => {
                self.certificate = certificate::names(&der);
                self.server_looks = SERVER_LOOKS_MAX;
            }
            Flight::Unfinished if is_first => {
                self.server_looks = 1;
                begun.begin_stream(payload, FLIGHT_MAX);
            }
            Flight::Unfinished => {}
            // As of a client, before its server.
            Flight::Other if is_first => {}
            Flight::Other => self.server_looks = SERVER_LOOKS_MAX,
        }
    }

    /// Whether one more payload is looked into; counts it.
    fn is_looking(&mut self) -> bool {
        let goes_on = self.looks < LOOKS_MAX;
        self.looks = self.looks.saturating_add(1);
        goes_on
    }

    fn found(&mut self, hello: &Hello, transport: Transport) {
        if self.server.is_none() {
            self.server = name(&hello.server);
        }
        if hello.whole {
            self.ja3 = Some(fingerprint::ja3(hello));
            self.ja4 = Some(fingerprint::ja4(hello, transport));
        }
    }
}

/// A name that a peer wrote; `None` if there is none, or it is too long.
fn name(bytes: &[u8]) -> Option<Box<str>> {
    if bytes.is_empty() || bytes.len() > NAME_MAX {
        return None;
    }
    let mut name = String::new();
    push_printable(&mut name, bytes);
    Some(name.into())
}

/// Non-printable bytes become dots: a peer may have sent anything.
fn push_printable(out: &mut String, bytes: &[u8]) {
    for &byte in bytes {
        let printable = byte.is_ascii_graphic();
        out.push(if printable { char::from(byte) } else { '.' });
    }
}
