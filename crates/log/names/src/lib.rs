//! What the first payload of a flow reveals: names that a client asks for, fingerprints of the client, names of the
//! server, and details of requests and responses.
//!
//! - [`Names`]: what was found in a flow, packet by packet.
//! - [`Begun`]: messages of all flows that go on in a later packet.
//!
//! ```text
//! lib            which protocol a payload may be of
//! dns            questions and answers
//! http           requests and status lines
//! ssh            versions of both sides
//! modbus         function codes
//! smb            dialects and shares
//! hello          the client hello of TLS, as far as it is there; its records, in TCP and in DTLS
//! fingerprint    JA3 and JA4 of a client hello
//! server         what a TLS server has chosen, and its certificate
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
#[cfg(test)]
mod details_tests;
mod dns;
mod fingerprint;
mod hello;
mod http;
mod modbus;
mod quic;
mod server;
mod smb;
mod ssh;
#[cfg(test)]
mod tests;

pub use begun::Begun;
use fingerprint::Transport;
use hello::{HELLO_MAX, Hello};
pub use modbus::Functions;
pub use server::Chosen;
use server::{FLIGHT_MAX, Flight};
pub use smb::{Shares, dialect_text};

/// Longer names are invalid (RFC 1035 §2.3.4).
const NAME_MAX: usize = 255;
/// Payloads of a flow that are looked into for the rest of a client hello.
const LOOKS_MAX: u8 = 16;
/// Those that are looked into for the rest of a certificate, of both directions.
const SERVER_LOOKS_MAX: u8 = 32;
/// Payloads of DNS that are looked into for a response, from the one with a name on.
const DNS_LOOKS_MAX: u8 = 16;
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
    /// What the server of TLS or DTLS has chosen, if its hello was there.
    pub chosen: Option<Chosen>,
    /// The version of QUIC of the client's first Initial packet that could be decrypted.
    pub quic: Option<u32>,
    /// The host of an HTTP request.
    pub http: Option<Box<str>>,
    /// More of these protocols; `None` where there is nothing.
    pub details: Option<Box<Details>>,
    /// Payloads that were looked into after a part of a client hello; 0 before.
    looks: u8,
    /// Payloads that were looked into after the beginning of a server's records; 0 before.
    server_looks: u8,
}

/// What is known of requests and responses in a flow, of the first of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// The type of the DNS question whose name is known (IANA, DNS Parameters).
    pub dns_query_type: Option<u16>,
    /// The code of the first DNS response, 0 to 15 (IANA, DNS Parameters).
    pub dns_response_code: Option<u8>,
    /// Addresses in the answers of the first DNS response, as far as it was there: a JSON list of at
    /// most 16.
    pub dns_answers: Option<Box<str>>,
    /// The method of the first HTTP request; `None` if it has more than 32 characters.
    pub http_method: Option<Box<str>>,
    /// Its target: the first 1,024 characters.
    pub http_uri: Option<Box<str>>,
    /// Its User-Agent field, as far as its packet has it: the first 512 characters.
    pub http_user_agent: Option<Box<str>>,
    /// The code of the first HTTP response, 100 to 999.
    pub http_status: Option<u16>,
    /// The version line of SSH by the direction of the payload: at most 255 characters.
    pub ssh_version: [Option<Box<str>>; 2],
    /// Function codes of all Modbus messages, as far as they were there.
    pub modbus_functions: Functions,
    /// The dialect of SMB 2 or 3 in the last response to a negotiation.
    pub smb_dialect: Option<u16>,
    /// Paths of shares that the client connects to by SMB 2 or 3.
    pub smb_shares: Shares,
    /// Payloads of DNS that were looked into, from the one with a name on.
    dns_looks: u8,
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
    /// 0 or 1: the same for all payloads of one side.
    pub direction: usize,
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
            // Over TCP, the message is preceded by its length.
            let message = if is_tcp { bytes.get(2..) } else { Some(bytes) };
            self.look_at_dns(message);
            return;
        }
        if let (false, Some(0x16), None) = (is_tcp, bytes.first(), self.chosen) {
            self.chosen = Chosen::of_datagram(bytes);
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
        if is_tcp {
            self.look_at_request(payload);
        }
    }

    /// A message of DNS, if its first bytes are there.
    fn look_at_dns(&mut self, message: Option<&[u8]>) {
        let known = self.details.as_deref();
        let is_done = known.is_some_and(|details| {
            let is_answered = self.dns.is_some() && details.dns_response_code.is_some();
            is_answered || details.dns_looks == DNS_LOOKS_MAX
        });
        if is_done {
            return;
        }
        let Some(message) = message.and_then(dns::message) else {
            return;
        };
        let details = self.details.get_or_insert_default();
        if let (None, Some((name, kind))) = (&self.dns, message.question) {
            self.dns = name;
            details.dns_query_type = kind;
        }
        // A name is looked for until there is one.
        if self.dns.is_some() {
            details.dns_looks = details.dns_looks.saturating_add(1);
        }
        if let (None, Some(response)) = (details.dns_response_code, message.response) {
            details.dns_response_code = Some(response.code);
            details.dns_answers = response.answers;
        }
    }

    /// Requests and responses of HTTP, SSH and Modbus, over TCP.
    fn look_at_request(&mut self, payload: &Payload<'_>) {
        let bytes = payload.bytes;
        if payload.ports.iter().any(|port| smb::PORTS.contains(port))
            && let Some(found) = smb::Found::of(bytes)
        {
            let details = self.details.get_or_insert_default();
            found.into(&mut details.smb_dialect, &mut details.smb_shares);
            return;
        }
        let functions = match payload.ports.contains(&modbus::PORT) {
            true => Functions::of(bytes),
            false => Functions::default(),
        };
        if !functions.is_empty() {
            let details = self.details.get_or_insert_default();
            details.modbus_functions.add(functions);
        } else if bytes.starts_with(b"HTTP/1.") {
            let known = self.details.as_deref();
            if known.is_none_or(|details| details.http_status.is_none())
                && let Some(code) = http::status(bytes)
            {
                self.details.get_or_insert_default().http_status = Some(code);
            }
        } else if bytes.starts_with(b"SSH-") {
            let direction = payload.direction & 1;
            let known = self.details.as_deref();
            if known.is_none_or(|details| details.ssh_version[direction].is_none())
                && let Some(version) = ssh::version(bytes)
            {
                self.details.get_or_insert_default().ssh_version[direction] = Some(version);
            }
        } else if let Some(b'A'..=b'Z') = bytes.first() {
            let known = self.details.as_deref();
            let is_first = known.is_none_or(|details| details.http_uri.is_none());
            if (is_first || self.http.is_none())
                && let Some(request) = http::request(bytes)
            {
                if self.http.is_none() {
                    self.http = request.host;
                }
                if is_first {
                    let details = self.details.get_or_insert_default();
                    details.http_method = request.method;
                    details.http_uri = Some(request.uri);
                    details.http_user_agent = request.user_agent;
                }
            }
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
            let Some(connection) = begun.connection(payload.flow, self.looks == 1) else {
                return;
            };
            let hello = connection.hello(payload.bytes);
            self.quic = self.quic.or(connection.version());
            if let Some(hello) = hello {
                self.found(&hello, Transport::Quic);
            }
        }
    }

    /// The first payloads of a TLS server.
    fn look_for_certificate(&mut self, begun: &mut Begun, payload: &Payload<'_>) {
        let is_first = self.server_looks == 0;
        let records = match (is_first, payload.bytes.first()) {
            (true, Some(&first)) if Flight::may_begin(first) => Some(payload.bytes),
            (false, _) if self.server_looks < SERVER_LOOKS_MAX => {
                self.server_looks = self.server_looks.saturating_add(1);
                begun.stream(payload)
            }
            _ => return,
        };
        if let (None, Some(records)) = (self.chosen, records) {
            self.chosen = Chosen::of_records(records);
        }
        let flight = records.map_or(Flight::Unfinished, Flight::of_records);
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

/// A text that a peer wrote, with spaces: its first `max` bytes; `None` if there is none.
fn text(bytes: &[u8], max: usize) -> Option<Box<str>> {
    let bytes = bytes.get(..max).unwrap_or(bytes);
    let printable = |&byte: &u8| match byte {
        b' '..=b'~' => char::from(byte),
        _ => '.',
    };
    let text: String = bytes.iter().map(printable).collect();
    (!text.is_empty()).then(|| text.into())
}

/// Non-printable bytes become dots: a peer may have sent anything.
fn push_printable(out: &mut String, bytes: &[u8]) {
    for &byte in bytes {
        let printable = byte.is_ascii_graphic();
        out.push(if printable { char::from(byte) } else { '.' });
    }
}
