//! Any bytes as messages of the control protocol between switch and relay.
//!
//! Input: as it is, and once more with the lengths and checksums put right: a byte of
//! the kind before the body of each, which a length (u16) is before.
#![no_main]

use libfuzzer_sys::fuzz_target;
use strata_blocks::are_definitions;
use strata_fuzz::{Bounded, Chooser};
use strata_relay::protocol::{HEADER_LEN, Message, VERSION};

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    let mut choose = Chooser::new(bytes);
    let mut stream = Vec::new();
    while !choose.is_empty() {
        let (kind, len) = (choose.u8(), usize::from(choose.u16()));
        let body = choose.take(len);
        let head = [kind % 17, VERSION, 0, 0];
        stream.extend_from_slice(&u32::try_from(body.len()).expect("short").to_le_bytes());
        stream.extend_from_slice(&head);
        let crc = crc32c::crc32c_append(crc32c::crc32c(&head), body);
        stream.extend_from_slice(&crc.to_le_bytes());
        stream.extend_from_slice(body);
    }
    read(&stream);
});

/// Message by message, until the end.
fn read(mut bytes: &[u8]) {
    while let Ok(Some((message, len))) = Message::parse(bytes) {
        assert!((HEADER_LEN..=bytes.len()).contains(&len));
        assert_eq!(Message::parse(&bytes[..len - 1]), Ok(None), "not all of it");
        let mut again = Vec::new();
        message.emit(&mut again);
        let whole = again.len();
        assert_eq!(Message::parse(&again), Ok(Some((message.clone(), whole))));
        if let Message::Definitions(records) = &message {
            let _ = are_definitions(records);
        }
        bytes = &bytes[len..];
    }
}
