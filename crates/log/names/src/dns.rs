//! The name that a DNS message asks for.

use super::{NAME_MAX, push_printable};
use crate::bytes::Bytes;

const LABEL_MAX: u8 = 63;

/// The name of the first question (RFC 1035 §4.1).
pub(crate) fn question(message: &[u8]) -> Option<Box<str>> {
    let mut message = Bytes(message);
    // Identification and flags; after the questions, the numbers of other records.
    message.take(4)?;
    if message.word()? == 0 {
        return None;
    }
    message.take(6)?;
    let mut name = String::new();
    loop {
        let len = message.byte()?;
        if len == 0 {
            break;
        }
        // The first name is not compressed.
        if len > LABEL_MAX {
            return None;
        }
        let label = message.take(len.into())?;
        if !name.is_empty() {
            name.push('.');
        }
        push_printable(&mut name, label);
        if name.len() > NAME_MAX {
            return None;
        }
    }
    (!name.is_empty()).then(|| name.into())
}
