//! `strata compact --every` on a disk that strangers fill with traffic.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;

use strata_testkit::{Disk, Namespace, data_dir};

use crate::harness::{
    Attack, Bounds, PATIENCE, Round, Site, Victim, network, run, siege, strata, until, verified,
};

const BOUNDS: Bounds = Bounds {
    memory_growth: 192 << 20,
    threads_growth: 8,
    descriptors: 100,
    said: 64 << 10,
};
/// Packets in the recorded capture.
const PACKETS: u64 = 67_690;

struct Watch {
    victim: Mutex<Victim>,
    log: PathBuf,
    disk: Disk,
    _dir: tempfile::TempDir,
    namespace: Namespace,
}

impl Watch {
    /// Compacts again and again, after a first recording; `is_full` leaves no space for it.
    fn begin(is_full: bool) -> Self {
        let namespace = network();
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::new(dir.path(), "100M");
        let log = disk.path().join("log");
        record(&log);
        if is_full {
            let mut file = File::create(ballast(&disk)).unwrap();
            while file.write_all(&[0; 4096]).is_ok() {}
        }
        let mut command = strata();
        command.args(["compact", "--every", "1s"]).arg(&log);
        let victim = Victim::start(dir.path(), "compact", BOUNDS, &command);
        let victim = Mutex::new(victim);
        until(
            "it says what it did, or that there is no room",
            PATIENCE,
            || {
                let mut victim = victim.lock().unwrap();
                victim.lives();
                is_compacted(&log) || is_full && !victim.said().is_empty()
            },
        );
        victim.lock().unwrap().is_ready();
        Self {
            victim,
            log,
            disk,
            _dir: dir,
            namespace,
        }
    }

    fn lives(&self) {
        self.victim.lock().unwrap().lives();
    }

    fn end(self) {
        self.victim.into_inner().unwrap().ended_well();
        verified(&self.log);
    }
}

fn ballast(disk: &Disk) -> PathBuf {
    disk.path().join("ballast")
}

struct WithRoom(Watch);
struct Full(Watch);

impl Site for WithRoom {
    fn start() -> Self {
        Self(Watch::begin(false))
    }

    fn namespace(&self) -> &Namespace {
        &self.0.namespace
    }

    fn finish(self) {
        self.0.end();
    }
}

impl Site for Full {
    fn start() -> Self {
        Self(Watch::begin(true))
    }

    fn namespace(&self) -> &Namespace {
        &self.0.namespace
    }

    fn finish(self) {
        self.0.end();
    }
}

fn record(log: &std::path::Path) {
    let mut command = strata();
    let capture = data_dir().join("labelled/mix-test/trace.pcap");
    command
        .args(["record", "-r"])
        .arg(capture)
        .arg("-o")
        .arg(log);
    let (done, text) = run(&mut command, PATIENCE);
    assert!(done, "{text}");
}

fn is_compacted(log: &std::path::Path) -> bool {
    let entries = fs::read_dir(log.join("blocks")).unwrap();
    let mut names = entries.map(|entry| entry.unwrap().file_name());
    !names.any(|name| name.to_string_lossy().ends_with(".strata"))
}

/// No space for compacted files: it carries on, loses nothing, and compacts once there is space.
fn no_room(watch: &Watch, _: &mut Round) {
    watch.lives();
    assert!(!is_compacted(&watch.log), "there was room");
    fs::remove_file(ballast(&watch.disk)).unwrap();
    until("it is compacted once there is room", PATIENCE, || {
        watch.lives();
        is_compacted(&watch.log)
    });
    let (done, text) = run(strata().arg("verify").arg(&watch.log), PATIENCE);
    let wanted = format!("{PACKETS}packets");
    assert!(
        done && text.replace([' ', ','], "").contains(&wanted),
        "{wanted}: {text}"
    );
}

/// Unexpected files lie around in the log.
fn strange_files(watch: &Watch, round: &mut Round) {
    while round.goes_on() {
        for number in 0..50 {
            let bytes = round.bytes(5000);
            for name in ["blocks/", "", "flows/", "blocks/\u{1b}[2J\n"] {
                let path = watch.log.join(format!("{name}{number}.strata"));
                let _ = fs::write(path, &bytes);
            }
        }
        let capture = data_dir().join("labelled/cic2017-sqli/trace.pcap");
        let mut command = strata();
        command
            .args(["record", "-r"])
            .arg(capture)
            .arg("-o")
            .arg(&watch.log);
        let (done, text) = run(&mut command, PATIENCE);
        assert!(done, "{text}");
        watch.lives();
        for number in 0..50 {
            for name in ["blocks/", "", "flows/", "blocks/\u{1b}[2J\n"] {
                let _ = fs::remove_file(watch.log.join(format!("{name}{number}.strata")));
            }
        }
        until("the new recording is compacted", PATIENCE, || {
            is_compacted(&watch.log)
        });
    }
}

#[test]
fn compact_watch() {
    let attacks: &[Attack<WithRoom>] = &[("strange files", |s, r| strange_files(&s.0, r))];
    siege("compact --every", attacks);
    let attacks: &[Attack<Full>] = &[("no room", |s, r| no_room(&s.0, r))];
    siege("compact --every, a full disk", attacks);
}
