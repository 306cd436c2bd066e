//! What a DNS message asks for, and what it answers.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{NAME_MAX, push_printable};
use crate::bytes::Bytes;

const LABEL_MAX: u8 = 63;
/// The two bits of a length that make it a pointer (RFC 1035 §4.1.4).
const POINTER: u8 = 0xc0;
/// Answers that are looked at, and addresses that are kept.
const ANSWERS_MAX: u16 = 64;
const ADDRESSES_MAX: usize = 16;
/// Types of records, and the class of the Internet (RFC 1035 §3.2, RFC 3596 §2.1).
const A: u16 = 1;
const AAAA: u16 = 28;
const INTERNET: u16 = 1;
/// Not part of the class in multicast DNS (RFC 6762 §10.2).
const CACHE_FLUSH: u16 = 0x8000;

/// A message, as far as it was there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// Name and type of the first question; the root has no name, and the type may not have been there.
    pub(crate) question: Option<(Option<Box<str>>, Option<u16>)>,
    /// `None` for a query.
    pub(crate) response: Option<Response>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Response {
    /// The code in its header (RFC 1035 §4.1.1), 0 to 15.
    pub(crate) code: u8,
    /// Addresses in its answers, in order: a JSON list.
    pub(crate) answers: Option<Box<str>>,
}

/// A message (RFC 1035 §4.1); `None` if its header was not there.
pub(crate) fn message(message: &[u8]) -> Option<Message> {
    let mut left = Bytes(message);
    left.take(2)?;
    let flags = left.word()?;
    let [questions, answers] = [left.word()?, left.word()?];
    // The numbers of other records.
    left.take(4)?;
    let question = match questions {
        0 => None,
        _ => question(&mut left),
    };
    let is_response = flags & 0x8000 != 0;
    let code = u8::try_from(flags & 0xf).ok()?;
    let response = is_response.then(|| Response {
        code,
        answers: match questions {
            0 => addresses(&mut left, answers),
            // Of more questions the rest would have to be passed over; none has them.
            1 if question.is_some() => addresses(&mut left, answers),
            _ => None,
        },
    });
    Some(Message { question, response })
}

/// The first question, of which type and class follow its name.
fn question(left: &mut Bytes<'_>) -> Option<(Option<Box<str>>, Option<u16>)> {
    let mut name = String::new();
    loop {
        let len = left.byte()?;
        if len == 0 {
            break;
        }
        // The first name is not compressed.
        if len > LABEL_MAX {
            return None;
        }
        let label = left.take(len.into())?;
        if !name.is_empty() {
            name.push('.');
        }
        push_printable(&mut name, label);
        if name.len() > NAME_MAX {
            return None;
        }
    }
    let kind = left.word();
    left.take(2);
    let name = (!name.is_empty()).then(|| name.into());
    Some((name, kind))
}

/// Addresses in the first records, as far as these were there.
fn addresses(left: &mut Bytes<'_>, records: u16) -> Option<Box<str>> {
    let mut list = String::new();
    let mut found = 0_usize;
    for _ in 0..records.min(ANSWERS_MAX) {
        let Some((kind, data)) = record(left) else {
            break;
        };
        let address = match kind {
            A => <[u8; 4]>::try_from(data).map(|bytes| Ipv4Addr::from(bytes).to_string()),
            AAAA => <[u8; 16]>::try_from(data).map(|bytes| Ipv6Addr::from(bytes).to_string()),
            _ => continue,
        };
        let Ok(address) = address else {
            continue;
        };
        list.push_str(if found == 0 { "[\"" } else { ",\"" });
        list.push_str(&address);
        list.push('"');
        found = found.saturating_add(1);
        if found == ADDRESSES_MAX {
            break;
        }
    }
    if found == 0 {
        return None;
    }
    list.push(']');
    Some(list.into())
}

/// Type and data of a record of the Internet; the type 0 for others.
fn record<'a>(left: &mut Bytes<'a>) -> Option<(u16, &'a [u8])> {
    skip_name(left)?;
    let [kind, class] = [left.word()?, left.word()?];
    // Time to live.
    left.take(4)?;
    let data = left.long()?;
    let is_internet = class & !CACHE_FLUSH == INTERNET;
    Some((if is_internet { kind } else { 0 }, data))
}

/// Passes over a name, whose labels are shorter than the message.
fn skip_name(left: &mut Bytes<'_>) -> Option<()> {
    loop {
        match left.byte()? {
            0 => return Some(()),
            pointer if pointer & POINTER == POINTER => {
                left.byte()?;
                return Some(());
            }
            len if len > LABEL_MAX => return None,
            len => {
                left.take(len.into())?;
            }
        }
    }
}
