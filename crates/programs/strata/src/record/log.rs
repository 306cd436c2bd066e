//! Log options: those of `strata record`, and those that `strata collector` shares.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::builder::Resettable;
use strata_record::{DestinationSpec, LogSpec};
use strata_sandbox::Group;
use strata_store::{DiskChoice, RecorderOptions, WhenFull};
use strata_terminal::log_options::{DiskWay, GroupArgs, rotate_bytes};
use strata_terminal::output::refuse;
use strata_terminal::{bounded, text};

use super::interfaces::only_live;

/// Log options of `strata record`.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Log")]
pub(super) struct LogArgs {
    /// Write the log to this directory, created if missing. If it has a log, the recording is added
    /// to it.
    ///
    /// Without --output, nothing is stored: packets are only exported, to the destinations
    /// in the configuration file (--config).
    #[arg(
        short = 'o',
        long = "output",
        value_name = "DIR",
        help_heading = Resettable::Reset,
        display_order = 0
    )]
    output: Option<PathBuf>,

    #[command(flatten)]
    files: LogFiles,

    /// Limit the number of files: with -G, exit after N periods of -G; without -G, keep the last N
    /// block files of each worker, and delete older ones.
    ///
    /// (`strata prune` has other ways to keep a
    /// log small.)
    #[arg(short = 'W', long, value_name = "N", value_parser = text::at_least_1::<NonZeroU32>)]
    filecount: Option<NonZeroU32>,

    /// Set the size of a memory block, the unit that is written to disk: 64KiB to 256MiB.
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    block_size: String,

    /// Choose how blocks are written: direct (bypassing the page cache), buffered (through the page
    /// cache), or auto: for a live capture, the method that is faster in a short test, else direct
    /// if the file system supports it.
    #[arg(long, value_enum, default_value_t = DiskWay::Auto)]
    disk: DiskWay,

    #[command(flatten)]
    group: GroupArgs,
}

/// Files and size of a log.
#[derive(Debug, clap::Args)]
pub(crate) struct LogFiles {
    /// Rotate: start a new block file before the current one exceeds this size, in millions of
    /// bytes or with a unit (500MB, 2GiB); 0 means never. The default is 1GiB.
    ///
    /// A file holds at least one block.
    #[arg(short = 'C', long, value_name = "SIZE")]
    rotate_size: Option<String>,

    /// Rotate: start a new block file once the current one spans this many seconds by packet
    /// timestamps; 0 means never.
    ///
    /// A file holds whole blocks, so it can span much longer unless
    /// packets are captured live.
    #[arg(short = 'G', long, value_name = "SECONDS", default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(..=bounded::SECONDS_MAX))]
    rotate_seconds: u64,

    /// Keep the log of a live capture or a collector below this size, by deleting the least
    /// important data.
    ///
    /// This is what `strata prune --max-size` does. The limit must be at least four times -C for each
    /// worker.
    #[arg(long, value_name = "SIZE")]
    disk_limit: Option<String>,

    /// Choose what to do when the disk is full: stop (the default), or drop (continue, count the
    /// packets that do not fit, and write again once there is room). Live captures switch to modes
    /// that keep less before the disk is full.
    #[arg(long, value_enum)]
    when_full: Option<WhenFullArg>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum WhenFullArg {
    Stop,
    Drop,
}

impl LogFiles {
    /// The first of its options that is given.
    pub(crate) fn first_given(&self) -> Option<&'static str> {
        let given = [
            ("-C", self.rotate_size.is_some()),
            ("-G", self.rotate_seconds > 0),
            ("--disk-limit", self.disk_limit.is_some()),
            ("--when-full", self.when_full.is_some()),
        ];
        let found = given.into_iter().find(|(_, is_given)| *is_given);
        found.map(|(option, _)| option)
    }

    /// A log in this directory, for this group too.
    pub(crate) fn spec(&self, dir: &Path, group: Option<Group>) -> Result<LogSpec> {
        let bytes_max = self
            .disk_limit
            .as_deref()
            .map(|text| bounded::bytes(text, "--disk-limit"))
            .transpose()?;
        if let Some(limit) = bytes_max {
            bounded::size(limit, "--disk-limit", &(1..=bounded::BYTES_MAX))?;
        }
        let recorder = RecorderOptions {
            rotate_bytes: rotate_bytes(self.rotate_size.as_deref().unwrap_or("1GiB"))?,
            rotate_ns: self.rotate_seconds * 1_000_000_000,
            when_full: match self.when_full {
                None | Some(WhenFullArg::Stop) => WhenFull::Stop,
                Some(WhenFullArg::Drop) => WhenFull::Drop,
            },
            ..RecorderOptions::default()
        };
        Ok(LogSpec {
            dir: dir.to_owned(),
            recorder,
            disk: DiskChoice::Auto,
            bytes_max,
            group,
        })
    }
}

impl LogArgs {
    /// Refuses what has no meaning for capture files.
    pub(super) fn check_for_files(&self) -> Result<()> {
        only_live(&[
            ("-W", self.filecount.is_some()),
            ("--disk-limit", self.files.disk_limit.is_some()),
        ])
    }

    /// The directory of the log, if there is one.
    pub(super) fn dir(&self) -> Option<&Path> {
        self.output.as_deref()
    }

    /// Where the recording goes.
    pub(super) fn destination(&self) -> Result<DestinationSpec> {
        match &self.output {
            Some(dir) => Ok(DestinationSpec::Log(Box::new(self.spec(dir)?))),
            None => {
                self.check_without_log()?;
                Ok(DestinationSpec::Nowhere)
            }
        }
    }

    /// Where a recording would go of which only the configuration is checked.
    pub(super) fn any_destination(&self) -> Result<DestinationSpec> {
        let dir = self.output.as_deref().unwrap_or(Path::new(""));
        Ok(DestinationSpec::Log(Box::new(self.spec(dir)?)))
    }

    /// Refuses options of a log where there is no log. (-G with -W also ends a recording.)
    fn check_without_log(&self) -> Result<()> {
        let given = [
            ("--disk-limit", self.files.disk_limit.is_some()),
            ("--group", self.group.is_given()),
            (
                "-W",
                self.filecount.is_some() && self.files.rotate_seconds == 0,
            ),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            None => Ok(()),
            Some((option, _)) => Err(refuse(format!("{option} applies to a log: add -o DIR"))),
        }
    }

    fn spec(&self, dir: &Path) -> Result<LogSpec> {
        let block_bytes = usize::try_from(bounded::bytes(&self.block_size, "--block-size")?)?;
        bounded::size(block_bytes as u64, "--block-size", &(64 << 10..=256 << 20))?;
        let ring = self.filecount.filter(|_| self.files.rotate_seconds == 0);
        let files_max = ring.map_or(Ok(0), |files| usize::try_from(files.get()))?;
        let log = self.files.spec(dir, self.group.owner()?.group)?;
        Ok(LogSpec {
            recorder: RecorderOptions {
                block_bytes,
                files_max,
                ..log.recorder
            },
            disk: self.disk.into(),
            ..log
        })
    }

    /// How long interfaces are captured, as in tcpdump: this many files of this many seconds, then
    /// the end.
    pub(super) fn duration(&self) -> Option<Duration> {
        let files = self.filecount.filter(|_| self.files.rotate_seconds > 0)?;
        let seconds = self.files.rotate_seconds.saturating_mul(files.get().into());
        Some(Duration::from_secs(seconds))
    }
}
