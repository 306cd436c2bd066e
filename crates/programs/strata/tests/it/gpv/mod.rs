//! `strata gpv`: vectors sent, lost, received and kept hold the packets that tshark sees.

mod applications;
mod apps;
mod frames;
mod models;
mod rotation;
mod shared;
mod sources;
mod udp;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use parquet::file::reader::SerializedFileReader;
use parquet::record::{Field, Row};
use serde_json::Value;
use strata_testkit::{data_dir, workspace_root};

use crate::common::naive::{FILTER, dissected};
use crate::common::program::{ok, record, strata};

pub(crate) fn labelled(name: &str) -> PathBuf {
    data_dir().join("labelled").join(name).join("trace.pcap")
}

/// Time, size and TCP sequence number of packets, by flow.
type Flows = BTreeMap<String, Vec<(u64, u64, u64)>>;

/// What tshark says of TCP and UDP packets.
pub(crate) fn expected(trace: &Path) -> Flows {
    let mut flows = Flows::new();
    for packet in dissected(trace) {
        let (ns, len, seq) = (packet.ns, packet.len, packet.seq);
        flows.entry(packet.flow).or_default().push((ns, len, seq));
    }
    flows
}

/// Unnests a file of vectors or records; also how many there are.
pub(crate) fn unnested(file: &Path) -> (Flows, usize) {
    let reader = SerializedFileReader::new(File::open(file).unwrap()).unwrap();
    let (mut flows, mut rows) = (Flows::new(), 0);
    for row in reader.into_iter().map(Result::unwrap) {
        rows += 1;
        let packets = packets_of(&row);
        flows.entry(flow_of(&row)).or_default().extend(packets);
    }
    (flows, rows)
}

fn cell<'a>(row: &'a Row, name: &str) -> &'a Field {
    let mut columns = row.get_column_iter();
    columns.find(|(of, _)| *of == name).unwrap().1
}

fn flow_of(row: &Row) -> String {
    let text = |name| match cell(row, name) {
        Field::Str(text) => text,
        other => panic!("{name}: {other:?}"),
    };
    let port = |name| match cell(row, name) {
        Field::UShort(port) => *port,
        other => panic!("{name}: {other:?}"),
    };
    let Field::UByte(protocol) = cell(row, "protocol") else {
        panic!("{row:?}");
    };
    let (from, to) = (text("src"), text("dst"));
    format!(
        "{from},{to},{},{},{protocol}",
        port("src_port"),
        port("dst_port")
    )
}

fn packets_of(row: &Row) -> Vec<(u64, u64, u64)> {
    let number = |row: &Row, name| match cell(row, name) {
        Field::UInt(number) => u64::from(*number),
        Field::Long(number) => number.cast_unsigned(),
        // Not in every form of vectors.
        Field::Null => 0,
        other => panic!("{name}: {other:?}"),
    };
    let Field::ListInternal(tuples) = cell(row, "tuples") else {
        panic!("{row:?}");
    };
    assert_eq!(number(row, "packets"), tuples.len() as u64);
    let packets = tuples.elements().iter().map(|tuple| match tuple {
        Field::Group(tuple) => {
            let [ns, size, seq] = ["time_ns", "size", "tcp_seq"].map(|name| number(tuple, name));
            (ns, size, seq)
        }
        other => panic!("{other:?}"),
    });
    packets.collect()
}

/// Runs it; what it says if it ends with this status.
pub(crate) fn says(command: &mut Command, status: i32) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{command:?}: {said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

pub(crate) fn gpv(words: &[&str]) -> Command {
    let mut command = strata();
    command.arg("gpv").args(words);
    command
}

pub(crate) fn json(command: &mut Command) -> Value {
    serde_json::from_str(&ok(command.arg("--json"))).unwrap()
}

#[test]
fn exported_vectors_unnest_to_the_packets_that_tshark_sees() {
    let dir = tempfile::tempdir().unwrap();
    let trace = labelled("ad-attacks");
    let log = dir.path().join("log");
    ok(&mut record(&trace, &log));
    let expected = expected(&trace);
    let packets: usize = expected.values().map(Vec::len).sum();
    for (source, name) in [(&["-r"][..], "capture.parquet"), (&[][..], "log.parquet")] {
        let file = dir.path().join(name);
        let mut command = gpv(&["export"]);
        command.args(source);
        command.arg(if source.is_empty() { &log } else { &trace });
        ok(command.arg("-w").arg(&file).arg(FILTER));
        let (flows, vectors) = unnested(&file);
        assert_eq!(flows, expected, "{name}");
        assert!(vectors < packets / 2, "{vectors} vectors of {packets}");
    }
    let few = dir.path().join("few.parquet");
    let mut command = gpv(&["export", "--columns", "size", "-w"]);
    ok(command.arg(&few).arg("-r").arg(&trace));
    assert!(fs::metadata(few).unwrap().len() > 0);
    let said = says(gpv(&["export", "-w"]).arg(dir.path().join("x")), 2);
    assert!(said.contains("nothing to read"), "{said}");
    let said = says(
        gpv(&["export", "-w"]).arg(dir.path().join("x")).arg(&trace),
        2,
    );
    assert!(said.contains("-r"), "{said}");
    assert!(!dir.path().join("x").exists());
}

/// What DuckDB answers, as JSON.
fn duckdb(query: &str) -> Value {
    let python = workspace_root().join("python/.venv/bin/python");
    let script = "import duckdb, json, sys; \
                  print(json.dumps(duckdb.sql(sys.argv[1]).fetchall()))";
    let answer = ok(Command::new(python).args(["-c", script, query]));
    serde_json::from_str(&answer).unwrap()
}

#[test]
fn duckdb_unnests_what_is_exported() {
    if !models::has_python() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let trace = labelled("cic2019-webddos");
    let file = dir.path().join("vectors.parquet");
    let mut command = gpv(&["export", "-r", trace.to_str().unwrap(), "-w"]);
    ok(command.arg(&file).arg(FILTER));
    let expected = expected(&trace);
    let all = || expected.values().flatten();
    let packets = all().count();
    let bytes: u64 = all().map(|packet| packet.1).sum();
    let last = all().map(|packet| packet.0).max().unwrap();
    let answer = duckdb(&format!(
        "SELECT count(*), CAST(sum(size) AS BIGINT), max(time_ns), count(DISTINCT tcp_seq) FROM \
         (SELECT src, unnest(tuples, recursive := true) FROM '{}')",
        file.display()
    ));
    let sequences: std::collections::BTreeSet<u64> = all().map(|packet| packet.2).collect();
    assert_eq!(
        answer,
        serde_json::json!([[packets, bytes, last, sequences.len()]])
    );
}

#[test]
fn run_says_how_many_vectors_packets_are_and_why_they_left() {
    let trace = labelled("ad-attacks");
    let trace = trace.to_str().unwrap();
    let packets = expected(Path::new(trace)).values().map(Vec::len).sum();
    let counts = json(&mut gpv(&["run", "-r", trace, "tcp or udp"]));
    let number = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
    // What tshark takes for payload of ICMP errors, and fragments, are the filter's too.
    assert!(number(&counts["packets"]) >= packets, "{counts}");
    assert_eq!(counts["packets"], counts["packets_in_vectors"]);
    let left = counts["left"].as_object().unwrap();
    let left: usize = left.values().map(number).sum();
    assert_eq!(number(&counts["vectors"]), left);
    assert!(left < packets / 2, "{counts}");
    let said = ok(&mut gpv(&[
        "run",
        "-r",
        trace,
        "--slots",
        "1",
        "tcp or udp",
    ]));
    assert!(
        said.contains("for another flow") && said.contains('%'),
        "{said}"
    );
    let one = json(&mut gpv(&[
        "run", "-r", trace, "--slots", "1", "-c", "100", "ip",
    ]));
    assert_eq!(one["packets"], 100);
    assert!(number(&one["left"]["collision"]) > 10, "{one}");
}

#[test]
fn what_run_writes_the_agent_reads_in_every_form() {
    let dir = tempfile::tempdir().unwrap();
    let trace = labelled("ad-attacks");
    let (file, records) = (dir.path().join("vectors"), dir.path().join("r.parquet"));
    let expected = expected(&trace);
    for form in ["strata", "paper", "paper-seq"] {
        let mut run = gpv(&["run", "-F", form, "-r"]);
        run.arg(&trace).arg("-w").arg(&file).arg(FILTER);
        let run = json(&mut run);
        let mut agent = gpv(&["agent", "-F", form, "--interval", "60s", "-r"]);
        let agent = json(agent.arg(&file).arg("-w").arg(&records));
        let written = &run["destinations"][0];
        assert_eq!(agent["vectors"], written["vectors"], "{form}");
        assert_eq!(agent["lost"], 0);
        let (flows, rows) = unnested(&records);
        assert_eq!(
            u64::try_from(rows).unwrap(),
            agent["records"].as_u64().unwrap()
        );
        assert!(rows < usize::try_from(agent["vectors"].as_u64().unwrap()).unwrap());
        match form {
            "strata" => assert_eq!(flows, expected),
            _ => assert_eq!(in_form(&flows, form), in_form(&expected, form), "{form}"),
        }
        // The end of the file is missing: what was read before is kept, and the place is reported.
        let bytes = fs::read(&file).unwrap();
        let cut = dir.path().join("cut");
        fs::write(&cut, &bytes[..bytes.len() - 30]).unwrap();
        let said = says(gpv(&["agent", "-F", form, "-r"]).arg(&cut), 1);
        assert!(said.contains("from byte"), "{said}");
    }
}

/// What the paper's form keeps, but for times, which it cuts to us: IPv4, sizes of 11 bits, no
/// sequence number without `-seq`.
fn in_form(flows: &Flows, form: &str) -> Vec<(String, Vec<(u64, u64)>)> {
    let flows = flows.iter().filter(|(flow, _)| !flow.contains(':'));
    flows
        .map(|(flow, packets)| {
            let packets = packets.iter().map(|&(_, size, seq)| {
                let seq = if form == "paper-seq" { seq } else { 0 };
                (size.min(2047), seq)
            });
            (flow.clone(), packets.collect())
        })
        .collect()
}

#[test]
fn what_cannot_be_run_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let trace = labelled("ad-attacks");
    let trace = trace.to_str().unwrap();
    for (words, expected) in [
        (&["run"][..], "-r or an interface"),
        (&["run", "-r", trace, "-w", trace], "is the input"),
        (
            &["run", "-r", trace, "--slots", "1000000000"],
            "at most 4096",
        ),
        (
            &["run", "-r", trace, "--narrow", "60000", "--wide", "60000"],
            "at most 4096",
        ),
        (
            &["run", "-r", trace, "--slots", "8", "--wide", "1000"],
            "--narrow, --wide",
        ),
        (
            &["run", "-r", trace, "--datagram-max", "100"],
            "--datagram-max 100",
        ),
        (&["run", "-r", trace, "--wide-blocks", "0"], "set both to 0"),
        (&["run", "-r", trace, "--columns", "class"], "have no class"),
        (
            &["run", "-r", trace, "--columns", "sizes"],
            "columns are time,size",
        ),
        (&["run", "-r", trace, "--send-to", "127.0.0.1"], "HOST:PORT"),
        (
            &["run", "-r", trace, "--send-to", "127.0.0.1:9,port=1"],
            "src, dst, sport",
        ),
        (
            &[
                "run",
                "-r",
                trace,
                "--send-to",
                "127.0.0.1:9,src=10.0.0.0/33",
            ],
            "network",
        ),
        (
            &["run", "-r", trace, "--send-to", "127.0.0.1:9,dport=9-1"],
            "range of ports",
        ),
        (&["agent"], "--listen"),
        (
            &["agent", "--listen", "127.0.0.1:0", "--allow", "here"],
            "network",
        ),
        (&["agent", "-r", trace, "-w", "-"], "needs a name"),
        (
            &[
                "agent",
                "-r",
                trace,
                "--flows",
                "1000000",
                "--senders",
                "1000",
            ],
            "MiB",
        ),
    ] {
        let said = says(&mut gpv(words), 2);
        assert!(said.contains(expected), "{words:?}: {said}");
    }
    // Nothing is replaced if there is nothing to read.
    let kept = dir.path().join("kept");
    fs::write(&kept, "mine").unwrap();
    let said = says(gpv(&["run", "-r", "/missing", "-w"]).arg(&kept), 1);
    assert!(said.contains("/missing"), "{said}");
    assert_eq!(fs::read(&kept).unwrap(), b"mine");
    let said = says(&mut gpv(&["run", "-r", trace, "-w", "/dev/full"]), 1);
    assert!(said.contains("/dev/full: cannot write"), "{said}");
    let said = says(gpv(&["agent", "-r", trace, "-w"]).arg(&kept), 1);
    assert!(said.contains("wrong magic number"), "{said}");
}
