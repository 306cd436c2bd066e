//! Files of limited size or time.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::{Flows, expected, gpv, json, labelled, says, unnested};
use crate::common::program::ok;

const FILTER: &str = "tcp or udp";

/// Names of the files in a directory.
fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    names.collect()
}

#[test]
fn files_of_limited_size_hold_together_what_one_would() {
    let dir = tempfile::tempdir().unwrap();
    let trace = labelled("ad-attacks");
    let expected = expected(&trace);
    let vectors = dir.path().join("vectors");
    fs::create_dir(&vectors).unwrap();
    let mut run = gpv(&["run", "-C", "16KiB", "-w"]);
    run.arg(vectors.join("v.gpv")).arg("-r").arg(&trace);
    let counts = json(run.arg(FILTER));
    let count = names(&vectors).len();
    assert!(count > 2, "{:?}", names(&vectors));
    let name = |number| match number {
        0 => vectors.join("v.gpv"),
        number => vectors.join(format!("v.{number}.gpv")),
    };
    let files: Vec<PathBuf> = (0..count).map(name).collect();
    let mut whole = Vec::new();
    for file in &files {
        let bytes = fs::read(file).unwrap();
        // A datagram more than the limit.
        assert!(bytes.len() <= 16 * 1024 + 1452, "{}", bytes.len());
        whole.extend(bytes);
        // Each can be read by itself, and is not missing those before it.
        let got = json(gpv(&["agent", "-r"]).arg(file));
        assert_eq!((&got["lost"], &got["damaged"]), (&0.into(), &0.into()));
    }
    let all = dir.path().join("all.gpv");
    fs::write(&all, whole).unwrap();
    let records = dir.path().join("records");
    fs::create_dir(&records).unwrap();
    let mut agent = gpv(&["agent", "--packets-max", "8", "-C", "10KiB", "-r"]);
    agent.arg(&all).arg("-w").arg(records.join("r.parquet"));
    let got = json(&mut agent);
    assert_eq!(
        (&got["vectors"], &got["lost"]),
        (&counts["vectors"], &0.into())
    );
    let count = names(&records).len();
    assert!(count > 1, "{:?}", names(&records));
    let mut flows = Flows::new();
    for number in 0..count {
        let name = match number {
            0 => String::from("r.parquet"),
            number => format!("r.{number}.parquet"),
        };
        let (of_file, _) = unnested(&records.join(name));
        for (flow, packets) in of_file {
            flows.entry(flow).or_default().extend(packets);
        }
    }
    assert_eq!(flows, expected);
}

#[test]
fn of_a_ring_of_files_the_last_ones_are_left() {
    let dir = tempfile::tempdir().unwrap();
    let trace = labelled("ad-attacks");
    let files = dir.path().join("files");
    fs::create_dir(&files).unwrap();
    let mut run = gpv(&["run", "-C", "16KiB", "-W", "2", "-w"]);
    ok(run
        .arg(files.join("v.gpv"))
        .arg("-r")
        .arg(&trace)
        .arg(FILTER));
    let wanted = ["v.0.gpv", "v.1.gpv"].map(str::to_owned);
    assert_eq!(names(&files), BTreeSet::from(wanted));
    let whole = expected(&trace);
    for name in names(&files) {
        let to = dir.path().join("to.parquet");
        let mut agent = gpv(&["agent", "-r"]);
        let got = json(agent.arg(files.join(name)).arg("-w").arg(&to));
        assert_eq!(got["lost"], 0, "{got}");
        for (flow, packets) in unnested(&to).0 {
            let mut all = whole[&flow].iter();
            assert!(packets.iter().all(|packet| all.any(|sent| sent == packet)));
        }
    }
}

#[test]
fn files_of_limited_time_end_after_the_given_number() {
    let dir = tempfile::tempdir().unwrap();
    let target = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = target.local_addr().unwrap();
    let mut run = gpv(&["run", "-i", "lo", "-G", "1", "-W", "2", "-w"]);
    run.arg(dir.path().join("v-%Y%m%d-%H%M%S.gpv"));
    run.args(["--flush-after", "1s"]);
    run.arg(format!("udp dst port {}", at.port()));
    run.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = run.spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("grouping packets of lo") {
        line.clear();
        assert!(errors.read_line(&mut line).unwrap() > 0, "{line}");
    }
    let end = Instant::now() + Duration::from_secs(60);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < end, "it goes on");
        sender.send_to(&[7; 100], at).unwrap();
        std::thread::yield_now();
    };
    assert!(status.success());
    let names = names(dir.path());
    assert_eq!(names.len(), 2, "{names:?}");
    for name in names {
        let got = json(gpv(&["agent", "-r"]).arg(dir.path().join(name)));
        assert!(got["packets"].as_u64().unwrap() > 0, "{got}");
        assert_eq!((&got["lost"], &got["damaged"]), (&0.into(), &0.into()));
    }
}

#[test]
fn a_rotation_that_makes_no_sense_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (trace, path) = (labelled("ad-attacks"), dir.path().join("v.gpv"));
    for (words, problem) in [
        (&["-G", "5"][..], "needs a time in its name"),
        (&["-W", "5"], "-W"),
        (&["-C", "0"], "-C must be above 0"),
    ] {
        for who in ["run", "agent"] {
            let mut command = gpv(&[who]);
            command
                .args(words)
                .arg("-w")
                .arg(&path)
                .arg("-r")
                .arg(&trace);
            let said = says(&mut command, 2);
            assert!(said.contains(problem), "{said}");
        }
    }
    assert!(!path.exists());
}
