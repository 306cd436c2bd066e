//! `strata stream` in the hands of hurried users: what cannot be is refused, and what is lost is
//! reported.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use strata_wire::grouped;

use crate::common::program::{ok, refused, strata};
use crate::common::signal::signal;
use crate::common::streams::{Streams, succeeded};

/// Pages so small that 2 of them are soon full.
const SMALL: [&str; 4] = ["--pages", "4KiB-4KiB-64KiB", "--retain", "128KiB"];

/// What a command says, which ends with this status.
fn said(command: &mut Command, status: i32) -> (String, String) {
    let output = command.output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{command:?}: {errors}");
    (String::from_utf8(output.stdout).unwrap(), errors)
}

#[test]
fn who_comes_too_late_is_told_also_with_a_cursor_that_has_no_number() {
    let streams = Streams::new(&SMALL);
    ok(&mut streams.command("tail", &["--cursor", "@kept"]));
    succeeded(&streams.append(&[], b"first\n"));
    let cursor = streams.json("tail", &[])[0]["cursor"].clone();
    ok(&mut streams.command("tail", &["--cursor", "@kept"]));
    succeeded(&streams.append(&[], "a line of some length\n".repeat(20_000).as_bytes()));
    let oldest = streams.json("tail", &["--cursor", "0.0", "-n", "1"])[0]["seq"]
        .as_u64()
        .unwrap();
    assert!(oldest > 1);
    let tail = |cursor: &str| {
        let mut command = streams.command("tail", &["-n", "1", "--cursor", cursor]);
        let (records, errors) = said(&mut command, 0);
        assert_eq!(records, "a line of some length\n");
        errors
    };
    assert_eq!(
        tail("0.0"),
        "",
        "it is the oldest record, whichever that is"
    );
    let counted = grouped(oldest - 1);
    assert!(tail("@kept").contains(&format!("{counted} records deleted before they were read")));
    let cursor = cursor.as_str().unwrap();
    let errors = tail(cursor);
    let expected = format!(
        "--cursor {cursor}: the page at that cursor, and perhaps more, was deleted before it was read"
    );
    assert!(
        errors.contains(&expected) && errors.contains("is unknown"),
        "{errors}"
    );
}

#[test]
fn names_of_cursors_that_are_no_files_are_refused_before_anything_is_read() {
    let streams = Streams::new(&[]);
    succeeded(&streams.append(&[], b"a line\n"));
    for name in ["@.", "@..", "@", "@a/b"] {
        let (records, errors) = said(&mut streams.command("tail", &["--cursor", name]), 2);
        let expected = format!("--cursor {name}: a name of 1 to 64 letters");
        assert!(records.is_empty() && errors.contains(&expected), "{errors}");
    }
}

#[test]
fn readers_that_share_a_name_do_not_disturb_each_other() {
    let streams = Streams::new(&[]);
    succeeded(&streams.append(&[], b"a line\n"));
    for _ in 0..4 {
        let readers: Vec<_> = (0..12)
            .map(|_| {
                let mut command = streams.command("tail", &["--cursor", "@shared"]);
                command
                    .stdout(Stdio::null())
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        for reader in readers {
            succeeded(&reader.wait_with_output().unwrap());
        }
    }
    let consumers = &streams.json("list", &[])[0]["consumers"];
    assert_eq!(consumers.as_array().unwrap().len(), 1);
    assert_eq!(consumers[0]["lag"], 0);
    let files = fs::read_dir(streams.dir.join("cursors/events.stream")).unwrap();
    assert_eq!(files.count(), 1, "nothing is left over");
}

#[test]
fn a_time_to_come_is_waited_for() {
    for form in ["sealed", "linked"] {
        let streams = Streams::new(&["--record-form", form]);
        let begin = SystemTime::now() + Duration::from_secs(4);
        let since = begin.duration_since(UNIX_EPOCH).unwrap().as_secs() + 1;
        let begin = UNIX_EPOCH + Duration::from_secs(since);
        let since = since.to_string();
        let (records, errors) = said(&mut streams.command("tail", &["--since", &since]), 0);
        assert!(
            records.is_empty() && errors.contains("is in the future: there are no records yet")
        );
        let mut follower = streams.command("tail", &["--follow", "--since", &since]);
        let mut follower = follower
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut errors = BufReader::new(follower.stderr.take().unwrap()).lines();
        assert!(
            errors
                .next()
                .unwrap()
                .unwrap()
                .contains("waiting for records from that time on")
        );
        let mut appender = streams.appender(&[]);
        let mut stdin = appender.stdin.take().unwrap();
        let mut early = 0;
        // Times are to 10 ms, and one of linked records is that of its page, or when it is read; a line has the
        // time at which it is read from the pipe, on a busy machine some time after it was written.
        while SystemTime::now() < begin - Duration::from_millis(500) {
            writeln!(stdin, "early {early}").unwrap();
            early += 1;
            thread::sleep(Duration::from_millis(10));
        }
        while SystemTime::now() < begin + Duration::from_millis(10) {
            thread::yield_now();
        }
        writeln!(stdin, "late").unwrap();
        let mut records = BufReader::new(follower.stdout.take().unwrap()).lines();
        let first = records.next().unwrap().unwrap();
        match form {
            "sealed" => assert_eq!(first, "late"),
            _ => assert_ne!(first, "early 0"),
        }
        drop(stdin);
        succeeded(&appender.wait_with_output().unwrap());
        signal(&follower, "INT");
        assert!(follower.wait().unwrap().success());
    }
}

#[test]
fn what_cannot_be_kept_is_refused_and_the_default_is_what_can_be() {
    let few = ["--pages", "64B-64B-64KiB"];
    let streams = Streams::new(&few);
    assert_eq!(
        streams.json("list", &[])[0]["retain_bytes"],
        64 * (64 << 10)
    );
    let create = |name: &str, retain: &str| {
        let mut command = streams.command("create", &[name, "--retain", retain]);
        command.output().unwrap()
    };
    assert!(create("all", "4MiB").status.success());
    let usual = Streams::new(&["--retain", "1TiB"]);
    let mut beyond = usual.command("create", &["x", "--retain", "2TiB"]);
    assert!(refused(&mut beyond).contains("its page tables cannot list more pages"));
    for (retain, problem) in [
        ("5MiB", "holds at most 4.2 MB"),
        ("10gb", "--retain '10gb': write a size such as 10GB"),
        ("1.5GB", "Numbers are whole; units are kB, MB, GB, TB, KiB"),
        ("7days", "s, min, h, d and w for ages"),
        ("1MiB,", "--retain '': write a size"),
        ("0d", "--retain '0d': an age of 0 would keep nothing"),
        ("1MiB,0s", "--retain '0s': an age of 0 would keep nothing"),
        ("1MiB,2MiB", "at most one size and one age are allowed"),
    ] {
        let output = create("x", retain);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(2) && errors.contains(problem),
            "{errors}"
        );
    }
    assert!(create("spaced", "1MiB, 7d").status.success());
    let listed = streams.json("list", &[]);
    let spaced = listed
        .iter()
        .find(|stream| stream["name"] == "spaced")
        .unwrap();
    assert_eq!(
        (&spaced["retain_bytes"], &spaced["retain_s"]),
        (&(1 << 20).into(), &604_800.into())
    );
}

/// The advice is one that helps: the command that makes the directory, which the server can then serve.
#[test]
fn a_server_of_no_directory_of_streams_names_the_command_that_makes_one() {
    let folder = tempfile::TempDir::new().unwrap();
    let missing = folder.path().join("missing");
    for dir in [folder.path(), missing.as_path()] {
        for create in [&[][..], &["--create", "10GB,7d"]] {
            let mut serve = strata();
            serve.args(["stream", "serve"]).arg(dir).args(create);
            let (_, errors) = said(serve.args(["--listen", "127.0.0.1:0"]), 1);
            let advice = format!("`strata stream create {} NAME` makes one", dir.display());
            assert!(errors.contains(&advice), "{errors}");
        }
    }
    fs::write(folder.path().join("other"), "").unwrap();
    let mut create = strata();
    create
        .args(["stream", "create"])
        .arg(folder.path())
        .arg("events");
    let (_, errors) = said(&mut create, 1);
    assert!(
        errors.contains("holds other files: name a new or empty directory"),
        "{errors}"
    );
    ok(strata()
        .args(["stream", "create"])
        .arg(&missing)
        .arg("events"));
    ok(strata().args(["stream", "list"]).arg(&missing));
}

#[test]
fn times_that_are_none_are_refused() {
    let streams = Streams::new(&[]);
    for (since, problem) in [
        ("nonsense", "--since: 'nonsense' is not a time: write 13:05"),
        (
            "99999999999",
            "too large for seconds since 1970 (the largest is 18446744073, in the year 2554)",
        ),
        ("1790000000000", "is it in milliseconds?"),
        ("1950-01-01T00:00:00Z", "before 1970"),
    ] {
        let errors = refused(&mut streams.command("tail", &["--since", since]));
        assert!(errors.contains(problem), "{errors}");
    }
}

#[test]
fn a_file_that_cannot_be_read_hides_no_other_stream() {
    let streams = Streams::new(&[]);
    for name in ["damaged", "other"] {
        ok(&mut streams.command("create", &[name]));
    }
    ok(&mut streams.command("tail", &["--cursor", "@me"]));
    ok(&mut streams.command("tail", &["--cursor", "@you"]));
    fs::write(streams.dir.join("cursors/events.stream/me"), "").unwrap();
    fs::write(streams.dir.join("streams/damaged.stream"), "").unwrap();
    let (listed, errors) = said(&mut streams.command("list", &[]), 1);
    assert!(
        ["events", "@you", "other"]
            .iter()
            .all(|name| listed.contains(name)),
        "{listed}"
    );
    assert!(
        errors.contains("events.stream/me: not a saved cursor"),
        "{errors}"
    );
    assert!(
        errors.contains("damaged.stream") && errors.contains("2 files of"),
        "{errors}"
    );
    let (listed, _) = said(streams.command("list", &[]).arg("--json"), 1);
    let problems = listed.lines().filter(|line| line.contains("\"problem\":"));
    let problems: Vec<_> = problems.collect();
    assert_eq!(listed.lines().count(), 3);
    assert!(
        problems.len() == 1 && problems[0].contains("damaged.stream"),
        "{listed}"
    );
}

#[test]
fn an_unfinished_line_is_kept_when_appending_is_interrupted() {
    let streams = Streams::new(&[]);
    let mut appender = streams.appender(&[]);
    let mut stdin = appender.stdin.take().unwrap();
    stdin.write_all(b"whole\npartial").unwrap();
    streams.wait_for(1);
    signal(&appender, "INT");
    assert!(succeeded(&appender.wait_with_output().unwrap()).starts_with("2 records appended"));
    assert_eq!(streams.tail(&[]), "whole\npartial\n");
    drop(stdin);
}

#[test]
fn a_kept_cursor_stays_where_it_is_if_standard_output_is_closed() {
    let streams = Streams::new(&[]);
    succeeded(&streams.append(&[], b"a line\n"));
    let tail = |redirected: &str| {
        let mut command = Command::new("sh");
        let script = format!("exec \"$0\" stream tail \"$1\" events --cursor @me {redirected}");
        command
            .args(["-c", &script, env!("CARGO_BIN_EXE_strata")])
            .arg(&streams.dir);
        command
    };
    let (_, errors) = said(&mut tail(">&-"), 1);
    assert!(errors.contains("standard output is closed"), "{errors}");
    assert_eq!(said(&mut tail("> /dev/full"), 1).0, "");
    assert_eq!(said(&mut tail(""), 0).0, "a line\n", "it has not moved");
    succeeded(&streams.append(&[], b"another\n"));
    said(&mut tail("> /dev/null"), 0);
    assert_eq!(said(&mut tail(""), 0).0, "", "it was skipped, as asked");
}

#[test]
fn a_directory_that_may_not_be_read_is_not_taken_for_another() {
    let streams = Streams::new(&[]);
    let mode = |mode| fs::set_permissions(&streams.dir, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o000);
    for verb in ["list", "tail", "append", "check"] {
        let mut command = streams.command(verb, &[]);
        if rustix::process::geteuid().is_root() {
            command.uid(65_534).gid(65_534);
        }
        let (_, errors) = said(command.stdin(Stdio::null()), 1);
        assert!(errors.contains("Permission denied"), "{errors}");
    }
    mode(0o750);
    assert!(
        !strata()
            .args(["stream", "list"])
            .arg(&streams.dir)
            .output()
            .unwrap()
            .stdout
            .is_empty()
    );
}
