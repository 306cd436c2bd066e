//! Streams of a relay's log.

use std::sync::Arc;

use strata_store::{About, Disk, RelayLog, StoreError, StreamOptions};
use strata_testkit_disk::SimDisk;

/// A switch that reconnects before the relay has seen its first connection end: two streams would
/// write the same files, and the second would collide with the first one's.
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

/// A relay killed after it created a file and before the manifest lists it leaves a file that
/// nothing refers to; and files of a recording may have been deleted to make space.
#[test]
fn a_stream_that_goes_on_takes_no_name_that_was_taken() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let options = StreamOptions {
        about: About::default(),
        session: "00112233".into(),
        worker: 0,
        rotate_bytes: 1,
    };
    let place = |packets: u8| {
        let log = RelayLog::open(Arc::clone(&disk)).unwrap();
        let mut stream = log.stream(&options).unwrap();
        for number in 0..packets {
            let placed = stream.place(4096, Some(1)).unwrap();
            placed.write(&[number; 4096]).unwrap();
        }
        stream.end(None).unwrap();
    };
    place(2);
    disk.remove("blocks/r0001-w00-000001.strata").unwrap();
    disk.create("blocks/r0001-w00-000002.strata").unwrap();
    place(2);
    let log = strata_store::Log::on(disk).unwrap();
    let recording = &log.recordings()[0];
    let names: Vec<&str> = recording.files.iter().map(|f| f.name.as_str()).collect();
    let expected = ["000000", "000001", "000003", "000004"];
    assert_eq!(names.len(), expected.len(), "{names:?}");
    for (name, number) in names.iter().zip(expected) {
        assert!(name.ends_with(&format!("{number}.strata")), "{names:?}");
    }
    assert!(
        recording
            .files
            .iter()
            .all(|file| file.sealed && file.blocks == 1)
    );
}
