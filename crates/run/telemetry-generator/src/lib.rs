//! Reports of all kinds at a stated rate, from a seed: for tests and measurements of collectors.
//!
//! Used by the program of telemetry. It knows the formats of reports, and neither the store nor the service.
//!
//! ```text
//! mix      reports of values, counters, entries and postcards
//! network  what the switches of a simulated data center report
//! pace     when reports are due
//! sender   where datagrams go
//! ```

#![forbid(unsafe_code)]

mod mix;
mod network;
mod pace;
mod sender;

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use strata_capture::{CaptureError, Input, InputOptions, Next};
use strata_dta::int::stack::{Inner, Marks};
use strata_dta::key::FiveTuple;
use strata_dta::protocol::Flags;
use strata_dta::reporter::{Reporter, ReporterOptions};
use strata_traffic::{TcpFlow, Zipf};
use strata_wire::{LinkType, Meta, exact, mix64, unix_ns};

use mix::Mix;
use network::Network;
use pace::Pace;

pub use network::tree_paths;
pub use sender::ReportSender;

/// How long reports may be requested again after the last.
const ASKED: Duration = Duration::from_millis(200);

/// The kind of generated reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportProfile {
    /// All kinds except those of a network, in turn.
    Mix,
    /// The value of a flow is its rank.
    KeyWrite,
    /// Each report adds 1 for the source address of a flow.
    KeyIncrement,
    /// Numbers, in lists 8 to 11.
    Append,
    /// The five hops of a flow.
    Postcards,
    /// INT reports of the switches of a simulated data center.
    FatTree,
}

/// The reports to send.
#[derive(Clone, Debug)]
pub struct GenerateReportsSpec {
    /// The kind of generated reports.
    pub profile: ReportProfile,
    /// Reports per second; 0 is as many as possible.
    pub rate: u64,
    /// The same seed gives the same reports.
    pub seed: u64,
    /// Stop after this number; of a network, once all reports of the last packet are sent.
    pub reports: Option<u64>,
    /// Stop after this time.
    pub duration: Option<Duration>,
    /// Different keys, at least one; of a network, flows.
    pub keys: usize,
    /// Keys are drawn by Zipf's law with this exponent.
    pub zipf: f64,
    /// Take the first flows of this capture as keys. A network has its own.
    pub read: Option<PathBuf>,
    /// Copies of values and counters.
    pub redundancy: u8,
    /// Keep reports until they would have been requested again, and send those again.
    pub retransmit: bool,
}

/// The numbers of what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneratedReports {
    /// Reports.
    pub reports: u64,
    /// Datagrams with these reports.
    pub datagrams: u64,
    /// The number of times that no collector was listening.
    pub refused: u64,
    /// The duration of sending.
    pub took: Duration,
}

/// Why reports cannot be sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// The address cannot be sent to.
    #[error("--send-to {to}: cannot send reports: {source}")]
    Connect {
        /// The address.
        to: std::net::SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The socket refuses datagrams.
    #[error("cannot send reports: {0}")]
    Send(#[source] io::Error),
    /// The socket has accepted no datagram for 5 s.
    #[error(
        "cannot send reports: the socket's send buffer stayed full for 5 s: the interface cannot send, \
         or is too slow for --rate"
    )]
    Full,
    /// The capture cannot be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The capture has no flows.
    #[error("{}: no flows in this capture to use as keys", .0.display())]
    NoFlow(PathBuf),
    /// The operating system gives no random number.
    #[error(transparent)]
    Random(io::Error),
}

/// Sends reports until there are enough, or until `stop`.
///
/// # Errors
///
/// If they cannot be sent, or the capture cannot be read.
pub fn generate_reports(
    spec: &GenerateReportsSpec,
    mut sender: ReportSender,
    stop: &AtomicBool,
) -> Result<GeneratedReports, GenerateError> {
    let pace = Pace {
        started: Instant::now(),
        rate: spec.rate,
        limit: spec.reports,
        until: spec.duration,
    };
    let reports = match spec.profile {
        ReportProfile::FatTree => tree(spec, &mut sender, &pace, stop)?,
        _ => mixed(spec, &mut sender, &pace, stop)?,
    };
    Ok(GeneratedReports {
        reports,
        datagrams: sender.datagrams(),
        refused: sender.refused(),
        took: pace.started.elapsed(),
    })
}

/// A flow of generated traffic as the key of reports.
fn five_tuple(flow: &TcpFlow) -> FiveTuple {
    FiveTuple {
        source: IpAddr::V4(flow.source),
        destination: IpAddr::V4(flow.destination),
        source_port: flow.source_port,
        destination_port: flow.destination_port,
        protocol: 6,
    }
}

/// The first flows of a capture.
fn flows_of(path: &Path, limit: usize) -> Result<Vec<FiveTuple>, GenerateError> {
    let mut seen = std::collections::HashSet::new();
    let mut flows = Vec::new();
    let mut links: Vec<LinkType> = Vec::new();
    let mut input = Input::open(&[path.to_owned()], &InputOptions::default())?;
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
    if flows.is_empty() {
        return Err(GenerateError::NoFlow(path.to_owned()));
    }
    Ok(flows)
}

fn tree(
    spec: &GenerateReportsSpec,
    sender: &mut ReportSender,
    pace: &Pace,
    stop: &AtomicBool,
) -> Result<u64, GenerateError> {
    let mut network = Network::new(spec.seed, spec.keys);
    let zipf = Zipf::new(spec.keys, spec.zipf);
    let (mut sent, mut packets) = (0, 0_u64);
    while let Some(due) = pace.next(sent) {
        let until = sent + due;
        // A packet's reports are sent together: its hops are not counted apart.
        while sent < until {
            packets += 1;
            let rank = zipf.rank(mix64(spec.seed.wrapping_add(packets)));
            let elapsed_ns = exact::<u64>(pace.started.elapsed().as_nanos());
            for datagram in network.packet(rank, elapsed_ns) {
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

fn mixed(
    spec: &GenerateReportsSpec,
    sender: &mut ReportSender,
    pace: &Pace,
    stop: &AtomicBool,
) -> Result<u64, GenerateError> {
    let flows = match &spec.read {
        Some(path) => flows_of(path, spec.keys)?,
        None => {
            let flow = |rank| five_tuple(&TcpFlow::ranked(spec.seed, rank));
            (0..spec.keys).map(flow).collect()
        }
    };
    let zipf = Zipf::new(flows.len(), spec.zipf);
    let session =
        getrandom::u32().map_err(|error| GenerateError::Random(io::Error::other(error)))?;
    let mut reporter = Reporter::new(ReporterOptions::new(session.to_le_bytes()[0]));
    let flags = Flags {
        retransmittable: spec.retransmit,
        ..Flags::default()
    };
    let mut mix = Mix::new(spec.profile, spec.redundancy);
    let mut full: Vec<Vec<u8>> = Vec::new();
    let mut asked_until = None;
    loop {
        let due = match pace.next(mix.reports()) {
            Some(due) => due,
            // Others may be requested, a while after the last.
            None if spec.retransmit => {
                let until = asked_until.get_or_insert_with(|| Instant::now() + ASKED);
                if Instant::now() >= *until {
                    break;
                }
                pace::rest();
                0
            }
            None => break,
        };
        let now_ns = exact::<u64>(pace.started.elapsed().as_nanos());
        let time_ns = unix_ns();
        let mut send = |bytes: &[u8]| full.push(bytes.to_vec());
        for _ in 0..due {
            let random = mix64(spec.seed ^ mix64(mix.reports()));
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
    Ok(mix.reports())
}
