//! The CPU budget of a recording under overload.

use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use strata_testkit::{Namespace, may_use_kernel};

use crate::common::disk::never_full;
use crate::common::recording::wait_for;
use crate::common::signal::signal;

fn strata() -> Command {
    Command::new(env!("CARGO_BIN_EXE_strata"))
}

fn inside(namespace: &Namespace) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace.name()]);
    command.arg(env!("CARGO_BIN_EXE_strata"));
    command
}

fn ended(child: Child, name: &str) -> Output {
    // The child of `ip netns exec` is the program itself.
    signal(&child, name);
    child.wait_with_output().unwrap()
}

/// Under load a share of flows is captured; skipped packets are counted as such, and the counters
/// balance; each packet records the share, so the log tells how many there were.
#[test]
fn flows_are_sampled_under_load_and_the_log_says_so() {
    if !may_use_kernel("a CPU budget") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace.pcap");
    let generated = strata()
        .args([
            "generate",
            "--profile",
            "imix",
            "--flows",
            "2000",
            "-c",
            "40000",
            "-o",
        ])
        .arg(&trace)
        .output()
        .unwrap();
    assert!(generated.status.success(), "{generated:?}");
    let namespace = Namespace::new("rules-cpu");
    namespace.pair("in0", "out0");
    let (log, socket) = (dir.path().join("log"), dir.path().join("control.sock"));
    // A debug build without packets takes up to 3 %, with the status that is asked for here.
    let recording = inside(&namespace)
        .args(["record", "-i", "in0", "--cpu", "8%", "-o"])
        .arg(&log)
        .arg("--config")
        .arg(never_full(dir.path()))
        .arg("--socket")
        .arg(&socket)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for(&socket, "all flows at first", |status| {
        status["cpu"]["flow_share"] == 1.0
    });
    let sending = inside(&namespace)
        .args([
            "replay", "-i", "out0", "--pps", "300000", "--loop", "0", "-r",
        ])
        .arg(&trace)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let dropped = |status: &Value| {
        let all = status["packets"].as_array().unwrap();
        let of_budget = all.iter().find(|p| p["reason"] == "cpu_budget").unwrap();
        of_budget["packets"].as_u64().unwrap()
    };
    let loaded = wait_for(&socket, "a share of flows", |status| {
        status["cpu"]["flow_share"].as_f64() < Some(0.8) && dropped(status) > 20_000
    });
    assert!((loaded["cpu"]["budget"].as_f64().unwrap() - 0.08).abs() < 1e-9);
    ended(sending, "INT");
    let calm = wait_for(&socket, "all flows again", |status| {
        status["cpu"]["flow_share"] == 1.0
    });
    assert!(dropped(&calm) >= dropped(&loaded));
    let output = ended(recording, "INT");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let heard = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}{heard}");
    assert!(
        heard.contains("flows are sampled: the CPU budget"),
        "{heard}"
    );
    assert!(said.contains("dropped{cpu_budget}: "), "{said}");

    let info = strata()
        .args(["info", "--json"])
        .arg(&log)
        .output()
        .unwrap();
    let info: Value = serde_json::from_slice(&info.stdout).unwrap();
    let seen = info[0]["accounting"]["seen"][0].as_f64().unwrap();
    let kept = info[0]["accounting"]["logged"][0].as_f64().unwrap();
    let mut export = strata();
    export.args(["export", "-w", "-"]).arg(&log);
    let exported = export.output().unwrap();
    assert!(exported.status.success());
    let text = String::from_utf8_lossy(&exported.stdout);
    let shares: Vec<f64> = text
        .split("flow_share=")
        .skip(1)
        .map(|rest| rest[..8].parse().unwrap())
        .collect();
    let sampled: f64 = shares.iter().map(|share| 1.0 / share).sum();
    #[allow(clippy::cast_precision_loss)]
    let estimate = kept - shares.len() as f64 + sampled;
    assert!(!shares.is_empty() && kept <= seen - 20_000.0);
    // Flows differ in size, and the share changes within batches.
    assert!(
        (estimate / seen - 1.0).abs() < 0.1,
        "{estimate} of {seen}, {kept} kept"
    );
}
