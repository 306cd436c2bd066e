//! Messages of which a part has come.

use crate::hello::HELLO_MAX;
use crate::quic::Connection;

/// Flows whose messages are kept: of two flows that share a slot, only the later one's.
const SLOTS: u32 = 1_024;

/// Messages that go on in a later packet of their flow: at most 1,024, of 8 KiB (TCP) or 16 KiB (QUIC, where parts may
/// overlap), 16 MiB in all. When there is no room, the older message is given up, and its flow has no fingerprint.
#[derive(Debug, Default)]
pub struct Begun {
    slots: Vec<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    flow: u32,
    message: Message,
}

#[derive(Debug, Default)]
enum Message {
    #[default]
    None,
    Stream {
        bytes: Vec<u8>,
        /// The sequence number of the byte after them.
        next: u32,
    },
    Quic(Box<Connection>),
}

impl Begun {
    fn slot(&mut self, flow: u32) -> &mut Slot {
        if self.slots.is_empty() {
            self.slots.resize_with(SLOTS as usize, Slot::default);
        }
        &mut self.slots[(flow % SLOTS) as usize]
    }

    /// A TCP stream that begins with these bytes.
    pub(crate) fn begin_stream(&mut self, flow: u32, sequence: u32, bytes: &[u8]) {
        let Some(next) = after(sequence, bytes).filter(|_| bytes.len() < HELLO_MAX) else {
            return;
        };
        let bytes = bytes.to_vec();
        let message = Message::Stream { bytes, next };
        *self.slot(flow) = Slot { flow, message };
    }

    /// The first [`HELLO_MAX`] bytes of a stream, with those that have come now; `None` if others have to come first.
    pub(crate) fn stream(&mut self, flow: u32, sequence: u32, bytes: &[u8]) -> Option<&[u8]> {
        let slot = self.slot(flow);
        let Message::Stream { bytes: known, next } = &mut slot.message else {
            return None;
        };
        if slot.flow != flow || *next != sequence {
            return None;
        }
        *next = after(sequence, bytes)?;
        let room = HELLO_MAX.saturating_sub(known.len());
        known.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        Some(known)
    }

    /// The QUIC connection of a flow: another one if it is its first packet. `None` if it had to make way.
    pub(crate) fn connection(&mut self, flow: u32, is_first: bool) -> Option<&mut Connection> {
        let slot = self.slot(flow);
        if is_first {
            let message = Message::Quic(Box::default());
            *slot = Slot { flow, message };
        }
        match &mut slot.message {
            Message::Quic(connection) if slot.flow == flow => Some(connection),
            _ => None,
        }
    }
}

fn after(sequence: u32, bytes: &[u8]) -> Option<u32> {
    Some(sequence.wrapping_add(u32::try_from(bytes.len()).ok()?))
}
