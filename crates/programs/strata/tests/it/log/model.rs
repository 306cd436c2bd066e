//! From a labelled capture to a model that records: the path a user takes.
#![allow(clippy::print_stderr, reason = "says why it did not run")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use strata_testkit::{data_dir, workspace_root};

fn strata(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
    command.args(arguments).output().unwrap()
}

fn succeeds(arguments: &[&str]) -> String {
    let output = strata(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The interpreter of `make python`; without it the test cannot run.
fn has_python() -> bool {
    let there = workspace_root().join("python/.venv/bin/python").exists();
    if !there {
        eprintln!("not run: no python/.venv; `make python` makes it");
        assert!(std::env::var_os("CI").is_none(), "CI has no python/.venv");
    }
    there
}

struct Capture {
    trace: String,
    labels: String,
}

fn capture(name: &str) -> Capture {
    let folder = data_dir().join("labelled").join(name);
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    Capture {
        trace: text(folder.join("trace.pcap")),
        labels: text(folder.join("labels.csv")),
    }
}

#[test]
fn a_model_is_trained_judged_and_records() {
    if !has_python() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let Capture { trace, labels } = capture("mix-train");
    let snapshots = path("snapshots.parquet");
    succeeds(&[
        "features", "-r", &trace, "--labels", &labels, "-o", &snapshots,
    ]);
    let (model, report) = (path("model.json"), path("report.html"));
    let mut train = vec!["train", &snapshots, "-o", &model, "--quiet", "--jobs", "1"];
    train.extend(["--shape", "3x32", "--folds", "2", "--recall", "0.9"]);
    // Two flows of an attack are too few: the model is made, and the exit status says so.
    let output = strata(&train);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "{said}");
    for line in [
        "labels: anomalous 8,295 packets of 1,733 flows; benign 47,843 packets",
        "not used: 0 packets without a label, 1 without a flow",
        "verdict: MISSED (exit status 3)",
        "westermo-BAD-MITM: recall 0.",
        "to do: a recall of 0.9 takes at least 29 flows",
        "3 trees of up to 32 leaves",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let said = succeeds(&[
        "eval", "-m", &model, "-r", &trace, "--labels", &labels, "--report", &report,
    ]);
    assert!(said.contains("cic2019-synflood: recall 1.000"), "{said}");
    let page = std::fs::read_to_string(&report).unwrap();
    assert!(page.contains("Evaluation of strata") && !page.contains("http-equiv"));
    let figures = std::fs::read(path("report.figures.json")).unwrap();
    let figures: serde_json::Value = serde_json::from_slice(&figures).unwrap();
    assert!(figures["recall"].as_f64().unwrap() > 0.9);
    assert_eq!(figures["summary"]["without_bucket"], 0);

    let log = path("log");
    succeeds(&["record", "-m", &model, "-r", &trace, "-o", &log]);
    let info = succeeds(&["info", &log]);
    assert!(
        info.contains("fit of the model: the model fits this traffic"),
        "{info}"
    );
    // The built-in model in its shadow: the log is the same, and the summary says what differs.
    let shadow = workspace_root().join("models/default.json");
    let (shadow, same) = (shadow.to_str().unwrap(), path("same"));
    let repeatable = ["--hash-seed", "1", "-m", &model, "-r", &trace, "-o"];
    let with = |log: &str, more: &[&str]| {
        let said = succeeds(&[&["record"][..], &repeatable, &[log], more].concat());
        let blocks = std::fs::read_dir(format!("{log}/blocks")).unwrap();
        let mut blocks: Vec<PathBuf> = blocks.map(|entry| entry.unwrap().path()).collect();
        // A checkpoint has times of this machine.
        blocks.retain(|path| path.extension().is_none_or(|end| end != "checkpoint"));
        blocks.sort();
        let bytes: Vec<Vec<u8>> = blocks.iter().map(|p| std::fs::read(p).unwrap()).collect();
        (said, bytes)
    };
    let (_, alone) = with(&path("alone"), &[]);
    let (said, shadowed) = with(&same, &["--shadow", shadow]);
    assert!(
        alone == shadowed && !alone.is_empty(),
        "a shadow changes no log"
    );
    assert!(
        said.contains("packets compared, it would have kept more of "),
        "{said}"
    );
    assert!(said.contains("  class benign: "), "{said}");
    // What the model was not trained on: a flood only.
    let (flood, other) = (capture("cic2019-synflood"), path("other"));
    succeeds(&["record", "-m", &model, "-r", &flood.trace, "-o", &other]);
    let info = succeeds(&["info", &other]);
    assert!(info.contains("NO LONGER FITS"), "{info}");
}

/// The summary of `strata eval` with these arguments, which writes its decisions to a file.
fn summary(capture: &Capture, decisions: &Path, more: &[&str]) -> serde_json::Value {
    let Capture { trace, labels } = capture;
    let file = decisions.to_str().unwrap();
    let arguments = ["eval", "-r", trace, "--labels", labels, "--decisions", file];
    succeeds(&[&arguments, more].concat());
    let file = std::fs::File::open(decisions).unwrap();
    let reader = SerializedFileReader::new(file).unwrap();
    let about = reader.metadata().file_metadata().key_value_metadata();
    let about = about.unwrap().iter().find(|a| a.key == "strata.summary");
    let json = about.unwrap().value.clone().unwrap();
    serde_json::from_str(&json).unwrap()
}

#[test]
fn a_window_of_choice_is_evaluated() {
    let scratch = tempfile::tempdir().unwrap();
    let decisions = scratch.path().join("decisions.parquet");
    let sqli = capture("cic2017-sqli");
    let summary = |more: &[&str]| summary(&sqli, &decisions, more);
    let (own, short) = (summary(&[]), summary(&["--window-ms", "1"]));
    let windows = |summary: &serde_json::Value| summary["windows"].as_u64().unwrap();
    assert!(windows(&short) > windows(&own), "{own} {short}");
    let trace = &sqli.trace;
    let none = strata(&["eval", "-r", trace, "--decisions", "x", "--window-ms", "0"]);
    assert!(!none.status.success());
}

#[test]
fn a_larger_table_of_flows_leaves_fewer_packets_without_a_bucket() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let [trace, labels] = ["trace.pcap", "labels.csv"].map(path);
    let busy = [
        "--profile",
        "cic-w5",
        "--flows",
        "100k",
        "-c",
        "200k",
        "-s",
        "96",
    ];
    let outputs = ["-o", &trace, "--labels", &labels];
    succeeds(&[&["generate"], &busy[..], &outputs].concat());
    let capture = Capture { trace, labels };
    let decisions = scratch.path().join("decisions.parquet");
    let of = |more: &[&str]| {
        let summary = summary(&capture, &decisions, more);
        let without = summary["without_bucket"].as_u64().unwrap();
        let error = &summary["average_relative_errors"]["bytes"];
        (without, error.as_f64().unwrap())
    };
    let [small, large] = ["512KiB", "128MiB"].map(|size| of(&["--memory", size]));
    let default = of(&[]);
    assert_eq!(default, of(&["--memory", "8MiB"]));
    assert!(
        small.0 > 2 * default.0 && default.0 > 2 * large.0,
        "{small:?} {default:?} {large:?}"
    );
    assert!(
        small.1 > default.1 && default.1 > large.1,
        "{small:?} {default:?} {large:?}"
    );
    for (size, status, why) in [
        ("1k", 2, "must be from 512KiB to 512MiB"),
        ("much", 2, "'much'"),
    ] {
        let (trace, eval) = (&capture.trace, "eval");
        let error = fails(
            &[eval, "-r", trace, "--decisions", "x", "--memory", size],
            status,
        );
        assert!(error.contains("--memory") && error.contains(why), "{error}");
    }
}

#[test]
fn features_take_labels_and_name_what_is_wrong_with_them() {
    let scratch = tempfile::tempdir().unwrap();
    let Capture { trace, labels } = capture("cic2017-sqli");
    let csv = succeeds(&["features", "-r", &trace, "--labels", &labels]);
    let mut lines = csv.lines();
    let header: Vec<&str> = lines.next().unwrap().split(',').collect();
    let label = header.iter().position(|name| *name == "label").unwrap();
    assert!(header.contains(&"ecn") && header.contains(&"in_flow"));
    let rows: Vec<&str> = lines.collect();
    assert_eq!(rows.len(), 94);
    assert!(
        rows.iter()
            .all(|row| row.split(',').nth(label) == Some("anomalous"))
    );

    let wrong = scratch.path().join("wrong.csv");
    std::fs::write(&wrong, "frame,label\n1,0\nx,1\n").unwrap();
    let output = strata(&[
        "features",
        "-r",
        &trace,
        "--labels",
        wrong.to_str().unwrap(),
    ]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("wrong.csv") && error.contains("line 3: frame 'x'"),
        "{error}"
    );
}

/// The message of a failing command.
fn fails(arguments: &[&str], code: i32) -> String {
    let output = strata(arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn labels_that_cannot_be_right_are_refused_and_the_others_counted() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    // 94 packets.
    let Capture { trace, .. } = capture("cic2017-sqli");
    let (labels, output) = (path("labels.csv"), path("snapshots.csv"));
    let features = ["features", "-r", &trace, "--labels", &labels, "-o", &output];
    for (text, says) in [
        ("0,1\n", "line 2: frame 0"),
        (
            "1,1\n95,0\n",
            "line 3: frame 95, but the capture has 94 packets; 1 of the file's 2",
        ),
        (
            "1,1\n2,0\n1,0\n",
            "line 4: frame 1 is 'benign' (0) here, but 'anomalous' (1)",
        ),
    ] {
        std::fs::write(&labels, format!("frame,label\n{text}")).unwrap();
        let said = fails(&features, 1);
        assert!(said.contains("labels.csv") && said.contains(says), "{said}");
        // Nothing is left that could be trained on by mistake.
        assert!(!Path::new(&output).exists());
        let eval = [
            "eval",
            "-r",
            &trace,
            "--labels",
            &labels,
            "--decisions",
            &output,
        ];
        assert!(fails(&eval, 1).contains(says));
    }
    let said = |text: &str| {
        std::fs::write(&labels, text).unwrap();
        let output = strata(&features);
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let text = said("frame,label\n1,1\n2,0\n2,0\n");
    assert!(
        text.contains("2 packets have a label, 92 have none"),
        "{text}"
    );
    assert!(text.contains("1 lines repeat another"), "{text}");
    std::fs::write(&labels, "label,address\n1,192.0.2.1\n1,192.0.2.2\n").unwrap();
    let none = fails(&features, 1);
    assert!(
        none.contains("none of the file's 2 rules or flows matches any of the 94 packets"),
        "{none}"
    );
    let text = said("label,protocol,port\n1,tcp,\n0,,9\n");
    assert!(text.contains("94 packets have a label;"), "{text}");
    assert!(
        text.contains("1 of 2 rules or flows of the labels match no packet"),
        "{text}"
    );
}

#[test]
fn what_cannot_be_written_is_said_before_the_work() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let snapshots = path("snapshots.parquet");
    std::fs::write(&snapshots, "not read").unwrap();
    let (nodir, model) = (path("nodir/x"), path("model.json"));
    for arguments in [
        &["train", &snapshots, "-o", &nodir][..],
        &["train", &snapshots, "-o", &model, "--report", &nodir],
        &["compare", &path("captures"), "--report", &nodir],
        &["eval", "-r", &path("none.pcap"), "--report", &nodir],
    ] {
        let said = fails(arguments, 1);
        assert!(said.contains("nodir/x: cannot write"), "{said}");
    }
    assert!(fails(&["train", &snapshots, "-o", &snapshots], 2).contains("is the input"));
    assert_eq!(std::fs::read(&snapshots).unwrap(), b"not read");
    assert!(!Path::new(&model).exists());
}

#[test]
fn help_needs_nothing_that_may_not_be_installed() {
    for (command, required) in [
        ("train", "--output <FILE> <INPUT>..."),
        ("compare", "--report <FILE> <FOLDER>"),
        ("query", "<LOG> <SQL>"),
        ("generate", "<--output <FILE>|--interface <NAME>>"),
        ("eval", "--read <FILE> <--report <FILE>|--decisions <FILE>>"),
    ] {
        let mut help = Command::new(env!("CARGO_BIN_EXE_strata"));
        help.args([command, "--help"])
            .env("STRATA_PYTHON", "/nonexistent");
        let output = help.env("PATH", "/nonexistent").output().unwrap();
        assert!(output.status.success(), "{command}");
        let text = String::from_utf8(output.stdout).unwrap();
        let usage = text
            .lines()
            .find(|line| line.starts_with("Usage:"))
            .unwrap();
        assert!(usage.contains(required), "{usage}");
        // Mistakes too.
        let mut wrong = Command::new(env!("CARGO_BIN_EXE_strata"));
        wrong.arg(command).env("STRATA_PYTHON", "/nonexistent");
        let output = wrong.env("PATH", "/nonexistent").output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{command}");
    }
}

/// Without labels: from a site's own packets to a model that records, and whose score is higher for
/// attacks than for what the site does.
#[test]
fn a_site_is_learnt_without_labels() {
    if !has_python() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let Capture { trace, labels } = capture("mix-train");
    let model = path("site.json");
    // Three minutes are too little, which is reported; what is labelled an attack is not learnt
    // from.
    let output = strata(&[
        "learn", "-r", &trace, "--labels", &labels, "-o", &model, "--quiet", "--jobs", "1",
    ]);
    let said = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}{errors}");
    for line in [
        "Learnt from 47,843 packets of 2,403 flows",
        "8,295 packets left out, because they are under an alert or near one.",
        "6/443 (450)",
        "Too little: 177 s of traffic",
        "8 trees, unusual from a score of 0.",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let log = path("log");
    succeeds(&["record", "-m", &model, "-r", &trace, "-o", &log]);
    succeeds(&["verify", &log]);
    // A capture of a few packets is refused before anything is written.
    let Capture { trace, .. } = capture("cic2017-sqli");
    let none = path("none.json");
    let output = strata(&["learn", &trace, "-o", &none, "--quiet"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("too little ordinary traffic: 94 packets"),
        "{errors}"
    );
    assert!(!Path::new(&none).exists());
    let output = strata(&["learn", "-i", "lo", "--for", "3s", "-o", &none]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("--for 3s: too short"), "{errors}");
}

/// Of the payload of a labelled capture, a tenth goes to the highest scores of the built-in model: the
/// share of attack packets that is kept.
#[allow(clippy::cast_precision_loss, reason = "lengths of packets")]
fn kept_of_a_tenth(name: &str) -> f64 {
    let scratch = tempfile::tempdir().unwrap();
    let decisions = scratch.path().join("decisions.parquet");
    let Capture { trace, labels } = capture(name);
    let to = decisions.to_str().unwrap();
    succeeds(&["eval", "-r", &trace, "--labels", &labels, "--decisions", to]);
    let reader = SerializedFileReader::new(std::fs::File::open(&decisions).unwrap()).unwrap();
    let mut packets = Vec::new();
    for row in reader.get_row_iter(None).unwrap() {
        let row = row.unwrap();
        let field = |column: &str| row.get_column_iter().find(|(name, _)| *name == column);
        let number = |column: &str| match field(column) {
            Some((_, Field::ULong(number))) => *number as f64,
            Some((_, Field::Double(number))) => *number,
            other => panic!("{column}: {other:?}"),
        };
        let payload = number("wire_len") - number("header_len");
        let benign = Field::Str("benign".into());
        let is_attack = field("label").is_some_and(|(_, label)| *label != benign);
        packets.push((number("anomaly"), payload, is_attack));
    }
    packets.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut left = packets.iter().map(|(_, payload, _)| payload).sum::<f64>() / 10.0;
    let (mut attacks, mut kept) = (0_u32, 0_u32);
    for (_, payload, is_attack) in packets {
        left -= payload;
        if is_attack && payload > 0.0 {
            attacks += 1;
            kept += u32::from(left >= 0.0);
        }
    }
    f64::from(kept) / f64::from(attacks)
}

/// The figures of the built-in model, so that no worse model is shipped: on attacks of kinds
/// that it knows, and on some that it does not, of which chance would keep a tenth.
#[test]
fn the_built_in_model_ranks_attacks_first() {
    for (name, least) in [("mix-test", 0.99), ("rat-c2", 0.3)] {
        let kept = kept_of_a_tenth(name);
        assert!(kept >= least, "{name}: {kept}");
    }
}

/// The model of a file with another name, and what else is given.
fn changed(name: &str, more: &serde_json::Value) -> String {
    let json = std::fs::read(workspace_root().join("models/default.json")).unwrap();
    let mut model: serde_json::Value = serde_json::from_slice(&json).unwrap();
    model["name"] = name.into();
    for (key, value) in more.as_object().unwrap() {
        model[key] = value.clone();
    }
    model.to_string()
}

#[test]
fn a_model_file_takes_the_place_of_another_and_gives_it_back() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let (first, second) = (
        changed("first", &serde_json::json!({})),
        changed("second", &serde_json::json!({})),
    );
    let (file, new, link, kept) = (
        path("model.json"),
        path("new.json"),
        path("link"),
        path("model.json.before"),
    );
    std::fs::write(&file, &first).unwrap();
    std::fs::write(&new, &second).unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let read = |name: &str| std::fs::read_to_string(name).unwrap();

    let none = fails(&["model", "promote", "--back", &file], 1);
    assert!(none.contains("model.json.before: does not exist"), "{none}");
    let said = succeeds(&["model", "promote", &new, &link]);
    assert!(
        said.contains("model.json: model second") && said.contains("model.json.before"),
        "{said}"
    );
    assert_eq!(
        (read(&file), read(&kept), read(&new)),
        (second.clone(), first.clone(), second.clone())
    );
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(
        succeeds(&["model", "promote", &new, &file]).contains("this file is already this model")
    );
    assert_eq!(read(&kept), first, "the one before stays");
    // There and back again.
    assert!(succeeds(&["model", "promote", "--back", &link]).contains("model first"));
    assert_eq!((read(&file), read(&kept)), (first.clone(), second.clone()));
    succeeds(&["model", "promote", "--back", &file]);
    assert_eq!(read(&file), second);

    // What misses the requirements, or is no model, stays out.
    let missed =
        serde_json::json!({"training": {"verdict": {"met": false, "findings": ["recall 0.2"]}}});
    let problems =
        serde_json::json!({"training": {"learnt": {"problems": ["3 minutes of traffic"]}}});
    for (what, text, says) in [
        ("missed", changed("missed", &missed), "recall 0.2"),
        (
            "problems",
            changed("problems", &problems),
            "3 minutes of traffic",
        ),
        ("damaged", String::from("{\"format\": 1}"), "damaged.json"),
    ] {
        let bad = path(&format!("{what}.json"));
        std::fs::write(&bad, &text).unwrap();
        let refused = fails(&["model", "promote", &bad, &file], 1);
        assert!(refused.contains(says), "{refused}");
        assert_eq!((read(&file), read(&kept)), (second.clone(), first.clone()));
    }
    succeeds(&["model", "promote", "--force", &path("missed.json"), &file]);
    assert_eq!(read(&kept), second);
    // A file that was not there is made, and nothing is left lying about.
    succeeds(&["model", "promote", &new, &path("fresh.json")]);
    assert_eq!(read(&path("fresh.json")), second);
    assert!(!scratch.path().join("fresh.json.before").exists());
    let names = std::fs::read_dir(scratch.path()).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(names.filter(|name| name.starts_with('.')).count() == 0);
    for wrong in [
        &["model", "promote", &new][..],
        &["model", "promote", "--back", &new, &file],
    ] {
        fails(wrong, 2);
    }
}

/// Packets of each label that a model calls anomalous, as `strata eval` says.
fn anomalous(capture: &Capture, model: &str) -> std::collections::BTreeMap<String, u64> {
    let scratch = tempfile::tempdir().unwrap();
    let decisions = scratch.path().join("decisions.parquet");
    let Capture { trace, labels } = capture;
    let to = decisions.to_str().unwrap();
    succeeds(&[
        "eval",
        "-m",
        model,
        "-r",
        trace,
        "--labels",
        labels,
        "--decisions",
        to,
    ]);
    let reader = SerializedFileReader::new(std::fs::File::open(&decisions).unwrap()).unwrap();
    let mut counts = std::collections::BTreeMap::new();
    for row in reader.get_row_iter(None).unwrap() {
        let row = row.unwrap();
        let of = |column: &str| match row.get_column_iter().find(|(name, _)| *name == column) {
            Some((_, Field::Str(word))) => word.clone(),
            other => panic!("{column}: {other:?}"),
        };
        if of("class") != "benign" {
            *counts.entry(of("source")).or_default() += 1;
        }
    }
    counts
}

#[test]
fn two_models_are_compared_packet_by_packet() {
    let scratch = tempfile::tempdir().unwrap();
    let half = scratch.path().join("half.json");
    let half = half.to_str().unwrap();
    let json = std::fs::read(workspace_root().join("models/default.json")).unwrap();
    let default: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let trees = default["flow_trees"].as_array().unwrap()[..3].to_vec();
    let few = changed(
        "half",
        &serde_json::json!({"flow_trees": trees, "known": null}),
    );
    std::fs::write(half, few).unwrap();
    let capture = capture("mix-test");
    let Capture { trace, labels } = &capture;
    let compare = [
        "model", "compare", "built-in", half, "-r", trace, "--labels", labels,
    ];
    let said = succeeds(&[&compare[..], &["--json"]].concat());
    let found: serde_json::Value = serde_json::from_str(&said).unwrap();
    let default = workspace_root().join("models/default.json");
    for (of, model) in [default.to_str().unwrap(), half].into_iter().enumerate() {
        let mut by_source = std::collections::BTreeMap::new();
        for source in found["sources"].as_array().unwrap() {
            let packets = source["anomalous_packets"][of].as_u64().unwrap();
            if packets > 0 {
                let name = source["source"].as_str().unwrap().to_owned();
                *by_source.entry(name).or_default() += packets;
            }
        }
        assert_eq!(by_source, anomalous(&capture, model));
    }
    // As the table above has it for the built-in model.
    let of_a_tenth = found["models"][0]["attack_packets_of_a_tenth"]
        .as_f64()
        .unwrap();
    let share = of_a_tenth / found["attack_packets_with_payload"].as_f64().unwrap();
    assert!(
        (share - kept_of_a_tenth("mix-test")).abs() < 0.01,
        "{share}"
    );
    let text = succeeds(&compare);
    assert!(
        text.contains("built-in: ") && text.contains("cic2019-synflood"),
        "{text}"
    );
    let alone = fails(&["model", "compare", "built-in", "-r", trace], 2);
    assert!(alone.contains("two models"), "{alone}");
    assert!(fails(&["model", "compare", "built-in", half], 2).contains("-r FILE"));
}
