//! Marks between sealed records: the time of the records after a mark, and their producer.
//!
//! ```text
//!  0 time_ns u64      since 1970; a mark of 8 bytes has nothing else
//!  8 kind u8          1 no producer, 2 a producer, 3 the producers of the stream, 4 a producer has ended
//!
//!  2:  9 id u64       of the producer of the records from here on
//!     17 number u64   of the first of them, among its records
//!     25 name
//!  3:  9 synced u64   records of the stream with a smaller number had been synced
//!     17 producers    id u64, next u64, seen_ns u64, flags u8, length of the name u8, name
//!  4:  9 id u64       of the producer
//! ```
//!
//! Flags: bit 0, the producer has ended.

use crate::name::StreamName;
use crate::producers::{Producer, Producers};

const NO_PRODUCER: u8 = 1;
const PRODUCER: u8 = 2;
const PRODUCERS: u8 = 3;
const HAS_ENDED: u8 = 4;
const ENDED: u8 = 1;

/// The producer of a record, and the record's number among those of its producer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin<'p> {
    /// The producer's id; never 0.
    pub id: u64,
    /// Its name.
    pub name: &'p str,
    /// The number of the record, from 0.
    pub number: u64,
}

/// What a mark says besides the time.
#[derive(Debug)]
pub(crate) enum Mark<'p> {
    Time,
    NoProducer,
    Producer(Origin<'p>),
    Producers { synced_seq: u64, bytes: &'p [u8] },
    Ended(u64),
}

fn take<'b, const N: usize>(bytes: &mut &'b [u8]) -> Option<&'b [u8; N]> {
    let (field, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(field)
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    take(bytes).map(|field| u64::from_le_bytes(*field))
}

fn take_u8(bytes: &mut &[u8]) -> Option<u8> {
    take::<1>(bytes).map(|[byte]| *byte)
}

/// The time of a mark, and what else it says. A kind that is not known says the time only.
pub(crate) fn parse(mut bytes: &[u8]) -> Option<(u64, Mark<'_>)> {
    let time_ns = take_u64(&mut bytes)?;
    let kind = take_u8(&mut bytes);
    let mark = match kind {
        Some(NO_PRODUCER) => Mark::NoProducer,
        Some(PRODUCER) => Mark::Producer(Origin {
            id: take_u64(&mut bytes)?,
            number: take_u64(&mut bytes)?,
            name: std::str::from_utf8(bytes).ok()?,
        }),
        Some(PRODUCERS) => Mark::Producers {
            synced_seq: take_u64(&mut bytes)?,
            bytes,
        },
        Some(HAS_ENDED) => Mark::Ended(take_u64(&mut bytes)?),
        _ => Mark::Time,
    };
    Some((time_ns, mark))
}

/// The producers of a mark; `None` if they are not whole.
pub(crate) fn producers(mut bytes: &[u8]) -> Option<Producers> {
    let mut all = Producers::default();
    while !bytes.is_empty() {
        let id = take_u64(&mut bytes)?;
        let next = take_u64(&mut bytes)?;
        let seen_ns = take_u64(&mut bytes)?;
        let flags = take_u8(&mut bytes)?;
        let len = usize::from(take_u8(&mut bytes)?);
        let (name, rest) = bytes.split_at_checked(len)?;
        bytes = rest;
        let name: StreamName = std::str::from_utf8(name).ok()?.parse().ok()?;
        all.insert(
            id,
            Producer {
                name,
                next,
                seen_ns,
                has_ended: flags & ENDED != 0,
            },
        );
    }
    Some(all)
}

/// A mark that says the time only.
pub(crate) fn time(time_ns: u64) -> [u8; 8] {
    time_ns.to_le_bytes()
}

/// A mark before records of this process.
pub(crate) fn no_producer(time_ns: u64) -> [u8; 9] {
    let mut bytes = [NO_PRODUCER; 9];
    bytes[..8].copy_from_slice(&time_ns.to_le_bytes());
    bytes
}

/// A mark after the last record of a producer.
pub(crate) fn ended(time_ns: u64, id: u64) -> [u8; 17] {
    let mut bytes = [HAS_ENDED; 17];
    bytes[..8].copy_from_slice(&time_ns.to_le_bytes());
    bytes[9..].copy_from_slice(&id.to_le_bytes());
    bytes
}

/// A mark before records of a producer, in `out`.
pub(crate) fn put_producer(out: &mut Vec<u8>, time_ns: u64, origin: &Origin<'_>) {
    out.clear();
    out.extend_from_slice(&time_ns.to_le_bytes());
    out.push(PRODUCER);
    out.extend_from_slice(&origin.id.to_le_bytes());
    out.extend_from_slice(&origin.number.to_le_bytes());
    out.extend_from_slice(origin.name.as_bytes());
}

/// A mark with all producers, in `out`.
pub(crate) fn put_producers(out: &mut Vec<u8>, time_ns: u64, synced_seq: u64, all: &Producers) {
    out.clear();
    out.extend_from_slice(&time_ns.to_le_bytes());
    out.push(PRODUCERS);
    out.extend_from_slice(&synced_seq.to_le_bytes());
    for (id, producer) in all.iter() {
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&producer.next.to_le_bytes());
        out.extend_from_slice(&producer.seen_ns.to_le_bytes());
        let name = producer.name.as_str().as_bytes();
        let flags = if producer.has_ended { ENDED } else { 0 };
        out.extend_from_slice(&[flags, strata_wire::exact(name.len())]);
        out.extend_from_slice(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_back_and_cut_ones_are_not() {
        let origin = Origin {
            id: 7,
            name: "web1",
            number: 1 << 40,
        };
        let mut bytes = Vec::new();
        put_producer(&mut bytes, 5, &origin);
        let Some((5, Mark::Producer(read))) = parse(&bytes) else {
            panic!("{bytes:?}");
        };
        assert_eq!(read, origin);
        assert!(parse(&bytes[..20]).is_none());
        assert!(matches!(parse(&time(9)), Some((9, Mark::Time))));
        assert!(matches!(
            parse(&no_producer(9)),
            Some((9, Mark::NoProducer))
        ));
        assert!(matches!(parse(&ended(9, 3)), Some((9, Mark::Ended(3)))));
        assert!(parse(&[0; 7]).is_none());

        let mut all = Producers::default();
        for id in 1..4 {
            all.meet(id, &"host".parse().unwrap(), id);
            all.took(id, 10, id);
        }
        all.end(2);
        put_producers(&mut bytes, 8, 99, &all);
        assert_eq!(bytes.len(), all.mark_len());
        let Some((8, Mark::Producers { synced_seq, bytes })) = parse(&bytes) else {
            panic!("{bytes:?}");
        };
        assert_eq!((synced_seq, producers(bytes)), (99, Some(all)));
        assert_eq!(producers(&bytes[..bytes.len() - 1]), None);
    }
}
