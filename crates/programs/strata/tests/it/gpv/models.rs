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

#[test]
fn tune_finds_parameters_that_run_confirms() {
    if !has_python() {
        return;
    }
    let trace = labelled("mix-train");
    let trace = trace.to_str().unwrap();
    let tune = |rest: &[&str]| {
        let words = [
            &[
                "tune",
                "-r",
                trace,
                "--cache-memory",
                "20k",
                "--trials",
                "12",
            ],
            rest,
        ]
        .concat();
        json(&mut gpv(&words))
    };
    let ratio = |value: &Value| value["vectors_per_packet"].as_f64().unwrap();
    let best = tune(&[]);
    assert!(best["memory"].as_u64().unwrap() <= 20_000, "{best}");
    assert_eq!(best["trials"].as_array().unwrap().len(), 12);
    for trial in best["trials"].as_array().unwrap() {
        assert!(ratio(trial) >= ratio(&best), "{trial} {best}");
    }
    // The model is the cache: what it says is what `run` makes, but for the seed of its slots. There
    // are so few that it matters which busy flows share one, and the best of trials was lucky too.
    let option = |name: &str| format!("--{name}={}", best[name.trim_start_matches("wide-")]);
    let options = ["slots", "narrow", "wide", "wide-blocks"].map(option);
    let mut run = gpv(&["run", "-F", "paper", "-r", trace]);
    let run = json(run.args(options));
    let (packets, vectors) = (&run["packets"], &run["vectors"]);
    let flushed = run["left"]["flushed"].as_f64().unwrap();
    let without = vectors.as_f64().unwrap() - flushed;
    let made = without / packets.as_f64().unwrap();
    let said = ratio(&best);
    assert!((made - said).abs() < 0.2 * said, "{made} {said} {run}");
    // One buffer for each slot is worse, 8 ways are better.
    assert!(ratio(&tune(&["--static"])) > said);
    assert!(ratio(&tune(&["--ways", "8"])) < said);
    let said = says(&mut gpv(&["tune", "-r", trace, "--cache-memory", "20"]), 1);
    assert!(said.contains("cannot hold a cache"), "{said}");
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
