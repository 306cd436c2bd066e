//! `strata ask --vectors`: the same answers as from packets, of a file, a ring and UDP; with queues, which only vectors
//! have; and what was lost on the way is said.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};

use strata_gpv::format::datagram::{DatagramWriter, LEN_USUAL};
use strata_gpv::{Columns, Full, Key, Reason, Vector};
use strata_testkit::data_dir;
use strata_wire::{AddressFamily, Endpoint};

use super::{answerable, labelled, rows};
use crate::common::naive::{FILTER, dissected, naive};
use crate::common::program::{ok, refused, strata};

fn ask(from: &str, rest: &[&str]) -> Command {
    let mut command = strata();
    command.args(["ask", "--vectors", from]).args(rest);
    command
}

/// Vectors of a capture, in a file.
fn file_of(trace: &Path, dir: &Path) -> String {
    let file = dir.join("vectors.gpv").to_str().unwrap().to_owned();
    let mut run = strata();
    run.args(["gpv", "run", "-w", &file, "-r"]).arg(trace);
    ok(run.arg(FILTER));
    file
}

#[test]
fn answers_from_a_file_equal_naive_programs_over_what_tshark_says() {
    let dir = tempfile::tempdir().unwrap();
    for trace in ["ad-attacks", "cic2017-sqli"].map(labelled) {
        let packets = dissected(&trace);
        let file = file_of(&trace, dir.path());
        for name in answerable() {
            let answer = ok(&mut ask(&file, &[&name, "-F", "csv"]));
            let expected = naive(&name, &packets);
            assert_eq!(rows(&answer), expected, "{name} of {}", trace.display());
        }
    }
}

#[test]
fn a_ring_is_read_until_its_writer_ends() {
    let dir = tempfile::tempdir().unwrap();
    let trace = labelled("cic2017-sqli");
    let file = file_of(&trace, dir.path());
    let query = ["byte-counts-per-flow", "-F", "csv"];
    let expected = ok(&mut ask(&file, &query));
    let ring = dir.path().join("ring").to_str().unwrap().to_owned();
    let mut run = strata();
    run.args(["gpv", "run", "--ring", &ring, "-r"]).arg(&trace);
    ok(run.arg(FILTER));
    assert_eq!(rows(&ok(&mut ask(&ring, &query))), rows(&expected));
}

/// The depth of the queue that packet `n` of a flow finds.
fn depth(switch: u32, n: u32) -> u32 {
    (switch * 31 + n % 1000 * (n % 1000) * 7) % 1000
}

/// Vectors of two switches, 3 flows each, 20 packets a vector, `vectors` of each flow; and the datagram of each
/// switch that states their number.
pub(crate) fn of_switches(vectors: u32) -> Vec<Vec<u8>> {
    let mut datagrams = Vec::new();
    for switch in [2, 5] {
        let mut writer = DatagramWriter::new(switch, Columns::ALL, LEN_USUAL);
        for vector in 0..vectors {
            for flow in 0..3_u16 {
                let tuple = |n: u32| Full {
                    delta_ns: n * 1000,
                    size: 60,
                    queue_depth: depth(switch, vector * 20 + n),
                    ..Full::default()
                };
                let tuples: Vec<Full> = (0..20).map(tuple).collect();
                let end = |address, port| Endpoint { address, port };
                let vector = Vector {
                    key: Key::new(AddressFamily::Ipv4, 17, end(1, flow), end(2, 53), 0),
                    start_ns: 1_000_000_000 + u64::from(vector) * 1_000_000,
                    pieces: [&tuples, &[]],
                    reason: Reason::Full,
                    saturated: false,
                    slot: flow.into(),
                };
                let put = writer.put(&vector, |datagram| datagrams.push(datagram.to_vec()));
                put.unwrap();
            }
        }
        writer.finish(|datagram| datagrams.push(datagram.to_vec()));
        writer.end(|datagram| datagrams.push(datagram.to_vec()));
    }
    datagrams
}

#[test]
fn queues_are_averaged_for_each_switch() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("vectors.gpv").to_str().unwrap().to_owned();
    fs::write(&file, of_switches(50).concat()).unwrap();
    let answer = ok(&mut ask(&file, &["ewma-latencies", "-F", "csv"]));
    let mut found = BTreeMap::new();
    for row in answer.lines().skip(1) {
        let fields: Vec<&str> = row.split(',').collect();
        let [.., source_port, _, _, switch, average] = fields[..] else {
            panic!("{row}");
        };
        let key = (
            switch.parse::<u32>().unwrap(),
            source_port.parse::<u16>().unwrap(),
        );
        found.insert(key, average.parse::<f64>().unwrap());
    }
    assert_eq!(found.len(), 6, "{answer}");
    for ((switch, _), average) in found {
        let mut expected = 0.0;
        for n in 0..1000 {
            expected = 0.8 * expected + 0.2 * f64::from(depth(switch, n));
        }
        assert!((average - expected).abs() < 1e-6, "{average} {expected}");
    }
    let query = "def count([n], []):\n    n = n + 1\n\nS = filter(T, switch == 5);\nR = groupby(S, [switch], count);";
    let answer = ok(&mut ask(&file, &[query, "-F", "csv"]));
    assert_eq!(rows(&answer), BTreeSet::from(["5,3000".to_owned()]));
}

#[test]
fn what_was_lost_on_the_way_makes_an_answer_incomplete() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("vectors.gpv").to_str().unwrap().to_owned();
    let mut datagrams = of_switches(50);
    datagrams.remove(3);
    fs::write(&file, datagrams.concat()).unwrap();
    let output = ask(&file, &["packet-counts-per-source", "-F", "csv"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("never arrived: their packets are missing"),
        "{said}"
    );
    // The rest is answered, and nothing is there twice.
    let answer = String::from_utf8(output.stdout).unwrap();
    let counts = answer
        .lines()
        .skip(1)
        .map(|row| row.rsplit(',').next().unwrap());
    let sum: u64 = counts.map(|count| count.parse::<u64>().unwrap()).sum();
    assert!((5_000..6_000).contains(&sum), "{answer}");
}

#[test]
fn vectors_by_udp_are_asked_as_they_arrive() {
    let mut command = ask(
        "udp://127.0.0.1:0",
        &["byte-counts-per-flow", "-F", "csv", "-c", "6000"],
    );
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("listening on ") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it has ended");
    }
    let address = line.trim().rsplit(' ').next().unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for datagram in of_switches(50) {
        socket.send_to(&datagram, address).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let answer = String::from_utf8(output.stdout).unwrap();
    let sums = rows(&answer);
    // A flow of two switches.
    assert!(
        !sums.is_empty() && sums.iter().all(|row| row.ends_with(",120000")),
        "{answer}"
    );
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = file_of(&labelled("cic2017-sqli"), dir.path());
    let query = "packet-counts-per-source";
    let said = refused(&mut ask(&file, &[query, "tcp port 80"]));
    assert!(said.contains("a tcpdump filter cannot test"), "{said}");
    // Captures do not say how long queues are.
    let said = refused(&mut ask(&file, &["ewma-latencies"]));
    assert!(
        said.contains("qsize") && said.contains("do not carry it"),
        "{said}"
    );
    let said = refused(&mut ask("udp://0.0.0.0:0", &[query]));
    assert!(said.contains("--allow 192.0.2.0/24"), "{said}");
    let said = refused(&mut ask(&file, &[query, "--allow", "10.0.0.0/8"]));
    assert!(said.contains("udp://"), "{said}");
    let capture = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    let output = ask(capture.to_str().unwrap(), &[query]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("not grouped packet vectors"), "{said}");
}

#[test]
fn a_file_that_was_cut_between_vectors_makes_an_answer_incomplete() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("vectors.gpv").to_str().unwrap().to_owned();
    let mut datagrams = of_switches(50);
    // The last one states the number of the second switch's vectors.
    for (cut, said) in [
        (1, "without their number"),
        (usize::MAX, "the file is empty"),
    ] {
        datagrams.truncate(datagrams.len().saturating_sub(cut));
        fs::write(&file, datagrams.concat()).unwrap();
        let output = ask(&file, &["packet-counts-per-source"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains(said), "{errors}");
    }
}
