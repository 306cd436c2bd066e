//! Payloads, as far as a dissector looks at them.
#![allow(
    clippy::cast_possible_truncation,
    reason = "header fields hold low bits"
)]

use strata_wire::{exact, mix64};

use crate::bytes::{decimal, hex, letters, put};
use crate::dns::dns;
use crate::flow::{CLIENT, Flow, Shape};
use crate::kind::Content;

/// Overwrites the payload of a packet, which is noise or zeros, with what its application would
/// send.
#[inline]
pub(crate) fn write(content: Content, flow: &Flow, shape: &Shape, payload: &mut [u8]) {
    match content {
        Content::Noise => {}
        Content::Tls => tls(payload),
        Content::Quic => quic(flow.number, shape.side, payload),
        Content::Ping => ping(payload),
        Content::Probe => letters(&mut payload[..PROBE_LEN]),
        Content::Http => {
            match shape.message_len {
                Some(message_len) => http(flow, shape.side == CLIENT, message_len, payload),
                // Not text, which could be mistaken for header lines.
                None => payload[0] |= 0x80,
            }
        }
        Content::HeaderLines => header_lines(payload),
        Content::Dns => dns(flow.number, shape.side == CLIENT, payload),
        Content::Lines(lines) => line(flow.number, lines[usize::from(shape.line)], payload),
    }
}

/// One record of application data (RFC 8446 §5.1) a segment.
#[inline]
fn tls(payload: &mut [u8]) {
    let Some(record_len) = payload.len().checked_sub(5) else {
        return;
    };
    let length = exact::<u16>(record_len).to_be_bytes();
    payload[..5].copy_from_slice(&[0x17, 3, 3, length[0], length[1]]);
}

/// A short header: the fixed bit, and a connection identifier for each direction
/// (RFC 9000 §17.3.1).
#[inline]
fn quic(number: u64, side: usize, payload: &mut [u8]) {
    let mut connection = mix64(number ^ (side as u64) << 63).to_be_bytes();
    connection[0] |= 0x80;
    if let Some((first, rest)) = payload.split_first_mut() {
        *first = *first & 0x3f | 0x40;
        put(rest, [&connection]);
    }
}

/// Bytes that identify a payload as no known protocol.
const PROBE_LEN: usize = 16;

/// Consecutive bytes after the time of sending, as in Linux's ping.
fn ping(payload: &mut [u8]) {
    for (byte, value) in payload.iter_mut().zip(8..).skip(8) {
        *byte = value;
    }
}

fn http(flow: &Flow, asks: bool, message_len: u32, payload: &mut [u8]) {
    const LENGTH: &[u8] = b"Content-Length: ";
    const DIGITS: usize = 9;
    const END: &[u8] = b"\r\n\r\n";
    let body = |head: usize| {
        let bytes = u64::from(message_len).saturating_sub(head as u64);
        decimal::<DIGITS>(bytes)
    };
    if !asks {
        const STATUS: &[u8] = b"HTTP/1.1 200 OK\r\n";
        let body = body(STATUS.len() + LENGTH.len() + DIGITS + END.len());
        put(payload, [STATUS, LENGTH, &body, END]);
        return;
    }
    let path = hex::<12>(mix64(flow.number));
    let host = hex::<5>(u64::from(flow.hosts[1]));
    let whole = message_len as usize == payload.len();
    let method: &[u8] = if whole { b"GET /" } else { b"POST /" };
    let version = b" HTTP/1.1\r\nHost: ";
    let domain = b".example.com\r\n";
    let at = put(payload, [method, &path, version, &host, domain]);
    if whole {
        const COOKIE: &[u8] = b"Cookie: ";
        let rest = &mut payload[at..];
        let Some(end) = rest.len().checked_sub(END.len()) else {
            return;
        };
        letters(rest);
        rest[end..].copy_from_slice(END);
        if end > COOKIE.len() {
            rest[..COOKIE.len()].copy_from_slice(COOKIE);
        }
    } else {
        let body = body(at + LENGTH.len() + DIGITS + END.len());
        put(&mut payload[at..], [LENGTH, &body, END]);
    }
}

fn header_lines(payload: &mut [u8]) {
    letters(payload);
    if let Some(end) = payload.len().checked_sub(2) {
        payload[end..].copy_from_slice(b"\r\n");
    }
    if payload.len() > 6 {
        payload[1..3].copy_from_slice(b": ");
    }
}

/// Copies a line, replacing its number signs by a password.
fn line(number: u64, line: &str, payload: &mut [u8]) {
    let mut secret = mix64(number);
    for (to, &from) in payload.iter_mut().zip(line.as_bytes()) {
        *to = from;
        if from == b'#' {
            *to = b'a' + (secret & 15) as u8;
            secret >>= 4;
        }
    }
}
