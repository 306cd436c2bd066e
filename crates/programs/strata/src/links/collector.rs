//! `strata collector`: packets that recordings export, as one stream of pcapng or as a log.

use std::io::{IsTerminal, Write, pipe, stderr, stdout};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use anyhow::{Context, Result, anyhow};
use ipnet::IpNet;
use strata_collector::{
    Collector, CollectorOutcome, CollectorSpec, ControlSocket, Outlet, ReportTo, ShowSpec,
};
use strata_control::CollectorBoard;
use strata_record::{SteeringSpec, StreamSpec};
use strata_role::Tell;
use strata_role::sandbox::{Reach, unconfined};
use strata_rules::DestinationName;
use strata_store::Sources;
use strata_terminal::address::{address, host_port, networks};
use strata_terminal::confined::SandboxArgs;
use strata_terminal::log_options::GroupArgs;
use strata_terminal::logging::{self, LoggingArgs};
use strata_terminal::output::{self, refuse};
use strata_terminal::signals::Signals;
use strata_terminal::text::{self, count_of};
use strata_wire::{Printable, grouped};

use crate::record;
use crate::record::LogFiles;

/// Default port of exported packets.
pub(crate) const PORT: u16 = 4740;
/// Default port of a controller.
const CONTROLLER_PORT: u16 = 4741;

/// Arguments of `strata collector`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata collector -w headers.pcapng
  strata collector --listen 192.0.2.10 --allow 192.0.2.0/24 -o log/ --disk-limit 500GB
  strata collector --listen 192.0.2.10 --allow 192.0.2.0/24 -w - | wireshark -k -i -
  strata collector -w - | strata record -r - -o log/ --mode log-all

Recordings export headers and packets by policies such as `header -> NAME`, to destinations such as
udp://192.0.2.10:4740 in their configuration (docs/export.md). In the output, each interface of each
sender is named HOST:INTERFACE, and its description has its identity. Packets are in the order of
their arrival. `strata status` shows the losses of each interface; the command also prints them when
it ends (Ctrl-C).

Without --key-file, nothing is encrypted or authenticated: anyone who can send from an allowed
address can forge packets. Without --listen, only this machine can reach the collector.")]
#[command(group = clap::ArgGroup::new("to").required(true))]
pub(crate) struct Args {
    /// Receive datagrams at this address: UDP port 4740 or the one given. An address other than
    /// loopback needs --allow or --key-file.
    #[arg(long, value_name = "ADDR[:PORT]", default_value = "127.0.0.1:4740")]
    listen: String,

    /// Accept only senders in this network; may be given several times. 0.0.0.0/0 and ::/0 accept
    /// every sender.
    #[arg(long, value_name = "CIDR")]
    allow: Vec<String>,

    /// Accept only datagrams that are encrypted with a key in this file. Each line has a key of 64
    /// hexadecimal digits; only the file's owner may read it. The recordings that export need the
    /// same key (export.key_file); a controller creates one for its agents (export.key in its
    /// directory). On SIGHUP, the collector reads the file again.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,

    /// Report the numbers of packets received and lost to the controller of the exporting agents,
    /// at this address and TCP port 4741 or the one given. `strata controller status` compares them
    /// with the numbers that the agents have exported.
    #[arg(long, value_name = "HOST[:PORT]", requires = "name")]
    controller: Option<String>,

    /// Enrol with the token in this file: a copy of the controller's enrol.token, readable by its
    /// owner only. Needed only for enrolment.
    #[arg(long, value_name = "FILE", requires = "controller")]
    token_file: Option<PathBuf>,

    /// Enrol under this name: the name of the destination in the policies of the controller.
    #[arg(long, value_name = "NAME", requires = "controller")]
    name: Option<String>,

    /// Keep the certificate in this directory, created if missing.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/strata/collector",
        requires = "controller"
    )]
    state: PathBuf,

    /// Write pcapng to this file or named pipe; - is standard output.
    #[arg(short = 'w', long = "write", value_name = "FILE", group = "to")]
    write: Option<PathBuf>,

    /// Record into a log in this directory, as `strata record -r` would: each packet is classified,
    /// and the mode decides by its class how much of it is kept.
    #[arg(short = 'o', long = "output", value_name = "DIR", group = "to")]
    output: Option<PathBuf>,

    /// Set the logging mode of the log.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    mode: Vec<String>,

    /// Use this model file for the log; without it, the built-in model.
    #[arg(short = 'm', long = "model", value_name = "FILE")]
    model: Option<PathBuf>,

    #[command(flatten)]
    files: LogFiles,

    /// Listen on this Unix socket for `strata status` and, with -o, `mode`, `detail`, `policy` and
    /// `rotate`. The default is a socket in /run/strata or $XDG_RUNTIME_DIR/strata.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    #[command(flatten)]
    group: GroupArgs,

    /// Exit after this many packets, or a few more that arrived with the last one.
    #[arg(short = 'c', long, value_name = "PACKETS")]
    count: Option<u64>,

    /// Take only packets that match this tcpdump filter. Put options before it.
    #[arg(trailing_var_arg = true, value_name = "FILTER")]
    filter: Vec<String>,

    #[command(flatten)]
    sandbox: SandboxArgs,

    #[command(flatten)]
    pub(crate) logging: LoggingArgs,
}

/// The senders to listen to, which have to be named if others can reach the address.
pub(crate) fn listens_to(
    listen: SocketAddr,
    allowed: Vec<IpNet>,
    key_file: Option<&PathBuf>,
) -> Result<Vec<IpNet>> {
    if !listen.ip().is_loopback() && allowed.is_empty() && key_file.is_none() {
        return Err(refuse(format!(
            "--listen {listen}: other machines can reach this address, and anyone can forge \
             packets: name the accepted senders, such as --allow 192.0.2.0/24 (0.0.0.0/0 is \
             everyone), or require encryption (--key-file)"
        )));
    }
    Ok(allowed)
}

fn report_to(args: &Args) -> Result<Option<ReportTo>> {
    let (Some(controller), Some(name)) = (&args.controller, &args.name) else {
        return Ok(None);
    };
    Ok(Some(ReportTo {
        address: host_port("--controller", controller, CONTROLLER_PORT)?,
        token_file: args.token_file.clone(),
        name: DestinationName::from_str(name)
            .map_err(|error| refuse(format!("--name {name}: {error}")))?
            .to_string(),
        state: args.state.clone(),
    }))
}

fn listen(args: &Args) -> Result<CollectorSpec> {
    let listen: SocketAddr = address("--listen", &args.listen, PORT)?;
    Ok(CollectorSpec {
        listen,
        allowed: listens_to(
            listen,
            networks("--allow", &args.allow)?,
            args.key_file.as_ref(),
        )?,
        key_file: args.key_file.clone(),
        packets_max: args.count,
        // A log has its own opinion of each packet.
        comments: args.write.is_some(),
        report_to: report_to(args)?,
        // A log says of each packet what was kept of it.
        splits: args.output.is_some(),
        show: ShowSpec {
            board: Arc::default(),
            output: shown_output(args),
            socket: match args.output {
                // The recording answers there.
                Some(_) => None,
                None => Some(ControlSocket {
                    path: args.socket.clone(),
                    owner: args.group.owner()?,
                }),
            },
        },
        only: None,
        filter: text::filter(&args.filter)?,
        // A log is written by the same process, which is confined for both.
        sandboxed: args.write.is_some() && args.sandbox.is_on(),
    })
}

/// As the status names what it writes to.
fn shown_output(args: &Args) -> String {
    let output = args.output.as_ref().or(args.write.as_ref());
    match output.map(|path| path.display().to_string()) {
        Some(name) if name != "-" => name,
        _ => String::from("standard output"),
    }
}

/// Refuses what has no meaning for a stream.
fn check_for_stream(args: &Args) -> Result<()> {
    if !args.mode.is_empty() || args.model.is_some() {
        return Err(refuse(
            "--mode and -m apply only with -o: a stream is not classified",
        ));
    }
    match args.files.first_given() {
        None => Ok(()),
        Some(option) => Err(refuse(format!(
            "{option} applies to a log: with -o, not -w, the collector writes several files"
        ))),
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.output.is_none() {
        check_for_stream(args)?;
        if !args.sandbox.is_on() {
            unconfined();
        }
    }
    let mut signals = match args.output {
        Some(_) => Signals::stop_log()?,
        None => Signals::stop()?,
    };
    signals.also_steer()?;
    let (stop, reload) = (Arc::clone(&signals.stop), || signals.take_reload());
    let open =
        || -> Result<Collector> { Ok(Collector::open(listen(args)?, Arc::new(logging::notice))?) };
    let (outcome, dropped, recorded) = match (&args.write, &args.output) {
        (Some(path), _) if path.as_os_str() == "-" => {
            if stdout().is_terminal() {
                return Err(refuse(
                    "-w -: pcapng is not for a terminal: pipe it, or name a file",
                ));
            }
            let output = stdout().as_fd().try_clone_to_owned()?;
            let output = Outlet::open("standard output", output, &stop)?;
            (open()?.run(output, &stop, reload)?, None, Ok(()))
        }
        (Some(path), _) => {
            // A pipe is opened only once it has a reader.
            if !path.exists() || path.is_file() {
                output::check(path, &Sources::default())?;
            }
            let (collector, tell): (_, Tell) = (open()?, Arc::new(logging::notice));
            let output = Outlet::create(path, &args.group.owner()?, &stop, &tell)?;
            (collector.run(output, &stop, reload)?, None, Ok(()))
        }
        (None, Some(log)) => {
            let spec = listen(args)?;
            let board = Arc::clone(&spec.show.board);
            let collector = Collector::open(spec, Arc::new(logging::notice))?;
            recorded(collector, board, (args, log), (&stop, reload))?
        }
        (None, None) => return Err(refuse("-w FILE or -o DIR is missing")),
    };
    let shown = show(&outcome, dropped);
    // A failure is returned even without a reader for what came.
    recorded?;
    outcome.failure.map_or(shown, |failure| Err(failure.into()))
}

/// What came, the packets that a recording of them dropped, and what became of that.
type Recorded = (CollectorOutcome, Option<u64>, Result<()>);

/// Records what is collected, through a pipe.
fn recorded(
    collector: Collector,
    board: Arc<CollectorBoard>,
    (args, log): (&Args, &Path),
    (stop, reload): (&AtomicBool, impl FnMut() -> bool + Send),
) -> Result<Recorded> {
    let named = || format!("{}: cannot record into this log", log.display());
    let (reader, writer) = pipe().context("cannot create a pipe")?;
    let state = args.controller.is_some().then(|| args.state.clone());
    let reach = Reach {
        again: args
            .key_file
            .iter()
            .chain(&args.token_file)
            .cloned()
            .collect(),
        write: state.into_iter().collect(),
        ..Reach::default()
    };
    let stream = StreamSpec {
        name: format!("collector {}", collector.address()),
        board,
        reach: args.sandbox.is_on().then_some(reach),
    };
    let input = PathBuf::from(format!("/dev/fd/{}", reader.as_raw_fd()));
    let steering = SteeringSpec {
        socket: args.socket.clone(),
        ..SteeringSpec::default()
    };
    let log_spec = args.files.spec(log, args.group.owner()?.group)?;
    let kept = (args.mode.as_slice(), args.model.as_deref());
    // Confines this process, so no thread may have been started.
    let recording = record::Stream::start((input, stream), log_spec, kept, steering);
    let recording = recording.with_context(named)?;
    let taken = OnceLock::new();
    thread::scope(|scope| {
        let collecting = thread::Builder::new()
            .name("strata-collector".into())
            .spawn_scoped(scope, || {
                collector.run(Outlet::own(writer.into(), stop, &taken), stop, reload)
            })
            .context("cannot start the thread that receives packets")?;
        let (ledger, recorded) = recording.ended();
        // If recording has failed, collecting ends too: it has lost its reader. What the pipe holds is not recorded.
        let _ = taken.set(ledger.seen.packets);
        stop.store(true, Ordering::Relaxed);
        drop(reader);
        let collected = collecting
            .join()
            .map_err(|_| anyhow!("the collector failed; its counters are lost"))?;
        match collected {
            Ok(mut collected) => {
                // Also if it failed at the end, after the collector had written everything to the pipe.
                let counts = &mut collected.counts;
                counts.not_written = counts.packets.saturating_sub(ledger.seen.packets);
                let dropped = ledger.dropped.iter();
                let dropped = dropped.fold(0_u64, |sum, of| sum.saturating_add(of.packets));
                Ok((collected, Some(dropped), recorded.with_context(named)))
            }
            Err(error) => recorded.with_context(named).and(Err(error.into())),
        }
    })
}

/// Prints what came from whom on standard error: standard output may be the stream. `dropped` packets reached a recording
/// that did not log them; `None` without a log.
fn show(outcome: &CollectorOutcome, dropped: Option<u64>) -> Result<()> {
    let mut out = stderr().lock();
    for from in &outcome.from {
        let name = match from.name.is_empty() {
            true => "not announced".to_owned(),
            false => Printable(&from.name).to_string(),
        };
        write!(
            out,
            "{name} ({}, identity {}): {} in {}; {} lost, in {}; {} before; {} dropped by its kernel",
            from.sender,
            from.identity,
            count_of(from.packets, "packet"),
            count_of(from.datagrams, "datagram"),
            count_of(from.lost, "packet"),
            count_of(from.lost_datagrams, "lost datagram"),
            grouped(from.before),
            grouped(from.dropped),
        )?;
        if from.sessions > 1 {
            let sessions = count_of(from.sessions, "session");
            write!(out, "; {sessions}, {} cut short", grouped(from.broken_off))?;
        }
        writeln!(out)?;
    }
    let counts = &outcome.counts;
    writeln!(
        out,
        "{}; {}; datagrams not accepted: {} from senders outside --allow, {} unencrypted or \
         forged, {} more than 60 s from this clock, {} unreadable, {} repeated or contradictory, \
         {} of too many interfaces; {} dropped by the socket",
        count_of(counts.packets - counts.not_written, "packet"),
        count_of(counts.announcements, "announcement"),
        grouped(counts.strangers),
        grouped(counts.forged),
        grouped(counts.old),
        grouped(counts.unreadable),
        grouped(counts.refused),
        grouped(counts.too_many),
        count_of(counts.socket_drops, "message"),
    )?;
    match (counts.not_written, dropped) {
        (0, None | Some(0)) => {}
        (not_written, None) => {
            let packets = count_of(not_written, "packet");
            writeln!(out, "{packets} arrived and could not be written")?;
        }
        (after, Some(dropped)) => writeln!(
            out,
            "{} arrived and are not in the log: {} dropped by the recording, {} after its end",
            count_of(after.saturating_add(dropped), "packet"),
            grouped(dropped),
            grouped(after),
        )?,
    }
    Ok(())
}
