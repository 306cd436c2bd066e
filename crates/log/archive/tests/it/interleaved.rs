//! Exports of logs with many interleaved flows: the bytes read grow with the packets.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use strata_archive::{ClearDisk, Identities, Place, compact, encrypt_to, relocate};
use strata_filter::Filter;
use strata_query::{ExportOptions, FileFormat, Find, export_within};
use strata_store::{Disk, FileKind, Log};
use strata_testkit_disk::SimDisk;

use crate::common::{
    INTERLEAVED_FLOWS, INTERLEAVED_PACKETS, Packet, interleaved, model, read, record,
};

fn recorded(path: &Path) -> SimDisk {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    assert!(record(&disk, path, &model(), "log-all", 0));
    sim
}

/// The same log, compacted; encrypted if there is a key, and moved if there is a place.
fn at_rest(recorded: &SimDisk, key: Option<&Identities>, place: Option<&str>) -> SimDisk {
    let sim = recorded.after_power_loss(0);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    if let Some(key) = key {
        encrypt_to(&disk, &key.recipients()).unwrap();
    }
    compact(&disk, |_| ()).unwrap();
    if let Some(place) = place {
        relocate(&disk, &Place::elsewhere(place).unwrap(), u64::MAX, |_| ()).unwrap();
    }
    sim
}

/// Exports all packets, with this much memory for those that wait.
fn exported(disk: Arc<dyn Disk>, memory_bytes: usize, find: &Find<'_>) -> Vec<Packet> {
    let log = Log::on(disk).unwrap();
    let mut out = tempfile::NamedTempFile::new().unwrap();
    let options = ExportOptions {
        select: find.select(),
        matches: None,
        comments: false,
        ..ExportOptions::default()
    };
    let format = FileFormat::PcapNg;
    let done = export_within(memory_bytes, &log, &mut out, format, find, options).unwrap();
    assert_eq!(done.damage, []);
    read(out.path()).packets
}

/// Length of each payload file, and the bytes read from it.
fn payloads(sim: &SimDisk) -> BTreeMap<String, (u64, u64)> {
    let log = Log::on(Arc::new(sim.clone())).unwrap();
    let parts = log.archive().parts.iter();
    let files = parts.filter_map(|part| part.file(FileKind::Payload));
    let of = |name: &String| (name.clone(), sim.bytes_read(name));
    files
        .map(|file| (of(&file.name), file.bytes))
        .map(|((name, read), len)| (name, (len, read)))
        .collect()
}

#[test]
fn each_payload_is_read_once_clear_encrypted_and_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let path = interleaved(dir.path(), 10_000);
    let all = read(&path).packets;
    assert_eq!(all.len() as u64, INTERLEAVED_PACKETS);
    let key = Identities::generate();
    let blocks = recorded(&path);
    let clear = at_rest(&blocks, None, None);
    let away = at_rest(&blocks, None, Some("s3://bucket/log"));
    let encrypted = at_rest(&blocks, Some(&key), None);
    // Less than a run: the rest waits in a temporary file.
    let all_small = [&clear, &away, &encrypted].map(|sim| (sim, 1 << 20));
    for (sim, memory_bytes) in all_small.into_iter().chain([(&clear, 64 << 20)]) {
        let before = payloads(sim);
        let disk = ClearDisk::new(Arc::new(sim.clone()), Some(key.clone()));
        assert!(exported(Arc::new(disk), memory_bytes, &Find::default()) == all);
        for (name, (len, read)) in payloads(sim) {
            let read = read - before[&name].1;
            assert!(len > 17 << 20, "{name}: {len} bytes");
            let most = len + len / 2 + (1 << 20);
            assert!(read <= most, "{name}: {read} bytes were read of {len}");
        }
    }
}

#[test]
fn a_search_reads_the_payload_of_its_flows_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = interleaved(dir.path(), 10_000);
    let sim = at_rest(&recorded(&path), None, None);
    let before = payloads(&sim);
    let filter = Filter::parse("udp port 1500 and host 10.0.0.1 and host 10.0.0.2").unwrap();
    let find = Find {
        filter: Some(&filter),
        ..Find::default()
    };
    let found = exported(Arc::new(sim.clone()), 64 << 20, &find);
    assert!(
        found.len() as u64 >= INTERLEAVED_PACKETS / INTERLEAVED_FLOWS && found.len() < 100,
        "{}",
        found.len()
    );
    for (name, (_, read)) in payloads(&sim) {
        let read = read - before[&name].1;
        assert!(read <= 2 << 20, "{name}: {read} bytes were read");
    }
}
