//! From hosts to Wireshark: three hosts, two tenants with equal addresses, and tshark with the extcap. What is
//! forged does not get in, also by an agent.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use strata_auth::authority::write_private;
use strata_auth::keys::MasterKey;
use strata_testkit::{Namespace, data_dir, may_use_kernel};

use crate::common::agents::{
    Controller, Running, agent, host, inject, middle, policies, until, within,
};
use crate::common::program::ok;
use crate::common::signal::signal;

/// Where Wireshark looks for a user's extcaps, from 4.2 on and before, below the home directory.
const FOLDERS: [&str; 2] = [".local/lib/wireshark/extcap", ".config/wireshark/extcap"];

/// Two tenants on two hosts, each selected in another way; the third host has nothing to do.
const TENANTS: &str = "
[[policy]]
name = 'blue'
match = 'udp port 53'
action = 'header -> here'
tenant = 'blue'
[[policy]]
name = 'red'
match = 'udp port 53'
action = 'payload -> here'
labels = { rack = '2' }
[[tenant]]
name = 'blue'
interfaces = ['host-1:tap*']
[[identity]]
interface = 'host-3:tap0'
identity = 303
";

/// tshark in the middle, with this program among its extcaps.
struct Tshark {
    running: Option<Running>,
    out: PathBuf,
}

impl Tshark {
    fn command(middle: &Namespace, dir: &Path, controller: &Controller) -> Command {
        for folder in FOLDERS {
            let folder = dir.join("home").join(folder);
            if !folder.exists() {
                fs::create_dir_all(&folder).unwrap();
                symlink(env!("CARGO_BIN_EXE_strata"), folder.join("strata-extcap")).unwrap();
            }
        }
        let mut command = Command::new("ip");
        command.args(["netns", "exec", middle.name(), "tshark", "-n"]);
        command.env("HOME", dir.join("home"));
        command.env_remove("XDG_CONFIG_HOME");
        command.env("XDG_CACHE_HOME", dir.join("cache"));
        command.env("STRATA_CONTROLLER", &controller.state);
        command
    }

    /// Captures from one of the extcap's interfaces.
    fn start(middle: &Namespace, dir: &Path, controller: &Controller, interface: &str) -> Self {
        let out = dir.join("tshark.txt");
        let mut command = Self::command(middle, dir, controller);
        let name = interface.replace('-', "_");
        let key = controller.state.join("export.key");
        command.args(["-l", "-i", interface]);
        command.args(["-o", &format!("extcap.{name}.listen:10.9.0.254:4740")]);
        command.args(["-o", &format!("extcap.{name}.keyfile:{}", key.display())]);
        command.args(["-T", "fields", "-e", "frame.interface_name", "-e", "ip.src"]);
        command.stdout(fs::File::create(&out).unwrap());
        let running = Running(command.stderr(Stdio::null()).spawn().unwrap());
        Self {
            running: Some(running),
            out,
        }
    }

    /// Interfaces and addresses that it has shown.
    fn shown(&self) -> BTreeSet<(String, String)> {
        let text = fs::read_to_string(&self.out).unwrap();
        let pairs = text.lines().filter_map(|line| line.split_once('\t'));
        // Until it is announced, an interface has the address of its host as a name, and its identity.
        let announced = |name: &str| match name.strip_prefix("10.9.0.") {
            Some(rest) if !rest.ends_with(":303") => format!("host-{}:tap0", &rest[..1]),
            _ => name.to_owned(),
        };
        pairs
            .map(|(one, other)| (announced(one), other.to_owned()))
            .collect()
    }

    fn has_shown(&self, interfaces: &[&str]) -> bool {
        let pair = |name: &&str| ((*name).to_owned(), "10.0.0.1".to_owned());
        self.shown() == interfaces.iter().map(pair).collect()
    }

    /// As a user ends it, so that its extcap frees the port.
    fn end(&mut self) {
        let mut running = self.running.take().unwrap();
        signal(&running.0, "INT");
        running.0.wait().unwrap();
    }
}

impl Drop for Tshark {
    fn drop(&mut self) {
        if self.running.is_some() {
            self.end();
        }
    }
}

/// Somebody on this host exports a capture as if it were of the third host: in clear, or with this key.
fn pretend(host: &Namespace, dir: &Path, key: Option<&str>) {
    let (config, keys) = (dir.join("forged.toml"), dir.join("forged.keys"));
    let key = key.map_or(String::new(), |line| {
        write_private(&keys, &format!("{line}\n")).unwrap();
        format!("key_file = '{}'\n", keys.display())
    });
    let text = format!(
        "default = 'drop'\n[[policy]]\nmatch = 'tcp'\naction = 'header -> here'\n\
         [export]\nidentity = 303\nhost = 'host-3'\n{key}\
         [export.destinations]\nhere = 'udp://10.9.0.254:4740'\n"
    );
    fs::write(&config, text).unwrap();
    let mut command = within(Some(host));
    command.args(["record", "-r"]);
    command.arg(data_dir().join("labelled/cic2017-sqli/trace.pcap"));
    ok(command.arg("--config").arg(&config));
}

#[test]
fn tshark_shows_two_tenants_apart_and_nothing_that_is_forged() {
    if !may_use_kernel("agents in network namespaces") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let middle = middle("st-ag-x");
    let hosts: Vec<Namespace> = (1..=3).map(|number| host(&middle, number)).collect();
    let controller = Controller::start(dir, Some(&middle), "10.9.0.254:4741");
    ok(&mut controller.command(&["apply", &policies(dir, TENANTS)]));
    let start = |(number, host): (u8, &Namespace)| agent(host, dir, &controller, number);
    let _agents: Vec<Running> = (1..).zip(&hosts).map(start).collect();
    until("three agents", || controller.running() == 3);
    let agents = controller.json(&["agents"]);
    let identity = |at: usize| agents[at]["identities"]["tap0"].as_u64().unwrap();
    let (blue, red) = (identity(0), identity(1));

    // In tshark's own list, each interface that is captured.
    let text = ok(Tshark::command(&middle, dir, &controller).arg("-D"));
    for (number, identity) in [(1, blue), (2, red)] {
        let line = format!("strata-{identity} (Strata: host-{number}:tap0 (identity {identity}))");
        assert!(text.contains(&line), "{text}");
    }
    let everybody_sends = || hosts.iter().for_each(|host| inject(host, "vm0", 1));
    let mut all = Tshark::start(&middle, dir, &controller, "strata");
    until("two tenants", || {
        everybody_sends();
        all.has_shown(&["host-1:tap0", "host-2:tap0"])
    });
    // A stranger in clear, and a hostile agent with the key of its own interface: as the third host.
    let keys = fs::read_to_string(dir.join("agent-2/export.keys")).unwrap();
    let own = keys.lines().next().unwrap();
    let (number, key) = own.split_once(' ').unwrap();
    assert_eq!(number, red.to_string());
    pretend(&hosts[1], dir, None);
    pretend(&hosts[1], dir, Some(&format!("303 {key}")));
    until("two tenants", || {
        everybody_sends();
        all.has_shown(&["host-1:tap0", "host-2:tap0"])
    });
    // With the right key, it would have come.
    let master = fs::read_to_string(controller.state.join("export.key")).unwrap();
    let hex = |at: usize| u8::from_str_radix(&master[2 * at..2 * at + 2], 16).unwrap();
    let right = MasterKey::new(std::array::from_fn(hex)).of(303).line();
    pretend(&hosts[1], dir, Some(&right));
    until("what has the right key", || {
        all.shown()
            .iter()
            .any(|(name, _)| name.starts_with("host-3"))
    });
    all.end();

    // One interface alone, while all send; and a policy by selector takes effect meanwhile.
    let mut one = Tshark::start(&middle, dir, &controller, &format!("strata-{red}"));
    until("one tenant", || {
        everybody_sends();
        one.has_shown(&["host-2:tap0"])
    });
    one.end();
    let third = TENANTS.replace("rack = '2'", "rack = '3'");
    let mut all = Tshark::start(&middle, dir, &controller, "strata");
    ok(&mut controller.command(&["apply", &policies(dir, &third)]));
    until("the third host", || {
        everybody_sends();
        let shown = all.shown();
        shown.contains(&("host-3:tap0".into(), "10.0.0.1".into()))
    });
    all.end();
}
