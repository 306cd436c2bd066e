//! Vectors in directories and streams, at rest and as they come; rows into streams; targets that come and go.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Stdio};
use std::time::Duration;

use serde_json::Value;
use strata_gpv::format::datagram::Datagram;
use strata_gpv::{Full, Vector};

use super::{gpv, json, labelled, says, strata};
use crate::common::naive::{FILTER, dissected, naive};
use crate::common::program::ok;
use crate::common::signal::signal;

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

/// A command that captures packets to a port of this machine.
fn until_it_says(errors: &mut BufReader<ChildStderr>, what: &str) {
    let mut line = String::new();
    while !line.contains(what) {
        line.clear();
        assert!(errors.read_line(&mut line).unwrap() > 0, "not {what}");
    }
}

/// The first number, and the number of packets, of the datagrams that come until one has vectors.
fn received(receiver: &UdpSocket) -> (u64, usize) {
    let mut bytes = vec![0; 65_536];
    loop {
        let len = receiver.recv(&mut bytes).unwrap();
        let datagram = Datagram::new_checked(&bytes[..len]).unwrap();
        let mut packets = 0;
        let count = |vector: &Vector<'_, Full>| packets += vector.tuples().count();
        datagram.for_each(&mut Vec::new(), count).unwrap();
        if packets > 0 {
            return (datagram.first_seq, packets);
        }
    }
}

#[test]
fn targets_are_added_and_removed_while_vectors_are_sent() {
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("targets.txt");
    fs::write(&list, "# none yet\n").unwrap();
    let [receiver, sender, target] = [(); 3].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    receiver
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let at = target.local_addr().unwrap();
    let mut run = gpv(&[
        "run",
        "-i",
        "lo",
        "--flush-after",
        "1s",
        "--json",
        "--targets",
    ]);
    run.arg(&list).arg(format!("udp dst port {}", at.port()));
    run.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = run.spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    until_it_says(&mut errors, "grouping packets of lo");
    let to = format!("{},proto=udp", receiver.local_addr().unwrap());
    let change = |what: &str| gpv(&["target", what, list.to_str().unwrap(), &to]);
    let mut vectors = 0;
    for round in 0..2 {
        ok(&mut change("add"));
        until_it_says(&mut errors, &format!("sending vectors to {to}"));
        sender.send_to(&[7; 100], at).unwrap();
        let (first, packets) = received(&receiver);
        assert_eq!((first, packets), (vectors, 1), "round {round}");
        vectors += 1;
        let said = ok(&mut gpv(&["target", "list", list.to_str().unwrap()]));
        assert_eq!(said, format!("{to}\n"));
        ok(&mut change("remove"));
        until_it_says(&mut errors, &format!("no longer sending vectors to {to}"));
    }
    // Of no interest to anyone.
    sender.send_to(&[7; 100], at).unwrap();
    // A line that is wrong changes nothing.
    fs::write(&list, "collector:4739\n").unwrap();
    until_it_says(&mut errors, "is not ADDRESS:PORT");
    signal(&child, "INT");
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let counts: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(counts["destinations"][0]["vectors"], vectors, "{counts}");
    assert!(fs::read_to_string(&list).unwrap().starts_with("collector"));

    let said = says(&mut change("remove"), 2);
    assert!(said.contains("has no target"), "{said}");
}
