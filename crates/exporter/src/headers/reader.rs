//! Headers from datagrams.

use super::Header;
use super::code::Invalid;
use super::flow::Place;
use super::head;
use super::kind::Form;
use super::model::Model;
use super::other;
use super::plain::Plain;
use super::record;
use crate::bits::{BitReader, Bits};
use crate::datagram::{Datagram, FormatError, HEADER_LEN, Kind, LEN_MAX};

/// Reads datagrams of any source: nothing is kept from one to the next. Takes some 50 KiB and twice
/// the length of a datagram.
#[derive(Debug)]
pub struct HeaderReader {
    model: Model,
    padded: Vec<u8>,
    header: Vec<u8>,
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
            padded: Vec::new(),
            header: Vec::new(),
        }
    }

    /// Calls `take` with each packet's number and header; returns what the datagram says about
    /// itself.
    ///
    /// # Errors
    ///
    /// If the datagram is not one of ours, or from the first record on that cannot be; those before
    /// it were taken.
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
        self.padded.clear();
        self.padded.extend_from_slice(bytes);
        self.padded.resize(bytes.len() + BitReader::PAD, 0);
        self.model.restart(datagram.time_ns);
        let mut bits = BitReader::new(&self.padded, HEADER_LEN);
        for number in 0..u64::from(datagram.packets) {
            let start = bits.len();
            let (model, header) = (&mut self.model, &mut self.header);
            let (ts_ns, wire_len) = record(&mut bits, model, &datagram, header)
                .map_err(|Invalid(what)| wrong(what, start))?;
            if bits.is_past_end() {
                return Err(wrong("a cut record", start));
            }
            let header = Header {
                ts_ns,
                wire_len,
                bytes: &self.header,
                label: self.model.label,
            };
            take(datagram.first_packet + number, &header);
        }
        let end = bits.len();
        if end != bytes.len() || !bits.ends_with_zeros() {
            return Err(wrong("bytes after the last record", end));
        }
        Ok(datagram)
    }
}

/// Reads a record; the header is in `out`.
#[inline(always)]
fn record(
    b: &mut BitReader<'_>,
    m: &mut Model,
    datagram: &Datagram,
    out: &mut Vec<u8>,
) -> Result<(u64, u32), Invalid> {
    let head = head::head(b, m, 0, 0);
    let ones = b.ones();
    let ts_ns = head::read_time(b, datagram, m.time_ns, ones);
    m.time_ns = ts_ns;
    if head.has_label {
        b.apart(|b| head::label(b, m, m.label))?;
    }
    if head.form == Form::Other {
        let wire_len = b.apart(|b| other::read(b, &mut m.others, out))?;
        return Ok((ts_ns, wire_len));
    }
    let mut fields = Plain::EMPTY;
    let mut place = Place {
        form: head.form,
        context: 0,
        side: 0,
        prefix: 0,
        known: [None; 2],
    };
    let mut wire_len = 0;
    record::plain(b, m, &mut fields, &mut place, &head, 0, &mut wire_len, &[])?;
    out.clear();
    out.extend_from_slice(m.prefixes[place.prefix].bytes());
    fields.emit(out);
    Ok((ts_ns, wire_len))
}
