//! `strata gpv agent`: vectors received by UDP, or from a ring in shared memory, put together into
//! records of longer intervals.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use ipnet::IpNet;
use strata_gpv::agent::ReassemblyOptions;
use strata_gpv_run::{
    ListenSpec, RecordFileSpec, RecordsSpec, VectorAgentOutcome, VectorAgentSpec, VectorSource,
};
use strata_terminal::confined::SandboxArgs;
use strata_terminal::logging;
use strata_terminal::output::{refuse, standard};
use strata_terminal::selection::vectors;
use strata_terminal::signals::stop_on_signal;
use strata_terminal::text::{self, count_of};
use strata_wire::grouped;

use super::rotate::RotateArgs;
use super::target::address;
use super::{FormName, failed};

/// Arguments of `strata gpv agent`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "\
strata gpv agent --listen ADDR:PORT [-w FILE] [--send-to HOST:PORT]
       strata gpv agent --ring FILE [-w FILE] [--send-to HOST:PORT]
       strata gpv agent -r FILE [-w FILE] [--send-to HOST:PORT]",
    after_help = "\
Runs until Ctrl-C, or until the file or the writer of the ring ends. It then prints the numbers of
received vectors, lost vectors and unreadable datagrams. Vectors of the form strata are numbered, so
each missing vector is counted. Senders are not authenticated: listen on an address that only
trusted senders can reach, or permit only their networks with --allow.

Examples:
  strata gpv agent --listen 127.0.0.1:4739 -w records.parquet
  strata gpv agent --listen 192.0.2.10:4739 --allow 192.0.2.0/24 --interval 30s \\
      --send-to collector:4739
  strata gpv agent --ring /dev/shm/vectors -w 'records-%Y%m%d-%H%M%S.parquet' -G 600
  strata gpv agent -r vectors.gpv -w records.parquet"
)]
pub(super) struct Args {
    /// Receive vectors by UDP at this address. An address other than loopback needs --allow or
    /// --insecure.
    #[arg(long, value_name = "ADDR:PORT", group = "source")]
    listen: Option<String>,

    /// Read the vectors in this ring buffer, which `strata gpv run --ring` writes, until that
    /// command ends. Give write access to the file only to users that you trust.
    #[arg(long, value_name = "FILE", group = "source")]
    ring: Option<PathBuf>,

    /// Read the vectors in this file, which `strata gpv run -w` has written, or in all files of this
    /// directory; - is standard input.
    #[arg(short = 'r', long = "read", value_name = "FILE", group = "source")]
    read: Option<PathBuf>,

    /// Set the form of the received vectors.
    #[arg(short = 'F', long, value_enum, default_value_t = FormName::Strata)]
    format: FormName,

    /// Accept only senders in this network; may be given several times. 0.0.0.0/0 and ::/0 accept
    /// every sender.
    #[arg(long, value_name = "CIDR", value_parser = network)]
    allow: Vec<IpNet>,

    /// Accept vectors from any sender that reaches the address, although anyone can forge them.
    #[arg(long, conflicts_with = "allow", requires = "listen")]
    insecure: bool,

    /// Write records to this Parquet file. An existing file is replaced once the new one is
    /// complete, which is when the agent ends or begins the next file (-G, -C). Until then, the
    /// records are in separate files next to it, such as records.part0000.parquet, which can be
    /// read.
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    write: Option<PathBuf>,

    /// Complete a part of the file at this interval. An agent that is killed loses the records
    /// since the last complete part.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = text::duration_ns)]
    save_every: u64,

    /// Send the records to this address by UDP, as vectors of the form strata.
    #[arg(long = "send-to", value_name = "HOST:PORT")]
    to: Option<String>,

    /// Limit a record to the packets of this length of time.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = text::duration_ns)]
    interval: u64,

    /// Limit a record to this many packets.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    packets_max: u16,

    /// Assemble records of at most this many flows per sender at once. A flow takes 329 bytes, plus
    /// 28 for each packet of --packets-max; with more flows, records are shorter.
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    flows: u32,

    /// Accept at most this many senders at once. A sender that has been silent for a minute is
    /// replaced by a new one; datagrams of further senders are dropped and counted.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    senders: u16,

    /// Request that each cache flushes slots that have produced no vector for this long (at least
    /// 1s), by control packets to the source of its vectors. Because sources can be forged, an
    /// address never receives more bytes than it has sent. Only for --listen and the form strata.
    #[arg(long, value_name = "TIME", value_parser = text::duration_ns)]
    flush_idle: Option<u64>,

    /// Stop after this many datagrams.
    #[arg(short = 'c', long = "datagrams", value_name = "N", value_parser = text::number)]
    count: Option<u64>,

    /// Print the counts as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    sandbox: SandboxArgs,

    // Last, since its heading in the help applies to all options after it.
    #[command(flatten)]
    rotate: RotateArgs,
}

/// Maximum memory for records of all senders.
const RECORDS_BYTES_MAX: u64 = 4 << 30;

fn network(text: &str) -> Result<IpNet, String> {
    let host = text.parse::<IpAddr>().map(IpNet::from);
    let network = text.parse().or(host);
    network.map_err(|_| format!("'{text}' is not a network such as 10.0.0.0/8"))
}

pub(super) fn run(args: &Args) -> Result<()> {
    let spec = spec(args)?;
    let stop = stop_on_signal()?;
    let handle = strata_role::start(spec, stop, Arc::new(logging::notice)).map_err(failed)?;
    let outcome = handle.wait().map_err(failed)?;
    let shown = show(args, &outcome);
    // Why it ended is returned even if no caller reads what came.
    match outcome.failure {
        Some(failure) => Err(failed(failure)),
        None if outcome.read.received.unended > 0 => {
            shown.and_then(|()| bail!("{}", vectors::cut(outcome.read.received.unended)))
        }
        None => shown,
    }
}

/// The agent that the command line describes.
fn spec(args: &Args) -> Result<VectorAgentSpec> {
    let each = 329 + 28 * u64::from(args.packets_max);
    let bytes = u64::from(args.flows) * each * u64::from(args.senders);
    if bytes > RECORDS_BYTES_MAX {
        return Err(refuse(format!(
            "--flows {} --packets-max {} --senders {} may take {} MiB; at most {} are allowed",
            args.flows,
            args.packets_max,
            args.senders,
            bytes >> 20,
            RECORDS_BYTES_MAX >> 20
        )));
    }
    if let Some(idle) = args.flush_idle {
        idle_is_possible(args, idle)?;
    }
    Ok(VectorAgentSpec {
        records: records(args)?,
        source: source(args)?,
        form: args.format.into(),
        reassembly: ReassemblyOptions {
            flows: args.flows,
            tuples_max: args.packets_max,
            interval_ns: args.interval,
        },
        senders_max: usize::from(args.senders),
        datagrams_max: args.count,
        sandboxed: args.sandbox.is_on(),
    })
}

fn records(args: &Args) -> Result<RecordsSpec> {
    if args.save_every == 0 {
        return Err(refuse("--save-every must be above 0, as in 10s"));
    }
    if args
        .write
        .as_ref()
        .is_some_and(|path| path.as_os_str() == "-")
    {
        return Err(refuse("-w - : records go to a file, which needs a name"));
    }
    let rotation = args.rotate.of(args.write.as_deref())?;
    let to = args.to.as_ref();
    let to = to.map(|name| anyhow::Ok((name.clone(), address(name)?)));
    Ok(RecordsSpec {
        file: args.write.as_ref().map(|path| RecordFileSpec {
            path: path.clone(),
            rotation,
            save_every: Duration::from_nanos(args.save_every),
        }),
        to: to.transpose()?,
    })
}

fn source(args: &Args) -> Result<VectorSource> {
    match (&args.listen, &args.ring, &args.read) {
        (Some(at), _, _) => {
            let listen = address(at)?;
            listens_to(args, listen)?;
            Ok(VectorSource::Listen(ListenSpec {
                name: at.clone(),
                address: listen,
                allowed: args.allow.clone(),
                flush_idle: args.flush_idle.map(Duration::from_nanos),
            }))
        }
        (None, Some(ring), _) => Ok(VectorSource::Ring(ring.clone())),
        (None, None, Some(path)) if path.is_dir() => Ok(VectorSource::Directory {
            path: path.clone(),
            is_live: false,
        }),
        (None, None, Some(file)) => Ok(VectorSource::File(file.clone())),
        (None, None, None) => Err(refuse(
            "nothing to receive: name an address with --listen, a ring with --ring, or a file with -r",
        )),
    }
}

fn idle_is_possible(args: &Args, idle: u64) -> Result<()> {
    if args.listen.is_none() {
        return Err(refuse(
            "--flush-idle: only caches that send by UDP (--listen) can flush slots on request",
        ));
    }
    if args.format != FormName::Strata {
        return Err(refuse(
            "--flush-idle needs -F strata: vectors in the forms paper and paper-seq do not carry \
             their slot",
        ));
    }
    if idle == 0 {
        return Err(refuse("--flush-idle must be at least 1s"));
    }
    Ok(())
}

/// Refuses an address that others reach, unless an option names the senders.
fn listens_to(args: &Args, listen: SocketAddr) -> Result<()> {
    match listen.ip().is_loopback() || args.insecure || !args.allow.is_empty() {
        true => Ok(()),
        false => Err(refuse(format!(
            "--listen {listen}: other machines can reach this address, and anyone can forge \
             vectors: name the accepted senders, such as --allow 192.0.2.0/24 (0.0.0.0/0 is \
             everyone), or give --insecure to accept any sender"
        ))),
    }
}

fn show(args: &Args, outcome: &VectorAgentOutcome) -> Result<()> {
    let mut out = standard();
    if args.json {
        return Ok(writeln!(out, "{:#}", as_json(outcome)?)?);
    }
    writeln!(out, "{}", as_text(outcome))?;
    if let Some(sent) = outcome.sent {
        let (vectors, datagrams) = (
            count_of(sent.vectors, "vector"),
            count_of(sent.datagrams, "datagram"),
        );
        writeln!(
            out,
            "{vectors} sent in {datagrams}, {} not sent",
            sent.unsent
        )?;
    }
    Ok(())
}

fn as_json(outcome: &VectorAgentOutcome) -> Result<serde_json::Value> {
    let mut value = serde_json::to_value(outcome.read.received)?;
    value["foreign"] = outcome.read.foreign.into();
    value["overwritten"] = outcome.read.overwritten.into();
    value["requests"] = outcome.read.requests.sent.into();
    value["requests_withheld"] = outcome.read.requests.withheld.into();
    if let Some(sent) = &outcome.sent {
        value["sent"] = serde_json::json!({
            "vectors": sent.vectors, "datagrams": sent.datagrams, "unsent": sent.unsent,
        });
    }
    Ok(value)
}

fn as_text(outcome: &VectorAgentOutcome) -> String {
    let received = &outcome.read.received;
    let mut said = format!(
        "{} of {} in {} from {}: {}",
        count_of(received.vectors, "vector"),
        count_of(received.packets, "packet"),
        count_of(received.datagrams, "datagram"),
        count_of(received.senders, "sender"),
        count_of(received.records, "record"),
    );
    if received.early > 0 {
        said += &format!(
            ", {} of them shortened because there were more flows than --flows",
            grouped(received.early)
        );
    }
    let counts = [
        (received.lost, "vectors lost"),
        (
            received.jumps,
            "jumps of a sender's numbers, after which the loss is unknown",
        ),
        (received.before, "vectors sent before the agent listened"),
        (received.damaged, "datagrams that cannot be read"),
        (received.stale, "datagrams that arrived twice or too late"),
        (received.refused, "datagrams of more senders than --senders"),
        (
            outcome.read.foreign,
            "datagrams from senders outside --allow",
        ),
        (
            outcome.read.overwritten,
            "datagrams of the ring overwritten before they were read",
        ),
        (outcome.read.requests.sent, "requests to flush slots"),
        (
            outcome.read.requests.withheld,
            "requests not sent, because too few bytes came from the sender",
        ),
    ];
    for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
        said += &format!("\n{what}: {}", grouped(count));
    }
    said
}
