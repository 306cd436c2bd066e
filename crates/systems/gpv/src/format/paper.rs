//! The paper's format (version 1): a header of 192 bits and tuples of 32 bits (section 6.2), or of
//! 64 with a TCP sequence number (section 6.3), all in network byte order.
//!
//! What the paper leaves open: the start time is in ns since 1970, time deltas are in whole us,
//! fields lie in the order in which the paper names them, the first in the highest bits. A size
//! of 2,047 is that or more. IPv4 only, and no reason: [`Reason::Unknown`] is read.

use strata_wire::{AddressFamily, Endpoint, exact};
use zerocopy::{FromBytes, IntoBytes};

use super::layout::PaperHeader;
use super::{FormatError, NotCarried, PAST, start_ns_max};
use crate::key::Key;
use crate::tuple::{BASIC_SIZE_MAX, Basic, Sequenced, Tuple};
use crate::vector::{Grouped, Reason, Vector};

/// Bytes of the header.
pub const HEADER_LEN: usize = size_of::<PaperHeader>();

/// A tuple that the paper's format carries.
pub trait PaperTuple: Tuple {
    /// Bytes on the wire.
    const LEN: usize;

    /// Appends the tuple.
    fn put(&self, out: &mut Vec<u8>);

    /// The tuple of these bytes, of which there are [`PaperTuple::LEN`].
    fn held(bytes: &[u8]) -> Self;
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([
        bytes[at],
        bytes[at.wrapping_add(1)],
        bytes[at.wrapping_add(2)],
        bytes[at.wrapping_add(3)],
    ])
}

impl PaperTuple for Basic {
    const LEN: usize = 4;

    #[inline]
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_be_bytes());
    }

    #[inline]
    fn held(bytes: &[u8]) -> Self {
        Self(word(bytes, 0))
    }
}

impl PaperTuple for Sequenced {
    const LEN: usize = 8;

    #[inline]
    fn put(&self, out: &mut Vec<u8>) {
        self.basic.put(out);
        out.extend_from_slice(&self.tcp_seq.to_be_bytes());
    }

    #[inline]
    fn held(bytes: &[u8]) -> Self {
        Self {
            basic: Basic::held(bytes),
            tcp_seq: word(bytes, 4),
        }
    }
}

/// Appends a vector.
///
/// # Errors
///
/// If the format does not carry it; nothing is appended then.
pub fn emit<T: PaperTuple>(vector: &Vector<'_, T>, out: &mut Vec<u8>) -> Result<(), NotCarried> {
    let key = &vector.key;
    if key.family() != AddressFamily::Ipv4 {
        return Err(NotCarried::Family);
    }
    let ingress = u8::try_from(key.ingress()).map_err(|_| NotCarried::Ingress(key.ingress()))?;
    let count = count(vector.count())?;
    let header = PaperHeader {
        source: exact::<u32>(key.source().address).into(),
        destination: exact::<u32>(key.destination().address).into(),
        source_port: key.source().port.into(),
        destination_port: key.destination().port.into(),
        protocol: key.protocol(),
        ingress,
        count: count.into(),
        start_ns: vector.start_ns.into(),
    };
    out.extend_from_slice(header.as_bytes());
    vector.tuples().for_each(|tuple| tuple.put(out));
    Ok(())
}

/// How many tuples a header says.
pub(super) fn count(count: usize) -> Result<u16, NotCarried> {
    match u16::try_from(count) {
        Ok(fits) if fits > 0 => Ok(fits),
        _ => Err(NotCarried::Count(count)),
    }
}

/// Reads the vector at the start of `bytes` into `tuples`, whose contents are replaced, and says
/// how many bytes it took.
///
/// # Errors
///
/// If the bytes are cut short, the vector is empty, or its times are past 64 bits. Every other
/// pattern is a vector.
pub fn parse<'a, T: PaperTuple>(
    bytes: &[u8],
    tuples: &'a mut Vec<T>,
) -> Result<(Vector<'a, T>, usize), FormatError> {
    let wrong = |what, offset| FormatError::new(what, offset, bytes.len());
    let (header, rest) = PaperHeader::read_from_prefix(bytes)
        .map_err(|_| wrong("a truncated header", bytes.len()))?;
    let count = usize::from(header.count.get());
    if count == 0 {
        return Err(wrong("an empty vector", 14));
    }
    if header.start_ns.get() > start_ns_max(T::DELTA_MAX_NS) {
        return Err(wrong(PAST, 16));
    }
    let body = rest
        .get(..count.wrapping_mul(T::LEN))
        .ok_or_else(|| wrong("truncated tuples", bytes.len()))?;
    tuples.clear();
    tuples.extend(body.chunks_exact(T::LEN).map(T::held));
    let end = |address: u32, port| Endpoint {
        address: u128::from(address),
        port,
    };
    let key = Key::new(
        AddressFamily::Ipv4,
        header.protocol,
        end(header.source.get(), header.source_port.get()),
        end(header.destination.get(), header.destination_port.get()),
        u16::from(header.ingress),
    );
    let size = |tuple: &T| tuple.get(crate::tuple::Column::Size);
    let vector = Vector {
        key,
        start_ns: header.start_ns.get(),
        saturated: tuples.iter().any(|tuple| size(tuple) == BASIC_SIZE_MAX),
        pieces: [tuples, &[]],
        reason: Reason::Unknown,
        slot: 0,
    };
    Ok((vector, HEADER_LEN.wrapping_add(body.len())))
}
