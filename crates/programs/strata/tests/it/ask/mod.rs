//! `strata ask`: the program's answers equal those of naive programs over what tshark says of the
//! same packets; what cannot be answered is refused.

mod live;
mod terminal;
pub(crate) mod vectors;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array as _, ArrayRef};
use arrow_ipc::reader::StreamReader;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use serde_json::Value;
use strata_testkit::data_dir;

use crate::common::naive::{FILTER, dissected, naive};
use crate::common::program::{ok, record, strata};

fn labelled(name: &str) -> PathBuf {
    data_dir().join("labelled").join(name).join("trace.pcap")
}

/// The rows of a CSV answer.
fn rows(csv: &str) -> BTreeSet<String> {
    let rows: BTreeSet<String> = csv.lines().skip(1).map(str::to_owned).collect();
    assert_eq!(rows.len() + 1, csv.lines().count(), "no row is there twice");
    rows
}

/// Shipped queries that packets of a capture can answer.
fn answerable() -> Vec<String> {
    let list: Value =
        serde_json::from_str(&ok(strata().args(["ask", "--list", "--json"]))).unwrap();
    let names = list.as_array().unwrap().iter();
    let names = names.map(|shipped| shipped["name"].as_str().unwrap().to_owned());
    let names: Vec<String> = names.filter(|name| name != "ewma-latencies").collect();
    assert_eq!(names.len(), 10);
    names
}

fn ask(trace: &Path, rest: &[&str]) -> Command {
    let mut command = strata();
    command.args(["ask", "-r"]).arg(trace).args(rest);
    command
}

#[test]
fn shipped_queries_equal_naive_programs_over_what_tshark_says() {
    let traces = ["ad-attacks", "cic2017-sqli", "cic2019-webddos"];
    let dir = tempfile::tempdir().unwrap();
    for trace in traces.map(labelled) {
        let packets = dissected(&trace);
        assert!(packets.len() > 50, "{}", trace.display());
        // All at once, from one reading.
        let pattern = dir.path().join("{}.csv");
        let mut together = ask(&trace, &["-w", pattern.to_str().unwrap(), FILTER]);
        for name in answerable() {
            together.args(["-q", &name]);
        }
        ok(&mut together);
        for name in answerable() {
            let expected = naive(&name, &packets);
            assert!(!expected.is_empty(), "{name}");
            let alone = ok(&mut ask(&trace, &[&name, "-F", "csv", FILTER]));
            assert_eq!(rows(&alone), expected, "{name} of {}", trace.display());
            let file = fs::read_to_string(dir.path().join(format!("{name}.csv"))).unwrap();
            assert_eq!(file, alone, "{name}, together with others");
        }
    }
}

/// Which flow loses packets is what tshark says, whose analysis of TCP is not ours.
#[test]
fn retransmissions_are_what_tshark_marks() {
    let mut all = 0;
    let mut differ = Vec::new();
    let traces = ["ad-attacks", "cic2017-sqli", "cic2019-webddos", "mix-test"];
    for trace in traces.map(labelled) {
        let mut marked: HashMap<String, u64> = HashMap::new();
        for packet in dissected(&trace).iter().filter(|packet| packet.is_tcp) {
            *marked.entry(packet.flow.clone()).or_default() += u64::from(packet.is_again);
        }
        let answer = ok(&mut ask(
            &trace,
            &["tcp-retransmissions", "-F", "csv", FILTER],
        ));
        let counted = answer.lines().skip(1).map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            (cells[..5].join(","), cells[6].parse().unwrap())
        });
        let counted: HashMap<String, u64> = counted.collect();
        for (flow, count) in &marked {
            // Flows in tunnels have other addresses here: none of them is retransmitted.
            let counted: u64 = match counted.get(flow) {
                Some(&known) => known,
                None if *count == 0 => continue,
                None => panic!("{flow}: {count}"),
            };
            if counted != *count {
                differ.push((trace.display().to_string(), counted, *count));
            }
        }
        all += marked.values().sum::<u64>();
    }
    assert!(all > 600, "{all}");
    // One segment of mix-test was sent before it was captured: Wireshark knows it from the other side's ACK.
    let [(trace, counted, marked)] = differ.as_slice() else {
        panic!("{differ:?}");
    };
    assert!(trace.contains("mix-test"), "{differ:?}");
    assert_eq!(counted + 1, *marked, "{differ:?}");
}

/// The round-trip time of a handshake is what tshark says: of the last one, if a flow has several.
#[test]
fn round_trip_times_are_what_tshark_says() {
    let mut flows = 0;
    for trace in ["ad-attacks", "cic2017-sqli", "cic2019-webddos", "mix-test"].map(labelled) {
        let mut times: HashMap<String, HashSet<u64>> = HashMap::new();
        for packet in dissected(&trace) {
            if let Some(rtt_ns) = packet.rtt_ns {
                times.entry(packet.flow).or_default().insert(rtt_ns);
            }
        }
        let answer = ok(&mut ask(&trace, &["tcp-rtt", "-F", "csv", FILTER]));
        for line in answer.lines().skip(1) {
            let cells: Vec<&str> = line.split(',').collect();
            let [handshakes, shortest] = cells[6..] else {
                panic!("{line}");
            };
            let marked = &times[&cells[..5].join(",")];
            assert_eq!(handshakes.parse(), Ok(marked.len()), "{line}: {marked:?}");
            assert_eq!(
                shortest.parse().ok().as_ref(),
                marked.iter().min(),
                "{line}"
            );
            flows += 1;
        }
    }
    assert!(flows > 1_500, "{flows}");
}

/// Runs it; what it says if it ends with this status.
fn says(command: &mut Command, status: i32) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{command:?}: {said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

#[test]
fn a_log_answers_as_its_capture_does_in_both_tiers() {
    let dir = tempfile::tempdir().unwrap();
    let trace = labelled("ad-attacks");
    let log = dir.path().join("log");
    ok(&mut record(&trace, &log));
    for compacted in [false, true] {
        if compacted {
            ok(strata().arg("compact").arg(&log));
        }
        for name in answerable() {
            let of_log = ok(strata().arg("ask").arg(&log).args([&name, "-F", "csv"]));
            let of_capture = ok(&mut ask(&trace, &[&name, "-F", "csv"]));
            assert_eq!(of_log, of_capture, "{name}, compacted: {compacted}");
        }
        // Classes are those that the recording gave.
        let by_class = "def c([n], []): n = n + 1\nR = groupby(T, [class], c);";
        let counts = ok(strata().arg("ask").arg(&log).args([by_class, "-F", "csv"]));
        let info = ok(strata().args(["info", "--json"]).arg(&log));
        let info: Value = serde_json::from_str(&info).unwrap();
        assert!(info.to_string().contains("anomalous"), "{info}");
        assert!(
            counts.lines().count() >= 2 && counts.starts_with("class,n\n"),
            "{counts}"
        );
    }
    let first = "R = filter(T, true);";
    let filtered = strata()
        .arg("ask")
        .arg(&log)
        .args([first, "-F", "csv", "--", "tcp port 445"])
        .output();
    let of_capture = ok(&mut ask(&trace, &[first, "-F", "csv", "tcp port 445"]));
    assert_eq!(
        String::from_utf8(filtered.unwrap().stdout).unwrap(),
        of_capture
    );
    let until = ["--from", "1700000000", "--to", "1700000010", "-F", "csv"];
    let some = ok(strata().arg("ask").arg(&log).arg(first).args(until));
    let all = ok(strata().arg("ask").arg(&log).args([first, "-F", "csv"]));
    assert!(some.lines().count() > 2 && some.lines().count() < all.lines().count());
    assert!(some.lines().all(|row| all.contains(row)));
}

#[test]
fn an_encrypted_log_takes_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let (log, key) = (dir.path().join("log"), dir.path().join("a.key"));
    ok(&mut record(labelled("cic2017-sqli"), &log));
    let public = ok(strata().args(["key", "new"]).arg(&key));
    ok(strata()
        .arg("compact")
        .arg(&log)
        .args(["--encrypt-to", public.trim()]));
    let question = ["packet-counts-per-source", "-F", "csv"];
    says(strata().arg("ask").arg(&log).args(question), 1);
    let answer = ok(strata()
        .arg("ask")
        .arg(&log)
        .args(question)
        .arg("--key")
        .arg(&key));
    assert_eq!(answer, ok(&mut ask(&labelled("cic2017-sqli"), &question)));
}

#[test]
fn an_answer_of_samples_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(record(labelled("ad-attacks"), &log).args(["--mode", "log-sampled"]));
    let file = dir.path().join("a.parquet");
    let mut command = strata();
    let command = command
        .arg("ask")
        .arg(&log)
        .arg("packet-counts-per-source")
        .arg("-w")
        .arg(&file);
    let said = says(command, 0);
    assert!(
        said.contains("were sampled out") && said.contains("not scaled up"),
        "{said}"
    );
    let reader = SerializedFileReader::new(File::open(&file).unwrap()).unwrap();
    let about = reader.metadata().file_metadata().key_value_metadata();
    let mut about = about.unwrap().iter();
    let remarks = about.find(|about| about.key == "strata.remarks").unwrap();
    assert!(remarks.value.as_ref().unwrap().contains("sampled out"));
    let whole = dir.path().join("whole");
    ok(&mut record(labelled("ad-attacks"), &whole));
    let said = says(
        strata()
            .arg("ask")
            .arg(&whole)
            .arg("packet-counts-per-source"),
        0,
    );
    assert!(!said.contains("warning"), "{said}");
}

#[test]
fn every_format_has_the_same_rows() {
    let dir = tempfile::tempdir().unwrap();
    let trace = labelled("cic2017-sqli");
    let question = "A = map(T, [half, big], [pkt_len/2.0, pkt_len > 100]);";
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let csv = ok(&mut ask(&trace, &[question, "-F", "csv"]));
    for name in [
        "a.csv",
        "a.json",
        "a.arrow",
        "a.parquet",
        "a.txt",
        "a.csv.zst",
    ] {
        ok(&mut ask(&trace, &[question, "-w", &path(name)]));
    }
    assert_eq!(fs::read_to_string(path("a.csv")).unwrap(), csv);
    assert_eq!(
        fs::read_to_string(path("a.txt")).unwrap().lines().count(),
        csv.lines().count()
    );
    let head = "srcip,dstip,srcport,dstport,proto,tin,pkt_len,half,big";
    assert_eq!(csv.lines().next(), Some(head));
    let json = fs::read_to_string(path("a.json")).unwrap();
    let of_json = json.lines().map(|line| {
        let row: Value = serde_json::from_str(line).unwrap();
        assert_eq!(row["query"], "q1");
        let cell = |name| match &row[name] {
            Value::String(text) => text.clone(),
            Value::Number(real) if name == "half" => real.as_f64().unwrap().to_string(),
            other => other.to_string(),
        };
        head.split(',').map(cell).collect::<Vec<_>>().join(",")
    });
    assert_eq!(
        of_json.collect::<Vec<_>>(),
        csv.lines().skip(1).collect::<Vec<_>>()
    );
    // Numbers as CSV has them.
    let lines = |cells: &[Vec<String>]| -> Vec<String> {
        let rows = 0..cells[0].len();
        let row = rows.map(|row| cells.iter().map(move |column| column[row].as_str()));
        row.map(|row| row.collect::<Vec<_>>().join(",")).collect()
    };
    let expected: Vec<&str> = csv.lines().skip(1).collect();
    let stream = StreamReader::try_new(File::open(path("a.arrow")).unwrap(), None).unwrap();
    assert_eq!(stream.schema().metadata()["strata.query"], question);
    let names = stream.schema();
    let names: Vec<&str> = names.fields().iter().map(|f| f.name().as_str()).collect();
    assert_eq!(names.join(","), head);
    let mut rows = Vec::new();
    for batch in stream.map(Result::unwrap) {
        let cells = batch.columns().iter().map(of_arrow).collect::<Vec<_>>();
        rows.extend(lines(&cells));
    }
    assert_eq!(rows, expected);
    let file = SerializedFileReader::new(File::open(path("a.parquet")).unwrap()).unwrap();
    let rows = file.into_iter().map(|row| {
        let row = row.unwrap();
        let cells = row.get_column_iter().map(|(_, cell)| match cell {
            Field::Str(text) => text.clone(),
            Field::Double(real) => real.to_string(),
            other => other.to_string(),
        });
        cells.collect::<Vec<_>>().join(",")
    });
    assert_eq!(rows.collect::<Vec<_>>(), expected);
}

/// A column's values as text.
fn of_arrow(column: &ArrayRef) -> Vec<String> {
    assert_eq!(column.null_count(), 0);
    match column.data_type().to_string().as_str() {
        "Int64" => {
            let values = column.as_primitive::<Int64Type>().values();
            values.iter().map(ToString::to_string).collect()
        }
        "Float64" => {
            let values = column.as_primitive::<Float64Type>().values();
            values.iter().map(ToString::to_string).collect()
        }
        "Boolean" => {
            let values = column.as_boolean().iter();
            values.map(|value| value.unwrap().to_string()).collect()
        }
        _ => {
            let values = column.as_string::<i32>().iter();
            values.map(|value| value.unwrap().to_owned()).collect()
        }
    }
}

#[test]
fn what_cannot_be_asked_is_refused_at_its_place() {
    let trace = labelled("cic2017-sqli");
    let refused = |rest: &[&str]| says(&mut ask(&trace, rest), 2);
    let said = refused(&["ewma-latencies"]);
    assert!(
        said.contains("line 1, column 18: qsize is not available here"),
        "{said}"
    );
    assert!(
        said.ends_with("    def ewma([avg], [qsize]):\n                     ^\n"),
        "{said}"
    );
    let cases: &[(&[&str], &str)] = &[
        (
            &["R = filter(T, class == 1);"],
            "packets have a class only once they are recorded",
        ),
        (
            &["R = filter(T, tout > 1);"],
            "vectors do not say when a packet left",
        ),
        (
            &["R = filter(T, proto = 6);"],
            "expected \")\", found \"=\"",
        ),
        (
            &["tcp-timeout"],
            "is it one of tcp-non-monotonic, tcp-out-of-sequence, tcp-retransmissions, tcp-rtt, tcp-timeouts?",
        ),
        (&[], "no query"),
        (
            &["tcp-timeouts", "--param", "gap=1"],
            "known parameters: low, high",
        ),
        (&["tcp-timeouts", "--param", "low"], "write NAME=VALUE"),
        (
            &["tcp-timeouts", "--param", "low=1s", "--param", "low=2s"],
            "--param low is given twice",
        ),
        (
            &["tcp-timeouts", "--param", "low=1x"],
            "\"x\" is not a unit",
        ),
        (
            &["tcp-timeouts", "--sort", "bytes"],
            "the columns of tcp-timeouts are srcip",
        ),
        (
            &["tcp-timeouts", "--instructions-max", "5"],
            "instructions per packet",
        ),
        (
            &["-q", "tcp-timeouts", "-q", "tcp-timeouts", "-F", "csv"],
            "write a file for each",
        ),
        (&["tcp-timeouts", "--from", "13:00"], "apply only to a log"),
    ];
    for (rest, expected) in cases {
        let said = refused(rest);
        assert!(said.contains(expected), "{rest:?}: {said}");
    }
    let said = says(strata().arg("ask").arg(&trace).arg("tcp-timeouts"), 2);
    assert!(said.contains("queries a capture file"), "{said}");
    let said = says(strata().args(["ask", "tcp-timeouts"]), 2);
    assert!(said.contains("is a query without input"), "{said}");
    let said = says(strata().arg("ask"), 2);
    assert!(said.contains("no input and no query"), "{said}");
}

#[test]
fn hostile_queries_are_refused_in_few_words() {
    let dir = tempfile::tempdir().unwrap();
    let trace = labelled("cic2017-sqli");
    let deep = format!(
        "R = filter(T, {}true{});",
        "(".repeat(20_000),
        ")".repeat(20_000)
    );
    let large = "R = filter(T, true);\n".repeat(50_000);
    let long = format!("R = filter(T, {}true);", "true and ".repeat(6_000));
    for (text, expected) in [
        (&deep, "brackets nested more than 48 deep"),
        (&large, "a query may be at most 65536 bytes long"),
        (&long, "operators nested more than 200 deep"),
    ] {
        let file = dir.path().join("question.marple");
        fs::write(&file, text).unwrap();
        let said = says(ask(&trace, &["-f"]).arg(&file), 2);
        assert!(said.contains(expected) && said.len() < 600, "{said}");
    }
    let said = says(&mut ask(&trace, &["\u{1b}[31mR = filter(T, x);"]), 2);
    assert!(!said.contains('\u{1b}'), "{said:?}");
    fs::write(dir.path().join("bad.marple"), [0xff, 0xfe]).unwrap();
    says(ask(&trace, &["-f"]).arg(dir.path().join("bad.marple")), 1);
    // What is read is not overwritten.
    let copy = dir.path().join("copy.pcap");
    fs::copy(&trace, &copy).unwrap();
    says(ask(&copy, &["tcp-timeouts", "-w"]).arg(&copy), 2);
    assert_eq!(fs::read(&copy).unwrap(), fs::read(&trace).unwrap());
}

#[test]
fn groups_and_rows_beyond_their_bounds_are_counted() {
    let trace = labelled("ad-attacks");
    let endless = "def c([n], []): n = n + 1\nR = groupby(T, [tin, tcpseq], c);";
    let said = says(
        &mut ask(&trace, &[endless, "--groups-max", "10", "-F", "csv"]),
        1,
    );
    assert!(said.contains("the answer has 10 groups"), "{said}");
    assert!(said.contains("the answer is incomplete"), "{said}");
    let rows = "R = filter(T, true);";
    let said = says(&mut ask(&trace, &[rows, "--rows-max", "7"]), 1);
    assert!(
        said.contains("it has 7 rows") || said.contains("has 7 rows"),
        "{said}"
    );
    let said = says(&mut ask(&trace, &[endless, "--memory-max", "1k"]), 1);
    assert!(said.contains("--memory-max"), "{said}");
    // A packet-of-groups query with room says nothing.
    let said = says(&mut ask(&trace, &[endless]), 0);
    assert!(!said.contains("warning"), "{said}");
}

/// A capture of which each packet is cut to this many bytes.
fn cut(trace: &Path, snaplen: usize, to: &Path) {
    let bytes = fs::read(trace).unwrap();
    assert_eq!(bytes[..4], [0xd4, 0xc3, 0xb2, 0xa1], "a little-endian pcap");
    let mut out = bytes[..24].to_vec();
    let mut rest = &bytes[24..];
    while let Some((head, after)) = rest.split_first_chunk::<16>() {
        let len = usize::try_from(u32::from_le_bytes(head[8..12].try_into().unwrap())).unwrap();
        let kept = len.min(snaplen);
        out.extend_from_slice(&head[..8]);
        out.extend_from_slice(&u32::try_from(kept).unwrap().to_le_bytes());
        out.extend_from_slice(&head[12..]);
        out.extend_from_slice(&after[..kept]);
        rest = &after[len..];
    }
    fs::write(to, out).unwrap();
}

#[test]
fn questions_that_need_bytes_that_were_not_captured_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let trace = labelled("cic2017-sqli");
    let short = dir.path().join("short.pcap");
    cut(&trace, 40, &short);
    // Addresses and ports are there, sequence numbers are not.
    let counts = |trace: &Path| ok(&mut ask(trace, &["byte-counts-per-flow", "-F", "csv"]));
    assert_eq!(counts(&short), counts(&trace));
    let said = says(&mut ask(&short, &["tcp-out-of-sequence"]), 1);
    assert!(said.contains("tcp-out-of-sequence needs"), "{said}");
    assert!(said.contains("only 40 of"), "{said}");
    let skipping = ["tcp-out-of-sequence", "--skip-incomplete"];
    let said = says(&mut ask(&short, &skipping), 0);
    assert!(said.contains("packets skipped"), "{said}");
    // Up to the fixed part of a TCP header: the payload begins after options that are not there.
    cut(&trace, 54, &short);
    let average = ["payload-length-averages"];
    let said = says(&mut ask(&short, &average), 1);
    assert!(said.contains("needs payload_len"), "{said}");
    let monotonic = ["tcp-non-monotonic", "-F", "csv"];
    assert_eq!(
        ok(&mut ask(&short, &monotonic)),
        ok(&mut ask(&trace, &monotonic))
    );
}

#[test]
fn a_damaged_capture_is_answered_up_to_the_damage() {
    let dir = tempfile::tempdir().unwrap();
    let torn = dir.path().join("torn.pcap");
    let bytes = fs::read(labelled("cic2017-sqli")).unwrap();
    fs::write(&torn, &bytes[..bytes.len() - 10]).unwrap();
    let output = ask(&torn, &["packet-counts-per-source", "-F", "csv"])
        .output()
        .unwrap();
    let answer = String::from_utf8(output.stdout).unwrap();
    assert!(answer.lines().count() > 1, "{answer}");
    // Nothing is created for what cannot be opened.
    let answer = dir.path().join("answer.csv");
    says(
        ask(Path::new("/nonexistent.pcap"), &["tcp-timeouts", "-w"]).arg(&answer),
        1,
    );
    assert!(!answer.exists());
}
