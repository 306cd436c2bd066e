//! Function codes of Modbus over TCP.

use crate::bytes::Bytes;

pub(crate) const PORT: u16 = 502;

/// Bytes after the length field: unit and function, and at most 253 bytes of function and data (MODBUS Application
/// Protocol Specification V1.1b3 §4.1).
const LEN_MIN: u16 = 2;
const LEN_MAX: u16 = 254;
/// Added to the function code by a server that refuses.
const EXCEPTION: u8 = 0x80;

/// A set of function codes, 1 to 127.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Functions(u128);

impl Functions {
    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The codes, in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (1..EXCEPTION).filter(move |&code| self.has(code))
    }

    /// The codes as a JSON list; `None` without any.
    #[must_use]
    pub fn list(self) -> Option<String> {
        if self.is_empty() {
            return None;
        }
        let codes: Vec<String> = self.iter().map(|code| code.to_string()).collect();
        Some(format!("[{}]", codes.join(",")))
    }

    fn has(self, code: u8) -> bool {
        1_u128
            .checked_shl(code.into())
            .is_some_and(|bit| self.0 & bit != 0)
    }

    /// The functions of the messages that a payload holds, those of refusals too.
    pub(crate) fn of(payload: &[u8]) -> Self {
        let (mut left, mut functions) = (Bytes(payload), Self::default());
        // Each takes at least 8 bytes.
        while let Some(function) = function(&mut left) {
            // Code 0 is not valid.
            if let Some(bit @ 2..) = 1_u128.checked_shl(u32::from(function & !EXCEPTION)) {
                functions.0 |= bit;
            }
        }
        functions
    }

    /// Adds those of another set.
    pub(crate) fn add(&mut self, more: Self) {
        self.0 |= more.0;
    }
}

/// The function code of the next message. One that goes on in a later packet is the last.
fn function(left: &mut Bytes<'_>) -> Option<u8> {
    // Transaction.
    left.take(2)?;
    let (protocol, len) = (left.word()?, left.word()?);
    if protocol != 0 || !(LEN_MIN..=LEN_MAX).contains(&len) {
        return None;
    }
    let mut message = Bytes(match left.take(len.into()) {
        Some(message) => message,
        None => std::mem::take(&mut left.0),
    });
    // Unit.
    message.byte()?;
    message.byte()
}
