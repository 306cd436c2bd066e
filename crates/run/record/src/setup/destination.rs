//! Where a recording goes: into a log on this machine, to a relay, or nowhere if it only exports.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use rustix::thread::CapabilitySet;
use strata_blocks::{BlockSink, Incoming, Written, block_channel, link_channel};
use strata_control::Controller;
use strata_control::elastic::Degradation;
use strata_policy::WorkerCounts;
use strata_relay::{Link, LinkOptions, LinkReport, OnNews, OnShortage, Transport};
use strata_role::{Notice, RoleError, Tell};
use strata_sandbox::{Owner, Role, User};
use strata_store::{
    About, DetailKept, DiskChoice, FlowTable, Recorder, RecorderOptions, Room, WhenFull,
};
use strata_wire::Printable;

use crate::beside::reclaim::{Growth, Limit};
use crate::error::{At as _, Result};
use crate::notice::RecordNotice;
use crate::setup::log_dir::log_directory;
use crate::spec::{DestinationSpec, LogSpec};

/// A switch's own blocks only lead from one thread to another: small, to stay in the cache.
const LOCAL_BLOCK_BYTES: usize = 256 << 10;
/// Enough to continue while the relay is briefly busy.
const LOCAL_BLOCKS: usize = 64;
/// Blocks of a recording that keeps nothing, into which only interfaces are written.
const UNUSED_BLOCK_BYTES: usize = 64 << 10;
const UNUSED_BLOCKS: usize = 2;
/// Nothing comes before the end, which ends the wait.
const UNUSED_WAIT: Duration = Duration::from_secs(3600);

impl DestinationSpec {
    /// The owner of what is created: this user, and the log's group.
    pub(crate) fn owner(&self, user: Option<User>) -> Owner {
        let group = match self {
            Self::Log(log) => log.group.clone(),
            Self::Relay(_) | Self::Nowhere => None,
        };
        Owner { user, group }
    }

    /// What reconnecting requires: raw frames leave through a packet socket, which each connection
    /// to a relay opens.
    pub(crate) fn capabilities(&self) -> CapabilitySet {
        match self {
            Self::Relay(link) if matches!(link.transport, Transport::Raw(..)) => {
                CapabilitySet::NET_RAW
            }
            Self::Relay(_) | Self::Log(_) | Self::Nowhere => CapabilitySet::empty(),
        }
    }

    /// What reconnecting reads: raw frames need the addresses of the interface and of its
    /// neighbours.
    pub(crate) fn reads(&self) -> Vec<PathBuf> {
        match self {
            Self::Relay(link) => match &link.transport {
                Transport::Raw(_, interface) => vec![
                    Path::new("/sys/class/net").join(interface).join("address"),
                    "/proc/self/net/arp".into(),
                ],
                _ => Vec::new(),
            },
            Self::Log(_) | Self::Nowhere => Vec::new(),
        }
    }

    /// Tests in tcpdump's language that its own traffic fails.
    pub(crate) fn own_traffic(&self) -> Result<Vec<String>> {
        match self {
            Self::Relay(link) => Ok(link.own_traffic()?),
            Self::Log(_) | Self::Nowhere => Ok(Vec::new()),
        }
    }

    /// The log's size limit, with this many workers. A live capture loses packets if they wait.
    pub(crate) fn limit(&self, workers: u16, is_live: bool) -> Option<Limit> {
        let Self::Log(log) = self else {
            return None;
        };
        Some(Limit {
            bytes: log.bytes_max?,
            reserve: log.recorder.rotate_bytes.saturating_mul(u64::from(workers)),
            growth: match is_live {
                true => Growth::Asks,
                false => Growth::Waits,
            },
        })
    }

    /// Fails if this many workers cannot stay below the limit.
    pub(crate) fn check_limit(&self, workers: u16) -> strata_role::Result<()> {
        match (self, self.limit(workers, true)) {
            (Self::Log(log), Some(limit)) => limit.check(log.recorder.rotate_bytes, workers),
            _ => Ok(()),
        }
    }

    /// Its name.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Log(log) => log.dir.display().to_string(),
            Self::Relay(link) => format!("relay {}", link.relay),
            Self::Nowhere => String::from("no log, exports only"),
        }
    }

    /// The log's directory, if it is on this machine.
    pub(crate) fn dir(&self) -> Option<&Path> {
        match self {
            Self::Log(log) => Some(&log.dir),
            Self::Relay(_) | Self::Nowhere => None,
        }
    }

    /// Whether the recording ends when the disk is full.
    pub(crate) fn ends_when_full(&self) -> bool {
        matches!(self, Self::Log(log) if log.recorder.when_full == WhenFull::Stop)
    }

    /// Whether the recording only exports.
    pub(crate) fn is_nowhere(&self) -> bool {
        matches!(self, Self::Nowhere)
    }

    /// Memory of a worker's blocks.
    pub(crate) fn blocks_bytes(&self) -> usize {
        match self {
            Self::Log(log) => log.recorder.blocks * log.recorder.block_bytes,
            Self::Relay(_) => LOCAL_BLOCKS * LOCAL_BLOCK_BYTES,
            Self::Nowhere => UNUSED_BLOCKS * UNUSED_BLOCK_BYTES,
        }
    }

    /// Starts a recording with this many workers, which ask for `room` in a log with a limit.
    pub(crate) fn start(
        &self,
        about: &About,
        workers: u16,
        (controller, room): (&Arc<Controller>, Option<Arc<dyn Room>>),
        stop: &Arc<AtomicBool>,
        tell: &Tell,
    ) -> Result<(Recording, Vec<BlockSink>)> {
        match self {
            Self::Log(log) => start_log((log, room), &self.owner(None), about, workers, tell),
            Self::Relay(link) => {
                let mut links = Vec::new();
                let mut sinks = Vec::new();
                for worker in 0..workers {
                    let (sink, source) = link_channel(LOCAL_BLOCK_BYTES, LOCAL_BLOCKS);
                    let options = LinkOptions {
                        about: about.clone(),
                        worker,
                        stop: Some(Arc::clone(stop)),
                        on_shortage: Some(follow_relay(controller)),
                        reads_files: !about.live,
                        on_news: Some(tell_news(tell)),
                        ..(**link).clone()
                    };
                    links.push(Link::start(options, source, sink.end_handle())?);
                    sinks.push(sink);
                }
                let relay = link.relay.clone();
                Ok((Recording::Relay { relay, links }, sinks))
            }
            Self::Nowhere => {
                let sinks: Result<Vec<BlockSink>> = (0..workers).map(|_| nowhere()).collect();
                Ok((Recording::Nowhere, sinks?))
            }
        }
    }
}

/// Says what happens with a relay.
fn tell_news(tell: &Tell) -> OnNews {
    let tell = Arc::clone(tell);
    Arc::new(move |news| tell(&Notice::warning(news)))
}

/// Passes a relay's requests on to the controller.
fn follow_relay(controller: &Arc<Controller>) -> OnShortage {
    let controller = Arc::clone(controller);
    Arc::new(move |worker, shortage| {
        let asked = Degradation {
            detail: false,
            partial: shortage.partial,
            sampled: shortage.sampled,
        };
        controller.note_relay(worker, asked, &shortage.why);
    })
}

/// Blocks that are emptied as they come. Modes and policies keep no packet, so they hold none.
fn nowhere() -> Result<BlockSink> {
    let (sink, source) = block_channel(UNUSED_BLOCK_BYTES, UNUSED_BLOCKS);
    let empty = move || {
        strata_role::sandbox::thread(Role::Memory);
        loop {
            match source.receive(UNUSED_WAIT) {
                Incoming::Block(block) => {
                    let counters = block.counters();
                    let outcome = Ok(());
                    source.finish(block, Written { counters, outcome });
                }
                Incoming::Flush | Incoming::Nothing => {}
                Incoming::End => break,
            }
        }
    };
    let thread = thread::Builder::new().name("strata-nowhere".into());
    thread
        .spawn(empty)
        .map_err(RoleError::thread("empties blocks"))?;
    Ok(sink)
}

fn start_log(
    (log, room): (&LogSpec, Option<Arc<dyn Room>>),
    owner: &Owner,
    about: &About,
    workers: u16,
    tell: &Tell,
) -> Result<(Recording, Vec<BlockSink>)> {
    let mut disk = log_directory(&log.dir, owner)?;
    // A recording of files waits for the disk, and would be over before the disk is measured.
    if log.disk != DiskChoice::Auto || about.live {
        let chosen = disk.choose(log.disk);
        let chosen = chosen.at_with(|| format!("{}: --disk", log.dir.display()))?;
        tell(&RecordNotice::Disk(chosen).into());
    }
    let options = RecorderOptions {
        on_thread: || strata_role::sandbox::thread(Role::Writer),
        room,
        ..log.recorder.clone()
    };
    let (recorder, sinks) = Recorder::start_workers(Arc::new(disk), options, about, workers)?;
    if recorder.id() > 1 {
        let name = Printable(&log.dir.display().to_string()).to_string();
        tell(&RecordNotice::AddedTo(name, recorder.id()).into());
    }
    let dir = log.dir.clone();
    Ok((Recording::Log { dir, recorder }, sinks))
}

/// A running recording.
pub(crate) enum Recording {
    Log {
        dir: PathBuf,
        recorder: Recorder,
    },
    Relay {
        relay: String,
        links: Vec<Link>,
    },
    /// Packets are exported only.
    Nowhere,
}

impl Recording {
    /// The log's directory and the recording's number, if it is on this machine.
    pub(crate) fn log(&self) -> Option<(&Path, u32)> {
        match self {
            Self::Log { dir, recorder } => Some((dir, recorder.id())),
            Self::Relay { .. } | Self::Nowhere => None,
        }
    }

    /// Lets what was submitted be written, until [`Recording::finish`]: nothing more comes.
    pub(crate) fn end(&self) {
        if let Self::Log { recorder, .. } = self {
            recorder.end();
        }
    }

    /// Starts new files. At a relay, the relay does this itself.
    pub(crate) fn rotate(&self) {
        if let Self::Log { recorder, .. } = self {
            recorder.rotate();
        }
    }

    /// Ends it: everything is on disk, and the counters are closed.
    pub(crate) fn finish(
        self,
        counts: &WorkerCounts,
        warnings: Vec<String>,
        tell: &Tell,
    ) -> Result<Closed> {
        match self {
            Self::Log { dir, mut recorder } => {
                let recording = recorder.id();
                if let Some(pressure) = &counts.pressure {
                    recorder.describe_flow_table(FlowTable {
                        bytes: pressure.bytes(),
                        packets: pressure.packets,
                        without_entry: pressure.without_bucket,
                    });
                }
                if let Some(detail) = &counts.detail {
                    recorder.describe_detail(DetailKept {
                        offered_packets: detail.offered.packets,
                        offered_bytes: detail.offered.bytes,
                        given_packets: detail.given.packets,
                        given_bytes: detail.given.bytes,
                        over_budget_packets: detail.over_budget.packets,
                        over_budget_bytes: detail.over_budget.bytes,
                        outside_packets: detail.outside.packets,
                        outside_bytes: detail.outside.bytes,
                    });
                }
                recorder.finish(&counts.ledger, warnings)?;
                Ok(Closed::Log { dir, recording })
            }
            Self::Relay { relay, mut links } => {
                // The last link to end closes the recording, with the counters of all.
                let last = links.pop().expect("a recording has a worker");
                let mut reports: Vec<LinkReport> = links
                    .into_iter()
                    .map(|link| link.finish(None, Vec::new()))
                    .collect();
                reports.push(last.finish(Some(&counts.ledger), warnings));
                for problem in reports.iter().flat_map(|report| &report.problems) {
                    tell(&Notice::warning(problem.clone()));
                }
                Ok(Closed::Relay { relay, reports })
            }
            Self::Nowhere => Ok(Closed::Nowhere),
        }
    }
}

/// A recording that has ended.
#[derive(Debug)]
pub enum Closed {
    /// In a log on this machine.
    Log {
        /// Its directory.
        dir: PathBuf,
        /// The recording's number in it.
        recording: u32,
    },
    /// At a relay.
    Relay {
        /// As the user named it.
        relay: String,
        /// The report of each worker's link; at least one.
        reports: Vec<LinkReport>,
    },
    /// Nowhere: packets were exported only.
    Nowhere,
}

impl Closed {
    /// Fails if the relay did not store everything and close the recording.
    pub(crate) fn check(&self) -> Result<()> {
        let Self::Relay { relay, reports } = self else {
            return Ok(());
        };
        match reports.iter().find_map(|report| report.failure.as_ref()) {
            Some(failure) => {
                let failure = Printable(failure);
                Err(RoleError::Refused(format!("{relay}: {failure}")).into())
            }
            None => Ok(()),
        }
    }
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log { dir, recording } => write!(f, "{} recording {recording}", dir.display()),
            Self::Relay { relay, reports } => {
                let id = reports.last().map_or(0, |report| report.recording);
                write!(f, "relay {relay} recording {id}")
            }
            Self::Nowhere => f.write_str("exports only"),
        }
    }
}
