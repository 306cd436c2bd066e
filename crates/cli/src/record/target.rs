//! Where a recording goes: into a log on this machine, or to a relay.

use std::fmt;
use std::fs;
use std::io::Write;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use rustix::fs::Mode;
use rustix::process::umask;
use rustix::thread::CapabilitySet;
use strata_confine::{Group, Owner, Role, User, make_log_dir};
use strata_relay::{Link, LinkReport};
use strata_store::{
    About, BlockSink, Disk, DiskChoice, LOG_ENTRIES, Log, MANIFEST_NAME, RealDisk, Recorder,
    RecorderOptions, StoreError, WhenFull, block_channel,
};
use strata_wire::{Ledger, Printable};

use super::confined;
use super::room::Limit;
use crate::switch::LinkSetup;
use crate::{bounded, text};

/// Arguments of `strata record` about its log.
#[derive(Debug, clap::Args)]
pub(super) struct LogArgs {
    /// Directory of the log; made if need be. Recording into an existing log adds
    /// to it.
    #[arg(short = 'o', long = "output", value_name = "DIR")]
    output: PathBuf,

    /// Begin a new block file before one holds more than so many million bytes;
    /// with a unit (500MB, 2GiB) that size; 0 never. At least one block.
    #[arg(short = 'C', long, value_name = "SIZE", default_value = "1GiB")]
    rotate_size: String,

    /// Begin a new block file once one spans so many seconds of packet time; 0
    /// never. Files end with a block, so a quiet input rotates late.
    #[arg(short = 'G', long, value_name = "SECONDS", default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(..=bounded::SECONDS_MAX))]
    rotate_seconds: u64,

    /// With -G: end after N times its seconds. Without: keep the last N block files of
    /// each worker and delete older ones, as a ring. (`strata prune` knows more ways to
    /// keep a log small.)
    #[arg(short = 'W', long, value_name = "N", requires = "interface")]
    filecount: Option<NonZeroU32>,

    /// Keep the log below this size, all the time while interfaces are captured: what is least
    /// important is deleted, as by `strata prune --max-size`. At least four block files of each
    /// worker (-C).
    #[arg(long, value_name = "SIZE", requires = "interface")]
    disk_limit: Option<String>,

    /// Size of a memory block, which is written at once.
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    block_size: String,

    /// When the disk is full: stop, or drop (go on, count what there is no room for, and
    /// write again once there is). Before that, modes that keep less relieve it while
    /// interfaces are captured.
    #[arg(long, value_enum, default_value_t = WhenFullArg::Stop)]
    when_full: WhenFullArg,

    /// How blocks go to the disk: direct (past the page cache), buffered (through
    /// it), or auto: while interfaces are captured what a measurement of a few
    /// milliseconds finds faster, else direct where the file system has it.
    #[arg(long, value_enum, default_value_t = DiskWay::Auto)]
    disk: DiskWay,

    #[command(flatten)]
    group: GroupArgs,
}

/// The option for who else may read a log.
#[derive(Debug, clap::Args)]
pub(crate) struct GroupArgs {
    /// Let the members of this group read the log: it becomes the group of the log's files,
    /// which only their owner reads and writes besides. Of a recording, they may use its
    /// socket too.
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
}

impl GroupArgs {
    /// Who is to own what is made. What was made before for members of the group would not be
    /// for them with a stricter umask, which does not count from now on.
    pub(crate) fn owner(&self) -> Result<Owner> {
        let group = self.group.as_deref().map(Group::named).transpose();
        let group = group.context("--group")?;
        if group.is_some() {
            umask(Mode::from_raw_mode(0o027));
        }
        Ok(Owner { user: None, group })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum WhenFullArg {
    Stop,
    Drop,
}

/// How blocks go to the disk, as the user says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DiskWay {
    Auto,
    Direct,
    Buffered,
}

impl From<DiskWay> for DiskChoice {
    fn from(way: DiskWay) -> Self {
        match way {
            DiskWay::Auto => Self::Auto,
            DiskWay::Direct => Self::Direct,
            DiskWay::Buffered => Self::Buffered,
        }
    }
}

/// Fails if something that is no log lies in the directory.
pub(super) fn refuse_foreign(dir: &Path) -> Result<()> {
    let listed = fs::read_dir(dir).map(|entries| entries.flatten().collect::<Vec<_>>());
    let entries = listed.unwrap_or_default();
    let ours = [
        "lock",
        "models",
        "blocks",
        "drift",
        "manifest.json.new",
        "manifest.json.spare",
        strata_control::saved::FILE_NAME,
    ];
    let foreign = entries
        .iter()
        .any(|e| !ours.iter().any(|name| e.file_name() == *name));
    if foreign && !dir.join(MANIFEST_NAME).exists() {
        let dir = dir.display().to_string();
        return Err(StoreError::NotALog { dir }.into());
    }
    Ok(())
}

/// The directory as a disk, unless something that is no log lies there.
pub(crate) fn log_directory(dir: &Path, owner: &Owner) -> Result<RealDisk> {
    refuse_foreign(dir)?;
    make_log_dir(dir, MANIFEST_NAME, &LOG_ENTRIES, owner).context("cannot make the log")?;
    Ok(RealDisk::at(dir))
}

/// A log's directory that may not be there yet. Until a recording has begun in it, what was made
/// of it goes when this is dropped: a start that fails leaves nothing behind.
pub(crate) struct NewDirectory {
    /// Directories that were not there, the innermost first.
    missing: Vec<PathBuf>,
}

impl NewDirectory {
    /// To be called before anything is made there.
    pub(crate) fn at(dir: &Path) -> Self {
        let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        let missing = dir.ancestors().take_while(|dir| !dir.exists());
        Self {
            missing: missing.map(Path::to_owned).collect(),
        }
    }

    /// What was made stays.
    pub(crate) fn keep(mut self) {
        self.missing.clear();
    }

    /// Takes a log away again that was made here, in which the one recording has ended without
    /// a packet. One that was there before, or that another process goes on with, stays.
    pub(crate) fn take_back(&self) {
        let Some(dir) = self.missing.first() else {
            return;
        };
        let Ok(Some(_lock)) = RealDisk::at(dir).lock() else {
            return;
        };
        if Log::open(dir).is_ok_and(|log| log.recordings().len() > 1) {
            return;
        }
        let _ = fs::remove_file(dir.join(MANIFEST_NAME));
        for name in ["blocks", "drift"] {
            let made = fs::read_dir(dir.join(name)).into_iter().flatten();
            for file in made.flatten() {
                let _ = fs::remove_file(file.path());
            }
            let _ = fs::remove_dir(dir.join(name));
        }
        let _ = fs::remove_file(dir.join("readers"));
    }
}

impl Drop for NewDirectory {
    fn drop(&mut self) {
        let Some(dir) = self.missing.first() else {
            return;
        };
        // With a manifest it is a log.
        if dir.join(MANIFEST_NAME).exists() {
            return;
        }
        // Who holds the lock has begun one here meanwhile.
        let lock = dir.join("lock");
        if let Ok(file) = fs::File::open(&lock) {
            if file.try_lock().is_err() {
                return;
            }
            let models = fs::read_dir(dir.join("models")).into_iter().flatten();
            for made in models.flatten().map(|entry| entry.path()).chain([lock]) {
                let _ = fs::remove_file(made);
            }
        }
        // Only empty ones go: whatever else lies there stays, and so do they.
        for name in ["blocks", "models"] {
            let _ = fs::remove_dir(dir.join(name));
        }
        for dir in &self.missing {
            let _ = fs::remove_dir(dir);
        }
    }
}

/// Bytes of a block file at most, 1 PiB: so those of all workers together are a number too.
const FILE_BYTES_MAX: u64 = 1 << 50;

/// As tcpdump's -C, a bare number counts millions of bytes.
pub(crate) fn rotate_bytes(text: &str) -> Result<u64> {
    let bytes = match text.parse::<u64>() {
        Ok(millions) => millions.checked_mul(1_000_000).context("-C is too large")?,
        Err(_) => text::bytes(text)?,
    };
    bounded::size(bytes, "-C", &(0..=FILE_BYTES_MAX))
}

/// Where a recording goes, checked as far as that can be done before it starts.
pub(crate) enum Target {
    /// Into a log on this machine.
    Log(LogTarget),
    /// To a relay.
    Relay(Box<LinkSetup>),
}

/// A log on this machine, and how it is written.
pub(crate) struct LogTarget {
    dir: PathBuf,
    options: RecorderOptions,
    /// For so many seconds only, of interfaces.
    lasts_seconds: Option<u64>,
    disk: DiskChoice,
    /// Bytes that the log is to stay below.
    disk_limit: Option<u64>,
    /// Who else may read it.
    owner: Owner,
}

/// Block files of each worker that a limited log must have room for: of fewer, whole ones cannot
/// be deleted in time.
const FILES_WITHIN_LIMIT: u64 = 4;

impl LogTarget {
    /// The log's directory.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts the recording of so many workers.
    fn start(&self, about: &About, workers: u16) -> Result<(Recording, Vec<BlockSink>)> {
        let mut disk = log_directory(&self.dir, &self.owner)?;
        // A file's packets wait for the disk, and would be read before it is measured.
        if self.disk != DiskChoice::Auto || about.live {
            let chosen = disk.choose(self.disk);
            let chosen = chosen.with_context(|| format!("{}: --disk", self.dir.display()))?;
            eprintln!("strata: {chosen}");
        }
        let options = self.options.clone();
        let (recorder, sinks) = Recorder::start_workers(Arc::new(disk), options, about, workers)?;
        Ok((Recording::Log(self.dir.clone(), recorder), sinks))
    }
}

impl Target {
    pub(super) fn log(args: &LogArgs) -> Result<Self> {
        let block_bytes = usize::try_from(text::bytes(&args.block_size)?)?;
        anyhow::ensure!(
            (64 << 10..=256 << 20).contains(&block_bytes),
            "--block-size must be from 64KiB to 256MiB"
        );
        let options = RecorderOptions {
            block_bytes,
            rotate_bytes: rotate_bytes(&args.rotate_size)?,
            rotate_ns: args.rotate_seconds * 1_000_000_000,
            when_full: match args.when_full {
                WhenFullArg::Stop => WhenFull::Stop,
                WhenFullArg::Drop => WhenFull::Drop,
            },
            on_thread: || confined::thread(Role::Writer),
            ..RecorderOptions::default()
        };
        let lasts = |files: NonZeroU32| args.rotate_seconds.saturating_mul(files.get().into());
        let ends = args.rotate_seconds > 0;
        let lasts_seconds = args.filecount.filter(|_| ends).map(lasts);
        let disk_limit = args.disk_limit.as_deref().map(text::bytes).transpose()?;
        if let Some(limit) = disk_limit {
            bounded::size(limit, "--disk-limit", &(1..=bounded::BYTES_MAX))?;
        }
        let ring = args.filecount.filter(|_| !ends);
        let files_max = ring.map_or(Ok(0), |files| usize::try_from(files.get()))?;
        Ok(Self::Log(LogTarget {
            dir: args.output.clone(),
            options: RecorderOptions {
                files_max,
                ..options
            },
            lasts_seconds,
            disk: args.disk.into(),
            disk_limit,
            owner: args.group.owner()?,
        }))
    }

    /// Who is to own what is made: this user, and the group that the log has.
    pub(super) fn owner(&self, user: Option<User>) -> Owner {
        let group = match self {
            Self::Log(log) => log.owner.group.clone(),
            Self::Relay(_) => None,
        };
        Owner { user, group }
    }

    /// What it takes to reach it again once it was lost: raw frames leave through a packet
    /// socket, which each connection to a relay opens.
    pub(super) fn capabilities(&self) -> CapabilitySet {
        match self {
            Self::Relay(setup) if setup.sends_frames() => CapabilitySet::NET_RAW,
            Self::Relay(_) | Self::Log(_) => CapabilitySet::empty(),
        }
    }

    /// The size that the log keeps below, of so many workers.
    pub(super) fn limit(&self, workers: u16) -> Option<Limit> {
        let Self::Log(log) = self else {
            return None;
        };
        Some(Limit {
            bytes: log.disk_limit?,
            reserve: log.options.rotate_bytes * u64::from(workers),
        })
    }

    /// Fails if so many workers cannot keep below the limit.
    pub(super) fn check_limit(&self, workers: u16) -> Result<()> {
        if let Some(limit) = self.limit(workers) {
            let least = limit.reserve.saturating_mul(FILES_WITHIN_LIMIT);
            anyhow::ensure!(
                limit.reserve > 0 && limit.bytes >= least,
                "--disk-limit must be at least {FILES_WITHIN_LIMIT} block files of each worker: \
                 make them smaller with -C, as in -C {}",
                (limit.bytes / FILES_WITHIN_LIMIT / u64::from(workers.max(1))).max(1 << 20)
            );
        }
        Ok(())
    }

    /// What a recording's steering says of where it goes.
    pub(super) fn destination(&self) -> Destination {
        match self {
            Self::Log(log) => Destination {
                name: log.dir.display().to_string(),
                dir: Some(log.dir.clone()),
                blocks_bytes: log.options.blocks * log.options.block_bytes,
            },
            Self::Relay(setup) => Destination {
                name: format!("relay {}", setup.relay()),
                dir: None,
                blocks_bytes: LOCAL_BLOCKS * LOCAL_BLOCK_BYTES,
            },
        }
    }

    /// After how many seconds interfaces are no longer captured, as tcpdump has it: so
    /// many files of so many seconds, and then the end.
    pub(super) fn lasts_seconds(&self) -> Option<u64> {
        match self {
            Self::Log(log) => log.lasts_seconds,
            Self::Relay(_) => None,
        }
    }

    /// Starts the recording of so many workers.
    pub(super) fn start(&self, about: &About, workers: u16) -> Result<(Recording, Vec<BlockSink>)> {
        match self {
            Self::Log(log) => log.start(about, workers),
            Self::Relay(setup) => {
                let mut links = Vec::new();
                let mut sinks = Vec::new();
                for worker in 0..workers {
                    let (sink, source) = block_channel(LOCAL_BLOCK_BYTES, LOCAL_BLOCKS);
                    let options = setup.options(about.clone(), worker)?;
                    links.push(Link::start(options, source, sink.end_handle())?);
                    sinks.push(sink);
                }
                Ok((Recording::Relay(setup.relay().to_owned(), links), sinks))
            }
        }
    }
}

/// Where a recording goes, for who observes it.
pub(super) struct Destination {
    pub(super) name: String,
    /// The log's directory, if it is on this machine.
    pub(super) dir: Option<PathBuf>,
    /// Memory of a worker's blocks.
    pub(super) blocks_bytes: usize,
}

/// A switch's own blocks only lead from one thread to another: small, to stay in
/// the cache.
const LOCAL_BLOCK_BYTES: usize = 256 << 10;
/// Enough to go on while the relay is busy for a moment.
const LOCAL_BLOCKS: usize = 64;

/// A recording that is running.
pub(super) enum Recording {
    Log(PathBuf, Recorder),
    Relay(String, Vec<Link>),
}

impl Recording {
    /// The log's directory and the recording's number, if it is on this machine.
    pub(super) fn log(&self) -> Option<(&Path, u32)> {
        match self {
            Self::Log(dir, recorder) => Some((dir, recorder.id())),
            Self::Relay(..) => None,
        }
    }

    /// Begins new files. At a relay they are the relay's affair.
    pub(super) fn rotate(&self) {
        if let Self::Log(_, recorder) = self {
            recorder.rotate();
        }
    }

    /// Ends it: everything is on disk, and the books are closed.
    pub(super) fn finish(self, ledger: &Ledger, warnings: Vec<String>) -> Result<Closed> {
        match self {
            Self::Log(dir, recorder) => {
                let id = recorder.id();
                recorder.finish(ledger, warnings)?;
                Ok(Closed::Log(dir, id))
            }
            Self::Relay(relay, mut links) => {
                // The last to end closes the recording, with the books of all.
                let last = links.pop().context("a recording has a worker")?;
                let mut reports: Vec<LinkReport> = links
                    .into_iter()
                    .map(|link| link.finish(None, Vec::new()))
                    .collect();
                reports.push(last.finish(Some(ledger), warnings));
                for problem in reports.iter().flat_map(|report| &report.problems) {
                    text::warn(&problem.to_string());
                }
                Ok(Closed::Relay(relay, reports))
            }
        }
    }
}

/// A recording that has ended.
pub(super) enum Closed {
    Log(PathBuf, u32),
    Relay(String, Vec<LinkReport>),
}

impl Closed {
    /// Fails if the relay did not store everything and close the recording.
    pub(super) fn check(&self) -> Result<()> {
        let Self::Relay(relay, reports) = self else {
            return Ok(());
        };
        match reports.iter().find_map(|report| report.failure.as_ref()) {
            Some(failure) => bail!("{relay}: {}", Printable(failure)),
            None => Ok(()),
        }
    }

    /// Says where it is and what is in it.
    pub(super) fn print(&self, out: &mut impl Write) -> Result<()> {
        writeln!(out, " -> {self}")?;
        match self {
            Self::Log(dir, id) => crate::info::print_recording(out, dir, *id),
            Self::Relay(_, reports) => reports.iter().try_for_each(|report| {
                let rdma = &report.rdma;
                writeln!(
                    out,
                    "sent: {} packets in {} segments, {} RDMA messages of {} in all; {} sent again, {} lost; {} blocks on the relay's disk",
                    text::count(report.packets),
                    text::count(report.segments),
                    text::count(rdma.posted),
                    text::human_bytes(report.bytes),
                    text::count(rdma.resent),
                    text::count(rdma.lost),
                    text::count(report.blocks),
                )?;
                if report.disconnections > 0 {
                    writeln!(
                        out,
                        "the relay was lost {} times, and with it {} packets of which it is not known that they are on its disk",
                        report.disconnections,
                        text::count(report.lost.packets),
                    )?;
                }
                Ok(())
            }),
        }
    }
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(dir, id) => write!(f, "{} recording {id}", dir.display()),
            Self::Relay(relay, reports) => {
                let id = reports.last().map_or(0, |report| report.recording);
                write!(f, "relay {relay} recording {id}")
            }
        }
    }
}
