//! What agents have exported is what collectors have received, or say that they have not, even if each of them is killed meanwhile.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use serde_json::Value;
use strata_testkit::{Namespace, may_use_kernel};

use crate::common::agents::agent as start;
use crate::common::agents::{Controller, Running, host, inject, middle, policies, until, within};
use crate::common::program::{failed, ok, refused, strata};
use crate::common::signal::signal;

const ALL: &str = "[[policy]]\nname = 'all'\nmatch = 'udp'\naction = 'header -> here'\n";

/// A collector in the middle, for the destination `here`.
fn collector(middle: &Namespace, dir: &Path, controller: &Controller) -> Running {
    let mut command = within(Some(middle));
    command.args(["collector", "--listen", "10.9.0.254", "--key-file"]);
    command.arg(controller.state.join("export.key"));
    command.args([
        "--controller",
        "10.9.0.254",
        "--name",
        "here",
        "--token-file",
    ]);
    command.arg(controller.token());
    command.arg("--state").arg(dir.join("collector"));
    command.arg("-w").arg(dir.join("all.pcapng"));
    Running(command.spawn().unwrap())
}

/// What was exported to `here`, and what became of it.
fn here(controller: &Controller) -> Value {
    let sums = controller.json(&["status"]);
    let all = sums.as_array().unwrap();
    let here = all.iter().find(|one| one["name"] == "here");
    here.cloned().unwrap_or(Value::Null)
}

/// Exported, received, lost, before, missing.
fn counts(of: &Value) -> [u64; 5] {
    ["exported", "received", "lost", "before", "missing"].map(|name| of[name].as_u64().unwrap_or(0))
}

/// Sends packets until the agent of this host exports them: those before its recording are in no sum.
fn captures(controller: &Controller, host: &Namespace) {
    let before = counts(&here(controller)["sum"])[0];
    until("exported packets", || {
        inject(host, "vm0", 1);
        counts(&here(controller)["sum"])[0] > before
    });
}

/// What was exported, once two reports of each agent have said the same.
fn settled(controller: &Controller) -> u64 {
    let (mut last, mut heard, mut reports) = (0, vec![0; 2], vec![0; 2]);
    until("no more packets exported", || {
        let now = counts(&here(controller)["sum"])[0];
        if now != last {
            (last, reports) = (now, vec![0; 2]);
        }
        let agents = controller.json(&["agents"]);
        for (at, agent) in agents.as_array().unwrap().iter().enumerate() {
            // Seconds since the last report.
            let seconds = agent["heard"].as_u64().unwrap();
            reports[at] += u32::from(seconds < heard[at]);
            heard[at] = seconds;
        }
        reports.iter().all(|reports| *reports >= 2)
    });
    last
}

/// Sends packets, and waits until the sum has this number of exported ones and closes.
fn closes(controller: &Controller, hosts: &[Namespace], sent: &mut u64) -> [u64; 5] {
    for host in hosts {
        for number in 0..50 {
            inject(host, "vm0", number);
            *sent += 1;
        }
    }
    let mut found = [0; 5];
    until("all packets are accounted for", || {
        found = counts(&here(controller)["sum"]);
        found[0] >= *sent && found[4] == 0
    });
    let [exported, received, lost, before, _] = found;
    assert_eq!(exported, received + lost + before, "{found:?}");
    found
}

#[test]
fn sums_close_after_each_is_killed() {
    if !may_use_kernel("agents in network namespaces") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let middle = middle("st-ag-s");
    let hosts: Vec<Namespace> = (1..=2).map(|number| host(&middle, number)).collect();
    let mut controller = Controller::start(dir.path(), Some(&middle), "10.9.0.254:4741");
    let text = ok(&mut controller.command(&["status"]));
    assert_eq!(text, "no agent has exported anything yet\n");
    ok(&mut controller.command(&["apply", &policies(dir.path(), ALL)]));
    let mut agents: Vec<Running> = (1..)
        .zip(&hosts)
        .map(|(number, host)| start(host, dir.path(), &controller, number))
        .collect();
    until("two agents", || controller.running() == 2);
    hosts.iter().for_each(|host| captures(&controller, host));
    let mut sent = settled(&controller);
    let text = ok(&mut controller.command(&["status"]));
    assert!(
        text.contains("here: no collector of this name reports"),
        "{text}"
    );
    let before = sent;
    let first = collector(&middle, dir.path(), &controller);
    let found = closes(&controller, &hosts, &mut sent);
    assert_eq!(found, [sent, sent - before, 0, before, 0]);
    let text = ok(&mut controller.command(&["status"]));
    assert!(text.contains("here: collector up at 10.9.0.254"), "{text}");
    assert!(text.contains("each exported packet was received"), "{text}");
    // The collector is killed, and misses some.
    drop(first);
    for number in 0..50 {
        inject(&hosts[0], "vm0", number);
        sent += 1;
    }
    until("those are exported", || {
        counts(&here(&controller)["sum"])[0] >= sent
    });
    let _second = collector(&middle, dir.path(), &controller);
    let found = closes(&controller, &hosts, &mut sent);
    assert_eq!(found[0], sent);
    // An agent is killed, and then the controller, which forgets what the agent had reported before.
    drop(agents.remove(0));
    agents.insert(0, start(&hosts[0], dir.path(), &controller, 1));
    captures(&controller, &hosts[0]);
    sent = settled(&controller);
    closes(&controller, &hosts, &mut sent);
    controller.again(Some(&middle));
    until("two agents with the new controller", || {
        controller.running() == 2
    });
    closes(&controller, &hosts, &mut sent);
    // What is lost on the way is counted.
    hosts[0].ip("rule add ipproto udp dport 4740 blackhole");
    for number in 0..50 {
        inject(&hosts[0], "vm0", number);
        sent += 1;
    }
    until("those are exported", || {
        counts(&here(&controller)["sum"])[0] >= sent
    });
    hosts[0].ip("rule del ipproto udp dport 4740 blackhole");
    let found = closes(&controller, &hosts, &mut sent);
    assert!(found[0] == sent && found[2] >= 50, "{found:?}");
    agents.iter().for_each(|agent| signal(&agent.0, "INT"));
    controller.stop();
}

/// A name is of an agent or of a collector, and a collector needs one.
#[test]
fn a_collector_enrols_under_a_name_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = strata();
        let to: PathBuf = dir.path().join("x.pcapng");
        command
            .args(["collector", "--listen", "127.0.0.1:0", "-w"])
            .arg(to);
        failed(command.args(arguments))
    };
    let mut nameless = strata();
    nameless.args(["collector", "-w", "-", "--controller", "127.0.0.1:1"]);
    let output = nameless.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("--name <NAME>"), "{text}");
    let state = dir.path().join("state");
    let state = state.to_str().unwrap();
    let named = [
        "--controller",
        "127.0.0.1:1",
        "--name",
        "here",
        "--state",
        state,
    ];
    let text = run(&named);
    assert!(text.contains("copy enrol.token"), "{text}");
}

/// What an HTTP server on this machine answers.
fn page(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let request = "GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn a_controller_serves_metrics_on_its_machine_only() {
    let dir = tempfile::tempdir().unwrap();
    let port = super::free_port();
    let run = |metrics: &str| {
        let mut command = strata();
        command.args(["controller", "run", "--listen", "127.0.0.1:0", "--state"]);
        command
            .arg(dir.path().join("state"))
            .args(["--metrics-listen", metrics]);
        command
    };
    let text = refused(&mut run("192.0.2.1"));
    assert!(text.contains("without authentication"), "{text}");
    let running = Running(run(&format!("127.0.0.1:{port}")).spawn().unwrap());
    let mut found = None;
    until("a page of metrics", || {
        found = page(port);
        found.is_some()
    });
    let found = found.unwrap();
    assert!(found.starts_with("HTTP/1.1 200"), "{found}");
    assert!(
        found.contains("\nstrata_fleet_policies_version{} 0.0\n"),
        "{found}"
    );
    drop(running);
}
