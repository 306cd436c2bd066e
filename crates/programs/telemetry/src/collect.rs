//! `strata telemetry collect`: a collector whose translator is elsewhere.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use strata_auth::secret::Secret;
use strata_telemetry_run::{COLLECTOR_PORT, TelemetryCollectorSpec};
use strata_terminal::address::address;
use strata_terminal::log_options::GroupArgs;
use strata_terminal::logging::{self, LoggingArgs};
use strata_terminal::output::{refuse, standard};
use strata_terminal::signals::stop_on_signal;
use strata_terminal::{bounded, text};
use strata_wire::grouped;

use super::ApiArgs;
use super::run::fade;

/// Arguments of `strata telemetry collect`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata telemetry collect -o /dev/shm/telemetry --listen 192.0.2.11 --secret-file telemetry.secret
  strata telemetry run -o counters/ --collector 192.0.2.11 --secret-file telemetry.secret
  strata telemetry get /dev/shm/telemetry '10.0.0.1:1024 > 10.0.0.2:80 tcp'

The translator (`strata telemetry run --collector`) receives reports and writes this memory by RDMA
(RoCEv2): the collector parses no reports. The store is created with the options of the first
translator (--store-memory, --lists and so on), and belongs to one translator at a time. Query the
store on this machine with `strata telemetry get`, `list`, `path` or `top`, even while it is
written. With several collectors, each has only its share of the keys and lists.

Both ends prove that they know the secret of --secret-file (`umask 077; openssl rand -hex 32
>telemetry.secret`). Reports are not encrypted: use a network that you trust.")]
pub(super) struct Args {
    /// Keep the store in this directory, created if missing.
    #[arg(short = 'o', long = "output", value_name = "STORE")]
    output: PathBuf,

    /// Accept translators at this address: TCP port 4791 or the one given, and RoCEv2 packets at
    /// the same UDP port. An address other than loopback needs --secret-file or --insecure.
    #[arg(long, value_name = "ADDR[:PORT]", default_value = "127.0.0.1:4791")]
    listen: String,

    /// Require translators to prove that they know the secret in this file; the collector proves
    /// the same to them. The file must be at least 16 bytes long, and readable by its owner only.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,

    /// Let any client write to the store, without authentication.
    #[arg(long, conflicts_with = "secret_file")]
    insecure: bool,

    /// Let a translator use at most this much memory, 1MiB to 64GiB.
    #[arg(long = "store-memory", value_name = "SIZE", default_value = "1GiB")]
    memory: String,

    /// Set all counters to 0 at this interval, as in 90s, 10m or 1h. By default, they only grow.
    #[arg(long, value_name = "TIME", value_parser = text::duration_ns)]
    reset_counters: Option<u64>,

    /// Halve all counters at this interval, so that older additions count less.
    #[arg(long, value_name = "TIME", value_parser = text::duration_ns, conflicts_with = "reset_counters")]
    halve_counters: Option<u64>,

    #[command(flatten)]
    api: ApiArgs,

    #[command(flatten)]
    group: GroupArgs,

    /// Keep all privileges and access to all files, instead of dropping unneeded ones once the
    /// collector listens.
    #[arg(long)]
    no_sandbox: bool,

    #[command(flatten)]
    pub(super) logging: LoggingArgs,
}

fn spec(args: &Args) -> Result<TelemetryCollectorSpec> {
    let listen = address("--listen", &args.listen, COLLECTOR_PORT)?;
    let is_open = args.secret_file.is_none() && !args.insecure;
    if is_open && !listen.ip().is_loopback() {
        return Err(refuse(format!(
            "--listen {}: other machines can reach this address, and could write into the store: \
             give --secret-file, so that only your translator can; or --insecure to accept \
             reports from anyone",
            args.listen
        )));
    }
    let memory_max = bounded::bytes(&args.memory, "--store-memory")?;
    bounded::size(memory_max, "--store-memory", &(1 << 20..=1 << 36))?;
    Ok(TelemetryCollectorSpec {
        store: args.output.clone(),
        memory_max,
        listen,
        secret: args.secret_file.as_deref().map(Secret::read).transpose()?,
        fade: fade(args.reset_counters, args.halve_counters)?,
        api: args.api.spec()?,
        owner: args.group.owner()?,
        sandboxed: !args.no_sandbox,
    })
}

pub(super) fn run(args: &Args) -> Result<()> {
    let handle = strata_role::start(spec(args)?, stop_on_signal()?, Arc::new(logging::notice))?;
    let outcome = handle.wait()?;
    writeln!(
        standard(),
        "{} of translators, {} refused; {} executed, {} repeated, {} refused",
        text::count_of(outcome.connections, "connection"),
        grouped(outcome.refused),
        text::count_of(outcome.responder.executed, "request"),
        grouped(outcome.responder.duplicates),
        grouped(outcome.responder.refused),
    )?;
    Ok(())
}
