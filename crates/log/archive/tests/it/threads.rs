//! Compaction with several threads.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use strata_archive::{ArchiveError, compact_until};
use strata_store::Disk;
use strata_testkit_disk::SimDisk;

use crate::common::{interleaved, model, record};

/// Packets a second apart, over more than seven hours: as many runs, each with several members of payload.
fn recorded() -> SimDisk {
    let dir = tempfile::tempdir().unwrap();
    let path = interleaved(dir.path(), 1_000_000_000);
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    assert!(record(&disk, &path, &model(), "log-all", 0));
    sim
}

fn compacted(sim: &SimDisk, threads: usize) -> Result<(), ArchiveError> {
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let threads = NonZeroUsize::new(threads).unwrap();
    compact_until(&disk, threads, &AtomicBool::new(false), |_| ()).map(drop)
}

#[test]
fn the_files_are_the_same_with_any_number_of_threads() {
    let recorded = recorded();
    let files = |threads| {
        let sim = recorded.after_power_loss(0);
        compacted(&sim, threads).unwrap();
        let disk: Arc<dyn Disk> = Arc::new(sim.clone());
        let names = sim.names().into_iter();
        let content = names.map(|name| {
            let file = disk.open(&name, false).unwrap();
            let mut bytes = vec![0; usize::try_from(file.size().unwrap()).unwrap()];
            assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
            (name, bytes)
        });
        content.collect::<Vec<_>>()
    };
    let alone = files(1);
    let payload = alone
        .iter()
        .filter(|(name, _)| name.starts_with("payload/"));
    assert_eq!(payload.count(), 8, "a file for each hour");
    for threads in [2, 3, 8] {
        let together = files(threads);
        let names = |files: &[(String, Vec<u8>)]| {
            let names = files.iter().map(|(name, _)| name.clone());
            names.collect::<Vec<_>>()
        };
        assert_eq!(names(&together), names(&alone), "{threads} threads");
        for ((name, bytes), (_, by_one)) in together.iter().zip(&alone) {
            assert!(bytes == by_one, "{name} differs with {threads} threads");
        }
    }
}

#[test]
fn the_error_of_writing_is_the_one_that_is_returned() {
    let recorded = recorded();
    let whole = recorded.after_power_loss(0);
    let before = whole.operations();
    compacted(&whole, 2).unwrap();
    let operations = whole.operations() - before;
    for operation in (0..operations).step_by(17) {
        let full = recorded.after_power_loss(0);
        full.fail(operation, u64::MAX, io::ErrorKind::StorageFull);
        if let Err(error) = compacted(&full, 2) {
            let is_interrupted = matches!(error, ArchiveError::Interrupted);
            assert!(!is_interrupted, "operation {operation}: {error}");
        }
    }
}
