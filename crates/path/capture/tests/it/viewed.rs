//! Files that are not copied, and what may happen to them meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use strata_capture::{CaptureError, Input, InputOptions, Next, WarningKind};

use crate::common::{Packet, packet, pcap_of};

const PACKETS: u64 = 4_000;
const PACKET_BYTES: usize = 1_400;

fn packets() -> Vec<Packet> {
    (0..PACKETS)
        .map(|index| {
            let data = [index.to_le_bytes()[0] | 1; PACKET_BYTES];
            packet(1_700_000_000_000_000_000 + index * 1_000_000, 0, &data)
        })
        .collect()
}

fn open(path: &Path, ahead: bool, viewed: bool) -> Input {
    let mut options = InputOptions::default();
    options.read_ahead = ahead;
    options.viewed_bytes_min = if viewed { 0 } else { u64::MAX };
    Input::open(&[path.to_owned()], &options).unwrap()
}

/// The rest of an input: the sum of its bytes, how many packets, and the error at the end.
fn rest(input: &mut Input) -> (u64, u64, Option<CaptureError>) {
    let (mut sum, mut count) = (0, 0);
    loop {
        match input.advance() {
            Ok(Next::End) => return (sum, count, None),
            Ok(Next::Meta(_)) => {}
            Ok(Next::Packets) => {
                for packet in input.batch().iter() {
                    sum += packet.data.iter().map(|&byte| u64::from(byte)).sum::<u64>();
                    count += 1;
                }
            }
            Err(error) => return (sum, count, Some(error)),
        }
    }
}

/// To its first packets, whose window and, if a thread is ahead, some more is in memory then.
fn to_first_packets(input: &mut Input) {
    while input.advance().unwrap() != Next::Packets {}
}

fn made(folder: &tempfile::TempDir) -> (std::path::PathBuf, u64) {
    let path = folder.path().join("some.pcap");
    let bytes = pcap_of(&packets());
    fs::write(&path, &bytes).unwrap();
    (path, bytes.len() as u64)
}

/// Bytes that are behind are counted, of all files together, and are all of them at the end.
#[test]
fn bytes_that_are_read_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (path, len) = made(&folder);
    let copy = folder.path().join("copy.pcap");
    fs::copy(&path, &copy).unwrap();
    let packed = folder.path().join("packed.pcap.gz");
    let gzip = Command::new("gzip").arg("-c").arg(&path).output().unwrap();
    fs::write(&packed, gzip.stdout).unwrap();
    for (ahead, viewed) in [(false, false), (true, false), (false, true), (true, true)] {
        let count = Arc::new(AtomicU64::new(0));
        let mut options = InputOptions::default();
        options.read_ahead = ahead;
        options.viewed_bytes_min = if viewed { 0 } else { u64::MAX };
        options.read_bytes = Some(Arc::clone(&count));
        let mut input = Input::open(&[path.clone(), copy.clone()], &options).unwrap();
        assert_eq!(input.plain_bytes(), Some(2 * len));
        to_first_packets(&mut input);
        let first = count.load(Ordering::Relaxed);
        assert!(first < len, "{first} of {len} are behind the first packets");
        let (_, _, error) = rest(&mut input);
        assert!(error.is_none(), "{error:?}");
        assert_eq!(count.load(Ordering::Relaxed), 2 * len, "{ahead} {viewed}");
        let input = Input::open(&[path.clone(), packed.clone()], &options).unwrap();
        assert_eq!(
            input.plain_bytes(),
            None,
            "the length of what is packed is not known"
        );
    }
}

/// As tcpdump does while it writes: what comes later is read too, of a record that was cut as well.
#[test]
fn what_is_written_meanwhile_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let (path, len) = made(&folder);
    let bytes = fs::read(&path).unwrap();
    let whole = rest(&mut open(&path, false, false));
    assert_eq!(whole.1, PACKETS);
    for ahead in [false, true] {
        for missing in [0, 1, 700, 3_000_000_u64] {
            let kept = usize::try_from(len - missing).unwrap();
            fs::write(&path, &bytes[..kept]).unwrap();
            let mut input = open(&path, ahead, true);
            while input.advance().unwrap() != Next::Packets {}
            let mut file = OpenOptions::new().append(true).open(&path).unwrap();
            file.write_all(&bytes[kept..]).unwrap();
            let first = input.batch().iter();
            let first: u64 = first
                .flat_map(|p| p.data)
                .map(|&byte| u64::from(byte))
                .sum();
            let count = input.batch().len() as u64;
            let (sum, more, error) = rest(&mut input);
            assert!(error.is_none(), "{ahead} {missing}: {error:?}");
            assert_eq!(
                (first + sum, count + more),
                (whole.0, whole.1),
                "{ahead} {missing}"
            );
            assert_eq!(input.warnings().count(), 0);
        }
    }
}

/// What is no longer there ends the file as when it is read: cut within a packet.
#[test]
fn a_file_that_is_shorter_before_it_is_looked_at_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let (path, len) = made(&folder);
    let mut input = open(&path, false, true);
    to_first_packets(&mut input);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(len - 3_000_000).unwrap();
    let (_, count, error) = rest(&mut input);
    assert!(error.is_none(), "{error:?}");
    assert!((1_000..PACKETS - 2_000).contains(&count), "{count}");
    let kinds: Vec<_> = input.warnings().map(|warning| warning.kind).collect();
    assert_eq!(kinds, [WarningKind::Truncated]);
}

/// What was there, and is not when it is looked at, is an error, and ends no process.
#[test]
fn a_file_that_is_truncated_while_it_is_looked_at_is_an_error() {
    for ahead in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (path, _) = made(&folder);
        let mut input = open(&path, ahead, true);
        to_first_packets(&mut input);
        File::create(&path).unwrap();
        let zeros = input
            .batch()
            .iter()
            .filter(|p| p.data.iter().all(|&byte| byte == 0));
        assert!(zeros.count() > 0);
        let (_, _, error) = rest(&mut input);
        let error = error
            .expect("it is not the file that was opened")
            .to_string();
        assert!(
            error.contains("some.pcap") && error.contains("truncated"),
            "{error}"
        );
        assert_eq!(input.advance().unwrap(), Next::End);
    }
}

/// More files than can be in view: the others are copied.
#[test]
fn many_files_are_merged() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..100)
        .map(|index| {
            let path = folder.path().join(format!("{index}.pcap"));
            fs::write(&path, pcap_of(&packets()[..40])).unwrap();
            path
        })
        .collect();
    let mut options = InputOptions::default();
    options.viewed_bytes_min = 0;
    let mut input = Input::open(&paths, &options).unwrap();
    let (_, count, error) = rest(&mut input);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(count, 4_000);
}
