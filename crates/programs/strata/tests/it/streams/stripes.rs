//! `strata stream` over several disks, of which one is unmounted, deleted or full.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use strata_testkit::{Disk, may_use_kernel};
use tempfile::TempDir;

use crate::common::appending::{append, appender, errors, missing};
use crate::common::program::{failed, ok, strata};
use crate::common::signal::signal;

/// What should be so is so by then, even while other tests use the CPU.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory of streams with a stripe on a disk that can be unmounted.
struct Striped {
    dir: PathBuf,
    disk: Disk,
    /// Where the disk is mounted, a second time.
    mount: PathBuf,
    _folder: TempDir,
}

impl Drop for Striped {
    fn drop(&mut self) {
        self.unmount();
    }
}

fn create(dir: &Path, name: &str, stripe: &Path) -> Command {
    let mut command = strata();
    command.args(["stream", "create"]).arg(dir).arg(name);
    command.arg("--stripe").arg(stripe);
    command
}

fn command(dir: &Path, verb: &str, options: &[&str]) -> Command {
    let mut command = strata();
    command.args(["stream", verb]).arg(dir);
    if matches!(verb, "append" | "tail") {
        command.arg("events");
    }
    command.args(options);
    command
}

impl Striped {
    fn new(size: &str) -> Self {
        assert!(may_use_kernel("a small disk"));
        let folder = TempDir::new().unwrap();
        let striped = Self {
            dir: folder.path().join("streams"),
            disk: Disk::new(folder.path(), size),
            mount: folder.path().join("mount"),
            _folder: folder,
        };
        fs::create_dir(&striped.mount).unwrap();
        striped.mount();
        let mut created = create(&striped.dir, "events", &striped.stripe());
        ok(created.args(["--pages", "4KiB-4KiB-64KiB"]));
        striped
    }

    fn stripe(&self) -> PathBuf {
        self.mount.join("streams")
    }

    fn mount(&self) {
        let mut command = Command::new("mount");
        ok(command.arg("--bind").arg(self.disk.path()).arg(&self.mount));
    }

    /// As if it was pulled: processes keep the files that they have open there.
    fn unmount(&self) {
        let _ = Command::new("umount").arg("-l").arg(&self.mount).status();
    }

    fn appender(&self) -> Child {
        appender(&mut command(&self.dir, "append", &[]))
    }

    fn append(&self, range: Range<u32>) -> Output {
        append(&mut command(&self.dir, "append", &[]), lines(range))
    }

    /// Numbers of the lines that are there, in order, and the report of others.
    fn numbers(&self, from: &str) -> (Vec<u32>, String) {
        let output = command(&self.dir, "tail", &["--cursor", from])
            .output()
            .unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let number = |line: &str| line.split(' ').next().unwrap().parse().unwrap();
        let numbers: Vec<u32> = text.lines().map(number).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "order, or twice");
        (numbers, String::from_utf8(output.stderr).unwrap())
    }

    fn wait_for(&self, last: u32) {
        let start = Instant::now();
        while self.numbers("0.0").0.last() != Some(&last) {
            assert!(start.elapsed() < PATIENCE, "{last}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Of about 100 bytes.
fn lines(range: Range<u32>) -> String {
    let line = |number| format!("{number} {}\n", "x".repeat(90));
    range.map(line).collect()
}

#[test]
fn a_disk_that_is_unmounted_costs_what_is_on_it_until_it_is_back() {
    let striped = Striped::new("100M");
    let mut had = Vec::new();
    let mut consume = || had.extend(striped.numbers("@me").0);
    let mut appender = striped.appender();
    let mut stdin = appender.stdin.take().unwrap();
    stdin.write_all(lines(0..20_000).as_bytes()).unwrap();
    striped.wait_for(19_999);
    assert_eq!(striped.numbers("0.0").0.len(), 20_000);

    striped.unmount();
    stdin.write_all(lines(20_000..60_000).as_bytes()).unwrap();
    striped.wait_for(59_999);
    let (there, said) = striped.numbers("0.0");
    assert!(
        said.contains("mount/streams") && said.contains("No such file"),
        "{said}"
    );
    assert_eq!(there.len() + missing(&said), 60_000, "{said}");
    // Half of the first, and no more than a page of the others, which the writer had begun there.
    let of_first = there.partition_point(|&number| number < 20_000);
    assert!((8_000..=12_000).contains(&of_first), "{of_first}");
    assert!(there.len() - of_first >= 40_000 - 700, "{}", there.len());
    consume();
    let check = command(&striped.dir, "check", &[]).output().unwrap();
    assert_eq!(check.status.code(), Some(1));
    let checked = String::from_utf8(check.stdout).unwrap();
    assert!(
        checked.contains(" of its pages are on missing stripes: stripe /"),
        "{checked}"
    );
    assert_eq!(
        fs::read_dir(&striped.mount).unwrap().count(),
        0,
        "nothing is left there"
    );

    // A process that had it open has lost nothing; nor has one that is killed.
    striped.mount();
    assert_eq!(striped.numbers("0.0").0.len(), 60_000);
    signal(&appender, "KILL");
    let killed = appender.wait_with_output().unwrap();
    assert!(errors(&killed).contains("unmounted"), "{}", errors(&killed));
    assert_eq!(striped.numbers("0.0").0.len(), 60_000);

    // Begun without it, after a crash: nothing is lost, since it is known to be gone.
    striped.unmount();
    let appended = striped.append(60_000..70_000);
    assert!(appended.status.success(), "{}", errors(&appended));
    assert!(
        errors(&appended).contains("go to the other stripes"),
        "{}",
        errors(&appended)
    );
    consume();
    striped.mount();
    let appended = striped.append(70_000..80_000);
    assert!(appended.status.success() && errors(&appended).is_empty());
    let (there, said) = striped.numbers("0.0");
    assert_eq!((there.len(), said.as_str()), (80_000, ""));
    consume();
    assert!(had.is_sorted_by(|a, b| a < b), "the consumer had one twice");
    let had: BTreeSet<u32> = had.into_iter().collect();
    assert!((60_000..80_000).all(|number| had.contains(&number)));
    ok(&mut command(&striped.dir, "check", &[]));
}

#[test]
fn a_full_disk_among_several_loses_nothing() {
    let striped = Striped::new("2M");
    let appended = striped.append(0..200_000);
    assert!(appended.status.success(), "{}", errors(&appended));
    assert!(
        errors(&appended).contains("No space left"),
        "{}",
        errors(&appended)
    );
    let (there, said) = striped.numbers("0.0");
    assert_eq!((there.len(), said.as_str()), (200_000, ""));
    let on_it = fs::metadata(striped.stripe().join("pages")).unwrap().len();
    assert!(on_it > 1 << 20, "{on_it}");
}

#[test]
fn a_disk_that_is_erased_costs_its_share_and_can_be_given_up() {
    let striped = Striped::new("100M");
    assert!(striped.append(0..50_000).status.success());
    fs::remove_dir_all(striped.stripe()).unwrap();
    let (there, said) = striped.numbers("0.0");
    assert_eq!(there.len() + missing(&said), 50_000, "{said}");
    assert!((24_000..=26_000).contains(&there.len()), "{}", there.len());
    // A new one does not take its place unless the user says that it is lost.
    let said = failed(&mut create(&striped.dir, "more", &striped.stripe()));
    assert!(said.contains("remove it from "), "{said}");
    fs::write(striped.dir.join("stripes"), "[]").unwrap();
    ok(&mut create(&striped.dir, "more", &striped.stripe()));
    assert!(striped.append(50_000..60_000).status.success());
    let (after, said) = striped.numbers("0.0");
    assert_eq!(after.len(), there.len() + 10_000);
    assert_eq!(after.len() + missing(&said), 60_000, "{said}");
}

#[test]
fn what_cannot_be_a_stripe_is_refused() {
    let striped = Striped::new("10M");
    let folder = striped.mount.parent().unwrap();
    let refused = |stripe: &Path| failed(&mut create(&striped.dir, "other", stripe));
    assert!(refused(&striped.dir).contains("it is a directory of streams itself"));
    assert!(refused(folder).contains("it is not empty"));
    assert!(refused(&striped.dir.join("pages")).contains("name a directory"));
    let said = failed(command(&striped.stripe(), "list", &[]).arg("--json"));
    assert!(
        said.contains("a stripe of a directory of streams"),
        "{said}"
    );
    let other = folder.join("other");
    let said = failed(&mut create(&other, "events", &striped.stripe()));
    assert!(
        said.contains("it is a stripe of another directory"),
        "{said}"
    );
    // The same again, and on the same disk, which is of no use.
    ok(&mut create(&striped.dir, "other", &striped.stripe()));
    let near = create(&striped.dir, "near", &folder.join("near"))
        .output()
        .unwrap();
    assert!(near.status.success() && errors(&near).contains("is the other disk mounted?"));
    fs::write(striped.dir.join("stripes"), "{}").unwrap();
    let said = failed(&mut command(&striped.dir, "tail", &[]));
    assert!(said.contains("not a list of stripes"), "{said}");
}
