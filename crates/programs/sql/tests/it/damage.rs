//! Logs of which something is missing or is not what was written.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use strata_archive::compact;
use strata_store::{Disk, RealDisk, RecorderOptions};

use super::{ran, record, unfinished};

const PACKETS: &str = "SELECT count(*) FROM packets";
const FLOWS: &str = "SELECT count(*) FROM flows";
/// Packets of the capture.
const ALL: u64 = 67_690;

/// A compacted log in a directory.
fn compacted(log: &Path) {
    record(log, "mix-test");
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::at(log));
    compact(&disk, |_| ()).unwrap();
}

/// The files of a table.
fn files(log: &Path, table: &str) -> Vec<PathBuf> {
    let below = |dir: PathBuf| {
        let entries = fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let mut found: Vec<PathBuf> = below(log.join(table));
    for _ in ["retention", "file"] {
        found = found.into_iter().flat_map(&below).collect();
    }
    found.sort();
    assert!(found.len() > 1, "{found:?}");
    found
}

/// Status, the number that was counted, and standard error.
fn counted(log: &Path, sql: &str) -> (i32, Option<u64>, String) {
    let ran = ran(log, sql, &["--format", "csv"]);
    let stdout = String::from_utf8(ran.stdout).unwrap();
    let count = stdout.lines().nth(1).map(|line| line.parse().unwrap());
    let stderr = String::from_utf8(ran.stderr).unwrap();
    (ran.status.code().unwrap(), count, stderr)
}

#[test]
fn names_of_directories_are_no_patterns() {
    let dir = tempfile::tempdir().unwrap();
    // One that the names below would match as patterns.
    compacted(&dir.path().join("a1"));
    for name in ["a[1]", "a?", "a*", "**", "a%31", "a b#c"] {
        let log = dir.path().join(name);
        record(&log, "cic2017-sqli");
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::at(&log));
        compact(&disk, |_| ()).unwrap();
        let (status, count, stderr) = counted(&log, PACKETS);
        assert_eq!((status, count), (0, Some(94)), "{name}: {stderr}");
    }
}

#[test]
fn what_is_missing_is_named_and_the_rest_answered() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    compacted(&log);
    let (status, all, _) = counted(&log, FLOWS);
    assert_eq!(status, 0);
    let all = all.unwrap();
    let flows = files(&log, "flows");
    fs::remove_file(&flows[0]).unwrap();
    let (status, some, stderr) = counted(&log, FLOWS);
    assert!(status == 1 && some.unwrap() < all, "{some:?} {stderr}");
    let file = flows[0].to_str().unwrap();
    assert!(stderr.contains(&format!("{file}: the file is missing")));
    assert!(stderr.ends_with("1 missing file in the log\n"), "{stderr}");
    // A table of which nothing is missing, and one of which all is.
    let (status, count, stderr) = counted(&log, PACKETS);
    assert_eq!(
        (status, count, stderr.as_str()),
        (0, Some(ALL), ""),
        "{stderr}"
    );
    for file in &flows[1..] {
        fs::remove_file(file).unwrap();
    }
    let twice = "SELECT count(*) FROM flows a FULL JOIN flows b USING (flow_id)";
    let (status, count, stderr) = counted(&log, twice);
    assert_eq!((status, count), (1, Some(0)), "{stderr}");
    assert_eq!(
        stderr.matches("is missing").count(),
        flows.len(),
        "{stderr}"
    );
}

/// Damage is found wherever it is, also in the footer, which has no checksum of Parquet's own.
#[test]
fn no_answer_is_made_from_bytes_that_were_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    compacted(&log);
    for (table, sql) in [
        ("packets", "SELECT * FROM packets"),
        ("flows", "SELECT * FROM flows"),
        ("flows", "SELECT max(last_time), sum(packets) FROM flows"),
    ] {
        let file = files(&log, table).swap_remove(0);
        let whole = fs::read(&file).unwrap();
        let tail = whole.len() - 8;
        let footer = u32::from_le_bytes(whole[tail..tail + 4].try_into().unwrap());
        let start = tail - footer as usize;
        let mut places: Vec<usize> = (start..whole.len()).step_by(footer as usize / 12).collect();
        if sql.contains('*') {
            places.extend((4..start).step_by(start / 4));
        }
        for at in places {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&file, flipped).unwrap();
            let ran = ran(&log, sql, &["--format", "csv"]);
            let stderr = String::from_utf8_lossy(&ran.stderr);
            let is_told = stderr.contains(&format!("{}: damaged", file.display()));
            assert!(!ran.status.success() && is_told, "{sql}: {at}: {stderr}");
            assert_eq!(stderr.lines().count(), 1, "{stderr}");
        }
        // And where it is cut off.
        fs::write(&file, &whole[..whole.len() - 100]).unwrap();
        let (status, _, stderr) = counted(&log, &format!("SELECT count(*) FROM {table}"));
        assert!(status == 1 && stderr.contains("were written"), "{stderr}");
        fs::write(&file, whole).unwrap();
    }
    assert_eq!(counted(&log, PACKETS).1, Some(ALL));
}

#[test]
fn what_a_damaged_block_leaves_out_is_no_success() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let options = RecorderOptions {
        block_bytes: 64 << 10,
        ..RecorderOptions::default()
    };
    let (recorder, ledger) = unfinished(&log, "mix-test", options);
    recorder.finish(&ledger, Vec::new()).unwrap();
    let entries = fs::read_dir(log.join("blocks")).unwrap();
    let mut entries = entries.map(|entry| entry.unwrap().path());
    let file = entries
        .find(|path| path.extension().is_some_and(|of| of == "strata"))
        .unwrap();
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    // More than the padding of a block.
    for byte in &mut bytes[middle..][..16 << 10] {
        *byte ^= 1;
    }
    fs::write(&file, bytes).unwrap();
    let (status, count, stderr) = counted(&log, PACKETS);
    let count = count.unwrap();
    assert!(status == 1 && 0 < count && count < ALL, "{count} {stderr}");
    let named = format!("{}: damaged at offset", file.display());
    assert!(stderr.contains(&named), "{stderr}");
    let last = stderr.lines().last().unwrap();
    assert!(last.contains(" damaged place"), "{stderr}");
    // The file is whole, and stays.
    let written = dir.path().join("answer.csv");
    let ran = ran(&log, PACKETS, &["-w", written.to_str().unwrap()]);
    assert_eq!(ran.status.code(), Some(1));
    let answer = fs::read_to_string(&written).unwrap();
    assert_eq!(answer, format!("count(*)\n{count}\n"));
}
