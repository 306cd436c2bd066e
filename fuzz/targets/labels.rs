//! Any bytes as a label file, in each form, and the labels of a packet.
//!
//! Input: 9 bytes that choose the packet, then the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use strata_fuzz::{Bounded, Chooser};
use strata_labels::{AlertClass, AlertOptions, How, Label, LabelError, LabelFile, Labels};
use strata_wire::{AddressFamily, Endpoint, FlowKey, Headers};

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

/// East of UTC, in seconds.
const OFFSETS: [i64; 3] = [0, -12_600, 50_400];

fuzz_target!(|bytes: &[u8]| {
    let mut choose = Chooser::new(bytes);
    let choice = choose.u8();
    let ts_ns = choose.u64();
    let file = choose.rest();
    let offset = OFFSETS[usize::from(choice >> 4) % OFFSETS.len()];
    let otherwise = (choice & 1 != 0).then_some("other");
    let mut read = match read_labels(file, offset, otherwise) {
        Ok(read) => read,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let headers = headers(choice);
    let frame = ts_ns % 8;
    let label = read.of(frame, ts_ns, &headers);
    if let Some(Label { class, .. }) = label {
        assert!(!class.is_empty() && class.len() <= 64, "{class:?}");
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        assert!(class.bytes().all(plain), "{class:?}");
    }
    // A line that ends once more, as editors leave it, says nothing.
    if file.ends_with(b"\n") && !file.contains(&b'"') && !file.contains(&b'\r') {
        let longer = read_labels(&[file, b"\n"].concat(), offset, otherwise);
        let mut longer = longer.expect("read without the empty line");
        assert_eq!(longer.of(frame, ts_ns, &headers), label);
    }
});

fn read_labels(
    file: &[u8],
    utc_offset_s: i64,
    otherwise: Option<&str>,
) -> Result<Labels, LabelError> {
    let how = How {
        utc_offset_s,
        otherwise,
        alerts: AlertOptions {
            class: AlertClass::Category,
            ..AlertOptions::default()
        },
    };
    let name = String::from("labels");
    let content = Box::new(file);
    Labels::read(vec![LabelFile { name, content }], &how)
}

/// Packets between the hosts of the seeds.
fn headers(choice: u8) -> Headers {
    let end = |address: u8, port| Endpoint {
        address: u32::from_be_bytes([10, 0, 0, address]).into(),
        port,
    };
    let protocol = [6, 17, 1, 58][usize::from(choice >> 1) % 4];
    let (key, low_to_high) = FlowKey::new(AddressFamily::Ipv4, protocol, end(1, 4000), end(2, 80));
    Headers {
        key: (choice & 8 == 0).then_some(key),
        low_to_high,
        ..Headers::default()
    }
}
