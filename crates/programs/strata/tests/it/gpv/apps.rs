//! `strata gpv bursts`, `profile` and `classify` equal naive programs over what tshark says, and say what they lack.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use strata_gpv::application::{FLOW_FEATURES, Forest};
use strata_testkit::data_dir;

use super::models::has_python;
use super::{gpv, labelled, says, strata};
use crate::ask::vectors::of_switches;
use crate::common::naive::{Dissected, FILTER, dissected};
use crate::common::program::ok;

fn vectors_of(trace: &Path, dir: &Path) -> String {
    let file = dir.join("vectors.gpv").to_str().unwrap().to_owned();
    ok(gpv(&["run", "-w", &file, "-r"]).arg(trace).arg(FILTER));
    file
}

fn lines(text: &str) -> Vec<Value> {
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// A source of a burst: first packet, first and last that met the long queue, these, all packets, bytes; the source,
/// its packets and bytes.
type Row = ([u64; 6], String, [u64; 2]);

/// One queue that all packets go through.
fn naive_bursts(packets: &[Dissected], rate: u128, queue: u128, lookback: u64) -> Vec<Row> {
    let mut order: Vec<&Dissected> = packets.iter().collect();
    order.sort_by_key(|packet| packet.ns);
    // In bits times 10^9, so that all is exact.
    let (mut backlog, mut last) = (0_u128, 0);
    let mut long = Vec::new();
    for (at, packet) in order.iter().enumerate() {
        let sent = u128::from(packet.ns - last) * rate;
        backlog = backlog.saturating_sub(sent);
        if backlog > queue * 8_000_000_000 {
            long.push(at);
        }
        backlog += u128::from(packet.len) * 8_000_000_000;
        last = packet.ns;
    }
    let mut rows = Vec::new();
    let mut from = 0;
    for met in long.chunk_by(|&a, &b| order[b].ns - order[a].ns <= lookback) {
        let (&start, &end) = (met.first().unwrap(), met.last().unwrap());
        let walked = (from..=start).find(|&at| order[start].ns - order[at].ns <= lookback);
        let burst = &order[walked.unwrap()..=end];
        from = end + 1;
        let mut sources = BTreeMap::<&str, [u64; 2]>::new();
        for packet in burst {
            let sums = sources.entry(&packet.source).or_default();
            *sums = [sums[0] + 1, sums[1] + packet.len];
        }
        let of_burst = [
            burst[0].ns,
            order[start].ns,
            order[end].ns,
            met.len() as u64,
            burst.len() as u64,
            burst.iter().map(|packet| packet.len).sum(),
        ];
        rows.extend(
            sources
                .into_iter()
                .map(|(source, sums)| (of_burst, source.to_owned(), sums)),
        );
    }
    rows.sort();
    rows
}

#[test]
fn bursts_and_their_sources_equal_a_naive_queue() {
    let dir = tempfile::tempdir().unwrap();
    // Of packets with the same time, the first is not known: here, all times differ.
    let trace = dir.path().join("trace.pcap");
    let mut generate = strata();
    generate.args([
        "generate",
        "--profile",
        "cic-w3",
        "-c",
        "3k",
        "--pps",
        "10k",
        "--seed",
        "7",
        "-o",
    ]);
    ok(generate.arg(&trace));
    let file = vectors_of(&trace, dir.path());
    let packets = dissected(&trace);
    for (rate, queue) in [(60_000_000, 20_000), (75_000_000, 3000)] {
        let when = format!("model:{rate}/{queue}");
        let answer = ok(&mut gpv(&[
            "bursts",
            &file,
            "--when",
            &when,
            "--lookback",
            "2ms",
            "--burst-max",
            "1h",
            "--top",
            "60000",
            "--hold",
            "1d",
            "--json",
        ]));
        let number = |row: &Value, name: &str| row[name].as_u64().unwrap();
        let mut found: Vec<Row> = lines(&answer)
            .iter()
            .map(|row| {
                assert_eq!(row["continues"], false);
                let of_burst = ["first", "start", "end", "congested", "packets", "bytes"];
                let source = ["source_packets", "source_bytes"];
                (
                    of_burst.map(|name| number(row, name)),
                    row["source"].as_str().unwrap().to_owned(),
                    source.map(|name| number(row, name)),
                )
            })
            .collect();
        found.sort();
        let expected = naive_bursts(&packets, rate, queue, 2_000_000);
        assert!(expected.len() > 10, "{} rows", expected.len());
        assert_eq!(found, expected, "{when}");
    }
}

#[test]
fn profiles_equal_the_times_that_tshark_says() {
    let dir = tempfile::tempdir().unwrap();
    let trace = labelled("cic2019-webddos");
    let file = vectors_of(&trace, dir.path());
    let mut expected = BTreeMap::<String, Vec<u64>>::new();
    for packet in dissected(&trace) {
        expected.entry(packet.source).or_default().push(packet.ns);
    }
    expected
        .values_mut()
        .for_each(|times| times.sort_unstable());
    let mut found = BTreeMap::<String, Vec<u64>>::new();
    let times = ok(&mut gpv(&["profile", &file, "--times", "-F", "csv"]));
    for row in times.lines().skip(1) {
        let cells: Vec<&str> = row.split(',').collect();
        let of_host = found.entry(cells[1].to_owned()).or_default();
        of_host.push(cells[2].parse().unwrap());
    }
    assert_eq!(found, expected);
    let rows = lines(&ok(&mut gpv(&["profile", &file, "--json"])));
    assert_eq!(rows.len(), expected.len());
    for row in rows {
        let times = &expected[row["host"].as_str().unwrap()];
        let mut gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        gaps.sort_unstable();
        assert_eq!(row["packets"], times.len());
        assert_eq!(row["first"], times[0]);
        let expected = match gaps.len() {
            0 => Value::Null,
            count => gaps[(count * 99).div_ceil(100) - 1].into(),
        };
        assert_eq!(row["gap_p99"], expected, "{row}");
        assert_eq!(
            row["gap_max"],
            gaps.last().copied().map_or(Value::Null, Value::from)
        );
    }
    let said = says(&mut gpv(&["profile", &file, "--packets-max", "100"]), 1);
    assert!(
        said.contains("left out") && said.contains("incomplete"),
        "{said}"
    );
}

#[test]
fn flows_get_the_classes_of_their_features() {
    if !has_python() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let features = |name: &str, file: &str| {
        let folder = data_dir().join("labelled").join(name);
        let mut command = gpv(&["features", "-o", file, "-r"]);
        command.arg(folder.join("trace.pcap")).arg("--labels");
        ok(command.arg(folder.join("labels.csv")));
    };
    let (flows, forest) = (path("flows.csv"), path("flows.forest"));
    features("ad-attacks", &flows);
    ok(&mut gpv(&["train", &flows, "-o", &forest]));
    let tested = path("tested.csv");
    features("cic2019-webddos", &tested);
    let read = Forest::parse(&fs::read_to_string(&forest).unwrap()).unwrap();
    let mut expected = Vec::new();
    let mut table = csv::Reader::from_path(&tested).unwrap();
    for row in table.records().map(Result::unwrap) {
        let features = std::array::from_fn(|at| row[7 + at].parse().unwrap());
        read.classify(&[features], |_, class, _| {
            expected.push([&row[2], &row[3], &row[4], &read.classes()[class]].map(str::to_owned));
        });
    }
    expected.sort();
    // By a pipe, as packets of a capture are classified.
    let trace = labelled("cic2019-webddos");
    let mut run = gpv(&["run", "-w", "-", "-r", trace.to_str().unwrap()]);
    let mut run = run.stdout(Stdio::piped()).spawn().unwrap();
    let mut classify = gpv(&["classify", "-", "-m", &forest, "-F", "csv"]);
    let answer = ok(classify.stdin(run.stdout.take().unwrap()));
    assert!(run.wait().unwrap().success());
    let mut found: Vec<[String; 4]> = answer
        .lines()
        .skip(1)
        .map(|row| {
            let cells: Vec<&str> = row.split(',').collect();
            [6, 7, 8, 10].map(|at| cells[at].to_owned())
        })
        .collect();
    found.sort();
    assert!(expected.len() > 50, "{} flows", expected.len());
    assert_eq!(found, expected);
    let said = says(&mut gpv(&["classify", "-", "-m", &flows]), 1);
    assert!(said.contains("flows.csv"), "{said}");
}

#[test]
fn what_is_lacking_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let trace = labelled("cic2019-webddos");
    let file = vectors_of(&trace, dir.path());
    let said = says(&mut gpv(&["bursts", &file]), 2);
    assert!(said.contains("do not have high_queue"), "{said}");
    let said = says(&mut gpv(&["bursts", &file, "--when", "model:1M"]), 2);
    assert!(said.contains("RATE/BYTES"), "{said}");
    let said = says(&mut gpv(&["bursts", "udp://0.0.0.0:0", "--when", "ecn"]), 2);
    assert!(said.contains("--allow"), "{said}");
    let said = says(&mut gpv(&["profile", &file, "-w", &file]), 2);
    assert!(said.contains("vectors.gpv"), "{said}");
    let mut datagrams = of_switches(50);
    datagrams.remove(3);
    let lossy = dir.path().join("lossy.gpv");
    fs::write(&lossy, datagrams.concat()).unwrap();
    let said = says(gpv(&["bursts", "--when", "depth:900"]).arg(&lossy), 1);
    assert!(said.contains("never arrived"), "{said}");
    let bytes = fs::read(&file).unwrap();
    let cut = dir.path().join("cut.gpv");
    fs::write(&cut, &bytes[..bytes.len() - 20]).unwrap();
    let said = says(gpv(&["profile"]).arg(&cut), 1);
    assert!(said.contains("cut.gpv"), "{said}");
}

/// The rows of an answer in CSV, in a fixed order.
fn sorted(csv: &str) -> Vec<&str> {
    let mut rows: Vec<&str> = csv.lines().skip(1).collect();
    rows.sort_unstable();
    rows
}

#[test]
fn rows_do_not_depend_on_the_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let trace = vectors_of(&labelled("ad-attacks"), dir.path());
    let switches = dir.path().join("switches.gpv");
    // More records than a round has.
    fs::write(&switches, of_switches(2000).concat()).unwrap();
    let switches = switches.to_str().unwrap();
    let forest = dir.path().join("flows.forest");
    let text = format!(
        "strata-flow-forest 1\nfeatures {}\nclass small\nclass large\ntree\nsplit {} 100 1 2\nleaf 1 0\nleaf 0 1\n",
        FLOW_FEATURES.join(" "),
        FLOW_FEATURES[0]
    );
    fs::write(&forest, text).unwrap();
    let forest = forest.to_str().unwrap();
    for (file, words) in [
        (trace.as_str(), vec!["profile"]),
        (&trace, vec!["profile", "--times"]),
        (&trace, vec!["classify", "-m", forest]),
        (switches, vec!["profile", "--times"]),
        (switches, vec!["classify", "-m", forest]),
    ] {
        let rows = |jobs| ok(gpv(&words).args([file, "-F", "csv", "--jobs", jobs]));
        let expected = rows("1");
        assert!(sorted(&expected).len() > 5, "{expected}");
        for jobs in ["2", "5"] {
            let found = rows(jobs);
            assert_eq!(sorted(&found), sorted(&expected), "{words:?} {jobs}");
            // Times of a switch are in order, of one host after the other.
            assert!(
                words[0] != "profile" || found == expected,
                "{words:?} {jobs}"
            );
        }
    }
    // What one thread leaves out is left out by several, and said.
    let few = ["profile", switches, "--packets-max", "1000", "-F", "csv"];
    for jobs in ["1", "3"] {
        let said = says(gpv(&few).args(["--jobs", jobs]), 1);
        assert!(
            said.contains("there is room for --packets-max packets"),
            "{said}"
        );
    }
    says(gpv(&few).args(["--jobs", "0"]), 2);
}
