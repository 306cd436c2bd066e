//! Vectors in directories and streams, at rest and as they come; rows into streams.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use super::{gpv, json, labelled, says, strata};
use crate::common::naive::{FILTER, dissected, naive};
use crate::common::program::ok;

const QUERY: &str = "byte-counts-per-flow";
const TRACES: [&str; 2] = ["ad-attacks", "cic2017-sqli"];

/// The rows of a CSV answer.
fn rows(csv: &str) -> BTreeSet<String> {
    csv.lines().skip(1).map(str::to_owned).collect()
}

/// What a naive program says of both captures.
fn expected() -> BTreeSet<String> {
    let packets = TRACES.map(|trace| dissected(&labelled(trace)));
    naive(QUERY, &packets.into_iter().flatten().collect::<Vec<_>>())
}

/// Groups the packets of a capture with these options; the counts.
fn run(trace: &str, options: &[&str], to: &Path) -> Value {
    let mut run = gpv(&["run", "-r"]);
    run.arg(labelled(trace)).args(options).arg(to);
    json(run.arg(FILTER))
}

fn stream(folder: &Path, name: &str) -> PathBuf {
    let dir = folder.join("streams");
    ok(strata().args(["stream", "create"]).arg(&dir).arg(name));
    dir.join(name)
}

/// The source as an argument names it.
fn url(stream: &Path) -> String {
    format!("stream://{}", stream.display())
}

fn ask(from: &str) -> std::process::Command {
    let mut ask = strata();
    ask.args(["ask", "--vectors", from, QUERY, "-F", "csv"]);
    ask
}

/// Files that follow one another, and those of another run that follow them.
#[test]
fn a_directory_is_read_as_one() {
    let dir = tempfile::tempdir().unwrap();
    let vectors = dir.path().join("vectors");
    fs::create_dir(&vectors).unwrap();
    for (trace, name) in TRACES.iter().zip(["z.gpv", "a.gpv"]) {
        run(trace, &["-C", "16KiB", "-w"], &vectors.join(name));
    }
    assert!(fs::read_dir(&vectors).unwrap().count() > 4);
    let from = vectors.to_str().unwrap();
    assert_eq!(rows(&ok(&mut ask(from))), expected());
    let profiled = ok(&mut gpv(&["profile", from, "-F", "csv"]));
    let sources: BTreeSet<String> = TRACES
        .iter()
        .flat_map(|trace| dissected(&labelled(trace)))
        .map(|packet| packet.source)
        .collect();
    let hosts = profiled.lines().skip(1);
    let hosts = hosts.map(|line| line.split(',').nth(1).unwrap().to_owned());
    assert_eq!(hosts.collect::<BTreeSet<_>>(), sources);
    let agent = json(&mut gpv(&["agent", "-r", from]));
    assert_eq!((&agent["lost"], &agent["stale"]), (&0.into(), &0.into()));
    assert_eq!(agent["unended"], 0);

    // Something else in it is refused, with its name.
    fs::write(
        vectors.join("notes.txt"),
        "vectors of two captures, in several files",
    )
    .unwrap();
    let said = says(&mut ask(from), 1);
    assert!(
        said.contains("notes.txt: not valid strata vectors"),
        "{said}"
    );
    fs::write(vectors.join("notes.txt"), "").unwrap();
    let said = says(&mut ask(from), 1);
    assert!(said.contains("notes.txt: the file is empty"), "{said}");
    let said = says(ask("/dev/null").arg("--follow"), 2);
    assert!(said.contains("only to a directory or a stream"), "{said}");
}

#[test]
fn files_are_read_as_they_come() {
    let dir = tempfile::tempdir().unwrap();
    let vectors = dir.path().join("vectors");
    fs::create_dir(&vectors).unwrap();
    let first = run(TRACES[0], &["-w"], &vectors.join("1.gpv"));
    let other = dir.path().join("2.gpv");
    let second = run(TRACES[1], &["-w"], &other);
    let count = |counts: &Value| counts["packets_in_vectors"].as_u64().unwrap();
    let packets = (count(&first) + count(&second)).to_string();
    let mut ask = ask(vectors.to_str().unwrap());
    ask.args(["--follow", "-c", &packets])
        .stdout(Stdio::piped());
    let child = ask.spawn().unwrap();
    fs::rename(&other, vectors.join("2.gpv")).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(rows(&String::from_utf8(output.stdout).unwrap()), expected());
}

#[test]
fn streams_are_read_and_rows_go_into_streams() {
    let dir = tempfile::tempdir().unwrap();
    let vectors = stream(dir.path(), "vectors");
    let file = dir.path().join("vectors.gpv");
    // As they come: until all packets of both captures have come.
    let packets: usize = TRACES
        .map(|trace| dissected(&labelled(trace)).len())
        .iter()
        .sum();
    let mut live = ask(&url(&vectors));
    live.args(["--follow", "-c", &packets.to_string()]);
    let live = live.stdout(Stdio::piped()).spawn().unwrap();
    for trace in TRACES {
        let file = file.to_str().unwrap();
        run(trace, &["-w", file, "--to-stream"], &vectors);
    }
    let output = live.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    // Packets that tshark does not count are of the filter, too: fragments.
    assert!(rows(&text).len() > 10, "{text}");
    // At rest.
    assert_eq!(rows(&ok(&mut ask(&url(&vectors)))), expected());

    // Rows of an application and of a query, the same as in a file.
    let profiles = stream(dir.path(), "profiles");
    let file = file.to_str().unwrap();
    let lines = ok(&mut gpv(&["profile", file, "-F", "json"]));
    ok(gpv(&["profile", file, "--to-stream"]).arg(&profiles));
    assert_eq!(tail(&profiles), lines);
    let answers = stream(dir.path(), "answers");
    let mut json = strata();
    let lines = ok(json.args(["ask", "--vectors", file, QUERY, "-F", "json"]));
    let mut appended = strata();
    appended.args(["ask", "--vectors", file, QUERY, "--to-stream"]);
    ok(appended.arg(&answers));
    assert_eq!(tail(&answers), lines);

    let said = says(&mut ask(&url(&dir.path().join("streams/none"))), 1);
    assert!(said.contains("none"), "{said}");
}

/// The records of a stream, one a line.
fn tail(stream: &Path) -> String {
    let mut tail = strata();
    tail.args(["stream", "tail"]).arg(stream.parent().unwrap());
    ok(tail
        .arg(stream.file_name().unwrap())
        .args(["--cursor", "0.0"]))
}
