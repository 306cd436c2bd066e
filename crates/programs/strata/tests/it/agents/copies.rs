//! An agent whose directory was copied to another host, and what a controller remembers of changes.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use strata_agent::Interface;
use strata_auth::authority::{Key, agent};
use strata_control::agent_client::{AgentClient, Interrupt};
use strata_testkit::{Namespace, may_use_kernel};

use super::{enrol, free_port, report};
use crate::common::agents::{Controller, Running, host, middle, policies, until, within};
use crate::common::program::{failed, ok};
use crate::common::signal::signal;

const ALL: &str = "[[policy]]\nname = 'all'\nmatch = 'udp'\naction = 'header -> here'\n";

/// The agent `host-1`, with this directory.
fn start(host: &Namespace, controller: &Controller, state: &Path) -> Running {
    let mut command = within(Some(host));
    command.args(["agent", "--controller", "10.9.0.254", "-i", "tap*"]);
    command.args(["--destination", "here=udp://10.9.0.254:4740"]);
    command.args(["--name", "host-1", "--token-file"]);
    command.arg(controller.token()).arg("--state").arg(state);
    let said = File::create(state.with_extension("said")).unwrap();
    Running(command.stderr(said).spawn().unwrap())
}

fn said(state: &Path) -> String {
    fs::read_to_string(state.with_extension("said")).unwrap()
}

/// The only agent, as the controller shows it.
fn shown(controller: &Controller) -> Value {
    controller.json(&["agents"])[0].clone()
}

#[test]
fn a_copied_directory_is_named_and_its_agent_captures_nothing() {
    if !may_use_kernel("agents in network namespaces") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let middle = middle("st-ag-c");
    let hosts: Vec<Namespace> = (1..=2).map(|number| host(&middle, number)).collect();
    let mut controller = Controller::start(dir.path(), Some(&middle), "10.9.0.254:4741");
    ok(&mut controller.command(&["apply", &policies(dir.path(), ALL), "--why", "a test"]));
    let [own, copy] = ["own", "copy"].map(|name| dir.path().join(name));
    let first = start(&hosts[0], &controller, &own);
    until("an agent that captures", || controller.running() == 1);
    let mut copied = Command::new("cp");
    ok(copied.arg("-r").arg(&own).arg(&copy));
    let second = start(&hosts[1], &controller, &copy);
    let both = serde_json::json!(["10.9.0.1", "10.9.0.2"]);
    until("two agents named", || shown(&controller)["copies"] == both);
    let text = ok(&mut controller.command(&["agents"]));
    assert!(text.contains("from 10.9.0.1 and from 10.9.0.2"), "{text}");
    assert_eq!(controller.running(), 1, "the first goes on");
    until("the second yields", || {
        let record = fs::read_to_string(copy.join("assignment.json")).unwrap();
        let assigned: Value = serde_json::from_str(&record).unwrap();
        assigned["identities"] == serde_json::json!({})
    });
    let text = said(&copy);
    assert!(
        text.contains("host-1 already reports from 10.9.0.1"),
        "{text}"
    );
    assert!(!said(&own).contains("already reports"), "{}", said(&own));
    // One that starts again is no copy.
    drop(first);
    let mut first = start(&hosts[0], &controller, &own);
    until("the first again, or the second", || {
        let agent = shown(&controller);
        agent["state"] == "up" && agent["captures"] == 1
    });
    drop(second);
    until("one agent", || controller.running() == 1);
    let events = controller.json(&["log"]);
    let kinds: Vec<&str> = events
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds[..3], ["apply", "enrol", "copy"]);
    assert_eq!(
        (&events[0]["why"], &events[0]["who"]),
        (&"a test".into(), &"uid 0".into())
    );
    assert_eq!(events[1]["who"], "10.9.0.1");
    // Its directory is removed while it runs: at once, since its recording writes there.
    fs::rename(&own, dir.path().join("removed")).unwrap();
    until("the directory is missed", || {
        said(&own).contains("directory was removed")
    });
    until("the controller says so", || {
        let problem = shown(&controller)["problem"].clone();
        problem
            .as_str()
            .is_some_and(|problem| problem.contains("directory was removed"))
    });
    signal(&first.0, "INT");
    let _ = first.0.wait();
    controller.stop();
}

#[test]
fn a_controller_remembers_changes_and_who_made_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut controller = Controller::start(dir.path(), None, "127.0.0.1:0");
    let text = ok(&mut controller.command(&["log"]));
    assert_eq!(text, "nothing was changed yet\n");
    let folder = policies(dir.path(), ALL);
    ok(&mut controller.command(&["apply", &folder]));
    // What changes nothing is no event.
    ok(&mut controller.command(&["apply", &folder, "--dry-run"]));
    ok(&mut controller.command(&["apply", &folder]));
    policies(dir.path(), &ALL.replace("udp", "tcp"));
    ok(&mut controller.command(&["apply", &folder, "--why", "only tcp"]));
    ok(&mut controller.command(&["rollout", "undo", "--why", "too much"]));
    failed(&mut controller.command(&["revoke", "nothing"]));
    let long = "x".repeat(2000);
    let text = failed(&mut controller.command(&["rollout", "undo", "--why", &long]));
    assert!(text.contains("2000 bytes; at most"), "{text}");
    // They are stored.
    controller.stop();
    controller.again(None);
    let text = ok(&mut controller.command(&["log"]));
    let uid = rustix::process::getuid().as_raw();
    let lines: Vec<&str> = text
        .lines()
        .map(|line| line.split_once("apply").map_or(line, |(_, rest)| rest))
        .collect();
    assert_eq!(lines[0], format!(" by uid {uid}: version 1: + policy all"));
    assert_eq!(
        lines[1],
        format!(" by uid {uid}: version 2: ~ policy all (only tcp)")
    );
    assert!(
        lines[2].ends_with(&format!(
            " undo by uid {uid}: version 3: ~ policy all (too much)"
        )),
        "{text}"
    );
    assert_eq!(lines.len(), 3);
    assert_eq!(
        ok(&mut controller.command(&["log", "-n", "1"]))
            .lines()
            .count(),
        1
    );
    controller.stop();
}

#[test]
fn an_interface_that_is_gone_is_listed_as_gone() {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let mut controller = Controller::start(dir.path(), None, &address);
    let (token, authority) = controller.secrets();
    ok(&mut controller.command(&["apply", &policies(dir.path(), ALL)]));
    let key = Key::generate().unwrap();
    let mut client = AgentClient::new(&address, agent(&authority, None).unwrap()).unwrap();
    let mine = client.enrol(&enrol("web-1", &token, &key)).unwrap();
    let own = agent(&authority, Some((&mine.certificate, &key.pem()))).unwrap();
    let mut client = AgentClient::new(&address, own).unwrap();
    let interrupt = Interrupt::default();
    let mut both = report();
    both.interfaces.push(Interface {
        name: "tap0".into(),
        ..Interface::default()
    });
    client.report(&both, interrupt.follow()).unwrap();
    let text = ok(&mut controller.command(&["agents"]));
    assert!(!text.contains("not on this host"), "{text}");
    client.report(&report(), interrupt.follow()).unwrap();
    let text = ok(&mut controller.command(&["agents"]));
    let lines: Vec<&str> = text.lines().skip(1).collect();
    assert_eq!(
        lines,
        [
            "    eth0: identity 1",
            "    tap0: identity 2, not on this host now"
        ]
    );
    controller.stop();
}
