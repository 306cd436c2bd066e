//! The object tier: each part is in one place, wherever a move is interrupted.

use std::collections::BTreeSet;
use std::sync::Arc;

use strata_archive::{
    Away, ClearDisk, Identities, Place, Retention, compact, make_room, prune, relocate, verify,
};
use strata_query::Find;
use strata_store::{Disk, DiskLayer, Log, tier_of};
use strata_testkit_disk::SimDisk;

use crate::common::{Packet, compacted, exported};

/// On a test disk, all names are treated alike.
const STORE: &str = "s3://bucket/sensor-7";

fn store() -> Place {
    Place::elsewhere(STORE).unwrap()
}

fn log(sim: &SimDisk) -> Log {
    Log::on(Arc::new(sim.clone())).unwrap()
}

fn packets(sim: &SimDisk, key: &Identities) -> Vec<Packet> {
    let disk = ClearDisk::new(Arc::new(sim.clone()), Some(key.clone()));
    let log = Log::on(Arc::new(disk)).unwrap();
    exported(&log, &Find::default()).0.packets
}

/// Files of parts that exist, and those that are listed.
fn files(sim: &SimDisk) -> (BTreeSet<String>, BTreeSet<String>) {
    let dirs = ["packets/", "flows/", "payload/", "meta/", "sums/", "s3://"];
    let names = sim.names().into_iter();
    let there = names.filter(|name| dirs.iter().any(|dir| name.starts_with(dir)));
    let log = log(sim);
    let listed = log.archive().parts.iter().flat_map(|part| &part.files);
    (
        there.collect(),
        listed.map(|file| file.name.clone()).collect(),
    )
}

#[test]
fn a_log_moves_and_comes_back() {
    for key in [None, Some(Identities::generate())] {
        let sim = compacted(key.as_ref());
        let disk: Arc<dyn Disk> = Arc::new(sim.clone());
        let key = key.unwrap_or_else(Identities::generate);
        let all = packets(&sim, &key);
        let last = log(&sim)
            .archive()
            .parts
            .iter()
            .map(|part| part.ts_max_ns)
            .max();
        let before = relocate(&disk, &store(), last.unwrap() - 1, |_| ()).unwrap();
        assert_eq!(before.parts, 0, "what is newer stays");
        let moved = relocate(&disk, &store(), u64::MAX, |_| ()).unwrap();
        assert!(moved.parts >= 2 && moved.packets == 188 && !moved.waits_for_readers);
        let (there, listed) = files(&sim);
        assert_eq!(there, listed);
        assert!(
            there.iter().all(|name| name.starts_with(STORE)),
            "{there:?}"
        );
        assert!(packets(&sim, &key) == all);
        assert_eq!(verify(&log(&sim), Some(&key)).unwrap().damage, []);
        let again = relocate(&disk, &store(), u64::MAX, |_| ()).unwrap();
        assert_eq!(again.parts, 0);
        // From one store to another, and back to the log.
        let other = Place::elsewhere("file:///mnt/cold").unwrap();
        for place in [other, Place::Log] {
            let moved = relocate(&disk, &place, u64::MAX, |_| ()).unwrap();
            assert_eq!(moved.packets, 188);
            assert!(packets(&sim, &key) == all);
        }
        let (there, listed) = files(&sim);
        assert_eq!(there, listed);
        assert!(!sim.names().iter().any(|name| name.contains("://")));
    }
}

#[test]
fn each_part_is_in_one_place_wherever_a_move_is_killed() {
    let key = Identities::generate();
    let sim = compacted(None);
    let all = packets(&sim, &key);
    let away = sim.after_power_loss(0);
    let disk: Arc<dyn Disk> = Arc::new(away.clone());
    let before = away.operations();
    relocate(&disk, &store(), u64::MAX, |_| ()).unwrap();
    let operations = away.operations() - before;
    assert!(operations > 30, "{operations} changes");
    let mut interrupted = 0;
    for (start, to) in [(&sim, store()), (&away, Place::Log)] {
        for crash in 0..=operations {
            let crashed = start.after_power_loss(0);
            crashed.crash_after(crashed.operations() + crash);
            let disk: Arc<dyn Disk> = Arc::new(crashed.clone());
            interrupted += usize::from(relocate(&disk, &to, u64::MAX, |_| ()).is_err());
            drop(disk);
            let left = crashed.after_power_loss(crash);
            assert!(packets(&left, &key) == all, "crash {crash}");
            assert_eq!(
                verify(&log(&left), None).unwrap().damage,
                [],
                "crash {crash}"
            );
            let disk: Arc<dyn Disk> = Arc::new(left.clone());
            relocate(&disk, &to, u64::MAX, |_| ()).unwrap();
            assert!(packets(&left, &key) == all, "crash {crash}, again");
            let (there, listed) = files(&left);
            assert_eq!(there, listed, "crash {crash}: nothing is left behind");
            let elsewhere = listed.iter().filter(|name| name.starts_with(STORE)).count();
            let expected = if to == Place::Log { 0 } else { listed.len() };
            assert_eq!(elsewhere, expected, "crash {crash}");
        }
    }
    assert!(interrupted > 50, "{interrupted}");
}

#[test]
fn what_is_damaged_stays_and_what_is_not_ours_is_not_touched() {
    let key = Identities::generate();
    let sim = compacted(None);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let damaged = sim
        .names()
        .into_iter()
        .find(|name| name.starts_with("packets/"))
        .unwrap();
    sim.flip_bit(&damaged, 100, 1);
    let moved = relocate(&disk, &store(), u64::MAX, |_| ()).unwrap();
    assert!(moved.damage.len() == 1 && moved.damage[0].file.ends_with(&damaged));
    assert!(moved.parts > 0);
    let (there, listed) = files(&sim);
    assert_eq!(there, listed);
    assert!(listed.contains(&damaged));
    sim.flip_bit(&damaged, 100, 1);
    // Another log's file has the name that ours would get.
    let theirs = format!("{STORE}/{damaged}");
    sim.replace(&theirs, b"theirs").unwrap();
    for _ in 0..2 {
        let refused = relocate(&disk, &store(), u64::MAX, |_| ())
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains(&theirs) && refused.contains("prefix"),
            "{refused}"
        );
    }
    compact(&disk, |_| ()).unwrap();
    assert_eq!(
        sim.open(&theirs, false).unwrap().size().unwrap(),
        6,
        "it is still there"
    );
    assert_eq!(packets(&sim, &key).len(), 188);
}

#[test]
fn readers_keep_their_files_while_parts_move() {
    let sim = compacted(None);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let reader = log(&sim);
    let all = exported(&reader, &Find::default()).0.packets;
    let moved = relocate(&disk, &store(), u64::MAX, |_| ()).unwrap();
    assert!(moved.waits_for_readers && moved.packets == 188);
    // Files it still reads must not be overwritten.
    let back = relocate(&disk, &Place::Log, u64::MAX, |_| ()).unwrap();
    assert!(back.waits_for_readers && back.parts == 0);
    assert!(exported(&reader, &Find::default()).0.packets == all);
    drop(reader);
    let back = relocate(&disk, &Place::Log, u64::MAX, |_| ()).unwrap();
    assert!(!back.waits_for_readers && back.packets == 188);
    let (there, listed) = files(&sim);
    assert_eq!(there, listed);
}

#[test]
fn what_lies_elsewhere_is_pruned_by_age_and_not_for_room() {
    let sim = compacted(None);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    relocate(&disk, &store(), u64::MAX, |_| ()).unwrap();
    let room = make_room(&disk, 1 << 40).unwrap();
    assert_eq!(room.parts, 0);
    let old = Retention {
        keep_ns: Some(1),
        ..Retention::default()
    };
    let pruned = prune(&disk, &old, u64::MAX, false).unwrap();
    assert!(pruned.parts > 0 && !pruned.waits_for_readers);
    let (there, listed) = files(&sim);
    assert_eq!(there, listed, "deleted in the store too");
}

/// A disk on which one tier is away.
struct Without {
    below: SimDisk,
    tier: &'static str,
}

impl DiskLayer for Without {
    fn below(&self) -> &dyn Disk {
        &self.below
    }

    fn remove(&self, name: &str) -> std::io::Result<()> {
        match tier_of(name) == Some(self.tier) {
            true => Err(std::io::ErrorKind::NotFound.into()),
            false => self.below.remove(name),
        }
    }

    fn reach(&self, tier: &str, is_new: bool) -> std::io::Result<()> {
        match tier == self.tier && !is_new {
            true => Err(std::io::ErrorKind::NotFound.into()),
            false => self.below.reach(tier, is_new),
        }
    }
}

#[test]
fn a_tier_that_is_away_keeps_its_files_listed_and_no_other_tier_waiting() {
    let sim = compacted(None);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    relocate(&disk, &store(), u64::MAX, |_| ()).unwrap();
    let first = log(&sim)
        .archive()
        .parts
        .iter()
        .flat_map(|part| part.files.clone())
        .count();
    let without: Arc<dyn Disk> = Arc::new(Without {
        below: sim.clone(),
        tier: STORE,
    });
    let other = Place::elsewhere("s3://bucket/other").unwrap();
    let moved = relocate(&without, &other, u64::MAX, |_| ()).unwrap();
    assert!(moved.packets == 188 && moved.waits_for_readers);
    let left = [(STORE.to_owned(), first)];
    let away = |away: &[Away]| -> Vec<(String, usize)> {
        let files = away.iter().map(|one| usize::try_from(one.files).unwrap());
        away.iter().map(|one| one.tier.clone()).zip(files).collect()
    };
    assert_eq!(away(&moved.away), left);
    let back = relocate(&without, &store(), u64::MAX, |_| ()).unwrap();
    assert!(
        back.parts == 0 && back.waits_for_readers,
        "its names are taken"
    );
    let old = Retention {
        keep_ns: Some(1),
        ..Retention::default()
    };
    // The second time, there is nothing to prune, and the files are still named.
    for parts in [true, false] {
        let pruned = prune(&without, &old, u64::MAX, false).unwrap();
        assert_eq!(pruned.parts > 0, parts);
        assert!(pruned.waits_for_readers);
        assert_eq!(away(&pruned.away), left);
    }
    let (there, listed) = files(&sim);
    assert!(listed.is_empty() && there.len() == first, "{there:?}");
    assert!(there.iter().all(|name| name.starts_with(STORE)));
    let pruned = prune(&disk, &old, u64::MAX, false).unwrap();
    assert!(pruned.away.is_empty() && !pruned.waits_for_readers);
    assert!(files(&sim).0.is_empty());
}

#[test]
fn places_are_checked_before_anything_is_moved() {
    for good in ["s3://b/p", "s3://b/p/", "file:///mnt/x"] {
        Place::elsewhere(good).unwrap();
    }
    for bad in [
        "s3://bucket",
        "s3://bucket/",
        "file://relative",
        "/mnt/x",
        "gs://b/p",
        "s3://b/..",
        "",
    ] {
        let problem = Place::elsewhere(bad).unwrap_err();
        assert!(problem.contains("s3://BUCKET/PREFIX"), "{problem}");
    }
}
