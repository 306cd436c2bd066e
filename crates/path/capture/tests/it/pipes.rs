//! Captures that come by a pipe with a name, as another program writes them.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use strata_capture::{CaptureError, Input, InputOptions, Next};

use crate::behaviour::{gzip, packed_by, zstd};
use crate::common::{Packet, file, packet, pcap_of, read};

/// After this, a test that still waits fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a pipe holds, by default.
const PIPE_BYTES: usize = 64 << 10;

/// A pipe, and its writing end: also a reading one, so that opening it waits for no reader.
fn pipe(folder: &tempfile::TempDir, name: &str) -> (PathBuf, File) {
    let path = folder.path().join(name);
    let made = Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let file = OpenOptions::new().read(true).write(true).open(&path);
    (path, file.unwrap())
}

/// Opens a pipe as a recording does.
fn open(path: &Path, stop: &Arc<AtomicBool>) -> Result<Input, CaptureError> {
    let mut options = InputOptions::default();
    options.read_ahead = true;
    options.stop = Some(Arc::clone(stop));
    Input::open(&[path.to_owned()], &options)
}

/// Sets `stop` after a while, unless the sender is dropped before.
fn stop_late(stop: &Arc<AtomicBool>) -> Sender<()> {
    let (sender, ended) = mpsc::channel();
    let stop = Arc::clone(stop);
    thread::spawn(move || {
        if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            stop.store(true, Ordering::Relaxed);
        }
    });
    sender
}

/// The next packets, of at least this number unless the input ends.
fn next(input: &mut Input, count: usize) -> Vec<Packet> {
    let mut packets = Vec::new();
    while packets.len() < count {
        match input.advance().unwrap() {
            Next::Packets => packets.extend(input.batch().iter().map(Packet::from)),
            Next::Meta(_) => {}
            Next::End => break,
        }
    }
    packets
}

/// Packets that do not compress well.
fn noise(count: u64) -> Vec<Packet> {
    let words = |index: u64| (0..8).map(move |word| index * 8 + word);
    let bytes = |word: u64| word.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    let data = |index| words(index).flat_map(bytes).collect::<Vec<u8>>();
    (0..count)
        .map(|index| packet(index, 0, &data(index)))
        .collect()
}

#[test]
fn what_has_arrived_is_given_before_more_comes() {
    let folder = tempfile::tempdir().unwrap();
    let packets = noise(300);
    let bytes = pcap_of(&packets);
    let (half, rest) = bytes.split_at(24 + 150 * (16 + 64));
    for (name, first, second) in [
        ("plain", half.to_vec(), rest.to_vec()),
        ("gzip", gzip(half), gzip(rest)),
        ("zstd", zstd(half), zstd(rest)),
        ("xz", packed_by("xz", half), packed_by("xz", rest)),
        ("bzip2", packed_by("bzip2", half), packed_by("bzip2", rest)),
        ("lz4", packed_by("lz4", half), packed_by("lz4", rest)),
    ] {
        assert!(first.len().max(second.len()) < PIPE_BYTES);
        let (path, mut pipe) = pipe(&folder, name);
        let stop = Arc::new(AtomicBool::new(false));
        let late = stop_late(&stop);
        pipe.write_all(&first).unwrap();
        let mut input = open(&path, &stop).unwrap();
        assert!(input.is_live());
        assert_eq!(next(&mut input, 150), packets[..150], "{name}");
        pipe.write_all(&second).unwrap();
        assert_eq!(next(&mut input, 150), packets[150..], "{name}");
        assert!(!stop.load(Ordering::Relaxed), "{name}: it waited for more");
        drop((late, pipe));
        assert!(matches!(input.advance(), Ok(Next::End)), "{name}");
    }
    let stored = file(&folder, "stored", &bytes);
    let stop = Arc::new(AtomicBool::new(false));
    assert!(!open(&stored, &stop).unwrap().is_live());
}

/// Also of a compressed stream that is not over: as much as of a file that ends there.
#[test]
fn what_has_arrived_is_given_after_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = pcap_of(&noise(600));
    for (name, whole) in [
        ("plain", bytes.clone()),
        ("gzip", gzip(&bytes)),
        ("zstd", zstd(&bytes)),
        ("xz", packed_by("xz", &bytes)),
        ("bzip2", packed_by("bzip2", &bytes)),
        ("lz4", packed_by("lz4", &bytes)),
    ] {
        let part = &whole[..whole.len() / 2];
        let cut = read(&file(&folder, "cut", part));
        let (path, mut pipe) = pipe(&folder, name);
        pipe.write_all(part).unwrap();
        let stop = Arc::new(AtomicBool::new(true));
        // Some decoders give nothing of a part: then not even the file's header is there.
        let Ok(mut input) = open(&path, &stop) else {
            assert!(cut.error.is_some(), "{name}");
            continue;
        };
        let given = next(&mut input, usize::MAX);
        assert!(given.iter().eq(cut.packets()), "{name}");
    }
}

/// A writer that does not pause does not hold up a stop.
#[test]
fn after_a_stop_an_input_ends_although_more_comes() {
    let folder = tempfile::tempdir().unwrap();
    let (path, both) = pipe(&folder, "endless");
    drop(both);
    let bytes = pcap_of(&noise(100));
    let to = path.clone();
    let writer = thread::spawn(move || -> io::Result<()> {
        let mut pipe = OpenOptions::new().write(true).open(to)?;
        let (header, packets) = bytes.split_at(24);
        pipe.write_all(header)?;
        // Not forever, so that the test ends in any case.
        (0..100_000).try_for_each(|_| pipe.write_all(packets))
    });
    let stop = Arc::new(AtomicBool::new(false));
    let mut input = open(&path, &stop).unwrap();
    next(&mut input, 1_000);
    stop.store(true, Ordering::Relaxed);
    let after = next(&mut input, usize::MAX).len();
    // Those in the pipe, and in the window.
    assert!(after < 50_000, "{after} packets after the stop");
    drop(input);
    let ended = writer.join().unwrap().unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::BrokenPipe);
}
