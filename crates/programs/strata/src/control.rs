//! `strata status`, `mode`, `detail`, `policy` and `rotate`: talk to a running recording.

pub(crate) mod page;
mod several;

use std::io::{IsTerminal, Write, stdout};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use jiff::SignedDuration;
use strata_control::client::{Client, ClientError, Listening};
use strata_control::config::PolicyConfig;
use strata_control::{DetailRequest, MODE_PERIOD_MAX, ModeRequest, PolicyRequest};
use strata_terminal::colour;
use strata_terminal::confined;
use strata_terminal::listing::{Reader, word};
use strata_terminal::output::{print_json, refuse, standard};
use strata_terminal::recording::RecordingArgs;
use strata_terminal::text::{not_a_duration, warn};

/// Arguments of `strata status`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
If several recordings or collectors (`strata collector`) run, each is shown on one line, with its
lost packets (the sum of those lost before Strata and in Strata) and its socket, for --socket.
--json shows the only recording, or, without any, the only collector.

Examples:
  strata status
  strata status --watch
  strata status --json | jq .packets_per_second
  strata status --socket /run/strata/collector-4711/control.sock")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    recording: RecordingArgs,

    /// Refresh every second, until Ctrl-C.
    #[arg(short, long)]
    watch: bool,

    /// Print JSON.
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
    /// Switch to another mode.
    #[command(after_help = "\
Examples:
  strata mode set log-all --for 10m --why 'outage in building 7'
  strata mode set default")]
    Set {
        /// Switch to this mode: default, log-all, log-partial, log-sampled, log-minimum, or a mode
        /// of the configuration file; join several with +.
        mode: String,
        /// Return to the previous mode after this time (90s, 10m, 2h), at most 365 days.
        #[arg(long = "for", value_name = "TIME")]
        period: Option<String>,
        /// Give a reason, which `strata status` shows with the event.
        #[arg(long, default_value = "")]
        why: String,
        /// Print the result as a JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        recording: RecordingArgs,
    },
}

/// The new mode as JSON.
#[derive(serde::Serialize)]
struct NewMode {
    /// The mode in force: not the one that was asked for while a shortage lasts.
    mode: String,
    asked_mode: String,
}

/// The new budget of detail as JSON.
#[derive(serde::Serialize)]
struct NewDetail {
    /// The budget in force: not the one that was asked for while a shortage lasts.
    detail: String,
    asked_detail: String,
}

/// The number of a policy that was added or removed, as JSON.
#[derive(serde::Serialize)]
struct PolicyNumber {
    id: u32,
}

/// As JSON, that new files have begun.
#[derive(serde::Serialize)]
struct Rotated {
    rotated: bool,
}

/// As a budget of detail is written where there is none.
const NO_BUDGET: &str = "none";

/// Arguments of `strata detail`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata detail 5%
  strata detail 20GB/day --why 'the disk is small'
  strata detail none")]
pub(crate) struct DetailArgs {
    /// Switch to this budget: a share (10%) or a rate (50MB/s, 20GB/day) of the payload beyond
    /// headers, or none for no limit.
    #[arg(value_name = "BUDGET")]
    detail: String,
    /// Give a reason, which `strata status` shows with the event.
    #[arg(long, default_value = "")]
    why: String,
    /// Print the result as a JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    recording: RecordingArgs,
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
  strata policy add 'udp port 53' --action 'full 1/10 flows'
  strata policy add 'tcp port 25' --action 'header -> analyser'")]
    Add {
        /// Match packets with this tcpdump filter: addresses, ports, protocols, VLANs.
        #[arg(value_name = "FILTER", required = true)]
        filter: Vec<String>,
        /// Choose what to do: full, header, partial N, drop or classify (each optionally followed
        /// by 1/N or '1/N flows'); mirror (send a copy to --mirror-to); or 'header -> NAME',
        /// 'payload -> NAME' or 'payload N -> NAME' (export to a destination of the configuration).
        #[arg(long)]
        action: String,
        /// Set the priority, 0 to 65535: of the policies that match a packet, only those with the
        /// highest priority apply.
        #[arg(long = "prio", value_name = "NUMBER", default_value_t = strata_rules::PRIORITY_DEFAULT)]
        priority: u16,
        /// Match only packets of this interface.
        #[arg(long, value_name = "NAME")]
        interface: Option<String>,
        /// Never delete the kept data of these packets for disk space.
        #[arg(long)]
        protect: bool,
        /// Give a reason, which `strata status` shows with the event.
        #[arg(long, default_value = "")]
        why: String,
        /// Print the result as a JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        recording: RecordingArgs,
    },
    /// List the policies with their hit counts.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        recording: RecordingArgs,
    },
    /// Remove a policy.
    Remove {
        /// Remove the policy with this number, as listed.
        #[arg(value_parser = policy_number)]
        id: u32,
        /// Print the result as a JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        recording: RecordingArgs,
    },
}

/// Arguments of `strata rotate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Writes the packets held in memory to disk, closes the current files and starts new ones. The closed
files can then be moved.")]
pub(crate) struct RotateArgs {
    /// Print the result as a JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    recording: RecordingArgs,
}

pub(crate) fn rotate(args: &RotateArgs) -> Result<()> {
    args.recording.client()?.rotate()?;
    if args.json {
        return print_json(&Rotated { rotated: true });
    }
    writeln!(standard(), "new files begin")?;
    Ok(())
}

pub(crate) fn mode(args: &ModeArgs) -> Result<()> {
    let ModeCommand::Set {
        mode,
        period,
        why,
        json,
        recording,
    } = &args.command;
    let status = recording.client()?.set_mode(&ModeRequest {
        mode: mode.clone(),
        seconds: period.as_deref().map(seconds).transpose()?,
        why: why.clone(),
    })?;
    if *json {
        return print_json(&NewMode {
            mode: status.mode,
            asked_mode: status.asked_mode,
        });
    }
    let mut out = standard();
    writeln!(out, "mode {}", word(&status.asked_mode))?;
    if status.mode != status.asked_mode {
        let mode = word(&status.mode);
        writeln!(out, "mode {mode} is active until the shortage is over")?;
    }
    Ok(())
}

pub(crate) fn detail(args: &DetailArgs) -> Result<()> {
    let status = args.recording.client()?.set_detail(&DetailRequest {
        detail: args.detail.clone(),
        why: args.why.clone(),
    })?;
    if args.json {
        let none = || (String::from(NO_BUDGET), String::from(NO_BUDGET));
        let detail = status.detail;
        let (detail, asked_detail) =
            detail.map_or_else(none, |detail| (detail.budget, detail.asked));
        return print_json(&NewDetail {
            detail,
            asked_detail,
        });
    }
    let mut out = standard();
    let Some(detail) = status.detail else {
        writeln!(out, "detail {NO_BUDGET}")?;
        return Ok(());
    };
    writeln!(out, "detail {}", word(&detail.asked))?;
    if detail.budget != detail.asked {
        let budget = word(&detail.budget);
        writeln!(out, "{budget} applies until the shortage is over")?;
    }
    Ok(())
}

/// The number of a policy.
fn policy_number(text: &str) -> Result<u32, String> {
    let number = text.trim().parse();
    number.map_err(|_| String::from("write the number that `strata policy list` shows"))
}

/// How long a mode stays active.
fn seconds(text: &str) -> Result<f64> {
    let Ok(period) = text.parse::<SignedDuration>() else {
        return Err(refuse(format!("--for {}", not_a_duration(text))));
    };
    match Duration::try_from(period) {
        Ok(period) if !period.is_zero() && period <= MODE_PERIOD_MAX => Ok(period.as_secs_f64()),
        _ => Err(refuse(format!(
            "--for '{text}': write a time of at most 365 days, as in 90s, 10m or 2h"
        ))),
    }
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
            json,
            recording,
        } => {
            let matches = filter.join(" ");
            if matches.trim().is_empty() {
                return Err(refuse(
                    "the filter is empty, and would match every packet: is a variable of the \
                     shell unset? `strata mode set` changes the amount that is kept of all packets",
                ));
            }
            let client = recording.client()?;
            let added = client.add_policy(&PolicyRequest {
                policy: PolicyConfig {
                    matches,
                    action: action.clone(),
                    priority: *priority,
                    interface: interface.clone(),
                    protect: *protect,
                },
                why: why.clone(),
            })?;
            // The policy is there, also if the recording ends now.
            if let (Some(interface), Ok(status)) = (interface, client.status())
                && let Some(why) = status.not_captured(interface)
            {
                warn(&format!("policy {}: {why}", added.id));
            }
            match json {
                true => print_json(&PolicyNumber { id: added.id })?,
                false => writeln!(standard(), "policy {}", added.id)?,
            }
        }
        PolicyCommand::List { json, recording } => {
            let list = recording.client()?.policies()?;
            let page = match json {
                true => format!("{:#}\n", serde_json::to_value(&list)?),
                false => page::policies(&list, Reader::of_stdout()),
            };
            write!(standard(), "{page}")?;
        }
        PolicyCommand::Remove {
            id,
            json,
            recording,
        } => {
            recording.client()?.remove_policy(*id)?;
            match json {
                true => print_json(&PolicyNumber { id: *id })?,
                false => writeln!(standard(), "policy {id} removed")?,
            }
        }
    }
    Ok(())
}

/// The page of the only recording or collector, or a line for each; and why one of several did not answer.
fn all_status(clients: &[Client]) -> Result<(String, Option<ClientError>)> {
    if let [client] = clients {
        let (events, reader) = (client.events()?, Reader::of_stdout());
        let page = match client.listening()? {
            Listening::Recording(status) => page::status(&status, &events, reader),
            Listening::Collector(status) => page::collector(&status, &events, reader),
        };
        return Ok((page, None));
    }
    let status = clients.iter().map(|one| (one.socket(), one.listening()));
    let status: Vec<_> = status.collect();
    let page = several::several(&status, Reader::of_stdout());
    let problem = status.into_iter().find_map(|(_, status)| status.err());
    Ok((page, problem))
}

/// The status of a recording; of a collector that writes a stream, an object with its status alone.
fn as_json(client: &Client) -> Result<String> {
    let status = match client.listening()? {
        Listening::Recording(status) => serde_json::to_value(&status)?,
        Listening::Collector(status) => serde_json::json!({ "collector": status }),
    };
    Ok(format!("{status:#}\n"))
}

pub(crate) fn status(args: &StatusArgs) -> Result<()> {
    if args.watch {
        confined::follower(None, args.recording.socket())?;
    }
    loop {
        let (page, problem) = match args.json {
            true => (as_json(&args.recording.client()?)?, None),
            false => all_status(&args.recording.clients()?)?,
        };
        let mut out = standard();
        if args.watch && stdout().is_terminal() {
            // Move to the top left corner and clear everything below.
            write!(out, "\x1b[H\x1b[2J")?;
        }
        let page = match !args.json && colour::is_wanted(&stdout()) {
            true => colour::alarms(&page, page::is_alarming),
            false => page,
        };
        write!(out, "{page}")?;
        out.flush()?;
        drop(out);
        match problem {
            Some(problem) if !args.watch => return Err(problem.into()),
            None if !args.watch => return Ok(()),
            _ => {}
        }
        thread::sleep(Duration::from_secs(1));
    }
}
