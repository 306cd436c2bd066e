//! A deployment: a controller, three agents, two collectors and a recorder with its page. Each is
//! killed once while packets go on; then the sums close, and nothing is lost any longer.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use strata_testkit::{Namespace, may_use_kernel};

use crate::common::agents::{Controller, Running, frame, host, middle, policies, until, within};
use crate::common::program::ok;
use crate::common::signal::signal;

/// Headers of all hosts go to one collector, packets of the third to another.
const POLICIES: &str = "
[[policy]]
name = 'third'
match = 'udp'
action = 'payload -> there'
hosts = ['host-3']
priority = 200

[[policy]]
name = 'all'
match = 'udp'
action = 'header -> here'
";

const DESTINATIONS: [(&str, u16); 2] = [("here", 4740), ("there", 4742)];

/// What runs, and what it takes to start it again.
struct Deployment<'a> {
    dir: &'a Path,
    middle: &'a Namespace,
    hosts: &'a [Namespace],
    controller: Controller,
    agents: Vec<Running>,
    collectors: Vec<(Running, PathBuf)>,
    recorder: Running,
    /// Of all that were started.
    runs: usize,
}

fn agent(host: &Namespace, dir: &Path, controller: &Controller, number: usize) -> Running {
    let mut command = within(Some(host));
    command.args(["agent", "--controller", "10.9.0.254", "-i", "tap*"]);
    for (name, port) in DESTINATIONS {
        let to = format!("{name}=udp://10.9.0.254:{port}");
        command.args(["--destination", &to]);
    }
    command.arg("--name").arg(format!("host-{number}"));
    command.arg("--token-file").arg(controller.token());
    let state = dir.join(format!("agent-{number}"));
    Running(command.arg("--state").arg(state).spawn().unwrap())
}

fn collector(
    middle: &Namespace,
    dir: &Path,
    controller: &Controller,
    (at, run): (usize, usize),
) -> (Running, PathBuf) {
    let (name, port) = DESTINATIONS[at];
    let file = dir.join(format!("{name}-{run}.pcapng"));
    let mut command = within(Some(middle));
    command.args(["collector", "--controller", "10.9.0.254", "--name", name]);
    command.arg("--listen").arg(format!("10.9.0.254:{port}"));
    command.arg("--key-file");
    command.arg(controller.state.join("export.key"));
    command.arg("--token-file").arg(controller.token());
    command
        .arg("--state")
        .arg(dir.join(format!("collector-{name}")));
    (Running(command.arg("-w").arg(&file).spawn().unwrap()), file)
}

fn log(dir: &Path, run: usize) -> PathBuf {
    dir.join(format!("log-{run}"))
}

fn recorder(middle: &Namespace, dir: &Path, run: usize) -> Running {
    let mut command = within(Some(middle));
    command.args(["record", "-i", "h1,h2,h3", "--serve=127.0.0.1:0", "-o"]);
    command.arg(log(dir, run)).stderr(Stdio::null());
    Running(command.spawn().unwrap())
}

impl<'a> Deployment<'a> {
    fn start(dir: &'a Path, middle: &'a Namespace, hosts: &'a [Namespace]) -> Self {
        let controller = Controller::start(dir, Some(middle), "10.9.0.254:4741");
        ok(&mut controller.command(&["apply", &policies(dir, POLICIES)]));
        let collectors = (0..2).map(|at| collector(middle, dir, &controller, (at, 0)));
        let collectors = collectors.collect();
        let agents = (1..).zip(hosts);
        let agents = agents.map(|(number, host)| agent(host, dir, &controller, number));
        Self {
            agents: agents.collect(),
            collectors,
            recorder: recorder(middle, dir, 0),
            controller,
            dir,
            middle,
            hosts,
            runs: 0,
        }
    }

    /// Sends packets with this number by each host.
    fn send(&mut self, count: u64, number: u8) {
        for host in self.hosts {
            host.enter(|| {
                let mut sender = pcap::Capture::from_device("vm0").unwrap().open().unwrap();
                for _ in 0..count {
                    sender.sendpacket(frame(number)).unwrap();
                }
            });
        }
    }

    /// The sums of both destinations.
    fn sums(&self) -> Vec<Value> {
        let all = self.controller.json(&["status"]);
        let all = all.as_array().unwrap();
        let sum = |(name, _): (&str, u16)| {
            let found = all.iter().find(|one| one["name"] == name);
            found.map_or(Value::Null, |found| found["sum"].clone())
        };
        DESTINATIONS.map(sum).to_vec()
    }

    /// Packets exported to each, and of these received.
    fn counts(&self) -> Vec<[u64; 2]> {
        let count = |sum: &Value, name: &str| sum[name].as_u64().unwrap_or(0);
        let both = |sum: &Value| [count(sum, "exported"), count(sum, "received")];
        self.sums().iter().map(both).collect()
    }

    /// Waits until agents and collectors report to the controller, and each host's packets are exported and
    /// received.
    fn works(&mut self) {
        until("three agents", || self.controller.running() == 3);
        for (at, (name, _)) in DESTINATIONS.into_iter().enumerate() {
            let before = self.counts()[at];
            until(&format!("packets received by {name}"), || {
                self.send(1, 1);
                let now = self.counts()[at];
                now[0] > before[0] && now[1] > before[1]
            });
        }
    }

    /// Kills each part once, and starts it again.
    fn kill_each(&mut self) {
        for number in 1..=3 {
            drop(self.agents.remove(0));
            self.send(50, 2);
            let again = agent(&self.hosts[number - 1], self.dir, &self.controller, number);
            self.agents.push(again);
        }
        for at in 0..2 {
            self.collectors[at].0.0.kill().unwrap();
            self.send(50, 3);
            self.runs += 1;
            self.collectors[at] =
                collector(self.middle, self.dir, &self.controller, (at, self.runs));
        }
        self.controller.process = None;
        self.send(50, 4);
        self.controller.again(Some(self.middle));
        self.recorder.0.kill().unwrap();
        self.recorder.0.wait().unwrap();
        self.send(50, 5);
        self.runs += 1;
        self.recorder = recorder(self.middle, self.dir, self.runs);
    }

    /// Whether each exported packet was received, or is counted as lost, or was before the collector.
    fn closes(&self) -> bool {
        let is_closed = |sum: &Value| {
            let of = |name: &str| sum[name].as_u64().unwrap_or(0);
            of("missing") == 0
                && of("exported") == of("received") + of("lost") + of("before")
                && of("exported") > 0
        };
        self.sums().iter().all(is_closed)
    }
}

/// Packets with this number in a file.
fn found(file: &Path, number: u8) -> usize {
    let mut command = Command::new("tshark");
    command.arg("-n").arg("-r").arg(file);
    command.args(["-Y", &format!("ip.id == {number}"), "-T", "fields"]);
    let output = command.args(["-e", "ip.id"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().count()
}

#[test]
fn a_deployment_of_which_each_part_is_killed_accounts_for_each_packet() {
    if !may_use_kernel("agents in network namespaces") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let middle = middle("st-ag-d");
    let hosts: Vec<Namespace> = (1..=3).map(|number| host(&middle, number)).collect();
    let mut all = Deployment::start(dir.path(), &middle, &hosts);
    all.works();
    all.kill_each();
    all.works();
    until("sums that close", || all.closes());
    // From now on, nothing is lost: each packet is exported, received and written.
    let before = all.counts();
    all.send(200, 77);
    let lost = |counts: &[[u64; 2]]| -> Vec<u64> {
        let each = counts
            .iter()
            .map(|[exported, received]| exported - received);
        each.collect()
    };
    let mut after = before.clone();
    until("all packets received", || {
        after = all.counts();
        let received = [after[0][1] - before[0][1], after[1][1] - before[1][1]];
        all.closes() && received[0] >= 400 && received[1] >= 200
    });
    assert_eq!(lost(&after), lost(&before), "{before:?}, {after:?}");
    for ((_, file), expected) in all.collectors.iter().zip([400, 200]) {
        until("all packets in the file", || found(file, 77) >= expected);
        assert_eq!(found(file, 77), expected, "{}", file.display());
    }
    let text = ok(&mut all.controller.command(&["status"]));
    for (name, _) in DESTINATIONS {
        assert!(text.contains(&format!("{name}: collector up")), "{text}");
    }
    assert_eq!(text.matches("each exported packet was received").count(), 2);
    // What the recorder wrote until it was killed can be read, and so can the rest.
    signal(&all.recorder.0, "INT");
    assert!(all.recorder.0.wait().unwrap().success());
    for run in [0, all.runs] {
        let mut verify = within(None);
        ok(verify.arg("verify").arg(log(dir.path(), run)));
    }
    all.controller.stop();
}
