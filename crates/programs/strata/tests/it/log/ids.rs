//! Labels from an IDS or given by hand, for captures and for logs: the path a user takes.
#![allow(clippy::print_stderr, reason = "says why it did not run")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use strata_testkit::workspace_root;

fn strata(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
    command.args(arguments).output().unwrap()
}

fn succeeds(arguments: &[&str]) -> (String, String) {
    let output = strata(arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {errors}");
    (String::from_utf8(output.stdout).unwrap(), errors)
}

/// 2026-01-01 00:00:00 UTC.
const BEGIN_S: u32 = 1_767_225_600;
const FLOWS: u16 = 120;

/// Every third flow guesses passwords, with small packets; the others carry data.
fn is_attack(flow: u16) -> bool {
    flow.is_multiple_of(3)
}

/// Attackers are 10.9.0.x, their targets 10.8.0.1; the others 10.0.0.x and 10.1.0.1.
fn ends(flow: u16) -> ([u8; 4], [u8; 4]) {
    let host = u8::try_from(flow % 200).unwrap();
    match is_attack(flow) {
        true => ([10, 9, 0, host], [10, 8, 0, 1]),
        false => ([10, 0, 0, host], [10, 1, 0, 1]),
    }
}

/// A pcap file of TCP flows of 6 packets each, a second apart.
fn capture(path: &Path) {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for packet in 0..6_u16 {
        for flow in 0..FLOWS {
            let payload = match is_attack(flow) {
                true => 10 + flow % 7,
                false => 400 + 100 * (flow % 7) + packet,
            };
            let len = 14 + 20 + 20 + payload;
            let head = [
                BEGIN_S + u32::from(packet),
                u32::from(flow) * 1_000,
                len.into(),
                len.into(),
            ];
            head.iter().for_each(|word| file.extend(word.to_le_bytes()));
            file.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
            let total = (len - 14).to_be_bytes();
            file.extend([0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, 6, 0, 0]);
            let (source, destination) = ends(flow);
            file.extend(source.iter().chain(&destination));
            file.extend((40_000 + flow).to_be_bytes());
            file.extend(22_u16.to_be_bytes());
            file.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
            file.extend(std::iter::repeat_n(b'x', payload.into()));
        }
    }
    std::fs::write(path, file).unwrap();
}

fn dotted(address: [u8; 4]) -> String {
    address.map(|byte| byte.to_string()).join(".")
}

/// Alerts on the second packet of each attack, and what else a sensor writes.
fn eve() -> String {
    let mut text = String::from(
        "{\"timestamp\":\"2026-01-01T00:00:00.000000+0000\",\"event_type\":\"stats\",\"stats\":{}}\n",
    );
    for flow in (0..FLOWS).filter(|flow| is_attack(*flow)) {
        let (source, destination) = ends(flow);
        writeln!(
            text,
            "{{\"timestamp\":\"2026-01-01T01:00:01.500000+0100\",\"flow_id\":{flow},\"event_type\":\"alert\",\
             \"src_ip\":\"{}\",\"src_port\":{},\"dest_ip\":\"{}\",\"dest_port\":22,\"proto\":\"TCP\",\
             \"alert\":{{\"action\":\"allowed\",\"gid\":1,\"signature_id\":1,\"rev\":1,\"signature\":\"x\",\
             \"category\":\"Attempted Administrator Privilege Gain\",\"severity\":1}},\
             \"flow\":{{\"start\":\"2026-01-01T01:00:00.000000+0100\"}}}}",
            dotted(source),
            40_000 + flow,
            dotted(destination),
        )
        .unwrap();
    }
    text.push_str("{\"event_type\":\"alert\"\n");
    text
}

struct Case {
    scratch: tempfile::TempDir,
}

impl Case {
    fn new() -> Self {
        let case = Self {
            scratch: tempfile::tempdir().unwrap(),
        };
        capture(Path::new(&case.path("trace.pcap")));
        std::fs::write(case.path("eve.json"), eve()).unwrap();
        case
    }

    fn path(&self, name: &str) -> String {
        self.scratch.path().join(name).to_str().unwrap().to_owned()
    }

    /// A log of the capture, benign packets as headers.
    fn log(&self) -> String {
        let (trace, log) = (self.path("trace.pcap"), self.path("log"));
        succeeds(&["record", "-r", &trace, "-o", &log]);
        log
    }
}

#[test]
fn alerts_label_their_flows_and_a_log_gives_the_features_of_its_capture() {
    let case = Case::new();
    let (trace, eve) = (case.path("trace.pcap"), case.path("eve.json"));
    let (csv, said) = succeeds(&["features", "-r", &trace, "--labels", &eve]);
    assert!(said.contains("720 packets have a label"), "{said}");
    assert!(said.contains("eve.json: line 42: ends within"), "{said}");
    let attacks = csv
        .lines()
        .filter(|line| line.contains(",anomalous,Attempted"));
    assert_eq!(attacks.count(), 240);
    let benign = csv
        .lines()
        .filter(|line| line.contains(",benign,no alert,"));
    assert_eq!(benign.count(), 480);
    let log = case.log();
    let (of_log, said) = succeeds(&["features", "-r", &log, "--labels", &eve]);
    assert!(said.contains("720 packets from the log, "), "{said}");
    assert!(
        said.contains(" % of them as headers, which are exact"),
        "{said}"
    );
    assert!(
        of_log == csv,
        "features of the log and of the capture differ"
    );

    // Frame numbers are those of a capture.
    std::fs::write(case.path("frames.csv"), "frame,label\n1,1\n").unwrap();
    let frames = case.path("frames.csv");
    let output = strata(&["features", "-r", &log, "--labels", &frames]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.contains("frames.csv: labels by frame number cannot be used for a log"),
        "{said}"
    );
    // Nor of two captures, whose packets are numbered as they are merged by time.
    let [twice, decisions] = ["twice.pcap", "decisions.parquet"].map(|name| case.path(name));
    std::fs::copy(&trace, &twice).unwrap();
    let both = ["-r", &*trace, "-r", &twice, "--labels", &frames];
    for command in [
        [&["features"][..], &both].concat(),
        [&["eval", "--decisions", &decisions][..], &both].concat(),
    ] {
        let output = strata(&command);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{command:?}: {said}");
        assert!(
            said.contains("frames.csv: labels by frame number are for one capture"),
            "{said}"
        );
    }
    succeeds(&["features", "-r", &trace, "--labels", &frames]);
    // Alerts of another network.
    std::fs::write(case.path("other.json"), self::eve().replace("10.", "172.")).unwrap();
    let other = case.path("other.json");
    let output = strata(&["features", "-r", &trace, "--labels", &other]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("none of the file's 40 rules or flows matches"),
        "{said}"
    );
    let output = strata(&[
        "features", "-r", &trace, "--labels", &eve, "--labels", &frames,
    ]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("frames.csv: cannot be combined with other label files"),
        "{said}"
    );
}

/// Packets of each class in what `strata features` prints of a capture with such labels, and what it says.
fn classes_of(case: &Case, name: &str, labels: &str) -> (BTreeMap<String, u32>, String) {
    let (trace, file) = (case.path("trace.pcap"), case.path(name));
    std::fs::write(&file, labels).unwrap();
    let (csv, said) = succeeds(&["features", "-r", &trace, "--labels", &file]);
    let mut lines = csv.lines();
    let mut header = lines.next().unwrap().split(',');
    let column = header.position(|name| name == "label").unwrap();
    let mut classes = BTreeMap::new();
    for line in lines {
        let class = line.split(',').nth(column).unwrap();
        *classes.entry(class.to_owned()).or_default() += 1;
    }
    (classes, said)
}

#[test]
fn a_missing_label_is_no_class_and_two_labels_are_not_one() {
    let case = Case::new();
    let classes = |text: &str| -> BTreeMap<String, u32> {
        let pairs = text.split(' ').map(|pair| pair.split_once('=').unwrap());
        pairs
            .map(|(class, n)| (class.to_owned(), n.parse().unwrap()))
            .collect()
    };
    // As pandas writes a column of numbers with missing values, and one of objects.
    let frames = "frame,label\n1,0.0\n2,1.0\n3,\n4,NaN\n5,-\n6,false\n7,True\n8,scan\n";
    let (found, said) = classes_of(&case, "frames.csv", frames);
    assert_eq!(found, classes("=715 anomalous=2 benign=2 scan=1"));
    assert!(
        said.contains("no label in 3 lines of the label file"),
        "{said}"
    );
    // The attackers' packets, but none of one attacker (flow 6: 6 packets).
    let rules = "address,label\n10.9.0.6,\n10.9.0.0/24,scan\n";
    let (found, _) = classes_of(&case, "rules.csv", rules);
    assert_eq!(found, classes("=486 scan=234"));
    let conn = |host: u8, label: &str| {
        format!(
            "{{\"ts\":{BEGIN_S},\"duration\":6.0,\"id.orig_h\":\"10.0.0.{host}\",\"id.orig_p\":{},\
             \"id.resp_h\":\"10.1.0.1\",\"id.resp_p\":22,\"proto\":\"tcp\",\"label\":{label}}}\n",
            40_000 + u16::from(host),
        )
    };
    let zeek = [
        (1, "\"scan\""),
        (2, "\"\""),
        (4, "null"),
        (5, "false"),
        (7, "\"-\""),
    ];
    let zeek: String = zeek.map(|(host, label)| conn(host, label)).concat();
    let (found, said) = classes_of(&case, "conn.json", &zeek);
    assert_eq!(found, classes("=708 benign=6 scan=6"));
    assert!(
        said.contains("no label in 3 lines of the label file"),
        "{said}"
    );

    let (trace, file) = (case.path("trace.pcap"), case.path("wrong.csv"));
    for (labels, says) in [
        ("1,скан\n", "line 2: label 'скан' has letters or digits"),
        ("1,?\n", "line 2: label '?' has no letter or digit"),
        (
            "1,a-b\n2,\"a,b\"\n",
            "line 3: labels 'a,b' and 'a-b' would both be the class 'a-b'",
        ),
    ] {
        std::fs::write(&file, format!("frame,label\n{labels}")).unwrap();
        let output = strata(&["features", "-r", &trace, "--labels", &file]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("wrong.csv") && said.contains(says), "{said}");
    }
    // Labels by hand: what the file could not be read with is not added to it.
    let (log, file) = (case.log(), case.path("hand.json"));
    let add = |label: &str| {
        let label = format!("--label={label}");
        strata(&[
            "labels", "add", &log, &label, "-o", &file, "host", "10.9.0.0",
        ])
    };
    assert!(add("a-b").status.success());
    let before = std::fs::read(&file).unwrap();
    for label in ["a,b", "скан", "?", "NaN", ""] {
        let output = add(label);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{label}: {said}");
        assert_eq!(std::fs::read(&file).unwrap(), before);
    }
}

#[test]
fn hosts_under_alert_are_left_out_unless_asked() {
    let case = Case::new();
    let (trace, eve) = (case.path("trace.pcap"), case.path("eve.json"));
    let mut text = std::fs::read_to_string(&eve).unwrap();
    // The server of the benign flows has one.
    text = text.replacen("10.8.0.1", "10.1.0.1", 1);
    std::fs::write(&eve, text).unwrap();
    let labels = |more: &[&str]| {
        let mut arguments = vec!["features", "-r", &trace, "--labels", &eve];
        arguments.extend(more);
        let (csv, _) = succeeds(&arguments);
        csv.lines().filter(|line| line.contains(",benign,")).count()
    };
    assert_eq!(labels(&[]), 0);
    assert_eq!(labels(&["--alert-quarantine", "0"]), 486);
    let mut classes = vec!["features", "-r", &trace, "--labels", &eve];
    classes.extend(["--alert-class", "category"]);
    let (csv, _) = succeeds(&classes);
    assert!(csv.contains(",attempted-administrator-privilege-gain,"));
}

#[test]
fn a_log_and_its_alerts_become_a_model() {
    let python: PathBuf = workspace_root().join("python/.venv/bin/python");
    if !python.exists() {
        eprintln!("not run: no python/.venv; `make python` makes it");
        assert!(std::env::var_os("CI").is_none(), "CI has no python/.venv");
        return;
    }
    let case = Case::new();
    let (log, eve, model) = (case.log(), case.path("eve.json"), case.path("model.json"));
    let mut train = vec!["train", &log, "--labels", &eve, "-o", &model, "--quiet"];
    train.extend(["--shape", "3x16", "--jobs", "1", "--recall", "0.8"]);
    let (said, _) = succeeds(&train);
    for line in [
        "labels: anomalous 240 packets of 40 flows; benign 480 packets of 80 flows",
        "from logs: 720 packets, ",
        "Attempted Administrator Privilege Gain",
        "verdict: met\n",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let (trace, again) = (case.path("trace.pcap"), case.path("again"));
    succeeds(&["record", "-m", &model, "-r", &trace, "-o", &again]);
    // What cannot be trained on is refused before the work.
    for (arguments, says) in [
        (
            &["train", &trace, "-o", &model][..],
            "a capture or a log needs --labels",
        ),
        (
            &["train", "x.parquet", "--labels", &eve, "-o", &model],
            "snapshots have their labels already",
        ),
    ] {
        let output = strata(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(says), "{said}");
    }
}

/// Packets of each class in what `strata features` prints.
fn classes(log: &str, labels: &str) -> [usize; 2] {
    let mut arguments = vec!["features", "-r", log, "--labels", labels];
    arguments.extend(["--otherwise", "benign"]);
    let (csv, _) = succeeds(&arguments);
    ["anomalous", "benign"].map(|class| {
        let class = format!(",{class},");
        csv.lines().filter(|line| line.contains(&class)).count()
    })
}

#[test]
fn flows_of_a_log_are_labelled_by_hand() {
    let case = Case::new();
    let (log, labels) = (case.log(), case.path("labels.json"));
    let add = |label: &str, more: &[&str]| {
        let first = ["labels", "add", &log, "--label", label, "-o", &labels];
        succeeds(&[&first[..], more].concat()).1
    };
    // One packet of each flow matches; the flow is all of its packets.
    let third = ["--from", "1767225602", "--to", "1767225603"];
    let said = add(
        "attack",
        &[&third[..], &["src", "net", "10.9.0.0/24"]].concat(),
    );
    let expected = "40 flows labelled anomalous (40 new, 0 had the label, 0 had another)";
    assert!(said.contains(expected), "{said}");
    assert_eq!(classes(&log, &labels), [240, 480]);
    let written = std::fs::read_to_string(&labels).unwrap();
    let first: serde_json::Value = serde_json::from_str(written.lines().next().unwrap()).unwrap();
    assert_eq!(first["id.orig_h"], "10.9.0.0");
    assert_eq!(first["id.resp_p"], 22);
    assert_eq!(first["duration"], 5.0);

    // Another label replaces the first, here of the flow that an alert names.
    let (flows, _) = succeeds(&["export", &log, "-F", "json", "-w", "-", "host 10.9.0.3"]);
    let flow: serde_json::Value = serde_json::from_str(flows.lines().next().unwrap()).unwrap();
    let id = flow["community_id"].as_str().unwrap();
    let said = add("benign", &["--community-id", id]);
    let expected = "1 flow labelled benign (0 new, 0 had the label, 1 had another)";
    assert!(said.contains(expected), "{said}");
    assert_eq!(classes(&log, &labels), [234, 486]);
    let said = add("attack", &["net", "10.9.0.0/24"]);
    let expected = "40 flows labelled anomalous (0 new, 39 had the label, 1 had another)";
    assert!(said.contains(expected), "{said}");
    let again = std::fs::read_to_string(&labels).unwrap();
    assert_eq!(
        again.lines().count(),
        40,
        "labels are replaced, not repeated"
    );
    let changed = again.lines().zip(written.lines()).filter(|(a, b)| a != b);
    assert!(changed.count() <= 1, "what does not change stays as it is");
    assert_eq!(classes(&log, &labels), [240, 480]);

    // What would be a mistake is refused, and the file stays as it is.
    let inside = format!("{log}/labels.json");
    let trace = case.path("trace.pcap");
    let before = std::fs::read(&trace).unwrap();
    for (label, file, more, status, says) in [
        (
            "attack",
            &labels,
            vec![],
            2,
            "no flows selected: give a filter",
        ),
        (
            "-",
            &labels,
            vec!["tcp"],
            2,
            "'-' is not the name of a class",
        ),
        (
            "attack",
            &labels,
            vec!["udp"],
            1,
            "no flow of the log matches",
        ),
        (
            "attack",
            &labels,
            vec!["--community-id", "x"],
            2,
            "not a Community ID",
        ),
        (
            "attack",
            &labels,
            // A character is missing.
            vec!["--community-id", "1:LQU9qZlK+B5F3KDmev6m5PMibrg"],
            2,
            "--community-id '1:LQU9qZlK+B5F3KDmev6m5PMibrg' is not a Community ID",
        ),
        ("attack", &inside, vec!["tcp"], 2, "log"),
        ("attack", &trace, vec!["tcp"], 1, "trace.pcap: "),
    ] {
        let label = format!("--label={label}");
        let first = ["labels", "add", &log, &label, "-o", file];
        let output = strata(&[&first[..], &more].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{more:?}: {said}");
        assert!(said.contains(says), "{says}: {said}");
    }
    assert!(std::fs::read_to_string(&labels).unwrap() == again);
    assert!(std::fs::read(&trace).unwrap() == before);
}

#[test]
fn a_log_and_labels_by_hand_become_a_model() {
    let python: PathBuf = workspace_root().join("python/.venv/bin/python");
    if !python.exists() {
        eprintln!("not run: no python/.venv; `make python` makes it");
        assert!(std::env::var_os("CI").is_none(), "CI has no python/.venv");
        return;
    }
    let case = Case::new();
    let (log, labels, model) = (
        case.log(),
        case.path("labels.json"),
        case.path("model.json"),
    );
    for (label, net) in [("guessing", "10.9.0.0/24"), ("benign", "10.0.0.0/24")] {
        let first = ["labels", "add", &log, "--label", label, "-o", &labels];
        succeeds(&[&first[..], &["net", net]].concat());
    }
    let mut train = vec!["train", &log, "--labels", &labels, "-o", &model, "--quiet"];
    train.extend(["--shape", "3x16", "--jobs", "1", "--recall", "0.8"]);
    let (said, _) = succeeds(&train);
    for line in [
        "labels: benign 480 packets of 80 flows; guessing 240 packets of 40 flows",
        "verdict: met\n",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
}

#[test]
fn without_the_package_no_capture_is_read_for_a_page() {
    let case = Case::new();
    // Its labels would be refused, if they were read.
    let (trace, none, page) = (
        case.path("trace.pcap"),
        case.path("none.csv"),
        case.path("page.html"),
    );
    let model = case.path("model.json");
    for command in [
        vec!["eval", "-r", &trace, "--labels", &none, "--report", &page],
        vec!["train", &trace, "--labels", &none, "-o", &model],
    ] {
        let mut strata = Command::new(env!("CARGO_BIN_EXE_strata"));
        let output = strata
            .args(&command)
            .env("STRATA_PYTHON", "/bin/false")
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains("cannot import the package `strata`"),
            "{said}"
        );
        assert!(!said.contains("none.csv"), "{said}");
    }
}
