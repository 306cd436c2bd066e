//! Gives up what a recording from interfaces does not need once it has opened them, and a relay
//! once it listens.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::thread::CapabilitySet;
use strata_capture::live::SocketOpener;
use strata_confine::{
    Files, Helper, Owner, Role, User, confine_files, confine_process, confine_thread,
    give_up_capabilities, serve,
};

use super::target::log_directory;

/// Arguments of the process that opens packet sockets.
#[derive(Debug, clap::Args)]
pub(crate) struct HelperArgs {
    /// Change to this user.
    #[arg(long)]
    user: Option<String>,
}

/// Opens packet sockets for another process until that is gone.
pub(crate) fn helper(args: &HelperArgs) -> Result<()> {
    let user = args.user.as_deref().map(User::named).transpose()?;
    Ok(serve(user.as_ref())?)
}

/// Starts the helper, and gives what opens packet sockets through it.
pub(super) fn opener(user: Option<&str>) -> Result<SocketOpener> {
    let mut arguments = vec!["helper"];
    if let Some(user) = user {
        arguments.extend(["--user", user]);
    }
    let helper =
        Helper::start(&arguments).context("cannot start the process that opens sockets")?;
    let helper = Arc::new(helper);
    Ok(SocketOpener::new(move |cooked| {
        helper.packet_socket(cooked)
    }))
}

/// What a recording still reaches.
#[derive(Default)]
pub(crate) struct Reach<'a> {
    /// The log's directory, if it is on this machine.
    pub(crate) log: Option<&'a Path>,
    /// The directory that was made for the socket of the API, and the one around it.
    pub(crate) socket_dirs: Option<[PathBuf; 2]>,
    /// Files that are read again: configuration, policies.
    pub(crate) files: Vec<PathBuf>,
    /// The interfaces whose counters are read.
    pub(crate) interfaces: &'a [String],
}

/// Makes the log for its owner, changes to that, gives up all capabilities but those to `keep`,
/// and reaches only what it has to. To be done before threads are started.
pub(crate) fn give_up(owner: &Owner, reach: &Reach<'_>, keep: CapabilitySet) -> Result<()> {
    if let Some(log) = reach.log {
        log_directory(log, owner)?;
    }
    let user = owner.user.as_ref();
    give_up_capabilities(user, keep, reach.log)?;
    if let (Some(_), Some(log)) = (user, reach.log) {
        let writes = Access::WRITE_OK | Access::EXEC_OK;
        let may = accessat(CWD, log, writes, AtFlags::EACCESS);
        may.with_context(|| {
            format!(
                "{}: the user of -Z cannot write here: make it the owner (chown), or name a \
                 directory that does not exist yet",
                log.display()
            )
        })?;
    }
    if let Err(error) = confine_files(&reach.files()) {
        eprintln!("strata: goes on without confining files: {error}");
    }
    if let Err(error) = confine_process() {
        eprintln!("strata: goes on without confining system calls: {error}");
    }
    Ok(())
}

impl Reach<'_> {
    fn files(&self) -> Files {
        let mut files = Files {
            write: self.log.map(Path::to_owned).into_iter().collect(),
            delete: self.socket_dirs.iter().flatten().cloned().collect(),
            ..Files::default()
        };
        for file in &self.files {
            files.read_again(file);
        }
        files.read.extend(counters(self.interfaces));
        files
    }
}

/// The directories of sysfs with interfaces' counters: where the names are, and where these
/// lead, also when an interface comes back.
fn counters(interfaces: &[String]) -> impl Iterator<Item = PathBuf> {
    let names = Path::new("/sys/class/net");
    let devices = interfaces.iter().filter_map(|interface| {
        let device = names.join(interface).canonicalize().ok()?;
        Some(device.parent()?.to_owned())
    });
    let always = [names.to_owned(), "/sys/devices/virtual/net".into()];
    always.into_iter().chain(devices)
}

/// Leaves the calling thread the system calls of its role, in a recording that is confined.
pub(super) fn thread(role: Role) {
    if let Err(error) = confine_thread(role) {
        eprintln!("strata: a thread goes on without confining system calls: {error}");
    }
}

/// Says why a file cannot be read, where confinement is why.
pub(super) fn explain(error: anyhow::Error) -> anyhow::Error {
    let denied = |cause: &(dyn std::error::Error + 'static)| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    };
    if error.chain().any(denied) {
        return error.context(
            "a recording reaches only its log, its socket and the directories of the files it \
             was started with; start it anew with other files, or with --no-sandbox",
        );
    }
    error
}
