//! Drops what a role does not need once everything is open: a live recording its interfaces, a relay or
//! a collector its sockets. Commands use [`confine`].

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{Access, AtFlags, CWD, Mode, accessat};
use rustix::thread::CapabilitySet;
use strata_sandbox::{
    Files, Owner, Role, SystemCallError, User, give_up_capabilities, keep_for_programs,
    leave_unrestricted, restrict_files, restrict_files_of_starter, restrict_process,
    restrict_process_for_now, restrict_starter, restrict_thread, serve,
};

use crate::error::{At as _, Result};
use crate::notice::{Level, Notice, Tell};

/// Receives what a thread of the sandboxed process could not drop. A process is sandboxed once,
/// permanently.
static TELL: OnceLock<Tell> = OnceLock::new();

/// Opens packet sockets, and nothing else, for another process until that is gone, as this user:
/// run by a program that was started for it ([`strata_sandbox::Helper`]).
///
/// # Errors
///
/// If there is no such user, or this process was not started as a helper.
pub fn open_sockets(user: Option<&str>) -> Result<()> {
    let user = user.map(User::named).transpose()?;
    Ok(serve(user.as_ref())?)
}

/// What a role or a command still needs that has opened what it could.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// The directory of its log or store, which exists or is made before: written, also by the user that it
    /// changes to.
    pub home: Option<PathBuf>,
    /// Other directories in which files are written, created and deleted, and devices that are written: of
    /// streams, their stripes too.
    pub write: Vec<PathBuf>,
    /// Files, and directories with everything in them, that are read later. Those that are replaced by
    /// editors belong to `again`.
    pub read: Vec<PathBuf>,
    /// Files that are read again, perhaps after they were replaced: configuration, policies, keys.
    pub again: Vec<PathBuf>,
    /// Directories in which a socket is removed at the end: the one created for it, and its parent.
    pub delete: Vec<PathBuf>,
    /// Interfaces that are captured or sent from: their counters are read.
    pub interfaces: Vec<String>,
    /// Capabilities that a command needs for a while, or to the end; none by default.
    pub keep: Option<CapabilitySet>,
}

/// Confines a command, once it has opened what needs privileges: to its files and the system calls of a
/// recording, without capabilities. To be done before threads are started, and before anything from outside
/// is read.
///
/// # Errors
///
/// If capabilities cannot be dropped. A kernel without Landlock or seccomp is not an error, but is
/// reported.
pub fn confine(reach: &Reach, tell: &Tell) -> Result<()> {
    let keep = reach.keep.unwrap_or(CapabilitySet::empty());
    give_up(&Owner::default(), reach, keep, tell)
}

/// Drops the capabilities that [`Reach::keep`] has kept, except these.
///
/// # Errors
///
/// The kernel's refusal.
pub fn drop_the_rest(keep: CapabilitySet) -> Result<()> {
    give_up_capabilities(None, keep, &[])?;
    // If this fails, so did the filter before, which was reported.
    let _ = restrict_process();
    Ok(())
}

/// Lets what this process makes from now on be for its owner and group only: stores, state, logs. Not for
/// commands that write what their user exports.
pub fn make_private_files() {
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

/// Part of the sandbox is missing.
fn missing(what: String) -> Notice {
    Notice::new(Level::Happened, "no-sandbox", what)
}

/// Reports what could not be restricted. Threads go on where the kernel has no seccomp, which was
/// reported.
fn restricted(
    files: std::result::Result<(), String>,
    calls: std::result::Result<(), SystemCallError>,
    tell: &Tell,
) {
    if let Err(error) = files {
        tell(&missing(format!("file access is not restricted: {error}")));
    }
    if let Err(error) = calls {
        leave_unrestricted();
        tell(&missing(format!(
            "system calls are not restricted: {error}"
        )));
    }
}

/// Changes to the owner's user, drops all capabilities except those to `keep`, and restricts access to
/// what is needed. To be done before threads are started. A kernel without Landlock or seccomp is not an
/// error, but is reported.
///
/// # Errors
///
/// If capabilities cannot be dropped, or that user may not write to its directory.
pub fn give_up(owner: &Owner, reach: &Reach, keep: CapabilitySet, tell: &Tell) -> Result<()> {
    let tell = TELL.get_or_init(|| Arc::clone(tell));
    let user = owner.user.as_ref();
    let dirs: Vec<&Path> = reach.written().map(PathBuf::as_path).collect();
    give_up_capabilities(user, keep, &dirs)?;
    if let (Some(_), Some(home)) = (user, &reach.home) {
        let writes = Access::WRITE_OK | Access::EXEC_OK;
        let may = accessat(CWD, home, writes, AtFlags::EACCESS);
        may.map_err(std::io::Error::from).at_with(|| {
            format!(
                "{}: the user of -Z cannot write to this directory: make this user the owner \
                 (chown), or name a directory that does not exist yet",
                home.display()
            )
        })?;
    }
    restricted(
        restrict_files(&reach.files()).map_err(|error| error.to_string()),
        match reach.keep.is_some() {
            true => restrict_process_for_now(),
            false => restrict_process(),
        },
        tell,
    );
    Ok(())
}

impl Reach {
    /// Adds the directory in which this file is to be made. A part of the name that is filled in later
    /// (`%Y`) may be that of a directory: then the one above it is added.
    pub fn makes(&mut self, file: &Path) {
        let dir = file.ancestors().skip(1);
        let named = |dir: &&Path| !dir.as_os_str().as_encoded_bytes().contains(&b'%');
        let dir = dir.filter(named).find(|dir| !dir.as_os_str().is_empty());
        self.write.push(dir.unwrap_or(Path::new(".")).to_owned());
    }

    fn written(&self) -> impl Iterator<Item = &PathBuf> {
        self.home.iter().chain(&self.write)
    }

    fn files(&self) -> Files {
        let mut files = Files {
            write: self.written().cloned().collect(),
            delete: self.delete.clone(),
            read: self.read.clone(),
        };
        for file in &self.again {
            files.read_again(file);
        }
        files.read.extend(counters(&self.interfaces));
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
pub fn thread(role: Role) {
    if let (Err(error), Some(tell)) = (restrict_thread(role), TELL.get()) {
        tell(&missing(format!(
            "the system calls of a thread are not restricted: {error}"
        )));
    }
}
