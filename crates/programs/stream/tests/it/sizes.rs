//! The space that streams take.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use crate::common::{Streams, appended, succeeded};

/// Bytes of disk that the directory's files take.
fn taken(streams: &Streams) -> u64 {
    let folders = [streams.dir(), streams.dir().join("streams")];
    let files = folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder).unwrap());
    let blocks = files.map(|file| file.unwrap().metadata().unwrap().blocks());
    512 * blocks.sum::<u64>()
}

/// Lines of 1,000 bytes, each with its number.
fn lines(range: std::ops::Range<u32>) -> String {
    range.map(|number| format!("{number:0999}\n")).collect()
}

#[test]
fn a_new_stream_takes_little_space_and_more_as_it_grows() {
    let streams = Streams::new(&[]);
    streams.append(&[], b"one\n");
    let few = taken(&streams);
    assert!(few < 350_000, "{few} bytes");
    // Another stream of the directory, whose page is behind the first one's.
    succeeded(streams.command("create", &["y"]));
    appended(streams.command("append", &["y"]), b"one\n");
    assert!(taken(&streams) < 650_000);
    // It goes on in the same page, then in others.
    for (from, to) in [(0, 1), (1, 500), (500, 1_200), (1_200, 10_000)] {
        streams.append(&[], lines(from..to).as_bytes());
        let record = u64::from(to) * 1_030;
        let all = taken(&streams);
        assert!(
            all > record && all < 2 * record + 5_000_000,
            "{to}: {all} bytes"
        );
    }
    let records = streams.tail();
    let texts = records
        .iter()
        .map(|record| record["text"].as_str().unwrap());
    let expected = lines(0..10_000);
    assert!(texts.eq(["one"].into_iter().chain(expected.lines())));
    let said = succeeded(streams.command("check", &[]));
    assert!(
        said.contains("x: 10,001 records") && said.contains("y: 1 record,"),
        "{said}"
    );
}

#[test]
fn small_pages_take_less() {
    let streams = Streams::new(&["--pages", "4KiB-4KiB-64KiB"]);
    streams.append(&[], b"one\n");
    let few = taken(&streams);
    assert!(few < 150_000, "{few} bytes");
}
