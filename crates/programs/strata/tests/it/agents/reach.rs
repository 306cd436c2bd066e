//! Destinations that cannot be reached, for a while: agents go on to send to the others.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use strata_testkit::{Namespace, data_dir, may_use_kernel};

use crate::common::agents::{Controller, Running, inject, policies, until, within};
use crate::common::program::{failed, ok, refused, strata};
use crate::common::signal::signal;

/// What programs of a namespace have in place of `/etc/hosts`: `ip netns exec` mounts it.
struct HostsFile(PathBuf);

impl HostsFile {
    fn new(namespace: &Namespace) -> Self {
        let dir = Path::new("/etc/netns").join(namespace.name());
        fs::create_dir_all(&dir).unwrap();
        // There is no listener, and the kernel says so at once.
        fs::write(dir.join("resolv.conf"), "nameserver 127.0.0.1\n").unwrap();
        let file = Self(dir);
        file.set("");
        file
    }

    /// The same file: another one of its name would not be seen.
    fn set(&self, text: &str) {
        fs::write(self.0.join("hosts"), text).unwrap();
    }
}

impl Drop for HostsFile {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const POLICIES: &str = "
[[policy]]
name = 'here'
match = 'udp'
action = 'header -> here'
[[policy]]
name = 'named'
match = 'udp port 53'
action = 'payload -> named'
[[policy]]
name = 'far'
match = 'udp port 53'
action = 'payload -> far'
";

/// A host with an agent and its controller, and a host to which there is no way at first.
struct Setup {
    dir: tempfile::TempDir,
    host: Namespace,
    far: Namespace,
    names: HostsFile,
    controller: Controller,
}

impl Setup {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (host, far) = (Namespace::new("st-reach-h"), Namespace::new("st-reach-f"));
        for namespace in [&host, &far] {
            namespace.ip("link set lo up");
        }
        host.pair("tap0", "vm0");
        let names = HostsFile::new(&host);
        let controller = Controller::start(dir.path(), Some(&host), "127.0.0.1:4741");
        ok(&mut controller.command(&["apply", &policies(dir.path(), POLICIES)]));
        Self {
            dir,
            host,
            far,
            names,
            controller,
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A collector that writes a file of this name.
    fn collector(&self, namespace: &Namespace, address: &str, name: &str) -> Running {
        let mut command = within(Some(namespace));
        command.args(["collector", "--listen", address, "--key-file"]);
        command.arg(self.controller.state.join("export.key"));
        Running(command.arg("-w").arg(self.file(name)).spawn().unwrap())
    }

    /// The agent; what it says goes to a file of this name.
    fn agent(&self, said: &str) -> Running {
        let mut command = within(Some(&self.host));
        command.args(["agent", "--controller", "127.0.0.1", "--name", "me"]);
        command.args(["-i", "tap*", "-i", "eth*", "-i", "nope*"]);
        for to in [
            "here=udp://127.0.0.1:4740",
            "named=udp://analyser.invalid:4740",
            "far=udp://10.77.0.2:4740",
            // No policy uses these.
            "spare=udp://no.such.invalid:1",
            "vxlan=vxlan://nohost.invalid",
        ] {
            command.args(["--destination", to]);
        }
        command.arg("--token-file").arg(self.controller.token());
        command.arg("--state").arg(self.file("agent"));
        let said = File::create(self.file(said)).unwrap();
        Running(command.stderr(said).spawn().unwrap())
    }

    /// What the controller knows of a destination.
    fn reported(&self, destination: &str) -> Value {
        let agents = self.controller.json(&["agents"]);
        let exports = agents[0]["exports"].as_array().unwrap();
        let found = exports.iter().find(|to| to["name"] == destination);
        found.cloned().unwrap_or_default()
    }

    fn problem(&self, destination: &str) -> String {
        let reported = self.reported(destination);
        reported["problem"].as_str().unwrap_or("").to_owned()
    }

    /// Numbers of the packets from `vm0` in a file, as tshark reads it.
    fn arrived(&self, name: &str) -> Vec<u8> {
        let mut command = Command::new("tshark");
        command.arg("-n").arg("-r").arg(self.file(name));
        let fields = ["-Y", "ip.src == 10.0.0.1", "-T", "fields", "-e", "ip.id"];
        let output = command.args(fields).output();
        let text = String::from_utf8(output.expect("tshark is installed").stdout).unwrap();
        let number = |line: &str| u8::from_str_radix(&line[line.len() - 2..], 16).unwrap();
        text.lines().map(number).collect()
    }

    /// Waits until a packet with this number arrives.
    fn reaches(&self, name: &str, number: u8) {
        until(&format!("packet {number} in {name}"), || {
            inject(&self.host, "vm0", number);
            self.arrived(name).contains(&number)
        });
    }

    /// How often an agent has printed that.
    fn said(&self, name: &str, what: &str) -> usize {
        let text = fs::read_to_string(self.file(name)).unwrap();
        text.lines().filter(|line| line.contains(what)).count()
    }
}

/// Names that have no address, a name that has one later, and another one after that, and a host to which there is no
/// way, is one, and is another.
#[test]
fn a_destination_that_cannot_be_reached_stops_no_other() {
    if !may_use_kernel("an agent in a network namespace") {
        return;
    }
    let setup = Setup::new();
    let mut collectors = vec![
        setup.collector(&setup.host, "127.0.0.1", "here"),
        setup.collector(&setup.host, "127.0.0.2", "named"),
        setup.collector(&setup.host, "127.0.0.3", "moved"),
    ];
    let agent = setup.agent("said");
    until("an agent that captures", || {
        setup.controller.json(&["agents"])[0]["captures"] == 1
    });
    setup.reaches("here", 200);
    let before = setup.arrived("here").len();
    // All of them arrive, and are counted as not sent elsewhere.
    (0..100).for_each(|number| inject(&setup.host, "vm0", number));
    until("all packets", || setup.arrived("here").contains(&99));
    let arrived = setup.arrived("here").into_iter();
    let arrived: Vec<u8> = arrived.filter(|number| *number < 200).collect();
    assert_eq!(arrived, (0..100).collect::<Vec<u8>>());
    for (name, problem) in [("named", "address is not known"), ("far", "unreachable")] {
        until(&format!("packets for {name}"), || {
            let to = setup.reported(name);
            to["packets"].as_u64() >= Some(100 + before as u64)
                && to["not_sent"].as_u64().unwrap() > 0
        });
        let why = setup.problem(name);
        assert!(why.contains(problem), "{why}");
    }
    for name in ["spare", "vxlan"] {
        let why = setup.problem(name);
        assert!(why.contains("address is not known"), "{why}");
    }
    assert_eq!(setup.controller.running(), 1, "the policies take effect");
    // The name has an address.
    setup.names.set("127.0.0.2 analyser.invalid\n");
    setup.reaches("named", 101);
    // There is a way, by an interface that is captured too.
    let peer = setup.far.name().to_owned();
    setup.host.ip(&format!(
        "link add eth0 type veth peer name eth0 netns {peer}"
    ));
    setup.far.ip("addr add 10.77.0.2/24 dev eth0");
    setup.far.ip("link set eth0 up");
    setup.host.ip("addr add 10.77.0.1/24 dev eth0");
    setup.host.ip("link set eth0 up");
    let mut command = within(Some(&setup.far));
    command.args([
        "collector",
        "--listen",
        "10.77.0.2",
        "--allow",
        "10.77.0.0/24",
    ]);
    command.arg("--key-file");
    command.arg(setup.controller.state.join("export.key"));
    let command = command.arg("-w").arg(setup.file("far"));
    collectors.push(Running(command.spawn().unwrap()));
    setup.reaches("far", 102);
    until("two interfaces", || {
        setup.controller.json(&["agents"])[0]["captures"] == 2
    });
    // What is sent by eth0 comes from another address.
    setup.host.ip("addr del 10.77.0.1/24 dev eth0");
    until("a problem", || !setup.problem("far").is_empty());
    setup.reaches("here", 103);
    setup.host.ip("addr add 10.77.0.9/24 dev eth0");
    setup.reaches("far", 104);
    until("no problem", || setup.problem("far").is_empty());
    // The name has another address.
    setup.names.set("127.0.0.3 analyser.invalid\n");
    setup.reaches("moved", 105);
    // What the socket in the place of another one has sent is not exported again.
    for name in ["here", "far", "named", "moved"] {
        let mut command = Command::new("tshark");
        let own = ["-Y", "udp.port == 4740 and ip.src == 10.77.0.9"];
        let text = ok(command.arg("-n").arg("-r").arg(setup.file(name)).args(own));
        assert_eq!(text, "", "{name}");
    }
    for name in [
        "--destination spare: ",
        "--destination vxlan: ",
        "-i nope*: ",
    ] {
        assert_eq!(setup.said("said", name), 1, "{name}");
    }
    assert_eq!(setup.said("said", "--destination named: "), 3);
    assert_eq!(setup.said("said", "-i tap*: "), 0);
    drop(agent);
    // One that is started again says that it is connected.
    let mut agent = setup.agent("said-again");
    until("a connection", || {
        setup.said("said-again", "127.0.0.1:4741: connected") == 1
    });
    setup.reaches("here", 106);
    assert_eq!(setup.said("said-again", ": connected"), 1);
    signal(&agent.0, "INT");
    assert!(agent.0.wait().unwrap().success());
}

/// What a user has typed is an error at once.
#[test]
fn a_recording_refuses_a_destination_that_it_cannot_reach() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("strata.toml");
    let capture = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    let run = |export: &str, options: &[&str]| {
        let text = format!("[export]\nidentity = 7\n{export}\n");
        fs::write(&config, text).unwrap();
        let mut command = strata();
        command.arg("record").arg("-r").arg(&capture);
        command.arg("--config").arg(&config).args(options);
        command
    };
    for url in ["udp://no.such.invalid:1", "vxlan://no.such.invalid"] {
        let export = format!("destinations = {{ spare = '{url}' }}");
        let text = failed(&mut run(&export, &[]));
        assert!(text.contains("export.destinations.spare: "), "{text}");
        assert!(text.contains("cannot be reached"), "{text}");
        // Unless somebody else looks names up, as an agent does.
        ok(&mut run(&format!("{export}\naddresses = {{}}"), &[]));
    }
    let export = "destinations = { spare = 'udp://spare.invalid:1' }\naddresses = { ";
    let text = failed(&mut run(&format!("{export}other = '127.0.0.1:1' }}"), &[]));
    assert!(text.contains("addresses.other"), "{text}");
    let log = dir.path().join("log");
    let log = ["-o", log.to_str().unwrap()];
    let text = refused(&mut run(&format!("{export} }}"), &log));
    assert!(text.contains("export.addresses applies only to"), "{text}");
}
