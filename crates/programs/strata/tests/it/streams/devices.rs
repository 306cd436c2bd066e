//! `strata stream` over block devices: loop devices, whose files are looked at from the outside.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use strata_testkit::{Disk, LoopDevice, may_use_loop_devices};
use tempfile::TempDir;

use crate::common::appending::{append, appender, errors, missing};
use crate::common::program::{failed, ok, refused, strata};
use crate::common::signal::signal;

/// What should be so is so by then, even while other tests use the CPU.
const PATIENCE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// A directory of streams, and a file that can be attached as a device.
struct Devices {
    dir: PathBuf,
    file: PathBuf,
    folder: TempDir,
}

impl Devices {
    fn new(size: u64) -> Self {
        let folder = TempDir::new().unwrap();
        let devices = Self {
            dir: folder.path().join("streams"),
            file: folder.path().join("device"),
            folder,
        };
        File::create(&devices.file).unwrap().set_len(size).unwrap();
        devices
    }

    fn attach(&self) -> LoopDevice {
        LoopDevice::attach(&self.file, &[])
    }

    fn create(&self, name: &str, device: &Path, options: &[&str]) -> Command {
        let mut command = strata();
        command.args(["stream", "create"]).arg(&self.dir).arg(name);
        command.arg("--stripe").arg(device);
        command.args(["--pages", "4KiB-4KiB-64KiB"]).args(options);
        command
    }

    /// Says where the stripe is now, if it has another number.
    fn tell_of(&self, device: &LoopDevice, name: &str) {
        let list = fs::read_to_string(self.dir.join("stripes")).unwrap();
        if !list.contains(&format!("{:?}", device.path())) {
            ok(&mut self.create(name, device.path(), &[]));
        }
    }

    fn command(&self, verb: &str, options: &[&str]) -> Command {
        let mut command = strata();
        command.args(["stream", verb]).arg(&self.dir);
        if matches!(verb, "append" | "tail") {
            command.arg("events");
        }
        command.args(options);
        command
    }

    fn appender(&self) -> Child {
        appender(&mut self.command("append", &[]))
    }

    fn append(&self, range: Range<u32>) -> Output {
        append(&mut self.command("append", &[]), lines(range))
    }

    /// All records, as they were appended, and the report of others.
    fn read(&self) -> (String, String) {
        let output = self.command("tail", &["--cursor", "0.0"]).output().unwrap();
        assert!(output.status.success(), "{}", errors(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        (text, String::from_utf8(output.stderr).unwrap())
    }

    /// How many lines there are: each as it was appended, in order and once.
    fn count(&self, all: &str) -> (usize, String) {
        let (text, said) = self.read();
        let mut left = all.lines();
        for line in text.lines() {
            assert!(left.any(|one| one == line), "{line}: not there, or twice");
        }
        (text.lines().count(), said)
    }

    fn wait_for(&self, all: &str) {
        let start = Instant::now();
        while self.read().0 != all {
            assert!(start.elapsed() < PATIENCE, "{}", self.read().1);
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Of about 100 bytes, of which no two are alike.
fn lines(range: Range<u32>) -> String {
    let line = |number: u32| {
        let word = number.wrapping_mul(0x9e37_79b9);
        format!("{number} {}\n", format!("{word:08x}").repeat(11))
    };
    range.map(line).collect()
}

/// What others see there: nothing that a system would mount, or make a RAID of.
fn blkid(device: &Path) -> String {
    let output = Command::new("blkid").arg("-p").arg(device).output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

#[test]
fn half_of_what_is_appended_is_on_the_device_and_comes_back_as_it_was() {
    if !may_use_loop_devices() {
        return;
    }
    let devices = Devices::new(64 * MIB);
    let device = devices.attach();
    ok(&mut devices.create("events", device.path(), &[]));
    let all = lines(0..60_000);
    let appended = devices.append(0..60_000);
    assert!(appended.status.success() && errors(&appended).is_empty());
    assert_eq!(devices.read(), (all.clone(), String::new()));
    ok(&mut devices.command("check", &[]));

    // The bytes are where docs/formats/stream.md says.
    let bytes = fs::read(&devices.file).unwrap();
    let word = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
    assert_eq!(&bytes[..8], b"STRANVME");
    assert_eq!(word(24), 64 * MIB / 512);
    assert_eq!(
        (&bytes[4096..4104], word(4104)),
        (&b"STRADISK"[..], 4 * MIB)
    );
    assert_eq!(&bytes[8192..8200], b"STRIPED1");
    assert_eq!(word(8), word(8192 + 20), "one id");
    let list = fs::read_to_string(devices.dir.join("stripes")).unwrap();
    assert!(list.contains(&format!("{:016x}", word(8))), "{list}");
    let (pages, _) = bytes[4 << 20..].as_chunks::<{ 64 << 10 }>();
    let begun = pages
        .iter()
        .take_while(|page| page.starts_with(b"STRAPAGE"));
    let begun = begun.count();
    assert!((40..=60).contains(&begun), "{begun} of about 100 pages");
    assert!(word(4096 + 24) >= begun as u64 * (64 << 10));

    // While a process appends, no other gets the device; the appender is killed.
    let mut appender = devices.appender();
    let mut stdin = appender.stdin.take().unwrap();
    stdin.write_all(lines(60_000..80_000).as_bytes()).unwrap();
    ok(&mut devices.create("more", device.path(), &[]));
    let all = lines(0..80_000);
    devices.wait_for(&all);
    let mkfs = Command::new("mkfs.ext4")
        .arg("-q")
        .arg(device.path())
        .output();
    assert!(!mkfs.unwrap().status.success(), "it is in use");
    signal(&appender, "KILL");
    appender.wait().unwrap();
    assert_eq!(devices.read(), (all.clone(), String::new()));
    let appended = devices.append(80_000..90_000);
    assert!(appended.status.success(), "{}", errors(&appended));
    assert_eq!(devices.read(), (lines(0..90_000), String::new()));
}

#[test]
fn a_device_that_is_taken_away_is_found_again_under_another_number() {
    if !may_use_loop_devices() {
        return;
    }
    let devices = Devices::new(64 * MIB);
    let device = devices.attach();
    ok(&mut devices.create("events", device.path(), &[]));
    assert!(devices.append(0..20_000).status.success());
    let old = device.path().to_owned();
    drop(device);

    // Something else has its number now.
    let other_file = devices.folder.path().join("other");
    File::create(&other_file).unwrap().set_len(8 * MIB).unwrap();
    let other = LoopDevice::attach(&other_file, &[]);
    let all = lines(0..30_000);
    let (there, said) = devices.count(&all);
    assert_eq!(there + missing(&said), 20_000, "{said}");
    assert!((8_000..=12_000).contains(&there), "{there}");
    assert!(said.contains(old.to_str().unwrap()), "{said}");
    let check = devices.command("check", &[]).output().unwrap();
    assert_eq!(check.status.code(), Some(1));
    let appended = devices.append(20_000..30_000);
    assert!(appended.status.success(), "{}", errors(&appended));
    assert!(errors(&appended).contains("go to the other stripes"));
    assert!(fs::read(&other_file).unwrap().iter().all(|&byte| byte == 0));

    // Its new place is reported once.
    let device = devices.attach();
    devices.tell_of(&device, "more");
    assert_eq!(devices.read(), (all, String::new()));
    assert!(devices.append(30_000..40_000).status.success());
    assert_eq!(devices.read(), (lines(0..40_000), String::new()));
    ok(&mut devices.command("check", &[]));
    drop(other);
}

#[test]
fn a_device_that_is_read_only_is_read_and_costs_no_record() {
    if !may_use_loop_devices() {
        return;
    }
    let devices = Devices::new(64 * MIB);
    let device = devices.attach();
    ok(&mut devices.create("events", device.path(), &[]));
    assert!(devices.append(0..10_000).status.success());
    drop(device);
    let device = LoopDevice::attach(&devices.file, &["-r"]);
    devices.tell_of(&device, "more");
    // Some of these go on in a page that is on the device.
    for from in (10_000..14_000).step_by(500) {
        let appended = devices.append(from..from + 500);
        assert!(appended.status.success(), "{}", errors(&appended));
        assert!(errors(&appended).contains("go to the other stripes"));
        assert_eq!(devices.read(), (lines(0..from + 500), String::new()));
    }
    drop(device);
    let device = devices.attach();
    devices.tell_of(&device, "again");
    let appended = devices.append(14_000..20_000);
    assert!(appended.status.success() && errors(&appended).is_empty());
    assert_eq!(devices.read(), (lines(0..20_000), String::new()));
    drop(device);
}

#[test]
fn a_device_that_fails_costs_what_was_on_its_way_there() {
    if !may_use_loop_devices() {
        return;
    }
    // Its file has no space for all that the device says it has.
    let mut devices = Devices::new(MIB);
    let small = Disk::new(devices.folder.path(), "10M");
    devices.file = small.path().join("file");
    File::create(&devices.file)
        .unwrap()
        .set_len(64 * MIB)
        .unwrap();
    let device = devices.attach();
    ok(&mut devices.create("events", device.path(), &[]));
    let all = lines(0..200_000);
    let appended = devices.append(0..200_000);
    let said = errors(&appended);
    assert!(said.contains(device.path().to_str().unwrap()), "{said}");
    let (there, unread) = devices.count(&all);
    assert_eq!(there + missing(&unread), 200_000, "{unread}");
    let lost = 200_000 - there;
    assert!(lost == 0 || !appended.status.success(), "{said}");
    // Blocks in flight and one that was synced last.
    assert!(lost < 40_000, "{lost}");
    assert!(there > 100_000, "{there}");
    drop(device);
}

#[test]
fn a_full_device_loses_nothing() {
    if !may_use_loop_devices() {
        return;
    }
    let devices = Devices::new(5 * MIB);
    let device = devices.attach();
    ok(&mut devices.create("events", device.path(), &[]));
    let appended = devices.append(0..60_000);
    assert!(appended.status.success(), "{}", errors(&appended));
    let said = errors(&appended);
    assert_eq!(
        said.matches("full: records go to the other").count(),
        1,
        "{said}"
    );
    assert_eq!(devices.read(), (lines(0..60_000), String::new()));
    let begun = fs::read(&devices.file).unwrap();
    let (pages, _) = begun[4 << 20..].as_chunks::<{ 64 << 10 }>();
    assert!(pages.iter().all(|page| page.starts_with(b"STRAPAGE")));
    assert_eq!(pages.len(), 16);
}

#[test]
fn a_device_that_holds_something_is_formatted_only_if_that_is_asked_for() {
    if !may_use_loop_devices() {
        return;
    }
    let devices = Devices::new(16 * MIB);
    let device = devices.attach();
    let refuse = |what: &str| {
        let said = failed(&mut devices.create("events", device.path(), &[]));
        assert!(
            said.contains(what) && said.contains("--overwrite"),
            "{said}"
        );
    };
    let write = |at: u64, bytes: &[u8]| {
        let file = OpenOptions::new().write(true).open(device.path()).unwrap();
        file.write_all_at(bytes, at).unwrap();
        file.sync_all().unwrap();
    };
    let erase = || {
        for at in 0..16 {
            write(at * MIB, &vec![0; 1 << 20]);
        }
    };
    ok(Command::new("mkfs.ext4").arg("-q").arg(device.path()));
    assert!(blkid(device.path()).contains("TYPE=\"ext4\""));
    let before = fs::read(&devices.file).unwrap();
    refuse("an ext2, ext3 or ext4 file system");
    assert_eq!(
        fs::read(&devices.file).unwrap(),
        before,
        "not a bit has changed"
    );
    erase();
    ok(Command::new("mkswap").arg("-q").arg(device.path()));
    refuse("swap space");
    erase();
    // A partition table of the old kind, and the copy of a newer one at the end.
    write(446, &[0, 0, 2, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 16, 0, 0]);
    write(510, b"\x55\xaa");
    assert!(
        blkid(device.path()).contains("PTTYPE=\"dos\""),
        "{}",
        blkid(device.path())
    );
    refuse("a partition table or boot sector (MBR)");
    erase();
    write(16 * MIB - 512, b"EFI PART");
    refuse("a partition table (GPT)");
    erase();
    write(12345, b"x");
    refuse("data that Strata did not write");

    ok(Command::new("mkfs.ext4").arg("-q").arg(device.path()));
    write(16 * MIB - 512, b"EFI PART");
    ok(&mut devices.create("events", device.path(), &["--overwrite"]));
    assert_eq!(blkid(device.path()), "");
    assert!(devices.append(0..10_000).status.success());
    assert_eq!(devices.read(), (lines(0..10_000), String::new()));

    // It is of this directory now: neither this one nor another one takes it by mistake.
    let said = failed(&mut devices.create("more", device.path(), &["--overwrite"]));
    assert!(said.contains("would erase its records"), "{said}");
    let other = devices.folder.path().join("other");
    let mut create = strata();
    create
        .args(["stream", "create"])
        .arg(&other)
        .args(["events", "--stripe"]);
    let said = failed(create.arg(device.path()));
    assert!(said.contains("a stripe of another directory"), "{said}");
    ok(create.arg("--overwrite"));
    let (there, said) = devices.count(&lines(0..10_000));
    assert_eq!(there + missing(&said), 10_000, "{said}");
    assert!((4_000..=6_000).contains(&there), "{there}");
}

#[test]
fn what_cannot_be_a_stripe_is_refused_whatever_is_asked_for() {
    if !may_use_loop_devices() {
        return;
    }
    let devices = Devices::new(16 * MIB);
    let refuse = |device: &Path, what: &str| {
        let said = failed(&mut devices.create("events", device, &["--overwrite"]));
        assert!(said.contains(what), "{said}");
    };
    refuse(Path::new("/dev/strata-none"), "No such file");
    assert!(!Path::new("/dev/strata-none").exists());
    refuse(Path::new("/dev/null"), "or a block device");
    let small = devices.folder.path().join("small");
    File::create(&small).unwrap().set_len(4 * MIB).unwrap();
    refuse(
        LoopDevice::attach(&small, &[]).path(),
        "a stripe needs at least",
    );
    refuse(
        LoopDevice::attach(&devices.file, &["-r"]).path(),
        "read-only",
    );

    let device = devices.attach();
    ok(Command::new("mkfs.ext4").arg("-q").arg(device.path()));
    let mount = devices.folder.path().join("mount");
    fs::create_dir(&mount).unwrap();
    ok(Command::new("mount").arg(device.path()).arg(&mount));
    let said = failed(&mut devices.create("events", device.path(), &["--overwrite"]));
    ok(Command::new("umount").arg(&mount));
    assert!(
        said.contains("is mounted at") && said.contains("/mount"),
        "{said}"
    );
    let mut command = strata();
    command.args(["stream", "create"]).arg(&devices.dir);
    let said = refused(command.args(["other", "--overwrite"]));
    assert!(said.contains("--stripe"), "{said}");
}
