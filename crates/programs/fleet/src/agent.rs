//! `strata agent`: captures this host's interfaces and exports, as a controller or a file says.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rustix::system::uname;
use strata_agent::Local;
use strata_control::config::read_keys;
use strata_exporter::Destination;
use strata_fleet::{AgentSource, AgentSpec, NamedHost, run_agent};
use strata_record::machine_bytes;
use strata_role::Waker;
use strata_rules::DestinationName;
use strata_terminal::address::host_port;
use strata_terminal::confined::SandboxArgs;
use strata_terminal::logging::{self, LoggingArgs};
use strata_terminal::output::refuse;
use strata_terminal::rings::{RingsArg, percent};
use strata_terminal::signals::Signals;
use strata_wire::human_bytes;

use crate::controller::PORT;

/// Minimum memory of the flow tables.
const MEMORY_MIN: u64 = 512 << 10;

/// Arguments of `strata agent`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata agent --controller 192.0.2.1 --token-file enrol.token -i 'tap*' \\
      --destination analyser=udp://192.0.2.10:4740
  strata agent --policy policies.toml -i eth0 \\
      --destination analyser=udp://192.0.2.10:4740 --identity 4096

The controller (`strata controller`) decides which packets are exported. Without a controller, a
file of policies (--policy) decides; it has the format that `strata controller apply` reads. Only
destinations (--destination) and interfaces (-i) of this command line can be used. If the controller
cannot be reached, the agent continues with the policies that it received last. SIGHUP makes the
agent read the file of --policy again. See docs/agents.md.")]
#[command(group = clap::ArgGroup::new("source").required(true))]
pub(crate) struct Args {
    /// Follow the controller at this address, on TCP port 4741 unless another port is given.
    #[arg(long, value_name = "HOST[:PORT]", group = "source")]
    controller: Option<String>,

    /// Enrol with the token in this file: a copy of the controller's enrol.token, readable by its
    /// owner only. Needed only for enrolment.
    #[arg(long, value_name = "FILE", conflicts_with = "policy")]
    token_file: Option<PathBuf>,

    /// Follow this file instead of a controller.
    #[arg(long, value_name = "FILE", group = "source")]
    policy: Option<PathBuf>,

    /// With --policy, give the first interface this identity (a number), and the other interfaces
    /// the following numbers.
    #[arg(long, value_name = "N", requires = "policy",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(strata_agent::IDENTITY_MAX)))]
    identity: Option<u32>,

    /// Keep the certificate and the assigned policies in this directory, created if missing.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/strata/agent")]
    state: PathBuf,

    /// Permit capture on interfaces with this name, which may contain the wildcards * and ?, as in
    /// 'tap*'. May be given several times. Interfaces that appear later are captured too.
    #[arg(short = 'i', long = "interface", value_name = "NAME", required = true)]
    interface: Vec<String>,

    /// Export a packet that crosses a bridge once for each captured interface that it passes. By
    /// default, only the copy at the interface where it enters the bridge is exported, if the same
    /// policies apply to both ports.
    #[arg(long)]
    all_copies: bool,

    /// Ask Open vSwitch for its ports at this socket of its database, instead of
    /// /run/openvswitch/db.sock: a packet that crosses Open vSwitch is exported once, if all of its
    /// ports are captured.
    #[arg(long, value_name = "SOCKET", conflicts_with = "all_copies")]
    ovsdb: Option<PathBuf>,

    /// Use one ring per interface (each), or one ring for all interfaces (one). By default, one
    /// ring for 128 interfaces or more if eBPF is permitted, else one per interface.
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = RingsArg::Auto)]
    rings: RingsArg,

    /// Permit export to this URL, udp://HOST:PORT or vxlan://HOST, which policies call NAME. May be
    /// given several times.
    #[arg(long = "destination", value_name = "NAME=URL", required = true)]
    to: Vec<String>,

    /// Encrypt data for collectors with the key in this file (64 hexadecimal digits, readable by
    /// its owner only) instead of keys from the controller.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,

    /// Give this host a label, by which policies can select it; may be given several times.
    #[arg(long = "host-label", value_name = "KEY=VALUE")]
    label: Vec<String>,

    /// Set the name of the agent. The default is the host's name.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Limit the CPU use of the recording, as in 10%; 100% is one core. When other work on this
    /// host, such as forwarding, is short of CPU time, the recording uses less than this: it first
    /// copies at most 256 bytes of each packet, then captures fewer flows.
    #[arg(long, value_name = "PERCENT", value_parser = cpu)]
    cpu: Option<String>,

    /// Use at most this much memory for the recording's flow tables, as in 64MB; at least 512KiB.
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    memory: Option<String>,

    #[command(flatten)]
    sandbox: SandboxArgs,

    #[command(flatten)]
    pub(crate) logging: LoggingArgs,
}

/// `NAME=VALUE` texts, each name once.
fn pairs(option: &str, texts: &[String]) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for text in texts {
        let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
        let Some((name, value)) = pair else {
            return Err(refuse(format!("{option} {text}: write NAME=VALUE")));
        };
        if all.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(refuse(format!("{option} {text}: {name} is given twice")));
        }
    }
    Ok(all)
}

/// A path for a configuration file.
fn text(path: &Path) -> Result<String> {
    let text = path.to_str();
    let text = text.ok_or_else(|| refuse(format!("{}: not a name in UTF-8", path.display())))?;
    Ok(text.to_owned())
}

/// As the recording will read it.
fn cpu(text: &str) -> Result<String, String> {
    percent(text).map(|_| text.to_owned())
}

/// Checks a memory limit: at least the smallest flow table of a worker (an agent's recording has one), at most the
/// memory of the machine or its control group.
fn memory(text: &str) -> Result<String, String> {
    let bytes = strata_wire::parse_bytes(text).map_err(|error| error.to_string())?;
    let most = machine_bytes();
    match (MEMORY_MIN..=most).contains(&bytes) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "write a size from {} to {}, the memory of this machine or its control group",
            human_bytes(MEMORY_MIN),
            human_bytes(most)
        )),
    }
}

impl Args {
    fn source(&self) -> Result<AgentSource> {
        if let Some(path) = &self.policy {
            let Some(first_identity) = self.identity else {
                return Err(refuse(
                    "--policy needs --identity: the first number, from 1 to 16777215, of this \
                     host's own range, by which collectors identify its interfaces",
                ));
            };
            return Ok(AgentSource::File {
                path: path.clone(),
                first_identity,
            });
        }
        let Some(text) = self.controller.as_deref() else {
            return Err(refuse("--controller or --policy is missing"));
        };
        Ok(AgentSource::Controller {
            address: host_port("--controller", text, PORT)?,
            token_file: self.token_file.clone(),
        })
    }

    fn local(&self) -> Result<Local> {
        let destinations = pairs("--destination", &self.to)?;
        for (name, url) in &destinations {
            let named = name.parse::<DestinationName>();
            named.map_err(|error| refuse(format!("--destination {name}: {error}")))?;
            let to = url.parse::<Destination>();
            to.map_err(|error| refuse(format!("--destination {name}: {error}")))?;
        }
        let own_keys = self.key_file.as_deref().map(|file| {
            read_keys(file).map_err(|error| refuse(format!("--key-file: {error}")))?;
            text(&std::path::absolute(file).context("--key-file")?)
        });
        let host_name = || uname().nodename().to_string_lossy().into_owned();
        Ok(Local {
            host: self.name.clone().unwrap_or_else(host_name),
            interfaces: self.interface.clone(),
            labels: pairs("--host-label", &self.label)?,
            all_copies: self.all_copies,
            destinations,
            own_keys: own_keys.transpose()?,
            assigned_keys: text(&self.state.join("export.keys"))?,
        })
    }
}

/// Those destinations whose hosts are names.
fn named(all: &BTreeMap<String, String>) -> Result<BTreeMap<String, NamedHost>> {
    let mut named = BTreeMap::new();
    for (name, url) in all {
        let destination: Destination = url.parse()?;
        if destination.host.parse::<IpAddr>().is_err() {
            let at = NamedHost {
                destination: destination.to_string(),
                host: destination.host,
                port: destination.port,
            };
            named.insert(name.clone(), at);
        }
    }
    Ok(named)
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let option = |name: &str, value: &Option<String>| {
        let value = value.iter().map(|value| format!("--{name}={value}"));
        value.collect::<Vec<String>>()
    };
    let local = args.local()?;
    let spec = AgentSpec {
        named: named(&local.destinations)?,
        local,
        source: args.source()?,
        state: args.state.clone(),
        ovsdb: args.ovsdb.clone(),
        program: strata_terminal::program::strata()?,
        options: [
            vec![format!("--rings={}", args.rings)],
            option("cpu", &args.cpu),
            option("memory", &args.memory),
            args.cpu
                .iter()
                .map(|_| String::from("--give-way"))
                .collect(),
        ]
        .concat(),
        sandboxed: args.sandbox.is_on(),
    };
    let mut signals = Signals::stop()?;
    signals.also_steer()?;
    let stop = Arc::clone(&signals.stop);
    let tell = Arc::new(logging::notice) as _;
    let waker = Waker::new()?;
    Signals::wake(&waker)?;
    let reload = || signals.take_reload();
    Ok(run_agent(spec, &stop, &waker, reload, &tell)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_recording_would_take_is_refused() {
        for wrong in ["0%", "banana", "-1%"] {
            assert!(cpu(wrong).is_err(), "{wrong}");
        }
        for wrong in ["xx", "12", "9EB"] {
            assert!(memory(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            (cpu("10%"), memory("1MB")),
            (Ok("10%".into()), Ok("1MB".into()))
        );
    }
}
