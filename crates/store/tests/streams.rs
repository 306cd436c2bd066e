//! Streams of a relay's log.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::sync::Arc;

use strata_store::{About, Disk, RelayLog, SimDisk, StoreError, StreamOptions};

/// A switch that connects again before the relay has seen its first connection end: two streams
/// would write the same files, and the second would find the first one's in its way.
#[test]
fn a_stream_has_one_writer() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let log = RelayLog::open(disk).unwrap();
    let options = |worker| StreamOptions {
        about: About::default(),
        session: "00112233".into(),
        worker,
        rotate_bytes: 0,
    };
    let first = log.stream(&options(0)).unwrap();
    let other_worker = log.stream(&options(1)).unwrap();
    assert!(!first.is_wanted());

    let second = log.stream(&options(0));
    assert!(matches!(second, Err(StoreError::StreamTaken)), "{second:?}");
    assert!(first.is_wanted() && !other_worker.is_wanted());
    let recording = first.recording();
    drop(first);
    let second = log.stream(&options(0)).unwrap();
    assert!(!second.is_wanted());
    assert_eq!(second.recording(), recording, "it goes on with it");
}
