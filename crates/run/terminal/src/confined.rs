//! The sandbox of commands that are no role of their own (`strata_role::sandbox`), and the network namespace in
//! which a command works.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rustix::process::geteuid;
use rustix::thread::CapabilitySet;
use strata_capture::live::{SocketOpener, enter_namespace};
use strata_record::{SandboxSpec, socket_opener};
use strata_role::Tell;
use strata_role::sandbox::{self, Reach};
use strata_sandbox::runtime_dir;
use tracing::warn;

use crate::logging;

/// The network namespace of a command that captures interfaces.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct NetnsArgs {
    /// Work in this network namespace: its name (ip netns list), the PID of a process in it, such
    /// as a container's, or the path of its file. Addresses on which the command listens, or to
    /// which it sends, belong to this namespace, too; Unix sockets do not.
    #[arg(long, value_name = "NAME|PID|PATH")]
    netns: Option<String>,
}

impl NetnsArgs {
    /// Whether one is named.
    pub fn is_given(&self) -> bool {
        self.netns.is_some()
    }

    /// Enters it. To be called before threads are started.
    pub fn enter(&self) -> Result<()> {
        self.netns.as_deref().map_or(Ok(()), enter_netns)
    }
}

/// Enters the network namespace that `--netns` names. To be called before threads are started.
pub fn enter_netns(which: &str) -> Result<()> {
    enter_namespace(which)
        .map_err(|(path, error)| anyhow::Error::new(error).context(path.display().to_string()))
        .with_context(|| {
            format!(
                "--netns {which}: cannot enter this namespace: `ip netns list` shows names; \
                 entering needs CAP_SYS_ADMIN, which root has"
            )
        })
}

/// The option of commands that run until they are stopped.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SandboxArgs {
    /// Keep all privileges and access to all files, instead of dropping unneeded ones once all
    /// files and sockets are open.
    #[arg(long)]
    no_sandbox: bool,
}

impl SandboxArgs {
    /// Whether privileges are to be dropped.
    pub fn is_on(&self) -> bool {
        !self.no_sandbox
    }

    /// Drops all that is not needed any more. To be called before threads are started, and before
    /// anything from outside is read.
    pub fn confine(&self, reach: &Reach) -> Result<()> {
        match self.no_sandbox {
            true => sandbox::unconfined(),
            false => sandbox::confine(reach, &tell())?,
        }
        Ok(())
    }

    /// As [`SandboxArgs::confine`], for a command that writes into a log, and into the directory of a
    /// `file://` URL.
    pub fn to_log(&self, log: &Path, url: Option<&str>) -> Result<()> {
        let elsewhere = url.and_then(|url| url.strip_prefix("file://"));
        let elsewhere = elsewhere.map(Path::new);
        if let Some(dir) = elsewhere.filter(|_| self.is_on()) {
            // What is not there cannot be permitted.
            std::fs::create_dir_all(dir)?;
        }
        let write = [Some(log), elsewhere].into_iter().flatten();
        let public = [
            "/etc/ssl",
            "/etc/pki",
            "/etc/ca-certificates",
            "/usr/share/ca-certificates",
        ];
        self.confine(&Reach {
            read: public.map(Into::into).to_vec(),
            write: write.map(Path::to_owned).collect(),
            ..Reach::default()
        })
    }

    /// What opens packet sockets for interfaces that come back, once this process may not.
    pub fn opener(&self) -> Option<SocketOpener> {
        if self.no_sandbox {
            return None;
        }
        let helper = vec![String::from("helper")];
        let opener = socket_opener(&SandboxSpec { user: None, helper });
        opener
            .inspect_err(|error| {
                warn!(
                    "interfaces that disappear will not be captured again when they return: \
                {error}"
                );
            })
            .ok()
    }
}

/// What opening an interface to send from takes.
pub const TO_SEND: CapabilitySet = CapabilitySet::NET_RAW
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON);

/// What reading these files takes, which may be for their owner only.
pub fn to_read(files: &[PathBuf]) -> CapabilitySet {
    const OTHERS_READ: u32 = 0o004;
    let is_private = |file: &PathBuf| {
        std::fs::metadata(file)
            .is_ok_and(|found| found.uid() != geteuid().as_raw() && found.mode() & OTHERS_READ == 0)
    };
    match files.iter().any(is_private) {
        true => CapabilitySet::DAC_READ_SEARCH,
        false => CapabilitySet::empty(),
    }
}

/// Confines a command that follows what a running role shows: the files of a store, or a recording that
/// listens on a socket.
pub fn follower(store: Option<&Path>, socket: Option<&Path>) -> Result<()> {
    let dir = runtime_dir();
    let mut reach = Reach::default();
    reach.read.extend(store.map(Path::to_owned));
    reach.read.push(dir.clone());
    reach.keep = Some(to_read(&reach.read));
    let asked = socket.unwrap_or(&dir);
    let is_ours = std::fs::metadata(asked).is_ok_and(|it| it.uid() == geteuid().as_raw());
    if store.is_none() && !is_ours {
        // The socket of a recording with -Z is for its user.
        reach.keep = Some(CapabilitySet::DAC_READ_SEARCH | CapabilitySet::DAC_OVERRIDE);
    }
    SandboxArgs::default().confine(&reach)
}

/// Notices of the sandbox go where those of roles go.
pub fn tell() -> Tell {
    Arc::new(logging::notice)
}
