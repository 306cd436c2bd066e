//! What a stream stands on is removed while somebody appends to it.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use strata_stream::message::{Answer, Request};
use strata_stream::{Cursor, Form, Geometry, Retention, StreamName};
use strata_stream_run::{HostedStripe, StreamAppender, StreamDir, StreamError, StreamSpec};
use tempfile::TempDir;

const GEOMETRY: Geometry = Geometry {
    directory_bytes: 64,
    table_bytes: 4096,
    page_bytes: 1 << 16,
};
/// Records of 1000 bytes, and a mark.
const RECORDS_OF_PAGE: u64 = 64;

fn name() -> StreamName {
    "events".parse().unwrap()
}

/// A directory with a stripe, of which every other page is.
fn striped(folder: &Path) -> (StreamDir, PathBuf) {
    let dir = StreamDir::create(&folder.join("streams"), Some(GEOMETRY)).unwrap();
    let spec = StreamSpec {
        retention: Retention::default(),
        form: Form::Sealed,
    };
    dir.create_stream(&name(), &spec, 1).unwrap();
    let stripe = folder.join("stripe");
    dir.add_stripe(&stripe, (false, 1), None).unwrap();
    (dir, stripe)
}

fn append(stream: &mut StreamAppender, ids: std::ops::Range<u64>) {
    for id in ids {
        let mut record = vec![7; 1000];
        record[..8].copy_from_slice(&id.to_le_bytes());
        stream.append(1, &record).unwrap();
    }
}

fn all(dir: &StreamDir) -> Vec<u64> {
    let mut reader = dir.read(&name()).unwrap();
    reader.seek(Cursor::START, None);
    let mut ids = Vec::new();
    let count = reader.read::<StreamError>(u64::MAX, |entry| {
        ids.push(u64::from_le_bytes(*entry.payload.first_chunk().unwrap()));
        Ok(true)
    });
    assert_eq!(count.unwrap(), ids.len() as u64);
    ids
}

#[test]
fn a_stripe_that_is_removed_is_noticed_before_its_page_is_full() {
    let folder = TempDir::new().unwrap();
    let (dir, stripe) = striped(folder.path());
    let mut stream = dir.append(&name(), 1).unwrap();
    // Into the second page, which is on the stripe.
    let begun = RECORDS_OF_PAGE + 20;
    append(&mut stream, 0..begun);
    stream.sync(1).unwrap();
    append(&mut stream, begun..begun + 5);
    stream.flush(1).unwrap();
    fs::remove_dir_all(&stripe).unwrap();
    // Until that is noticed, they go there.
    append(&mut stream, begun + 5..begun + 8);
    stream.sync(1).unwrap();
    assert_eq!(stream.lost(), 8, "what was not synced there before");
    let said = stream.take_warnings();
    assert!(
        said[0].contains("removed, renamed or unmounted"),
        "{said:?}"
    );
    assert_eq!(stream.kept(), begun);
    append(&mut stream, begun + 8..begun + 20);
    stream.sync(1).unwrap();
    assert_eq!(stream.lost(), 8);
    let there = all(&dir);
    let of_first = there.partition_point(|&id| id < begun);
    assert_eq!(there[of_first..], Vec::from_iter(begun + 8..begun + 20));
    assert!(matches!(
        stream.all_kept(),
        Err(StreamError::Lost { records: 8 })
    ));
}

/// Another process would take its place, and make the map of pages anew, while this one has pages that no header
/// names yet.
#[test]
fn the_lock_of_a_stripe_that_is_removed_is_noticed() {
    let folder = TempDir::new().unwrap();
    let (dir, stripe) = striped(folder.path());
    let mut stream = dir.append(&name(), 1).unwrap();
    append(&mut stream, 0..200);
    stream.sync(1).unwrap();
    fs::remove_file(stripe.join("users.lock")).unwrap();
    stream.sync(1).unwrap();
    let said = stream.take_warnings();
    assert!(
        said[0].contains("removed, renamed or unmounted"),
        "{said:?}"
    );
    append(&mut stream, 200..400);
    stream.close(1).unwrap();
    assert_eq!(all(&dir), Vec::from_iter(0..400));
}

/// As of a stripe here, but a server has it: the client loses it as if the server had been started again.
#[test]
fn a_server_notices_that_the_lock_of_its_stripe_is_removed() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("stripe");
    let stripe = Arc::new(HostedStripe::open(&name(), &path, 1 << 40).unwrap());
    let sizes = [
        GEOMETRY.directory_bytes,
        GEOMETRY.table_bytes,
        GEOMETRY.page_bytes,
    ];
    let join = Request::Join {
        stream: 9,
        streams: &[9_u64.to_le_bytes()],
    };
    let mut session = stripe.session().unwrap();
    for request in [Request::Make { id: 7, sizes }, join, Request::Sync] {
        let (answer, problem) = session.answer(&request);
        assert!(matches!(answer, Answer::Done), "{answer:?}");
        assert!(problem.is_none());
    }
    fs::remove_file(path.join("users.lock")).unwrap();
    let (answer, problem) = session.answer(&Request::Sync);
    assert!(
        matches!(answer, Answer::Failed { is_full: false, .. }),
        "{answer:?}"
    );
    let said = problem.unwrap().to_string();
    assert!(said.contains("users.lock: removed"), "{said}");
    let mut session = stripe.session().unwrap();
    for request in [join, Request::Sync] {
        let (answer, _) = session.answer(&request);
        assert!(matches!(answer, Answer::Done), "{answer:?}");
    }
    assert!(path.join("users.lock").exists());
}
