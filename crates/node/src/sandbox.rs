//! Drops what a role does not need once everything is open: a live recording its interfaces, a relay or
//! a collector its sockets. Commands that are no role of this crate use [`confine`].

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{Access, AtFlags, CWD, Mode, accessat};
use rustix::thread::CapabilitySet;
use strata_capture::live::SocketOpener;
use strata_sandbox::{
    Files, Helper, Owner, Role, SystemCallError, User, give_up_capabilities, keep_for_programs,
    leave_unrestricted, restrict_files, restrict_files_of_starter, restrict_process,
    restrict_process_for_now, restrict_starter, restrict_thread, serve,
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
///
/// # Errors
///
/// If it cannot be started.
pub fn opener(spec: &SandboxSpec) -> Result<SocketOpener> {
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
    /// What a command may read and write.
    pub(crate) command: Option<&'a Confined>,
}

/// What a command still needs that has opened what it could.
#[derive(Clone, Debug, Default)]
pub struct Confined {
    /// Files, and directories with everything in them, that are read later. Those that are replaced by
    /// editors belong to `again`.
    pub read: Vec<PathBuf>,
    /// Files that are read again, perhaps after they were replaced.
    pub again: Vec<PathBuf>,
    /// Directories in which files are written, created and deleted.
    pub write: Vec<PathBuf>,
    /// Directories of streams, which may have stripes elsewhere.
    pub streams: Vec<PathBuf>,
    /// Interfaces that are captured, or sent from.
    pub interfaces: Vec<String>,
    /// Capabilities that are needed for a while, or to the end; none by default.
    pub keep: Option<CapabilitySet>,
}

impl Confined {
    /// Adds the directory in which this file is to be made. A part of the name that is filled in later
    /// (`%Y`) may be that of a directory: then the one above it is added.
    pub fn makes(&mut self, file: &Path) {
        let dir = file.ancestors().skip(1);
        let named = |dir: &&Path| !dir.as_os_str().as_encoded_bytes().contains(&b'%');
        let dir = dir.filter(named).find(|dir| !dir.as_os_str().is_empty());
        self.write.push(dir.unwrap_or(Path::new(".")).to_owned());
    }
}

/// Confines a command that is no role of this crate, once it has opened what needs privileges: to its
/// files and the system calls of a recording, without capabilities. To be done before threads are
/// started, and before anything from outside is read.
///
/// # Errors
///
/// If capabilities cannot be dropped. A kernel without Landlock or seccomp is not an error, but is
/// reported.
pub fn confine(confined: &Confined, tell: &Tell) -> Result<()> {
    let reach = Reach {
        interfaces: &confined.interfaces,
        command: Some(confined),
        ..Reach::default()
    };
    let keep = confined.keep.unwrap_or(CapabilitySet::empty());
    give_up(&Owner::default(), &reach, keep, tell)
}

/// Drops the capabilities that [`Confined::keep`] has kept, except these.
///
/// # Errors
///
/// The kernel's refusal.
pub(crate) fn drop_the_rest(keep: CapabilitySet) -> Result<()> {
    give_up_capabilities(None, keep, &[])?;
    // If this fails, so did the filter before, which was told.
    let _ = restrict_process();
    Ok(())
}

/// Lets what this process makes from now on be for its owner and group only: stores, state, logs. Not for
/// commands that write what their user exports.
pub(crate) fn make_private_files() {
    const OTHERS: Mode = Mode::WGRP.union(Mode::RWXO);
    rustix::process::umask(OTHERS);
}

/// Says that this process is not confined, on purpose: `--no-sandbox`, or a command that reads files and
/// ends with them.
pub fn unconfined() {
    leave_unrestricted();
}

/// Confines a command that starts other programs, which may have the capabilities `keep` and read all
/// files: it writes in `write` only, and neither it nor they can change the machine (see
/// [`restrict_starter`]). To be done before threads are started.
///
/// # Errors
///
/// As [`confine`].
pub fn confine_starter(keep: CapabilitySet, write: &[PathBuf], tell: &Tell) -> Result<()> {
    let tell = TELL.get_or_init(|| Arc::clone(tell));
    let none = PathBuf::from("/");
    keep_for_programs(keep, write.first().unwrap_or(&none))?;
    confine_programs(write, tell);
    Ok(())
}

/// As [`confine_starter`], for one whose programs need no capability: it keeps what it needs to reach
/// `dirs` of others itself.
///
/// # Errors
///
/// As [`confine`].
pub fn confine_server(dirs: &[&Path], write: &[PathBuf], tell: &Tell) -> Result<()> {
    let tell = TELL.get_or_init(|| Arc::clone(tell));
    give_up_capabilities(None, CapabilitySet::empty(), dirs)?;
    confine_programs(write, tell);
    Ok(())
}

fn confine_programs(write: &[PathBuf], tell: &Tell) {
    let files = Files {
        write: write.to_vec(),
        ..Files::default()
    };
    restricted(
        restrict_files_of_starter(&files).map_err(|error| error.to_string()),
        restrict_starter(),
        tell,
    );
}

/// Tells what could not be restricted. Threads go on where the kernel has no seccomp, which was said.
fn restricted(
    files: std::result::Result<(), String>,
    calls: std::result::Result<(), SystemCallError>,
    tell: &Tell,
) {
    if let Err(error) = files {
        tell(&Notice::NoSandbox(NoSandbox::Files, error));
    }
    if let Err(error) = calls {
        leave_unrestricted();
        tell(&Notice::NoSandbox(
            NoSandbox::SystemCalls,
            error.to_string(),
        ));
    }
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
    give_up_capabilities(user, keep, &reach.dirs())?;
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
    let files = restrict_files(&reach.files());
    let drops_more = reach.command.is_some_and(|command| command.keep.is_some());
    restricted(
        files.map_err(|error| error.to_string()),
        match drops_more {
            true => restrict_process_for_now(),
            false => restrict_process(),
        },
        tell,
    );
    Ok(())
}

impl Reach<'_> {
    /// Directories that are written.
    fn dirs(&self) -> Vec<&Path> {
        let own = self.log.or(self.store);
        let command = self.command.into_iter();
        let of_command = command.flat_map(|command| command.write.iter().chain(&command.streams));
        own.into_iter()
            .chain(of_command.map(PathBuf::as_path))
            .collect()
    }

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
        if let Some(command) = self.command {
            let of_streams = command.streams.iter();
            let stripes = of_streams.clone().flat_map(|dir| stripe_paths(dir));
            files.write.extend(stripes);
            files.write.extend(of_streams.cloned());
            files.write.extend_from_slice(&command.write);
            files.read.extend_from_slice(&command.read);
            for file in &command.again {
                files.read_again(file);
            }
        }
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

/// In a sandboxed process, restricts the calling thread to the system calls of its role. Panics in one
/// that has neither set up its sandbox nor said that it has none ([`unconfined`]).
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
