//! Frames out of the bytes of a connection.

use strata_wire::exact;

use super::{ASK_LEN_MAX, FRAME_LEN_MAX, MAGIC, Message, MessageError};

/// Bytes of a connection into frames. Memory: a frame, and what is pushed at once.
#[derive(Debug)]
pub struct Frames {
    bytes: Vec<u8>,
    /// Where the next frame starts.
    at: usize,
    max: usize,
    /// [`MAGIC`] has yet to come.
    begins: bool,
}

impl Frames {
    /// Of a client's connection, which begins with [`MAGIC`]; frames have at most [`ASK_LEN_MAX`]
    /// bytes.
    #[must_use]
    pub fn of_client() -> Self {
        Self {
            bytes: Vec::new(),
            at: 0,
            max: ASK_LEN_MAX,
            begins: true,
        }
    }

    /// Of a server.
    #[must_use]
    pub fn of_server() -> Self {
        Self {
            bytes: Vec::new(),
            at: 0,
            max: FRAME_LEN_MAX,
            begins: false,
        }
    }

    /// From now on, frames have at most [`FRAME_LEN_MAX`] bytes.
    pub fn allow_records(&mut self) {
        self.max = FRAME_LEN_MAX;
    }

    /// Adds bytes that came.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.at > 0 {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether [`Frames::next_message`] has something to say.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let rest = &self.bytes[self.at..];
        let body = rest.split_first_chunk::<4>();
        self.begins
            || body.is_some_and(|(len, rest)| {
                let len = exact::<usize>(u32::from_le_bytes(*len));
                len > self.max || rest.len() >= len
            })
    }

    /// The next message, if it is there as a whole.
    ///
    /// # Errors
    ///
    /// If what came is invalid. Then nothing that follows can be read.
    pub fn next_message(&mut self) -> Result<Option<Message<'_>>, MessageError> {
        if self.begins {
            let there = self.bytes.len().min(MAGIC.len());
            if self.bytes[..there] != MAGIC[..there] {
                return Err(MessageError::Magic);
            }
            if there < MAGIC.len() {
                return Ok(None);
            }
            self.at = there;
            self.begins = false;
        }
        let Some((len, rest)) = self.bytes[self.at..].split_first_chunk::<4>() else {
            return Ok(None);
        };
        let len = exact::<usize>(u32::from_le_bytes(*len));
        if len > self.max {
            let max = self.max;
            return Err(MessageError::Long { len, max });
        }
        let Some(frame) = rest.get(..len) else {
            return Ok(None);
        };
        // Within the bytes: the frame was.
        self.at = self.at.wrapping_add(len).wrapping_add(4);
        Message::parse(frame).map(Some)
    }
}
