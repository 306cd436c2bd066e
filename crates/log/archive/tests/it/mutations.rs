//! Bytes of a log changed anywhere: `verify` reports them, and nobody gets a wrong packet.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use strata_archive::parts::PAGE_ROWS;
use strata_archive::{
    ArchiveError, ClearDisk, Identities, Place, compact, encrypt_to, relocate, verify,
};
use strata_query::{ExportOptions, Exported, FileFormat, Find, export, flow_records};
use strata_store::{Disk, FileKind, Log, Part, drift_name, seal_drift};
use strata_testkit::data_dir;
use strata_testkit_disk::SimDisk;
use strata_wire::mix64;

use crate::common::{Packet, model, read, record};

/// Changes to each file.
const CHANGES: u64 = 12;
const SEED: u64 = 12;

/// A log with both tiers, and with all kinds of files.
fn log(key: &Identities, encrypted: bool, place: Option<&str>) -> SimDisk {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let path = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    assert!(record(&disk, &path, &model(), "log-all", 0));
    if encrypted {
        encrypt_to(&disk, &key.recipients()).unwrap();
    }
    compact(&disk, |_| ()).unwrap();
    if let Some(place) = place {
        relocate(&disk, &Place::elsewhere(place).unwrap(), u64::MAX, |_| ()).unwrap();
    }
    assert!(record(&disk, &path, &model(), "default", 60_000));
    let drift = seal_drift(b"{\n  \"samples\": 3,\n  \"scores\": 0.25,\n  \"features\": []\n}");
    disk.replace(&drift_name(2), &drift).unwrap();
    sim
}

/// Opens the log as the program does: its disk checks and decrypts.
fn open(sim: &SimDisk, key: &Identities) -> Result<Log, String> {
    let disk = ClearDisk::new(Arc::new(sim.clone()), Some(key.clone()));
    Log::on(Arc::new(disk)).map_err(|error| error.to_string())
}

fn exported(log: &Log) -> Result<(Exported, Vec<Packet>), ArchiveError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let find = Find::default();
    let options = ExportOptions {
        select: find.select(),
        matches: None,
        comments: true,
        ..ExportOptions::default()
    };
    let done = export(log, &mut file, FileFormat::PcapNg, &find, options)?;
    let packets = read(file.path()).packets;
    Ok((done, packets))
}

/// Whether `packets` is a subsequence of `all`.
fn are_some_of(packets: &[Packet], all: &[Packet]) -> bool {
    let mut rest = all.iter();
    packets.iter().all(|packet| rest.any(|one| one == packet))
}

/// The kind of a file, for counting.
fn kind(name: &str) -> &str {
    let name = name.strip_suffix(".age").unwrap_or(name);
    match name.rsplit_once('.').map_or(name, |(_, ending)| ending) {
        "strata" if name.contains("meta/") => "meta",
        "parquet" if name.contains("flows/") => "flows",
        "json" => name.split('/').next().unwrap_or(name),
        ending => ending,
    }
}

#[test]
fn what_was_changed_is_said_and_no_packet_is_wrong() {
    let key = Identities::generate();
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    for (encrypted, place) in [
        (false, None),
        (true, None),
        (false, Some("s3://bucket/log")),
    ] {
        let sim = log(&key, encrypted, place);
        let raw = || Log::on(Arc::new(sim.clone()));
        let clean = verify(&raw().unwrap(), Some(&key)).unwrap();
        assert_eq!((clean.damage, clean.warnings), (vec![], vec![]));
        let (_, all) = exported(&open(&sim, &key).unwrap()).unwrap();
        assert_eq!(all.len(), 188);
        for name in sim.names() {
            let disk: &dyn Disk = &sim;
            let size = disk.open(&name, false).unwrap().size().unwrap();
            for n in 0..CHANGES.min(size) {
                let draw = mix64(SEED ^ n ^ size << 8);
                let (byte, bit) = (draw % size, u8::try_from(draw >> 61).unwrap());
                let place = format!("{name} byte {byte} bit {bit}");
                let byte = usize::try_from(byte).unwrap();
                sim.flip_bit(&name, byte, bit);
                match raw() {
                    Err(_) => {}
                    Ok(log) => {
                        let found = verify(&log, Some(&key)).unwrap();
                        assert!(!found.damage.is_empty(), "{place}");
                        assert_eq!(found.warnings, [], "{place}");
                    }
                }
                if let Ok(log) = open(&sim, &key)
                    && let Ok((done, packets)) = exported(&log)
                {
                    assert!(are_some_of(&packets, &all), "{place}: a wrong packet");
                    if done.damage.is_empty() {
                        assert_eq!(packets.len(), all.len(), "{place}: lost without a word");
                    }
                }
                sim.flip_bit(&name, byte, bit);
                *kinds.entry(kind(&name).to_owned()).or_default() += 1;
            }
        }
    }
    for kind in [
        "manifest.json",
        "archive.json",
        "models",
        "drift",
        "checkpoint",
        "strata",
        "index",
        "parquet",
        "flows",
        "gz",
        "meta",
        "crc",
    ] {
        assert!(kinds.contains_key(kind), "{kind} is not among {kinds:?}");
    }
}

#[test]
fn flows_that_were_changed_are_not_given_out() {
    let key = Identities::generate();
    let sim = log(&key, false, None);
    let records = || {
        let mut all = Vec::new();
        let log = open(&sim, &key)?;
        for part in &log.archive().parts {
            flow_records::<ArchiveError>(log.disk().as_ref(), part, &Find::default(), |record| {
                all.push(format!("{record:?}"));
                Ok(())
            })
            .map_err(|error| error.to_string())?;
        }
        Ok::<_, String>(all)
    };
    let all = records().unwrap();
    let names = sim.names();
    let name = names
        .iter()
        .find(|name| name.starts_with("flows/"))
        .unwrap();
    let disk: &dyn Disk = &sim;
    let size = disk.open(name, false).unwrap().size().unwrap();
    for n in 0..200 {
        let draw = mix64(SEED ^ n);
        let (byte, bit) = (
            usize::try_from(draw % size).unwrap(),
            u8::try_from(draw >> 61).unwrap(),
        );
        sim.flip_bit(name, byte, bit);
        if let Ok(records) = records() {
            assert!(records == all, "byte {byte} bit {bit} of {name}");
        }
        sim.flip_bit(name, byte, bit);
    }
}

/// A log whose `sums/` are damaged or were never written is checked by whole files.
#[test]
fn without_the_sums_files_are_checked_as_a_whole() {
    let key = Identities::generate();
    let sim = log(&key, false, None);
    let of = |kind: &str| {
        let names = sim.names();
        names
            .into_iter()
            .find(|name| name.starts_with(kind))
            .unwrap()
    };
    let (_, all) = exported(&open(&sim, &key).unwrap()).unwrap();
    sim.flip_bit(&of("sums/"), 20, 1);
    let (done, packets) = exported(&open(&sim, &key).unwrap()).unwrap();
    assert!(done.damage.is_empty() && packets == all);
    sim.flip_bit(&of("packets/"), 300, 1);
    let (done, packets) = exported(&open(&sim, &key).unwrap()).unwrap();
    assert!(!done.damage.is_empty() && packets.len() < all.len());
}

/// A damaged place costs the pages that it lies in and the flows cut by them, not the row group; the
/// export says how many packets.
#[test]
fn most_packets_around_a_damaged_place_are_still_there() {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let path = data_dir().join("labelled/mix-test/trace.pcap");
    let again = repeated(&path, 8);
    assert!(record(&disk, again.path(), &model(), "log-minimum", 0));
    compact(&disk, |_| ()).unwrap();
    let key = Identities::generate();
    let (_, all) = exported(&open(&sim, &key).unwrap()).unwrap();
    let name = |part: &Part| part.file(FileKind::Packets).unwrap().name.clone();
    let log = open(&sim, &key).unwrap();
    let largest = log.archive().parts.iter().max_by_key(|part| part.packets);
    let (name, packets) = largest.map(|part| (name(part), part.packets)).unwrap();
    assert!(packets > 2 * PAGE_ROWS as u64, "{packets}");
    let size = (&sim as &dyn Disk)
        .open(&name, false)
        .unwrap()
        .size()
        .unwrap();
    let (mut some_there, mut mostly_there) = (0, 0);
    for n in 0..48 {
        let byte = usize::try_from(mix64(SEED ^ n) % size).unwrap();
        sim.flip_bit(&name, byte, 2);
        let (done, some) = exported(&open(&sim, &key).unwrap()).unwrap();
        sim.flip_bit(&name, byte, 2);
        assert!(are_some_of(&some, &all), "byte {byte}: a wrong packet");
        let damage = &done.damage[..];
        let lost: u64 = damage.iter().map(|one| packets_of(&one.problem)).sum();
        assert_eq!(
            some.len() as u64 + lost,
            all.len() as u64,
            "byte {byte}: {damage:?}"
        );
        let piece = (byte & !0xffff) as u64;
        assert!(
            damage.iter().all(|one| one.offset == piece),
            "byte {byte}: {damage:?}"
        );
        some_there += usize::from(lost < packets);
        mostly_there += usize::from(lost < packets / 2);
    }
    assert!(
        some_there >= 20 && mostly_there >= 12,
        "{some_there} with some, {mostly_there} with most, of 48"
    );
}

/// The headers of a capture, repeated.
fn repeated(path: &Path, times: u64) -> tempfile::NamedTempFile {
    let packets = read(path).packets;
    let first_ns = packets[0].0;
    let span_ns = packets.last().unwrap().0 - first_ns + 1;
    let mut bytes = Vec::new();
    let mut words = |words: [u32; 4], data: &[u8]| {
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(data);
    };
    // A pcap file in nanoseconds, of Ethernet.
    words([0xa1b2_3c4d, 2 | 4 << 16, 0, 0], &[0, 0, 4, 0, 1, 0, 0, 0]);
    for time in 0..times {
        for (ts_ns, _, wire_len, data, _) in &packets {
            // All of them within the hour of the first one.
            let ns =
                first_ns + (ts_ns - first_ns) / (100 * times) + time * (span_ns / (100 * times));
            let data = &data[..data.len().min(96)];
            let small = |number: u64| u32::try_from(number).unwrap();
            let time = [small(ns / 1_000_000_000), small(ns % 1_000_000_000)];
            words(
                [time[0], time[1], small(data.len() as u64), *wire_len],
                data,
            );
        }
    }
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&bytes).unwrap();
    file
}

/// How many packets a damaged place costs, as it says first.
fn packets_of(problem: &str) -> u64 {
    problem.split(' ').next().unwrap().parse().unwrap()
}

/// Without Strata's own checksums, those of pages protect any reader from wrong values.
#[test]
fn pages_have_checksums_that_readers_check() {
    let key = Identities::generate();
    let sim = log(&key, false, None);
    let log = Log::on(Arc::new(sim.clone())).unwrap();
    let (_, all) = exported(&log).unwrap();
    let part = &log.archive().parts[0];
    let name = &part.file(FileKind::Packets).unwrap().name;
    let pages = pages_of(&sim, name);
    assert!(pages.len() > 60, "{} pages", pages.len());
    let mut changes = 0;
    for page in pages {
        let byte = page.start + page.len() / 2;
        sim.flip_bit(name, byte, 2);
        let (done, packets) = exported(&log).unwrap();
        assert!(!done.damage.is_empty(), "byte {byte} of {name}");
        assert!(are_some_of(&packets, &all), "byte {byte} of {name}");
        sim.flip_bit(name, byte, 2);
        changes += 1;
    }
    assert!(changes > 60, "{changes}");
}

/// Ranges of the compressed bytes of pages: a zstd frame starts where a page's header ends.
fn pages_of(sim: &SimDisk, name: &str) -> Vec<Range<usize>> {
    let disk: &dyn Disk = sim;
    let file = disk.open(name, false).unwrap();
    let mut bytes = vec![0; usize::try_from(file.size().unwrap()).unwrap()];
    file.read_at(&mut bytes, 0).unwrap();
    let magic = [0x28, 0xb5, 0x2f, 0xfd];
    let starts = bytes
        .windows(4)
        .enumerate()
        .filter(|(_, four)| *four == magic);
    let starts: Vec<usize> = starts.map(|(at, _)| at).collect();
    let end = |at: usize| at + frame_len(&bytes[at..]);
    starts.into_iter().map(|at| at..end(at)).collect()
}

/// The length of a zstd frame (RFC 8878, section 3.1.1).
fn frame_len(frame: &[u8]) -> usize {
    let descriptor = frame[4];
    let single = descriptor & 0x20 != 0;
    let size = [usize::from(single), 2, 4, 8][usize::from(descriptor >> 6)];
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let mut at = 5 + usize::from(!single) + dictionary + size;
    loop {
        let header = u32::from_le_bytes([frame[at], frame[at + 1], frame[at + 2], 0]);
        let len = usize::try_from(header >> 3).unwrap();
        at += 3 + if header >> 1 & 3 == 1 { 1 } else { len };
        if header & 1 == 1 {
            return at + if descriptor & 4 != 0 { 4 } else { 0 };
        }
    }
}
