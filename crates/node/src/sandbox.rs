//! Drops what a live recording does not need after opening its interfaces, and a relay once it
//! listens.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::thread::CapabilitySet;
use strata_capture::live::SocketOpener;
use strata_sandbox::{
    Files, Helper, Owner, Role, User, give_up_capabilities, restrict_files, restrict_process,
    restrict_thread, serve,
};

use crate::error::{At as _, NodeError, Result};
use crate::log_dir::log_directory;
use crate::notice::{NoSandbox, Notice, Tell};
use crate::spec::SandboxSpec;
use crate::stream::stripe_paths;

/// Receives what a thread of the sandboxed process could not drop. A process is sandboxed once,
/// permanently.
static TELL: OnceLock<Tell> = OnceLock::new();

/// Opens packet sockets, and nothing else, for another process until that is gone, as this user:
/// run by a program started with the arguments of [`SandboxSpec::helper`].
///
/// # Errors
///
/// If there is no such user, or this process was not started as a helper.
pub fn open_sockets(user: Option<&str>) -> Result<()> {
    let user = user.map(User::named).transpose()?;
    Ok(serve(user.as_ref())?)
}

/// Starts the helper; returns the opener that uses it.
pub(crate) fn opener(spec: &SandboxSpec) -> Result<SocketOpener> {
    let arguments: Vec<&str> = spec.helper.iter().map(String::as_str).collect();
    let helper = Helper::start(&arguments).at("cannot start the process that opens sockets")?;
    let helper = Arc::new(helper);
    Ok(SocketOpener::new(move |cooked| {
        helper.packet_socket(cooked)
    }))
}

/// What a recording can still access.
#[derive(Debug, Default)]
pub(crate) struct Reach<'a> {
    /// The log's directory, if it is on this machine.
    pub(crate) log: Option<&'a Path>,
    /// A directory that exists and is written, but is no log.
    pub(crate) store: Option<&'a Path>,
    /// A directory of streams, one of which is appended to.
    pub(crate) streams: Option<&'a Path>,
    /// Stripes of other machines' directories.
    pub(crate) stripes: Vec<PathBuf>,
    /// The directory created for the API's socket, and its parent.
    pub(crate) socket_dirs: Option<[PathBuf; 2]>,
    /// Files that are read again: configuration, policies.
    pub(crate) files: Vec<PathBuf>,
    /// The interfaces whose counters are read.
    pub(crate) interfaces: &'a [String],
}

/// Creates the log for its owner, changes to that user, drops all capabilities except those to
/// `keep`, and restricts access to what is needed. To be done before threads are started.
/// A kernel without Landlock or seccomp is not an error, but is reported.
pub(crate) fn give_up(
    owner: &Owner,
    reach: &Reach<'_>,
    keep: CapabilitySet,
    tell: &Tell,
) -> Result<()> {
    let tell = TELL.get_or_init(|| Arc::clone(tell));
    if let Some(log) = reach.log {
        log_directory(log, owner)?;
    }
    let user = owner.user.as_ref();
    let written = reach.log.or(reach.store);
    give_up_capabilities(user, keep, written)?;
    if let (Some(_), Some(log)) = (user, written) {
        let writes = Access::WRITE_OK | Access::EXEC_OK;
        let may = accessat(CWD, log, writes, AtFlags::EACCESS);
        may.map_err(std::io::Error::from).at_with(|| {
            format!(
                "{}: the user of -Z cannot write here: make it the owner (chown), or name a \
                 directory that does not exist yet",
                log.display()
            )
        })?;
    }
    if let Err(error) = restrict_files(&reach.files()) {
        tell(&Notice::NoSandbox(NoSandbox::Files, error.to_string()));
    }
    if let Err(error) = restrict_process() {
        tell(&Notice::NoSandbox(
            NoSandbox::SystemCalls,
            error.to_string(),
        ));
    }
    Ok(())
}

impl Reach<'_> {
    fn files(&self) -> Files {
        let mut files = Files {
            write: self
                .log
                .into_iter()
                .chain(self.store)
                .chain(self.streams)
                .map(Path::to_owned)
                .chain(self.stripes.iter().cloned())
                .chain(self.streams.into_iter().flat_map(stripe_paths))
                .collect(),
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

/// The sysfs directories with interfaces' counters: those with the names, and their link targets,
/// which also hold an interface that comes back.
fn counters(interfaces: &[String]) -> impl Iterator<Item = PathBuf> {
    let names = Path::new("/sys/class/net");
    let devices = interfaces.iter().filter_map(|interface| {
        let device = names.join(interface).canonicalize().ok()?;
        Some(device.parent()?.to_owned())
    });
    let always = [names.to_owned(), "/sys/devices/virtual/net".into()];
    always.into_iter().chain(devices)
}

/// In a sandboxed recording, restricts the calling thread to the system calls of its role.
pub(crate) fn thread(role: Role) {
    if let (Err(error), Some(tell)) = (restrict_thread(role), TELL.get()) {
        tell(&Notice::NoSandbox(NoSandbox::Thread, error.to_string()));
    }
}

/// If the sandbox is why a file cannot be read, says so.
pub(crate) fn explain(error: NodeError) -> NodeError {
    if !error.is_denied() {
        return error;
    }
    NodeError::At {
        what: String::from(
            "a recording reaches only its log, its socket and the directories of the files it \
             was started with; start it anew with other files, or with --no-sandbox",
        ),
        source: Box::new(error),
    }
}
