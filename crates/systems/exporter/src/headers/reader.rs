//! Headers from datagrams.

use super::fields::OUT_LEN;
use super::model::Model;
use super::{Header, Invalid, fast, head, other, read};
use crate::bits::Reader;
use crate::datagram::{Datagram, FormatError, HEADER_LEN, Kind, LEN_MAX};

/// Reads datagrams of any source: nothing is kept from one to the next. Takes about 50 KiB and twice the length of a
/// datagram.
#[derive(Debug)]
pub struct HeaderReader {
    model: Model,
    padded: Vec<u8>,
    /// A plain header, and any other.
    plain: [u8; OUT_LEN],
    other: Vec<u8>,
    /// Whether [`fast::read`] reads what it can. Tests compare what [`super::read`] makes of it.
    pub(super) is_fast: bool,
}

impl Default for HeaderReader {
    fn default() -> Self {
        Self::new()
    }
}

impl HeaderReader {
    /// A reader.
    #[must_use]
    pub fn new() -> Self {
        Self {
            model: Model::new(),
            padded: vec![0; Reader::PAD],
            plain: [0; OUT_LEN],
            other: Vec::new(),
            is_fast: true,
        }
    }

    /// Calls `take` with each packet's number and header; returns the datagram's header.
    ///
    /// # Errors
    ///
    /// If the bytes are not a valid datagram, or at the first invalid record; the records before it were taken.
    pub fn read(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(u64, &Header<'_>),
    ) -> Result<Datagram, FormatError> {
        let wrong = |what, offset: usize| FormatError {
            what,
            offset: offset.min(bytes.len()),
            len: bytes.len(),
        };
        let datagram = Datagram::read(bytes)?;
        datagram.expect(Kind::Headers, bytes.len())?;
        if bytes.len() > LEN_MAX {
            return Err(wrong("longer than any datagram", LEN_MAX));
        }
        // Zeros before the datagram stay there.
        self.padded.truncate(Reader::PAD);
        self.padded.extend_from_slice(bytes);
        self.padded
            .resize(bytes.len().wrapping_add(Reader::PAD.wrapping_mul(2)), 0);
        let model = &mut self.model;
        model.restart(datagram.time_ns);
        let mut reader = Reader::new(&self.padded, HEADER_LEN);
        for number in 0..u64::from(datagram.packets) {
            let start = reader.front();
            let r = &mut reader;
            let kind = head::read_head(r, model);
            let difference = head::read_time(r, &datagram);
            model.time_ns = model.time_ns.wrapping_add(difference);
            let refused = |Invalid(what)| wrong(what, start);
            if kind.has_label() {
                head::read_label(r, model).map_err(refused)?;
            }
            let (wire_len, bytes) = if kind.is_other() {
                let wire_len =
                    other::read(r, &mut model.others, &mut self.other).map_err(refused)?;
                (wire_len, &self.other[..])
            } else {
                let out = &mut self.plain;
                let fast = if !cfg!(test) || self.is_fast {
                    fast::read::read(r, model, kind, out)
                } else {
                    None
                };
                let read = fast.unwrap_or_else(|| read::plain(r, model, kind, out));
                let read = read.map_err(refused)?;
                (read.wire_len, &self.plain[read.start..read.end])
            };
            if r.rest().is_none() {
                return Err(wrong("a truncated record", start));
            }
            let header = Header {
                ts_ns: model.time_ns,
                wire_len,
                bytes,
                label: model.label,
            };
            take(datagram.first_packet.wrapping_add(number), &header);
        }
        let end = reader.front();
        if !reader.is_at_end() {
            return Err(wrong("bytes after the last record", end));
        }
        Ok(datagram)
    }
}
