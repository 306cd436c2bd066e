//! What an agent exports is what a running collector shows, as it shows it: in its status, among the running ones, and
//! as metrics; and what tshark finds in its log.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use strata_testkit::{Namespace, may_use_kernel};

use crate::collector::status::metrics;
use crate::common::agents::agent as start;
use crate::common::agents::{Controller, Running, host, inject, middle, policies, until, within};
use crate::common::program::{ok, strata};
use crate::common::recording::wait_for;
use crate::common::signal::signal;

const ALL: &str = "[[policy]]\nname = 'all'\nmatch = 'udp'\naction = 'header -> here'\n";

/// A collector in the middle, with its default socket.
fn collector(middle: &Namespace, controller: &Controller, more: &[&str]) -> (Running, PathBuf) {
    let mut command = within(Some(middle));
    command.args(["collector", "--key-file"]);
    command.arg(controller.state.join("export.key")).args(more);
    let running = Running(command.spawn().unwrap());
    let dir = format!("/run/strata/collector-{}", running.0.id());
    (running, Path::new(&dir).join("control.sock"))
}

/// Packets that the agent has exported, or lost before that.
fn exported(controller: &Controller) -> u64 {
    let agents = controller.json(&["agents"]);
    let counts = &agents[0]["exports"][0];
    let count = |name: &str| counts[name].as_u64().unwrap_or(0);
    count("packets") + count("lost")
}

/// Packets that arrived, or are known to be missing.
fn sum(status: &Value) -> u64 {
    let from = &status["collector"]["senders"][0];
    let count = |name: &str| from[name].as_u64().unwrap_or(0);
    count("packets") + count("lost") + count("before")
}

#[test]
fn what_an_agent_exports_is_shown_while_it_arrives() {
    if !may_use_kernel("agents in network namespaces") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let middle = middle("st-ag-v");
    let host = host(&middle, 71);
    let mut controller = Controller::start(dir.path(), Some(&middle), "10.9.0.254:4741");
    ok(&mut controller.command(&["apply", &policies(dir.path(), ALL)]));
    let log = dir.path().join("log");
    let log = log.to_str().unwrap();
    let listen = ["--listen", "10.9.0.254", "--mode", "log-all", "-o", log];
    let (collecting, socket) = collector(&middle, &controller, &listen);
    let other = dir.path().join("other.pcapng");
    let listen = ["--listen", "10.9.0.254:4799", "-w", other.to_str().unwrap()];
    let (other, idle) = collector(&middle, &controller, &listen);
    wait_for(&idle, "a collector without senders", |status| {
        status["collector"]["senders"]
            .as_array()
            .is_some_and(Vec::is_empty)
    });
    let agent = start(&host, dir.path(), &controller, 71);
    until("an agent", || controller.running() == 1);
    until("exported packets", || {
        inject(&host, "vm0", 1);
        exported(&controller) > 0
    });
    for number in 0..100 {
        inject(&host, "vm0", number);
    }
    // All were captured, so the agent is the one that says how many.
    let status = wait_for(&socket, "all that the agent exported", |status| {
        let before = exported(&controller);
        before > 100 && sum(status) == before && exported(&controller) == before
    });
    let from = &status["collector"]["senders"][0];
    let came = from["packets"].as_u64().unwrap();
    assert_eq!(from["sender"], "10.9.0.71");
    assert_eq!(from["name"], "host-71:tap0");
    // 42 of the 60 bytes of each.
    assert_eq!(from["cut"], came);
    assert_eq!(from["bytes"], came * 42);
    assert_eq!(status["collector"]["is_encrypted"], true);
    let page = metrics(&socket);
    let identity = &from["identity"];
    let of = format!("{{sender=\"10.9.0.71\",identity=\"{identity}\",interface=\"host-71:tap0\"}}");
    for line in [
        format!("strata_collector_sender_packets_total{of} {came}"),
        format!("strata_collector_packets_total{{}} {came}"),
    ] {
        assert!(page.contains(&format!("\n{line}\n")), "{line}: {page}");
    }
    // Of the recording beside it.
    assert!(
        page.contains("\nstrata_packets_total{result=\"logged\""),
        "{page}"
    );
    let lists = |listen: &str, socket: &Path| {
        until("a line of each collector", || {
            let output = strata().arg("status").output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let socket = socket.to_str().unwrap();
            let line = text.lines().find(|line| line.ends_with(socket));
            line.is_some_and(|line| line.starts_with(&format!("udp {listen} ")))
        });
    };
    lists("10.9.0.254:4740", &socket);
    lists("10.9.0.254:4799", &idle);
    for (mut running, socket) in [
        (agent, None),
        (collecting, Some(socket)),
        (other, Some(idle)),
    ] {
        signal(&running.0, "INT");
        assert!(running.0.wait().unwrap().success());
        assert!(socket.is_none_or(|socket| !socket.exists()));
    }
    controller.stop();
    let out = dir.path().join("out.pcapng");
    ok(strata().args(["export", "-w"]).arg(&out).arg(log));
    let frames = ok(Command::new("tshark").arg("-r").arg(&out));
    assert_eq!(frames.lines().count() as u64, came);
    let info = ok(strata().args(["info", "--json"]).arg(log));
    let info: Value = serde_json::from_str(&info).unwrap();
    let counts = info[0]["counts"].as_array().unwrap();
    let is_header = |count: &Value| count["granularity"] == "header";
    assert!(counts.iter().all(is_header), "{info}");
}
