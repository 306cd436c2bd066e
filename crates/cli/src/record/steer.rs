//! Steering of a recording: its configuration, its policies, its API, and what it says of
//! itself.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::statvfs;
use strata_confine::{Owner, SocketFile};
use strata_control::LostStatus;
use strata_control::alerts::{Alerts, Webhook};
use strata_control::api::{Endpoints, Server, TcpEndpoint, serve};
use strata_control::config::Config;
use strata_control::{Beginning, Controller, Event, Observed, client};
use strata_pipeline::ClassKept;
use strata_wire::{Ledger, Printable};

use super::confined::Reach;
use super::target::Destination;
use super::{RoadArgs, Setup};

/// How often a file's recording looks at itself.
const TICK: Duration = Duration::from_millis(50);
/// Over how long the use of CPU and disk is taken.
const BUSY_INTERVAL: Duration = Duration::from_millis(500);

/// Arguments of `strata record` for steering.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Steering")]
pub(super) struct SteerArgs {
    /// Configuration file (TOML): modes, policies, thresholds. `strata
    /// config-reference` describes it.
    #[arg(long, value_name = "FILE", env = "STRATA_CONFIG")]
    config: Option<PathBuf>,

    /// File with policies, in the form of the configuration file; they go after
    /// those of that.
    #[arg(long, value_name = "FILE", env = "STRATA_POLICY")]
    policy: Option<PathBuf>,

    /// What is done with packets that no policy matches: full, header, partial N,
    /// drop, classify (let the model decide) or mirror (and classify).
    #[arg(long, value_name = "ACTION", env = "STRATA_DEFAULT")]
    default: Option<String>,

    /// Unix socket on which `strata status`, `mode` and `policy` reach this
    /// recording. Without it, one in /run/strata or $XDG_RUNTIME_DIR/strata while
    /// interfaces are captured.
    #[arg(long, value_name = "PATH", env = "STRATA_SOCKET")]
    socket: Option<PathBuf>,

    /// Check everything that a start would need, and end: command line, configuration,
    /// policies, model, files, interfaces, addresses. Nothing is made or sent.
    #[arg(long)]
    pub(super) check: bool,
}

impl SteerArgs {
    fn read_config(&self) -> Result<Config> {
        let config = self.config.as_deref().map(Config::read).transpose()?;
        Ok(config.unwrap_or_default())
    }

    /// With what the recording begins: command line over environment over file.
    pub(super) fn beginning(
        &self,
        args: &RoadArgs,
        destination: &Destination,
    ) -> Result<Beginning> {
        let config = self.read_config()?;
        let none = PathBuf::new();
        let path = self.config.as_ref().unwrap_or(&none);
        let mut policies = config.policies(path)?;
        let mut default = config.default_action(path)?;
        if let Some(path) = &self.policy {
            let more = Config::read(path)?;
            policies.extend(more.policies(path)?);
            if more.default.is_some() {
                default = more.default_action(path)?;
            }
        }
        if let Some(text) = &self.default {
            default = text.parse().context("--default")?;
        }
        let mut modes = args.mode.clone();
        if modes.is_empty() {
            modes.clone_from(&config.mode);
        }
        if modes.is_empty() {
            modes.push(String::from("default"));
        }
        let configured = config
            .elastic
            .cpu_budget_percent
            .filter(|_| args.read.is_empty());
        let cpu_budget = args.live.cpu.or(configured).map(|percent| percent / 100.0);
        // A file waits for the disk, so nothing runs short.
        let answers = config.elastic.enabled && args.read.is_empty();
        Ok(Beginning {
            log: destination.name.clone(),
            modes,
            own_modes: config.modes,
            policies,
            default: Some(default),
            can_mirror: args.mirror_to.is_some(),
            can_rotate: destination.dir.is_some(),
            elastic: answers.then(|| config.elastic.options()),
            cpu_budget,
        })
    }

    /// Reads the configuration again.
    pub(super) fn reload(&self, args: &RoadArgs, setup: &Setup) -> Result<()> {
        if self.config.is_none() && self.policy.is_none() {
            return Ok(());
        }
        let beginning = self.beginning(args, &setup.destination)?;
        Ok(setup.controller.reload(beginning, "configuration")?)
    }

    /// What a recording into this log reaches.
    pub(super) fn reach<'a>(
        &self,
        args: &'a RoadArgs,
        log: Option<&'a Path>,
        socket: Option<&SocketFile>,
    ) -> Result<Reach<'a>> {
        let config = self.read_config()?;
        let files = [&self.config, &self.policy].into_iter().flatten();
        let read_later = [config.control.token_file, config.alerts.token_file];
        let read_later = read_later.into_iter().chain([config.alerts.ca_file]);
        let read_later = read_later.chain([args.attention.followed()]);
        Ok(Reach {
            log,
            socket_dirs: socket.and_then(SocketFile::own_dirs),
            files: files.cloned().chain(read_later.flatten()).collect(),
            interfaces: &args.live.interfaces,
        })
    }

    /// Where the API is to be served, and alerts are to be sent.
    pub(super) fn plan(&self) -> Result<SteerPlan> {
        let config = self.read_config()?;
        let tcp = config.control.tcp()?;
        Ok(SteerPlan {
            socket: self.socket.clone().or(config.control.socket),
            tcp,
            webhook: config.alerts.webhook(),
        })
    }

    /// Sends alerts, where they are wanted.
    pub(super) fn alerts(&self, setup: &Setup) -> Result<Option<Alerts>> {
        let Some(webhook) = self.read_config()?.alerts.webhook() else {
            return Ok(None);
        };
        let alerts = Alerts::start(&webhook, setup.destination.name.clone());
        Ok(Some(alerts.context("alerts.webhook")?))
    }

    /// Makes the socket of the API, where one is wanted.
    pub(super) fn socket(&self, args: &RoadArgs, owner: &Owner) -> Result<Option<SocketFile>> {
        let asked = self.socket.clone().or(self.read_config()?.control.socket);
        if let Some(path) = asked {
            return Ok(Some(SocketFile::bind(&path, owner)?));
        }
        if !args.read.is_empty() {
            return Ok(None);
        }
        // Nobody has asked for it, and the recording is worth more.
        Ok(client::own_socket(owner)
            .inspect_err(|error| eprintln!("strata: runs without steering: {error}"))
            .ok())
    }

    /// Serves the API, where it is wanted.
    pub(super) fn serve(
        &self,
        setup: &Setup,
        socket: Option<SocketFile>,
    ) -> Result<Option<Server>> {
        let tcp = self.read_config()?.control.tcp()?;
        if socket.is_none() && tcp.is_none() {
            return Ok(None);
        }
        let endpoints = Endpoints { socket, tcp };
        Ok(Some(serve(Arc::clone(&setup.controller), endpoints)?))
    }
}

/// Where the API is to be served, and alerts are to be sent.
pub(super) struct SteerPlan {
    /// The socket that was asked for: a recording goes on without its own.
    pub(super) socket: Option<PathBuf>,
    pub(super) tcp: Option<TcpEndpoint>,
    pub(super) webhook: Option<Webhook>,
}

/// An event as a line of the journal. Parts of it may come from a request.
pub(super) fn line(event: &Event) -> String {
    let [who, what, why] =
        [&event.who, &event.what, &event.why].map(|text| Printable(text).to_string());
    match (happened(event), why.is_empty()) {
        (true, true) => what,
        (true, false) => format!("{what}: {why}"),
        (false, true) => format!("{what} (by {who})"),
        (false, false) => format!("{what} (by {who}: {why})"),
    }
}

/// What the log's manifest says of what happened: the latest, bounded by number and by bytes.
#[derive(Default)]
pub(super) struct Told {
    lines: VecDeque<String>,
    bytes: usize,
    forgotten: u64,
}

/// Lines of the manifest about what happened, and their bytes.
const LINES_MAX: usize = 1000;
const LINES_BYTES_MAX: usize = 256 << 10;

impl Told {
    pub(super) fn push(&mut self, line: String) {
        self.bytes += line.len();
        self.lines.push_back(line);
        while self.lines.len() > LINES_MAX || self.bytes > LINES_BYTES_MAX {
            let Some(oldest) = self.lines.pop_front() else {
                return;
            };
            self.bytes -= oldest.len();
            self.forgotten += 1;
        }
    }

    pub(super) fn into_lines(self) -> Vec<String> {
        let earlier = format!("{} earlier events are in the journal only", self.forgotten);
        let earlier = (self.forgotten > 0).then_some(earlier);
        earlier.into_iter().chain(self.lines).collect()
    }
}

/// Whether nobody asked for it: then it is an alert.
pub(super) fn happened(event: &Event) -> bool {
    event.who == "strata"
}

/// What the journal shows a line with: as a warning, where standard error leads to it
/// (sd-daemon(3)).
pub(super) fn prefix(is_alert: bool) -> &'static str {
    let is_journal = std::env::var_os("JOURNAL_STREAM").is_some();
    if is_alert && is_journal { "<4>" } else { "" }
}

/// Brings together what a recording says of itself.
pub(super) struct Observer {
    /// The log's directory, if it is on this machine.
    output: Option<PathBuf>,
    latest: Mutex<Latest>,
}

/// What workers say of themselves, those of an input together.
#[derive(Default)]
pub(super) struct Noted {
    pub(super) ledger: Ledger,
    /// How much of each class was kept.
    pub(super) kept: Vec<ClassKept>,
    /// Interfaces: name, packets received and dropped so far.
    pub(super) rings: Vec<(String, u64, u64)>,
    /// What was lost before it came here.
    pub(super) lost: Vec<LostStatus>,
    /// CPU time of the busiest worker so far.
    pub(super) cpu: Option<Duration>,
    /// How long the busiest disk could not have taken more blocks.
    pub(super) disk_busy: Option<Duration>,
    /// Share of the fullest ring that waits.
    pub(super) ring_fill: Option<f64>,
    /// RDMA packets sent so far, and sent again.
    pub(super) rdma: (u64, u64),
    /// The longest that a packet waited in a ring lately.
    pub(super) ring_wait: Option<Duration>,
    /// When workers said so.
    pub(super) taken: Option<Instant>,
}

struct Latest {
    observed: Observed,
    /// CPU time of the busiest worker, how long the busiest disk was busy, and when it
    /// was that.
    busy: (Duration, Duration, Instant),
}

impl Observer {
    pub(super) fn new(setup: &Setup, workers: u16) -> Arc<Self> {
        let blocks = setup.destination.blocks_bytes * usize::from(workers);
        Arc::new(Self {
            output: setup.destination.dir.clone(),
            latest: Mutex::new(Latest {
                observed: Observed {
                    blocks_bytes: blocks as u64,
                    ..Observed::default()
                },
                busy: (Duration::ZERO, Duration::ZERO, Instant::now()),
            }),
        })
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut Latest) -> T) -> T {
        use_it(&mut self.latest.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Bytes of all memory blocks.
    pub(super) fn blocks_bytes(&self) -> u64 {
        self.with(|latest| latest.observed.blocks_bytes)
    }

    /// Notes what workers say.
    pub(super) fn note(&self, noted: Noted) {
        self.with(|latest| {
            let observed = &mut latest.observed;
            observed.ledger = noted.ledger;
            observed.kept = noted.kept;
            observed.rings = noted.rings;
            observed.lost = noted.lost;
            observed.ring_fill = noted.ring_fill;
            observed.ring_wait = noted.ring_wait;
            observed.workers_taken = noted.taken;
            observed.rdma = (noted.rdma.0 > 0).then_some(noted.rdma);
            let (cpu_before, disk_busy_before, since) = latest.busy;
            let elapsed = since.elapsed();
            if let (Some(cpu), Some(disk_busy)) = (noted.cpu, noted.disk_busy)
                && elapsed >= BUSY_INTERVAL
            {
                let share = |now: Duration, before: Duration| {
                    Some(now.saturating_sub(before).as_secs_f64() / elapsed.as_secs_f64())
                };
                observed.cpu_used = share(cpu, cpu_before);
                observed.disk_rate = share(disk_busy, disk_busy_before);
                let now = Instant::now();
                observed.load_taken = Some(now);
                latest.busy = (cpu, disk_busy, now);
            }
        });
    }

    /// What was noted last, and how full the disk is now.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn take(&self) -> Observed {
        let mut observed = self.with(|latest| latest.observed.clone());
        let disk = self.output.as_ref().and_then(|dir| statvfs(dir).ok());
        observed.disk_bytes = disk
            .as_ref()
            .map_or(0, |fs| fs.f_blocks.saturating_mul(fs.f_frsize));
        observed.disk_used = disk.and_then(|fs| {
            // As df has it: what only root may use is not there.
            let used = fs.f_blocks.checked_sub(fs.f_bfree)?;
            let all = used + fs.f_bavail;
            (all > 0).then(|| used as f64 / all as f64)
        });
        observed
    }
}

/// Looks at a recording of files from time to time. Ends when it is dropped.
pub(super) struct Ticker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    pub(super) fn start(setup: &Setup, observer: &Arc<Observer>) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (controller, observer) = (Arc::clone(&setup.controller), Arc::clone(observer));
        let stopped = Arc::clone(&stop);
        let work = move || {
            while !stopped.load(Ordering::Relaxed) {
                thread::park_timeout(TICK);
                tick(&controller, &observer);
            }
        };
        let thread = thread::Builder::new()
            .name("strata-control".into())
            .spawn(work);
        Ok(Self {
            stop,
            thread: Some(thread.context("cannot start a thread")?),
        })
    }
}

fn tick(controller: &Controller, observer: &Observer) {
    controller.tick(Instant::now(), observer.take());
    for event in controller.take_news() {
        eprintln!("strata: {}", line(&event));
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
