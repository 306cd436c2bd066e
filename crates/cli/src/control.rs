//! `strata status`, `mode`, `policy` and `rotate`: talk to a running recording.

use std::io::{IsTerminal, Write, stdout};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use jiff::SignedDuration;
use serde_json::{Value, json};
use strata_control::client::{ask, find_socket};
use strata_control::{MODE_PERIOD_MAX, Method};
use strata_wire::{Printable, grouped, human_bytes};

/// Which recording.
#[derive(Debug, clap::Args)]
struct Target {
    /// Socket of the recording, as given with `strata record --socket`; without
    /// it, the only one that is running.
    #[arg(long, value_name = "PATH", env = "STRATA_SOCKET")]
    socket: Option<PathBuf>,
}

impl Target {
    fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let socket = match &self.socket {
            Some(socket) => socket.clone(),
            None => find_socket()?,
        };
        Ok(ask(&socket, method, path, body)?)
    }
}

/// Arguments of `strata status`.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    target: Target,

    /// Show it again every second, until Ctrl-C.
    #[arg(short, long)]
    watch: bool,

    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `strata mode`.
#[derive(Debug, clap::Args)]
pub(crate) struct ModeArgs {
    #[command(subcommand)]
    command: ModeCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ModeCommand {
    /// Go on with another mode.
    #[command(after_help = "\
Examples:
  strata mode set log-all --for 10m --why 'outage in building 7'
  strata mode set default")]
    Set {
        /// default, log-all, log-partial, log-sampled, log-minimum, or one of the
        /// configuration file; several joined by +.
        mode: String,
        /// After this time (90s, 10m, 2h) go back to the mode before.
        #[arg(long = "for", value_name = "TIME")]
        period: Option<String>,
        /// Why, for the list of events.
        #[arg(long, default_value = "")]
        why: String,
        #[command(flatten)]
        target: Target,
    },
}

/// Arguments of `strata policy`.
#[derive(Debug, clap::Args)]
pub(crate) struct PolicyArgs {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Debug, clap::Subcommand)]
enum PolicyCommand {
    /// Add a policy.
    #[command(after_help = "\
Examples:
  strata policy add --prio 200 'src net 10.1.0.0/16 and port 443' --action header
  strata policy add 'udp port 53' --action 'full 1/10 flows'")]
    Add {
        /// Which packets, in tcpdump's language: addresses, ports, protocols, VLANs.
        #[arg(value_name = "FILTER", required = true)]
        filter: Vec<String>,
        /// What is done: full, header, partial N, drop or classify; each optionally
        /// followed by 1/N or '1/N flows'; or mirror: a copy leaves by --mirror-to.
        #[arg(long)]
        action: String,
        /// Of the policies that match a packet, those with the largest number count.
        #[arg(long = "prio", value_name = "NUMBER", default_value_t = strata_rules::PRIORITY_DEFAULT)]
        priority: u16,
        /// Only packets of this interface.
        #[arg(long, value_name = "NAME")]
        interface: Option<String>,
        /// Do not delete what is kept of them to make room on the disk.
        #[arg(long)]
        protect: bool,
        /// Why, for the list of events.
        #[arg(long, default_value = "")]
        why: String,
        #[command(flatten)]
        target: Target,
    },
    /// List policies with their hits.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: Target,
    },
    /// Remove a policy.
    Remove {
        /// Its number, as listed.
        id: u32,
        #[command(flatten)]
        target: Target,
    },
}

/// Arguments of `strata rotate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What is in memory is written, the files that there are end, and new ones begin: those can
be moved away then.")]
pub(crate) struct RotateArgs {
    #[command(flatten)]
    target: Target,
}

pub(crate) fn rotate(args: &RotateArgs) -> Result<()> {
    args.target.ask(Method::POST, "/api/v1/rotate", None)?;
    println!("new files begin");
    Ok(())
}

pub(crate) fn mode(args: &ModeArgs) -> Result<()> {
    let ModeCommand::Set {
        mode,
        period,
        why,
        target,
    } = &args.command;
    let mut body = json!({ "mode": mode, "why": why });
    if let Some(text) = period {
        let period: SignedDuration = text.parse().with_context(|| format!("--for '{text}'"))?;
        let period = Duration::try_from(period).unwrap_or(Duration::ZERO);
        if period.is_zero() || period > MODE_PERIOD_MAX {
            bail!("--for '{text}': write a time of at most 365 days, as in 90s, 10m or 2h");
        }
        body["seconds"] = json!(period.as_secs_f64());
    }
    let status = target.ask(Method::PUT, "/api/v1/mode", Some(&body))?;
    println!("mode {}", word(&status["asked_mode"]));
    if status["mode"] != status["asked_mode"] {
        println!(
            "at work is {} until nothing is short",
            word(&status["mode"])
        );
    }
    Ok(())
}

pub(crate) fn policy(args: &PolicyArgs) -> Result<()> {
    match &args.command {
        PolicyCommand::Add {
            filter,
            action,
            priority,
            interface,
            protect,
            why,
            target,
        } => {
            let body = json!({
                "match": filter.join(" "),
                "action": action,
                "priority": priority,
                "interface": interface,
                "protect": protect,
                "why": why,
            });
            let added = target.ask(Method::POST, "/api/v1/policies", Some(&body))?;
            println!("policy {}", added["id"]);
        }
        PolicyCommand::List { json, target } => {
            let list = target.ask(Method::GET, "/api/v1/policies", None)?;
            if *json {
                println!("{list:#}");
            } else {
                print_policies(&list)?;
            }
        }
        PolicyCommand::Remove { id, target } => {
            target.ask(Method::DELETE, &format!("/api/v1/policies/{id}"), None)?;
            println!("policy {id} removed");
        }
    }
    Ok(())
}

/// A text of the recording, which may come from whoever asked it before.
fn word(value: &Value) -> String {
    Printable(value.as_str().unwrap_or("-")).to_string()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn print_policies(list: &Value) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(
        out,
        "{:>4} {:>8} {:>14} {:>10}  {:<8}  action           match",
        "id", "priority", "packets", "bytes", "from"
    )?;
    for policy in list.as_array().into_iter().flatten() {
        let interface = policy["interface"].as_str();
        let on = |name| format!(" (on {})", Printable(name));
        let mut behind = interface.map_or(String::new(), on);
        if policy["protect"] == true {
            behind += " (protected)";
        }
        writeln!(
            out,
            "{:>4} {:>8} {:>14} {:>10}  {:<8}  {:<16} {}{behind}",
            number(&policy["id"]),
            number(&policy["priority"]),
            grouped(number(&policy["packets"])),
            human_bytes(number(&policy["bytes"])),
            if policy["origin"] == "configuration" {
                "file"
            } else {
                "run time"
            },
            word(&policy["action"]),
            word(&policy["match"]),
        )?;
    }
    Ok(())
}

pub(crate) fn status(args: &StatusArgs) -> Result<()> {
    loop {
        let status = args.target.ask(Method::GET, "/api/v1/status", None)?;
        let events = args.target.ask(Method::GET, "/api/v1/events", None)?;
        let page = if args.json {
            format!("{status:#}\n")
        } else {
            page(&status, &events)
        };
        let mut out = stdout().lock();
        if args.watch && out.is_terminal() {
            // To the upper left corner, and clear what is below.
            write!(out, "\x1b[H\x1b[2J")?;
        }
        write!(out, "{page}")?;
        out.flush()?;
        drop(out);
        if !args.watch {
            return Ok(());
        }
        thread::sleep(Duration::from_secs(1));
    }
}

/// The status for people.
fn page(status: &Value, events: &Value) -> String {
    let float = |value: &Value| value.as_f64().unwrap_or(0.0);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let whole = |value: &Value| float(value).max(0.0) as u64;
    let rate = |value: &Value| format!("{}/s", human_bytes(whole(value)));
    let mut lines = vec![format!(
        "strata {}, process {}, log {}, for {} s",
        word(&status["version"]),
        number(&status["pid"]),
        word(&status["log"]),
        whole(&status["uptime_seconds"]),
    )];
    let mut mode = format!("mode     {}", word(&status["mode"]));
    if status["mode"] != status["asked_mode"] {
        mode += &format!(" (asked for: {})", word(&status["asked_mode"]));
    }
    if status["mode_seconds_left"].is_number() {
        mode += &format!(", for {} s more", whole(&status["mode_seconds_left"]));
    }
    lines.push(mode);
    lines.push(format!(
        "policies {}, default {}",
        number(&status["policies"]),
        word(&status["default"])
    ));
    lines.push(format!(
        "rates    {} packets/s, {} in, {} kept",
        grouped(whole(&status["packets_per_second"])),
        rate(&status["bytes_per_second"]),
        rate(&status["logged_bytes_per_second"]),
    ));
    for packets in status["packets"].as_array().into_iter().flatten() {
        if number(&packets["packets"]) > 0 {
            let reason = word(&packets["reason"]);
            let reason = if reason.is_empty() {
                String::new()
            } else {
                format!(" ({reason})")
            };
            lines.push(format!(
                "packets  {}{reason}: {}, {}",
                word(&packets["result"]),
                grouped(number(&packets["packets"])),
                human_bytes(number(&packets["bytes"])),
            ));
        }
    }
    for packets in status["of_logged"].as_array().into_iter().flatten() {
        if number(&packets["packets"]) > 0 {
            lines.push(format!(
                "of them  {}: {}",
                word(&packets["result"]),
                grouped(number(&packets["packets"])),
            ));
        }
    }
    for packets in status["mirrored"].as_array().into_iter().flatten() {
        if number(&packets["packets"]) > 0 {
            lines.push(format!(
                "mirrored {}: {}",
                word(&packets["result"]),
                grouped(number(&packets["packets"])),
            ));
        }
    }
    for interface in status["interfaces"].as_array().into_iter().flatten() {
        lines.push(format!(
            "{:<8} {} packets received, {} dropped by kernel",
            word(&interface["name"]),
            grouped(number(&interface["received"])),
            grouped(number(&interface["dropped"])),
        ));
    }
    for lost in status["lost"].as_array().into_iter().flatten() {
        lines.push(format!(
            "lost     {} ({}): {} packets; {}",
            word(&lost["place"]),
            word(&lost["counter"]),
            grouped(number(&lost["packets"])),
            word(&lost["advice"]),
        ));
    }
    for resource in status["resources"].as_array().into_iter().flatten() {
        if let Some(used) = resource["used"].as_f64() {
            let steps = number(&resource["relief_steps"]);
            let short = if steps > 0 {
                format!(", short: {steps} steps of relief")
            } else {
                String::new()
            };
            lines.push(format!(
                "resource {}: {:.0} %{short}",
                word(&resource["name"]),
                used * 100.0
            ));
        }
    }
    let cpu = &status["cpu"];
    if cpu.is_object() {
        lines.push(format!(
            "cpu      {:.1} % of a core, budget {:.1} %; {:.1} % of flows are captured",
            float(&cpu["used"]) * 100.0,
            float(&cpu["budget"]) * 100.0,
            float(&cpu["flow_share"]) * 100.0,
        ));
    }
    let changes = &status["changes"];
    if number(&changes["count"]) > 0 {
        lines.push(format!(
            "changes  {}, from request to packet {:.2} ms (median), {:.2} ms (p99)",
            number(&changes["count"]),
            float(&changes["median_ms"]),
            float(&changes["p99_ms"]),
        ));
    }
    let events = events.as_array().map_or(&[][..], Vec::as_slice);
    for event in &events[events.len().saturating_sub(5)..] {
        let why = word(&event["why"]);
        let why = if why.is_empty() {
            String::new()
        } else {
            format!(": {why}")
        };
        lines.push(format!(
            "event    {} {} (by {}{why})",
            word(&event["at"]),
            word(&event["what"]),
            word(&event["who"])
        ));
    }
    lines.push(String::new());
    lines.join("\n")
}
