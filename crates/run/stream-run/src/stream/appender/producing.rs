//! Appending for producers, whose records have numbers of their own.

use strata_stream::{AppendError, StreamName};

use super::{LIST_PART, StreamAppender};
use crate::error::{Result, StreamError};

impl StreamAppender {
    /// A producer connects: the number of its next record. Those that are not connected, and have been silent for long,
    /// may be forgotten.
    ///
    /// # Errors
    ///
    /// If there are too many, or the stream's file cannot be written.
    pub fn meet(
        &mut self,
        (id, name): (u64, &StreamName),
        now_ns: u64,
        is_connected: impl Fn(u64) -> bool,
    ) -> Result<u64> {
        if !self.state.is_producers {
            let is_first = !self.state.has_producers;
            (self.state.has_producers, self.state.is_producers) = (true, true);
            self.file.write_state(&self.state)?;
            // Before any of their records is there.
            if is_first {
                self.file.sync()?;
            }
        }
        let is_known = self.producers.get(id).is_some();
        let next = self.producers.meet(id, name, now_ns);
        let len_max = self.file.geometry().page_len() / LIST_PART;
        let is_needed = |other| other == id || is_connected(other);
        self.producers.forget(now_ns, len_max, is_needed);
        if self.producers.mark_len() > len_max {
            if !is_known {
                self.producers.remove(id);
            }
            return Err(StreamError::Producers {
                name: self.file.description.name.to_string(),
            });
        }
        Ok(next)
    }

    /// Appends a record of a producer that has connected, with its number among the producer's records, unless the
    /// stream has it; whether it had not.
    ///
    /// # Errors
    ///
    /// As of [`StreamAppender::append`].
    pub fn append_of(
        &mut self,
        now_ns: u64,
        (id, number): (u64, u64),
        payload: &[u8],
    ) -> Result<bool> {
        let Some(producer) = self.producers.get(id) else {
            return Err(StreamError::Failed {
                file: self.file.path.clone(),
            });
        };
        if number < producer.next {
            return Ok(false);
        }
        self.append_record(now_ns, Some((id, number)), payload)?;
        self.producers.took(id, number.wrapping_add(1), now_ns);
        Ok(true)
    }

    /// A producer appends no more, which the stream notes.
    ///
    /// # Errors
    ///
    /// As of [`StreamAppender::append`].
    pub fn end_producer(&mut self, now_ns: u64, id: u64) -> Result<()> {
        self.producers.end(id);
        let Some(writer) = &mut self.writer else {
            return Ok(());
        };
        match writer.end_producer(&mut self.memory, now_ns, id) {
            Ok(()) => Ok(()),
            // The next page says so.
            Err(AppendError::Full | AppendError::TooLong { .. }) => Ok(()),
            Err(AppendError::Blocks(error)) => self.survive(error, now_ns),
        }
    }

    /// A producer is gone; one that has appended nothing is forgotten.
    pub fn leave(&mut self, id: u64) {
        if self.producers.get(id).is_some_and(|gone| gone.next == 0) {
            self.producers.remove(id);
        }
    }
}
