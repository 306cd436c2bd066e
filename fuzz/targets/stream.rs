//! Pages of a stream: records of any payloads, what the page held before, and any damage. No record
//! is read that was not appended to it, and what is missing is counted; then any bytes as each of a
//! stream's files.
//!
//! Input: a byte of choices, then actions: append bytes, or what the page holds already; say a time;
//! damage what has been written. A page may hold records of its previous use.
#![no_main]

use std::convert::Infallible;

use libfuzzer_sys::fuzz_target;
use strata_fuzz::{Bounded, Chooser};
use strata_stream::message::{Frames, Message};
use strata_stream::{
    AppendError, Blocks, Description, Form, Item, PAGE_HEADER_LEN, Page, PageHeader, PageWriter,
    State, StreamKey, siphash24,
};

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

const PAGE_BYTES: usize = 1 << 14;
const FIRST_SEQ: u64 = 1_000;

/// A page in one block.
struct Whole(Vec<u8>);

impl Blocks for Whole {
    type Error = Infallible;

    fn current(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn full(&mut self, _: usize, _: u32) -> Result<(), Infallible> {
        unreachable!("the page is one block")
    }
}

fuzz_target!(|bytes: &[u8]| {
    // A key that depends on all of the input: no input holds a tag made with it.
    let half = |number| siphash24([number, 0], bytes).to_le_bytes();
    let key = [half(1), half(2)].concat();
    let key = StreamKey::new(key.try_into().expect("two halves"));
    of_files(bytes);

    let mut choose = Chooser::new(bytes);
    let choices = choose.u8();
    let form = match choices % 4 {
        0 | 1 => Form::Sealed,
        kind => Form::Linked {
            redundancy: choices >> 2 & 3,
            block_bytes: (kind == 3).then_some(1 << 12),
        },
    };
    let header = PageHeader {
        stream: 7,
        index: 3,
        lap: u64::from_le_bytes(half(3)),
        first_seq: FIRST_SEQ,
        created_ns: 1,
        record_magic: 0x5354_5241,
        form,
    };
    let mut memory = Whole(vec![choices; PAGE_BYTES]);
    if choices & 0x20 != 0 {
        fill(
            &PageHeader {
                lap: !header.lap,
                ..header
            },
            &key,
            bytes,
            &mut memory,
        );
    }
    let begun = PageWriter::begin(&header, &key, PAGE_BYTES, &mut memory);
    let mut writer = begun.expect("memory does not fail");
    let mut appended: Vec<Vec<u8>> = Vec::new();
    let mut damages = Vec::new();
    while !choose.is_empty() {
        let action = choose.u8();
        let number = choose.u16();
        let payload = match action % 5 {
            0 | 1 => choose.take(usize::from(number) % 300).to_vec(),
            // Records and headers of its own.
            2 => {
                let start = usize::from(number) % writer.at();
                let end = writer.at().min(start + usize::from(action) * 4);
                memory.0[start..end].to_vec()
            }
            3 => {
                match writer.mark(&mut memory, number.into()) {
                    Ok(()) | Err(AppendError::Full) => {}
                    Err(error) => panic!("{error:?}"),
                }
                continue;
            }
            _ => {
                let at = PAGE_HEADER_LEN + usize::from(number) % (PAGE_BYTES - PAGE_HEADER_LEN);
                let by = choose.take(usize::from(action) / 5 % 24);
                damages.push((at, by[..by.len().min(PAGE_BYTES - at)].to_vec()));
                continue;
            }
        };
        match writer.append(&mut memory, &payload) {
            Ok(()) => appended.push(payload),
            Err(AppendError::Full | AppendError::TooLong { .. }) => {}
        }
    }
    if choices & 0x10 != 0 {
        writer.zero_rest(&mut memory);
    }
    let is_damaged = !damages.is_empty();
    for (at, by) in damages {
        memory.0[at..at + by.len()].copy_from_slice(&by);
    }
    let parsed = PageHeader::parse(&memory.0, header.stream, &key, PAGE_BYTES);
    assert_eq!(parsed, Ok(header), "the header was not damaged");
    match form {
        Form::Sealed => sealed(&memory.0, header, &key, &appended, is_damaged),
        Form::Linked { .. } => linked(&memory.0, header, &key),
    }
});

/// Fills a page, as its previous use did.
fn fill(header: &PageHeader, key: &StreamKey, payload: &[u8], memory: &mut Whole) {
    let begun = PageWriter::begin(header, key, PAGE_BYTES, memory);
    let mut writer = begun.expect("memory does not fail");
    let payload = &payload[..payload.len().min(200)];
    while writer.append(memory, payload).is_ok() {}
}

/// Every record is one that was appended, in order; those missing between two are counted.
fn sealed(
    memory: &[u8],
    header: PageHeader,
    key: &StreamKey,
    appended: &[Vec<u8>],
    is_damaged: bool,
) {
    let page = Page::new(header, key.page(header.index, header.lap), memory);
    let mut next = FIRST_SEQ;
    let mut missing = 0;
    for item in page.walk() {
        match item {
            Item::Missing(gap) => {
                let (min, max) = gap.bounds();
                assert_eq!(min, max, "sealed records are numbered");
                missing += min;
            }
            Item::Record(record) => {
                let seq = record.seq.expect("sealed records are numbered");
                assert_eq!(seq, next + missing);
                let place = usize::try_from(seq - FIRST_SEQ).expect("few");
                assert_eq!(record.payload, appended[place]);
                (next, missing) = (seq + 1, 0);
            }
        }
    }
    let read = next - FIRST_SEQ;
    assert!(
        is_damaged || read == appended.len() as u64,
        "{read} records"
    );
}

/// What a payload forges may be read, but within the page and not without end.
fn linked(memory: &[u8], header: PageHeader, key: &StreamKey) {
    let page = Page::new(header, key.page(header.index, header.lap), memory);
    let mut end = PAGE_HEADER_LEN;
    for item in page.walk() {
        match item {
            Item::Missing(gap) => assert!(gap.bounds().0 <= gap.bounds().1),
            Item::Record(record) => {
                assert!(record.at >= end && record.end <= PAGE_BYTES, "{record:?}");
                end = record.end;
            }
        }
    }
}

/// Any bytes as a description, a state, a page and messages: refused, or written again as they were read.
fn of_files(bytes: &[u8]) {
    let key = StreamKey::new([5; 16]);
    if let Ok(description) = Description::parse(bytes) {
        let again = Description::parse(&description.emit());
        assert_eq!(again.as_ref(), Ok(&description));
    }
    if let Ok(message) = Message::parse(bytes) {
        let mut emitted = Vec::new();
        message.emit(&mut emitted);
        assert_eq!(&emitted[4..], bytes);
    }
    // However a connection is cut.
    for mut frames in [Frames::of_client(), Frames::of_server()] {
        'connection: for piece in bytes.chunks(7) {
            frames.push(piece);
            loop {
                let is_ready = frames.is_ready();
                match frames.next_message() {
                    Ok(Some(_)) => assert!(is_ready),
                    Ok(None) => break,
                    Err(_) => break 'connection,
                }
            }
        }
    }
    if let Some(state) = State::parse(bytes, &key) {
        let emitted = state.emit(&key);
        let again = State::parse(&emitted, &key).expect("it was just written");
        assert_eq!(again.emit(&key), emitted);
    }
    if bytes.len() >= PAGE_HEADER_LEN
        && let Ok(header) = PageHeader::parse(bytes, 7, &key, PAGE_BYTES)
    {
        let again = PageHeader::parse(&header.emit(&key), 7, &key, PAGE_BYTES);
        assert_eq!(again, Ok(header));
    }
}
