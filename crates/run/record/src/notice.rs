//! What a recording says while it starts and runs.

pub(crate) mod journal;

use std::fmt;
use std::path::PathBuf;

use strata_capture::live::{Exclusivity, Way};
use strata_control::Event;
use strata_exporter::Destination;
use strata_policy::DetailBudget;
use strata_processes::ProcessCounts;
use strata_role::{Level, Notice};
use strata_store::DiskReport;
use strata_wire::{Printable, count_of, grouped};

use crate::error::RecordError;

/// A message to the user of a recording. Displayed as a sentence, in which parts that may come from
/// outside are made printable.
#[derive(Debug)]
pub(crate) enum RecordNotice {
    /// Only a check, and another process records into the log.
    LogInUse(String),
    /// No model was chosen; with this budget of detail at the start.
    BuiltInModel(Option<DetailBudget>),
    /// The same without a log: only exports have the class.
    BuiltInModelOfExports,
    /// The log has recordings already: its name, and the number of the new one.
    AddedTo(String, u32),
    /// How blocks go to the disk.
    Disk(DiskReport),
    /// Packets are taken away from the host.
    Exclusive(Vec<String>),
    /// Whether they are was to be decided: how this interface is captured, and why.
    Decided(Way),
    /// No process can reopen interfaces that come back.
    NotReopened(RecordError),
    /// Why the kernel does not evaluate the filter.
    FilterAfterCopy(String),
    /// Why each interface has a ring of its own, though many should share one.
    RingEach(String),
    /// No client can control the recording.
    NoSteering(String),
    /// Packets are captured from now on.
    Capturing {
        /// The capture mode of each interface.
        ways: String,
        /// Maximum bytes captured of a packet.
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
        /// Bytes of the longest frame that its path carries in one packet, if that is of interest: of VXLAN.
        longest: Option<usize>,
        /// Whether what is sent there is encrypted.
        is_encrypted: bool,
    },
    /// A switch came, went or failed, or the relay's disk runs short.
    Relay(String),
    /// A line of `--eve` is not an event; reported once per stream.
    NotEve(String),
    /// What was read of `--eve`, all in all, the flows with an alert, and those of them of which packets were seen.
    Eve(EveCounts, (u64, u64)),
    /// Packets of TCP and UDP by what is known of their processes; sockets and connections that were forgotten.
    Processes(ProcessCounts, u64),
    /// The model's drift cannot be written: the disk is full.
    DriftNotWritten(PathBuf, std::io::Error),
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
            "{} lines read, {} of them alerts and {} not events of Suricata; {} rotations",
            grouped(self.lines),
            grouped(self.alerts),
            grouped(self.invalid),
            grouped(self.rotations),
        )
    }
}

impl RecordNotice {
    fn kind(&self) -> &'static str {
        match self {
            Self::LogInUse(_) => "log-in-use",
            Self::BuiltInModel(_) | Self::BuiltInModelOfExports => "built-in-model",
            Self::AddedTo(..) => "added-to",
            Self::Disk(_) => "disk",
            Self::Exclusive(_) | Self::Decided(_) => "exclusive",
            Self::NotReopened(_) => "not-reopened",
            Self::FilterAfterCopy(_) => "filter-after-copy",
            Self::RingEach(_) => "ring-each",
            Self::NoSteering(_) => "no-steering",
            Self::Capturing { .. } => "capturing",
            Self::Event(_) => "event",
            Self::Exporting { .. } => "exporting",
            Self::Relay(_) => "relay",
            Self::NotEve(_) => "not-eve",
            Self::Eve(..) => "eve",
            Self::Processes(..) => "processes",
            Self::DriftNotWritten(..) => "drift-not-written",
        }
    }

    fn level(&self) -> Level {
        match self {
            Self::DriftNotWritten(..) => Level::Warning,
            Self::NotReopened(_) | Self::NoSteering(_) | Self::NotEve(_) => Level::Happened,
            // It happened by itself, so an operator should look at it.
            Self::Event(event) if journal::happened(event) => Level::Happened,
            _ => Level::Info,
        }
    }

    fn fields(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Event(event) => vec![
                ("who", event.who.clone()),
                ("what", event.what.clone()),
                ("why", event.why.clone()),
            ],
            Self::Capturing { ways, snaplen } => {
                vec![("ways", ways.clone()), ("snaplen", snaplen.to_string())]
            }
            _ => Vec::new(),
        }
    }
}

impl From<RecordNotice> for Notice {
    fn from(notice: RecordNotice) -> Self {
        Self {
            kind: notice.kind(),
            level: notice.level(),
            fields: notice.fields(),
            text: notice.to_string(),
        }
    }
}

/// After a number of flows with an alert: what is known of them.
pub const NO_PACKET_AFTER_ALERT: &str = "without a packet from the alert on: they had ended before it, unless Suricata \
                                         sees other traffic (--look-back keeps earlier packets)";

const AFTER_COPY: &str = "the capture filter runs after packets are copied";
const RING_EACH: &str = "each interface has its own ring, which takes more memory: a shared ring \
                         needs eBPF (CAP_BPF)";

impl fmt::Display for RecordNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LogInUse(log) => write!(f, "{log}: another process is recording into it now"),
            Self::BuiltInModel(None) => f.write_str(
                "no model given (-m): the built-in one classifies packets, and the mode decides \
                 how much of each class is kept",
            ),
            Self::BuiltInModel(Some(budget)) => write!(
                f,
                "no model given (-m): the built-in model classifies packets, but a budget of \
                 detail decides which payload is kept: {budget} of the payload, short flows and \
                 the start of other flows first (--detail)"
            ),
            Self::BuiltInModelOfExports => f.write_str(
                "no model given (-m): packets are sent with the class that the built-in one gives \
                 them, and without a class where a policy or the default is drop",
            ),
            Self::AddedTo(log, number) => {
                let before = count_of(u64::from(number.saturating_sub(1)), "recording");
                write!(f, "{log} has {before} already; this is recording {number}")
            }
            Self::Disk(report) => write!(f, "{report}"),
            Self::Exclusive(names) => write!(
                f,
                "--exclusive: packets that pass the filter on {} are taken away from this host",
                names.join(", ")
            ),
            Self::Decided(way) => decided(f, way),
            Self::NotReopened(error) => {
                let error = error.chain();
                let error = Printable(&error);
                write!(
                    f,
                    "interfaces that disappear will not be captured again when they return: {error}"
                )
            }
            Self::FilterAfterCopy(why) => write!(f, "{AFTER_COPY}: {}", Printable(why)),
            Self::RingEach(why) => write!(f, "{RING_EACH}: {}", Printable(why)),
            Self::NoSteering(problem) => {
                write!(f, "the recording runs without a control socket: {problem}")
            }
            Self::Capturing { ways, snaplen } => write!(
                f,
                "capturing on {}, snapshot length {snaplen} bytes; Ctrl-C ends it",
                Printable(ways)
            ),
            Self::Exporting {
                name,
                to,
                longest,
                is_encrypted,
            } => {
                let not = if *is_encrypted { "" } else { "not " };
                write!(
                    f,
                    "policies may export to {name}, {to}: exports are {not}encrypted on the way"
                )?;
                if let Some(longest) = longest {
                    let then = if to.is_cut {
                        "cut"
                    } else {
                        "sent in IP fragments"
                    };
                    let longest = grouped(*longest as u64);
                    write!(f, "; frames of more than {longest} bytes are {then}")?;
                }
                Ok(())
            }
            Self::Event(event) => f.write_str(&journal::line(event)),
            Self::Relay(event) => write!(f, "{}", Printable(event)),
            Self::NotEve(problem) => {
                write!(f, "--eve: a line is not an event of Suricata: {problem}")
            }
            Self::Eve(counts, (flows, matched)) => {
                let of = count_of(*flows, "flow");
                write!(
                    f,
                    "--eve: {counts}; {of} with an alert, {} of them seen here",
                    grouped(*matched)
                )?;
                match flows.saturating_sub(*matched) {
                    0 => Ok(()),
                    missed => write!(f, ", {} {NO_PACKET_AFTER_ALERT}", grouped(missed)),
                }
            }
            Self::Processes(ProcessCounts { known, unknown }, forgotten) => write!(
                f,
                "--processes: {} packets have a process, {} packets of TCP and UDP have none; {} sockets and connections \
                 were forgotten or not noted",
                grouped(*known),
                grouped(*unknown),
                grouped(*forgotten)
            ),
            Self::DriftNotWritten(path, error) => write!(
                f,
                "the fit of the model is not recorded: {}: {error}",
                path.display()
            ),
        }
    }
}

/// How `--exclusive=auto` decided. Worded as an event that somebody asked for, which it is in the log.
fn decided(f: &mut fmt::Formatter<'_>, way: &Way) -> fmt::Result {
    let name = Printable(&way.interface);
    match &way.exclusive {
        Exclusivity::No(why) => write!(
            f,
            "{name}: shared with this host, through AF_PACKET: {}",
            Printable(why)
        ),
        _ => write!(
            f,
            "{name}: packets that pass the filter are taken away from this host, where nothing else uses it"
        ),
    }?;
    f.write_str(" (by --exclusive=auto)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_that_had_ended_before_their_alert_are_counted() {
        let counts = EveCounts {
            lines: 150,
            alerts: 120,
            invalid: 1,
            rotations: 0,
        };
        let said = |flows| RecordNotice::Eve(counts, flows).to_string();
        let some = said((35, 33));
        let expected = "120 of them alerts and 1 not events of Suricata; 0 rotations; 35 flows with an \
                        alert, 33 of them seen here, 2 without a packet from the alert on";
        assert!(some.contains(expected), "{some}");
        assert!(said((1, 1)).ends_with("; 1 flow with an alert, 1 of them seen here"));
    }
}
