//! `strata gpv agent`: vectors received by UDP, or from a ring in shared memory, put together into
//! records of longer intervals.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use ipnet::IpNet;
use rustix::net::sockopt;
use strata_gpv::agent::ReassemblyOptions;
use strata_gpv::format::{FormatError, paper};
use strata_role::sandbox::Reach;
use strata_store::Sources;
use strata_sys::pause::backoff;
use strata_wire::grouped;
use tracing::{info, warn};

use super::form::Form;
use super::inbox::{Inbox, InboxOptions, Received};
use super::outputs::{Outputs, Sent};
use super::ring::{Found, RingReader};
use super::rotate::RotateArgs;
use super::target::address;
use crate::confined::SandboxArgs;
use crate::output::{check, refuse, standard};
use crate::signals::stop_on_signal;
use crate::text::{self, count_of};

/// What the kernel keeps of datagrams until they are read.
const SOCKET_BYTES: usize = 16 << 20;
/// How long to wait for datagrams before signals and expired records are looked at.
const WAIT: Duration = Duration::from_millis(100);
/// How long to wait before an empty ring is looked at again.
const RING_WAIT: Duration = Duration::from_millis(2);
/// How often slots of caches are looked at.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// Records are looked at for their age in so many parts, one every [`WAIT`].
const PARTS: usize = 10;
/// Any datagram fits.
const DATAGRAM_BYTES: usize = 65_536;

/// Arguments of `strata gpv agent`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "\
strata gpv agent --listen ADDRESS:PORT [-w FILE] [--to HOST:PORT]
       strata gpv agent --ring FILE [-w FILE] [--to HOST:PORT]
       strata gpv agent -r FILE [-w FILE] [--to HOST:PORT]",
    after_help = "\
Runs until Ctrl-C, and then prints what came, what was lost and what could not be read. Vectors of
the form strata have numbers, so each one that is missing is counted. Senders are not
authenticated: listen on an address that only they reach, or name their networks with --allow.

Examples:
  strata gpv agent --listen 127.0.0.1:4739 -w records.parquet
  strata gpv agent --listen 192.0.2.10:4739 --allow 192.0.2.0/24 --interval 30s --to collector:4739
  strata gpv agent --ring /dev/shm/vectors -w 'records-%Y%m%d-%H%M%S.parquet' -G 600
  strata gpv agent -r vectors.gpv -w records.parquet"
)]
pub(super) struct Args {
    /// Receive vectors by UDP at this address. An address other than loopback needs --allow or
    /// --insecure.
    #[arg(long, value_name = "ADDRESS:PORT", group = "source")]
    listen: Option<String>,

    /// Read the vectors in this ring buffer, which `strata gpv run --ring` writes, until it ends. It
    /// must be a file that only whom you trust may write.
    #[arg(long, value_name = "FILE", group = "source")]
    ring: Option<PathBuf>,

    /// Read the vectors in this file, which `strata gpv run -w` has written; - is standard input.
    #[arg(short = 'r', long = "read", value_name = "FILE", group = "source")]
    read: Option<PathBuf>,

    /// Set the form of vectors that are received.
    #[arg(short = 'F', long, value_enum, default_value_t = Form::Strata)]
    format: Form,

    /// Listen to senders of this network only; may be given several times. 0.0.0.0/0 and ::/0 are
    /// everyone.
    #[arg(long, alias = "from", value_name = "CIDR", value_parser = network)]
    allow: Vec<IpNet>,

    /// Listen to whoever reaches the address, and can forge vectors.
    #[arg(long, conflicts_with = "allow", requires = "listen")]
    insecure: bool,

    /// Write records to this Parquet file. It takes the place of one of that name once it is complete:
    /// when the agent ends, or begins the next file (-G, -C). Until then, what came is in parts beside
    /// it, such as records.part0000.parquet, which can be read as they are.
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    write: Option<PathBuf>,

    /// Complete a part of the file after this time: what an agent that is killed may lose.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = text::duration_ns)]
    save_every: u64,

    #[command(flatten)]
    rotate: RotateArgs,

    /// Send records here by UDP, as vectors of the form strata.
    #[arg(long, value_name = "HOST:PORT")]
    to: Option<String>,

    /// Let a record have at most the packets of this time.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = text::duration_ns)]
    interval: u64,

    /// Let a record have at most this many packets.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    packets_max: u16,

    /// Put together at most this many flows of a sender at once. Each takes 329 bytes, and 28 for
    /// each packet of a record; if there are more flows, their records are shorter.
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    flows: u32,

    /// Listen to at most this many senders at once. One that was silent for a minute makes room.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    senders: u16,

    /// Ask each cache to flush its slots that gave no vector for this long, at least 1s, by
    /// control packets to where its vectors come from. No address is sent more bytes than came from
    /// it, since senders can be forged. For the form strata.
    #[arg(long, value_name = "TIME", value_parser = text::duration_ns)]
    flush_idle: Option<u64>,

    /// Stop after this many datagrams.
    #[arg(short = 'c', long = "count", value_name = "N", value_parser = text::number)]
    count: Option<u64>,

    /// Print the counts as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    sandbox: SandboxArgs,
}

/// Memory for records of all senders at most.
const RECORDS_BYTES_MAX: u64 = 4 << 30;

fn network(text: &str) -> Result<IpNet, String> {
    let host = text.parse::<IpAddr>().map(IpNet::from);
    let network = text.parse().or(host);
    network.map_err(|_| format!("'{text}' is not a network such as 10.0.0.0/8"))
}

pub(super) fn run(args: &Args) -> Result<()> {
    let stop = stop_on_signal()?;
    let mut agent = Agent::new(args)?;
    let ended = match (&args.listen, &args.ring, &args.read) {
        (Some(at), _, _) => agent.listen(at, &stop),
        (None, Some(ring), _) => agent.follow(ring, &stop),
        (None, None, Some(file)) => agent.read(file, &stop),
        (None, None, None) => Err(refuse(
            "nothing to receive: name an address with --listen, a ring with --ring, or a file with -r",
        )),
    };
    match ended {
        // Nothing began.
        Err(error) if agent.outputs.is_none() => Err(error),
        ended => ended.and(agent.finish()),
    }
}

fn idle_is_possible(args: &Args, idle: u64) -> Result<()> {
    if args.listen.is_none() {
        return Err(refuse(
            "--flush-idle: only caches that send by UDP (--listen) can be asked for their slots",
        ));
    }
    if args.format != Form::Strata {
        return Err(refuse(
            "--flush-idle needs the form strata: vectors of the paper's forms do not say which slot they \
             were in",
        ));
    }
    if idle == 0 {
        return Err(refuse("--flush-idle: at least 1s"));
    }
    Ok(())
}

/// Refuses an address that others reach, if it was not said whom to listen to.
fn listens_to(args: &Args, listen: SocketAddr) -> Result<()> {
    match listen.ip().is_loopback() || args.insecure || !args.allow.is_empty() {
        true => Ok(()),
        false => Err(refuse(format!(
            "--listen {listen}: others reach this address, and anyone can forge vectors: say whom to \
             listen to, such as --allow 192.0.2.0/24 (0.0.0.0/0 is everyone), or --insecure to listen to \
             whoever sends"
        ))),
    }
}

struct Agent<'a> {
    args: &'a Args,
    inbox: Inbox,
    sources: Sources,
    outputs: Option<Outputs>,
    /// Datagrams from elsewhere than `--allow`.
    foreign: u64,
    /// Datagrams of the ring that were written over before they were read.
    overwritten: u64,
    /// The first datagram that could not be read was said.
    has_warned: bool,
}

impl<'a> Agent<'a> {
    fn new(args: &'a Args) -> Result<Self> {
        let each = 329 + 28 * u64::from(args.packets_max);
        let bytes = u64::from(args.flows) * each * u64::from(args.senders);
        if bytes > RECORDS_BYTES_MAX {
            return Err(refuse(format!(
                "--flows {} --packets-max {} --senders {} may take {} MiB; at most {} are possible",
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
        if args.save_every == 0 {
            return Err(refuse("--save-every must be above 0, as in 10s"));
        }
        let sources = Sources::default().files(&args.read).files(&args.ring);
        if let Some(path) = &args.write {
            if path.as_os_str() == "-" {
                return Err(refuse("-w - : records go to a file, which needs a name"));
            }
            match args.rotate.of(Some(path))? {
                // The names of its files are known later.
                Some(_) => {}
                None => check(path, &sources)?,
            }
        }
        Ok(Self {
            args,
            inbox: Inbox::new(InboxOptions {
                form: args.format,
                senders_max: usize::from(args.senders),
                reassembly: ReassemblyOptions {
                    flows: args.flows,
                    tuples_max: args.packets_max,
                    interval_ns: args.interval,
                },
                seed: super::seed()?,
                flush_idle: args.flush_idle.map(Duration::from_nanos),
            }),
            sources,
            outputs: None,
            foreign: 0,
            overwritten: 0,
            has_warned: false,
        })
    }

    /// Opens where records go, in the sandbox: what vectors come from is open.
    fn open(&self) -> Result<Outputs> {
        let args = self.args;
        let mut reach = Reach::default();
        if let Some(path) = &args.write {
            reach.makes(path);
        }
        args.sandbox.confine(&reach)?;
        let save_every = Duration::from_nanos(args.save_every);
        let files = (args.write.as_deref(), &args.rotate, save_every);
        Outputs::open(files, args.to.as_deref(), &self.sources)
    }

    fn listen(&mut self, at: &str, stop: &AtomicBool) -> Result<()> {
        let listen = address(at)?;
        listens_to(self.args, listen)?;
        let socket = UdpSocket::bind(listen).with_context(|| format!("{at}: cannot listen"))?;
        // Without the right to, as large as allowed.
        if sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BYTES).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BYTES)?;
        }
        socket.set_read_timeout(Some(WAIT))?;
        self.outputs = Some(self.open()?);
        info!("listening on {}", socket.local_addr()?);
        let mut bytes = vec![0; DATAGRAM_BYTES];
        let (mut expired, mut asked) = (Instant::now(), Instant::now());
        while !stop.load(Ordering::Relaxed) && !self.is_done() {
            match socket.recv_from(&mut bytes) {
                Ok((len, from)) => self.received(from, &bytes[..len])?,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    _ => return Err(error).with_context(|| format!("{at}: cannot receive")),
                },
            }
            if expired.elapsed() >= WAIT {
                expired = Instant::now();
                self.expire()?;
            }
            if asked.elapsed() >= ASK_EVERY {
                asked = Instant::now();
                // What is not sent is asked for again.
                self.inbox.idle(|address, bytes| {
                    let _ = socket.send_to(bytes, address);
                });
            }
        }
        Ok(())
    }

    /// Reads a ring until its writer ends.
    fn follow(&mut self, path: &Path, stop: &AtomicBool) -> Result<()> {
        let name = path.display();
        let mut ring = RingReader::open(path)?;
        self.outputs = Some(self.open()?);
        info!("reading the ring {name}");
        let mut expired = Instant::now();
        while !stop.load(Ordering::Relaxed) && !self.is_done() {
            let found = ring.read()?;
            self.overwritten = ring.overwritten;
            match found {
                Found::Datagram => {
                    let read = self.datagram(None, ring.datagram());
                    self.warn_once(&name, read);
                    self.check()?;
                }
                Found::Nothing => backoff(RING_WAIT),
                Found::End => break,
                Found::Abandoned => {
                    warn!("{name}: who wrote it is gone without saying that this was all");
                    break;
                }
            }
            if expired.elapsed() >= WAIT {
                expired = Instant::now();
                self.expire()?;
            }
        }
        Ok(())
    }

    /// Says which the first datagram is that cannot be read.
    fn warn_once(&mut self, from: &dyn std::fmt::Display, read: Result<(), FormatError>) {
        if let Err(error) = read
            && !self.has_warned
        {
            self.has_warned = true;
            warn!("{from}: {error}; further ones that cannot be read are counted");
        }
    }

    fn is_done(&self) -> bool {
        if self
            .outputs
            .as_ref()
            .is_some_and(|outputs| outputs.is_complete)
        {
            return true;
        }
        let count = self.args.count;
        count.is_some_and(|count| self.inbox.received().datagrams >= count)
    }

    fn received(&mut self, from: SocketAddr, bytes: &[u8]) -> Result<()> {
        let address = from.ip().to_canonical();
        let networks = &self.args.allow;
        if !networks.is_empty() && !networks.iter().any(|network| network.contains(&address)) {
            self.foreign += 1;
            return Ok(());
        }
        let read = self.datagram(Some(from), bytes);
        self.warn_once(&from, read);
        self.check()
    }

    fn datagram(&mut self, from: Option<SocketAddr>, bytes: &[u8]) -> Result<(), FormatError> {
        let outputs = &mut self.outputs;
        self.inbox.datagram(from, bytes, &mut |given| {
            if let Some(outputs) = outputs {
                outputs.put(given);
            }
        })
    }

    fn expire(&mut self) -> Result<()> {
        let outputs = &mut self.outputs;
        let part = (self.args.flows as usize).div_ceil(PARTS);
        self.inbox.expire(part, &mut |given| {
            if let Some(outputs) = outputs {
                outputs.put(given);
            }
        });
        if let Some(outputs) = outputs {
            outputs.send_begun();
        }
        self.check()
    }

    fn check(&mut self) -> Result<()> {
        self.outputs.as_mut().map_or(Ok(()), Outputs::check)
    }

    /// Reads a file of datagrams, or of vectors one after the other.
    fn read(&mut self, path: &Path, stop: &AtomicBool) -> Result<()> {
        let name = path.display().to_string();
        let mut input: Box<dyn std::io::Read> = match path.as_os_str() == "-" {
            true => Box::new(std::io::stdin().lock()),
            false => {
                let file = File::open(path).with_context(|| format!("{name}: cannot read"))?;
                Box::new(BufReader::new(file))
            }
        };
        self.outputs = Some(self.open()?);
        let (mut bytes, mut at) = (Vec::new(), 0_u64);
        while !stop.load(Ordering::Relaxed) && !self.is_done() {
            bytes.clear();
            let header = match self.args.format {
                Form::Strata => 24,
                Form::Paper | Form::PaperSeq => paper::HEADER_LEN as u64,
            };
            let read = input.by_ref().take(header).read_to_end(&mut bytes);
            read.with_context(|| format!("{name}: cannot read"))?;
            if bytes.is_empty() {
                break;
            }
            let rest = self.rest(&bytes);
            let read = input.by_ref().take(rest).read_to_end(&mut bytes);
            read.with_context(|| format!("{name}: cannot read"))?;
            self.datagram(None, &bytes).map_err(|error| {
                anyhow!(
                    "{name}: from byte {at} on no vectors of the form {}: {error}",
                    match self.args.format {
                        Form::Strata => "strata",
                        Form::Paper => "paper",
                        Form::PaperSeq => "paper-seq",
                    }
                )
            })?;
            at += bytes.len() as u64;
            self.check()?;
        }
        Ok(())
    }

    /// How many bytes follow a header.
    fn rest(&self, header: &[u8]) -> u64 {
        match (self.args.format, header) {
            (Form::Strata, [_, _, _, _, _, _, _, _, _, _, _, _, low, high, ..]) => {
                u64::from(u16::from_le_bytes([*low, *high])).saturating_sub(header.len() as u64)
            }
            (form, [_, _, _, _, _, _, _, _, _, _, _, _, _, _, high, low, ..]) => {
                let count = u64::from(u16::from_be_bytes([*high, *low]));
                count * if form == Form::Paper { 4 } else { 8 }
            }
            _ => 0,
        }
    }

    fn finish(mut self) -> Result<()> {
        let Some(mut outputs) = self.outputs.take() else {
            return Ok(());
        };
        self.inbox.finish(&mut |given| outputs.put(given));
        let sent = outputs.finish()?;
        self.report(sent)
    }

    fn report(&self, sent: Option<Sent>) -> Result<()> {
        let received = self.inbox.received();
        let mut out = standard();
        if self.args.json {
            let mut value = serde_json::to_value(received)?;
            value["foreign"] = self.foreign.into();
            value["overwritten"] = self.overwritten.into();
            let requests = self.inbox.requests;
            value["requests"] = requests.sent.into();
            value["requests_withheld"] = requests.withheld.into();
            if let Some(sent) = &sent {
                value["sent"] = serde_json::json!({
                    "vectors": sent.vectors, "datagrams": sent.datagrams, "unsent": sent.unsent,
                });
            }
            return Ok(writeln!(out, "{value:#}")?);
        }
        writeln!(out, "{}", self.as_text(&received))?;
        if let Some(sent) = sent {
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

    fn as_text(&self, received: &Received) -> String {
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
                ", {} of them short since more flows came than --flows",
                grouped(received.early)
            );
        }
        let counts = [
            (received.lost, "vectors lost"),
            (received.before, "vectors sent before the agent listened"),
            (received.damaged, "datagrams that cannot be read"),
            (received.stale, "datagrams that came twice or too late"),
            (received.refused, "datagrams of more senders than --senders"),
            (self.foreign, "datagrams from elsewhere than --allow"),
            (
                self.overwritten,
                "datagrams of the ring written over before they were read",
            ),
            (self.inbox.requests.sent, "requests to flush slots"),
            (
                self.inbox.requests.withheld,
                "requests not sent, since too little came from there",
            ),
        ];
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            said += &format!("\n{what}: {}", grouped(count));
        }
        said
    }
}
