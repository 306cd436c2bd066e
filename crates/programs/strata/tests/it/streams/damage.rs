//! What a damaged or removed file of a directory of streams costs, and who gets a message.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::program::{failed, ok, strata};

/// What should be so is so by then, even while other tests use the CPU.
const PATIENCE: Duration = Duration::from_secs(60);
const PAGE: u64 = 64 << 10;

/// A directory with the streams `x` and `y`, of small pages.
struct Streams {
    dir: PathBuf,
    _folder: TempDir,
}

impl Streams {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let dir = folder.path().join("streams");
        let streams = Self {
            dir,
            _folder: folder,
        };
        streams.create();
        streams
    }

    fn create(&self) {
        for name in ["x", "y"] {
            ok(self
                .command("create", &[name])
                .args(["--pages", "4KiB-4KiB-64KiB"]));
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn command(&self, verb: &str, options: &[&str]) -> Command {
        let mut command = strata();
        command.args(["stream", verb]).arg(&self.dir).args(options);
        command
    }

    fn appender(&self, name: &str) -> Child {
        let mut command = self.command("append", &[name]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::piped()).spawn().unwrap()
    }

    fn append(&self, name: &str, records: std::ops::Range<u32>) {
        let output = ended(self.begun(name, records));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }

    /// An appender with records of 1 kB, of which some may be on their way.
    fn begun(&self, name: &str, records: std::ops::Range<u32>) -> Child {
        let mut child = self.appender(name);
        for record in records {
            let line = format!("{name} {record:0>1000}\n");
            let _ = child.stdin.as_mut().unwrap().write_all(line.as_bytes());
        }
        child
    }

    fn count(&self, name: &str) -> usize {
        let all = ok(&mut self.command("tail", &[name, "--cursor", "0.0"]));
        all.lines().count()
    }

    fn wait_for(&self, name: &str, records: usize) {
        let start = Instant::now();
        while self.count(name) < records {
            assert!(start.elapsed() < PATIENCE, "{records} records");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The exit status of `check --json`, and what it says of a stream.
    fn check(&self, name: &str) -> (Option<i32>, Value) {
        let output = self.command("check", &["--json"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let mut lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let said = lines.find(|said: &Value| said["name"] == name).unwrap();
        (output.status.code(), said)
    }
}

/// The outcome of a child at the end of its input.
fn ended(mut child: Child) -> Output {
    drop(child.stdin.take());
    child.wait_with_output().unwrap()
}

fn write_at(path: &Path, bytes: &[u8], at: u64) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// Changes the byte at `at`, whatever it is.
fn flip(path: &Path, at: u64) {
    let mut byte = [0];
    let file = fs::File::open(path).unwrap();
    file.read_exact_at(&mut byte, at).unwrap();
    write_at(path, &[!byte[0]], at);
}

#[test]
fn a_damaged_description_costs_its_stream_alone_and_no_page() {
    let streams = Streams::new();
    streams.append("x", 0..300);
    streams.append("y", 0..10);
    let x = streams.path("streams/x.stream");
    let whole = fs::read(&x).unwrap();
    // The name, and the id by which its pages are known.
    for at in [100, 10] {
        write_at(&x, &[!whole[at]], at as u64);
        streams.append("y", 0..200);
        let output = streams.command("list", &[]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let listed = String::from_utf8(output.stdout).unwrap();
        let row = |name: &str| listed.lines().find(|row| row.starts_with(name)).unwrap();
        assert!(row("x").ends_with("damaged"), "{listed}");
        assert!(row("y").ends_with("closed"), "{listed}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.contains("x.stream: its first 144 bytes (its description)"),
            "{said}"
        );
        let said = failed(&mut streams.command("append", &["x"]));
        assert!(
            said.contains("x.stream: its first 144 bytes (its description)"),
            "{said}"
        );
        write_at(&x, &whole[at..=at], at as u64);
    }
    assert_eq!((streams.count("x"), streams.count("y")), (300, 410));
    streams.append("x", 300..301);
    assert_eq!(streams.check("x").0, Some(0));
}

#[test]
fn appending_to_what_was_removed_or_cut_is_an_error_that_names_it() {
    for (name, is_cut) in [
        ("pages", false),
        ("pages.map", false),
        ("streams/x.stream", false),
        ("streams/x.lock", false),
        ("users.lock", false),
        ("streams", false),
        ("", false),
        ("pages", true),
        ("pages.map", true),
        ("streams/x.stream", true),
    ] {
        let streams = Streams::new();
        let child = streams.begun("x", 0..1000);
        // The end of the last page is not waited for.
        streams.wait_for("x", 900);
        let path = streams.path(name);
        if is_cut {
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(100).unwrap();
        } else if path.is_dir() {
            fs::remove_dir_all(&path).unwrap();
        } else {
            fs::remove_file(&path).unwrap();
        }
        if name.is_empty() {
            streams.create();
        }
        let output = ended(child);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}: {said}");
        let (file, what) = match is_cut {
            true => (name, "to 100 bytes while this process used it"),
            false => (name, "removed, renamed or replaced"),
        };
        assert!(said.contains(file) && said.contains(what), "{name}: {said}");
    }
}

#[test]
fn a_second_appender_after_the_lock_was_removed_loses_nothing() {
    let streams = Streams::new();
    let first = streams.begun("x", 0..100);
    streams.wait_for("x", 100);
    fs::remove_file(streams.path("streams/x.lock")).unwrap();
    let second = streams.begun("x", 100..200);
    streams.wait_for("x", 200);
    let mut first = first;
    let _ = first.stdin.as_mut().unwrap().write_all(b"too late\n");
    let output = ended(first);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("x.lock: removed"), "{said}");
    assert!(ended(second).status.success());
    assert_eq!(streams.count("x"), 200);
    let (status, said) = streams.check("x");
    assert_eq!((status, &said["records"]), (Some(0), &200.into()));
}

#[test]
fn following_a_directory_that_was_made_anew_ends_with_an_error() {
    let streams = Streams::new();
    streams.append("x", 0..1);
    let mut follow = streams.command("tail", &["x", "--follow"]);
    let follow = follow.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = follow.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    fs::remove_dir_all(&streams.dir).unwrap();
    streams.create();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("x.stream: removed"), "{said}");
}

#[test]
fn what_is_missing_stays_missing_when_more_is_appended() {
    for is_killed in [false, true] {
        let streams = Streams::new();
        if is_killed {
            let mut child = streams.begun("x", 0..300);
            streams.wait_for("x", 300);
            child.kill().unwrap();
            child.wait().unwrap();
        } else {
            streams.append("x", 0..300);
        }
        let records = streams.count("x");
        flip(&streams.path("pages"), 40);
        let left = streams.count("x");
        let missing = records - left;
        assert!(missing > 40, "{missing}");
        for _ in 0..3 {
            let (status, said) = streams.check("x");
            assert_eq!(status, Some(1), "{said}");
            assert_eq!(said["missing_min"], missing, "{said}");
            streams.append("x", 0..1);
        }
        assert_eq!(streams.count("x"), left + 3);
    }
}

/// Nothing comes after the newest records: the stream's state has their number.
#[test]
fn lost_newest_records_are_counted_by_check_and_tail() {
    for cut in [false, true] {
        let streams = Streams::new();
        streams.append("x", 0..200);
        let pages = streams.path("pages");
        let listed = ok(&mut streams.command("list", &["--json"]));
        let x = listed.lines().find(|line| line.contains("\"x\"")).unwrap();
        let x: Value = serde_json::from_str(x).unwrap();
        assert_eq!(x["records"], 200);
        if cut {
            let file = fs::OpenOptions::new().write(true).open(&pages).unwrap();
            file.set_len(100_000).unwrap();
        } else {
            let end = x["end"].as_str().unwrap();
            let (page, offset) = end.split_once('.').unwrap();
            let (page, offset): (u64, u64) = (page.parse().unwrap(), offset.parse().unwrap());
            flip(&pages, page * PAGE + offset - 100);
        }
        let tail = streams.command("tail", &["x", "--cursor", "0.0"]).output();
        let tail = tail.unwrap();
        let read = String::from_utf8(tail.stdout).unwrap().lines().count();
        let lost = 200 - read;
        assert!(lost > 0 && (cut || lost == 1), "{lost}");
        let said = String::from_utf8(tail.stderr).unwrap();
        assert!(said.contains(&format!("{lost} record")), "{said}");
        let (status, said) = streams.check("x");
        assert_eq!(
            (status, &said["missing_min"]),
            (Some(1), &lost.into()),
            "{said}"
        );
        let last = streams.command("tail", &["x", "-n", "1"]).output().unwrap();
        let said = String::from_utf8(last.stderr).unwrap();
        assert!(said.contains("missing"), "{said}");
        if !cut {
            streams.append("x", 0..1);
            assert_eq!(streams.check("x").1["missing_min"], lost);
        }
    }
}

#[test]
fn a_copy_over_another_page_does_not_displace_the_page_that_was_copied() {
    let streams = Streams::new();
    streams.append("x", 0..300);
    let mut page = vec![0; usize::try_from(PAGE).unwrap()];
    let pages = fs::File::open(streams.path("pages")).unwrap();
    pages.read_exact_at(&mut page, 2 * PAGE).unwrap();
    write_at(&streams.path("pages"), &page, 0);
    let before = ok(&mut streams.command("tail", &["x", "--cursor", "0.0", "--json"]));
    // Enough for the copy's place to be used again.
    streams.append("x", 300..800);
    let after = ok(&mut streams.command("tail", &["x", "--cursor", "0.0", "--json"]));
    assert!(after.starts_with(&before));
}

#[test]
fn a_stream_that_was_not_closed_has_as_many_records_as_are_read() {
    let streams = Streams::new();
    let mut child = streams.begun("x", 0..1000);
    streams.wait_for("x", 900);
    child.kill().unwrap();
    child.wait().unwrap();
    let (_, checked) = streams.check("x");
    // As after an error: the last blocks are in the file, and the state does not say so yet.
    let listed = ok(&mut streams.command("list", &["--json"]));
    let listed: Value = serde_json::from_str(listed.lines().next().unwrap()).unwrap();
    assert_eq!(listed["writer"], "not closed");
    assert_eq!(listed["records"], checked["records"]);
}

#[test]
fn a_map_of_pages_is_mended_as_its_error_says() {
    let other = Streams::new();
    for is_gone in [false, true] {
        let streams = Streams::new();
        streams.append("x", 0..300);
        streams.append("y", 0..100);
        let map = streams.path("pages.map");
        match is_gone {
            true => fs::remove_file(&map).unwrap(),
            false => flip(&map, 9),
        }
        let said = failed(&mut streams.command("check", &[]));
        assert!(said.contains("pages.map: "), "{said}");
        assert!(
            said.contains("copy the pages.map of a new directory"),
            "{said}"
        );
        fs::copy(other.path("pages.map"), &map).unwrap();
        streams.append("y", 100..400);
        streams.append("x", 300..500);
        assert_eq!((streams.count("x"), streams.count("y")), (500, 400));
        assert_eq!(streams.check("x").0, Some(0));
    }
}
