//! Notices from a node while it starts and runs.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use strata_capture::live::{Exclusivity, Way};
use strata_control::Event;
use strata_exporter::Destination;
use strata_policy::DetailBudget;
use strata_store::DiskReport;
use strata_wire::{Printable, grouped};

use crate::error::NodeError;
use crate::journal;

/// Takes notices, from any thread of a node.
pub type Tell = Arc<dyn Fn(&Notice) + Send + Sync>;

/// A notice for whoever runs a node. Displayed as a sentence, in which parts that may come from
/// outside are made printable.
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice {
    /// Only a check, and another process records into the log.
    LogInUse(String),
    /// No model was chosen; with this budget of detail at the start.
    BuiltInModel(Option<DetailBudget>),
    /// How blocks go to the disk.
    Disk(DiskReport),
    /// Packets are taken away from the host.
    Exclusive(Vec<String>),
    /// Whether they are was to be decided: how this interface is captured, and why.
    Decided(Way),
    /// No process can reopen interfaces that come back.
    NotReopened(NodeError),
    /// Why the kernel does not evaluate the filter.
    FilterAfterCopy(String),
    /// Why each interface has a ring of its own, though many should share one.
    RingEach(String),
    /// Part of the sandbox cannot be set up.
    NoSandbox(NoSandbox, String),
    /// Nobody can control the recording.
    NoSteering(String),
    /// Packets are captured from now on.
    Capturing {
        /// The capture mode of each interface.
        ways: String,
        /// Most bytes captured of a packet.
        snaplen: u32,
    },
    /// An event, requested or not.
    Event(Event),
    /// Policies may export to this destination from now on.
    Exporting {
        /// Its name.
        name: String,
        /// Where it is.
        to: Destination,
        /// Whether what is sent there is encrypted.
        is_encrypted: bool,
    },
    /// A controller of agents listens from now on.
    Controlling {
        /// Where.
        address: String,
        /// What hosts need to become agents.
        token: PathBuf,
    },
    /// An agent is connected to its controller.
    AtController(String),
    /// How an agent captures interfaces.
    Interfaces(String),
    /// A message of an agent's recording.
    OfRecording(String),
    /// A relay serves switches from now on.
    Serving {
        /// Where it listens.
        address: SocketAddr,
        /// The log's directory.
        log: PathBuf,
    },
    /// A telemetry translator takes reports from now on, whose collectors are elsewhere.
    Translating {
        /// Where it listens.
        address: SocketAddr,
        /// How reports are taken past the host's network stack, if they are.
        way: Option<String>,
        /// Where it listens for telemetry reports of INT.
        int: Option<SocketAddr>,
        /// The collectors.
        collectors: Vec<SocketAddr>,
        /// Where it keeps what it has counted.
        dir: PathBuf,
    },
    /// A telemetry collector takes translators from now on.
    TelemetryCollecting {
        /// Where they connect, and RoCEv2 packets arrive.
        address: SocketAddr,
        /// The store's directory.
        store: PathBuf,
        /// Whether the store existed.
        continued: bool,
    },
    /// A translator's collector is there, or away.
    Collector {
        /// Where it is.
        address: SocketAddr,
        /// Why it is away.
        away: Option<String>,
    },
    /// A collector's translator is there, or gone.
    Translator {
        /// Where it is.
        address: SocketAddr,
        /// Why it is gone.
        gone: Option<String>,
    },
    /// A telemetry collector takes reports from now on.
    Telemetry {
        /// Where it listens.
        address: SocketAddr,
        /// How reports are taken past the host's network stack, if they are.
        way: Option<String>,
        /// Where it listens for telemetry reports of INT.
        int: Option<SocketAddr>,
        /// The store's directory.
        store: PathBuf,
        /// Whether the store existed.
        continued: bool,
    },
    /// A collector of exported packets listens from now on.
    Collecting {
        /// Where.
        address: SocketAddr,
    },
    /// Clients may append to streams and read them from now on.
    ServingStreams {
        /// Where.
        address: SocketAddr,
        /// The directory of streams, if there is one.
        dir: Option<PathBuf>,
        /// Names of stripes for other machines' directories.
        stripes: Vec<String>,
    },
    /// A switch came, went or failed, or the relay's disk runs short.
    Relay(String),
    /// A relay ends: it writes what is in memory, unless the log cannot be written.
    Ending {
        /// Whether the log cannot be written.
        failed: bool,
    },
    /// A line of `--eve` is not an event; reported once per stream.
    NotEve(String),
    /// What was read of `--eve`, all in all.
    Eve(EveCounts),
    /// The model's drift cannot be written: the disk is full.
    DriftNotWritten(PathBuf, std::io::Error),
    /// Any other problem, worded as in the log's manifest.
    Warning(String),
}

/// What came from all sources of `--eve`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EveCounts {
    /// Lines that were read, without empty ones.
    pub lines: u64,
    /// Alerts among them.
    pub alerts: u64,
    /// Lines that are no event of Suricata, or too long for one.
    pub invalid: u64,
    /// Times that a file was renamed or emptied.
    pub rotations: u64,
}

impl fmt::Display for EveCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} lines read, {} of them alerts and {} no events of Suricata; {} rotations",
            grouped(self.lines),
            grouped(self.alerts),
            grouped(self.invalid),
            grouped(self.rotations),
        )
    }
}

/// A part of the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSandbox {
    /// The files that the process can access.
    Files,
    /// The system calls of the process.
    SystemCalls,
    /// The system calls of a thread.
    Thread,
}

impl Notice {
    /// Its subject, as a keyword for programs.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::LogInUse(_) => "log-in-use",
            Self::BuiltInModel(_) => "built-in-model",
            Self::Disk(_) => "disk",
            Self::Exclusive(_) | Self::Decided(_) => "exclusive",
            Self::NotReopened(_) => "not-reopened",
            Self::FilterAfterCopy(_) => "filter-after-copy",
            Self::RingEach(_) => "ring-each",
            Self::NoSandbox(..) => "no-sandbox",
            Self::NoSteering(_) => "no-steering",
            Self::Capturing { .. } => "capturing",
            Self::Event(_) => "event",
            Self::Exporting { .. } => "exporting",
            Self::Serving { .. }
            | Self::Telemetry { .. }
            | Self::Translating { .. }
            | Self::TelemetryCollecting { .. }
            | Self::ServingStreams { .. }
            | Self::Collecting { .. }
            | Self::Controlling { .. } => "serving",
            Self::AtController(_) => "controller",
            Self::Interfaces(_) => "interfaces",
            Self::OfRecording(_) => "recording",
            Self::Collector { .. } => "collector",
            Self::Translator { .. } => "translator",
            Self::Relay(_) => "relay",
            Self::Ending { .. } => "ending",
            Self::NotEve(_) => "not-eve",
            Self::Eve(_) => "eve",
            Self::DriftNotWritten(..) => "drift-not-written",
            Self::Warning(_) => "warning",
        }
    }

    /// Whether something went wrong.
    #[must_use]
    pub fn is_warning(&self) -> bool {
        matches!(
            self,
            Self::DriftNotWritten(..) | Self::Warning(_) | Self::Collector { away: Some(_), .. }
        )
    }

    /// Whether nobody requested the event, so that somebody should look at it.
    #[must_use]
    pub fn is_alert(&self) -> bool {
        matches!(self, Self::Event(event) if journal::happened(event))
    }
}

impl Notice {
    /// Those of roles that others connect to.
    fn fmt_serving(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serving { address, log } => write!(
                f,
                "relay on {address}, log in {}; Ctrl-C ends it",
                log.display()
            ),
            Self::Collecting { address } => {
                write!(f, "collecting on UDP {address}; Ctrl-C ends it")
            }
            Self::ServingStreams {
                address,
                dir,
                stripes,
            } => {
                write!(f, "streams on TCP {address}")?;
                if let Some(dir) = dir {
                    write!(f, ", in {}", dir.display())?;
                }
                if !stripes.is_empty() {
                    write!(f, ", stripes {}", stripes.join(" "))?;
                }
                f.write_str("; Ctrl-C ends it")
            }
            Self::Controlling { address, token } => write!(
                f,
                "agents on TCP {address}; hosts become agents with {}; Ctrl-C ends it",
                token.display()
            ),
            _ => unreachable!("the caller has looked"),
        }
    }

    /// Those of telemetry.
    fn fmt_telemetry(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Telemetry {
                address,
                way,
                int,
                store,
                continued,
            } => {
                write!(f, "reports on UDP {address}")?;
                if let Some(way) = way {
                    write!(f, " ({way})")?;
                }
                if let Some(int) = int {
                    write!(f, ", of INT on UDP {int}")?;
                }
                let what = if *continued { "continues" } else { "new" };
                let store = store.display();
                write!(f, ", store in {store} ({what}); Ctrl-C ends it")
            }
            Self::Translating {
                address,
                way,
                int,
                collectors,
                dir,
            } => {
                write!(f, "reports on UDP {address}")?;
                if let Some(way) = way {
                    write!(f, " ({way})")?;
                }
                if let Some(int) = int {
                    write!(f, ", of INT on UDP {int}")?;
                }
                let collectors: Vec<_> = collectors.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    ", to {} by RoCEv2; counters in {}; Ctrl-C ends it",
                    collectors.join(", "),
                    dir.display()
                )
            }
            Self::TelemetryCollecting {
                address,
                store,
                continued,
            } => {
                let what = match continued {
                    true => "continues",
                    false => "made when a translator connects",
                };
                write!(
                    f,
                    "translators on TCP {address}, RoCEv2 on UDP {address}, store in {} ({what}); \
                     Ctrl-C ends it",
                    store.display()
                )
            }
            Self::Collector { address, away } => match away {
                None => write!(f, "collector {address}: connected"),
                Some(why) => write!(
                    f,
                    "a collector is away, and its share of reports dropped: {}",
                    Printable(why)
                ),
            },
            Self::Translator { address, gone } => match gone {
                None => write!(f, "translator {address}: connected"),
                Some(why) => write!(f, "no translator any more: {}", Printable(why)),
            },
            _ => unreachable!("the caller has looked"),
        }
    }
}

const AFTER_COPY: &str = "the filter is evaluated after the copy";
const RING_EACH: &str = "each interface has a ring of its own, which needs more memory: one for all needs eBPF \
                         (CAP_BPF)";

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LogInUse(log) => write!(f, "{log}: another process is recording into it now"),
            Self::BuiltInModel(None) => f.write_str(
                "no model given (-m): the built-in one says what is ordinary, the mode what is kept",
            ),
            Self::BuiltInModel(Some(budget)) => write!(
                f,
                "no model given (-m): the built-in one chooses which {budget} of payload is kept \
                 (--detail)"
            ),
            Self::Disk(report) => write!(f, "{report}"),
            Self::Exclusive(names) => write!(
                f,
                "--exclusive: what passes the filter on {} is taken away from this host",
                names.join(", ")
            ),
            // Worded as an event that somebody asked for, which it is in the log.
            Self::Decided(way) => {
                let name = Printable(&way.interface);
                match &way.exclusive {
                    Exclusivity::No(why) => write!(
                        f,
                        "{name}: shared with this host, through AF_PACKET: {}",
                        Printable(why)
                    ),
                    _ => write!(
                        f,
                        "{name}: what passes the filter is taken away from this host, where \
                         nothing else uses it"
                    ),
                }?;
                f.write_str(" (by --exclusive=auto)")
            }
            Self::NotReopened(error) => {
                let error = error.chain();
                let error = Printable(&error);
                write!(
                    f,
                    "an interface that goes will not be captured when it is back: {error}"
                )
            }
            Self::FilterAfterCopy(why) => write!(f, "{AFTER_COPY}: {}", Printable(why)),
            Self::RingEach(why) => write!(f, "{RING_EACH}: {}", Printable(why)),
            Self::NoSandbox(part, problem) => match part {
                NoSandbox::Files => write!(f, "goes on without confining files: {problem}"),
                NoSandbox::SystemCalls => {
                    write!(f, "goes on without confining system calls: {problem}")
                }
                NoSandbox::Thread => {
                    write!(
                        f,
                        "a thread goes on without confining system calls: {problem}"
                    )
                }
            },
            Self::NoSteering(problem) => write!(f, "runs without steering: {problem}"),
            Self::Capturing { ways, snaplen } => write!(
                f,
                "capturing on {}, snapshot length {snaplen} bytes; Ctrl-C ends it",
                Printable(ways)
            ),
            Self::Exporting {
                name,
                to,
                is_encrypted,
            } => {
                let not = if *is_encrypted { "" } else { "not " };
                write!(
                    f,
                    "policies may export to {name}, {to}: what they export is {not}encrypted on its \
                     way"
                )
            }
            Self::AtController(address) => write!(f, "controller {address}: connected"),
            Self::OfRecording(text) => write!(f, "recording: {}", Printable(text)),
            Self::Event(event) => f.write_str(&journal::line(event)),
            Self::Telemetry { .. }
            | Self::Translating { .. }
            | Self::TelemetryCollecting { .. }
            | Self::Collector { .. }
            | Self::Translator { .. } => self.fmt_telemetry(f),
            Self::Serving { .. }
            | Self::Collecting { .. }
            | Self::ServingStreams { .. }
            | Self::Controlling { .. } => self.fmt_serving(f),
            Self::Relay(event) => write!(f, "{}", Printable(event)),
            Self::Ending { failed: true } => f.write_str("ending: the log cannot be written"),
            Self::Ending { failed: false } => f.write_str("ending; writing what is in memory"),
            Self::NotEve(problem) => {
                write!(f, "--eve: a line is not an event of Suricata: {problem}")
            }
            Self::Eve(counts) => write!(f, "--eve: {counts}"),
            Self::DriftNotWritten(path, error) => write!(
                f,
                "how well the model fits is not recorded: {}: {error}",
                path.display()
            ),
            Self::Interfaces(text) | Self::Warning(text) => write!(f, "{}", Printable(text)),
        }
    }
}
