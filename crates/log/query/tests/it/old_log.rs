//! A log of version 1, written by a program that knew only full packet records, is read as ever.
//!
//! `old-log` was recorded by that program from three captures: header-only packets promoted by
//! look-back, packets cut by a snap length and by a policy, several interfaces, options, packets
//! without a time, other pcapng blocks. `old-log.pcapng` is what it exported.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use strata_archive::compact;
use strata_capture::{Input, InputOptions, Next};
use strata_query::{ExportOptions, FileFormat, Find, export};
use strata_store::{Disk, Log, RealDisk};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(name)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn exported(disk: &Arc<dyn Disk>) -> Vec<u8> {
    let log = Log::on(Arc::clone(disk)).unwrap();
    let mut output = Vec::new();
    let options = ExportOptions {
        comments: true,
        ..ExportOptions::default()
    };
    let find = Find::default();
    let done = export(&log, &mut output, FileFormat::PcapNg, &find, options).unwrap();
    assert!(done.damage.is_empty(), "{:?}", done.damage);
    output
}

/// Times, lengths and bytes of all packets in a file, in a fixed order.
fn packets(pcapng: &[u8]) -> Vec<(u64, u32, Vec<u8>)> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), pcapng).unwrap();
    let mut input = Input::open(&[file.path().to_owned()], &InputOptions::default()).unwrap();
    let mut packets = Vec::new();
    loop {
        match input.advance().unwrap() {
            Next::Packets => packets.extend(
                input
                    .batch()
                    .iter()
                    .map(|packet| (packet.ts_ns, packet.wire_len, packet.data.to_vec())),
            ),
            Next::Meta(_) => {}
            Next::End => break,
        }
    }
    packets.sort();
    packets
}

#[test]
fn a_log_of_version_1_exports_what_it_always_did() {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixture("old-log"), folder.path());
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::at(folder.path()));
    let expected = fs::read(fixture("old-log.pcapng")).unwrap();
    assert!(exported(&disk) == expected, "the export has changed");
    compact(&disk, |_| ()).unwrap();
    let expected = packets(&expected);
    assert_eq!(expected.len(), 41);
    assert_eq!(packets(&exported(&disk)), expected, "once compacted");
}

#[test]
fn a_log_of_a_later_version_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixture("old-log"), folder.path());
    let manifest = folder.path().join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(
        &manifest,
        text.replacen("\"version\": 1", "\"version\": 3", 1),
    )
    .unwrap();
    let error = Log::open(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("version 3, but this Strata reads"),
        "{error}"
    );
    assert!(error.contains("manifest.json"), "{error}");
}
