//! The object tier as a user sees it: another directory, and a real object store.
#![allow(clippy::print_stderr, reason = "says why it did not run")]

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use strata_testkit::{data_dir, workspace_root};

use crate::common::program::{failed, ok, record, refused, strata};

const BUCKET: &str = "traffic";
const DIRS: [&str; 5] = ["packets", "flows", "payload", "meta", "sums"];

/// A log of a trace, compacted, and its export.
fn compacted(dir: &Path, trace: &str, compact: &[&str]) -> PathBuf {
    let log = dir.join("log");
    let trace = data_dir().join("labelled").join(trace).join("trace.pcap");
    ok(strata()
        .args(["record", "--mode", "log-all", "-r"])
        .arg(trace)
        .arg("-o")
        .arg(&log));
    ok(strata().arg("compact").arg(&log).args(compact));
    log
}

/// Every file in a directory and below.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn files_of_parts(log: &Path) -> usize {
    DIRS.iter().map(|dir| files(&log.join(dir)).len()).sum()
}

/// An S3 server with a bucket, whose objects are files in a directory.
struct Server {
    child: Child,
    dir: tempfile::TempDir,
    port: u16,
}

impl Server {
    /// `None` where no server is available.
    fn start() -> Option<Self> {
        let installed = workspace_root().join("target/tools/versitygw");
        let program = if installed.exists() {
            installed
        } else {
            PathBuf::from("versitygw")
        };
        let dir = tempfile::tempdir().unwrap();
        for name in [&format!("objects/{BUCKET}"), "about"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let child = Command::new(program)
            .args(["--access", "somebody", "--secret", "secret", "--quiet"])
            .arg("--port")
            .arg(format!("127.0.0.1:{port}"))
            .args(["posix", "--sidecar"])
            .arg(dir.path().join("about"))
            .arg(dir.path().join("objects"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = child else {
            let why = "versitygw is missing: run `make tools`, which needs Go";
            assert!(std::env::var_os("CI").is_none(), "{why}");
            eprintln!("not run: {why}");
            return None;
        };
        let server = Self { child, dir, port };
        let until = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "the server does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(server)
    }

    fn strata(&self, secret: &str) -> Command {
        let mut command = strata();
        command
            .env(
                "AWS_ENDPOINT_URL",
                format!("http://127.0.0.1:{}", self.port),
            )
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ACCESS_KEY_ID", "somebody")
            .env("AWS_SECRET_ACCESS_KEY", secret);
        command
    }

    fn ask(&self) -> Command {
        self.strata("secret")
    }

    fn objects(&self) -> Vec<PathBuf> {
        files(&self.dir.path().join("objects").join(BUCKET))
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn export(mut command: Command, log: &Path, rest: &[&str]) -> Vec<u8> {
    let output = command
        .args(["export", "-w", "-"])
        .arg(log)
        .args(rest)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    output.stdout
}

#[test]
fn a_log_in_an_object_store_is_used_as_before() {
    let Some(mut server) = Server::start() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let log = compacted(dir.path(), "mix-test", &[]);
    let filter = ["tcp port 443"];
    let before = export(strata(), &log, &[]);
    let found = export(strata(), &log, &filter);
    let url = format!("s3://{BUCKET}/sensor-7");
    let moved = |to: &[&str]| ok(server.ask().arg("move").arg(&log).args(to));
    assert!(moved(&[&url, "--older-than", "9999w"]).starts_with("moved 0 parts"));
    let text = moved(&[&url]);
    assert!(text.contains("67,690 packets"), "{text}");
    assert_eq!(files_of_parts(&log), 0, "nothing is left here");
    let largest = server
        .objects()
        .iter()
        .map(|file| file.metadata().unwrap().len())
        .max();
    assert!(
        largest.unwrap() > 5 << 20,
        "one that is sent in parts: {largest:?}"
    );

    assert!(export(server.ask(), &log, &[]) == before);
    assert!(export(server.ask(), &log, &filter) == found);
    assert!(ok(server.ask().arg("verify").arg(&log)).contains("67,690 packets"));
    let info = ok(server.ask().arg("info").arg(&log));
    assert!(
        info.contains("67,690 of them moved to other storage"),
        "{info}"
    );

    // Denied access and damage are reported.
    let denied = failed(server.strata("wrong").args(["export", "-w", "-"]).arg(&log));
    assert!(
        denied.contains(&url) && denied.contains("AWS_SECRET_ACCESS_KEY"),
        "{denied}"
    );
    let object = server
        .objects()
        .into_iter()
        .find(|file| file.ends_with("00000001.parquet"));
    let object = object.unwrap();
    let mut bytes = std::fs::read(&object).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&object, &bytes).unwrap();
    let damage = failed(server.ask().arg("verify").arg(&log));
    let offset = format!("offset {}", at / 65_536 * 65_536);
    assert!(
        damage.contains(&url) && damage.contains(&offset),
        "{damage}"
    );
    bytes[at] ^= 1;
    std::fs::write(&object, &bytes).unwrap();

    let text = moved(&["--back"]);
    assert!(text.contains("67,690 packets"), "{text}");
    assert!(server.objects().is_empty(), "{:?}", server.objects());
    assert!(export(strata(), &log, &[]) == before);

    // Without its store a log is not lost: nothing is deleted, and the error says what is wrong.
    moved(&[&url]);
    let objects = server.objects().len();
    server.stop();
    let unreachable = failed(server.ask().args(["export", "-w", "-"]).arg(&log));
    assert!(
        unreachable.contains(&url) && unreachable.contains("AWS_ENDPOINT_URL"),
        "{unreachable}"
    );
    ok(server.ask().arg("compact").arg(&log));
    let pruned = server
        .ask()
        .args(["prune", "--keep", "1d", "--yes"])
        .arg(&log)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&pruned.stderr);
    assert!(
        pruned.status.success() && text.contains("no longer in the log could not be deleted"),
        "{text}"
    );
    assert_eq!(server.objects().len(), objects);
}

#[test]
fn what_is_encrypted_moves_as_it_is_beside_a_compaction() {
    let Some(server) = Server::start() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("one.key");
    let key = key.to_str().unwrap();
    let public = ok(strata().args(["key", "new", key]));
    let log = compacted(dir.path(), "cic2017-sqli", &["--encrypt-to", public.trim()]);
    let before = export(strata(), &log, &["--key", key]);
    let flows = export(strata(), &log, &["--key", key, "-F", "csv"]);
    let url = format!("s3://{BUCKET}/one/two");
    // As it runs alongside a recording, once.
    ok(server
        .ask()
        .arg("compact")
        .arg(&log)
        .args(["--move-to", &url]));
    assert_eq!(files_of_parts(&log), 0);
    for object in server.objects() {
        let encrypted = object
            .extension()
            .is_some_and(|extension| extension == "age");
        assert!(
            encrypted
                || object
                    .extension()
                    .is_some_and(|extension| extension == "crc")
        );
    }
    assert!(export(server.ask(), &log, &["--key", key]) == before);
    assert!(export(server.ask(), &log, &["--key", key, "-F", "csv"]) == flows);
    let other = dir.path().join("two.key");
    let other = other.to_str().unwrap();
    let public = ok(strata().args(["key", "new", other]));
    ok(strata()
        .args(["key", "rotate"])
        .arg(&log)
        .args(["--old", key, "--new", public.trim()]));
    assert!(export(server.ask(), &log, &["--key", other]) == before);
    let verified = ok(server.ask().arg("verify").arg(&log).args(["--key", other]));
    assert!(verified.contains("94 packets"), "{verified}");
    let pruned = ok(server
        .ask()
        .args(["prune", "--keep", "1d", "--yes"])
        .arg(&log));
    assert!(pruned.starts_with("deleted"), "{pruned}");
    assert_eq!(server.objects().len(), 0, "the newest part goes too");
}

#[test]
fn another_disk_needs_no_server() {
    let dir = tempfile::tempdir().unwrap();
    let log = compacted(dir.path(), "cic2017-sqli", &[]);
    let before = export(strata(), &log, &[]);
    let cold = dir.path().join("cold");
    let url = format!("file://{}", cold.display());
    ok(strata().arg("move").arg(&log).args([&url]));
    assert_eq!(files_of_parts(&log), 0);
    assert!(!files(&cold).is_empty());
    assert!(export(strata(), &log, &[]) == before);
    // Another log does not interfere.
    let second = dir.path().join("second");
    std::fs::create_dir(&second).unwrap();
    let second = compacted(&second, "cic2017-sqli", &[]);
    let taken = failed(strata().arg("move").arg(&second).args([&url]));
    assert!(taken.contains("its own prefix"), "{taken}");
    assert!(export(strata(), &log, &[]) == before);
    ok(strata().arg("move").arg(&log).arg("--back"));
    assert!(files(&cold).is_empty());
    assert!(export(strata(), &log, &[]) == before);
    let unknown = refused(strata().arg("move").arg(&log).args(["ftp://a/b"]));
    assert!(unknown.contains("s3://BUCKET/PREFIX"), "{unknown}");
    for within in ["", "/packets/new"] {
        let url = format!("file://{}{within}", log.display());
        let itself = refused(strata().arg("move").arg(&log).args([&url]));
        assert!(itself.contains("is inside the log"), "{itself}");
    }
    assert!(export(strata(), &log, &[]) == before);
}

/// Directories of hours, of all kinds of files of parts.
fn hours(dir: &Path) -> usize {
    let kinds = DIRS.iter().map(|kind| dir.join(kind));
    let entries = kinds.flat_map(|dir| std::fs::read_dir(dir).into_iter().flatten());
    let names = entries.map(|entry| entry.unwrap().file_name());
    names
        .filter(|name| name.to_str().unwrap().starts_with("hour="))
        .count()
}

#[test]
fn directories_go_with_their_last_file() {
    let dir = tempfile::tempdir().unwrap();
    let log = compacted(dir.path(), "cic2017-sqli", &[]);
    let cold = dir.path().join("cold");
    let url = format!("file://{}", cold.display());
    assert!(hours(&log) > 0);
    ok(strata().arg("move").arg(&log).arg(&url));
    assert!(hours(&log) == 0 && hours(&cold) > 0);
    ok(strata().arg("move").arg(&log).arg("--back"));
    assert!(hours(&log) > 0 && hours(&cold) == 0);
    ok(strata().args(["prune", "--keep", "1d", "--yes"]).arg(&log));
    assert_eq!(hours(&log), 0);
    assert!(log.join("packets").is_dir() && cold.join("packets").is_dir());
}

/// Takes a disk away: nothing is left in its place, or an empty mount point.
fn unmounted(disk: &Path, away: &Path, leaves_mount_point: bool) {
    std::fs::rename(disk, away).unwrap();
    if leaves_mount_point {
        std::fs::create_dir(disk).unwrap();
    }
}

#[test]
fn files_on_a_disk_that_is_away_are_deleted_once_it_is_back() {
    for leaves_mount_point in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let log = compacted(dir.path(), "cic2017-sqli", &[]);
        let [disk, away] = ["disk", "away"].map(|name| dir.path().join(name));
        let url = format!("file://{}/sensor-7", disk.display());
        ok(strata().arg("move").arg(&log).arg(&url));
        let moved = files(&disk).len();
        assert!(moved >= 4, "{moved}");
        unmounted(&disk, &away, leaves_mount_point);
        let still_there = format!("{url}: {moved} files no longer in the log could not be deleted");
        for command in ["prune", "prune", "compact"] {
            let pruned = strata()
                .args([command, "--keep", "1d", "--yes"])
                .arg(&log)
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&pruned.stderr);
            assert!(
                pruned.status.success() && text.contains(&still_there),
                "{command}: {text}"
            );
        }
        // The disk would hide what is moved into the directory below it.
        let trace = data_dir().join("labelled/cic2017-sqli/trace.pcap");
        ok(&mut record(trace, &log));
        ok(strata().arg("compact").arg(&log));
        let refused = failed(strata().arg("move").arg(&log).arg(&url));
        assert!(refused.contains("mount the disk"), "{refused}");
        assert!(files_of_parts(&log) >= 4 && files(&disk).is_empty());
        if leaves_mount_point {
            std::fs::remove_dir(&disk).unwrap();
        }
        std::fs::rename(&away, &disk).unwrap();
        assert_eq!(files(&disk).len(), moved);
        let pruned = strata()
            .args(["prune", "--keep", "1d", "--yes"])
            .arg(&log)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&pruned.stderr);
        assert!(
            pruned.status.success() && !text.contains("could not be deleted"),
            "{text}"
        );
        assert_eq!(files(&disk), <[PathBuf; 0]>::default());
        let archive = std::fs::read(log.join("archive.json")).unwrap();
        let archive: serde_json::Value = serde_json::from_slice(&archive).unwrap();
        let listed = archive["deleted"].to_string();
        assert!(!listed.contains("file://"), "{listed}");
    }
}

#[test]
fn info_looks_for_the_files_of_a_log_on_another_disk() {
    let dir = tempfile::tempdir().unwrap();
    let log = compacted(dir.path(), "cic2017-sqli", &[]);
    let [disk, away] = ["disk", "away"].map(|name| dir.path().join(name));
    let url = format!("file://{}", disk.display());
    ok(strata().arg("move").arg(&log).arg(&url));
    let text = ok(strata().arg("info").arg(&log));
    assert!(text.contains("94 of them moved to other storage"), "{text}");
    unmounted(&disk, &away, false);
    let info = |options: &[&str]| {
        let output = strata().arg("info").arg(&log).args(options).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = info(&[]);
    let missing = away_text(&url, &away, "94");
    assert!(text.lines().any(|line| line == missing), "{text}");
    let json: serde_json::Value = serde_json::from_str(&info(&["--json"])).unwrap();
    assert_eq!(
        (&json[0]["complete"], &json[0]["in_log"]["packets"]),
        (&false.into(), &0.into())
    );
    assert_eq!(json[0]["unaccounted_packets"], 94);
    std::fs::rename(&away, &disk).unwrap();
    ok(strata().arg("info").arg(&log));
}

/// The line about a tier that is away, with parts of this many packets, whose files are in another directory now.
fn away_text(url: &str, away: &Path, packets: &str) -> String {
    let files = files(away);
    let is_meta = |file: &&PathBuf| file.parent().unwrap().ends_with("meta");
    let parts = match files.iter().filter(is_meta).count() {
        1 => String::from("1 part has"),
        parts => format!("{parts} parts have"),
    };
    format!(
        "{url}: {} files missing, or the disk is not mounted: mount it, or restore the files; {parts} {packets} packets \
         there",
        files.len()
    )
}

#[test]
fn a_tier_that_is_away_is_one_line_of_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let log = compacted(dir.path(), "mix-test", &[]);
    let [disk, away] = ["disk", "away"].map(|name| dir.path().join(name));
    let url = format!("file://{}", disk.display());
    ok(strata().arg("move").arg(&log).arg(&url));
    unmounted(&disk, &away, false);
    let line = away_text(&url, &away, "67,690");
    let count = format!("{} missing files in", files(&away).len());
    let out = dir.path().join("out.pcapng");
    let out = out.to_str().unwrap();
    for words in [
        &["read"][..],
        &["top"],
        &["info"],
        &["verify"],
        &["export", "-w", out],
        &["export", "-w", out, "--json"],
        &["verify", "--json"],
        &["info", "--json"],
    ] {
        let output = strata()
            .arg(words[0])
            .arg(&log)
            .args(&words[1..])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let printed = String::from_utf8(output.stdout).unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let both = format!("{printed}{said}");
        if words.contains(&"--json") {
            let json: serde_json::Value = serde_json::from_str(&printed).unwrap();
            let json = json.get(0).unwrap_or(&json);
            assert_eq!(json["damage"], serde_json::json!([line]), "{words:?}");
            assert_eq!(json["complete"], false, "{words:?}");
        } else {
            let of_tier: Vec<&str> = both.lines().filter(|line| line.contains(&url)).collect();
            let of_tier = of_tier
                .iter()
                .map(|line| line.trim_start_matches("strata: "));
            assert_eq!(of_tier.collect::<Vec<_>>(), [line.as_str()], "{words:?}");
        }
        assert!(said.contains(&count), "{words:?}: {said}");
        assert!(!both.contains("damaged at"), "{words:?}: {both}");
    }
}

#[test]
fn reasons_of_an_encrypted_log_without_its_disk_name_the_files_and_not_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let [key, other] = ["one.key", "two.key"].map(|name| dir.path().join(name));
    let public = ok(strata().args(["key", "new"]).arg(&key));
    ok(strata().args(["key", "new"]).arg(&other));
    let log = compacted(dir.path(), "cic2017-sqli", &["--encrypt-to", public.trim()]);
    let [disk, away] = ["disk", "away"].map(|name| dir.path().join(name));
    let url = format!("file://{}", disk.display());
    ok(strata().arg("move").arg(&log).arg(&url));
    let info = |key: Option<&Path>| {
        let mut command = strata();
        command.args(["info", "--reasons"]).arg(&log);
        let key = key.into_iter().flat_map(|key| [Path::new("--key"), key]);
        let output = command.args(key).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let text = text + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), text)
    };
    let (status, text) = info(Some(&key));
    assert!(
        status == Some(0) && text.contains("most bytes first"),
        "{text}"
    );
    let (status, text) = info(None);
    assert!(
        status == Some(0) && text.contains("--key FILE reads them"),
        "{text}"
    );
    let (status, text) = info(Some(&other));
    assert!(
        status == Some(1) && text.contains("but the given key is"),
        "{text}"
    );
    unmounted(&disk, &away, true);
    for key in [Some(key.as_path()), None] {
        let (status, text) = info(key);
        assert!(
            status == Some(1)
                && text
                    .lines()
                    .any(|line| line == away_text(&url, &away, "94"))
                && text.contains("of files that are missing or damaged")
                && !text.contains("--key FILE"),
            "{text}"
        );
    }
}

#[test]
fn a_store_that_does_not_answer_holds_no_compaction_up() {
    let dir = tempfile::tempdir().unwrap();
    let log = compacted(dir.path(), "cic2017-sqli", &[]);
    // There is no listener.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let watch = strata()
        .env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}"))
        .env("AWS_ACCESS_KEY_ID", "somebody")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .arg("compact")
        .arg(&log)
        .args(["--every", "1s", "--move-to", "s3://traffic/sensor-7"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut watch = Running(watch.unwrap());
    let trace = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    ok(&mut record(trace, &log));
    let until = Instant::now() + Duration::from_secs(60);
    let is_block_file = |file: &PathBuf| file.extension().is_some_and(|ending| ending == "strata");
    while files(&log.join("blocks")).iter().any(is_block_file) {
        assert!(
            Instant::now() < until,
            "what was recorded meanwhile is not compacted"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    watch.0.kill().unwrap();
    let mut said = String::new();
    let mut stderr = watch.0.stderr.take().unwrap();
    std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
    assert!(
        said.contains("not moved") && said.contains("s3://traffic/sensor-7"),
        "{said}"
    );
}

/// Ended when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
