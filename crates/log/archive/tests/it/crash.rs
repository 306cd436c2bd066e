//! Compaction and retention, interrupted at every step.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use strata_archive::{PROTECTED, Retention, compact, compact_until, make_room, prune, verify};
use strata_filter::Filter;
use strata_query::Find;
use strata_store::{Disk, DiskFile, DiskLayer, Log};
use strata_testkit::data_dir;
use strata_testkit_disk::SimDisk;

use crate::common::{Packet, compacted, exported, model, read, record, record_protected};

/// A log of two recordings and several block files.
fn recorded() -> SimDisk {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let path = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    for mode in ["default", "log-all"] {
        assert!(record(&disk, &path, &model(), mode, 60_000));
    }
    sim
}

fn packets(sim: &SimDisk) -> Vec<Packet> {
    let log = Log::on(Arc::new(sim.clone())).unwrap();
    exported(&log, &Find::default()).0.packets
}

#[test]
fn a_full_disk_is_reported_with_the_file_that_did_not_fit() {
    let sim = recorded();
    let whole = sim.after_power_loss(0);
    let before = whole.operations();
    let disk: Arc<dyn Disk> = Arc::new(whole.clone());
    compact(&disk, |_| ()).unwrap();
    let mut refused = 0;
    for operation in 0..whole.operations() - before {
        let full = sim.after_power_loss(0);
        full.fail(operation, u64::MAX, std::io::ErrorKind::StorageFull);
        let disk: Arc<dyn Disk> = Arc::new(full);
        if let Err(error) = compact(&disk, |_| ()) {
            let text = error.to_string();
            let files = [
                "staging/",
                "manifest.json",
                "archive.json",
                "packets/",
                "flows/",
                "payload/",
                "meta/",
                "sums/",
                "blocks/",
            ];
            let named = files.iter().any(|name| text.contains(name));
            assert!(named, "{operation}: {text}");
            refused += 1;
        }
    }
    assert!(refused > 10, "{refused} refused");
}

#[test]
fn each_packet_is_in_exactly_one_tier_wherever_compaction_is_killed() {
    let sim = recorded();
    let all = packets(&sim);
    assert!(all.len() == 188);
    let whole = sim.after_power_loss(0);
    let before = whole.operations();
    let whole_disk: Arc<dyn Disk> = Arc::new(whole.clone());
    compact(&whole_disk, |_| ()).unwrap();
    let operations = whole.operations() - before;
    assert!(operations > 20, "{operations} changes");
    let (mut unfinished, mut finished) = (0, 0);
    for crash in 0..=operations {
        for seed in 0..3 {
            let crashed = sim.after_power_loss(0);
            crashed.crash_after(crashed.operations() + crash);
            let disk: Arc<dyn Disk> = Arc::new(crashed.clone());
            let ended = compact(&disk, |_| ());
            drop(disk);
            let left = crashed.after_power_loss(seed * 1_000 + crash);
            assert_eq!(packets(&left), all, "crash {crash} seed {seed}");
            let disk: Arc<dyn Disk> = Arc::new(left.clone());
            unfinished += usize::from(ended.is_err());
            compact(&disk, |_| ()).unwrap();
            let log = Log::on(Arc::clone(&disk)).unwrap();
            assert!(log.recordings().iter().all(|r| r.files.is_empty()));
            assert_eq!(packets(&left), all, "crash {crash} seed {seed}, again");
            let names = left.names();
            assert!(
                !names.iter().any(|name| name.starts_with("staging/")),
                "{names:?}"
            );
            let listed: usize = log.archive().parts.iter().map(|p| p.files.len()).sum();
            let there = names.iter().filter(|name| {
                ["packets/", "flows/", "payload/", "meta/", "sums/"]
                    .iter()
                    .any(|dir| name.starts_with(dir))
            });
            assert_eq!(
                there.count(),
                listed,
                "nothing lies there that is not listed"
            );
            assert!(
                !names
                    .iter()
                    .any(|name| name.ends_with(".strata") && name.starts_with("blocks/"))
            );
            finished += 1;
        }
    }
    assert!(unfinished > 60 && finished > 60, "{unfinished} {finished}");
}

#[test]
fn every_flipped_byte_is_found_and_named() {
    for compacted in [false, true] {
        let sim = recorded();
        let disk: Arc<dyn Disk> = Arc::new(sim.clone());
        if compacted {
            compact(&disk, |_| ()).unwrap();
        }
        let clean = verify(&Log::on(Arc::clone(&disk)).unwrap(), None).unwrap();
        assert_eq!((clean.damage.len(), clean.packets), (0, 188));
        let dirs: &[&str] = if compacted {
            &[
                "packets/", "flows/", "payload/", "meta/", "sums/", "models/",
            ]
        } else {
            &["blocks/", "models/"]
        };
        let mut flips = 0;
        for name in sim.names() {
            let ours = dirs.iter().any(|dir| name.starts_with(dir));
            if !ours {
                continue;
            }
            let size = disk.open(&name, false).unwrap().size().unwrap();
            let step = (size / 40).max(1);
            for at in (0..size).step_by(usize::try_from(step).unwrap()) {
                let byte = usize::try_from(at).unwrap();
                sim.flip_bit(&name, byte, 3);
                let log = Log::on(Arc::clone(&disk)).unwrap();
                let verified = verify(&log, None).unwrap();
                let found = verified.damage;
                assert!(!found.is_empty(), "{name} byte {at} was not noticed");
                let near = |offset: u64| offset <= at && at < offset + (1 << 20);
                assert!(
                    found
                        .iter()
                        .any(|d| d.file.ends_with(&name) && near(d.offset)),
                    "{name} byte {at}: {found:?}"
                );
                sim.flip_bit(&name, byte, 3);
                flips += 1;
            }
        }
        assert!(flips > 60, "{flips}");
    }
}

#[test]
fn every_flipped_byte_of_a_manifest_is_found_and_named() {
    let sim = recorded();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    compact(&disk, |_| ()).unwrap();
    for name in ["manifest.json", "archive.json"] {
        let size = disk.open(name, false).unwrap().size().unwrap();
        let size = usize::try_from(size).unwrap();
        for byte in (0..size).step_by(7) {
            sim.flip_bit(name, byte, 2);
            let error = Log::on(Arc::clone(&disk)).unwrap_err().to_string();
            let place = format!("the byte at offset {byte} was changed");
            assert!(
                error.contains(name) && error.contains(&place),
                "{name} byte {byte}: {error}"
            );
            sim.flip_bit(name, byte, 2);
        }
        Log::on(Arc::clone(&disk)).unwrap();
    }
}

#[test]
fn a_damaged_block_file_is_left_alone_and_the_others_are_compacted() {
    let sim = recorded();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let name = sim
        .names()
        .into_iter()
        .find(|name| name.ends_with("w00-000000.strata"))
        .unwrap();
    sim.flip_bit(&name, 5_000, 1);
    let done = compact(&disk, |_| ()).unwrap();
    assert_eq!(done.damage.len(), 1);
    assert!(done.packets > 0 && done.packets < 188);
    sim.flip_bit(&name, 5_000, 1);
    assert_eq!(packets(&sim).len(), 188);
}

#[test]
fn readers_keep_their_files_while_the_log_is_compacted_and_pruned() {
    let sim = recorded();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let all = packets(&sim);
    let early = Log::on(Arc::clone(&disk)).unwrap();
    compact(&disk, |_| ()).unwrap();
    let between = Log::on(Arc::clone(&disk)).unwrap();
    let forever = Retention {
        keep_ns: Some(1),
        ..Retention::default()
    };
    let pruned = prune(&disk, &forever, u64::MAX, false).unwrap();
    assert!(pruned.parts > 0);
    assert_eq!(exported(&early, &Find::default()).0.packets, all);
    assert_eq!(exported(&between, &Find::default()).0.packets, all);
    drop((early, between));
    compact(&disk, |_| ()).unwrap();
    let listed = Log::on(Arc::clone(&disk)).unwrap();
    let parts = listed.archive().parts.iter();
    let files: Vec<&String> = parts
        .flat_map(|p| p.files.iter().map(|f| &f.name))
        .collect();
    for name in sim.names() {
        let lies_there = name.starts_with("packets/") || name.starts_with("flows/");
        assert!(!lies_there || files.contains(&&name), "{name}");
    }
}

#[test]
fn retention_goes_by_age_class_and_size() {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let path = data_dir().join("labelled/mix-test/trace.pcap");
    assert!(record(&disk, &path, &model(), "default", 0));
    compact(&disk, |_| ()).unwrap();
    let parts = |disk: &Arc<dyn Disk>| Log::on(Arc::clone(disk)).unwrap().archive().parts.clone();
    let all = parts(&disk);
    assert!(all.len() >= 2, "{} parts", all.len());
    let last = all.iter().map(|part| part.ts_max_ns).max().unwrap();
    let day = 86_400_000_000_000;
    let mut retention = Retention {
        keep_ns: Some(day),
        ..Retention::default()
    };
    retention.keep_class_ns.insert("anomalous".into(), 30 * day);
    let nothing = prune(&disk, &retention, last + day / 2, false).unwrap();
    assert_eq!(nothing.parts, 0);
    let dry = prune(&disk, &retention, last + 2 * day, true).unwrap();
    let done = prune(&disk, &retention, last + 2 * day, false).unwrap();
    assert_eq!((dry.parts, dry.bytes), (done.parts, done.bytes));
    assert!(done.parts > 0);
    assert!(
        parts(&disk)
            .iter()
            .any(|part| part.retention == "anomalous")
    );
    // To free space, the newest is not deleted.
    let small = Retention {
        bytes_max: Some(1),
        ..Retention::default()
    };
    let done = prune(&disk, &small, last, false).unwrap();
    assert!(done.still_too_large && done.bytes_left > 0);
    assert_eq!(parts(&disk).len(), 1);
    let report = verify(&Log::on(disk).unwrap(), None).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
}

#[test]
fn no_room_is_made_of_what_a_policy_protects() {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let path = data_dir().join("labelled/mix-test/trace.pcap");
    record_protected(&disk, &path, "udp port 53");
    // Newer, so that the first recording is not the newest.
    assert!(record(&disk, &path, &model(), "default", 0));
    let bytes = |disk: &Arc<dyn Disk>| {
        let log = Log::on(Arc::clone(disk)).unwrap();
        log.stored_bytes(&log.recordings()[0]).unwrap()
    };
    let before = bytes(&disk);
    // By compaction, or from the block file itself.
    let other = sim.after_power_loss(0);
    let compacted: Arc<dyn Disk> = Arc::new(other);
    compact(&compacted, |_| ()).unwrap();
    let freed = make_room(&compacted, u64::MAX).unwrap();
    assert!(freed.parts > 0 && freed.split == 0 && freed.still_too_large);
    let freed = make_room(&disk, u64::MAX).unwrap();
    assert_eq!((freed.block_files, freed.split), (0, 1));
    assert!(freed.still_too_large && freed.not_split.is_empty());
    assert!(bytes(&disk) < before / 4, "{} of {before}", bytes(&disk));
    let again = make_room(&disk, u64::MAX).unwrap();
    assert_eq!((again.parts, again.split), (0, 0), "what is left stays");
    let protected = |disk: &Arc<dyn Disk>| {
        let log = Log::on(Arc::clone(disk)).unwrap();
        let find = Find::default();
        let packets = exported(&log, &find).0.packets;
        let parts = log
            .archive()
            .parts
            .iter()
            .filter(|part| part.recording == 1);
        let listed: u64 = parts.map(|part| part.packets).sum();
        assert!(packets.len() as u64 >= listed, "they can be read");
        listed
    };
    assert_eq!(
        protected(&disk),
        protected(&compacted),
        "the same either way"
    );
    let log = Log::on(Arc::clone(&disk)).unwrap();
    let classes: Vec<&str> = log
        .archive()
        .parts
        .iter()
        .filter(|part| part.recording == 1)
        .map(|part| part.retention.as_str())
        .collect();
    assert_eq!(classes, [PROTECTED]);
    let filter = Filter::parse("udp port 53").unwrap();
    let kept = log.archive().parts.iter().find(|part| part.recording == 1);
    let dns = read(&path).packets;
    let program = filter.compile(strata_wire::LinkType(dns[0].1)).unwrap();
    let dns = dns
        .iter()
        .filter(|packet| program.matches(&packet.3, packet.2));
    let (dns, kept) = (dns.count() as u64, kept.unwrap().packets);
    // Packets in tunnels, which the filter does not look into, are protected as well.
    assert!(
        (dns..dns + dns / 10).contains(&kept),
        "{kept} kept, {dns} match"
    );
}

/// A disk that tells compaction to stop once it has written this many times to `staging/`.
struct Stopping {
    below: SimDisk,
    left: AtomicU64,
    stop: Arc<AtomicBool>,
}

impl DiskLayer for Stopping {
    fn below(&self) -> &dyn Disk {
        &self.below
    }

    fn create(&self, name: &str) -> std::io::Result<Box<dyn DiskFile>> {
        let left = self.left.fetch_sub(1, Ordering::Relaxed);
        self.stop.fetch_or(left == 0, Ordering::Relaxed);
        self.below.create(name)
    }
}

/// Told to stop in the middle of a file, it leaves nothing of it behind, in either tier.
#[test]
fn what_it_works_on_when_it_is_stopped_is_as_before() {
    let sim = recorded();
    let all = packets(&sim);
    let mut interrupted = 0;
    for created in 0..40 {
        let stop: Arc<AtomicBool> = Arc::default();
        let below = sim.after_power_loss(0);
        let disk: Arc<dyn Disk> = Arc::new(Stopping {
            below: below.clone(),
            left: AtomicU64::new(created),
            stop: Arc::clone(&stop),
        });
        let threads = NonZeroUsize::MIN.saturating_add(usize::try_from(created % 3).unwrap());
        let done = compact_until(&disk, threads, &stop, |_| ()).unwrap();
        interrupted += usize::from(done.interrupted);
        let names = below.names();
        let staged = names.iter().any(|name| name.starts_with("staging/"));
        assert!(!staged, "after {created} files: {names:?}");
        assert_eq!(packets(&below), all, "after {created} files");
        let log = Log::on(Arc::clone(&disk)).unwrap();
        let parts = log.archive().parts.iter().map(|part| part.packets);
        assert_eq!(parts.sum::<u64>(), done.packets, "after {created} files");
        drop(log);
        compact(&disk, |_| ()).unwrap();
        assert_eq!(packets(&below), all, "after {created} files, again");
    }
    assert!(interrupted >= 6, "{interrupted}");
}

/// Told to stop, it keeps what is complete; the next one does the rest.
#[test]
fn what_is_compacted_before_it_is_stopped_stays_so() {
    let whole = compacted(None);
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let path = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    for mode in ["default", "log-all"] {
        assert!(record(&disk, &path, &model(), mode, 60_000));
    }
    let stop = AtomicBool::new(true);
    let nothing = compact_until(&disk, NonZeroUsize::MIN, &stop, |_| ()).unwrap();
    assert!(nothing.interrupted && nothing.files == 0, "{nothing:?}");
    stop.store(false, Ordering::Relaxed);
    let first = compact_until(&disk, NonZeroUsize::MIN, &stop, |_| {
        stop.store(true, Ordering::Relaxed);
    })
    .unwrap();
    assert!(first.interrupted && first.files > 0, "{first:?}");
    let second = compact(&disk, |_| ()).unwrap();
    assert!(!second.interrupted && second.files > 0, "{second:?}");
    let packets = |disk: &Arc<dyn Disk>| {
        let log = Log::on(Arc::clone(disk)).unwrap();
        log.archive()
            .parts
            .iter()
            .map(|part| part.packets)
            .sum::<u64>()
    };
    let whole: Arc<dyn Disk> = Arc::new(whole);
    assert_eq!(packets(&disk), packets(&whole));
    assert_eq!(first.packets + second.packets, packets(&whole));
}
