//! Walkers touch each header of each format; a fault of a decompressor is an error.

use std::io::Write;

use super::*;

/// How a file of a format begins, and what is before and after a packet's bytes.
struct Kind {
    name: &'static str,
    start: Vec<u8>,
    header: fn(u32, u32) -> Vec<u8>,
    trailer: fn(u32) -> Vec<u8>,
}

fn words(numbers: &[u32], big: bool) -> Vec<u8> {
    let bytes = |number: &u32| match big {
        true => number.to_be_bytes(),
        false => number.to_le_bytes(),
    };
    numbers.iter().flat_map(bytes).collect()
}

fn pcap(magic: u32, big: bool) -> Vec<u8> {
    let mut start = words(&[magic, 0, 0, 0, 262_144, 1], big);
    start[4..8].copy_from_slice(if big { &[0, 2, 0, 4] } else { &[2, 0, 4, 0] });
    start
}

fn pcapng(big: bool) -> Vec<u8> {
    let mut start = words(&[0x0a0d_0d0a, 28, 0x1a2b_3c4d, 0, !0, !0, 28], big);
    start[12..16].copy_from_slice(if big { &[0, 1, 0, 0] } else { &[1, 0, 0, 0] });
    let interface = words(&[1, 20, if big { 1 << 16 } else { 1 }, 262_144, 20], big);
    start.extend_from_slice(&interface);
    start
}

fn block(index: u32, len: u32, big: bool) -> Vec<u8> {
    let total = 32 + len.next_multiple_of(4);
    words(&[6, total, 0, 0x0005_e5c0, index, len, len], big)
}

fn block_end(len: u32, big: bool) -> Vec<u8> {
    let mut end = vec![0; len.next_multiple_of(4) as usize - len as usize];
    end.extend_from_slice(&words(&[32 + len.next_multiple_of(4)], big));
    end
}

fn kinds() -> [Kind; 6] {
    const SECONDS: u32 = 0x6553_f100;
    let kind = |name, start, header, trailer| Kind {
        name,
        start,
        header,
        trailer,
    };
    let none: fn(u32) -> Vec<u8> = |_| Vec::new();
    [
        kind(
            "pcap, us",
            pcap(0xa1b2_c3d4, false),
            |index, len| words(&[SECONDS + index % 200, index, len, len], false),
            none,
        ),
        kind(
            "pcap, us, big-endian",
            pcap(0xa1b2_c3d4, true),
            |index, len| words(&[SECONDS + index % 200, index, len, len], true),
            none,
        ),
        kind(
            "pcap, ns, big-endian",
            pcap(0xa1b2_3c4d, true),
            |index, len| words(&[SECONDS + index % 200, index, len, len + 1], true),
            none,
        ),
        kind(
            "pcap, modified",
            pcap(0xa1b2_cd34, false),
            |index, len| words(&[SECONDS + index % 200, index, len, len, 0, 0], false),
            none,
        ),
        kind(
            "pcapng",
            pcapng(false),
            |index, len| block(index, len, false),
            |len| block_end(len, false),
        ),
        kind(
            "pcapng, big-endian",
            pcapng(true),
            |index, len| block(index, len, true),
            |len| block_end(len, true),
        ),
    ]
}

/// In files of each format walkers go to each header that is described afterwards, and to no
/// other place.
#[test]
fn walkers_find_the_headers_of_each_format() {
    for Kind {
        name,
        start,
        header,
        trailer,
    } in kinds()
    {
        let mut bytes = start;
        for index in 0..3_000_u32 {
            let len = 40 + index * 7 % 1_400;
            bytes.extend(header(index, len));
            bytes.extend((0..len).map(|n| n.to_le_bytes()[0]));
            bytes.extend(trailer(len));
        }
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        let options = InputOptions {
            window_bytes: 4 << 20,
            ..InputOptions::default()
        };
        let (mut source, mut ids) = (
            Source::open(InputSource::File(file.path().to_owned()), 0, &options).unwrap(),
            InterfaceIds::default(),
        );
        while !matches!(source.fill(&mut ids).unwrap(), Filled::Packets) {}
        assert_eq!(
            source.window.base() + source.window.bytes().len() as u64,
            bytes.len() as u64
        );
        let mut walked = Vec::new();
        source.walk(|at| walked.push(at));
        let back = walked.windows(2).filter(|pair| pair[1] < pair[0]);
        assert!(back.count() > 150, "{name}: one walker went alone");
        walked.sort_unstable();
        let header_bytes = header(0, 0).len();
        let mut described = Vec::new();
        while matches!(source.fill(&mut ids).unwrap(), Filled::Packets) {
            let offsets = source.queue().iter().map(|found| found.offset as usize);
            described.extend(offsets.map(|at| at - header_bytes));
        }
        assert_eq!(walked, described, "{name}");
    }
}

/// A panic while a file is read ends that, with the place in its error.
#[test]
fn a_panic_is_an_error_of_its_file() {
    struct Faulty(Vec<u8>);

    impl Read for Faulty {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            assert!(!self.0.is_empty(), "as a fault in a decompressor would be");
            let bytes = std::mem::take(&mut self.0);
            buffer[..bytes.len()].copy_from_slice(&bytes);
            Ok(bytes.len())
        }
    }

    let mut start = pcap(0xa1b2_c3d4, false);
    let header = start.len();
    start.extend(words(&[1, 2, 4, 4], false));
    start.extend_from_slice(b"bytes");
    let mut notes = Notes {
        base: Place {
            path: "some.pcap".into(),
            offset: 0,
            compressed: false,
        },
        warnings: Vec::new(),
    };
    for read_ahead in [false, true] {
        let faulty = Box::new(Faulty(start.clone()));
        let mut window = Window::new(faulty, 4096, read_ahead).unwrap();
        if read_ahead {
            // Its thread reads on before it hands over anything, and is gone.
            let error = open::recognise(&mut window, &mut notes).err().unwrap();
            assert!(error.to_string().contains("some.pcap"), "{error}");
            continue;
        }
        let format = open::recognise(&mut window, &mut notes).unwrap();
        let mut source = Source {
            index: 0,
            window,
            queue: Vec::with_capacity(BATCH_MAX),
            scratch: Vec::new(),
            notes: Notes {
                base: notes.base.clone(),
                warnings: Vec::new(),
            },
            format,
            finished: false,
            described: 0,
            plain_bytes: None,
            read_bytes: None,
            is_live: false,
        };
        let mut ids = InterfaceIds::default();
        let first = source.fill(&mut ids).unwrap();
        assert!(matches!(first, Filled::Meta(Meta::Interface { .. })));
        assert!(matches!(source.fill(&mut ids).unwrap(), Filled::Packets));
        let error = source.fill(&mut ids).unwrap_err();
        let offset = error.place().unwrap().offset;
        assert_eq!(offset, header as u64 + 20, "{error}");
        assert!(error.to_string().contains("some.pcap, byte 44"), "{error}");
        assert!(matches!(source.fill(&mut ids).unwrap(), Filled::End));
    }
}
