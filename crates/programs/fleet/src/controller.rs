//! `strata controller`: agents of many hosts, steered from one place.

mod sums;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use strata_agent::{AgentStatus, Applied, DocumentFile, EVENTS_MAX, Event, FILES_MAX, Interface};
use strata_control::client::ControllerClient;
use strata_fleet::{ControllerSpec, ENROL_TOKEN, run_controller};
use strata_role::Waker;
use strata_terminal::address::address;
use strata_terminal::bounded;
use strata_terminal::confined::SandboxArgs;
use strata_terminal::logging::{self, LoggingArgs};
use strata_terminal::output::{refuse, standard};
use strata_terminal::signals::Signals;
use strata_terminal::text::{count_of, time_of_second};
use strata_wire::{Printable, PrintableJson, grouped};

/// Default TCP port of a controller.
pub(crate) const PORT: u16 = 4741;
/// Default TCP port of its metrics.
const METRICS_PORT: u16 = 9479;
/// Bytes of all files of a directory.
const BYTES_MAX: u64 = 16 << 20;

/// Arguments of `strata controller`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata controller run --state /var/lib/strata/controller --listen 192.0.2.1
  strata controller apply policies/ --dry-run
  strata controller agents
  strata controller rollout status
  strata controller status
  strata controller log

A host becomes an agent with a copy of the file enrol.token from the controller's directory:
`strata agent --controller HOST --token-file enrol.token`. See docs/agents.md.")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

/// Where a controller keeps its state.
#[derive(Debug, clap::Args)]
struct StateArgs {
    /// The controller's directory.
    #[arg(
        long,
        value_name = "DIR",
        env = "STRATA_CONTROLLER",
        default_value = "/var/lib/strata/controller"
    )]
    state: PathBuf,
}

/// For `strata controller log`.
#[derive(Debug, clap::Args)]
struct ReasonArgs {
    /// Give a reason, which `strata controller log` shows.
    #[arg(
        long,
        value_name = "WHY",
        default_value = "",
        hide_default_value = true
    )]
    why: String,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Run the controller, until Ctrl-C.
    Run {
        #[command(flatten)]
        state: StateArgs,

        /// Listen for agents on this address: TCP port 4741 or the one given.
        #[arg(long, value_name = "ADDR[:PORT]", default_value = "127.0.0.1:4741")]
        listen: String,

        /// Serve metrics for Prometheus over HTTP (path /metrics) at this local address: TCP port
        /// 9479 or the one given.
        #[arg(long, value_name = "ADDR[:PORT]")]
        metrics_listen: Option<String>,

        /// Let agents encrypt the data that they send to collectors, with keys derived from the
        /// first line of export.key in the controller's directory. The file is created if missing.
        /// Collectors need a copy of it (`strata collector --key-file`). On SIGHUP, the controller
        /// reads the file again.
        #[arg(long)]
        encrypt: bool,

        #[command(flatten)]
        sandbox: SandboxArgs,

        #[command(flatten)]
        logging: LoggingArgs,
    },
    /// Replace all policies by those in the .toml files of a directory; if a file has an error,
    /// change nothing.
    Apply {
        /// The directory with the .toml files.
        dir: PathBuf,

        /// Show the changes without making them.
        #[arg(long)]
        dry_run: bool,

        #[command(flatten)]
        reason: ReasonArgs,

        #[command(flatten)]
        state: StateArgs,
    },
    /// For each destination, compare the number of packets that agents have exported to it with the
    /// number that its collector has received. The collector must report to the controller (`strata
    /// collector --controller`), under the name of the destination.
    Status {
        /// Print JSON.
        #[arg(long)]
        json: bool,

        #[command(flatten)]
        state: StateArgs,
    },
    /// List the changes at the controller, with time, user and reason: policies applied and undone,
    /// agents enrolled, revoked or forgotten, and agents found on a second host (copied
    /// directories). The controller keeps the last 10,000 entries.
    Log {
        /// List only this many of the latest entries.
        #[arg(short = 'n', long, value_name = "N", default_value_t = 50,
              value_parser = bounded::count::<1, EVENTS_MAX>)]
        number: usize,

        /// Print JSON.
        #[arg(long)]
        json: bool,

        #[command(flatten)]
        state: StateArgs,
    },
    /// List the agents.
    Agents {
        /// Print JSON.
        #[arg(long)]
        json: bool,

        #[command(flatten)]
        state: StateArgs,
    },
    /// Show the progress of the policies that were applied last, or return to the previous ones.
    Rollout {
        #[command(subcommand)]
        command: RolloutCommand,
    },
    /// Refuse an agent or a collector from now on, for example because its key was stolen.
    Revoke {
        /// The name of the agent or collector.
        name: String,

        #[command(flatten)]
        reason: ReasonArgs,

        #[command(flatten)]
        state: StateArgs,
    },
    /// Forget an agent and the identities of its interfaces, or a collector; its host may enrol
    /// again.
    Forget {
        /// The name of the agent or collector.
        name: String,

        #[command(flatten)]
        reason: ReasonArgs,

        #[command(flatten)]
        state: StateArgs,
    },
}

#[derive(Debug, clap::Subcommand)]
enum RolloutCommand {
    /// Show which agents run the current version of the policies, and why others do not.
    Status {
        /// Print JSON.
        #[arg(long)]
        json: bool,

        #[command(flatten)]
        state: StateArgs,
    },
    /// Apply the previous version of the policies again, as a new version.
    Undo {
        #[command(flatten)]
        reason: ReasonArgs,

        #[command(flatten)]
        state: StateArgs,
    },
}

impl Args {
    pub(crate) fn logging(&self) -> Option<&LoggingArgs> {
        match &self.command {
            Command::Run { logging, .. } => Some(logging),
            _ => None,
        }
    }

    pub(crate) fn is_long_running(&self) -> bool {
        matches!(self.command, Command::Run { .. })
    }
}

/// Where metrics are served: they name hosts and interfaces, and nothing protects them.
fn metrics_at(text: &str) -> Result<String> {
    let at = address("--metrics-listen", text, METRICS_PORT)?;
    match at.ip().is_loopback() {
        true => Ok(at.to_string()),
        false => Err(refuse(format!(
            "--metrics-listen {text}: other machines can reach this address, and metrics are served without \
             authentication: use 127.0.0.1, and a proxy that authenticates"
        ))),
    }
}

impl StateArgs {
    fn client(&self) -> ControllerClient {
        ControllerClient::new(&self.state)
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Run {
            state,
            listen,
            metrics_listen,
            encrypt,
            sandbox,
            ..
        } => {
            let spec = ControllerSpec {
                state: state.state.clone(),
                listen: address("--listen", listen, PORT)?.to_string(),
                metrics: metrics_listen.as_deref().map(metrics_at).transpose()?,
                encrypt: *encrypt,
                sandboxed: sandbox.is_on(),
            };
            let mut signals = Signals::stop()?;
            signals.also_steer()?;
            let waker = Waker::new()?;
            Signals::wake(&waker)?;
            let (stop, reload) = (Arc::clone(&signals.stop), || signals.take_reload());
            let tell = Arc::new(logging::notice) as _;
            Ok(run_controller(&spec, &stop, &waker, reload, &tell)?)
        }
        Command::Apply {
            dir,
            dry_run,
            reason,
            state,
        } => {
            let applied = state.client().apply(files(dir)?, *dry_run, &reason.why)?;
            let what = match (applied.differences.is_empty(), dry_run) {
                (true, _) => "nothing to change: agents have version",
                (false, true) => "nothing changed (--dry-run): agents have version",
                (false, false) => "version",
            };
            show(&applied, what)
        }
        Command::Status { json, state } => sums::show(&state.client().sums()?, *json),
        Command::Log {
            number,
            json,
            state,
        } => log(&state.client().log(*number)?, *json),
        Command::Agents { json, state } => agents(&state.client().agents()?, *json),
        Command::Rollout {
            command: RolloutCommand::Status { json, state },
        } => rollout(&state.client(), *json),
        Command::Rollout {
            command: RolloutCommand::Undo { reason, state },
        } => show(&state.client().undo(&reason.why)?, "version"),
        Command::Revoke {
            name,
            reason,
            state,
        } => {
            state.client().revoke(name, &reason.why)?;
            Ok(writeln!(
                standard(),
                "{name} is refused from now on; with a copy of enrol.token, its host can \
                 enrol under another name: to prevent that, remove {} and restart the controller",
                state.state.join(ENROL_TOKEN).display()
            )?)
        }
        Command::Forget {
            name,
            reason,
            state,
        } => {
            state.client().forget(name, &reason.why)?;
            Ok(writeln!(standard(), "{name} is forgotten")?)
        }
    }
}

/// The files of a directory, by name.
fn files(dir: &Path) -> Result<Vec<DocumentFile>> {
    let cannot = || format!("{}: cannot read", dir.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).with_context(cannot)? {
        let path = entry.with_context(cannot)?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            paths.push(path);
        }
    }
    paths.sort();
    if paths.is_empty() {
        return Err(refuse(format!(
            "{}: no file ends in .toml, so all policies would be removed: to remove them, add an \
             empty .toml file",
            dir.display()
        )));
    }
    if paths.len() > FILES_MAX {
        return Err(refuse(format!(
            "{}: more than {FILES_MAX} files",
            dir.display()
        )));
    }
    let mut left = BYTES_MAX;
    let mut files = Vec::new();
    for path in paths {
        let cannot = || format!("{}: cannot read", path.display());
        let metadata = fs::metadata(&path).with_context(cannot)?;
        if !metadata.is_file() {
            return Err(refuse(format!("{}: not a file", path.display())));
        }
        left = left.checked_sub(metadata.len()).ok_or_else(|| {
            refuse(format!(
                "{}: the files together are larger than 16 MiB",
                dir.display()
            ))
        })?;
        files.push(DocumentFile {
            name: path.display().to_string(),
            text: fs::read_to_string(&path).with_context(cannot)?,
        });
    }
    Ok(files)
}

fn show(applied: &Applied, what: &str) -> Result<()> {
    let mut out = standard();
    for difference in &applied.differences {
        writeln!(out, "{}", Printable(difference))?;
    }
    for hint in &applied.hints {
        writeln!(out, "note: {}", Printable(hint))?;
    }
    Ok(writeln!(out, "{what} {}", applied.version)?)
}

fn agents(agents: &[AgentStatus], json: bool) -> Result<()> {
    let mut out = standard();
    if json {
        let agents = serde_json::to_string_pretty(&agents)?;
        return Ok(writeln!(out, "{}", PrintableJson(&agents))?);
    }
    if agents.is_empty() {
        writeln!(
            out,
            "no agents: copy enrol.token to a host, and start `strata agent` there"
        )?;
    }
    for agent in agents {
        let heard = agent
            .heard
            .map_or(String::new(), |seconds| format!(", heard {seconds} s ago"));
        write!(
            out,
            "{}: {}{heard}, version {}, {} captured",
            agent.name,
            agent.state,
            agent.runs,
            count_of(agent.captures.into(), "interface"),
        )?;
        if agent.skew_ms.abs() >= 1000 {
            write!(out, ", its clock is off by {} ms", agent.skew_ms)?;
        }
        writeln!(out)?;
        if let [first, second] = agent.copies.as_slice() {
            let (first, second) = (Printable(first), Printable(second));
            writeln!(
                out,
                "    two agents report with its certificate, from {first} and from {second}: its directory was \
                 copied. The second is refused: stop it, and enrol its host under another name"
            )?;
        }
        for (interface, identity) in &agent.identities {
            let is_it = |one: &&Interface| one.name == *interface;
            let present = agent.interfaces.iter().find(is_it);
            let behind = present.filter(|one| !one.behind.is_empty());
            let behind =
                behind.map_or(String::new(), |one| format!(", {}", Printable(&one.behind)));
            // Its identity is kept for when it comes back.
            let gone = match present.is_none() && agent.state == "up" {
                true => ", not on this host now",
                false => "",
            };
            writeln!(
                out,
                "    {}: identity {identity}{behind}{gone}",
                Printable(interface)
            )?;
        }
        for to in &agent.exports {
            let name = Printable(&to.name);
            let packets = count_of(to.packets, "packet");
            let [lost, unfit, cut] = [to.lost, to.unfit, to.cut].map(grouped);
            let not_sent = count_of(to.not_sent, "datagram");
            writeln!(
                out,
                "    to {name}: {packets}; {lost} lost, {unfit} unfit, {cut} cut; {not_sent} not sent"
            )?;
            if !to.problem.is_empty() {
                writeln!(out, "    problem: {name}: {}", Printable(&to.problem))?;
            }
        }
        if agent.dropped > 0 {
            let dropped = count_of(agent.dropped, "packet");
            writeln!(
                out,
                "    {dropped} dropped by its kernel because the rings were full"
            )?;
        }
        if let Some(cpu) = &agent.cpu {
            let percent = |thousandths: u32| f64::from(thousandths) / 10.0;
            let (used, budget) = (percent(cpu.used), percent(cpu.budget));
            let flows = percent(cpu.flows);
            write!(
                out,
                "    CPU: {used:.1} % of {budget:.1} %, {flows:.1} % of flows"
            )?;
            if !cpu.short.is_empty() {
                let (left, why) = (percent(cpu.left), Printable(&cpu.short));
                write!(out, "; headers only, and at most {left:.1} %: {why}")?;
            }
            writeln!(out)?;
        }
        if !agent.problem.is_empty() {
            writeln!(out, "    problem: {}", Printable(&agent.problem))?;
        }
    }
    Ok(())
}

/// Events, the latest last.
fn log(events: &[Event], json: bool) -> Result<()> {
    let mut out = standard();
    if json {
        let events = serde_json::to_string_pretty(&events)?;
        return Ok(writeln!(out, "{}", PrintableJson(&events))?);
    }
    if events.is_empty() {
        writeln!(out, "nothing was changed yet")?;
    }
    for event in events {
        let at = time_of_second(event.time);
        let (kind, who) = (event.kind.name(), Printable(&event.who));
        write!(out, "{at} {kind} by {who}: {}", Printable(&event.what))?;
        if !event.why.is_empty() {
            write!(out, " ({})", Printable(&event.why))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn rollout(client: &ControllerClient, json: bool) -> Result<()> {
    let rollout = client.rollout()?;
    let mut out = standard();
    if json {
        return Ok(writeln!(out, "{:#}", serde_json::to_value(&rollout)?)?);
    }
    if rollout.version == 0 {
        return Ok(writeln!(
            out,
            "no policies yet: `strata controller apply DIR`"
        )?);
    }
    writeln!(
        out,
        "version {}: {} {} it, {} {} not",
        rollout.version,
        count_of(rollout.running as u64, "agent"),
        if rollout.running == 1 { "runs" } else { "run" },
        rollout.others.len(),
        if rollout.others.len() == 1 {
            "does"
        } else {
            "do"
        },
    )?;
    for other in &rollout.others {
        writeln!(
            out,
            "    {}: version {}: {}",
            other.name,
            other.runs,
            Printable(&other.why)
        )?;
    }
    if let Some(before) = rollout.before.last() {
        writeln!(out, "undo applies version {before} again")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Reading a device or a pipe might never end.
    #[test]
    fn policies_are_read_from_files_only() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.toml"), "").unwrap();
        assert_eq!(files(dir.path()).unwrap().len(), 1);
        symlink("/dev/zero", dir.path().join("b.toml")).unwrap();
        let refused = files(dir.path()).unwrap_err().to_string();
        assert!(refused.ends_with("b.toml: not a file"), "{refused}");
    }
}
