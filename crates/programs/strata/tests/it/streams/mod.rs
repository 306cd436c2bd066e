//! `strata stream` as its users run it.

mod damage;
mod devices;
mod killed;
mod logs;
mod mistakes;
mod otlp;
mod producers;
mod serve;
mod servers;
mod several;
mod stripes;
mod to_stream;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use strata_testkit::{Disk, may_use_kernel, workspace_root};
use tempfile::TempDir;

use crate::common::program::{failed, ok, refused, strata};
use crate::common::signal::signal;
use crate::common::streams::{Streams, command, succeeded};

fn lines(range: std::ops::Range<u32>) -> String {
    range.map(|number| format!("line {number}\n")).collect()
}

#[test]
fn lines_come_back_from_the_end_from_cursors_and_from_times() {
    let streams = Streams::new(&[]);
    assert_eq!(streams.tail(&[]), "");
    let said = succeeded(&streams.append(&[], lines(0..1000).as_bytes()));
    assert!(
        said.starts_with("1,000 records appended, 7.9 kB; "),
        "{said}"
    );
    // Times are to 10 ms: what comes next has another.
    let last = streams.json("tail", &["-n", "1"])[0]["time_ns"].as_u64();
    let differs_from = UNIX_EPOCH + Duration::from_nanos(last.unwrap()) + Duration::from_millis(10);
    while SystemTime::now() <= differs_from {
        thread::yield_now();
    }
    // A second process goes on in the same page; the last line has no newline.
    succeeded(&streams.append(&["--lines"], b"\nlast"));
    assert_eq!(streams.tail(&["-n", "3"]), "line 999\n\nlast\n");
    assert_eq!(streams.tail(&[]).lines().count(), 10);
    let all = streams.json("tail", &["--cursor", "0.0"]);
    assert_eq!(all.len(), 1002);
    for (number, record) in all.iter().enumerate() {
        assert_eq!(record["seq"], number);
    }
    let cursor = all[499]["cursor"].as_str().unwrap();
    let from = streams.json("tail", &["--cursor", cursor, "-n", "2"]);
    assert_eq!(from, &all[500..502]);
    // The end is a place, and what is after it is reported as such.
    let end = all[1001]["cursor"].as_str().unwrap();
    for (cursor, warns) in [(end, false), ("1000.64", true)] {
        let output = streams.command("tail", &["--cursor", cursor]).output();
        let output = output.unwrap();
        assert_eq!(succeeded(&output), "");
        let errors = String::from_utf8_lossy(&output.stderr);
        let said = format!("--cursor {cursor}: this cursor is after the end of the stream, {end}");
        assert_eq!(errors.contains(&said), warns, "{errors}");
    }
    assert_eq!(
        streams
            .tail(&["--since", "2000-01-01T00:00:00Z"])
            .lines()
            .count(),
        1002
    );
    assert_eq!(streams.tail(&["--since", "2200-01-01T00:00:00Z"]), "");
    let time_ns = all[1000]["time_ns"].as_u64().unwrap();
    let since = format!("{}.{:09}", time_ns / 1_000_000_000, time_ns % 1_000_000_000);
    let since = streams.json("tail", &["--since", &since]);
    assert!(
        since.ends_with(&all[1000..]) && since.len() < 1002,
        "{}",
        since.len()
    );
    let listed = &streams.json("list", &[])[0];
    assert_eq!(
        (&listed["records"], &listed["writer"]),
        (&1002.into(), &"closed".into())
    );
    let checked = &streams.json("check", &[])[0];
    assert_eq!(checked["records"], 1002);
    assert!(ok(&mut streams.command("list", &[])).contains("events"));
}

#[test]
fn framed_records_are_any_bytes_of_any_length() {
    let streams = Streams::new(&[]);
    let mut input = Vec::new();
    let sizes = [
        0_usize,
        1,
        16,
        300_000,
        1 << 20,
        5,
        1 << 20,
        1 << 20,
        1 << 20,
        7,
    ];
    for (number, &size) in sizes.iter().enumerate() {
        input.extend(u32::try_from(size).unwrap().to_le_bytes());
        input.extend((0..size).map(|at| (at * 7 + number).to_le_bytes()[0]));
    }
    succeeded(&streams.append(&["--framed"], &input));
    let output = streams
        .command("tail", &["--framed", "--cursor", "0.0"])
        .output();
    assert!(output.unwrap().stdout == input);
    let hex = &streams.json("tail", &["--cursor", "0.0", "-n", "3"])[1]["text"];
    assert_eq!(hex, "\u{1}");
    // Longer, cut short.
    let long = [&(1_048_577_u32).to_le_bytes()[..], b"x"].concat();
    for (bad, problem) in [
        (
            &long[..],
            "the length at byte 0 is 1048577, and records may be at most 1048576 bytes long",
        ),
        (
            &[9, 0, 0, 0, 1],
            "the record at byte 0 is cut short: 8 of its bytes are missing",
        ),
        (&[9, 0], "the record at byte 0 is cut short"),
    ] {
        let output = streams.append(&["--framed"], bad);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(1) && errors.contains(problem),
            "{errors}"
        );
    }
    let long_line = [vec![b'x'; 3 << 20], b"\nshort\n".to_vec()].concat();
    let output = streams.append(&[], &long_line);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("1 record left out: too long"), "{errors}");
    assert_eq!(streams.tail(&["-n", "1"]), "short\n");
}

#[test]
fn a_killed_appender_costs_nothing_that_was_visible() {
    let streams = Streams::new(&[]);
    let mut follower = streams
        .command("tail", &["--follow", "--cursor", "@me", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut records = BufReader::new(follower.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&records.next().unwrap().unwrap()).unwrap() };
    let mut number = 0_u64;
    let mut seen = Vec::new();
    for round in 0..4_usize {
        let mut child = streams.appender(&[]);
        let mut stdin = child.stdin.take().unwrap();
        let wanted = seen.len() + 500;
        while seen.len() < wanted {
            for _ in 0..50 {
                writeln!(stdin, "record {number} {}", "x".repeat(100 * round)).unwrap();
                number += 1;
            }
            seen.push(next());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let there = streams.json("tail", &["--cursor", "0.0"]);
        assert!(there.len() >= seen.len());
        assert_eq!(
            there[..seen.len()],
            seen[..],
            "what was visible is there, and in order"
        );
        while seen.len() < there.len() {
            seen.push(next());
        }
        assert_eq!(there, seen);
        assert_eq!(streams.json("list", &[])[0]["writer"], "not closed");
    }
    succeeded(&streams.append(&[], b"the end\n"));
    assert_eq!(next()["text"], "the end");
    signal(&follower, "INT");
    assert!(follower.wait().unwrap().success());
    // The cursor was saved: nothing comes twice.
    assert_eq!(streams.tail(&["--cursor", "@me"]), "");
    let consumer = &streams.json("list", &[])[0]["consumers"][0];
    assert_eq!(
        (&consumer["name"], &consumer["lag"]),
        (&"me".into(), &0.into())
    );
}

#[test]
fn a_full_disk_ends_appending_and_costs_nothing_before() {
    assert!(may_use_kernel("a small disk"));
    let folder = TempDir::new().unwrap();
    let disk = Disk::new(folder.path(), "24M");
    let dir = disk.path().join("streams");
    ok(strata().args(["stream", "create"]).arg(&dir).arg("events"));
    let line = "x".repeat(1000) + "\n";
    let mut child = command(&dir, "append", &[]);
    let mut child = child
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = line.repeat(40_000);
    let writer = thread::spawn(move || {
        let _ = stdin.write_all(input.as_bytes());
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("pages: ") && errors.contains("No space left"),
        "{errors}"
    );
    let there = ok(&mut command(&dir, "tail", &["--cursor", "0.0"]));
    assert!(there.lines().count() > 10_000 && there.lines().all(|there| there.len() == 1000));
    // It says with how many of its input it was done.
    let said = String::from_utf8(output.stdout)
        .unwrap()
        .replace([' ', ','], "");
    assert_eq!(said, format!("{}recordsappended\n", there.lines().count()));
    // A stream that keeps less writes over its own pages, for as long as it likes.
    fs::remove_dir_all(&dir).unwrap();
    ok(strata()
        .args(["stream", "create"])
        .arg(&dir)
        .args(["events", "--retain", "9MB"]));
    let streams = Streams {
        dir,
        _folder: folder,
    };
    succeeded(&streams.append(&[], line.repeat(40_000).as_bytes()));
    let last = streams.json("tail", &["-n", "1"]);
    assert_eq!(last[0]["seq"], 39_999);
    let checked = &streams.json("check", &[])[0];
    assert!(checked["records"].as_u64().unwrap() > 4_000);
    // A reader that comes too late gets a message.
    let late = streams
        .command("tail", &["--cursor", "0.4096", "-n", "1"])
        .output()
        .unwrap();
    assert!(late.status.success());
    let errors = String::from_utf8(late.stderr).unwrap();
    assert!(
        errors.contains("was deleted before it was read"),
        "{errors}"
    );
}

#[test]
fn a_second_appender_is_refused_and_other_streams_are_not() {
    let streams = Streams::new(&[]);
    ok(strata()
        .args(["stream", "create"])
        .arg(&streams.dir)
        .arg("other"));
    let mut first = streams.appender(&[]);
    let mut stdin = first.stdin.take().unwrap();
    stdin.write_all(b"first\n").unwrap();
    streams.wait_for(1);
    assert_eq!(streams.json("list", &[])[0]["writer"], "appending");
    let said = failed(&mut streams.command("append", &[]));
    assert!(
        said.contains("another process is appending to events"),
        "{said}"
    );
    let mut other = strata();
    other
        .args(["stream", "append"])
        .arg(&streams.dir)
        .arg("other");
    let mut other = other
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let text = "other\n".repeat(2_000_000);
    other
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    assert!(other.wait().unwrap().success());
    stdin.write_all(lines(0..100_000).as_bytes()).unwrap();
    drop(stdin);
    succeeded(&first.wait_with_output().unwrap());
    assert_eq!(
        streams.tail(&["--cursor", "0.0"]),
        "first\n".to_owned() + &lines(0..100_000)
    );
    let checked = streams.json("check", &[]);
    assert_eq!(checked[1]["records"], 2_000_000);
}

#[test]
fn names_and_directories_that_are_none_are_refused() {
    let streams = Streams::new(&[]);
    for name in [
        "a/b",
        "../events",
        "a b",
        "",
        "ä",
        &"n".repeat(65),
        "*",
        "a\n",
    ] {
        for verb in ["create", "append", "tail"] {
            // Of several streams.
            if verb == "tail" && name == "*" {
                continue;
            }
            let mut command = strata();
            let output = command
                .args(["stream", verb])
                .arg(&streams.dir)
                .arg(name)
                .output()
                .unwrap();
            let errors = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{verb} {name:?}: {errors}");
            assert!(errors.contains("a stream's name "), "{errors}");
        }
    }
    for name in [".", ".."] {
        let said = refused(&mut streams.command("create", &[name]));
        assert!(
            said.contains("a stream's name is not '.' or '..'"),
            "{said}"
        );
    }
    for name in ["...", "-x", ".hidden"] {
        ok(strata()
            .args(["stream", "create", "--"])
            .arg(&streams.dir)
            .arg(name));
    }
    assert_eq!(streams.json("list", &[]).len(), 4);
    let said = failed(
        strata()
            .args(["stream", "create"])
            .arg(&streams.dir)
            .arg("events"),
    );
    assert!(said.contains("a stream events exists already"), "{said}");
    let said = failed(
        strata()
            .args(["stream", "tail"])
            .arg(&streams.dir)
            .arg("nobody"),
    );
    assert!(said.contains("no stream nobody"), "{said}");
    // Streams of a server are created where it runs.
    for server in ["localhost:4793", "[::1]:4793/", "localhost:4793/x"] {
        let mut command = strata();
        command.current_dir(&streams.dir);
        let output = command.args(["stream", "create", server, "x"]).output();
        let output = output.unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("created on the server's machine"), "{said}");
    }
    // A directory of something else is left alone.
    let foreign = streams.dir.join("streams");
    let said = failed(strata().args(["stream", "create"]).arg(&foreign).arg("x"));
    assert!(said.contains("holds other files"), "{said}");
    for (options, problem) in [
        (["--retain", "lots"], "write a size such as 10GB"),
        (["--retain", "1MB"], "at least two of them"),
        (["--pages", "4KiB-4KiB-5MiB"], "power of two"),
    ] {
        let output = streams
            .command("create", &["y"])
            .args(options)
            .output()
            .unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(2) && errors.contains(problem),
            "{errors}"
        );
    }
}

#[test]
fn damage_costs_the_records_that_it_hits() {
    for form in ["sealed", "linked"] {
        let streams = Streams::new(&["--record-form", form]);
        let text: String = (0..20_000)
            .map(|number| format!("record {number:>93}\n"))
            .collect();
        succeeded(&streams.append(&[], text.as_bytes()));
        let pages = fs::OpenOptions::new()
            .write(true)
            .open(streams.dir.join("pages"));
        let pages = pages.unwrap();
        for at in [100_000, 300_000, 1_000_000] {
            pages.write_all_at(&[0xa5; 1000], at).unwrap();
        }
        let there = streams
            .command("tail", &["--cursor", "0.0"])
            .output()
            .unwrap();
        let there = String::from_utf8_lossy(&there.stdout).into_owned();
        let lost = 20_000 - there.lines().count();
        assert!((1..1_000).contains(&lost), "{form}: {lost}");
        let expected: Vec<&str> = text.lines().collect();
        let changed = there
            .lines()
            .filter(|line| expected.binary_search(line).is_err());
        // A linked record is as good as its head; at both ends of each hole, one may be hit.
        let allowed = if form == "linked" { 6 } else { 0 };
        assert!(changed.count() <= allowed, "{form}");
        let output = streams.command("check", &["--json"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let checked: Value = serde_json::from_slice(&output.stdout).unwrap();
        let bounds = |key: &str| usize::try_from(checked[key].as_u64().unwrap()).unwrap();
        assert!(
            (bounds("missing_min")..=bounds("missing_max")).contains(&lost),
            "{checked}"
        );
        if form == "sealed" {
            assert_eq!(bounds("missing_min"), lost);
        }
        // A page's header: the whole page is missing.
        pages.write_all_at(&[0; 64], 0).unwrap();
        let said = streams.command("check", &[]).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        assert!(said.contains("is damaged: its header"), "{said}");
        // The stream's own file.
        let file = streams.dir.join("streams/events.stream");
        let mut bytes = fs::read(&file).unwrap();
        bytes[20] ^= 0xff;
        fs::write(&file, bytes).unwrap();
        let said = failed(&mut streams.command("tail", &[]));
        assert!(
            said.contains("events.stream: its first 144 bytes (its description)"),
            "{said}"
        );
    }
}

#[test]
fn the_python_client_reads_and_appends() {
    let streams = Streams::new(&[]);
    let mut python = Command::new("python3");
    python.args(["-c", include_str!("../common/streams.py")]);
    python.arg(&streams.dir);
    python.env("PYTHONPATH", workspace_root().join("python"));
    python.env("STRATA_PROGRAM", env!("CARGO_BIN_EXE_strata"));
    let output = python.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
}
