//! Vectors in a ring in shared memory, and what agents ask caches for.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_gpv::format::datagram::Datagram;
use strata_gpv::{Full, Vector};

use super::{expected, gpv, json, labelled, says, unnested};
use crate::common::signal::signal;

const FILTER: &str = "tcp or udp";

/// Waits for a line of a program that runs.
fn until_it_says(errors: &mut impl BufRead, what: &str) -> String {
    let mut line = String::new();
    while !line.contains(what) {
        line.clear();
        assert!(errors.read_line(&mut line).unwrap() > 0, "not {what}");
    }
    line
}

/// An agent that reads a ring.
fn agent(ring: &Path, to: &Path) -> (Child, BufReader<std::process::ChildStderr>) {
    let mut command = gpv(&["agent", "--json", "--ring"]);
    command.arg(ring).arg("-w").arg(to);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    until_it_says(&mut errors, "reading the ring");
    (child, errors)
}

fn counts(child: Child) -> Value {
    counts_if(child, 0)
}

/// The counts of an agent that ends with this status.
fn counts_if(child: Child, status: i32) -> Value {
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(status));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_ring_that_has_ended_is_read_from_its_oldest_vector_on() {
    let dir = tempfile::tempdir().unwrap();
    let (trace, ring) = (labelled("ad-attacks"), dir.path().join("ring"));
    let expected = expected(&trace);
    for (size, has_room) in [("1MiB", true), ("64KiB", false)] {
        let mut run = gpv(&[
            "run",
            "--ring-size",
            size,
            "--datagram-max",
            "1452",
            "--ring",
        ]);
        let run = json(run.arg(&ring).arg("-r").arg(&trace).arg(FILTER));
        let file = dir.path().join(size);
        let got = json(gpv(&["agent", "--ring"]).arg(&ring).arg("-w").arg(&file));
        assert_eq!(got["overwritten"], 0, "{got}");
        assert_eq!((&got["lost"], &got["damaged"]), (&0.into(), &0.into()));
        let number = |of: &Value| of.as_u64().unwrap();
        let held = number(&got["vectors"]) + number(&got["before"]);
        assert_eq!(held, number(&run["vectors"]), "{got}");
        let (flows, _) = unnested(&file);
        match has_room {
            true => assert_eq!(flows, expected),
            false => assert!(number(&got["before"]) > 0 && !flows.is_empty(), "{got}"),
        }
    }
}

/// The capture comes from a pipe, so that the agent is there while it is grouped.
#[test]
fn an_agent_takes_vectors_from_a_ring_while_they_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let (trace, ring) = (labelled("ad-attacks"), dir.path().join("ring"));
    let bytes = fs::read(&trace).unwrap();
    let (first, rest) = bytes.split_at(bytes.len() / 3);
    for is_killed in [false, true] {
        let mut run = gpv(&["run", "-r", "-", "--ring-size", "64KiB", "--ring"]);
        run.arg(&ring).arg(FILTER).stdin(Stdio::piped());
        let mut run = run.stdout(Stdio::null()).spawn().unwrap();
        let mut input = run.stdin.take().unwrap();
        let before = fs::metadata(&ring).map(|of| of.modified().unwrap());
        input.write_all(first).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while fs::metadata(&ring).map(|of| of.modified().unwrap()).ok()
            == before.as_ref().ok().copied()
        {
            assert!(Instant::now() < end, "no ring");
            std::thread::yield_now();
        }
        let file = dir.path().join(format!("{is_killed}.parquet"));
        let (agent, mut errors) = agent(&ring, &file);
        if is_killed {
            run.kill().unwrap();
            run.wait().unwrap();
            until_it_says(&mut errors, "ended without marking the end of the ring");
            assert_eq!(counts_if(agent, 1)["unended"], 1);
            continue;
        }
        input.write_all(rest).unwrap();
        drop(input);
        assert!(run.wait().unwrap().success());
        let got = counts(agent);
        let (flows, _) = unnested(&file);
        let packets: usize = flows.values().map(Vec::len).sum();
        assert_eq!(got["packets"], packets);
        // What the agent was too slow for is counted, and nothing else is missing.
        if got["overwritten"] == 0 && got["before"] == 0 {
            assert_eq!(got["lost"], 0, "{got}");
            assert_eq!(flows, expected(&trace));
        }
        let mut said = String::new();
        errors.read_to_string(&mut said).unwrap();
        assert!(!said.contains("gone"), "{said}");
    }
}

#[test]
fn what_is_no_ring_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (trace, path) = (labelled("ad-attacks"), dir.path().join("diary"));
    let said = says(gpv(&["agent", "--ring"]).arg(&path), 1);
    assert!(said.contains("strata gpv run --ring makes"), "{said}");
    fs::write(&path, "Monday").unwrap();
    let said = says(gpv(&["agent", "--ring"]).arg(&path), 1);
    assert!(said.contains("not a ring of vectors"), "{said}");
    let said = says(gpv(&["run", "--ring"]).arg(&path).arg("-r").arg(&trace), 2);
    assert!(said.contains("name another file with --ring"), "{said}");
    assert_eq!(fs::read(&path).unwrap(), b"Monday");
    let mut small = gpv(&["run", "--ring-size", "1k", "--ring"]);
    let said = says(small.arg(dir.path().join("x")).arg("-r").arg(&trace), 2);
    assert!(said.contains("64 KiB"), "{said}");
    let idle = ["agent", "--ring", "x", "--flush-idle", "1s"];
    assert!(says(&mut gpv(&idle), 2).contains("--listen"));
    let idle = [
        "agent",
        "--listen",
        "127.0.0.1:0",
        "--flush-idle",
        "1s",
        "-F",
        "paper",
    ];
    assert!(says(&mut gpv(&idle), 2).contains("--flush-idle needs -F strata"));
    let idle = ["agent", "--listen", "127.0.0.1:0", "--flush-idle", "0s"];
    assert!(says(&mut gpv(&idle), 2).contains("at least 1s"));
}

/// The cache by itself would keep the flow: it has time and room.
#[test]
fn an_agent_asks_a_cache_for_slots_that_gave_nothing_for_long() {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = receiver.local_addr().unwrap().to_string();
    let port = target.local_addr().unwrap().port();
    let mut agent = gpv(&["agent", "--listen", "127.0.0.1:0", "--flush-idle", "1s"]);
    agent.args(["--interval", "1s", "--json", "--send-to", &to]);
    agent.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut agent = agent.spawn().unwrap();
    let mut of_agent = BufReader::new(agent.stderr.take().unwrap());
    let line = until_it_says(&mut of_agent, "listening on");
    let at = line.trim().rsplit(' ').next().unwrap();
    let mut run = gpv(&[
        "run",
        "-i",
        "lo",
        "--send-to",
        at,
        "--flush-after",
        "0s",
        "--json",
    ]);
    run.arg(format!("udp dst port {port}"));
    run.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = run.spawn().unwrap();
    let mut of_run = BufReader::new(run.stderr.take().unwrap());
    until_it_says(&mut of_run, "grouping packets of lo");
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..3 {
        let at = target.local_addr().unwrap();
        sender.send_to(&[7; 100], at).unwrap();
    }
    receiver
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let (mut bytes, mut packets) = (vec![0; 65_536], 0);
    while packets < 3 {
        let len = receiver.recv(&mut bytes).unwrap();
        let datagram = Datagram::new_checked(&bytes[..len]).unwrap();
        let count = |vector: &Vector<'_, Full>| packets += vector.tuples().count();
        datagram.for_each(&mut Vec::new(), count).unwrap();
    }
    signal(&run, "INT");
    let run = counts(run);
    assert!(run["slots_asked_for"].as_u64().unwrap() > 0, "{run}");
    assert!(run["left"]["flushed"].as_u64().unwrap() > 0, "{run}");
    signal(&agent, "INT");
    let agent = counts(agent);
    assert!(agent["requests"].as_u64().unwrap() > 0, "{agent}");
    assert_eq!((&agent["packets"], &agent["lost"]), (&3.into(), &0.into()));
}

/// What cannot be had is reported, and is no crash.
#[test]
fn memory_that_is_not_there_is_an_error() {
    let trace = labelled("ad-attacks");
    let program = format!(
        "ulimit -v 400000; exec '{}' gpv run --slots 8388608 -r '{}'",
        env!("CARGO_BIN_EXE_strata"),
        trace.display()
    );
    let mut command = Command::new("sh");
    let said = says(command.args(["-c", &program]), 1);
    assert!(said.contains("out of memory: "), "{said}");
    assert!(
        said.contains("bytes for the cache") && !said.contains("backtrace"),
        "{said}"
    );
}
