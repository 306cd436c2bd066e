//! Options of commands that write a log.

use anyhow::{Context, Result};
use rustix::fs::Mode;
use rustix::process::umask;
use strata_sandbox::{Group, Owner};
use strata_store::DiskChoice;

use crate::arguments::bounded;
use crate::output::refuse;

/// The option that lets others read a log.
#[derive(Debug, clap::Args)]
pub struct GroupArgs {
    /// Give the files and sockets that this command creates to this group, whose members may then
    /// read the files and use the sockets. By default, only the owner can.
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
}

impl GroupArgs {
    /// Whether a group is named.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.group.is_some()
    }

    /// Who owns what is created. Also sets the umask from now on: a stricter one would keep the
    /// members of the group out.
    pub fn owner(&self) -> Result<Owner> {
        let group = self.group.as_deref().map(Group::named).transpose();
        let group = group.context("--group")?;
        if group.is_some() {
            umask(Mode::from_raw_mode(0o027));
        }
        Ok(Owner { user: None, group })
    }
}

/// How blocks go to the disk, as the user writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DiskWay {
    /// Direct or buffered, chosen as above.
    Auto,
    /// Bypass the page cache.
    Direct,
    /// Write through the page cache.
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

/// Largest block file, 1 PiB, so that the sum over all workers fits in a number too.
const FILE_BYTES_MAX: u64 = 1 << 50;

/// As with tcpdump's -C, a bare number is in millions of bytes.
pub fn rotate_bytes(text: &str) -> Result<u64> {
    let bytes = match text.parse::<u64>() {
        Ok(millions) => millions.checked_mul(1_000_000).ok_or_else(|| {
            refuse(format!(
                "-C: '{text}': write at most 1PiB (a bare number is in millions of bytes)"
            ))
        })?,
        Err(_) => bounded::bytes(text, "-C")?,
    };
    bounded::size(bytes, "-C", &(0..=FILE_BYTES_MAX))
}
