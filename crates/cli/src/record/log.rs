//! Arguments about a log: of `strata record`, and those that other commands share.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::fs::Mode;
use rustix::process::umask;
use strata_node::LogSpec;
use strata_sandbox::{Group, Owner};
use strata_store::{DiskChoice, RecorderOptions, WhenFull};

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

impl LogArgs {
    pub(super) fn spec(&self) -> Result<LogSpec> {
        let block_bytes = usize::try_from(text::bytes(&self.block_size)?)?;
        ensure!(
            (64 << 10..=256 << 20).contains(&block_bytes),
            "--block-size must be from 64KiB to 256MiB"
        );
        let bytes_max = self.disk_limit.as_deref().map(text::bytes).transpose()?;
        if let Some(limit) = bytes_max {
            bounded::size(limit, "--disk-limit", &(1..=bounded::BYTES_MAX))?;
        }
        let ring = self.filecount.filter(|_| self.rotate_seconds == 0);
        let files_max = ring.map_or(Ok(0), |files| usize::try_from(files.get()))?;
        let recorder = RecorderOptions {
            block_bytes,
            rotate_bytes: rotate_bytes(&self.rotate_size)?,
            rotate_ns: self.rotate_seconds * 1_000_000_000,
            when_full: match self.when_full {
                WhenFullArg::Stop => WhenFull::Stop,
                WhenFullArg::Drop => WhenFull::Drop,
            },
            files_max,
            ..RecorderOptions::default()
        };
        Ok(LogSpec {
            dir: self.output.clone(),
            recorder,
            disk: self.disk.into(),
            bytes_max,
            group: self.group.owner()?.group,
        })
    }

    /// After how long interfaces are no longer captured, as tcpdump has it: so many files of so
    /// many seconds, and then the end.
    pub(super) fn duration(&self) -> Option<Duration> {
        let files = self.filecount.filter(|_| self.rotate_seconds > 0)?;
        let seconds = self.rotate_seconds.saturating_mul(files.get().into());
        Some(Duration::from_secs(seconds))
    }
}
