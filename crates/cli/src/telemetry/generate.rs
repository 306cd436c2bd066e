//! `strata telemetry generate`: reports of all kinds at a stated rate, from a seed.

use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use strata_capture::{Input, InputOptions, Next};
use strata_dta::int::stack::{Inner, Marks};
use strata_dta::key::{FiveTuple, Key};
use strata_dta::protocol::{Flags, Report, UDP_PORT};
use strata_dta::reporter::{Reporter, ReporterOptions};
use strata_wire::{LinkType, Meta, exact, grouped, mix64, unix_ns};

use super::fat_tree::FatTree;
use crate::address::address;
use crate::output::{refuse, standard};
use crate::signals::stop_on_signal;
use crate::{bounded, text};

/// Port of telemetry reports of INT.
const INT_PORT: u16 = 32_766;
/// Between bursts of reports.
const BURST: Duration = Duration::from_millis(1);
/// How long reports may be asked for again after the last.
const ASKED: Duration = Duration::from_millis(200);
/// Keys at most.
const KEYS_MAX: u64 = 1 << 22;
/// How often a full socket is tried again, a millisecond apart.
const TRIES: u32 = 5_000;

/// Arguments of `strata telemetry generate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Profiles:
  mix            key-write, key-increment, append and postcards in turn
  key-write      the value of a flow is its rank: 0 is the most frequent
  key-increment  packets of an address: 1 each
  append         numbers, in lists 8 to 11
  postcards      the five hops of a flow
  fat-tree       a simulated data center of 20 INT switches and 16 hosts: telemetry reports of INT
                 2.0, sent to UDP port 32766 (`strata telemetry run --int`). Every second, another
                 link is congested for half a second.

Examples:
  strata telemetry generate --to 127.0.0.1 --rate 100k --seed 7
  strata telemetry generate --to 127.0.0.1 --profile fat-tree --duration 10
  strata telemetry generate --profile fat-tree --list-flows")]
pub(super) struct Args {
    /// Send to this collector: UDP port 40040, of fat-tree 32766, or the one given.
    #[arg(
        long,
        value_name = "HOST[:PORT]",
        required_unless_present = "list_flows"
    )]
    to: Option<String>,

    /// Choose what is reported; see below.
    #[arg(long, value_enum, default_value_t = Profile::Mix)]
    profile: Profile,

    /// Send so many reports per second, with k or M; 0 is as many as possible.
    #[arg(long, value_name = "N", default_value = "10k", value_parser = text::number)]
    rate: u64,

    /// Seed the generator: the same seed gives the same reports.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Stop after so many reports, with k or M; of fat-tree, once all reports of the last packet are
    /// sent.
    #[arg(short = 'c', long, value_name = "N", value_parser = text::number)]
    reports: Option<u64>,

    /// Stop after so many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = bounded::seconds)]
    duration: Option<f64>,

    /// Use so many keys, with k or M; by default 100k, of fat-tree 200 flows.
    #[arg(long, value_name = "N", value_parser = text::number)]
    keys: Option<u64>,

    /// Draw keys by Zipf's law with this exponent; 0 draws all alike.
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = zipf)]
    zipf: f64,

    /// Take the flows of this capture as keys, the first ones.
    #[arg(
        short = 'r',
        long = "read",
        value_name = "FILE",
        conflicts_with = "list_flows"
    )]
    read: Option<PathBuf>,

    /// Ask for values and counters to be kept in so many copies.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=4))]
    redundancy: u8,

    /// Keep reports until they would have been asked for again, and send those again.
    #[arg(long)]
    retransmit: bool,

    /// Print the flows of fat-tree with their paths, instead of sending anything.
    #[arg(long, requires = "profile")]
    list_flows: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Profile {
    Mix,
    KeyWrite,
    KeyIncrement,
    Append,
    Postcards,
    FatTree,
}

fn zipf(text: &str) -> Result<f64, String> {
    bounded::within(text, 0.0..=4.0)
}

/// Draws ranks by Zipf's law: rank r with probability proportional to 1 / (r + 1)^s.
pub(super) struct Zipf {
    cumulative: Vec<f64>,
}

impl Zipf {
    #[allow(clippy::cast_precision_loss, reason = "ranks are below 2^22")]
    pub(super) fn new(ranks: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let weights = (1..=ranks).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Self {
            cumulative: weights.collect(),
        }
    }

    /// The rank of a random number.
    #[allow(clippy::cast_precision_loss, reason = "53 bits")]
    pub(super) fn rank(&self, random: u64) -> usize {
        let last = self.cumulative.len() - 1;
        let place = (random >> 11) as f64 / (1_u64 << 53) as f64 * self.cumulative[last];
        self.cumulative
            .partition_point(|&sum| sum <= place)
            .min(last)
    }
}

/// The flow of a rank, if no capture says others.
fn flow_of(seed: u64, rank: usize) -> FiveTuple {
    let random = mix64(seed ^ mix64(rank as u64));
    let [a, b, c, d, e, f, g, _] = random.to_le_bytes();
    FiveTuple {
        source: IpAddr::V4(Ipv4Addr::new(10, a, b, c)),
        destination: IpAddr::V4(Ipv4Addr::new(198, 18, d, e)),
        source_port: u16::from_le_bytes([f, g]) | 1024,
        destination_port: 443,
        protocol: 6,
    }
}

/// The first flows of a capture.
fn flows_of(path: &PathBuf, limit: usize) -> Result<Vec<FiveTuple>> {
    let mut seen = std::collections::HashSet::new();
    let mut flows = Vec::new();
    let mut links: Vec<LinkType> = Vec::new();
    let mut input = Input::open(std::slice::from_ref(path), &InputOptions::default())?;
    while flows.len() < limit {
        match input.advance()? {
            Next::End => break,
            Next::Meta(Meta::Interface { interface, .. }) => links.push(interface.link),
            Next::Meta(_) => {}
            Next::Packets => {
                for packet in input.batch().iter() {
                    let link = links[usize::from(packet.interface)];
                    let inner = Inner::read(link, packet.data, &Marks::default());
                    let flow = inner.ok().and_then(|inner| inner.flow);
                    if let Some(flow) =
                        flow.filter(|&flow| flows.len() < limit && seen.insert(flow))
                    {
                        flows.push(flow);
                    }
                }
            }
        }
    }
    ensure!(
        !flows.is_empty(),
        "{}: no packet of it has a flow",
        path.display()
    );
    Ok(flows)
}

/// Where datagrams go.
pub(super) struct Sender {
    socket: UdpSocket,
    datagrams: u64,
    refused: u64,
}

impl Sender {
    fn new(to: SocketAddr) -> Result<Self> {
        let any: SocketAddr = match to {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let open = || -> io::Result<UdpSocket> {
            let socket = UdpSocket::bind(any)?;
            socket.connect(to)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        Ok(Self {
            socket: open().with_context(|| format!("--to {to}: cannot send there"))?,
            datagrams: 0,
            refused: 0,
        })
    }

    /// Sends a datagram. Nobody listening there is counted, and is no error: it may come.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.datagrams += 1;
        for _ in 0..TRIES {
            match self.socket.send(bytes) {
                Ok(_) => return Ok(()),
                // Of an earlier datagram; this one was not sent.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => self.refused += 1,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let fd = self.socket.as_fd();
                    let ready = rustix::event::PollFlags::OUT;
                    let mut poll = [rustix::event::PollFd::from_borrowed_fd(fd, ready)];
                    let limit = rustix::time::Timespec {
                        tv_sec: 0,
                        tv_nsec: 1_000_000,
                    };
                    let _ = rustix::event::poll(&mut poll, Some(&limit));
                }
                Err(error) => return Err(error).context("cannot send reports"),
            }
        }
        anyhow::bail!("cannot send reports: the socket is full")
    }

    fn receive(&self, mut take: impl FnMut(&[u8])) {
        let mut bytes = [0; 64];
        // An error is that of a datagram sent earlier, or that there is nothing.
        while let Ok(len) = self.socket.recv(&mut bytes) {
            take(&bytes[..len]);
        }
    }
}

/// When reports are due.
struct Pace {
    started: Instant,
    rate: u64,
    limit: Option<u64>,
    until: Option<Duration>,
}

impl Pace {
    /// Waits for the next burst: how many reports it has; `None` at the end.
    fn next(&self, sent: u64) -> Option<u64> {
        let elapsed = self.started.elapsed();
        if self.until.is_some_and(|until| elapsed >= until) {
            return None;
        }
        let left = self
            .limit
            .map_or(u64::MAX, |limit| limit.saturating_sub(sent));
        if left == 0 {
            return None;
        }
        let due = match self.rate {
            0 => 1000,
            rate => {
                let due = u128::from(rate) * elapsed.as_nanos() / 1_000_000_000 + 1;
                exact::<u64>(due).saturating_sub(sent)
            }
        };
        if due == 0 {
            thread::sleep(BURST);
        }
        Some(due.min(left).min(10_000))
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let is_tree = args.profile == Profile::FatTree;
    let keys = args.keys.unwrap_or(if is_tree { 200 } else { 100_000 });
    if !(1..=KEYS_MAX).contains(&keys) {
        return Err(refuse(format!("--keys must be from 1 to {KEYS_MAX}")));
    }
    let keys = exact::<usize>(keys);
    if args.list_flows {
        if !is_tree {
            return Err(refuse("--list-flows is for --profile fat-tree"));
        }
        return list_flows(args.seed, keys);
    }
    let port = if is_tree { INT_PORT } else { UDP_PORT };
    let to = args.to.as_deref().context("--to is required")?;
    let mut sender = Sender::new(address("--to", to, port)?)?;
    crate::confined::SandboxArgs::default().confine(&strata_role::sandbox::Reach {
        read: args.read.iter().cloned().collect(),
        keep: Some(crate::confined::to_read(args.read.as_slice())),
        ..Default::default()
    })?;
    let pace = Pace {
        started: Instant::now(),
        rate: args.rate,
        limit: args.reports,
        until: args.duration.map(Duration::from_secs_f64),
    };
    let sent = if is_tree {
        if args.read.is_some() {
            return Err(refuse(
                "-r does not go with --profile fat-tree, which has its own hosts",
            ));
        }
        tree(args, keys, &mut sender, &pace)?
    } else {
        mixed(args, keys, &mut sender, &pace)?
    };
    writeln!(
        standard(),
        "{} in {}, {:.2} s{}",
        text::count_of(sent, "report"),
        text::count_of(sender.datagrams, "datagram"),
        pace.started.elapsed().as_secs_f64(),
        match sender.refused {
            0 => String::new(),
            refused => format!("; nobody listened {} times", grouped(refused)),
        }
    )?;
    Ok(())
}

fn list_flows(seed: u64, keys: usize) -> Result<()> {
    let tree = FatTree::new(seed, keys);
    let mut out = standard();
    for flow in tree.flows() {
        let path = tree.path(flow);
        let path: Vec<String> = path.iter().map(|hop| hop.node.to_string()).collect();
        writeln!(out, "{flow}\t{}", path.join(" "))?;
    }
    Ok(())
}

fn tree(args: &Args, keys: usize, sender: &mut Sender, pace: &Pace) -> Result<u64> {
    let stop = stop_on_signal()?;
    let mut tree = FatTree::new(args.seed, keys);
    let zipf = Zipf::new(keys, args.zipf);
    let (mut sent, mut packets) = (0, 0_u64);
    while let Some(due) = pace.next(sent) {
        let until = sent + due;
        // A packet's reports are sent together: its hops are not counted apart.
        while sent < until {
            packets += 1;
            let rank = zipf.rank(mix64(args.seed.wrapping_add(packets)));
            let elapsed_ns = exact::<u64>(pace.started.elapsed().as_nanos());
            for datagram in tree.packet(rank, elapsed_ns) {
                sender.send(&datagram)?;
                sent += 1;
            }
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(sent)
}

fn mixed(args: &Args, keys: usize, sender: &mut Sender, pace: &Pace) -> Result<u64> {
    let stop = stop_on_signal()?;
    let flows = match &args.read {
        Some(path) => flows_of(path, keys)?,
        None => (0..keys).map(|rank| flow_of(args.seed, rank)).collect(),
    };
    let zipf = Zipf::new(flows.len(), args.zipf);
    let session = getrandom::u32().map_err(io::Error::other)?;
    let mut reporter = Reporter::new(ReporterOptions::new(session.to_le_bytes()[0]));
    let flags = Flags {
        retransmittable: args.retransmit,
        ..Flags::default()
    };
    let mut mix = Mix {
        profile: args.profile,
        redundancy: args.redundancy,
        reports: 0,
        card: None,
    };
    let mut full: Vec<Vec<u8>> = Vec::new();
    let mut asked_until = None;
    loop {
        let due = match pace.next(mix.reports) {
            Some(due) => due,
            // Others may be asked for, a while after the last.
            None if args.retransmit => {
                let until = asked_until.get_or_insert_with(|| Instant::now() + ASKED);
                if Instant::now() >= *until {
                    break;
                }
                thread::sleep(BURST);
                0
            }
            None => break,
        };
        let now_ns = exact::<u64>(pace.started.elapsed().as_nanos());
        let time_ns = unix_ns();
        let mut send = |bytes: &[u8]| full.push(bytes.to_vec());
        for _ in 0..due {
            let random = mix64(args.seed ^ mix64(mix.reports));
            let rank = zipf.rank(random);
            mix.report(&flows[rank], rank, &mut |report| {
                reporter.report(report, flags, time_ns, now_ns, &mut send);
            });
        }
        sender.receive(|bytes| reporter.receive(bytes, now_ns));
        reporter.tick(now_ns, &mut send);
        for bytes in full.drain(..) {
            sender.send(&bytes)?;
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    reporter.flush(&mut |bytes: &[u8]| full.push(bytes.to_vec()));
    for bytes in full {
        sender.send(&bytes)?;
    }
    Ok(mix.reports)
}

/// Reports of all kinds.
struct Mix {
    profile: Profile,
    redundancy: u8,
    reports: u64,
    /// The flow whose hops report, and the next of them.
    card: Option<(FiveTuple, usize, u8)>,
}

/// The first of four lists: none that tables of INT use.
const LISTS: u32 = 8;
/// Hops of every path.
const HOPS: u8 = 5;

impl Mix {
    /// The next report, of this flow; a postcard may be of the flow before.
    fn report(&mut self, flow: &FiveTuple, rank: usize, each: &mut dyn FnMut(&Report<'_>)) {
        let turn = self.reports % 4;
        self.reports += 1;
        let kind = match self.profile {
            Profile::Mix if turn == 0 => Profile::KeyWrite,
            Profile::Mix if turn == 1 => Profile::KeyIncrement,
            Profile::Mix if turn == 2 => Profile::Append,
            Profile::Mix => Profile::Postcards,
            only => only,
        };
        let redundancy = self.redundancy;
        let word = exact::<u32>(rank).to_be_bytes();
        match kind {
            Profile::KeyWrite => each(&Report::KeyWrite {
                redundancy,
                key: Key::flow(flow).bytes(),
                data: &word,
            }),
            Profile::KeyIncrement => each(&Report::KeyIncrement {
                redundancy,
                key: Key::address(flow.source).bytes(),
                counter: 1,
            }),
            Profile::Append => each(&Report::Append {
                list: LISTS + exact::<u32>(self.reports / 4 % 4),
                data: &self.reports.to_be_bytes(),
            }),
            _ => {
                let (flow, rank, hop) = self.card.take().unwrap_or((*flow, rank, 0));
                each(&Report::Postcard {
                    key: Key::flow(&flow).bytes(),
                    hop,
                    path_len: Some(HOPS),
                    value: node_of(rank, hop),
                });
                self.card = (hop + 1 < HOPS).then_some((flow, rank, hop + 1));
            }
        }
    }
}

/// The node at a hop of the path of a rank.
fn node_of(rank: usize, hop: u8) -> u32 {
    let random = mix64((rank as u64) << 8 | u64::from(hop));
    1 + exact::<u32>(random % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_follow_zipfs_law() {
        let zipf = Zipf::new(1000, 1.0);
        let mut counts = vec![0_u32; 1000];
        for n in 0..200_000_u64 {
            counts[zipf.rank(mix64(n))] += 1;
        }
        // The first rank has 1 / H(1000) = 13.4 % of all, the tenth a tenth of that.
        assert!((25_500..28_000).contains(&counts[0]), "{}", counts[0]);
        assert!((2_300..3_100).contains(&counts[9]), "{}", counts[9]);
        let flat = Zipf::new(10, 0.0);
        assert!((0..1000).all(|n| flat.rank(mix64(n)) < 10));
        assert_eq!(flat.rank(u64::MAX), 9);
    }
}
