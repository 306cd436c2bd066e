//! Messages of which a part has come.

use crate::Payload;
use crate::quic::Connection;

/// Flows whose messages are kept: of two flows that share a slot, only the later one's.
const SLOTS: u32 = 1_024;

/// Messages that go on in a later packet of their flow: at most 1,024, each of 16 KiB at most, 16 MiB in all. A flow has
/// one at a time: that of its client, then that of its server. When there is no room, the older message is given up, and
/// its flow has no fingerprint, or no names of a certificate.
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
        /// The number of bytes that are kept.
        max: usize,
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

    /// A TCP stream that begins with these bytes, and of which at most `max` are kept.
    pub(crate) fn begin_stream(&mut self, payload: &Payload<'_>, max: usize) {
        let &Payload {
            flow,
            sequence,
            bytes,
            ..
        } = payload;
        let Some(next) = after(sequence, bytes).filter(|_| bytes.len() < max) else {
            return;
        };
        let bytes = bytes.to_vec();
        let message = Message::Stream { bytes, max, next };
        *self.slot(flow) = Slot { flow, message };
    }

    /// The first bytes of a stream, with those that have come now; `None` if others have to come first.
    pub(crate) fn stream(&mut self, payload: &Payload<'_>) -> Option<&[u8]> {
        let &Payload {
            flow,
            sequence,
            bytes,
            ..
        } = payload;
        let slot = self.slot(flow);
        let Message::Stream {
            bytes: known,
            max,
            next,
        } = &mut slot.message
        else {
            return None;
        };
        if slot.flow != flow {
            return None;
        }
        // What is sent again may have more at its end.
        let again = usize::try_from(next.wrapping_sub(sequence)).ok()?;
        let fresh = bytes.get(again..).filter(|fresh| !fresh.is_empty())?;
        *next = after(sequence, bytes)?;
        let room = max.saturating_sub(known.len());
        known.extend_from_slice(fresh.get(..room).unwrap_or(fresh));
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
