//! `strata telemetry run`: the collector.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use strata_auth::secret::Secret;
use strata_dta::protocol::UDP_PORT;
use strata_telemetry_run::{
    COLLECTOR_PORT, CollectorsSpec, Fade, FadeOptions, TELEMETRY_COLLECTORS_MAX, TelemetryLayout,
    TelemetrySpec,
};
use strata_terminal::address::{address, networks};
use strata_terminal::log_options::GroupArgs;
use strata_terminal::logging::{self, LoggingArgs};
use strata_terminal::output::{refuse, standard};
use strata_terminal::signals::stop_on_signal;
use strata_terminal::{bounded, text};

use super::ApiArgs;
use super::rows::{print_collectors, print_end};

/// Default port of telemetry reports of INT.
const INT_PORT: u16 = 32_766;

/// Arguments of `strata telemetry run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata telemetry run -o /dev/shm/telemetry
  strata telemetry run -o store/ --listen 192.0.2.10 --allow 192.0.2.0/24
  strata telemetry run -o store/ --listen 192.0.2.10 --allow 192.0.2.0/24 --interface eth1
  strata telemetry run -o store/ --int 127.0.0.1 --table int.toml
  strata telemetry run -o store/ --generations 4 --generation-period 1h
  strata telemetry run -o counters/ --collector 192.0.2.11 --collector 192.0.2.12 --secret-file s
  strata telemetry get store/ '10.0.0.1:1024 > 10.0.0.2:80 tcp'

Reporters send DTA reports to UDP port 40040, in the format of DTA's authors or in Strata's version
2 (docs/formats/dta.md). Each report goes to a position in memory that is computed from its key;
`strata telemetry get`, `list`, `path` and `top` read that memory while it is written.

The size of the memory is fixed when the store is created; new values overwrite old ones. The kernel
continually writes a store on a disk back to that disk. A store in /dev/shm is faster, but is lost
when the machine restarts. An existing store is continued if the options match it. Without --listen,
only this machine can reach the collector.

With --collector, this process only translates: it writes the memory of `strata telemetry collect`
on other machines by RDMA (RoCEv2, UDP port 4791). Query the stores there.")]
pub(super) struct Args {
    /// Keep the store in this directory, created if missing. With --collector, keep only the
    /// counters there, for `strata telemetry status`.
    #[arg(short = 'o', long = "output", value_name = "STORE")]
    output: PathBuf,

    /// Write to the memory of `strata telemetry collect` at this address instead: TCP port 4791 or
    /// the one given. May be given up to 64 times: with N collectors, the hash of a key selects its
    /// collector, and list L is list L / N of collector L mod N, counted from 0. Reports for a
    /// collector that cannot be reached are dropped and counted.
    #[arg(long, value_name = "HOST[:PORT]")]
    collector: Vec<String>,

    /// Read the secret shared with the collectors from this file: each end proves to the other that
    /// it knows the secret.
    #[arg(long, value_name = "FILE", requires = "collector")]
    secret_file: Option<PathBuf>,

    /// Write to collectors on other machines without authenticating them.
    #[arg(long, requires = "collector", conflicts_with = "secret_file")]
    insecure: bool,

    /// Receive reports at this address: UDP port 40040 or the one given. An address other than
    /// loopback needs --allow.
    #[arg(long, value_name = "ADDR[:PORT]", default_value = "127.0.0.1:40040")]
    listen: String,

    /// Receive the datagrams for the address and port of --listen from this interface by AF_XDP,
    /// bypassing the host's network stack and its firewall; all other packets go to the host. The
    /// interface's driver must support native XDP. INT reports (--int) always use a socket.
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,

    /// Receive INT telemetry reports (1.0 and 2.x) at this address too: UDP port 32766 or the one
    /// given. An address other than loopback needs --allow.
    #[arg(long, value_name = "ADDR[:PORT]")]
    int: Option<String>,

    /// Also turn INT reports into DTA reports by this table (TOML; docs/formats/dta.md). The
    /// built-in table (`strata telemetry table`) stores paths of tracked flows, latencies by flow
    /// and node, depths of queues, and lists of congestion and drops. With `extends = "nothing"` in
    /// the file, only this table applies.
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,

    /// Accept only reports from this network; may be given several times. 0.0.0.0/0 and ::/0 accept
    /// every sender.
    #[arg(long, value_name = "CIDR")]
    allow: Vec<String>,

    /// Set the size of the memory, 1MiB to 64GiB: a quarter each for values, paths, lists and
    /// counters. 1GiB by default.
    #[arg(long = "store-memory", value_name = "SIZE")]
    memory: Option<String>,

    /// Set the maximum size of Key-Write values, up to 64 bytes; 4 by default. Longer values are
    /// refused. Up to 4 bytes, a value is never read half-written.
    #[arg(long, value_name = "BYTES", value_parser = bounded::count::<1, 64>)]
    data_bytes: Option<usize>,

    /// Keep this many hops of a path, 2 to 8; 5 by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=8))]
    hops: Option<u8>,

    /// Expect values up to this number from the hops of paths, such as switch ids; 65535 by
    /// default. Larger values, such as addresses, are stored in a table of 8,192 entries; when it
    /// is full, postcards with new values are refused.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..1 << 24))]
    value_max: Option<u32>,

    /// Collect the postcards of this many paths at a time, rounded up to a power of two, until all
    /// hops have reported; 32768 by default. The hops of further flows are written one by one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    path_rows: Option<u32>,

    /// Set the number of lists; 64 by default. Entries for other lists are refused.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    lists: Option<u32>,

    /// Write this many entries of a list at once, up to 64, or fewer after 0.1 s; 16 by default.
    #[arg(long, value_name = "N", value_parser = bounded::count::<1, 64>)]
    batch: Option<usize>,

    /// Set the size of list entries, up to 64 bytes; 56 by default, which fits an event with its
    /// flow. Shorter entries are padded, longer ones refused.
    #[arg(long, value_name = "BYTES", value_parser = bounded::count::<1, 64>)]
    entry_bytes: Option<usize>,

    /// Keep this many copies of each path and this many counters for each key, 1 to 4; 2 by
    /// default. Reports set the number of copies of a value, at most 4.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=4))]
    redundancy: Option<u8>,

    /// Limit the number of writes to memory per second, as in 500, 20k or 2M. Reports beyond the
    /// limit are dropped and counted, and then requested again from reporters that still have them.
    #[arg(long = "write-rate", value_name = "N", value_parser = text::number)]
    rate: Option<u64>,

    /// Set all counters to 0 at this interval, as in 90s, 10m or 1h. By default, they only grow.
    #[arg(long, value_name = "TIME", value_parser = text::duration_ns)]
    reset_counters: Option<u64>,

    /// Halve all counters at this interval, so that older additions count less.
    #[arg(long, value_name = "TIME", value_parser = text::duration_ns, conflicts_with = "reset_counters")]
    halve_counters: Option<u64>,

    /// Store values, paths and counters by time, in this many generations (2 to 4). Answers state
    /// their period, and at the end of each period, the oldest generation is cleared. The
    /// generations share the memory equally, and a query reads all of them.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=4),
          conflicts_with_all = ["reset_counters", "halve_counters"])]
    generations: Option<u8>,

    /// Begin a new generation at this interval, as in 10m, 1h or 1d (at most 366d), aligned to UTC;
    /// 1h by default.
    #[arg(long, value_name = "TIME", value_parser = text::duration_ns, requires = "generations")]
    generation_period: Option<u64>,

    /// Also append the entries of lists, as they arrive, to this stream, which `strata stream
    /// create` has made; other programs can follow it (`strata stream tail`). Entries that the
    /// stream cannot accept in time are missing from it, and counted.
    #[arg(long, value_name = "DIR/NAME")]
    to_stream: Option<String>,

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

/// How counters become smaller, from the two options that say it.
pub(super) fn fade(reset: Option<u64>, halve: Option<u64>) -> Result<Option<FadeOptions>> {
    let reset = reset.map(|every| (Fade::Reset, every));
    let halve = halve.map(|every| (Fade::Halve, every));
    let Some((fade, every_ns)) = reset.or(halve) else {
        return Ok(None);
    };
    if every_ns == 0 {
        return Err(refuse(
            "--reset-counters and --halve-counters must be above 0: counters would always be 0",
        ));
    }
    let every = Duration::from_nanos(every_ns);
    Ok(Some(FadeOptions { fade, every }))
}

/// The period of generations, in whole seconds.
fn generation_period_s(args: &Args) -> Result<Option<u64>> {
    const SECOND_NS: u64 = 1_000_000_000;
    let Some(period_ns) = args.generation_period else {
        return Ok(None);
    };
    if args.generations == Some(1) {
        return Err(refuse(
            "--generation-period: a single generation has no period: give --generations 2 to 4",
        ));
    }
    let period_s = period_ns / SECOND_NS;
    let is_whole = period_ns.is_multiple_of(SECOND_NS);
    if !is_whole || !(1..=366 * 24 * 3600).contains(&period_s) {
        return Err(refuse(
            "--generation-period must be 1s to 366d, in whole seconds",
        ));
    }
    Ok(Some(period_s))
}

fn collectors(args: &Args) -> Result<Option<CollectorsSpec>> {
    if args.collector.is_empty() {
        return Ok(None);
    }
    let count = args.collector.len();
    if count > TELEMETRY_COLLECTORS_MAX {
        let most = format!(
            "--collector is given {count} times: at most {TELEMETRY_COLLECTORS_MAX} are allowed"
        );
        return Err(refuse(most));
    }
    let mut addresses = Vec::with_capacity(count);
    for text in &args.collector {
        let address = address("--collector", text, COLLECTOR_PORT)?;
        if addresses.contains(&address) {
            return Err(refuse(format!(
                "--collector {text}: this collector is given twice"
            )));
        }
        let is_proved = args.secret_file.is_some() || args.insecure;
        if !is_proved && !address.ip().is_loopback() {
            return Err(refuse(format!(
                "--collector {text}: this is another machine, which is not authenticated as your \
                 collector: give --secret-file, or --insecure to send reports without \
                 authentication"
            )));
        }
        addresses.push(address);
    }
    let secret = args.secret_file.as_deref().map(Secret::read).transpose()?;
    Ok(Some(CollectorsSpec { addresses, secret }))
}

fn spec(args: &Args) -> Result<TelemetrySpec> {
    let listen = address("--listen", &args.listen, UDP_PORT)?;
    let int = args.int.as_deref();
    let int = int.map(|int| address("--int", int, INT_PORT)).transpose()?;
    let allowed = networks("--allow", &args.allow)?;
    for (option, address) in [("--listen", Some(listen)), ("--int", int)] {
        let open = address.filter(|address| !address.ip().is_loopback() && allowed.is_empty());
        if let Some(address) = open {
            return Err(refuse(format!(
                "{option} {address}: other machines can reach this address, and anyone can forge \
                 reports: name the accepted reporters, such as --allow 192.0.2.0/24 (0.0.0.0/0 is \
                 everyone)"
            )));
        }
    }
    let memory_bytes = args
        .memory
        .as_deref()
        .map(|text| bounded::bytes(text, "--store-memory"))
        .transpose()?;
    if let Some(bytes) = memory_bytes {
        bounded::size(bytes, "--store-memory", &(1 << 20..=1 << 36))?;
    }
    let rate = args.rate.map(|rate| {
        let rate = u32::try_from(rate).ok().filter(|&rate| rate > 0);
        rate.ok_or_else(|| refuse("--write-rate must be from 1 to 4294967295"))
    });
    let table = args.table.as_ref().map(|path| {
        let named = path.display();
        fs::read_to_string(path).with_context(|| format!("{named}: cannot read the table"))
    });
    Ok(TelemetrySpec {
        store: args.output.clone(),
        collectors: collectors(args)?,
        layout: TelemetryLayout {
            memory_bytes,
            data_bytes: args.data_bytes,
            hops: args.hops,
            value_max: args.value_max,
            lists: args.lists,
            batch: args.batch,
            entry_bytes: args.entry_bytes,
            redundancy: args.redundancy,
            generations: args.generations,
            generation_period_s: generation_period_s(args)?,
        },
        listen,
        interface: args.interface.clone(),
        int,
        table: table.transpose()?,
        allowed,
        path_rows: args.path_rows,
        rate: rate.transpose()?,
        fade: fade(args.reset_counters, args.halve_counters)?,
        api: args.api.spec()?,
        to_stream: args
            .to_stream
            .as_deref()
            .map(strata_terminal::feed::fed)
            .transpose()?,
        owner: args.group.owner()?,
        sandboxed: !args.no_sandbox,
    })
}

pub(super) fn run(args: &Args) -> Result<()> {
    let handle = strata_role::start(spec(args)?, stop_on_signal()?, Arc::new(logging::notice))?;
    let outcome = handle.wait()?;
    let status = &outcome.status;
    print_end(&mut standard(), status)?;
    strata_terminal::feed::say_fed(outcome.streamed)?;
    print_collectors(&mut standard(), status)
}
