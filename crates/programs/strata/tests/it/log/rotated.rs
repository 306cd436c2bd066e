//! `strata export -G`, `-C` and `-z`: what is in each file, compared with a single one, and names, compared with date(1).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use strata_testkit::data_dir;

use crate::common::program::{failed, ok, record, refused, strata};

/// Time in us, and bytes.
type Frame = (i64, Vec<u8>);

/// Half an hour off the whole hours of UTC.
const ZONE: &str = "IST-5:30";
const AHEAD_SECONDS: i64 = 5 * 3600 + 1800;

fn frames(file: &Path) -> Vec<Frame> {
    let mut capture = pcap::Capture::from_file(file).unwrap();
    let mut frames = Vec::new();
    while let Ok(packet) = capture.next_packet() {
        let time = packet.header.ts;
        frames.push((time.tv_sec * 1_000_000 + time.tv_usec, packet.data.to_vec()));
    }
    frames
}

fn export(log: &Path, name: &Path, more: &[&str]) -> Command {
    let mut command = strata();
    command.env("TZ", ZONE).arg("export").arg(log);
    command.arg("-w").arg(name).args(more);
    command
}

/// The log of a capture, and all of its packets as one file has them.
fn logged(trace: &str, dir: &Path) -> (PathBuf, Vec<Frame>) {
    let log = dir.join("log");
    ok(&mut record(data_dir().join(trace), &log));
    let whole = dir.join("whole.pcap");
    ok(&mut export(&log, &whole, &[]));
    let frames = frames(&whole);
    fs::remove_file(whole).unwrap();
    (log, frames)
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    names.collect()
}

/// A new directory.
fn directory(above: &Path, name: &str) -> PathBuf {
    let dir = above.join(name);
    fs::create_dir(&dir).unwrap();
    dir
}

/// A time as date(1) writes it.
fn by_date(second: i64, format: &str) -> String {
    let mut date = Command::new("date");
    date.env("TZ", ZONE)
        .arg(format!("--date=@{second}"))
        .arg(format!("+{format}"));
    ok(&mut date).trim_end().to_owned()
}

/// The time of a frame in seconds.
fn second((time_us, _): &Frame) -> i64 {
    time_us.div_euclid(1_000_000)
}

#[test]
fn each_file_has_the_packets_of_an_hour_of_the_clock() {
    const NAME: &str = "%Y%m%d-%H%M%z.pcap";
    let dir = tempfile::tempdir().unwrap();
    let (log, whole) = logged("labelled/iot-week/trace.pcap", dir.path());
    let mut expected: BTreeMap<i64, Vec<Frame>> = BTreeMap::new();
    for frame in &whole {
        let hour = (second(frame) + AHEAD_SECONDS).div_euclid(3600);
        let start = hour * 3600 - AHEAD_SECONDS;
        expected.entry(start).or_default().push(frame.clone());
    }
    assert!(expected.len() > 100);
    let hours = directory(dir.path(), "hours");
    let answer = ok(export(&log, &hours.join(NAME), &["-G", "3600"]).arg("--json"));
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["files"], expected.len());
    assert_eq!(answer["packets"], whole.len());
    assert_eq!(names(&hours).len(), expected.len());
    for (start, frames_of_hour) in expected {
        let file = hours.join(by_date(start, NAME));
        assert!(file.exists(), "{}", file.display());
        assert!(frames(&file) == frames_of_hour, "{}", file.display());
    }
    // Each pcapng has what its packets need, their comments too.
    let days = directory(dir.path(), "days");
    ok(&mut export(&log, &days.join("%F.pcapng"), &["-G", "86400"]));
    let mut commented = 0;
    for name in names(&days) {
        let mut tshark = Command::new("tshark");
        tshark.args(["-r", &name, "-Y", "frame.comment contains \"class=\""]);
        tshark.args(["-T", "fields", "-e", "frame.number"]);
        commented += ok(tshark.current_dir(&days)).lines().count();
    }
    assert_eq!(commented, whole.len());
}

#[test]
fn files_of_limited_size_hold_together_what_one_would() {
    const LIMIT: u64 = 40_000;
    let dir = tempfile::tempdir().unwrap();
    let (log, whole) = logged("labelled/everyday-benign/trace.pcap", dir.path());
    let files = directory(dir.path(), "files");
    let said = export(&log, &files.join("part.pcap.gz"), &["-C", "40kB"]).output();
    let said = String::from_utf8(said.unwrap().stderr).unwrap();
    let count = names(&files).len();
    assert!(count > 3, "{:?}", names(&files));
    assert!(said.contains(&format!("to {count} files")), "{said}");
    let mut together = Vec::new();
    for number in 0..count {
        let name = match number {
            0 => String::from("part.pcap"),
            number => format!("part.{number}.pcap"),
        };
        ok(Command::new("gunzip").arg(files.join(format!("{name}.gz"))));
        let size = fs::metadata(files.join(&name)).unwrap().len();
        assert!(size <= LIMIT + 65_536, "{name}: {size}");
        assert!(size > LIMIT || number + 1 == count, "{name}: {size}");
        together.extend(frames(&files.join(name)));
    }
    assert!(together == whole);
}

#[test]
fn a_limited_size_and_a_period_and_what_else_an_export_does() {
    let dir = tempfile::tempdir().unwrap();
    let (log, whole) = logged("labelled/everyday-benign/trace.pcap", dir.path());
    let (key, once) = (dir.path().join("key"), dir.path().join("once.pcap"));
    fs::write(&key, "07".repeat(32)).unwrap();
    let key = key.to_str().unwrap();
    let options = ["--anonymize", key, "--dedup", "1ms"];
    ok(&mut export(&log, &once, &options));
    let once = frames(&once);
    assert!(once.len() <= whole.len());
    let files = directory(dir.path(), "files");
    let rotation = ["-G", "300", "-C", "20kB"];
    let words = [&options[..], &rotation].concat();
    ok(&mut export(&log, &files.join("%H%M.pcap"), &words));
    let names = names(&files);
    assert!(names.iter().any(|name| name.contains(".2.")), "{names:?}");
    let number = |name: &str| {
        name.split('.')
            .nth(1)
            .and_then(|number| number.parse().ok())
    };
    let mut in_turn: Vec<(String, u32)> = Vec::new();
    for name in &names {
        let period = name.split('.').next().unwrap().to_owned();
        in_turn.push((period, number(name).map_or(0, |number: u32| number)));
    }
    in_turn.sort();
    let mut together = Vec::new();
    for (period, number) in in_turn {
        let name = match number {
            0 => format!("{period}.pcap"),
            number => format!("{period}.{number}.pcap"),
        };
        let of_file = frames(&files.join(name));
        for frame in &of_file {
            let start = (second(frame) + AHEAD_SECONDS).div_euclid(300) * 300 - AHEAD_SECONDS;
            assert_eq!(clock(start), period);
        }
        together.extend(of_file);
    }
    assert!(together == once);
}

/// Hours and minutes of a time, as the clock of [`ZONE`] shows it.
fn clock(second: i64) -> String {
    let minutes = (second + AHEAD_SECONDS).rem_euclid(86_400) / 60;
    format!("{:02}{:02}", minutes / 60, minutes % 60)
}

#[test]
fn a_command_runs_after_each_file() {
    let dir = tempfile::tempdir().unwrap();
    let (log, whole) = logged("labelled/everyday-benign/trace.pcap", dir.path());
    let files = directory(dir.path(), "files");
    // Names that look like options of the command are those of files.
    let mut command = export(
        &log,
        Path::new("./-%H%M.pcapng"),
        &["-G", "300", "-z", "gzip"],
    );
    ok(command.current_dir(&files));
    let mut together = Vec::new();
    for name in names(&files) {
        assert!(name.ends_with(".pcapng.gz"), "{name}");
        ok(Command::new("gunzip").arg(files.join(&name)));
        together.extend(frames(&files.join(name.trim_end_matches(".gz"))));
    }
    assert!(together == whole);

    // A file is whole when its command runs, and there is one at a time.
    let looked = directory(dir.path(), "looked");
    let (program, list) = (dir.path().join("look"), dir.path().join("list"));
    let script = format!(
        "#!/bin/sh\ntcpdump --count -r \"$1\" 2>/dev/null | cut -d' ' -f1 >>{}\necho \"$1\"\n",
        list.display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let words = ["-G", "300", "--json", "-z", program.to_str().unwrap()];
    let answer = ok(&mut export(&log, &looked.join("%H%M.pcap"), &words));
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["failed_commands"], 0);
    let counts = fs::read_to_string(&list).unwrap();
    let counts: Vec<usize> = counts.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(answer["files"], counts.len());
    assert_eq!(counts.iter().sum::<usize>(), whole.len());

    let again = directory(dir.path(), "again");
    let mut command = export(
        &log,
        &again.join("%H%M.pcap"),
        &["-G", "300", "-z", "false"],
    );
    let said = failed(&mut command);
    let count = counts.len();
    assert!(said.contains("failed (exit status: 1)"), "{said}");
    assert!(
        said.contains(&format!("-z failed for {count} files")),
        "{said}"
    );
    assert_eq!(names(&again).len(), count);

    // If the export fails in between, complete files stay, each after its command.
    let ended = directory(dir.path(), "ended");
    let in_the_way = names(&looked).into_iter().nth(2).unwrap();
    fs::write(ended.join(&in_the_way), "there").unwrap();
    fs::remove_file(&list).unwrap();
    let said = failed(&mut export(&log, &ended.join("%H%M.pcap"), &words));
    assert!(
        said.contains(&format!("{in_the_way}: this file exists already")),
        "{said}"
    );
    assert_eq!(names(&ended).len(), 3);
    let ran = fs::read_to_string(&list).unwrap();
    let first: Vec<&str> = ran.lines().collect();
    let expected: Vec<String> = counts[..2].iter().map(usize::to_string).collect();
    assert_eq!(first, expected);
}

/// A pcapng of one frame at each of these seconds, or without a time.
fn pcapng(times: &[Option<u64>]) -> Vec<u8> {
    let block = |kind: u32, body: &[u8]| {
        let len = u32::try_from(body.len() + 12).unwrap().to_le_bytes();
        [&kind.to_le_bytes()[..], &len, body, &len].concat()
    };
    let words =
        |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let mut file = block(0x0a0d_0d0a, &words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]));
    file.extend(block(1, &words(&[1, 0])));
    let frame = [[2; 6].as_slice(), &[4; 6], &[0x88, 0xb5], &[7; 46]].concat();
    for time in times {
        let (kind, head) = match time {
            None => (3, words(&[60])),
            Some(seconds) => {
                let us = seconds * 1_000_000;
                let [high, low] = [us >> 32, us & 0xffff_ffff].map(|of| u32::try_from(of).unwrap());
                (6, words(&[0, high, low, 60, 60]))
            }
        };
        file.extend(block(kind, &[head, frame.clone()].concat()));
    }
    file
}

#[test]
fn times_that_go_back_or_are_missing_and_files_that_exist() {
    const MIDNIGHT: u64 = 1_700_000_000 / 86_400 * 86_400;
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    // The second capture is of the day before, and of the same time of the day as the first.
    for (name, times) in [
        (
            "one",
            vec![
                None,
                Some(MIDNIGHT),
                None,
                Some(MIDNIGHT + 61),
                Some(MIDNIGHT + 59),
            ],
        ),
        (
            "two",
            vec![Some(MIDNIGHT - 86_400), Some(MIDNIGHT - 86_400 + 61)],
        ),
    ] {
        let capture = dir.path().join(name);
        fs::write(&capture, pcapng(&times)).unwrap();
        ok(record(&capture, &log).args(["--mode", "log-all"]));
    }
    let files = directory(dir.path(), "files");
    let output = export(&log, &files.join("%H%M.pcapng"), &["-G", "60"])
        .env("TZ", "UTC0")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("1 packet written to the file of the next period"),
        "{said}"
    );
    let count = |name: &str| {
        let mut tshark = Command::new("tshark");
        tshark.args(["-T", "fields", "-e", "frame.number", "-r"]);
        ok(tshark.arg(files.join(name))).lines().count()
    };
    let counts = [
        "0000.pcapng",
        "0000.1.pcapng",
        "0001.pcapng",
        "0000.2.pcapng",
        "0001.1.pcapng",
    ]
    .map(|name| (name, count(name)));
    // The first packet has no time, and no file before it.
    let expected = [1, 2, 2, 1, 1];
    assert_eq!(counts.map(|(_, count)| count), expected, "{counts:?}");
    assert_eq!(names(&files).len(), 5);

    let before = fs::read(files.join("0000.pcapng")).unwrap();
    let mut again = export(&log, &files.join("%H%M.pcapng"), &["-G", "60"]);
    let said = failed(again.env("TZ", "UTC0"));
    assert!(
        said.contains("0000.pcapng: this file exists already"),
        "{said}"
    );
    assert_eq!(fs::read(files.join("0000.pcapng")).unwrap(), before);
    assert_eq!(names(&files).len(), 5);
    // No packets, no file.
    let nothing = directory(dir.path(), "nothing");
    ok(export(&log, &nothing.join("%F.pcap"), &["-G", "60", "port 7"]).env("TZ", "UTC0"));
    assert!(names(&nothing).is_empty());
}

#[test]
fn what_cannot_be_rotated_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    fs::write(dir.path().join("one"), pcapng(&[Some(7)])).unwrap();
    ok(&mut record(dir.path().join("one"), &log));
    for (name, words, problem) in [
        ("-", &["-G", "60"][..], "need a name"),
        ("x.pcap", &["-G", "60"], "needs a time in its name"),
        ("x-%H.csv", &["-G", "60"], "apply only to pcapng and pcap"),
        ("x.parquet", &["-C", "1"], "apply only to pcapng and pcap"),
        ("x.pcap", &["-C", "0"], "-C must be above 0"),
        ("x.pcap", &["-z", "true"], "-z applies"),
        (
            "x.pcap",
            &["-C", "1", "-z", "no-such-program"],
            "no such program",
        ),
        ("x.pcap", &["-C", "1", "-z", "gzip -9"], "no such program"),
    ] {
        let mut command = export(&log, Path::new(name), words);
        let said = refused(command.current_dir(dir.path()));
        assert!(said.contains(problem), "{said}");
    }
    assert_eq!(
        names(dir.path()),
        BTreeSet::from(["log", "one"].map(str::to_owned))
    );
}
