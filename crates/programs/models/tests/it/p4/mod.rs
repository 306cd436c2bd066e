//! `p4/titanlog.spec` in DPDK's software switch, with the tables of `strata model p4`, against Strata's classifier:
//! packets out, byte for byte, and all registers.

mod oracle;
mod sketch;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use strata_classify::Model;
use strata_policy::Mode;
use strata_sketch::{Feature, Level};
use strata_testkit::capture::{Frame, read, write};
use strata_testkit::switch;
use strata_testkit::{data_dir, format_captures, labelled_captures, workspace_root};
use strata_wire::Granularity;

use oracle::{Expected, expected};

/// Runs a program that has to succeed, and returns its output.
fn ok(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let (out, errors) = (
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr),
    );
    assert!(status.success(), "{command:?}: {status}\n{out}{errors}");
    out.into_owned()
}

fn p4() -> PathBuf {
    workspace_root().join("p4")
}

/// The runner of `p4/swx.c`, where it can be built.
fn runner() -> Option<&'static Path> {
    switch::runner(Path::new(env!("CARGO_TARGET_TMPDIR")))
}

/// A model, its tables in a folder, and the granularity of each class and of what is not dissected.
struct Setup {
    model: Model,
    granularities: Vec<Granularity>,
    tables: tempfile::TempDir,
}

impl Setup {
    /// Tables that the program under test writes.
    fn new(json: Option<&Value>, mode: &str) -> Self {
        let tables = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_strata-models"));
        command
            .args(["model", "p4", "--packet-trees", "--mode", mode, "-o"])
            .arg(tables.path());
        let default = workspace_root().join("models/default.json");
        let mut bytes = fs::read(default).unwrap();
        if let Some(json) = json {
            bytes = json.to_string().into_bytes();
            let file = tables.path().join("model.json");
            fs::write(&file, &bytes).unwrap();
            command.arg("-m").arg(file);
        }
        let said = ok(&mut command);
        assert!(said.contains("tree_0") && said.contains("decide"), "{said}");
        let mut model = Model::from_json(&bytes).unwrap();
        // Without flow trees, Strata decides by packet trees alone.
        model.flow_trees.clear();
        model.known = None;
        let mode = Mode::by_name(mode, &BTreeMap::new()).unwrap();
        let granularities = mode.granularities(&model).unwrap();
        Self {
            model,
            granularities,
            tables,
        }
    }

    /// Runs a capture through the switch and through the oracle. Returns what was expected, and found.
    fn compare(&self, runner: &Path, capture: &Path) -> Expected {
        let out = tempfile::tempdir().unwrap();
        let said = ok(Command::new(runner)
            .arg("run")
            .arg(p4().join("titanlog.spec"))
            .args([self.tables.path(), capture, out.path()]));
        let expected = expected(&self.model, &self.granularities, &read(capture));
        let mut lines = BTreeMap::new();
        for line in said.lines() {
            let (name, value) = line.rsplit_once(' ').unwrap();
            lines.insert(name.to_owned(), value.parse::<u64>().unwrap());
        }
        for (port, frames) in expected.ports.iter().enumerate() {
            let left = read(&out.path().join(format!("port{port}.pcap")));
            let first = left
                .iter()
                .zip(frames)
                .position(|(left, frame)| left != frame);
            assert_eq!(
                first,
                None,
                "{}: frame of port {port} that differs",
                capture.display()
            );
            assert_eq!(
                left.len(),
                frames.len(),
                "{}: frames of port {port}",
                capture.display()
            );
            let bytes: usize = frames.iter().map(|frame| frame.bytes.len()).sum();
            let line = format!("port {port} {}", frames.len());
            assert_eq!(
                lines.remove(&line),
                Some(u64::try_from(bytes).unwrap()),
                "{line}"
            );
        }
        assert_eq!(lines, expected.counters, "{}", capture.display());
        expected
    }
}

/// What both did, added up, so that a comparison of nothing does not pass.
fn frames_of(all: &[Expected], name: &str) -> u64 {
    all.iter().filter_map(|one| one.counters.get(name)).sum()
}

#[test]
fn the_switch_decides_as_strata_does_on_labelled_captures() {
    let Some(runner) = runner() else { return };
    let setup = Setup::new(None, "default");
    let captures = labelled_captures();
    let all: Vec<Expected> = captures
        .iter()
        .map(|capture| setup.compare(runner, capture))
        .collect();
    assert!(all.len() >= 10, "{} captures", all.len());
    for (name, least) in [
        ("frames", 200_000),
        ("register class_packets 0", 30_000),
        ("register class_packets 1", 30_000),
        ("register class_packets 8", 1_000),
        // Longer than the runner's room.
        ("cut", 5),
    ] {
        let found = frames_of(&all, name);
        assert!(found >= least, "{name}: {found}");
    }
}

#[test]
fn it_decides_alike_on_all_captures_of_ethernet() {
    let Some(runner) = runner() else { return };
    let frames: Vec<Frame> = format_captures()
        .iter()
        .flat_map(|file| read(file))
        .collect();
    assert!(frames.len() > 20_000, "{} frames", frames.len());
    let folder = tempfile::tempdir().unwrap();
    let merged = folder.path().join("merged.pcap");
    write(&merged, &frames);
    let done = Setup::new(Some(&many_classes()), "log-partial").compare(runner, &merged);
    // Reasons to be beyond the parser, of which others are below, and each class.
    for beyond in [0, 1, 3, 4, 5] {
        let name = format!("register beyond_packets {beyond}");
        assert!(done.counters[&name] > 0, "{name}");
    }
    for class in 0..5 {
        let name = format!("register class_packets {class}");
        assert!(done.counters[&name] > 0, "{name}");
    }
    assert!(done.counters["short"] > 0, "no short frame");
}

#[test]
fn each_granularity_leaves_what_it_says() {
    let Some(runner) = runner() else { return };
    let capture = data_dir().join("labelled/mix-test/trace.pcap");
    for mode in ["log-partial", "log-all"] {
        Setup::new(None, mode).compare(runner, &capture);
    }
    // As an operator changes the table by hand.
    let mut setup = Setup::new(None, "default");
    let entries = "match 0x0 action keep kind 0x0 port 0x0\n\
                   match 0x1 action keep kind 0x1 port 0x0\n\
                   match 0x8 action keep kind 0x2 port 0x1\n";
    fs::write(setup.tables.path().join("granularity.txt"), entries).unwrap();
    let parse = |text: &&str| text.parse().unwrap();
    setup.granularities = ["drop", "header", "partial 128"]
        .iter()
        .map(parse)
        .collect();
    let done = setup.compare(runner, &capture);
    assert!(done.counters["dropped"] > 10_000);
}

/// Five classes, and trees that test every feature of packets.
fn many_classes() -> Value {
    let features: Vec<Feature> = Feature::ALL
        .iter()
        .copied()
        .filter(|f| f.level() == Level::Packet)
        .collect();
    let mut state = 7_u64;
    let mut next = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut tree = |number: usize| {
        let mut nodes = Vec::new();
        for at in 0..31 {
            let feature = (number * 5 + at) % features.len();
            let at_most = match features[feature] {
                Feature::Protocol => 6 + next(8),
                Feature::Ecn => next(3),
                Feature::Tos | Feature::TcpFlags => next(64),
                Feature::Ttl => 32 + next(128),
                Feature::HeaderLen => 40 + next(40),
                Feature::Size | Feature::PayloadLen => next(900),
                Feature::LowerPort => next(2_000),
                _ => next(60_000),
            };
            nodes.push(json!({"feature": feature, "at_most": at_most, "left": 2 * at + 1, "right": 2 * at + 2}));
        }
        for _ in 0..32 {
            let one = next(5);
            let shares: Vec<f64> = (0..5)
                .map(|class| if class == one { 0.8 } else { 0.05 })
                .collect();
            nodes.push(json!({ "classes": shares }));
        }
        json!({ "nodes": nodes })
    };
    let name = |class: usize| format!("class-{class}");
    let features_used: Vec<Value> = features
        .iter()
        .map(|f| json!({"name": f.name(), "unit": f.unit()}))
        .collect();
    let classes: Vec<Value> = (0..5)
        .map(|n| json!({"name": name(n), "anomalous": n > 2}))
        .collect();
    let rules: Vec<Value> = [3_u32, 1, 2, 4]
        .map(|n| json!({"class": format!("class-{n}"), "score_at_least": 0.237 + 0.01 * f64::from(n)}))
        .into();
    let trees: Vec<Value> = (0..8).map(&mut tree).collect();
    json!({
        "format": "strata-model", "version": 1, "name": "many", "window_ns": 1_000_000_000,
        "classes": classes, "features": features_used, "flow_trees": [], "packet_trees": trees,
        "decision": {"rules": rules, "otherwise": name(0)},
    })
}

#[test]
fn frames_that_are_wrong_on_purpose_are_dropped_cut_or_beyond() {
    let Some(runner) = runner() else { return };
    let folder = tempfile::tempdir().unwrap();
    let capture = folder.path().join("wrong.pcap");
    let mut frames = Vec::new();
    // Every length of a tagged packet with options, IPv4 and IPv6, and of the same with a byte changed.
    for base in [oracle::tagged_ipv4(), oracle::tagged_ipv6()] {
        for len in 0..=base.len() {
            frames.push(base[..len].to_vec());
        }
        for at in 12..base.len().min(90) {
            for value in [0, 1, 4, 0x0f, 0x40, 0x4f, 0x55, 0x81, 0xf5, 0xff] {
                let mut changed = base.clone();
                changed[at] = value;
                frames.push(changed);
            }
        }
        let mut long = base.clone();
        long.resize(70_000, 7);
        frames.push(long);
    }
    let frames = frames.into_iter().enumerate().map(|(number, bytes)| Frame {
        ts_ns: 1_700_000_000_000_000_000 + u64::try_from(number).unwrap(),
        wire_len: u32::try_from(bytes.len()).unwrap(),
        bytes,
    });
    write(&capture, &frames.collect::<Vec<_>>());
    let done = Setup::new(None, "log-partial").compare(runner, &capture);
    assert_eq!((done.counters["short"], done.counters["cut"]), (28, 2));
    for beyond in [0, 1, 2, 3, 4, 6] {
        let name = format!("register beyond_packets {beyond}");
        assert!(done.counters[&name] > 0, "{name}");
    }
}

#[test]
fn dpdk_reads_the_program_and_faults_in_it_are_said() {
    let Some(runner) = runner() else { return };
    ok(Command::new(runner)
        .arg("check")
        .arg(p4().join("titanlog.spec")));
    let folder = tempfile::tempdir().unwrap();
    let spec = fs::read_to_string(p4().join("titanlog.spec")).unwrap();
    let wrong = folder.path().join("wrong.spec");
    fs::write(
        &wrong,
        spec.replace("regarray class_packets", "regfarray class_packets"),
    )
    .unwrap();
    let capture = folder.path().join("none.pcap");
    write(&capture, &[]);
    let run = |spec: &Path, capture: &Path| {
        let run = Command::new(runner)
            .arg("run")
            .arg(spec)
            .arg(folder.path())
            .arg(capture)
            .arg(folder.path())
            .output();
        let run = run.unwrap();
        assert_eq!(run.status.code(), Some(1));
        String::from_utf8(run.stderr).unwrap()
    };
    let said = run(&wrong, &capture);
    assert!(said.contains("unknown statement regfarray"), "{said}");
    fs::write(&capture, b"not a capture, but long enough to be one").unwrap();
    let said = run(&p4().join("titanlog.spec"), &capture);
    assert!(said.contains("not a classic pcap file"), "{said}");
    write(&capture, &[]);
    fs::write(
        folder.path().join("tree_3.txt"),
        "match 0x1/0x1 action leaf\n",
    )
    .unwrap();
    let said = run(&p4().join("titanlog.spec"), &capture);
    assert!(
        said.contains("tree_3.txt:1: not an entry of table tree_3"),
        "{said}"
    );
}

#[test]
fn faults_in_a_program_are_found() {
    let check = |spec: &Path, program: &Path| {
        let script = p4().join("check.py");
        Command::new("python3")
            .arg(script)
            .arg(spec)
            .arg(program)
            .output()
            .unwrap()
    };
    let (spec, program) = (p4().join("titanlog.spec"), p4().join("titanlog.p4"));
    let checked = check(&spec, &program);
    let errors = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{errors}");
    // Faults that it finds.
    let folder = tempfile::tempdir().unwrap();
    let (spec_text, program_text) = (
        fs::read_to_string(&spec).unwrap(),
        fs::read_to_string(&program).unwrap(),
    );
    let changed = folder.path().join("changed");
    for (from, to, problem) in [
        (
            "\tregadd class_bytes",
            "\tregadd class_packets m.kind 1\n\tregadd class_bytes",
            "class_packets is accessed",
        ),
        (
            "regarray beyond_packets size 8",
            "regarray beyond_packets size 9",
            "beyond_packets",
        ),
        ("table tree_7\n", "table tree_6\n", "tree_6 is applied"),
        ("\t\tm.ttl wildcard", "\t\tm.tos wildcard", "range_ttl"),
    ] {
        let text = spec_text.replace(from, to);
        assert_ne!(text, spec_text);
        fs::write(&changed, text).unwrap();
        let found = check(&changed, &program);
        let errors = String::from_utf8_lossy(&found.stderr);
        assert!(
            !found.status.success() && errors.contains(problem),
            "{problem}: {errors}"
        );
    }
    let twice = "count = class_bytes.read(m.class);";
    let text = program_text.replace(
        twice,
        &format!("{twice}\n        count = class_bytes.read(m.kind);"),
    );
    assert_ne!(text, program_text);
    fs::write(&changed, text).unwrap();
    let found = check(&spec, &changed);
    assert!(!found.status.success());
}

#[test]
fn a_form_that_was_changed_alone_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("include")).unwrap();
    let names = ["titanlog.spec", "titanlog.p4", "forms.txt"].map(String::from);
    let included = ["headers", "parser"].map(|name| format!("include/{name}.p4"));
    for name in names.iter().chain(&included) {
        fs::copy(p4().join(name), at(name)).unwrap();
    }
    let check = || {
        let mut command = Command::new("python3");
        command.arg("-B").arg(p4().join("check.py"));
        let Output { status, stderr, .. } = command
            .args([at("titanlog.spec"), at("titanlog.p4")])
            .output()
            .unwrap();
        (status.success(), String::from_utf8(stderr).unwrap())
    };
    assert_eq!(check(), (true, String::new()));
    let change = |name: &str, from: &str, to: &str| {
        let text = fs::read_to_string(at(name)).unwrap();
        assert!(text.contains(from), "{name}: {from}");
        fs::write(at(name), text.replace(from, to)).unwrap();
    };
    // A comment does not count.
    change(
        "titanlog.p4",
        "// Tests that a value fails, of all trees.",
        "// Marks.",
    );
    assert!(check().0);
    change(
        "titanlog.spec",
        "mov m.header_len m.at",
        "mov m.header_len m.limit",
    );
    let (is_right, said) = check();
    assert!(
        !is_right && said.contains("titanlog: .spec changed"),
        "{said}"
    );
    change("include/headers.p4", "PARTIAL = 128", "PARTIAL = 64");
    let (is_right, said) = check();
    assert!(
        !is_right && said.contains(".p4 and .spec changed"),
        "{said}"
    );
}
