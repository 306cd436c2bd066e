//! Logs of other programs as records: JSON, entries of systemd's journal, and records found by a key.

use std::fs;

use serde_json::{Value, json};
use strata_testkit::workspace_root;

use crate::common::program::{failed, refused};
use crate::common::streams::{Streams, succeeded};

#[test]
fn lines_that_are_not_json_are_left_out_and_counted() {
    let streams = Streams::new(&[]);
    let input = b"{\"a\": 1}\nplain text\n[1]\n\n{\"a\": 2}";
    let output = streams.append(&["--format", "json"], input);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("2 lines left out: not JSON"), "{errors}");
    let lines = streams.tail(&[]);
    assert_eq!(lines, "{\"a\": 1}\n[1]\n{\"a\": 2}\n");
    let found = streams.tail(&["--cursor", "0.0", "--where", "a=2"]);
    assert_eq!(found, "{\"a\": 2}\n");
    let said = refused(&mut streams.command("tail", &["--where", "a=2"]));
    assert!(said.contains("--cursor 0.0 (for all)"), "{said}");
    let said = refused(&mut streams.command("tail", &["-n", "1", "--where", "a"]));
    assert!(said.contains("write KEY=VALUE"), "{said}");
}

/// An entry of the journal, with a value that is a line and one that is not.
fn entry(number: u32) -> Vec<u8> {
    let message = format!("line {number}\nand one more");
    let len = u64::try_from(message.len()).unwrap().to_le_bytes();
    let head = format!(
        "__REALTIME_TIMESTAMP={number}\n_SYSTEMD_UNIT=u{}.service\nMESSAGE\n",
        number % 3
    );
    [head.as_bytes(), &len, message.as_bytes(), b"\n\n"].concat()
}

#[test]
fn entries_of_the_journal_are_records_and_are_found_by_their_unit() {
    let streams = Streams::new(&[]);
    let export: Vec<u8> = (0..30_000).flat_map(entry).collect();
    succeeded(&streams.append(&["--format", "journald"], &export));
    let found = streams.tail(&["--cursor", "0.0", "--where", "_SYSTEMD_UNIT=u1.service"]);
    let found: Vec<Value> = found
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let expected = (0..30_000_u32)
        .filter(|number| number % 3 == 1)
        .map(|number| {
            json!({
                "__REALTIME_TIMESTAMP": number.to_string(),
                "_SYSTEMD_UNIT": "u1.service",
                "MESSAGE": format!("line {number}\nand one more"),
            })
        });
    assert!(found.into_iter().eq(expected));
    // What is cut is no entry; those before it are there.
    let streams = Streams::new(&[]);
    let cut = [entry(1), entry(2)[..60].to_vec()].concat();
    let output = streams.append(&["--format", "journald"], &cut);
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("is cut short"), "{errors}");
    assert_eq!(streams.tail(&[]).lines().count(), 1);
    let output = streams.append(&["--format", "journald"], b"no export\nat all\n");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("is this from journalctl -o export?"),
        "{errors}"
    );
}

#[test]
fn an_entry_of_the_journal_that_is_too_long_does_not_end_the_input() {
    let streams = Streams::new(&[]);
    let len = 20_u64 << 20;
    let core = vec![0xff; usize::try_from(len).unwrap()];
    let long = [
        &b"COREDUMP\n"[..],
        &len.to_le_bytes(),
        &core,
        b"\nPRIORITY=2\n\n",
    ]
    .concat();
    let line = [&b"MESSAGE="[..], &b"x".repeat(2 << 20), b"\n\n"].concat();
    let export = [entry(1), long.clone(), entry(2), line, entry(3)].concat();
    let output = streams.append(&["--format", "journald"], &export);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("2 records left out: too long"), "{errors}");
    let records = streams.tail(&[]);
    let numbers = records.lines().map(|line| {
        let record: Value = serde_json::from_str(line).unwrap();
        record["__REALTIME_TIMESTAMP"].clone()
    });
    assert!(numbers.eq(["1", "2", "3"]), "{records}");
    // One that does not end is no entry.
    let output = streams.append(&["--format", "journald"], &long[..5 << 20]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("is cut short"), "{errors}");
}

/// Nothing of a refused request stays: neither the directory, nor an empty one where a disk should be mounted.
#[test]
fn a_refused_stripe_leaves_no_directory() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, stripe) = (folder.path().join("new"), folder.path().join("stripe"));
    let create = |name: &str, options: &[&str]| {
        let mut command = crate::common::program::strata();
        command.args(["stream", "create"]).arg(&dir).arg(name);
        command.args(options);
        command
    };
    let text = stripe.display().to_string();
    let other = workspace_root().display().to_string();
    let said = failed(&mut create("events", &["--stripe", &other]));
    assert!(said.contains("it is not empty"), "{said}");
    assert!(!dir.exists());
    refused(&mut create("events", &["--retain", "1kB"]));
    assert!(!dir.exists());
    assert!(
        create("events", &["--stripe", &text])
            .status()
            .unwrap()
            .success()
    );
    fs::remove_dir_all(&stripe).unwrap();
    let said = failed(&mut create("more", &["--stripe", &text]));
    assert!(said.contains("is its disk mounted?"), "{said}");
    assert!(!stripe.exists() && dir.exists());
    // Only streams that have pages there miss records.
    fs::remove_dir_all(&dir).unwrap();
    let pages = ["--pages", "4KiB-4KiB-64KiB", "--stripe", &text];
    assert!(create("full", &pages).status().unwrap().success());
    assert!(create("empty", &[]).status().unwrap().success());
    let mut append = crate::common::program::strata();
    append.args(["stream", "append"]).arg(&dir).arg("full");
    let lines = folder.path().join("lines");
    fs::write(&lines, "a line of some length\n".repeat(20_000)).unwrap();
    append.stdin(fs::File::open(&lines).unwrap());
    assert!(append.output().unwrap().status.success());
    fs::remove_dir_all(&stripe).unwrap();
    let mut check = crate::common::program::strata();
    let said = failed(check.args(["stream", "check"]).arg(&dir));
    assert!(said.contains("1 stream of "), "{said}");
}
