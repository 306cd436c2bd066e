//! The metrics page, as read by Prometheus' own tool.
#![allow(clippy::print_stderr, reason = "says why it did not run")]

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use strata_classify::{DriftReport, Model};
use strata_control::config::PolicyConfig;
use strata_control::metrics::{self, Format};
use strata_control::{
    CollectorBoard, CollectorStatus, CompactionStatus, Controller, CpuStatus, DriftWindow,
    EveStatus, ExportStatus, FlowsStatus, InterfaceStatus, LostStatus, NetworkObserved, Observed,
    ReceiveStatus, RefusedStatus, ReportStatus, SenderStatus, Settings, ShedStatus,
};
use strata_policy::{ClassKept, DetailCounts, Follower, ShadowCounts, WorkerCounts};
use strata_sketch::Pressure;
use strata_testkit::{check_golden, workspace_root};
use strata_wire::Counters;

/// A recording with every value set, and texts that need escaping.
fn controller(policies: u32) -> Controller {
    let json = std::fs::read(workspace_root().join("models/default.json")).unwrap();
    let beginning = Settings {
        modes: vec!["default".into()],
        ..Settings::default()
    };
    let controller = Controller::new(Model::from_json(&json).unwrap(), beginning).unwrap();
    for number in 0..policies {
        let config = PolicyConfig {
            matches: format!("tcp  \n\tport {}{}", number + 1, " ".repeat(500)),
            action: "full".into(),
            priority: 100,
            interface: None,
            protect: false,
        };
        controller.add_policy(&config, "test", "").unwrap();
    }
    controller.tick(Instant::now(), observed());
    let cpu = CpuStatus {
        budget: 0.1,
        used: 0.05,
        flow_share: 1.0,
        short: None,
    };
    controller.note_cpu(Instant::now(), Some(cpu));
    controller.note_shed(ShedStatus {
        now: false,
        times: 2,
        seconds: 12.5,
        bytes: 256,
    });
    controller
}

/// What workers and the host report of it.
fn observed() -> Observed {
    let kept = |class: u8, granularity, packets: u64| ClassKept {
        class,
        granularity,
        captured: Counters {
            packets,
            bytes: packets * 1000,
        },
        kept_bytes: packets * 54,
    };
    let interface = |name: &str, received, dropped| InterfaceStatus {
        name: name.into(),
        received,
        dropped,
        ..InterfaceStatus::default()
    };
    Observed {
        counts: WorkerCounts {
            kept: vec![
                kept(0, "header", 7),
                kept(1, "full", 8),
                kept(2, "sampled_out", 9),
            ],
            pressure: Some(Pressure {
                buckets: 1 << 20,
                packets: 1_000,
                without_bucket: 12,
                growths_refused: 1,
                ..Pressure::default()
            }),
            ..WorkerCounts::default()
        },
        network: NetworkObserved {
            interfaces: vec![
                interface("eth\"0\\\n\u{1b}[2J", 5, 0),
                interface("lo", 6, 1),
            ],
            lost: vec![LostStatus {
                place: "kernel".into(),
                counter: "eth0 ring".into(),
                packets: 3,
                advice: String::new(),
            }],
            receive: vec![ReceiveStatus {
                cpu: 3,
                packets_per_second: 1e6,
                softirq: 0.75,
                idle: 0.25,
            }],
        },
        disk_used: Some(0.5),
        ..Observed::default()
    }
}

/// Where each value of a status is.
fn keys(value: &Value, at: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                keys(value, &format!("{at}/{name}"), found);
            }
        }
        Value::Array(items) => {
            for item in items {
                keys(item, &format!("{at}/*"), found);
            }
        }
        _ => {
            found.insert(at.to_owned());
        }
    }
}

/// Names, help texts and labels that dashboards and alerts are made of, and what scripts read.
#[test]
fn metrics_and_the_status_keep_their_names() {
    let controller = controller(2);
    let mut shadow = ShadowCounts::new(2);
    shadow.add([0, 1], 1_000, [54, 1_000]);
    let report = DriftReport {
        samples: 2_000,
        scores: 0.1,
        features: vec![(String::from("tcp_window"), 3.0)],
    };
    let is_whole = true;
    let mut everything = Observed {
        drift: Some(DriftWindow { report, is_whole }),
        ..observed()
    };
    everything.counts.detail = Some(DetailCounts::default());
    everything.counts.shadow = Some(shadow);
    controller.tick(Instant::now(), everything);
    controller.set_reports(ReportStatus::default());
    controller.set_flows(FlowsStatus::default());
    controller.set_exports(vec![ExportStatus {
        problem: "the network is unreachable".into(),
        ..ExportStatus::default()
    }]);
    controller.set_eve(EveStatus::default());
    controller.set_compaction(CompactionStatus {
        oldest_seconds: Some(1.0),
        ..CompactionStatus::default()
    });
    let mut worker = Follower::new(Arc::clone(controller.steering()));
    worker.events();
    controller.remove_policy(2, "test", "").unwrap();
    worker.events();
    worker.switched();
    let page = metrics::text(&controller, Format::Prometheus);
    let mut text = String::new();
    for line in page.lines() {
        let name = match line.starts_with('#') {
            true => line,
            false => line.rsplit_once(' ').unwrap().0,
        };
        text = format!("{text}{name}\n");
    }
    let mut found = BTreeSet::new();
    keys(&json!(controller.status()), "", &mut found);
    for key in found {
        text = format!("{text}{key}\n");
    }
    check_golden(
        &workspace_root().join("crates/run/control/tests/golden/names.txt"),
        &text,
    );
}

/// What promtool says with these arguments and this input, if installed, and whether it finds
/// nothing wrong.
fn promtool(args: &[&str], input: &str) -> Option<(bool, String)> {
    let unpacked = workspace_root().join("target/tools/promtool");
    let program = if unpacked.exists() {
        unpacked
    } else {
        PathBuf::from("promtool")
    };
    let child = Command::new(program)
        .args(args)
        .current_dir(workspace_root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        let why = "promtool is missing: run `make tools`, or install Debian's `prometheus`";
        assert!(std::env::var_os("CI").is_none(), "{why}");
        eprintln!("not run: {why}");
        return None;
    };
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    Some((output.status.success(), said))
}

/// What a collector has received, with a name that needs escaping.
fn collected() -> CollectorStatus {
    CollectorStatus {
        packets: 7,
        bytes: 700,
        not_written: 1,
        refused: RefusedStatus {
            strangers: 3,
            ..RefusedStatus::default()
        },
        senders: vec![SenderStatus {
            sender: "192.0.2.11".into(),
            identity: 4096,
            name: "web \"1\":eth0".into(),
            packets: 7,
            cut: 6,
            lost: 2,
            silent_seconds: 0.5,
            ..SenderStatus::default()
        }],
        ..CollectorStatus::default()
    }
}

#[test]
fn a_collector_has_metrics_of_each_sender() {
    let page = metrics::collector_text(collected(), Format::Prometheus);
    let of = r#"{sender="192.0.2.11",identity="4096",interface="web \"1\":eth0"}"#;
    for line in [
        String::from("strata_collector_packets_total{} 7"),
        String::from("strata_collector_bytes_total{} 700"),
        String::from("strata_collector_refused_datagrams_total{reason=\"strangers\"} 3"),
        String::from("strata_collector_refused_datagrams_total{reason=\"forged\"} 0"),
        format!("strata_collector_sender_packets_total{of} 7"),
        format!("strata_collector_sender_cut_packets_total{of} 6"),
        format!("strata_collector_sender_lost_packets{of} 2.0"),
        format!("strata_collector_sender_silent_seconds{of} 0.5"),
    ] {
        assert!(page.contains(&format!("\n{line}\n")), "{line}: {page}");
    }
    assert!(
        page.contains("\nstrata_collector_senders_left_out{} 0.0\n"),
        "{page}"
    );
    if let Some((_, said)) = promtool(&["check", "metrics"], &page) {
        assert_eq!(said, "", "{page}");
    }
    // A recording of what it receives has them too, and still its own.
    let board = Arc::new(CollectorBoard::default());
    board.set(collected());
    let page = metrics::text(
        &controller(3).with_collector(Some(board)),
        Format::Prometheus,
    );
    for name in ["strata_collector_packets_total", "strata_packets_total"] {
        assert!(
            page.contains(&format!("\n# TYPE {name} counter\n")),
            "{page}"
        );
    }
    if let Some((_, said)) = promtool(&["check", "metrics"], &page) {
        assert_eq!(said, "", "{page}");
    }
}

#[test]
fn a_page_of_a_collector_says_how_many_senders_it_leaves_out() {
    let sender = collected().senders.remove(0);
    let senders = (0..1234).map(|identity| SenderStatus {
        identity,
        ..sender.clone()
    });
    let many = CollectorStatus {
        senders: senders.collect(),
        ..collected()
    };
    let page = metrics::collector_text(many, Format::Prometheus);
    let shown = page
        .matches("\nstrata_collector_sender_packets_total{")
        .count();
    assert_eq!(shown, 1000);
    for line in [
        "strata_collector_senders{} 1234.0",
        "strata_collector_senders_left_out{} 234.0",
    ] {
        assert!(page.contains(&format!("\n{line}\n")), "{line}: {page}");
    }
}

#[test]
fn promtool_finds_nothing_wrong() {
    let page = metrics::text(&controller(3), Format::Prometheus);
    let check = |page: &str| promtool(&["check", "metrics"], page);
    if let Some((_, said)) = check(&page) {
        assert_eq!(said, "", "{page}");
        // Check that it reports errors at all.
        assert!(!check("# TYPE a counter\na{ 1\n").unwrap().1.is_empty());
    }
}

/// The alert rules that are installed: valid, of metrics that there are, raised by trouble alone.
#[test]
fn alert_rules_tell_trouble_from_none() {
    let rules = "deploy/prometheus-alerts.yml";
    let text = std::fs::read_to_string(workspace_root().join(rules)).unwrap();
    let names =
        std::fs::read_to_string(workspace_root().join("crates/run/control/tests/golden/names.txt"))
            .unwrap();
    let is_of_name = |c: char| c == '_' || c.is_ascii_alphanumeric();
    let used: BTreeSet<&str> = text
        .split(|c| !is_of_name(c))
        // Those of a fleet are its controller's (`fleet`).
        .filter(|word| word.starts_with("strata_") && !word.starts_with("strata_fleet_"))
        .collect();
    assert!(used.len() > 8, "{used:?}");
    let names = names + &metrics::collector_text(collected(), Format::Prometheus);
    for name in used {
        assert!(names.contains(&format!("# TYPE {name} ")), "{name}");
    }
    let tests = "crates/run/control/tests/alerts.test.yml";
    for args in [["check", "rules", rules], ["test", "rules", tests]] {
        if let Some((is_well, said)) = promtool(&args, "") {
            assert!(is_well, "{said}");
        }
    }
}

#[test]
fn classes_have_series_by_granularity() {
    let page = metrics::text(&controller(0), Format::Prometheus);
    let names =
        Model::from_json(&std::fs::read(workspace_root().join("models/default.json")).unwrap());
    let names = names.unwrap().class_names();
    for line in [
        format!(
            "strata_class_packets_total{{class=\"{}\",granularity=\"header\"}} 7",
            names[0]
        ),
        format!(
            "strata_class_captured_bytes_total{{class=\"{}\",granularity=\"full\"}} 8000",
            names[1]
        ),
        format!(
            "strata_class_kept_bytes_total{{class=\"{}\",granularity=\"full\"}} 432",
            names[1]
        ),
        String::from(
            "strata_class_packets_total{class=\"unclassified\",granularity=\"sampled_out\"} 9",
        ),
        String::from("# TYPE strata_class_packets_total counter"),
        String::from("# TYPE strata_uptime_seconds gauge"),
    ] {
        assert!(page.lines().any(|known| known == line), "{line} in {page}");
    }
    assert!(!page.contains("# EOF"));
    let odd =
        "strata_interface_received_packets_total{interface=\"eth\\\"0\\\\\\\\n\\\\u{1b}[2J\"} 5";
    assert!(page.lines().any(|line| line == odd), "{odd} in {page}");
}

#[test]
fn pages_are_bounded() {
    let page = metrics::text(&controller(1000), Format::OpenMetrics);
    assert!(page.ends_with("# EOF\n"));
    assert_eq!(page.matches("strata_policy_packets_total{").count(), 100);
    assert!(page.contains("strata_policies{} 1000.0\n"), "{page}");
    assert!(page.len() < 100_000, "{}", page.len());
    assert!(page.lines().all(|line| line.len() < 400));
}

#[test]
fn the_form_is_that_which_is_asked_for() {
    for (accept, expected) in [
        ("", Format::Prometheus),
        ("*/*", Format::Prometheus),
        ("text/plain", Format::Prometheus),
        (
            "text/html, application/xhtml+xml;q=0.9, */*;q=0.8",
            Format::Prometheus,
        ),
        ("application/openmetrics-text", Format::OpenMetrics),
        (
            "application/openmetrics-text;version=1.0.0,*/*;q=0.1",
            Format::OpenMetrics,
        ),
        // Prometheus 2.42 and 3.
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            Format::OpenMetrics,
        ),
        ("application/openmetrics-text;q=0", Format::Prometheus),
        (
            "application/openmetrics-text; q=0.3, text/plain; q=0.5",
            Format::Prometheus,
        ),
        ("application/openmetrics-text;q=x;;,,", Format::Prometheus),
    ] {
        assert_eq!(Format::accepted(accept), expected, "{accept}");
    }
}
