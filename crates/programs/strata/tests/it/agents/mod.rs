//! Agents that follow a controller: enrolment, policies by selector, and what strangers and hostile agents
//! get: nothing.

mod bridge;
mod churn;
mod collectors;
mod copies;
mod deployment;
mod extcap;
mod page;
mod reach;
mod report;
mod rings;
mod seen;
mod sums;
mod switched;

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command};

use strata_agent::{Enrol, Interface, Renew, Report};
use strata_auth::authority::{Authority, Key, agent};
use strata_auth::keys::MasterKey;
use strata_control::agent_client::{AgentClient, Interrupt};
use strata_testkit::{Namespace, may_use_kernel};

use crate::common::agents::agent as start;
use crate::common::agents::{Controller, Running, host, inject, middle, policies, until, within};
use crate::common::program::{failed, ok, strata};
use crate::common::signal::signal;

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

const ALL: &str = "[[policy]]\nname = 'all'\nmatch = 'udp'\naction = 'header -> here'\n";

fn enrol(name: &str, token: &str, key: &Key) -> Enrol {
    Enrol {
        name: name.into(),
        token: token.into(),
        public_key: key.public().to_vec(),
        is_collector: false,
    }
}

fn report() -> Report {
    let interface = Interface {
        name: "eth0".into(),
        ..Interface::default()
    };
    Report {
        interfaces: vec![interface],
        ..Report::default()
    }
}

/// Who has no certificate of the controller's gets nothing, whatever it shows.
#[test]
fn strangers_and_agents_that_are_revoked_get_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let mut controller = Controller::start(dir.path(), None, &address);
    let (token, authority) = controller.secrets();
    ok(&mut controller.command(&["apply", &policies(dir.path(), ALL)]));
    let client = |own: Option<(&str, &str)>| {
        AgentClient::new(&address, agent(&authority, own).unwrap()).unwrap()
    };
    let interrupt = Interrupt::default();
    let key = Key::generate().unwrap();
    // Without a certificate: neither policies nor a certificate.
    let mut stranger = client(None);
    let refused = |error: &dyn std::fmt::Display, what: &str| {
        assert!(error.to_string().contains(what), "{error}");
    };
    refused(
        &stranger.report(&report(), interrupt.follow()).unwrap_err(),
        "only agents may request",
    );
    let public_key = key.public().to_vec();
    refused(
        &stranger.renew(&Renew { public_key }).unwrap_err(),
        "only agents may request",
    );
    let wrong = "0".repeat(token.len());
    refused(
        &stranger.enrol(&enrol("host", &wrong, &key)).unwrap_err(),
        "this token is not",
    );
    let mut no_key = enrol("host", &token, &key);
    no_key.public_key = vec![4; 64];
    refused(
        &stranger.enrol(&no_key).unwrap_err(),
        "not an uncompressed point",
    );
    refused(
        &stranger.enrol(&enrol("../x", &token, &key)).unwrap_err(),
        "only letters, digits, dots",
    );
    // With a certificate of another authority of the same name.
    let other = tempfile::tempdir().unwrap();
    let other = Authority::open(other.path()).unwrap();
    let forged = other.issue("host", key.public()).unwrap();
    let mut forger = client(Some((&forged.pem, &key.pem())));
    assert!(forger.report(&report(), interrupt.follow()).is_err());
    assert!(forger.enrol(&enrol("host", &token, &key)).is_err());
    // An agent does not take somebody else for its controller.
    let mut misled = AgentClient::new(&address, agent(other.pem(), None).unwrap()).unwrap();
    refused(
        &misled.enrol(&enrol("host", &token, &key)).unwrap_err(),
        "invalid peer certificate",
    );
    assert_eq!(controller.json(&["agents"]).as_array().unwrap().len(), 0);
    // One that is enrolled gets its policies; no other agent gets its name.
    let mine = stranger.enrol(&enrol("host", &token, &key)).unwrap();
    let again = stranger.enrol(&enrol("host", &token, &key)).unwrap_err();
    refused(&again, "an agent named host is enrolled");
    let mut known = client(Some((&mine.certificate, &key.pem())));
    let assigned = known
        .report(&report(), interrupt.follow())
        .unwrap()
        .unwrap();
    assert_eq!((assigned.version, assigned.policies.len()), (1, 1));
    assert_eq!(assigned.identities["eth0"], 1);
    let [line] = &assigned.keys[..] else {
        panic!("{:?}: the key of its one identity", assigned.keys);
    };
    assert!(line.starts_with("1 "), "{line}");
    // A policy whose hosts match no agent is no error, but is reported before it is applied and
    // then.
    let typo = format!("{ALL}hosts = ['hsot']\n");
    let folder = policies(dir.path(), &typo);
    let text = ok(&mut controller.command(&["apply", "--dry-run", &folder]));
    let note = "note: policy all selects no agent: no name matches hsot\n";
    assert!(text.contains(note), "{text}");
    policies(dir.path(), ALL);
    let text = ok(&mut controller.command(&["apply", "--dry-run", &folder]));
    assert!(!text.contains("note"), "{text}");
    // After a restart it is known, and has what it had.
    controller.again(None);
    let (mut stranger, mut known) = (client(None), client(Some((&mine.certificate, &key.pem()))));
    let same = known
        .report(&report(), interrupt.follow())
        .unwrap()
        .unwrap();
    assert_eq!(same, assigned);
    // Revoked, it is refused at once, and cannot enrol again.
    ok(&mut controller.command(&["revoke", "host"]));
    refused(
        &known.report(&report(), interrupt.follow()).unwrap_err(),
        "agent host is revoked",
    );
    let again = stranger.enrol(&enrol("host", &token, &key)).unwrap_err();
    refused(&again, "agent host is revoked");
    assert_eq!(controller.json(&["agents"])[0]["state"], "revoked");
    ok(&mut controller.command(&["forget", "host"]));
    refused(
        &known.report(&report(), interrupt.follow()).unwrap_err(),
        "enrol again",
    );
    controller.stop();
}

/// A change is whole, says what differs, and can be undone; others than the owner cannot read secrets.
#[test]
fn policies_are_applied_by_difference_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let mut controller = Controller::start(dir.path(), None, &address);
    let text = failed(&mut controller.command(&["rollout", "undo"]));
    assert!(
        text.contains("no previous version of the policies"),
        "{text}"
    );
    let folder = policies(dir.path(), ALL);
    let text = ok(&mut controller.command(&["apply", &folder, "--dry-run"]));
    assert_eq!(
        text,
        "+ policy all\nnothing changed (--dry-run): agents have version 0\n"
    );
    assert_eq!(
        ok(&mut controller.command(&["apply", &folder])),
        "+ policy all\nversion 1\n"
    );
    let text = ok(&mut controller.command(&["apply", &folder]));
    assert_eq!(text, "nothing to change: agents have version 1\n");
    let more = ALL.replace("'all'", "'more'");
    let wrong = ALL.replace("'all'", "'wrong'").replace("'udp'", "'udp['");
    policies(dir.path(), &format!("{ALL}{more}{wrong}"));
    let text = failed(&mut controller.command(&["apply", &folder]));
    assert!(text.contains("all.toml: policy wrong: match: "), "{text}");
    policies(dir.path(), &format!("{ALL}{more}"));
    assert_eq!(
        ok(&mut controller.command(&["apply", &folder])),
        "+ policy more\nversion 2\n"
    );
    let text = ok(&mut controller.command(&["rollout", "undo"]));
    assert_eq!(text, "- policy more\nversion 3\n");
    for file in ["ca.key", "enrol.token", "export.key"] {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::metadata(controller.state.join(file))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o077, 0, "{file}");
    }
    // A second controller would decide the same things differently.
    let mut second = strata();
    second.args(["controller", "run", "--listen", "127.0.0.1:0", "--state"]);
    let text = failed(second.arg(&controller.state));
    assert!(text.contains("another controller is using it"), "{text}");
    controller.stop();
    let text = failed(&mut controller.command(&["agents"]));
    assert!(
        text.contains("no controller runs with this directory"),
        "{text}"
    );
    // Killed, it leaves its socket.
    controller.again(None);
    controller.process = None;
    let text = failed(&mut controller.command(&["agents"]));
    assert!(text.contains("was killed: start it again"), "{text}");
    assert!(!text.contains("record"), "{text}");
}

/// What tshark finds in a file: interface and source of each packet.
fn found(path: &Path) -> BTreeSet<(String, String)> {
    let mut command = Command::new("tshark");
    command.arg("-n").arg("-r").arg(path).args(["-T", "fields"]);
    let output = command
        .args(["-e", "frame.interface_name", "-e", "ip.src"])
        .output();
    let text = String::from_utf8(output.expect("tshark is installed").stdout).unwrap();
    let pairs = text.lines().filter_map(|line| line.split_once('\t'));
    pairs
        .map(|(one, other)| (one.to_owned(), other.to_owned()))
        .collect()
}

const TENANTS: &str = "
[[policy]]
name = 'tenants'
match = 'udp port 53'
action = 'header -> here'
tenant = 'blue'
[[policy]]
name = 'red'
match = 'udp port 53'
action = 'payload -> here'
labels = { rack = '2' }
interfaces = ['tap*']
[[tenant]]
name = 'blue'
interfaces = ['host-1:tap*']
";

/// Another key takes the place of the first: in the collector before and after.
fn replace_key(dir: &Path, key: &Path, controller: &Controller, collector: &Child) {
    let old = fs::read_to_string(key).unwrap();
    let new = format!("{}\n", "7e".repeat(32));
    fs::write(key, format!("{new}{old}")).unwrap();
    signal(collector, "HUP");
    signal(&controller.process.as_ref().unwrap().0, "HUP");
    let line = MasterKey::new([0x7e; 32]).of(1).line();
    let id = line.split(' ').nth(1).unwrap();
    let has_new = |number: usize| {
        let keys = dir.join(format!("agent-{number}/export.keys"));
        let keys = fs::read_to_string(keys).unwrap();
        keys.contains(&format!(" {id} "))
    };
    until("new keys", || has_new(1) && has_new(2));
    until("three agents with new keys", || controller.running() == 3);
    fs::write(key, &new).unwrap();
    signal(collector, "HUP");
}

/// Three hosts, two tenants with equal addresses: streams arrive, and are told apart.
#[test]
fn three_hosts_follow_their_controller_and_go_on_without_it() {
    if !may_use_kernel("agents in network namespaces") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let middle = middle("st-ag-m");
    let hosts: Vec<Namespace> = (1..=3).map(|number| host(&middle, number)).collect();
    let mut controller = Controller::start(dir.path(), Some(&middle), "10.9.0.254:4741");
    ok(&mut controller.command(&["apply", &policies(dir.path(), TENANTS)]));
    let file = dir.path().join("all.pcapng");
    let key = controller.state.join("export.key");
    let mut command = within(Some(&middle));
    command.args([
        "collector",
        "--listen",
        "10.9.0.254",
        "--key-file",
        key.to_str().unwrap(),
        "-w",
    ]);
    let mut collector = Running(command.arg(&file).spawn().unwrap());
    let _agents: Vec<Running> = (1..)
        .zip(&hosts)
        .map(|(number, host)| start(host, dir.path(), &controller, number))
        .collect();
    until("three agents", || controller.running() == 3);
    let is_there = |expected: &[&str]| {
        let expected = expected
            .iter()
            .map(|name| ((*name).to_owned(), "10.0.0.1".to_owned()));
        found(&file) == expected.collect()
    };
    until("packets of two hosts", || {
        hosts.iter().for_each(|host| inject(host, "vm0", 1));
        is_there(&["host-1:tap0", "host-2:tap0"])
    });
    // A new interface is picked up, and its tenant's policy is for it.
    hosts[0].pair("tap1", "vm1");
    until("a new interface", || {
        let agents = controller.json(&["agents"]);
        agents[0]["captures"] == 2 && !agents[0]["identities"]["tap1"].is_null()
    });
    let identities = controller.json(&["agents"]);
    let identities: BTreeSet<u64> = identities
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|agent| agent["identities"].as_object().unwrap().values())
        .map(|identity| identity.as_u64().unwrap())
        .collect();
    assert_eq!(identities.len(), 3, "one each");
    until("packets of the new interface", || {
        inject(&hosts[0], "vm1", 1);
        is_there(&["host-1:tap0", "host-1:tap1", "host-2:tap0"])
    });
    // A destination that only the controller knows: the agents say so, and go on.
    let elsewhere = TENANTS.replace("header -> here", "header -> elsewhere");
    ok(&mut controller.command(&["apply", &policies(dir.path(), &elsewhere)]));
    until("a refusal", || {
        let rollout = controller.json(&["rollout", "status"]);
        let why = rollout["others"][0]["why"]
            .as_str()
            .unwrap_or("")
            .to_owned();
        why.contains("--destination elsewhere=URL")
    });
    ok(&mut controller.command(&["rollout", "undo"]));
    until("three agents again", || controller.running() == 3);
    replace_key(dir.path(), &key, &controller, &collector.0);
    let before = fs::metadata(&file).unwrap().len();
    until("packets with the new key", || {
        inject(&hosts[1], "vm0", 3);
        fs::metadata(&file).unwrap().len() > before + 4096
    });
    // Without a controller, agents go on with what they have.
    controller.stop();
    let before = fs::metadata(&file).unwrap().len();
    until("packets without a controller", || {
        inject(&hosts[1], "vm0", 7);
        fs::metadata(&file).unwrap().len() > before + 4096
    });
    controller.again(Some(&middle));
    until("agents that are back", || controller.running() == 3);
    signal(&collector.0, "INT");
    collector.0.wait().unwrap();
}

/// The same without a controller: a file of policies.
#[test]
fn an_agent_follows_a_file() {
    if !may_use_kernel("an agent in a network namespace") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let namespace = Namespace::new("st-ag-file");
    namespace.ip("link set lo up");
    namespace.pair("tap0", "vm0");
    let file = dir.path().join("policies.toml");
    fs::write(&file, ALL).unwrap();
    let out = dir.path().join("out.pcapng");
    let mut command = within(Some(&namespace));
    let mut collector = Running(command.args(["collector", "-w"]).arg(&out).spawn().unwrap());
    let mut command = within(Some(&namespace));
    command.args([
        "agent",
        "-i",
        "tap*",
        "--destination",
        "here=udp://127.0.0.1:4740",
        "--name",
        "me",
    ]);
    command
        .arg("--policy")
        .arg(&file)
        .args(["--identity", "77"]);
    command.arg("--state").arg(dir.path().join("agent"));
    let mut agent = Running(command.spawn().unwrap());
    let expected = |names: &[&str]| {
        let pair = |name: &&str| ((*name).to_owned(), "10.0.0.1".to_owned());
        names.iter().map(pair).collect::<BTreeSet<_>>()
    };
    until("packets", || {
        inject(&namespace, "vm0", 1);
        found(&out) == expected(&["me:tap0"])
    });
    // An interface whose other end is a container's says whose.
    let container = Namespace::new("st-ag-vm");
    let peer = container.name();
    namespace.ip(&format!(
        "link add tap1 type veth peer name vm1 netns {peer}"
    ));
    namespace.ip("link set tap1 up");
    container.ip("link set vm1 up");
    until("packets of a container", || {
        inject(&container, "vm1", 2);
        found(&out) == expected(&["me:tap0", "me:tap1"])
    });
    let described = ok(Command::new("capinfos").arg(&out));
    assert!(
        described.contains(&format!(", netns {peer}")),
        "{described}"
    );
    signal(&agent.0, "INT");
    assert!(agent.0.wait().unwrap().success());
    signal(&collector.0, "INT");
    collector.0.wait().unwrap();
}

/// Numbers of the processes that record for the agent with this directory, without checks of policies.
fn recordings_of(state: &Path) -> Vec<u32> {
    let state = state.display().to_string();
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let records = |number: &u32| {
        let words = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).into_owned();
        words.contains("--end-with-parent") && words.contains(&state) && !words.contains("--check")
    };
    numbers.filter(records).collect()
}

/// However soon after it has started its recording: there is a moment in which the kernel does not know
/// yet that one is to end with the other.
#[test]
fn a_recording_does_not_outlive_an_agent_that_is_killed() {
    if !may_use_kernel("capturing in a namespace") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let host = Namespace::new("st-ag-killed");
    host.ip("link set lo up");
    host.pair("tap0", "vm0");
    let policy = dir.path().join("policies.toml");
    fs::write(&policy, ALL).unwrap();
    let state = dir.path().join("agent");
    let mut delay_us = 0;
    for round in 0..14 {
        let mut command = within(Some(&host));
        command.args(["agent", "--identity", "1", "-i", "tap0", "--policy"]);
        command
            .arg(&policy)
            .args(["--destination", "here=udp://127.0.0.1:4740"]);
        command.arg("--state").arg(&state);
        command.stderr(std::process::Stdio::null());
        let mut agent = Running(command.spawn().unwrap());
        // Looked for without a pause: what is to be met lasts milliseconds.
        let started = std::time::Instant::now();
        while recordings_of(&state).is_empty() {
            assert!(started.elapsed().as_secs() < 60, "no recording");
        }
        std::thread::sleep(std::time::Duration::from_micros(delay_us));
        agent.0.kill().unwrap();
        agent.0.wait().unwrap();
        until("without the recording", || recordings_of(&state).is_empty());
        // The same delays each time, from none to those at which it captures.
        delay_us = delay_us * 2 + 150 * (round % 3);
        delay_us %= 20_000;
    }
}
