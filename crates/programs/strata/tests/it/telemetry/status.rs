//! What collectors and translators say of themselves keeps its names: scripts and dashboards read them.

use std::net::UdpSocket;
use std::path::Path;

use strata_testkit::{check_golden, workspace_root};
use tempfile::TempDir;

use super::Collector;
use crate::common::program::{ok, strata};
use crate::common::telemetry::{Process, listens, number, one, telemetry, wait_status};

/// A line of `status.json` without what differs from run to run.
fn shape(line: &str) -> String {
    let (name, value) = match line.split_once(": ") {
        Some((name, value)) => (format!("{name}: "), value),
        None => (String::new(), line),
    };
    let value = value.trim_end_matches(',');
    let kind = match value.trim_start().chars().next() {
        Some('"') => "text",
        Some('0'..='9') if value.contains('.') => "real",
        Some('0'..='9') => "number",
        _ => value,
    };
    format!("{name}{kind}\n")
}

/// Names in `status.json`, in the page of metrics and in what people read.
fn names(dir: &Path) -> String {
    let json = std::fs::read_to_string(dir.join("status.json")).unwrap();
    let json: String = json.lines().map(shape).collect();
    let page = ok(telemetry(dir, &["status"]).arg("--metrics"));
    let is_help = |line: &str| line.starts_with('#');
    let name = |line: &str| match is_help(line) {
        true => format!("{line}\n"),
        false => format!(
            "{}\n",
            line.rsplit_once(' ')
                .unwrap()
                .0
                .replace(&listens(dir), "HERE")
        ),
    };
    let metrics: String = page.lines().map(name).collect();
    let rows = ok(&mut telemetry(dir, &["status"]));
    let column = |line: &str| format!("{}\n", line.chars().take(18).collect::<String>().trim_end());
    let rows: String = rows.lines().map(column).collect();
    format!("{json}{metrics}{rows}")
}

#[test]
fn a_collector_that_was_killed_does_not_run() {
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("store");
    let running = Collector::start(&store, &[]);
    wait_status(&store, |status| status["running"] == true);
    let told = |options: &[&str]| ok(telemetry(&store, &["status"]).args(options));
    let json = || serde_json::from_str::<serde_json::Value>(&told(&["--json"])).unwrap();
    assert_eq!(json()["running"], true);
    assert!(!told(&[]).contains("properly"));
    running.kill();
    let killed = json();
    assert_eq!(
        (&killed["running"], &killed["killed"]),
        (&false.into(), &true.into())
    );
    let text = told(&[]);
    assert!(text.contains("it did not end properly (killed"), "{text}");
    // Who asks does not keep the next one from starting, which ends properly.
    Collector::start(&store, &[]).end();
    let ended = json();
    assert_eq!(ended["running"], false);
    assert!(ended.get("killed").is_none(), "{ended}");
    assert!(told(&[]).contains(", ended"));
}

#[test]
fn the_status_keeps_its_names() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let wrong = one(0x21, 0, 0, [4, 8, 9], &[0; 12]);

    let options = ["--generations", "2", "--generation-period", "366d"];
    let running = Collector::start(&path("store"), &options);
    socket.send_to(&wrong, running.reports).unwrap();
    wait_status(&path("store"), |status| {
        number(&status["totals"]["datagrams"]) == 1
    });
    running.end();

    let mut command = strata();
    command.args(["telemetry", "collect", "--listen", "127.0.0.1:0", "-o"]);
    let collector = Process::start(command.arg(path("there")));
    let mut command = strata();
    command.args(["telemetry", "run", "--listen", "127.0.0.1:0"]);
    command.args(["--store-memory", "4MiB", "--collector"]);
    command.arg(listens(&path("there"))).arg("-o");
    let translator = Process::start(command.arg(path("counters")));
    wait_status(&path("there"), |status| status["translator"].is_string());
    wait_status(&path("counters"), |status| {
        status["collectors"][0]["connected"] == true
    });
    let there = listens(&path("there"));
    let all = [
        names(&path("store")),
        names(&path("counters")),
        names(&path("there")),
    ];
    let all = all.join("\n").replace(&there, "THERE");
    translator.end();
    collector.end();
    let golden = "crates/programs/strata/tests/golden/telemetry-status.txt";
    check_golden(&workspace_root().join(golden), &all);
}
