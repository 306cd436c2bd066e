//! The Python package's part: parameters of the cache, the traffic classifier.

use std::fs;

use serde_json::Value;
use strata_testkit::{data_dir, workspace_root};

use super::{gpv, json, labelled, ok, says};

/// The interpreter of `make python`; without it these tests cannot run.
#[allow(clippy::print_stderr, reason = "a test says why it does not run")]
pub(crate) fn has_python() -> bool {
    let there = workspace_root().join("python/.venv/bin/python").exists();
    if !there {
        eprintln!("not run: no python/.venv; `make python` makes it");
        assert!(std::env::var_os("CI").is_none(), "CI has no python/.venv");
    }
    there
}

/// Vectors per packet of a run with these parameters: the mean of some runs, each of which places flows in other slots.
fn made(trace: &str, of: &Value) -> f64 {
    let option = |name: &str| format!("--{name}={}", of[name.trim_start_matches("wide-")]);
    let options = ["slots", "narrow", "wide", "wide-blocks"].map(option);
    let runs = 5;
    let ratios = (0..runs).map(|_| {
        let mut run = gpv(&["run", "-r", trace]);
        let run = json(run.args(&options));
        run["vectors"].as_f64().unwrap() / run["packets"].as_f64().unwrap()
    });
    ratios.sum::<f64>() / f64::from(runs)
}

/// The model is the cache: what it says is what `run` makes, but for the places of flows.
#[test]
fn tune_finds_parameters_that_run_confirms() {
    if !has_python() {
        return;
    }
    let trace = labelled("mix-train");
    let trace = trace.to_str().unwrap();
    let tune = |rest: &[&str]| {
        let words = [&["tune", "-r", trace, "--trials", "12"], rest].concat();
        json(&mut gpv(&words))
    };
    let ratio = |value: &Value| value["vectors_per_packet"].as_f64().unwrap();
    for memory in ["100k", "1M"] {
        let best = tune(&["--cache-memory", memory]);
        let bytes = best["memory"].as_u64().unwrap();
        assert!(
            bytes <= if memory == "1M" { 1_000_000 } else { 100_000 },
            "{best}"
        );
        let trials = best["trials"].as_array().unwrap();
        assert_eq!(trials.len(), 12);
        for of in [&best, &best["default"]] {
            let (said, made) = (ratio(of), made(trace, of));
            // There are few slots: it matters which busy flows share one.
            assert!((made - said).abs() < 0.1 * said, "{made} {of}");
        }
        let fewer = 100.0 * (1.0 - ratio(&best) / ratio(&best["default"]));
        assert!((best["fewer_vectors_percent"].as_f64().unwrap() - fewer).abs() < 1e-9);
        // Less than 0.1 % is chance.
        assert_eq!(best["is_better"], fewer >= 0.1);
    }
    // As much memory as the default has: what is printed is at least as good, and runs.
    let said = ok(&mut gpv(&["tune", "-r", trace, "--trials", "12"]));
    let command = said.lines().last().unwrap();
    let options = command.strip_prefix("strata gpv run ").unwrap();
    let mut run = gpv(&["run", "-r", trace]);
    ok(run.args(options.split(' ')));
    let is_better = said.contains("fewer vectors");
    assert!(is_better || said.contains("keep the default"), "{said}");
    assert_eq!(
        is_better,
        !options.starts_with("--slots 16384 --narrow 4 --wide 24 ")
    );

    // Of a switch: one buffer for each slot is worse, 8 ways are better.
    let switch = |rest: &[&str]| {
        let words = [&["--hardware", "--cache-memory", "20k"], rest].concat();
        ratio(&tune(&words))
    };
    let said = switch(&[]);
    assert!(switch(&["--static"]) > said);
    assert!(switch(&["--ways", "8"]) < said);
    let said = says(&mut gpv(&["tune", "-r", trace, "--cache-memory", "20"]), 1);
    assert!(said.contains("cannot hold a cache"), "{said}");
    for (words, problem) in [
        (&["--ways", "8"][..], "--hardware"),
        (
            &["--length", "500"],
            "datagrams of `strata gpv run`; at most",
        ),
        (&["--cache-memory", "5GiB"], "at most 4096 are allowed"),
    ] {
        let said = says(gpv(&["tune", "-r", trace]).args(words), 2);
        assert!(said.contains(problem), "{said}");
    }
    let said = says(&mut gpv(&["tune", "-r", "/missing.pcap"]), 1);
    assert!(said.contains("/missing.pcap"), "{said}");
}

#[test]
fn figures_are_data_and_plots() {
    if !has_python() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("figures");
    let trace = labelled("mix-test");
    let mut tune = gpv(&["tune", "--trials", "2", "-r", trace.to_str().unwrap()]);
    ok(tune.arg("--figures").arg(&folder));
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let curves = read("curves.csv");
    let mut table = csv::Reader::from_reader(curves.as_bytes());
    let points: Vec<csv::StringRecord> = table.records().map(Result::unwrap).collect();
    for figure in ["7", "8"] {
        for buffers in ["static", "dynamic"] {
            for eviction in ["collision", "8-way LRU"] {
                let of = points.iter().filter(|point| {
                    &point[0] == figure && &point[1] == buffers && &point[2] == eviction
                });
                assert!(of.count() >= 6, "Figure {figure}, {buffers}, {eviction}");
            }
        }
    }
    let largest = points.iter().map(|point| point[3].parse::<u64>().unwrap());
    assert_eq!(largest.max(), Some(32 << 20));
    let longest = points.iter().map(|point| point[4].parse::<u64>().unwrap());
    assert_eq!(longest.max(), Some(32));
    assert!(read("rates.csv").lines().count() > 2);
    for plot in ["curves.svg", "rates.svg"] {
        assert!(read(plot).contains("<svg"), "{plot}");
    }
}

#[test]
fn a_classifier_of_flows_is_trained_and_judged() {
    if !has_python() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let features = |name: &str| {
        let folder = data_dir().join("labelled").join(name);
        let file = dir.path().join(format!("{name}.csv"));
        let mut command = gpv(&["features", "-o", file.to_str().unwrap(), "-r"]);
        command.arg(folder.join("trace.pcap")).arg("--labels");
        ok(command.arg(folder.join("labels.csv")));
        file.to_str().unwrap().to_owned()
    };
    let train = features("mix-train");
    let rows = fs::read_to_string(&train).unwrap();
    let mut table = csv::Reader::from_reader(rows.as_bytes());
    let packets: u64 = table
        .records()
        .map(|row| row.unwrap()[3].parse::<u64>().unwrap())
        .sum();
    assert!(packets > 50_000, "{packets}");
    let forest = dir.path().join("flows.forest");
    let forest = forest.to_str().unwrap();
    let judged = json(&mut gpv(&["train", &train, "-o", forest]));
    let mean = |set: &str| judged["mean_f1"][set].as_f64().unwrap();
    assert!(
        mean("*Flow") > mean("NetFlow") && mean("*Flow") > 0.9,
        "{judged}"
    );
    // The program reads what training wrote.
    let text = fs::read_to_string(forest).unwrap();
    strata_gpv::application::Forest::parse(&text).unwrap();
    let test = features("mix-test");
    let said = ok(&mut gpv(&["train", &train, "--test", &test]));
    assert!(said.contains("*Flow") && said.contains("average"), "{said}");
    let said = says(&mut gpv(&["train", forest]), 1);
    assert!(said.contains("no column"), "{said}");
}
