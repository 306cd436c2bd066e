//! `--json`: what commands print for other programs is what `docs/json.md` says.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use strata_testkit::{data_dir, workspace_root};

use crate::common::program::{ok, record, refused, strata};
use crate::common::recording::wait_for;

/// The fields that the page lists for a command.
fn documented(command: &str) -> BTreeSet<String> {
    let page = fs::read_to_string(workspace_root().join("docs/json.md")).unwrap();
    let heading = format!("\n## strata {command}\n");
    let (_, section) = page.split_once(&heading).expect("a section on the command");
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split('`').next().unwrap().to_owned())
        .collect()
}

/// The fields of a value: below those of which the page lists what is in them, too.
fn fields(value: &Value, above: &str, listed: &BTreeSet<String>, all: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items
            .iter()
            .for_each(|item| fields(item, above, listed, all)),
        Value::Object(members) => {
            for (name, value) in members {
                let name = format!("{above}{name}");
                let below = format!("{name}.");
                if listed.iter().any(|other| other.starts_with(&below)) {
                    fields(value, &below, listed, all);
                }
                all.insert(name);
            }
        }
        _ => (),
    }
}

/// The JSON that a command prints, which has the fields of its page.
fn checked(command: &str, text: &str) -> Value {
    let value: Value = serde_json::from_str(text).unwrap();
    let (listed, mut there) = (documented(command), BTreeSet::new());
    fields(&value, "", &listed, &mut there);
    assert_eq!(there, listed, "fields of strata {command}");
    value
}

/// The JSON of a command that succeeds.
fn result(command: &str, arguments: &[&str]) -> Value {
    let mut line = strata();
    line.args(command.split(' ')).args(arguments).arg("--json");
    checked(command, &ok(&mut line))
}

/// The JSON of a command that ends with exit status 1, and what it says.
fn failed(command: &str, arguments: &[&str]) -> (Value, String) {
    let mut line = strata();
    line.args(command.split(' ')).args(arguments).arg("--json");
    let output = line.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{line:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (checked(command, &text), said)
}

fn mix() -> PathBuf {
    data_dir().join("labelled/mix-test/trace.pcap")
}

/// Whether a result says that it is complete.
fn is_complete(result: &Value) -> bool {
    assert_eq!(result["problem"].is_null(), result["complete"] == true);
    result["complete"] == true
}

#[test]
fn a_log_from_end_to_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (log, elsewhere) = (path("log"), format!("file://{}", path("elsewhere")));
    ok(&mut record(mix(), &log));

    let (first, second) = (path("first.key"), path("second.key"));
    let new = result("key new", &[&first]);
    assert_eq!(new["file"], json!(first));
    let public = new["public_keys"][0].as_str().unwrap();
    assert!(public.starts_with("age1"), "{public}");
    let next = result("key new", &[&second]);
    let next = next["public_keys"][0].as_str().unwrap();

    let age = ["--keep", "36500d", "--move-to", &elsewhere];
    let arguments = [&[&log, "--encrypt-to", public], &age[..]].concat();
    let done = result("compact", &arguments);
    assert!(is_complete(&done), "{done}");
    let compacted = &done["compacted"];
    assert_eq!(
        (&compacted["files"], &compacted["packets"]),
        (&json!(1), &json!(67_690))
    );
    let pruned: Vec<&String> = done["pruned"].as_object().unwrap().keys().collect();
    let listed = documented("prune");
    assert_eq!(pruned.into_iter().cloned().collect::<BTreeSet<_>>(), listed);
    assert_eq!(done["moved"]["packets"], json!(67_690));
    let again = result("compact", &arguments);
    assert_eq!(again["compacted"]["files"], 0);
    let mut endless = strata();
    endless.args(["compact", &log, "--json", "--every", "1s"]);
    assert_eq!(endless.output().unwrap().status.code(), Some(2));

    let parts = &done["moved"]["parts"];
    let rotated = result("key rotate", &[&log, "--old", &first, "--new", next]);
    assert_eq!(rotated, json!({"parts": parts, "public_keys": [next]}));
    let moved = result("move", &[&log, "--back"]);
    assert!(is_complete(&moved));
    assert_eq!(
        (&moved["parts"], &moved["packets"]),
        (parts, &json!(67_690))
    );

    let verified = result("verify", &[&log]);
    assert!(is_complete(&verified) && verified["not_decrypted"] != 0);
    let verified = result("verify", &[&log, "--key", &second]);
    assert!(is_complete(&verified) && verified["not_decrypted"] == 0);

    let out = path("out.pcapng");
    let exported = result("export", &[&log, "--key", &second, "-w", &out]);
    assert!(is_complete(&exported));
    assert_eq!(exported["packets"], json!(67_690));
    assert!(exported["flows"].is_null());
    let out = path("out.csv");
    let exported = result("export", &[&log, "--key", &second, "-w", &out]);
    let lines = fs::read_to_string(&out).unwrap().lines().count();
    assert_eq!(exported["records"], json!(lines - 1), "but for the header");
    assert!(exported["packets"].is_null() && exported["too_long"] == 0);
    let both = refused(strata().args(["export", &log, "-w", "-", "--json"]));
    assert!(both.contains("standard output"), "{both}");

    let would = result("prune", &[&log, "--keep", "1d", "--dry-run"]);
    assert_eq!(
        (&would["parts"], &would["needs_yes"]),
        (parts, &json!(true))
    );
    assert_eq!(result("interfaces", &["lo"])[0]["loopback"], true);
    assert!(result("config show", &[])["file"].is_null());
    assert_eq!(result("info", &[&log])[0]["in_log"]["packets"], 67_690);

    let other = path("other");
    ok(&mut record(
        data_dir().join("labelled/cic2017-sqli/trace.pcap"),
        &other,
    ));
    let both = ok(strata().args(["info", &log, &other, "--json"]));
    let both: Value = serde_json::from_str(&both).unwrap();
    let told = both.as_array().unwrap().iter();
    let told = told.map(|one| (one["log"].as_str().unwrap(), &one["in_log"]["packets"]));
    assert!(
        told.eq([(&*log, &json!(67_690)), (&*other, &json!(94))]),
        "{both}"
    );
    let both = ok(strata().args(["info", &log, &other]));
    assert!(both.starts_with(&format!("{log}:\n")) && both.contains(&format!("\n{other}:\n")));
    refused(strata().args(["info", &log, &log]));
    let top = result("top", &[&log, "--key", &second]);
    assert_eq!(top["total"]["packets"], 67_690);
}

/// Overwrites a byte of the only block file in the middle.
fn damage(log: &Path) {
    let blocks = fs::read_dir(log.join("blocks")).unwrap();
    let mut blocks = blocks.map(|entry| entry.unwrap().path());
    let file = blocks.find(|path| path.extension().is_some_and(|e| e == "strata"));
    let file = file.unwrap();
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).unwrap();
}

#[test]
fn totals_of_a_damaged_log_are_not_complete() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(mix(), &log));
    damage(&log);
    let log = log.to_str().unwrap();
    let out = dir.path().join("out.pcap");
    for (command, arguments) in [
        ("verify", &[log][..]),
        ("export", &[log, "-w", out.to_str().unwrap()]),
        ("top", &[log]),
    ] {
        let (answer, said) = failed(command, arguments);
        assert!(!is_complete(&answer), "{command}: {answer}");
        let packets = answer["packets"]
            .as_u64()
            .or(answer["total"]["packets"].as_u64());
        assert!(packets.unwrap() < 67_690);
        let problem = answer["problem"].as_str().unwrap();
        assert!(said.contains(problem), "{command}: {said}");
    }
    let output = strata().args(["compact", log, "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(!is_complete(&answer));
    let compacted = &answer["compacted"];
    assert_eq!(compacted["damage"].as_array().unwrap().len(), 1, "{answer}");
    assert_eq!(
        (&compacted["files"], &answer["pruned"]),
        (&json!(0), &Value::Null)
    );
}

#[test]
fn flows_in_a_stream() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(mix(), &log));
    let stream = dir
        .path()
        .join("streams/flows")
        .to_str()
        .unwrap()
        .to_owned();
    let (streams, name) = stream.rsplit_once('/').unwrap();
    ok(strata().args(["stream", "create", streams, name]));
    let exported = result("export", &[log.to_str().unwrap(), "--to-stream", &stream]);
    assert!(is_complete(&exported));
    let mut tail = strata();
    tail.args(["stream", "tail", streams, name, "--json", "-n", "100000"]);
    let tailed = ok(&mut tail);
    assert_eq!(exported["flows"], json!(tailed.lines().count()));
}

#[test]
fn changes_of_a_running_recording() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("control.sock");
    let mut recording = Command::new(env!("CARGO_BIN_EXE_strata"));
    recording.args(["record", "-r", "-", "-o"]);
    recording.arg(dir.path().join("log"));
    recording.arg("--socket").arg(&socket);
    recording.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut recording = recording.spawn().unwrap();
    let mut stdin = recording.stdin.take().unwrap();
    let packets = fs::read(mix()).unwrap();
    std::io::Write::write_all(&mut stdin, &packets).unwrap();
    wait_for(&socket, "it answers", |_| true);
    let at = ["--socket", socket.to_str().unwrap()];
    let result = |command: &str, arguments: &[&str]| result(command, &[arguments, &at].concat());

    let mode = result("mode set", &["log-all"]);
    assert_eq!(mode, json!({"mode": "log-all", "asked_mode": "log-all"}));
    let detail = result("detail", &["5%"]);
    assert_eq!(detail, json!({"detail": "5%", "asked_detail": "5%"}));
    let detail = result("detail", &["none"]);
    assert_eq!(detail, json!({"detail": "none", "asked_detail": "none"}));
    let added = result("policy add", &["--action", "full", "udp"]);
    let listed = result("policy list", &[]);
    assert_eq!(
        (&listed[0]["id"], &listed[0]["match"]),
        (&added["id"], &json!("udp"))
    );
    let id = added["id"].to_string();
    assert_eq!(result("policy remove", &[&id]), added);
    assert_eq!(result("rotate", &[]), json!({"rotated": true}));
    drop(stdin);
    assert!(recording.wait().unwrap().success());
}
