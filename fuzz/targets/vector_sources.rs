//! Any bytes as sources of vectors: files in a directory that is followed while they grow, are replaced and removed,
//! and is read again at rest; payload of a stream's records; captured frames of a switch.
//!
//! Input: what; then steps, each with a file or an action, a length (two bytes) and bytes. Lengths of datagrams of
//! Strata's form, and headers of captured frames, are put right if the second bit of the first byte says so.
#![no_main]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use strata_fuzz::capture::Scratch;
use strata_fuzz::{Bounded, Chooser};
use strata_gpv::Grouped as _;
use strata_gpv::agent::ReassemblyOptions;
use strata_gpv::format::frame::FrameWords;
use strata_gpv_run::{
    Datagrams, Form, GivenRecord, Received, RecordOutput, VectorDirectory, VectorError,
    VectorReader, VectorSource,
};
use strata_role::Tell;

#[global_allocator]
static MEMORY: Bounded = Bounded::new();

/// As rotations name files, and otherwise.
const NAMES: [&str; 4] = ["a.gpv", "v.gpv", "v.1.gpv", "v.2.gpv"];
const REASSEMBLY: ReassemblyOptions = ReassemblyOptions {
    flows: 8,
    tuples_max: 10,
    interval_ns: 1_000_000,
};
const SENDERS_MAX: usize = 4;
/// A step gives at most this many bytes.
const STEPS_MAX: usize = 64;

/// A folder in memory, if `TMPDIR` is.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let name = format!("strata-vector-sources-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    fs::create_dir_all(&folder).expect("there is room for temporary files");
    folder
});
static CAPTURE: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("vector-frames"));

fuzz_target!(|bytes: &[u8]| {
    let mut choose = Chooser::new(bytes);
    let first = choose.u8();
    let is_mended = first & 4 != 0;
    match first & 3 {
        0 => files(choose, Form::Strata, is_mended),
        1 => files(choose, Form::Paper, false),
        2 => files(choose, Form::PaperSeq, false),
        _ => frames(choose, is_mended, first & 8 != 0),
    }
});

/// Counts what it is given.
#[derive(Default)]
struct Records {
    packets: u64,
    records: u64,
}

impl RecordOutput for Records {
    fn put(&mut self, given: &GivenRecord<'_>) {
        assert!(given.record.count() > 0);
        self.packets += given.record.count() as u64;
        self.records += 1;
    }

    fn keep_up(&mut self) -> Result<(), VectorError> {
        Ok(())
    }

    fn is_complete(&self) -> bool {
        false
    }
}

/// Reads it to its end: what was received, records that could not be read, and whether it ended well.
fn read(reader: VectorReader) -> (Received, u64, bool) {
    let tell: Tell = Arc::new(|notice| assert!(!notice.text.is_empty()));
    let mut records = Records::default();
    let (read, ended) = reader.read(&mut records, &AtomicBool::new(false), &tell);
    let received = read.received;
    assert_eq!(records.packets, received.packets);
    assert_eq!(records.records, received.records);
    assert!(received.vectors <= received.packets);
    (received, read.unread, is_ok(ended))
}

fn is_ok<T>(result: Result<T, VectorError>) -> bool {
    if let Err(error) = &result {
        assert!(!error.to_string().is_empty());
    }
    result.is_ok()
}

fn open(source: &VectorSource, form: Form) -> Option<VectorReader> {
    let opened = VectorReader::open(source, form, REASSEMBLY, SENDERS_MAX);
    match opened {
        Ok(reader) => Some(reader),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

/// The payload of a stream's records.
struct Payload(Vec<Vec<u8>>);

impl Datagrams for Payload {
    fn name(&self) -> String {
        "stream".to_owned()
    }

    fn is_live(&self) -> bool {
        false
    }

    fn read(
        &mut self,
        _wait: Duration,
        take: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<bool, VectorError> {
        for record in self.0.drain(..) {
            take(&record);
        }
        Ok(false)
    }
}

/// Bytes of the datagram at the start; `None` if it is cut.
fn datagram_len(form: Form, bytes: &[u8]) -> Option<usize> {
    let pair = |at: usize| Some([*bytes.get(at)?, *bytes.get(at + 1)?]);
    let len = match form {
        Form::Strata => usize::from(u16::from_le_bytes(pair(12)?)).max(24),
        Form::Paper => 24 + 4 * usize::from(u16::from_be_bytes(pair(14)?)),
        Form::PaperSeq => 24 + 8 * usize::from(u16::from_be_bytes(pair(14)?)),
    };
    (bytes.len() >= len).then_some(len)
}

fn files(mut choose: Chooser<'_>, form: Form, is_mended: bool) {
    for name in NAMES {
        let _ = fs::remove_file(FOLDER.join(name));
    }
    let mut directory = VectorDirectory::open(&FOLDER, form, true).expect("it is a folder");
    let mut contents = BTreeMap::<&str, Vec<u8>>::new();
    let (mut written, mut given, mut payload) = (0, 0, Vec::new());
    let mut follows = true;
    for _ in 0..STEPS_MAX {
        if choose.is_empty() {
            break;
        }
        let action = choose.u8();
        let len = usize::from(choose.u16());
        let mut bytes = choose.take(len).to_vec();
        if is_mended && bytes.len() >= 24 && action & 0x40 == 0 {
            let len = u16::try_from(bytes.len()).expect("inputs are short");
            bytes[..6].copy_from_slice(b"SGPV\x02\x00");
            bytes[6] |= 1;
            bytes[7] &= 7;
            bytes[12..14].copy_from_slice(&len.to_le_bytes());
        }
        let name = NAMES[usize::from(action & 3)];
        act(name, action >> 2 & 3, &bytes, &mut contents);
        written += bytes.len();
        payload.push(bytes);
        for _ in 0..4 {
            let mut take = |bytes: &[u8]| {
                given += bytes.len();
                // A cut one is given once it can never be whole.
                if let Some(whole) = datagram_len(form, bytes) {
                    assert_eq!(bytes.len(), whole, "a datagram is given alone");
                }
                true
            };
            follows = follows && is_ok(directory.read(Duration::ZERO, &mut take));
        }
        assert!(given <= written || !follows, "{given} of {written} bytes");
    }
    at_rest(form, &contents);
    if form == Form::Strata {
        let count = payload.len() as u64;
        let payload = VectorReader::of(Box::new(Payload(payload)), REASSEMBLY, SENDERS_MAX);
        let (received, _, ended) = read(payload.expect("there are random numbers"));
        assert!(ended && received.datagrams == count);
    }
}

/// Appends, replaces or removes a file.
fn act<'a>(name: &'a str, action: u8, bytes: &[u8], contents: &mut BTreeMap<&'a str, Vec<u8>>) {
    let path = FOLDER.join(name);
    match action {
        0 | 1 => {
            let mut options = fs::File::options();
            let file = options.append(true).create(true).open(path);
            let appended = file.and_then(|mut file| file.write_all(bytes));
            appended.expect("there is room for temporary files");
            contents.entry(name).or_default().extend_from_slice(bytes);
        }
        2 => {
            fs::write(path, bytes).expect("there is room for temporary files");
            contents.insert(name, bytes.to_vec());
        }
        _ => {
            let _ = fs::remove_file(path);
            contents.remove(name);
        }
    }
}

/// Reads each file, its datagrams as a stream, and the directory.
fn at_rest(form: Form, contents: &BTreeMap<&str, Vec<u8>>) {
    let (mut datagrams, mut are_whole) = (0, true);
    for (name, content) in contents {
        let file = VectorSource::of_file(&FOLDER.join(name));
        let (from_file, _, ended) = match open(&file, form) {
            Some(reader) => read(reader),
            None => (Received::default(), 0, false),
        };
        datagrams += from_file.datagrams;
        are_whole &= ended;
        if form != Form::Strata || !ended {
            continue;
        }
        let (mut rest, mut payload) = (content.as_slice(), Vec::new());
        while let Some(len) = datagram_len(form, rest) {
            payload.push(rest[..len].to_vec());
            rest = &rest[len..];
        }
        assert!(rest.is_empty(), "what ended well was not cut");
        let stream = VectorReader::of(Box::new(Payload(payload)), REASSEMBLY, SENDERS_MAX);
        let (from_stream, ..) = read(stream.expect("there are random numbers"));
        // Which records are given early depends on random numbers.
        let evened = |received: Received| Received {
            early: 0,
            records: 0,
            ..received
        };
        assert_eq!(evened(from_stream), evened(from_file));
    }
    let directory = VectorSource::of_file(&FOLDER);
    if let Some(reader) = open(&directory, form) {
        let (received, _, ended) = read(reader);
        if are_whole {
            assert!(ended && received.datagrams == datagrams);
        }
    }
}

fn frames(mut choose: Chooser<'_>, is_mended: bool, is_published: bool) {
    let words = match is_published {
        true => FrameWords::Lengths,
        false => FrameWords::Paper,
    };
    let path = match is_mended {
        false => CAPTURE.fill(choose.rest()),
        true => captured(&mut choose),
    };
    let path = path.to_owned();
    let Some(reader) = open(&VectorSource::Frames { path, words }, Form::Paper) else {
        return;
    };
    let (received, _, _) = read(reader);
    assert_eq!((received.damaged, received.lost), (0, 0));
    assert_eq!((received.stale, received.jumps), (0, 0));
}

/// A capture file with frames of vectors.
fn captured(choose: &mut Chooser<'_>) -> &'static Path {
    let mut file = Vec::new();
    for word in [0xa1b2_3c4d, 0x0004_0002, 0, 0, 65_535, 1_u32] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    while !choose.is_empty() {
        let (seconds, ns, len) = (choose.u32(), choose.u32() % 1_000_000_000, choose.u16());
        let mut frame = choose.take(usize::from(len)).to_vec();
        if frame.len() >= 36 {
            let kind = 0x1a + (frame[0] & 1);
            frame[12..16].copy_from_slice(&[8, kind, 8, 0]);
            frame[34] = 0;
            frame[35] %= 32;
        }
        let len = u32::try_from(frame.len()).expect("inputs are short");
        for word in [seconds, ns, len, len] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        file.extend_from_slice(&frame);
    }
    CAPTURE.fill(&file)
}
